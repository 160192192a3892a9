//! Frames: the length of a message in four bytes, big-endian, and the message as JSON.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of the longest message after the handshake: enough for the counts of some million topics.
pub const FRAME_BYTES_MAX: u32 = 64 << 20;

/// Writes a message.
///
/// # Errors
/// If it is too long, or the other side is gone.
pub fn send(to: &mut impl Write, message: &impl Serialize) -> Result<()> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message).context("a message as JSON")?;
    let length = u32::try_from(bytes.len() - 4).unwrap_or(u32::MAX);
    ensure!(
        length <= FRAME_BYTES_MAX,
        "a message larger than {FRAME_BYTES_MAX} bytes: use fewer topics"
    );
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    to.write_all(&bytes).context("writing")
}

/// Reads a message of at most `bytes_max` bytes. It takes no more memory than the bytes that came. Returns `None` if
/// the other side has ended between two messages.
///
/// # Errors
/// If the message is longer or not of this protocol, or the other side is silent or gone in the middle of it.
pub fn receive<T: DeserializeOwned>(from: &mut impl Read, bytes_max: u32) -> Result<Option<T>> {
    let mut length = [0; 4];
    match from.read(&mut length[..1]) {
        Ok(0) => return Ok(None),
        Ok(_) => from.read_exact(&mut length[1..]).map_err(said)?,
        Err(error) => return Err(said(error)),
    }
    let length = u32::from_be_bytes(length);
    ensure!(length <= bytes_max, "its message is not of this protocol, or too long");
    let mut bytes = Vec::new();
    from.by_ref().take(u64::from(length)).read_to_end(&mut bytes).map_err(said)?;
    ensure!(bytes.len() == length as usize, "it closed the connection in the middle of a message");
    serde_json::from_slice(&bytes).map(Some).context("its message is not of this protocol")
}

fn said(error: io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            anyhow::anyhow!("it does not respond any more")
        }
        ErrorKind::UnexpectedEof => {
            anyhow::anyhow!("it closed the connection in the middle of a message")
        }
        _ => anyhow::Error::new(error).context("reading"),
    }
}

/// Reads from a socket until a fixed time, however slowly bytes come.
pub struct Until<'a> {
    socket: &'a TcpStream,
    end: Instant,
}

impl<'a> Until<'a> {
    /// Returns a reader that ends after this time.
    pub fn new(socket: &'a TcpStream, time: Duration) -> Self {
        Self { socket, end: Instant::now() + time }
    }
}

impl Read for Until<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.socket.set_read_timeout(Some(left))?;
        self.socket.read(into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::{ToAgent, ToCoordinator};

    proptest::proptest! {
        #[test]
        fn messages_come_as_they_were_sent(texts in proptest::collection::vec("\\PC{0,50}", 0..5)) {
            let mut bytes = Vec::new();
            texts.iter().for_each(|text| send(&mut bytes, text).unwrap());
            let mut from = bytes.as_slice();
            for text in &texts {
                let back: Option<String> = receive(&mut from, 1_000).unwrap();
                proptest::prop_assert_eq!(back.as_ref(), Some(text));
            }
            proptest::prop_assert_eq!(receive::<String>(&mut from, 1_000).unwrap(), None);
            // A message that breaks off is an error.
            if let Some(last) = bytes.len().checked_sub(1).filter(|_| !texts.is_empty()) {
                let mut from = &bytes[..last];
                while let Ok(text) = receive::<String>(&mut from, 1_000) {
                    proptest::prop_assert!(text.is_some());
                }
            }
        }

        #[test]
        fn anything_else_is_an_error_and_no_panic(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 1..200),
            length in 0u32..100,
        ) {
            let framed = [&length.to_be_bytes()[..], &bytes].concat();
            for mut from in [bytes.as_slice(), framed.as_slice()] {
                let _ = receive::<ToAgent>(&mut from, 4_096);
            }
            let mut from = framed.as_slice();
            proptest::prop_assert!(receive::<ToCoordinator>(&mut from, 4_096).is_err());
        }
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_it_comes() {
        let mut http = b"POST / HTTP/1.1\r\n".as_slice();
        let error = receive::<String>(&mut http, FRAME_BYTES_MAX).unwrap_err().to_string();
        assert!(error.contains("not of this protocol"), "{error}");
    }
}
