//! What those who come back missed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use store::{Amount, Fault, Reader, Stored};
use wire::session::Asked;
use wire::{Id, Lost, Message, Name, Since};

use super::windows;
use super::{Kept, kind, unix_ms};
use crate::PublishError;

/// A topic with history, and how far it was followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The hash of its name.
    pub hash: u64,
    /// Its name.
    pub topic: Name,
    /// Messages after this offset are wanted.
    pub after: u64,
    /// It began with the whole state of a compacted topic: what came before that is not missed.
    pub state: bool,
}

/// From where topics are followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The topics, in the order in which they were asked for.
    pub topics: Vec<Wanted>,
    /// What can't be said to be complete; in the order of the topics. The disk may have another word.
    pub lost: Vec<Option<Lost>>,
    /// The last place that was handed on when the look began.
    pub top: Id,
}

impl Start {
    /// True when there is nothing before now that is wanted.
    pub fn is_now(&self) -> bool {
        self.topics.iter().all(|topic| topic.after >= self.top.offset)
    }
}

/// A piece of what was missed.
#[derive(Debug, Default)]
pub struct Piece {
    /// In the order of their offsets.
    pub messages: Vec<Arc<Message>>,
    /// All wanted topics are complete up to this offset now.
    pub through: u64,
    /// There is nothing more up to now: what is published from now on comes by the inboxes.
    pub caught_up: bool,
    /// For each wanted topic, whether messages that were wanted are gone.
    pub gone: Vec<bool>,
}

/// What is to be had at once.
#[derive(Debug)]
pub enum Pull {
    /// This piece.
    Piece(Piece),
    /// The disk must be asked: [`Kept::pull_later`].
    Disk,
}

impl Kept {
    /// From where to follow topics with history, for somebody who asks for what was missed.
    ///
    /// Whoever asks must be a member of the topics already, as far as the inboxes know: what is
    /// published after the look comes by them, and what was before is found.
    pub fn start(&self, topics: &[(u64, &str)], asked: &Asked) -> Start {
        let state = self.state();
        let top = state.delivered;
        let mut start = Start { topics: Vec::new(), lost: Vec::new(), top: self.id(top) };
        for (hash, name) in topics {
            let compact = self.rule(name).is_some_and(|keep| keep.compact);
            let newcomer = if compact { 0 } else { top };
            let (after, lost) = match asked.of(name) {
                None => (newcomer, None),
                Some(since) => match self.place(name, since) {
                    // One that is being written was told to its publisher.
                    Some(after) if after <= state.last => {
                        let after = after.min(top);
                        let here = state.windows.reaches(*hash, name, after);
                        match here || self.0.store.is_some() {
                            true => (after, None),
                            // The state comes, and what was removed from it is not known any more.
                            false if compact => (0, Some(Lost::TooOld)),
                            false => (after, Some(Lost::TooOld)),
                        }
                    }
                    Some(_) | None if compact => (0, Some(Lost::Epoch)),
                    Some(_) | None => (top, Some(Lost::Epoch)),
                },
            };
            let topic = Name::from(*name);
            let state = compact && after == 0;
            start.topics.push(Wanted { hash: *hash, topic, after, state });
            start.lost.push(lost);
        }
        let lost = start.lost.iter().any(Option::is_some);
        let asked = !asked.is_empty();
        drop(state);
        if asked {
            let counts = &self.0.counts;
            let count = if lost { &counts.unrecovered } else { &counts.recovered };
            count.fetch_add(1, Ordering::Relaxed);
        }
        start
    }

    /// The offset that the client has a topic up to; `None` in another epoch.
    fn place(&self, topic: &str, since: &Since) -> Option<u64> {
        let position = since.position(self.0.epoch)?;
        let mark = wire::since::mark(topic);
        let behind = position.behind.iter().filter(|behind| behind.topic == mark);
        let behind = behind.map(|behind| behind.through).min();
        Some(behind.map_or(position.through.offset, |less| less.min(position.through.offset)))
    }

    /// Whether all messages of the topic after this offset are still there, as far as memory knows;
    /// with a store the disk may have another word.
    pub fn has_all(&self, hash: u64, topic: &str, after: u64) -> bool {
        self.0.store.is_some() || self.state().windows.reaches(hash, topic, after)
    }

