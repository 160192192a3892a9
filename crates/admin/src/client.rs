//! A client of a node's admin API, and its errors.

use std::fmt;
use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::{Result, ensure};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::http::{Connection, Http, Layer, NotConnectedError, connect};
use crate::text::{cut, plain};
use crate::tls::{Tls, Trust};
use crate::url::Url;

/// The default of a node's admin port.
const PORT: u16 = 8001;
/// The limit on the characters of a server's message for people.
const WORDS_MAX: usize = 300;

/// The node to poll, and its key.
#[derive(Clone)]
pub struct Target {
    url: Url,
    key: Option<String>,
    layer: Option<Layer>,
}

impl fmt::Debug for Target {
    /// Hides the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_key = self.key.is_some();
        f.debug_struct("Target").field("url", &self.url).field("has_key", &has_key).finish()
    }
}

impl Target {
    /// Parses a URL and resolves its host. A host alone, with or without a port, is enough. With `https`, `trust`
    /// must cover the node's certificate.
    ///
    /// # Errors
    /// If it is no http URL, the host can't be resolved, no certificate is trusted, or a request can't contain the
    /// key.
    pub fn parse(text: &str, key: Option<String>, trust: Trust<'_>) -> Result<Self> {
        let mut url = Url::parse_admin(text, PORT)?;
        let is_base = !text.starts_with("ws://") && !url.path.contains('?');
        ensure!(is_base, "{text}: write a URL like http://127.0.0.1:{PORT}");
        url.path.truncate(url.path.trim_end_matches('/').len());
        if let Some(key) = &key {
            let fits = key.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
            ensure!(
                fits,
                "the API key contains characters that a request can't carry: it must be one line \
                 of ASCII"
            );
        }
        let layer = if url.is_tls { Tls::new(trust)?.layer(&url)? } else { None };
        Ok(Target { url, key, layer })
    }

    /// Returns the node's URL; its path has no slash at the end.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Returns the API key.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// Connects, with TLS if the URL requires it.
    ///
    /// # Errors
    /// If the node can't be reached within `timeout`, or its certificate is not trusted.
    pub fn connect(&self, timeout: Duration) -> Result<Box<dyn Connection>> {
        connect(&self.url.address, timeout, self.layer.as_ref())
    }

    /// Returns the host and port as the URL has them.
    pub fn name(&self) -> &str {
        &self.url.host
    }
}

/// The reason why a request to the admin API failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdminError {
    /// The client could not connect, or the connection broke.
    #[error("{0}")]
    Unreachable(String),
    /// The key is missing or invalid, or the node rejects the client. Another attempt is pointless.
    #[error("{0}")]
    Forbidden(String),
    /// The node could not do the request.
    #[error("{0}")]
    Rejected(String),
    /// The server is no Throng, or the port is not its admin port.
    #[error("{0}")]
    NotThrong(String),
}

#[derive(Deserialize)]
struct ErrorBody {
    error: ErrorText,
}

#[derive(Deserialize)]
struct ErrorText {
    code: String,
    message: String,
}

/// A client of one node's admin API. It connects at its first request.
pub struct Admin {
    http: Http,
    base: String,
    name: String,
    has_key: bool,
}

impl Admin {
    /// Returns a client of this node, with this `User-Agent`, which servers may write to their logs.
    pub fn new(target: &Target, agent: &str) -> Self {
        Admin {
            http: Http::new(&target.url, target.key.as_deref(), agent)
                .with_layer(target.layer.clone()),
            base: target.url.path.clone(),
            name: target.name().to_owned(),
            has_key: target.key.is_some(),
        }
    }

    /// Requests a JSON document.
    ///
    /// # Errors
    /// If the node can't be reached or does not respond as expected.
    pub fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, AdminError> {
        let body = self.body(path)?;
        serde_json::from_slice(&body).map_err(|error| self.not_throng(path, &error.to_string()))
    }

    fn body(&mut self, path: &str) -> Result<Vec<u8>, AdminError> {
        let (status, body) = self.exchange("GET", path, "text/plain", "")?;
        if status == 200 { Ok(body) } else { Err(self.error_of(path, status, &body)) }
    }

    /// Sends a request and returns the status and body of the response, whatever the status is.
    ///
    /// # Errors
    /// If no response came.
    pub fn exchange(
        &mut self,
        method: &str,
        path: &str,
        content_type: &str,
        body: &str,
    ) -> Result<(u16, Vec<u8>), AdminError> {
        let reply = self.http.request(method, &format!("{}{path}", self.base), content_type, body);
        reply.map_err(|error| self.no_reply(path, &error))
    }

