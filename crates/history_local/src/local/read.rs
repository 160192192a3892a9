//! Reads what returning clients missed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use broker::HistoryLog;
use model::{Envelope, Message, Name, RecoveryGap, ResumeRequest};
use store::{ReadLimits, Reader, StoreError, StoredMessages};

use super::{Local, retention, unix_ms};
use crate::error::{queue_error, store_error};
use crate::windows;
use history::{Answer, Completion, HistoryError, Piece, Pull, Start, TopicCursor};

impl Local {
    /// The offsets from which to read topics, as far as memory knows.
    pub(super) fn resolve(&self, topics: &[(u64, &str)], request: &ResumeRequest) -> Start {
        let state = self.state();
        let top = state.delivered;
        let mut start = Start { topics: Vec::new(), gaps: Vec::new(), top: self.id(top) };
        for (hash, name) in topics {
            let compact = self.rule(name).is_some_and(|rule| rule.compact);
            let newcomer = if compact { 0 } else { top };
            let (after, gap) = match request.of(name) {
                None => (newcomer, None),
                Some(token) => match TopicCursor::offset_of(self.0.epoch, name, token) {
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
                },
            };
            let topic = Name::from(*name);
            let state = compact && after == 0;
            start.topics.push(TopicCursor { hash: *hash, topic, after, state });
            start.gaps.push(gap);
        }
        let has_gap = start.gaps.iter().any(Option::is_some);
        drop(state);
        if !request.is_empty() {
            let counts = &self.0.counts;
            let count = if has_gap { &counts.unrecovered } else { &counts.recovered };
            count.fetch_add(1, Ordering::Relaxed);
        }
        start
    }

    /// The next piece, if memory has it.
    pub(super) fn read_memory(&self, pull: &Pull) -> Option<Piece> {
        let state = self.state();
        let mut gone: Vec<bool> = pull
            .topics
            .iter()
            .map(|topic| !state.windows.reaches(topic.hash, &topic.topic, topic.after))
            .collect();
        if self.0.store.is_some() && gone.contains(&true) {
            return None;
        }
        for (gone, topic) in gone.iter_mut().zip(&pull.topics).filter(|(gone, _)| **gone) {
            // The state is complete, whatever came before it.
            *gone = !topic.state;
        }
        let topics: Vec<windows::TopicCursor<'_>> = pull
            .topics
            .iter()
            .map(|topic| windows::TopicCursor {
                hash: topic.hash,
                topic: &topic.topic,
                after: topic.after,
            })
            .collect();
        let found = state.windows.collect(&topics, pull.messages_max, pull.bytes_max, unix_ms());
        Some(Piece {
            messages: found.messages,
            through: found.through.unwrap_or(state.delivered),
            caught_up: found.through.is_none(),
            gone,
        })
    }

    /// The next piece from the disk, by the store's reader.
    pub(super) fn read_disk(
        &self,
        pull: Pull,
        completion: Completion<Piece>,
    ) -> Result<Answer<Piece>, HistoryError> {
        let Some(store) = &self.0.store else { return Err(HistoryError::Busy) };
        let history = self.clone();
        self.0.counts.disk_reads.fetch_add(1, Ordering::Relaxed);
        let job = move |reader: &Reader| {
            // The caller waits for the answer, even after a panic.
            let read = || history.read_piece(reader, &pull);
            let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
            let panicked =
                || Err(HistoryError::Unavailable("the reader of the store panicked".into()));
            completion(read.unwrap_or_else(|_| panicked()));
        };
        store.read_later(Box::new(job)).map_err(queue_error)?;
        Ok(Answer::Later)
    }

    fn read_piece(&self, reader: &Reader, pull: &Pull) -> Result<Piece, HistoryError> {
        let Pull { ref topics, messages_max, bytes_max } = *pull;
        // The read may find messages that the store writes from here on. They are left to the next
        // piece, and so is the end.
        let mut through = self.state().delivered;
        let now_ms = unix_ms();
        let (mut messages, mut gone) = (Vec::new(), Vec::new());
        for topic in topics {
            // Each of many topics gets a share: the answer is one piece.
            let share = |max: usize| max / topics.len() + 1;
            let amount =
                ReadLimits { messages_max: share(messages_max), bytes_max: share(bytes_max) };
            let stored = readable(reader, topic, amount, now_ms)
                .inspect_err(|error| tracing::error!("the store can't be read: {error}"))
                .map_err(store_error)?;
            let rule = self.rule(&topic.topic).ok_or(HistoryError::NoHistory)?;
            gone.push(stored.floor > topic.after && !topic.state);
            if stored.more {
                through = through.min(stored.through);
            }
            // A reader that starts with the state has nothing that could be removed.
            let newcomer = rule.compact && topic.after == 0;
            let records = stored.records.into_iter();
            let records =
                records.filter(|record| !(newcomer && windows::removes(&record.publication)));
            messages.extend(records.map(|record| {
                let id = self.id(record.offset);
                let message = Message::new(record.publication, id, topic.hash, 0);
                Arc::new(Envelope::from(message.retained(retention(&rule), record.at_ms)))
            }));
        }
        messages.retain(|message| message.id.offset <= through);
        messages.sort_unstable_by_key(|message| message.id.offset);
        let mut bytes = 0;
        let mut fits = |message: &Arc<Envelope>| {
            let before = bytes;
            bytes += message.publication.data.bytes();
            before <= bytes_max
        };
        let count = messages.iter().take_while(|message| fits(message)).count().min(messages_max);
        if count < messages.len() {
            messages.truncate(count.max(1));
            through = messages.last().map_or(through, |message| message.id.offset);
        }
        Ok(Piece { messages, through, caught_up: false, gone })
    }
}

/// Damaged ranges of a topic that one read passes over.
const DAMAGE_MAX: usize = 64;

/// A topic's messages after an offset. Damaged messages count as dropped, so that a returning client
/// gets one recovery gap, and continues with the messages behind it.
fn readable(
    reader: &Reader,
    topic: &TopicCursor,
    amount: ReadLimits,
    now_ms: u64,
) -> Result<StoredMessages, StoreError> {
    let (mut after, mut floor) = (topic.after, 0);
    for _ in 0..DAMAGE_MAX {
        match reader.after(&topic.topic, after, amount, now_ms) {
            Ok(stored) => {
                // The messages behind it are damaged: the client gets that gap before this piece.
                let next = if stored.damaged { u64::MAX } else { 0 };
                return Ok(StoredMessages { floor: stored.floor.max(floor).max(next), ..stored });
            }
            Err(StoreError::Damaged(damage)) => {
                tracing::error!("the store is damaged: {damage}");
                let is_known = damage.through > after && damage.through < u64::MAX;
                if damage.topic.as_ref() != Some(&topic.topic) || !is_known {
                    break;
                }
                (after, floor) = (damage.through, damage.through);
            }
            Err(other) => return Err(other),
        }
    }
    // The store can read nothing of the topic.
    let floor = u64::MAX;
    let (records, last, through, more, lost_range) = (Vec::new(), 0, after, false, None);
    Ok(StoredMessages { records, floor, last, through, more, lost_range, damaged: true })
}
