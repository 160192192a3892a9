//! The pace at which connections are closed. Pure: the caller gives the time and the counts.

/// Connections that a drain by time may close in a second, however few there are: those that come back shortly before
/// its end are closed again.
const PER_SECOND_MIN: u64 = 10;

/// How many times faster than its even rate a drain by time may be, to make up for clients that come back.
const CATCH_UP_FACTOR: u64 = 2;

/// The share of a node's connections that a rebalance closes in a minute at most, in percent.
pub(crate) const SHARE_PER_MINUTE_PERCENT: u64 = 10;

const SECOND_US: u64 = 1_000_000;

/// The time at which connections are closed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tick {
    /// Since the beginning, in microseconds.
    pub elapsed_us: u64,
    /// Since the last tick, in microseconds.
    pub since_us: u64,
}

/// Closes connections evenly over a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Connections to close.
    pub connections: u64,
    /// The time over which they are closed, in microseconds.
    pub duration_us: u64,
    /// The limit on connections closed in a second.
    pub per_second_max: u64,
}

impl Pace {
    /// Empties a node of this many connections over this time.
    pub fn with_duration(connections: u64, duration_us: u64) -> Self {
        let even = scaled(connections, SECOND_US, duration_us);
        Pace {
            connections,
            duration_us,
            per_second_max: (even * CATCH_UP_FACTOR).max(PER_SECOND_MIN),
        }
    }

    /// Closes this many connections at this rate.
    pub fn at_rate(connections: u64, per_second: u64) -> Self {
        let per_second_max = per_second.max(1);
        let duration_us = scaled(connections, SECOND_US, per_second_max);
        Pace { connections, duration_us, per_second_max }
    }

    /// Closes this many of a node's connections at this rate, or at [`SHARE_PER_MINUTE_PERCENT`] if that is slower.
    pub fn of_share(connections: u64, open: u64, per_second: u64) -> Self {
        let per_minute = (open * SHARE_PER_MINUTE_PERCENT / 100).max(1);
        let pace = Pace::at_rate(connections, per_second);
        let duration_us = pace.duration_us.max(scaled(connections, 60 * SECOND_US, per_minute));
        Pace { duration_us, ..pace }
    }

    /// Returns how many connections to close now to empty a node that has `open`, after `closed` were closed since the
    /// beginning. Connections that have come meanwhile count like all others.
    pub fn to_empty(self, now: Tick, open: u64, closed: u64) -> u64 {
        let left = self.connections - self.due_at(now.elapsed_us);
        open.saturating_sub(left).min(self.allowed(now, closed))
    }

    /// Returns how many to close now, if `closed` were closed since the beginning and no more than
    /// [`connections`](Self::connections) are.
    pub fn to_close(self, now: Tick, closed: u64) -> u64 {
        self.due_at(now.elapsed_us).saturating_sub(closed).min(self.allowed(now, closed))
    }

    /// Returns how many of the connections are due to be closed by this time.
    fn due_at(self, elapsed_us: u64) -> u64 {
        if elapsed_us >= self.duration_us {
            return self.connections;
        }
        scaled(self.connections, elapsed_us, self.duration_us)
    }

    /// Returns how many may be closed now. Connections that were due before and were not closed do not raise the
    /// rate.
    fn allowed(self, now: Tick, closed: u64) -> u64 {
        let until_now = scaled(self.per_second_max, now.elapsed_us, SECOND_US);
        until_now.saturating_sub(closed).min(scaled(self.per_second_max, now.since_us, SECOND_US))
    }
}

