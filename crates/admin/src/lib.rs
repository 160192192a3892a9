//! A client of a node's admin API, for the commands that call it from elsewhere, and its parts: a blocking HTTP
//! client, its URLs, TLS, and texts for people.
//!
//! A node may be hostile. Its responses have limits, and its texts lose the characters that control a terminal.

#![forbid(unsafe_code)]

mod chunks;
mod client;
mod http;
pub mod text;
pub mod tls;
pub mod url;

pub use client::{Admin, AdminError, Target, encoded, refusal};
pub use http::{Connection, Http, Layer, NotConnectedError, connect};
pub use url::Url;
