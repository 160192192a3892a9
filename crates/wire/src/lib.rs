//! Bytes ⇄ meaning, for every transport that Throng speaks.
//!
//! Nothing here holds a socket, a clock, a thread, a lock or randomness: a caller gives bytes and
//! gets [`Action`]s and bytes to send. The server's side lives in [`session`] and [`transport`],
//! a listener's side in [`client`]; [`ws`] is the WebSocket codec for both sides.

pub mod client;
pub mod close;
pub mod command;
pub mod events;
pub mod http;
pub mod message;
pub mod object;
pub mod phoenix;
pub mod query;
pub mod rules;
pub mod session;
pub mod since;
pub mod tags;
pub mod transport;
pub mod ws;

pub use close::Close;
pub use message::{Data, Draft, Epoch, Id, Kept, Marks, Message, Name};
pub use rules::{Acknowledge, EventRule, History, JoinRule, Rule, Rules};
pub use session::{Action, ConnectionId, Settings};
pub use since::{Behind, Lost, Position, Since};
pub use transport::{Tools, Transport, Variant};
