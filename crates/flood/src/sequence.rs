//! Tracks one numbered sequence of messages and finds lost, duplicated and reordered ones.

/// Where a connection is in one sequence. Numbers begin at one.
///
/// A connection joins in the middle, and its first message shows where. Messages that were published
/// while the connection opened may arrive or not. So any first message up to the number given to
/// [`Tracker::begin`] is right. If the first message is a later one, those between are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tracker {
    last: u32,
    /// Bit i is set if message `last - i` has arrived. Zero if none has arrived yet.
    seen: u32,
}

/// How a message fits into its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is the next one.
    Next,
    /// This many messages before it haven't arrived.
    Gap(u32),
    /// It fills a gap: it was counted as missing, and arrives after a later one.
    Late,
    /// It has arrived before, or is more than 31 numbers back, beyond what the tracker knows.
    Again,
}

impl Tracker {
    /// Returns the tracker of a connection that opens after this many messages were published.
    pub fn begin(published: u32) -> Self {
        Self { last: published, seen: 0 }
    }

    /// Returns the tracker of a connection for which the moment of its subscription is unknown. Any first message is
    /// right.
    pub fn anywhere() -> Self {
        Self::begin(u32::MAX)
    }

    /// Returns true while any first message is right and none has arrived.
    pub fn is_anywhere(&self) -> bool {
        *self == Self::anywhere()
    }

    /// Returns true when a message has arrived.
    pub fn has_any(&self) -> bool {
        self.seen != 0
    }

    /// Processes the arrival of the message with this number.
    pub fn arrive(&mut self, number: u32) -> Arrival {
        if number > self.last {
            let ahead = number - self.last;
            let first = self.seen == 0;
            self.seen = self.seen.checked_shl(ahead).unwrap_or(0) | 1;
            self.last = number;
            // Messages from before the connection opened aren't missing.
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

    /// Returns the numbers of the later messages that have arrived already and are `step`, two `step` and so on
    /// after this one. The tracker knows the last 32.
    pub fn overtakers(&self, number: u32, step: u32) -> impl Iterator<Item = u32> {
        let Self { last, seen } = *self;
        let back = last.saturating_sub(number);
        (1..=back / step.max(1))
            .map(move |steps| number + steps * step)
            .filter(move |later| 1u32.checked_shl(last - later).is_some_and(|bit| seen & bit != 0))
    }

    /// Returns how many messages after the last one that arrived were published.
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
    fn overtakers_are_the_later_ones_of_the_same_node() {
        let mut tracker = Tracker::begin(0);
        for number in [1, 3, 4, 6] {
            tracker.arrive(number);
        }
        tracker.arrive(2);
        assert_eq!(tracker.overtakers(2, 1).collect::<Vec<_>>(), [3, 4, 6]);
        assert_eq!(tracker.overtakers(2, 3).count(), 0);
        assert_eq!(tracker.overtakers(2, 2).collect::<Vec<_>>(), [4, 6]);
        assert_eq!(tracker.overtakers(6, 1).count() + tracker.overtakers(9, 1).count(), 0);
    }

    #[test]
    fn gaps_late_and_repeated_messages_are_distinguished() {
        use Arrival::{Again, Gap, Late, Next};
        assert_eq!(arrivals(0, &[1, 2, 3]), [Next, Next, Next]);
        assert_eq!(arrivals(0, &[1, 4, 5]), [Next, Gap(2), Next]);
        assert_eq!(arrivals(0, &[2, 1, 4, 3]), [Gap(1), Late, Gap(1), Late]);
        assert_eq!(arrivals(0, &[1, 1, 2, 1]), [Next, Again, Next, Again]);
        assert_eq!(arrivals(0, &[1, 3, 2, 2]), [Next, Gap(1), Late, Again]);
        assert_eq!(arrivals(0, &[40, 41, 5, 40]), [Gap(39), Next, Again, Again]);
    }

    #[test]
    fn messages_published_while_a_connection_opens_may_arrive_or_not() {
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
        /// Drops, repeats and swaps within the window of 32 messages are counted exactly.
        #[test]
        fn drops_repeats_and_swaps_are_counted_exactly(
            drops in proptest::collection::vec(proptest::bool::weighted(0.1), 200),
            twice in proptest::collection::vec(proptest::bool::weighted(0.1), 200),
            swaps in proptest::collection::vec(proptest::bool::weighted(0.1), 200),
        ) {
            let mut sent: Vec<u32> = (1..=200).filter(|n| !drops[*n as usize - 1]).collect();
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
            proptest::prop_assert_eq!(lost as usize, 200 - sent.len());
            proptest::prop_assert_eq!(late, swapped);
            proptest::prop_assert_eq!(again, doubled.len() - sent.len());
        }
    }
}
