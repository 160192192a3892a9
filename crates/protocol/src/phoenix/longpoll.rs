//! The envelope of the long-poll transport of `Phoenix.Transports.LongPoll` and phoenix.js: every reply is HTTP 200
//! with a JSON body, whose `status` has the result.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::{Form, Incoming, Payload, PhoenixError, Serializer};
use crate::http::error_body;
use crate::json;

/// Messages in one POST, at most.
pub const LINES_MAX: usize = 100;

/// The content type of a POST with several messages, one a line.
pub const NDJSON: &str = "application/x-ndjson";

/// The request header with the session's token; older clients send it in the query parameter [`TOKEN_PARAMETER`].
pub const TOKEN_HEADER: &str = "X-Phoenix-Longpoll-Token";

/// The query parameter with the session's token.
pub const TOKEN_PARAMETER: &str = "token";

/// The `status` in a reply's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum LongpollStatus {
    /// A poll with messages, or an accepted POST.
    Ok = 200,
    /// A poll that timed out without a message: the client polls again.
    NoContent = 204,
    /// The server rejects the connection: the client does not return.
    Forbidden = 403,
    /// An invalid request.
    BadRequest = 400,
    /// A POST that the server did not process in time.
    RequestTimeout = 408,
    /// The request has no session, or it is gone. The reply to a poll has the token of a new one.
    Gone = 410,
    /// A temporary error: the client retries after a while.
    Error = 500,
}

/// Appends one message as an element of `messages`: a comma, and a JSON string with the serialized text, or base64 of
/// a binary message. So a session can store elements one after another, and [`poll`] removes the first comma.
///
/// phoenix.js reads every string as JSON text and can't read base64: encode its messages with
/// [`Content::Base64`](super::Content::Base64), which makes no binary messages.
pub fn element(form: Form, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b',');
    match form {
        Form::Text => json::string(&String::from_utf8_lossy(bytes), out),
        Form::Binary => {
            out.push(b'"');
            out.extend_from_slice(STANDARD.encode(bytes).as_bytes());
            out.push(b'"');
        }
    }
}

/// Appends the body of the reply to a poll: `{"status":…,"token":…,"messages":[…]}`. `elements` are runs of output of
/// [`element`].
pub fn poll<'a>(
    status: LongpollStatus,
    token: &str,
    elements: impl IntoIterator<Item = &'a [u8]>,
    out: &mut Vec<u8>,
) {
    head(status, out);
    out.extend_from_slice(b",\"token\":");
    json::string(token, out);
    out.extend_from_slice(b",\"messages\":[");
    for (at, run) in elements.into_iter().enumerate() {
        out.extend_from_slice(if at == 0 { run.get(1..).unwrap_or_default() } else { run });
    }
    out.extend_from_slice(b"]}");
}

/// Appends a reply's body that has only a status: to a POST, and to a rejected poll.
pub fn reply(status: LongpollStatus, out: &mut Vec<u8>) {
    head(status, out);
    out.push(b'}');
}

/// Appends a reply's body with a rejection. phoenix.js reads only the status, and without one it stops for ever.
pub fn rejection(status: LongpollStatus, code: &str, message: &str, out: &mut Vec<u8>) {
    head(status, out);
    out.push(b',');
    // The usual error object, without its first brace.
    out.extend_from_slice(&error_body(code, message)[1..]);
}

fn head(status: LongpollStatus, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"status\":");
    json::push_display(&(status as u16), out);
}

/// One message of a POST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// A text message.
    Text(&'a str),
    /// A binary message, decoded.
    Binary(Vec<u8>),
}

impl Line<'_> {
    /// Reads the message.
    pub fn parse(&self, serializer: Serializer) -> Result<Incoming<Payload<'_>>, PhoenixError> {
        match self {
            Line::Text(text) => serializer.parse_text(text),
            Line::Binary(bytes) => serializer.parse_binary(bytes),
        }
    }
}

/// Splits the body of a POST into 1 to [`LINES_MAX`] messages: one text message, or with the content type [`NDJSON`]
/// one a line (none if it is empty). In NDJSON, a line that begins with `[` (V2) or `{` (V1) is text and any other is
/// base64; empty lines are skipped.
///
/// After an error no message of the body counts.
pub fn lines<'a>(
    content_type: Option<&str>,
    body: &'a [u8],
) -> Result<Vec<Line<'a>>, PhoenixError> {
    let body =
        simdutf8::basic::from_utf8(body).map_err(|_| PhoenixError::NotUtf8 { field: "body" })?;
    if !is_ndjson(content_type) {
        return Ok(vec![Line::Text(body)]);
    }
    let mut lines = Vec::new();
    for (at, line) in body.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        if lines.len() == LINES_MAX {
            return Err(PhoenixError::TooManyLines { lines_max: LINES_MAX });
        }
        lines.push(match line.trim_ascii_start().as_bytes().first() {
            Some(b'[' | b'{') => Line::Text(line),
            _ => match STANDARD.decode(line) {
                Ok(bytes) => Line::Binary(bytes),
                Err(_) => return Err(PhoenixError::NotBase64 { line: at + 1 }),
            },
        });
    }
    Ok(lines)
}

