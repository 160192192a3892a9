//! Replies to what MQTT clients publish.

use std::collections::HashSet;

use broker::StoredRecord;
use model::{CloseReason, ConnectionId, Name, Publication, Qos};
use protocol::mqtt::{ConfirmKind, Incoming, Mqtt, ReasonCode, ReasonOf};
use sessions::{Part, ProgressRecord, Subscription, session_mark};

use super::ack::MqttAck;
use crate::core::Core;
use crate::core::command::Command;
use crate::engine::Engine;

/// How often the engine stores progress that no client waits for, in seconds. After a crash, QoS 1 messages confirmed
/// since come again.
const STORED_SECONDS: u64 = 5;

impl Engine {
    /// Replies to a client's message that was published or rejected.
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
        let is_shared = retain && self.core.shared.retained.is_shared();
        let Some(details) = self.core.mqtt.details_mut(slot) else { return };
        let is_lost = match qos {
            Qos::AtMostOnce | Qos::AtLeastOnce => {
                details.publishing = details.publishing.saturating_sub(1);
                false
            }
            Qos::ExactlyOnce => {
                details.arrived(id);
                details.written(id, result.is_ok())
            }
        };
        let outlives = details.session.outlives();
        let mut packet = Vec::new();
        match result {
            Ok(()) => mqtt.confirm(kind, id, &mut packet),
            Err(reason) if mqtt.reports_reasons() => {
                mqtt.confirm_error(kind, id, reason, &details.limits, &mut packet);
            }
            // MQTT 3 has no code for this, and the client must not take the message for published.
            Err(reason) => return self.mqtt_break_off(slot, reason, out),
        }
        if !(stored || is_shared) || result.is_err() {
            out.extend_from_slice(&packet);
        } else if stored && qos == Qos::ExactlyOnce && outlives && !with {
            // After a crash the client sends the message again, and the session must know it.
            details.deferred.extend_from_slice(&packet);
            self.mqtt_flush(slot, &mut Vec::new());
        } else if retain {
            // A retained message is on disk, or in the table of all nodes, when it is confirmed, as is all before it.
            let shared = &self.core.shared;
            let done = self.core.mqtt_done(slot, packet, false);
            done.into_iter().for_each(|done| match is_shared {
                true => shared.retained.settle(done),
                false => shared.mqtt_sessions.settle(done),
            });
        } else {
            out.extend_from_slice(&packet);
        }
        if is_lost {
            self.core.mqtt.changed(slot);
        }
        self.core.mqtt.trim(slot);
    }

    /// Rejects a packet above a rate.
    pub(crate) fn mqtt_reject_limited(
        &mut self,
        slot: u32,
        incoming: &Incoming,
        out: &mut Vec<u8>,
    ) {
        self.core.mqtt_received(slot);
        let reason = ReasonCode::QuotaExceeded;
        let limits = self.core.mqtt_limits(slot);
        let Some(mqtt) = self.core.mqtt_protocol(slot) else {
            return self.close_after(slot, CloseReason::RateLimited, out);
        };
        match incoming {
            Incoming::Connect(connect) => {
                if let Some(mqtt) = Mqtt::of(connect.encoding) {
                    let text = ReasonCode::MessageRateTooHigh.text(ReasonOf::Connection);
                    mqtt.refuse(reason, text, &connect.limits, out);
                }
                self.close_after(slot, CloseReason::RateLimited, out);
            }
            Incoming::Publish(publish) if mqtt.reports_reasons() => {
                let outcome = self.mqtt_publish_rejected(slot, publish);
                let kind = match publish.publication.qos {
                    Qos::AtMostOnce => return,
                    Qos::AtLeastOnce => ConfirmKind::Acknowledged,
                    Qos::ExactlyOnce => ConfirmKind::Received,
                };
                match outcome {
                    Some(ReasonCode::Success) => mqtt.confirm(kind, publish.id, out),
                    Some(reason) => mqtt.confirm_error(kind, publish.id, reason, &limits, out),
                    None => {}
                }
            }
            Incoming::Subscribe(subscribe) => {
                let results = vec![Err(reason); subscribe.wants.len()];
                mqtt.subscribed(subscribe.id, &results, &limits, out);
            }
            Incoming::Unsubscribe { id, filters } if mqtt.reports_reasons() => {
                mqtt.unsubscribed(*id, &vec![reason; filters.len()], &limits, out);
            }
            Incoming::Ping => mqtt.pong(out),
            Incoming::Broken(error) => self.mqtt_broken(slot, *error, out),
            // The server can't reject these, so the connection ends.
            Incoming::Publish(_)
            | Incoming::Confirm(_)
            | Incoming::Unsubscribe { .. }
            | Incoming::Disconnect { .. }
            | Incoming::Authenticate { .. } => {
                mqtt.disconnect(ReasonCode::MessageRateTooHigh, &limits, out);
                self.close_after(slot, CloseReason::RateLimited, out);
            }
        }
    }

    /// Closes the connection of a client that broke a rule, or that can get no other rejection.
    pub(crate) fn mqtt_break_off(&mut self, slot: u32, reason: ReasonCode, out: &mut Vec<u8>) {
        if let Some(mqtt) = self.core.mqtt_protocol(slot) {
            mqtt.disconnect(reason, &self.core.mqtt_limits(slot), out);
        }
        self.close_after(slot, close_reason(reason), out);
    }

    /// Stores progress that has changed, once a second. The first engine also ends expired sessions, stores those
    /// that the store has rejected before, and gives messages that sessions have left to other members of their
    /// groups.
    pub(crate) fn mqtt_second(&mut self) {
        let now_s = self.core.unix_s();
        self.core.mqtt_save_some(now_s);
        self.mqtt_repeat_some();
        if self.core.number == 0 {
            let age_ms = self.core.age_ms();
            let sessions = self.core.shared.mqtt_sessions.clone();
            let wills = sessions.sweep(self.core.mqtt_now());
            self.core.publish_wills(wills);
            for (key, ConnectionId { shard, slot, .. }) in sessions.unstored_connected() {
                if let Some(engine) = self.core.engines.get(usize::from(shard)) {
                    engine.send(Command::MqttStoreAgain { slot, key });
                }
            }
            self.core.mqtt_redispatch();
            self.core.shared.retained.sweep(age_ms);
        }
    }

    /// Sends packets that have waited for the store. Closes the connection if the store failed.
    pub(crate) fn mqtt_stored(
        &mut self,
        slot: u32,
        packets: &[u8],
        stored: bool,
        is_progress: bool,
    ) {
        if !stored {
            // Unconfirmed messages come again.
            return self.say_goodbye(slot, CloseReason::Overloaded);
        }
        self.send(slot, packets, 0);
        if let Some(details) = self.core.mqtt.details_mut(slot).filter(|_| is_progress) {
            details.on_saved();
            self.mqtt_flush(slot, &mut Vec::new());
            self.core.mqtt.trim(slot);
        }
    }
}

