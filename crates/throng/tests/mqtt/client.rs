//! A client that sends what a test wants, and reads every packet.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use model::Qos;
use protocol::mqtt::client::{self, ConnectParts, SubscribeParts, WillParts};
use protocol::mqtt::write::{self, ConfirmType, PublishParts};
use protocol::mqtt::{Packet, Properties, ReasonCode, Side, Value, Version, WriteError, id, read};

use crate::support;

pub use protocol::mqtt::Version::{V3, V5};

/// A property that a test sends.
pub type Property = (u8, Value<'static>);

pub fn number(id: u8, value: u32) -> Property {
    (id, Value::Number(value))
}

/// Returns the properties of a client that authenticates by the method `token`.
pub fn by_token(token: &str) -> [Property; 2] {
    // The leak is small, since a test makes few tokens.
    let token: &'static str = token.to_string().leak();
    [
        (id::AUTHENTICATION_METHOD, Value::Text("token")),
        (id::AUTHENTICATION_DATA, Value::Binary(token.as_bytes())),
    ]
}

pub fn bytes(write: impl FnOnce(&mut Vec<u8>) -> Result<(), WriteError>) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out).unwrap();
    out
}

/// The parts of a CONNECT packet.
#[derive(Clone, Debug)]
pub struct Connect {
    pub version: Version,
    pub is_3_1: bool,
    pub client: String,
    pub clean: bool,
    pub keep_alive_s: u16,
    pub properties: Vec<Property>,
    pub will: Option<Will>,
    pub user: Option<String>,
    pub password: Option<Vec<u8>>,
}

#[derive(Clone, Debug)]
pub struct Will {
    pub topic: &'static str,
    pub payload: &'static str,
    pub qos: u8,
    pub retain: bool,
    pub properties: Vec<Property>,
}

impl Connect {
    pub fn new(version: Version, client: &str) -> Self {
        Connect {
            version,
            is_3_1: false,
            client: client.into(),
            clean: true,
            keep_alive_s: 0,
            properties: Vec::new(),
            will: None,
            user: None,
            password: None,
        }
    }

    /// A session that outlives the connection.
    pub fn persistent(version: Version, client: &str) -> Self {
        let connect = Connect { clean: false, ..Connect::new(version, client) };
        match version {
            V3 => connect,
            V5 => connect.with(number(id::SESSION_EXPIRY_INTERVAL, 3_600)),
        }
    }

    pub fn with(mut self, property: Property) -> Self {
        self.properties.push(property);
        self
    }

    /// Authenticates by the method `token`.
    pub fn authenticates(self, token: &str) -> Self {
        let [method, data] = by_token(token);
        self.with(method).with(data)
    }

    pub fn user(mut self, user: &str) -> Self {
        self.user = Some(user.into());
        self
    }

    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.into());
        self
    }

    pub fn will(mut self, topic: &'static str, payload: &'static str, qos: u8) -> Self {
        let (retain, properties) = (false, Vec::new());
        self.will = Some(Will { topic, payload, qos, retain, properties });
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let will = self.will.as_ref().map(|will| WillParts {
            qos: Qos::from_number(will.qos).unwrap(),
            retain: will.retain,
            properties: &will.properties,
            topic: will.topic,
            payload: will.payload.as_bytes(),
        });
        let parts = ConnectParts {
            version: self.version,
            is_3_1: self.is_3_1,
            clean: self.clean,
            keep_alive_s: self.keep_alive_s,
            properties: &self.properties,
            client: &self.client,
            will,
            user: self.user.as_deref(),
            password: self.password.as_deref(),
        };
        bytes(|out| client::connect(&parts, out))
    }

    /// Connects, and fails unless the server accepts.
    pub fn open(&self, at: SocketAddr) -> Client {
        let (client, reply) = self.try_open(at);
        assert_eq!(reply.code, 0, "{} was not let in: {reply:?}", self.client);
        client
    }

    pub fn try_open(&self, at: SocketAddr) -> (Client, Connack) {
        let mut client = Client::new(at, self.version);
        client.send(&self.bytes());
        let reply = client.connack();
        client.session_present = reply.session_present;
        (client, reply)
    }
}

/// CONNACK.
#[derive(Debug)]
pub struct Connack {
    pub session_present: bool,
    pub code: u8,
    pub properties: Vec<(u8, String)>,
}

