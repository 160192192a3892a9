//! The unfinished part of fan-outs, taken out of one hub and given to another one, or back to the same.
//!
//! Each fan-out becomes a list of its own: its messages, and for each member the first message that it has not had.
//! Members come once and leave for good, so a member always gets all messages from one on.
//!
//! Short lists go first. Long ones go before other long fan-outs, and take turns with short fan-outs: a broadcast
//! that an upgrade interrupts must not delay a message to one member. Messages to the topic of a long list wait for
//! the list.

use std::collections::VecDeque;
use std::ops::Range;

use crate::fanout::{BATCH_MAX, Kind, Queued, is_bulk};
use crate::topics::{HOLE, Members, Name, count};
use crate::{Hub, Slice, Slot};

/// Marks a member that has left.
const GONE: Slot = 1 << 31;

/// A list of members that are owed messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owed<M> {
    /// The topic of the members; `None` for a broadcast.
    pub topic: Option<Name>,
    /// The messages, oldest first.
    pub messages: Vec<M>,
    /// Members, each with the index of the first message that is for it.
    pub members: Vec<(Slot, u32)>,
}

impl<M> Owed<M> {
    /// Splits the list into lists of at most so many messages.
    fn parts(self, messages_max: usize) -> Vec<Self> {
        let Owed { topic, mut messages, members } = self;
        let (mut parts, mut begin) = (Vec::new(), 0);
        while !messages.is_empty() {
            let rest = messages.split_off(messages.len().min(messages_max));
            let end = begin + count(messages.len());
            let mine = members.iter().filter(|(_, first)| *first < end);
            let members = mine.map(|(slot, first)| (*slot, (*first).max(begin) - begin)).collect();
            parts.push(Owed { topic: topic.clone(), messages, members });
            (messages, begin) = (rest, end);
        }
        parts
    }
}

/// A list that the hub serves.
pub(crate) struct Serving<M> {
    topic: Option<Name>,
    batch: Vec<Queued<M>>,
    /// By the index of the first message, and then by slot.
    members: Vec<(u32, Slot)>,
    /// The index of the next member.
    cursor: usize,
    /// The messages before this one have reached all of their members.
    done: usize,
    /// The time of its first slice.
    started_us: Option<u64>,
}

impl<M> Serving<M> {
    /// Returns the position of a member that has not been served.
    fn find(&self, slot: Slot) -> Option<usize> {
        let mut from = self.cursor;
        while let Some((first, _)) = self.members.get(from) {
            let length = self.members[from..].partition_point(|(of, _)| of == first);
            let group = &self.members[from..from + length];
            if let Ok(at) = group.binary_search_by_key(&slot, |(_, slot)| slot & !GONE) {
                return (group[at].1 & GONE == 0).then_some(from + at);
            }
            from += length;
        }
        None
    }

    /// True when all of it has been served.
    fn is_served(&self) -> bool {
        self.done == self.batch.len()
    }

    fn is_of(&self, topic: Option<&str>) -> bool {
        self.topic.as_deref() == topic
    }
}

/// Lists that wait or are being served.
pub(crate) struct Lists<M> {
    small: VecDeque<Serving<M>>,
    /// Long ones, and those that wait behind one of the same topic.
    bulk: VecDeque<Serving<M>>,
}

impl<M> Default for Lists<M> {
    fn default() -> Self {
        Lists { small: VecDeque::new(), bulk: VecDeque::new() }
    }
}

impl<M> Lists<M> {
    pub fn is_empty(&self) -> bool {
        self.small.is_empty() && self.bulk.is_empty()
    }

    pub fn len(&self) -> usize {
        self.small.len() + self.bulk.len()
    }

    pub fn has_small(&self) -> bool {
        !self.small.is_empty()
    }

    pub fn has_bulk(&self) -> bool {
        !self.bulk.is_empty()
    }

    /// Returns the number of lists in the queue of long ones.
    pub fn bulk_count(&self) -> usize {
        self.bulk.len()
    }

    /// True when messages to a topic, or to everyone, have to wait for a long list.
    pub fn has_bulk_of(&self, topic: Option<&str>) -> bool {
        self.bulk.iter().any(|serving| serving.is_of(topic))
    }

    fn queue(&mut self, bulk: bool) -> &mut VecDeque<Serving<M>> {
        if bulk { &mut self.bulk } else { &mut self.small }
    }

