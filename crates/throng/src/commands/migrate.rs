//! `migrate` of the commands whose part has tables in PostgreSQL.

use std::io::Write;

use clap::Args;
use config::Config;
use database::{Address, Schema};

use crate::error::CommandError;
use crate::flags::Flags;
use crate::sources;

/// Whether the tables and functions are made or printed.
#[derive(Args)]
pub struct Migrate {
    /// Print the statements, as one transaction, without connecting to a database.
    #[arg(long)]
    print: bool,
    /// The version that the schema already has: print only the statements after it.
    #[arg(long, value_name = "VERSION", requires = "print", default_value_t = 0)]
    from: u16,
    #[command(flatten)]
    settings: Box<Flags>,
}

/// The tables to make, and the database for them.
pub struct Target<'a> {
    pub tables: Schema,
    /// The section of the settings that name the database.
    pub section: &'static str,
    pub schema: &'a str,
    pub url: &'a str,
    pub password: &'a str,
    pub address: fn(&Config) -> Result<Address, CommandError>,
}

impl Migrate {
    /// Makes the tables and functions, and prints the version.
    pub fn run(&self, target: impl FnOnce(&Config) -> Target<'_>) -> Result<(), CommandError> {
        let config = sources::load(&self.settings)?.config;
        let text = self.migrate(&config, &target(&config))?;
        // A closed pipe is not an error.
        let _ = std::io::stdout().write_all(text.as_bytes());
        Ok(())
    }

    fn migrate(&self, config: &Config, target: &Target<'_>) -> Result<String, CommandError> {
        let Target { tables, section, schema, url, password, address } = *target;
        if self.print {
            return Ok(tables.script(schema, self.from.into()));
        }
        if url.is_empty() {
            return Err(CommandError::Usage(format!(
                "{section}.url names no database: set it, or print the statements with --print"
            )));
        }
        let address = address(config)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| CommandError::Runtime(error.to_string()))?;
        let found = runtime.block_on(tables.migrate(&address, password, schema));
        let found = found.map_err(|error| CommandError::Runtime(error.to_string()))?;
        let version = tables.version();
        Ok(match found >= version {
            true => format!("the schema {schema:?} already has version {found}\n"),
            false => format!("the schema {schema:?} has version {version} now (it was {found})\n"),
        })
    }
}
