//! The state that outlives MQTT connections: sessions and retained messages, and the store of both.
// A cast would silently truncate a value that the type can't hold.
#![deny(clippy::as_conversions)]

use std::fmt::Display;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use broker::{Broker, Inbox, Router};
use history::{History, Implicit};
use model::{Envelope, HistoryRule, NodeId, Rules};
use protocol::MqttSettings;
use sessions::{
    Done, Interests, Limits, Local, LocalRetained, Now, Part, RETAINED, Retained, Sessions, Storage,
};
use store::{Reader, Store};
use throttle::Throttle;

use crate::error::CommandError;

/// How long the server waits for the store or the database at its end.
const END_WAIT: Duration = Duration::from_secs(10);

/// The state that outlives MQTT connections.
pub(super) struct Mqtt {
    router: OnceLock<Arc<Router>>,
    /// The sessions of this node.
    pub sessions: Arc<Local>,
    pub retained: Arc<LocalRetained>,
    interests: Arc<Interests>,
}

impl Mqtt {
    /// Creates empty state. The store, if there is one, stores later sessions and retained messages.
    pub fn new(node: NodeId, store: Option<&Store>) -> Self {
        let interests = Arc::new(Interests::default());
        let writer = store.cloned().map(|store| -> sessions::RetainedWriter {
            let log = Log::new();
            let writer = move |topic: &str, value: Option<Vec<u8>>, done: Done| {
                let puts = vec![(topic.into(), value.map(Into::into))];
                if let Err(error) = store.put_records(RETAINED, puts, written(Some(done))) {
                    log.unwritten("a retained message is not stored yet", error);
                }
            };
            Box::new(writer)
        });
        let retained = Arc::new(LocalRetained::new(writer));
        let storage = store.map(|store| -> Arc<dyn Storage> {
            let (store, retained) = (store.clone(), retained.clone());
            Arc::new(Saved { store, retained, log: Log::new() })
        });
        let sessions = Arc::new(Local::new(node, interests.clone(), storage));
        let router = OnceLock::new();
        Mqtt { router, sessions, retained, interests }
    }

