//! Which connections are in which topics, and the running fan-outs.
//!
//! Plain data structures driven by calls: no socket, thread, encoder, clock or randomness. One shard owns one
//! [`Hub`]. A connection is a slot, a small number that the shard chooses. A message is an opaque `M`: the hub
//! encodes nothing.
//!
//! # What a connection costs
//! 20 bytes (its first two topics are stored inline), four bytes in each topic with more than one member, and, for a
//! topic of its own, 40 bytes and about nine of index. All of it is freed with the connections: see [`tables`].

#![forbid(unsafe_code)]
#![warn(
    clippy::cast_lossless,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]
#![warn(clippy::match_wildcard_for_single_variants, clippy::wildcard_enum_match_arm)]

mod fanout;
mod newcomers;
mod owed;
mod topics;

use std::num::NonZeroU32;

use fanout::{Fanout, Kind, Queued, Ready};
pub use fanout::{Slice, Slots};
use newcomers::Newcomers;
use owed::Lists;
pub use owed::Owed;
use tables::{HashIndex, PageTable, Slab};
pub use topics::Name;
use topics::{HOLE, Many, Members, Topic, count};

/// A connection's number in its shard.
pub type Slot = u32;

const NO_FANOUT: u32 = u32::MAX;
const INLINE: usize = 2;

/// A connection's side of its topics.
#[derive(Clone, Copy)]
struct Member {
    /// The first two topics; with more, `subs[0].topic` is the number of a vector of all of them.
    subs: [Sub; INLINE],
    count: Count,
}

/// How many topics a connection is in, plus one: so a vacant slot takes no more memory.
#[derive(Clone, Copy)]
struct Count(NonZeroU32);

impl Count {
    fn get(self) -> usize {
        self.0.get() as usize - 1
    }

    fn with(topics: usize) -> Self {
        Count(NonZeroU32::MIN.saturating_add(count(topics)))
    }
}

/// The index uses only this half of a topic's hash.
fn low_half(hash: u64) -> u32 {
    (hash & 0xffff_ffff) as u32
}

/// One topic of a connection, and the connection's position in the topic's list.
#[derive(Clone, Copy, Default)]
struct Sub {
    topic: u32,
    at: u32,
}

const _: () = assert!(size_of::<Option<Member>>() <= 20);
const _: () = assert!(Slab::<Topic>::SLOT_BYTES <= 40);

/// The index of one shard. `M` is a shared handle to a message.
///
/// # Examples
///
/// ```
/// use hub::Hub;
///
/// // The caller hashes names; any hash that is the same for the same name will do.
/// let (news, hash) = ("news", 0x6e65_7773);
/// let mut hub: Hub<&str> = Hub::default();
/// for slot in 0..3 {
///     hub.insert(slot);
/// }
/// hub.join(0, hash, news);
/// hub.join(2, hash, news);
/// assert_eq!(hub.publish(hash, news, "hello"), 2);
///
/// // Who joins now doesn't get what was published before, and who leaves is passed over.
/// hub.join(1, hash, news);
/// hub.remove(0);
///
/// let slice = hub.next_slice(256, true, 0).unwrap();
/// assert_eq!(slice.slots, [2]);
/// assert_eq!(slice.messages().collect::<Vec<_>>(), [&"hello"]);
/// assert!(hub.next_slice(256, true, 0).is_none());
/// ```
pub struct Hub<M> {
    members: PageTable<Member>,
    newcomers: Newcomers,
    topics: Slab<Topic>,
    live_topics: u32,
    many: Slab<Many>,
    overflow: Slab<Vec<Sub>>,
    index: HashIndex,
    fanouts: Slab<Fanout<M>>,
    ready: Ready,
    broadcast: Option<u32>,
    queued: usize,
    /// Messages of earlier fan-outs that members have not had yet.
    owed: Lists<M>,
    slots: Vec<Slot>,
}

impl<M> Default for Hub<M> {
    fn default() -> Self {
        Hub {
            members: PageTable::default(),
            newcomers: Newcomers::default(),
            topics: Slab::default(),
            live_topics: 0,
            many: Slab::default(),
            overflow: Slab::default(),
            index: HashIndex::default(),
            fanouts: Slab::default(),
            ready: Ready::default(),
            broadcast: None,
            queued: 0,
            owed: Lists::default(),
            slots: Vec::new(),
        }
    }
}

