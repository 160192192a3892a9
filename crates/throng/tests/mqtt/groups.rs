//! Shared subscriptions: each message goes to one member of the group, even if members are stuck or go away.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use protocol::mqtt::id;
use protocol::mqtt::write::ConfirmType;

use crate::mqtt::client::*;
use crate::mqtt::server;
use crate::support::{Scratch, Server};

/// Connects a member of the group with this receive maximum.
pub fn member(at: SocketAddr, name: &str, receive_max: u32) -> Client {
    let connect = Connect::new(V5, name).with(number(id::RECEIVE_MAXIMUM, receive_max));
    let mut member = connect.open(at);
    member.subscribe(&[filter("$share/g/work/#", 2)]);
    member
}

/// Returns the shard of a client.
fn shard(server: &Server, name: &str) -> String {
    let found = server.api("GET", &format!("/api/mqtt/sessions/{name}"), None).1;
    let id = found["connection"]["id"].as_str().unwrap_or_else(|| panic!("{found}"));
    id.split('-').nth(1).unwrap().into()
}

/// Connects a member on another shard than the member `from`.
fn member_apart(server: &Server, name: &str, from: &str) -> Client {
    let apart = |_| {
        let member = member(server.client, name, 1_000);
        (shard(server, name) != shard(server, from)).then_some(member)
    };
    (0..200).find_map(apart).expect("one of two shards has all connections")
}

/// Members that confirm each message.
pub struct Work {
    members: Vec<JoinHandle<(Client, Vec<String>)>>,
    /// The number of messages that all members have got.
    count: Arc<AtomicUsize>,
}

impl Work {
    pub fn start(members: impl IntoIterator<Item = Client>) -> Self {
        let count = Arc::<AtomicUsize>::default();
        let start = |mut member: Client| {
            member.subscribe(&[filter("end", 1)]);
            let count = count.clone();
            std::thread::spawn(move || {
                let payloads = work(&mut member, &count);
                (member, payloads)
            })
        };
        let members = members.into_iter().map(start).collect();
        Work { members, count }
    }

    /// Returns what each member got, after `count` messages have arrived.
    pub fn end(self, server: &Server, count: usize) -> Vec<Vec<String>> {
        server.until("all messages have come", |_| self.count.load(Ordering::Relaxed) >= count);
        let mut last = Connect::new(V5, "last").open(server.client);
        last.publish("end", "", 1);
        let members: Vec<_> = self.members.into_iter().map(|it| it.join().unwrap()).collect();
        members.into_iter().map(|(_, payloads)| payloads).collect()
    }
}

/// Returns what a member gets before the message on `end`, or directly behind it.
fn work(member: &mut Client, count: &AtomicUsize) -> Vec<String> {
    let mut payloads = Vec::new();
    loop {
        match member.next() {
            Event::Message(message) if message.topic == "end" => break,
            Event::Message(message) => {
                assert!(!message.dup);
                member.confirm(ConfirmType::Puback, message.id);
                payloads.push(message.payload);
                count.fetch_add(1, Ordering::Relaxed);
            }
            other => panic!("{other:?}"),
        }
    }
    payloads.extend(member.drain().into_iter().map(|message| message.payload));
    payloads
}

/// Publishes `count` messages to the group, and waits for each confirmation.
pub fn publish(at: SocketAddr, count: usize, qos: u8) -> BTreeSet<String> {
    let mut speaker = Connect::new(V5, "speaker").open(at);
    let all: Vec<String> = (0..count).map(|n| n.to_string()).collect();
    for (n, payload) in all.iter().enumerate() {
        speaker.publish(&format!("work/{}", n % 7), payload, qos);
    }
    speaker.disconnect();
    all.into_iter().collect()
}

/// Checks that no message occurs twice.
pub fn once(all: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    let all: Vec<String> = all.into_iter().collect();
    let once: BTreeSet<String> = all.iter().cloned().collect();
    assert_eq!(once.len(), all.len(), "something came twice");
    once
}

#[test]
fn each_member_has_its_share() {
    let server = server(&[]);
    let members = Work::start((0..4).map(|n| member(server.client, &format!("m{n}"), 1_000)));
    let all = publish(server.client, 400, 1);
    let payloads = members.end(&server, all.len());
    let counts: Vec<usize> = payloads.iter().map(Vec::len).collect();
    assert!(counts.iter().all(|count| (80..=120).contains(count)), "{counts:?}");
    assert_eq!(once(payloads.into_iter().flatten()), all);
}

#[test]
fn who_is_stuck_loses_nothing_and_goes_on() {
    let settings = [("THRONG_MQTT_QUEUE_MESSAGES_MAX", "50"), ("THRONG_MQTT_INFLIGHT_MAX", "1000")];
    let server = server(&settings);
    let mut stuck = member(server.client, "stuck", 5);
    // No other member is on the shard of the stuck one.
    let others = Work::start((0..3).map(|n| member_apart(&server, &format!("m{n}"), "stuck")));
    let all = publish(server.client, 800, 1);
    let mut payloads = others.end(&server, all.len() - 5);
    assert!(payloads.iter().all(|it| it.len() > 120), "somebody has too little");
    // The stuck member has as many messages as its receive maximum, and no more.
    payloads.push((0..5).map(|_| stuck.message().payload).collect());
    stuck.is_quiet();
    stuck.ping();
    assert_eq!(once(payloads.into_iter().flatten()), all);
}

