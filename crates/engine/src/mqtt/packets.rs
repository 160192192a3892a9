//! Packets from MQTT clients.

use auth::{Action, Consent, Permit};
use model::name::check_topic;
use model::{CloseReason, Name, Position, Publication, Qos, TopicKind};
use protocol::mqtt::{Confirm, ConfirmKind, Incoming, Mqtt, Publish, ReasonCode};
use protocol::request::{Acknowledgement, Secret, TokenPurpose};
use sessions::{Confirmed, Incoming as Arrival, Subscription};

use super::ack::MqttAck;
use crate::connection::PendingToken;
use crate::core::Core;
use crate::core::metrics::Limited;
use crate::core::reply_target::ReplyTarget;
use crate::engine::Engine;

impl Engine {
    /// Dispatches a client's packet.
    pub(crate) fn on_mqtt_packet(&mut self, slot: u32, incoming: Incoming, out: &mut Vec<u8>) {
        self.core.mqtt_received(slot);
        match incoming {
            Incoming::Connect(connect) => {
                let is_known = self.core.mqtt.has(slot);
                if is_known {
                    // A second CONNECT is an error (MQTT 5.0, section 3.1).
                    return self.mqtt_break_off(slot, ReasonCode::ProtocolError, out);
                }
                self.rates.has_joined(&mut self.core, slot);
                self.mqtt_connect(slot, connect, out);
            }
            Incoming::Publish(publish) => self.mqtt_publish(slot, *publish, out),
            Incoming::Confirm(confirm) => self.mqtt_confirm(slot, confirm, out),
            Incoming::Subscribe(subscribe) => {
                self.mqtt_subscribe(slot, *subscribe, out);
                // The lookup of retained messages follows at once: later ones come live.
                self.mqtt_flush(slot, out);
                self.mqtt_serve(slot);
            }
            Incoming::Unsubscribe { id, filters } => self.mqtt_unsubscribe(slot, id, &filters, out),
            Incoming::Ping => {
                if let Some(mqtt) = self.core.mqtt_protocol(slot) {
                    mqtt.pong(out);
                }
            }
            Incoming::Broken(error) => self.mqtt_broken(slot, error, out),
            Incoming::Disconnect { with_will, seconds } => {
                self.mqtt_disconnect(slot, with_will, seconds, out);
            }
            Incoming::Authenticate { method, token: Secret(token) } => {
                self.mqtt_authenticate(slot, &method, token, out);
            }
        }
    }

    fn mqtt_disconnect(
        &mut self,
        slot: u32,
        with_will: bool,
        seconds: Option<u32>,
        out: &mut Vec<u8>,
    ) {
        let sessions = self.core.shared.mqtt_sessions.clone();
        if let Some(details) = self.core.mqtt.details_mut(slot) {
            match seconds {
                // A client can't prolong a session that ends with its connection (MQTT 5.0, section 3.14.2.2.2).
                Some(1..) if details.session.seconds == 0 => {
                    return self.mqtt_break_off(slot, ReasonCode::ProtocolError, out);
                }
                Some(seconds) => details.session.seconds = sessions.seconds(seconds),
                None => {}
            }
            if !with_will {
                details.will = None;
            }
        } else if seconds.is_some_and(|seconds| seconds > 0) {
            return self.mqtt_break_off(slot, ReasonCode::ProtocolError, out);
        }
        self.close_after(slot, CloseReason::ByClient, out);
    }

    /// Authenticates the client again, with a new token.
    fn mqtt_authenticate(&mut self, slot: u32, method: &str, token: Box<str>, out: &mut Vec<u8>) {
        let details = self.core.mqtt.details(slot);
        if details.and_then(|details| details.method.as_deref()) != Some(method) {
            return self.mqtt_break_off(slot, ReasonCode::BadAuthenticationMethod, out);
        }
        let reply = ReplyTarget::MqttAuth(method.into());
        let pending = PendingToken { token, purpose: TokenPurpose::Refresh, reply };
        self.authenticate(slot, pending, out);
    }

