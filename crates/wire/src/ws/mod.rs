//! The WebSocket codec, both sides: RFC 6455, and permessage-deflate (RFC 7692) without context
//! takeover.
//!
//! Made for a server in which an idle connection has no codec state and one read buffer serves
//! thousands: a [`Decoder`] is needed only in the middle of a frame or of a fragmented message.

mod decoder;
pub mod deflate;
mod error;
pub mod frame;
pub mod handshake;
mod utf8;

pub use decoder::{Context, Decoder, Event, Limits, Role};
pub use error::Error;