#[test]
fn what_one_member_takes_not_so_large_another_one_gets() {
    let server = server(&[]);
    let small = Connect::new(V5, "small").with(number(id::MAXIMUM_PACKET_SIZE, 100));
    let mut small = small.open(server.client);
    small.subscribe(&[filter("$share/g/work/#", 2)]);
    let mut large = [member(server.client, "large", 100), member_apart(&server, "apart", "small")];
    let mut speaker = Connect::new(V5, "speaker").open(server.client);
    let payload = "x".repeat(200);
    for qos in [0, 1, 2] {
        for _ in 0..6 {
            speaker.publish("work/1", &payload, qos);
        }
        let mut received = 0;
        server.until("all are there", |_| {
            for member in &mut large {
                match member.within(Duration::from_millis(20)) {
                    Some(Event::Message(message)) => {
                        received += usize::from(message.payload == payload)
                    }
                    Some(other) => panic!("{other:?}"),
                    None => {}
                }
            }
            received >= 6
        });
        assert_eq!(received, 6, "QoS {qos}");
        large.iter_mut().for_each(Client::is_quiet);
        small.is_quiet();
    }
    // Messages that fit its maximum packet size reach this member.
    (0..6).for_each(|n| speaker.publish("work/1", &n.to_string(), 1));
    assert!(matches!(small.next(), Event::Message(_)));
}

#[test]
fn what_a_member_leaves_unconfirmed_another_one_gets() {
    let server = server(&[]);
    let mut cut = member(server.client, "cut", 5);
    let others = Work::start((0..3).map(|n| member(server.client, &format!("m{n}"), 100)));
    let all = publish(server.client, 80, 1);
    let left: Vec<Message> = (0..5).map(|_| cut.unconfirmed()).collect();
    cut.confirm(ConfirmType::Puback, left[1].id);
    cut.ping();
    cut.cut();
    let payloads = others.end(&server, all.len() - 1).into_iter().flatten();
    assert_eq!(once(payloads.chain([left[1].payload.clone()])), all);
}

#[test]
fn what_waits_for_a_member_that_goes_another_one_gets_in_order() {
    let server = server(&[]);
    for qos in [1, 2] {
        let mut first = member(server.client, "first", 1);
        publish(server.client, 5, qos);
        assert_eq!(first.unconfirmed().payload, "0");
        server.until("the others wait", |server| {
            server.api("GET", "/api/mqtt/sessions/first", None).1["waiting"] == 4
        });
        let mut second = member(server.client, "second", 100);
        first.cut();
        // The server sends a QoS 2 message that the first member got to no other member (MQTT-4.8.2-5).
        let rest =
            if qos == 1 { ["0", "1", "2", "3", "4"].as_slice() } else { &["1", "2", "3", "4"] };
        for payload in rest {
            let message = second.message();
            assert_eq!((message.payload.as_str(), message.dup), (*payload, false));
        }
        second.is_quiet();
        second.disconnect();
    }
}

/// Connects a member whose session expires after this many seconds, with one message sent and four waiting.
fn member_with_five(server: &Server, seconds: u32, qos: u8) -> Client {
    let connect = Connect { clean: false, ..Connect::new(V5, "kept") };
    let connect = connect.with(number(id::RECEIVE_MAXIMUM, 1));
    let mut persistent =
        connect.with(number(id::SESSION_EXPIRY_INTERVAL, seconds)).open(server.client);
    persistent.subscribe(&[filter("$share/g/work/#", 2)]);
    publish(server.client, 5, qos);
    assert_eq!(persistent.unconfirmed().payload, "0");
    server.until("the others wait", |server| {
        server.api("GET", "/api/mqtt/sessions/kept", None).1["waiting"] == 4
    });
    persistent
}

fn with_and_without_store(test: impl Fn(&Server)) {
    test(&server(&[]));
    let folder = Scratch::new("groups");
    test(&server(&[("THRONG_STORE_DATA", folder.path().to_str().unwrap())]));
}

/// Cuts a client's connection, and waits until the server knows that it is away.
fn cut(server: &Server, client: Client) {
    client.cut();
    server.until("it is away", |server| server.metric("throng_mqtt_sessions_away") == 1.0);
}

/// Checks that a member gets in order what the member with five messages left when its session ended.
fn gets_the_rest(mut member: Client, qos: u8) {
    // The server sends a QoS 2 message that it sent before to no other member (MQTT-4.8.2-5).
    for payload in ["0", "1", "2", "3", "4"].iter().skip(usize::from(qos - 1)) {
        let message = member.message();
        assert_eq!((message.payload.as_str(), message.dup), (*payload, false));
    }
    member.is_quiet();
    member.disconnect();
}