/// Compares media types without their parameters and case.
fn is_ndjson(content_type: Option<&str>) -> bool {
    let essence = content_type.and_then(|text| text.split(';').next()).unwrap_or("");
    essence.trim_ascii().eq_ignore_ascii_case(NDJSON)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phoenix::Content;

    fn polled(status: LongpollStatus, token: &str, messages: &[(Form, &[u8])]) -> String {
        let mut runs: Vec<Vec<u8>> = Vec::new();
        for (form, bytes) in messages {
            let mut run = Vec::new();
            element(*form, bytes, &mut run);
            runs.push(run);
        }
        let mut out = Vec::new();
        poll(status, token, runs.iter().map(Vec::as_slice), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_documented_replies() {
        assert_eq!(
            polled(LongpollStatus::Gone, "T", &[]),
            r#"{"status":410,"token":"T","messages":[]}"#
        );
        let no_content = r#"{"status":204,"token":"T","messages":[]}"#;
        assert_eq!(polled(LongpollStatus::NoContent, "T", &[]), no_content);
        let mut text = Vec::new();
        let content = Content::Json(r#"{"a":"\n"}"#);
        let form = Serializer::V2.broadcast("t", "e", None, content, None, &mut text).unwrap();
        let mut bytes = Vec::new();
        let binary = Serializer::V2
            .broadcast("t", "e", None, Content::Binary(b"!"), None, &mut bytes)
            .unwrap();
        assert_eq!(
            polled(LongpollStatus::Ok, "T\"", &[(form, &text), (binary, &bytes)]),
            concat!(
                r#"{"status":200,"token":"T\"","messages":"#,
                r#"["[null,null,\"t\",\"e\",{\"a\":\"\\n\"}]","AgEBdGUh"]}"#
            )
        );
        for (status, body) in [
            (LongpollStatus::Ok, "{\"status\":200}"),
            (LongpollStatus::Forbidden, "{\"status\":403}"),
            (LongpollStatus::RequestTimeout, "{\"status\":408}"),
            (LongpollStatus::Gone, "{\"status\":410}"),
        ] {
            let mut out = Vec::new();
            reply(status, &mut out);
            assert_eq!(out, body.as_bytes());
        }
    }

    #[test]
    fn a_post_is_one_message_or_many() {
        let one = lines(Some("application/json"), b"[\n]").unwrap();
        assert_eq!(one, [Line::Text("[\n]")]);
        assert_eq!(lines(None, b"").unwrap(), [Line::Text("")]);

        let body = b"[1]\r\n\n{\"a\":2}\nAAEBAQExMnRlAP8=\n";
        let many = lines(Some("Application/X-NDJSON ; charset=utf-8"), body).unwrap();
        let binary = b"\x00\x01\x01\x01\x0112te\x00\xff";
        let want = [Line::Text("[1]"), Line::Text("{\"a\":2}"), Line::Binary(binary.to_vec())];
        assert_eq!(many, want);
        let incoming = many[2].parse(Serializer::V2).unwrap();
        assert_eq!((incoming.ref_.as_deref(), incoming.event.as_str()), (Some("2"), "e"));
        assert!(matches!(incoming.payload, Payload::Binary(b"\x00\xff")));
        assert!(many[2].parse(Serializer::V1).is_err());
        assert_eq!(lines(Some(NDJSON), b"").unwrap(), []);
    }

    #[test]
    fn an_invalid_body_gives_no_message_at_all() {
        let result = lines(Some(NDJSON), b"[1]\n???");
        assert_eq!(result, Err(PhoenixError::NotBase64 { line: 2 }));
        assert_eq!(lines(None, b"\xff"), Err(PhoenixError::NotUtf8 { field: "body" }));
        assert_eq!(lines(Some(NDJSON), "[]\n".repeat(100).as_bytes()).unwrap().len(), 100);
        let many = "[]\n".repeat(101);
        let many = lines(Some(NDJSON), many.as_bytes());
        assert_eq!(many, Err(PhoenixError::TooManyLines { lines_max: 100 }));
    }
}
