//! Groups that share a filter (MQTT 5.0, section 4.8.2): each message goes to one member.
//!
//! The broker draws a shard, by its number of members; the shard draws a member that takes the message at once. A
//! shard without one passes the message on to the group's other shards. When all have tried, the message goes round
//! again, for a member that can queue it like its other messages. At last one member has to lose its connection for
//! it.
//!
//! When a member's session ends, the other members get its messages: those with QoS 1 that it has not acknowledged,
//! and those that were never sent. No other member may get a message that was sent with QoS 2 ([MQTT-4.8.2-5]). A
//! message that no member can take now waits with the sessions, if the history has it.

use std::sync::Arc;

use broker::Passed;
use history::{Completion, HistoryError, HistoryReply, Piece, Pull};
use model::{CloseReason, Envelope, FilterKey, Name, Qos};
use sessions::{RedispatchOutcome, Session, Source};

use super::deliver::{merged, mqtt_source};
use super::state::{Delivery, Details, OutgoingMessage, Reads};
use crate::core::Core;
use crate::core::command::Command;
use crate::engine::Engine;

/// Members that a shard tries for each message, until one takes it at once.
const TRIED: u32 = 1_000;

/// Messages of ended sessions given to other members at a time.
const REDISPATCHED: u32 = 10_000;

/// When a member can take a message. Sooner is less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum When {
    Now,
    /// The message has to wait for so many others.
    Later(usize),
    /// The member has no capacity to queue the message.
    Never,
}

/// A member that a group may choose for a message.
struct Member {
    slot: u32,
    when: When,
    delivery: Delivery,
}

impl Engine {
    /// Gives a message to a member of a group. Returns false if none gets it.
    pub(crate) fn mqtt_share(
        &mut self,
        key: &Arc<FilterKey>,
        message: &Arc<Envelope>,
        mut passed: Passed,
    ) -> bool {
        let core = &mut self.core;
        let (number, is_left, redispatch) = (core.number, passed.is_left, passed.redispatch);
        let nodes = std::mem::take(&mut passed.nodes);
        let attempts = passed.tried.iter().filter(|shard| **shard == number).count();
        let will_do = |when: When| match when {
            When::Now => true,
            When::Later(_) => attempts > 0,
            When::Never => attempts > 1,
        };
        match core.mqtt_member(key, message) {
            Some(member) if will_do(member.when) => self.mqtt_give(member, key, message, &passed),
            _ => {
                passed.tried.push(number);
                let is_passed = core.mqtt_pass(message, key, Passed { nodes, ..passed });
                if is_left && !is_passed {
                    core.mqtt_on_untaken(message, key, redispatch);
                }
                is_passed
            }
        }
    }

    /// Gives a message to the chosen member, now or later. Returns false if the member has no capacity.
    fn mqtt_give(
        &mut self,
        Member { slot, when, delivery }: Member,
        key: &Arc<FilterKey>,
        message: &Arc<Envelope>,
        &Passed { is_left, redispatch, .. }: &Passed,
    ) -> bool {
        let Delivery { qos, retain, ids } = delivery;
        if when == When::Never {
            // Otherwise the message could close the connections of all members, one after the other.
            if is_left {
                self.core.mqtt_on_untaken(message, key, redispatch);
            } else {
                self.core.metrics.mqtt_gone.add(1);
                self.say_goodbye(slot, CloseReason::SlowConsumer);
            }
            return false;
        }
        if let Some(number) = redispatch {
            let sessions = &self.core.shared.mqtt_sessions;
            sessions.on_redispatched(number, RedispatchOutcome::Taken);
        }
        let (message, group) = (message.clone(), Some(key.clone()));
        let ids = ids.into();
        let waiting = OutgoingMessage { message, qos, retained: false, retain, ids, group };
        let Some(details) = self.core.mqtt.details_mut(slot) else { return false };
        match when {
            When::Later(_) if qos.is_confirmed() => {
                match shared_source(&details.session, &waiting) {
                    Some(source) => details.session.refs.push(source),
                    None => details.waiting.push_back(waiting),
                }
                self.core.mqtt.wake(slot);
            }
            When::Now | When::Later(_) | When::Never => {
                let mut out = Vec::new();
                self.core.mqtt_send_shared(slot, waiting, &mut out);
                self.mqtt_flush(slot, &mut out);
            }
        }
        true
    }
}

