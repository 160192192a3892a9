//! What the log and the caller learn of every request: its id, a span around its work, and one event at its response.
//!
//! Of what a caller sent, the log gets only the method and a sane id: paths have names of users and topics, queries
//! and headers have secrets. A key appears by its name in the configuration.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;
use futures_util::FutureExt;
use tracing::{Instrument, Span, field};

use super::origin::Origin;
use super::rejection::RejectedWith;

/// The header with a request's id: in its response, and in the request if the caller or a proxy has set it.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id of a caller that is used, in bytes.
const ID_BYTES_MAX: usize = 64;

/// The route of a request that matches none.
const NO_ROUTE: &str = "none";

/// Ids of requests that come without one: 12 hexadecimal digits, none twice in 2^48 requests.
pub(crate) struct RequestIds(AtomicU64);

impl RequestIds {
    /// Ids that begin at a random number, so that those of two processes differ.
    pub fn new() -> Self {
        RequestIds(AtomicU64::new(RandomState::new().hash_one(())))
    }

    /// Returns a request's id, and the request as the log has it.
    pub fn begin(&self, request: &Request, origin: Option<Origin>) -> (HeaderValue, Call) {
        let id = sent_id(request.headers()).unwrap_or_else(|| self.next());
        let extensions = request.extensions();
        let span = tracing::debug_span!(
            "request",
            method = %request.method(),
            route = extensions.get::<MatchedPath>().map_or(NO_ROUTE, MatchedPath::as_str),
            request = id.to_str().unwrap_or_default(),
            key = field::Empty,
            address = origin.map(field::display),
        );
        (id, Call { span, began: Instant::now(), has_replied: false })
    }

    fn next(&self) -> HeaderValue {
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        // An odd factor gives each number another product, and neighbours don't look alike.
        let id = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) & 0xffff_ffff_ffff;
        let mut digits = [0; 12];
        for (at, digit) in digits.iter_mut().enumerate() {
            *digit = b"0123456789abcdef"[(id >> (44 - 4 * at)) as usize & 15];
        }
        HeaderValue::from_bytes(&digits).unwrap_or(HeaderValue::from_static("none"))
    }
}

/// Returns the id that the request came with, if a log and a header can contain it.
fn sent_id(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut all = headers.get_all(REQUEST_ID).iter();
    let (id, None) = (all.next()?, all.next()) else { return None };
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:=+/@".contains(byte);
    let bytes = id.as_bytes();
    let is_sane = (1..=ID_BYTES_MAX).contains(&bytes.len()) && bytes.iter().all(is_plain);
    is_sane.then(|| id.clone())
}

/// A request without a response yet. If its caller goes away, it is dropped without one.
pub(crate) struct Call {
    span: Span,
    began: Instant,
    has_replied: bool,
}

impl Call {
    /// Returns the request's span.
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// Does the work of the request in its span.
    pub fn run(mut self, work: impl Future<Output = Response>) -> impl Future<Output = Response> {
        let span = self.span.clone();
        work.instrument(span).inspect(move |response| self.on_replied(response))
    }

    fn on_replied(&mut self, response: &Response) {
        self.has_replied = true;
        let code = response.extensions().get().map(|RejectedWith(code)| code.text());
        let (status, duration_ms) = (response.status().as_u16(), self.duration_ms());
        tracing::debug!(parent: &self.span, status, code, duration_ms, "answered");
    }

    fn duration_ms(&self) -> f64 {
        self.began.elapsed().as_micros() as f64 / 1e3
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.has_replied {
            let duration_ms = self.duration_ms();
            tracing::debug!(parent: &self.span, duration_ms, "the caller closed the connection");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(ids: &[&[u8]]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for id in ids {
            headers.append(REQUEST_ID, HeaderValue::from_bytes(id).unwrap());
        }
        sent_id(&headers).map(|id| id.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_sane_id_is_taken_over() {
        let long = [b'a'; ID_BYTES_MAX];
        for id in [
            &b"7f1d"[..],
            b"0b8a1f0e-6c0e-4f6e-9d58-0f7c1b2f9a10",
            b"Root=1-67891233-abcdef012345678912345678",
            &long,
        ] {
            assert_eq!(sent(&[id]).unwrap().as_bytes(), id);
        }
        let longer = [b'a'; ID_BYTES_MAX + 1];
        for id in [&b""[..], b"a b", b"a\"b", b"\xff", b"a;b", b"a\tb", &longer] {
            assert_eq!(sent(&[id]), None);
        }
        assert_eq!((sent(&[]), sent(&[b"a", b"b"])), (None, None));
    }

    #[test]
    fn no_id_comes_twice() {
        let ids = RequestIds::new();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..10_000 {
            let id = ids.next();
            assert!(id.len() == 12 && id.as_bytes().iter().all(u8::is_ascii_hexdigit), "{id:?}");
            assert!(seen.insert(id));
        }
        assert_ne!(RequestIds::new().next(), RequestIds::new().next());
    }
}
