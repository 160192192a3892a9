//! Ways in which a question stays without the application's answer, and how they are told.

use std::time::{Duration, Instant};

use shard::Verdict;

/// A line about one kind of failure is written at most this often.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// Why a question had no answer of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Failure {
    /// No whole answer within the time, be it that the request did not go out before.
    Timeout,
    /// No connection, or it broke before the whole answer was there.
    Unreachable,
    /// A status other than 200 and 204.
    Status,
    /// An answer that can't be read: not HTTP, not JSON, too large, or not one reply per event.
    Body,
    /// Too many questions waited: refused when it was asked.
    Full,
    /// There was no URL to ask at.
    Nowhere,
    /// The node shut down first.
    Stopped,
}

impl Failure {
    /// All, in the order of their discriminants.
    pub const ALL: [Failure; 7] = [
        Failure::Timeout,
        Failure::Unreachable,
        Failure::Status,
        Failure::Body,
        Failure::Full,
        Failure::Nowhere,
        Failure::Stopped,
    ];

    /// The label in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Failure::Timeout => "timeout",
            Failure::Unreachable => "unreachable",
            Failure::Status => "status",
            Failure::Body => "body",
            Failure::Full => "full",
            Failure::Nowhere => "nowhere",
            Failure::Stopped => "stopped",
        }
    }

    /// What a client is told: nothing of how things are inside.
    pub fn reason(self) -> &'static str {
        match self {
            Failure::Timeout => "the application did not answer in time",
            Failure::Unreachable => "the application can't be reached",
            Failure::Status => "the application answered with an error",
            Failure::Body => "the application's answer was not understood",
            Failure::Full => "too many events wait for the application",
            Failure::Nowhere => "no application is there to answer",
            Failure::Stopped => "the server is shutting down",
        }
    }

    /// The error that takes the answer's place.
    pub fn verdict(self) -> Verdict {
        // The reasons above need no escapes.
        Verdict { ok: false, response: format!(r#"{{"reason":"{}"}}"#, self.reason()).into() }
    }
}

/// A failure and its cause in full, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failed {
    pub failure: Failure,
    pub cause: String,
}

impl Failed {
    pub fn new(failure: Failure, cause: impl Into<String>) -> Self {
        Failed { failure, cause: cause.into() }
    }
}

/// Warnings, each kind of failure about once a second.
#[derive(Default)]
pub(super) struct Log {
    kinds: [Throttle; Failure::ALL.len()],
}

impl Log {
    /// Warns of a failure of so many events at this URL, unless one like it was just told.
    pub fn warn(&mut self, failed: &Failed, url: Option<&str>, events: u64) {
        let Some(left_out) = self.kinds[failed.failure as usize].pass(Instant::now(), events)
        else {
            return;
        };
        let kind = failed.failure.name();
        let url = url.map_or_else(|| "(no URL)".into(), shown);
        let cause = &failed.cause;
        let more = match left_out {
            0 => String::new(),
            events => format!(" ({events} events that failed like this since were not told)"),
        };
        tracing::warn!("webhook {url}: {events} events failed ({kind}): {cause}{more}");
    }
}

/// Lets one through each [`LOG_EVERY`], and counts what it holds back.
#[derive(Default)]
struct Throttle {
    next: Option<Instant>,
    left_out: u64,
}

impl Throttle {
    /// `None` to keep quiet about so many; else how many were kept quiet about before.
    fn pass(&mut self, now: Instant, events: u64) -> Option<u64> {
        if self.next.is_some_and(|next| now < next) {
            self.left_out += events;
            return None;
        }
        self.next = Some(now + LOG_EVERY);
        Some(std::mem::take(&mut self.left_out))
    }
}

/// A URL as a log may hold it: queries and user names, which the configuration refuses, carry
/// secrets.
pub(super) fn shown(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or("");
    let Some((scheme, rest)) = url.split_once("://") else { return url.into() };
    let authority_ends = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(authority_ends);
    let host = authority.rsplit('@').next().unwrap_or("");
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_stands_at_its_place_and_tells_json() {
        for (at, failure) in Failure::ALL.into_iter().enumerate() {
            assert_eq!(failure as usize, at);
            let verdict = failure.verdict();
            assert!(!verdict.ok);
            let value: serde_json::Value = serde_json::from_str(&verdict.response).unwrap();
            assert_eq!(value["reason"], failure.reason());
        }
    }

    #[test]
    fn of_many_lines_one_a_second_passes() {
        let start = Instant::now();
        let mut throttle = Throttle::default();
        assert_eq!(throttle.pass(start, 3), Some(0));
        assert_eq!(throttle.pass(start + LOG_EVERY / 3, 2), None);
        assert_eq!(throttle.pass(start + LOG_EVERY / 2, 5), None);
        assert_eq!(throttle.pass(start + LOG_EVERY, 1), Some(7));
        assert_eq!(throttle.pass(start + LOG_EVERY * 5, 1), Some(0));
    }

    #[test]
    fn a_url_is_shown_without_what_may_be_secret() {
        for (url, want) in [
            ("http://a.example/hook?key=s3cret#x", "http://a.example/hook"),
            ("https://me:s3cret@a.example:8443/a@b", "https://a.example:8443/a@b"),
            ("http://a.example?s3cret", "http://a.example"),
            ("not a url?s3cret", "not a url"),
        ] {
            assert_eq!(shown(url), want);
        }
    }
}
