//! The topics with history: their messages stay for those who come back.
//!
//! They have one numbering of their own, so that one place in it serves any set of topics. Without
//! a store its epoch is this process's; with one it is the store's, and a message is handed on when
//! it is on disk: nobody has ever seen what a crash could take away. The windows in memory are then
//! a part of what is on disk.

mod acknowledge;
mod cursors;
mod idempotency;
mod index;
mod look;
mod recover;
mod slab;
mod submit;
mod tries;
mod windows;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use store::Store;
use wire::{Draft, Epoch, History, Id, Message, Rules};

use crate::recent::{Bounds, Window};
use crate::{Delivery, Done, Inbox, Options, PublishError, Published, Receipt};
use cursors::Cursors;
use idempotency::Idempotency;
use windows::Windows;

pub use acknowledge::{AcknowledgeError, GivenUp};
pub use cursors::Cursor;
pub use look::{KeptStats, Page, Paged};
pub use recover::{Piece, Pull, Start, Wanted};
pub(crate) use submit::Submit;

/// What is kept in memory, over all topics.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of messages.
    pub history_bytes_max: usize,
    /// Topics that something is known of.
    pub topics_max: usize,
    /// Idempotency keys.
    pub idempotency_keys_max: usize,
    /// Users' cursors.
    pub cursors_max: usize,
}

impl Default for Limits {
    /// 256 MiB, a million topics and cursors, 100,000 keys.
    fn default() -> Self {
        Limits {
            history_bytes_max: 256 << 20,
            topics_max: 1_000_000,
            idempotency_keys_max: 100_000,
            cursors_max: 1_000_000,
        }
    }
}

/// The topics with history. A cheap clone.
#[derive(Clone)]
pub struct Kept(Arc<Inner>);

struct Inner {
    /// What is kept, and of which topics.
    rules: RwLock<Arc<Rules>>,
    /// Whether any topic has history: nearly free to ask.
    keeps: AtomicBool,
    idempotency_seconds_max: AtomicU64,
    inboxes: Vec<Arc<dyn Inbox>>,
    epoch: Epoch,
    started: Instant,
    state: Mutex<State>,
    cursors: Mutex<Cursors>,
    store: Option<Store>,
    /// Until then the writer does not wait for shards that are behind, in microseconds of the
    /// node's clock.
    patient_after_us: AtomicU64,
    counts: Counts,
    given_up: acknowledge::GivenUpLog,
}

#[derive(Default)]
struct Counts {
    published: AtomicU64,
    repeated: AtomicU64,
    lost: AtomicU64,
    acknowledged: AtomicU64,
    redelivered: AtomicU64,
    dead_lettered: AtomicU64,
    dropped: AtomicU64,
    recovered: AtomicU64,
    unrecovered: AtomicU64,
    disk_reads: AtomicU64,
}

struct State {
    /// The last offset that was given.
    last: u64,
    /// The last that was handed on: with a store, those after it are being written.
    delivered: u64,
    windows: Windows,
    /// The newest messages of all topics, for people who look.
    newest: Window,
    idempotency: Idempotency,
    /// Of topics that have messages being written, by hash: the last of those.
    writing: HashMap<u64, u64>,
    /// Repeats of messages that are being written.
    waiting: BTreeMap<u64, Vec<Done>>,
    /// Publishes that wait for what the disk says of the topic, by its hash: the first is the one
    /// that asked.
    looking: HashMap<u64, VecDeque<Submit>>,
    /// How many these are.
    looked_for: usize,
}

/// With how much of the past it begins.
pub struct Begin {
    /// The numbering's life.
    pub epoch: Epoch,
    /// The last offset of the past.
    pub last: u64,
    /// Where messages are kept beyond this process.
    pub store: Option<Store>,
}

