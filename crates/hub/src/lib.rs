//! Who is where: connections, topics, and the fan-outs that are under way.
//!
//! Plain data structures driven by calls: no socket, thread, encoder, clock or randomness. One
//! shard owns one [`Hub`]. A connection is a slot, a small number that the shard chooses.
//!
//! # What a connection costs
//! 24 bytes (its first two topics are held inline), four bytes in each topic with more than one
//! member, and, for a topic of its own, 40 bytes and about nine of index.

mod fanout;
mod index;
mod paged;
pub mod presence;
mod topics;

use fanout::{Fanout, Kind, Queued, Ready};
pub use fanout::{Slice, Slots};
use index::Index;
use paged::Paged;
pub use topics::Name;
use topics::{HOLE, Many, Members, Topic};

/// A connection's place in its shard.
pub type Slot = u32;

const NO_FANOUT: u32 = u32::MAX;
const VACANT: u32 = u32::MAX;
const INLINE: usize = 2;

/// A connection's side of its topics.
#[derive(Clone, Copy)]
struct Member {
    /// The first two topics; with more, `subs[0].topic` is the place of a vector of all of them.
    subs: [Sub; INLINE],
    /// How many connections were here before: tells apart those that had the slot in turn.
    serial: u32,
    /// How many topics; `VACANT` where nobody is.
    count: u32,
}

/// One topic of a connection, and where it stands in the topic's list.
#[derive(Clone, Copy, Default)]
struct Sub {
    topic: u32,
    at: u32,
}

const _: () = assert!(size_of::<Member>() <= 24);
const _: () = assert!(size_of::<Topic>() <= 40);

const NOBODY: Member = Member { subs: [Sub { topic: 0, at: 0 }; INLINE], serial: 0, count: VACANT };

/// The index of one shard. `M` is a shared handle to a message.
pub struct Hub<M> {
    members: Paged<Member>,
    connections: u32,
    next_serial: u32,
    topics: Paged<Topic>,
    free_topic: u32,
    live_topics: u32,
    many: Vec<Many>,
    free_many: Vec<u32>,
    spills: Vec<Vec<Sub>>,
    free_spills: Vec<u32>,
    index: Index,
    fanouts: Vec<Fanout<M>>,
    free_fanouts: Vec<u32>,
    ready: Ready,
    broadcast: Option<u32>,
    queued: usize,
    slots: Vec<Slot>,
}

impl<M> Default for Hub<M> {
    fn default() -> Self {
        Hub {
            members: Paged::default(),
            connections: 0,
            next_serial: 0,
            topics: Paged::default(),
            free_topic: u32::MAX,
            live_topics: 0,
            many: Vec::new(),
            free_many: Vec::new(),
            spills: Vec::new(),
            free_spills: Vec::new(),
            index: Index::default(),
            fanouts: Vec::new(),
            free_fanouts: Vec::new(),
            ready: Ready::default(),
            broadcast: None,
            queued: 0,
            slots: Vec::new(),
        }
    }
}

impl<M> Hub<M> {
    /// Takes a connection in. The slot must be vacant. Broadcasts published before don't reach it.
    pub fn insert(&mut self, slot: Slot) {
        while self.members.len() <= slot as usize {
            self.members.push(NOBODY);
        }
        let serial = self.next_serial;
        self.next_serial = self.next_serial.wrapping_add(1);
        let member = self.members.get_mut(slot as usize);
        debug_assert_eq!(member.count, VACANT, "slot {slot} is taken");
        *member = Member { serial, count: 0, ..NOBODY };
        self.connections += 1;
    }

    /// Takes a connection out of all its topics and vacates the slot. Gives the number of topics
    /// that ended with it.
    pub fn remove(&mut self, slot: Slot) -> u32 {
        if !self.is_here(slot) {
            return 0;
        }
        let mut ended = 0;
        while let Some(sub) = self.last_sub(slot) {
            ended += u32::from(self.leave_topic(slot, sub.topic));
        }
        *self.members.get_mut(slot as usize) = NOBODY;
        self.connections -= 1;
        ended
    }

    /// True while a connection has the slot.
    pub fn is_here(&self, slot: Slot) -> bool {
        (slot as usize) < self.members.len() && self.members.get(slot as usize).count != VACANT
    }

