//! MQTT clients from their first byte to their last.

use model::Qos;
use protocol::mqtt::client::{self, ConnectParts, SubscribeParts, WillParts};
use protocol::mqtt::write::{self, ConfirmType, PublishParts};
use protocol::mqtt::{ReasonCode, Value, Version, WriteError, id};

use super::*;

fn packet(write: impl FnOnce(&mut Vec<u8>) -> Result<(), WriteError>) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out).unwrap();
    out
}

/// A client of a version, in a framing.
#[derive(Clone, Copy)]
struct Peer {
    version: Version,
    framed: bool,
}

impl Peer {
    fn bytes(self, packet: &[u8]) -> Vec<u8> {
        if !self.framed {
            return packet.to_vec();
        }
        let mut out = Vec::new();
        encode_masked(Opcode::Binary, false, packet, [1, 2, 3, 4], &mut out);
        out
    }

    /// Sends a packet in two parts.
    fn slowly(self, packet: &[u8]) -> [Step; 3] {
        let bytes = self.bytes(packet);
        let (first, rest) = bytes.split_at(bytes.len() / 2);
        [Send(0, first.to_vec()), Wait(1), Send(0, rest.to_vec())]
    }

    /// CONNECT with a persistent session, a will, and all other fields.
    fn connect(self, is_clean: bool) -> Vec<u8> {
        let number = |id, value| (id, Value::Number(value));
        let will = [number(id::WILL_DELAY_INTERVAL, 1), (id::CONTENT_TYPE, Value::Text("text"))];
        let all = [
            number(id::SESSION_EXPIRY_INTERVAL, 100),
            number(id::RECEIVE_MAXIMUM, 2),
            number(id::MAXIMUM_PACKET_SIZE, 60_000),
            number(id::TOPIC_ALIAS_MAXIMUM, 2),
        ];
        let of = |all: &'static [_]| if self.version == Version::V5 { all } else { &[] };
        let will = WillParts {
            qos: Qos::AtLeastOnce,
            retain: true,
            properties: if self.version == Version::V5 { &will } else { of(&[]) },
            topic: "plain",
            payload: b"gone",
        };
        let parts = ConnectParts {
            version: self.version,
            is_3_1: false,
            clean: is_clean,
            keep_alive_s: 0,
            properties: if self.version == Version::V5 && !is_clean { &all } else { of(&[]) },
            client: "c",
            will: (!is_clean).then_some(will),
            user: Some("u0"),
            password: None,
        };
        packet(|out| client::connect(&parts, out))
    }

    fn subscribe(self) -> Vec<u8> {
        let one = |filter, qos| SubscribeParts {
            filter,
            qos,
            no_local: false,
            retain_as_published: false,
            retain_handling: 0,
        };
        let filters = [
            one("plain", Qos::ExactlyOnce),
            one("big/#", Qos::AtLeastOnce),
            one("$share/g/+/2", Qos::AtLeastOnce),
            one("@u0", Qos::AtMostOnce),
        ];
        packet(|out| client::subscribe(self.version, 7, &[], &filters, out))
    }

    fn publish(self, qos: Qos, dup: bool) -> Vec<u8> {
        let properties = std::iter::empty();
        let (topic, payload) = ("big/own", &b"own"[..]);
        let (version, retain, id) = (self.version, true, 9);
        let parts = PublishParts { version, dup, qos, retain, topic, id, properties, payload };
        packet(|out| parts.write(out))
    }

    fn confirm(self, kind: ConfirmType, id: u16) -> Step {
        let packet =
            packet(|out| write::confirm(kind, self.version, id, ReasonCode::Success, &[], out));
        Send(0, self.bytes(&packet))
    }

    /// Steps up to CONNACK.
    fn begins(self, connect: &[u8]) -> Vec<Step> {
        if self.framed {
            let protocol = "Sec-WebSocket-Protocol: mqtt\r\n";
            let mut steps = vec![Open(0, 0, socket("/mqtt", protocol)), Read(0)];
            steps.extend(self.slowly(connect));
            return steps;
        }
        // The first byte identifies MQTT.
        let first = String::from_utf8(connect[..1].to_vec()).unwrap();
        let (middle, rest) = connect[1..].split_at(10);
        vec![Open(0, 0, first), Send(0, middle.to_vec()), Send(0, rest.to_vec()), Read(0)]
    }

    /// A lifetime without its end.
    fn lifetime(self) -> Vec<Step> {
        let mut steps = self.begins(&self.connect(false));
        steps.extend(self.slowly(&self.subscribe()));
        steps.extend([
            Publish("plain", "one".into()),
            Read(0),
            Publish("plain", fill(3_000)),
            Publish("big/1", "two".into()),
            Publish("big/2", "three".into()),
            Publish("x/2", "shared".into()),
            Publish("@u0", "to all of u0".into()),
            Publish("big/3", "four".into()),
            Read(0),
        ]);
        steps.extend(self.slowly(&self.publish(Qos::ExactlyOnce, false)));
        steps.extend([
            Read(0),
            self.confirm(ConfirmType::Pubrec, 1),
            Read(0),
            Send(0, self.bytes(&self.publish(Qos::ExactlyOnce, true))),
            Read(0),
            self.confirm(ConfirmType::Pubrel, 9),
            self.confirm(ConfirmType::Pubcomp, 1),
            self.confirm(ConfirmType::Puback, 2),
            Read(0),
            Publish("plain", "five".into()),
            Wait(40),
            Read(0),
        ]);
        steps
    }
}

