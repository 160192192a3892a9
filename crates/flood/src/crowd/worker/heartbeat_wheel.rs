//! A wheel that visits each connection once in a heartbeat interval.
//!
//! The time alone determines which connection is next. So no connection needs a timer, and the heartbeats
//! are spread evenly over the interval whenever the connections arrived.

use std::ops::Range;

use client::HEARTBEAT_SECONDS;

const INTERVAL_NS: u64 = HEARTBEAT_SECONDS as u64 * 1_000_000_000;

#[derive(Debug)]
pub(super) struct HeartbeatWheel {
    begin_ns: u64,
    /// Turns taken since the begin.
    taken: u64,
}

impl HeartbeatWheel {
    pub fn begin(now_ns: u64) -> Self {
        Self { begin_ns: now_ns, taken: 0 }
    }

    /// Returns the turns since the last call, for `count` connections. Turn n belongs to connection
    /// n modulo `count`. No connection gets more than one turn, however late the call is.
    pub fn turns(&mut self, now_ns: u64, count: u64) -> Range<u64> {
        let passed_ns = u128::from(now_ns.saturating_sub(self.begin_ns));
        let due = (passed_ns * u128::from(count) / u128::from(INTERVAL_NS)) as u64;
        let from = self.taken.max(due.saturating_sub(count));
        self.taken = due.max(self.taken);
        from..self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn each_connection_has_one_turn_per_interval(
            count in 1u64..300, waits_ns in proptest::collection::vec(0..INTERVAL_NS / 4, 1..60),
        ) {
            let begin_ns = 7;
            let (mut wheel, mut now_ns) = (HeartbeatWheel::begin(begin_ns), begin_ns);
            let mut turns = vec![0; count as usize];
            for wait_ns in waits_ns {
                now_ns += wait_ns;
                for turn in wheel.turns(now_ns, count) {
                    turns[(turn % count) as usize] += 1;
                }
                let intervals = (now_ns - begin_ns) / INTERVAL_NS;
                for turns in &turns {
                    proptest::prop_assert!((intervals..=intervals + 1).contains(turns), "{turns}");
                }
            }
        }
    }

    #[test]
    fn turns_are_spread_evenly_and_missed_turns_are_dropped() {
        let mut wheel = HeartbeatWheel::begin(0);
        assert_eq!(wheel.turns(INTERVAL_NS / 30, 500_000), 0..16_666);
        assert_eq!(wheel.turns(INTERVAL_NS / 30, 500_000), 16_666..16_666);
        assert_eq!(wheel.turns(10 * INTERVAL_NS, 500_000), 4_500_000..5_000_000);
        assert_eq!(wheel.turns(9 * INTERVAL_NS, 500_000), 5_000_000..5_000_000);
    }
}
