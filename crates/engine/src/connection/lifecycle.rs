//! The lifecycle of connections: they open, join topics, leave them and end.

use std::sync::atomic::Ordering;

use auth::Principal;
use model::{CloseReason, ErrorCode, TopicKind};
use protocol::request::Entry;
use protocol::{Listener, ReplyError};

use crate::connection::peers::Arrival;
use crate::connection::{Connection, Flag, Phase, Subscribing};
use crate::core::output::Output;
use crate::core::{Core, Effect};
use crate::engine::Engine;
use crate::recovery::Recovery;

/// Which state of a connection is removed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The state of its topics.
    Topics,
    /// All of its state.
    All,
}

impl Engine {
    /// Opens a connection of this listener. Returns its slot.
    pub fn open(&mut self, listener: Listener, arrival: Arrival) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        let protocols = self.core.shared.protocols;
        let encoding = protocols.begin(listener).unwrap_or(protocols.first()).encoding();
        let connection = Connection::new(self.serial, self.core.now_s(), encoding);
        let slot = self.core.table.insert(connection);
        match arrival {
            Arrival::Direct(None) => {}
            Arrival::Direct(Some(address)) => self.core.peers.open_direct(slot, address),
            Arrival::Reserved => {
                self.reserved += 1;
                if let Some(cold) = self.core.table.cold_or_new(slot) {
                    cold.reserved = true;
                }
            }
            Arrival::Proxy(proxy) => {
                let header = self.core.settings.session.proxies.header;
                self.core.peers.open(slot, proxy, header);
            }
        }
        self.core.metrics.connections[usize::from(encoding.0)].add(1);
        self.core.metrics.open_connections.add(1);
        self.core.metrics.admitted.add(1);
        slot
    }

    /// Begins to end a connection: from now on nothing is delivered to it or read from it. `last` is sent, if possible.
    /// Then the connection is closed: at once if the peer has sent everything, otherwise when the peer has closed its
    /// side too.
    pub(crate) fn close(&mut self, slot: u32, close: CloseReason, last: &[u8]) {
        self.core.close_soon(slot, close, last.to_vec());
        self.perform_effects();
    }

    /// Calls the recovery, and then handles what it caused in other parts.
    pub(crate) fn recover<R>(&mut self, act: impl FnOnce(&mut Recovery, &mut Core) -> R) -> R {
        let result = act(&mut self.recovery, &mut self.core);
        self.perform_effects();
        result
    }

    /// Handles what the last call of a part caused in other parts.
    pub(crate) fn perform_effects(&mut self) {
        while !self.core.effects.is_empty() {
            for effect in std::mem::take(&mut self.core.effects) {
                match effect {
                    Effect::Close { slot, close, last } => self.complete_close(slot, close, &last),
                    Effect::SessionTaken { slot } => self.session_taken(slot),
                }
            }
        }
    }

    /// Sends bytes to one connection, behind those that wait.
    pub(crate) fn send(&mut self, slot: u32, bytes: &[u8], messages: u32) {
        self.core.send(slot, bytes, messages);
        self.perform_effects();
    }

    /// The rest of a close, after the connection is in the phase of closing.
    fn complete_close(&mut self, slot: u32, close: CloseReason, last: &[u8]) {
        let polled = self.core.is_gathered(slot);
        let now_s = self.core.now_wrapping_s();
        let Some(connection) = self.core.table.get_mut(slot) else {
            return;
        };
        connection.last_received_s = now_s;
        let serial = connection.serial;
        let blocked = polled || connection.is(Flag::Blocked);
        let mut session_request = None;
        if let Some(cold) = self.core.table.cold_or_new(slot) {
            cold.input = Vec::new();
            cold.decoder = None;
            cold.poll = None;
            cold.pending = None;
            cold.subscribing = Vec::new();
            (cold.paused, cold.waits) = (false, false);
            (cold.stranger_since_s, cold.token) = (None, None);
            cold.closing = Some(close);
            session_request = cold.session_request.take();
        }
        self.core.count_input(slot);
        if let Some(session_request) = session_request {
            self.core.on_session_request_ended(&session_request, self.core.id(slot, serial));
        }
        self.core.log_close(slot, close);
        self.core.trace_closed(slot, close);
        let gone = self.core.gone(slot, close);
        self.leave_topics(slot);
        self.core.hook_events.extend(gone);
        if blocked && close == CloseReason::SlowConsumer {
            // The peer would not read the rest either.
            return self.end(slot, close);
        }
        if !last.is_empty() {
            self.send(slot, last, 0);
        }
        if polled {
            return self.close_session(slot);
        }
        self.core.outputs.push(Output::Close { slot, linger: lingers(close) });
    }

    /// Removes a connection at once. The kernel still sends what it has.
    pub(crate) fn end(&mut self, slot: u32, close: CloseReason) {
        if self.core.is_open(slot) {
            self.core.log_close(slot, close);
            self.core.trace_closed(slot, close);
        }
        let gone = self.core.gone(slot, close);
        self.forget(slot, Extent::All);
        debug_assert!(self.is_forgotten(slot), "some state of slot {slot} is left");
        self.core.hook_events.extend(gone);
        let Some((connection, mut cold)) = self.core.table.remove(slot) else {
            return;
        };
        let (mut session, mut session_request, mut reason) = (None, None, close);
        if let Some(cold) = &mut cold {
            self.core.metrics.input_bytes.sub(u64::from(cold.counted));
            self.reserved -= u32::from(cold.reserved);
            (session, session_request) = (cold.session.take(), cold.session_request.take());
            reason = cold.closing.unwrap_or(close);
        }
        self.core.metrics.connections[usize::from(connection.encoding.0)].sub(1);
        self.core.metrics.closed[reason as usize].add(1);
        self.core.metrics.open_connections.sub(1);
        self.core.metrics.closing_connections.sub(u64::from(connection.is_closing()));
        self.core.shared.connections.fetch_sub(1, Ordering::Relaxed);
        let id = self.core.id(slot, connection.serial);
        match session {
            Some(session) => self.core.session_ended(id, *session),
            None => self.core.outputs.push(Output::Drop { slot }),
        }
        if let Some(session_request) = session_request {
            self.core.on_session_request_ended(&session_request, id);
        }
    }

    /// Makes a connection a member of its users' personal topics, of its own topics, and of its users' stored
    /// subscriptions.
    pub(crate) fn enter_hub(&mut self, slot: u32, principal: &Principal, entries: &[Entry]) {
        // The hub must have no member without a connection.
        if !self.core.is_open(slot) {
            return;
        }
        self.core.hub.insert(slot);
        self.core.notify_connected(slot, &principal.users);
        self.core.credentials.insert(slot, principal);
        for user in &principal.users {
            self.join(slot, &model::name::personal(user), false);
        }
        for Entry { topic, permit, meta } in entries {
            self.join_with(slot, topic, permit.presence, meta.as_deref().unwrap_or("{}"));
        }
        for user in &principal.users {
            for topic in self.core.shared.subscriptions.of(user) {
                let presence = self.core.settings.session.policy.topic(&topic).presence();
                let chosen = |entry: &Entry| entry.topic == topic;
                if !self.join(slot, &topic, presence) && entries.iter().any(chosen) {
                    self.explicit.insert(slot, self.core.broker.hash(&topic));
                }
            }
        }
    }

    /// Joins a topic; with `presence` its members see each other. Returns false if the connection is a member already.
    pub(crate) fn join(&mut self, slot: u32, topic: &str, presence: bool) -> bool {
        self.join_with(slot, topic, presence, "{}")
    }

    /// Joins a topic; with `presence` its members see each other. The connection's presence payload is `meta`, the text
    /// of a JSON object. Returns false if the connection is a member already.
    pub(crate) fn join_with(&mut self, slot: u32, topic: &str, presence: bool, meta: &str) -> bool {
        if matches!(TopicKind::of(topic), TopicKind::Filter(_)) {
            return self.listen(slot, topic);
        }
        let hash = self.core.broker.hash(topic);
        let joined = self.core.enter_topic(slot, hash, topic);
        if joined {
            self.core.notify_joined(slot, hash, topic);
        }
        self.rates.quota.settle(&self.core, slot);
        if joined && presence {
            self.enter_presence(slot, topic, meta);
            self.core.owe_list(slot, topic);
        } else if !joined && meta != "{}" {
            // The application had subscribed the connection, without a meta.
            let meta = self.core.presence_meta(slot, meta);
            self.core.entries.update(slot, hash, &meta, self.core.now_us);
        }
        joined
    }

    /// Leaves a topic. Returns false if the connection is no member.
    pub(crate) fn leave(&mut self, slot: u32, topic: &str) -> bool {
        if matches!(TopicKind::of(topic), TopicKind::Filter(_)) {
            return self.stop_listening(slot, topic);
        }
        let hash = self.core.broker.hash(topic);
        let left = self.core.leave_topic(slot, hash, topic);
        self.explicit.remove(slot, hash);
        self.recovery.end_topic(slot, hash);
        self.core.conflation.take_topic(slot, Some(hash), &self.core.metrics);
        self.rates.quota.settle(&self.core, slot);
        if let Some(ended) = left {
            self.core.entries.leave(slot, topic, self.core.now_us);
            self.core.notify_left(slot, topic, ended);
        }
        left.is_some()
    }

    /// Cancels a subscription by a command that waits for the application. The reply is appended to `out`. Returns
    /// false if there is no such subscription.
    pub(crate) fn give_up_subscribing(
        &mut self,
        slot: u32,
        topic: &str,
        out: &mut Vec<u8>,
    ) -> bool {
        let core = &mut self.core;
        let (Some(protocol), Some(cold)) = (core.protocol(slot), core.table.cold_mut(slot)) else {
            return false;
        };
        let all = std::mem::take(&mut cold.subscribing);
        let (given_up, rest): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|subscribing| subscribing.topic == topic);
        cold.subscribing = rest;
        for Subscribing { id, .. } in &given_up {
            let message = "the connection left the topic before the application had responded";
            let error = ReplyError::new(ErrorCode::NotSubscribed, message);
            protocol.reply(id, Err(error), &mut core.codecs, out);
        }
        core.table.trim(slot);
        !given_up.is_empty()
    }

    /// Makes the connection leave all of its topics and stay open.
    pub(crate) fn leave_topics(&mut self, slot: u32) {
        self.forget(slot, Extent::Topics);
    }

    /// Removes a connection from all parts that a [record](crate::handover::record::Record) lists, but for the table,
    /// from which [`Engine::end`] removes it. Tests check that nothing is left.
    fn forget(&mut self, slot: u32, extent: Extent) {
        // Messages that are due to it belong to its session.
        self.mqtt_ended(slot);
        self.core.leave_filters(slot);
        self.core.entries.leave_all(slot, self.core.now_us);
        let followed = self.core.followed(slot);
        self.forget_quietly(slot, extent);
        if let Some(followed) = followed {
            self.core.notify_left_all(followed);
        }
    }

    /// Removes a connection from the parts without events for others.
    pub(crate) fn forget_quietly(&mut self, slot: u32, extent: Extent) {
        self.rates.quota.uncount(&self.core, slot);
        self.recovery.forget(slot);
        self.core.credentials.remove(slot);
        self.core.snapshots_due.remove(&slot);
        self.core.conflation.forget(slot, &self.core.metrics);
        self.explicit.clear(slot);
        self.pages.forget(slot);
        self.core.joins.clear(slot);
        self.core.traces.forget(slot, extent == Extent::Topics);
        self.core.leave_topics(slot);
        self.core.metrics.topics.set(u64::from(self.core.hub.topics()));
        if extent == Extent::All {
            self.rates.forget(slot);
            self.core.peers.forget(slot, &self.core.shared);
            self.rates.quota.forget(slot);
        }
    }

    /// Repeats the outputs for an imported connection that the driver of the other engine had not performed: a close,
    /// or a request for its address.
    pub(crate) fn close_again(&mut self, slot: u32) {
        let Some(cold) = self.core.table.cold(slot) else {
            return;
        };
        let (closing, opens) =
            (cold.closing, cold.session_request.as_ref().is_some_and(|it| it.opens));
        let phase = self.core.table.get(slot).map(Connection::phase);
        if phase == Some(Phase::Closing) && !self.core.is_gathered(slot) {
            let linger = closing.is_some_and(lingers);
            self.core.outputs.push(Output::Close { slot, linger });
        } else if opens {
            self.core.outputs.push(Output::Address { slot });
        }
    }

    /// Closes a connection with its last bytes: messages that were published before, and why the connection ends.
    pub(crate) fn say_goodbye(&mut self, slot: u32, close: CloseReason) {
        let last = self.recover(|recovery, core| recovery.goodbye(core, slot, close));
        self.close(slot, close, &last);
    }
}

/// Returns whether only our side is closed until the peer has closed its own. A full close with unread input would make
/// the kernel reset the connection, and the peer would lose the last bytes. False if the peer has sent everything.
fn lingers(close: CloseReason) -> bool {
    !matches!(close, CloseReason::ByClient | CloseReason::Lost | CloseReason::Replied)
}
