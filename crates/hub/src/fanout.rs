//! One message to all members, a slice at a time.
//!
//! A fan-out takes all messages that wait for its topic as one batch and goes over the members once: each gets the
//! batch in one piece. Fan-outs take turns, so that a long one doesn't delay others.

use std::collections::VecDeque;

use crate::topics::{HOLE, Members, Name, count};
use crate::{Hub, NO_FANOUT, Slot};

/// The most messages of one topic that leave together.
pub(crate) const BATCH_MAX: usize = if cfg!(test) { 5 } else { 64 };

/// A fan-out over a list longer than this is a bulk one: see [`Hub::next_slice`].
const BULK: u32 = if cfg!(test) { 20 } else { 1_024 };

/// True when a fan-out over a list of this length is a bulk one.
pub(crate) fn is_bulk(length: u32) -> bool {
    length > BULK
}

/// Fan-outs that run or wait, in the order of their turns.
#[derive(Default)]
pub(crate) struct Ready {
    small: VecDeque<u32>,
    bulk: VecDeque<u32>,
    /// True when the last turn was a bulk one, with both queues in use.
    last_was_bulk: bool,
}

impl Ready {
    fn queue(&mut self, bulk: bool) -> &mut VecDeque<u32> {
        if bulk { &mut self.bulk } else { &mut self.small }
    }

    /// Takes all fan-outs out of the queues.
    pub fn take_all(&mut self) -> Vec<u32> {
        self.small.drain(..).chain(self.bulk.drain(..)).collect()
    }

    /// Gives memory back after a spike of fan-outs.
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
    /// The next position in the list.
    cursor: u32,
    /// The first message of the batch that the member at the cursor gets.
    from: usize,
    started_us: u64,
}

pub(crate) struct Queued<M> {
    pub message: M,
    /// Members at this position and after it came later than the message.
    pub end: u32,
    /// For a broadcast: newcomers above this number came after it, see [`crate::newcomers`].
    pub newcomers: u64,
}

impl<M> Fanout<M> {
    /// Returns the messages that have not reached all of their members.
    pub fn unserved(&self) -> impl Iterator<Item = &Queued<M>> {
        self.batch[self.from..].iter().chain(&self.queue)
    }

    /// Returns the messages that the member at this position has still to get.
    pub fn waiting(&self, position: u32) -> impl Iterator<Item = &Queued<M>> {
        let passed = position < self.cursor;
        let batch = if passed { &[] } else { &self.batch[self.from..] };
        batch.iter().chain(&self.queue).filter(move |queued| queued.end > position)
    }
}

/// The connections of a slice.
pub type Slots<'a> = &'a [Slot];

/// The next piece of work: these messages, in this order, to each of these connections.
pub struct Slice<'a, M> {
    pub(crate) messages: &'a [Queued<M>],
    /// The messages that have reached all of their members with this slice.
    pub(crate) done: &'a [Queued<M>],
    /// The members; may be empty.
    pub slots: Slots<'a>,
    /// The topic of the members; `None` for a broadcast.
    pub topic: Option<&'a Name>,
    /// Set with the last slice of a batch: the time of its first slice.
    pub finished_since_us: Option<u64>,
}

impl<'a, M> Slice<'a, M> {
    /// The messages, oldest first; at least one.
    pub fn messages(&self) -> impl ExactSizeIterator<Item = &'a M> + Clone + use<'a, M> {
        self.messages.iter().map(|queued| &queued.message)
    }

    /// Returns the messages that have reached all their members with this slice.
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

    /// Returns the number of fan-outs that run or wait.
    pub fn fanouts(&self) -> usize {
        self.owed.len() + self.ready.small.len() + self.ready.bulk.len()
    }

    /// Returns the number of fan-outs that go over long lists, or wait for one that does.
    pub fn bulk_fanouts(&self) -> usize {
        self.owed.bulk_count() + self.ready.bulk.len()
    }

    /// Returns the number of messages that wait for the next batch of their fan-out.
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// Returns the next piece of work, to at most `members_max` connections; `None` when all is done. Fan-outs take
    /// turns, a slice each. The small and the bulk ones have separate queues, which alternate, so that neither waits
    /// long for the other. Without `bulk` only the small ones go on. `now_us` is any clock; see
    /// [`Slice::finished_since_us`].
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
        // A fan-out whose batch is done ends with the next call, when no slice borrows its messages.
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
                self.ready.last_was_bulk = !self.ready.last_was_bulk;
                self.ready.last_was_bulk
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

    /// Returns the messages to the connection's topics, and to everyone, that have not reached it yet: it would miss
    /// them if it left now. They are in order for each topic. With `topic` (hash and name), returns only that
    /// topic's.
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
            // A connection that came after a broadcast may have any slot, so only broadcasts to the same connections
            // share a batch.
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
