//! Opens the store and loads its content at the start.
// A cast would silently truncate a value that the type can't hold: see `clamped`.
#![deny(clippy::as_conversions)]

use broker::Broker;
use config::Config;
use history_local::{Begin, HistoryLimits};
use model::Epoch;
use store::{Reader, Store};
use subscriptions::{Change, Loader, OnSaved, SubscriptionStore, Subscriptions};
use token::{Revocation, Revoked};

use crate::error::CommandError;

use super::log::ms;
use super::settings::clamped;

/// The store at the start.
#[derive(Default)]
pub(super) struct Found {
    /// `None` if the configuration has none.
    pub store: Option<Store>,
    /// Loads its content.
    pub reader: Option<Reader>,
    /// The position at which topics with history continue.
    pub begin: Option<Begin>,
}

/// Opens the store, if the configuration has one. `new_epoch` is the epoch of a new store.
pub(super) fn open(config: &Config, new_epoch: u32) -> Result<Found, CommandError> {
    if config.store.data.is_empty() {
        return Ok(Found::default());
    }
    let started = std::time::Instant::now();
    let (store, reader, found) = Store::open(options(config, new_epoch))
        .map_err(|error| CommandError::Runtime(format!("the store: {error}")))?;
    tracing::info!(
        path = config.store.data,
        clean = found.clean,
        duration_ms = ms(started.elapsed()),
        "the store is open"
    );
    let epoch = Epoch(found.epoch);
    let begin = Begin { epoch, last: found.last_offset, store: Some(store.clone()) };
    Ok(Found { store: Some(store), reader: Some(reader), begin: Some(begin) })
}

/// Creates a store that another process has until it passes it on, if the configuration has one.
pub(super) fn waiting(config: &Config, new_epoch: u32) -> Found {
    if config.store.data.is_empty() {
        return Found::default();
    }
    let store = Store::waiting(&options(config, new_epoch));
    // The other process passes on the position at which topics with history continue.
    let begin = Begin { epoch: Epoch(0), last: 0, store: Some(store.clone()) };
    Found { store: Some(store), reader: None, begin: Some(begin) }
}

pub(super) fn options(config: &Config, new_epoch: u32) -> store::Options {
    store::Options {
        dir: config.store.data.clone().into(),
        new_epoch,
        queue_messages_max: clamped(config.store.queue_messages_max),
        queue_bytes_max: clamped(config.store.queue_bytes_max),
        cache_bytes_max: clamped(config.store.cache_bytes_max),
        verify_bytes_max: config.store.verify_bytes_max,
        idempotency_seconds_max: config.history.idempotency_seconds_max,
    }
}

pub(super) fn limits(config: &Config) -> HistoryLimits {
    HistoryLimits {
        history_bytes_max: clamped(config.history.bytes_max),
        topics_max: clamped(config.history.topics_max),
        idempotency_keys_max: clamped(config.history.idempotency_keys_max),
        cursors_max: clamped(config.history.cursors_max),
    }
}

fn to_error(error: String) -> CommandError {
    CommandError::Runtime(format!("the store can't be read: {error}"))
}

/// Loads the revoked tokens.
pub(super) fn load_revocations(
    store: &Reader,
    revocations: &token::Revocations,
) -> Result<(), CommandError> {
    let each = |part: &str, key: &str, value: &[u8]| {
        let (revoked, until) = (Revoked::of_key(key), value.try_into().map(u64::from_le_bytes));
        if part == control::REVOCATIONS
            && let (Some(revoked), Ok(until)) = (revoked, until)
        {
            // The limit was applied when the token was revoked.
            revocations.add(&Revocation { revoked, until }, usize::MAX);
        }
    };
    store.each_record(each).map_err(|error| to_error(error.to_string()))
}

/// Loads cursors, idempotency keys and subscriptions.
pub(super) fn load(
    store: &Reader,
    broker: &dyn Broker,
    history: &history_local::Local,
    subscriptions: &Subscriptions,
) -> Result<(), CommandError> {
    let started = std::time::Instant::now();
    let (mut cursors, mut keys) = (Vec::new(), Vec::new());
    store
        .each_cursor(|user, topic, offset| cursors.push((user.into(), topic.into(), offset)))
        .map_err(|error| to_error(error.to_string()))?;
    store
        .each_idempotency_key(|topic, key, offset, at_ms| {
            keys.push((topic.into(), key.into(), offset, at_ms));
        })
        .map_err(|error| to_error(error.to_string()))?;
    let loader = Loader::new(subscriptions);
    store
        .each_name(|number, name| loader.name(number, name))
        .map_err(|error| to_error(error.to_string()))?;
    store
        .each_subscriber(|user, packed| loader.row(user, packed))
        .map_err(|error| to_error(error.to_string()))?;
    if let Err(error) = loader.finish() {
        let advice = "restore the file from a backup, or move it away to start with an empty store";
        return Err(to_error(format!("{error}; {advice}")));
    }
    tracing::info!(
        cursors = cursors.len(),
        idempotency_keys = keys.len(),
        subscribers = subscriptions.users(),
        duration_ms = ms(started.elapsed()),
        "the store is loaded"
    );
    history.load_cursors(cursors);
    history.load_idempotency(|topic| broker.hash(topic), keys);
    Ok(())
}

/// An event's number, and its bytes.
type StoredEvent = (u64, Box<[u8]>);

/// Returns the events of the process before this one that the application has not accepted.
pub(super) fn events(store: &Reader) -> Result<Vec<StoredEvent>, CommandError> {
    let mut events = Vec::new();
    match store.each_event(|number, event| events.push((number, event.into()))) {
        Ok(()) => Ok(events),
        Err(error) => Err(CommandError::Runtime(format!("the store can't be read: {error}"))),
    }
}

/// Stores events until the application has accepted them.
pub(super) struct SavedEvents(pub Store);

impl control::webhook::EventStore for SavedEvents {
    fn change(&self, puts: Vec<(u64, Box<[u8]>)>, through: Option<u64>) -> bool {
        self.0.put_events(puts, through).is_ok()
    }
}

/// Saves changes of subscriptions in the store.
pub(super) struct SavedSubscriptions(pub Store);

impl SubscriptionStore for SavedSubscriptions {
    fn save(&self, change: Change, done: OnSaved) -> Result<(), String> {
        let committed = Box::new(move |result: Result<(), store::StoreError>| {
            done(result.map_err(|error| error.to_string()));
        });
        self.0
            .put_subscriptions(change.puts, change.names, committed)
            .map_err(|error| error.to_string())
    }
}
