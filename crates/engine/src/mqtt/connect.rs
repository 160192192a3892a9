//! MQTT clients that connect, disconnect, and take over each other's sessions.

use auth::{Action, Principal, Source, TokenMark};
use broker::PublishError;
use model::{CloseReason, Name, Publication, Topic, TopicKind};
use protocol::MqttSettings;
use protocol::mqtt::{Accepted, Connect, Mqtt, ReasonCode};
use sessions::{
    Author, Claim, ClaimOutcome, Ended, Now, Released, Session, SessionKey, Subscription, Token,
    WaitOutcome, Will,
};

use super::detached::Leaving;
use super::state::{Behind, Details, Row, Waiter, Work};
use crate::connection::Phase;
use crate::core::Core;
use crate::core::command::Command;
use crate::core::metrics::Limited;
use crate::engine::Engine;

impl Core {
    /// Returns a client's details, new ones if needed.
    pub(super) fn mqtt_details(&mut self, slot: u32) -> Option<&mut Details> {
        self.mqtt.details_or_new(slot, self.hub.topics_of(slot))
    }
}

impl Engine {
    /// Resumes the session of an authenticated client, or begins a new one.
    pub(crate) fn mqtt_connect(&mut self, slot: u32, connect: Box<Connect>, out: &mut Vec<u8>) {
        let Some(connection) = self.core.table.get(slot) else { return };
        let by = self.core.id(slot, connection.serial);
        let mut connect = connect;
        let is_assigned = connect.client.is_empty();
        if is_assigned {
            connect.client = format!("throng-{by}").into();
        }
        connect.principal.client = Some(connect.client.clone());
        connect.is_assigned = is_assigned;
        if let Some(close) = self.mqtt_turned_away(&connect, out) {
            return self.close_after(slot, close, out);
        }
        let key = session_key(&connect);
        let claim = Claim { key: &key, by, clean: connect.clean };
        match self.core.shared.mqtt_sessions.claim(claim) {
            ClaimOutcome::New { will } => {
                self.core.publish_wills(will);
                self.mqtt_accept(slot, key, *connect, None, out);
            }
            ClaimOutcome::Resumed { session, will } => {
                self.core.publish_wills(will);
                self.mqtt_accept(slot, key, *connect, Some(*session), out);
            }
            ClaimOutcome::Wait(old) => {
                // Even if the new client has left: the next one also waits for the old connection.
                if let Some(old) = old
                    && let Some(engine) = self.core.engines.get(usize::from(old.shard))
                {
                    let key = key.clone();
                    engine.send(Command::MqttTakeOver { slot: old.slot, key });
                }
                match self.wait_for_reply(slot, out) {
                    true => {
                        // This number serves until the client has the session. Its connect then gets one later than
                        // all before.
                        let number = self.mqtt_connect_number(&connect).unwrap_or_default();
                        self.core.mqtt.waiters.insert(slot, Waiter { key, connect, number });
                    }
                    false => self.core.mqtt_release(&key, by, Ended::default()),
                }
            }
        }
    }

    /// If the server can't accept a client, appends a CONNACK with the reason, and returns it.
    fn mqtt_turned_away(&self, connect: &Connect, out: &mut Vec<u8>) -> Option<CloseReason> {
        let (mqtt, own) = (Mqtt::of(connect.encoding)?, self.core.settings.mqtt()?);
        let leaves = match (self.core.draining, self.core.is_drained()) {
            (true, _) => Some(CloseReason::Drain),
            (false, true) => Some(CloseReason::UseAnotherServer),
            (false, false) => None,
        };
        if let Some(close) = leaves {
            let reference = self.core.server_reference();
            mqtt.send_away(close, reference, &connect.limits, out);
            return Some(close);
        }
        let checked = self.check_will(connect, mqtt).and_then(|()| {
            // Most clients accept any size.
            if connect.limits.packet_bytes_max == u32::MAX {
                return Ok(());
            }
            let accepted = self.core.mqtt_accepted(connect, own, true);
            match mqtt.accept(&accepted, &connect.limits, &mut Vec::new()) {
                true => Ok(()),
                false => Err((
                    ReasonCode::PacketTooLarge,
                    "the CONNACK is larger than the client's Maximum Packet Size",
                )),
            }
        });
        let (reason, text) = checked.err()?;
        mqtt.refuse(reason, Some(text), &connect.limits, out);
        let is_large = reason == ReasonCode::PacketTooLarge;
        Some(if is_large { CloseReason::TooBig } else { CloseReason::Unauthorized })
    }

