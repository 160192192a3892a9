//! When a part connects to its database again, and which of its errors it logs.

use std::time::{Duration, Instant};

use throttle::Backoff;

use crate::error::DatabaseError;

/// The delay before a connect, in milliseconds: the first one, and the longest.
const CONNECT_MS: (u64, u64) = (50, 2_000);

/// A session that lasts longer than this resets the delay.
const STABLE: Duration = Duration::from_secs(5);

/// The attempts of a part to connect. The caller passes the time.
pub struct Reconnects {
    backoff: Backoff,
    /// When the session began, if there is one.
    began: Option<Instant>,
    /// The error that was logged last; `None` while connected.
    logged: Option<DatabaseError>,
}

/// How to log an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorLevel {
    /// As an error: the operator must act.
    Error,
    /// As a warning: a retry may help.
    Warning,
    /// Not at all: the error is logged already, or is a network error after another one.
    Repeated,
}

impl Default for Reconnects {
    fn default() -> Self {
        Reconnects { backoff: Backoff::new(CONNECT_MS.0, CONNECT_MS.1), began: None, logged: None }
    }
}

impl Reconnects {
    /// Notes that a session began. Returns true if an error was logged since the last one.
    pub fn on_connected(&mut self, now: Instant) -> bool {
        self.began = Some(now);
        self.logged.take().is_some()
    }

    /// Notes that a session or an attempt failed. Returns how to log the error: once, until another error occurs or
    /// the connection is back.
    pub fn on_error(&mut self, error: &DatabaseError) -> ErrorLevel {
        let level = match (&self.logged, error.needs_operator()) {
            (Some(logged), _) if logged == error => ErrorLevel::Repeated,
            (_, true) => ErrorLevel::Error,
            // Texts of network errors differ from one attempt to the next.
            (Some(logged), false) if !logged.needs_operator() => ErrorLevel::Repeated,
            (_, false) => ErrorLevel::Warning,
        };
        if self.logged.as_ref() != Some(error) {
            self.logged = Some(error.clone());
        }
        level
    }

    /// Returns the delay before the next attempt. After a session that lasted, earlier failures do not count.
    pub fn delay(&mut self, now: Instant) -> Duration {
        let lasted = self.began.take().map(|began| now.saturating_duration_since(began));
        if lasted.is_some_and(|lasted| lasted > STABLE) {
            self.backoff.reset();
        }
        Duration::from_millis(self.backoff.delay_ms())
    }

    /// Returns true if an error was logged, and the connection is not back.
    pub fn has_failed(&self) -> bool {
        self.logged.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_logged_once_and_network_errors_count_as_one() {
        let network = |text: &str| DatabaseError::Connection(text.into());
        let denied = DatabaseError::Denied("no".into());
        let mut reconnects = Reconnects::default();
        assert!(!reconnects.on_connected(Instant::now()) && !reconnects.has_failed());
        let mut levels = Vec::new();
        for error in
            [network("a"), network("a"), network("b"), denied.clone(), denied, network("b")]
        {
            levels.push(reconnects.on_error(&error));
        }
        use ErrorLevel::{Error, Repeated, Warning};
        assert_eq!(levels, [Warning, Repeated, Repeated, Error, Repeated, Warning]);
        assert!(reconnects.has_failed() && reconnects.on_connected(Instant::now()));
        assert_eq!(reconnects.on_error(&network("b")), Warning);
    }

    #[test]
    fn the_delay_grows_until_a_session_lasts() {
        let (mut reconnects, now) = (Reconnects::default(), Instant::now());
        let first = reconnects.delay(now);
        let grown = (0..20).map(|_| reconnects.delay(now)).max().unwrap();
        assert!(grown > first && grown <= Duration::from_millis(CONNECT_MS.1));
        reconnects.on_connected(now);
        assert!(reconnects.delay(now + STABLE) > first, "it did not last longer");
        reconnects.on_connected(now);
        assert_eq!(reconnects.delay(now + STABLE + Duration::from_millis(1)), first);
    }
}