    /// How many connections the hub had taken in before the one in the slot.
    pub fn serial(&self, slot: Slot) -> Option<u32> {
        self.is_here(slot).then(|| self.members.get(slot as usize).serial)
    }

    /// Connections here.
    pub fn connections(&self) -> u32 {
        self.connections
    }

    /// Topics with members.
    pub fn topics(&self) -> u32 {
        self.live_topics
    }

    /// How many topics the connection is in.
    pub fn count(&self, slot: Slot) -> usize {
        if self.is_here(slot) { self.members.get(slot as usize).count as usize } else { 0 }
    }

    /// Enters a topic; false when the connection is in it already or isn't here. Messages
    /// published before don't reach it.
    pub fn join(&mut self, slot: Slot, hash: u64, name: &str) -> bool {
        if !self.is_here(slot) {
            return false;
        }
        let topic = match self.find(hash, name) {
            Some(topic) if self.subs(slot).iter().any(|sub| sub.topic == topic) => return false,
            Some(topic) => topic,
            None => self.new_topic(hash, name),
        };
        let at = match self.topics.get(topic as usize).members {
            Members::None => {
                self.live_topics += 1;
                self.topics.get_mut(topic as usize).members = Members::One(slot);
                0
            }
            Members::One(first) => {
                let many = self.new_many(&[first, slot]);
                self.topics.get_mut(topic as usize).members = Members::Many(many);
                1
            }
            Members::Many(many) => {
                let many = &mut self.many[many as usize];
                if many.members() == 0 {
                    self.live_topics += 1;
                }
                many.slots.push(slot);
                many.slots.len() as u32 - 1
            }
            Members::Free(_) => unreachable!("the index holds live topics only"),
        };
        self.push_sub(slot, Sub { topic, at });
        true
    }

    /// Leaves a topic; `None` when the connection isn't in it, else whether the topic ended.
    pub fn leave(&mut self, slot: Slot, hash: u64, name: &str) -> Option<bool> {
        let topic = self.find(hash, name)?;
        let is_in = self.is_here(slot) && self.subs(slot).iter().any(|sub| sub.topic == topic);
        is_in.then(|| self.leave_topic(slot, topic))
    }

    /// How many connections are in the topic.
    pub fn members(&self, hash: u64, name: &str) -> u32 {
        self.find(hash, name).map_or(0, |topic| self.members_of(topic))
    }

    /// The connections in the topic.
    pub fn slots(&self, hash: u64, name: &str) -> Vec<Slot> {
        self.each_slot(hash, name).collect()
    }

    /// The same one after the other, for whoever needs only some of them.
    pub fn each_slot(&self, hash: u64, name: &str) -> impl Iterator<Item = Slot> {
        let members = self.find(hash, name).map(|topic| self.topics.get(topic as usize).members);
        let (one, many) = match members {
            Some(Members::One(slot)) => (Some(slot), None),
            Some(Members::Many(many)) => (None, Some(&self.many[many as usize].slots)),
            Some(Members::None | Members::Free(_)) | None => (None, None),
        };
        let many = many.into_iter().flat_map(|slots| (0..slots.len()).map(|at| *slots.get(at)));
        one.into_iter().chain(many).filter(|slot| *slot != HOLE)
    }

    /// The names of the topics a connection is in.
    pub fn topics_of(&self, slot: Slot) -> impl Iterator<Item = &Name> {
        let subs = if self.is_here(slot) { self.subs(slot) } else { &[] };
        subs.iter().map(|sub| &self.topics.get(sub.topic as usize).name)
    }

    /// Every topic that has members: name, members and the low half of its hash.
    pub fn all_topics(&self) -> impl Iterator<Item = (&Name, u32, u32)> {
        (0..self.topics.len() as u32).filter_map(|id| {
            let members = self.members_of(id);
            let topic = self.topics.get(id as usize);
            (members > 0).then_some((&topic.name, members, topic.hash))
        })
    }

