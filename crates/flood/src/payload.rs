//! What published messages carry, so that whoever receives them can check and time them whatever
//! the transport: plain text that no transport has to escape, found by its marker.

use memchr::memmem::Finder;

const MARKER: &[u8] = b"~throng:";
/// Kind, colon, run, target, number and time in hexadecimal.
const BODY_BYTES: usize = 2 + 8 + 8 + 8 + 16;

/// Bytes of the shortest payload.
#[cfg(test)]
pub const PAYLOAD_BYTES_MIN: usize = MARKER.len() + BODY_BYTES;

/// Whom a message is for; each target has a sequence of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum To {
    /// The user with this number.
    User(u32),
    /// The topic with this number.
    Topic(u32),
    /// Everyone.
    All,
}

/// The mark on a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The run that it belongs to: two may share a server, and a server may remember.
    pub run: u32,
    /// Whom it is for.
    pub to: To,
    /// Its place in the target's sequence, from one.
    pub number: u32,
    /// When it was due to be published: nanoseconds of the monotonic clock of this host.
    pub due_ns: u64,
}

impl Mark {
    /// A payload of so many bytes, at least [`PAYLOAD_BYTES_MIN`].
    pub fn payload(&self, bytes: usize) -> String {
        let (kind, target) = match self.to {
            To::User(user) => ('u', user),
            To::Topic(topic) => ('t', topic),
            To::All => ('a', 0),
        };
        let mut text = format!(
            "~throng:{kind}:{:08x}{target:08x}{:08x}{:016x}",
            self.run, self.number, self.due_ns
        );
        while text.len() < bytes {
            text.push('.');
        }
        text
    }

    fn parse(body: &[u8]) -> Option<Self> {
        let body = body.first_chunk::<BODY_BYTES>()?;
        if body[1] != b':' || !body.is_ascii() {
            return None;
        }
        let hex = |from: usize, to: usize| {
            let digits = std::str::from_utf8(&body[from..to]).ok()?;
            u64::from_str_radix(digits, 16).ok()
        };
        let (run, target) = (hex(2, 10)? as u32, hex(10, 18)? as u32);
        let to = match body[0] {
            b'u' => To::User(target),
            b't' => To::Topic(target),
            b'a' => To::All,
            _ => return None,
        };
        Some(Self { run, to, number: hex(18, 26)? as u32, due_ns: hex(26, 42)? })
    }
}

/// Finds marks.
pub struct Scanner(Finder<'static>);

impl Default for Scanner {
    fn default() -> Self {
        Self(Finder::new(MARKER))
    }
}

impl Scanner {
    /// The first mark in a message.
    pub fn find(&self, message: &[u8]) -> Option<Mark> {
        let at = self.0.find(message)?;
        Mark::parse(&message[at + MARKER.len()..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn a_mark_survives_what_transports_put_around_it(
            run: u32, kind in 0u8..3, target: u32, number: u32, due_ns: u64, bytes in 0usize..100,
            before in "[ -}]{0,20}",
        ) {
            let to = [To::User(target), To::Topic(target), To::All][usize::from(kind)];
            let mark = Mark { run, to, number, due_ns };
            let payload = mark.payload(bytes);
            proptest::prop_assert_eq!(payload.len(), bytes.max(PAYLOAD_BYTES_MIN));
            let message = format!("{before}~thr{payload}\"}}\n");
            proptest::prop_assert_eq!(Scanner::default().find(message.as_bytes()), Some(mark));
        }

        #[test]
        fn other_texts_have_none(text in "(~throng:)?[ -~é]{0,60}") {
            Scanner::default().find(text.as_bytes());
        }
    }
}
