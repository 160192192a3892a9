//! Packets that a client receives.

use model::Qos;
use protocol::mqtt::packet::{Connack, Publish};
use protocol::mqtt::write::{self, ConfirmType};
use protocol::mqtt::{Packet, ReasonCode, Side, Value, id, read};

use super::{Client, Message, number, packet};
use crate::testing::ClientEnd;

impl Client {
    /// Reads up to so many bytes, and handles their packets. Returns false if none came.
    pub fn read(&mut self, bytes_max: usize) -> bool {
        let Some(end) = &self.end else { return false };
        let Some(bytes) = end.read(bytes_max) else {
            self.lost();
            return true;
        };
        if bytes.is_empty() {
            return false;
        }
        self.input.extend(bytes);
        while self.end.is_some() {
            let input = std::mem::take(&mut self.input);
            let found = read(&input, Some(self.version), Side::Server, usize::MAX);
            let consumed = match found.unwrap_or_else(|error| panic!("{error}: {input:?}")) {
                None => {
                    self.input = input;
                    return true;
                }
                Some((packet, consumed)) => {
                    self.on_packet(&packet);
                    consumed
                }
            };
            if self.end.is_some() {
                self.input = input[consumed..].to_vec();
            }
        }
        true
    }

    fn confirm(&mut self, kind: ConfirmType, id: u16) {
        self.replies.push_back(self.confirmation(kind, id));
    }

    fn confirmation(&self, kind: ConfirmType, id: u16) -> Vec<u8> {
        packet(|out| write::confirm(kind, self.version, id, ReasonCode::Success, &[], out))
    }

    fn on_packet(&mut self, packet: &Packet<'_>) {
        self.trace(|| format!("heard {packet:?}"));
        match packet {
            Packet::Connack(connack) => self.let_in(connack),
            Packet::Suback(suback) => {
                assert!(suback.codes.iter().all(|code| *code < 3), "{:?}", suback.codes);
                // The client may have sent another request since.
                if suback.id == self.last_packet_id {
                    self.ready = true;
                    self.is_stored = self.persistent && !self.ends;
                    self.has_begun &= !self.is_stored;
                }
            }
            Packet::Unsuback(_) => {
                self.unsubscribed = Some(self.now.0);
                self.before = None;
            }
            Packet::Publish(publish) => self.take_in(publish),
            Packet::Pubrel(pubrel) => {
                self.received.remove(&pubrel.id);
                self.confirm(ConfirmType::Pubcomp, pubrel.id);
            }
            Packet::Puback(puback) => self.finish(puback.id, false),
            Packet::Pubrec(pubrec) => {
                let id = pubrec.id;
                if let Some(it) = self.publishing.iter_mut().find(|it| it.id == id) {
                    it.released = true;
                }
                self.confirm(ConfirmType::Pubrel, id);
            }
            Packet::Pubcomp(pubcomp) => self.finish(pubcomp.id, true),
            Packet::Disconnect(_) => self.lost(),
            other @ (Packet::Connect(_)
            | Packet::Subscribe(_)
            | Packet::Unsubscribe(_)
            | Packet::Pingreq
            | Packet::Pingresp
            | Packet::Auth(_)) => panic!("client {} was sent {other:?}", self.name),
        }
    }

    /// Checks that a message may come now.
    fn check(&self, payload: &str, dup: bool) {
        let is_before = self.before.as_ref().is_some_and(|(before, connects)| {
            self.connects > *connects && before.contains(payload)
        });
        // The messages that a member leaves go to other members, whenever they were published.
        assert!(!is_before || dup || self.is_member(), "{payload} is from before");
        let is_expired =
            self.done.borrow().get(payload).is_some_and(|it| it.expires_us < self.since_us);
        assert!(!is_expired || dup, "{payload} has expired");
        let is_unsubscribed = self.unsubscribed.is_some_and(|since| number(payload) >= since);
        assert!(!is_unsubscribed, "nobody has a subscription for {payload}");
    }

    fn finish(&mut self, id: u16, released: bool) {
        let position = self.publishing.iter().position(|it| it.id == id && it.released == released);
        if let Some(at) = position {
            let Message { payload, expiry_s, .. } = self.publishing.remove(at).unwrap().message;
            self.end_of(payload, expiry_s);
        }
    }

    /// Returns the topic of a message, which may have an alias.
    fn topic(&mut self, publish: &Publish<'_>) -> String {
        let alias = publish.properties.iter().find_map(|(id, value)| match value {
            Value::Number(alias) if id == id::TOPIC_ALIAS => Some(alias),
            Value::Number(_) | Value::Text(_) | Value::Binary(_) | Value::Pair(..) => None,
        });
        let Some(alias) = alias else { return publish.topic.to_string() };
        assert!((1..=self.aliases_max).contains(&alias), "an alias too many: {alias}");
        if publish.topic.is_empty() {
            return self.aliases.get(&alias).expect("an alias that it was not told").clone();
        }
        self.aliases.insert(alias, publish.topic.to_string());
        publish.topic.to_string()
    }

    /// Handles CONNACK.
    fn let_in(&mut self, connack: &Connack<'_>) {
        assert_eq!(connack.code, 0, "client {}", self.name);
        self.connected = true;
        // The server may have died since.
        self.anew &= self.end.as_ref().is_some_and(ClientEnd::is_ended);
        if !connack.session_present {
            let is_known = self.ready || self.unsubscribed.is_some();
            let must = is_known && self.persistent && self.now.1 < self.stays_us;
            assert!(!must, "the session of {} is gone", self.name);
            self.publishing.clear();
            self.forget();
        }
        if !self.ready && !self.subscribed && self.unsubscribed.is_none() {
            self.subscribe();
        }
        let again: Vec<Vec<u8>> = self
            .publishing
            .iter()
            .map(|it| match it.released {
                true => self.confirmation(ConfirmType::Pubrel, it.id),
                false => self.publish_packet(it, true),
            })
            .collect();
        again.into_iter().for_each(|bytes| self.send(bytes));
    }

    /// Handles a message.
    fn take_in(&mut self, publish: &Publish<'_>) {
        let payload = String::from_utf8(publish.payload.to_vec()).unwrap();
        let message = (self.topic(publish), payload);
        self.check(&message.1, publish.dup);
        if publish.qos.is_confirmed() {
            self.unconfirmed.insert(publish.id);
            assert!(self.unconfirmed.len() <= usize::from(self.receive_max), "too many");
        }
        match publish.qos {
            Qos::AtMostOnce => self.got.push(message),
            Qos::AtLeastOnce => {
                self.got.push(message);
                self.confirm(ConfirmType::Puback, publish.id);
            }
            Qos::ExactlyOnce => {
                if self.received.insert(publish.id) {
                    self.got.push(message);
                }
                self.confirm(ConfirmType::Pubrec, publish.id);
            }
        }
    }
}
