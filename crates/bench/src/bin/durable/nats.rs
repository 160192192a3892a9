//! A publisher of NATS JetStream, on the raw protocol: a connection, an inbox, and an
//! acknowledgement for each message or batch.

use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use memchr::memmem;
use serde_json::{Value, json};

use crate::http::text;
use crate::load::{PublishResponse, Publisher, ReadOutcome};
use crate::{Mode, PAYLOAD};

const STREAM: &str = "BENCH";
const SUBJECT: &str = "durable.x";
/// The bound of the stream, the same as for the history of Throng's topic.
const MESSAGES_MAX: u64 = 1_000_000;
const BYTES_MAX: u64 = 1 << 30;
/// How long a server may take for a request outside of the load.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Digits of a batch's number.
const NUMBER_DIGITS: usize = 10;

/// A frame from the server.
#[derive(Debug, PartialEq, Eq)]
enum Frame<'a> {
    /// A message to the only subscription.
    Message(&'a [u8]),
    /// A ping, which needs a pong.
    Ping,
    /// The reply to a ping.
    Pong,
    /// `+OK` or `INFO`, which the client ignores.
    Other,
}

/// Parses the first frame of the input. Returns it with its length if it is complete.
fn frame(input: &[u8]) -> Result<Option<(Frame<'_>, usize)>> {
    let Some(end) = memmem::find(input, b"\r\n") else {
        return Ok(None);
    };
    let (line, after) = (&input[..end], end + 2);
    if line.starts_with(b"MSG ") {
        let length = line.rsplit(|byte| *byte == b' ').next().unwrap_or_default();
        let length: u32 =
            std::str::from_utf8(length)
                .ok()
                .and_then(|length| length.parse().ok())
                .with_context(|| format!("NATS sent a message without a length: {}", text(line)))?;
        let bytes = length as usize;
        if input.len() < after + bytes + 2 {
            return Ok(None);
        }
        return Ok(Some((Frame::Message(&input[after..after + bytes]), after + bytes + 2)));
    }
    match line {
        b"PING" => Ok(Some((Frame::Ping, after))),
        b"PONG" => Ok(Some((Frame::Pong, after))),
        b"+OK" => Ok(Some((Frame::Other, after))),
        line if line.starts_with(b"INFO ") => Ok(Some((Frame::Other, after))),
        line => bail!("NATS replied {}", text(line)),
    }
}

/// One publisher.
pub(crate) struct Nats {
    request: Vec<u8>,
    /// The positions of the batch's number in the request.
    numbers_at: Vec<usize>,
    number: u64,
    mode: Mode,
    /// The acknowledgements that a request needs, and how many of them have arrived.
    acks: u16,
    acks_have: u16,
    inbox: String,
}

impl Nats {
    pub(crate) fn new(index: usize, mode: Mode) -> Self {
        let inbox = format!("_INBOX.p{index}");
        let (request, numbers_at) = match mode {
            Mode::One => (publishes(&inbox, 1), Vec::new()),
            Mode::Pipelined(messages) => (publishes(&inbox, messages), Vec::new()),
            Mode::Batch(messages) => batch(&inbox, index, messages),
        };
        let acks = if matches!(mode, Mode::Pipelined(_)) { mode.messages() } else { 1 };
        Self { request, numbers_at, number: 0, mode, acks, acks_have: 0, inbox }
    }

    /// Opens a connection with this publisher's inbox.
    ///
    /// # Errors
    /// If the server can't be reached, or doesn't speak NATS.
    pub(crate) fn connect(&self, address: SocketAddrV4) -> Result<TcpStream> {
        connect(address, &self.inbox)
    }