impl Kept {
    /// Nothing is kept until rules are set.
    pub(crate) fn new(
        inboxes: Vec<Arc<dyn Inbox>>,
        begin: Begin,
        started: Instant,
        limits: Limits,
        recent: Bounds,
    ) -> Self {
        let windows =
            windows::Limits { bytes_max: limits.history_bytes_max, topics_max: limits.topics_max };
        Kept(Arc::new(Inner {
            rules: RwLock::default(),
            keeps: AtomicBool::new(false),
            idempotency_seconds_max: AtomicU64::new(300),
            inboxes,
            epoch: begin.epoch,
            started,
            state: Mutex::new(State {
                last: begin.last,
                delivered: begin.last,
                windows: Windows::new(windows, begin.last),
                newest: Window::new(recent),
                idempotency: Idempotency::new(limits.idempotency_keys_max),
                writing: HashMap::new(),
                waiting: BTreeMap::new(),
                looking: HashMap::new(),
                looked_for: 0,
            }),
            cursors: Mutex::new(Cursors::new(limits.cursors_max)),
            store: begin.store,
            patient_after_us: AtomicU64::new(0),
            counts: Counts::default(),
            given_up: acknowledge::GivenUpLog::default(),
        }))
    }

    /// Takes new rules, and how long idempotency keys are known, in seconds.
    pub fn set_rules(&self, rules: Arc<Rules>, idempotency_seconds_max: u64) {
        self.0.keeps.store(rules.keeps(), Ordering::Relaxed);
        self.0.idempotency_seconds_max.store(idempotency_seconds_max, Ordering::Relaxed);
        *self.0.rules.write().unwrap_or_else(PoisonError::into_inner) = rules;
    }

    /// Whether any topic has history.
    pub fn keeps(&self) -> bool {
        self.0.keeps.load(Ordering::Relaxed)
    }

    /// What is kept of a topic; `None` is nothing.
    pub fn rule(&self, topic: &str) -> Option<Arc<History>> {
        if !self.keeps() {
            return None;
        }
        let rules = self.0.rules.read().unwrap_or_else(PoisonError::into_inner);
        rules.history(topic).cloned()
    }

    /// The life of the numbering.
    pub fn epoch(&self) -> Epoch {
        self.0.epoch
    }

    /// The last place that was handed on.
    pub fn top(&self) -> Id {
        self.id(self.state().delivered)
    }

    /// Where messages are kept beyond this process.
    pub fn store(&self) -> Option<&Store> {
        self.0.store.as_ref()
    }

    fn id(&self, offset: u64) -> Id {
        Id { epoch: self.0.epoch, offset }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // As in `Local`: a drawn offset that nobody saw is a gap, and gaps are fine.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes to a topic with history. `done` is called here, unless it must wait for the disk;
    /// without one, the id is all that is wanted. `on_disk` is the topic's newest message that the
    /// disk knows, where it was asked.
    #[expect(clippy::too_many_arguments)]
    pub(crate) fn publish(
        &self,
        hash: u64,
        draft: Draft,
        keep: &Arc<History>,
        options: &Options,
        on_disk: u64,
        receipt: Option<Receipt>,
        done: Option<Done>,
    ) -> Result<Id, PublishError> {
        let mut put = Put { kept: self, hash, keep, options, on_disk, receipt, done };
        let result = put.put(draft);
        if let Err(error) = &result
            && let Some(done) = put.done.take()
        {
            done(Err(error.clone()));
        }
        result
    }
}

/// One publish on its way.
struct Put<'a> {
    kept: &'a Kept,
    hash: u64,
    keep: &'a Arc<History>,
    options: &'a Options,
    on_disk: u64,
    receipt: Option<Receipt>,
    done: Option<Done>,
}

