//! Frames on the wire (RFC 6455, section 5.2).

use super::WsError;

/// Bytes of the longest frame head: two bytes, a 64-bit length, a mask.
pub const HEAD_BYTES_MAX: usize = 14;

/// Bytes of a control frame's payload, at most.
pub const CONTROL_BYTES_MAX: usize = 125;

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, minicbor::Encode, minicbor::Decode)]
#[cbor(index_only)]
pub enum Opcode {
    /// A further fragment of a message.
    #[n(0)]
    Continuation,
    /// UTF-8 text.
    #[n(1)]
    Text,
    /// Bytes.
    #[n(2)]
    Binary,
    /// The end of the connection.
    #[n(8)]
    Close,
    /// A ping, to which the peer replies with a pong.
    #[n(9)]
    Ping,
    /// The reply to a ping.
    #[n(10)]
    Pong,
}

impl Opcode {
    fn bits(self) -> u8 {
        match self {
            Opcode::Continuation => 0,
            Opcode::Text => 1,
            Opcode::Binary => 2,
            Opcode::Close => 8,
            Opcode::Ping => 9,
            Opcode::Pong => 10,
        }
    }

    fn from_bits(bits: u8) -> Result<Self, WsError> {
        Ok(match bits {
            0 => Opcode::Continuation,
            1 => Opcode::Text,
            2 => Opcode::Binary,
            8 => Opcode::Close,
            9 => Opcode::Ping,
            10 => Opcode::Pong,
            _ => return Err(WsError::ReservedOpcode),
        })
    }

    /// Returns true for close, ping and pong.
    pub fn is_control(self) -> bool {
        self.bits() >= 8
    }
}

/// A frame's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, minicbor::Encode, minicbor::Decode)]
#[cbor(map)]
pub struct Head {
    /// The frame is the last fragment of its message.
    #[n(0)]
    pub fin: bool,
    /// The message is compressed.
    #[n(1)]
    pub rsv1: bool,
    /// The type of the frame.
    #[n(2)]
    pub opcode: Opcode,
    /// The mask of a client's frame.
    #[n(3)]
    pub mask: Option<[u8; 4]>,
    /// Bytes of the payload.
    #[n(4)]
    pub length: u64,
}

impl Head {
    /// Reads a head from the start of `bytes`, and returns it with its size. `None` until it is complete; the first
    /// invalid byte is an error.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Head, usize)>, WsError> {
        let Some(&first) = bytes.first() else {
            return Ok(None);
        };
        if first & 0x30 != 0 {
            return Err(WsError::ReservedBits);
        }
        let (fin, rsv1) = (first & 0x80 != 0, first & 0x40 != 0);
        let opcode = Opcode::from_bits(first & 0x0f)?;
        if opcode.is_control() && rsv1 {
            return Err(WsError::ReservedBits);
        }
        if opcode.is_control() && !fin {
            return Err(WsError::ControlFragmented);
        }
        let Some(&second) = bytes.get(1) else {
            return Ok(None);
        };
        let short = second & 0x7f;
        if opcode.is_control() && short > 125 {
            return Err(WsError::ControlTooLong);
        }
        let (length, at) = match short {
            126 => match bytes.get(2..4) {
                Some(&[a, b]) => (u64::from(u16::from_be_bytes([a, b])), 4),
                _ => return Ok(None),
            },
            127 => match bytes.get(2..10) {
                Some(long) => (long.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)), 10),
                None => return Ok(None),
            },
            short => (u64::from(short), 2),
        };
        let shortest = match short {
            126 => length > 125,
            127 => length > 0xffff && length >> 63 == 0,
            _ => true,
        };
        if !shortest {
            return Err(WsError::InvalidLength);
        }
        if second & 0x80 == 0 {
            return Ok(Some((Head { fin, rsv1, opcode, mask: None, length }, at)));
        }
        let Some(&[a, b, c, d]) = bytes.get(at..at + 4) else {
            return Ok(None);
        };
        Ok(Some((Head { fin, rsv1, opcode, mask: Some([a, b, c, d]), length }, at + 4)))
    }

    /// Appends the head.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.fin) << 7 | u8::from(self.rsv1) << 6 | self.opcode.bits());
        let masked = if self.mask.is_some() { 0x80 } else { 0 };
        match self.length {
            length @ 0..126 => out.push(masked | (length & 0x7f) as u8),
            length @ 126..0x1_0000 => {
                out.push(masked | 126);
                out.extend_from_slice(&((length & 0xffff) as u16).to_be_bytes());
            }
            length => {
                out.push(masked | 127);
                out.extend_from_slice(&length.to_be_bytes());
            }
        }
        if let Some(mask) = self.mask {
            out.extend_from_slice(&mask);
        }
    }
}

