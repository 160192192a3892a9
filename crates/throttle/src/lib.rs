//! Limits for things that could happen without end.
//!
//! [`Throttle`] decides which of many log lines are written. Lines that peers cause could fill a disk, and delay the
//! threads that write them. Some lines a second say as much, with the number of suppressed ones. [`Backoff`] gives
//! the delay before a retry.

#![forbid(unsafe_code)]

mod backoff;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub use backoff::Backoff;

/// Lets a number of lines through in each period. Any thread may call it.
#[derive(Debug)]
pub struct Throttle {
    lines: u32,
    every_us: u64,
    /// When the current period began.
    began_us: AtomicU64,
    /// Lines in the current period.
    passed: AtomicU32,
    suppressed: AtomicU64,
}

impl Throttle {
    /// Lets through `lines` lines in each `every_us` microseconds.
    pub const fn new(lines: u32, every_us: u64) -> Self {
        Throttle {
            lines,
            every_us,
            began_us: AtomicU64::new(0),
            passed: AtomicU32::new(0),
            suppressed: AtomicU64::new(0),
        }
    }

    /// Requests a line about `events` at this time, in microseconds of any clock that does not go back. Returns
    /// `None` to suppress it; else how many events were suppressed since the last line, if any were.
    pub fn pass(&self, now_us: u64, events: u64) -> Option<Option<u64>> {
        let began_us = self.began_us.load(Ordering::Relaxed);
        let is_elapsed = now_us.saturating_sub(began_us) >= self.every_us;
        let order = Ordering::Relaxed;
        if is_elapsed && self.began_us.compare_exchange(began_us, now_us, order, order).is_ok() {
            self.passed.store(0, order);
        }
        // It stays below the bound, so that it never wraps around.
        if self.passed.load(order) >= self.lines || self.passed.fetch_add(1, order) >= self.lines {
            self.suppressed.fetch_add(events, order);
            return None;
        }
        let suppressed = self.suppressed.swap(0, order);
        Some((suppressed > 0).then_some(suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_pass_in_a_time_and_the_others_are_counted() {
        let throttle = Throttle::new(2, 1_000);
        let at = |now_us, events| throttle.pass(now_us, events);
        assert_eq!(
            (at(0, 1), at(10, 5), at(20, 3), at(999, 4)),
            (Some(None), Some(None), None, None)
        );
        assert_eq!((at(1_000, 1), at(1_001, 1), at(1_002, 2)), (Some(Some(7)), Some(None), None));
        assert_eq!((at(9_000, 1), at(9_999, 1), at(9_999, 1)), (Some(Some(2)), Some(None), None));
    }

    #[test]
    fn threads_share_it() {
        let throttle = Throttle::new(3, u64::MAX);
        let passed = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for now_us in 0..1_000 {
                        passed.fetch_add(
                            u32::from(throttle.pass(now_us, 1).is_some()),
                            Ordering::Relaxed,
                        );
                    }
                });
            }
        });
        assert_eq!(passed.into_inner(), 3);
        assert_eq!(throttle.suppressed.into_inner(), 3_997);
    }
}