impl Put<'_> {
    fn put(&mut self, draft: Draft) -> Result<Id, PublishError> {
        let inner = &self.kept.0;
        let now_ms = unix_ms();
        let mut state = self.kept.state();
        if let Some(id) = self.repeated(&mut state, &draft, now_ms) {
            return Ok(id);
        }
        let full = |inbox: &Arc<dyn Inbox>| inbox.wants(self.hash) && !inbox.has_room();
        if inner.inboxes.iter().any(full) {
            return Err(PublishError::Overloaded);
        }
        if let Some(if_offset) = self.options.if_offset {
            // Of a topic that memory has forgotten the disk knows, or nobody.
            let unknown = if inner.store.is_some() { 0 } else { state.windows.last_gone() };
            let newest = state.windows.last(self.hash, &draft.topic).unwrap_or(unknown);
            let writing = state.writing.get(&self.hash).copied().unwrap_or(0);
            // What the disk said can only have grown since.
            let newest = newest.max(writing).max(self.on_disk);
            if newest > if_offset {
                return Err(PublishError::Newer(self.kept.id(newest)));
            }
        }
        match &inner.store {
            None => Ok(self.put_in_memory(state, draft, now_ms)),
            Some(store) => self.put_on_disk(state, store, draft, now_ms),
        }
    }

    /// The message that had the same idempotency key: its repeat is answered when it is.
    fn repeated(&mut self, state: &mut State, draft: &Draft, now_ms: u64) -> Option<Id> {
        let inner = &self.kept.0;
        let key = self.options.idempotency_key.as_ref()?;
        let seconds = inner.idempotency_seconds_max.load(Ordering::Relaxed);
        let offset = state.idempotency.seen(self.hash, &draft.topic, key, now_ms, seconds)?;
        let id = self.kept.id(offset);
        inner.counts.repeated.fetch_add(1, Ordering::Relaxed);
        if let Some(receipt) = self.receipt.take() {
            receipt.uncounted();
        }
        if let Some(done) = self.done.take() {
            if offset > state.delivered && self.keep.durable {
                state.waiting.entry(offset).or_default().push(done);
            } else {
                done(Ok(Published { id, repeated: true }));
            }
        }
        Some(id)
    }

    fn message(&self, draft: Draft, offset: u64, now_ms: u64) -> Arc<Message> {
        let inner = &self.kept.0;
        let published_us = inner.started.elapsed().as_micros() as u64;
        let message = Message::new(draft, self.kept.id(offset), self.hash, published_us);
        Arc::new(message.kept(kind(self.keep), now_ms))
    }

    fn remember(&self, state: &mut State, draft: &Draft, offset: u64, now_ms: u64) {
        if let Some(key) = &self.options.idempotency_key {
            let seconds = self.kept.0.idempotency_seconds_max.load(Ordering::Relaxed);
            state.idempotency.remember(self.hash, &draft.topic, key, offset, now_ms, seconds);
        }
    }

    fn put_in_memory(&mut self, mut state: MutexGuard<'_, State>, draft: Draft, now_ms: u64) -> Id {
        state.last += 1;
        let offset = state.last;
        self.remember(&mut state, &draft, offset, now_ms);
        let message = self.message(draft, offset, now_ms);
        let id = message.id;
        self.kept.hand_on(&mut state, message, self.keep, self.receipt.take());
        drop(state);
        if let Some(done) = self.done.take() {
            done(Ok(Published { id, repeated: false }));
        }
        id
    }

    fn put_on_disk(
        &mut self,
        mut state: MutexGuard<'_, State>,
        store: &Store,
        draft: Draft,
        now_ms: u64,
    ) -> Result<Id, PublishError> {
        let offset = state.last + 1;
        let message = self.message(draft, offset, now_ms);
        let id = message.id;
        let (kept, keep, hash) = (self.kept.clone(), self.keep.clone(), self.hash);
        let (now, after) = match self.keep.durable {
            true => (None, self.done.take()),
            false => (self.done.take(), None),
        };
        let mut receipt = self.receipt.take();
        if now.is_some()
            && let Some(receipt) = receipt.take()
        {
            // Nobody is kept waiting for the disk by the count.
            receipt.uncounted();
        }
        let after = Arc::new(Mutex::new(after));
        let written = after.clone();
        let append = store::Append {
            draft: &message.draft,
            offset,
            at_ms: now_ms,
            keep: self.keep,
            idempotency_key: self.options.idempotency_key.as_deref(),
        };
        let handed = message.clone();
        let committed = move |result: Result<(), store::Fault>| {
            let result = result.map_err(PublishError::from);
            let done = written.lock().unwrap_or_else(PoisonError::into_inner).take();
            kept.written(hash, handed, &keep, receipt, done, result);
        };
        if let Err(refused) = store.append(append, Box::new(committed)) {
            let back = after.lock().unwrap_or_else(PoisonError::into_inner).take();
            self.done = back.or(now);
            return Err(refusal(refused));
        }
        state.last = offset;
        state.writing.insert(self.hash, offset);
        self.remember(&mut state, &message.draft, offset, now_ms);
        drop(state);
        if let Some(done) = now {
            done(Ok(Published { id, repeated: false }));
        }
        Ok(id)
    }
}

