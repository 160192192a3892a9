//! Users' stored subscriptions in PostgreSQL, which several nodes share.
//!
//! **The table.** A row of `subscriptions` has all topics of a user, and the number of the user's last change. An edit
//! is one call of a function that locks the counter of changes until the commit, so that the numbers of changes are in
//! the order of commits, and a node that sees a change sees all before it.
//!
//! **Nodes.** Each node has the whole table in memory ([`subscriptions::Subscriptions`]), because a login must not wait
//! for a database. It reads the table when it starts, and afterwards the users whose changes have higher numbers than
//! its own position: after a notification, and once a second. It also applies its own edits that way, before it
//! replies. Since a row has a user's state, reading it twice does no harm, and a node that was away for any time reads
//! each changed user once.
//!
//! **Full reads.** The node reads all rows if the table was replaced (another epoch, or a lower number), or if rows of
//! users without topics were deleted before the node has seen them.
//!
//! **Without PostgreSQL.** Edits fail at once, and logins continue with the topics in memory.
//!
//! **Moves.** [`write_all`] and [`read_all`] carry a whole table into the database and out of it.
//!
//! **Upgrade.** The table in memory passes to the new process, together with its position ([`PostgresPart`]).

#![forbid(unsafe_code)]
#![warn(clippy::match_wildcard_for_single_variants, clippy::wildcard_enum_match_arm)]

mod driver;
mod edit;
mod handover;
mod postgres;
mod session;
mod settings;
mod thread;
mod transfer;

pub use edit::{DatabaseEditError, EditOutcome, EditReply, Edits, UserEdit};
pub use handover::{PART, PostgresPart};
pub use postgres::{Applying, Connections, OpenError, Postgres, SubscriptionsStatus};
pub use session::UserTopics;
pub use settings::Settings;
pub use thread::spawn;
pub use transfer::{read_all, write_all};

/// The tables and functions in the database.
pub const SCHEMA: database::Schema =
    database::Schema { part: "subscriptions", scripts: &[include_str!("../sql/1.sql")] };

#[cfg(test)]
mod tests {
    #[test]
    fn each_migration_records_its_version() {
        for (at, migration) in super::SCHEMA.scripts.iter().enumerate() {
            let record = format!("subscriptions_migrations (version) VALUES ({});", at + 1);
            assert!(migration.contains(&record), "{record}");
        }
    }
}