    /// Checks that the client may publish its will, as any message. At the time of the publication, the application
    /// can't decide.
    fn check_will(&self, connect: &Connect, mqtt: Mqtt) -> Result<(), (ReasonCode, &'static str)> {
        const REFUSED: &str = "the will may not be published to its topic";
        let Some(will) = &connect.will else { return Ok(()) };
        let settings = &self.core.settings;
        let Publication { topic, data, retain, .. } = &will.publication;
        if data.bytes() > settings.session.message_bytes_max {
            self.core.metrics.limited[Limited::MessageBytes as usize].add(1);
            return Err((ReasonCode::PacketTooLarge, "the will exceeds the limit on message size"));
        }
        // MQTT 3 has no code for this: the server does not retain the message.
        let retains = settings.mqtt().is_none_or(|own| own.retained_messages_max > 0);
        if *retain && !retains && mqtt.reports_limits() {
            return Err((ReasonCode::RetainNotSupported, "this server does not retain messages"));
        }
        model::name::check_topic(topic).map_err(|_| (ReasonCode::TopicNameInvalid, REFUSED))?;
        let topic = self.core.mqtt_topic(topic);
        let decision = settings.session.policy.decide(&connect.principal, Action::Publish, &topic);
        decision.without_webhook().map(|_| ()).map_err(|_| (ReasonCode::NotAuthorized, REFUSED))
    }

    /// Makes a connection of this engine release its session, or stop waiting for it.
    pub(crate) fn mqtt_taken_over(&mut self, slot: u32, key: &Name) {
        let no_connection = self.core.id(slot, 0);
        if !self.core.shared.mqtt_sessions.awaits_release(key, no_connection) {
            // The connection has ended meanwhile, and released it.
            return;
        }
        if Leaving::is(slot) {
            return;
        }
        let has = self.core.mqtt.row(slot).is_some_and(|row| row.key == *key)
            || self.core.mqtt.waiters.get(&slot).is_some_and(|waiter| waiter.key == *key);
        if has && self.core.is_open(slot) {
            return self.say_goodbye(slot, CloseReason::TakenOver);
        }
        self.core.mqtt_release(key, no_connection, Ended::default());
    }

    /// Gives a free session to the client that waits for it.
    pub(crate) fn mqtt_may_take(&mut self, slot: u32) {
        let Some(waiter) = self.core.mqtt.waiters.remove(&slot) else { return };
        let Waiter { key, connect, number } = waiter;
        let Some(connection) = self.core.table.get(slot) else { return };
        let by = self.core.id(slot, connection.serial);
        let mut out = Vec::new();
        // Much may have changed while the client waited.
        if let Some(close) = self.mqtt_turned_away(&connect, &mut out) {
            // The end of the connection releases the session.
            self.core.mqtt.waiters.insert(slot, Waiter { key, connect, number });
            return self.close_after(slot, close, &mut out);
        }
        let claim = Claim { key: &key, by, clean: connect.clean };
        let session = match self.core.shared.mqtt_sessions.take(claim) {
            WaitOutcome::New { will } => {
                self.core.publish_wills(will);
                None
            }
            WaitOutcome::Resumed(session) => Some(*session),
            WaitOutcome::Elsewhere => {
                // The take-over of this client is on its way.
                self.core.mqtt.waiters.insert(slot, Waiter { key, connect, number });
                return;
            }
        };
        self.mqtt_accept(slot, key, *connect, session, &mut out);
        self.mqtt_flush(slot, &mut out);
        self.core.resumed.push(slot);
    }

