//! A new process takes the place of the old one while clients are connected, publishers publish and the application
//! answers requests: no connection is closed, and no message is lost, doubled or out of order.

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
