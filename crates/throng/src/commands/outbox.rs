//! `throng outbox`: makes the tables and functions of the outbox.

use std::io::Write;

use clap::{Args, Subcommand};

use crate::commands::serve::outbox::address;
use crate::error::CommandError;
use crate::flags::Flags;
use crate::sources;

/// What to do with the outbox.
#[derive(Subcommand)]
pub enum What {
    /// Make the tables and functions in the database of outbox.url, as the server does when it starts.
    Migrate(Migrate),
}

#[derive(Args)]
pub struct Migrate {
    /// Print the statements, one transaction, and connect to nothing.
    #[arg(long)]
    print: bool,
    /// The version that is there already: print what comes after it.
    #[arg(long, value_name = "VERSION", requires = "print", default_value_t = 0)]
    from: u16,
    #[command(flatten)]
    settings: Box<Flags>,
}

/// Does what is said, and says what it did.
pub fn run(what: &What) -> Result<(), CommandError> {
    let What::Migrate(args) = what;
    let text = migrate(args)?;
    // A closed pipe is not an error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

fn migrate(args: &Migrate) -> Result<String, CommandError> {
    let config = sources::load(&args.settings)?.config;
    let schema = &config.outbox.schema;
    if args.print {
        return Ok(outbox::script(schema, args.from.into()));
    }
    if config.outbox.url.is_empty() {
        return Err(CommandError::Usage(
            "outbox.url: it names no database: set it, or print the statements with --print".into(),
        ));
    }
    let address = address(&config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CommandError::Runtime(error.to_string()))?;
    let migration = outbox::migrate(&address, &config.outbox.password, schema);
    let found = runtime.block_on(migration);
    let found = found.map_err(|error| CommandError::Runtime(error.to_string()))?;
    let version = outbox::VERSION;
    Ok(match found == version {
        true => format!("the schema {schema:?} has version {version} already\n"),
        false => format!("the schema {schema:?} has version {version} now (it was {found})\n"),
    })
}
