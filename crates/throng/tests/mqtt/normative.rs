//! Statements of the standards, each under its number: `mqtt3_` those of MQTT 3.1.1, `mqtt5_` those of 5.0, and
//! `mqtt_` those that have one number in both. `COVERED.md` beside this file has them all.

use std::time::{Duration, Instant};

use protocol::mqtt::client::SubscribeParts;
use protocol::mqtt::write::{self, ConfirmType};
use protocol::mqtt::{ReasonCode, Value, Version, id};
use serde_json::json;

use crate::mqtt::client::*;
use crate::mqtt::server;
use crate::support::Server;

const BOTH: [Version; 2] = [V3, V5];

/// Sends bytes on an open connection, which ends for that: one of version 5 with one of these reasons.
fn ends(server: &Server, version: Version, packet: &[u8], reasons: &[u8]) {
    let mut client = Connect::new(version, "breaks").open(server.client);
    client.send(packet);
    match client.next() {
        Heard::Disconnect(reason, _) if version == V5 => {
            assert!(reasons.contains(&reason), "{reason:#x} for {packet:02x?}");
            client.hears(&[Heard::Closed]);
        }
        heard => assert_eq!((heard, version), (Heard::Closed, V3), "{packet:02x?}"),
    }
}

/// Sends bytes in place of CONNECT, after which the connection ends: nobody is let in.
fn is_not_let_in(server: &Server, version: Version, packet: &[u8]) -> Option<u8> {
    let mut client = Client::new(server.client, version);
    client.send(packet);
    match client.next() {
        Heard::Closed => None,
        Heard::Connack(_, code, _) => {
            assert_ne!(code, 0, "{packet:02x?}");
            client.hears(&[Heard::Closed]);
            Some(code)
        }
        other => panic!("{other:?} for {packet:02x?}"),
    }
}

/// A packet of this first byte and body.
fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    [&[first, u8::try_from(body.len()).unwrap()], body].concat()
}

/// The body, with an empty list of properties at this place where the version has one.
fn body(version: Version, before: &[u8], after: &[u8]) -> Vec<u8> {
    let properties: &[u8] = if version == V5 { &[0] } else { &[] };
    [before, properties, after].concat()
}

#[test]
fn mqtt_1_5_3_1_text_is_utf_8() {
    let server = server(&[]);
    for version in BOTH {
        for text in [&b"\0\x01\xff"[..], b"\0\x03\xed\xa0\x80", b"\0\x02\xc0\x80"] {
            ends(&server, version, &packet(0x30, &body(version, text, b"x")), &[0x81]);
        }
    }
}

#[test]
fn mqtt_1_5_3_2_text_has_no_null_character() {
    let server = server(&[]);
    for version in BOTH {
        ends(&server, version, &packet(0x30, &body(version, b"\0\x03a\0b", b"x")), &[0x81, 0x90]);
    }
}

#[test]
fn mqtt_1_5_3_3_a_byte_order_mark_is_a_character() {
    let server = server(&[]);
    for version in BOTH {
        let mut client = Connect::new(version, "mark").open(server.client);
        client.subscribe(&[filter("\u{feff}a", 1)]);
        client.publish("\u{feff}a", "x", 1);
        assert_eq!(client.message().topic, "\u{feff}a");
    }
}

#[test]
fn mqtt_2_2_2_2_reserved_flags_end_the_connection() {
    let server = server(&[]);
    for version in BOTH {
        let subscribe = body(version, &[0, 1], b"\0\x01a\0");
        let subscribe = match version {
            V3 => packet(0x80, &subscribe),
            V5 => packet(0x81, &subscribe),
        };
        for bytes in [subscribe, vec![0xc1, 0], packet(0x60, &[0, 1]), packet(0x4f, &[0, 1])] {
            ends(&server, version, &bytes, &[0x81]);
        }
    }
}

#[test]
fn mqtt_2_3_1_1_packet_identifiers_are_not_zero() {
    let server = server(&[]);
    for version in BOTH {
        let publish = packet(0x32, &body(version, b"\0\x01a\0\0", b"x"));
        let subscribe = packet(0x82, &body(version, &[0, 0], b"\0\x01a\0"));
        let unsubscribe = packet(0xa2, &body(version, &[0, 0], b"\0\x01a"));
        for bytes in [publish, subscribe, unsubscribe] {
            ends(&server, version, &bytes, &[0x81, 0x82]);
        }
    }
}

