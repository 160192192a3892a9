//! Publishes what applications write in their own transactions in PostgreSQL.
//!
//! An application calls `throng.publish(topic, data)` in its transaction, which inserts a row into a table, the
//! outbox. A thread ([`spawn`]) reads what is committed, publishes it by a [`Publisher`], and deletes it when that is
//! confirmed. Of several nodes with one database one drains the outbox at a time: it has an advisory lock as long as
//! its session lives.
//!
//! `Drain` (`drain.rs`) decides what happens next, without I/O.

#![forbid(unsafe_code)]
#![warn(clippy::match_wildcard_for_single_variants, clippy::wildcard_enum_match_arm)]

mod address;
mod backoff;
mod database;
mod drain;
mod driver;
mod error;
mod floor;
mod migrations;
mod outbox;
mod row;
mod secure;
mod session;
#[cfg(test)]
mod simulation;
mod thread;

pub use address::{Address, AddressError};
pub use error::DatabaseError;
pub use migrations::{VERSION, migrate, script};
pub use outbox::{Outbox, Settings, Status};
pub use row::{Done, Outcome, Publisher, Reason, Row};
pub use thread::{Running, Runtime, spawn};
