//! Slow, broken and hostile clients: the server ends each of them with the right reason, and others go on.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::mqtt::client::{self, SubscribeParts};
use protocol::mqtt::write::ConfirmType;
use protocol::mqtt::{Value, id};
use serde_json::json;

use crate::mqtt::client::*;
use crate::mqtt::raw::{self, BOTH, Frame};
use crate::mqtt::server;
use crate::support::Server;

/// A client that must not notice any of this.
struct Witness(Client);

impl Witness {
    fn new(server: &Server) -> Self {
        let mut client = Connect::new(V5, "witness").open(server.client);
        client.subscribe(&[filter("witness", 1)]);
        Witness(client)
    }

    fn goes_on(mut self, server: &Server) {
        server.publish("witness", json!("well"));
        assert_eq!(self.0.message().payload, "well");
    }
}

#[test]
fn a_head_must_come_in_time() {
    let server = server(&[("THRONG_TIMEOUTS_HEAD_SECONDS", "3")]);
    let witness = Witness::new(&server);
    let connect = Connect::new(V3, "slow").bytes();
    let mut nothing = Client::new(server.client, V3);
    let mut half = Client::new(server.client, V3);
    half.send(&connect[..connect.len() / 2]);
    // A byte now and then does not extend the timeout: the server closes long before the last byte.
    let connect = Connect::new(V3, &"slow".repeat(60)).bytes();
    let mut dribbled = Client::new(server.client, V3);
    let is_closed = connect.iter().any(|byte| {
        dribbled.send(&[*byte]);
        dribbled.within(Duration::from_millis(150)) == Some(Event::Closed)
    });
    assert!(is_closed, "the server has waited for all of CONNECT");
    for client in [&mut half, &mut nothing] {
        client.expect_events(&[Event::Closed]);
    }
    witness.goes_on(&server);
}

#[test]
fn a_packet_may_come_byte_by_byte() {
    let server = server(&[]);
    let mut slow = Client::new(server.client, V5);
    for byte in Connect::new(V5, "slow").bytes() {
        slow.send(&[byte]);
    }
    assert_eq!(slow.connack().code, 0);
    let subscribe = bytes(|out| client::subscribe(V5, 1, &[], &[filter("a", 1)], out));
    subscribe.iter().for_each(|byte| slow.send(&[*byte]));
    slow.expect_events(&[Event::Suback(1, vec![1])]);
}

#[test]
fn lengths_beyond_all_bounds_end_the_connection() {
    let server = server(&[]);
    let witness = Witness::new(&server);
    for length in [&[0xff, 0xff, 0xff, 0x7f][..], &[0xff, 0xff, 0xff, 0xff, 0x01]] {
        // The same packet before CONNECT.
        raw::is_not_let_in(&server, V5, &[&[0x10], length].concat());
        let mut client = Connect::new(V5, "huge").open(server.client);
        client.send(&[&[0x30], length].concat());
        match client.next() {
            Event::Disconnect(reason, _) => assert!([0x81, 0x95].contains(&reason), "{reason:#x}"),
            other => panic!("{other:?}"),
        }
        client.expect_events(&[Event::Closed]);
    }
    witness.goes_on(&server);
}

