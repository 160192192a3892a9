//! A publisher of Throng: `POST /api/publish` or `/api/batch` on a persistent connection.

use std::net::SocketAddrV4;

use anyhow::{Context, Result, bail, ensure};
use memchr::memmem;

use crate::load::{PublishResponse, Publisher, ReadOutcome};
use crate::{Mode, PAYLOAD};

/// The topic of all publishers.
pub(crate) const TOPIC: &str = "durable:x";

/// One publisher.
pub(crate) struct Http {
    request: Vec<u8>,
    mode: Mode,
}

impl Http {
    pub(crate) fn new(address: SocketAddrV4, mode: Mode) -> Self {
        let publish = format!(r#"{{"topic":"{TOPIC}","data":"{PAYLOAD}"}}"#);
        let (path, body) = match mode {
            Mode::One => ("/api/publish", publish),
            Mode::Pipelined(messages) | Mode::Batch(messages) => {
                let commands = vec![format!(r#"{{"publish":{publish}}}"#); usize::from(messages)];
                ("/api/batch", format!(r#"{{"commands":[{}]}}"#, commands.join(",")))
            }
        };
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        Self { request: request.into_bytes(), mode }
    }

    fn parse_response(&self, status: &[u8], body: &[u8]) -> Result<PublishResponse> {
        let messages = u64::from(self.mode.messages());
        match (status, self.mode) {
            (b"503", _) => Ok(PublishResponse { published: 0, refused: messages, last: true }),
            (b"200", Mode::One) => Ok(PublishResponse { published: 1, refused: 0, last: true }),
            (b"200", _) => {
                let published = memmem::find_iter(body, br#"{"ok":"#).count() as u64;
                let refused = memmem::find_iter(body, br#"{"error":"#).count() as u64;
                ensure!(published + refused == messages, "a batch got the response {}", text(body));
                Ok(PublishResponse { published, refused, last: true })
            }
            _ => bail!("a publish got status {}: {}", text(status), text(body)),
        }
    }
}

impl Publisher for Http {
    fn request(&mut self) -> &[u8] {
        &self.request
    }

    fn receive(&mut self, input: &[u8]) -> Result<ReadOutcome> {
        let Some((status, head_bytes, body_bytes)) = head(input)? else {
            return Ok(ReadOutcome::default());
        };
        let Some(body) = input.get(head_bytes..).and_then(|rest| rest.get(..body_bytes)) else {
            return Ok(ReadOutcome::default());
        };
        let response = Some(self.parse_response(status, body)?);
        Ok(ReadOutcome { bytes: head_bytes + body_bytes, reply: b"", response })
    }
}

/// Returns the status, the length of the head and the length of the body, if the head is complete.
fn head(input: &[u8]) -> Result<Option<(&[u8], usize, usize)>> {
    const STATUS_AT: usize = "HTTP/1.1 ".len();
    const LENGTH: &[u8] = b"content-length:";
    let Some(end) = memmem::find(input, b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = &input[..end];
    let status = head.get(STATUS_AT..STATUS_AT + 3).context("a response without a status")?;
    let mut lines = head.split(|byte| *byte == b'\n');
    let length = lines
        .find(|line| line.len() > LENGTH.len() && line[..LENGTH.len()].eq_ignore_ascii_case(LENGTH))
        .with_context(|| format!("a response without a length: {}", text(head)))?;
    let length = std::str::from_utf8(&length[LENGTH.len()..])?.trim();
    let length: u32 = length.parse().with_context(|| format!("a length of {length:?}"))?;
    Ok(Some((status, end + 4, length as usize)))
}

/// Returns the beginning of a server's output for an error message.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(500)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn publisher(mode: Mode) -> Http {
        Http::new("127.0.0.1:1".parse().expect("an address"), mode)
    }

    fn response(status: &str, body: &str) -> Vec<u8> {
        let length = body.len();
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\ndate: x\r\n\r\n{body}").into()
    }

    #[test]
    fn requests_have_the_right_length() {
        let mut http = publisher(Mode::Batch(2));
        let request = String::from_utf8(http.request().to_vec()).expect("text");
        let (head, body) = request.split_once("\r\n\r\n").expect("a body");
        assert!(head.starts_with("POST /api/batch HTTP/1.1\r\n"), "{head}");
        assert!(head.ends_with(&format!("Content-Length: {}", body.len())), "{head}");
        let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(body["commands"].as_array().map(Vec::len), Some(2));
        assert_eq!(body["commands"][1]["publish"]["data"], PAYLOAD);
    }

    #[test]
    fn responses_are_counted() {
        let one = |status, body| publisher(Mode::One).receive(&response(status, body));
        let outcome = one("200 OK", "{}").expect("a response").response;
        assert_eq!(outcome, Some(PublishResponse { published: 1, refused: 0, last: true }));
        let outcome = one("503 Full", "{}").expect("a response").response;
        assert_eq!(outcome, Some(PublishResponse { published: 0, refused: 1, last: true }));
        let error = one("400 Bad Request", "no").expect_err("a mistake").to_string();
        assert_eq!(error, "a publish got status 400: no");

        let batch = |body| publisher(Mode::Batch(2)).receive(&response("200 OK", body));
        let body = r#"{"results":[{"ok":{"id":"a:1"}},{"error":{"code":"full"}}]}"#;
        let outcome = batch(body).expect("a response").response;
        assert_eq!(outcome, Some(PublishResponse { published: 1, refused: 1, last: true }));
        assert!(batch(r#"{"results":[{"ok":{}}]}"#).is_err());
    }

    #[test]
    fn a_response_without_a_length_is_an_error() {
        assert!(publisher(Mode::One).receive(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
        assert!(publisher(Mode::One).receive(b"\r\n\r\n").is_err());
    }

    proptest! {
        #[test]
        fn any_part_of_a_response_waits_for_the_rest(cut in 0..60_usize, more in ".{0,9}") {
            let mut whole = response("200 OK", "{\"id\":1}");
            let bytes = whole.len();
            let part = &whole[..cut.min(bytes - 1)];
            prop_assert_eq!(publisher(Mode::One).receive(part).expect("fine"), ReadOutcome::default());
            whole.extend(more.bytes());
            prop_assert_eq!(publisher(Mode::One).receive(&whole).expect("fine").bytes, bytes);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = publisher(Mode::One).receive(&bytes);
            let _ = publisher(Mode::Batch(2)).receive(&[b"HTTP/1.1 ", &bytes[..], b"\r\n\r\n"].concat());
        }
    }
}
