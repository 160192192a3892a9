//! MQTT 3.1, 3.1.1 and 5.0: packets for both sides, and the requests of clients.
//!
//! Packets borrow from the received bytes, and are written without a copy. The standards are MQTT Version 3.1.1
//! (OASIS, 29 October 2014) and MQTT Version 5.0 (OASIS, 7 March 2019).

mod allowed;
pub mod client;
mod cursor;
mod error;
mod identity;
mod message;
pub mod packet;
pub mod property;
mod protocol;
mod read;
mod reason;
mod rewrite;
mod server;
#[cfg(test)]
mod tests;
pub mod write;

pub use error::{MqttError, WriteError};
pub use identity::TOKEN_METHOD;
pub use message::{
    ClientLimits, Confirm, ConfirmKind, Connect, Incoming, Publish, RetainHandling, Subscribe,
    Want, Will,
};
pub use packet::{Packet, Side, Version};
pub use property::{Properties, Value, id};
pub use read::{packet_bytes, read};
pub use reason::{ConnectReturnCode, ReasonCode, ReasonOf};
pub use rewrite::rewrite;
pub use server::{Accepted, Mqtt, Stamp, payload};