    fn mqtt_publish(&mut self, slot: u32, publish: Publish, out: &mut Vec<u8>) {
        let Publish { id, alias, mut publication } = publish;
        if let Err(reason) = self.mqtt_resolve_alias(slot, alias, &mut publication.topic) {
            return self.mqtt_break_off(slot, reason, out);
        }
        let core = &self.core;
        let settings = core.settings.clone();
        // MQTT 3 has no code for this: the server does not retain the message.
        let reports_limits = core.mqtt_protocol(slot).is_some_and(Mqtt::reports_limits);
        let retains = settings.mqtt().is_some_and(|own| own.retained_messages_max > 0);
        if publication.retain && !retains && reports_limits {
            return self.mqtt_break_off(slot, ReasonCode::RetainNotSupported, out);
        }
        if publication.data.bytes() > settings.session.message_bytes_max {
            core.metrics.limited[Limited::MessageBytes as usize].add(1);
            return self.mqtt_break_off(slot, ReasonCode::PacketTooLarge, out);
        }
        let qos = publication.qos;
        if !qos.is_confirmed() && publication.properties().is_some_and(|it| it.check().is_err()) {
            // QoS 0 has no reply that says why.
            core.metrics.limited[Limited::MessageBytes as usize].add(1);
            return self.mqtt_break_off(slot, ReasonCode::PacketTooLarge, out);
        }
        if qos.is_confirmed() && !self.mqtt_take_in(slot, id, qos, out) {
            return;
        }
        let mut ack = MqttAck { id, qos, with: false, retain: publication.retain };
        let consent = match self.mqtt_decide_publish(slot, &publication) {
            Ok(consent) => consent,
            // With QoS 0 the server can only disconnect.
            Err(reason) if qos == Qos::AtMostOnce => {
                return self.mqtt_break_off(slot, reason, out);
            }
            Err(reason) => return self.mqtt_published(slot, ack, Err(reason), out),
        };
        let core = &mut self.core;
        let is_requested = matches!(consent, Consent::Requested(_));
        if qos == Qos::ExactlyOnce
            && (is_requested || settings.forwards.of(&publication.topic).is_some())
            && let Some(details) = core.mqtt.details_mut(slot)
        {
            // If the connection ends before the application or a back end accepts it, the client must send it again.
            details.session.flow.release(id);
            details.forwarding.push(id);
        }
        core.mqtt_leave_out(slot, &mut publication);
        let consent = match consent {
            Consent::Given(permit) => {
                let durable = core.mqtt_is_durable(&publication);
                ack.with = durable && core.mqtt_stores_with(slot, qos);
                Consent::Given(Permit { durable, ..permit })
            }
            requested @ Consent::Requested(_) => requested,
        };
        let to = ReplyTarget::Mqtt(ack);
        self.client_publish(slot, publication, consent, to, out);
    }

    /// Notes the topic of an alias, or fills in the topic if the client sent its alias alone.
    fn mqtt_resolve_alias(
        &mut self,
        slot: u32,
        alias: u16,
        topic: &mut Name,
    ) -> Result<(), ReasonCode> {
        if alias == 0 {
            return Ok(());
        }
        let core = &mut self.core;
        if core.settings.mqtt().is_none_or(|own| alias > own.topic_alias_max) {
            return Err(ReasonCode::TopicAliasInvalid);
        }
        let Some(details) = core.mqtt_details(slot) else { return Ok(()) };
        if topic.is_empty() {
            let known = details.aliases.get(&alias).ok_or(ReasonCode::ProtocolError)?;
            topic.clone_from(known);
        } else {
            // A topic that no client may publish to is refused each time, and takes no capacity.
            let known = if check_topic(topic).is_ok() { topic.clone() } else { Name::default() };
            details.aliases.insert(alias, known);
        }
        Ok(())
    }

    /// Notes a message that needs a confirmation. Returns false if the message goes no further: it arrived before, or
    /// exceeds the limit.
    fn mqtt_take_in(&mut self, slot: u32, id: u16, qos: Qos, out: &mut Vec<u8>) -> bool {
        let core = &mut self.core;
        let max = core.settings.mqtt().map_or(0, |own| usize::from(own.receive_max));
        let Some(details) = core.mqtt_details(slot) else { return false };
        if qos == Qos::ExactlyOnce && details.is_publishing(id) {
            return false;
        }
        // Messages under way elsewhere count for the same limit.
        let others = usize::from(details.publishing) + details.forwarding.len();
        let (flow, capacity) = (&mut details.session.flow, max.saturating_sub(others));
        let arrival = match qos {
            Qos::ExactlyOnce => flow.receive(id, capacity),
            Qos::AtLeastOnce | Qos::AtMostOnce if flow.incoming() >= capacity => Arrival::TooMany,
            Qos::AtLeastOnce | Qos::AtMostOnce => {
                details.publishing += 1;
                Arrival::New
            }
        };
        match arrival {
            Arrival::New => true,
            Arrival::TooMany => {
                self.mqtt_break_off(slot, ReasonCode::ReceiveMaximumExceeded, out);
                false
            }
            Arrival::Again => {
                if let Some(mqtt) = core.mqtt_protocol(slot) {
                    mqtt.confirm(ConfirmKind::Received, id, out);
                }
                false
            }
        }
    }

    /// Returns the reason code for a client that publishes too fast; `None` if the reply comes later. A message that
    /// arrived before is confirmed again, or the client would take it for rejected.
    pub(super) fn mqtt_publish_rejected(
        &mut self,
        slot: u32,
        publish: &Publish,
    ) -> Option<ReasonCode> {
        let mut topic = publish.publication.topic.clone();
        // The alias is valid even if the message is rejected.
        let _ = self.mqtt_resolve_alias(slot, publish.alias, &mut topic);
        let details = self.core.mqtt.details(slot);
        let known = details.filter(|_| publish.publication.qos == Qos::ExactlyOnce);
        match known {
            Some(details) if details.is_publishing(publish.id) => None,
            Some(details) if details.session.flow.has_incoming(publish.id) => {
                Some(ReasonCode::Success)
            }
            Some(_) | None => Some(ReasonCode::QuotaExceeded),
        }
    }