impl Core {
    /// Returns the member here that can take a message first; of several, the one whose turn it is.
    fn mqtt_member(&mut self, key: &FilterKey, message: &Envelope) -> Option<Member> {
        let members = self.hub.members(key.hash, &key.name);
        let turn = self.mqtt.turns.get(&key.hash).copied().unwrap_or(0);
        let first = turn.checked_rem(members)?;
        let slots = || self.hub.each_slot(key.hash, &key.name);
        let slots = slots().skip(first as usize).chain(slots().take(first as usize));
        let (mut best, mut next): (Option<Member>, u32) = (None, first + 1);
        for (slot, at) in slots.zip(0..TRIED) {
            let Some(member) = self.mqtt_choose_member(slot, key, message) else { continue };
            let is_now = member.when == When::Now;
            if best.as_ref().is_none_or(|best| member.when < best.when) {
                best = Some(member);
            }
            if is_now {
                next = first + at + 1;
                break;
            }
        }
        self.mqtt.turns.insert(key.hash, next % members);
        best
    }

    /// Returns when a member can take a message; `None` if it may not have it, or accepts none so large.
    fn mqtt_choose_member(&self, slot: u32, key: &FilterKey, message: &Envelope) -> Option<Member> {
        if !self.is_open(slot) || !self.mqtt_may_have(slot, message) {
            return None;
        }
        let details = self.mqtt.details(slot)?;
        let subscriptions = &details.session.subscriptions;
        let one = subscriptions.iter().find(|it| it.hub_name().as_str() == key.name.as_str())?;
        let publication = &message.publication;
        let delivery = merged(std::iter::once(one), publication.qos, publication.retain);
        if self.mqtt_is_too_large(slot, message, &self.mqtt_stamp(slot, message, &delivery)) {
            return None;
        }
        let Details { session, waiting, work, .. } = details;
        let is_idle = waiting.is_empty() && session.refs.is_empty() && work.is_idle();
        let has_capacity = !delivery.qos.is_confirmed() || is_idle && self.mqtt_capacity(slot) > 0;
        let queue_max = self.settings.mqtt().map_or(0, |it| it.queue_messages_max);
        let wait = waiting.len() + session.refs.len();
        let when = if has_capacity && !self.is_backlogged(slot) {
            When::Now
        } else if !delivery.qos.is_confirmed() || wait < queue_max {
            When::Later(wait)
        } else {
            When::Never
        };
        Some(Member { slot, when, delivery })
    }

    /// Sends a message to the member that its group has chosen.
    pub(super) fn mqtt_send_shared(
        &mut self,
        slot: u32,
        shared: OutgoingMessage,
        out: &mut Vec<u8>,
    ) {
        let Some(details) = self.mqtt.details(slot) else { return };
        let source = shared_source(&details.session, &shared);
        let OutgoingMessage { message, qos, retain, ids, .. } = &shared;
        let in_flight = details.session.flow.in_flight();
        let delivery = Delivery { qos: *qos, retain: *retain, ids: ids.to_vec() };
        // The member has capacity.
        let _ = self.mqtt_send(slot, message, &delivery, source, out);
        let Some(details) = self.mqtt.details_mut(slot) else { return };
        let flow = &details.session.flow;
        // The message may have expired, or be larger than the client accepts.
        let sent = flow.out().last().filter(|_| flow.in_flight() > in_flight).map(|it| it.id);
        if let Some(id) = sent.filter(|_| *qos == Qos::AtLeastOnce && !details.session.outlives()) {
            details.shared.push((id, shared));
        }
    }

