//! Converts bytes to requests, and messages to bytes, for every protocol of the server.
//!
//! The crate has no sockets, clocks, threads, locks or randomness. Each protocol has a folder, and is one
//! [`Protocol`]: a caller passes bytes, and gets [`Request`]s and bytes to send. [`standard()`] lists them all.

#![forbid(unsafe_code)]
#![warn(
    clippy::cast_lossless,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]
#![warn(clippy::match_wildcard_for_single_variants, clippy::wildcard_enum_match_arm)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

mod codecs;
pub mod data;
pub mod history;
pub mod http;
pub mod json;
pub mod mqtt;
mod mqtt_settings;
pub mod object;
mod peer;
pub mod phoenix;
pub mod poll;
mod protocol;
pub mod query;
pub mod request;
mod secret;
mod settings;
pub mod sse;
mod standard;
pub mod stream;
#[cfg(test)]
mod tests;
mod typo;
pub mod websocket;
pub mod wildcards;

pub use codecs::Codecs;
pub use mqtt_settings::MqttSettings;
pub use peer::Peer;
pub use protocol::{
    Capabilities, Delivery, Listener, Liveness, Protocol, ProtocolRef, Protocols, Read, Reader,
    Recognised, ReplyError, ReplyResult, Speaker, encoded,
};
pub use request::Request;
pub use settings::{File, Settings};
pub use standard::standard;
