//! Carries out the commands of other threads, in the order in which they came.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use model::event::is_reserved;
use model::name::{personal, shown};
use model::{CloseReason, ConnectionId, Name, TopicKind};

use protocol::Delivery;

use super::sweep::Drain;
use crate::core::Core;
use crate::core::command::{Command, ConnectionInfo, Target, TopicInfo};
use crate::core::count::count;
use crate::core::output::{Describe, Output, Slowest};
use crate::core::reply::Reply;
use crate::core::reply_target::ReplyTarget;
use crate::engine::Engine;
use crate::handover::standstill;
use crate::webhook::WebhookResponse;
use crate::webhook::pending_hook::PendingHook;
use crate::webhook::request;

/// The most messages that may wait in the shard's fan-outs. With more, the mailbox fills up, and publishers get the
/// error that the server is overloaded.
const QUEUED_MAX: usize = if cfg!(test) { 24 } else { 8_192 };

/// The most commands that one turn carries out before sockets have theirs.
const COMMANDS: usize = if cfg!(test) { 3 } else { 1_024 };

impl Engine {
    /// Takes the commands of the mailbox, whose wake-up has been cleared.
    pub fn take_commands(&mut self) {
        self.recovery.catchups.takes += 1;
        if self.core.commands.is_empty() {
            let empty = Vec::from(std::mem::take(&mut self.core.commands));
            self.core.commands = self.core.handle.inbox.queue.take(empty).into();
        } else {
            self.core.commands.extend(self.core.handle.inbox.queue.take(Vec::new()));
        }
    }

    /// Carries out the taken commands, up to a turn's share.
    pub fn run_commands(&mut self) {
        if self.core.stands_still {
            self.core.notify_presence();
        }
        self.run_share();
        self.metrics().commands_pending.set(self.core.commands.len() as u64);
    }

    fn run_share(&mut self) {
        for _ in 0..COMMANDS {
            if self.core.is_behind() {
                return;
            }
            let Some(command) = self.core.commands.pop_front() else {
                return;
            };
            if self.core.stands_still && standstill::waits(&command) {
                self.core.aside.push(command);
                continue;
            }
            run_command(self, command);
            self.resume_inputs();
        }
    }
}

impl Engine {
    /// Describes connections as far as the engine knows them; its driver adds what their sockets know.
    pub fn describe(&self, slots: impl IntoIterator<Item = u32>) -> Vec<ConnectionInfo> {
        slots.into_iter().filter_map(|slot| describe(&self.core, slot, false)).collect()
    }

    fn disconnect(&mut self, target: &Target, close: CloseReason) -> u32 {
        let slots = targeted(&self.core, target);
        for slot in &slots {
            self.say_goodbye(*slot, close);
        }
        count(slots.len())
    }
}

impl Core {
    /// True while the fan-outs are at their limit.
    pub(crate) fn is_behind(&self) -> bool {
        // An engine that stands still runs no fan-out that would make capacity.
        !self.stands_still && self.hub.queued() >= QUEUED_MAX
    }
}

/// Returns the first `limit` topics by members, then by name; of those with one member, the first found. Most topics
/// are personal, with a member or two: their count is checked first, since a name may lie elsewhere in memory.
fn biggest<'a, I: Iterator<Item = (&'a Name, u32)>>(
    topics: impl Fn() -> I,
    limit: usize,
) -> Vec<(&'a Name, u32)> {
    // Its top is the first to be dropped.
    let mut top: BinaryHeap<(Reverse<u32>, &Name)> = BinaryHeap::new();
    let mut members_min = 2;
    for (name, members) in topics() {
        if limit == 0 || members < members_min || !TopicKind::of(name).is_ordinary() {
            continue;
        }
        top.push((Reverse(members), name));
        if top.len() > limit {
            top.pop();
        }
        if top.len() == limit {
            members_min = top.peek().map_or(members_min, |(Reverse(members), _)| *members);
        }
    }
    if top.len() < limit {
        let single =
            topics().filter(|(name, members)| *members == 1 && TopicKind::of(name).is_ordinary());
        let remaining = limit - top.len();
        top.extend(single.take(remaining).map(|(name, members)| (Reverse(members), name)));
    }
    top.into_sorted_vec().into_iter().map(|(Reverse(members), name)| (name, members)).collect()
}

