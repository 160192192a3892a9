//! Publishing to topics with history.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use broker::{Append, Done, Group, Options, PublishError, Published, Receipt, Routes};
use model::{Envelope, HistoryRule, Message, MessageSource, Position, Publication};
use store::Store;

use super::{Local, State, retention, unix_ms};
use crate::error::{queue_error, store_error};

impl Local {
    /// Publishes to a topic with history. It calls `done` here, unless the message must wait for the disk; without
    /// `done`, the publisher needs only the id. `on_disk` is the topic's newest message on disk, if the disk was
    /// read.
    pub(super) fn put(
        &self,
        append: Append,
        on_disk: u64,
        done: Option<Done>,
    ) -> Result<Position, PublishError> {
        let Append { hash, publication, rule, options, receipt, routes } = append;
        let (history, rule) = (self, &rule);
        let mut put = Put { history, hash, rule, options, on_disk, receipt, done, routes };
        let result = put.put(publication);
        if let Err(error) = &result
            && let Some(done) = put.done.take()
        {
            done(Err(error.clone()));
        }
        result
    }
}

/// The recipients of a message besides the members of its topic.
struct Recipients {
    /// Groups of which one member each gets the message.
    groups: Vec<Group>,
    /// Counts the members.
    receipt: Option<Receipt>,
    /// The version of the routes by which the message was matched with filters.
    version: u64,
}

/// One publish in progress.
struct Put<'a> {
    history: &'a Local,
    hash: u64,
    rule: &'a Arc<HistoryRule>,
    options: Options,
    on_disk: u64,
    receipt: Option<Receipt>,
    done: Option<Done>,
    routes: Routes,
}

impl Put<'_> {
    fn put(&mut self, publication: Publication) -> Result<Position, PublishError> {
        let inner = &self.history.0;
        let now_ms = unix_ms();
        let mut state = self.history.state();
        if let Some(id) = self.repeated(&mut state, &publication) {
            return Ok(id);
        }
        if !inner.router.has_capacity(self.hash, false, &self.routes) {
            return Err(PublishError::Overloaded);
        }
        if let Some(if_offset) = self.options.if_offset {
            // Only the disk may still know a topic that memory has forgotten.
            let unknown = if inner.store.is_some() { 0 } else { state.windows.last_gone() };
            let newest = state.windows.last(self.hash, &publication.topic).unwrap_or(unknown);
            let writing = state.writing.get(&self.hash).copied().unwrap_or(0);
            // The disk's offset can only have grown since.
            let newest = newest.max(writing).max(self.on_disk);
            if newest > if_offset {
                return Err(PublishError::Newer(self.history.id(newest)));
            }
        }
        match &inner.store {
            None => Ok(self.put_in_memory(state, publication, now_ms)),
            Some(store) => self.put_on_disk(state, store, publication, now_ms),
        }
    }

    /// Returns the earlier message with the same idempotency key: the repeat gets its reply together with it.
    fn repeated(&mut self, state: &mut State, publication: &Publication) -> Option<Position> {
        let inner = &self.history.0;
        let key = self.options.idempotency_key.as_ref()?;
        state.idempotency.set_time(inner.clock.now_ms(), unix_ms());
        let seconds = inner.idempotency_seconds_max.load(Ordering::Relaxed);
        let offset = state.idempotency.seen(self.hash, &publication.topic, key, seconds)?;
        let id = self.history.id(offset);
        inner.counts.repeated.fetch_add(1, Ordering::Relaxed);
        if let Some(receipt) = self.receipt.take() {
            receipt.uncounted();
        }
        if let Some(done) = self.done.take() {
            if offset > state.delivered && self.waits_for_disk() {
                state.repeats.entry(offset).or_default().push(done);
            } else {
                done(Ok(Published { id, repeated: true, queued: false }));
            }
        }
        Some(id)
    }

    /// Returns true if the publisher's reply comes after the message is on disk.
    fn waits_for_disk(&self) -> bool {
        self.rule.durable || self.options.wait_for_disk
    }

    fn message(&mut self, publication: Publication, offset: u64, now_ms: u64) -> Arc<Envelope> {
        let inner = &self.history.0;
        let published_us = inner.started.elapsed().as_micros() as u64;
        let message = Message::new(publication, self.history.id(offset), self.hash, published_us);
        let message = Envelope::from(message.retained(retention(self.rule), now_ms));
        Arc::new(message.matched_by(self.routes.filters.take()))
    }

    fn remember(&self, state: &mut State, publication: &Publication, offset: u64) {
        if let Some(key) = &self.options.idempotency_key {
            state.idempotency.set_time(self.history.0.clock.now_ms(), unix_ms());
            let seconds = self.history.0.idempotency_seconds_max.load(Ordering::Relaxed);
            state.idempotency.remember(self.hash, &publication.topic, key, offset, seconds);
        }
    }

    fn put_in_memory(
        &mut self,
        mut state: MutexGuard<'_, State>,
        publication: Publication,
        now_ms: u64,
    ) -> Position {
        state.last += 1;
        let offset = state.last;
        self.remember(&mut state, &publication, offset);
        let message = self.message(publication, offset, now_ms);
        let id = message.id;
        let (groups, version) = (self.routes.take_groups(), self.routes.version());
        let recipients = Recipients { groups, receipt: self.receipt.take(), version };
        self.history.deliver(&mut state, message, self.rule, recipients);
        drop(state);
        if let Some(done) = self.done.take() {
            done(Ok(Published { id, repeated: false, queued: false }));
        }
        id
    }

    fn put_on_disk(
        &mut self,
        mut state: MutexGuard<'_, State>,
        store: &Store,
        publication: Publication,
        now_ms: u64,
    ) -> Result<Position, PublishError> {
        let offset = state.last + 1;
        let message = self.message(publication, offset, now_ms);
        let id = message.id;
        let (history, rule) = (self.history.clone(), self.rule.clone());
        let (now, after) = match self.waits_for_disk() {
            true => (None, self.done.take()),
            false => (self.done.take(), None),
        };
        let mut receipt = self.receipt.take();
        if now.is_some()
            && let Some(receipt) = receipt.take()
        {
            // The count of members must not wait for the disk.
            receipt.uncounted();
        }
        let after = Arc::new(Mutex::new(after));
        let written = after.clone();
        let with = self.options.with.take().map(|record| {
            let broker::StoredRecord { part, key, value } = *record;
            (part, (key, value))
        });
        let append = store::Append {
            publication: &message.publication,
            offset,
            at_ms: now_ms,
            rule: self.rule,
            idempotency_key: self.options.idempotency_key.as_deref(),
            with: with.as_ref(),
        };
        let handed = message.clone();
        let (groups, version) = (self.routes.take_groups(), self.routes.version());
        let recipients = Recipients { groups, receipt, version };
        let committed = move |result: Result<(), store::StoreError>| {
            let result = result.map_err(|error| store_error(error).into());
            let done = written.lock().unwrap_or_else(PoisonError::into_inner).take();
            history.written(handed, &rule, recipients, done, result);
        };
        if let Err(refused) = store.append(append, Box::new(committed)) {
            let back = after.lock().unwrap_or_else(PoisonError::into_inner).take();
            self.done = back.or(now);
            return Err(queue_error(refused).into());
        }
        state.last = offset;
        state.writing.insert(self.hash, offset);
        self.remember(&mut state, &message.publication, offset);
        drop(state);
        if let Some(done) = now {
            done(Ok(Published { id, repeated: false, queued: true }));
        }
        Ok(id)
    }
}