#[test]
fn what_a_stored_session_leaves_when_it_ends_another_member_gets() {
    type End = fn(&Server, Client);
    let ends: [(&str, u32, End); 5] = [
        ("taken over with a clean start", 600, |server, _persistent| {
            Connect::new(V5, "kept").open(server.client).disconnect();
        }),
        ("DISCONNECT without a session", 600, |_, mut persistent| {
            let properties = [number(id::SESSION_EXPIRY_INTERVAL, 0)];
            let success = protocol::mqtt::ReasonCode::Success;
            persistent.send(&bytes(|out| {
                protocol::mqtt::write::disconnect(V5, success, &properties, out)
            }));
            persistent.expect_events(&[Event::Closed]);
        }),
        ("a clean start later", 600, |server, persistent| {
            cut(server, persistent);
            Connect::new(V5, "kept").open(server.client).disconnect();
        }),
        ("the API", 600, |server, persistent| {
            cut(server, persistent);
            assert_eq!(server.api("DELETE", "/api/mqtt/sessions/kept", None).0, 200);
        }),
        ("its time is over", 3, |_, persistent| persistent.cut()),
    ];
    with_and_without_store(|server| {
        for (how, seconds, end) in ends {
            for qos in [1, 2] {
                println!("{how}, QoS {qos}");
                let persistent = member_with_five(server, seconds, qos);
                let other = member(server.client, "other", 100);
                end(server, persistent);
                gets_the_rest(other, qos);
            }
        }
    });
}

/// Only this session's subscription retains the topic's messages. When the session unsubscribes, an unconfirmed
/// message is dropped, and no connection ends.
#[test]
fn an_unconfirmed_message_of_a_topic_that_is_no_longer_retained_ends_no_connection() {
    with_and_without_store(|server| {
        let mut persistent = Connect::persistent(V5, "kept").open(server.client);
        persistent.subscribe(&[filter("work/0", 1)]);
        publish(server.client, 1, 1);
        assert_eq!(persistent.unconfirmed().payload, "0");
        assert_eq!(persistent.unsubscribe(&["work/0"]), [0]);
        cut(server, persistent);
        server.until("the history has dropped the topic", |server| {
            server.metric("throng_mqtt_session_messages") == 0.0
        });
        let mut persistent = Connect::persistent(V5, "kept").open(server.client);
        assert!(persistent.session_present);
        server.until("the message is gone", |server| {
            server.metric("throng_mqtt_messages_gone_total") == 1.0
        });
        persistent.is_quiet();
    });
}

#[test]
fn what_waits_for_a_member_that_leaves_its_group_another_one_gets() {
    with_and_without_store(|server| {
        let mut persistent = member_with_five(server, 600, 1);
        let mut other = member(server.client, "other", 100);
        assert_eq!(persistent.unsubscribe(&["$share/g/work/#"]), [0]);
        for payload in ["1", "2", "3", "4"] {
            assert_eq!(other.message().payload, payload);
        }
        other.is_quiet();
        // The handshake of a message that was sent before still completes.
        persistent.confirm(ConfirmType::Puback, 1);
        persistent.is_quiet();
    });
}

#[test]
fn mqtt5_4_8_2_6_what_a_member_refuses_is_for_no_other() {
    use protocol::mqtt::{ReasonCode, write};
    let server = server(&[]);
    let mut first = member(server.client, "first", 10);
    publish(server.client, 1, 1);
    let id = first.unconfirmed().id;
    let refused = ReasonCode::QuotaExceeded;
    first.send(&bytes(|out| write::confirm(ConfirmType::Puback, V5, id, refused, &[], out)));
    first.ping();
    let mut second = member(server.client, "second", 10);
    first.cut();
    server.until("the first one is gone", |server| {
        server.api("GET", "/api/mqtt/sessions/first", None).0 == 404
    });
    second.is_quiet();
}

#[test]
fn where_all_members_are_full_one_of_them_goes() {
    let server = server(&[("THRONG_MQTT_QUEUE_MESSAGES_MAX", "2")]);
    let mut members: Vec<Client> =
        (0..4).map(|n| member(server.client, &format!("m{n}"), 1)).collect();
    publish(server.client, 4 * 3, 1);
    // Each member has one message in flight and two waiting.
    let mut ids: Vec<u16> = members.iter_mut().map(|it| it.unconfirmed().id).collect();
    members.iter_mut().for_each(Client::is_quiet);
    publish(server.client, 1, 1);
    let mut at = None;
    server.until("one is told to go", |_| {
        at = members.iter_mut().position(|it| it.within(Duration::from_millis(20)).is_some());
        at.is_some()
    });
    let at = at.unwrap();
    // The messages of the member that was closed do not make the server close another one.
    server.until("that is known", |server| server.metric("throng_mqtt_messages_gone_total") == 4.0);
    members.remove(at);
    ids.remove(at);
    for (member, id) in members.iter_mut().zip(ids) {
        member.confirm(ConfirmType::Puback, id);
        assert_eq!((member.message().dup, member.message().dup), (false, false));
        member.is_quiet();
    }
}
