//! The interfaces that the rest of Throng calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use broker::{Activity, Append, Done, HistoryLog, Latest, PublishError};
use history::{
    AcknowledgeError, Completion, Cursor, GivenUp, Gone, History, HistoryError, HistoryReply,
    HistoryStats, Implicit, Matching, Page, PageQuery, Piece, Pull, Start, TopicHash,
};
use history_local::TopicSearch;
use model::name::personal;
use model::{
    AcknowledgeRule, Envelope, Epoch, HistoryRule, Name, Position, Publication, ResumeRequest,
    Rules,
};

use crate::jobs::{Job, NotTaken, Reply};
use crate::postgres::{Counts, Postgres, unix_ms};
use crate::publish::away_text;
use crate::read::MemoryPage;
use crate::resolve::Known;

/// The most messages of all topics that operators see.
const NEWEST_MAX: usize = 1_024;

/// The most messages that are counted before the lock is released.
const COUNTED: usize = 256;

/// The most topics whose windows one sweep visits.
const SWEPT: usize = 4_096;

impl HistoryLog for Postgres {
    fn rule(&self, topic: &str) -> Option<Arc<HistoryRule>> {
        if let Some(rule) = self.own_rule(topic) {
            return Some(rule);
        }
        self.implicit(|implicit| (implicit.wants)(topic).then(|| implicit.rule.clone()))?
    }

    fn rule_for(&self, publication: &Publication) -> Option<Arc<HistoryRule>> {
        match publication.qos.is_confirmed() {
            true => self.rule(&publication.topic),
            false => self.own_rule(&publication.topic),
        }
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn has_each_message(&self, topic: &str) -> bool {
        self.own_rule(topic).is_some()
    }

    fn append(&self, append: Append, done: Done) {
        self.queue(append, done);
    }

    fn append_now(&self, _: Append) -> Result<Position, PublishError> {
        let why =
            "a message has its position after the commit, and its publisher does not wait for it";
        Err(PublishError::StoreFailed(why.into()))
    }

    fn latest(&self, limit: usize) -> Vec<Arc<Envelope>> {
        self.state().newest.before(u64::MAX, limit.min(NEWEST_MAX)).cloned().collect()
    }

    fn latest_of(&self, hash: u64, topic: &str, limit: usize) -> Latest {
        let state = self.state();
        let page = state.windows.page(hash, topic, None, true, limit, unix_ms());
        let complete = page.messages.len() >= limit || state.windows.reaches(hash, topic, 0);
        Latest { messages: page.messages, complete }
    }

    fn count_newest(&self, from_us: u64, messages_max: usize, activity: &mut Activity) -> u64 {
        let (mut before, mut counted, mut oldest_us) = (u64::MAX, 0, u64::MAX);
        loop {
            let state = self.state();
            let (mut is_end, mut is_past) = (true, false);
            for message in state.newest.before(before, COUNTED) {
                before = message.id.offset;
                is_end = false;
                is_past = message.published_us < from_us;
                if is_past {
                    break;
                }
                counted += 1;
                oldest_us = message.published_us;
                activity.count(message);
            }
            if counted >= messages_max {
                return oldest_us;
            }
            if is_end || is_past {
                return state.newest.complete_after_us();
            }
        }
    }
}

impl Postgres {
    /// Queues a job for the thread.
    fn read_later(&self, job: Job) -> Result<(), HistoryError> {
        self.0.jobs.push(job).map_err(|not_taken| match not_taken {
            NotTaken::Full => HistoryError::Busy,
            NotTaken::Closed => {
                HistoryError::Unavailable(away_text(self.error().as_deref()).into())
            }
        })
    }
}

impl History for Postgres {
    fn epoch(&self) -> Epoch {
        self.0.epoch
    }

    fn top(&self) -> Position {
        self.id(self.state().delivered)
    }

    fn retains_any(&self) -> bool {
        let for_sessions = || self.implicit(|implicit| (implicit.any)());
        self.0.retains_any.load(Ordering::Relaxed) || for_sessions().unwrap_or(false)
    }

    fn set_rules(&self, rules: Arc<Rules>, idempotency_seconds_max: u64) {
        self.0.idempotency_seconds_max.store(idempotency_seconds_max, Ordering::Relaxed);
        self.replace_rules(rules);
    }

    fn set_implicit(&self, implicit: Option<Implicit>) {
        self.replace_implicit(implicit);
    }

    fn stats(&self) -> HistoryStats {
        let counts = &self.0.counts;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let state = self.state();
        let for_sessions = state.windows.for_sessions();
        HistoryStats {
            messages: state.windows.messages() as u64,
            bytes: state.windows.bytes() as u64,
            session_messages: for_sessions.messages as u64,
            session_bytes: for_sessions.bytes as u64,
            topics: state.windows.topics() as u64,
            published: count(&counts.published),
            repeated: count(&counts.repeated),
            recovered: count(&counts.recovered),
            unrecovered: count(&counts.unrecovered),
            disk_reads: count(&counts.reads),
            cursors: self.0.cursors.count() as u64,
            acknowledged: count(&counts.acknowledged),
            redelivered: count(&counts.redelivered),
            dead_lettered: count(&counts.dead_lettered),
            dropped: count(&counts.dropped),
            dropped_by: state.windows.dropped_by(),
            ..HistoryStats::default()
        }
    }

