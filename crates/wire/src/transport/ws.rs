//! WebSocket (RFC 6455) with JSON messages, and permessage-deflate (RFC 7692) where agreed.

use super::{Tools, Transport, json};
use crate::ws::frame::{self, Opcode};
use crate::{Close, Data, Message};

/// `window_bits` is 0 without compression.
pub(super) struct Ws {
    pub window_bits: u8,
}

impl Transport for Ws {
    fn name(&self) -> &'static str {
        "ws"
    }

    /// A text frame with the JSON object; a payload of bytes goes as a binary frame: the object
    /// without `data`, a newline, and the bytes as they are.
    fn encode(&self, message: &Message, tools: &mut Tools, out: &mut Vec<u8>) {
        let mut payload = Vec::with_capacity(message.draft.data.bytes() + 96);
        let opcode = if let Data::Binary(bytes) = &message.draft.data {
            json::message_head(message, &mut payload);
            payload.extend_from_slice(b"}\n");
            payload.extend_from_slice(bytes);
            Opcode::Binary
        } else {
            json::message(message, &mut payload);
            Opcode::Text
        };
        data(opcode, &payload, self.window_bits, tools, out);
    }

    fn heartbeat(&self, out: &mut Vec<u8>) {
        frame::encode(Opcode::Ping, false, &[], out);
    }

    fn goodbye(&self, close: Close, _retry_ms: u32, out: &mut Vec<u8>) {
        self::close(close.code(), close.name(), out);
    }

    fn window_bits(&self) -> Option<u8> {
        Some(self.window_bits)
    }
}

/// Appends a data message in one frame, compressed when a window was agreed and it is worth it.
pub fn data(opcode: Opcode, payload: &[u8], window_bits: u8, tools: &mut Tools, out: &mut Vec<u8>) {
    if window_bits > 0
        && let Some(deflater) = tools.deflater(payload.len())
    {
        let packed = deflater.compress(payload, window_bits);
        frame::encode(opcode, true, packed, out);
    } else {
        frame::encode(opcode, false, payload, out);
    }
}

/// Appends a close frame; a reason longer than its 123 bytes is cut.
pub fn close(code: u16, reason: &str, out: &mut Vec<u8>) {
    let mut payload = code.to_be_bytes().to_vec();
    let mut end = reason.len().min(123);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    payload.extend_from_slice(&reason.as_bytes()[..end]);
    frame::encode(Opcode::Close, false, &payload, out);
}