    /// Gives the unconfirmed messages of a member whose session ends to others of its groups.
    pub(super) fn mqtt_leave_shared(&mut self, details: &mut Details) {
        // All other members leave as well, except those of other nodes.
        if self.draining && !self.broker.has_nodes() {
            return;
        }
        let under_way = std::mem::take(&mut details.shared).into_iter().map(|(_, shared)| shared);
        for OutgoingMessage { message, group, .. } in under_way.chain(details.waiting.drain(..)) {
            let Some(key) = group else { continue };
            self.mqtt_pass_on(&message, &key, None);
        }
    }

    /// Gives a message that a member has left to another one. `redispatch` is its number, if the sessions know it.
    fn mqtt_pass_on(&self, message: &Arc<Envelope>, key: &Arc<FilterKey>, redispatch: Option<u64>) {
        let passed = Passed { is_left: true, redispatch, ..Passed::default() };
        if !self.mqtt_pass(message, key, passed) {
            self.mqtt_on_untaken(message, key, redispatch);
        }
    }

    /// Passes a message to another shard with members of its group, or to another node. Returns false if none has
    /// any.
    fn mqtt_pass(&self, message: &Arc<Envelope>, key: &Arc<FilterKey>, passed: Passed) -> bool {
        let (redispatch, nodes) = (passed.redispatch, passed.nodes.clone());
        // While this node drains, its other members leave as well.
        let is_for_nodes = self.draining && passed.is_left;
        if !is_for_nodes && self.broker.pass_to_group(message, key, passed) {
            return true;
        }
        let is_passed = self.broker.pass_to_node(message, &key.name, &nodes);
        if let Some(number) = redispatch.filter(|_| is_passed) {
            let sessions = &self.shared.mqtt_sessions;
            sessions.on_redispatched(number, RedispatchOutcome::Taken);
        }
        is_passed
    }

    /// Handles a message that a member has left and no other can take. It waits, if the history has it.
    fn mqtt_on_untaken(
        &self,
        message: &Arc<Envelope>,
        key: &Arc<FilterKey>,
        redispatch: Option<u64>,
    ) {
        let sessions = &self.shared.mqtt_sessions;
        let waits = match redispatch {
            Some(number) => sessions.on_redispatched(number, RedispatchOutcome::Untaken),
            None if message.is_retained() => {
                let (topic, offset) = (message.publication.topic.clone(), message.id.offset);
                let group = Some(key.name.as_str().into());
                let source = Source { topic, offset, retained: false, group };
                sessions.redispatch(None, vec![source]);
                true
            }
            None => false,
        };
        self.metrics.mqtt_gone.add(u64::from(!waits));
    }

    /// Returns the topics of messages that wait for a client, from groups that it has left.
    pub(super) fn mqtt_left_topics(&self, slot: u32) -> Vec<Name> {
        let Some(details) = self.mqtt.details(slot) else { return Vec::new() };
        let session = &details.session;
        let left = session.refs.iter().filter(|source| has_left(session, source));
        left.map(|source| source.topic.clone()).collect()
    }

    /// Gives waiting messages of a client that stays to other members of its groups. Returns false if the store
    /// rejects that.
    #[must_use]
    pub(super) fn mqtt_leave_refs(
        &mut self,
        slot: u32,
        is_left: impl Fn(&Session, &Source) -> bool,
    ) -> bool {
        let Some(details) = self.mqtt.details_mut(slot) else { return true };
        let session = &details.session;
        let (left, refs): (Vec<_>, Vec<_>) =
            session.refs.iter().cloned().partition(|it| is_left(session, it));
        if left.is_empty() {
            return true;
        }
        let before = std::mem::replace(&mut details.session.refs, refs);
        // The history may be reading one of these.
        details.work.reading.take_if(|it| matches!(it.reads, Reads::Source));
        self.mqtt.wake(slot);
        // A crash must not bring the session back with messages that another member has.
        if self.mqtt_survives(slot) && !self.mqtt_save(slot, None) {
            if let Some(details) = self.mqtt.details_mut(slot) {
                details.session.refs = before;
            }
            return false;
        }
        if let Some(row) = self.mqtt.row(slot) {
            self.shared.mqtt_sessions.redispatch(Some(&row.key), left);
        }
        true
    }