/// True while the slot has the connection with this serial, and it is not about to end.
fn is_same(core: &Core, slot: u32, serial: u32) -> bool {
    core.table
        .get(slot)
        .is_some_and(|connection| connection.serial == serial && !connection.is_closing())
}

fn slots_of(core: &Core, user: &str) -> Vec<u32> {
    let topic = personal(user);
    core.hub.slots(core.broker.hash(&topic), &topic)
}

fn is_poll(core: &Core, slot: u32) -> bool {
    core.table.get(slot).is_some_and(|connection| core.delivery(connection) == Delivery::Woken)
}

fn deliver(engine: &mut Engine, delivery: broker::Delivery) {
    let broker::Delivery { message, groups, passed, receipt } = delivery;
    let core = &mut engine.core;
    core.metrics.messages_in.add(1);
    let (mut members, mut lists) = (0, 0);
    if message.is_broadcast() {
        members = core.hub.broadcast(message.clone());
        lists = u32::from(members > 0);
    } else if passed.is_none() {
        // Presence notices go to the members of the topic itself only.
        let by_filter = message.filters.iter().flatten().filter(|_| !is_reserved(message.event()));
        let by_filter = by_filter.map(|key| (key.hash, &key.name));
        let topic = (message.topic_hash, &message.publication.topic);
        for (hash, name) in std::iter::once(topic).chain(by_filter) {
            let here = core.hub.publish(hash, name, message.clone());
            members += here;
            lists += u32::from(here > 0);
        }
    }
    let backlog = &core.handle.inbox.backlog;
    match lists {
        // The message has no list of members here.
        0 => backlog.leave(&message),
        // Each list counts it until all of its members have it.
        lists => (1..lists).for_each(|_| backlog.enter(&message)),
    }
    for key in &groups {
        let passed = passed.clone().unwrap_or_default();
        members += u32::from(engine.mqtt_share(key, &message, passed));
    }
    if let Some(receipt) = receipt {
        if let Some(observer) = receipt.observer() {
            let core = &mut engine.core;
            let (shard, now_us) = (core.number, core.now_us);
            let output =
                core.observed.observe(&message, observer, lists, u64::from(members), shard, now_us);
            core.outputs.list.extend(output);
        }
        receipt.add(u64::from(members));
    }
}

/// Returns the slots of the target's open connections.
fn targeted(core: &Core, target: &Target) -> Vec<u32> {
    match target {
        Target::User(user) => slots_of(core, user),
        Target::Connection(ConnectionId { node, slot, serial, .. }) => {
            let found = core.table.get(*slot);
            let is_it = found.is_some_and(|it| it.serial == *serial && !it.is_closing());
            if is_it && *node == core.shared.node { vec![*slot] } else { Vec::new() }
        }
    }
}

/// Returns the first topics in byte order, without sorting all of them.
fn topics(core: &Core, prefix: &str, after: Option<&str>, limit: usize) -> Vec<TopicInfo> {
    let personal = TopicKind::of(prefix).is_personal();
    let mut first: BinaryHeap<(&Name, u32)> = BinaryHeap::new();
    for (name, members, _) in core.hub.all_topics() {
        let listed = name.starts_with(prefix)
            && after.is_none_or(|after| name.as_str() > after)
            && (personal || !TopicKind::of(name).is_personal())
            && !matches!(TopicKind::of(name), TopicKind::Filter(_));
        if listed {
            first.push((name, members));
            if first.len() > limit {
                first.pop();
            }
        }
    }
    let sorted = first.into_sorted_vec().into_iter();
    sorted.map(|(topic, members)| TopicInfo { topic: topic.clone(), members }).collect()
}