impl Core {
    /// Stores the progress of clients whose second it is, while the store has capacity: what clients wait for goes
    /// first. The others have their turns later.
    fn mqtt_save_some(&mut self, now_s: u64) {
        // No second is left out, even if calls come less often.
        let passed_s = now_s.saturating_sub(std::mem::replace(&mut self.mqtt.saved_s, now_s));
        let mut unsaved = std::mem::take(&mut self.mqtt.unsaved);
        // A client stored in between is in the list twice.
        let mut known = HashSet::new();
        unsaved.retain(|slot| {
            let is_unsaved = self.mqtt.details(*slot).is_some_and(|details| details.is_unsaved);
            if !is_unsaved || !known.insert(*slot) {
                return false;
            }
            let is_due = (now_s + u64::from(*slot)) % STORED_SECONDS < passed_s;
            !(is_due && self.shared.mqtt_sessions.has_capacity() && self.mqtt_save(*slot, None))
        });
        self.mqtt.unsaved = unsaved;
    }

    /// Stores the whole session of a client that has this one.
    pub(crate) fn mqtt_store_again(&mut self, slot: u32, key: &Name) {
        let Some(session) = self.mqtt_session(slot) else { return };
        let has = self.mqtt.row(slot).is_some_and(|row| row.key == *key);
        let details = self.mqtt.details_mut(slot).filter(|_| has);
        if let Some(details) = details {
            details.is_unsaved = false;
            let will = details.will.as_ref();
            self.shared.mqtt_sessions.store_connected(key, &session, will);
        }
    }

