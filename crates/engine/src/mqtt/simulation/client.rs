//! A client of MQTT as the standards want it: what it has sent and received outlives its connections.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use model::Qos;
use protocol::mqtt::client::{self, ConnectParts, SubscribeParts};
use protocol::mqtt::write::{self, ConfirmType, PublishParts};
use protocol::mqtt::{Packet, ReasonCode, Side, Value, Version, WriteError, id, read};

use crate::testing::ClientEnd;

/// What a client has published and not brought to its end.
struct Publishing {
    id: u16,
    qos: Qos,
    topic: String,
    payload: String,
    /// PUBREC has come.
    released: bool,
}

/// A client, with its session's side of things.
pub(super) struct Client {
    pub name: usize,
    pub version: Version,
    /// What it subscribes to, and how surely.
    pub filters: Vec<(String, Qos)>,
    /// Whether its session goes on.
    pub kept: bool,
    end: Option<ClientEnd>,
    input: Vec<u8>,
    connected: bool,
    subscribed: bool,
    /// Its subscriptions were confirmed: from then on it must get everything.
    pub ready: bool,
    next_id: u16,
    publishing: VecDeque<Publishing>,
    /// Messages with QoS 2 that have come and are not released.
    received: BTreeSet<u16>,
    /// What the application has got: payloads in order, each with its topic.
    pub got: Vec<(String, String)>,
    /// Packets that the client has still to send: it reads before it answers.
    answers: VecDeque<Vec<u8>>,
    /// Payloads that were published to the end.
    pub done: Vec<String>,
    /// How often it has connected.
    pub connects: usize,
}

/// What a packet is in bytes.
fn packet(write: impl FnOnce(&mut Vec<u8>) -> Result<(), WriteError>) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out).unwrap();
    out
}

impl Client {
    pub fn new(name: usize, version: Version, filters: Vec<(String, Qos)>, kept: bool) -> Self {
        Client {
            name,
            version,
            filters,
            kept,
            end: None,
            input: Vec::new(),
            connected: false,
            subscribed: false,
            ready: false,
            next_id: 0,
            publishing: VecDeque::new(),
            received: BTreeSet::new(),
            got: Vec::new(),
            answers: VecDeque::new(),
            done: Vec::new(),
            connects: 0,
        }
    }

    pub fn is_open(&self) -> bool {
        self.end.is_some()
    }

    /// True when nothing of its own is under way.
    pub fn is_done(&self) -> bool {
        self.publishing.is_empty() && self.answers.is_empty() && self.ready
    }

    pub fn connect(&mut self, end: ClientEnd, receive_max: u16) {
        let seconds: u32 = if self.kept { 1_000_000 } else { 0 };
        let properties = [
            (id::SESSION_EXPIRY_INTERVAL, Value::Number(seconds)),
            (id::RECEIVE_MAXIMUM, Value::Number(receive_max.into())),
        ];
        let parts = ConnectParts {
            version: self.version,
            is_3_1: false,
            clean: !self.kept,
            keep_alive_s: 0,
            properties: if self.version == Version::V5 { &properties } else { &[] },
            client: &format!("client-{}", self.name),
            will: None,
            user: None,
            password: None,
        };
        end.send(&packet(|out| client::connect(&parts, out)));
        self.end = Some(end);
        self.connects += 1;
        self.reset();
    }

    /// The connection is gone, at whatever byte.
    pub fn cut(&mut self) {
        self.tell(|| "is cut off".into());
        self.end = None;
        self.reset();
    }

    fn reset(&mut self) {
        self.input.clear();
        self.answers.clear();
        self.connected = false;
        self.subscribed = false;
        if !self.kept {
            self.ready = false;
            self.received.clear();
        }
    }

    fn id(&mut self) -> u16 {
        loop {
            self.next_id = self.next_id.checked_add(1).unwrap_or(1);
            if self.publishing.iter().all(|it| it.id != self.next_id) {
                return self.next_id;
            }
        }
    }

    /// With `SHARD_TRACE` it is told what happens.
    fn tell(&self, what: impl FnOnce() -> String) {
        if std::env::var_os("SHARD_TRACE").is_some() {
            eprintln!("client {} {}", self.name, what());
        }
    }

    fn send(&mut self, bytes: Vec<u8>) {
        self.tell(|| {
            let packet = read(&bytes, Some(self.version), Side::Client, usize::MAX);
            format!("sends {:?}", packet.map(|packet| packet.map(|(packet, _)| packet)))
        });
        if let Some(end) = &self.end {
            end.send(&bytes);
        }
    }

