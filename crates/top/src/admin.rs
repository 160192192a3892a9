//! Asking a node's admin API, and what may be wrong with it.

use std::fmt;

use anyhow::{Result, ensure};
use flood::http::{Http, NotConnected};
use flood::target::Url;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::format::{cut, plain};
use crate::sample::Past;

/// What requests say of who asks.
pub(crate) const AGENT: &str = "throng-top";
/// The port where a node answers operators, if none is told.
const PORT: u16 = 8001;
/// Columns of a server's own words that are shown.
const WORDS_MAX: usize = 300;

/// Whom to ask, and with what key.
#[derive(Clone)]
pub struct Target {
    pub(crate) url: Url,
    pub(crate) key: Option<String>,
}

impl fmt::Debug for Target {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_key = self.key.is_some();
        f.debug_struct("Target").field("url", &self.url).field("has_key", &has_key).finish()
    }
}

impl Target {
    /// Takes a URL apart and looks its host up. A host alone, with or without a port, will do.
    ///
    /// # Errors
    /// If it is no http URL, its host is not known, or the key can't stand in a request.
    pub fn parse(text: &str, key: Option<String>) -> Result<Self> {
        let tls = text.starts_with("https://") || text.starts_with("wss://");
        ensure!(
            !tls,
            "{text}: TLS isn't spoken here: forward the port, as in ssh -L {PORT}:127.0.0.1:{PORT} \
             HOST, and name http://127.0.0.1:{PORT}, or name the http:// port behind the proxy"
        );
        let full = match text.contains("://") {
            true => text.to_owned(),
            false => format!("http://{}", with_port(text)),
        };
        let mut url = Url::parse(&full)?;
        let is_base = full.starts_with("http://") && !url.path.contains(['?', '#']);
        ensure!(is_base, "{text}: write a URL like http://127.0.0.1:{PORT}");
        url.path.truncate(url.path.trim_end_matches('/').len());
        if let Some(key) = &key {
            let fits = key.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
            ensure!(
                fits,
                "the API key holds characters that can't stand in a request: is it one line of ASCII?"
            );
        }
        Ok(Target { url, key })
    }

    /// The host and port, as the URL has them.
    pub fn name(&self) -> &str {
        &self.url.host
    }
}