/// How often and how long the writer waits for shards that are behind before it hands on all the
/// same: what is on disk must go to those who are there.
const ROOM_WAITS: u32 = 2_000;
const ROOM_WAIT: Duration = Duration::from_millis(1);

/// After it waited in vain it does not for so long, in microseconds.
const IMPATIENT_US: u64 = 30_000_000;

impl Kept {
    /// A message enters its topic's window and goes to everyone who is there.
    fn hand_on(
        &self,
        state: &mut State,
        message: Arc<Message>,
        keep: &History,
        receipt: Option<Receipt>,
    ) {
        state.delivered = message.id.offset;
        state.newest.push(message.clone());
        state.windows.push(message.clone(), keep);
        self.0.counts.published.fetch_add(1, Ordering::Relaxed);
        for inbox in self.0.inboxes.iter().filter(|inbox| inbox.wants(message.topic_hash)) {
            inbox.deliver(Delivery { message: message.clone(), receipt: receipt.clone() });
        }
    }

    /// The store has written a message, or has not. Called on its writer's thread, in order.
    fn written(
        &self,
        hash: u64,
        message: Arc<Message>,
        keep: &Arc<History>,
        receipt: Option<Receipt>,
        done: Option<Done>,
        result: Result<(), PublishError>,
    ) {
        let full = |inbox: &Arc<dyn Inbox>| inbox.wants(hash) && !inbox.has_room();
        let now_us = self.0.started.elapsed().as_micros() as u64;
        let waits = match self.0.patient_after_us.load(Ordering::Relaxed) {
            after_us if after_us > now_us || result.is_err() => 0,
            _ => ROOM_WAITS,
        };
        let has_room = (0..waits).any(|_| {
            let has_room = !self.0.inboxes.iter().any(full);
            if !has_room {
                std::thread::sleep(ROOM_WAIT);
            }
            has_room
        });
        if waits > 0 && !has_room {
            // One shard that is stuck must not hold up everybody else's messages, each for so long.
            self.0.patient_after_us.store(now_us + IMPATIENT_US, Ordering::Relaxed);
        }
        let offset = message.id.offset;
        let answer = result.map(|()| Published { id: message.id, repeated: false });
        let mut state = self.state();
        if state.writing.get(&hash) == Some(&offset) {
            state.writing.remove(&hash);
        }
        let repeats = state.waiting.remove(&offset).unwrap_or_default();
        match &answer {
            Ok(_) => self.hand_on(&mut state, message, keep, receipt),
            Err(_) => {
                // A repeat must publish, then.
                state.idempotency.forget(offset);
                if done.is_none() {
                    // Its publisher was told that it is on its way.
                    self.0.counts.lost.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        drop(state);
        for repeat in repeats {
            repeat(answer.clone().map(|published| Published { repeated: true, ..published }));
        }
        if let Some(done) = done {
            done(answer);
        }
    }
}

/// Why the store does not take something in.
fn refusal(refused: store::Refused) -> PublishError {
    match refused {
        store::Refused::Full => PublishError::StoreBusy,
        store::Refused::Failed(why) => PublishError::StoreFailed(why),
        closed @ store::Refused::Closed => PublishError::StoreFailed(closed.to_string().into()),
    }
}

/// How a topic's messages are kept.
fn kind(keep: &History) -> wire::Kept {
    match keep.acknowledge {
        Some(_) => wire::Kept::Acknowledged,
        None => wire::Kept::History,
    }
}

/// The time, in milliseconds since 1970.
fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
