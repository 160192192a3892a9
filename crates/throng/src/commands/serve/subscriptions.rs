//! The stored subscriptions in PostgreSQL, if the configuration has a database for the history.

use std::sync::Arc;

use config::Config;
use database::{Running, Runtime};
use subscriptions::Subscriptions;
use subscriptions_postgres::{Postgres, Settings};

use crate::error::CommandError;

use super::history::address;

/// Creates the runtime of their thread; `None` without `history.url`. Call this before the shards start.
pub(super) fn runtime(config: &Config) -> Result<Option<Runtime>, CommandError> {
    let runtime = (!config.history.url.is_empty()).then(Runtime::new).transpose();
    runtime.map_err(|error| failed(&error))
}

/// Connects, so that an error shows at the start. With `loads`, it also reads them all.
pub(super) fn open(
    config: &Config,
    runtime: &Runtime,
    subscriptions: Arc<Subscriptions>,
    loads: bool,
) -> Result<Postgres, CommandError> {
    let settings = Settings { address: address(config)?, schema: config.history.schema.clone() };
    let password = config.history.password.clone();
    Postgres::open(runtime, settings, password, subscriptions, loads)
        .map_err(|error| failed(&error))
}

/// Makes changes, and follows those of other nodes, until the caller drops the result.
pub(super) fn start(
    runtime: Runtime,
    postgres: Postgres,
    control: &control::Running,
) -> Result<Running, CommandError> {
    subscriptions_postgres::spawn(runtime, postgres, control.node_connections())
        .map_err(|error| failed(&error))
}

fn failed(error: &dyn std::fmt::Display) -> CommandError {
    CommandError::Runtime(format!("the subscriptions in PostgreSQL (history.url): {error}"))
}