#[test]
fn mqtt_2_3_1_7_answers_have_the_identifier_of_what_they_answer() {
    let server = server(&[]);
    for version in BOTH {
        let mut client = Connect::new(version, "ids").open(server.client);
        for packet_id in [1, 0x00ff, 0xff00, 0xffff] {
            let publish = Publish { id: packet_id, ..Publish::new("a", "x", 1) };
            client.send(&publish.bytes(version));
            client.hears(&[Heard::Confirm("PUBACK", packet_id, 0)]);
            let publish = Publish { id: packet_id, ..Publish::new("a", "x", 2) };
            client.send(&publish.bytes(version));
            client.hears(&[Heard::Confirm("PUBREC", packet_id, 0)]);
            client.confirm(ConfirmType::Pubrel, packet_id);
            client.hears(&[Heard::Confirm("PUBCOMP", packet_id, 0)]);
        }
    }
}

#[test]
fn mqtt_3_1_0_1_the_first_packet_is_connect() {
    let server = server(&[]);
    for version in BOTH {
        for first in [vec![0xc0, 0], packet(0x30, b"\0\x01ax"), packet(0xe0, &[])] {
            // At the client port it is no MQTT at all, and answered as what it is not.
            let mut client = Client::new(server.client, version);
            client.send(&first);
            client.send(b"\r\n\r\n");
            assert!(server.exchange(b"\xc0\0\r\n\r\n").starts_with("HTTP/1.1 400"));
        }
    }
}

#[test]
fn mqtt_3_1_0_2_a_second_connect_ends_the_connection() {
    let server = server(&[]);
    for version in BOTH {
        ends(&server, version, &Connect::new(version, "again").bytes(), &[0x82]);
    }
}

#[test]
fn mqtt_3_1_2_1_and_2_names_and_levels_of_other_protocols_are_refused() {
    let server = server(&[]);
    let mut other = Connect::new(V3, "x").bytes();
    other[4..8].copy_from_slice(b"NATS");
    assert_eq!(is_not_let_in(&server, V3, &other), None);
    for level in [0, 2, 6, 0x84] {
        let mut other = Connect::new(V3, "x").bytes();
        other[8] = level;
        // Whoever is ahead of the server is answered as by the newest version.
        let (version, want) = if level > 5 { (V5, 0x84) } else { (V3, 1) };
        assert_eq!(is_not_let_in(&server, version, &other), Some(want), "level {level}");
    }
    let old = Connect { is_3_1: true, ..Connect::new(V3, "old") };
    old.open(server.client).ping();
}

#[test]
fn mqtt_3_1_2_3_the_reserved_flag_of_connect_is_zero() {
    let server = server(&[]);
    for version in BOTH {
        let mut connect = Connect::new(version, "x").bytes();
        connect[9] |= 1;
        let code = is_not_let_in(&server, version, &connect);
        assert!(code.is_none_or(|code| version == V5 && code == 0x81), "{code:?}");
    }
}

#[test]
fn mqtt_3_1_2_4_a_session_goes_on_and_5_messages_wait_in_it() {
    let server = server(&[]);
    for version in BOTH {
        let name = format!("kept {version:?}");
        let mut one = Connect::kept(version, &name).open(server.client);
        assert!(!one.session_present);
        one.subscribe(&[filter("a", 1), filter("b/+", 2)]);
        one.cut();
        let mut two = Connect::new(version, "two").open(server.client);
        two.publish("a", "1", 1);
        two.publish("b/b", "2", 2);
        let mut one = Connect::kept(version, &name).open(server.client);
        assert!(one.session_present);
        assert_eq!(one.messages(2), [("a".into(), "1".into()), ("b/b".into(), "2".into())]);
        // The subscriptions go on, too.
        two.publish("a", "3", 1);
        assert_eq!(one.message().payload, "3");
    }
}