    fn acknowledged(&mut self, payload: &[u8]) -> Result<PublishResponse> {
        let is_ack = memmem::find(payload, br#""seq":"#).is_some();
        let is_error = memmem::find(payload, br#""error":"#).is_some();
        ensure!(is_ack && !is_error, "JetStream answered {}", text(payload));
        if let Mode::Batch(messages) = self.mode {
            let count = format!(r#""count":{messages}"#);
            let whole = memmem::find(payload, count.as_bytes()).is_some();
            ensure!(whole, "JetStream answered a batch of {messages} with {}", text(payload));
        }
        self.acks_have = (self.acks_have + 1) % self.acks;
        let published = u64::from(self.mode.messages() / self.acks);
        Ok(PublishResponse { published, refused: 0, last: self.acks_have == 0 })
    }
}

impl Publisher for Nats {
    fn request(&mut self) -> &[u8] {
        if !self.numbers_at.is_empty() {
            self.number += 1;
            let number = format!("{:0NUMBER_DIGITS$}", self.number);
            for at in &self.numbers_at {
                self.request[*at..*at + NUMBER_DIGITS].copy_from_slice(number.as_bytes());
            }
        }
        &self.request
    }

    fn receive(&mut self, input: &[u8]) -> Result<ReadOutcome> {
        let Some((frame, bytes)) = frame(input)? else {
            return Ok(ReadOutcome::default());
        };
        Ok(match frame {
            Frame::Message(payload) => {
                ReadOutcome { bytes, reply: b"", response: Some(self.acknowledged(payload)?) }
            }
            Frame::Ping => ReadOutcome { bytes, reply: b"PONG\r\n", response: None },
            Frame::Pong | Frame::Other => ReadOutcome { bytes, reply: b"", response: None },
        })
    }
}

fn publishes(inbox: &str, messages: u16) -> Vec<u8> {
    let publish = format!("PUB {SUBJECT} {inbox} {}\r\n{PAYLOAD}\r\n", PAYLOAD.len());
    publish.repeat(usize::from(messages)).into_bytes()
}

/// Returns an atomic batch (NATS 2.12). All messages have the batch's name, and only the last one requests a reply.
/// The name must be new for each batch, so this also returns the positions of its number.
fn batch(inbox: &str, index: usize, messages: u16) -> (Vec<u8>, Vec<usize>) {
    let mut request = String::new();
    let mut numbers_at = Vec::new();
    for sequence in 1..=messages {
        let last = sequence == messages;
        let commit = if last { "Nats-Batch-Commit: 1\r\n" } else { "" };
        let before_number = format!("NATS/1.0\r\nNats-Batch-Id: p{index}-");
        let headers = format!(
            "{before_number}{:0NUMBER_DIGITS$}\r\nNats-Batch-Sequence: {sequence}\r\n{commit}\r\n",
            0
        );
        let reply = if last { format!("{inbox} ") } else { String::new() };
        let (headers_bytes, bytes) = (headers.len(), headers.len() + PAYLOAD.len());
        request.push_str(&format!("HPUB {SUBJECT} {reply}{headers_bytes} {bytes}\r\n"));
        numbers_at.push(request.len() + before_number.len());
        request.push_str(&headers);
        request.push_str(PAYLOAD);
        request.push_str("\r\n");
    }
    (request.into_bytes(), numbers_at)
}

fn connect(address: SocketAddrV4, inbox: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address).context("connecting to NATS")?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let hello = json!({
        "verbose": false, "pedantic": false, "headers": true, "no_responders": false,
        "lang": "rust", "version": "0", "name": "bench", "protocol": 1,
    });
    stream.write_all(format!("CONNECT {hello}\r\nSUB {inbox} 1\r\nPING\r\n").as_bytes())?;
    // INFO comes first, then the pong, and newer servers send INFO again. This reads up to the end of a frame, so
    // that it loses no part of the next one.
    let (mut input, mut greeted) = (Vec::new(), false);
    while !greeted || !input.is_empty() {
        read_some(&mut stream, &mut input).context("greeting NATS")?;
        while let Some((frame, bytes)) = frame(&input)? {
            greeted |= frame == Frame::Pong;
            input.drain(..bytes);
        }
    }
    Ok(stream)
}

/// Sends a request to JetStream and returns the response.
fn call(address: SocketAddrV4, subject: &str, request: &Value) -> Result<Value> {
    const INBOX: &str = "_INBOX.call";
    let mut stream = connect(address, INBOX)?;
    let request = request.to_string();
    let publish = format!("PUB {subject} {INBOX} {}\r\n{request}\r\n", request.len());
    stream.write_all(publish.as_bytes())?;
    let mut input = Vec::new();
    loop {
        while let Some((frame, bytes)) = frame(&input)? {
            match frame {
                Frame::Message(payload) => {
                    let reply: Value = serde_json::from_slice(payload)?;
                    ensure!(reply["error"].is_null(), "{subject} got the reply {reply}");
                    return Ok(reply);
                }
                Frame::Ping => stream.write_all(b"PONG\r\n")?,
                Frame::Pong | Frame::Other => {}
            }
            input.drain(..bytes);
        }
        read_some(&mut stream, &mut input).with_context(|| format!("asking {subject}"))?;
    }
}

fn read_some(stream: &mut TcpStream, input: &mut Vec<u8>) -> Result<()> {
    let mut chunk = [0; 4096];
    let read = stream.read(&mut chunk).context("no reply")?;
    ensure!(read > 0, "NATS closed a connection");
    input.extend_from_slice(&chunk[..read]);
    Ok(())
}

/// Creates the stream, in files, with the same bounds as Throng's history.
///
/// # Errors
/// If the server rejects it.
pub(crate) fn create_stream(address: SocketAddrV4, mode: Mode) -> Result<()> {
    let mut stream = json!({
        "name": STREAM, "subjects": ["durable.>"], "storage": "file", "num_replicas": 1,
        "retention": "limits", "discard": "old",
        "max_msgs": MESSAGES_MAX, "max_bytes": BYTES_MAX,
    });
    if matches!(mode, Mode::Batch(_)) {
        stream["allow_atomic"] = true.into();
    }
    let made = call(address, &format!("$JS.API.STREAM.CREATE.{STREAM}"), &stream)?;
    ensure!(made["config"]["storage"] == "file", "the stream is not in files: {made}");
    Ok(())
}

/// Returns the sequence number of the stream's last message, which is the number of messages that it
/// has stored.
///
/// # Errors
/// If the server does not report it.
pub(crate) fn last_sequence(address: SocketAddrV4) -> Result<u64> {
    let info = call(address, &format!("$JS.API.STREAM.INFO.{STREAM}"), &json!({}))?;
    info["state"]["last_seq"].as_u64().with_context(|| format!("no last_seq in {info}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(payload: &str) -> Vec<u8> {
        format!("MSG _INBOX.p1 1 {}\r\n{payload}\r\n", payload.len()).into()
    }

    #[test]
    fn frames_are_distinguished() {
        let frame = |input: &'static [u8]| frame(input).expect("a frame");
        assert_eq!(frame(b"PING\r\nPONG\r\n"), Some((Frame::Ping, 6)));
        assert_eq!(frame(b"+OK\r\n"), Some((Frame::Other, 5)));
        assert_eq!(frame(b"MSG a 1 2\r\nhi\r\n+OK\r\n"), Some((Frame::Message(b"hi"), 15)));
        assert_eq!(frame(b"MSG a 1 x.y 0\r\n\r\n"), Some((Frame::Message(b""), 17)));
        assert_eq!(frame(b"MSG a 1 2\r\nhi\r"), None);
        assert!(super::frame(b"-ERR 'no'\r\n").is_err());
        assert!(super::frame(b"MSG a 1 x\r\n").is_err());
    }

    #[test]
    fn acknowledgements_are_counted() {
        let response = |published, last| Some(PublishResponse { published, refused: 0, last });
        let ack = message(r#"{"stream":"BENCH","seq":7}"#);
        assert_eq!(Nats::new(1, Mode::One).receive(&ack).expect("ack").response, response(1, true));
        let mut two = Nats::new(1, Mode::Pipelined(2));
        for last in [false, true, false, true] {
            assert_eq!(two.receive(&ack).expect("ack").response, response(1, last));
        }
        let error = message(r#"{"error":{"code":503},"stream":"BENCH","seq":0}"#);
        assert!(two.receive(&error).is_err());
        let mut batch = Nats::new(1, Mode::Batch(5));
        assert!(batch.receive(&ack).is_err());
        let ack = message(r#"{"stream":"BENCH","seq":5,"batch":"p1-0","count":5}"#);
        assert_eq!(batch.receive(&ack).expect("ack").response, response(5, true));
        assert_eq!(batch.receive(b"PING\r\n").expect("ping").reply, b"PONG\r\n");
    }

    #[test]
    fn batches_are_numbered_and_measured() {
        let mut nats = Nats::new(3, Mode::Batch(2));
        nats.request();
        let request = String::from_utf8(nats.request().to_vec()).expect("text");
        let mut rest = request.as_str();
        for sequence in 1..=2 {
            let (line, after) = rest.split_once("\r\n").expect("a line");
            let lengths: Vec<usize> =
                line.rsplit(' ').take(2).map(|length| length.parse().expect("a number")).collect();
            let headers = &after[..lengths[1]];
            assert!(headers.starts_with("NATS/1.0\r\nNats-Batch-Id: p3-0000000002\r\n"));
            assert!(headers.contains(&format!("Sequence: {sequence}\r\n")));
            assert_eq!(line.contains("_INBOX.p3"), sequence == 2);
            assert_eq!(&after[lengths[1]..lengths[0]], PAYLOAD);
            rest = after[lengths[0]..].strip_prefix("\r\n").expect("an end");
        }
        assert_eq!(rest, "");
    }

    proptest! {
        #[test]
        fn any_part_of_a_message_waits_for_the_rest(payload in "[^\"]{0,40}", cut in 0..70_usize) {
            let whole = message(&payload);
            prop_assert_eq!(frame(&whole[..cut.min(whole.len() - 1)]).expect("fine"), None);
            let expected = Some((Frame::Message(payload.as_bytes()), whole.len()));
            prop_assert_eq!(frame(&whole).expect("fine"), expected);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = frame(&bytes);
            let _ = frame(&[b"MSG ", &bytes[..], b"\r\n"].concat());
        }
    }
}
