//! Statements of the standards about subscriptions, DISCONNECT, and the rest (sections 3.8 to 3.15, 4.7 to 4.13).
//! Each test has the number of its statement: `mqtt3_` those of MQTT 3.1.1, `mqtt5_` those of 5.0, and `mqtt_` those
//! with the same number in both. `COVERED.md` beside this file has them all.

use std::time::{Duration, Instant};

use protocol::mqtt::client::SubscribeParts;
use protocol::mqtt::write::{self, ConfirmType};
use protocol::mqtt::{ReasonCode, Value, id};

use crate::mqtt::client::*;
use crate::mqtt::raw::*;
use crate::mqtt::server;
use crate::support::{Server, TIMEOUT};

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
        let filters =
            [filter("a", 0), filter("test/nosubscribe", 1), filter("b/#", 1), filter("c", 2)];
        assert_eq!(client.subscribe_with(&filters, &[]), [0, 0x80, 1, 2]);
        // The same filter replaces the earlier subscription, and the server sends retained messages again.
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
            for (requested, topic) in ["q/0", "q/1", "q/2"].iter().enumerate() {
                client.publish(topic, "x", published);
                assert_eq!(usize::from(client.message().qos), requested.min(published.into()));
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
        client.expect_events(&[Event::Confirm("PUBREL", message.id, 0)]);
        client.confirm(ConfirmType::Pubcomp, message.id);
        client.ping();
    }
}

#[test]
fn mqtt_3_12_4_1_pings_are_served() {
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
fn mqtt_4_7_1_wildcards_stand_alone() {
    let server = server(&[]);
    for version in BOTH {
        for wrong in ["a/b#", "a/#/b", "#a", "a+", "a/+b", "b+/c"] {
            let text = [&[0, u8::try_from(wrong.len()).unwrap()], wrong.as_bytes(), &[1]].concat();
            let subscribe = packet(0x82, &body(version, &[0, 1], &text));
            let mut client = Connect::new(version, "wild").open(server.client);
            client.send(&subscribe);
            match client.next() {
                Event::Suback(1, codes) => {
                    assert_eq!(codes, [if version == V3 { 0x80 } else { 0x8f }], "{wrong}");
                }
                Event::Disconnect(reason, _) => assert!([0x81, 0x8f].contains(&reason), "{wrong}"),
                event => assert_eq!(event, Event::Closed, "{wrong}"),
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
        for (requested, topic, matches) in cases {
            let mut client = Connect::new(version, "matches").open(server.client);
            let one = SubscribeParts { filter: requested, ..filter("", 1) };
            client.subscribe(&[one]);
            if !topic.starts_with("$SYS") {
                publisher.publish(topic, topic, 1);
            }
            // The last message goes to every subscriber.
            client.subscribe(&[filter("last", 1)]);
            publisher.publish("last", "last", 1);
            let first = client.message().payload;
            assert_eq!(first, if matches { topic } else { "last" }, "{requested} {topic}");
        }
    }
}

#[test]
fn mqtt_4_7_3_topics_have_a_character_and_at_most_254_bytes() {
    let server = server(&[]);
    let long = "x".repeat(255);
    let mut five = Connect::new(V5, "five").open(server.client);
    five.send(&Publish::new(&long, "x", 1).bytes(V5));
    five.expect_events(&[Event::Confirm("PUBACK", 1, 0x90)]);
    five.ping();
    let mut three = Connect::new(V3, "three").open(server.client);
    three.send(&Publish::new(&long, "x", 1).bytes(V3));
    three.expect_events(&[Event::Closed]);
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
        // Reserved types, and types that only a server sends.
        for first in [0x00, 0x20, 0x90, 0xb0, 0xd0] {
            ends(&server, version, &packet(first, &[0, 1, 0]), &[0x81, 0x82]);
        }
    }
    ends(&server, V3, &packet(0xf0, &[]), &[]);
    well.ping();
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
            Event::Suback(1, codes) => assert_eq!(codes, [0x8f], "{wrong}"),
            Event::Disconnect(reason, _) => assert!([0x81, 0x8f].contains(&reason), "{wrong}"),
            other => panic!("{wrong}: {other:?}"),
        }
    }
}

