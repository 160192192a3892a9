//! Connections to PostgreSQL, versioned schemas there for parts of Throng, and the threads that work with them.
//!
//! [`Address`] has the address of a database and the security of the connection, [`connect`] opens a session that
//! detects within seconds that the peer is gone, and [`Schema`] makes tables and functions by
//! versions. A part runs on a thread of its own ([`spawn`]), and [`Reconnects`] says when it connects again.

#![forbid(unsafe_code)]
#![warn(clippy::match_wildcard_for_single_variants, clippy::wildcard_enum_match_arm)]

mod address;
mod error;
mod number;
mod reconnects;
mod schema;
mod secure;
mod session;
mod thread;

pub use address::{Address, AddressError};
pub use error::DatabaseError;
pub use number::{signed, unsigned};
pub use reconnects::{ErrorLevel, Reconnects};
pub use schema::{LOCK_CLASS, Schema, of_schema};
pub use session::{STEP_SECONDS, Session, connect, prepare_session, step, step_within, wake_for};
pub use thread::{Running, Runtime, ended, spawn};