#[test]
fn mqtt_3_1_2_6_a_clean_session_forgets_all() {
    let server = server(&[]);
    for version in BOTH {
        let name = format!("clean {version:?}");
        let mut one = Connect::kept(version, &name).open(server.client);
        one.subscribe(&[filter("a", 1)]);
        one.disconnect();
        let mut one = Connect::new(version, &name).open(server.client);
        assert!(!one.session_present);
        server.publish("a", json!("nobody hears it"));
        one.is_quiet();
        one.disconnect();
        // Nor is it there for the next one.
        assert!(!Connect::kept(version, &name).open(server.client).session_present);
    }
}

#[test]
fn mqtt_3_1_2_8_a_will_is_published_when_the_connection_is_lost() {
    let server = server(&[]);
    for version in BOTH {
        let mut two = Connect::new(version, "two").open(server.client);
        two.subscribe(&[filter("will", 2)]);
        // By a fault, ...
        let mut one = Connect::new(version, "one").will("will", "fault", 1).open(server.client);
        one.send(&[0x00, 0x00]);
        assert_eq!(two.message().payload, "fault");
        // ... a connection that breaks, ...
        Connect::new(version, "one").will("will", "cut", 1).open(server.client).cut();
        assert_eq!(two.message().payload, "cut");
        // ... silence, ...
        let silent = Connect { keep_alive_s: 1, ..Connect::new(version, "one") };
        let silent = silent.will("will", "silence", 1).open(server.client);
        assert_eq!(two.message().payload, "silence");
        drop(silent);
        // ... and another one in its place.
        let over = Connect::new(version, "one").will("will", "taken over", 1).open(server.client);
        let next = Connect::new(version, "one").open(server.client);
        assert_eq!(two.message().payload, "taken over");
        drop((over, next));
    }
}

#[test]
fn mqtt_3_1_2_10_goodbye_takes_the_will_away() {
    let server = server(&[]);
    for version in BOTH {
        let mut two = Connect::new(version, "two").open(server.client);
        two.subscribe(&[filter("will", 2)]);
        Connect::new(version, "one").will("will", "no", 1).open(server.client).disconnect();
        // A client is let in when the server is done with its connection before.
        let _one = Connect::new(version, "one").open(server.client);
        two.is_quiet();
    }
}

#[test]
fn mqtt_3_1_2_11_to_15_flags_of_a_will_that_is_not_there_are_zero() {
    let server = server(&[]);
    for version in BOTH {
        for flags in [0x08, 0x10, 0x20] {
            let mut connect = Connect::new(version, "x").bytes();
            connect[9] |= flags;
            let code = is_not_let_in(&server, version, &connect);
            assert!(code.is_none_or(|code| version == V5 && code == 0x81), "{flags:#x}: {code:?}");
        }
        // There is no QoS 3.
        let mut connect = Connect::new(version, "x").will("a", "x", 0).bytes();
        connect[9] |= 0x18;
        is_not_let_in(&server, version, &connect);
    }
}

#[test]
fn mqtt_3_1_2_16_and_17_a_will_may_be_retained() {
    let server = server(&[]);
    for version in BOTH {
        let topic = if version == V3 { "will3" } else { "will5" };
        let mut connect = Connect::new(version, "one").will(topic, "gone", 1);
        connect.will.as_mut().unwrap().retain = true;
        connect.open(server.client).cut();
        server.until("the will is retained", |server| {
            server.api("GET", &format!("/api/mqtt/retained/{topic}"), None).0 == 200
        });
        let mut two = Connect::new(version, "two").open(server.client);
        two.subscribe(&[filter(topic, 1)]);
        let message = two.message();
        assert_eq!((message.payload.as_str(), message.retain), ("gone", true));
    }
}

#[test]
fn mqtt3_3_1_2_22_a_password_needs_a_user() {
    let server = server(&[]);
    let mut connect = Connect::new(V3, "x").bytes();
    connect[9] |= 0x40;
    connect.extend_from_slice(b"\0\x01p");
    connect[1] += 3;
    assert!(is_not_let_in(&server, V3, &connect).is_none_or(|code| code > 0));
    let alone = Connect { password: Some(b"p".to_vec()), ..Connect::new(V5, "x") };
    alone.open(server.client).ping();
}

