//! `throng outbox`: makes the tables and functions of the outbox.

use clap::Subcommand;

use crate::commands::migrate::{Migrate, Target};
use crate::commands::serve::outbox::address;
use crate::error::CommandError;

/// What to do with the outbox.
#[derive(Subcommand)]
pub enum What {
    /// Create the tables and functions in the database of outbox.url, as the server does when it
    /// starts.
    Migrate(Migrate),
}

/// Runs the command, and prints what it did.
pub fn run(what: &What) -> Result<(), CommandError> {
    let What::Migrate(args) = what;
    args.run(|config| Target {
        tables: outbox::SCHEMA,
        section: "outbox",
        schema: &config.outbox.schema,
        url: &config.outbox.url,
        password: &config.outbox.password,
        address,
    })
}