impl Connack {
    pub fn property(&self, id: u8) -> Option<&str> {
        found(&self.properties, id)
    }
}

/// PUBLISH from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub topic: String,
    pub payload: String,
    pub qos: u8,
    pub retain: bool,
    pub dup: bool,
    pub id: u16,
    pub properties: Vec<(u8, String)>,
}

impl Message {
    pub fn property(&self, id: u8) -> Option<&str> {
        found(&self.properties, id)
    }

    /// Returns the identifiers of the subscriptions that matched.
    pub fn subscriptions(&self) -> Vec<&str> {
        let id = id::SUBSCRIPTION_IDENTIFIER;
        let all = self.properties.iter().filter(|(known, _)| *known == id);
        let mut all: Vec<&str> = all.map(|(_, value)| value.as_str()).collect();
        all.sort_unstable();
        all
    }
}

fn found(properties: &[(u8, String)], id: u8) -> Option<&str> {
    properties.iter().find(|(known, _)| *known == id).map(|(_, value)| value.as_str())
}

fn properties_of(properties: &Properties<'_>) -> Vec<(u8, String)> {
    let value = |value: Value<'_>| match value {
        Value::Number(number) => number.to_string(),
        Value::Text(text) => text.to_string(),
        Value::Binary(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Pair(name, value) => format!("{name}={value}"),
    };
    properties.iter().map(|(id, it)| (id, value(it))).collect()
}

/// A packet from the server, or the end of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Message(Message),
    /// The name of a confirmation, its packet identifier and reason.
    Confirm(&'static str, u16, u8),
    Suback(u16, Vec<u8>),
    Unsuback(u16, Vec<u8>),
    Pong,
    /// DISCONNECT with its reason.
    Disconnect(u8, Vec<(u8, String)>),
    Auth(u8, Vec<(u8, String)>),
    Connack(bool, u8, Vec<(u8, String)>),
    /// The server has closed the connection.
    Closed,
}

pub struct Client {
    pub version: Version,
    socket: TcpStream,
    input: Vec<u8>,
    /// The bytes of the last packet.
    pub raw: Vec<u8>,
    /// The properties of the last confirmation, SUBACK or UNSUBACK.
    pub properties: Vec<(u8, String)>,
    /// Messages that arrived while the test waited for another packet.
    aside: VecDeque<Message>,
    pub session_present: bool,
    next_id: u16,
}

/// A filter with the options of its subscription.
pub fn filter(filter: &'static str, qos: u8) -> SubscribeParts<'static> {
    SubscribeParts {
        filter,
        qos: Qos::from_number(qos).unwrap(),
        no_local: false,
        retain_as_published: false,
        retain_handling: 0,
    }
}

/// A PUBLISH packet of a test.
#[derive(Clone)]
pub struct Publish<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub qos: u8,
    pub retain: bool,
    pub dup: bool,
    pub id: u16,
    pub properties: Vec<Property>,
}

impl<'a> Publish<'a> {
    pub fn new(topic: &'a str, payload: &'a str, qos: u8) -> Self {
        let (retain, dup, id) = (false, false, u16::from(qos > 0));
        let payload = payload.as_bytes();
        Publish { topic, payload, qos, retain, dup, id, properties: Vec::new() }
    }

    pub fn retained(self) -> Self {
        Publish { retain: true, ..self }
    }

    pub fn with(mut self, property: Property) -> Self {
        self.properties.push(property);
        self
    }

    pub fn bytes(&self, version: Version) -> Vec<u8> {
        let parts = PublishParts {
            version,
            dup: self.dup,
            qos: Qos::from_number(self.qos).unwrap(),
            retain: self.retain,
            topic: self.topic,
            id: self.id,
            properties: self.properties.iter().copied(),
            payload: self.payload,
        };
        bytes(|out| parts.write(out))
    }
}

impl Client {
    /// Opens a connection and sends nothing.
    pub fn new(at: SocketAddr, version: Version) -> Self {
        Client::on(support::connect(at), version)
    }

    pub fn on(socket: TcpStream, version: Version) -> Self {
        socket.set_nodelay(true).unwrap();
        let (input, raw, properties, aside) = (Vec::new(), Vec::new(), Vec::new(), VecDeque::new());
        let (session_present, next_id) = (false, 0);
        Client { version, socket, input, raw, properties, aside, session_present, next_id }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        // The server may have closed already: the test then reads what the server sent before.
        let _ = self.socket.write_all(bytes);
    }

