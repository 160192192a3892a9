//! The delay before a retry.

/// A delay that doubles each time, up to a bound.
#[derive(Clone, Debug)]
pub struct Backoff {
    first_ms: u64,
    max_ms: u64,
    next_ms: u64,
}

impl Backoff {
    /// Creates delays from the first up to the longest, in milliseconds.
    pub const fn new(first_ms: u64, max_ms: u64) -> Self {
        Backoff { first_ms, max_ms, next_ms: first_ms }
    }

    /// Returns the delay, in milliseconds. The next one is twice as long.
    pub fn delay_ms(&mut self) -> u64 {
        let delay_ms = self.next_ms;
        self.next_ms = (2 * delay_ms).min(self.max_ms);
        delay_ms
    }

    /// Starts again with the first delay.
    pub fn reset(&mut self) {
        self.next_ms = self.first_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_bound() {
        let mut backoff = Backoff::new(5, 50);
        let delays: Vec<u64> = (0..6).map(|_| backoff.delay_ms()).collect();
        assert_eq!(delays, [5, 10, 20, 40, 50, 50]);
        backoff.reset();
        assert_eq!(backoff.delay_ms(), 5);
    }
}
