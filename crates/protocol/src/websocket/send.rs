//! Writes a data message or a close in one frame.

use super::frame::{self, Opcode};
use crate::Codecs;

/// Appends a data message in one frame, compressed if a window was agreed and the message is large enough.
pub fn data(
    opcode: Opcode,
    payload: &[u8],
    window_bits: u8,
    codecs: &mut Codecs,
    out: &mut Vec<u8>,
) {
    if window_bits > 0
        && let Some(deflater) = codecs.deflater(payload.len())
    {
        let packed = deflater.compress(payload, window_bits);
        frame::encode(opcode, true, packed, out);
    } else {
        frame::encode(opcode, false, payload, out);
    }
}

/// Appends a close frame. A reason has 123 bytes at most; the rest is cut off.
pub fn close(code: u16, reason: &str, out: &mut Vec<u8>) {
    let mut payload = code.to_be_bytes().to_vec();
    let mut end = reason.len().min(123);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    payload.extend_from_slice(&reason.as_bytes()[..end]);
    frame::encode(Opcode::Close, false, &payload, out);
}
