//! Connections to PostgreSQL, and the versions of what a part of Throng has in a schema there.
//!
//! [`Address`] says where a database is and how the connection is secured, [`connect`] opens a session that
//! notices within seconds that the other side is gone, and [`Schema`] makes tables and functions by versions.

#![forbid(unsafe_code)]
#![warn(clippy::match_wildcard_for_single_variants, clippy::wildcard_enum_match_arm)]

mod address;
mod error;
mod schema;
mod secure;
mod session;

pub use address::{Address, AddressError};
pub use error::DatabaseError;
pub use schema::{LOCK_CLASS, Schema, of_schema};
pub use session::{STEP_SECONDS, Session, connect, step, step_within};
