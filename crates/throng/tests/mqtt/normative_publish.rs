//! Statements of the standards about messages (sections 3.3 to 3.7, 4.3 to 4.6 and 4.9).
//! Each test has the number of its statement: `mqtt3_` those of MQTT 3.1.1, `mqtt5_` those of 5.0, and `mqtt_` those
//! with the same number in both. `COVERED.md` beside this file has them all.

use std::time::{Duration, Instant};

use protocol::mqtt::write::{self, ConfirmType};
use protocol::mqtt::{ReasonCode, Value, id};

use crate::mqtt::client::*;
use crate::mqtt::raw::*;
use crate::mqtt::server;
use crate::support::TIMEOUT;

#[test]
fn mqtt_3_3_1_2_messages_with_qos_0_are_not_repeated() {
    let server = server(&[]);
    for version in BOTH {
        ends(&server, version, &packet(0x38, &body(version, b"\0\x01a", b"x")), &[0x81, 0x82]);
    }
}

#[test]
fn mqtt_3_3_1_3_dup_is_not_passed_on() {
    let server = server(&[]);
    for version in BOTH {
        let mut client = Connect::new(version, "dup").open(server.client);
        client.subscribe(&[filter("a", 2)]);
        for qos in 1..3 {
            client.publish_all(Publish { dup: true, ..Publish::new("a", "x", qos) });
            assert!(!client.message().dup);
        }
    }
}

#[test]
fn mqtt_3_3_1_4_there_is_no_qos_3() {
    let server = server(&[]);
    for version in BOTH {
        let publish = packet(0x36, &body(version, b"\0\x01a\0\x01", b"x"));
        ends(&server, version, &publish, &[0x81]);
    }
}

#[test]
fn mqtt_3_3_1_5_to_12_retained_messages() {
    let server = server(&[]);
    for version in BOTH {
        let mut one = Connect::new(version, "one").open(server.client);
        one.subscribe(&[filter("state/#", 2)]);
        one.publish_all(Publish::new("state/a", "first", 1).retained());
        // A current subscriber gets the message without the retain flag.
        assert!(!one.message().retain);
        one.publish_all(Publish::new("state/a", "second", 1).retained());
        one.message();
        one.publish("state/a", "not retained", 1);
        one.message();
        let mut two = Connect::new(version, "two").open(server.client);
        two.subscribe(&[filter("state/a", 1)]);
        let message = two.message();
        assert_eq!((message.payload.as_str(), message.retain), ("second", true));
        two.is_quiet();
        one.publish_all(Publish::new("state/a", "", 0).retained());
        assert_eq!(one.message().payload, "");
        let mut three = Connect::new(version, "three").open(server.client);
        three.subscribe(&[filter("state/#", 1)]);
        three.is_quiet();
        one.disconnect();
        two.disconnect();
        three.disconnect();
    }
}

#[test]
fn mqtt_3_3_2_2_topics_of_messages_have_no_wildcards() {
    let server = server(&[]);
    for version in BOTH {
        for topic in [&b"\0\x03a/+"[..], b"\0\x01#", b"\0\x03a+b", b"\0\x03#/a"] {
            let publish = packet(0x30, &body(version, topic, b"x"));
            ends(&server, version, &publish, &[0x81, 0x82, 0x90]);
        }
    }
}

#[test]
fn mqtt_3_3_4_the_server_confirms_as_the_qos_says() {
    let server = server(&[]);
    for version in BOTH {
        let mut client = Connect::new(version, "confirms").open(server.client);
        client.publish("a", "x", 0);
        client.is_quiet();
        client.publish("a", "x", 1);
        client.publish("a", "x", 2);
        client.is_quiet();
    }
}

#[test]
fn mqtt_3_3_5_1_overlapping_subscriptions_bring_the_highest_qos() {
    let server = server(&[]);
    for version in BOTH {
        let mut client = Connect::new(version, "overlaps").open(server.client);
        client.subscribe(&[filter("a/b", 0), filter("a/+", 2), filter("#", 1)]);
        client.publish("a/b", "x", 2);
        assert_eq!(client.message().qos, 2);
        client.is_quiet();
    }
}