    /// Hands a message to everyone who is in the topic now; gives their number. It is carried by
    /// [`Hub::next_slice`], behind what the topic has waiting.
    pub fn publish(&mut self, hash: u64, name: &str, message: M) -> u32 {
        let Some(id) = self.find(hash, name) else {
            return 0;
        };
        let members = self.members_of(id);
        if members == 0 {
            return 0;
        }
        let end = self.places_of(id);
        let topic = self.topics.get_mut(id as usize);
        if topic.fanout == NO_FANOUT {
            topic.fanout = Self::start(
                &mut self.fanouts,
                &mut self.free_fanouts,
                &mut self.ready,
                Kind::Topic(id),
                end,
            );
        }
        let fanout = &mut self.fanouts[topic.fanout as usize];
        fanout.queue.push_back(Queued { message, end, serial: 0 });
        self.queued += 1;
        members
    }

    /// Hands a message to every connection here now; gives their number.
    pub fn broadcast(&mut self, message: M) -> u32 {
        if self.connections == 0 {
            return 0;
        }
        let end = self.members.len() as u32;
        let serial = self.next_serial;
        let id = match self.broadcast {
            Some(id) => id,
            None => Self::start(
                &mut self.fanouts,
                &mut self.free_fanouts,
                &mut self.ready,
                Kind::Broadcast,
                end,
            ),
        };
        self.broadcast = Some(id);
        self.fanouts[id as usize].queue.push_back(Queued { message, end, serial });
        self.queued += 1;
        self.connections
    }

    fn find(&self, hash: u64, name: &str) -> Option<u32> {
        self.index.find(hash as u32, |id| self.topics.get(id as usize).name == name)
    }

    /// Members, holes left out.
    fn members_of(&self, topic: u32) -> u32 {
        match self.topics.get(topic as usize).members {
            Members::None | Members::Free(_) => 0,
            Members::One(_) => 1,
            Members::Many(many) => self.many[many as usize].members(),
        }
    }

    /// The length of the topic's list, holes included.
    fn places_of(&self, topic: u32) -> u32 {
        match self.topics.get(topic as usize).members {
            Members::None | Members::Free(_) => 0,
            Members::One(_) => 1,
            Members::Many(many) => self.many[many as usize].slots.len() as u32,
        }
    }

    fn new_topic(&mut self, hash: u64, name: &str) -> u32 {
        let hash = hash as u32;
        let topic = Topic { name: name.into(), hash, members: Members::None, fanout: NO_FANOUT };
        let id = match self.free_topic {
            u32::MAX => {
                self.topics.push(topic);
                self.topics.len() as u32 - 1
            }
            free => {
                let place = self.topics.get_mut(free as usize);
                if let Members::Free(next) = place.members {
                    self.free_topic = next;
                }
                *place = topic;
                free
            }
        };
        let topics = &self.topics;
        self.index.insert(hash, id, |id| topics.get(id as usize).hash);
        id
    }

    fn free_topic(&mut self, id: u32) {
        let topic = self.topics.get_mut(id as usize);
        let hash = topic.hash;
        topic.members = Members::Free(self.free_topic);
        topic.name = Name::default();
        self.free_topic = id;
        self.index.remove(hash, id);
    }

    fn new_many(&mut self, slots: &[Slot]) -> u32 {
        let mut many = Many::default();
        slots.iter().for_each(|slot| many.slots.push(*slot));
        match self.free_many.pop() {
            Some(id) => {
                self.many[id as usize] = many;
                id
            }
            None => {
                self.many.push(many);
                self.many.len() as u32 - 1
            }
        }
    }

    fn subs(&self, slot: Slot) -> &[Sub] {
        let member = self.members.get(slot as usize);
        match member.count as usize {
            count if count <= INLINE => &member.subs[..count],
            _ => &self.spills[member.subs[0].topic as usize],
        }
    }

    fn last_sub(&self, slot: Slot) -> Option<Sub> {
        self.subs(slot).last().copied()
    }

    fn push_sub(&mut self, slot: Slot, sub: Sub) {
        let member = self.members.get_mut(slot as usize);
        let count = member.count as usize;
        member.count += 1;
        if count < INLINE {
            member.subs[count] = sub;
        } else if count == INLINE {
            let mut all = Vec::with_capacity(INLINE + 2);
            all.extend_from_slice(&member.subs);
            all.push(sub);
            member.subs[0].topic = match self.free_spills.pop() {
                Some(id) => {
                    self.spills[id as usize] = all;
                    id
                }
                None => {
                    self.spills.push(all);
                    self.spills.len() as u32 - 1
                }
            };
        } else {
            let all = &mut self.spills[member.subs[0].topic as usize];
            if all.len() == all.capacity() {
                // Not doubled: with many connections the room to spare would be megabytes.
                all.reserve_exact(4.max(all.len() / 8));
            }
            all.push(sub);
        }
    }

