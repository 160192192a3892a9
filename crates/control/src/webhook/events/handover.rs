//! Exports and imports events and occupied topics, for another process.

use std::ops::Bound;
use std::time::Duration;

use model::Name;
use shard::HookEvent;
use tokio::time::Instant;

use super::{Events, Inbox, Queue, Topic, Waiting, now_ms};

/// What shards have reported about a topic.
pub(in crate::webhook) struct TopicState {
    /// The shards on which it has members.
    pub shards: Vec<u16>,
    /// The state that the application knows.
    pub is_occupied: bool,
    /// When the next event about the topic is due, in milliseconds since 1970.
    pub due_ms: Option<u64>,
}

/// The state of the queue besides its events.
pub(in crate::webhook) struct QueueState {
    /// The number of the next event.
    pub next: u64,
    /// Events that were dropped since the last batch that the application has taken.
    pub lost: u64,
    /// The event that this node has begun was added.
    pub begun: bool,
    /// The number of events of the batch that was not taken, and of dropped events that it reports.
    pub again: Option<(usize, u64)>,
}

impl Events {
    /// Passes the events that have no number yet to `write`, in their order, and returns the results.
    pub fn unnumbered<T>(&self, write: impl Fn(u64, &HookEvent) -> Option<T>) -> Vec<T> {
        let inbox = self.lock();
        inbox.events.iter().filter_map(|(at_ms, event)| write(*at_ms, event)).collect()
    }

    /// Returns the first `limit` topics after this name, sorted by name.
    pub fn topics_after(&self, after: Option<&Name>, limit: usize) -> Vec<(Name, TopicState)> {
        let (now, now_ms) = (Instant::now(), now_ms());
        let inbox = self.lock();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let some = inbox.topics.range::<Name, _>((from, Bound::Unbounded)).take(limit);
        let state = |(name, topic): (&Name, &Topic)| {
            let ms = |left: Duration| u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            let due_ms =
                |due: Instant| now_ms.saturating_add(ms(due.saturating_duration_since(now)));
            let Topic { shards, is_occupied, due } = topic;
            let (shards, due_ms) = (shards.clone(), due.map(due_ms));
            (name.clone(), TopicState { shards, is_occupied: *is_occupied, due_ms })
        };
        some.map(state).collect()
    }

    /// Sets a topic to its state in the other process; `None` removes the topic.
    pub fn set_topic(&self, name: Name, state: Option<TopicState>) {
        let (now, now_ms) = (Instant::now(), now_ms());
        let mut inbox = self.lock();
        match state {
            Some(TopicState { shards, is_occupied, due_ms }) => {
                let left = |due_ms: u64| Duration::from_millis(due_ms.saturating_sub(now_ms));
                let due = due_ms.map(|due_ms| now.checked_add(left(due_ms)).unwrap_or(now));
                inbox.topics.insert(name, Topic { shards, is_occupied, due });
            }
            None => _ = inbox.topics.remove(&name),
        }
    }

    /// Completes the import of all topics. `unnumbered` are events without numbers, which come before all later ones.
    pub fn restore(&self, unnumbered: Vec<(u64, HookEvent)>) {
        let mut inbox = self.lock();
        let Inbox { events, topics, due, .. } = &mut *inbox;
        events.splice(..0, unnumbered);
        let dues = topics.iter().filter_map(|(name, topic)| Some((topic.due?, name.clone())));
        let mut dues: Vec<_> = dues.collect();
        dues.sort_unstable();
        *due = dues.into();
        drop(inbox);
        self.ready.notify_one();
    }
}

impl Queue {
    /// Passes the first `limit` waiting events after this number to `write`, in their order, and returns the results.
    pub fn after<T>(
        &self,
        number: Option<u64>,
        limit: usize,
        write: impl Fn(&Waiting) -> T,
    ) -> Vec<T> {
        let is_before = |event: &Waiting| number.is_some_and(|number| event.number <= number);
        let from = self.waiting.partition_point(is_before);
        self.waiting.range(from..).take(limit).map(write).collect()
    }

    /// Returns the state with which another process continues, besides the events.
    pub fn state(&self) -> QueueState {
        let full = self.events.full.load(std::sync::atomic::Ordering::Relaxed);
        QueueState {
            next: self.next,
            // `lost` gets the latest drops only with the next batch, so the export adds them.
            lost: self.lost + (full - self.full_seen),
            begun: self.begun,
            again: self.again.as_ref().map(|batch| (batch.events, batch.lost)),
        }
    }

    /// Continues with the events and the state of another process. The events are sorted by number. Stores nothing:
    /// that process has stored them.
    pub fn restore(&mut self, waiting: Vec<Waiting>, state: QueueState) {
        let QueueState { next, lost, begun, again } = state;
        self.bytes = waiting.iter().map(|event| event.json.len()).sum();
        self.waiting = waiting.into();
        (self.next, self.lost, self.begun) = (next, lost, begun);
        self.again = again.and_then(|(events, lost)| self.batch_of(events, lost));
        self.show();
    }
}
