//! What MQTT clients are told of what they published.

use broker::StoredRecord;
use model::{CloseReason, Name, Qos};
use protocol::mqtt::{ConfirmKind, Incoming, Mqtt, ReasonCode};
use sessions::{Part, ProgressRecord};

use super::state::MqttAck;
use crate::connections::Connections;
use crate::core::Core;

/// How often progress is stored that nobody waits for, in seconds. After a crash messages with QoS 1 come
/// again that were confirmed since.
const STORED_SECONDS: u64 = 5;

impl Connections {
    /// A message of a client was published, or was not.
    pub(crate) fn mqtt_published(
        &mut self,
        slot: u32,
        ack: MqttAck,
        result: Result<(), ReasonCode>,
        out: &mut Vec<u8>,
    ) {
        let Some(mqtt) = self.core.mqtt_protocol(slot) else { return };
        let MqttAck { id, qos, with, retain } = ack;
        let kind = match qos {
            Qos::AtMostOnce => return,
            Qos::AtLeastOnce => ConfirmKind::Acknowledged,
            Qos::ExactlyOnce => ConfirmKind::Received,
        };
        let stored = self.core.shared.mqtt_sessions.is_stored();
        let Some(details) = self.core.mqtt.details_mut(slot) else { return };
        if qos == Qos::AtLeastOnce {
            details.publishing = details.publishing.saturating_sub(1);
        } else {
            details.arrived(id);
            if result.is_err() {
                details.session.flow.release(id);
            }
        }
        let outlives = details.session.outlives();
        let mut packet = Vec::new();
        match result {
            Ok(()) => mqtt.confirm(kind, id, ReasonCode::Success, &mut packet),
            Err(reason) if mqtt.tells_reasons() => mqtt.confirm(kind, id, reason, &mut packet),
            // MQTT 3 has no word for it, and the client must not take it for done.
            Err(reason) => return self.mqtt_break_off(slot, reason, out),
        }
        let waits = qos == Qos::ExactlyOnce && result.is_ok() && outlives && stored && !with;
        if retain && result.is_ok() && stored {
            // As what was published before it, it is on disk when it is confirmed.
            let save = qos == Qos::ExactlyOnce && outlives;
            let done = self.core.mqtt_done(slot, packet);
            if save && !with {
                self.core.mqtt_save(slot, None);
            }
            done.into_iter().for_each(|done| self.core.shared.mqtt_sessions.settle(done));
        } else if waits {
            // After a crash the client repeats it, and it must be known that it was there.
            details.held.extend_from_slice(&packet);
            self.mqtt_flush(slot, &mut Vec::new());
        } else {
            out.extend_from_slice(&packet);
        }
        self.core.mqtt.trim(slot);
    }

    /// A client asks for more than it may.
    pub(crate) fn mqtt_over(&mut self, slot: u32, incoming: &Incoming, out: &mut Vec<u8>) {
        let reason = ReasonCode::QuotaExceeded;
        let Some(mqtt) = self.core.mqtt_protocol(slot) else {
            return self.close_after(slot, CloseReason::RateLimited, out);
        };
        match incoming {
            Incoming::Connect(connect) => {
                if let Some(mqtt) = Mqtt::of(connect.encoding) {
                    mqtt.refuse(reason, None, out);
                }
                self.close_after(slot, CloseReason::RateLimited, out);
            }
            Incoming::Publish(publish) if mqtt.tells_reasons() => {
                let kind = match publish.publication.qos {
                    Qos::AtMostOnce => return,
                    Qos::AtLeastOnce => ConfirmKind::Acknowledged,
                    Qos::ExactlyOnce => ConfirmKind::Received,
                };
                mqtt.confirm(kind, publish.id, reason, out);
            }
            Incoming::Subscribe(subscribe) => {
                let results = vec![Err(reason); subscribe.wants.len()];
                mqtt.subscribed(subscribe.id, &results, out);
            }
            Incoming::Unsubscribe { id, filters } if mqtt.tells_reasons() => {
                mqtt.unsubscribed(*id, &vec![reason; filters.len()], out);
            }
            Incoming::Ping => mqtt.pong(out),
            // What can't be refused is the end.
            Incoming::Publish(_)
            | Incoming::Confirm(_)
            | Incoming::Unsubscribe { .. }
            | Incoming::Disconnect { .. }
            | Incoming::Authenticate { .. } => {
                mqtt.disconnect(ReasonCode::MessageRateTooHigh, None, out);
                self.close_after(slot, CloseReason::RateLimited, out);
            }
        }
    }