    /// Accepts a client.
    fn mqtt_accept(
        &mut self,
        slot: u32,
        key: Name,
        connect: Connect,
        session: Option<Session>,
        out: &mut Vec<u8>,
    ) {
        let settings = self.core.settings.clone();
        let (Some(mqtt), Some(own)) = (Mqtt::of(connect.encoding), settings.mqtt()) else { return };
        let is_present = session.is_some();
        let accepted = self.core.mqtt_accepted(&connect, own, is_present);
        let keep_alive_s = accepted.keep_alive_s.unwrap_or(connect.keep_alive_s);
        // `mqtt_turned_away` has checked the size.
        let _ = mqtt.accept(&accepted, &connect.limits, out);
        let seconds = self.core.shared.mqtt_sessions.seconds(connect.seconds);
        let (number, is_clean) = (self.mqtt_connect_number(&connect), connect.clean);
        let Connect { principal, will, limits, method, encoding, .. } = connect;
        self.mqtt_enter(slot, encoding);
        self.enter_hub(slot, &principal, &[]);
        let will = will.map(|will| {
            let protocol::mqtt::Will { publication, delay_s, expiry_s } = will;
            Will { publication, delay_s, expiry_s, author: author(&principal) }
        });
        let needs_details = is_present
            || seconds > 0
            || will.is_some()
            || method.is_some()
            || limits != Default::default();
        let row = Row::new(key.clone(), keep_alive_s);
        let mut session = session.unwrap_or_else(|| Session {
            epoch: self.core.shared.mqtt_sessions.new_epoch(),
            ..Session::default()
        });
        session.seconds = seconds;
        session.connect_number = number.unwrap_or_default();
        // The user's stored topics.
        let is_pinned = self.core.hub.topics_of(slot).any(|it| TopicKind::of(it).is_ordinary())
            || principal.users.len() > 1;
        let restored = std::mem::take(&mut session.subscriptions);
        let position = session.position;
        let again = session.flow.out().map(|outgoing| outgoing.id).collect();
        let details = Details { session, will, limits, method, is_pinned, ..Details::default() };
        let has_details = needs_details || is_pinned;
        self.core.mqtt.insert(slot, row, has_details.then_some(details));
        if let Some(number) = number {
            self.core.mqtt.set_connect_number(slot, number);
            self.core.broker.client_connected(&key, number, is_clean);
        }
        let restored: Vec<Subscription> =
            restored.into_iter().filter(|it| self.mqtt_restore(slot, &principal, it)).collect();
        if let Some(details) = self.core.mqtt.details_mut(slot) {
            // Retained messages come for one subscription alone, which the client may have lost.
            let is_there = |reach: &Name| {
                restored.iter().any(|it| it.group.is_none() && *it.reach() == **reach)
            };
            details.session.replays.retain(|replay| is_there(&replay.reach));
            details.session.subscriptions = restored;
            if is_present {
                // Live messages up to this position were for the previous connection.
                let behind = Some(Behind::new(position));
                details.work = Work { again, behind, through: position, reading: None };
            }
            // A resumed session may end with this connection: the store must know, in case of a crash.
            if seconds > 0 || is_present {
                let (session, will) = (&details.session, details.will.as_ref());
                self.core.shared.mqtt_sessions.keep(&key, session, will, None);
            }
        }
        self.core.mqtt.wake(slot);
    }

    /// Returns the number of a connect in a cluster; `None` if this node assigned the client identifier, which no
    /// other node does.
    fn mqtt_connect_number(&self, connect: &Connect) -> Option<u64> {
        let unix_us = self.core.shared.unix_us(self.core.now_us);
        (!connect.is_assigned).then(|| self.core.broker.connect_number(unix_us)).flatten()
    }

    /// Switches the connection to MQTT, and ends its time to authenticate.
    fn mqtt_enter(&mut self, slot: u32, encoding: model::Encoding) {
        let is_open = self.core.table.get(slot).is_some_and(|it| it.phase() == Phase::Open);
        if is_open {
            self.core.speak(slot, encoding);
        } else {
            self.core.take_up(slot, encoding, Phase::Open);
            self.core.peers.opened(slot);
        }
        if let Some(cold) = self.core.table.cold_mut(slot) {
            cold.stranger_since_s = None;
        }
        let now_s = self.core.now_wrapping_s();
        if let Some(connection) = self.core.table.get_mut(slot) {
            connection.enter(Phase::Open);
            connection.last_received_s = now_s;
        }
    }

    /// Restores a session's subscription. Returns false if the policy denies it now. What the application once
    /// allowed, the client may enter again.
    fn mqtt_restore(
        &mut self,
        slot: u32,
        principal: &auth::Principal,
        subscription: &Subscription,
    ) -> bool {
        let settings = self.core.settings.clone();
        let policy = &settings.session.policy;
        let name = subscription.hub_name();
        // For a group that shares one topic, that topic's rule decides.
        let decided = if subscription.is_exact() { &subscription.filter } else { name };
        let topic = policy.topic(decided);
        let Ok(_) = policy.decide(principal, Action::Subscribe, &topic).undenied() else {
            return false;
        };
        match TopicKind::of(name) {
            TopicKind::Ordinary => drop(self.join(slot, name, topic.presence())),
            TopicKind::Filter(_) => drop(self.core.enter_filter(slot, name)),
            TopicKind::Personal(_) | TopicKind::Broadcast => {}
        }
        true
    }

