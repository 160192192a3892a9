//! Going round the connections once in the interval of their heartbeats.
//!
//! Whose turn it is follows from the time alone: no connection has a timer, and their heartbeats
//! are spread over the interval however they arrived.

use std::ops::Range;

use wire::client::HEARTBEAT_SECONDS;

const ROUND_NS: u64 = HEARTBEAT_SECONDS as u64 * 1_000_000_000;

#[derive(Debug)]
pub(super) struct Round {
    begin_ns: u64,
    /// Turns taken since.
    taken: u64,
}

impl Round {
    pub fn begin(now_ns: u64) -> Self {
        Self { begin_ns: now_ns, taken: 0 }
    }

    /// The turns from the last time to now, of so many connections: turn n is connection n modulo
    /// their count. At most one each, however long it has been.
    pub fn turns(&mut self, now_ns: u64, count: u64) -> Range<u64> {
        let passed_ns = u128::from(now_ns.saturating_sub(self.begin_ns));
        let due = (passed_ns * u128::from(count) / u128::from(ROUND_NS)) as u64;
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
        fn each_has_one_turn_in_each_round(
            count in 1u64..300, waits_ns in proptest::collection::vec(0..ROUND_NS / 4, 1..60),
        ) {
            let begin_ns = 7;
            let (mut round, mut now_ns) = (Round::begin(begin_ns), begin_ns);
            let mut turns = vec![0; count as usize];
            for wait_ns in waits_ns {
                now_ns += wait_ns;
                for turn in round.turns(now_ns, count) {
                    turns[(turn % count) as usize] += 1;
                }
                let rounds = (now_ns - begin_ns) / ROUND_NS;
                for turns in &turns {
                    proptest::prop_assert!((rounds..=rounds + 1).contains(turns), "{turns}");
                }
            }
        }
    }

    #[test]
    fn turns_are_spread_evenly_and_none_is_made_up_for() {
        let mut round = Round::begin(0);
        assert_eq!(round.turns(ROUND_NS / 30, 500_000), 0..16_666);
        assert_eq!(round.turns(ROUND_NS / 30, 500_000), 16_666..16_666);
        assert_eq!(round.turns(10 * ROUND_NS, 500_000), 4_500_000..5_000_000);
        assert_eq!(round.turns(9 * ROUND_NS, 500_000), 5_000_000..5_000_000);
    }
}
