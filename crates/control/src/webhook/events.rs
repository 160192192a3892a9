//! Events for the application, in one order, each at least once.
//!
//! Shards put events into a queue. The control thread gives each event a number and a time, writes it to the store if
//! there is one, and sends it behind all earlier events. One request is under way at a time. It is sent again, after
//! growing pauses, until the application has taken it. So events are in order over all users and connections. The queue
//! is bounded: events without capacity are dropped, and the next request says how many.
//!
//! This queue also decides whether a topic is occupied. Each shard reports its first member and that its last member
//! has left. An event follows when the topic has stayed occupied or vacated for a while.

mod handover;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use model::Name;
use shard::{EventSource, HookEvent, HookEvents};
use tokio::sync::Notify;
use tokio::time::Instant;

pub(super) use self::handover::{QueueState, TopicState};
use super::body;

/// The limit on bytes of a request's events, unless one event has more.
const BATCH_BYTES_MAX: usize = 512 << 10;

/// A store in which events survive the process.
pub trait EventStore: Send + Sync {
    /// Writes events, by growing numbers, and deletes those up to a number. Returns false if it can't.
    fn change(&self, puts: Vec<(u64, Box<[u8]>)>, through: Option<u64>) -> bool;
}

/// Settings that do not change while the node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventLimits {
    /// The limit on events that wait.
    pub events_max: usize,
    /// The limit on their bytes.
    pub bytes_max: usize,
}

/// The counters and gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventStats {
    /// Gauge: events that wait.
    pub waiting: u64,
    /// Gauge: their bytes.
    pub waiting_bytes: u64,
    /// Gauge: the age of the oldest of them, in seconds.
    pub oldest_seconds: u64,
    /// Events that the application has taken.
    pub taken: u64,
    /// Requests that the application has not taken.
    pub failed: u64,
    /// Events that were dropped because the queue had no capacity.
    pub full: u64,
    /// Events that were dropped because the application had not taken them in time.
    pub expired: u64,
    /// Events that the store could not write: they are lost if the process ends now.
    pub unwritten: u64,
}

/// An event that waits.
pub(super) struct Waiting {
    pub number: u64,
    /// When it happened, in milliseconds since 1970.
    pub at_ms: u64,
    pub json: Box<[u8]>,
}

/// What shards have reported about a topic.
#[derive(Default)]
struct Topic {
    /// The shards on which it has members.
    shards: Vec<u16>,
    /// The state that the application knows.
    is_occupied: bool,
    /// When the next event about it is due, if its state stays the same until then.
    due: Option<Instant>,
}

/// Events that shards have put in and that have no number yet.
struct Inbox {
    open: bool,
    events: Vec<(u64, HookEvent)>,
    topics: BTreeMap<Name, Topic>,
    /// Topics with an event that is due later, the earliest first.
    due: VecDeque<(Instant, Name)>,
    occupancy: Duration,
}

/// The queue between shards and the event sender.
pub(super) struct Events {
    limits: EventLimits,
    inbox: Mutex<Inbox>,
    /// Notified when something was put in, and at the end.
    pub ready: Notify,
    waiting: AtomicU64,
    waiting_bytes: AtomicU64,
    oldest_ms: AtomicU64,
    pub taken: AtomicU64,
    pub failed: AtomicU64,
    full: AtomicU64,
    expired: AtomicU64,
    unwritten: AtomicU64,
}

impl Events {
    pub fn new(limits: EventLimits) -> Self {
        let inbox = Inbox {
            open: true,
            events: Vec::new(),
            topics: BTreeMap::new(),
            due: VecDeque::new(),
            occupancy: Duration::ZERO,
        };
        let zero = || AtomicU64::new(0);
        Events {
            limits,
            inbox: Mutex::new(inbox),
            ready: Notify::new(),
            waiting: zero(),
            waiting_bytes: zero(),
            oldest_ms: zero(),
            taken: zero(),
            failed: zero(),
            full: zero(),
            expired: zero(),
            unwritten: zero(),
        }
    }