    /// Releases the session of a client that leaves, and publishes its will unless DISCONNECT dropped it.
    pub(crate) fn mqtt_ended(&mut self, slot: u32) {
        if let Some(Waiter { key, .. }) = self.core.mqtt.waiters.remove(&slot) {
            let from = self.core.mqtt_id(slot);
            self.core.mqtt_release(&key, from, Ended::default());
        }
        self.core.mqtt.details_mut(slot).into_iter().for_each(Details::requeue_unsent);
        let Some(session) = self.core.mqtt_session(slot) else { return };
        let from = self.core.mqtt_id(slot);
        let names: Vec<Name> =
            session.subscriptions.iter().map(|it| it.hub_name().clone()).collect();
        for name in names.iter().filter(|name| matches!(TopicKind::of(name), TopicKind::Filter(_)))
        {
            self.core.leave_filter(slot, name);
        }
        let Some((row, details)) = self.core.mqtt.remove(slot) else { return };
        let (session, will, writing) = match details {
            None => (session, None, Vec::new()),
            Some(details) if session.outlives() => (session, details.will, details.writing),
            Some(mut details) => {
                self.core.mqtt_leave_shared(&mut details);
                // The session has only its own notes: other members have the rest.
                (details.session, details.will, details.writing)
            }
        };
        let ended = Ended { session: Some(session), will };
        self.core.mqtt_leave(&row.key, from, ended, writing);
    }
}

/// Returns the author of a will.
pub(crate) fn author(principal: &Principal) -> Author {
    let Principal { users, mark: TokenMark { issued_s, id_hash }, .. } = principal;
    let token = match principal.source {
        Source::Token | Source::Hook => Some(Token { issued_s: *issued_s, id_hash: *id_hash }),
        Source::Anonymous | Source::Application => None,
    };
    Author { users: users.clone(), token }
}

/// Returns the key of a client's session. It has the authenticated user, so that no other user gets the session by
/// its client identifier.
fn session_key(connect: &Connect) -> Name {
    let Connect { principal, is_proved, client, .. } = connect;
    let owner = principal.users.first().filter(|_| *is_proved).map(Name::as_str);
    SessionKey { client, owner }.encode()
}

impl Core {
    /// Returns the values of an accepting CONNACK.
    fn mqtt_accepted<'c>(
        &self,
        connect: &'c Connect,
        own: &MqttSettings,
        session_present: bool,
    ) -> Accepted<'c> {
        let Connect { encoding, keep_alive_s, seconds: requested, .. } = connect;
        let seconds = self.shared.mqtt_sessions.seconds(*requested);
        let max = own.keep_alive_seconds_max;
        let is_overridden = Mqtt::of(*encoding).is_some_and(Mqtt::reports_limits)
            && max > 0
            && (*keep_alive_s == 0 || *keep_alive_s > max);
        Accepted {
            session_present,
            seconds: (seconds != *requested).then_some(seconds),
            receive_max: own.receive_max,
            packet_bytes_max: own.packet_bytes_max,
            topic_alias_max: own.topic_alias_max,
            client: connect.is_assigned.then_some(&connect.client),
            keep_alive_s: is_overridden.then_some(max),
            wildcards: own.wildcards,
            retains: own.retained_messages_max > 0,
            method: connect.method.as_deref(),
        }
    }

    /// Returns the topic that an MQTT client publishes to.
    pub(crate) fn mqtt_topic<'n>(&self, name: &'n str) -> Topic<'n, '_> {
        let topic = self.settings.session.policy.topic(name);
        if self.settings.mqtt().is_some_and(|mqtt| mqtt.open) { topic.open() } else { topic }
    }

    fn mqtt_id(&self, slot: u32) -> model::ConnectionId {
        let serial = self.table.get(slot).map_or(0, |connection| connection.serial);
        self.id(slot, serial)
    }

    /// Returns the time of day and the time of ages.
    pub(super) fn mqtt_now(&self) -> Now {
        Now { unix_s: self.unix_s(), age_s: self.age_ms() / 1_000 }
    }

    /// Releases a session, notifies its next connection, and publishes due wills.
    pub(super) fn mqtt_release(&mut self, key: &str, from: model::ConnectionId, ended: Ended) {
        let now = self.mqtt_now();
        let Released { notify, publish } = self.shared.mqtt_sessions.release(key, from, ended, now);
        if let Some(by) = notify
            && let Some(engine) = self.engines.get(usize::from(by.shard))
        {
            engine.send(Command::MqttMayTake { slot: by.slot, serial: by.serial });
        }
        self.publish_wills(publish);
    }

    /// Publishes the wills of clients that have left.
    pub(crate) fn publish_wills(&mut self, wills: impl IntoIterator<Item = Will>) {
        for will in wills {
            let publication = will.publication(self.unix_ms());
            let publish = broker::Publish { publication, options: broker::Options::default() };
            let metrics = self.metrics.clone();
            // The broker calls this at once, in this thread.
            let done = move |result: Result<broker::Published, PublishError>| {
                if result.is_err_and(|error| error == PublishError::Overloaded) {
                    metrics.limited[Limited::Mailbox as usize].add(1);
                }
            };
            self.broker.submit(publish, None, Box::new(done));
        }
    }
}
