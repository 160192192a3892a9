//! WebSocket (RFC 6455) with JSON messages, and with permessage-deflate (RFC 7692) without context takeover if both
//! sides agree. The codec serves both sides.
//!
//! In a server an idle connection has no codec state, and one read buffer serves thousands: a connection needs a
//! [`Decoder`] only in the middle of a frame or of a fragmented message.

pub mod command;
mod decoder;
pub mod deflate;
mod echo;
mod error;
pub mod frame;
pub mod handshake;
mod json;
mod read;
mod send;
mod utf8;

pub use decoder::{Context, Decoder, Event, Limits, Role};
pub use echo::Echo;
pub use error::WsError;
pub use json::WebSocket;
pub use send::{close, data};

pub(crate) use read::{Frames, Outcome};
