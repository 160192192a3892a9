//! The payload of published messages. It carries a stamp, with which a receiver checks and times the
//! message. It is plain text that no transport has to escape, and a marker makes it easy to find.

use memchr::memmem::Finder;

const MARKER: &[u8] = b"~throng:";
/// Kind, colon, run, target, number and time in hexadecimal.
const BODY_BYTES: usize = 2 + 8 + 8 + 8 + 16;

/// Bytes of the shortest payload.
#[cfg(test)]
pub const PAYLOAD_BYTES_MIN: usize = MARKER.len() + BODY_BYTES;

/// The target of a message. Each target has a sequence of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum To {
    /// The user with this number.
    User(u32),
    /// The topic with this number.
    Topic(u32),
    /// All connections.
    All,
}

/// The stamp of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Its run. Two runs may share a server, and a server's history may have messages of earlier runs.
    pub run: u32,
    /// Its target.
    pub to: To,
    /// Its number in the target's sequence, from one.
    pub number: u32,
    /// When it was due to be published, in nanoseconds of this host's monotonic clock.
    pub due_ns: u64,
}

impl Stamp {
    /// Returns a payload of this many bytes, at least [`PAYLOAD_BYTES_MIN`].
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

/// Finds stamps.
pub struct Scanner(Finder<'static>);

impl Default for Scanner {
    fn default() -> Self {
        Self(Finder::new(MARKER))
    }
}

impl Scanner {
    /// Returns the first stamp in a message.
    pub fn find(&self, message: &[u8]) -> Option<Stamp> {
        let at = self.0.find(message)?;
        Stamp::parse(&message[at + MARKER.len()..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn a_stamp_is_found_whatever_a_transport_puts_around_it(
            run: u32, kind in 0u8..3, target: u32, number: u32, due_ns: u64, bytes in 0usize..100,
            before in "[ -}]{0,20}",
        ) {
            let to = [To::User(target), To::Topic(target), To::All][usize::from(kind)];
            let stamp = Stamp { run, to, number, due_ns };
            let payload = stamp.payload(bytes);
            proptest::prop_assert_eq!(payload.len(), bytes.max(PAYLOAD_BYTES_MIN));
            let message = format!("{before}~thr{payload}\"}}\n");
            proptest::prop_assert_eq!(Scanner::default().find(message.as_bytes()), Some(stamp));
        }

        #[test]
        fn other_texts_have_no_stamp(text in "(~throng:)?[ -~é]{0,60}") {
            Scanner::default().find(text.as_bytes());
        }
    }
}
