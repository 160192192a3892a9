//! One message to all members, a slice at a time.
//!
//! A fan-out takes all messages that wait for its topic as one batch and goes over the members
//! once: each gets the batch in one piece. Fan-outs take turns, so that a long one delays nobody.

use std::collections::VecDeque;

use crate::topics::{HOLE, Members, Name, count};
use crate::{Hub, NO_FANOUT, Slot};

/// The most messages of one topic that leave together.
pub(crate) const BATCH_MAX: usize = if cfg!(test) { 5 } else { 64 };

/// A fan-out over a list longer than this is a bulk one: see [`Hub::next_slice`].
const BULK: u32 = if cfg!(test) { 20 } else { 1_024 };

/// Whether a fan-out over a list of this length is a bulk one.
pub(crate) fn is_bulk(length: u32) -> bool {
    length > BULK
}

/// Fan-outs that are under way or wait, in the order of their turns.
#[derive(Default)]
pub(crate) struct Ready {
    small: VecDeque<u32>,
    bulk: VecDeque<u32>,
    /// Whose turn it is when both have some.
    bulk_next: bool,
}

impl Ready {
    fn queue(&mut self, bulk: bool) -> &mut VecDeque<u32> {
        if bulk { &mut self.bulk } else { &mut self.small }
    }

    /// All of them: none is under way or waits any more.
    pub fn take_all(&mut self) -> Vec<u32> {
        self.small.drain(..).chain(self.bulk.drain(..)).collect()
    }

    /// Frees the room that a crowd of fan-outs has left.
    pub fn shrink(&mut self) {
        for queue in [&mut self.small, &mut self.bulk] {
            if queue.len() < queue.capacity() / 8 {
                queue.shrink_to(queue.len() * 2);
            }
        }
    }
}

pub(crate) enum Kind {
    Topic(u32),
    Broadcast,
}

pub(crate) struct Fanout<M> {
    pub kind: Kind,
    pub queue: VecDeque<Queued<M>>,
    batch: Vec<Queued<M>>,
    /// The next place of the list to go to.
    cursor: u32,
    /// The first message of the batch that the member at the cursor gets.
    from: usize,
    started_us: u64,
}

pub(crate) struct Queued<M> {
    pub message: M,
    /// Members at this place and after it came later than the message.
    pub end: u32,
    /// For a broadcast: the number that newcomers have passed, see [`crate::newcomers`].
    pub newcomers: u64,
}

impl<M> Fanout<M> {
    /// What has not reached all of its members.
    pub fn unserved(&self) -> impl Iterator<Item = &Queued<M>> {
        self.batch[self.from..].iter().chain(&self.queue)
    }

    /// What the member at this place has still to get.
    pub fn waiting(&self, place: u32) -> impl Iterator<Item = &Queued<M>> {
        let passed = place < self.cursor;
        let batch = if passed { &[] } else { &self.batch[self.from..] };
        batch.iter().chain(&self.queue).filter(move |queued| queued.end > place)
    }
}

/// The connections of a slice.
pub type Slots<'a> = &'a [Slot];

/// The next piece of work: these messages, in this order, to each of these connections.
pub struct Slice<'a, M> {
    pub(crate) messages: &'a [Queued<M>],
    /// What has reached all of its members with this slice.
    pub(crate) done: &'a [Queued<M>],
    /// The members; may be empty.
    pub slots: Slots<'a>,
    /// The topic whose members they are; nothing where they are everyone.
    pub topic: Option<&'a Name>,
    /// Set with the last slice of a batch: when its first one was taken.
    pub finished_since_us: Option<u64>,
}

impl<'a, M> Slice<'a, M> {
    /// The messages, oldest first; at least one.
    pub fn messages(&self) -> impl ExactSizeIterator<Item = &'a M> + Clone + use<'a, M> {
        self.messages.iter().map(|queued| &queued.message)
    }

    /// The messages that have reached all their members with this slice.
    pub fn done(&self) -> impl Iterator<Item = &'a M> + use<'a, M> {
        self.done.iter().map(|queued| &queued.message)
    }
}

impl<M> Hub<M> {
    pub(crate) fn start(&mut self, kind: Kind, end: u32) -> u32 {
        let topic = match kind {
            Kind::Topic(topic) => Some(self.topics[topic].name.as_str()),
            Kind::Broadcast => None,
        };
        let is_bulk = is_bulk(end) || self.owed.has_bulk_of(topic);
        let id = self.fanouts.insert(Fanout {
            kind,
            queue: VecDeque::new(),
            batch: Vec::new(),
            cursor: 0,
            from: 0,
            started_us: 0,
        });
        self.ready.queue(is_bulk).push_back(id);
        id
    }

    /// Fan-outs that are under way or wait.
    pub fn fanouts(&self) -> usize {
        self.owed.len() + self.ready.small.len() + self.ready.bulk.len()
    }

    /// Those of them that go over long lists, or wait for one that does.
    pub fn bulk_fanouts(&self) -> usize {
        self.owed.bulk_count() + self.ready.bulk.len()
    }

