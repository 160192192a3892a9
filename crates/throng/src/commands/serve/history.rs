//! The history in PostgreSQL, if the configuration names a database for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::{Broker, Router};
use config::Config;
use database::{Address, Running, Runtime};
use history_postgres::{CursorMove, Postgres, RetainedMemory, Settings};
use model::Name;
use model::name::personal;
use sessions::LocalRetained;

use crate::error::CommandError;

use super::outbox::database_address;
use super::settings::{self, clamped};

/// Returns the address of the database.
pub(in crate::commands) fn address(config: &Config) -> Result<Address, CommandError> {
    let history = &config.history;
    database_address("history", &history.url, &history.ca_file)
}

/// Creates the runtime of the history's thread; `None` without `history.url`. Call this before the shards start.
pub(super) fn runtime(config: &Config) -> Result<Option<Runtime>, CommandError> {
    let runtime = (!config.history.url.is_empty()).then(Runtime::new).transpose();
    runtime.map_err(|error| CommandError::Runtime(format!("the history can't be reached: {error}")))
}

/// Connects, so that an error shows at the start, and reads users' cursors. `writer` is a random number.
pub(super) fn open(
    config: &Config,
    runtime: &Runtime,
    router: Arc<Router>,
    started: Instant,
    writer: u64,
) -> Result<Postgres, CommandError> {
    let settings = settings(config, address(config)?);
    let password = config.history.password.clone();
    let opened = Postgres::open(runtime, settings, password, router, started, writer)
        .and_then(|postgres| postgres.load_cursors(runtime).map(|()| postgres));
    opened.map_err(|error| {
        CommandError::Runtime(format!("the history in PostgreSQL (history.url): {error}"))
    })
}

pub(super) fn settings(config: &Config, address: Address) -> Settings {
    let history = &config.history;
    Settings {
        address,
        schema: history.schema.clone(),
        queue_messages_max: clamped(history.queue_messages_max),
        queue_bytes_max: clamped(history.queue_bytes_max),
        memory_bytes_max: clamped(history.bytes_max),
        topics_max: clamped(history.topics_max),
        cursors_max: clamped(history.cursors_max),
        recent: settings::broker(config),
    }
}

/// How long the first connect may take.
const CONNECT_WAIT: Duration = Duration::from_secs(10);

/// Waits for the first connect, so that no publisher gets an error after an upgrade.
///
/// # Errors
/// If the connect takes longer than `CONNECT_WAIT`.
pub(super) fn until_connected(postgres: &Postgres) -> Result<(), CommandError> {
    let began = Instant::now();
    while !postgres.status().is_connected {
        if began.elapsed() > CONNECT_WAIT {
            let why = postgres.status().error.unwrap_or_else(|| "it does not reply".into());
            return Err(CommandError::Runtime(format!(
                "the history in PostgreSQL (history.url): {why}"
            )));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn retained_memory(broker: Arc<broker::Local>, messages: Arc<LocalRetained>) -> RetainedMemory {
    RetainedMemory { messages, hash: Arc::new(move |topic: &str| broker.hash(topic)) }
}

/// Makes these retained messages of MQTT those of all nodes. With `loads`, it also reads them.
pub(super) fn share_retained(
    runtime: &Runtime,
    postgres: &Postgres,
    (broker, retained): (Arc<broker::Local>, Arc<LocalRetained>),
    loads: bool,
) -> Result<(), CommandError> {
    let shared = postgres.share_retained(runtime, &retained_memory(broker, retained), loads);
    shared.map_err(|error| {
        CommandError::Runtime(format!("the retained messages in PostgreSQL (history.url): {error}"))
    })
}

/// Stores these sessions of MQTT of the node of this name. With `loads`, it also reads those of the node's process before.
pub(super) fn share_sessions(
    runtime: &Runtime,
    postgres: &Postgres,
    (sessions, node): (&Arc<sessions::Local>, &str),
    loads: bool,
) -> Result<(), CommandError> {
    postgres.share_sessions(runtime, sessions, node, loads).map_err(|error| {
        CommandError::Runtime(format!("the MQTT sessions in PostgreSQL (history.url): {error}"))
    })
}

/// Appends, delivers and reads until the caller drops what this returns.
pub(super) fn start(
    runtime: Runtime,
    postgres: Postgres,
    broker: Arc<broker::Local>,
    retained: Arc<LocalRetained>,
    shards: Vec<shard::Handle>,
) -> Result<Running, CommandError> {
    let retained = retained_memory(broker.clone(), retained);
    let of_follower = broker.clone();
    let on_moved = move |user: &Name, topic: &Name, to| {
        let hash = broker.hash(&personal(user));
        shards.iter().for_each(|shard| match to {
            CursorMove::Acknowledged(offset) => {
                shard.notify_acknowledged(hash, user, topic, offset);
            }
            CursorMove::Begun => shard.notify_begin_again(hash, user, topic, None),
            CursorMove::Back(offset) => shard.notify_begin_again(hash, user, topic, Some(offset)),
        });
    };
    history_postgres::spawn(runtime, postgres, on_moved, retained, of_follower).map_err(|error| {
        CommandError::Runtime(format!("the history's thread can't start: {error}"))
    })
}
