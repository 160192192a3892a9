//! Who is in the topics with presence: the shard enters its connections into the registry of all
//! shards, and the first shard publishes what the registry has to say to the members.

use std::collections::HashMap;
use std::sync::Arc;

use model::{Data, Name, Publication, TopicKind};
use presence::{Answer, COUNT, Completion, List, Presence, Ref, STATE, Snapshot};
use protocol::Delivery;
use protocol::http;
use protocol::request::Respond;

use crate::command::{Command, PresenceQuery};
use crate::connections::Connections;
use crate::core::Core;
use crate::receive::Actions;
use crate::tidy::Roomy;

/// Users of one connection that are present in a topic through it. A connection may name more, and
/// those get their messages but are not listed: one that names hundreds in each of its topics would
/// fill every list.
const USERS_PER_CONNECTION_MAX: usize = 8;

/// Topics whose notices are composed at a time.
const TOPICS_PER_TAKE: usize = 64;

/// How often that is done in a row; what is due then still waits until the next pass.
const TAKES_MAX: usize = 16;

/// What connections have in the registry of presence, by slot.
pub(crate) struct PresenceEntries {
    registry: Arc<dyn Presence>,
    entries: HashMap<u32, Vec<Entry>>,
}

/// What a connection has in the registry for one topic.
struct Entry {
    hash: u64,
    topic: Name,
    users: Box<[(Name, Ref)]>,
}

impl PresenceEntries {
    /// None yet, in this registry.
    pub fn new(registry: Arc<dyn Presence>) -> Self {
        PresenceEntries { registry, entries: HashMap::new() }
    }

    /// Users of a connection are in a topic now. Only the first few of them are listed.
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

    /// Another user of a connection is in these topics now, and says nothing about itself. A
    /// connection has only so many that are listed.
    pub fn enter_as(&mut self, slot: u32, user: &str, topics: Vec<(u64, Name)>, now_us: u64) {
        if topics.is_empty() {
            return;
        }
        let entries = self.entries.entry(slot).or_default();
        for (hash, topic) in topics {
            let known = entries.iter().position(|entry| entry.topic == topic);
            if known.is_some_and(|at| entries[at].users.len() >= USERS_PER_CONNECTION_MAX) {
                continue;
            }
            let of = self.registry.enter(&topic, user, "{}", now_us);
            match known {
                Some(at) => {
                    let users = std::mem::take(&mut entries[at].users).into_iter();
                    entries[at].users = users.chain([(user.into(), of)]).collect();
                }
                None => entries.push(Entry { hash, topic, users: [(user.into(), of)].into() }),
            }
        }
    }

    /// A user is the connection's no longer, and is there no longer through it.
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

    fn unlist(&self, gone: &[Entry], now_us: u64) {
        for Entry { topic, users, .. } in gone {
            for (user, of) in users {
                self.registry.leave(topic, user, *of, now_us);
            }
        }
    }

    /// Gives the connection's entries in a topic another meta; false when it has none.
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

    /// The connection's first user in a topic.
    fn own(&self, slot: u32, topic: &str) -> Option<(&str, Ref)> {
        let mut entries = self.entries.get(&slot).into_iter().flatten();
        let own = entries.find(|it| it.topic == topic).and_then(|it| it.users.first());
        own.map(|(user, of)| (user.as_str(), *of))
    }

    /// Gives room back that a crowd has left.
    pub fn tidy(&mut self) {
        self.entries.tidy();
    }
}

impl Connections {
    /// The connection has entered a topic with presence: its users are there now. A long poll of our
    /// own comes and goes with every request, and is not counted.
    pub(crate) fn enter_presence(&mut self, slot: u32, topic: &str, meta: &str) {
        let protocols = self.core.shared.protocols;
        let Core { table, hub, broker, entries, now_us, .. } = &mut self.core;
        if table.get(slot).is_some_and(|it| protocols.delivery(it.encoding) != Delivery::Woken) {
            let users = hub.topics_of(slot).filter_map(|name| TopicKind::of(name).user());
            entries.enter(slot, (broker.hash(topic), topic), users, meta, *now_us);
        }
    }