    /// Cuts the connection without DISCONNECT.
    pub fn cut(self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    pub fn disconnect(mut self) {
        let version = self.version;
        let goodbye = bytes(|out| write::disconnect(version, ReasonCode::Success, &[], out));
        self.send(&goodbye);
        self.expect_events(&[Event::Closed]);
    }

    pub fn id(&mut self) -> u16 {
        self.next_id += 1;
        self.next_id
    }

    pub fn connack(&mut self) -> Connack {
        match self.next() {
            Event::Connack(session_present, code, properties) => {
                Connack { session_present, code, properties }
            }
            other => panic!("{other:?} came in place of CONNACK"),
        }
    }

    /// Subscribes, and fails unless the server grants each QoS.
    pub fn subscribe(&mut self, filters: &[SubscribeParts<'_>]) {
        let granted = filters.iter().map(|one| one.qos.number()).collect::<Vec<u8>>();
        assert_eq!(self.subscribe_with(filters, &[]), granted);
    }

    pub fn subscribe_with(
        &mut self,
        filters: &[SubscribeParts<'_>],
        properties: &[Property],
    ) -> Vec<u8> {
        let (id, version) = (self.id(), self.version);
        self.send(&bytes(|out| client::subscribe(version, id, properties, filters, out)));
        match self.next_but_messages() {
            Event::Suback(of, codes) if of == id => codes,
            other => panic!("{other:?} came in place of SUBACK {id}"),
        }
    }

    pub fn unsubscribe(&mut self, filters: &[&str]) -> Vec<u8> {
        let (id, version) = (self.id(), self.version);
        self.send(&bytes(|out| client::unsubscribe(version, id, &[], filters, out)));
        match self.next_but_messages() {
            Event::Unsuback(of, codes) if of == id => codes,
            other => panic!("{other:?} came in place of UNSUBACK {id}"),
        }
    }

    /// Publishes, and completes the QoS handshake.
    pub fn publish(&mut self, topic: &str, payload: &str, qos: u8) {
        self.publish_all(Publish::new(topic, payload, qos));
    }

    pub fn publish_all(&mut self, publish: Publish<'_>) {
        let id = if publish.qos > 0 { self.id() } else { 0 };
        let publish = Publish { id, ..publish };
        self.send(&publish.bytes(self.version));
        match publish.qos {
            0 => {}
            1 => self.expect_events(&[Event::Confirm("PUBACK", id, 0)]),
            _ => {
                self.expect_events(&[Event::Confirm("PUBREC", id, 0)]);
                self.confirm(ConfirmType::Pubrel, id);
                self.expect_events(&[Event::Confirm("PUBCOMP", id, 0)]);
            }
        }
    }

    pub fn confirm(&mut self, kind: ConfirmType, id: u16) {
        let version = self.version;
        self.send(&bytes(|out| write::confirm(kind, version, id, ReasonCode::Success, &[], out)));
    }

    pub fn ping(&mut self) {
        self.send_ping();
        self.expect_events(&[Event::Pong]);
    }

    /// Sends a ping. The test reads the response itself.
    pub fn send_ping(&mut self) {
        self.send(&bytes(|out| {
            client::pingreq(out);
            Ok(())
        }));
    }

    /// Returns the next message, and completes its QoS handshake.
    pub fn message(&mut self) -> Message {
        let message = self.unconfirmed();
        match message.qos {
            0 => {}
            1 => self.confirm(ConfirmType::Puback, message.id),
            _ => {
                self.confirm(ConfirmType::Pubrec, message.id);
                self.expect_events(&[Event::Confirm("PUBREL", message.id, 0)]);
                self.confirm(ConfirmType::Pubcomp, message.id);
            }
        }
        message
    }

    /// Returns the next message, without a confirmation.
    pub fn unconfirmed(&mut self) -> Message {
        match self.next() {
            Event::Message(message) => message,
            other => panic!("{other:?} came in place of a message"),
        }
    }

    /// Returns the topics and payloads of the next messages.
    pub fn messages(&mut self, count: usize) -> Vec<(String, String)> {
        let one = |message: Message| (message.topic, message.payload);
        (0..count).map(|_| one(self.message())).collect()
    }

    /// Checks that these packets arrive in this order, whatever messages come in between.
    pub fn expect_events(&mut self, expected: &[Event]) {
        for expected in expected {
            assert_eq!(self.next_but_messages(), *expected);
        }
    }

    fn next_but_messages(&mut self) -> Event {
        loop {
            match self.arrived(support::TIMEOUT).expect("nothing came from the server") {
                Event::Message(message) => self.aside.push_back(message),
                other => return other,
            }
        }
    }

    /// Checks that the server ends the connection, and that a client of version 5 gets this reason.
    pub fn is_ended_for(&mut self, reason: u8) {
        if self.version == V5 {
            match self.next_but_messages() {
                Event::Disconnect(found, _) => assert_eq!(found, reason, "DISCONNECT"),
                other => panic!("{other:?} came in place of DISCONNECT {reason:#x}"),
            }
        }
        self.expect_events(&[Event::Closed]);
    }

    /// Takes the messages that have arrived, without confirmations.
    ///
    /// Messages that were published before are among them. They were in the shard's mailbox before the first ping,
    /// and a shard serves its mailbox in the turn in which it responds to a ping, so they come before the second
    /// response. The third ping gives time for a catch-up that takes one turn more.
    pub fn drain(&mut self) -> Vec<Message> {
        (0..3).for_each(|_| self.ping());
        self.aside.drain(..).collect()
    }

    /// Checks that no message has arrived, and that the connection is open.
    pub fn is_quiet(&mut self) {
        assert_eq!(self.drain(), []);
    }

    pub fn next(&mut self) -> Event {
        self.within(support::TIMEOUT).expect("nothing came from the server")
    }

    /// Returns the next packet, if it arrives within a time.
    pub fn within(&mut self, time: Duration) -> Option<Event> {
        self.aside.pop_front().map(Event::Message).or_else(|| self.arrived(time))
    }

    fn arrived(&mut self, time: Duration) -> Option<Event> {
        let end = Instant::now() + time;
        loop {
            if let Some(event) = self.read_event() {
                return Some(event);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            self.socket.set_read_timeout(Some(left)).unwrap();
            let mut bytes = [0; 16 << 10];
            match self.socket.read(&mut bytes) {
                Ok(0) => return Some(Event::Closed),
                Ok(count) => self.input.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                    return Some(Event::Closed);
                }
                Err(_) => {}
            }
        }
    }

    fn read_event(&mut self) -> Option<Event> {
        let input = std::mem::take(&mut self.input);
        let found = read(&input, Some(self.version), Side::Server, usize::MAX);
        let found = found.unwrap_or_else(|error| panic!("the server sent {input:02x?}: {error}"));
        let Some((packet, taken)) = found else {
            self.input = input;
            return None;
        };
        self.raw = input[..taken].to_vec();
        self.properties = match &packet {
            Packet::Puback(it) | Packet::Pubrec(it) | Packet::Pubrel(it) | Packet::Pubcomp(it) => {
                properties_of(&it.properties)
            }
            Packet::Suback(it) | Packet::Unsuback(it) => properties_of(&it.properties),
            _ => Vec::new(),
        };
        let event = match packet {
            Packet::Publish(it) => Event::Message(Message {
                topic: it.topic.into(),
                payload: String::from_utf8_lossy(it.payload).into_owned(),
                qos: it.qos.number(),
                retain: it.retain,
                dup: it.dup,
                id: it.id,
                properties: properties_of(&it.properties),
            }),
            Packet::Puback(it) => Event::Confirm("PUBACK", it.id, it.reason.number()),
            Packet::Pubrec(it) => Event::Confirm("PUBREC", it.id, it.reason.number()),
            Packet::Pubrel(it) => Event::Confirm("PUBREL", it.id, it.reason.number()),
            Packet::Pubcomp(it) => Event::Confirm("PUBCOMP", it.id, it.reason.number()),
            Packet::Suback(it) => Event::Suback(it.id, it.codes.to_vec()),
            Packet::Unsuback(it) => Event::Unsuback(it.id, it.codes.to_vec()),
            Packet::Pingresp => Event::Pong,
            Packet::Disconnect(it) => {
                Event::Disconnect(it.reason.number(), properties_of(&it.properties))
            }
            Packet::Auth(it) => Event::Auth(it.reason.number(), properties_of(&it.properties)),
            Packet::Connack(it) => {
                Event::Connack(it.session_present, it.code, properties_of(&it.properties))
            }
            other => panic!("{other:?} is not for a server to send"),
        };
        self.input = input[taken..].to_vec();
        Some(event)
    }
}