    /// Gives messages that sessions have left to other members, in order. Called about once a second.
    pub(super) fn mqtt_redispatch(&self) {
        let sessions = &self.shared.mqtt_sessions;
        self.metrics.mqtt_gone.add(sessions.take_redispatch_dropped());
        for _ in 0..REDISPATCHED {
            let Some((number, source)) = sessions.poll_redispatch() else { return };
            let cursor = self.mqtt_cursor(source.topic.clone(), source.offset.saturating_sub(1));
            let pull = Pull { topics: vec![cursor], messages_max: 1, bytes_max: usize::MAX / 2 };
            let (handle, later) = (self.handle.clone(), source.clone());
            let completion = Completion::new(move |found| {
                handle.send(Command::MqttRedispatch { number, source: later, found });
            });
            let goes_on = match self.history.read(pull, completion) {
                Ok(HistoryReply::Now(piece)) => {
                    self.mqtt_redispatch_found((number, source), Ok(piece))
                }
                Ok(HistoryReply::Later) => false,
                Err(error) => self.mqtt_redispatch_found((number, source), Err(error)),
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Takes a later reply of the history for a message that a session has left.
    pub(crate) fn mqtt_was_redispatched(
        &self,
        message: (u64, Source),
        found: Result<Piece, HistoryError>,
    ) {
        if self.mqtt_redispatch_found(message, found) {
            self.mqtt_redispatch();
        }
    }

    /// Gives another member a message that a session has left, if the history has found it. Returns false if the
    /// history has to read it again later.
    fn mqtt_redispatch_found(
        &self,
        (number, source): (u64, Source),
        found: Result<Piece, HistoryError>,
    ) -> bool {
        let sessions = &self.shared.mqtt_sessions;
        let messages = match found {
            Ok(piece) => piece.messages,
            Err(error) if error.is_lasting() => Vec::new(),
            Err(_) => {
                sessions.on_redispatched(number, RedispatchOutcome::Unread);
                return false;
            }
        };
        let Source { topic: _, offset, retained: _, group } = source;
        let message = messages.into_iter().find(|it| it.id.offset == offset);
        let key = group
            .map(|group| FilterKey { hash: self.broker.hash(&group), name: Name::from(&*group) });
        let Some((message, key)) = message.zip(key) else {
            let is_polled = sessions.on_redispatched(number, RedispatchOutcome::Gone);
            self.metrics.mqtt_gone.add(u64::from(is_polled));
            return is_polled;
        };
        let is_polled = sessions.on_redispatched(number, RedispatchOutcome::Passed);
        if is_polled {
            self.mqtt_pass_on(&message, &Arc::new(key), Some(number));
        }
        is_polled
    }
}

/// Returns where a session that outlives its connection can read a message of a group again.
fn shared_source(
    session: &Session,
    OutgoingMessage { message, group, .. }: &OutgoingMessage,
) -> Option<Source> {
    let source = mqtt_source(session, message)?;
    Some(Source { group: group.as_ref().map(|key| key.name.as_str().into()), ..source })
}

/// Checks whether a session has left the group that chose it for a message.
pub(super) fn has_left(session: &Session, source: &Source) -> bool {
    let is_of =
        |group: &str| session.subscriptions.iter().any(|it| it.hub_name().as_str() == group);
    source.group.as_deref().is_some_and(|group| !is_of(group))
}