    /// Decides whether a client may publish a message.
    fn mqtt_decide_publish(
        &self,
        slot: u32,
        publication: &Publication,
    ) -> Result<Consent, ReasonCode> {
        let core = &self.core;
        let name = &publication.topic;
        if !TopicKind::of(name).is_ordinary() {
            return Err(ReasonCode::NotAuthorized);
        }
        check_topic(name).map_err(|_| ReasonCode::TopicNameInvalid)?;
        if publication.properties().is_some_and(|it| it.check().is_err()) {
            core.metrics.limited[Limited::MessageBytes as usize].add(1);
            return Err(ReasonCode::QuotaExceeded);
        }
        let policy = &core.settings.session.policy;
        let topic = core.mqtt_topic(name);
        let decision = policy.decide(&core.principal(slot), Action::Publish, &topic);
        decision.undenied().map_err(|_| ReasonCode::NotAuthorized)
    }

    fn mqtt_confirm(&mut self, slot: u32, confirm: Confirm, out: &mut Vec<u8>) {
        let Confirm { kind, id, failed } = confirm;
        let core = &mut self.core;
        let Some(mqtt) = core.mqtt_protocol(slot) else { return };
        let Some(details) = core.mqtt.details_mut(slot) else {
            return self.mqtt_unknown(slot, confirm, out);
        };
        let flow = &mut details.session.flow;
        let has = matches!(kind, ConfirmKind::Acknowledged | ConfirmKind::Received) && !failed;
        let source = flow.source(id).filter(|source| has && !source.retained).cloned();
        let confirmed = match kind {
            ConfirmKind::Acknowledged => flow.acknowledged(id),
            ConfirmKind::Received => flow.received(id, failed),
            ConfirmKind::Complete => flow.completed(id),
            ConfirmKind::Release if !flow.release(id) => Confirmed::Unknown,
            ConfirmKind::Release => {
                // The next message under this identifier is a new one: a crash must not lose that.
                mqtt.confirm(ConfirmKind::Complete, id, core.mqtt_deferred(slot).unwrap_or(out));
                return self.mqtt_flush(slot, &mut Vec::new());
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
        if confirmed.is_expected() {
            details.shared.retain(|(shared, _)| *shared != id);
        }
        match confirmed {
            Confirmed::Done(_) => {
                core.mqtt.changed(slot);
                core.mqtt.wake(slot);
                if core.mqtt.details(slot).is_some_and(|it| it.session.flow.is_idle()) {
                    core.mqtt.trim(slot);
                }
            }
            Confirmed::Release => {
                core.mqtt_send_pubrel(slot, id, out);
                self.mqtt_flush(slot, &mut Vec::new());
            }
            Confirmed::Again => {
                // The first PUBREL still waits for the store.
                if !details.is_saving {
                    mqtt.release(id, out);
                }
                self.charge_command(slot, out);
            }
            Confirmed::Unknown => self.mqtt_unknown(slot, confirm, out),
            Confirmed::Mismatched => self.mqtt_break_off(slot, ReasonCode::ProtocolError, out),
        }
    }

    /// Replies to a confirmation of nothing in flight.
    fn mqtt_unknown(&mut self, slot: u32, confirm: Confirm, out: &mut Vec<u8>) {
        let core = &self.core;
        let (Some(mqtt), limits) = (core.mqtt_protocol(slot), core.mqtt_limits(slot)) else {
            return;
        };
        let kind = match confirm.kind {
            ConfirmKind::Release => Some(ConfirmKind::Complete),
            ConfirmKind::Received => Some(ConfirmKind::Release).filter(|_| !confirm.failed),
            ConfirmKind::Acknowledged | ConfirmKind::Complete => None,
        };
        if let Some(kind) = kind {
            let reason = ReasonCode::PacketIdentifierNotFound;
            mqtt.confirm_error(kind, confirm.id, reason, &limits, out);
        }
        self.charge_command(slot, out);
    }
}

impl Core {
    /// Notes that a client has a topic's messages up to an offset. If users acknowledge the topic, the client's user
    /// does so by this, if the client had all of them from the user's cursor on.
    fn mqtt_acknowledged(&mut self, slot: u32, topic: Name, offset: u64) {
        let rule = self.history().rule(&topic);
        if rule.is_none_or(|rule| rule.acknowledge.is_none()) {
            return;
        }
        let Some(user) = self.mqtt_user(slot, &topic) else { return };
        let cursor = self.history().cursor(&user, &topic);
        let had_all = |it: &Subscription| it.matches(&topic) && it.since <= cursor;
        let subscriptions = self.mqtt.details(slot).map(|it| &it.session.subscriptions);
        if !subscriptions.is_some_and(|all| all.iter().any(had_all)) {
            return;
        }
        let id = Position { epoch: self.history().epoch(), offset };
        let acknowledged = Acknowledgement { user: None, topic: Some(topic), id };
        let principal = self.principal(slot);
        // The client did not request this, so it gets no error.
        let _ = self.acknowledge(Some(slot), &principal, acknowledged);
    }
}