    /// Takes the topic from the connection's list and gives its place in the topic's list.
    fn drop_sub(&mut self, slot: Slot, topic: u32) -> u32 {
        let member = self.members.get_mut(slot as usize);
        let count = member.count as usize;
        if count <= INLINE {
            let from = usize::from(member.subs[0].topic != topic);
            let at = member.subs[from].at;
            if from == 0 {
                member.subs[0] = member.subs[1];
            }
            member.count -= 1;
            return at;
        }
        let spill = member.subs[0].topic;
        let all = &mut self.spills[spill as usize];
        let from = all.iter().position(|sub| sub.topic == topic).unwrap_or(0);
        let at = all.remove(from).at;
        member.count -= 1;
        if all.len() == INLINE {
            member.subs.copy_from_slice(all);
            *all = Vec::new();
            self.free_spills.push(spill);
        }
        at
    }

    /// A member was moved within a topic's list: tells the connection.
    fn moved(&mut self, slot: Slot, topic: u32, at: u32) {
        let member = self.members.get_mut(slot as usize);
        let count = member.count as usize;
        let subs = if count <= INLINE {
            &mut member.subs[..count]
        } else {
            &mut self.spills[member.subs[0].topic as usize][..]
        };
        if let Some(sub) = subs.iter_mut().find(|sub| sub.topic == topic) {
            sub.at = at;
        }
    }

    /// True when the topic ended.
    fn leave_topic(&mut self, slot: Slot, topic: u32) -> bool {
        let at = self.drop_sub(slot, topic);
        let (members, running) = {
            let topic = self.topics.get(topic as usize);
            (topic.members, topic.fanout != NO_FANOUT)
        };
        match members {
            Members::One(_) if running => {
                // The place must stay taken until the fan-out is past it: whoever comes next
                // stands behind, and doesn't get what was published before.
                let many = self.new_many(&[HOLE]);
                self.many[many as usize].holes.push(0);
                self.topics.get_mut(topic as usize).members = Members::Many(many);
            }
            Members::One(_) => {
                self.topics.get_mut(topic as usize).members = Members::None;
            }
            Members::Many(many) if running => {
                let many = &mut self.many[many as usize];
                *many.slots.get_mut(at as usize) = HOLE;
                many.holes.push(at);
            }
            Members::Many(many) => {
                self.fill(topic, many, at);
                self.shrink(topic, many);
            }
            Members::None | Members::Free(_) => {}
        }
        let ended = self.members_of(topic) == 0;
        if ended {
            self.live_topics -= 1;
            if !running {
                self.free_topic(topic);
            }
        }
        ended
    }

    /// Closes a hole with the last member of the list.
    fn fill(&mut self, topic: u32, many: u32, at: u32) {
        let slots = &mut self.many[many as usize].slots;
        let Some(last) = slots.pop() else { return };
        if at as usize != slots.len() {
            *slots.get_mut(at as usize) = last;
            self.moved(last, topic, at);
        }
    }

    /// Gives a list of one or none back.
    fn shrink(&mut self, topic: u32, many: u32) {
        let slots = &self.many[many as usize].slots;
        let members = match slots.len() {
            0 => Members::None,
            1 => Members::One(*slots.get(0)),
            _ => return,
        };
        if let Members::One(slot) = members {
            self.moved(slot, topic, 0);
        }
        self.topics.get_mut(topic as usize).members = members;
        self.many[many as usize] = Many::default();
        self.free_many.push(many);
    }

    /// A topic's fan-out is over: closes the holes that were left while it ran.
    fn settle(&mut self, id: u32) {
        self.topics.get_mut(id as usize).fanout = NO_FANOUT;
        if let Members::Many(many) = self.topics.get(id as usize).members {
            let mut holes = std::mem::take(&mut self.many[many as usize].holes);
            // From the last to the first: whatever is moved into a hole is then no hole itself.
            holes.sort_unstable_by(|a, b| b.cmp(a));
            for at in holes {
                self.fill(id, many, at);
            }
            self.shrink(id, many);
        }
        if self.members_of(id) == 0 {
            self.free_topic(id);
        }
    }
}

#[cfg(test)]
mod tests;
