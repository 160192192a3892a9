//! The WebSocket echo for conformance tests: it sends each message back, and nothing else.

use super::frame::Opcode;
use super::json::{by_window, open};
use super::read::{Frames, Outcome};
use super::{Event, close};
use crate::http::{Endpoint, Method, Needs, Route};
use crate::protocol::{Delivery, Liveness, Protocol, Read, Reader};
use crate::request::Interrupt;
use crate::{Codecs, Request, Settings};
use model::{CloseReason, Encoding, Message};

/// Bytes of a message to the echo, at most: the conformance suite sends 16 MiB.
const BYTES_MAX: usize = 32 << 20;

/// The echo.
pub struct Echo {
    /// As in [`WebSocket`](super::WebSocket).
    pub window_bits: u8,
}

impl Protocol for Echo {
    fn name(&self) -> &'static str {
        "echo"
    }

    fn encoding(&self) -> Encoding {
        Encoding(by_window(self.window_bits, [8, 9, 10]))
    }

    fn delivery(&self) -> Delivery {
        Delivery::Nothing
    }

    fn liveness(&self, settings: &Settings) -> Liveness {
        Liveness::Client { silence_seconds: settings.ws_silence_seconds }
    }

    fn endpoints(&self) -> &'static [Endpoint] {
        const { &[Endpoint::new("GET", "/echo", Needs::Grants(&[]))] }
    }

    fn route(&self, route: &Route<'_>, out: &mut Vec<u8>) -> Option<Result<Request, Interrupt>> {
        let get = matches!(route.request.method, Method::Get | Method::Head);
        let here = route.settings.ws_echo && get && route.request.path == "/echo";
        here.then(|| open(route, false, out, |window_bits| Echo { window_bits }.encoding()))
    }

    fn read(&self, reader: &mut Reader<'_>, bytes: &mut [u8], out: &mut Vec<u8>) -> Read {
        let frames = Frames { bytes_max: BYTES_MAX, window_bits: self.window_bits };
        frames.read(reader, bytes, out, &mut |_, event| match event {
            Event::Text(text) => Outcome::Send(Opcode::Text, text.into()),
            Event::Binary(payload) => Outcome::Send(Opcode::Binary, payload.into()),
            Event::Ping(_) | Event::Pong(_) | Event::Close(_) => Outcome::Nothing,
        })
    }

    fn encode(&self, _message: &Message, _codecs: &mut Codecs, _out: &mut Vec<u8>) {}

    fn goodbye(&self, reason: CloseReason, _retry_ms: u32, out: &mut Vec<u8>) {
        close(reason.code(), reason.name(), out);
    }
}