    /// The counters and gauges.
    pub fn stats(&self) -> EventStats {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let oldest_ms = get(&self.oldest_ms);
        let age_ms = if oldest_ms == 0 { 0 } else { now_ms().saturating_sub(oldest_ms) };
        EventStats {
            waiting: get(&self.waiting) + self.lock().events.len() as u64,
            waiting_bytes: get(&self.waiting_bytes),
            oldest_seconds: age_ms / 1_000,
            taken: get(&self.taken),
            failed: get(&self.failed),
            full: get(&self.full),
            expired: get(&self.expired),
            unwritten: get(&self.unwritten),
        }
    }

    /// How long a topic must stay occupied or vacated.
    pub fn set_occupancy(&self, occupancy: Duration) {
        self.lock().occupancy = occupancy;
    }

    /// Puts in events of a shard.
    pub fn put(&self, shard: u16, events: Vec<HookEvent>) {
        let (at_ms, now) = (now_ms(), Instant::now());
        let mut inbox = self.lock();
        let inbox = &mut *inbox;
        if !inbox.open {
            return;
        }
        let was_empty = inbox.events.is_empty();
        let due_before = inbox.due.len();
        let waiting = self.waiting.load(Ordering::Relaxed) as usize;
        for event in events {
            match event {
                HookEvent::Occupied(topic) => inbox.occupied(topic, shard, now),
                HookEvent::Vacated(topic) => inbox.vacated(topic, shard, now),
                HookEvent::Connected(_)
                | HookEvent::Disconnected { .. }
                | HookEvent::Joined(..)
                | HookEvent::Left(..)
                    if waiting + inbox.events.len() >= self.limits.events_max =>
                {
                    self.full.fetch_add(1, Ordering::Relaxed);
                }
                event => inbox.events.push((at_ms, event)),
            }
        }
        // One wake-up is enough for all events, and is a system call.
        if was_empty || inbox.due.len() > due_before {
            self.ready.notify_one();
        }
    }

    /// Ends the queue: no more events are put in. Reports about topics take effect at once.
    pub fn close(&self) {
        let mut inbox = self.lock();
        inbox.open = false;
        inbox.occupancy = Duration::ZERO;
        let now = Instant::now();
        let Inbox { topics, due, .. } = &mut *inbox;
        for (name, topic) in topics.iter_mut() {
            if topic.due.is_some() {
                topic.due = Some(now);
                due.push_front((now, name.clone()));
            }
        }
        drop(inbox);
        self.ready.notify_one();
    }

