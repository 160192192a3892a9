//! The database that a store's history moves into, or comes from.

use std::path::Path;

use clap::Args;
use config::{Config, check_database_url};
use database::Address;

use crate::commands::serve::history::address;
use crate::error::CommandError;
use crate::flags::Flags;
use crate::sources;

/// Which database.
#[derive(Args)]
pub struct HistoryUrl {
    /// URL of the database, without a password, as in history.url. The configuration may then have
    /// store.data; the schema, the file of the password and the authorities are still taken from
    /// it [default: the configuration's history.url].
    #[arg(long, value_name = "URL")]
    history_url: Option<String>,
}

/// The history in a database.
pub struct Target {
    pub address: Address,
    pub password: String,
    pub schema: String,
}

/// Loads the configuration, of servers with a store or with a history in PostgreSQL. One that names neither may have
/// rules that need one: then the store's directory of the command line counts as store.data.
pub fn load(settings: &Flags, dir: Option<&Path>) -> Result<Config, CommandError> {
    let loaded = sources::load(settings).or_else(|error| {
        let data = dir.and_then(Path::to_str).filter(|_| settings.data.is_none());
        let with_data = Flags { data: data.map(str::to_owned), ..settings.clone() };
        sources::load(&with_data).map_err(|_| error)
    });
    Ok(loaded?.config)
}

impl HistoryUrl {
    /// Returns the history in the database that the flag or the configuration names.
    pub fn target(&self, config: &Config) -> Result<Target, CommandError> {
        let mut config = config.clone();
        if let Some(url) = &self.history_url {
            check_database_url(url, "history.password_file")
                .map_err(|reason| CommandError::Usage(format!("--history-url: {reason}")))?;
            config.history.url.clone_from(url);
        }
        if config.history.url.is_empty() {
            let message = "no database: name it with --history-url \
                           postgres://user@host:5432/database, or set history.url";
            return Err(CommandError::Usage(message.into()));
        }
        let address = address(&config)?;
        let (password, schema) = (config.history.password, config.history.schema);
        Ok(Target { address, password, schema })
    }
}
