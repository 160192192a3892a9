//! Who is in the topics with presence: told to the registry that all shards share, and from there
//! to the members.

use std::sync::{MutexGuard, PoisonError};

use hub::presence::{self, Presence, Ref};
use wire::message::PERSONAL;
use wire::{Data, Draft, Name, Variant};

use crate::shard::Shard;

/// Users of one connection that are present in a topic through it. A connection may name more, and
/// those get their messages but are not listed: one that names hundreds in each of its topics would
/// fill every list.
const USERS_PER_CONNECTION_MAX: usize = 8;

/// Topics whose notices are composed at a time, while the registry is held.
const TOPICS_PER_TAKE: usize = 64;

/// How often that is done in a row; what is due then still waits until the next pass.
const TAKES_MAX: usize = 16;

/// What a connection has in the registry for one topic.
pub(crate) struct Tracked {
    hash: u64,
    topic: Name,
    users: Box<[(Name, Ref)]>,
}

impl Shard {
    /// A registry that a panicking thread held is whole: its calls leave it so. Nothing else is
    /// locked while it is held.
    fn presence(&self) -> MutexGuard<'_, Presence> {
        self.shared.presence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection has entered a topic: its users are there now. A long poll of our own comes
    /// and goes with every request, and is not counted.
    pub(crate) fn enter_presence(&mut self, slot: u32, topic: &str, meta: &str) {
        let rules = &self.settings.session.rules;
        let polls = self.table.get(slot).is_none_or(|it| it.variant == Variant::Poll);
        if polls || !rules.presence(topic) {
            return;
        }
        let users: Vec<Name> = self
            .hub
            .topics_of(slot)
            .filter_map(|name| name.strip_prefix(PERSONAL).map(Name::from))
            .take(USERS_PER_CONNECTION_MAX)
            .collect();
        if users.is_empty() {
            return;
        }
        let mut presence = self.presence();
        let enter = |user: Name| {
            let of = presence.enter(topic, &user, meta, self.now_us);
            (user, of)
        };
        let users = users.into_iter().map(enter).collect();
        drop(presence);
        let entry = Tracked { hash: self.broker.hash(topic), topic: topic.into(), users };
        self.tracked.entry(slot).or_default().push(entry);
    }

    /// The connection has left a topic.
    pub(crate) fn leave_presence(&mut self, slot: u32, topic: &str) {
        let Some(entries) = self.tracked.get_mut(&slot) else {
            return;
        };
        let Some(at) = entries.iter().position(|entry| entry.topic == topic) else {
            return;
        };
        let gone = entries.swap_remove(at);
        if entries.is_empty() {
            self.tracked.remove(&slot);
        }
        self.untrack(&[gone]);
    }

    /// The connection has left all topics.
    pub(crate) fn leave_all_presence(&mut self, slot: u32) {
        if let Some(gone) = self.tracked.remove(&slot) {
            self.untrack(&gone);
        }
    }

    fn untrack(&self, gone: &[Tracked]) {
        let mut presence = self.presence();
        for Tracked { topic, users, .. } in gone {
            users.iter().for_each(|(user, of)| presence.leave(topic, user, *of, self.now_us));
        }
    }

    /// Gives the connection's entries in a topic another meta; false when it has none.
    pub(crate) fn update_presence(&mut self, slot: u32, hash: u64, meta: &str) -> bool {
        let entries = self.tracked.get_mut(&slot);
        let Some(entry) = entries.and_then(|all| all.iter_mut().find(|it| it.hash == hash)) else {
            return false;
        };
        // Not by `presence()`, which borrows all of the shard.
        let mut presence = self.shared.presence.lock().unwrap_or_else(PoisonError::into_inner);
        let mut any = false;
        for (user, of) in &mut entry.users {
            if let Some(new) = presence.update(&entry.topic, user, *of, meta, self.now_us) {
                *of = new;
                any = true;
            }
        }
        any
    }

    /// What a new member of a topic is told: the list, and the counts where there is none.
    pub(crate) fn presence_of(&self, slot: u32, topic: &str) -> Vec<(&'static str, String)> {
        let mut entries = self.tracked.get(&slot).into_iter().flatten();
        let own = entries.find(|it| it.topic == topic).and_then(|it| it.users.first());
        let presence = self.presence();
        let list = match own {
            Some((user, of)) => presence.state_for(topic, user, *of),
            None => presence.state(topic).into(),
        };
        let counts = presence.counts(topic);
        drop(presence);
        let mut all = vec![(presence::STATE, list.into_json())];
        if !counts.listed {
            let (users, connections) = (counts.users, counts.connections);
            let json = format!("{{\"users\":{users},\"connections\":{connections}}}");
            all.push((presence::COUNT, json));
        }
        all
    }

    /// The answer to a client that asks who is in a topic.
    pub(crate) fn presence_answer(&self, topic: &str) -> String {
        let presence = self.presence();
        let counts = presence.counts(topic);
        let list = counts.listed.then(|| presence.state(topic));
        drop(presence);
        let mut name = Vec::new();
        wire::command::push_string(topic, &mut name);
        format!(
            "{{\"topic\":{},\"users\":{},\"connections\":{},\"presences\":{}}}",
            String::from_utf8_lossy(&name),
            counts.users,
            counts.connections,
            list.as_deref().unwrap_or("null")
        )
    }

    /// Publishes what has changed. The first shard does it for all. The registry is not held
    /// meanwhile: the broker has a lock of its own, and members come and go.
    pub(crate) fn tell_presence(&mut self) {
        if self.number > 0 {
            return;
        }
        for _ in 0..TAKES_MAX {
            let mut batches = self.presence().take(self.now_us, TOPICS_PER_TAKE);
            if batches.is_empty() {
                return;
            }
            for batch in &mut batches {
                batch.publish(&mut |topic, event, json| {
                    let draft = Draft {
                        topic: topic.into(),
                        event: Some(event.into()),
                        data: Data::Json(json.into()),
                        except: None,
                        marks: None,
                    };
                    self.broker.publish(draft, None).is_ok()
                });
            }
            self.presence().confirm(batches, self.now_us);
        }
    }
}