#[test]
fn mqtt3_3_3_5_2_what_a_client_may_not_publish_ends_its_connection() {
    let server = server(&[]);
    let mut three = Connect::new(V3, "three").open(server.client);
    three.send(&Publish::new("test/nopublish", "x", 1).bytes(V3));
    three.expect_events(&[Event::Closed]);
    // MQTT 5 has codes for a rejection.
    let mut five = Connect::new(V5, "five").open(server.client);
    five.send(&Publish::new("test/nopublish", "x", 1).bytes(V5));
    five.expect_events(&[Event::Confirm("PUBACK", 1, 0x87)]);
    five.send(&Publish::new("test/nopublish", "x", 2).bytes(V5));
    five.expect_events(&[Event::Confirm("PUBREC", 1, 0x87)]);
    // The identifier is then free for another message [MQTT-4.3.3-9].
    five.publish_all(Publish::new("a", "x", 2));
    five.ping();
}

#[test]
fn mqtt_4_3_2_2_behind_puback_its_identifier_is_another_messages() {
    let server = server(&[]);
    for version in BOTH {
        let mut one = Connect::persistent(version, "at-least").open(server.client);
        let mut two = Connect::new(version, "two").open(server.client);
        two.subscribe(&[filter("again", 1)]);
        // With or without DUP, on the same connection and on the next.
        for dup in [false, true, false, true] {
            let publish = Publish { id: 7, dup, ..Publish::new("again", "x", 1) };
            one.send(&publish.bytes(version));
            one.expect_events(&[Event::Confirm("PUBACK", 7, 0)]);
            let message = two.message();
            assert_eq!((message.payload.as_str(), message.dup), ("x", false));
            if dup {
                one.cut();
                one = Connect::persistent(version, "at-least").open(server.client);
                assert!(one.session_present);
            }
        }
        two.is_quiet();
        Connect::new(version, "at-least").open(server.client).disconnect();
    }
}

#[test]
fn mqtt_4_3_3_a_message_with_qos_2_is_published_once() {
    let server = server(&[]);
    for version in BOTH {
        let mut one = Connect::persistent(version, "exactly").open(server.client);
        let mut two = Connect::new(version, "two").open(server.client);
        two.subscribe(&[filter("once", 2)]);
        let publish = Publish { id: 7, ..Publish::new("once", "x", 2) };
        one.send(&publish.bytes(version));
        one.expect_events(&[Event::Confirm("PUBREC", 7, 0)]);
        assert_eq!(two.message().payload, "x");
        // Repeats the message on the same connection, and on the next.
        one.send(&Publish { dup: true, ..publish.clone() }.bytes(version));
        one.expect_events(&[Event::Confirm("PUBREC", 7, 0)]);
        one.cut();
        let mut one = Connect::persistent(version, "exactly").open(server.client);
        assert!(one.session_present);
        one.send(&Publish { dup: true, ..publish.clone() }.bytes(version));
        one.expect_events(&[Event::Confirm("PUBREC", 7, 0)]);
        two.is_quiet();
        // After PUBREL the identifier is free for another message.
        one.confirm(ConfirmType::Pubrel, 7);
        one.expect_events(&[Event::Confirm("PUBCOMP", 7, 0)]);
        one.send(&publish.bytes(version));
        one.expect_events(&[Event::Confirm("PUBREC", 7, 0)]);
        assert_eq!(two.message().payload, "x");
        Connect::new(version, "exactly").open(server.client).disconnect();
    }
}

#[test]
fn mqtt_4_4_0_1_what_is_not_confirmed_comes_again_under_its_identifier() {
    let server = server(&[]);
    for version in BOTH {
        let mut one = Connect::persistent(version, "again").open(server.client);
        one.subscribe(&[filter("a", 2)]);
        let mut two = Connect::new(version, "two").open(server.client);
        two.publish("a", "1", 2);
        two.publish("a", "2", 1);
        two.publish("a", "3", 2);
        let before = [one.unconfirmed(), one.unconfirmed(), one.unconfirmed()];
        // The handshake of the third message is half done.
        one.confirm(ConfirmType::Pubrec, before[2].id);
        one.expect_events(&[Event::Confirm("PUBREL", before[2].id, 0)]);
        one.cut();
        let mut one = Connect::persistent(version, "again").open(server.client);
        for message in &before[..2] {
            assert_eq!(one.unconfirmed(), Message { dup: true, ..message.clone() });
        }
        one.expect_events(&[Event::Confirm("PUBREL", before[2].id, 0)]);
        one.is_quiet();
        Connect::new(version, "again").open(server.client).disconnect();
    }
}

