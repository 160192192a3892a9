//! From where returning clients, and new ones, read topics.

use broker::HistoryLog;
use history::{Answer, Completion, HistoryError, Start, TopicCursor};
use model::{Name, RecoveryGap, ResumeRequest, Since};
use std::sync::atomic::Ordering;
use store::{ReadLimits, Reader, StoreError};

use super::{Local, State, unix_ms};
use crate::error::{queue_error, store_error};

/// Bytes of payload that are read from the disk at a time, only to count messages.
const COUNT_BYTES: usize = 1 << 20;

/// Reads that counting may take where much has expired, beside one for each message.
const PASSES: usize = 64;

/// A topic of which the newest messages are asked for, and memory has fewer.
pub(super) struct Wanted {
    hash: u64,
    topic: Name,
    messages: usize,
}

impl Local {
    /// The offsets from which to read topics, as far as memory knows; `found` are places before the
    /// newest messages of topics, by hash. The error is what the disk has to say first.
    pub(super) fn resolve(
        &self,
        topics: &[(u64, &str)],
        request: &ResumeRequest,
        found: &[(u64, u64)],
    ) -> Result<Start, Vec<Wanted>> {
        let state = self.state();
        let top = state.delivered;
        let mut start = Start { topics: Vec::new(), gaps: Vec::new(), top: self.id(top) };
        let mut wanted = Vec::new();
        for (hash, name) in topics {
            let compact = self.rule(name).is_some_and(|rule| rule.compact);
            let newcomer = if compact { 0 } else { top };
            let since = request.of(name);
            let (after, gap) = match since {
                None => (newcomer, None),
                Some(Since::Start) => (0, None),
                Some(Since::Last(_)) if compact => (0, None),
                Some(Since::Last(messages)) => {
                    let messages = *messages as usize;
                    let known = found.iter().find(|(of, _)| of == hash).map(|(_, after)| *after);
                    let known = known.or_else(|| self.before_newest(&state, *hash, name, messages));
                    if known.is_none() {
                        wanted.push(Wanted { hash: *hash, topic: Name::from(*name), messages });
                    }
                    (known.unwrap_or(top).min(top), None)
                }
                Some(Since::Token(token)) => {
                    match TopicCursor::offset_of(self.0.epoch, name, token) {
                        // A publisher knows its message's id while the store still writes it.
                        Some(after) if after <= state.last => {
                            let after = after.min(top);
                            let here = state.windows.reaches(*hash, name, after);
                            match here || self.0.store.is_some() {
                                true => (after, None),
                                // The client gets the state, but not the removals from it.
                                false if compact => (0, Some(RecoveryGap::TooOld)),
                                false => (after, Some(RecoveryGap::TooOld)),
                            }
                        }
                        Some(_) | None if compact => (0, Some(RecoveryGap::Epoch)),
                        Some(_) | None => (top, Some(RecoveryGap::Epoch)),
                    }
                }
            };
            let is_new = matches!(since, Some(Since::Start | Since::Last(_)));
            let whole = is_new || (compact && after == 0);
            start.topics.push(TopicCursor { hash: *hash, topic: Name::from(*name), after, whole });
            start.gaps.push(gap);
        }
        drop(state);
        if !wanted.is_empty() {
            return Err(wanted);
        }
        if request.has_token() {
            let has_gap = start.gaps.iter().any(Option::is_some);
            let counts = &self.0.counts;
            let count = if has_gap { &counts.unrecovered } else { &counts.recovered };
            count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(start)
    }

    /// The offset before a topic's newest messages, if memory knows it.
    pub(super) fn before_newest(
        &self,
        state: &State,
        hash: u64,
        topic: &str,
        messages: usize,
    ) -> Option<u64> {
        let windows = &state.windows;
        // Below its floor, what is in memory may not be all that is on disk.
        let above = if self.0.store.is_some() { windows.floor(hash, topic) } else { 0 };
        let found = windows.before_newest(hash, topic, above, messages, unix_ms());
        found.or_else(|| (above == 0).then_some(0))
    }

    /// The same when the store's reader has found the newest messages of some topics.
    pub(super) fn resolve_later(
        &self,
        topics: &[(u64, &str)],
        request: &ResumeRequest,
        wanted: Vec<Wanted>,
        completion: Completion<Start>,
    ) -> Result<Answer<Start>, HistoryError> {
        let Some(store) = &self.0.store else { return Err(HistoryError::Busy) };
        let (history, request) = (self.clone(), request.clone());
        let topics: Vec<(u64, Name)> =
            topics.iter().map(|(hash, name)| (*hash, Name::from(*name))).collect();
        self.0.counts.disk_reads.fetch_add(1, Ordering::Relaxed);
        let job = move |reader: &Reader| {
            let find = || {
                let count = |it: &Wanted| history.count_back(reader, &it.topic, it.messages);
                let found = wanted.iter().map(|it| Ok((it.hash, count(it)?)));
                let found = found.collect::<Result<Vec<_>, _>>()?;
                let topics: Vec<(u64, &str)> =
                    topics.iter().map(|(hash, name)| (*hash, name.as_str())).collect();
                // Each topic that was wanted is found now.
                history.resolve(&topics, &request, &found).map_err(|_| HistoryError::Busy)
            };
            // The caller waits for the answer, even after a panic.
            let start = std::panic::catch_unwind(std::panic::AssertUnwindSafe(find));
            let panicked =
                || Err(HistoryError::Unavailable("the reader of the store panicked".into()));
            completion(start.unwrap_or_else(|_| panicked()));
        };
        store.read_later(Box::new(job)).map_err(queue_error)?;
        Ok(Answer::Later)
    }

    /// The offset before the newest messages of a topic that are on disk and were handed on.
    pub(super) fn count_back(
        &self,
        reader: &Reader,
        topic: &str,
        messages: usize,
    ) -> Result<u64, HistoryError> {
        let (delivered, now_ms) = (self.state().delivered, unix_ms());
        let (mut before, mut left) = (delivered.saturating_add(1), messages);
        for _ in 0..messages.saturating_add(PASSES) {
            let amount = ReadLimits { messages_max: left, bytes_max: COUNT_BYTES };
            let stored = match reader.before(topic, before, amount, now_ms) {
                Ok(stored) => stored,
                Err(StoreError::Damaged(damage)) => {
                    self.0.log.damage(topic, &damage);
                    // What is behind the damage is all that can be given.
                    return Ok(damage.through.min(before - 1));
                }
                Err(error) => {
                    self.0.log.failed_read(topic, &error);
                    return Err(store_error(error));
                }
            };
            left = left.saturating_sub(stored.records.len());
            before = stored.through;
            if !stored.more {
                return Ok(if left == 0 { before.saturating_sub(1) } else { 0 });
            }
            if left == 0 {
                break;
            }
        }
        Ok(before.saturating_sub(1))
    }
}
