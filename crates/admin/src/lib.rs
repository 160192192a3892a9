//! A client of a node's admin API, for the commands that call it from elsewhere, and what it is made of:
//! a blocking HTTP client, its URLs, TLS, and texts for people.
//!
//! A node may be another than it seems. Its answers are bounded, and what of them is shown is rid of
//! what controls a terminal.

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