#[test]
fn mqtt_4_6_0_messages_of_a_topic_come_in_order() {
    let server = server(&[]);
    for version in BOTH {
        let mut two = Connect::new(version, "two").open(server.client);
        two.subscribe(&[filter("ordered/+", 2)]);
        let mut one = Connect::new(version, "one").open(server.client);
        for at in 0..60 {
            one.publish("ordered/a", &at.to_string(), if at % 2 == 0 { 1 } else { 2 });
        }
        let got: Vec<String> = (0..60).map(|_| two.message().payload).collect();
        let want: Vec<String> = (0..60).map(|at: i32| at.to_string()).collect();
        assert_eq!(got, want);
    }
}

#[test]
fn mqtt5_3_3_2_4_what_is_said_of_a_message_goes_with_it() {
    let server = server(&[]);
    let mut client = Connect::new(V5, "says").open(server.client);
    client.subscribe(&[filter("said", 2)]);
    let said = [
        (id::PAYLOAD_FORMAT_INDICATOR, Value::Number(1)),
        (id::CONTENT_TYPE, Value::Text("text/plain")),
        (id::RESPONSE_TOPIC, Value::Text("answers/7")),
        (id::CORRELATION_DATA, Value::Binary(b"\x01\x02")),
        (id::USER_PROPERTY, Value::Pair("b", "2")),
        (id::USER_PROPERTY, Value::Pair("a", "1")),
    ];
    for qos in 0..3 {
        let publish = Publish { properties: said.to_vec(), ..Publish::new("said", "text", qos) };
        client.publish_all(publish);
        let message = client.message();
        assert_eq!(message.property(id::PAYLOAD_FORMAT_INDICATOR), Some("1"));
        assert_eq!(message.property(id::CONTENT_TYPE), Some("text/plain"));
        assert_eq!(message.property(id::RESPONSE_TOPIC), Some("answers/7"));
        assert_eq!(message.property(id::CORRELATION_DATA), Some("\u{1}\u{2}"));
        let pairs = message.properties.iter().filter(|(of, _)| *of == id::USER_PROPERTY);
        assert_eq!(pairs.map(|(_, pair)| pair.as_str()).collect::<Vec<_>>(), ["b=2", "a=1"]);
    }
    // Clients of version 3 get only the message.
    let mut three = Connect::new(V3, "three").open(server.client);
    three.subscribe(&[filter("said", 1)]);
    client.publish_all(Publish { properties: said.to_vec(), ..Publish::new("said", "text", 1) });
    assert_eq!(three.message().payload, "text");
}

#[test]
fn mqtt5_3_3_2_14_response_topics_have_no_wildcards() {
    let server = server(&[]);
    let wrong = (id::RESPONSE_TOPIC, Value::Text("a/+"));
    ends(&server, V5, &Publish::new("a", "x", 0).with(wrong).bytes(V5), &[0x81, 0x82, 0x90]);
}

#[test]
fn mqtt5_4_9_0_publishing_again_waits_for_capacity() {
    let server = server(&[]);
    let mut one = Connect::new(V5, "flow").with(number(id::RECEIVE_MAXIMUM, 1)).open(server.client);
    one.subscribe(&[filter("a", 2)]);
    let mut two = Connect::new(V5, "two").open(server.client);
    two.publish("a", "1", 2);
    two.publish("a", "2", 0);
    two.publish("a", "3", 1);
    let first = one.unconfirmed();
    assert_eq!(first.payload, "1");
    // A message with QoS 0 does not wait.
    assert_eq!(one.unconfirmed().payload, "2");
    one.is_quiet();
    // A rejection also frees a place in the receive maximum.
    let refused = ReasonCode::QuotaExceeded;
    one.send(&bytes(|out| write::confirm(ConfirmType::Pubrec, V5, first.id, refused, &[], out)));
    assert_eq!(one.unconfirmed().payload, "3");
}