    /// Called after all clients have disconnected. Gives the store or the database what they do not have yet, for at most
    /// `END_WAIT`, unless they can't write.
    pub fn end(&self, can_write: impl Fn() -> bool) {
        let began = Instant::now();
        let is_stored = || self.sessions.is_all_stored() && self.retained.is_stored();
        while !is_stored() && can_write() && began.elapsed() < END_WAIT {
            self.sessions.store_again();
            self.retained.store_again();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the router of messages to these inboxes. It also passes on messages to retain.
    pub fn router(&self, inboxes: Vec<Arc<dyn Inbox>>) -> Arc<Router> {
        let retained = self.retained.clone();
        let retain =
            Arc::new(move |message: &Arc<Envelope>, source| retained.retain_from(message, source));
        let router = || Arc::new(Router::new(inboxes).retaining(retain));
        self.router.get_or_init(router).clone()
    }

    /// Applies new rules.
    pub fn set_rules(&self, rules: Arc<Rules>) {
        self.router.get().into_iter().for_each(|router| router.set_rules(rules.clone()));
        self.interests.set_rules(rules);
    }

    /// Returns sessions and retained messages for the shards.
    pub fn for_shards(&self) -> (Arc<dyn Sessions>, Arc<dyn Retained>) {
        (self.sessions.clone(), self.retained.clone())
    }

    /// Applies other settings. The history retains what sessions are interested in, on disk if there is a store or a
    /// database.
    pub fn configure(
        &self,
        history: &dyn History,
        settings: Option<&MqttSettings>,
        is_stored: bool,
    ) {
        let Some(settings) = settings else {
            return history.set_implicit(None);
        };
        let seconds_max = settings.session_seconds_max;
        self.sessions.set_limits(Limits {
            sessions_max: settings.sessions_max,
            sessions_per_owner_max: settings.sessions_per_user_max,
            bytes_max: settings.away_bytes_max,
            seconds_max,
        });
        self.retained.set_limits(settings.retained_messages_max, settings.retained_bytes_max);
        let rule = HistoryRule {
            messages_max: most(settings.session_messages_max),
            bytes_max: most(settings.session_bytes_max),
            seconds_max: seconds_max.into(),
            durable: is_stored || history.is_shared(),
            compact: false,
            acknowledge: None,
        };
        let (any, wants) = (self.interests.clone(), self.interests.clone());
        history.set_implicit(Some(Implicit {
            rule: Arc::new(rule),
            any: Arc::new(move || any.count() > 0),
            wants: Arc::new(move |topic| wants.holds(topic)),
        }));
    }

    /// Loads sessions and retained messages from the store.
    pub fn load(&self, store: &Reader, broker: &dyn Broker, now: Now) -> Result<(), CommandError> {
        let (mut sessions, mut retained) = (Vec::new(), Vec::new());
        let each = |part: &str, key: &str, value: &[u8]| {
            if let Some(part) = Part::ALL.into_iter().find(|known| known.name() == part) {
                sessions.push((part, key.to_owned(), value.to_vec()));
            } else if part == RETAINED {
                retained.push((key.to_owned(), value.to_vec()));
            }
        };
        store
            .each_record(each)
            .map_err(|error| CommandError::Runtime(format!("the store can't be read: {error}")))?;
        let unread = self.sessions.load(sessions, now)
            + self.retained.load(retained, |topic| broker.hash(topic));
        if unread > 0 {
            tracing::warn!(unread, "some MQTT sessions or retained messages can't be read");
        }
        let (sessions, retained) = (self.sessions.stats().away, self.retained.stats().messages);
        if sessions + retained > 0 {
            tracing::info!(sessions, retained, "MQTT sessions and retained messages are loaded");
        }
        Ok(())
    }
}

fn most(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Puts sessions into the store.
struct Saved {
    store: Store,
    /// The retained messages, which are in the store as well.
    retained: Arc<LocalRetained>,
    log: Log,
}

impl Storage for Saved {
    fn put(&self, part: Part, key: &str, value: Option<Vec<u8>>, done: Option<Done>) -> bool {
        let puts = vec![(key.into(), value.map(Into::into))];
        let result = self.store.put_records(part.name(), puts, written(done));
        result.map_err(|error| self.log.unwritten("an MQTT session was not stored", error)).is_ok()
    }

    fn has_capacity(&self) -> bool {
        self.store.has_capacity()
    }

    fn settle(&self, done: Done) {
        if !self.retained.is_stored() {
            return done(false);
        }
        // The store writes in order: when this empty write is done, all before it are.
        let part = Part::Session.name();
        if let Err(error) = self.store.put_records(part, Vec::new(), written(Some(done))) {
            self.log.unwritten("an MQTT retained message may be missing from the store", error);
        }
    }
}

/// Logs errors of the store, one a second: clients can cause them with each message.
struct Log {
    began: Instant,
    lines: Throttle,
}

impl Log {
    fn new() -> Self {
        Log { began: Instant::now(), lines: Throttle::new(1, 1_000_000) }
    }

    fn unwritten(&self, what: &'static str, error: impl Display) {
        let now_us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        if let Some(suppressed) = self.lines.pass(now_us, 1) {
            tracing::warn!(%error, suppressed, "{what}");
        }
    }
}

/// Makes the callback of a write, which passes the result to `done`. If the store rejects the write and drops the
/// callback, `done` gets false.
fn written(done: Option<Done>) -> store::Done {
    let done = ReplyOnce(done);
    Box::new(move |result: Result<(), store::StoreError>| done.with(result.is_ok()))
}

/// Calls `done` with false if it is dropped without a result.
struct ReplyOnce(Option<Done>);

impl ReplyOnce {
    fn with(mut self, stored: bool) {
        if let Some(done) = self.0.take() {
            done(stored);
        }
    }
}

impl Drop for ReplyOnce {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done(false);
        }
    }
}
