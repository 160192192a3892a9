//! The headers of Standard Webhooks, version 1
//! (<https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>). They prove to the
//! application that this server has sent a request, and that the request is unchanged.
//!
//! The signature is the HMAC-SHA256 of the request's id, its timestamp and its body, with dots between them. The
//! timestamp lets the application reject a request that an attacker has recorded and sends again.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use sha2::Sha256;

const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// Signs requests. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningKey(Box<[u8]>);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

impl SigningKey {
    /// Makes a key of these bytes; `None` if there are none.
    pub fn new(bytes: Vec<u8>) -> Option<Self> {
        Some(bytes).filter(|bytes| !bytes.is_empty()).map(|bytes| SigningKey(bytes.into()))
    }

    /// Returns the value of `webhook-signature`, at a time in seconds since 1970.
    fn sign(&self, id: &str, seconds: u64, body: &[u8]) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0)
            .unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"));
        mac.update(format!("{id}.{seconds}.").as_bytes());
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

/// The id of a request, which stays the same when the request is sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestId(String);

impl RequestId {
    /// Returns an id that no other request has.
    pub fn random() -> Self {
        // If the system has no randomness, requests share an id. That matters only if the application detects
        // repetitions.
        RequestId(format!("msg_{:016x}", getrandom::u64().unwrap_or_default()))
    }

    /// Makes the id of a request that another process has sent.
    pub fn of_text(text: String) -> Self {
        RequestId(text)
    }

    /// Returns the text of the header.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the id of a request with the events from number `first` to `last`: the same id when they are sent again.
    pub fn of(first: u64, last: u64) -> Self {
        RequestId(format!("msg_{first}_{last}"))
    }
}

/// Returns the headers of a request that is sent now; the signature only with a key.
pub(super) fn headers(id: &RequestId, key: Option<&SigningKey>, body: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut add = |name, text: String| {
        // All three texts are ASCII.
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(name, value);
        }
    };
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since_1970.as_secs();
    if let Some(key) = key {
        add(SIGNATURE, key.sign(&id.0, seconds, body));
    }
    add(ID, id.0.clone());
    add(TIMESTAMP, seconds.to_string());
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification's reference libraries.
    #[test]
    fn it_signs_as_standard_webhooks_does() {
        let key = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let key = SigningKey::new(key).unwrap();
        let body = br#"{"test": 2432232314}"#;
        let signature = key.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_request_is_signed_only_with_a_key_and_the_key_is_not_shown() {
        let id = RequestId("msg_7".into());
        let headers_of = |key: Option<&SigningKey>| headers(&id, key, b"{}");
        let plain = headers_of(None);
        assert_eq!(plain["webhook-id"], "msg_7");
        assert!(plain.contains_key("webhook-timestamp") && plain.len() == 2);
        let key = SigningKey::new(b"k".repeat(32)).unwrap();
        assert!(headers_of(Some(&key)).contains_key("webhook-signature"));
        assert_eq!(format!("{key:?}"), "(secret)");
        assert_eq!(SigningKey::new(Vec::new()), None);
        assert_ne!(RequestId::random(), RequestId::random());
    }
}
