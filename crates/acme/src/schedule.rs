//! When a certificate is ordered.

use serde::{Deserialize, Serialize};

/// The time until an order that failed is repeated, in seconds. It doubles with each failure in a row, up to the
/// maximum: authorities allow about five failures an hour.
const RETRY_SECONDS: u64 = 300;
const RETRY_SECONDS_MAX: u64 = 6 * 3_600;

/// The pause after an order that succeeded, in seconds. For a certificate that is valid for less than three times as
/// long it is a third of its time. Authorities sign few certificates for the same hosts.
const PAUSE_SECONDS: u64 = 3_600;

/// The time in which a certificate is valid, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first second.
    pub not_before: u64,
    /// The last second.
    pub not_after: u64,
}

impl Validity {
    /// Returns how long it is, in seconds.
    pub fn seconds(self) -> u64 {
        self.not_after.saturating_sub(self.not_before)
    }
}

/// When a certificate is ordered next. It outlives the process, so that a process that crashes at each start does not
/// order each time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    failures: u32,
    /// No order begins before this second since 1970.
    not_before: u64,
}

impl Schedule {
    /// Returns true if a certificate is to be ordered now. `current` is the validity of the certificate in use, if
    /// it is of this authority and has all hosts. It is renewed when a third of its time is left, so that orders
    /// may fail for weeks.
    pub fn is_due(&self, current: Option<Validity>, now: u64) -> bool {
        let is_missing_or_old = current.is_none_or(|validity| {
            now.saturating_add(validity.seconds() / 3) >= validity.not_after
        });
        is_missing_or_old && now >= self.not_before
    }

    /// An order begins. It counts as failed until it succeeds. Returns the seconds until the next one may begin if it
    /// fails.
    pub fn on_begun(&mut self, now: u64) -> u64 {
        let seconds = RETRY_SECONDS.saturating_mul(1 << self.failures.min(16));
        let seconds = seconds.min(RETRY_SECONDS_MAX);
        self.failures = self.failures.saturating_add(1);
        self.not_before = now.saturating_add(seconds);
        seconds
    }

    /// An order succeeded with a certificate that is valid for `seconds`.
    pub fn on_succeeded(&mut self, now: u64, seconds: u64) {
        self.failures = 0;
        self.not_before = now.saturating_add(PAUSE_SECONDS.min(seconds / 3));
    }

    /// Returns how many orders in a row have failed, or are under way.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;

    #[test]
    fn a_certificate_is_renewed_a_third_before_its_end() {
        let schedule = Schedule::default();
        let current = Some(Validity { not_before: 100 * DAY, not_after: 190 * DAY });
        assert!(schedule.is_due(None, 0));
        assert!(!schedule.is_due(current, 100 * DAY));
        assert!(!schedule.is_due(current, 160 * DAY - 1));
        assert!(schedule.is_due(current, 160 * DAY));
        assert!(schedule.is_due(current, 1_000 * DAY));
        // Six days, as short certificates have.
        let short = Some(Validity { not_before: 0, not_after: 6 * DAY });
        assert!(!schedule.is_due(short, 4 * DAY - 1) && schedule.is_due(short, 4 * DAY));
        // A clock or a certificate with impossible times.
        let reversed = Some(Validity { not_before: 9, not_after: 3 });
        assert!(schedule.is_due(reversed, 3) && !schedule.is_due(reversed, 2));
    }

    #[test]
    fn failures_in_a_row_wait_longer_and_success_forgets_them() {
        let mut schedule = Schedule::default();
        let mut now = 1_000;
        let mut waits = Vec::new();
        for _ in 0..40 {
            let seconds = schedule.on_begun(now);
            assert!(!schedule.is_due(None, now + seconds - 1));
            now += seconds;
            assert!(schedule.is_due(None, now));
            waits.push(seconds);
        }
        assert_eq!(waits[..5], [300, 600, 1_200, 2_400, 4_800]);
        assert_eq!(waits[39], RETRY_SECONDS_MAX);
        schedule.on_succeeded(now, 90 * DAY);
        assert_eq!(schedule.failures(), 0);
        assert_eq!(schedule.on_begun(now), 300);
        assert_eq!(schedule.on_begun(u64::MAX), 600);
    }

    /// However long certificates are valid, orders are few.
    #[test]
    fn an_order_that_changed_nothing_is_not_repeated_at_once() {
        let mut schedule = Schedule::default();
        schedule.on_begun(1_000);
        schedule.on_succeeded(1_000, 90 * DAY);
        assert!(!schedule.is_due(None, 1_000 + PAUSE_SECONDS - 1));
        assert!(schedule.is_due(None, 1_000 + PAUSE_SECONDS));
        schedule.on_succeeded(1_000, 30);
        assert!(!schedule.is_due(None, 1_009) && schedule.is_due(None, 1_010));
    }
}