/// In each version and framing: closed by either side, broken, cut, and resumed.
pub(super) fn lifetimes() -> Vec<(&'static str, Vec<Step>)> {
    let mut all = Vec::new();
    let peers = [
        ("mqtt 3", Version::V3, false),
        ("mqtt 5", Version::V5, false),
        ("mqtt 3 in frames", Version::V3, true),
        ("mqtt 5 in frames", Version::V5, true),
    ];
    for (name, version, framed) in peers {
        let peer = Peer { version, framed };
        let lifetime = peer.lifetime();
        let with = |more: &[Step]| [&lifetime[..], more].concat();
        let disconnect = packet(|out| write::disconnect(version, ReasonCode::Success, &[], out));
        let disconnect = Send(0, peer.bytes(&disconnect));
        all.push((name, with(&[disconnect, Read(0), Wait(20), Cut(0)])));
        // This packet type does not exist.
        let broken = Send(0, peer.bytes(&[0x00, 0x00]));
        all.push((name, with(&[broken, Read(0), Wait(10), Cut(0), Wait(20)])));
        all.push((name, with(&[Disconnect("u0"), Wait(1), Read(0), Wait(30), Cut(0)])));
        let mut back = vec![Cut(0), Wait(20), Publish("big/4", "while away".into())];
        back.extend(peer.begins(&peer.connect(false)));
        back.push(Read(0));
        all.push((name, with(&back)));
        let mut plain = peer.begins(&peer.connect(true));
        let topic = packet(|out| client::subscribe(version, 7, &[], &[plain_topic()], out));
        plain.extend([Send(0, peer.bytes(&topic)), Read(0)]);
        plain.extend([Publish("plain", "one".into()), Read(0), Publish("plain", fill(3_000))]);
        plain.extend([Publish("plain", fill(3_000)), Wait(1)]);
        // The client has not taken everything when it is closed.
        let mut closed = plain.clone();
        closed.extend([Disconnect("u0"), Wait(1), Read(0), Wait(30), Cut(0)]);
        all.push((name, closed));
        plain.extend([Read(0), Wait(20), Cut(0)]);
        all.push((name, plain));
    }
    all
}

fn plain_topic() -> SubscribeParts<'static> {
    SubscribeParts {
        filter: "plain",
        qos: Qos::AtMostOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: 0,
    }
}

/// Messages of a shared group for a member whose session ends with its connection: in flight, and waiting.
#[test]
fn what_a_group_gave_stays_with_its_member() {
    let peer = Peer { version: Version::V5, framed: false };
    let connect = |client, receive_max| {
        let properties = [(id::RECEIVE_MAXIMUM, Value::Number(receive_max))];
        let parts = ConnectParts {
            version: peer.version,
            is_3_1: false,
            clean: true,
            keep_alive_s: 0,
            properties: &properties,
            client,
            will: None,
            user: Some("u0"),
            password: None,
        };
        packet(|out| client::connect(&parts, out))
    };
    let member = SubscribeParts {
        filter: "$share/g/+/2",
        qos: Qos::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: 0,
    };
    let subscribe = packet(|out| client::subscribe(peer.version, 7, &[], &[member], out));
    let begins = |at, client, receive_max| {
        let connect = connect(client, receive_max);
        let first = String::from_utf8(connect[..1].to_vec()).unwrap();
        let rest = Send(at, [&connect[1..], &subscribe].concat());
        [Open(at, at, first), rest, Read(at)]
    };
    let mut steps = Vec::from(begins(0, "first", 2));
    let shared = ["one", "two", "three", "four"].map(|text| Publish("x/2", text.into()));
    steps.extend(shared);
    steps.extend([Wait(1), Read(0), peer.confirm(ConfirmType::Puback, 1), Wait(1), Read(0)]);
    steps.extend(begins(1, "second", 9));
    steps.extend([Cut(0), Wait(10), Read(1), Wait(10), Read(1)]);
    check("a group", false, &steps);
}