#[test]
fn mqtt5_3_9_2_and_3_11_2_replies_to_subscriptions_fit() {
    let server = server(&[]);
    let connect = Connect::new(V5, "fits").with(number(id::MAXIMUM_PACKET_SIZE, 20));
    let mut client = connect.open(server.client);
    let long: &'static str = "x".repeat(255).leak();
    let filters = [filter("test/nosubscribe", 1), filter("@somebody", 1), filter(long, 1)];
    for (one, expected) in filters.into_iter().zip([0x80, 0x87, 0x8f]) {
        assert_eq!(client.subscribe_with(&[one], &[]), [expected]);
        assert!(client.raw.len() <= 20, "{:02x?}", client.raw);
    }
    assert_eq!(client.unsubscribe(&["nothing"]), [0x11]);
    assert!(client.raw.len() <= 20, "{:02x?}", client.raw);
}

#[test]
fn mqtt5_3_14_0_1_there_is_no_disconnect_before_connack() {
    let server = server(&[]);
    let good = Connect::new(V5, "x");
    let mut flags = good.bytes();
    flags[9] |= 1;
    let mut level = good.bytes();
    level[8] = 6;
    let limit = good.clone().with(number(id::RECEIVE_MAXIMUM, 0)).bytes();
    let alien = good.with((id::CONTENT_TYPE, Value::Text("x"))).bytes();
    let long = Connect::new(V5, &"x".repeat(300)).bytes();
    let huge = vec![0x10, 0xff, 0xff, 0xff, 0x7f];
    for connect in [flags, level, limit, alien, long, huge] {
        // The server sends a CONNACK with the reason, or closes, and sends nothing else.
        let code = is_not_let_in(&server, V5, &connect);
        assert!(code.is_none_or(|code| code >= 0x80), "{connect:02x?}: {code:?}");
    }
}

#[test]
fn mqtt5_3_14_2_1_and_3_the_servers_goodbye_fits_and_says_why() {
    let server = server(&[]);
    let connect = Connect::new(V5, "goodbye").with(number(id::MAXIMUM_PACKET_SIZE, 20));
    let huge = [&[0x30][..], &[0xff, 0xff, 0xff, 0x7f]].concat();
    let cases = [
        (packet(0x36, b"\0\x01a\0\x01\0x"), 0x81),
        (Connect::new(V5, "goodbye").bytes(), 0x82),
        (Publish::new("a", "x", 0).with(number(id::TOPIC_ALIAS, 0)).bytes(V5), 0x94),
        (huge, 0x95),
    ];
    for (bytes, expected) in cases {
        let mut client = connect.open(server.client);
        client.send(&bytes);
        match client.next() {
            // The server does not set the session expiry either, which only a client may do.
            Event::Disconnect(code, properties) => {
                assert_eq!(code, expected, "{bytes:02x?}");
                let expiry = properties.iter().find(|(of, _)| *of == id::SESSION_EXPIRY_INTERVAL);
                assert_eq!(expiry, None);
            }
            other => panic!("{other:?}"),
        }
        assert!(client.raw.len() <= 20, "{:02x?}", client.raw);
    }
    // Codes that a client must not send.
    for code in [0x01, 0x8b, 0x8e, 0x9c] {
        ends(&server, V5, &packet(0xe0, &[code]), &[0x81, 0x82]);
    }
}

#[test]
fn mqtt5_3_14_4_1_and_2_disconnect_is_the_last_word() {
    let server = server(&[]);
    let mut other = Connect::new(V5, "other").open(server.client);
    for _ in 0..10 {
        let mut client = Connect::new(V5, "last word").open(server.client);
        client.subscribe(&[filter("busy", 0)]);
        (0..20).for_each(|_| other.publish("busy", "x", 0));
        // The server no longer responds to packets after the error.
        let ping = vec![0xc0, 0];
        let all = [packet(0x36, b"\0\x01a\0\x01\0x"), ping.clone(), ping].concat();
        client.send(&all);
        (0..20).for_each(|_| other.publish("busy", "y", 0));
        loop {
            match client.next() {
                Event::Message(_) => {}
                Event::Disconnect(0x81, _) => break,
                event => panic!("{event:?}"),
            }
        }
        assert_eq!(client.next(), Event::Closed);
    }
}