    /// Notes that a client has sent a packet. Half of one does not count (MQTT 5.0, section 3.1.2.10).
    pub(super) fn mqtt_received(&mut self, slot: u32) {
        let now_s = self.now_wrapping_s();
        if let Some(connection) = self.table.get_mut(slot) {
            connection.last_received_s = now_s;
        }
    }

    /// Returns the record to store together with a client's message, so that a crash can't part them.
    pub(crate) fn mqtt_stored_with(&self, slot: u32, ack: MqttAck) -> Option<Box<StoredRecord>> {
        if !ack.with {
            return None;
        }
        let session = self.mqtt_session(slot)?;
        let key = self.mqtt.row(slot)?.key.as_str().into();
        let value = minicbor::to_vec(ProgressRecord::new(&session)).ok()?.into();
        Some(Box::new(StoredRecord { part: Part::Progress.name(), key, value: Some(value) }))
    }

    /// Checks whether a client's message is on disk when it is confirmed. No client waits for an unconfirmed one.
    pub(super) fn mqtt_is_durable(&self, publication: &Publication) -> bool {
        // A log that nodes share gives a message its position later, even with QoS 0 if the topic has a rule.
        (publication.qos.is_confirmed() || self.history.is_shared())
            && self.history.rule_for(publication).is_some_and(|rule| rule.durable)
    }

    /// Checks whether the session's progress is stored with a client's message, if that is on disk when it is
    /// confirmed.
    pub(super) fn mqtt_stores_with(&self, slot: u32, qos: Qos) -> bool {
        qos == Qos::ExactlyOnce && self.mqtt_survives(slot)
    }

    /// Returns how to confirm a message that the application or a back end has accepted, and whether it is on disk
    /// then.
    pub(crate) fn mqtt_arrived(
        &mut self,
        slot: u32,
        publication: &Publication,
        ack: MqttAck,
    ) -> (MqttAck, bool) {
        if ack.qos == Qos::ExactlyOnce
            && let Some(details) = self.mqtt.details_mut(slot)
        {
            details.arrived(ack.id);
        }
        let durable = self.mqtt_is_durable(publication);
        (MqttAck { with: durable && self.mqtt_stores_with(slot, ack.qos), ..ack }, durable)
    }

    /// Excludes the publisher from its own message when all of its matching subscriptions are No Local: on this
    /// connection, and on later ones of a session that outlives it. When only some of them are, the message names the
    /// session, and delivery skips those. A retained message names it too, for subscriptions that come later.
    pub(crate) fn mqtt_leave_out(&self, slot: u32, publication: &mut Publication) {
        let details = self.mqtt.details(slot);
        let (leaving_out, others) = match details {
            None => (self.mqtt_only_leaves_out(slot, &publication.topic), false),
            Some(details) => {
                let subscriptions = details.session.subscriptions.iter();
                let matching = || subscriptions.clone().filter(|it| it.matches(&publication.topic));
                let leaves_out = |it: &Subscription| it.options.no_local;
                (matching().any(leaves_out), matching().any(|it| !leaves_out(it)))
            }
        };
        if publication.retain || leaving_out && others {
            let by = self.mqtt_session_mark(slot);
            publication.attributes.get_or_insert_default().by_session = by;
        }
        if !leaving_out || others {
            return;
        }
        publication.except = self.table.get(slot).map(|it| self.id(slot, it.serial));
        let goes_on = details.is_some_and(|it| it.session.outlives());
        if let Some(row) = self.mqtt.row(slot).filter(|_| goes_on) {
            let attributes = publication.attributes.get_or_insert_default();
            attributes.except_session = Some(session_mark(&row.key));
        }
    }

    fn mqtt_only_leaves_out(&self, slot: u32, topic: &Name) -> bool {
        let options = self.mqtt.only_options(slot, topic);
        options.is_some_and(|it| it.no_local) && self.hub.topics_of(slot).any(|name| name == topic)
    }
}

/// Returns the close reason for a reason code.
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
