//! MQTT clients that come, go, and take over each other's sessions.

use auth::Action;
use model::{CloseReason, Name, Publication, Topic, TopicKind};
use protocol::mqtt::{Accepted, Connect, Mqtt, ReasonCode};
use sessions::{Claim, Claimed, Ended, Place, Released, Session, Subscription, Taken, Will};

use super::state::{Behind, Details, Row, Waiter, Work};
use crate::command::Command;
use crate::connection::Phase;
use crate::connections::Connections;
use crate::core::Core;

impl Connections {
    /// A client may come in: its session is taken up, or a new one begins.
    pub(crate) fn mqtt_connect(&mut self, slot: u32, connect: Box<Connect>, out: &mut Vec<u8>) {
        let Some(connection) = self.core.table.get(slot) else { return };
        let by = self.core.id(slot, connection.serial);
        let mut connect = connect;
        let is_assigned = connect.client.is_empty();
        if is_assigned {
            connect.client = format!("throng-{by}").into();
        }
        connect.principal.client = Some(connect.client.clone());
        let Some(mqtt) = Mqtt::of(connect.encoding) else { return };
        if self.core.draining {
            let own = self.core.settings.mqtt();
            match own.and_then(|own| own.server_reference.as_deref()) {
                Some(reference) => mqtt.send_elsewhere(reference, out),
                None => mqtt.refuse(ReasonCode::ServerShuttingDown, None, out),
            }
            return self.close_after(slot, CloseReason::Drain, out);
        }
        if let Err(reason) = self.check_will(&connect) {
            mqtt.refuse(reason, Some("the will may not be published to its topic"), out);
            return self.close_after(slot, CloseReason::Unauthorized, out);
        }
        connect.is_assigned = is_assigned;
        let key = session_key(&connect);
        let claim = Claim { key: &key, by, clean: connect.clean };
        match self.core.shared.mqtt_sessions.claim(claim) {
            Claimed::New { will } => {
                self.core.publish_wills(will);
                self.mqtt_accept(slot, key, *connect, None, out);
            }
            Claimed::Resumed(session) => {
                self.mqtt_accept(slot, key, *connect, Some(*session), out);
            }
            Claimed::Wait(old) => {
                self.core.mqtt.waiters.insert(slot, Waiter { key: key.clone(), connect });
                if self.wait_for_answer(slot, out)
                    && let Some(old) = old
                    && let Some(engine) = self.core.engines.get(usize::from(old.shard))
                {
                    engine.send(Command::MqttTakeOver { slot: old.slot, key });
                }
            }
        }
    }

    /// What would be published because a client is gone must be allowed as anything that it publishes. The
    /// application can't be asked then.
    fn check_will(&self, connect: &Connect) -> Result<(), ReasonCode> {
        let Some(will) = &connect.will else { return Ok(()) };
        let topic = &will.publication.topic;
        model::name::check_topic(topic).map_err(|_| ReasonCode::TopicNameInvalid)?;
        let policy = &self.core.settings.session.policy;
        let topic = self.core.mqtt_topic(topic);
        let decision = policy.decide(&connect.principal, Action::Publish, &topic);
        decision.unasked().map(|_| ()).map_err(|_| ReasonCode::NotAuthorized)
    }

    /// A connection of this engine has to let go of its session, or of waiting for it.
    pub(crate) fn mqtt_taken_over(&mut self, slot: u32, key: &Name) {
        let nobody = self.core.id(slot, 0);
        if !self.core.shared.mqtt_sessions.is_told(key, nobody) {
            // It has ended meanwhile, and let go with that.
            return;
        }
        let has = self.core.mqtt.row(slot).is_some_and(|row| row.key == *key)
            || self.core.mqtt.waiters.get(&slot).is_some_and(|waiter| waiter.key == *key);
        if has && self.core.is_open(slot) {
            return self.say_goodbye(slot, CloseReason::TakenOver);
        }
        self.core.mqtt_release(key, nobody, Ended::default());
    }

