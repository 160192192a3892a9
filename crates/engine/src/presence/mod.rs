//! Presence in topics: each shard enters its connections into the registry of all shards, and the first shard
//! publishes the registry's notices to the members.

pub(crate) mod entries;
pub(crate) mod snapshot;
#[cfg(test)]
mod tests;

use model::{CodedError, Data, ErrorCode, Name, Publication, TopicKind};
use presence::{Completion, List, PresenceReply, Snapshot};
use protocol::request::{ReplyTo, Respond};
use protocol::{Delivery, ProtocolRef, ReplyError, data, http};

use crate::core::Core;
use crate::core::command::{Command, PresenceQuery};
use crate::core::responses::{NO_USER, NOT_SUBSCRIBED, named};
use crate::engine::Engine;

/// The most topics whose notices are composed at a time.
const TOPICS_PER_TAKE: usize = 64;

/// How often that is done in a row; later notices wait until the next pass.
const TAKES_MAX: usize = 16;

impl Engine {
    /// The connection has entered a topic with presence: its users enter too. A long poll comes and goes with every
    /// request, and does not count.
    pub(crate) fn enter_presence(&mut self, slot: u32, topic: &str, meta: &str) {
        let protocols = self.core.shared.protocols;
        let meta = self.core.presence_meta(slot, meta);
        let Core { table, hub, broker, entries, now_us, .. } = &mut self.core;
        if table.get(slot).is_some_and(|it| protocols.delivery(it.encoding) != Delivery::Woken) {
            let users = hub.topics_of(slot).filter_map(|name| TopicKind::of(name).user());
            entries.enter(slot, (broker.hash(topic), topic), users, &meta, *now_us);
        }
    }

    /// Another user of the connection enters all of its topics with presence.
    pub(crate) fn enter_presence_as(&mut self, slot: u32, user: &str) {
        let meta = self.core.presence_meta(slot, "{}");
        let Core { hub, settings, broker, entries, now_us, .. } = &mut self.core;
        let policy = &settings.session.policy;
        let topics = hub.topics_of(slot).filter(|name| policy.topic(name).presence());
        let topics = topics.map(|name| (broker.hash(name), name.clone())).collect();
        entries.enter_as(slot, user, topics, &meta, *now_us);
    }
}

impl Engine {
    /// A delayed snapshot has come.
    pub(crate) fn on_presence_listed(&mut self, slot: u32, query: PresenceQuery, list: List) {
        match query {
            PresenceQuery::Join { topic, join_ref } => {
                self.core.send_late_list(slot, &topic, &join_ref, list);
            }
            PresenceQuery::Http { topic, respond } => {
                let json = presence_json(&topic, list);
                self.reply_late(slot, respond.keep_alive, |out| {
                    http::json_reply(&respond, json.as_bytes(), out);
                });
            }
            PresenceQuery::Id { topic, id } => {
                let core = &mut self.core;
                let Some(protocol) = core.protocol(slot) else { return };
                let mut out = Vec::new();
                protocol.reply(&id, Ok(&presence_json(&topic, list)), &mut core.codecs, &mut out);
                self.send(slot, &out, 0);
            }
        }
    }

    /// Replies with a presence snapshot: to a request, or to a command on an open connection.
    pub(crate) fn reply_presence(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        topic: Name,
        to: ReplyTo,
        from: usize,
        out: &mut Vec<u8>,
    ) {
        match to {
            ReplyTo::Http(respond) => self.request_presence(slot, topic, respond, from, out),
            ReplyTo::Id(id) => self.presence_by_id(slot, protocol, topic, id, out),
        }
    }

    /// A snapshot may be long: a client that requests many is slowed down, as one that enters as many topics.
    fn presence_by_id(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        topic: Name,
        id: Box<str>,
        out: &mut Vec<u8>,
    ) {
        self.rates.has_joined(&mut self.core, slot);
        let query = PresenceQuery::Id { topic: topic.clone(), id: id.clone() };
        let later = listed_later(&self.core, slot, query);
        if let PresenceReply::Now(list) = self.core.shared.presence.list(&topic, None, later) {
            let json = presence_json(&topic, list);
            protocol.reply(&id, Ok(&json), &mut self.core.codecs, out);
        }
    }

    /// Changes a member's payload in a topic's presence. All shards share the registry: the command counts as a join.
    pub(crate) fn update_presence(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        id: &str,
        topic: &Name,
        meta: &str,
        out: &mut Vec<u8>,
    ) {
        self.rates.has_joined(&mut self.core, slot);
        let core = &mut self.core;
        let hash = core.broker.hash(topic);
        core.count_presence_payload(meta);
        let done = match data::meta(meta, core.settings.presence_meta_bytes_max) {
            Err(wrong) => Err(CodedError::new(ErrorCode::BadMeta, wrong)),
            Ok(_) if !core.hub.topics_of(slot).any(|name| name == topic) => {
                Err(CodedError::new(ErrorCode::NotSubscribed, NOT_SUBSCRIBED))
            }
            Ok(meta)
                if {
                    let meta = core.presence_meta(slot, meta);
                    core.entries.update(slot, hash, &meta, core.now_us)
                } =>
            {
                Ok(named("topic", topic))
            }
            Ok(_) => Err(CodedError::new(ErrorCode::NoUser, NO_USER)),
        };
        let result = done.as_deref().map_err(ReplyError::from);
        protocol.reply(id, result, &mut core.codecs, out);
    }

    /// `GET /presence`. The request waits when the snapshot comes later.
    fn request_presence(
        &mut self,
        slot: u32,
        topic: Name,
        respond: Respond,
        from: usize,
        out: &mut Vec<u8>,
    ) {
        let query = PresenceQuery::Http { topic: topic.clone(), respond: respond.clone() };
        match self.core.shared.presence.list(&topic, None, listed_later(&self.core, slot, query)) {
            PresenceReply::Now(list) => {
                http::json_reply(&respond, presence_json(&topic, list).as_bytes(), out);
                self.on_replied(slot, from, respond.keep_alive, out);
            }
            PresenceReply::Later => {
                self.wait_for_reply(slot, out);
            }
        }
    }
}

impl Core {
    /// Returns a topic's snapshot for a new member that has joined with this ref. `None` when it comes later: the
    /// mailbox brings it to [`Engine::on_presence_listed`](crate::Engine).
    pub(crate) fn presence_of(&self, slot: u32, topic: &str, join_ref: &str) -> Option<List> {
        let own = self.entries.own(slot, topic);
        let query = PresenceQuery::Join { topic: topic.into(), join_ref: join_ref.into() };
        match self.shared.presence.list(topic, own, listed_later(self, slot, query)) {
            PresenceReply::Now(list) => Some(list),
            PresenceReply::Later => None,
        }
    }

    /// Publishes the changes of all shards: only the first shard does.
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
                    let event = Some(event.into());
                    let publication =
                        Publication { event, ..Publication::new(topic, Data::Json(json.into())) };
                    self.broker.publish(publication, None).is_ok()
                });
            }
            self.shared.presence.confirm(batches, self.now_us);
        }
    }
}

/// Returns the reply to a client that requests the presence of a topic.
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

/// Sends a snapshot to this shard's mailbox.
fn listed_later(core: &Core, slot: u32, query: PresenceQuery) -> Completion<List> {
    let serial = core.table.get(slot).map_or(0, |connection| connection.serial);
    let (handle, under_way) = (core.handle.clone(), core.under_way.clone());
    Box::new(move |list| {
        let _under_way = under_way;
        handle.send(Command::PresenceListed { slot, serial, query, list });
    })
}