/// `value * part / whole`, rounded up.
fn scaled(value: u64, part: u64, whole: u64) -> u64 {
    let scaled = (u128::from(value) * u128::from(part)).div_ceil(u128::from(whole.max(1)));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// Divides connections to close among shards by how many each has open. No shard gets more than it has.
pub(crate) fn shares(connections: u64, open: &[u64]) -> Vec<u64> {
    let mut open_left: u64 = open.iter().sum();
    let mut left = connections.min(open_left);
    let share = |open: &u64| {
        let share = scaled(left, *open, open_left);
        open_left -= open;
        left -= share;
        share
    };
    open.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TICK_US: u64 = 100_000;

    fn tick(elapsed_us: u64) -> Tick {
        Tick { elapsed_us, since_us: TICK_US }
    }

    /// Returns how many are closed after this many ticks.
    fn closed_until(pace: Pace, ticks: u64) -> u64 {
        (1..=ticks).fold(0, |closed, at| closed + pace.to_close(tick(at * TICK_US), closed))
    }

    /// Empties a node to which clients come back at the end of each tick, each with this chance in percent, as long
    /// as the node accepts them. Returns how many were closed at each tick, and how many were left then.
    fn emptied(pace: Pace, back_percent: u64) -> Vec<(u64, u64)> {
        let (mut open, mut closed, mut ticks) = (pace.connections, 0, Vec::new());
        while open > 0 && ticks.len() < 200_000 {
            let elapsed_us = TICK_US * (ticks.len() as u64 + 1);
            let due = pace.to_empty(tick(elapsed_us), open, closed);
            assert!(due <= open);
            // The node rejects them after the time.
            let back = if elapsed_us < pace.duration_us { due * back_percent / 100 } else { 0 };
            (open, closed) = (open - due + back, closed + due);
            ticks.push((due, open));
        }
        ticks
    }

    proptest! {
        #[test]
        fn a_node_is_emptied_evenly_in_the_time(
            connections in 1_u64..2_000_000,
            seconds in 1_u64..2_000,
        ) {
            let pace = Pace::with_duration(connections, seconds * SECOND_US);
            let ticks = emptied(pace, 0);
            prop_assert_eq!(ticks.last().unwrap().1, 0);
            prop_assert!(ticks.len() as u64 <= seconds * 10);
            prop_assert_eq!(ticks.iter().map(|(due, _)| due).sum::<u64>(), connections);
            let even = connections.div_ceil(seconds * 10);
            prop_assert!(ticks.iter().all(|(due, _)| *due <= even));
            // Those that are left follow the line.
            for (at, (_, left)) in ticks.iter().enumerate() {
                let line = connections - scaled(connections, at as u64 + 1, seconds * 10).min(connections);
                prop_assert!(left.abs_diff(line) <= 1);
            }
        }

        #[test]
        fn clients_that_come_back_never_make_it_faster_than_it_may_be(
            connections in 1_u64..100_000,
            seconds in 1_u64..300,
            back_percent in 0_u64..=100,
        ) {
            let pace = Pace::with_duration(connections, seconds * SECOND_US);
            let ticks = emptied(pace, back_percent);
            prop_assert_eq!(ticks.last().unwrap().1, 0);
            let mut closed = 0;
            for (at, (due, _)) in ticks.iter().enumerate() {
                closed += due;
                prop_assert!(closed <= scaled(pace.per_second_max, at as u64 + 1, 10));
            }
            // It ends, at the latest when all that came back were closed at the highest rate.
            prop_assert!(ticks.len() as u64 <= seconds * 20 + 10, "{} ticks", ticks.len());
        }

        #[test]
        fn a_rate_is_not_exceeded(connections in 1_u64..100_000, per_second in 1_u64..10_000) {
            let pace = Pace::at_rate(connections, per_second);
            let (mut closed, mut last_second) = (0, 0);
            for at in 1..=pace.duration_us.div_ceil(TICK_US).min(5_000) {
                closed += pace.to_close(tick(at * TICK_US), closed);
                prop_assert!(closed <= scaled(per_second, at, 10).min(connections));
                if at % 10 == 0 {
                    prop_assert!(closed - last_second <= per_second);
                    last_second = closed;
                }
            }
            prop_assert!(closed == connections || pace.duration_us > 5_000 * TICK_US);
        }

        #[test]
        fn a_rebalance_never_closes_more_than_its_share_in_a_minute(
            open in 1_u64..1_000_000,
            part in 0_u64..=100,
            per_second in 1_u64..1_000_000,
        ) {
            let connections = (open * part / 100).max(1);
            let pace = Pace::of_share(connections, open, per_second);
            for minutes in 1..4 {
                let closed = closed_until(pace, minutes * 600);
                let most = minutes * (open * SHARE_PER_MINUTE_PERCENT / 100).max(1);
                prop_assert!(closed <= most, "{closed} of {open} in {minutes} min");
            }
        }

        #[test]
        fn many_that_come_at_the_end_are_closed_one_after_the_other(
            connections in 1_u64..100_000,
            seconds in 1_u64..300,
            come in 1_u64..100_000,
        ) {
            let pace = Pace::with_duration(connections, seconds * SECOND_US);
            let most = scaled(pace.per_second_max, TICK_US, SECOND_US);
            prop_assert!(pace.to_empty(tick(pace.duration_us), come, 0) <= most);
        }

        #[test]
        fn each_shard_has_its_share(
            connections in 0_u64..10_000,
            open in proptest::collection::vec(0_u64..5_000, 1..9),
        ) {
            let shares = shares(connections, &open);
            prop_assert_eq!(shares.iter().sum::<u64>(), connections.min(open.iter().sum()));
            let total = open.iter().sum::<u64>();
            for (share, open) in shares.iter().zip(&open) {
                prop_assert!(share <= open);
                let exact = connections.min(total) * open / total.max(1);
                prop_assert!(share.abs_diff(exact) <= shares.len() as u64);
            }
        }
    }

    #[test]
    fn a_drain_by_time_is_even_and_has_some_haste() {
        let pace = Pace::with_duration(30_000, 300 * SECOND_US);
        assert_eq!(pace.per_second_max, 200);
        assert_eq!(pace.to_empty(tick(SECOND_US), 29_910, 90), 10);
        // No connection was closed for a while.
        assert_eq!(pace.to_empty(tick(SECOND_US), 30_000, 0), 20);
        let late = Tick { elapsed_us: SECOND_US, since_us: SECOND_US };
        assert_eq!(pace.to_empty(late, 30_000, 0), 100);
        // As many have come back as were closed.
        assert_eq!(pace.to_empty(tick(150 * SECOND_US), 30_000, 15_000), 20);
        assert_eq!(pace.to_empty(tick(400 * SECOND_US), 7, 30_000), 7);
    }
}