    /// The session that a client has waited for is free.
    pub(crate) fn mqtt_may_take(&mut self, slot: u32) {
        let Some(Waiter { key, connect }) = self.core.mqtt.waiters.remove(&slot) else { return };
        let Some(connection) = self.core.table.get(slot) else { return };
        let by = self.core.id(slot, connection.serial);
        let claim = Claim { key: &key, by, clean: connect.clean };
        let session = match self.core.shared.mqtt_sessions.take(claim) {
            Taken::New => None,
            Taken::Resumed(session) => Some(*session),
            Taken::Elsewhere => {
                // It is about to be told so.
                self.core.mqtt.waiters.insert(slot, Waiter { key, connect });
                return;
            }
        };
        let mut out = Vec::new();
        self.mqtt_accept(slot, key, *connect, session, &mut out);
        self.mqtt_flush(slot, &mut out);
        self.core.resumed.push(slot);
    }

    /// Lets a client in.
    fn mqtt_accept(
        &mut self,
        slot: u32,
        key: Name,
        connect: Connect,
        session: Option<Session>,
        out: &mut Vec<u8>,
    ) {
        let Connect { principal, client, keep_alive_s, will, limits, method, encoding, .. } =
            connect;
        let settings = self.core.settings.clone();
        let (Some(mqtt), Some(own)) = (Mqtt::of(encoding), settings.mqtt()) else { return };
        let seconds = self.core.shared.mqtt_sessions.seconds(connect.seconds);
        let is_present = session.is_some();
        let keep_alive_max = own.keep_alive_seconds_max;
        let is_overridden = mqtt.tells_limits()
            && keep_alive_max > 0
            && (keep_alive_s == 0 || keep_alive_s > keep_alive_max);
        let keep_alive_s = if is_overridden { keep_alive_max } else { keep_alive_s };
        mqtt.accept(
            &Accepted {
                session_present: is_present,
                seconds: (seconds != connect.seconds).then_some(seconds),
                receive_max: own.receive_max,
                packet_bytes_max: own.packet_bytes_max,
                topic_alias_max: own.topic_alias_max,
                client: connect.is_assigned.then_some(&client),
                keep_alive_s: is_overridden.then_some(keep_alive_s),
                wildcards: own.wildcards,
                method: method.as_deref(),
            },
            out,
        );
        self.mqtt_enter(slot, encoding);
        self.enter_hub(slot, &principal, &[]);
        let will = will.map(|it| Will { publication: it.publication, delay_s: it.delay_s });
        let needs_details = is_present
            || seconds > 0
            || will.is_some()
            || method.is_some()
            || limits != Default::default();
        let row = Row::new(key.clone(), keep_alive_s);
        let mut session = session.unwrap_or_default();
        session.seconds = seconds;
        // Its user's stored topics.
        let is_pinned = self.core.hub.topics_of(slot).any(|it| TopicKind::of(it).is_ordinary())
            || principal.users.len() > 1;
        let restored = std::mem::take(&mut session.subscriptions);
        let position = session.position;
        let again = session.flow.out().map(|outgoing| outgoing.id).collect();
        let details = Details { session, will, limits, method, is_pinned, ..Details::default() };
        let has_details = needs_details || is_pinned;
        self.core.mqtt.insert(slot, row, has_details.then_some(details));
        let restored: Vec<Subscription> =
            restored.into_iter().filter(|it| self.mqtt_restore(slot, &principal, it)).collect();
        if let Some(details) = self.core.mqtt.details_mut(slot) {
            details.session.subscriptions = restored;
            if is_present {
                // What comes live from before that was for the connection before this one.
                let behind = Some(Behind::new(position));
                details.work = Work { again, behind, through: position, reading: None };
            }
            if seconds > 0 {
                let (session, will) = (&details.session, details.will.as_ref());
                self.core.shared.mqtt_sessions.keep(&key, session, will, None);
            }
        }
        self.core.mqtt.wake(slot);
    }

