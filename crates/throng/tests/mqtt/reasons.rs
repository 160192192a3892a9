//! The reasons for rejections that clients of MQTT 5 get, and how the server ends clients that it sends away.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use protocol::mqtt::{Packet, Properties, Side, id, read};

use crate::mqtt::client::*;
use crate::mqtt::server;
use crate::support::Server;

/// A packet with a reason: its name, the reason's code, and the texts of its properties.
#[derive(Debug, PartialEq, Eq)]
pub struct Reason {
    pub packet: &'static str,
    pub code: u8,
    pub text: Option<String>,
    pub server: Option<String>,
}

impl Reason {
    fn new(packet: &'static str, code: u8, properties: &Properties<'_>) -> Self {
        let text = |number: u8| properties.text(number).map(str::to_owned);
        let (text, server) = (text(id::REASON_STRING), text(id::SERVER_REFERENCE));
        Reason { packet, code, text, server }
    }
}

/// A client that reads the reasons in packets.
pub struct ReasonClient {
    socket: TcpStream,
    input: Vec<u8>,
}

impl ReasonClient {
    pub fn new(at: SocketAddr) -> Self {
        ReasonClient { socket: crate::support::connect(at), input: Vec::new() }
    }

    /// Connects, and fails unless the server accepts.
    pub fn open(at: SocketAddr, connect: &Connect) -> Self {
        let mut client = ReasonClient::new(at);
        client.send(&connect.bytes());
        assert_eq!(client.next().map(|it| (it.packet, it.code)), Some(("CONNACK", 0)));
        client
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    /// Returns the next packet, or `None` when the server has closed the connection.
    pub fn next(&mut self) -> Option<Reason> {
        self.socket.set_read_timeout(Some(crate::support::TIMEOUT)).unwrap();
        loop {
            if let Some((packet, taken)) =
                read(&self.input, Some(V5), Side::Server, usize::MAX).unwrap()
            {
                let reason = match &packet {
                    Packet::Connack(it) => Reason::new("CONNACK", it.code, &it.properties),
                    Packet::Puback(it) => Reason::new("PUBACK", it.reason.number(), &it.properties),
                    Packet::Pubrec(it) => Reason::new("PUBREC", it.reason.number(), &it.properties),
                    Packet::Pubcomp(it) => {
                        Reason::new("PUBCOMP", it.reason.number(), &it.properties)
                    }
                    Packet::Suback(it) => Reason::new("SUBACK", it.codes[0], &it.properties),
                    Packet::Unsuback(it) => Reason::new("UNSUBACK", it.codes[0], &it.properties),
                    Packet::Disconnect(it) => {
                        Reason::new("DISCONNECT", it.reason.number(), &it.properties)
                    }
                    Packet::Pingresp => Reason::new("PINGRESP", 0, &Properties::NONE),
                    other => panic!("{other:?}"),
                };
                self.input.drain(..taken);
                return Some(reason);
            }
            let mut bytes = [0; 4096];
            match self.socket.read(&mut bytes) {
                Ok(0) => return None,
                Ok(count) => self.input.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Packets that the server rejects, with the name and the code of the response. The last one ends the connection.
pub fn refused() -> [(Vec<u8>, &'static str, u8); 6] {
    let publish = |topic: &str, qos| Publish { id: 1, ..Publish::new(topic, "x", qos) }.bytes(V5);
    let long = "x".repeat(255);
    let subscribe = bytes(|out| {
        protocol::mqtt::client::subscribe(V5, 1, &[], &[filter("test/nosubscribe", 1)], out)
    });
    [
        (publish("test/nopublish", 1), "PUBACK", 0x87),
        (publish("test/nopublish", 2), "PUBREC", 0x87),
        (publish(&long, 1), "PUBACK", 0x90),
        (subscribe, "SUBACK", 0x80),
        (vec![0x62, 2, 0, 9], "PUBCOMP", 0x92),
        (publish("a/+", 0), "DISCONNECT", 0x90),
    ]
}

#[test]
fn reasons_are_explained() {
    let server = server(&[]);
    let mut client = ReasonClient::open(server.client, &Connect::new(V5, "x"));
    for (packet, name, code) in refused() {
        client.send(&packet);
        let reason = client.next().unwrap();
        assert_eq!((reason.packet, reason.code), (name, code));
        let text = reason.text.unwrap_or_else(|| panic!("{name} {code:#x} has no text"));
        assert!(text.len() > 20, "{text}");
    }
    assert_eq!(client.next(), None);
    // A takeover ends the older connection.
    let mut old = ReasonClient::open(server.client, &Connect::new(V5, "y"));
    let mut new = ReasonClient::open(server.client, &Connect::new(V5, "y"));
    let reason = old.next().unwrap();
    assert_eq!((reason.packet, reason.code), ("DISCONNECT", 0x8e));
    assert!(reason.text.is_some_and(|text| text.contains("client identifier")));
    new.send(&[0xc0, 0]);
    assert_eq!(new.next().unwrap().packet, "PINGRESP");
}

#[test]
fn a_text_never_makes_a_packet_larger_than_the_client_takes() {
    let server = server(&[]);
    let takes = |max| Connect::new(V5, "x").with(number(id::MAXIMUM_PACKET_SIZE, max));
    // A maximum packet size that fits everything but texts.
    let mut client = ReasonClient::open(server.client, &takes(30));
    for (packet, packet_name, code) in refused() {
        client.send(&packet);
        let (text, server) = (None, None);
        assert_eq!(client.next(), Some(Reason { packet: packet_name, code, text, server }));
    }
    assert_eq!(client.next(), None);
    // A maximum that fits no CONNACK: the server does not send a packet that is too large.
    let mut client = ReasonClient::new(server.client);
    client.send(&takes(4).bytes());
    assert_eq!(client.next(), None);
}

/// Starts a server with one shard, since several shards drain one after the other.
fn one_shard(settings: &[(&str, &str)]) -> Server {
    let patient = [("THRONG_TIMEOUTS_DRAIN_SECONDS", "60"), ("THRONG_TIMEOUTS_HEAD_SECONDS", "60")];
    let flags = ["--mqtt", "127.0.0.1:0", "--shards", "1"];
    Server::with(&flags, &[&patient, settings].concat())
}

/// Returns the packets that a client gets whose CONNECT is incomplete when the drain begins, and that a connected
/// client gets.
fn drained(settings: &[(&str, &str)], connect: &Connect) -> (Option<Reason>, Option<Reason>) {
    let server = one_shard(settings);
    let bytes = connect.bytes();
    let (first, rest) = bytes.split_at(7);
    let mut late = ReasonClient::new(server.client);
    late.send(first);
    let mut open = ReasonClient::open(server.client, &Connect::new(V5, "open"));
    server.until("both connections", |server| {
        server.metric("throng_connections{transport=\"mqtt\"}") == 2.0
    });
    server.signal("-TERM");
    // The connected client gets DISCONNECT when the drain has begun.
    let reason = open.next();
    late.send(rest);
    (late.next(), reason)
}

#[test]
fn a_client_that_comes_during_a_drain_is_sent_elsewhere() {
    let elsewhere = [("THRONG_MQTT_SERVER_REFERENCE", "other.example:1883")];
    let (late, reason) = drained(&elsewhere, &Connect::new(V5, "late"));
    let (late, reason) = (late.expect("CONNACK"), reason.expect("DISCONNECT"));
    assert_eq!((late.packet, late.code), ("CONNACK", 0x9c));
    assert_eq!((reason.packet, reason.code), ("DISCONNECT", 0x9c));
    for reason in [&late, &reason] {
        assert_eq!(reason.server.as_deref(), Some("other.example:1883"));
        assert!(reason.text.is_some());
    }
    // CONNACK can't have the code for a server that shuts down [MQTT-3.2.2-8].
    let (late, reason) = drained(&[], &Connect::new(V5, "late"));
    assert_eq!(late.map(|it| (it.packet, it.code)), Some(("CONNACK", 0x88)));
    assert_eq!(reason.map(|it| (it.packet, it.code)), Some(("DISCONNECT", 0x8b)));
}

#[test]
fn a_client_of_3_1_1_that_comes_during_a_drain_gets_the_reason() {
    let server = one_shard(&[]);
    let bytes = Connect::new(V3, "late").bytes();
    let mut late = Client::new(server.client, V3);
    late.send(&bytes[..7]);
    let mut open = Client::new(server.client, V3);
    open.send(&Connect::new(V3, "open").bytes());
    open.connack();
    server.until("both connections", |server| {
        server.metric("throng_connections{transport=\"mqtt\"}") == 2.0
    });
    server.signal("-TERM");
    open.expect_events(&[Event::Closed]);
    late.send(&bytes[7..]);
    late.expect_events(&[Event::Connack(false, 3, Vec::new()), Event::Closed]);
}