    /// Returns whether the queue has ended.
    pub fn is_closed(&self) -> bool {
        !self.lock().open
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inbox {
    fn occupied(&mut self, name: Name, shard: u16, now: Instant) {
        let topic = self.topics.entry(name.clone()).or_default();
        if !topic.shards.contains(&shard) {
            topic.shards.push(shard);
        }
        self.changed(name, now);
    }

    fn vacated(&mut self, name: Name, shard: u16, now: Instant) {
        if let Some(topic) = self.topics.get_mut(&name) {
            topic.shards.retain(|known| *known != shard);
            self.changed(name, now);
        }
    }

    /// Sets or cancels the time of a topic's event: it is cancelled if the application knows the state already.
    fn changed(&mut self, name: Name, now: Instant) {
        let Some(topic) = self.topics.get_mut(&name) else {
            return;
        };
        let is_occupied = !topic.shards.is_empty();
        if is_occupied == topic.is_occupied {
            topic.due = None;
            if !is_occupied {
                self.topics.remove(&name);
            }
        } else if topic.due.is_none() {
            let due = now + self.occupancy;
            topic.due = Some(due);
            self.due.push_back((due, name));
        }
    }

    /// Returns the topics that have stayed the same for long enough, and whether they are occupied.
    fn take_due(&mut self, now: Instant) -> Vec<(Name, bool)> {
        let mut notified = Vec::new();
        while self.due.front().is_some_and(|(due, _)| *due <= now) {
            let Some((due, name)) = self.due.pop_front() else { break };
            let Some(topic) = self.topics.get_mut(&name) else { continue };
            // The state has changed back meanwhile.
            if topic.due != Some(due) {
                continue;
            }
            topic.due = None;
            topic.is_occupied = !topic.is_occupied;
            notified.push((name.clone(), topic.is_occupied));
            if !topic.is_occupied {
                self.topics.remove(&name);
            }
        }
        notified
    }
}

/// A batch that is to be sent: its first and last numbers, and its body.
#[derive(Clone)]
pub(super) struct Batch {
    pub first: u64,
    pub last: u64,
    pub events: usize,
    pub body: Vec<u8>,
    /// The number of dropped events that the batch reports.
    lost: u64,
}

/// The side of the control thread.
pub(super) struct Queue {
    events: Arc<Events>,
    store: Option<Arc<dyn EventStore>>,
    /// The name of this node.
    node: String,
    waiting: VecDeque<Waiting>,
    bytes: usize,
    /// The number of the next event.
    next: u64,
    /// Events that were dropped since the last batch.
    lost: u64,
    full_seen: u64,
    /// The batch that was sent and not taken. It is sent again unchanged.
    again: Option<Batch>,
    /// The event that this node has begun was added, or another process has added it.
    pub begun: bool,
}

impl Queue {
    /// Begins with the events that the process before this one has left.
    pub fn new(
        events: Arc<Events>,
        store: Option<Arc<dyn EventStore>>,
        left: Vec<(u64, Box<[u8]>)>,
        node: String,
    ) -> Self {
        // Numbers grow with the time, also if no events were left.
        let mut next = now_ms().saturating_mul(1_000);
        let (mut waiting, mut bytes) = (VecDeque::new(), 0);
        for (number, row) in left {
            let Some((at_ms, json)) = row.split_first_chunk() else { continue };
            next = next.max(number + 1);
            bytes += json.len();
            let at_ms = u64::from_le_bytes(*at_ms);
            waiting.push_back(Waiting { number, at_ms, json: json.into() });
        }
        let queue = Queue {
            events,
            store,
            node,
            waiting,
            bytes,
            next,
            lost: 0,
            full_seen: 0,
            again: None,
            begun: false,
        };
        queue.show();
        queue
    }

    /// Adds the event that this node has begun: connections of an earlier process have ended.
    pub fn begin(&mut self) {
        self.begun = true;
        let json = body::started(self.next, now_ms(), &self.node);
        self.push(now_ms(), json);
        self.write(self.waiting.len() - 1);
    }

    /// Collects the events that shards have put in. Returns when to call it again, if no event is put in before.
    pub fn collect(&mut self, wants: HookEvents) -> Option<Instant> {
        let now = Instant::now();
        let (events, topics, due) = {
            let mut inbox = self.events.lock();
            let topics = inbox.take_due(now);
            (std::mem::take(&mut inbox.events), topics, inbox.due.front().map(|(due, _)| *due))
        };
        let from = self.waiting.len();
        for (at_ms, event) in events {
            let json = match &event {
                HookEvent::Connected(source) => self.json(at_ms, "connected", source, None, None),
                HookEvent::Disconnected { source, reason, seconds } => {
                    let end = Some((reason.name(), *seconds));
                    self.json(at_ms, "disconnected", source, None, end)
                }
                HookEvent::Joined(source, topic) => {
                    self.json(at_ms, "joined", source, Some(topic), None)
                }
                HookEvent::Left(source, topic) => {
                    self.json(at_ms, "left", source, Some(topic), None)
                }
                HookEvent::Occupied(_) | HookEvent::Vacated(_) => continue,
            };
            self.push(at_ms, json);
        }
        for (topic, occupied) in topics {
            if occupied && wants.occupied || !occupied && wants.vacated {
                let kind = if occupied { "occupied" } else { "vacated" };
                let at_ms = now_ms();
                let json = body::about_topic(self.next, at_ms, kind, &topic);
                self.push(at_ms, json);
            }
        }
        self.write(from);
        due
    }

    fn json(
        &self,
        at_ms: u64,
        kind: &str,
        source: &EventSource,
        topic: Option<&Name>,
        end: Option<(&str, u32)>,
    ) -> Vec<u8> {
        body::about_connection(self.next, at_ms, kind, source, topic, end)
    }

    fn push(&mut self, at_ms: u64, json: Vec<u8>) {
        let full = self.waiting.len() >= self.events.limits.events_max
            || self.bytes + json.len() > self.events.limits.bytes_max;
        if full {
            self.events.full.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.bytes += json.len();
        self.waiting.push_back(Waiting { number: self.next, at_ms, json: json.into() });
        self.next += 1;
    }

    /// Writes new events to the store.
    fn write(&mut self, from: usize) {
        self.show();
        let Some(store) = &self.store else { return };
        let row = |event: &Waiting| {
            let row = [&event.at_ms.to_le_bytes()[..], &event.json].concat();
            (event.number, row.into())
        };
        let puts: Vec<(u64, Box<[u8]>)> = self.waiting.range(from..).map(row).collect();
        let count = puts.len() as u64;
        if count > 0 && !store.change(puts, None) {
            self.events.unwritten.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Returns the next batch, if there are events. Events that are too old are dropped first.
    pub fn batch(&mut self, events_max: usize, retry: Duration) -> Option<Batch> {
        self.expire(retry);
        if self.again.is_some() {
            return self.again.clone();
        }
        let full = self.events.full.load(Ordering::Relaxed);
        self.lost += full - std::mem::replace(&mut self.full_seen, full);
        let mut bytes = 0;
        let fitting = self.waiting.iter().take(events_max.max(1)).take_while(|event| {
            let fits = bytes == 0 || bytes + event.json.len() <= BATCH_BYTES_MAX;
            bytes += event.json.len();
            fits
        });
        let count = fitting.count();
        self.again = self.batch_of(count, self.lost);
        self.again.clone()
    }

    /// Returns a batch of the first events. `None` if there are fewer, or none.
    fn batch_of(&self, count: usize, lost: u64) -> Option<Batch> {
        let last = self.waiting.get(count.checked_sub(1)?)?.number;
        let first = self.waiting.front()?.number;
        let body = body::events_body(self.waiting.range(..count).map(|event| &*event.json), lost);
        Some(Batch { first, last, events: count, body, lost })
    }

    fn expire(&mut self, retry: Duration) {
        let retry_ms = u64::try_from(retry.as_millis()).unwrap_or(u64::MAX);
        let before_ms = now_ms().saturating_sub(retry_ms);
        let old = self.waiting.iter().take_while(|event| event.at_ms < before_ms).count();
        if old > 0 {
            tracing::warn!(
                events = old,
                "events were dropped, because the application had not accepted them within \
                 webhook.event_retry_seconds"
            );
            self.events.expired.fetch_add(old as u64, Ordering::Relaxed);
            self.lost += old as u64;
            self.remove(old);
        }
    }

    /// The application has taken the batch.
    pub fn taken(&mut self, batch: &Batch) {
        self.events.taken.fetch_add(batch.events as u64, Ordering::Relaxed);
        self.lost -= batch.lost.min(self.lost);
        let count = self.waiting.iter().take_while(|event| event.number <= batch.last).count();
        self.remove(count);
    }

    /// The application has not taken the batch: it is sent again.
    pub fn failed(&self) {
        self.events.failed.fetch_add(1, Ordering::Relaxed);
    }

    fn remove(&mut self, count: usize) {
        let mut through = None;
        for event in self.waiting.drain(..count) {
            self.bytes -= event.json.len();
            through = Some(event.number);
        }
        self.again = None;
        self.show();
        if let (Some(store), Some(_)) = (&self.store, through) {
            // Events that are not deleted are sent once more after the next start.
            store.change(Vec::new(), through);
        }
    }

    fn show(&self) {
        let Events { waiting, waiting_bytes, oldest_ms, .. } = &*self.events;
        waiting.store(self.waiting.len() as u64, Ordering::Relaxed);
        waiting_bytes.store(self.bytes as u64, Ordering::Relaxed);
        let oldest = self.waiting.front().map_or(0, |event| event.at_ms);
        oldest_ms.store(oldest, Ordering::Relaxed);
    }
}

fn now_ms() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX)
}
