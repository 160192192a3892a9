//! The longest time for which each connection received no message.

/// The silences of one connection.
#[derive(Clone, Copy, Debug, Default)]
struct Silence {
    /// When it received the last message, in microseconds modulo 2^32; zero before the first one.
    received_us: u32,
    longest_us: u32,
}

/// The silences of a thread's connections, by index. Eight bytes each.
#[derive(Debug)]
pub(super) struct Silences(Vec<Silence>);

impl Silences {
    pub fn new(connections: usize) -> Self {
        Silences(vec![Silence::default(); connections])
    }

    /// Called when a message has arrived.
    pub fn on_message(&mut self, index: u32, now_us: u32) {
        let Some(silence) = self.0.get_mut(index as usize) else { return };
        if silence.received_us != 0 {
            silence.longest_us = silence.longest_us.max(now_us.wrapping_sub(silence.received_us));
        }
        silence.received_us = now_us.max(1);
    }

    /// Called when the connection is a new one: the time before is no silence.
    pub fn opened(&mut self, index: u32) {
        if let Some(silence) = self.0.get_mut(index as usize) {
            silence.received_us = 0;
        }
    }

    /// Returns the longest silence of each connection that received two messages, in microseconds.
    pub fn longest(&self) -> Vec<u32> {
        self.0.iter().map(|silence| silence.longest_us).filter(|us| *us > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_silence_is_that_between_two_messages_of_one_connection() {
        let mut silences = Silences::new(3);
        for (index, us) in [(0, 100), (0, 150), (1, 7), (0, 400), (0, 401)] {
            silences.on_message(index, us);
        }
        // A connection that comes back was not silent meanwhile.
        silences.opened(0);
        silences.on_message(0, 9_000);
        silences.on_message(0, 9_001);
        assert_eq!(silences.longest(), [250]);
        // The clock may wrap around.
        silences.on_message(2, u32::MAX - 9);
        silences.on_message(2, 990);
        assert_eq!(silences.longest(), [250, 1_000]);
        silences.on_message(99, 1);
    }
}
