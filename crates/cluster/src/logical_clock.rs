//! The clock by which nodes order the connects of MQTT clients.

/// A hybrid logical clock: it follows the time of day, and is never behind a number that the node has seen.
///
/// So an event has a larger number than all events that its node knew, whatever the clocks of the nodes show. Of two
/// events whose nodes did not know the other one, the later one by the time of day has the larger number, unless the
/// node of the earlier one had already seen a higher number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogicalClock {
    newest: u64,
}

impl LogicalClock {
    /// Returns the number of an event now, by the time of day in microseconds since 1970. It is larger than all
    /// before.
    pub fn tick(&mut self, unix_us: u64) -> u64 {
        self.newest = self.newest.saturating_add(1).max(unix_us);
        self.newest
    }

    /// Records the number of an event at another node.
    pub fn observe(&mut self, number: u64) {
        self.newest = self.newest.max(number);
    }

    /// Returns the largest number that the node knows.
    pub fn newest(&self) -> u64 {
        self.newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_later_than_all_that_the_node_knows_and_follows_the_time_of_day() {
        let mut clock = LogicalClock::default();
        assert_eq!((clock.tick(1_000), clock.tick(1_000), clock.tick(900)), (1_000, 1_001, 1_002));
        assert_eq!(clock.tick(2_000), 2_000);
        clock.observe(5_000);
        clock.observe(3_000);
        assert_eq!((clock.tick(2_001), clock.newest()), (5_001, 5_001));
        clock.observe(u64::MAX);
        assert_eq!(clock.tick(2_002), u64::MAX);
    }
}