impl<M> Hub<M> {
    /// Adds a connection. The slot must be vacant. Broadcasts published before don't reach it.
    pub fn insert(&mut self, slot: Slot) {
        if self.broadcast.is_some() {
            self.newcomers.enter(slot);
        }
        let member = Member { subs: Default::default(), count: Count::with(0) };
        let before = self.members.insert(slot, member);
        debug_assert!(before.is_none(), "slot {slot} is taken");
    }

    /// Removes a connection from all its topics and vacates the slot. Returns the number of topics
    /// that ended with it.
    pub fn remove(&mut self, slot: Slot) -> u32 {
        let mut ended = 0;
        if !self.owed.is_empty() {
            self.disown(slot, None);
        }
        while let Some(sub) = self.subs(slot).last().copied() {
            ended += u32::from(self.leave_topic(slot, sub.topic));
        }
        if self.members.remove(slot).is_some() && self.broadcast.is_some() {
            self.newcomers.leave(slot);
        }
        ended
    }

    /// True while a connection has the slot.
    pub fn is_here(&self, slot: Slot) -> bool {
        self.members.get(slot).is_some()
    }

    /// Returns the number of connections.
    pub fn connections(&self) -> u32 {
        count(self.members.count())
    }

    /// Returns the number of topics with members.
    pub fn topics(&self) -> u32 {
        self.live_topics
    }

    /// Returns how many topics the connection is in.
    pub fn count(&self, slot: Slot) -> usize {
        self.members.get(slot).map_or(0, |member| member.count.get())
    }

    /// Enters a topic. Returns false if the connection is in it already, or has no slot here. Messages published before
    /// don't reach the connection.
    pub fn join(&mut self, slot: Slot, hash: u64, name: &str) -> bool {
        if !self.is_here(slot) {
            return false;
        }
        let topic = match self.find(hash, name) {
            Some(topic) if self.subs(slot).iter().any(|sub| sub.topic == topic) => return false,
            Some(topic) => topic,
            None => self.new_topic(hash, name),
        };
        let at = match self.topics[topic].members {
            Members::None => {
                self.live_topics += 1;
                self.topics[topic].members = Members::One(slot);
                0
            }
            Members::One(first) => {
                let many = self.many.insert(Many::of(&[first, slot]));
                self.topics[topic].members = Members::Many(many);
                1
            }
            Members::Many(many) => {
                let many = &mut self.many[many];
                if many.members() == 0 {
                    self.live_topics += 1;
                }
                many.slots.push(slot);
                count(many.slots.len() - 1)
            }
        };
        self.push_sub(slot, Sub { topic, at });
        true
    }

    /// Leaves a topic. Returns `None` if the connection isn't in it, otherwise whether the topic ended.
    pub fn leave(&mut self, slot: Slot, hash: u64, name: &str) -> Option<bool> {
        let topic = self.find(hash, name)?;
        let is_in = self.is_here(slot) && self.subs(slot).iter().any(|sub| sub.topic == topic);
        is_in.then(|| self.leave_topic(slot, topic))
    }

    /// Returns how many connections are in the topic.
    pub fn members(&self, hash: u64, name: &str) -> u32 {
        self.find(hash, name).map_or(0, |topic| self.members_of(topic))
    }

    /// Returns the connections in the topic.
    pub fn slots(&self, hash: u64, name: &str) -> Vec<Slot> {
        self.each_slot(hash, name).collect()
    }

