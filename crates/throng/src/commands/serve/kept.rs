//! What outlives the process: opens the store and takes in what it has.
// A cast would cut off what a type can't hold, without a word: see `held`.
#![deny(clippy::as_conversions)]

use broker::{Begin, Broker, KeptLimits};
use config::Config;
use store::{Found, Reader, Store};
use subscriptions::{Change, Keep, Subscriptions};
use wire::Epoch;

use crate::cli::Failure;

use super::settings::held;

/// An open store, and what it was found to be. The reader is for what is taken in at the start.
pub(super) type Opened = (Store, Reader, Found);

/// Opens the store, if the configuration has one. `new_epoch` names its numbering if it is new.
pub(super) fn open(config: &Config, new_epoch: u32) -> Result<Option<Opened>, Failure> {
    if config.store.data.is_empty() {
        return Ok(None);
    }
    let started = std::time::Instant::now();
    let (store, reader, found) = Store::open(options(config, new_epoch))
        .map_err(|error| Failure::Runtime(format!("the store: {error}")))?;
    tracing::info!(
        clean = found.clean,
        "the store in {} is open after {} ms",
        config.store.data,
        started.elapsed().as_millis()
    );
    Ok(Some((store, reader, found)))
}

pub(super) fn options(config: &Config, new_epoch: u32) -> store::Options {
    store::Options {
        dir: config.store.data.clone().into(),
        new_epoch,
        queue_messages_max: held(config.store.queue_messages_max),
        queue_bytes_max: held(config.store.queue_bytes_max),
        cache_bytes_max: held(config.store.cache_bytes_max),
        verify_bytes_max: config.store.verify_bytes_max,
        idempotency_seconds_max: config.history.idempotency_seconds_max,
    }
}

/// From where the numbering of topics with history goes on.
pub(super) fn begin(opened: &Option<Opened>) -> Option<Begin> {
    let (store, _, found) = opened.as_ref()?;
    Some(Begin { epoch: Epoch(found.epoch), last: found.last_offset, store: Some(store.clone()) })
}

pub(super) fn limits(config: &Config) -> KeptLimits {
    KeptLimits {
        history_bytes_max: held(config.history.bytes_max),
        topics_max: held(config.history.topics_max),
        idempotency_keys_max: held(config.history.idempotency_keys_max),
        cursors_max: held(config.history.cursors_max),
    }
}

/// Takes in cursors, idempotency keys and subscriptions.
pub(super) fn load(
    store: &Reader,
    broker: &dyn Broker,
    subscriptions: &Subscriptions,
) -> Result<(), Failure> {
    let started = std::time::Instant::now();
    let failed = |error: String| Failure::Runtime(format!("the store can't be read: {error}"));
    let (mut cursors, mut keys) = (Vec::new(), Vec::new());
    let mut bad: Option<String> = None;
    store
        .each_cursor(|user, topic, offset| cursors.push((user.into(), topic.into(), offset)))
        .map_err(|error| failed(error.to_string()))?;
    store
        .each_idempotency_key(|topic, key, offset, at_ms| {
            keys.push((topic.into(), key.into(), offset, at_ms));
        })
        .map_err(|error| failed(error.to_string()))?;
    store
        .each_name(|number, name| {
            if let Err(error) = subscriptions.load_name(number, name) {
                bad.get_or_insert(error.to_string());
            }
        })
        .map_err(|error| failed(error.to_string()))?;
    store
        .each_subscriber(|user, packed| {
            if let Err(error) = subscriptions.load_row(user, packed) {
                bad.get_or_insert(format!("the subscriptions of {user}: {error}"));
            }
        })
        .map_err(|error| failed(error.to_string()))?;
    if let Some(bad) = bad {
        let advice = "restore the file from a backup, or move it away to begin anew";
        return Err(failed(format!("{bad}; {advice}")));
    }
    tracing::info!(
        cursors = cursors.len(),
        idempotency_keys = keys.len(),
        subscribers = subscriptions.users(),
        "the store is loaded after {} ms",
        started.elapsed().as_millis()
    );
    broker.kept().load_cursors(cursors);
    broker.kept().load_idempotency(|topic| broker.hash(topic), keys);
    Ok(())
}

/// Keeps changes of subscriptions in the store.
pub(super) struct KeepSubscriptions(pub Store);

impl Keep for KeepSubscriptions {
    fn keep(
        &self,
        change: Change,
        done: Box<dyn FnOnce(Result<(), String>) + Send>,
    ) -> Result<(), String> {
        let told = Box::new(move |result: Result<(), store::Fault>| {
            done(result.map_err(|fault| fault.to_string()));
        });
        self.0.subscriptions(change.puts, change.names, told).map_err(|error| error.to_string())
    }
}