/// A host with the port of operators, if it has none.
fn with_port(text: &str) -> String {
    let slash = text.find('/').unwrap_or(text.len());
    let (host, path) = text.split_at(slash);
    match host.rsplit_once(':') {
        Some((_, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => {
            text.to_owned()
        }
        _ => format!("{host}:{PORT}{path}"),
    }
}

/// Why an answer didn't come, or was none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// No connection, or it broke.
    #[error("{0}")]
    Away(String),
    /// A key is missing or wrong, or the caller isn't welcome: trying again helps nobody.
    #[error("{0}")]
    Forbidden(String),
    /// A Throng that couldn't do what was asked.
    #[error("{0}")]
    Refused(String),
    /// What answers is no Throng, or not its admin port.
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

/// A client of one node's admin API; it connects when it is first used.
pub struct Admin {
    http: Http,
    base: String,
    name: String,
    has_key: bool,
}

impl Admin {
    /// A client of this node.
    pub fn new(target: &Target) -> Self {
        Admin::with_agent(target, AGENT)
    }

    /// A client under another name, which servers may write to their logs.
    pub fn with_agent(target: &Target, agent: &str) -> Self {
        Admin {
            http: Http::with_agent(&target.url, target.key.as_deref(), agent),
            base: target.url.path.clone(),
            name: target.name().to_owned(),
            has_key: target.key.is_some(),
        }
    }

    /// The node and its last 15 minutes.
    ///
    /// # Errors
    /// What is wrong.
    pub fn past(&mut self) -> Result<Past, Trouble> {
        let body = self.body("/api/history")?;
        Past::parse(&body).map_err(|error| self.not_throng("/api/history", &error.to_string()))
    }

    /// Any other answer.
    ///
    /// # Errors
    /// What is wrong.
    pub fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, Trouble> {
        let body = self.body(path)?;
        serde_json::from_slice(&body).map_err(|error| self.not_throng(path, &error.to_string()))
    }

    fn body(&mut self, path: &str) -> Result<Vec<u8>, Trouble> {
        let (status, body) = self.exchange("GET", path, "text/plain", "")?;
        if status == 200 { Ok(body) } else { Err(self.refusal(path, status, &body)) }
    }

    /// Status and body of any answer.
    ///
    /// # Errors
    /// When there was none.
    pub fn exchange(
        &mut self,
        method: &str,
        path: &str,
        content_type: &str,
        body: &str,
    ) -> Result<(u16, Vec<u8>), Trouble> {
        let answer = self.http.request(method, &format!("{}{path}", self.base), content_type, body);
        answer.map_err(|error| self.unanswered(path, &error))
    }

    fn unanswered(&self, path: &str, error: &anyhow::Error) -> Trouble {
        let io = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
        match io {
            Some(io) if error.is::<NotConnected>() => {
                Trouble::Away(format!("nothing answers at {}: {io}", self.name))
            }
            Some(io) => Trouble::Away(format!("the connection to {} broke: {io}", self.name)),
            None => self.not_throng(path, &error.root_cause().to_string()),
        }
    }

    /// What an answer with another status than 200 means.
    pub fn refusal(&self, path: &str, status: u16, body: &[u8]) -> Trouble {
        let Ok(ErrorBody { error }) = serde_json::from_slice(body) else {
            return self.not_throng(path, &format!("status {status}"));
        };
        let said = cut(&plain(&error.message), WORDS_MAX);
        match (status, error.code.as_str()) {
            (401, "no_key") if !self.has_key => Trouble::Forbidden(format!(
                "{} wants its API key: name the file that holds it with --api-key-file, or set \
                 THRONG_ADMIN_API_KEY",
                self.name
            )),
            (401, _) => Trouble::Forbidden(format!(
                "{} refuses the key: it is not the node's API key (admin.api_key)",
                self.name
            )),
            (403, _) => Trouble::Forbidden(format!("{} refuses: {said}", self.name)),
            (404 | 405, _) => self.not_throng(path, &format!("status {status}")),
            _ => Trouble::Refused(format!("{} answers: {said}", self.name)),
        }
    }

    fn not_throng(&self, path: &str, why: &str) -> Trouble {
        Trouble::NotThrong(format!(
            "{} doesn't answer {path} as Throng's admin port does ({}): is this the right port? \
             It is {PORT} if nobody changed it",
            self.name,
            cut(&plain(why), WORDS_MAX)
        ))
    }
}

/// A name as it stands in a path or a query.
pub fn encoded(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> String {
        Target::parse(text, None).map_or_else(|e| e.to_string(), |target| target.url.host)
    }

    #[test]
    fn a_host_alone_will_do() {
        assert_eq!(host("http://127.0.0.1:9"), "127.0.0.1:9");
        assert_eq!(host("127.0.0.1"), "127.0.0.1:8001");
        assert_eq!(host("127.0.0.1:9"), "127.0.0.1:9");
        assert_eq!(host("[::1]"), "[::1]:8001");
        let url = Target::parse("127.0.0.1/throng/", None).unwrap().url;
        assert_eq!((url.host.as_str(), url.path.as_str()), ("127.0.0.1:8001", "/throng"));
    }

    #[test]
    fn what_cannot_be_asked_is_told() {
        assert!(host("https://127.0.0.1").contains("ssh -L 8001:127.0.0.1:8001"));
        for text in ["ftp://127.0.0.1", "ws://127.0.0.1:1", "http://127.0.0.1:1/?a=b"] {
            assert!(host(text).contains("write a URL like"), "{text}: {}", host(text));
        }
        let key = Some("a\r\nX: y".to_owned());
        assert!(Target::parse("127.0.0.1", key).unwrap_err().to_string().contains("one line"));
    }

    #[test]
    fn the_key_is_not_shown() {
        let target = Target::parse("127.0.0.1", Some("secret".into())).unwrap();
        let shown = format!("{target:?}");
        assert!(shown.contains("has_key: true") && !shown.contains("secret"), "{shown}");
    }

    #[test]
    fn refusals_are_told_apart() {
        let admin = |key: Option<&str>| {
            Admin::new(&Target::parse("127.0.0.1:1", key.map(str::to_owned)).unwrap())
        };
        let body = |code: &str| format!(r#"{{"error":{{"code":"{code}","message":"so\u001b"}}}}"#);
        let refusal = |key, status, code| admin(key).refusal("/x", status, body(code).as_bytes());
        let texts = [
            (refusal(None, 401, "no_key"), "wants its API key"),
            (refusal(Some("k"), 401, "bad_key"), "refuses the key"),
            (refusal(None, 403, "bad_host"), "refuses: so\u{fffd}"),
        ];
        for (trouble, want) in texts {
            assert!(
                matches!(&trouble, Trouble::Forbidden(text) if text.contains(want)),
                "{trouble}"
            );
        }
        assert!(matches!(refusal(None, 503, "no_answer"), Trouble::Refused(_)));
        assert!(matches!(refusal(None, 404, "not_found"), Trouble::NotThrong(_)));
        assert!(matches!(admin(None).refusal("/x", 401, b"<html>"), Trouble::NotThrong(_)));
        assert!(matches!(admin(None).past(), Err(Trouble::Away(_))));
    }
}