/// Returns the topics with the most members, without sorting all of them.
fn biggest_topics(core: &Core, limit: usize) -> Vec<TopicInfo> {
    let all = || core.hub.all_topics().map(|(name, members, _)| (name, members));
    let sorted = biggest(all, limit).into_iter();
    sorted.map(|(topic, members)| TopicInfo { topic: topic.clone(), members }).collect()
}

/// Describes a connection as far as the engine knows it; its driver adds what the socket knows.
fn describe(core: &Core, slot: u32, with_filters: bool) -> Option<ConnectionInfo> {
    let connection = core.table.get(slot)?;
    let (mut users, mut topics) = (Vec::new(), Vec::new());
    for name in core.hub.topics_of(slot) {
        match TopicKind::of(name).user() {
            Some(user) => users.push(user.into()),
            None => topics.push(shown(name).into()),
        }
    }
    let session = core.table.cold(slot).and_then(|cold| cold.session.as_ref());
    Some(ConnectionInfo {
        id: core.id(slot, connection.serial),
        transport: core.shared.protocols.of(connection.encoding).name(),
        age_seconds: core.now_s().saturating_sub(connection.opened_s),
        address: core.peers.client(slot),
        users,
        topics,
        bytes_sent: 0,
        bytes_received: 0,
        outbox_bytes: session.map_or(0, |session| session.outbox.bytes()),
        outbox_age_ms: 0,
        mqtt: core.mqtt_info(slot, with_filters).map(Box::new),
    })
}

/// Replies with the descriptions of MQTT clients.
fn describe_mqtt(
    core: &mut Core,
    slots: &[u32],
    with_filters: bool,
    reply: Reply<(u32, Vec<ConnectionInfo>)>,
) {
    let described = slots.iter().filter_map(|slot| describe(core, *slot, with_filters));
    let connections: Vec<ConnectionInfo> = described.collect();
    let describe = Describe { members: count(connections.len()), connections, reply };
    core.outputs.push(Output::Describe(describe.into()));
}

/// The connections of a user that began behind the user's cursor, or waited for it, begin anew. Polls get a reply.
fn on_begin_again(engine: &mut Engine, user: &str, topic: &str, offset: Option<u64>) {
    let own = personal(user);
    for slot in engine.core.hub.slots(engine.core.broker.hash(&own), &own) {
        let mut out = Vec::new();
        let cursor = (user, topic, offset);
        engine.recover(|recovery, core| recovery.begin_again_at(core, slot, cursor, &mut out));
        if !out.is_empty() {
            engine.send(slot, &out, 0);
        }
        if engine.is_polling(slot) {
            engine.poll_again(slot, true);
        }
    }
    engine.resume_inputs();
}

