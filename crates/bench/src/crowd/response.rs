//! Parses as much of a response as a crowd needs: the status, the head's end, and the frame bounds of a WebSocket.

/// The state of parsing a response's head. It takes two bytes, and the stream may be split anywhere.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Head {
    /// Bytes of the status line seen, up to the status's end.
    seen: u8,
    /// Bytes of the empty line seen.
    end: u8,
}

/// The result of parsing a piece of a head.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeadStep<'a> {
    /// The head is incomplete.
    Partial,
    /// The head is complete, with the expected status. Contains the bytes that follow it.
    Complete(&'a [u8]),
    /// The status is another one; 0 if it did not arrive in one piece.
    WrongStatus(u16),
}

const STATUS_AT: usize = "HTTP/1.1 ".len();
const EMPTY_LINE: &[u8] = b"\r\n\r\n";

impl Head {
    pub(super) fn step<'a>(&mut self, chunk: &'a [u8], status: u16) -> HeadStep<'a> {
        let expected = [
            b'0' + (status / 100 % 10) as u8,
            b'0' + (status / 10 % 10) as u8,
            b'0' + (status % 10) as u8,
        ];
        for (i, byte) in chunk.iter().enumerate() {
            let seen = usize::from(self.seen);
            if seen < STATUS_AT + expected.len() {
                if seen >= STATUS_AT && *byte != expected[seen - STATUS_AT] {
                    let digits = i.checked_sub(seen - STATUS_AT);
                    let digits = digits.and_then(|at| chunk.get(at..at + 3));
                    return HeadStep::WrongStatus(digits.map_or(0, number));
                }
                self.seen += 1;
                continue;
            }
            if *byte == EMPTY_LINE[usize::from(self.end)] {
                self.end += 1;
                if usize::from(self.end) == EMPTY_LINE.len() {
                    return HeadStep::Complete(&chunk[i + 1..]);
                }
            } else {
                self.end = u8::from(*byte == EMPTY_LINE[0]);
            }
        }
        HeadStep::Partial
    }
}

impl Head {
    /// Parses a response that is always these bytes.
    pub(super) fn step_exact<'a>(&mut self, chunk: &'a [u8], response: &[u8]) -> HeadStep<'a> {
        let rest = &response[usize::from(self.seen).min(response.len())..];
        let bytes = rest.len().min(chunk.len());
        if chunk[..bytes] != rest[..bytes] {
            return HeadStep::WrongStatus(0);
        }
        self.seen += bytes as u8;
        if bytes == rest.len() { HeadStep::Complete(&chunk[bytes..]) } else { HeadStep::Partial }
    }
}

fn number(digits: &[u8]) -> u16 {
    std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// The state of parsing a server's WebSocket frames (RFC 6455 section 5.2; a server never masks). The
/// stream may be split anywhere.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Frames {
    /// Payload bytes of the current frame that have not arrived. No bench has frames over 4 GiB.
    skip: u32,
    /// The header as far as it has arrived.
    header: [u8; 10],
    have: u8,
}

impl Frames {
    /// Processes a chunk. Returns the number of pings that began in it.
    pub(super) fn pings(&mut self, mut chunk: &[u8]) -> u64 {
        const PING: u8 = 0x9;
        let mut pings = 0;
        while !chunk.is_empty() {
            let skip = (self.skip as usize).min(chunk.len());
            self.skip -= skip as u32;
            chunk = &chunk[skip..];
            let Some((byte, rest)) = chunk.split_first() else {
                break;
            };
            self.header[usize::from(self.have)] = *byte;
            self.have += 1;
            chunk = rest;
            if let Some(length) = self.payload_length() {
                pings += u64::from(self.header[0] & 0x0f == PING);
                self.skip = length;
                self.have = 0;
            }
        }
        pings
    }

    /// Processes a chunk of MQTT packets (3.1.1, section 2 and 3.3). Appends a PUBACK for each PUBLISH of QoS 1 that
    /// began in it. Its topic and length must fit into the header: three bytes, and below 16 KiB.
    pub(super) fn acknowledge(&mut self, mut chunk: &[u8], out: &mut Vec<u8>) {
        const PUBLISH: u8 = 3;
        while !chunk.is_empty() {
            let skip = (self.skip as usize).min(chunk.len());
            self.skip -= skip as u32;
            chunk = &chunk[skip..];
            let Some((byte, rest)) = chunk.split_first() else {
                break;
            };
            self.header[usize::from(self.have)] = *byte;
            self.have += 1;
            chunk = rest;
            let header = &self.header[..usize::from(self.have)];
            let Some((length, at)) = packet_length(header) else { continue };
            let is_acknowledged = header[0] >> 4 == PUBLISH && header[0] >> 1 & 3 == 1;
            if is_acknowledged {
                let Some(topic) = header.get(at..at + 2) else { continue };
                let id = at + 2 + usize::from(u16::from_be_bytes([topic[0], topic[1]]));
                // No bench has a longer topic.
                if id + 2 <= self.header.len() {
                    let Some(id) = header.get(id..id + 2) else { continue };
                    out.extend_from_slice(&[0x40, 2, id[0], id[1]]);
                }
            }
            self.skip = length.saturating_sub((header.len() - at) as u32);
            self.have = 0;
        }
    }

