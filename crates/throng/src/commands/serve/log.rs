//! The log of the running server: lines on standard error, as text or as JSON.

use std::io::IsTerminal;
use std::time::Duration;

use config::{Config, LogFormat};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, reload};

use crate::error::CommandError;

/// The log, whose filter can change while it is written.
pub(super) struct Log(reload::Handle<EnvFilter, Registry>);

impl Log {
    /// Starts the process's log.
    pub fn start(config: &Config) -> Result<Self, CommandError> {
        let (filter, handle) = reload::Layer::new(filter(config)?);
        let registry = tracing_subscriber::registry().with(filter);
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(std::io::stderr().is_terminal())
            .with_writer(std::io::stderr);
        match config.log.format {
            LogFormat::Text => registry.with(lines).init(),
            // The innermost span has all fields of a request.
            LogFormat::Json => registry.with(lines.json().with_span_list(false)).init(),
        }
        Ok(Log(handle))
    }

    /// Takes the filter of a new configuration.
    pub fn reload(&self, config: &Config) {
        match filter(config) {
            Ok(filter) => {
                let _ = self.0.reload(filter);
            }
            Err(error) => tracing::error!(error = error.text(), "the log filter is unchanged"),
        }
    }
}

/// The clients of NATS and of PostgreSQL. Their callers log each error once.
const CLIENTS: [&str; 2] = ["async_nats", "tokio_postgres"];

/// Converts a time to milliseconds for the log, with three decimals.
pub(super) fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

fn filter(config: &Config) -> Result<EnvFilter, CommandError> {
    let level = &config.log.level;
    let quiet = CLIENTS.iter().filter(|client| !level.contains(**client));
    let quiet: String = quiet.map(|client| format!("{client}=off,")).collect();
    EnvFilter::try_new(format!("{quiet}{level}")).map_err(|error| {
        CommandError::Usage(format!(
            "log.level: {level:?} is not a valid filter ({error}); try info, or info,shard=debug"
        ))
    })
}
