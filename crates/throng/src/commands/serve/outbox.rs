//! The outbox of messages that applications publish in their own transactions, if the configuration has a database.

use std::path::Path;
use std::sync::Arc;

use config::Config;
use database::{Address, Runtime};
use outbox::{Outbox, Settings};

use crate::error::CommandError;

use super::settings::clamped;

/// The largest file of certificates, in bytes.
const CA_BYTES_MAX: u64 = 16 << 20;

/// Creates the outbox of this node. Returns `None` without `outbox.url`.
pub(super) fn outbox(config: &Config) -> Result<Option<Arc<Outbox>>, CommandError> {
    if config.outbox.url.is_empty() {
        return Ok(None);
    }
    let settings = settings(config, address(config)?);
    Ok(Some(Outbox::new(settings, config.outbox.password.clone())))
}

/// Returns the address of the database.
pub(in crate::commands) fn address(config: &Config) -> Result<Address, CommandError> {
    database_address("outbox", &config.outbox.url, &config.outbox.ca_file)
}

/// Returns the address of a database, by the settings of a section.
pub(super) fn database_address(
    section: &str,
    url: &str,
    ca_file: &str,
) -> Result<Address, CommandError> {
    let usage = |key: &str, text: &dyn std::fmt::Display| {
        CommandError::Usage(format!("{section}.{key}: {text}"))
    };
    let file = Some(ca_file).filter(|file| !file.is_empty());
    let read = |file: &str| files::read_text(Path::new(file), CA_BYTES_MAX);
    let ca = file.map(read).transpose().map_err(|error| usage("ca_file", &error))?;
    Address::new(url, ca.as_deref()).map_err(|error| usage("url", &error))
}

pub(super) fn settings(config: &Config, address: Address) -> Settings {
    let outbox = &config.outbox;
    Settings {
        address,
        schema: outbox.schema.clone(),
        batch_rows_max: clamped(outbox.batch_rows_max),
        batch_bytes_max: clamped(outbox.batch_bytes_max),
        row_bytes_max: clamped(config.admin.body_bytes_max),
        refused_rows_max: clamped(outbox.refused_rows_max),
    }
}

/// Creates the runtime of the outbox's thread; `None` without `outbox.url`. Call this before the shards start.
pub(super) fn runtime(config: &Config) -> Result<Option<Runtime>, CommandError> {
    let runtime = (!config.outbox.url.is_empty()).then(Runtime::new).transpose();
    runtime.map_err(|error| CommandError::Runtime(format!("the outbox can't be drained: {error}")))
}

/// Drains the outbox until the caller drops what this returns.
pub(super) fn start(
    runtime: Runtime,
    outbox: Arc<Outbox>,
    control: &control::Running,
) -> Result<database::Running, CommandError> {
    outbox::spawn(runtime, outbox, control.outbox_publisher())
        .map_err(|error| CommandError::Runtime(format!("the outbox's thread can't start: {error}")))
}
