//! Why a request has no response of the application, what its client gets then, and the log.

use std::time::Instant;

use shard::WebhookResponse;
use throttle::Throttle;
use url::Url;

/// A line about one kind of error is written at most this often, in microseconds.
const LOG_EVERY_US: u64 = 1_000_000;

/// Why a request had no response of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ErrorKind {
    /// No whole response within the time. The request may not have been sent.
    Timeout,
    /// No connection, or it broke before the whole response was received.
    Unreachable,
    /// A status other than 200 and 204.
    Status,
    /// An invalid response: not HTTP, not JSON, too large, or not one reply for each event.
    Body,
    /// The queue had no capacity for the request.
    Full,
    /// There is no URL for it.
    Nowhere,
    /// The node shut down first.
    Stopped,
}

impl ErrorKind {
    /// All kinds, in the order of their discriminants.
    pub const ALL: [ErrorKind; 7] = [
        ErrorKind::Timeout,
        ErrorKind::Unreachable,
        ErrorKind::Status,
        ErrorKind::Body,
        ErrorKind::Full,
        ErrorKind::Nowhere,
        ErrorKind::Stopped,
    ];

    /// The label in metrics.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Timeout => "timeout",
            ErrorKind::Unreachable => "unreachable",
            ErrorKind::Status => "status",
            ErrorKind::Body => "body",
            ErrorKind::Full => "full",
            ErrorKind::Nowhere => "nowhere",
            ErrorKind::Stopped => "stopped",
        }
    }

    /// The message for the client, without details of the system behind.
    pub fn reason(self) -> &'static str {
        match self {
            ErrorKind::Timeout => "the application did not answer in time",
            ErrorKind::Unreachable => "the application can't be reached",
            ErrorKind::Status => "the application answered with an error",
            ErrorKind::Body => "the application's answer was not understood",
            ErrorKind::Full => "too many events are queued for the application",
            ErrorKind::Nowhere => "no URL of an application is configured for this event",
            ErrorKind::Stopped => "the server is shutting down",
        }
    }

    /// The response in place of the application's.
    pub fn response(self) -> WebhookResponse {
        WebhookResponse::Silent(self.reason())
    }
}

/// Why requests have no response, with the cause in full, for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub(super) struct RequestError {
    pub kind: ErrorKind,
    pub cause: String,
    /// The same request may succeed soon: the back end restarts, or is one of several.
    pub is_passing: bool,
    /// The same request will never succeed: a status of 400 to 499, but for 408 and 429.
    pub is_final: bool,
}

impl RequestError {
    pub fn new(kind: ErrorKind, cause: impl Into<String>) -> Self {
        let is_passing = kind == ErrorKind::Unreachable;
        RequestError { kind, cause: cause.into(), is_passing, is_final: false }
    }
}

/// Warnings, each kind of error about once a second.
pub(super) struct Log {
    began: Instant,
    kinds: [Throttle; ErrorKind::ALL.len()],
}

impl Default for Log {
    fn default() -> Self {
        let kinds = ErrorKind::ALL.map(|_| Throttle::new(1, LOG_EVERY_US));
        Log { began: Instant::now(), kinds }
    }
}

impl Log {
    /// Logs an error of this many events at a URL, unless one of this kind was just logged.
    pub fn warn(&self, error: &RequestError, url: Option<&str>, events: u64) {
        let now_us = self.began.elapsed().as_micros() as u64;
        let Some(suppressed) = self.kinds[error.kind as usize].pass(now_us, events) else {
            return;
        };
        tracing::warn!(
            url = url.map(shown),
            kind = error.kind.name(),
            %error,
            events,
            suppressed,
            "events for the application failed"
        );
    }
}

/// Returns a URL as a log may have it: without query, fragment and user, which carry secrets. The configuration rejects
/// queries and user names.
pub(super) fn shown(text: &str) -> String {
    let Ok(mut url) = Url::parse(text) else { return "(no URL)".into() };
    let has_user = !url.username().is_empty() || url.password().is_some();
    if !has_user && url.query().is_none() && url.fragment().is_none() {
        return text.into();
    }
    url.set_query(None);
    url.set_fragment(None);
    // A URL that can't have a user has none.
    let _ = url.set_username("").and(url.set_password(None));
    url.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_at_its_index_and_has_a_reason() {
        for (at, kind) in ErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, at);
            assert_eq!(kind.response(), WebhookResponse::Silent(kind.reason()));
        }
    }

    #[test]
    fn a_url_is_shown_without_what_may_be_secret() {
        for (url, want) in [
            ("http://a.example/hook?key=s3cret#x", "http://a.example/hook"),
            ("https://me:s3cret@a.example:8443/a@b", "https://a.example:8443/a@b"),
            ("http://a.example?s3cret", "http://a.example/"),
            ("http://a.example", "http://a.example"),
            ("http://me:s3cret@a b/", "(no URL)"),
            ("not a url?s3cret", "(no URL)"),
        ] {
            assert_eq!(shown(url), want);
        }
    }
}
