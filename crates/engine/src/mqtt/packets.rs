//! What MQTT clients send.

use auth::{Action, Consent, Permit};
use model::name::check_topic;
use model::{CloseReason, Name, Position, Publication, Qos, TopicKind};
use protocol::mqtt::{Confirm, ConfirmKind, Incoming, Publish, ReasonCode};
use protocol::request::{Acknowledgement, TokenPurpose};
use sessions::{Confirmed, Incoming as Arrival};

use super::state::MqttAck;
use crate::command::Answer;
use crate::connection::PendingToken;
use crate::connections::Connections;
use crate::core::Core;
use crate::metrics::Limited;
use crate::publish::Publishes;
use crate::webhook::Webhook;

/// The MQTT clients of an engine.
pub(crate) struct Mqtts<'a> {
    pub connections: &'a mut Connections,
    pub webhook: Option<&'a dyn Webhook>,
}

impl Mqtts<'_> {
    /// Does what a client asks for.
    pub(crate) fn incoming(&mut self, slot: u32, incoming: Incoming, out: &mut Vec<u8>) {
        match incoming {
            Incoming::Connect(connect) => {
                let is_known = self.connections.core.mqtt.has(slot);
                if is_known {
                    // A second CONNECT (MQTT 5.0, section 3.1).
                    return self.break_off(slot, ReasonCode::ProtocolError, out);
                }
                self.connections.rates.has_joined(&mut self.connections.core, slot);
                self.connections.mqtt_connect(slot, connect, out);
            }
            Incoming::Publish(publish) => self.publish(slot, *publish, out),
            Incoming::Confirm(confirm) => self.confirm(slot, confirm, out),
            Incoming::Subscribe(subscribe) => {
                self.subscribe(slot, *subscribe, out);
                // Retained messages are looked up at once: what is published from here on comes live.
                self.connections.mqtt_flush(slot, out);
                self.connections.mqtt_serve(slot);
            }
            Incoming::Unsubscribe { id, filters } => self.unsubscribe(slot, id, &filters, out),
            Incoming::Ping => {
                if let Some(mqtt) = self.connections.core.mqtt_protocol(slot) {
                    mqtt.pong(out);
                }
            }
            Incoming::Disconnect { with_will, seconds } => {
                self.disconnect(slot, with_will, seconds, out);
            }
            Incoming::Authenticate { method, token } => {
                self.authenticate(slot, &method, token, out);
            }
        }
    }

    fn break_off(&mut self, slot: u32, reason: ReasonCode, out: &mut Vec<u8>) {
        self.connections.mqtt_break_off(slot, reason, out);
    }

    fn disconnect(&mut self, slot: u32, with_will: bool, seconds: Option<u32>, out: &mut Vec<u8>) {
        let sessions = self.connections.core.shared.mqtt_sessions.clone();
        if let Some(details) = self.connections.core.mqtt.details_mut(slot) {
            if !with_will {
                details.will = None;
            }
            match seconds {
                // A session that was to end with its connection does (MQTT 5.0, section 3.14.2.2.2).
                Some(1..) if details.session.seconds == 0 => {
                    return self.break_off(slot, ReasonCode::ProtocolError, out);
                }
                Some(seconds) => details.session.seconds = sessions.seconds(seconds),
                None => {}
            }
        } else if seconds.is_some_and(|seconds| seconds > 0) {
            return self.break_off(slot, ReasonCode::ProtocolError, out);
        }
        self.connections.close_after(slot, CloseReason::ByClient, out);
    }

    /// The client wants to go on with a new token.
    fn authenticate(&mut self, slot: u32, method: &str, token: Box<str>, out: &mut Vec<u8>) {
        let details = self.connections.core.mqtt.details(slot);
        if details.and_then(|details| details.method.as_deref()) != Some(method) {
            return self.break_off(slot, ReasonCode::BadAuthenticationMethod, out);
        }
        let answer = Answer::MqttAuth(method.into());
        let pending = PendingToken { token, purpose: TokenPurpose::Refresh, answer };
        self.connections.authenticate(slot, pending, out);
    }

    fn publish(&mut self, slot: u32, publish: Publish, out: &mut Vec<u8>) {
        let Publish { id, alias, mut publication } = publish;
        let core = &mut self.connections.core;
        let settings = core.settings.clone();
        let Some(own) = settings.mqtt() else { return };
        if alias > 0 {
            if alias > own.topic_alias_max {
                return self.break_off(slot, ReasonCode::TopicAliasInvalid, out);
            }
            let topics: Vec<Name> = core.hub.topics_of(slot).cloned().collect();
            let Some(details) = core.mqtt.details_or_new(slot, topics.iter()) else { return };
            if publication.topic.is_empty() {
                match details.aliases.get(&alias) {
                    Some(topic) => publication.topic = topic.clone(),
                    None => return self.break_off(slot, ReasonCode::ProtocolError, out),
                }
            } else {
                details.aliases.insert(alias, publication.topic.clone());
            }
        }
        let qos = publication.qos;
        if publication.data.bytes() > settings.session.message_bytes_max {
            core.metrics.limited[Limited::MessageBytes as usize].add(1);
            return self.break_off(slot, ReasonCode::PacketTooLarge, out);
        }
        if qos.is_confirmed() {
            let topics: Vec<Name> = core.hub.topics_of(slot).cloned().collect();
            let Some(details) = core.mqtt.details_or_new(slot, topics.iter()) else { return };
            // A back end has it still, and what becomes of it is answered then.
            if qos == Qos::ExactlyOnce && details.forwarding.contains(&id) {
                return;
            }
            let under_way = details.session.flow.incoming()
                + usize::from(details.publishing)
                + details.forwarding.len();
            let max = usize::from(own.receive_max);
            match qos {
                Qos::ExactlyOnce => match details.session.flow.receive(id, max) {
                    Arrival::New if under_way < max => {
                        if settings.forwards.of(&publication.topic).is_some() {
                            // If the connection ends before the back end has it, it must come again.
                            details.session.flow.release(id);
                            details.forwarding.push(id);
                        }
                    }
                    Arrival::New | Arrival::TooMany => {
                        return self.break_off(slot, ReasonCode::ReceiveMaximumExceeded, out);
                    }
                    Arrival::Again => {
                        if let Some(mqtt) = core.mqtt_protocol(slot) {
                            mqtt.confirm(ConfirmKind::Received, id, ReasonCode::Success, out);
                        }
                        return;
                    }
                },
                Qos::AtLeastOnce if under_way >= max => {
                    return self.break_off(slot, ReasonCode::ReceiveMaximumExceeded, out);
                }
                Qos::AtLeastOnce => details.publishing += 1,
                Qos::AtMostOnce => {}
            }
        }
        let mut ack = MqttAck { id, qos, with: false, retain: publication.retain };
        let consent = match self.decide_publish(slot, &publication) {
            Ok(consent) => consent,
            Err(reason) => return self.connections.mqtt_published(slot, ack, Err(reason), out),
        };
        publication.except = self.connections.core.mqtt_except(slot, &publication.topic);
        let core = &self.connections.core;
        ack.with = core.mqtt_stores_with(slot, &publication.topic, qos);
        let consent = match consent {
            Consent::Given(permit) => {
                let rule = core.history.rule(&publication.topic);
                let durable = permit.durable || rule.is_some_and(|rule| rule.durable);
                // Nobody waits for a message that is not confirmed.
                Consent::Given(Permit { durable: durable && qos.is_confirmed(), ..permit })
            }
            asked @ Consent::Asked(_) => asked,
        };
        let Mqtts { connections, webhook } = self;
        let to = Answer::Mqtt(ack);
        Publishes { connections, webhook: *webhook }.publish(slot, publication, consent, to, out);
    }

    /// Whether a client may publish a message.
    fn decide_publish(&self, slot: u32, publication: &Publication) -> Result<Consent, ReasonCode> {
        let core = &self.connections.core;
        let name = &publication.topic;
        if !TopicKind::of(name).is_ordinary() || name.starts_with("$SYS/") || *name == "$SYS" {
            return Err(ReasonCode::NotAuthorized);
        }
        check_topic(name).map_err(|_| ReasonCode::TopicNameInvalid)?;
        let policy = &core.settings.session.policy;
        let topic = core.mqtt_topic(name);
        let decision = policy.decide(&core.principal(slot), Action::Publish, &topic);
        decision.undenied().map_err(|_| ReasonCode::NotAuthorized)
    }

    fn confirm(&mut self, slot: u32, confirm: Confirm, out: &mut Vec<u8>) {
        let Confirm { kind, id, failed } = confirm;
        let core = &mut self.connections.core;
        let Some(mqtt) = core.mqtt_protocol(slot) else { return };
        let Some(details) = core.mqtt.details_mut(slot) else {
            // Nothing is under way.
            let kind = match kind {
                ConfirmKind::Release => ConfirmKind::Complete,
                ConfirmKind::Received if !failed => ConfirmKind::Release,
                ConfirmKind::Received | ConfirmKind::Acknowledged | ConfirmKind::Complete => return,
            };
            return mqtt.confirm(kind, id, ReasonCode::PacketIdentifierNotFound, out);
        };
        let stored = details.session.outlives() && core.shared.mqtt_sessions.is_stored();
        let flow = &mut details.session.flow;
        let has = matches!(kind, ConfirmKind::Acknowledged | ConfirmKind::Received) && !failed;
        let source = flow.source(id).filter(|source| has && !source.retained).cloned();
        let confirmed = match kind {
            ConfirmKind::Acknowledged => flow.acknowledged(id),
            ConfirmKind::Received => flow.received(id, failed),
            ConfirmKind::Complete => flow.completed(id),
            ConfirmKind::Release => {
                let reason = match flow.release(id) {
                    true => ReasonCode::Success,
                    false => ReasonCode::PacketIdentifierNotFound,
                };
                let mut packet = Vec::new();
                mqtt.confirm(ConfirmKind::Complete, id, reason, &mut packet);
                // A later message under this identifier is a new one: that must be known after a crash.
                let to = if stored { &mut details.held } else { out };
                to.extend_from_slice(&packet);
                return self.connections.mqtt_flush(slot, &mut Vec::new());
            }
        };
        let through = source.map(|source| {
            let offset = flow.has_through(&source.topic, source.offset);
            (source.topic, offset)
        });
        if let Some((topic, offset)) = through.filter(|_| confirmed.is_expected()) {
            core.mqtt_acknowledged(slot, topic, offset);
        }
        let Some(details) = core.mqtt.details_mut(slot) else { return };
        match confirmed {
            Confirmed::Done(_) => {
                core.mqtt.changed(slot);
                core.mqtt.wake(slot);
                if core.mqtt.details(slot).is_some_and(|it| it.session.flow.is_idle()) {
                    core.mqtt.trim(slot);
                }
            }
            Confirmed::Release => {
                let mut packet = Vec::new();
                mqtt.confirm(ConfirmKind::Release, id, ReasonCode::Success, &mut packet);
                // The client forgets the identifier with that: the message must not come again.
                let to = if stored { &mut details.held } else { out };
                to.extend_from_slice(&packet);
                self.connections.mqtt_flush(slot, &mut Vec::new());
            }
            Confirmed::Unknown if kind == ConfirmKind::Received && !failed => {
                let reason = ReasonCode::PacketIdentifierNotFound;
                mqtt.confirm(ConfirmKind::Release, id, reason, out);
            }
            Confirmed::Unknown => {}
            Confirmed::Mismatched => self.break_off(slot, ReasonCode::ProtocolError, out),
        }
    }
}

impl Core {
    /// A client has a topic's messages up to an offset: where users acknowledge them, its user does so by that.
    fn mqtt_acknowledged(&mut self, slot: u32, topic: Name, offset: u64) {
        let rule = self.history().rule(&topic);
        if rule.is_none_or(|rule| rule.acknowledge.is_none()) {
            return;
        }
        let id = Position { epoch: self.history().epoch(), offset };
        let acknowledged = Acknowledgement { user: None, topic: Some(topic), id };
        let principal = self.principal(slot);
        // Nobody asked, so nobody is told why not.
        let _ = self.acknowledge(Some(slot), &principal, acknowledged);
    }
}