    fn sweep(&self) {
        let now_ms = self.0.clock.now_ms();
        let mut state = self.state();
        state.windows.sweep(now_ms, &|topic| self.rule(topic), SWEPT);
        let dropped = state.pages.sweep(self.now_ms());
        drop(state);
        drop(dropped);
    }

    fn age_ms(&self) -> u64 {
        self.0.clock.now_ms()
    }

    fn start(
        &self,
        topics: &[(u64, &str)],
        request: &ResumeRequest,
        completion: Completion<Start>,
    ) -> Result<HistoryReply<Start>, HistoryError> {
        if let Ok(start) = self.resolve(topics, request, &Known::default()) {
            return Ok(HistoryReply::Now(start));
        }
        let topics = topics.iter().map(|(hash, name)| (*hash, Name::from(*name))).collect();
        self.read_later(Job::Start {
            topics,
            request: request.clone(),
            reply: Reply::new(completion),
        })?;
        Ok(HistoryReply::Later)
    }

    fn read(
        &self,
        pull: Pull,
        completion: Completion<Piece>,
    ) -> Result<HistoryReply<Piece>, HistoryError> {
        if let Some(piece) = self.read_memory(&pull) {
            return Ok(HistoryReply::Now(piece));
        }
        if let Some(page) = self.known_page(&pull) {
            // The caller takes an empty piece that comes at once for the end, and this one may not be.
            Reply::new(completion).send(self.piece_of(&pull, &[page]));
            return Ok(HistoryReply::Later);
        }
        self.read_later(Job::Read { pull, reply: Reply::new(completion) })?;
        Ok(HistoryReply::Later)
    }

    fn matching(
        &self,
        filters: &[Name],
        after: u64,
        completion: Completion<Matching>,
        hash: TopicHash,
    ) -> Result<HistoryReply<Matching>, HistoryError> {
        if let Some(found) = self.matching_in_memory(filters, after, hash.clone()) {
            return Ok(HistoryReply::Now(found));
        }
        let search = TopicSearch::new(filters, after, self.state().delivered, hash);
        let search = Box::new(search);
        self.read_later(Job::Matching { search, reply: Reply::new(completion) })?;
        Ok(HistoryReply::Later)
    }

    fn page(
        &self,
        query: PageQuery,
        completion: Completion<Page>,
    ) -> Result<HistoryReply<Page>, HistoryError> {
        if let MemoryPage::Whole(page) = self.page_of_memory(&query) {
            return Ok(HistoryReply::Now(page));
        }
        self.read_later(Job::Page { query, reply: Reply::new(completion) })?;
        Ok(HistoryReply::Later)
    }

    fn delete(
        &self,
        _: u64,
        topic: &str,
        completion: Completion<()>,
    ) -> Result<HistoryReply<()>, HistoryError> {
        self.read_later(Job::Delete { topic: topic.into(), reply: Reply::new(completion) })?;
        Ok(HistoryReply::Later)
    }

    fn gone(&self, hash: u64, topic: &str, after: u64) -> Option<Gone> {
        // If memory does not reach back, the database may know more.
        self.state().windows.reaches(hash, topic, after).then_some(Gone::Nothing)
    }

    fn retained(&self, _: u64, _: &str, _: &[u64]) -> Option<Vec<u64>> {
        None
    }

    fn cursor(&self, user: &str, topic: &str) -> u64 {
        let (cursors, top) = (&self.0.cursors, self.state().delivered);
        // A client may have acknowledged what this node has not delivered yet, or what is no message.
        match topic == personal(user) {
            true => cursors.get(user, topic).and_then(Cursor::done).unwrap_or(0).min(top),
            false => cursors.get_or_begin(user, topic, top).min(top),
        }
    }

    fn is_begin_confirmed(&self, user: &str, topic: &str) -> bool {
        !self.0.cursors.begins(user, topic)
    }

    fn progress(&self, user: &str, topic: &str) -> Cursor {
        self.0.cursors.get(user, topic).unwrap_or_default()
    }

    /// An offset that this node has not delivered yet may be of a message that the client has from another node. The
    /// database moves no cursor beyond the last message.
    fn acknowledge(&self, user: &str, topic: &str, id: Position) -> Result<u64, AcknowledgeError> {
        if self.own_rule(topic).is_none_or(|rule| rule.acknowledge.is_none()) {
            return Err(AcknowledgeError::NotAcknowledged);
        }
        if id.epoch != self.0.epoch {
            return Err(AcknowledgeError::Epoch);
        }
        let (offset, has_moved) = self.0.cursors.acknowledge(user, topic, id.offset);
        Counts::add(&self.0.counts.acknowledged, usize::from(has_moved));
        Ok(offset)
    }

    fn delivered(
        &self,
        user: &str,
        topic: &str,
        offset: u64,
        now_s: u32,
        rule: &AcknowledgeRule,
    ) -> u32 {
        self.0.cursors.delivered(user, topic, offset, now_s, rule)
    }

    fn delivered_again(&self) {
        Counts::add(&self.0.counts.redelivered, 1);
    }

    fn give_up(&self, user: &str, topic: &str, offset: u64, given_up: GivenUp) {
        if !self.0.cursors.give_up(user, topic, offset) {
            return;
        }
        let counts = &self.0.counts;
        let counter = match given_up {
            GivenUp::DeadLettered => &counts.dead_lettered,
            GivenUp::Dropped => &counts.dropped,
        };
        Counts::add(counter, 1);
        tracing::debug!(
            user,
            topic,
            message_id = %self.id(offset),
            ?given_up,
            "a message was given up: its user acknowledged none of its deliveries"
        );
    }
}