/// How often and how long the writer waits for slow shards. Then it delivers all the same: a message on disk must go
/// to the present members.
const CAPACITY_WAITS: u32 = 2_000;
const CAPACITY_WAIT: Duration = Duration::from_millis(1);

/// After a wait in vain, the writer does not wait again for this time, in microseconds.
const NO_WAIT_US: u64 = 30_000_000;

impl Local {
    /// Puts a message into its topic's window and delivers it to all present members.
    fn deliver(
        &self,
        state: &mut State,
        message: Arc<Envelope>,
        rule: &HistoryRule,
        Recipients { groups, receipt, version }: Recipients,
    ) {
        let message = self.0.router.matched_again(message, version);
        state.delivered = message.id.offset;
        state.newest.push(message.clone());
        if let Some(is) = self.implicit(|implicit| std::ptr::eq(&raw const *implicit.rule, rule)) {
            state.windows.set_for_sessions(message.topic_hash, &message.publication.topic, is);
        }
        state.windows.push(message.clone(), rule, self.0.clock.now_ms());
        self.0.counts.published.fetch_add(1, Ordering::Relaxed);
        self.0.router.deliver(&message, &groups, receipt.as_ref(), MessageSource::Here);
    }

    /// Handles the result of a write. The store calls it on its writer's thread, in order.
    fn written(
        &self,
        message: Arc<Envelope>,
        rule: &Arc<HistoryRule>,
        recipients: Recipients,
        done: Option<Done>,
        result: Result<(), PublishError>,
    ) {
        let hash = message.topic_hash;
        let has_capacity = || self.0.router.has_capacity_for(&message, &recipients.groups);
        let now_us = self.0.started.elapsed().as_micros() as u64;
        let waits = match self.0.no_wait_until_us.load(Ordering::Relaxed) {
            after_us if after_us > now_us || result.is_err() => 0,
            _ => CAPACITY_WAITS,
        };
        let has_capacity = (0..waits).any(|_| {
            let has_capacity = has_capacity();
            if !has_capacity {
                std::thread::sleep(CAPACITY_WAIT);
            }
            has_capacity
        });
        if waits > 0 && !has_capacity {
            // One blocked shard must not delay all other messages, each for so long.
            self.0.no_wait_until_us.store(now_us + NO_WAIT_US, Ordering::Relaxed);
        }
        let offset = message.id.offset;
        let reply = result.map(|()| Published { id: message.id, repeated: false, queued: false });
        let mut state = self.state();
        if state.writing.get(&hash) == Some(&offset) {
            state.writing.remove(&hash);
        }
        let repeats = state.repeats.remove(&offset).unwrap_or_default();
        match &reply {
            Ok(_) => self.deliver(&mut state, message, rule, recipients),
            Err(_) => {
                // A repeat must publish, then.
                state.idempotency.forget(offset);
                if done.is_none() {
                    // Its publisher has a reply that it is queued.
                    self.0.counts.unwritten.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        drop(state);
        for repeat in repeats {
            repeat(reply.clone().map(|published| Published { repeated: true, ..published }));
        }
        if let Some(done) = done {
            done(reply);
        }
    }
}