#[test]
fn mqtt_3_1_2_24_silence_ends_the_connection_after_one_and_a_half_keep_alives() {
    let server = server(&[]);
    let begun = Instant::now();
    let open = |name: &str| {
        BOTH.map(|version| {
            let connect = Connect::new(version, &format!("{name} {version:?}"));
            Connect { keep_alive_s: 2, ..connect }.open(server.client)
        })
    };
    // As old as the silent ones, and whatever it sends counts.
    let (mut alive, mut silent) = (open("alive"), open("silent"));
    for client in &mut silent {
        let heard = loop {
            alive.iter_mut().for_each(|client| client.publish("a", "alive", 1));
            if let Some(heard) = client.within(Duration::from_millis(100)) {
                break heard;
            }
        };
        assert!(begun.elapsed() >= Duration::from_millis(2_700), "{:?}", begun.elapsed());
        match heard {
            Heard::Disconnect(reason, _) => {
                assert_eq!((client.version, reason), (V5, 0x8d));
                client.hears(&[Heard::Closed]);
            }
            heard => assert_eq!((client.version, heard), (V3, Heard::Closed)),
        }
    }
    alive.iter_mut().for_each(Client::ping);
}

#[test]
fn mqtt3_3_1_3_7_and_8_nobody_keeps_a_session_without_a_name() {
    let server = server(&[]);
    assert_eq!(is_not_let_in(&server, V3, &Connect::kept(V3, "").bytes()), Some(2));
}

#[test]
fn mqtt_3_1_3_5_client_identifiers_are_text_of_any_kind() {
    let server = server(&[]);
    for version in BOTH {
        for name in
            ["0123456789abcdefghijklmABCXYZ", "größer 東京", "a/b#+$share", &"x".repeat(200)]
        {
            Connect::new(version, name).open(server.client).ping();
        }
    }
}

#[test]
fn mqtt_3_1_4_2_the_old_connection_of_a_client_ends() {
    let server = server(&[]);
    for version in BOTH {
        let mut before = Connect::new(version, "one").open(server.client);
        let mut after = Connect::new(version, "one").open(server.client);
        before.is_told(0x8e);
        after.ping();
    }
}

#[test]
fn mqtt_3_2_0_1_connack_comes_first() {
    let server = server(&[]);
    for version in BOTH {
        let mut one = Connect::kept(version, "first").open(server.client);
        one.subscribe(&[filter("a", 1)]);
        one.cut();
        let mut two = Connect::new(version, "two").open(server.client);
        two.publish("a", "waits", 1);
        // `open` wants CONNACK before anything else.
        assert_eq!(Connect::kept(version, "first").open(server.client).message().payload, "waits");
        Connect::new(version, "first").open(server.client).disconnect();
    }
}

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
        // Who was there gets it as any other.
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
    three.hears(&[Heard::Closed]);
    // With version 5 it can be told.
    let mut five = Connect::new(V5, "five").open(server.client);
    five.send(&Publish::new("test/nopublish", "x", 1).bytes(V5));
    five.hears(&[Heard::Confirm("PUBACK", 1, 0x87)]);
    five.send(&Publish::new("test/nopublish", "x", 2).bytes(V5));
    five.hears(&[Heard::Confirm("PUBREC", 1, 0x87)]);
    five.ping();
}

#[test]
fn mqtt_3_8_1_to_3_a_malformed_subscribe_ends_the_connection() {
    let server = server(&[]);
    for version in BOTH {
        // No filter, QoS 3, reserved bits, an empty filter.
        for after in [&b""[..], b"\0\x01a\x03", b"\0\x01a\xc1", b"\0\0\0"] {
            let subscribe = packet(0x82, &body(version, &[0, 1], after));
            ends(&server, version, &subscribe, &[0x81, 0x82, 0x8f]);
        }
    }
}

