//! `throng history`: makes the tables and functions of the history in PostgreSQL.

use clap::Subcommand;

use crate::commands::migrate::{Migrate, Target};
use crate::commands::serve::history::address;
use crate::error::CommandError;

/// What to do with the history in PostgreSQL.
#[derive(Subcommand)]
pub enum What {
    /// Create the tables and functions in the database of history.url, as the server does when it
    /// starts.
    Migrate(Migrate),
}

/// Runs the command, and prints what it did.
pub fn run(what: &What) -> Result<(), CommandError> {
    let What::Migrate(args) = what;
    args.run(|config| Target {
        tables: history_postgres::SCHEMA,
        section: "history",
        schema: &config.history.schema,
        url: &config.history.url,
        password: &config.history.password,
        address,
    })
}
