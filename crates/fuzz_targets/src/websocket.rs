//! WebSocket frames.

use protocol::websocket::deflate::Inflater;
use protocol::websocket::frame::HEAD_BYTES_MAX;
use protocol::websocket::{Context, Decoder, Limits, Role, WsError};

fn decode(role: Role, deflate: bool, bytes: &[u8], step: usize) -> (Vec<String>, Option<WsError>) {
    let limits = Limits { frame_bytes_max: 1 << 12, message_bytes_max: 1 << 12 };
    let (mut events, mut rest, mut decoder) = (Vec::new(), Vec::new(), Decoder::default());
    let mut inflater = Inflater::new();
    for piece in bytes.chunks(step) {
        rest.extend_from_slice(piece);
        let mut cx = Context { role, limits, inflater: deflate.then_some(&mut inflater) };
        match decoder.feed(&mut cx, &mut rest, &mut |event| events.push(format!("{event:?}"))) {
            Ok(consumed) => drop(rest.drain(..consumed)),
            Err(error) => return (events, Some(error)),
        }
        assert!(rest.len() < HEAD_BYTES_MAX);
        if decoder.is_idle() {
            // The server does the same, and frees the decoder between messages.
            decoder = Decoder::default();
        }
    }
    (events, None)
}

/// Decodes a peer's frames, all at once and byte by byte: both give the same messages and the same error. In the
/// first byte, bit 0 means that the frames are a server's, and bit 1 that messages may be compressed.
pub fn websocket(data: &[u8]) {
    let Some((mode, bytes)) = data.split_first() else { return };
    let role = if mode & 1 == 0 { Role::Server } else { Role::Client };
    let deflate = mode & 2 != 0;
    let whole = decode(role, deflate, bytes, usize::MAX);
    assert_eq!(decode(role, deflate, bytes, 1), whole);
}
