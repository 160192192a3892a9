//! The history of topics in PostgreSQL, which several nodes share.
//!
//! **One order.** All topics share one log, so that one position in it serves any set of topics. The database counts
//! the offsets: one call of a function appends a batch of messages, and locks the counter until the commit. So offsets
//! are in the order of commits, and a reader that sees an offset sees all earlier ones.
//!
//! **Writing.** Published messages wait in a queue. The writer takes a batch of up to [`BATCH_MESSAGES_MAX`] messages
//! from it, and appends the batch in one call. Publishers get their replies after the commit. The database stores the
//! result of each process's last batch. So if a reply is lost, the writer sends the batch again, and it is appended
//! only once.
//!
//! **Following.** The follower delivers messages to the inboxes, in the order of their offsets: messages of this
//! process when they are committed, and messages of other processes when it reads them. So [`history::History::top`] is
//! the last message that this node has delivered, and all nodes deliver the same messages.
//!
//! **Reading.** The newest messages are in memory, in a window for each topic. The reader reads older messages from the
//! database, and many clients at one time share what it has read (`pages`).
//!
//! **Cursors.** How far users have acknowledged topics is in memory, and in the database for all nodes (`cursors`).
//!
//! **Retained messages** of MQTT are in memory, and in the database for all nodes (`retained`).
//!
//! **Sessions of MQTT** are in the memory of their node, and in the database for the next process of that node
//! (`mqtt_sessions`).
//!
//! **Without PostgreSQL.** Publishing fails at once, members stay connected, and reads from memory continue. The driver
//! reconnects by itself, and the follower continues at its last position.
//!
//! **Upgrade.** A new process continues after the last offset that the old process has delivered.
//!
//! **Moving.** [`LogWriter`] writes the history of an embedded store into an empty database, and [`LogReader`] reads
//! one back.

#![forbid(unsafe_code)]
#![warn(clippy::match_wildcard_for_single_variants, clippy::wildcard_enum_match_arm)]

mod batch;
mod contract;
mod cursors;
mod driver;
mod export;
mod follower;
mod handover;
mod import;
mod jobs;
mod matching;
mod mqtt_sessions;
mod pages;
mod postgres;
mod publish;
mod queue;
mod read;
mod reader;
mod resolve;
mod retained;
mod retry;
mod session;
mod settings;
mod state;
mod status;
mod thread;
mod transfer;
mod trimmer;
mod writer;

pub use batch::BATCH_MESSAGES_MAX;
pub use cursors::CursorMove;
pub use export::{LogWriter, Written};
pub use handover::{PART, PostgresPart};
pub use import::LogReader;
pub use postgres::{OpenError, Postgres};
pub use retained::RetainedMemory;
pub use settings::Settings;
pub use status::HistoryStatus;
pub use thread::spawn;
pub use transfer::LogTransferError;

/// The tables and functions in the database.
pub const SCHEMA: database::Schema = database::Schema {
    part: "history",
    scripts: &[
        include_str!("../sql/1.sql"),
        include_str!("../sql/2.sql"),
        include_str!("../sql/3.sql"),
        include_str!("../sql/4.sql"),
        include_str!("../sql/5.sql"),
    ],
};

#[cfg(test)]
mod tests {
    #[test]
    fn each_migration_records_its_version() {
        for (at, migration) in super::SCHEMA.scripts.iter().enumerate() {
            let is_recorded = [
                format!("history_migrations (version) VALUES ({});", at + 1),
                format!("history_migrations (version, usable_from) VALUES ({}, ", at + 1),
            ];
            assert!(is_recorded.iter().any(|record| migration.contains(record)), "{}", at + 1);
        }
    }
}