    /// Another user of the connection is there now, in all of its topics with presence.
    pub(crate) fn enter_presence_as(&mut self, slot: u32, user: &str) {
        let Core { hub, settings, broker, entries, now_us, .. } = &mut self.core;
        let policy = &settings.session.policy;
        let topics = hub.topics_of(slot).filter(|name| policy.topic(name).presence());
        let topics = topics.map(|name| (broker.hash(name), name.clone())).collect();
        entries.enter_as(slot, user, topics, *now_us);
    }
}

impl Actions<'_> {
    /// A list that was not there at once has come.
    pub(crate) fn presence_listed(&mut self, slot: u32, query: PresenceQuery, list: List) {
        match query {
            PresenceQuery::Join { topic, join_ref } => {
                self.connections.core.send_late_list(slot, &topic, &join_ref, list);
            }
            PresenceQuery::Http { topic, respond } => {
                let json = presence_json(&topic, list);
                self.connections.answer_late(slot, respond.keep_alive, |out| {
                    http::json_answer(&respond, json.as_bytes(), out);
                });
            }
        }
    }
}

impl Connections {
    /// `GET /presence`. The request waits when the answer comes later.
    pub(crate) fn presence_request(
        &mut self,
        slot: u32,
        topic: Name,
        respond: Respond,
        from: usize,
        out: &mut Vec<u8>,
    ) {
        let query = PresenceQuery::Http { topic: topic.clone(), respond: respond.clone() };
        match self.core.shared.presence.list(&topic, None, self.core.listed_later(slot, query)) {
            Answer::Now(list) => {
                http::json_answer(&respond, presence_json(&topic, list).as_bytes(), out);
                self.answered(slot, from, respond.keep_alive, out);
            }
            Answer::Later => {
                self.wait_for_answer(slot, out);
            }
        }
    }
}

impl Core {
    /// Who is in a topic, for a new member that has joined with this ref. `None` when the answer
    /// comes later: the mailbox brings it to [`Actions::presence_listed`].
    pub(crate) fn presence_of(&self, slot: u32, topic: &str, join_ref: &str) -> Option<List> {
        let own = self.entries.own(slot, topic);
        let query = PresenceQuery::Join { topic: topic.into(), join_ref: join_ref.into() };
        match self.shared.presence.list(topic, own, self.listed_later(slot, query)) {
            Answer::Now(list) => Some(list),
            Answer::Later => None,
        }
    }

    /// Brings a list to this shard's mailbox.
    fn listed_later(&self, slot: u32, query: PresenceQuery) -> Completion<List> {
        let serial = self.table.get(slot).map_or(0, |connection| connection.serial);
        let handle = self.handle.clone();
        Box::new(move |list| handle.send(Command::PresenceListed { slot, serial, query, list }))
    }

    /// Publishes what has changed, for all shards: only the first one does it.
    pub(crate) fn publish_presence(&mut self) {
        if self.number > 0 {
            return;
        }
        for _ in 0..TAKES_MAX {
            let mut batches = self.shared.presence.take(self.now_us, TOPICS_PER_TAKE);
            if batches.is_empty() {
                return;
            }
            for batch in &mut batches {
                batch.publish(&mut |topic, event, json| {
                    let publication = Publication {
                        topic: topic.into(),
                        event: Some(event.into()),
                        data: Data::Json(json.into()),
                        except: None,
                        attributes: None,
                    };
                    self.broker.publish(publication, None).is_ok()
                });
            }
            self.shared.presence.confirm(batches, self.now_us);
        }
    }
}

/// What a new member gets: the list, and the counts where there is none.
pub(crate) fn join_notices(list: List) -> Vec<(&'static str, String)> {
    let counts = list.counts;
    let users = list.users.map_or_else(|| "{}".into(), Snapshot::into_json);
    let mut all = vec![(STATE, users)];
    if !counts.listed {
        let (users, connections) = (counts.users, counts.connections);
        let json = format!("{{\"users\":{users},\"connections\":{connections}}}");
        all.push((COUNT, json));
    }
    all
}

/// The answer to a client that asks who is in a topic.
fn presence_json(topic: &str, list: List) -> String {
    let users = list.users.map(Snapshot::into_json);
    let mut name = Vec::new();
    protocol::json::string(topic, &mut name);
    format!(
        "{{\"topic\":{},\"users\":{},\"connections\":{},\"presences\":{}}}",
        String::from_utf8_lossy(&name),
        list.counts.users,
        list.counts.connections,
        users.as_deref().unwrap_or("null")
    )
}

#[cfg(test)]
mod tests;