    /// Sends a request whose response is a stream, and passes each line of it to `each` as it arrives, until `each`
    /// breaks. A response with another status than 200 is returned with its body, and has no lines.
    ///
    /// # Errors
    /// If no response came, the stream broke off, or nothing came for `silence`.
    pub fn lines(
        &mut self,
        (method, path): (&str, &str),
        body: &str,
        silence: Duration,
        each: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(u16, Vec<u8>), AdminError> {
        let reply = self.http.lines(method, &format!("{}{path}", self.base), body, silence, each);
        reply.map_err(|error| self.no_reply(path, &error))
    }

    fn no_reply(&self, path: &str, error: &anyhow::Error) -> AdminError {
        let io = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
        match io {
            Some(io) if error.is::<NotConnectedError>() => {
                AdminError::Unreachable(format!("can't reach {}: {io}", self.name))
            }
            Some(io) => {
                AdminError::Unreachable(format!("the connection to {} broke: {io}", self.name))
            }
            None if error.is::<NotConnectedError>() => {
                AdminError::Unreachable(format!("{}: {}", self.name, error.root_cause()))
            }
            None => self.not_throng(path, &error.root_cause().to_string()),
        }
    }

    /// Returns the error for a response with another status than 200.
    pub fn error_of(&self, path: &str, status: u16, body: &[u8]) -> AdminError {
        let Ok(ErrorBody { error }) = serde_json::from_slice(body) else {
            return self.not_throng(path, &format!("status {status}"));
        };
        let message = cut(&plain(&error.message), WORDS_MAX);
        match (status, error.code.as_str()) {
            (401, "no_key") if !self.has_key => AdminError::Forbidden(format!(
                "{} requires an API key: name the file that contains it with --api-key-file, or \
                 set THRONG_ADMIN_API_KEY",
                self.name
            )),
            (401, _) => AdminError::Forbidden(format!(
                "{} rejected the API key: it is not the node's API key (admin.api_key)",
                self.name
            )),
            (403, _) => {
                AdminError::Forbidden(format!("{} rejected the call: {message}", self.name))
            }
            (404 | 405, _) => self.not_throng(path, &format!("status {status}")),
            _ => AdminError::Rejected(format!("{} responded: {message}", self.name)),
        }
    }

    fn not_throng(&self, path: &str, why: &str) -> AdminError {
        AdminError::NotThrong(format!(
            "{} does not respond to {path} like Throng's admin port ({}): is this the right port? \
             The default is {PORT}",
            self.name,
            cut(&plain(why), WORDS_MAX)
        ))
    }
}

/// Returns a node's reason for a rejection: its error's code and message, or else the status alone.
pub fn refusal(status: u16, body: &[u8]) -> String {
    match serde_json::from_slice(body) {
        Ok(ErrorBody { error: ErrorText { code, message } }) => {
            cut(&plain(&format!("{code}: {message}")), WORDS_MAX)
        }
        Err(_) => format!("responded with status {status}"),
    }
}

/// Encodes a name for a path or a query.
pub fn encoded(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> String {
        Target::parse(text, None, Trust::System)
            .map_or_else(|e| e.to_string(), |target| target.url.host)
    }

    #[test]
    fn a_rejection_has_the_nodes_own_words() {
        let body = br#"{"error":{"code":"no_history","message":"nothing\u001b is kept"}}"#;
        assert_eq!(refusal(404, body), "no_history: nothing\u{fffd} is kept");
        assert_eq!(refusal(502, b"<html>"), "responded with status 502");
        let long = format!(r#"{{"error":{{"code":"a","message":"{}"}}}}"#, "x".repeat(9_000));
        assert_eq!(refusal(400, long.as_bytes()).chars().count(), WORDS_MAX);
    }

    #[test]
    fn a_host_without_scheme_or_port_is_enough() {
        assert_eq!(host("http://127.0.0.1:9"), "127.0.0.1:9");
        assert_eq!(host("127.0.0.1"), "127.0.0.1:8001");
        assert_eq!(host("127.0.0.1:9"), "127.0.0.1:9");
        assert_eq!(host("[::1]"), "[::1]:8001");
        let url = Target::parse("127.0.0.1/throng/", None, Trust::System).unwrap().url;
        assert_eq!((url.host.as_str(), url.path.as_str()), ("127.0.0.1:8001", "/throng"));
    }

    #[test]
    fn unusable_urls_and_keys_are_rejected() {
        for text in
            ["ftp://127.0.0.1", "ws://127.0.0.1:1", "wss://127.0.0.1:1", "http://127.0.0.1:1/?a=b"]
        {
            assert!(host(text).contains("write a URL like"), "{text}: {}", host(text));
        }
        let key = Some("a\r\nX: y".to_owned());
        assert!(
            Target::parse("127.0.0.1", key, Trust::System)
                .unwrap_err()
                .to_string()
                .contains("one line")
        );
    }

    #[test]
    fn debug_output_hides_the_key() {
        let target = Target::parse("127.0.0.1", Some("secret".into()), Trust::System).unwrap();
        let shown = format!("{target:?}");
        assert!(shown.contains("has_key: true") && !shown.contains("secret"), "{shown}");
    }

    #[test]
    fn responses_map_to_distinct_errors() {
        let admin = |key: Option<&str>| {
            Admin::new(
                &Target::parse("127.0.0.1:1", key.map(str::to_owned), Trust::System).unwrap(),
                "test",
            )
        };
        let body = |code: &str| format!(r#"{{"error":{{"code":"{code}","message":"so\u001b"}}}}"#);
        let error_of = |key, status, code| admin(key).error_of("/x", status, body(code).as_bytes());
        let texts = [
            (error_of(None, 401, "no_key"), "requires an API key"),
            (error_of(Some("k"), 401, "bad_key"), "rejected the API key"),
            (error_of(None, 403, "bad_host"), "rejected the call: so\u{fffd}"),
        ];
        for (error, want) in texts {
            assert!(
                matches!(&error, AdminError::Forbidden(text) if text.contains(want)),
                "{error}"
            );
        }
        assert!(matches!(error_of(None, 503, "no_answer"), AdminError::Rejected(_)));
        assert!(matches!(error_of(None, 404, "not_found"), AdminError::NotThrong(_)));
        assert!(matches!(admin(None).error_of("/x", 401, b"<html>"), AdminError::NotThrong(_)));
        let unreachable = admin(None).get::<serde_json::Value>("/x");
        assert!(matches!(unreachable, Err(AdminError::Unreachable(_))));
    }
}