#[allow(clippy::too_many_lines, reason = "a table: what each command does")]
fn run_command(engine: &mut Engine, command: Command) {
    match command {
        Command::Deliver(delivery) => on_message(engine, delivery),
        Command::Gap(gap) => engine.core.on_gap(&gap),
        Command::MqttTakeOver { slot, key } => engine.mqtt_taken_over(slot, &key),
        Command::MqttConnectedToNode { slot, key, time, is_clean } => {
            engine.mqtt_connected_to_node(slot, &key, time, is_clean);
        }
        Command::MqttRepeatConnects => engine.core.mqtt.repeat.begin(),
        Command::MqttPublishWill(will) => engine.core.publish_wills([*will]),
        Command::MqttStoreAgain { slot, key } => engine.core.mqtt_store_again(slot, &key),
        Command::MqttMayTake { slot, serial } => {
            if is_same(&engine.core, slot, serial) {
                engine.mqtt_may_take(slot);
                engine.resume_inputs();
            }
        }
        Command::MqttStored { slot, serial, packets, stored, is_progress } => {
            if is_same(&engine.core, slot, serial) {
                engine.mqtt_stored(slot, &packets, stored, is_progress);
            }
        }
        Command::MqttRead { slot, serial, number, found } => {
            if is_same(&engine.core, slot, serial) {
                engine.mqtt_was_read(slot, number, found);
            }
        }
        Command::MqttRedispatch { number, source, found } => {
            engine.core.mqtt_was_redispatched((number, source), found);
        }
        Command::MqttClients { listing, reply } => {
            let core = &mut engine.core;
            let slots = core.mqtt_listed(&listing);
            describe_mqtt(core, &slots, false, reply);
        }
        Command::MqttClient { slot, key, reply } => {
            let core = &mut engine.core;
            let slots = if core.mqtt_has(slot, &key) { vec![slot] } else { Vec::new() };
            describe_mqtt(core, &slots, true, reply);
        }
        Command::MqttEnd { slot, key, reply } => reply(engine.mqtt_end(slot, &key)),
        Command::Revoke { revocation, reply } => reply(engine.revoke(&revocation)),
        Command::Disconnect { target, close, reply } => {
            reply(engine.disconnect(&target, close));
        }
        Command::Evict { connections, seed, reply } => reply(engine.evict(connections, seed)),
        Command::Subscribe { user, topic, reply } => {
            reply(subscribe_user(engine, &user, &topic));
        }
        Command::Unsubscribe { user, topic, reply } => {
            reply(unsubscribe_user(engine, &user, &topic));
        }
        Command::Login { connection, user, reply } => reply(engine.login(connection, &user)),
        Command::Logout { connection, user, reply } => reply(engine.logout(connection, &user)),
        Command::Topics { prefix, after, limit, reply } => {
            reply(topics(&engine.core, &prefix, after.as_deref(), limit));
        }
        Command::Topic { topic, reply } => {
            reply(engine.core.hub.members(engine.core.broker.hash(&topic), &topic));
        }
        Command::HaveMembers { topics, reply } => {
            let core = &engine.core;
            let has_members = |topic: &Name| core.hub.members(core.broker.hash(topic), topic) > 0;
            reply(topics.iter().map(has_members).collect());
        }
        Command::Biggest { limit, reply } => reply(biggest_topics(&engine.core, limit)),
        Command::Costliest { reply } => reply(engine.core.costs.costliest(engine.core.now_us)),
        Command::Slowest { limit, reply } => {
            engine.core.outputs.push(Output::Slowest(Slowest { limit, reply }.into()));
        }
        Command::Members { topic, limit, reply } => {
            describe_members(&mut engine.core, &topic, limit, reply);
        }
        Command::WebhookResponded { slot, serial, hook, response } => {
            let slot = Some(slot).filter(|slot| is_same(&engine.core, *slot, serial));
            let is_counted = !matches!(hook, PendingHook::Forward(_, _, ReplyTarget::Mqtt(_)));
            if let Some(slot) = slot.filter(|_| is_counted) {
                request::on_reply(&mut engine.core, slot);
            }
            on_webhook_reply(engine, slot, hook, response);
        }
        Command::Session { session, request, from } => {
            engine.session_request(session, request, from);
        }
        Command::SessionReply { session, to, reply } => {
            engine.on_session_reply(session, to, reply);
        }
        Command::Started { slot, serial, query, start } => {
            if is_same(&engine.core, slot, serial) {
                on_started(engine, slot, query, start);
            }
        }
        Command::Pulled { slot, serial, numbers, piece } => {
            if is_same(&engine.core, slot, serial) {
                on_pulled(engine, slot, &numbers, piece);
            }
        }
        Command::Paged { slot, serial, query, page } => {
            if is_same(&engine.core, slot, serial) {
                engine.on_page_read(slot, query, page);
            }
        }
        Command::Acknowledged { user, topic, offset } => {
            engine.recover(|recovery, core| recovery.acknowledged(core, &user, &topic, offset));
        }
        Command::BeginAgain { user, topic, offset } => {
            on_begin_again(engine, &user, &topic, offset);
        }
        Command::Published { slot, serial, reply, result } => {
            if is_same(&engine.core, slot, serial) {
                engine.on_published(slot, reply, result);
            } else if let ReplyTarget::Mqtt(ack) = reply {
                engine.mqtt_written(slot, serial, ack, result.is_ok());
            }
        }
        Command::PresenceListed { slot, serial, query, list } => {
            if is_same(&engine.core, slot, serial) {
                engine.on_presence_listed(slot, query, list);
            }
        }
        Command::Trace { number, target, sink, reply } => {
            let slots = targeted(&engine.core, &target);
            reply(engine.core.trace_begin(number, target, &slots, sink));
        }
        Command::TraceEnd { number } => engine.core.traces.end(number),
        Command::Settings(settings) => {
            let core = &mut engine.core;
            let before = std::mem::replace(&mut core.settings, settings);
            core.notify_changed(&before);
        }
        Command::Drain { seconds } => {
            if engine.drain.is_none() {
                engine.drain = Some(Drain::begin(engine, seconds));
            }
        }
    }
}

