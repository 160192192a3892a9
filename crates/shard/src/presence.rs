//! Who is in the topics with presence: told to the registry that all shards share, and from there
//! to the members.

use std::sync::{MutexGuard, PoisonError};

use hub::presence::{self, Presence, Ref};
use wire::message::PERSONAL;
use wire::{Data, Draft, Name, Variant};

use crate::shard::Shard;

/// One entry that a connection has in the registry.
pub(crate) struct Tracked {
    hash: u64,
    topic: Name,
    user: Name,
    of: Ref,
}

impl Shard {
    /// A registry that a panicking thread held is whole: its calls leave it so.
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
        let hash = self.broker.hash(topic);
        let users: Vec<Name> = self
            .hub
            .topics_of(slot)
            .filter_map(|name| name.strip_prefix(PERSONAL).map(Name::from))
            .collect();
        for user in users {
            let of = self.presence().enter(topic, &user, meta, self.now_us);
            let entry = Tracked { hash, topic: topic.into(), user, of };
            self.tracked.entry(slot).or_default().push(entry);
        }
    }

    /// The connection has left a topic.
    pub(crate) fn leave_presence(&mut self, slot: u32, topic: &str) {
        let now_us = self.now_us;
        let Some(entries) = self.tracked.get_mut(&slot) else {
            return;
        };
        let gone: Vec<Tracked> = entries.extract_if(.., |entry| entry.topic == topic).collect();
        if entries.is_empty() {
            self.tracked.remove(&slot);
        }
        for entry in gone {
            self.presence().leave(&entry.topic, &entry.user, entry.of, now_us);
        }
    }

    /// The connection has left all topics.
    pub(crate) fn leave_all_presence(&mut self, slot: u32) {
        if self.tracked.is_empty() {
            return;
        }
        for entry in self.tracked.remove(&slot).unwrap_or_default() {
            self.presence().leave(&entry.topic, &entry.user, entry.of, self.now_us);
        }
    }

    /// Gives the connection's entries in a topic another meta; false when it has none.
    pub(crate) fn update_presence(&mut self, slot: u32, hash: u64, meta: &str) -> bool {
        let mut entries = self.tracked.remove(&slot).unwrap_or_default();
        let mut any = false;
        for entry in entries.iter_mut().filter(|entry| entry.hash == hash) {
            let now_us = self.now_us;
            let updated = self.presence().update(&entry.topic, &entry.user, entry.of, meta, now_us);
            if let Some(of) = updated {
                entry.of = of;
                any = true;
            }
        }
        if !entries.is_empty() {
            self.tracked.insert(slot, entries);
        }
        any
    }

    /// What a new member of a topic is told: the list, and the counts where there is none.
    pub(crate) fn presence_of(&self, slot: u32, topic: &str) -> Vec<(&'static str, String)> {
        let registry = self.presence();
        let own = self.tracked.get(&slot).into_iter().flatten().find(|it| it.topic == topic);
        let list = match own {
            Some(own) => registry.state_for(topic, &own.user, own.of),
            None => registry.state(topic),
        };
        let counts = registry.counts(topic);
        let mut all = vec![(presence::STATE, list)];
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
        let list = if counts.listed { presence.state(topic) } else { "null".into() };
        let mut name = Vec::new();
        wire::command::push_string(topic, &mut name);
        format!(
            "{{\"topic\":{},\"users\":{},\"connections\":{},\"presences\":{list}}}",
            String::from_utf8_lossy(&name),
            counts.users,
            counts.connections
        )
    }

    /// Publishes what has changed. The first shard does it for all.
    pub(crate) fn tell_presence(&mut self) {
        if self.number > 0 {
            return;
        }
        let mut presence = self.presence();
        if presence.due_us().is_none_or(|due_us| due_us > self.now_us) {
            return;
        }
        presence.flush(self.now_us, &mut |topic, event, json| {
            let draft = Draft {
                topic: topic.into(),
                event: Some(event.into()),
                data: Data::Json(json.into()),
                except: None,
            };
            self.broker.publish(draft, None).is_ok()
        });
    }
}