    /// The connection speaks MQTT from now on, and lasts.
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
            connection.heard_s = now_s;
        }
    }

    /// Puts a client back where a subscription of its session puts it; false where it may not be there any
    /// more. What the application has let it enter it may enter again.
    fn mqtt_restore(
        &mut self,
        slot: u32,
        principal: &auth::Principal,
        subscription: &Subscription,
    ) -> bool {
        let settings = self.core.settings.clone();
        let policy = &settings.session.policy;
        let name = subscription.hub_name();
        let topic = policy.topic(&name);
        let Ok(_) = policy.decide(principal, Action::Subscribe, &topic).undenied() else {
            return false;
        };
        match topic.kind {
            TopicKind::Ordinary => drop(self.join(slot, &name, topic.presence())),
            TopicKind::Filter(_) => drop(self.core.enter_filter(slot, &name)),
            TopicKind::Personal(_) | TopicKind::Broadcast => {}
        }
        true
    }

    /// A client goes: its session is let go, and its will is published unless it has said goodbye.
    pub(crate) fn mqtt_ended(&mut self, slot: u32) {
        if let Some(Waiter { key, .. }) = self.core.mqtt.waiters.remove(&slot) {
            let from = self.core.mqtt_id(slot);
            self.core.mqtt_release(&key, from, Ended::default());
        }
        let Some(session) = self.core.mqtt_session(slot) else { return };
        let from = self.core.mqtt_id(slot);
        let names: Vec<Name> = session.subscriptions.iter().map(Subscription::hub_name).collect();
        for name in names.iter().filter(|name| matches!(TopicKind::of(name), TopicKind::Filter(_)))
        {
            self.core.leave_filter(slot, name);
        }
        let Some((row, details)) = self.core.mqtt.remove(slot) else { return };
        let will = details.and_then(|details| details.will);
        let session = session.outlives().then_some(session);
        self.core.mqtt_release(&row.key, from, Ended { session, will });
    }
}

/// The key of a client's session. Where users are proved, nobody has the session of somebody else by
/// naming its client identifier.
fn session_key(connect: &Connect) -> Name {
    let Connect { principal, is_proved, client, .. } = connect;
    let owner = principal.users.first().filter(|_| *is_proved).map(Name::as_str);
    Place { client, owner }.key()
}

impl Core {
    /// A topic to which an MQTT client wants to publish.
    pub(super) fn mqtt_topic<'n>(&self, name: &'n str) -> Topic<'n, '_> {
        let topic = self.settings.session.policy.topic(name);
        if self.settings.mqtt().is_some_and(|mqtt| mqtt.open) { topic.open() } else { topic }
    }

    fn mqtt_id(&self, slot: u32) -> model::ConnectionId {
        let serial = self.table.get(slot).map_or(0, |connection| connection.serial);
        self.id(slot, serial)
    }

    /// Lets go of a session, and does what follows.
    fn mqtt_release(&mut self, key: &str, from: model::ConnectionId, ended: Ended) {
        let now_s = self.unix_s();
        let Released { notify, publish } =
            self.shared.mqtt_sessions.release(key, from, ended, now_s);
        if let Some(by) = notify
            && let Some(engine) = self.engines.get(usize::from(by.shard))
        {
            engine.send(Command::MqttMayTake { slot: by.slot, serial: by.serial });
        }
        self.publish_wills(publish);
    }

    /// Publishes what clients left to be published when they are gone.
    pub(crate) fn publish_wills(&mut self, wills: impl IntoIterator<Item = Publication>) {
        for publication in wills {
            let options = broker::Options::default();
            let publish = broker::Publish { publication, options };
            self.broker.submit(publish, None, Box::new(|_| ()));
        }
    }
}
