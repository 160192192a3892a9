//! Following one numbered sequence of messages: what is lost, came twice, or came out of order.

/// Where a connection stands in one sequence. Numbers begin at one.
///
/// A connection joins in the middle: the first message tells where. Up to [`Tracker::begin`]'s
/// number any first message is right, since what was published while the connection opened may come
/// or not; beyond it, what lies between is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tracker {
    last: u32,
    /// Bit i: `last - i` has come. Zero: nothing has come yet.
    seen: u32,
}

/// How a message fits into its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is the next.
    Next,
    /// So many before it haven't come.
    Gap(u32),
    /// It fills a gap: it was counted as missing, and comes after a later one.
    Late,
    /// It has come before, or lies more than 32 back, where that isn't known any more.
    Again,
}

impl Tracker {
    /// A connection that opens after so many were published.
    pub fn begin(published: u32) -> Self {
        Self { last: published, seen: 0 }
    }

    /// A connection of which it isn't known when the server began to listen for it: any first
    /// message is right.
    pub fn anywhere() -> Self {
        Self::begin(u32::MAX)
    }

    /// True while it began anywhere, and nothing has come.
    pub fn is_anywhere(&self) -> bool {
        *self == Self::anywhere()
    }

    /// True when something has come.
    pub fn has_any(&self) -> bool {
        self.seen != 0
    }

    /// Takes the message with this number.
    pub fn arrive(&mut self, number: u32) -> Arrival {
        if number > self.last {
            let ahead = number - self.last;
            let first = self.seen == 0;
            self.seen = self.seen.checked_shl(ahead).unwrap_or(0) | 1;
            self.last = number;
            // What was published before the connection opened isn't missing.
            if first {
                self.seen |= u32::MAX.checked_shl(ahead).unwrap_or(0);
            }
            return if ahead == 1 { Arrival::Next } else { Arrival::Gap(ahead - 1) };
        }
        if self.seen == 0 {
            *self = Self { last: number, seen: u32::MAX };
            return Arrival::Next;
        }
        match 1u32.checked_shl(self.last - number) {
            Some(bit) if self.seen & bit == 0 => {
                self.seen |= bit;
                Arrival::Late
            }
            _ => Arrival::Again,
        }
    }

    /// How many of so many published haven't come, beyond the last one that did.
    pub fn missing(&self, published: u32) -> u32 {
        published.saturating_sub(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(begin: u32, numbers: &[u32]) -> Vec<Arrival> {
        let mut tracker = Tracker::begin(begin);
        numbers.iter().map(|number| tracker.arrive(*number)).collect()
    }

    #[test]
    fn each_fault_has_its_name() {
        use Arrival::{Again, Gap, Late, Next};
        assert_eq!(arrivals(0, &[1, 2, 3]), [Next, Next, Next]);
        assert_eq!(arrivals(0, &[1, 4, 5]), [Next, Gap(2), Next]);
        assert_eq!(arrivals(0, &[2, 1, 4, 3]), [Gap(1), Late, Gap(1), Late]);
        assert_eq!(arrivals(0, &[1, 1, 2, 1]), [Next, Again, Next, Again]);
        assert_eq!(arrivals(0, &[1, 3, 2, 2]), [Next, Gap(1), Late, Again]);
        assert_eq!(arrivals(0, &[40, 41, 5, 40]), [Gap(39), Next, Again, Again]);
    }

    #[test]
    fn a_connection_may_join_anywhere_while_it_opens() {
        use Arrival::{Again, Gap, Next};
        assert_eq!(arrivals(7, &[6, 7, 8]), [Next, Next, Next]);
        assert_eq!(arrivals(7, &[8, 9, 7]), [Next, Next, Again]);
        assert_eq!(arrivals(7, &[10, 7]), [Gap(2), Again]);
        assert_eq!(Tracker::begin(7).missing(9), 2);
        let mut tracker = Tracker::begin(7);
        tracker.arrive(6);
        assert_eq!(tracker.missing(9), 3);
        assert_eq!(tracker.missing(5), 0);
    }

    proptest::proptest! {
        /// Whatever a server does to a sequence within the window, the counts add up to it.
        #[test]
        fn the_counts_tell_what_was_done(
            drops in proptest::collection::vec(proptest::bool::weighted(0.1), 200),
            twice in proptest::collection::vec(proptest::bool::weighted(0.1), 200),
            swaps in proptest::collection::vec(proptest::bool::weighted(0.1), 200),
        ) {
            let kept: Vec<u32> = (1..=200).filter(|n| !drops[*n as usize - 1]).collect();
            let mut sent = kept.clone();
            let mut swapped = 0;
            let mut at = 0;
            while at + 1 < sent.len() {
                if swaps[at] {
                    sent.swap(at, at + 1);
                    swapped += 1;
                    at += 1;
                }
                at += 1;
            }
            let doubled: Vec<u32> = sent.iter().flat_map(|n| {
                std::iter::repeat_n(*n, 1 + usize::from(twice[*n as usize - 1]))
            }).collect();
            let (mut lost, mut late, mut again) = (0u32, 0, 0);
            let mut tracker = Tracker::begin(0);
            for number in &doubled {
                match tracker.arrive(*number) {
                    Arrival::Next => {}
                    Arrival::Gap(gap) => lost += gap,
                    Arrival::Late => { late += 1; lost -= 1; }
                    Arrival::Again => again += 1,
                }
            }
            lost += tracker.missing(200);
            proptest::prop_assert_eq!(lost as usize, 200 - kept.len());
            proptest::prop_assert_eq!(late, swapped);
            proptest::prop_assert_eq!(again, doubled.len() - kept.len());
        }
    }
}
