//! Publishes what applications write in their own transactions in PostgreSQL.
//!
//! An application calls `throng.publish(topic, data)` in its transaction, which inserts a row into a table, the
//! outbox. A thread ([`spawn`]) reads committed rows, publishes them by a [`Publisher`], and deletes them when that
//! is confirmed. Of several nodes with one database one drains the outbox at a time: it has an advisory lock while
//! its session lives.
//!
//! `Drain` (`drain.rs`) decides what happens next, without I/O.

#![forbid(unsafe_code)]
#![warn(clippy::match_wildcard_for_single_variants, clippy::wildcard_enum_match_arm)]

mod database;
mod drain;
mod driver;
mod floor;
mod outbox;
mod row;
#[cfg(test)]
mod simulation;
mod thread;

pub use outbox::{Outbox, OutboxStatus, Settings};
pub use row::{Done, Outcome, Publisher, Reason, Row};
pub use thread::spawn;

/// The tables and functions in the database.
pub const SCHEMA: ::database::Schema =
    ::database::Schema { part: "outbox", scripts: &[include_str!("../sql/1.sql")] };

#[cfg(test)]
mod tests {
    #[test]
    fn each_migration_records_its_version() {
        for (at, migration) in super::SCHEMA.scripts.iter().enumerate() {
            let record = format!("outbox_migrations (version) VALUES ({});", at + 1);
            assert!(migration.contains(&record), "{record}");
        }
    }
}
