//! Groups that share a filter (MQTT 5.0, section 4.8.2): each message goes to one member.
//!
//! The broker draws the shard, by its number of members; the shard draws the member, of those that take the
//! message at once. A shard that has none passes it on to the others of the group. When all were asked, they
//! are asked for a member for which it can wait, as what is published to one client does, and at last one
//! member has to go for it.
//!
//! What is under way to a member with QoS 1 is somebody else's if its session ends first. With QoS 2 nobody
//! else may have it then ([MQTT-4.8.2-5]), unless it was not sent yet.

use std::sync::Arc;

use broker::Passed;
use model::{CloseReason, Envelope, FilterKey, Qos};
use sessions::Source;

use super::deliver::{joined, mqtt_source};
use super::state::{Details, Waiting, Way};
use crate::connections::Connections;
use crate::core::Core;

/// Members of a group that a shard asks for each message, until one takes it at once.
const TRIED: u32 = 1_000;

/// When a member can take a message: the sooner the less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum When {
    Now,
    /// It has to wait for so many others.
    Later(usize),
    /// There is no room for it to wait.
    Never,
}

/// A member that a group may choose for a message.
struct Member {
    slot: u32,
    when: When,
    way: Way,
}

impl Connections {
    /// Gives a message to a member of a group. False where none gets it.
    pub(crate) fn mqtt_share(
        &mut self,
        key: &Arc<FilterKey>,
        message: &Arc<Envelope>,
        mut passed: Passed,
    ) -> bool {
        let core = &mut self.core;
        let (number, is_left) = (core.number, passed.is_left);
        let asked = passed.tried.iter().filter(|shard| **shard == number).count();
        let will_do = |when: When| match when {
            When::Now => true,
            When::Later(_) => asked > 0,
            When::Never => asked > 1,
        };
        match core.mqtt_member(key, message) {
            Some(member) if will_do(member.when) => self.mqtt_give(member, key, message, is_left),
            _ => {
                passed.tried.push(number);
                let is_passed = core.broker.pass_to_group(message, key, passed);
                core.metrics.mqtt_gone.add(u64::from(!is_passed && is_left));
                is_passed
            }
        }
    }

    /// Gives a message to the member that was chosen for it, now or later. False where there is no room.
    fn mqtt_give(
        &mut self,
        Member { slot, when, way }: Member,
        key: &Arc<FilterKey>,
        message: &Arc<Envelope>,
        is_left: bool,
    ) -> bool {
        let Way { qos, retain, ids } = way;
        let (message, group) = (message.clone(), Some(key.clone()));
        let ids = ids.into();
        let waiting = Waiting { message, qos, retained: false, retain, ids, group };
        let Some(details) = self.core.mqtt.details_mut(slot) else { return false };
        match when {
            When::Later(_) if qos.is_confirmed() => {
                match mqtt_source(&details.session, &waiting.message) {
                    Some(source) => details.session.refs.push(source),
                    None => details.waiting.push_back(waiting),
                }
                self.core.mqtt.wake(slot);
            }
            When::Now | When::Later(_) => {
                let mut out = Vec::new();
                self.core.mqtt_send_shared(slot, waiting, &mut out);
                self.mqtt_flush(slot, &mut out);
            }
            When::Never => {
                self.core.metrics.mqtt_gone.add(1);
                // Or all members would have to go for what one after the other leaves.
                if !is_left {
                    self.say_goodbye(slot, CloseReason::SlowConsumer);
                }
                return false;
            }
        }
        true
    }
}

impl Core {
    /// The member here that takes a message first; of several the one whose turn it is.
    fn mqtt_member(&mut self, key: &FilterKey, message: &Envelope) -> Option<Member> {
        let members = self.hub.members(key.hash, &key.name);
        let turn = self.mqtt.turns.get(&key.hash).copied().unwrap_or(0);
        let first = turn.checked_rem(members)?;
        let slots = || self.hub.each_slot(key.hash, &key.name);
        let slots = slots().skip(first as usize).chain(slots().take(first as usize));
        let (mut best, mut next): (Option<Member>, u32) = (None, first + 1);
        for (slot, at) in slots.zip(0..TRIED) {
            let Some(member) = self.mqtt_asked(slot, key, message) else { continue };
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

    /// When a member can take a message; nothing where it may not have it, or takes none so large.
    fn mqtt_asked(&self, slot: u32, key: &FilterKey, message: &Envelope) -> Option<Member> {
        if !self.is_open(slot) || !self.mqtt_may_have(slot, message) {
            return None;
        }
        let details = self.mqtt.details(slot)?;
        let subscriptions = &details.session.subscriptions;
        let one = subscriptions.iter().find(|it| it.hub_name().as_str() == key.name.as_str())?;
        let publication = &message.publication;
        let way = joined(std::iter::once(one), publication.qos, publication.retain);
        if self.mqtt_is_too_large(slot, message, &self.mqtt_stamp(slot, message, &way)) {
            return None;
        }
        let Details { session, waiting, work, .. } = details;
        let is_idle = waiting.is_empty() && session.refs.is_empty() && work.is_idle();
        let has_room = !way.qos.is_confirmed() || is_idle && self.mqtt_room(slot) > 0;
        let queue_max = self.settings.mqtt().map_or(0, |it| it.queue_messages_max);
        let wait = waiting.len() + session.refs.len();
        let when = if has_room && !self.is_backlogged(slot) {
            When::Now
        } else if !way.qos.is_confirmed() || wait < queue_max {
            When::Later(wait)
        } else {
            When::Never
        };
        Some(Member { slot, when, way })
    }

    /// Sends a message to the member that its group has chosen.
    pub(super) fn mqtt_send_shared(&mut self, slot: u32, shared: Waiting, out: &mut Vec<u8>) {
        let Some(details) = self.mqtt.details(slot) else { return };
        let Waiting { message, qos, retain, ids, .. } = &shared;
        let source: Option<Source> = mqtt_source(&details.session, message);
        let in_flight = details.session.flow.in_flight();
        let way = Way { qos: *qos, retain: *retain, ids: ids.to_vec() };
        // There is room.
        let _ = self.mqtt_send(slot, message, &way, source, out);
        let Some(details) = self.mqtt.details_mut(slot) else { return };
        let flow = &details.session.flow;
        // It may have expired, or be larger than the client takes.
        let sent = flow.out().last().filter(|_| flow.in_flight() > in_flight).map(|it| it.id);
        if let Some(id) = sent.filter(|_| *qos == Qos::AtLeastOnce && !details.session.outlives()) {
            details.shared.push((id, shared));
        }
    }

    /// A member is gone with its session: what it has not confirmed is for others of its groups.
    pub(super) fn mqtt_leave_shared(&mut self, details: &mut Details) {
        // All others go as well.
        if self.draining {
            return;
        }
        let under_way = std::mem::take(&mut details.shared).into_iter().map(|(_, shared)| shared);
        for Waiting { message, group, .. } in under_way.chain(details.waiting.drain(..)) {
            let Some(key) = group else { continue };
            let passed = Passed { is_left: true, ..Passed::default() };
            let is_passed = self.broker.pass_to_group(&message, &key, passed);
            self.metrics.mqtt_gone.add(u64::from(!is_passed));
        }
    }
}
