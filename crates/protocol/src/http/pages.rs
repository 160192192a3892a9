//! The rest of the client port: preflights, presence, the status page, files.

use super::parameters::Listener;
use super::reply::short_reply;
use super::{HttpReply, Method, Rejection, Route};
use crate::request::{Entry, Interrupt, ReplyTo, Request};
use model::ErrorCode;

impl Route<'_> {
    pub(super) fn preflight(&self, out: &mut Vec<u8>) {
        let requested = self.request.header("access-control-request-headers").unwrap_or("");
        let plain = requested.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_, ".contains(&b));
        let allow =
            if plain && !requested.is_empty() { requested } else { "Content-Type, Last-Event-ID" };
        let headers = format!(
            "{}Access-Control-Allow-Methods: GET, HEAD, POST, OPTIONS\r\n\
             Access-Control-Allow-Headers: {allow}\r\nAccess-Control-Max-Age: 86400\r\n\
             Allow: GET, HEAD, POST, OPTIONS\r\n",
            self.cors
        );
        short_reply(204, &headers, b"", self.request.keep_alive, false, out);
    }

    /// A topic's presence: for polls, and for clients that are not in the topic.
    pub(super) fn presence(&self) -> Result<Request, Interrupt> {
        let Listener { principal, topics, named, query, .. } = self.listener()?;
        let [Entry { topic, .. }] = &topics[..named] else {
            return Err(Rejection::new(
                ErrorCode::NoTopic,
                "name the topic whose presence you request: ?topic=…, exactly once",
            )
            .into());
        };
        let tokens = self.topic_tokens(&query.topic_tokens)?;
        let _ = self.decide_with(&principal, auth::Action::Presence, topic, &tokens)?;
        let to = ReplyTo::Http(self.respond());
        Ok(Request::Presence { topic: topic.clone(), members_only: false, to })
    }

    /// The status page, or with `?format=json` its figures.
    pub(super) fn status(&self, out: &mut Vec<u8>) -> Result<Request, Rejection> {
        if self.query()?.json {
            return Ok(Request::Status { respond: self.respond() });
        }
        // The page contains its style and script.
        let policy = "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; \
                      script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";
        self.write_file("text/html; charset=utf-8", policy, include_bytes!("status.html"), out);
        Ok(Request::Replied { keep_alive: self.request.keep_alive })
    }

    /// Replies with the file at the path, if the settings have one.
    pub(super) fn file(&self, path: &str, out: &mut Vec<u8>) -> bool {
        let found = self.settings.files.iter().find(|file| file.path == path);
        if let Some(file) = found {
            let policy = "default-src 'self'; img-src 'self' data:; object-src 'none'; \
                          base-uri 'none'; form-action 'self'";
            self.write_file(file.content_type, policy, &file.body, out);
        }
        found.is_some()
    }

    fn write_file(&self, content_type: &str, policy: &str, body: &[u8], out: &mut Vec<u8>) {
        // The address of a page may hold a token, and Referer would pass it to other sites.
        let headers = format!(
            "Cache-Control: no-cache\r\nReferrer-Policy: no-referrer\r\n\
             Content-Security-Policy: {policy}; frame-ancestors 'none'\r\n{}",
            self.cors
        );
        let keep_alive = self.request.keep_alive;
        let head_only = self.request.method == Method::Head;
        let headers = headers.as_str();
        HttpReply { status: 200, headers, content_type, body, keep_alive, head_only }.write(out);
    }
}