/// The application has replied to a request of a connection. Without a slot the connection has ended.
fn on_webhook_reply(
    engine: &mut Engine,
    slot: Option<u32>,
    hook: PendingHook,
    response: WebhookResponse,
) {
    match (hook, slot) {
        (PendingHook::Publish(publication, to), slot) => {
            engine.on_publish_decided(slot, *publication, to, response);
        }
        (PendingHook::Forward(publication, deliver, to), slot) => {
            engine.on_forwarded(slot, deliver, *publication, to, response);
        }
        (PendingHook::Message(to), Some(slot)) => {
            engine.on_publish_reply(slot, to, response);
        }
        (PendingHook::Join(number, message), Some(slot)) => {
            engine.on_join_response(slot, number, *message, response);
        }
        (PendingHook::HttpSubscribe(number, topic), Some(slot)) => {
            engine.on_subscribe_decision(slot, number, topic, response);
        }
        (PendingHook::Connect(number), Some(slot)) => {
            engine.on_connect_reply(slot, number, response);
        }
        (PendingHook::Refresh(expires_s), Some(slot)) => {
            engine.on_refresh_reply(slot, expires_s, response);
        }
        (PendingHook::Subscribe(number, subscription), Some(slot)) => {
            engine.on_subscribe_reply(slot, number, *subscription, response);
        }
        (PendingHook::Mqtt(number, at), Some(slot)) => {
            engine.on_mqtt_subscribe_reply(slot, number, at, response);
        }
        (
            PendingHook::Message(_)
            | PendingHook::Join(..)
            | PendingHook::HttpSubscribe(..)
            | PendingHook::Connect(_)
            | PendingHook::Refresh(_)
            | PendingHook::Subscribe(..)
            | PendingHook::Mqtt(..),
            None,
        ) => {}
    }
}

/// A message for members of this shard has come.
fn on_message(engine: &mut Engine, delivery: broker::Delivery) {
    if delivery.message.is_retained() {
        let offset = delivery.message.id.offset;
        engine.recovery.catchups.took(offset);
        let taken = &mut engine.core.mqtt_taken;
        *taken = (*taken).max(offset);
    }
    deliver(engine, delivery);
}

/// Subscribes all connections of a user to a topic, if their limit allows one more. Returns how many are in it then.
fn subscribe_user(engine: &mut Engine, user: &str, topic: &Name) -> u32 {
    let max = engine.core.settings.session.topics_per_connection_max;
    let presence = engine.core.settings.session.policy.topic(topic).presence();
    let mut count = 0;
    for slot in slots_of(&engine.core, user) {
        if engine.core.hub.topics_of(slot).any(|name| name == topic) {
            count += 1;
            continue;
        }
        engine.core.mqtt_pin(slot);
        if engine.core.hub.count(slot) < max && engine.join(slot, topic, presence) {
            count += 1;
            engine.recover(|recovery, core| {
                recovery.begin_now(core, slot, std::slice::from_ref(topic))
            });
            engine.core.flush_due_lists(slot);
        }
    }
    count
}