    /// Ends a connection whose client did what it may not, or can't be told otherwise.
    pub(crate) fn mqtt_break_off(&mut self, slot: u32, reason: ReasonCode, out: &mut Vec<u8>) {
        if let Some(mqtt) = self.core.mqtt_protocol(slot) {
            mqtt.disconnect(reason, None, out);
        }
        self.close_after(slot, close_reason(reason), out);
    }

    /// What is done once a second: progress is stored that has changed, and the first engine ends sessions
    /// whose time is over.
    pub(crate) fn mqtt_second(&mut self) {
        let now_s = self.core.unix_s();
        if now_s % STORED_SECONDS == u64::from(self.core.number) % STORED_SECONDS {
            for slot in std::mem::take(&mut self.core.mqtt.unsaved) {
                if self.core.mqtt.details(slot).is_some_and(|details| details.is_unsaved) {
                    self.core.mqtt_save(slot, None);
                }
            }
        }
        if self.core.number == 0 {
            let wills = self.core.shared.mqtt_sessions.sweep(now_s);
            self.core.publish_wills(wills);
            self.core.shared.retained.sweep(self.core.unix_ms());
        }
    }

    /// Something was stored on which packets have waited, or could not be.
    pub(crate) fn mqtt_stored(&mut self, slot: u32, packets: &[u8], stored: bool) {
        if stored {
            self.send(slot, packets, 0);
        } else {
            // What is not confirmed comes again.
            self.say_goodbye(slot, CloseReason::Overloaded);
        }
    }
}

impl Core {
    /// What is stored together with a message of a client, so that a crash can't part them.
    pub(crate) fn mqtt_stored_with(&self, slot: u32, ack: MqttAck) -> Option<Box<StoredRecord>> {
        let session = self.mqtt_session(slot).filter(|_| ack.with)?;
        let key = self.mqtt.row(slot)?.key.as_str().into();
        let value = minicbor::to_vec(ProgressRecord::new(&session)).ok()?.into();
        Some(Box::new(StoredRecord { part: Part::Progress.name(), key, value: Some(value) }))
    }

    /// Whether what is known of a client's message is stored with it.
    pub(crate) fn mqtt_stores_with(&self, slot: u32, topic: &Name, qos: Qos) -> bool {
        qos == Qos::ExactlyOnce
            && self.history.rule(topic).is_some()
            && self.mqtt.details(slot).is_some_and(|it| it.session.outlives())
            && self.shared.mqtt_sessions.is_stored()
    }

    /// A message is published for which somebody else has been waited: how it is confirmed, and whether
    /// its topic's messages are on disk then.
    pub(crate) fn mqtt_arrived(
        &mut self,
        slot: u32,
        topic: &Name,
        ack: MqttAck,
    ) -> (MqttAck, bool) {
        if ack.qos == Qos::ExactlyOnce
            && let Some(details) = self.mqtt.details_mut(slot)
        {
            details.arrived(ack.id);
        }
        let durable = self.history.rule(topic).is_some_and(|rule| rule.durable);
        (MqttAck { with: self.mqtt_stores_with(slot, topic, ack.qos), ..ack }, durable)
    }

    /// The client itself, where all of its subscriptions that match a topic leave out what it publishes.
    pub(crate) fn mqtt_except(&self, slot: u32, topic: &Name) -> Option<model::ConnectionId> {
        let subscriptions = match self.mqtt.is_plain(slot) {
            true => return self.mqtt_only_except(slot, topic),
            false => &self.mqtt.details(slot)?.session.subscriptions,
        };
        let mut matching = subscriptions.iter().filter(|it| it.matches(topic)).peekable();
        matching.peek()?;
        let serial = self.table.get(slot)?.serial;
        matching.all(|it| it.options.no_local).then(|| self.id(slot, serial))
    }

    fn mqtt_only_except(&self, slot: u32, topic: &Name) -> Option<model::ConnectionId> {
        let options = self.mqtt.only_options(slot, topic)?;
        let is_in = options.no_local && self.hub.topics_of(slot).any(|name| name == topic);
        let serial = self.table.get(slot)?.serial;
        is_in.then(|| self.id(slot, serial))
    }
}

/// Why a connection ends that is broken off with this reason.
fn close_reason(reason: ReasonCode) -> CloseReason {
    if reason == ReasonCode::PacketTooLarge {
        CloseReason::TooBig
    } else if matches!(reason, ReasonCode::NotAuthorized | ReasonCode::BadAuthenticationMethod) {
        CloseReason::Unauthorized
    } else if matches!(
        reason,
        ReasonCode::QuotaExceeded | ReasonCode::ServerBusy | ReasonCode::UnspecifiedError
    ) {
        CloseReason::Overloaded
    } else {
        CloseReason::ProtocolError
    }
}