/// Messages that a back end accepts or rejects, and one that arrives twice meanwhile.
#[test]
fn what_a_back_end_has_to_take_waits_as_before() {
    for (version, ok) in [(Version::V3, true), (Version::V5, true), (Version::V5, false)] {
        let peer = Peer { version, framed: false };
        let publish = |qos, id, dup| {
            let properties = std::iter::empty();
            let (topic, payload, retain) = ("sent/1", &b"own"[..], false);
            let parts = PublishParts { version, dup, qos, retain, topic, id, properties, payload };
            Send(0, packet(|out| parts.write(out)))
        };
        let mut steps = peer.begins(&peer.connect(false));
        steps.extend(peer.slowly(&peer.subscribe()));
        steps.extend([
            Open(1, 1, socket("/ws?user=u1&topic=sent/1", "")),
            Read(0),
            Read(1),
            publish(Qos::AtMostOnce, 0, false),
            publish(Qos::ExactlyOnce, 9, false),
            publish(Qos::AtLeastOnce, 3, false),
            publish(Qos::ExactlyOnce, 9, true),
            text(1, r#"{"type":"publish","id":4,"topic":"sent/2","data":1}"#),
            Read(0),
            Read(1),
            ReplyTarget(ok),
            Read(0),
            Read(1),
            publish(Qos::ExactlyOnce, 9, true),
            Read(0),
            ReplyTarget(true),
            Read(0),
            peer.confirm(ConfirmType::Pubrel, 9),
            Read(0),
            Read(1),
        ]);
        check("forward", false, &steps);
    }
}

/// The drain begins while the new connection waits for the session, before the old one releases it.
#[test]
fn a_client_that_waits_for_its_session_is_sent_away_by_a_drain() {
    let peer = Peer { version: Version::V5, framed: false };
    let connect = peer.connect(false);
    let first = String::from_utf8(connect[..1].to_vec()).unwrap();
    let mut scene = Scene::new(false);
    let comes = |scene: &mut Scene, client, at| {
        scene.step(&Open(client, at, first.clone()));
        scene.clients[client].as_ref().unwrap().send(&connect[1..]);
    };
    comes(&mut scene, 0, 0);
    scene.step(&Read(0));
    comes(&mut scene, 1, 1);
    let there = &mut scene.drivers[1];
    there.events().0.into_iter().for_each(|slot| there.ready(slot));
    scene.handles[1].send(Command::Drain { seconds: 10 });
    scene.drivers[1].work();
    assert_eq!(scene.drivers[1].engine.core.mqtt.waiters.len(), 1);
    scene.step(&Read(1));
    let (connack, code) = (&scene.received[1][..1], scene.received[1][3]);
    assert_eq!((connack, code), (&[0x20][..], ReasonCode::ServerUnavailable.number()));
    assert!(scene.received[1].ends_with(b"<end>"));
    // The session that it has waited for exists.
    comes(&mut scene, 2, 0);
    scene.step(&Read(2));
    assert_eq!(scene.received[2][2..4], [1, 0], "{:02x?}", scene.received[2]);
}

#[test]
fn a_jump_of_the_time_of_day_ends_no_session() {
    const DECADE_US: u64 = 10 * 365 * 24 * 3_600 * 1_000_000;
    let peer = Peer { version: Version::V5, framed: false };
    let connect = peer.connect(false);
    let first = String::from_utf8(connect[..1].to_vec()).unwrap();
    let mut scene = Scene::new(false);
    scene.step(&Open(0, 0, first));
    scene.step(&Send(0, connect[1..].to_vec()));
    scene.step(&Read(0));
    scene.step(&Cut(0));
    let shared = |scene: &Scene| scene.drivers[0].engine.core.shared.clone();
    let away = |scene: &Scene| shared(scene).mqtt_sessions.stats().away;
    let now_us = scene.drivers[0].engine.now_us();
    shared(&scene).set_time(now_us, now_us + DECADE_US, now_us);
    // Its session expires after 100 s.
    scene.step(&Wait(980));
    assert_eq!(away(&scene), 1);
    scene.step(&Wait(50));
    assert_eq!(away(&scene), 0);
}

#[test]
fn a_session_that_is_left_while_the_time_of_day_is_doubted_lasts_as_long_as_any() {
    const DECADE_US: u64 = 10 * 365 * 24 * 3_600 * 1_000_000;
    let peer = Peer { version: Version::V5, framed: false };
    let connect = peer.connect(false);
    for is_believed in [true, false] {
        let first = String::from_utf8(connect[..1].to_vec()).unwrap();
        let mut scene = Scene::new(false);
        scene.step(&Open(0, 0, first));
        scene.step(&Send(0, connect[1..].to_vec()));
        scene.step(&Read(0));
        let set_time = |scene: &Scene, unix_after_us, age_after_us| {
            let now_us = scene.drivers[0].engine.now_us();
            let shared = &scene.drivers[0].engine.core.shared;
            shared.set_time(now_us, now_us + unix_after_us, now_us + age_after_us);
        };
        let away = |scene: &Scene| scene.drivers[0].engine.core.shared.mqtt_sessions.stats().away;
        set_time(&scene, DECADE_US, 0);
        scene.step(&Wait(20));
        scene.step(&Cut(0));
        scene.step(&Wait(500));
        let after_us = if is_believed { DECADE_US } else { 0 };
        set_time(&scene, after_us, after_us);
        // Its session expires after 100 s.
        scene.step(&Wait(480));
        assert_eq!(away(&scene), 1, "the time is believed: {is_believed}");
        scene.step(&Wait(50));
        assert_eq!(away(&scene), 0, "the time is believed: {is_believed}");
    }
}