    /// As `Hub::slots`, but one after the other, for a caller that needs only some of them.
    pub fn each_slot(&self, hash: u64, name: &str) -> impl Iterator<Item = Slot> + use<'_, M> {
        let members = self.find(hash, name).map(|topic| self.topics[topic].members);
        let (one, many) = match members {
            Some(Members::One(slot)) => (Some(slot), None),
            Some(Members::Many(many)) => (None, Some(&self.many[many].slots)),
            Some(Members::None) | None => (None, None),
        };
        let many = many.into_iter().flat_map(|slots| (0..slots.len()).map(|at| *slots.get(at)));
        one.into_iter().chain(many).filter(|slot| *slot != HOLE)
    }

    /// Returns the names of a connection's topics.
    pub fn topics_of(&self, slot: Slot) -> impl Iterator<Item = &Name> {
        self.subs(slot).iter().map(|sub| &self.topics[sub.topic].name)
    }

    /// Returns all topics with members: name, number of members, and the low half of the hash.
    pub fn all_topics(&self) -> impl Iterator<Item = (&Name, u32, u32)> {
        self.topics.iter().filter_map(|(_, topic)| {
            let members = self.count_of(topic);
            (members > 0).then_some((&topic.name, members, topic.hash))
        })
    }

    /// Queues a message for every connection that is in the topic now; returns their number. [`Hub::next_slice`]
    /// delivers it behind the topic's earlier messages.
    pub fn publish(&mut self, hash: u64, name: &str, message: M) -> u32 {
        let Some(id) = self.find(hash, name) else {
            return 0;
        };
        let members = self.members_of(id);
        if members == 0 {
            return 0;
        }
        let end = self.list_length(id);
        let mut fanout = self.topics[id].fanout;
        if fanout == NO_FANOUT {
            fanout = self.start(Kind::Topic(id), end);
            self.topics[id].fanout = fanout;
        }
        self.fanouts[fanout].queue.push_back(Queued { message, end, newcomers: 0 });
        self.queued += 1;
        members
    }

    /// Queues a message for every connection here now; returns their number.
    pub fn broadcast(&mut self, message: M) -> u32 {
        let connections = self.connections();
        if connections == 0 {
            return 0;
        }
        let end = self.members.end();
        let id = match self.broadcast {
            Some(id) => id,
            None => self.start(Kind::Broadcast, end),
        };
        self.broadcast = Some(id);
        let newcomers = self.newcomers.now();
        self.fanouts[id].queue.push_back(Queued { message, end, newcomers });
        self.queued += 1;
        connections
    }

    /// Frees the spare memory of the tables. The shard calls it about once a second.
    pub fn shrink(&mut self) {
        self.members.shrink();
        self.topics.shrink();
        self.many.shrink();
        self.overflow.shrink();
        self.fanouts.shrink();
        self.ready.shrink();
    }

    /// Returns the bytes of the tables that grow with connections and topics. The separate lists of members and
    /// topics don't count.
    pub fn bytes(&self) -> usize {
        self.members.bytes()
            + self.topics.bytes()
            + self.many.bytes()
            + self.overflow.bytes()
            + self.fanouts.bytes()
            + self.index.bytes()
    }

    fn find(&self, hash: u64, name: &str) -> Option<u32> {
        self.index.find(low_half(hash), |id| self.topics[id].name == name)
    }

    /// Returns the number of members, without holes.
    fn members_of(&self, topic: u32) -> u32 {
        self.count_of(&self.topics[topic])
    }

    fn count_of(&self, topic: &Topic) -> u32 {
        match topic.members {
            Members::None => 0,
            Members::One(_) => 1,
            Members::Many(many) => self.many[many].members(),
        }
    }

    /// Returns the length of the topic's list, including holes.
    fn list_length(&self, topic: u32) -> u32 {
        match self.topics[topic].members {
            Members::None => 0,
            Members::One(_) => 1,
            Members::Many(many) => count(self.many[many].slots.len()),
        }
    }

    fn new_topic(&mut self, hash: u64, name: &str) -> u32 {
        let hash = low_half(hash);
        let topic = Topic { name: name.into(), hash, members: Members::None, fanout: NO_FANOUT };
        let id = self.topics.insert(topic);
        let topics = &self.topics;
        self.index.insert(hash, id, |id| topics[id].hash);
        id
    }

    fn free_topic(&mut self, id: u32) {
        let topics = &self.topics;
        self.index.remove(topics[id].hash, id, |id| topics[id].hash);
        self.topics.remove(id);
    }

    /// Returns the topics of a connection; none if the slot is vacant.
    fn subs(&self, slot: Slot) -> &[Sub] {
        match self.members.get(slot) {
            None => &[],
            Some(member) => match member.count.get() {
                count if count <= INLINE => &member.subs[..count],
                _ => &self.overflow[member.subs[0].topic],
            },
        }
    }

    fn push_sub(&mut self, slot: Slot, sub: Sub) {
        let Some(member) = self.members.get_mut(slot) else { return };
        let count = member.count.get();
        member.count = Count::with(count + 1);
        if count < INLINE {
            member.subs[count] = sub;
        } else if count == INLINE {
            let mut all = Vec::with_capacity(INLINE + 2);
            all.extend_from_slice(&member.subs);
            all.push(sub);
            member.subs[0].topic = self.overflow.insert(all);
        } else {
            let all = &mut self.overflow[member.subs[0].topic];
            if all.len() == all.capacity() {
                // Not doubled: with many connections the spare capacity would be megabytes.
                all.reserve_exact(4.max(all.len() / 8));
            }
            all.push(sub);
        }
    }

    /// Removes the topic from the connection's list. Returns the connection's position in the topic's list.
    fn drop_sub(&mut self, slot: Slot, topic: u32) -> u32 {
        let Some(member) = self.members.get_mut(slot) else { return HOLE };
        let count = member.count.get();
        member.count = Count::with(count.saturating_sub(1));
        if count <= INLINE {
            let from = usize::from(member.subs[0].topic != topic);
            let at = member.subs[from].at;
            if from == 0 {
                member.subs[0] = member.subs[1];
            }
            return at;
        }
        let list = member.subs[0].topic;
        let all = &mut self.overflow[list];
        let from = all.iter().position(|sub| sub.topic == topic).unwrap_or(0);
        let at = all.remove(from).at;
        if all.len() == INLINE {
            member.subs.copy_from_slice(all);
            self.overflow.remove(list);
        } else if all.len() < all.capacity() / 4 {
            all.shrink_to(all.len() * 2);
        }
        at
    }

    /// Updates the connection's side when a member has moved within a topic's list.
    fn moved(&mut self, slot: Slot, topic: u32, at: u32) {
        let Some(member) = self.members.get_mut(slot) else { return };
        let count = member.count.get();
        let subs = if count <= INLINE {
            &mut member.subs[..count]
        } else {
            &mut self.overflow[member.subs[0].topic][..]
        };
        if let Some(sub) = subs.iter_mut().find(|sub| sub.topic == topic) {
            sub.at = at;
        }
    }

    /// Removes a connection from a topic. True when the topic ended.
    fn leave_topic(&mut self, slot: Slot, topic: u32) -> bool {
        if !self.owed.is_empty() {
            let name = self.topics[topic].name.clone();
            self.disown(slot, Some(&name));
        }
        let at = self.drop_sub(slot, topic);
        let (members, running) = {
            let topic = &self.topics[topic];
            (topic.members, topic.fanout != NO_FANOUT)
        };
        match members {
            Members::One(_) if running => {
                // A hole stays until the fan-out is past it: the next member goes behind it, and doesn't get what was
                // published before.
                let many = self.many.insert(Many::of(&[HOLE]));
                self.many[many].holes.push(0);
                self.topics[topic].members = Members::Many(many);
            }
            Members::One(_) => {
                self.topics[topic].members = Members::None;
            }
            Members::Many(many) if running => {
                let many = &mut self.many[many];
                *many.slots.get_mut(at as usize) = HOLE;
                many.holes.push(at);
            }
            Members::Many(many) => {
                self.fill(topic, many, at);
                self.shrink_topic(topic, many);
            }
            Members::None => {}
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
        let slots = &mut self.many[many].slots;
        let Some(last) = slots.pop() else { return };
        if at as usize != slots.len() {
            *slots.get_mut(at as usize) = last;
            self.moved(last, topic, at);
        }
    }

    /// Frees a list of one member or none.
    fn shrink_topic(&mut self, topic: u32, many: u32) {
        let slots = &self.many[many].slots;
        let members = match slots.len() {
            0 => Members::None,
            1 => Members::One(*slots.get(0)),
            _ => return,
        };
        if let Members::One(slot) = members {
            self.moved(slot, topic, 0);
        }
        self.topics[topic].members = members;
        self.many.remove(many);
    }

    /// Ends a topic's fan-out: fills the holes that were left while it ran.
    fn compact(&mut self, id: u32) {
        self.topics[id].fanout = NO_FANOUT;
        if let Members::Many(many) = self.topics[id].members {
            let mut holes = std::mem::take(&mut self.many[many].holes);
            // From the last to the first, so that no hole is filled with another hole.
            holes.sort_unstable_by(|a, b| b.cmp(a));
            for at in holes {
                self.fill(id, many, at);
            }
            self.shrink_topic(id, many);
        }
        if self.members_of(id) == 0 {
            self.free_topic(id);
        }
    }
}

#[cfg(test)]
mod tests;
