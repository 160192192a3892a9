//! The WebSocket echo that conformance tests talk to: nothing is pushed, messages come back.

use super::{Tools, Transport, ws};
use crate::{Close, Message};

/// `window_bits` is 0 without compression.
pub(super) struct Echo {
    pub window_bits: u8,
}

impl Transport for Echo {
    fn name(&self) -> &'static str {
        "echo"
    }

    fn encode(&self, _message: &Message, _tools: &mut Tools, _out: &mut Vec<u8>) {}

    fn heartbeat(&self, _out: &mut Vec<u8>) {}

    fn goodbye(&self, close: Close, _retry_ms: u32, out: &mut Vec<u8>) {
        ws::close(close.code(), close.name(), out);
    }

    fn window_bits(&self) -> Option<u8> {
        Some(self.window_bits)
    }
}