    fn publish_packet(&self, it: &Publishing, dup: bool) -> Vec<u8> {
        let parts = PublishParts {
            version: self.version,
            dup,
            qos: it.qos,
            retain: false,
            topic: &it.topic,
            id: it.id,
            properties: std::iter::empty(),
            payload: it.payload.as_bytes(),
        };
        packet(|out| parts.write(out))
    }

    /// Publishes something; at most so many are under way.
    pub fn publish(&mut self, topic: &str, qos: Qos, payload: String) -> bool {
        if !self.connected || self.publishing.len() >= 4 {
            return false;
        }
        let id = if qos.is_confirmed() { self.id() } else { 0 };
        let it = Publishing { id, qos, topic: topic.into(), payload, released: false };
        let bytes = self.publish_packet(&it, false);
        if qos.is_confirmed() {
            self.publishing.push_back(it);
        }
        self.send(bytes);
        true
    }

    /// Sends the next answer that waits.
    pub fn answer(&mut self) -> bool {
        let Some(bytes) = self.answers.pop_front() else { return false };
        self.send(bytes);
        true
    }

    /// Reads up to so many bytes, and does what they say. False when there was nothing.
    pub fn read(&mut self, bytes_max: usize) -> bool {
        let Some(end) = &self.end else { return false };
        let Some(bytes) = end.read(bytes_max) else {
            self.cut();
            return true;
        };
        if bytes.is_empty() {
            return false;
        }
        self.input.extend(bytes);
        while self.end.is_some() {
            let input = std::mem::take(&mut self.input);
            let found = read(&input, Some(self.version), Side::Server, usize::MAX);
            let taken = match found.unwrap_or_else(|error| panic!("{error}: {input:?}")) {
                None => {
                    self.input = input;
                    return true;
                }
                Some((packet, taken)) => {
                    self.heard(&packet);
                    taken
                }
            };
            if self.end.is_some() {
                self.input = input[taken..].to_vec();
            }
        }
        true
    }

    fn confirm(&mut self, kind: ConfirmType, id: u16) {
        self.answers.push_back(self.confirmation(kind, id));
    }

    fn confirmation(&self, kind: ConfirmType, id: u16) -> Vec<u8> {
        packet(|out| write::confirm(kind, self.version, id, ReasonCode::Success, &[], out))
    }

    fn heard(&mut self, heard: &Packet<'_>) {
        self.tell(|| format!("heard {heard:?}"));
        match heard {
            Packet::Connack(connack) => {
                assert_eq!(connack.code, 0, "client {}", self.name);
                self.connected = true;
                if !connack.session_present {
                    assert!(!self.ready || !self.kept, "the session of {} is gone", self.name);
                    self.received.clear();
                    self.publishing.clear();
                }
                if !self.ready && !self.subscribed {
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
            Packet::Suback(suback) => {
                assert!(suback.codes.iter().all(|code| *code < 3), "{:?}", suback.codes);
                self.ready = true;
            }
            Packet::Publish(publish) => {
                let payload = String::from_utf8(publish.payload.to_vec()).unwrap();
                let message = (publish.topic.to_string(), payload);
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
            Packet::Disconnect(_) => self.cut(),
            other @ (Packet::Connect(_)
            | Packet::Subscribe(_)
            | Packet::Unsubscribe(_)
            | Packet::Unsuback(_)
            | Packet::Pingreq
            | Packet::Pingresp
            | Packet::Auth(_)) => panic!("client {} was sent {other:?}", self.name),
        }
    }

    fn finish(&mut self, id: u16, released: bool) {
        let place = self.publishing.iter().position(|it| it.id == id && it.released == released);
        if let Some(at) = place {
            let it = self.publishing.remove(at).unwrap();
            self.done.push(it.payload);
        }
    }

    fn subscribe(&mut self) {
        self.subscribed = true;
        let all: Vec<SubscribeParts<'_>> = self
            .filters
            .iter()
            .map(|(filter, qos)| SubscribeParts {
                filter,
                qos: *qos,
                no_local: false,
                retain_as_published: false,
                retain_handling: 0,
            })
            .collect();
        let bytes = packet(|out| client::subscribe(self.version, 7, &[], &all, out));
        self.send(bytes);
    }

    /// How often each payload has come.
    pub fn counts(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for (_, payload) in &self.got {
            *counts.entry(payload.as_str()).or_default() += 1;
        }
        counts
    }
}