#[test]
fn mqtt_3_8_4_1_to_6_suback_has_a_code_for_each_filter() {
    let server = server(&[]);
    for version in BOTH {
        let mut client = Connect::new(version, "codes").open(server.client);
        let refused = if version == V3 { 0x80 } else { 0x87 };
        let filters =
            [filter("a", 0), filter("test/nosubscribe", 1), filter("b/#", 1), filter("c", 2)];
        assert_eq!(client.subscribe_with(&filters, &[]), [0, refused, 1, 2]);
        // The same filter again takes the place of the one before, and brings what is retained again.
        client.publish_all(Publish::new("c", "kept", 1).retained());
        assert_eq!(client.message().qos, 1);
        assert_eq!(client.subscribe_with(&[filter("c", 0)], &[]), [0]);
        let again = client.message();
        assert_eq!((again.qos, again.retain), (0, true));
        client.publish("c", "once", 2);
        assert_eq!(client.message().qos, 0);
        client.is_quiet();
        client.publish_all(Publish::new("c", "", 1).retained());
    }
}

#[test]
fn mqtt_3_8_4_a_subscription_has_the_lesser_qos() {
    let server = server(&[]);
    for version in BOTH {
        let mut client = Connect::new(version, "lesser").open(server.client);
        let filters = [filter("q/0", 0), filter("q/1", 1), filter("q/2", 2)];
        client.subscribe(&filters);
        for published in 0..3 {
            for (wanted, topic) in ["q/0", "q/1", "q/2"].iter().enumerate() {
                client.publish(topic, "x", published);
                assert_eq!(usize::from(client.message().qos), wanted.min(published.into()));
            }
        }
    }
}

#[test]
fn mqtt_3_10_a_malformed_unsubscribe_ends_the_connection() {
    let server = server(&[]);
    for version in BOTH {
        for after in [&b""[..], b"\0\x05a"] {
            let unsubscribe = packet(0xa2, &body(version, &[0, 1], after));
            ends(&server, version, &unsubscribe, &[0x81, 0x82]);
        }
        ends(&server, version, &packet(0xa0, &body(version, &[0, 1], b"\0\x01a")), &[0x81]);
    }
}

#[test]
fn mqtt_3_10_4_unsubscribing_ends_new_messages_and_not_those_under_way() {
    let server = server(&[]);
    for version in BOTH {
        let mut client = Connect::new(version, "leaves").open(server.client);
        client.subscribe(&[filter("a", 2), filter("b/+", 1)]);
        client.publish("a", "under way", 2);
        let message = client.unconfirmed();
        let codes = client.unsubscribe(&["a", "b/+", "c"]);
        assert_eq!(codes, if version == V5 { vec![0, 0, 0x11] } else { vec![] });
        client.publish("a", "no", 1);
        client.publish("b/b", "no", 1);
        client.is_quiet();
        client.confirm(ConfirmType::Pubrec, message.id);
        client.hears(&[Heard::Confirm("PUBREL", message.id, 0)]);
        client.confirm(ConfirmType::Pubcomp, message.id);
        client.ping();
    }
}

#[test]
fn mqtt_3_12_4_1_pings_are_answered() {
    let server = server(&[]);
    for version in BOTH {
        let mut client = Connect::new(version, "pings").open(server.client);
        (0..3).for_each(|_| client.ping());
    }
}

#[test]
fn mqtt_3_14_1_1_flags_of_disconnect_are_zero() {
    let server = server(&[]);
    for version in BOTH {
        ends(&server, version, &packet(0xe1, &[]), &[0x81]);
    }
}

#[test]
fn mqtt_4_3_3_a_message_with_qos_2_is_published_once() {
    let server = server(&[]);
    for version in BOTH {
        let mut one = Connect::kept(version, "exactly").open(server.client);
        let mut two = Connect::new(version, "two").open(server.client);
        two.subscribe(&[filter("once", 2)]);
        let publish = Publish { id: 7, ..Publish::new("once", "x", 2) };
        one.send(&publish.bytes(version));
        one.hears(&[Heard::Confirm("PUBREC", 7, 0)]);
        assert_eq!(two.message().payload, "x");
        // Again on the same connection, and on the next.
        one.send(&Publish { dup: true, ..publish.clone() }.bytes(version));
        one.hears(&[Heard::Confirm("PUBREC", 7, 0)]);
        one.cut();
        let mut one = Connect::kept(version, "exactly").open(server.client);
        assert!(one.session_present);
        one.send(&Publish { dup: true, ..publish.clone() }.bytes(version));
        one.hears(&[Heard::Confirm("PUBREC", 7, 0)]);
        two.is_quiet();
        // Behind PUBREL the identifier is free for another one.
        one.confirm(ConfirmType::Pubrel, 7);
        one.hears(&[Heard::Confirm("PUBCOMP", 7, 0)]);
        one.send(&publish.bytes(version));
        one.hears(&[Heard::Confirm("PUBREC", 7, 0)]);
        assert_eq!(two.message().payload, "x");
        Connect::new(version, "exactly").open(server.client).disconnect();
    }
}