    /// Returns the length of the payload once the header is complete.
    fn payload_length(&self) -> Option<u32> {
        let header = &self.header[..usize::from(self.have)];
        let extended = match header.get(1)? & 0x7f {
            126 => header.get(2..4)?,
            127 => header.get(2..10)?,
            short => return Some(u32::from(short)),
        };
        let length = extended.iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        Some(u32::try_from(length).unwrap_or(u32::MAX))
    }
}

/// Returns the remaining length of a packet, and how many bytes of the header end with that length.
fn packet_length(header: &[u8]) -> Option<(u32, usize)> {
    let mut length = 0;
    for (at, byte) in header.iter().enumerate().skip(1) {
        length |= u32::from(byte & 0x7f) << (7 * (at - 1));
        if byte & 0x80 == 0 {
            return Some((length, at + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publishes_are_acknowledged_at_any_split() {
        let mut stream = vec![0xd0, 0];
        stream.extend([0x32, 10, 0, 3, b'a', b'l', b'l', 1, 2, b'x', b'y', b'z']);
        stream.extend([0x30, 6, 0, 3, b'a', b'l', b'l', b'x']);
        stream.extend([0x32, 0x87, 1, 0, 3, b'a', b'l', b'l', 3, 4]);
        stream.extend([0x32; 128]);
        stream.extend([0x32, 7, 0, 3, b'a', b'l', b'l', 5, 6]);
        for at in 0..stream.len() {
            let (mut frames, mut out) = (Frames::default(), Vec::new());
            frames.acknowledge(&stream[..at], &mut out);
            frames.acknowledge(&stream[at..], &mut out);
            assert_eq!(out, [0x40, 2, 1, 2, 0x40, 2, 3, 4, 0x40, 2, 5, 6], "split at {at}");
        }
    }

    const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nA: b\r\n\r\ndata";

    #[test]
    fn an_exact_response_ends_at_any_split() {
        for at in 0..4 {
            let mut head = Head::default();
            let (a, b) = b"abcde".split_at(at);
            assert_eq!(head.step_exact(a, b"abcd"), HeadStep::Partial);
            assert_eq!(head.step_exact(b, b"abcd"), HeadStep::Complete(b"e"));
        }
        assert_eq!(Head::default().step_exact(b"abx", b"abcd"), HeadStep::WrongStatus(0));
    }

    #[test]
    fn head_ends_at_any_split() {
        for at in 0..RESPONSE.len() {
            let mut head = Head::default();
            let (a, b) = RESPONSE.split_at(at);
            let rest = match head.step(a, 200) {
                HeadStep::Complete(rest) => [rest, b].concat(),
                HeadStep::Partial => match head.step(b, 200) {
                    HeadStep::Complete(rest) => rest.to_vec(),
                    other => panic!("split at {at}: {other:?}"),
                },
                HeadStep::WrongStatus(status) => panic!("split at {at}: {status}"),
            };
            assert_eq!(rest, b"data", "split at {at}");
        }
    }

    #[test]
    fn an_unexpected_status_is_reported() {
        assert_eq!(Head::default().step(b"HTTP/1.1 503 Full\r\n", 200), HeadStep::WrongStatus(503));
        assert_eq!(Head::default().step(b"HTTP/1.1 204 None\r\n", 200), HeadStep::WrongStatus(204));
        let mut head = Head::default();
        assert_eq!(head.step(b"HTTP/1.1 20", 200), HeadStep::Partial);
        assert_eq!(head.step(b"4 None", 200), HeadStep::WrongStatus(0));
    }

    #[test]
    fn carriage_returns_do_not_confuse_the_end() {
        let mut head = Head::default();
        assert_eq!(head.step(b"HTTP/1.1 101 x\r\r\n\r\r\n\r\nz", 101), HeadStep::Complete(b"z"));
    }

    #[test]
    fn pings_are_found_between_frames_at_any_split() {
        let mut stream = vec![0x81, 3, b'a', 0x89, 0, 0x89, 0];
        stream.extend([0x82, 126, 1, 0]);
        stream.extend([0x89; 256]);
        stream.extend([0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]);
        stream.extend([0x89; 65_536]);
        stream.extend([0x89, 2, 0x89, 0x89, 0x8a, 0]);
        for at in (0..20).chain(255..290).chain(stream.len() - 8..stream.len()) {
            let (a, b) = stream.split_at(at);
            let mut frames = Frames::default();
            assert_eq!(frames.pings(a) + frames.pings(b), 2, "split at {at}");
        }
    }
}
