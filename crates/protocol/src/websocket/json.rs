//! The WebSocket protocol with JSON messages.

use super::deflate::WINDOW_BITS_MAX;
use super::frame::{self, Opcode};
use super::read::{self, Frames};
use super::{close, command, data, handshake};
use crate::http::{Endpoint, Needs, Rejection, Route};
use crate::protocol::{Capabilities, Delivery, Liveness, Protocol, Read, Reader, ReplyResult};
use crate::request::Interrupt;
use crate::{Codecs, Request, Settings, json};
use model::{CloseReason, Data, Encoding, ErrorCode, Message, ReplyCode};

/// A WebSocket with JSON messages.
pub struct WebSocket {
    /// The window of permessage-deflate in bits: 15, or 9 for peers that request a small one; 0 without compression.
    pub window_bits: u8,
}

impl Protocol for WebSocket {
    fn name(&self) -> &'static str {
        "ws"
    }

    fn encoding(&self) -> Encoding {
        Encoding(by_window(self.window_bits, [5, 6, 7]))
    }

    fn delivery(&self) -> Delivery {
        Delivery::Pushed
    }

    fn liveness(&self, settings: &Settings) -> Liveness {
        Liveness::Server {
            seconds: settings.ws_ping_seconds,
            silence_seconds: settings.ws_silence_seconds,
        }
    }

    fn endpoints(&self) -> &'static [Endpoint] {
        const { &[Endpoint::new("GET", "/ws", Needs::TokenByCommand)] }
    }

    fn route(&self, route: &Route<'_>, out: &mut Vec<u8>) -> Option<Result<Request, Interrupt>> {
        let path = route.request.path == "/ws";
        path.then(|| {
            route.get()?;
            open(route, true, out, |window_bits| WebSocket { window_bits }.encoding())
        })
    }

    fn read(&self, reader: &mut Reader<'_>, bytes: &mut [u8], out: &mut Vec<u8>) -> Read {
        let frames =
            Frames { bytes_max: reader.settings.frame_bytes_max, window_bits: self.window_bits };
        frames.read(reader, bytes, out, &mut read::json)
    }

    /// Text and JSON go in a text frame with the JSON object. Bytes go in a binary frame: the object without `data`,
    /// a newline, and the bytes unchanged.
    fn encode(&self, message: &Message, codecs: &mut Codecs, out: &mut Vec<u8>) {
        let mut payload = Vec::with_capacity(message.publication.data.bytes() + 96);
        let opcode = if let Data::Binary(bytes) = &message.publication.data {
            json::message_head(message, &mut payload);
            payload.extend_from_slice(b"}\n");
            payload.extend_from_slice(bytes);
            Opcode::Binary
        } else {
            json::message(message, &mut payload);
            Opcode::Text
        };
        data(opcode, &payload, self.window_bits, codecs, out);
    }

    fn heartbeat(&self, out: &mut Vec<u8>) {
        frame::encode(Opcode::Ping, false, &[], out);
    }

    fn reply(&self, id: &str, result: ReplyResult<'_>, codecs: &mut Codecs, out: &mut Vec<u8>) {
        let mut text = Vec::new();
        match result {
            Ok(ok) => command::reply_ok(id, ok, &mut text),
            Err(error) => command::reply_error(id, error, &mut text),
        }
        data(Opcode::Text, &text, self.window_bits, codecs, out);
    }

    fn notice(&self, topic: &str, event: &str, json: &str, codecs: &mut Codecs, out: &mut Vec<u8>) {
        let mut text = Vec::with_capacity(json.len() + 96);
        json::notice(topic, event, json, &mut text);
        data(Opcode::Text, &text, self.window_bits, codecs, out);
    }

    fn object(&self, _name: &str, json: &[u8], codecs: &mut Codecs, out: &mut Vec<u8>) {
        data(Opcode::Text, json, self.window_bits, codecs, out);
    }

    fn goodbye(&self, reason: CloseReason, _retry_ms: u32, out: &mut Vec<u8>) {
        close(reason.code(), reason.name(), out);
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { acknowledges: true, ..Capabilities::NONE }
    }
}

/// Returns the encoding for a window: each has its own number.
pub(super) fn by_window(window_bits: u8, [none, large, small]: [u8; 3]) -> u8 {
    match window_bits {
        0 => none,
        WINDOW_BITS_MAX.. => large,
        _ => small,
    }
}

/// The close code for a client whose token is invalid or grants too little, or that the application rejects. It goes
/// in a frame, because a page of a browser doesn't see the status of a rejected handshake.
fn close_code(rejection: &Rejection, turned_away: bool) -> Option<u16> {
    let own = match rejection.code {
        ReplyCode::Own(code) => code.handshake_close(),
        ReplyCode::Application(_) => None,
    };
    match rejection.status {
        401 => own.or(ErrorCode::Unauthorized.handshake_close()),
        403 if turned_away => ErrorCode::NotGranted.handshake_close(),
        403 => own.filter(|close| Some(*close) == ErrorCode::NotGranted.handshake_close()),
        _ => None,
    }
}

/// Opens a WebSocket. With `welcome`, its first message contains the connection's id and users.
pub(super) fn open(
    route: &Route<'_>,
    welcome: bool,
    out: &mut Vec<u8>,
    encoding: impl Fn(u8) -> Encoding,
) -> Result<Request, Interrupt> {
    let accept = route.upgrade()?;
    let listener = match welcome {
        true => route.listener_or_stranger(),
        false => route.listener(),
    };
    let listener = match listener {
        Err(Interrupt::Rejection(rejection)) if welcome && !route.is_by_header() => {
            let Some(code) = close_code(&rejection, route.is_turned_away()) else {
                return Err(rejection.into());
            };
            handshake::response(&accept, None, None, out);
            close(code, rejection.code.text(), out);
            return Ok(Request::Close(CloseReason::Unauthorized));
        }
        listener => listener?,
    };
    let deflate = match route.settings.compression {
        true => handshake::negotiate(route.request.values("sec-websocket-extensions")),
        false => None,
    };
    handshake::response(&accept, None, deflate.as_ref(), out);
    if welcome {
        let mut hello = Vec::new();
        let (users, topics) = (&listener.principal.users, &listener.topics);
        match listener.stranger {
            true => json::token_required(route.id, &mut hello),
            false => json::welcome(route.id, users, topics, false, &mut hello),
        }
        frame::encode(Opcode::Text, false, &hello, out);
    }
    Ok(listener.open(encoding(deflate.map_or(0, |deflate| deflate.server_max_window_bits))))
}