    /// The next piece of what is wanted, if memory has it: at most so many messages and, once one is
    /// there, bytes.
    pub fn pull(&self, wanted: &[Wanted], messages_max: usize, bytes_max: usize) -> Pull {
        let state = self.state();
        let mut gone: Vec<bool> = wanted
            .iter()
            .map(|topic| !state.windows.reaches(topic.hash, &topic.topic, topic.after))
            .collect();
        if self.0.store.is_some() && gone.contains(&true) {
            return Pull::Disk;
        }
        for (gone, topic) in gone.iter_mut().zip(wanted).filter(|(gone, _)| **gone) {
            // The state is complete, whatever came before it.
            *gone = !topic.state;
        }
        let topics: Vec<windows::Wanted<'_>> = wanted
            .iter()
            .map(|topic| windows::Wanted {
                hash: topic.hash,
                topic: &topic.topic,
                after: topic.after,
            })
            .collect();
        let found = state.windows.collect(&topics, messages_max, bytes_max, unix_ms());
        Pull::Piece(Piece {
            messages: found.messages,
            through: found.through.unwrap_or(state.delivered),
            caught_up: found.through.is_none(),
            gone,
        })
    }

    /// The same from the disk: `reply` is called once, on the store's reader, unless it is refused
    /// because too many wait; with nothing when the disk can't be read.
    pub fn pull_later(
        &self,
        wanted: Vec<Wanted>,
        messages_max: usize,
        bytes_max: usize,
        reply: Box<dyn FnOnce(Option<Piece>) + Send>,
    ) -> Result<(), PublishError> {
        let Some(store) = &self.0.store else {
            return Err(PublishError::StoreBusy);
        };
        let kept = self.clone();
        self.0.counts.disk_reads.fetch_add(1, Ordering::Relaxed);
        let job = move |store: &Reader| {
            // Whoever asked waits for the reply, whatever happens.
            let read = || kept.read(store, &wanted, messages_max, bytes_max);
            let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
            reply(read.ok().flatten());
        };
        store.read_later(Box::new(job)).map_err(|_| PublishError::StoreBusy)
    }

    fn read(
        &self,
        reader: &Reader,
        wanted: &[Wanted],
        messages_max: usize,
        bytes_max: usize,
    ) -> Option<Piece> {
        // What is written from here on may be among what is read: it is left to the next piece.
        let mut through = self.state().delivered;
        let now_ms = unix_ms();
        let (mut messages, mut gone) = (Vec::new(), Vec::new());
        for topic in wanted {
            // Of many topics a little each: no more than one piece is given.
            let share = |max: usize| max / wanted.len() + 1;
            let amount = Amount { messages_max: share(messages_max), bytes_max: share(bytes_max) };
            let stored = match readable(reader, topic, amount, now_ms) {
                Ok(stored) => stored,
                Err(error) => {
                    tracing::error!("the store can't be read: {error}");
                    return None;
                }
            };
            let keep = self.rule(&topic.topic)?;
            gone.push(stored.floor > topic.after && !topic.state);
            if stored.more {
                through = through.min(stored.through);
            }
            // Whoever wants the state from its beginning has nothing that could be removed.
            let newcomer = keep.compact && topic.after == 0;
            let records = stored.records.into_iter();
            let records = records.filter(|record| !(newcomer && windows::removes(&record.draft)));
            messages.extend(records.map(|record| {
                let id = self.id(record.offset);
                let message = Message::new(record.draft, id, topic.hash, 0);
                Arc::new(message.kept(kind(&keep), record.at_ms))
            }));
        }
        messages.retain(|message| message.id.offset <= through);
        messages.sort_unstable_by_key(|message| message.id.offset);
        let mut bytes = 0;
        let mut fits = |message: &Arc<Message>| {
            let before = bytes;
            bytes += message.draft.data.bytes();
            before <= bytes_max
        };
        let count = messages.iter().take_while(|message| fits(message)).count().min(messages_max);
        if count < messages.len() {
            messages.truncate(count.max(1));
            through = messages.last().map_or(through, |message| message.id.offset);
        }
        Some(Piece { messages, through, caught_up: false, gone })
    }
}

/// Gaps in a topic's messages that one look passes over.
const GAPS_MAX: usize = 64;

/// A topic's messages after an offset. What is damaged counts as dropped, so that whoever comes
/// back is told that it is gone, once, and goes on with what comes after it.
fn readable(reader: &Reader, topic: &Wanted, amount: Amount, now_ms: u64) -> Result<Stored, Fault> {
    let (mut after, mut floor) = (topic.after, 0);
    for _ in 0..GAPS_MAX {
        match reader.after(&topic.topic, after, amount, now_ms) {
            Ok(stored) => {
                // What comes next is gone: that is told before it is given what there is.
                let next = if stored.damaged { u64::MAX } else { 0 };
                return Ok(Stored { floor: stored.floor.max(floor).max(next), ..stored });
            }
            Err(Fault::Damaged(damage)) => {
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
    // Nothing of it can be had.
    let floor = u64::MAX;
    let (records, last, through, more, lost) = (Vec::new(), 0, after, false, None);
    Ok(Stored { records, floor, last, through, more, lost, damaged: true })
}