    fn iter(&self) -> impl Iterator<Item = &Serving<M>> {
        self.small.iter().chain(&self.bulk)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Serving<M>> {
        self.small.iter_mut().chain(&mut self.bulk)
    }

    /// Ends the lists that are served: no slice has their messages any more.
    pub fn end_served(&mut self) {
        for queue in [&mut self.small, &mut self.bulk] {
            while queue.pop_front_if(|serving| serving.is_served()).is_some() {}
            if queue.is_empty() && queue.capacity() > 0 {
                *queue = VecDeque::new();
            }
        }
    }
}

/// A slice of the first list. Its members are in the hub's `slots`.
struct Served {
    /// The slice's messages begin here.
    from: usize,
    /// These messages have reached all of their members with the slice.
    done: Range<usize>,
    is_last: bool,
    started_us: u64,
}

impl<M: Clone> Hub<M> {
    /// Takes the unfinished part of all fan-outs and ends them, in the order in which each connection gets the
    /// messages.
    pub fn take_owed(&mut self) -> Vec<Owed<M>> {
        let mut all: Vec<Owed<M>> = Vec::new();
        let Lists { small, bulk } = std::mem::take(&mut self.owed);
        for serving in small.into_iter().chain(bulk) {
            let Serving { topic, batch, members, cursor, done, .. } = serving;
            if done == batch.len() {
                continue;
            }
            let members = members[cursor..].iter().filter(|(_, slot)| slot & GONE == 0);
            all.push(Owed {
                topic,
                messages: batch.into_iter().skip(done).map(|queued| queued.message).collect(),
                members: members.map(|(first, slot)| (*slot, first - count(done))).collect(),
            });
        }
        for id in self.ready.take_all() {
            let fanout = &self.fanouts[id];
            let messages: Vec<M> = fanout.unserved().map(|it| it.message.clone()).collect();
            let total = messages.len();
            let (topic, length) = match fanout.kind {
                Kind::Broadcast => (None, self.members.end()),
                Kind::Topic(topic) => (Some(topic), self.list_length(topic)),
            };
            let mut members = Vec::new();
            for position in 0..length {
                let slot = match topic.map(|topic| self.topics[topic].members) {
                    None => position,
                    Some(Members::One(slot)) => slot,
                    Some(Members::Many(many)) => *self.many[many].slots.get(position as usize),
                    Some(Members::None) => HOLE,
                };
                if slot == HOLE || (topic.is_none() && !self.is_here(slot)) {
                    continue;
                }
                let waits = fanout.waiting(position).filter(|queued| {
                    topic.is_some() || !self.newcomers.came_after(slot, queued.newcomers)
                });
                let waits = waits.count();
                if waits > 0 {
                    members.push((slot, count(total - waits)));
                }
            }
            let topic = topic.map(|topic| self.topics[topic].name.clone());
            if total > 0 {
                all.push(Owed { topic, messages, members });
            }
            self.queued -= self.fanouts[id].queue.len();
            self.end(id);
        }
        all
    }
}

impl<M> Hub<M> {
    /// Serves these members, a slice at a time, before anything published from now on to the same topic, or to
    /// everyone. Skips a member that is not here, or not in the topic. `hash` is the topic's; it is unused without a
    /// topic.
    pub fn give_owed(&mut self, owed: Owed<M>, hash: u64) {
        // A part has at most as many messages as the batch of a fan-out.
        for part in owed.parts(BATCH_MAX) {
            self.give_part(part, hash);
        }
    }

    fn give_part(&mut self, owed: Owed<M>, hash: u64) {
        let Owed { topic, messages, members } = owed;
        let id = topic.as_deref().map(|name| self.find(hash, name));
        let is_in = |slot: Slot| match id {
            None => self.is_here(slot),
            Some(None) => false,
            Some(Some(id)) => self.subs(slot).iter().any(|sub| sub.topic == id),
        };
        let total = count(messages.len());
        let members = members.into_iter().filter(|(slot, from)| *from < total && is_in(*slot));
        let mut members: Vec<(u32, Slot)> = members.map(|(slot, from)| (from, slot)).collect();
        members.sort_unstable();
        let queued = |message| Queued { message, end: 0, newcomers: 0 };
        let is_bulk = is_bulk(count(members.len())) || self.owed.has_bulk_of(topic.as_deref());
        self.owed.queue(is_bulk).push_back(Serving {
            topic,
            batch: messages.into_iter().map(queued).collect(),
            members,
            cursor: 0,
            done: 0,
            started_us: None,
        });
    }

    /// Returns the next slice of the first short list, or of the first long one.
    pub(crate) fn next_owed(
        &mut self,
        members_max: usize,
        bulk: bool,
        now_us: u64,
    ) -> Option<Slice<'_, M>> {
        let served = self.serve_owed(members_max, bulk, now_us)?;
        let Served { from, done, is_last, started_us } = served;
        let serving = self.owed.queue(bulk).front()?;
        Some(Slice {
            messages: &serving.batch[from..],
            done: &serving.batch[done],
            topic: serving.topic.as_ref(),
            slots: &self.slots,
            finished_since_us: is_last.then_some(started_us),
        })
    }

    /// Gathers the next members of the first list.
    fn serve_owed(&mut self, members_max: usize, bulk: bool, now_us: u64) -> Option<Served> {
        let serving = self.owed.queue(bulk).front_mut()?;
        let started_us = *serving.started_us.get_or_insert(now_us);
        self.slots.clear();
        let rest = &serving.members[serving.cursor..];
        let first = rest.first().map_or(count(serving.done), |(first, _)| *first);
        let group = rest.partition_point(|(of, _)| *of == first).min(members_max.max(1));
        let here = rest[..group].iter().map(|(_, slot)| *slot).filter(|it| it & GONE == 0);
        self.slots.extend(here);
        serving.cursor += group;
        // Members are sorted by their first messages: all messages before the next member's first have reached all.
        let next = serving.members.get(serving.cursor).map(|(first, _)| *first as usize);
        let done = serving.done..next.unwrap_or(serving.batch.len());
        serving.done = done.end;
        Some(Served { from: first as usize, done, is_last: next.is_none(), started_us })
    }

    /// Drops what lists owe to a connection that has left a topic, or all topics.
    pub(crate) fn disown(&mut self, slot: Slot, topic: Option<&str>) {
        for serving in self.owed.iter_mut() {
            if serving.is_of(topic)
                && let Some(at) = serving.find(slot)
            {
                serving.members[at].1 |= GONE;
            }
        }
    }

    /// Returns what lists owe to a connection: all of them, or those of one topic.
    pub(crate) fn owed_by_lists<'a>(
        &'a self,
        slot: Slot,
        only: Option<&str>,
    ) -> impl Iterator<Item = &'a M> + use<'a, M> {
        let only = only.map(Name::from);
        let lists = self.owed.iter().filter(move |it| only.is_none() || it.topic == only);
        lists.flat_map(move |serving| {
            let first = serving.find(slot).map(|at| serving.members[at].0 as usize);
            let from = first.unwrap_or(serving.batch.len());
            serving.batch[from..].iter().map(|queued| &queued.message)
        })
    }
}
