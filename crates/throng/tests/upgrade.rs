//! Upgrades: a new process replaces the old one while clients are connected, publishers publish and the application
//! replies to requests. No connection is closed, and no message is lost, duplicated or out of order.

mod api;
mod failures;
#[cfg(feature = "flood")]
mod flood;
mod killed;
pub mod member;
mod mqtt;
pub mod node;
mod older;
mod partial_input;
mod peers;
mod process;
mod publishers;
mod requests;
mod slow_readers;
mod state;
mod tls;
mod transports;
