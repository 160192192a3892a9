//! Reads the messages that returning clients missed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use broker::HistoryLog;
use model::{Envelope, Message};
use store::{ReadLimits, Reader, StoreError, StoredMessages};

use super::count::panicked;
use super::log::Log;
use super::{Local, retention, unix_ms};
use crate::error::{queue_error, store_error};
use crate::windows;
use history::{Completion, Gone, HistoryError, HistoryReply, Piece, Pull, TopicCursor};

impl Local {
    /// Returns the next piece, if memory has it.
    pub(super) fn read_memory(&self, pull: &Pull) -> Option<Piece> {
        let state = self.state();
        let reaches =
            |topic: &TopicCursor| state.windows.reaches(topic.hash, &topic.topic, topic.after);
        if self.0.store.is_some() && !pull.topics.iter().all(reaches) {
            return None;
        }
        let gone_of = |topic: &TopicCursor| {
            state.windows.gone_after(topic.hash, &topic.topic, topic.gap_after())
        };
        let mut gone: Vec<Gone> = pull.topics.iter().map(gone_of).collect();
        for (gone, _) in gone.iter_mut().zip(&pull.topics).filter(|(_, topic)| topic.whole) {
            // The client requests only present messages.
            *gone = Gone::Nothing;
        }
        let topics: Vec<windows::TopicCursor<'_>> = pull.topics.iter().map(Into::into).collect();
        let found = state.windows.collect(&topics, pull.messages_max, pull.bytes_max, unix_ms());
        Some(Piece {
            messages: found.messages,
            through: found.through.unwrap_or(state.delivered),
            caught_up: found.through.is_none(),
            gone,
            first: found.first,
        })
    }

    /// Reads the next piece from the disk, by the store's reader.
    pub(super) fn read_disk(
        &self,
        pull: Pull,
        completion: Completion<Piece>,
    ) -> Result<HistoryReply<Piece>, HistoryError> {
        let Some(store) = &self.0.store else { return Err(HistoryError::Busy) };
        let history = self.clone();
        self.0.counts.disk_reads.fetch_add(1, Ordering::Relaxed);
        let job = move |reader: &Reader| {
            if !completion.is_awaited() {
                return;
            }
            // The caller waits for the reply, even after a panic.
            let read = || history.read_piece(reader, &pull);
            let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
            completion.complete(read.unwrap_or_else(|_| Err(panicked())));
        };
        store.read_later(Box::new(job)).map_err(queue_error)?;
        Ok(HistoryReply::Later)
    }

    fn read_piece(&self, reader: &Reader, pull: &Pull) -> Result<Piece, HistoryError> {
        let Pull { ref topics, messages_max, bytes_max } = *pull;
        // The read may find messages that the store writes from here on. They belong to the next piece, and so does
        // the end.
        let delivered = self.state().delivered;
        let (mut through, now_ms) = (delivered, unix_ms());
        let (mut messages, mut gone, mut first) = (Vec::new(), Vec::new(), Vec::new());
        for topic in topics {
            // Each of many topics gets a share: the reply is one piece.
            let share = |max: usize| max / topics.len() + 1;
            let amount =
                ReadLimits { messages_max: share(messages_max), bytes_max: share(bytes_max) };
            let stored = readable(reader, topic, amount, now_ms, &self.0.log)
                .inspect_err(|error| self.0.log.failed_read(&topic.topic, error))
                .map_err(store_error)?;
            let rule = self.rule(&topic.topic).ok_or(HistoryError::NoHistory)?;
            gone.push(match topic.whole {
                true => Gone::Nothing,
                false if stored.dropped > topic.gap_after() => Gone::Some,
                false if stored.floor > topic.gap_after() => Gone::Maybe,
                false => Gone::Nothing,
            });
            if stored.more {
                through = through.min(stored.through);
            }
            let records = stored.records.into_iter().filter(|record| {
                topic.needs_removal(record.offset) || !windows::is_removal(&record.publication)
            });
            let from = messages.len();
            messages.extend(records.map(|record| {
                let id = self.id(record.offset);
                let message = Message::new(record.publication, id, topic.hash, 0);
                Arc::new(Envelope::from(message.retained(retention(&rule), record.at_ms)))
            }));
            first.push(messages.get(from).map(|message| message.id.offset));
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
        let (through, caught_up) = match through {
            _ if through < delivered => (through, false),
            through => self.follow(topics, through),
        };
        Ok(Piece { messages, through, caught_up, gone, first })
    }

    /// Returns the offset up to which topics are complete after a read up to `through` from the disk, and true if
    /// memory knows no later message.
    fn follow(&self, topics: &[TopicCursor], through: u64) -> (u64, bool) {
        let state = self.state();
        let cursors: Vec<windows::TopicCursor<'_>> = topics
            .iter()
            .map(|topic| windows::TopicCursor { after: through, ..topic.into() })
            .collect();
        let reaches =
            |it: &windows::TopicCursor<'_>| state.windows.reaches(it.hash, it.topic, through);
        let known = cursors.iter().all(reaches);
        match known && state.windows.collect(&cursors, 1, 0, unix_ms()).messages.is_empty() {
            true => (state.delivered, true),
            false => (through, false),
        }
    }
}

/// Damaged ranges of a topic that one read skips.
const DAMAGE_MAX: usize = 64;

/// Reads a topic's messages after an offset. Damaged messages count as dropped, so that a returning client gets one
/// recovery gap, and continues with the messages behind it.
fn readable(
    reader: &Reader,
    topic: &TopicCursor,
    amount: ReadLimits,
    now_ms: u64,
    log: &Log,
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
                log.damage(&topic.topic, &damage);
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
    let (floor, dropped) = (u64::MAX, 0);
    let (records, last, through, more, lost_range) = (Vec::new(), 0, after, false, None);
    Ok(StoredMessages { records, floor, dropped, last, through, more, lost_range, damaged: true })
}
