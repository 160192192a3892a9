//! The transports: one file each, behind one small trait.

mod echo;
mod http;
pub(crate) mod json;
mod phoenix;
mod poll;
pub(crate) mod sse;
pub(crate) mod stream;
pub(crate) mod ws;

use crate::phoenix::Serializer;
use crate::ws::deflate::{Deflater, Inflater};
use crate::ws::frame::Opcode;
use crate::{Close, Message};

pub use json::recovery;
pub use phoenix::pack as phoenix_pack;
pub use poll::answer as poll_answer;
pub use sse::{
    position as sse_position, recovery as sse_recovery, retry_ms, with_id as sse_with_id,
};
pub use stream::line as stream_line;

/// How a connection is written to. All connections of one variant get the same bytes for the
/// same message, so each message is encoded once for each variant in use.
///
/// The discriminant indexes encodings and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Variant {
    /// HTTP before or between requests: nothing is pushed.
    Http,
    /// Server-Sent Events, `data` as published.
    Sse,
    /// Server-Sent Events, `data` is the JSON object of the HTTP stream.
    SseJson,
    /// HTTP stream: a chunked answer of JSON lines.
    Stream,
    /// A long poll that waits.
    Poll,
    /// WebSocket without compression.
    Ws,
    /// WebSocket, permessage-deflate with a window of 15 bits.
    WsDeflate,
    /// WebSocket, permessage-deflate with a window of 9 bits, for peers that ask for a small one.
    WsDeflateSmall,
    /// The WebSocket echo of conformance tests, without compression.
    Echo,
    /// The echo with permessage-deflate, window of 15 bits.
    EchoDeflate,
    /// The echo with permessage-deflate, window of 9 bits.
    EchoDeflateSmall,
    /// A Phoenix WebSocket, `vsn=1.0.0`.
    Phoenix1,
    /// A Phoenix WebSocket, `vsn=2.0.0`.
    Phoenix2,
    /// A Phoenix long-poll session, `vsn=1.0.0`: no socket, its messages wait for the next poll.
    Polled1,
    /// A Phoenix long-poll session, `vsn=2.0.0`.
    Polled2,
    /// A request of a Phoenix long poll that waits for its session's answer.
    Asking,
    /// As [`Variant::Sse`], of a connection that is in a topic with history: its event ids may have
    /// to say more than the message's own.
    SseKept,
    /// As [`Variant::SseJson`], in the same way.
    SseJsonKept,
}

impl Variant {
    /// How many variants there are.
    pub const COUNT: usize = 18;

    /// All, in the order of their discriminants.
    pub const ALL: [Variant; Variant::COUNT] = [
        Variant::Http,
        Variant::Sse,
        Variant::SseJson,
        Variant::Stream,
        Variant::Poll,
        Variant::Ws,
        Variant::WsDeflate,
        Variant::WsDeflateSmall,
        Variant::Echo,
        Variant::EchoDeflate,
        Variant::EchoDeflateSmall,
        Variant::Phoenix1,
        Variant::Phoenix2,
        Variant::Polled1,
        Variant::Polled2,
        Variant::Asking,
        Variant::SseKept,
        Variant::SseJsonKept,
    ];