#[test]
fn who_publishes_before_the_reply_is_served_in_order() {
    let server = server(&[]);
    let mut eager = Client::new(server.client, V5);
    let mut all = Connect::new(V5, "eager").bytes();
    all.extend(bytes(|out| client::subscribe(V5, 1, &[], &[filter("a", 0)], out)));
    for at in 0..50_u16 {
        let payload = at.to_string();
        all.extend(Publish { id: at + 1, ..Publish::new("a", &payload, 1) }.bytes(V5));
    }
    eager.send(&all);
    assert_eq!(eager.connack().code, 0);
    let (mut confirmed, mut got) = (0, 0);
    eager.expect_events(&[Event::Suback(1, vec![0])]);
    while confirmed < 50 || got < 50 {
        match eager.next() {
            Event::Message(message) => {
                assert_eq!(message.payload, got.to_string());
                got += 1;
            }
            Event::Confirm("PUBACK", id, 0) => {
                confirmed += 1;
                assert_eq!(id, confirmed);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn too_many_subscriptions_are_refused_one_by_one() {
    let server = server(&[("THRONG_LIMITS_TOPICS_PER_CONNECTION_MAX", "20")]);
    let witness = Witness::new(&server);
    let mut client = Connect::new(V5, "greedy").open(server.client);
    let names: Vec<String> = (0..40).map(|at| format!("t{at}/+")).collect();
    let filters: Vec<SubscribeParts<'_>> =
        names.iter().map(|name| SubscribeParts { filter: name, ..filter("", 1) }).collect();
    let codes = client.subscribe_with(&filters, &[]);
    let granted = codes.iter().filter(|code| **code == 1).count();
    assert!((15..=20).contains(&granted), "{codes:?}");
    assert!(codes.iter().all(|code| [1, 0x97].contains(code)), "{codes:?}");
    client.ping();
    witness.goes_on(&server);
}

#[test]
fn confirmations_of_nothing_do_no_harm() {
    let server = server(&[]);
    let mut client = Connect::new(V5, "odd").open(server.client);
    client.confirm(ConfirmType::Pubrel, 77);
    client.expect_events(&[Event::Confirm("PUBCOMP", 77, 0x92)]);
    client.confirm(ConfirmType::Puback, 78);
    client.confirm(ConfirmType::Pubcomp, 79);
    client.confirm(ConfirmType::Pubrec, 80);
    client.expect_events(&[Event::Confirm("PUBREL", 80, 0x92)]);
    client.ping();
}

#[test]
fn a_subscriber_that_never_reads_is_left_behind() {
    let server = server(&[
        ("THRONG_SOCKET_SEND_BUFFER_BYTES", "8KiB"),
        ("THRONG_LIMITS_OUTBOX_BYTES_MAX", "128KiB"),
    ]);
    let witness = Witness::new(&server);
    let mut deaf = Connect::new(V3, "deaf").open(server.client);
    deaf.subscribe(&[filter("flood", 0)]);
    let data = "x".repeat(16 << 10);
    server.until("it is closed", |server| {
        server.publish("flood", json!(data));
        server.api("GET", "/api/topics/flood", None).1["members"] == 0
    });
    witness.goes_on(&server);
}

#[test]
fn a_stored_session_that_never_confirms_does_not_keep_memory() {
    let server = server(&[("THRONG_MQTT_INFLIGHT_MAX", "5")]);
    let mut silent = Connect::persistent(V5, "silent").open(server.client);
    silent.subscribe(&[filter("a", 1)]);
    let mut other = Connect::new(V5, "other").open(server.client);
    for at in 0..200 {
        other.publish("a", &at.to_string(), 1);
    }
    let first: Vec<String> = (0..5).map(|_| silent.unconfirmed().payload).collect();
    assert_eq!(first, ["0", "1", "2", "3", "4"]);
    silent.is_quiet();
    // Messages that the client did not read wait in its session.
    silent.cut();
    let mut back = Connect::persistent(V5, "silent").open(server.client);
    let all: Vec<String> = (0..200).map(|_| back.message().payload).collect();
    let want: Vec<String> = (0..200).map(|at: i32| at.to_string()).collect();
    assert_eq!(all, want);
    back.is_quiet();
}

#[test]
fn a_client_has_as_many_aliases_as_announced_and_no_more() {
    let server = server(&[("THRONG_MQTT_TOPIC_ALIAS_MAX", "3")]);
    let witness = Witness::new(&server);
    let (mut client, reply) = Connect::new(V5, "aliases").try_open(server.client);
    assert_eq!(reply.property(id::TOPIC_ALIAS_MAXIMUM), Some("3"));
    let alias = |value| number(id::TOPIC_ALIAS, value);
    // Assigns each alias to another topic again and again, with topics of the maximum length.
    for round in 0..300 {
        let topic = format!("{round:0>254}");
        client.send(&Publish::new(&topic, "x", 0).with(alias(1 + round % 3)).bytes(V5));
    }
    client.subscribe(&[filter("+", 1)]);
    for (value, round) in [(1, 297), (2, 298), (3, 299)] {
        client.publish_all(Publish::new("", "x", 1).with(alias(value)));
        assert_eq!(client.message().topic, format!("{round:0>254}"));
    }
    client.send(&Publish::new("a", "x", 0).with(alias(4)).bytes(V5));
    client.is_ended_for(0x94);
    witness.goes_on(&server);
}

#[test]
fn a_client_that_takes_all_aliases_is_given_some() {
    let server = server(&[]);
    let connect = Connect::new(V5, "greedy").with(number(id::TOPIC_ALIAS_MAXIMUM, 65_535));
    let mut client = connect.open(server.client);
    client.subscribe(&[filter("many/+", 0)]);
    let mut speaker = Connect::new(V5, "speaker").open(server.client);
    let mut known = BTreeMap::<String, String>::new();
    for round in 0..2 {
        for at in 0..300 {
            let topic = format!("many/{at}");
            speaker.publish(&topic, &round.to_string(), 0);
            let message = client.message();
            let alias = message.property(id::TOPIC_ALIAS).map(String::from);
            let meant = match (message.topic.as_str(), alias) {
                ("", alias) => known[&alias.unwrap()].clone(),
                (named, alias) => {
                    alias.map(|alias| known.insert(alias, named.to_string()));
                    named.to_string()
                }
            };
            assert_eq!((meant, message.payload), (topic, round.to_string()));
        }
    }
    // docs/internals/limits.md has this limit.
    assert!((1..=64).contains(&known.len()), "{}", known.len());
}

#[test]
fn very_many_user_properties_are_passed_on_or_too_large() {
    let server = server(&[]);
    let witness = Witness::new(&server);
    let pair = (id::USER_PROPERTY, Value::Pair("n", "v"));
    let mut client = Connect::new(V5, "wordy").open(server.client);
    let mut small = Connect::new(V5, "small").with(number(id::MAXIMUM_PACKET_SIZE, 200));
    small.properties.extend([pair; 500]);
    let mut small = small.open(server.client);
    small.subscribe(&[filter("wordy", 1)]);
    client.subscribe_with(&[filter("wordy", 1)], &[pair; 5_000]);
    let said = |count| Publish { properties: vec![pair; count], ..Publish::new("wordy", "x", 1) };
    client.publish_all(said(60));
    assert_eq!(client.message().properties.len(), 60);
    // A client whose maximum packet size is smaller does not get this message.
    small.is_quiet();
    for count in [1_000, 7_000] {
        client.send(&Publish { id: 9, ..said(count) }.bytes(V5));
        client.expect_events(&[Event::Confirm("PUBACK", 9, 0x97)]);
    }
    witness.goes_on(&server);
}

#[test]
fn a_flood_of_subscriptions_is_served_one_by_one_or_ended() {
    let server = server(&[("THRONG_LIMITS_TOPICS_PER_CONNECTION_MAX", "100")]);
    let witness = Witness::new(&server);
    let mut flood = Vec::new();
    for at in 0..3_000_u16 {
        let topic = format!("flood/{at}/+");
        let one = SubscribeParts { filter: &topic, ..filter("", 1) };
        flood.extend(bytes(|out| client::subscribe(V5, at + 1, &[], &[one], out)));
        if at % 3 == 0 {
            flood.extend(bytes(|out| client::unsubscribe(V5, at + 10_000, &[], &[&topic], out)));
        }
    }
    let mut client = Connect::new(V5, "flood").open(server.client);
    client.send(&flood);
    let (mut next, mut granted) = (1, 0);
    while next <= 3_000 {
        match client.next() {
            Event::Suback(id, codes) => {
                assert!(id == next && matches!(codes[..], [1 | 0x97]), "{id}: {codes:02x?}");
                granted += usize::from(codes[0] == 1);
                next += 1;
            }
            Event::Unsuback(_, codes) => assert!(matches!(codes[..], [0 | 0x11]), "{codes:02x?}"),
            Event::Disconnect(code, _) => {
                assert!([0x96, 0x97].contains(&code), "{code:#x}");
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    // Unsubscribing made room for further subscriptions.
    assert!(granted >= 90, "{granted}");
    client.cut();
    server.until("nothing is left of it", |server| {
        server.api("GET", "/api/mqtt/sessions/flood", None).0 == 404
    });
    witness.goes_on(&server);
}

#[test]
fn slow_frames_of_a_websocket_are_put_together() {
    let server = server(&[]);
    let mut socket = raw::websocket(&server);
    let connect = Connect::new(V3, "slow frames").bytes();
    let mut wire = Vec::new();
    for part in connect.chunks(3) {
        // A frame with a mask of zeros, sent byte by byte.
        wire.extend([0x82, 0x80 | u8::try_from(part.len()).unwrap(), 0, 0, 0, 0]);
        wire.extend(part);
    }
    for byte in wire {
        std::io::Write::write_all(socket.get_mut(), &[byte]).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(socket.read().unwrap(), Frame::Binary(vec![0x20, 2, 0, 0].into()));
}

#[test]
fn frames_that_never_end_do_not_keep_a_connection() {
    let server = server(&[("THRONG_TIMEOUTS_HEAD_SECONDS", "1")]);
    let witness = Witness::new(&server);
    let connect = Connect::new(V3, "never").bytes();
    // No data, half a CONNECT in whole frames, and half a frame.
    let mut sockets = [0, 1, 2].map(|_| raw::websocket(&server));
    sockets[1].send(Frame::Binary(connect[..9].to_vec().into())).unwrap();
    std::io::Write::write_all(sockets[2].get_mut(), &[0x82, 0x94, 0, 0, 0, 0, 0x10]).unwrap();
    for (at, socket) in sockets.iter_mut().enumerate() {
        let end = loop {
            match socket.read() {
                Ok(Frame::Close(_)) => break Ok(()),
                Ok(_) => {}
                Err(error) if raw::is_timeout(&error) => break Err(error),
                Err(_) => break Ok(()),
            }
        };
        assert!(end.is_ok(), "{at} is held");
    }
    witness.goes_on(&server);
}

#[test]
fn half_a_packet_keeps_no_connection_alive() {
    let server = server(&[]);
    let witness = Witness::new(&server);
    for version in BOTH {
        // All bytes of this packet would take a minute.
        let publish = Publish::new("a", &"x".repeat(300), 0).bytes(version);
        let connect = Connect { keep_alive_s: 2, ..Connect::new(version, "half") };
        let mut client = connect.open(server.client);
        let mut bytes = publish.iter();
        let event = loop {
            client.send(&[*bytes.next().expect("it was not ended")]);
            if let Some(event) = client.within(Duration::from_millis(200)) {
                break event;
            }
        };
        let is_explained = match version {
            V3 => event == Event::Closed,
            V5 => matches!(event, Event::Disconnect(0x8d, _)),
        };
        assert!(is_explained, "{event:?}");
    }
    witness.goes_on(&server);
}

#[test]
fn half_a_packet_without_a_keep_alive_waits_for_its_end() {
    // With a limit, the server would impose a keep-alive on a client of version 5.
    let server = server(&[("THRONG_MQTT_KEEP_ALIVE_SECONDS_MAX", "0")]);
    for version in BOTH {
        let mut other = Connect::new(version, "other").open(server.client);
        other.subscribe(&[filter("a", 1)]);
        let mut client = Connect::new(version, "half").open(server.client);
        let publish = Publish::new("a", "whole", 1).bytes(version);
        let (one, two) = publish.split_at(publish.len() / 2);
        client.send(one);
        assert_eq!(client.within(Duration::from_secs(3)), None);
        // Other clients do not wait for it.
        server.publish("a", json!("meanwhile"));
        assert_eq!(other.message().payload, "meanwhile");
        client.send(two);
        client.expect_events(&[Event::Confirm("PUBACK", 1, 0)]);
        assert_eq!(other.message().payload, "whole");
        other.disconnect();
        client.disconnect();
    }
}

#[test]
fn a_message_has_so_many_properties_and_no_more() {
    let server = server(&[]);
    let witness = Witness::new(&server);
    let said = |pairs: usize, text: &'static str| {
        vec![(id::USER_PROPERTY, Value::Pair(text, text)); pairs]
    };
    let long: &'static str = "x".repeat(9 << 10).leak();
    let mut five = Connect::new(V5, "five").open(server.client);
    let mut send = |properties: Vec<Property>, qos: u8| {
        let publish = Publish { properties, ..Publish::new("witness/not", "x", qos) };
        five.send(&publish.bytes(V5));
        five.next()
    };
    assert_eq!(send(said(64, "a"), 1), Event::Confirm("PUBACK", 1, 0));
    for properties in [said(65, ""), said(10_000, ""), said(1, long)] {
        assert_eq!(send(properties.clone(), 1), Event::Confirm("PUBACK", 1, 0x97));
        assert_eq!(send(properties.clone(), 2), Event::Confirm("PUBREC", 1, 0x97));
        let mut will = Connect::new(V5, "will").will("witness/not", "x", 1);
        will.will.as_mut().unwrap().properties = properties;
        assert_eq!(will.try_open(server.client).1.code, 0x95);
    }
    assert!(matches!(send(said(65, ""), 0), Event::Disconnect(0x95, _)));
    five.expect_events(&[Event::Closed]);
    witness.goes_on(&server);
}

#[test]
fn filters_have_so_many_levels_and_no_control_characters() {
    let server = server(&[("THRONG_MQTT_FILTER_LEVELS_MAX", "4")]);
    let wants = [
        filter("a/+/+/#", 0),
        filter("+/+/+/+/+", 0),
        filter("$share/g/+/+/+/+", 0),
        filter("$share/g/+/+/+/+/+", 0),
        filter("a/b/c/d/e/f", 0),
        filter("a\u{1}/+", 0),
        filter("$share/g\u{7f}/a", 0),
        filter("$share/g\n/a/+", 0),
    ];
    let mut five = Connect::new(V5, "five").open(server.client);
    let results = five.subscribe_with(&wants, &[]);
    assert_eq!(results, [0, 0x8f, 0, 0x8f, 0, 0x8f, 0x8f, 0x8f]);
    let mut three = Connect::new(V3, "three").open(server.client);
    let results = three.subscribe_with(&wants, &[]);
    assert_eq!(results, [0, 0x80, 0, 0x80, 0, 0x80, 0x80, 0x80]);
    // Topics may have any number of levels.
    five.publish("a/b/c/d/e/f", "x", 1);
    assert_eq!(three.message().topic, "a/b/c/d/e/f");
}
