//! WebSocket (RFC 6455), the client's side, without compression.

use super::{Client, ClientError, Event, Goodbye, Head, Request, emit_json, message_id, target};
use protocol::json;
use protocol::websocket::frame::{self, Opcode};
use protocol::websocket::handshake;

pub(super) struct Ws;

/// Payload bytes of one frame, at most.
const FRAME_BYTES_MAX: u64 = super::PENDING_BYTES_MAX as u64;

/// Returns 16 bytes that differ from connection to connection: the key only proves that the response is to this
/// request (section 1.3).
fn nonce(number: u64) -> [u8; 16] {
    let mut nonce = *b"throng-flood\0\0\0\0";
    for (byte, of) in nonce.iter_mut().zip(number.to_be_bytes()) {
        *byte ^= of;
    }
    nonce
}

impl Client for Ws {
    fn name(&self) -> &'static str {
        "ws"
    }

    fn default_target(&self) -> &'static str {
        "/ws?user={user}&topic={topic}"
    }

    fn request(&self, request: &Request<'_>, out: &mut Vec<u8>) {
        handshake::request(request.host, &target(request), nonce(request.number), false, out);
    }

    fn head(&self, head: &Head<'_>) -> Result<(), ClientError> {
        head.expect(101)?;
        let accept = head.get("sec-websocket-accept").unwrap_or("");
        match handshake::is_reply(nonce(head.number), accept) {
            true => Ok(()),
            false => Err(ClientError::InvalidHead("Sec-WebSocket-Accept does not match the key")),
        }
    }

    fn subscribe(&self, topic: &str, token: Option<&str>, out: &mut Vec<u8>) -> bool {
        let mut text = b"{\"type\":\"subscribe\",\"id\":1,\"topic\":".to_vec();
        json::string(topic, &mut text);
        if let Some(token) = token {
            text.extend_from_slice(b",\"since\":");
            json::string(token, &mut text);
        }
        text.push(b'}');
        reply(Opcode::Text, &text, out);
        true
    }

    fn acknowledge(&self, user: &str, id: &str, out: &mut Vec<u8>) -> bool {
        let mut text = b"{\"type\":\"ack\",\"id\":2,\"user\":".to_vec();
        json::string(user, &mut text);
        text.extend_from_slice(b",\"message\":");
        json::string(id, &mut text);
        text.push(b'}');
        reply(Opcode::Text, &text, out);
        true
    }

    fn body(
        &self,
        body: &[u8],
        _ended: bool,
        out: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> Result<usize, ClientError> {
        let mut used = 0;
        loop {
            let parsed = frame::Head::parse(&body[used..]);
            let parsed = parsed.map_err(|_| ClientError::InvalidBody("a frame breaks RFC 6455"))?;
            let Some((head, head_bytes)) = parsed else {
                return Ok(used);
            };
            if head.mask.is_some() || head.rsv1 {
                return Err(ClientError::InvalidBody("a frame is masked or compressed"));
            }
            if head.length > FRAME_BYTES_MAX {
                return Err(ClientError::TooLong);
            }
            let from = used + head_bytes;
            let Some(payload) = body.get(from..from + head.length as usize) else {
                return Ok(used);
            };
            used = from + payload.len();
            match head.opcode {
                Opcode::Text | Opcode::Binary | Opcode::Continuation if !head.fin => {
                    emit(Event::Part(payload));
                }
                Opcode::Text => emit_json(payload, emit),
                Opcode::Binary | Opcode::Continuation => {
                    emit(Event::Message(payload));
                    message_id(payload).into_iter().for_each(|id| emit(Event::Token(id)));
                }
                Opcode::Ping => {
                    emit(Event::Heartbeat);
                    reply(Opcode::Pong, payload, out);
                }
                Opcode::Pong => {}
                Opcode::Close => {
                    let code = payload.first_chunk().map_or(1005, |code| u16::from_be_bytes(*code));
                    emit(Event::Goodbye(Goodbye::Code(code)));
                    reply(Opcode::Close, payload, out);
                }
            }
        }
    }
}

/// Appends a frame. The mask is zero: it protects proxies from bytes that a page's script chooses (section 10.3), and
/// no page chose these.
fn reply(opcode: Opcode, payload: &[u8], out: &mut Vec<u8>) {
    frame::encode_masked(opcode, false, payload, [0; 4], out);
}