/// Unsubscribes all connections of a user from a topic. Returns how many were in it.
fn unsubscribe_user(engine: &mut Engine, user: &str, topic: &Name) -> u32 {
    let mut count = 0;
    for slot in slots_of(&engine.core, user) {
        let mut last = Vec::new();
        count += u32::from(engine.leave_topic(slot, topic, &mut last));
        if !last.is_empty() {
            engine.send(slot, &last, 0);
        }
    }
    count
}

/// Describes the members of a topic, at most so many.
fn describe_members(
    core: &mut Core,
    topic: &Name,
    limit: usize,
    reply: Reply<(u32, Vec<ConnectionInfo>)>,
) {
    let hash = core.broker.hash(topic);
    let slots = core.hub.each_slot(hash, topic);
    let described = slots.filter_map(|slot| describe(core, slot, false)).take(limit);
    let (members, connections) = (core.hub.members(hash, topic), described.collect());
    let describe = Describe { members, connections, reply };
    core.outputs.push(Output::Describe(describe.into()));
}

/// The history reports where a recovery or a poll starts.
fn on_started(engine: &mut Engine, slot: u32, query: u32, start: Option<history::Start>) {
    match start {
        Some(start) if is_poll(&engine.core, slot) => engine.poll_started(slot, query, start),
        Some(start) => engine.recover(|recovery, core| recovery.started(core, slot, query, start)),
        None => query_failed(engine, slot, query),
    }
}

/// The history has read the messages that a connection missed.
fn on_pulled(engine: &mut Engine, slot: u32, numbers: &[u32], piece: Option<history::Piece>) {
    let Some(query) = numbers.first().copied() else {
        return;
    };
    match piece {
        Some(piece) if is_poll(&engine.core, slot) => engine.poll_was_read(slot, query, piece),
        Some(piece) => {
            engine.recover(|recovery, core| recovery.was_read(core, slot, numbers, piece))
        }
        None => query_failed(engine, slot, query),
    }
}

/// The history could not carry out a query. A connection that waits for the reply ends, and its client recovers again
/// later; others have the reply already, or have left the topic.
fn query_failed(engine: &mut Engine, slot: u32, query: u32) {
    let awaited = engine.poll_awaits(slot, query);
    if awaited || engine.recovery.failed(slot, query) {
        engine.recover(|recovery, core| recovery.come_back_later(core, slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_biggest_topics_come_first_and_personal_ones_and_filters_not_at_all() {
        let topics: [(Name, u32); 8] = [
            ("\0a/+", 9),
            ("b", 2),
            ("@alice", 9),
            ("d", 1),
            ("@bob", 1),
            ("a", 2),
            ("c", 7),
            ("e", 1),
        ]
        .map(|(name, members)| (name.into(), members));
        let first = |limit| {
            let all = || topics.iter().map(|(name, members)| (name, *members));
            let top = biggest(all, limit).into_iter();
            top.map(|(name, members)| (name.as_str(), members)).collect::<Vec<_>>()
        };
        assert_eq!(first(1), [("c", 7)]);
        assert_eq!(first(2), [("c", 7), ("a", 2)]);
        assert_eq!(first(3), [("c", 7), ("a", 2), ("b", 2)]);
        assert_eq!(first(4), [("c", 7), ("a", 2), ("b", 2), ("d", 1)]);
        assert_eq!(first(10), [("c", 7), ("a", 2), ("b", 2), ("d", 1), ("e", 1)]);
        assert!(first(0).is_empty());
    }
}
