//! The entries of connections in the registry of presence.

use std::collections::HashMap;
use std::sync::Arc;

use minicbor::{Decode, Encode};
use model::{Name, NodeId};
use presence::{PassedEntry, Presence, Ref};

use crate::core::shrink::Shrink;
use crate::handover::value::Text;

/// The most users of a connection that have an entry in a topic. Further users get their messages but have no entry:
/// a connection that names hundreds in each of its topics would fill every snapshot.
const USERS_PER_CONNECTION_MAX: usize = 8;

/// The entries of connections in the registry of presence, by slot.
pub(crate) struct PresenceEntries {
    registry: Arc<dyn Presence>,
    entries: HashMap<u32, Vec<Entry>>,
}

/// The entries of a connection in one topic.
struct Entry {
    hash: u64,
    topic: Name,
    users: Box<[(Name, Ref)]>,
}

/// An entry on its way to another engine: users with their refs, as node and number.
#[derive(Encode, Decode)]
#[cbor(map)]
pub(crate) struct EntryRecord {
    #[n(0)]
    topic: Text<Name>,
    #[n(1)]
    users: Vec<(Text<Name>, u32, u64)>,
    /// For each user the payload, and the ref before the present one. `None` if all payloads are empty and no ref has
    /// changed.
    #[n(2)]
    passed: Option<Vec<PassedEntryRecord>>,
}

/// A payload, and the node and the number of the ref before it.
type PassedEntryRecord = (String, Option<(u32, u64)>);

/// The payload of a client that shows none.
const NO_META: &str = "{}";

impl PresenceEntries {
    /// Creates an empty list of entries in this registry.
    pub fn new(registry: Arc<dyn Presence>) -> Self {
        PresenceEntries { registry, entries: HashMap::new() }
    }