#[test]
fn mqtt_3_3_2_1_a_message_has_its_topic_first() {
    let server = server(&[]);
    for version in BOTH {
        let mut client = Connect::new(version, "topics").open(server.client);
        client.subscribe(&[filter("gr\u{f6}\u{df}er/#", 1)]);
        client.publish("gr\u{f6}\u{df}er/\u{6771}", "x", 1);
        client.message();
        let topic = text("gr\u{f6}\u{df}er/\u{6771}".as_bytes());
        assert!(client.raw[2..].starts_with(&topic), "{:02x?}", client.raw);
        // No topic, and a topic that is longer than its packet.
        for wrong in [&b""[..], b"\0", b"\0\x05a"] {
            ends(&server, version, &packet(0x30, wrong), &[0x81]);
        }
    }
    // In version 5 the topic may be empty only with an alias.
    ends(&server, V5, &packet(0x30, b"\0\0\0x"), &[0x82]);
}

#[test]
fn mqtt5_3_3_4_6_identifiers_of_subscriptions_are_the_servers_to_send() {
    let server = server(&[]);
    for qos in 0..3 {
        let publish = Publish::new("a", "x", qos).with(number(id::SUBSCRIPTION_IDENTIFIER, 1));
        ends(&server, V5, &publish.bytes(V5), &[0x81, 0x82]);
    }
}

#[test]
fn mqtt5_3_3_4_10_a_full_window_delays_nothing_else() {
    let server = server(&[]);
    let connect = Connect::new(V5, "full").with(number(id::RECEIVE_MAXIMUM, 1));
    let mut one = connect.open(server.client);
    one.subscribe(&[filter("a", 2)]);
    let mut two = Connect::new(V5, "two").open(server.client);
    (0..3).for_each(|at| two.publish("a", &at.to_string(), 1 + at % 2));
    let first = one.unconfirmed();
    // Responses of every kind arrive, but no message.
    one.ping();
    one.subscribe(&[filter("b", 1)]);
    assert_eq!(one.unsubscribe(&["b"]), [0]);
    one.publish("c", "x", 1);
    one.publish("c", "x", 2);
    one.is_quiet();
    one.confirm(ConfirmType::Puback, first.id);
    assert_eq!(one.message().payload, "1");
}

#[test]
fn mqtt5_3_4_2_to_3_7_2_confirmations_have_codes_of_their_own_and_fit() {
    let server = server(&[]);
    let connect = Connect::new(V5, "codes").with(number(id::MAXIMUM_PACKET_SIZE, 24));
    let mut client = connect.open(server.client);
    let long = "x".repeat(255);
    let cases = [("a", [0x00, 0x10].as_slice()), ("test/nopublish", &[0x87]), (&long, &[0x90])];
    for (topic, expected) in cases {
        for (qos, name) in [(1, "PUBACK"), (2, "PUBREC")] {
            client.send(&Publish { id: 9, ..Publish::new(topic, "x", qos) }.bytes(V5));
            match client.next() {
                Event::Confirm(event, 9, code) if event == name => {
                    assert!(expected.contains(&code), "{name} {code:#x} for {topic}");
                }
                other => panic!("{other:?} in place of {name}"),
            }
            assert!(client.raw.len() <= 24, "{:02x?}", client.raw);
            if qos == 2 && expected[0] == 0 {
                client.confirm(ConfirmType::Pubrel, 9);
                client.expect_events(&[Event::Confirm("PUBCOMP", 9, 0)]);
            }
        }
    }
    // Confirmations of identifiers that are not in use.
    for (sent, name) in [(ConfirmType::Pubrel, "PUBCOMP"), (ConfirmType::Pubrec, "PUBREL")] {
        client.confirm(sent, 77);
        client.expect_events(&[Event::Confirm(name, 77, 0x92)]);
        assert!(client.raw.len() <= 24, "{:02x?}", client.raw);
    }
    // Codes that this confirmation can't have end the connection.
    for (first, code) in [(0x40, 0x01), (0x50, 0x92), (0x62, 0x87), (0x70, 0x10)] {
        ends(&server, V5, &packet(first, &[0, 1, code]), &[0x81, 0x82]);
    }
}

