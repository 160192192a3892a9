//! The clock by which nodes order the connects of MQTT clients.

/// A hybrid logical clock: it follows the time of day, and is always behind no number that the node has seen.
///
/// So an event after one of which its node knows has the larger number, whatever their clocks say; of two events that know nothing
/// of each other the later one by the time of day has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogicalClock {
    newest: u64,
}

impl LogicalClock {
    /// The number of an event now, by the time of day in microseconds since 1970. It is larger than all before.
    pub fn tick(&mut self, unix_us: u64) -> u64 {
        self.newest = self.newest.saturating_add(1).max(unix_us);
        self.newest
    }

    /// Another node knows of an event with this number.
    pub fn observe(&mut self, number: u64) {
        self.newest = self.newest.max(number);
    }

    /// The largest number that the node knows.
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