    /// Users of a connection enter a topic. Only the first `USERS_PER_CONNECTION_MAX` get an entry.
    pub fn enter<'a>(
        &mut self,
        slot: u32,
        (hash, topic): (u64, &str),
        users: impl Iterator<Item = &'a str>,
        meta: &str,
        now_us: u64,
    ) {
        let enter = |user: &str| (user.into(), self.registry.enter(topic, user, meta, now_us));
        let users: Box<[_]> = users.take(USERS_PER_CONNECTION_MAX).map(enter).collect();
        if !users.is_empty() {
            let entry = Entry { hash, topic: topic.into(), users };
            self.entries.entry(slot).or_default().push(entry);
        }
    }

    /// Another user of a connection enters these topics. A topic has at most `USERS_PER_CONNECTION_MAX` entries of
    /// a connection.
    pub fn enter_as(
        &mut self,
        slot: u32,
        user: &str,
        topics: Vec<(u64, Name)>,
        meta: &str,
        now_us: u64,
    ) {
        if topics.is_empty() {
            return;
        }
        let entries = self.entries.entry(slot).or_default();
        for (hash, topic) in topics {
            let known = entries.iter().position(|entry| entry.topic == topic);
            if known.is_some_and(|at| entries[at].users.len() >= USERS_PER_CONNECTION_MAX) {
                continue;
            }
            let of = self.registry.enter(&topic, user, meta, now_us);
            match known {
                Some(at) => {
                    let users = std::mem::take(&mut entries[at].users).into_iter();
                    entries[at].users = users.chain([(user.into(), of)]).collect();
                }
                None => entries.push(Entry { hash, topic, users: [(user.into(), of)].into() }),
            }
        }
    }

    /// Removes the entries of a user that the connection has logged out.
    pub fn leave_as(&mut self, slot: u32, user: &str, now_us: u64) {
        let Some(entries) = self.entries.get_mut(&slot) else {
            return;
        };
        entries.retain_mut(|entry| {
            let users = std::mem::take(&mut entry.users).into_iter();
            let (gone, left): (Vec<_>, Vec<_>) = users.partition(|(name, _)| name == user);
            gone.iter().for_each(|(_, of)| self.registry.leave(&entry.topic, user, *of, now_us));
            entry.users = left.into();
            !entry.users.is_empty()
        });
        if entries.is_empty() {
            self.entries.remove(&slot);
        }
    }

    /// The connection has left a topic.
    pub fn leave(&mut self, slot: u32, topic: &str, now_us: u64) {
        let Some(entries) = self.entries.get_mut(&slot) else {
            return;
        };
        let Some(at) = entries.iter().position(|entry| entry.topic == topic) else {
            return;
        };
        let gone = entries.swap_remove(at);
        if entries.is_empty() {
            self.entries.remove(&slot);
        }
        self.unlist(&[gone], now_us);
    }

    /// The connection has left all topics.
    pub fn leave_all(&mut self, slot: u32, now_us: u64) {
        if let Some(gone) = self.entries.remove(&slot) {
            self.unlist(&gone, now_us);
        }
    }

    /// Exports the entries of a connection.
    pub fn export(&self, slot: u32) -> Vec<EntryRecord> {
        let user = |(name, of): &(Name, Ref)| (Text(name.clone()), of.node().0, of.number());
        let entry = |Entry { hash: _, topic, users }: &Entry| {
            let passed =
                users.iter().map(|(user, of)| match self.registry.passed(topic, user, *of) {
                    Some(PassedEntry { meta, prev }) => {
                        (meta.into(), prev.map(|prev| (prev.node().0, prev.number())))
                    }
                    None => (NO_META.into(), None),
                });
            let passed: Vec<PassedEntryRecord> = passed.collect();
            let is_plain = passed.iter().all(|(meta, prev)| meta == NO_META && prev.is_none());
            EntryRecord {
                topic: Text(topic.clone()),
                users: users.iter().map(user).collect(),
                passed: (!is_plain).then_some(passed),
            }
        };
        self.entries.get(&slot).into_iter().flatten().map(entry).collect()
    }

    /// Imports the entries of a connection, and restores in the registry those that it lacks: members already know
    /// them.
    pub fn import(&mut self, slot: u32, records: Vec<EntryRecord>, hash: &dyn Fn(&str) -> u64) {
        let user =
            |(name, node, number): (Text<Name>, u32, u64)| (name.0, Ref::new(NodeId(node), number));
        let entry = |EntryRecord { topic: Text(topic), users, passed }| {
            let mut passed = passed.unwrap_or_default().into_iter();
            let users: Box<[(Name, Ref)]> = users.into_iter().map(user).collect();
            for (user, of) in &users {
                let (meta, prev) = passed.next().unwrap_or((NO_META.into(), None));
                let prev = prev.map(|(node, number)| Ref::new(NodeId(node), number));
                self.registry.restore(&topic, user, *of, &PassedEntry { meta: meta.into(), prev });
            }
            Entry { hash: hash(&topic), topic, users }
        };
        if !records.is_empty() {
            self.entries.insert(slot, records.into_iter().map(entry).collect());
        }
    }

    /// Undoes an import.
    pub fn unrestore(&mut self, slot: u32) {
        for Entry { topic, users, .. } in self.entries.remove(&slot).into_iter().flatten() {
            users.iter().for_each(|(user, of)| self.registry.unrestore(&topic, user, *of));
        }
    }

    fn unlist(&self, gone: &[Entry], now_us: u64) {
        for Entry { topic, users, .. } in gone {
            for (user, of) in users {
                self.registry.leave(topic, user, *of, now_us);
            }
        }
    }

    /// Changes the payload of the connection's entries in a topic; false when it has none.
    pub fn update(&mut self, slot: u32, hash: u64, meta: &str, now_us: u64) -> bool {
        let entries = self.entries.get_mut(&slot);
        let Some(entry) = entries.and_then(|all| all.iter_mut().find(|it| it.hash == hash)) else {
            return false;
        };
        let mut any = false;
        for (user, of) in &mut entry.users {
            if let Some(new) = self.registry.update(&entry.topic, user, *of, meta, now_us) {
                *of = new;
                any = true;
            }
        }
        any
    }

    /// Returns the connection's first user in a topic.
    pub fn own(&self, slot: u32, topic: &str) -> Option<(&str, Ref)> {
        let mut entries = self.entries.get(&slot).into_iter().flatten();
        let own = entries.find(|it| it.topic == topic).and_then(|it| it.users.first());
        own.map(|(user, of)| (user.as_str(), *of))
    }

    /// Gives memory back after a spike.
    pub fn shrink(&mut self) {
        self.entries.shrink();
    }
}