    /// The variant's transport.
    pub fn transport(self) -> &'static dyn Transport {
        match self {
            Variant::Http | Variant::Asking => &http::Http,
            Variant::Sse | Variant::SseKept => &sse::Sse { json: false },
            Variant::SseJson | Variant::SseJsonKept => &sse::Sse { json: true },
            Variant::Stream => &stream::Stream,
            Variant::Poll => &poll::Poll,
            Variant::Ws => &ws::Ws { window_bits: 0 },
            Variant::WsDeflate => &ws::Ws { window_bits: 15 },
            Variant::WsDeflateSmall => &ws::Ws { window_bits: 9 },
            Variant::Echo => &echo::Echo { window_bits: 0 },
            Variant::EchoDeflate => &echo::Echo { window_bits: 15 },
            Variant::EchoDeflateSmall => &echo::Echo { window_bits: 9 },
            Variant::Phoenix1 => &phoenix::Phoenix { serializer: Serializer::V1, polled: false },
            Variant::Phoenix2 => &phoenix::Phoenix { serializer: Serializer::V2, polled: false },
            Variant::Polled1 => &phoenix::Phoenix { serializer: Serializer::V1, polled: true },
            Variant::Polled2 => &phoenix::Phoenix { serializer: Serializer::V2, polled: true },
        }
    }

    /// How a Phoenix client's messages are written, and whether it is a long-poll session; `None`
    /// when this is no Phoenix client.
    pub fn phoenix(self) -> Option<(Serializer, bool)> {
        match self {
            Variant::Phoenix1 => Some((Serializer::V1, false)),
            Variant::Phoenix2 => Some((Serializer::V2, false)),
            Variant::Polled1 => Some((Serializer::V1, true)),
            Variant::Polled2 => Some((Serializer::V2, true)),
            _ => None,
        }
    }

    /// The variant of a Phoenix client.
    pub fn of_phoenix(serializer: Serializer, polled: bool) -> Variant {
        match (serializer, polled) {
            (Serializer::V1, false) => Variant::Phoenix1,
            (Serializer::V2, false) => Variant::Phoenix2,
            (Serializer::V1, true) => Variant::Polled1,
            (Serializer::V2, true) => Variant::Polled2,
        }
    }

    /// For Server-Sent Events: whether `data` is the JSON object; `None` for all else.
    pub fn sse_json(self) -> Option<bool> {
        match self {
            Variant::Sse | Variant::SseKept => Some(false),
            Variant::SseJson | Variant::SseJsonKept => Some(true),
            _ => None,
        }
    }

    /// What a connection becomes that enters a topic with history.
    pub fn kept(self) -> Variant {
        match self {
            Variant::Sse => Variant::SseKept,
            Variant::SseJson => Variant::SseJsonKept,
            other => other,
        }
    }

    /// True where a connection is in a topic with history and its event ids must say so.
    pub fn is_kept(self) -> bool {
        matches!(self, Variant::SseKept | Variant::SseJsonKept)
    }

    /// True where clients acknowledge on the connection itself, by message: `/ws` and Phoenix.
    pub fn acknowledges(self) -> bool {
        matches!(self, Variant::Ws | Variant::WsDeflate | Variant::WsDeflateSmall)
            || self.phoenix().is_some()
    }

    /// True for a long-poll session of Phoenix, which has no socket of its own.
    pub fn is_polled(self) -> bool {
        matches!(self, Variant::Polled1 | Variant::Polled2)
    }

    /// The transport's name in the API and the metrics: `sse`, `stream`, `poll`, `ws`, `phoenix`,
    /// `phoenix_longpoll`, `echo`, or `http` for a connection that has not asked for anything
    /// lasting.
    pub fn name(self) -> &'static str {
        self.transport().name()
    }

    /// The window in bits when permessage-deflate was agreed on a WebSocket; 0 without it. `None`
    /// when this is no WebSocket.
    pub fn window_bits(self) -> Option<u8> {
        self.transport().window_bits()
    }
}

/// One way of carrying messages to a connection.
pub trait Transport: Sync {
    /// The name in the API and the metrics.
    fn name(&self) -> &'static str;

    /// Appends the message as every connection of this variant gets it.
    fn encode(&self, message: &Message, tools: &mut Tools, out: &mut Vec<u8>);

    /// Appends what keeps an idle connection alive; nothing where nothing is sent.
    fn heartbeat(&self, out: &mut Vec<u8>);

    /// Appends the last words before the server closes the connection; with them, where the transport
    /// has a place for it, how long the client should wait before it comes back.
    fn goodbye(&self, close: Close, retry_ms: u32, out: &mut Vec<u8>);

    /// The WebSocket compression window in bits, 0 for none; `None` if this is no WebSocket.
    fn window_bits(&self) -> Option<u8> {
        None
    }
}

/// Appends the line that [`recovery`] made as a connection of this variant gets it: an SSE event of
/// the name `recovery`, a line of the stream, a text frame. The others hear of it in another way, a
/// poll in its answer and a Phoenix client in the reply to its join: nothing is appended.
pub fn recovery_line(variant: Variant, json_text: &[u8], tools: &mut Tools, out: &mut Vec<u8>) {
    match variant {
        Variant::Stream => stream::line(json_text, out),
        Variant::Ws | Variant::WsDeflate | Variant::WsDeflateSmall => {
            let window_bits = variant.window_bits().unwrap_or(0);
            ws::data(Opcode::Text, json_text, window_bits, tools, out);
        }
        _ if variant.sse_json().is_some() => sse::recovery(json_text, out),
        _ => {}
    }
}

/// The codecs with large tables that one thread keeps for all its connections. Made when first
/// needed.
pub struct Tools {
    deflate_level: u32,
    deflate_bytes_min: usize,
    deflater: Option<Box<Deflater>>,
    inflater: Option<Box<Inflater>>,
}

impl Tools {
    /// Compression level 1 to 9, and the size in bytes below which a message is not worth
    /// compressing.
    pub fn new(deflate_level: u32, deflate_bytes_min: usize) -> Self {
        Tools { deflate_level, deflate_bytes_min, deflater: None, inflater: None }
    }

    /// The compressor, when a message of so many bytes is worth it.
    pub fn deflater(&mut self, bytes: usize) -> Option<&mut Deflater> {
        if bytes < self.deflate_bytes_min {
            return None;
        }
        let level = self.deflate_level;
        Some(self.deflater.get_or_insert_with(|| Box::new(Deflater::new(level))))
    }

    /// The decompressor.
    pub fn inflater(&mut self) -> &mut Inflater {
        self.inflater.get_or_insert_with(|| Box::new(Inflater::new()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_follows_the_discriminants() {
        for (at, variant) in Variant::ALL.into_iter().enumerate() {
            assert_eq!(variant as usize, at);
            assert_eq!(variant.kept().name(), variant.name());
            assert_eq!(variant.kept().sse_json(), variant.sse_json());
            assert_eq!(variant.kept().is_kept(), variant.sse_json().is_some());
        }
    }
}
