//! The history of topics in PostgreSQL, which several nodes share.
//!
//! **One order.** All topics share one log, so that one position in it serves any set of topics. The database counts its
//! offsets: a batch of messages is one call of a function that locks the counter until the commit, so that offsets are
//! in the order of commits, and whoever sees an offset sees all before it.
//!
//! **Writing.** What is published waits in a queue. The writer takes all that waits, up to [`BATCH_MESSAGES_MAX`], and
//! appends it in one call; publishers are answered after the commit. The database has the result of each process's last
//! batch: where a reply is lost, the batch is sent again, and is there once.
//!
//! **Following.** The follower delivers messages to the inboxes, in the order of their offsets: those of this process as
//! they were committed, and those of others as it reads them. So [`history::History::top`] is what this node has
//! delivered, and all nodes deliver the same.
//!
//! **Reading.** The newest messages are in memory, in a window for each topic; what is older the reader reads from the
//! database.
//!
//! **PostgreSQL is away.** Publishing fails at once, members stay, and reads that memory has go on. The connections are made
//! again by themselves, and the follower continues where it was.
//!
//! **Upgrade.** A new process continues after the last offset that the old process has delivered.
//!
//! **Moving.** [`LogWriter`] writes the history of an embedded store into an empty database, and [`LogReader`] reads one
//! back.

#![forbid(unsafe_code)]
#![warn(clippy::match_wildcard_for_single_variants, clippy::wildcard_enum_match_arm)]

mod batch;
mod contract;
mod driver;
mod export;
mod follower;
mod handover;
mod import;
mod jobs;
mod postgres;
mod publish;
mod queue;
mod read;
mod reader;
mod resolve;
mod session;
mod settings;
mod state;
mod status;
mod thread;
mod transfer;
mod trimmer;
mod writer;

pub use batch::BATCH_MESSAGES_MAX;
pub use export::{LogWriter, Written};
pub use handover::{PART, PostgresPart};
pub use import::LogReader;
pub use postgres::{OpenError, Postgres};
pub use settings::Settings;
pub use status::Status;
pub use thread::spawn;
pub use transfer::LogTransferError;

/// The tables and functions in the database.
pub const SCHEMA: database::Schema =
    database::Schema { part: "history", scripts: &[include_str!("../sql/1.sql")] };

#[cfg(test)]
mod tests {
    #[test]
    fn each_migration_records_its_version() {
        for (at, migration) in super::SCHEMA.scripts.iter().enumerate() {
            let record = format!("history_migrations (version) VALUES ({});", at + 1);
            assert!(migration.contains(&record), "{record}");
        }
    }
}