#[test]
fn mqtt5_3_15_1_1_and_3_15_2_1_auth_has_no_flags_and_a_code_of_its_own() {
    let server = server(&[]);
    let method = [&[0x15][..], &text(b"token")].concat();
    let properties = [&[u8::try_from(method.len()).unwrap()][..], &method].concat();
    for flags in 1..16 {
        let auth = packet(0xf0 | flags, &[&[0x19][..], &properties].concat());
        ends(&server, V5, &auth, &[0x81]);
    }
    for code in [0x01, 0x1a, 0x80, 0x87] {
        let auth = packet(0xf0, &[&[code][..], &properties].concat());
        ends(&server, V5, &auth, &[0x81, 0x82]);
    }
}

/// Connects two members of a group with persistent sessions and QoS 2, and a publisher.
fn group(server: &Server, names: [&str; 2]) -> ([Client; 2], Client) {
    let members = names.map(|name| {
        let mut member = Connect::persistent(V5, name).open(server.client);
        member.subscribe(&[filter("$share/group/shared", 2)]);
        member
    });
    (members, Connect::new(V5, "speaker").open(server.client))
}

/// Returns the index of the member that gets the next message, and the message, without a confirmation.
fn gets(members: &mut [Client; 2]) -> (usize, Message) {
    let end = Instant::now() + TIMEOUT;
    while Instant::now() < end {
        for (at, member) in members.iter_mut().enumerate() {
            match member.within(Duration::from_millis(20)) {
                Some(Event::Message(message)) => return (at, message),
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
    }
    panic!("no member gets a message")
}

#[test]
fn mqtt5_4_8_2_3_members_of_a_group_get_the_qos_that_each_was_granted() {
    let server = server(&[]);
    let mut members = [0, 1].map(|qos| {
        let mut member = Connect::new(V5, &format!("granted {qos}")).open(server.client);
        member.subscribe(&[filter("$share/group/shared", qos)]);
        member
    });
    let mut speaker = Connect::new(V5, "speaker").open(server.client);
    let mut came = [0, 0];
    for _ in 0..6 {
        speaker.publish("shared", "x", 2);
        let (at, message) = gets(&mut members);
        assert_eq!(usize::from(message.qos), at);
        if message.qos == 1 {
            members[at].confirm(ConfirmType::Puback, message.id);
        }
        came[at] += 1;
    }
    assert!(came.iter().all(|count| *count > 0), "{came:?}");
}

#[test]
fn mqtt5_4_8_2_4_a_member_gets_to_the_end_what_it_began_to_get() {
    let server = server(&[]);
    let names = ["begins 0", "begins 1"];
    let (mut members, mut speaker) = group(&server, names);
    speaker.publish("shared", "begun", 2);
    let (at, message) = gets(&mut members);
    let [mut other, one] = match (at, members) {
        (0, [one, other]) | (_, [other, one]) => [other, one],
    };
    one.cut();
    other.is_quiet();
    let mut one = Connect::persistent(V5, names[at]).open(server.client);
    assert_eq!(one.message(), Message { dup: true, ..message });
    other.is_quiet();
}

#[test]
fn mqtt5_4_8_2_5_what_a_member_began_to_get_ends_with_its_session() {
    let server = server(&[]);
    let names = ["ends 0", "ends 1"];
    let (mut members, mut speaker) = group(&server, names);
    speaker.publish("shared", "begun", 2);
    let (at, _) = gets(&mut members);
    let [mut other, one] = match (at, members) {
        (0, [one, other]) | (_, [other, one]) => [other, one],
    };
    one.cut();
    let mut one = Connect::new(V5, names[at]).open(server.client);
    assert!(!one.session_present);
    one.is_quiet();
    other.is_quiet();
    // The group goes on with the other member.
    speaker.publish("shared", "next", 2);
    assert_eq!(other.message().payload, "next");
}

#[test]
fn mqtt5_4_8_2_6_what_a_member_refuses_goes_to_no_other() {
    let server = server(&[]);
    let (mut members, mut speaker) = group(&server, ["refuses 0", "refuses 1"]);
    for (qos, kind) in [(1, ConfirmType::Puback), (2, ConfirmType::Pubrec)] {
        speaker.publish("shared", "refused", qos);
        let (at, message) = gets(&mut members);
        let refused = ReasonCode::UnspecifiedError;
        members[at].send(&bytes(|out| write::confirm(kind, V5, message.id, refused, &[], out)));
        members.iter_mut().for_each(Client::is_quiet);
    }
}
