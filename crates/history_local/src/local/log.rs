//! Log lines. Clients can cause all of them, each time they read or acknowledge, so some lines of each kind are
//! written and the others counted.

use std::fmt::Display;
use std::time::Instant;

use history::GivenUp;
use model::Position;
use throttle::Throttle;

const SECOND_US: u64 = 1_000_000;

pub(super) struct Log {
    started: Instant,
    given_up: Throttle,
    lost_cursors: Throttle,
    failed_reads: Throttle,
    damages: Throttle,
}

impl Log {
    /// Counts times from `started`.
    pub fn new(started: Instant) -> Self {
        Log {
            started,
            given_up: Throttle::new(1, 10 * SECOND_US),
            lost_cursors: Throttle::new(1, SECOND_US),
            failed_reads: Throttle::new(10, SECOND_US),
            damages: Throttle::new(10, SECOND_US),
        }
    }

    fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    pub fn given_up(&self, user: &str, topic: &str, id: Position, what: GivenUp) {
        let Some(suppressed) = self.given_up.pass(self.now_us(), 1) else { return };
        let reason = match what {
            GivenUp::DeadLettered => "dead_lettered",
            GivenUp::Dropped => "dropped",
        };
        tracing::warn!(
            user,
            topic,
            message_id = %id,
            reason,
            suppressed,
            "a message was given up: the user did not acknowledge it after all its deliveries"
        );
    }

    pub fn lost_cursor(&self, user: &str, topic: &str, error: impl Display) {
        let Some(suppressed) = self.lost_cursors.pass(self.now_us(), 1) else { return };
        tracing::warn!(
            user,
            topic,
            %error,
            suppressed,
            "an acknowledgement was not stored: after a restart the acknowledged messages are \
             delivered again"
        );
    }

    pub fn failed_read(&self, topic: &str, error: impl Display) {
        let Some(suppressed) = self.failed_reads.pass(self.now_us(), 1) else { return };
        tracing::error!(topic, %error, suppressed, "the store can't be read");
    }

    pub fn damage(&self, topic: &str, error: impl Display) {
        let Some(suppressed) = self.damages.pass(self.now_us(), 1) else { return };
        tracing::error!(topic, %error, suppressed, "the store is damaged");
    }
}