    /// Messages that wait for a fan-out which is not yet theirs.
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// The next piece of work, to at most `members_max` connections; `None` when all is done.
    /// Fan-outs take turns, a slice each: the small ones and the bulk ones by themselves, and one
    /// of each after the other, so that neither waits long for the other. Without `bulk` only the
    /// small ones go on. `now_us` is any clock; see [`Slice::finished_since_us`].
    pub fn next_slice(
        &mut self,
        members_max: usize,
        bulk: bool,
        now_us: u64,
    ) -> Option<Slice<'_, M>> {
        self.owed.end_served();
        if self.owed.has_small() {
            return self.next_owed(members_max, false, now_us);
        }
        // A fan-out whose batch is done ends with the next call, when no slice holds its messages.
        for queue in [false, true] {
            while let Some(&id) = self.ready.queue(queue).front() {
                if !self.is_done(id) {
                    break;
                }
                self.ready.queue(queue).pop_front();
                self.end(id);
            }
        }
        let has_bulk = self.owed.has_bulk() || !self.ready.bulk.is_empty();
        let from = match (self.ready.small.is_empty(), bulk && has_bulk) {
            (true, false) => return None,
            (false, true) => {
                self.ready.bulk_next = !self.ready.bulk_next;
                self.ready.bulk_next
            }
            (_, bulk) => bulk,
        };
        if from && self.owed.has_bulk() {
            return self.next_owed(members_max, true, now_us);
        }
        let queue = self.ready.queue(from);
        let id = queue.pop_front()?;
        queue.push_back(id);
        self.begin_batch(id, now_us);
        self.slots.clear();
        let fanout = &self.fanouts[id];
        let end = (fanout.batch[fanout.from].end).min(fanout.cursor + count(members_max.max(1)));
        self.gather(id, end);
        let fanout = &mut self.fanouts[id];
        let from = fanout.from;
        fanout.cursor = end;
        while fanout.batch.get(fanout.from).is_some_and(|queued| queued.end <= fanout.cursor) {
            fanout.from += 1;
        }
        let fanout = &self.fanouts[id];
        let finished = fanout.from == fanout.batch.len();
        let topic = match fanout.kind {
            Kind::Topic(topic) => Some(&self.topics[topic].name),
            Kind::Broadcast => None,
        };
        Some(Slice {
            messages: &fanout.batch[from..],
            done: &fanout.batch[from..fanout.from],
            topic,
            slots: &self.slots,
            finished_since_us: finished.then_some(fanout.started_us),
        })
    }

    /// What was published to the connection's topics, and to everyone, and has not reached it yet:
    /// what it would miss if it left now. In order for each topic. With `topic` (hash and name),
    /// what comes from there alone.
    pub fn owed(&self, slot: Slot, topic: Option<(u64, &str)>) -> Vec<&M> {
        if !self.is_here(slot) {
            return Vec::new();
        }
        let only = topic.map(|(hash, name)| self.find(hash, name));
        let mut owed = Vec::new();
        if !self.owed.is_empty() {
            owed.extend(self.owed_by_lists(slot, topic.map(|(_, name)| name)));
        }
        for sub in self.subs(slot) {
            let fanout = self.topics[sub.topic].fanout;
            if fanout != NO_FANOUT && only.is_none_or(|only| only == Some(sub.topic)) {
                let waiting = self.fanouts[fanout].waiting(sub.at);
                owed.extend(waiting.map(|queued| &queued.message));
            }
        }
        if let Some(id) = self.broadcast.filter(|_| only.is_none()) {
            let waiting = self.fanouts[id].waiting(slot);
            let waiting =
                waiting.filter(|queued| !self.newcomers.came_after(slot, queued.newcomers));
            owed.extend(waiting.map(|queued| &queued.message));
        }
        owed
    }

    fn is_done(&self, id: u32) -> bool {
        let fanout = &self.fanouts[id];
        fanout.from == fanout.batch.len() && fanout.queue.is_empty()
    }

    fn begin_batch(&mut self, id: u32, now_us: u64) {
        let fanout = &mut self.fanouts[id];
        if fanout.from < fanout.batch.len() {
            return;
        }
        fanout.batch.clear();
        (fanout.cursor, fanout.from, fanout.started_us) = (0, 0, now_us);
        while let Some(next) = fanout.queue.pop_front_if(|next| {
            // Who came after a broadcast may have any slot: only messages for the same crowd go
            // together.
            let same = fanout.batch.first().is_none_or(|first| first.newcomers == next.newcomers);
            same && fanout.batch.len() < BATCH_MAX
        }) {
            fanout.batch.push(next);
            self.queued -= 1;
        }
    }

    /// Collects the members from the cursor up to `end`.
    fn gather(&mut self, id: u32, end: u32) {
        let fanout = &self.fanouts[id];
        match fanout.kind {
            Kind::Broadcast => {
                let broadcast = fanout.batch[fanout.from].newcomers;
                let all = self.newcomers.is_empty();
                for slot in fanout.cursor..end.min(self.members.end()) {
                    if self.members.get(slot).is_some()
                        && (all || self.newcomers.passes(slot, broadcast))
                    {
                        self.slots.push(slot);
                    }
                }
            }
            Kind::Topic(topic) => match self.topics[topic].members {
                Members::One(slot) => self.slots.push(slot),
                Members::Many(many) => {
                    let list = &self.many[many].slots;
                    for at in fanout.cursor..end {
                        let slot = *list.get(at as usize);
                        if slot != HOLE {
                            self.slots.push(slot);
                        }
                    }
                }
                Members::None => {}
            },
        }
    }

    pub(crate) fn end(&mut self, id: u32) {
        match self.fanouts.remove(id).kind {
            Kind::Topic(topic) => {
                debug_assert_ne!(self.topics[topic].fanout, NO_FANOUT);
                self.compact(topic);
            }
            Kind::Broadcast => {
                self.broadcast = None;
                self.newcomers.clear();
            }
        }
    }
}
