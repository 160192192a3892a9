//! The payload of bench messages, and a scanner that finds it in a client's input.
//!
//! A client counts messages without knowing the transport, because each payload has [`MARKER`],
//! which no transport changes or adds.

use memchr::memmem::Finder;

/// The marker, which every bench payload contains once. Its first byte occurs only once in it, so a partial match
/// never hides the begin of another.
pub const MARKER: &[u8] = b"~throng:";

/// Digits of the send time, after the marker and the kind.
const TIME_DIGITS: usize = 20;

/// Bytes of the shortest payload.
pub const PAYLOAD_BYTES_MIN: usize = MARKER.len() + 1 + TIME_DIGITS;

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The client only counts it.
    Counted,
    /// The client counts it and records its latency.
    Timed,
}

impl Kind {
    const fn byte(self) -> u8 {
        match self {
            Self::Counted => b'c',
            Self::Timed => b't',
        }
    }
}

/// Returns a payload of `bytes` bytes, at least [`PAYLOAD_BYTES_MIN`]. It is plain text that neither
/// JSON nor a transport must escape.
pub fn payload(kind: Kind, sent_ns: u64, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes.max(PAYLOAD_BYTES_MIN));
    text.push_str("~throng:");
    text.push(char::from(kind.byte()));
    text.push_str(&format!("{sent_ns:0TIME_DIGITS$}"));
    while text.len() < bytes {
        text.push('.');
    }
    text
}

/// Counts markers in a stream that may be split anywhere. One byte of state suffices between chunks.
pub struct Scanner {
    finder: Finder<'static>,
}

impl Default for Scanner {
    fn default() -> Self {
        Self { finder: Finder::new(MARKER) }
    }
}

impl Scanner {
    /// Counts the markers that end in `chunk`. `matched` is the number of marker bytes with which the
    /// chunks before ended, zero at first. Calls `timed` with the send time of each timed message whose
    /// time is completely in this chunk.
    pub fn scan(&self, chunk: &[u8], matched: &mut u8, mut timed: impl FnMut(u64)) -> u64 {
        let mut rest = chunk;
        let mut count = 0;
        if *matched > 0 {
            let expected = &MARKER[usize::from(*matched)..];
            let same = expected.iter().zip(rest).take_while(|(a, b)| a == b).count();
            if same < expected.len() && same == rest.len() {
                *matched += same as u8;
                return 0;
            }
            *matched = 0;
            if same == expected.len() {
                rest = &rest[same..];
                count = 1;
                sent_at(rest).map(&mut timed);
            }
        }
        while let Some(at) = self.finder.find(rest) {
            rest = &rest[at + MARKER.len()..];
            count += 1;
            sent_at(rest).map(&mut timed);
        }
        let tail = &rest[rest.len().saturating_sub(MARKER.len() - 1)..];
        if let Some(at) = memchr::memchr(MARKER[0], tail)
            && MARKER.starts_with(&tail[at..])
        {
            *matched = (tail.len() - at) as u8;
        }
        count
    }
}

/// Parses the send time after a marker. Returns `None` if the message has none or the chunk ends.
fn sent_at(after_marker: &[u8]) -> Option<u64> {
    let (kind, rest) = after_marker.split_first()?;
    if *kind != Kind::Timed.byte() {
        return None;
    }
    std::str::from_utf8(rest.get(..TIME_DIGITS)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(chunks: &[&[u8]]) -> (u64, Vec<u64>) {
        let scanner = Scanner::default();
        let (mut matched, mut count, mut times) = (0, 0, Vec::new());
        for chunk in chunks {
            count += scanner.scan(chunk, &mut matched, |sent| times.push(sent));
        }
        (count, times)
    }

    #[test]
    fn payload_has_the_requested_bytes() {
        assert_eq!(payload(Kind::Counted, 7, 100).len(), 100);
        assert_eq!(payload(Kind::Timed, u64::MAX, 0).len(), PAYLOAD_BYTES_MIN);
    }

    #[test]
    fn any_split_gives_the_same_count() {
        let stream = format!(
            "data: {}\n\n~~thr~throng data: {}\n\n~throng~throng:",
            payload(Kind::Counted, 1, 40),
            payload(Kind::Timed, 2, 40)
        );
        let stream = stream.as_bytes();
        for first in 0..=stream.len() {
            for second in first..=stream.len() {
                let chunks = [&stream[..first], &stream[first..second], &stream[second..]];
                assert_eq!(scan(&chunks).0, 3, "split at {first} and {second}");
            }
        }
    }

    #[test]
    fn byte_by_byte_counts_too() {
        let stream = payload(Kind::Counted, 1, 50).repeat(3);
        let chunks: Vec<_> = stream.as_bytes().chunks(1).collect();
        assert_eq!(scan(&chunks).0, 3);
    }

    #[test]
    fn time_of_sending_is_read_from_timed_ones_only() {
        let stream = [
            payload(Kind::Timed, 123, 60),
            payload(Kind::Counted, 456, 60),
            payload(Kind::Timed, u64::MAX, 60),
        ]
        .concat();
        assert_eq!(scan(&[stream.as_bytes()]), (3, vec![123, u64::MAX]));
    }

    #[test]
    fn a_time_cut_off_is_left_out_but_counted() {
        let stream = payload(Kind::Timed, 123, 60);
        let (a, b) = stream.as_bytes().split_at(15);
        assert_eq!(scan(&[a, b]), (1, vec![]));
        let (a, b) = stream.as_bytes().split_at(5);
        assert_eq!(scan(&[a, b]), (1, vec![123]));
    }
}