/// Appends a server's unfragmented frame without a mask.
pub fn encode(opcode: Opcode, rsv1: bool, payload: &[u8], out: &mut Vec<u8>) {
    out.reserve(payload.len() + 10);
    Head { fin: true, rsv1, opcode, mask: None, length: payload.len() as u64 }.write(out);
    out.extend_from_slice(payload);
}

/// Appends a client's unfragmented frame with a mask.
pub fn encode_masked(opcode: Opcode, rsv1: bool, payload: &[u8], mask: [u8; 4], out: &mut Vec<u8>) {
    out.reserve(payload.len() + HEAD_BYTES_MAX);
    Head { fin: true, rsv1, opcode, mask: Some(mask), length: payload.len() as u64 }.write(out);
    let from = out.len();
    out.extend_from_slice(payload);
    apply_mask(&mut out[from..], mask, 0);
}

/// Masks or unmasks, which is the same operation (RFC 6455, section 5.3). `at` is the offset of the first byte in the
/// payload.
pub fn apply_mask(bytes: &mut [u8], mask: [u8; 4], at: u64) {
    let mut turned = mask;
    turned.rotate_left((at % 4) as usize);
    let word = u64::from_ne_bytes([
        turned[0], turned[1], turned[2], turned[3], turned[0], turned[1], turned[2], turned[3],
    ]);
    let mut chunks = bytes.chunks_exact_mut(8);
    for chunk in &mut chunks {
        let mut eight = [0; 8];
        eight.copy_from_slice(chunk);
        chunk.copy_from_slice(&(u64::from_ne_bytes(eight) ^ word).to_ne_bytes());
    }
    for (byte, mask) in chunks.into_remainder().iter_mut().zip(turned.iter().cycle()) {
        *byte ^= mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_as_written_and_in_shortest_form_only() {
        for length in [0, 1, 125, 126, 0xffff, 0x1_0000, u64::MAX >> 1] {
            for mask in [None, Some([1, 2, 3, 4])] {
                let head = Head { fin: true, rsv1: true, opcode: Opcode::Text, mask, length };
                let mut bytes = Vec::new();
                head.write(&mut bytes);
                assert_eq!(Head::parse(&bytes), Ok(Some((head, bytes.len()))));
                for end in 0..bytes.len() {
                    assert_eq!(Head::parse(&bytes[..end]), Ok(None));
                }
            }
        }
        for (bytes, want) in [
            (&[0x81, 126, 0, 125][..], WsError::InvalidLength),
            (&[0x81, 127, 0, 0, 0, 0, 0, 0, 0xff, 0xff], WsError::InvalidLength),
            (&[0x81, 127, 0x80, 0, 0, 0, 0, 1, 0, 0], WsError::InvalidLength),
            (&[0x91], WsError::ReservedBits),
            (&[0xc9], WsError::ReservedBits),
            (&[0x83], WsError::ReservedOpcode),
            (&[0x09], WsError::ControlFragmented),
            (&[0x89, 126], WsError::ControlTooLong),
        ] {
            assert_eq!(Head::parse(bytes), Err(want));
        }
    }

    #[test]
    fn a_mask_applies_from_any_offset() {
        let mask = [1, 2, 3, 4];
        let plain: Vec<u8> = (0..100).collect();
        let slow: Vec<u8> = plain.iter().enumerate().map(|(at, b)| b ^ mask[at % 4]).collect();
        for split in 0..plain.len() {
            let mut bytes = plain.clone();
            let (left, right) = bytes.split_at_mut(split);
            apply_mask(left, mask, 0);
            apply_mask(right, mask, split as u64);
            assert_eq!(bytes, slow);
        }
    }
}