#[test]
fn mqtt_3_6_1_1_flags_of_pubrel_are_0010() {
    let server = server(&[]);
    for version in BOTH {
        for flags in (0..16).filter(|flags| *flags != 2) {
            ends(&server, version, &packet(0x60 | flags, &[0, 1]), &[0x81]);
        }
        let mut client = Connect::new(version, "released").open(server.client);
        client.send(&Publish::new("a", "x", 2).bytes(version));
        client.expect_events(&[Event::Confirm("PUBREC", 1, 0)]);
        client.send(&packet(0x62, &[0, 1]));
        client.expect_events(&[Event::Confirm("PUBCOMP", 1, 0)]);
    }
}

#[test]
fn mqtt_4_3_1_1_messages_with_qos_0_are_never_dup() {
    let server = server(&[]);
    for version in BOTH {
        let persistent = Connect::persistent(version, "never dup");
        let mut one = persistent.open(server.client);
        one.subscribe(&[filter("zero", 0), filter("one", 1)]);
        let mut two = Connect::new(version, "two").open(server.client);
        two.publish("zero", "x", 2);
        assert_eq!((one.message().payload.as_str(), one.raw[0]), ("x", 0x30));
        two.publish("one", "again", 1);
        assert_eq!((one.unconfirmed().payload.as_str(), one.raw[0]), ("again", 0x32));
        one.cut();
        // A repeated message has DUP, and a QoS 0 message after it has not.
        let mut one = persistent.open(server.client);
        assert_eq!((one.message().payload.as_str(), one.raw[0]), ("again", 0x3a));
        two.publish("zero", "x", 0);
        assert_eq!((one.message().payload.as_str(), one.raw[0]), ("x", 0x30));
        one.disconnect();
        Connect::new(version, "never dup").open(server.client).disconnect();
    }
}

/// Publishes a message with QoS 2 that expires soon, and waits until its subscriber gets it. If a slow machine is too
/// late for that, tries again.
fn begins(one: &mut Client, two: &mut Client, payload: &str, expires: Property) -> Message {
    let end = Instant::now() + TIMEOUT;
    loop {
        two.publish_all(Publish::new("a", payload, 2).with(expires));
        two.publish("a", "marker", 2);
        let mut marker = one.unconfirmed();
        let mut begun = None;
        if marker.payload == payload {
            begun = Some(std::mem::replace(&mut marker, one.unconfirmed()));
        }
        assert_eq!(marker.payload, "marker");
        one.confirm(ConfirmType::Pubrec, marker.id);
        one.expect_events(&[Event::Confirm("PUBREL", marker.id, 0)]);
        one.confirm(ConfirmType::Pubcomp, marker.id);
        if let Some(begun) = begun {
            return begun;
        }
        assert!(Instant::now() < end, "each has expired before");
    }
}

#[test]
fn mqtt5_4_3_3_13_what_has_begun_ends_whatever_expires() {
    let server = server(&[]);
    let expires = number(id::MESSAGE_EXPIRY_INTERVAL, 2);
    let mut one = Connect::persistent(V5, "slow").open(server.client);
    one.subscribe(&[filter("a", 2)]);
    let mut two = Connect::new(V5, "two").open(server.client);
    let out = begins(&mut one, &mut two, "out", expires);
    let half = begins(&mut one, &mut two, "half", expires);
    one.confirm(ConfirmType::Pubrec, half.id);
    one.expect_events(&[Event::Confirm("PUBREL", half.id, 0)]);
    // Another message is half-way to the server.
    two.send(&Publish { id: 9, ..Publish::new("b", "in", 2).with(expires) }.bytes(V5));
    two.expect_events(&[Event::Confirm("PUBREC", 9, 0)]);
    // All messages expire here.
    std::thread::sleep(Duration::from_millis(3_500));
    two.confirm(ConfirmType::Pubrel, 9);
    two.expect_events(&[Event::Confirm("PUBCOMP", 9, 0)]);
    one.confirm(ConfirmType::Pubrec, out.id);
    one.expect_events(&[Event::Confirm("PUBREL", out.id, 0)]);
    one.confirm(ConfirmType::Pubcomp, out.id);
    one.ping();
    one.cut();
    // The server repeats PUBREL for a message that the client has received.
    let mut one = Connect::persistent(V5, "slow").open(server.client);
    one.expect_events(&[Event::Confirm("PUBREL", half.id, 0)]);
    one.confirm(ConfirmType::Pubcomp, half.id);
    one.is_quiet();
}