#[test]
fn mqtt_4_4_0_1_what_is_not_confirmed_comes_again_under_its_identifier() {
    let server = server(&[]);
    for version in BOTH {
        let mut one = Connect::kept(version, "again").open(server.client);
        one.subscribe(&[filter("a", 2)]);
        let mut two = Connect::new(version, "two").open(server.client);
        two.publish("a", "1", 2);
        two.publish("a", "2", 1);
        two.publish("a", "3", 2);
        let before = [one.unconfirmed(), one.unconfirmed(), one.unconfirmed()];
        // The third is half done.
        one.confirm(ConfirmType::Pubrec, before[2].id);
        one.hears(&[Heard::Confirm("PUBREL", before[2].id, 0)]);
        one.cut();
        let mut one = Connect::kept(version, "again").open(server.client);
        for message in &before[..2] {
            assert_eq!(one.unconfirmed(), Message { dup: true, ..message.clone() });
        }
        one.hears(&[Heard::Confirm("PUBREL", before[2].id, 0)]);
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
fn mqtt_4_7_1_wildcards_stand_alone() {
    let server = server(&[]);
    for version in BOTH {
        for wrong in ["a/b#", "a/#/b", "#a", "a+", "a/+b", "b+/c"] {
            let text = [&[0, u8::try_from(wrong.len()).unwrap()], wrong.as_bytes(), &[1]].concat();
            let subscribe = packet(0x82, &body(version, &[0, 1], &text));
            let mut client = Connect::new(version, "wild").open(server.client);
            client.send(&subscribe);
            match client.next() {
                Heard::Suback(1, codes) => {
                    assert_eq!(codes, [if version == V3 { 0x80 } else { 0x8f }], "{wrong}");
                }
                Heard::Disconnect(reason, _) => assert!([0x81, 0x8f].contains(&reason), "{wrong}"),
                heard => assert_eq!(heard, Heard::Closed, "{wrong}"),
            }
        }
    }
}

#[test]
fn mqtt_4_7_1_and_3_what_filters_match() {
    let server = server(&[]);
    let cases = [
        ("sport/tennis/player1/#", "sport/tennis/player1", true),
        ("sport/tennis/player1/#", "sport/tennis/player1/ranking", true),
        ("sport/tennis/player1/#", "sport/tennis/player2", false),
        ("sport/#", "sport", true),
        ("sport/tennis/+", "sport/tennis/player1", true),
        ("sport/tennis/+", "sport/tennis/player1/ranking", false),
        ("sport/+", "sport", false),
        ("sport/+", "sport/", true),
        ("+/+", "/finance", true),
        ("/+", "/finance", true),
        ("+", "/finance", false),
        ("+/tennis/#", "sport/tennis/x", true),
        ("ACCOUNTS", "Accounts", false),
        ("a b", "a b", true),
        ("/", "/", true),
        ("+/+", "/", true),
        ("#", "$SYS/x", false),
        ("+/monitor", "$own/monitor", false),
        ("$own/#", "$own/monitor", true),
        ("$own/+", "$own/monitor", true),
    ];
    for version in BOTH {
        let mut publisher = Connect::new(version, "publisher").open(server.client);
        for (wanted, topic, matches) in cases {
            let mut client = Connect::new(version, "matches").open(server.client);
            let one = SubscribeParts { filter: wanted, ..filter("", 1) };
            client.subscribe(&[one]);
            if !topic.starts_with("$SYS") {
                publisher.publish(topic, topic, 1);
            }
            // What comes last comes to all.
            client.subscribe(&[filter("last", 1)]);
            publisher.publish("last", "last", 1);
            let first = client.message().payload;
            assert_eq!(first, if matches { topic } else { "last" }, "{wanted} {topic}");
        }
    }
}

#[test]
fn mqtt_4_7_3_topics_have_a_character_and_at_most_254_bytes() {
    let server = server(&[]);
    let long = "x".repeat(255);
    let mut five = Connect::new(V5, "five").open(server.client);
    five.send(&Publish::new(&long, "x", 1).bytes(V5));
    five.hears(&[Heard::Confirm("PUBACK", 1, 0x90)]);
    five.ping();
    let mut three = Connect::new(V3, "three").open(server.client);
    three.send(&Publish::new(&long, "x", 1).bytes(V3));
    three.hears(&[Heard::Closed]);
    let most = "x".repeat(254);
    five.subscribe(&[SubscribeParts { filter: &most, ..filter("", 1) }]);
    five.publish(&most, "fits", 1);
    assert_eq!(five.message().payload, "fits");
    ends(&server, V3, &packet(0x30, b"\0\0x"), &[]);
    ends(&server, V5, &packet(0x30, b"\0\0\0x"), &[0x82, 0x90]);
}

#[test]
fn mqtt_4_8_0_1_a_fault_ends_the_connection_alone() {
    let server = server(&[]);
    let mut well = Connect::new(V5, "well").open(server.client);
    for version in BOTH {
        // Types that are reserved, or a server's.
        for first in [0x00, 0x20, 0x90, 0xb0, 0xd0] {
            ends(&server, version, &packet(first, &[0, 1, 0]), &[0x81, 0x82]);
        }
    }
    ends(&server, V3, &packet(0xf0, &[]), &[]);
    well.ping();
}

#[test]
fn mqtt5_1_5_5_1_variable_numbers_are_as_short_as_can_be() {
    let server = server(&[]);
    // The length of the properties, 0, in two bytes.
    ends(&server, V5, &packet(0x30, b"\0\x01a\x80\0x"), &[0x81]);
}

#[test]
fn mqtt5_2_2_2_properties_that_are_unknown_wrong_or_twice_there() {
    let server = server(&[]);
    for properties in [
        // Unknown, not of this packet, one of 0 or 1 that is 2, the same twice, cut off, too long a list.
        &b"\x02\x7f\0"[..],
        b"\x03\x21\0\x01",
        b"\x02\x01\x02",
        b"\x04\x01\0\x01\0",
        b"\x02\x02\0",
        b"\x7f\x01\0",
    ] {
        let publish = packet(0x30, &[b"\0\x01a", properties, b"x"].concat());
        ends(&server, V5, &publish, &[0x81, 0x82]);
    }
}

#[test]
fn mqtt5_3_1_2_11_limits_of_zero_are_faults_of_the_client() {
    let server = server(&[]);
    for property in [id::RECEIVE_MAXIMUM, id::MAXIMUM_PACKET_SIZE] {
        let connect = Connect::new(V5, "zero").with(number(property, 0));
        assert_eq!(is_not_let_in(&server, V5, &connect.bytes()), Some(0x82));
    }
}

#[test]
fn mqtt5_3_1_2_24_packets_larger_than_the_client_takes_are_not_sent() {
    let server = server(&[]);
    let connect = Connect::kept(V5, "small").with(number(id::MAXIMUM_PACKET_SIZE, 100));
    let mut small = connect.open(server.client);
    small.subscribe(&[filter("a", 1)]);
    let mut other = Connect::new(V5, "other").open(server.client);
    other.publish("a", &"x".repeat(120), 1);
    other.publish("a", "fits", 1);
    assert_eq!(small.message().payload, "fits");
    small.disconnect();
    // Nor from the history.
    other.publish("a", &"x".repeat(120), 1);
    other.publish("a", "fits, too", 1);
    assert_eq!(connect.open(server.client).message().payload, "fits, too");
}

#[test]
fn mqtt5_3_1_2_29_reasons_are_not_explained_to_who_does_not_want_it() {
    let server = server(&[]);
    let connect = Connect::new(V5, "x").with(number(id::REQUEST_PROBLEM_INFORMATION, 0));
    let mut client = connect.open(server.client);
    client.send(&Publish::new("test/nopublish", "x", 1).bytes(V5));
    client.hears(&[Heard::Confirm("PUBACK", 1, 0x87)]);
}

#[test]
fn mqtt5_3_1_2_30_unknown_methods_of_authentication_are_refused() {
    let server = server(&[]);
    let method = (id::AUTHENTICATION_METHOD, Value::Text("GS2-KRB5"));
    let connect = Connect::new(V5, "x").with(method);
    assert_eq!(is_not_let_in(&server, V5, &connect.bytes()), Some(0x8c));
    // And nobody authenticates in the middle who has not begun so.
    ends(
        &server,
        V5,
        &bytes(|out| write::auth(ReasonCode::ReAuthenticate, &[method], out)),
        &[0x82, 0x8c],
    );
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
    // Those of version 3 get the message alone.
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
fn mqtt5_3_8_3_4_a_shared_subscription_is_not_without_its_own() {
    let server = server(&[]);
    let subscribe = packet(0x82, &body(V5, &[0, 1], b"\0\x0a$share/g/a\x05"));
    ends(&server, V5, &subscribe, &[0x82]);
}

#[test]
fn mqtt5_4_8_2_names_of_groups_are_names() {
    let server = server(&[]);
    for wrong in ["$share//a", "$share/g+/a", "$share/#/a", "$share/g"] {
        let text = [&[0, u8::try_from(wrong.len()).unwrap()], wrong.as_bytes(), &[1]].concat();
        let mut client = Connect::new(V5, "groups").open(server.client);
        client.send(&packet(0x82, &body(V5, &[0, 1], &text)));
        match client.next() {
            Heard::Suback(1, codes) => assert_eq!(codes, [0x8f], "{wrong}"),
            Heard::Disconnect(reason, _) => assert!([0x81, 0x8f].contains(&reason), "{wrong}"),
            other => panic!("{wrong}: {other:?}"),
        }
    }
}

#[test]
fn mqtt5_4_9_0_publishing_again_waits_for_room() {
    let server = server(&[]);
    let mut one = Connect::new(V5, "flow").with(number(id::RECEIVE_MAXIMUM, 1)).open(server.client);
    one.subscribe(&[filter("a", 2)]);
    let mut two = Connect::new(V5, "two").open(server.client);
    two.publish("a", "1", 2);
    two.publish("a", "2", 0);
    two.publish("a", "3", 1);
    let first = one.unconfirmed();
    assert_eq!(first.payload, "1");
    // QoS 0 does not wait.
    assert_eq!(one.unconfirmed().payload, "2");
    one.is_quiet();
    // A refusal frees the place as well.
    let refused = ReasonCode::QuotaExceeded;
    one.send(&bytes(|out| write::confirm(ConfirmType::Pubrec, V5, first.id, refused, &[], out)));
    assert_eq!(one.unconfirmed().payload, "3");
}

/// The table beside this file names tests that are there, and each of this file.
#[test]
fn the_table_of_what_is_covered_is_true() {
    let table = include_str!("COVERED.md");
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mqtt");
    let tests = |file: &str| -> Vec<String> {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        let names = text.split("#[test]\nfn ").skip(1);
        names.map(|rest| rest.split('(').next().unwrap().to_string()).collect()
    };
    let files = [
        ("i3::", "interoperability_3.rs"),
        ("i5::", "interoperability_5.rs"),
        ("meets::", "meets.rs"),
        ("hostile::", "hostile.rs"),
        ("", "normative.rs"),
    ];
    let all: Vec<String> = files
        .iter()
        .flat_map(|(name, file)| tests(file).into_iter().map(move |test| format!("{name}{test}")))
        .collect();
    let rows = table.lines().filter(|line| line.starts_with('|'));
    let named: Vec<&str> = rows.flat_map(|row| row.split('`').skip(1).step_by(2)).collect();
    for name in &named {
        assert!(all.iter().any(|test| test == name), "there is no test {name}");
    }
    for test in all.iter().filter(|test| test.starts_with("mqtt")) {
        assert!(named.contains(&test.as_str()), "{test} is not in the table");
    }
}
