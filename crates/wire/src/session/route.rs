//! From a request to its action.

use std::borrow::Cow;

use super::query::Query;
use super::{
    Action, ConnectionId, HEALTH, HEALTHY, Open, Poll, Respond, Settings, longpoll_refusal,
    page_is_allowed, publish_refusal, refuse, short_answer,
};
use crate::events::{self, check_event};
use crate::http::{self, Method, Refused, Request, refused};
use crate::message::check_name;
use crate::transport::{json, sse, stream};
use crate::ws::{self, handshake};
use crate::{Data, Draft, Marks, Name, Variant};

/// A request, and what its answer depends on.
pub(super) struct Route<'a> {
    pub settings: &'a Settings,
    pub id: ConnectionId,
    pub request: &'a Request<'a>,
    pub cors: &'a Cow<'static, str>,
}

impl Route<'_> {
    pub(super) fn answer(&self, out: &mut Vec<u8>) -> Result<Action, Refused> {
        let keep_alive = self.request.keep_alive;
        let get = matches!(self.request.method, Method::Get | Method::Head);
        match (self.request.path, self.request.method) {
            (_, Method::Options) => {
                self.preflight(out);
                Ok(Action::Answered { keep_alive })
            }
            ("/sse", _) if get => self.sse(out),
            ("/stream", _) if get => self.stream(out),
            ("/poll", Method::Get) => self.poll(),
            ("/poll", Method::Head) => {
                short_answer(200, self.cors, b"", keep_alive, true, out);
                Ok(Action::Answered { keep_alive })
            }
            ("/ws", _) if get => self.websocket(false, out),
            ("/echo", _) if get && self.settings.ws_echo => self.websocket(true, out),
            ("/publish", Method::Post) => self.publish(),
            (http::ACK, Method::Post) => self.acknowledge(),
            ("/socket/websocket", _) if get => self.phoenix_websocket(out),
            (http::LONGPOLL, Method::Get | Method::Post) => self.phoenix_longpoll(),
            ("/presence", Method::Get) => self.presence(),
            ("/presence", Method::Head) => {
                short_answer(200, self.cors, b"", keep_alive, true, out);
                Ok(Action::Answered { keep_alive })
            }
            ("/status", _) if get && self.settings.status_page => self.status(out),
            (path, _) if get && self.file(path, out) => Ok(Action::Answered { keep_alive }),
            (HEALTH, _) if get => {
                let head = self.request.method == Method::Head;
                short_answer(200, self.cors, HEALTHY, keep_alive, head, out);
                Ok(Action::Answered { keep_alive })
            }
            (
                "/sse" | "/stream" | "/poll" | "/ws" | "/socket/websocket" | "/presence" | HEALTH,
                _,
            ) => Err(refused(405, "method_not_allowed", "use GET here")),
            (http::LONGPOLL, _) => {
                let body = http::error_body("method_not_allowed", "use GET or POST here");
                let headers = format!("Allow: GET, POST, OPTIONS\r\n{}", self.cors);
                let head = self.request.method == Method::Head;
                short_answer(405, &headers, &body, keep_alive, head, out);
                Ok(Action::Answered { keep_alive })
            }
            ("/publish" | http::ACK, _) => {
                let body = http::error_body("method_not_allowed", "use POST here");
                let headers = format!("Allow: POST, OPTIONS\r\n{}", self.cors);
                let head = self.request.method == Method::Head;
                short_answer(405, &headers, &body, keep_alive, head, out);
                Ok(Action::Answered { keep_alive })
            }
            _ => Err(refused(
                404,
                "not_found",
                "there is nothing here: clients use /sse, /stream, /poll, /ws and \
                 /socket; the application's API is on the admin port",
            )),
        }
    }

    /// Judges a request whose head is whole and whose body is not: true when it is refused, with the
    /// answer in `out`. Nobody has to hold a body that will not be looked at.
    pub(super) fn before_body(&self, out: &mut Vec<u8>) -> bool {
        let judged = match (self.request.path, self.request.method) {
            ("/publish", Method::Post) => self.publish_wanted().map(|_| false),
            (http::ACK, Method::Post) => Ok(false),
            (http::LONGPOLL, Method::Post) => match self.longpoll_wanted() {
                Ok(wanted) => Ok(!wanted && self.longpoll_gone(out)),
                Err(refused) => Err(refused),
            },
            // Nobody looks at the body, but the request is as good as without one.
            (_, Method::Get | Method::Head | Method::Options) => Ok(false),
            _ => self.answer(out).map(|_| true),
        };
        judged.unwrap_or_else(|refused| {
            self.refuse(&refused, out);
            true
        })
    }

    /// Appends the answer that refuses the request, in the form that its client reads.
    pub(super) fn refuse(&self, refused: &Refused, out: &mut Vec<u8>) {
        let Request { path, method, keep_alive, .. } = *self.request;
        if path == http::LONGPOLL {
            longpoll_refusal(refused, method, &self.respond(), out);
        } else {
            refuse(refused, self.cors, keep_alive, method == Method::Head, out);
        }
    }

    fn preflight(&self, out: &mut Vec<u8>) {
        let asked = self.request.header("access-control-request-headers").unwrap_or("");
        let plain = asked.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_, ".contains(&b));
        let allow = if plain && !asked.is_empty() { asked } else { "Content-Type, Last-Event-ID" };
        let headers = format!(
            "{}Access-Control-Allow-Methods: GET, HEAD, POST, OPTIONS\r\n\
             Access-Control-Allow-Headers: {allow}\r\nAccess-Control-Max-Age: 86400\r\n\
             Allow: GET, HEAD, POST, OPTIONS\r\n",
            self.cors
        );
        short_answer(204, &headers, b"", self.request.keep_alive, false, out);
    }

    fn sse(&self, out: &mut Vec<u8>) -> Result<Action, Refused> {
        let query = self.listener()?;
        if self.request.method == Method::Head {
            return Ok(self.head_only(out, sse::head));
        }
        sse::open(self.cors, sse::retry_ms(self.settings.sse_retry_ms, self.id), out);
        let variant = if query.json { Variant::SseJson } else { Variant::Sse };
        Ok(self.open(variant, query))
    }

    fn stream(&self, out: &mut Vec<u8>) -> Result<Action, Refused> {
        if self.request.minor == 0 {
            let message = "an endless answer needs HTTP/1.1; use /sse or /poll";
            return Err(refused(505, "bad_version", message));
        }
        let query = self.listener()?;
        if self.request.method == Method::Head {
            return Ok(self.head_only(out, stream::head));
        }
        stream::welcome(self.cors, self.id, &query.users, &query.topics, out);
        Ok(self.open(Variant::Stream, query))
    }

    /// The answer to HEAD on an endless resource: its head, and the connection ends.
    fn head_only(&self, out: &mut Vec<u8>, head: impl FnOnce(&str, &mut Vec<u8>)) -> Action {
        http::status_line(200, out);
        head(self.cors, out);
        out.extend_from_slice(b"\r\n");
        Action::Answered { keep_alive: false }
    }

    fn poll(&self) -> Result<Action, Refused> {
        let query = self.listener()?;
        if query.users.is_empty() && query.topics.is_empty() {
            let message = "say what to poll for: ?topic=… or ?user=…, both may be repeated";
            return Err(refused(400, "no_topic", message));
        }
        let seconds = query.seconds.unwrap_or(self.settings.poll_seconds);
        Ok(Action::Poll(Poll {
            users: query.users,
            topics: query.topics,
            since: query.since,
            tags: query.tags,
            seconds: seconds.min(self.settings.poll_seconds_max),
            respond: self.respond(),
        }))
    }

    /// Checks that the request opens a WebSocket (RFC 6455, section 4.2.1) and gives the value of
    /// `Sec-WebSocket-Accept`.
    pub(super) fn upgrade(&self) -> Result<String, Refused> {
        let request = self.request;
        let key = match (request.upgrade, request.header("sec-websocket-version")) {
            (true, Some("13")) => request.header("sec-websocket-key"),
            (true, Some(_)) => {
                return Err(refused(426, "bad_version", "WebSocket version 13 is spoken here"));
            }
            _ => {
                let message =
                    "this is a WebSocket: connect with ws://, or use /sse, /stream or /poll";
                return Err(refused(426, "upgrade_required", message));
            }
        };
        let bad_key = || {
            refused(400, "bad_key", "Sec-WebSocket-Key must be 16 bytes in base64, exactly once")
        };
        let key = key.filter(|_| request.values("sec-websocket-key").count() == 1);
        let accept = handshake::accept(key.ok_or_else(bad_key)?).ok_or_else(bad_key)?;
        if request.method != Method::Get || request.minor == 0 {
            return Err(refused(400, "bad_request", "a WebSocket begins with GET and HTTP/1.1"));
        }
        if !page_is_allowed(self.settings, request) {
            return Err(refused(403, "bad_origin", "pages of this origin are not allowed here"));
        }
        Ok(accept)
    }

    fn websocket(&self, echo: bool, out: &mut Vec<u8>) -> Result<Action, Refused> {
        let request = self.request;
        let accept = self.upgrade()?;
        let query = self.listener()?;
        let deflate = match self.settings.compression {
            true => handshake::negotiate(request.values("sec-websocket-extensions")),
            false => None,
        };
        handshake::response(&accept, None, deflate.as_ref(), out);
        let variant = match (deflate.map(|deflate| deflate.server_max_window_bits), echo) {
            (None, false) => Variant::Ws,
            (Some(15..), false) => Variant::WsDeflate,
            (Some(_), false) => Variant::WsDeflateSmall,
            (None, true) => Variant::Echo,
            (Some(15..), true) => Variant::EchoDeflate,
            (Some(_), true) => Variant::EchoDeflateSmall,
        };
        if !echo {
            let mut hello = Vec::new();
            json::welcome(self.id, &query.users, &query.topics, false, &mut hello);
            ws::frame::encode(ws::frame::Opcode::Text, false, &hello, out);
        }
        Ok(self.open(variant, query))
    }

    /// Where and how a request publishes, as far as its head says.
    fn publish_wanted(&self) -> Result<(Name, Query), Refused> {
        let mut query = self.query()?;
        let [topic] = query.topics.as_mut_slice() else {
            return Err(refused(400, "no_topic", "say where to publish: ?topic=…, exactly once"));
        };
        let topic = std::mem::take(topic);
        if let Some(why) = publish_refusal(self.settings, &topic) {
            return Err(refused(403, "forbidden", why));
        }
        if let Some((code, wrong)) = query.event.as_deref().and_then(|it| check_event(it).err()) {
            let status = if code == events::RESERVED { 403 } else { 400 };
            return Err(refused(status, code, wrong));
        }
        if let Some(wrong) = query.key.as_deref().and_then(|key| check_name(key).err()) {
            return Err(refused(400, "bad_key", wrong));
        }
        Ok((topic, query))
    }

    fn publish(&self) -> Result<Action, Refused> {
        let (topic, query) = self.publish_wanted()?;
        let body = self.request.body;
        if body.len() > self.settings.message_bytes_max {
            let message = format!("a message is at most {} bytes", self.settings.message_bytes_max);
            return Err(refused(413, "message_too_large", message));
        }
        let data = self.body_data(body)?;
        let marks = Marks::of(query.tags, query.key);
        let draft = Draft { topic, event: query.event, data, except: None, marks };
        Ok(Action::Publish { draft, respond: self.respond() })
    }

    /// A body is JSON or bytes where its media type says so, and text otherwise.
    fn body_data(&self, body: &[u8]) -> Result<Data, Refused> {
        let media = self.request.header("content-type").unwrap_or("text/plain");
        let media = media.split(';').next().unwrap_or("").trim_ascii();
        if media.eq_ignore_ascii_case("application/octet-stream") {
            return Ok(Data::Binary(body.into()));
        }
        let not_utf8 = |_| {
            let message = "the body is not UTF-8: send bytes as application/octet-stream";
            refused(400, "bad_data", message)
        };
        let text = std::str::from_utf8(body).map_err(not_utf8)?;
        if !media.eq_ignore_ascii_case("application/json") {
            return Ok(Data::Text(text.into()));
        }
        let raw: &serde_json::value::RawValue = serde_json::from_str(text)
            .map_err(|error| refused(400, "bad_data", format!("the body is not JSON: {error}")))?;
        Data::from_json(raw, None).map_err(|wrong| refused(400, "bad_data", wrong))
    }

    /// Who is in a topic, for those that are not told: SSE, streams, polls and WebSockets hear of
    /// changes only.
    fn presence(&self) -> Result<Action, Refused> {
        let query = self.listener()?;
        let [topic] = query.topics.as_slice() else {
            return Err(refused(400, "no_topic", "say whose presence: ?topic=…, exactly once"));
        };
        if !self.settings.rules.presence(topic) {
            let message = "presence is off for this topic: the server's configuration has no \
                           [[topics]] table for it with presence = true";
            return Err(refused(404, "no_presence", message));
        }
        Ok(Action::Presence { topic: topic.clone(), respond: self.respond() })
    }

    /// The page, or with `?format=json` its figures.
    fn status(&self, out: &mut Vec<u8>) -> Result<Action, Refused> {
        if self.query()?.json {
            return Ok(Action::Status { respond: self.respond() });
        }
        // Its style and script are in it.
        let policy = "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; \
                      script-src 'unsafe-inline'";
        self.write_file("text/html; charset=utf-8", policy, include_bytes!("status.html"), out);
        Ok(Action::Answered { keep_alive: self.request.keep_alive })
    }

    /// Answers with the file at the path, if there is one.
    fn file(&self, path: &str, out: &mut Vec<u8>) -> bool {
        let found = self.settings.files.iter().find(|file| file.path == path);
        if let Some(file) = found {
            let policy = "default-src 'self'; img-src 'self' data:";
            self.write_file(file.content_type, policy, &file.body, out);
        }
        found.is_some()
    }

    fn write_file(&self, content_type: &str, policy: &str, body: &[u8], out: &mut Vec<u8>) {
        let headers = format!(
            "Cache-Control: no-cache\r\nX-Content-Type-Options: nosniff\r\n\
             Content-Security-Policy: {policy}\r\n{}",
            self.cors
        );
        let keep_alive = self.request.keep_alive;
        let head_only = self.request.method == Method::Head;
        let headers = headers.as_str();
        http::Answer { status: 200, headers, content_type, body, keep_alive, head_only }.write(out);
    }

    pub(super) fn respond(&self) -> Respond {
        Respond { cors: self.cors.clone(), keep_alive: self.request.keep_alive }
    }

    fn open(&self, variant: Variant, query: Query) -> Action {
        let Query { users, topics, since, tags, .. } = query;
        Action::Open(Open { variant, users, topics, since, tags })
    }
}
