//! Statements of the standards about connecting (sections 3.1 and 3.2).
//! Each test has the number of its statement: `mqtt3_` those of MQTT 3.1.1, `mqtt5_` those of 5.0, and `mqtt_` those
//! with the same number in both. `COVERED.md` beside this file has them all.

use std::time::{Duration, Instant};

use protocol::mqtt::write;
use protocol::mqtt::{ReasonCode, Value, id};
use serde_json::json;

use crate::mqtt::client::*;
use crate::mqtt::raw::*;
use crate::mqtt::reasons::{ReasonClient, refused};
use crate::mqtt::{server, server_at};
use crate::support::free_port;

#[test]
fn mqtt_3_1_0_1_the_first_packet_is_connect() {
    let at = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    let server = server_at(&at.to_string(), &[]);
    for version in BOTH {
        let subscribe = packet(0x82, &body(version, &[0, 1], b"\0\x01a\0"));
        let publish = packet(0x30, &body(version, b"\0\x01a", b"x"));
        for first in [vec![0xc0, 0], publish, subscribe, vec![0xe0, 0]] {
            // The MQTT port sends no response to anything but MQTT.
            let mut client = Client::new(at, version);
            client.send(&first);
            client.expect_events(&[Event::Closed]);
            assert!(client.raw.is_empty(), "{first:02x?}");
            // The client port responds in HTTP, ...
            let reply = server.exchange(&[&first[..], b"\r\n\r\n"].concat());
            assert!(reply.starts_with("HTTP/1.1 400"), "{first:02x?}: {reply}");
            // ... and a WebSocket for MQTT closes without an MQTT packet.
            let mut socket = websocket(&server);
            socket.send(Frame::Binary(first.clone().into())).unwrap();
            match socket.read() {
                Ok(Frame::Close(_)) => {}
                Ok(other) => panic!("{other:?} for {first:02x?}"),
                Err(error) => assert!(!is_timeout(&error), "{first:02x?}: {error}"),
            }
        }
        Connect::new(version, "well").open(at).ping();
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
        // The server responds to a newer version in the newest version that it knows.
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
        let mut one = Connect::persistent(version, &name).open(server.client);
        assert!(!one.session_present);
        one.subscribe(&[filter("a", 1), filter("b/+", 2)]);
        one.cut();
        let mut two = Connect::new(version, "two").open(server.client);
        two.publish("a", "1", 1);
        two.publish("b/b", "2", 2);
        let mut one = Connect::persistent(version, &name).open(server.client);
        assert!(one.session_present);
        assert_eq!(one.messages(2), [("a".into(), "1".into()), ("b/b".into(), "2".into())]);
        // The subscriptions go on as well.
        two.publish("a", "3", 1);
        assert_eq!(one.message().payload, "3");
    }
}

#[test]
fn mqtt_3_1_2_6_a_clean_session_forgets_all() {
    let server = server(&[]);
    for version in BOTH {
        let name = format!("clean {version:?}");
        let mut one = Connect::persistent(version, &name).open(server.client);
        one.subscribe(&[filter("a", 1)]);
        one.disconnect();
        let mut one = Connect::new(version, &name).open(server.client);
        assert!(!one.session_present);
        server.publish("a", json!("nobody hears it"));
        one.is_quiet();
        one.disconnect();
        // The next connection finds no session either.
        assert!(!Connect::persistent(version, &name).open(server.client).session_present);
    }
}

#[test]
fn mqtt_3_1_2_8_a_will_is_published_when_the_connection_is_lost() {
    let server = server(&[]);
    for version in BOTH {
        let mut two = Connect::new(version, "two").open(server.client);
        two.subscribe(&[filter("will", 2)]);
        // By an error, ...
        let mut one = Connect::new(version, "one").will("will", "fault", 1).open(server.client);
        one.send(&[0x00, 0x00]);
        assert_eq!(two.message().payload, "fault");
        // ... a broken connection, ...
        Connect::new(version, "one").will("will", "cut", 1).open(server.client).cut();
        assert_eq!(two.message().payload, "cut");
        // ... silence, ...
        let silent = Connect { keep_alive_s: 1, ..Connect::new(version, "one") };
        let silent = silent.will("will", "silence", 1).open(server.client);
        assert_eq!(two.message().payload, "silence");
        drop(silent);
        // ... and a takeover.
        let taken_over =
            Connect::new(version, "one").will("will", "taken over", 1).open(server.client);
        let next = Connect::new(version, "one").open(server.client);
        assert_eq!(two.message().payload, "taken over");
        drop((taken_over, next));
    }
}

#[test]
fn mqtt_3_1_2_10_goodbye_takes_the_will_away() {
    let server = server(&[]);
    for version in BOTH {
        let mut two = Connect::new(version, "two").open(server.client);
        two.subscribe(&[filter("will", 2)]);
        Connect::new(version, "one").will("will", "no", 1).open(server.client).disconnect();
        // The server accepts the next connection only after it has finished with the one before.
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
        // QoS 3 does not exist.
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
    // These are as old as the silent clients, and any packet that they send counts.
    let (mut alive, mut silent) = (open("alive"), open("silent"));
    for client in &mut silent {
        let event = loop {
            alive.iter_mut().for_each(|client| client.publish("a", "alive", 1));
            if let Some(event) = client.within(Duration::from_millis(100)) {
                break event;
            }
        };
        assert!(begun.elapsed() >= Duration::from_millis(2_700), "{:?}", begun.elapsed());
        match event {
            Event::Disconnect(reason, _) => {
                assert_eq!((client.version, reason), (V5, 0x8d));
                client.expect_events(&[Event::Closed]);
            }
            event => assert_eq!((client.version, event), (V3, Event::Closed)),
        }
    }
    alive.iter_mut().for_each(Client::ping);
}

#[test]
fn mqtt3_3_1_3_7_and_8_no_session_persists_without_a_name() {
    let server = server(&[]);
    assert_eq!(is_not_let_in(&server, V3, &Connect::persistent(V3, "").bytes()), Some(2));
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
        before.is_ended_for(0x8e);
        after.ping();
    }
}

#[test]
fn mqtt_3_2_0_1_connack_comes_first() {
    let server = server(&[]);
    for version in BOTH {
        let mut one = Connect::persistent(version, "first").open(server.client);
        one.subscribe(&[filter("a", 1)]);
        one.cut();
        let mut two = Connect::new(version, "two").open(server.client);
        two.publish("a", "waits", 1);
        // `open` fails if any packet comes before CONNACK.
        assert_eq!(
            Connect::persistent(version, "first").open(server.client).message().payload,
            "waits"
        );
        Connect::new(version, "first").open(server.client).disconnect();
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
    let connect = Connect::persistent(V5, "small").with(number(id::MAXIMUM_PACKET_SIZE, 100));
    let mut small = connect.open(server.client);
    small.subscribe(&[filter("a", 1)]);
    let mut other = Connect::new(V5, "other").open(server.client);
    other.publish("a", &"x".repeat(120), 1);
    other.publish("a", "fits", 1);
    assert_eq!(small.message().payload, "fits");
    small.disconnect();
    // The same for messages from the history.
    other.publish("a", &"x".repeat(120), 1);
    other.publish("a", "fits, too", 1);
    assert_eq!(connect.open(server.client).message().payload, "fits, too");
}

#[test]
fn mqtt5_3_1_2_24_no_client_is_admitted_that_does_not_take_connack() {
    let server = server(&[]);
    let takes = |name, max| {
        let connect = Connect::new(V5, name).with(number(id::MAXIMUM_PACKET_SIZE, max));
        let (client, reply) = connect.try_open(server.client);
        assert!(client.raw.len() <= max as usize, "{max}: {:02x?}", client.raw);
        (client, reply)
    };
    // CONNACK has the properties that the client must know. It has no maximum for aliases, so the client uses none.
    let (mut client, reply) = takes("named", 16);
    assert_eq!((reply.code, reply.property(id::TOPIC_ALIAS_MAXIMUM)), (0, None));
    assert_eq!(reply.property(id::SERVER_KEEP_ALIVE), Some("60"));
    client.ping();
    assert!(takes("named", 19).1.property(id::TOPIC_ALIAS_MAXIMUM).is_some());
    // CONNACK needs the assigned identifier and the keep-alive, which do not fit here: the server sends only the code.
    for (name, max) in [("", 16), ("named", 15), ("named", 5)] {
        let (mut client, reply) = takes(name, max);
        assert_eq!((reply.code, reply.properties), (0x95, Vec::new()));
        client.expect_events(&[Event::Closed]);
    }
}

#[test]
fn mqtt5_3_1_2_29_reasons_are_not_explained_to_who_does_not_want_it() {
    let server = server(&[]);
    for wants in [0, 1] {
        let connect = Connect::new(V5, "x").with(number(id::REQUEST_PROBLEM_INFORMATION, wants));
        let mut client = ReasonClient::open(server.client, &connect);
        for (packet, name, code) in refused() {
            client.send(&packet);
            let reason = client.next().unwrap();
            assert_eq!((reason.packet, reason.code), (name, code));
            // DISCONNECT may have a text in any case.
            assert_eq!(reason.text.is_some(), wants == 1 || name == "DISCONNECT", "{reason:?}");
        }
    }
}

#[test]
fn mqtt5_3_1_2_30_unknown_methods_of_authentication_are_refused() {
    let server = server(&[]);
    let method = (id::AUTHENTICATION_METHOD, Value::Text("GS2-KRB5"));
    let connect = Connect::new(V5, "x").with(method);
    assert_eq!(is_not_let_in(&server, V5, &connect.bytes()), Some(0x8c));
    // A client may not begin to authenticate again if its CONNECT named no method.
    ends(
        &server,
        V5,
        &bytes(|out| write::auth(ReasonCode::ReAuthenticate, &[method], out)),
        &[0x82, 0x8c],
    );
}

#[test]
fn mqtt3_3_1_2_7_retained_messages_outlive_sessions() {
    let server = server(&[]);
    for version in BOTH {
        for connect in [Connect::new(version, "owner"), Connect::persistent(version, "owner")] {
            let mut owner = connect.open(server.client);
            owner.subscribe(&[filter("state/x", 1)]);
            owner.publish_all(Publish::new("state/x", "stays", 1).retained());
            assert_eq!(owner.message().payload, "stays");
            owner.disconnect();
            // The next session replaces that one.
            let next = Connect::new(version, "owner").open(server.client);
            assert!(!next.session_present);
            next.disconnect();
            let mut other = Connect::new(version, "other").open(server.client);
            other.subscribe(&[filter("state/x", 1)]);
            let message = other.message();
            assert_eq!((message.payload.as_str(), message.retain), ("stays", true));
            other.publish_all(Publish::new("state/x", "", 1).retained());
            other.disconnect();
        }
    }
}

#[test]
fn mqtt_3_1_2_9_a_will_has_its_topic_message_and_qos() {
    let server = server(&[]);
    for version in BOTH {
        let whole = Connect::new(version, "one").will("will", "x", 0).bytes();
        // Without the payload, without the topic as well, and in 5.0 without all fields of the will.
        let will = body(version, &[], b"\0\x04will\0\x01x").len();
        for missing in [3, 9, will] {
            let mut cut = whole[..whole.len() - missing].to_vec();
            cut[1] -= u8::try_from(missing).unwrap();
            let code = is_not_let_in(&server, version, &cut);
            assert!(code.is_none_or(|code| version == V5 && code == 0x81), "{missing}: {code:?}");
        }
        let mut two = Connect::new(version, "two").open(server.client);
        two.subscribe(&[filter("will", 2)]);
        for qos in 0..3 {
            Connect::new(version, "one").will("will", "x", qos).open(server.client).cut();
            let message = two.message();
            assert_eq!((message.qos, message.retain), (qos, false));
        }
    }
}

#[test]
fn mqtt5_3_1_2_28_there_is_no_response_information() {
    let server = server(&[]);
    for requested in [None, Some(0), Some(1)] {
        let mut connect = Connect::new(V5, "x");
        let requested = requested.map(|value| number(id::REQUEST_RESPONSE_INFORMATION, value));
        connect.properties.extend(requested);
        let reply = connect.try_open(server.client).1;
        assert_eq!((reply.code, reply.property(id::RESPONSE_INFORMATION)), (0, None));
    }
}

#[test]
fn mqtt_3_1_3_1_fields_of_connect_come_in_their_order() {
    let server = server(&[]);
    for version in BOTH {
        // CONNECT with all fields, each of another length.
        let connect = Connect::new(version, "identifier").will("will/topic", "will", 1);
        let connect = connect.user("alice").password("pass");
        let mut two = Connect::new(version, "two").open(server.client);
        two.subscribe(&[filter("will/topic", 1)]);
        let mut one = connect.open(server.client);
        one.subscribe(&[filter("@alice", 1)]);
        server.post("/api/send", json!({"user": "alice", "data": "hello"}));
        assert_eq!(one.message().payload, "hello");
        let path = "/api/mqtt/sessions/identifier";
        assert_eq!(server.api("GET", path, None).1["client"], "identifier");
        one.cut();
        assert_eq!(two.message().payload, "will");
    }
    // The client identifier must be present, even if it is empty.
    for version in BOTH {
        let mut none = Connect::new(version, "").bytes();
        none.truncate(none.len() - 2);
        none[1] -= 2;
        let code = is_not_let_in(&server, version, &none);
        assert!(code.is_none_or(|code| version == V5 && code == 0x81), "{code:?}");
    }
}

#[test]
fn mqtt_3_1_3_2_sessions_are_found_by_their_client_identifier() {
    let server = server(&[]);
    for version in BOTH {
        let names = ["sensor", "Sensor", "sensor ", "sensor/1"];
        for (at, name) in names.into_iter().enumerate() {
            let mut client = Connect::persistent(version, name).open(server.client);
            assert!(!client.session_present, "{name:?}");
            let topics = ["t/0", "t/1", "t/2", "t/3"];
            client.subscribe(&[filter(topics[at], 1)]);
            client.disconnect();
        }
        let mut speaker = Connect::new(version, "speaker").open(server.client);
        (0..4).for_each(|at| speaker.publish(&format!("t/{at}"), &at.to_string(), 1));
        for (at, name) in names.into_iter().enumerate() {
            let mut client = Connect::persistent(version, name).open(server.client);
            assert!(client.session_present, "{name:?}");
            assert_eq!(client.message().payload, at.to_string());
            client.is_quiet();
            client.disconnect();
            Connect::new(version, name).open(server.client).disconnect();
        }
    }
}

#[test]
fn mqtt5_3_1_3_8_client_identifiers_that_are_too_long_are_refused() {
    let server = server(&[]);
    let long = Connect::new(V5, &"x".repeat(300));
    assert_eq!(is_not_let_in(&server, V5, &long.bytes()), Some(0x85));
    let long = Connect::new(V3, &"x".repeat(300));
    assert_eq!(is_not_let_in(&server, V3, &long.bytes()), Some(2));
}

#[test]
fn mqtt5_3_1_3_10_pairs_of_a_will_keep_their_order() {
    let server = server(&[]);
    let mut two = Connect::new(V5, "two").open(server.client);
    two.subscribe(&[filter("will", 2)]);
    let mut connect = Connect::new(V5, "one").will("will", "x", 1);
    let pairs = [("b", "2"), ("a", "1"), ("b", "1")].map(|(name, value)| Value::Pair(name, value));
    let properties = &mut connect.will.as_mut().unwrap().properties;
    properties.extend(pairs.map(|pair| (id::USER_PROPERTY, pair)));
    properties.push((id::CONTENT_TYPE, Value::Text("text/plain")));
    connect.open(server.client).cut();
    let message = two.message();
    let found = message.properties.iter().filter(|(of, _)| *of == id::USER_PROPERTY);
    assert_eq!(found.map(|(_, pair)| pair.as_str()).collect::<Vec<_>>(), ["b=2", "a=1", "b=1"]);
    assert_eq!(message.property(id::CONTENT_TYPE), Some("text/plain"));
}

#[test]
fn mqtt_3_1_3_11_texts_of_connect_are_utf_8() {
    let server = server(&[]);
    for version in BOTH {
        let connect = Connect::new(version, "QQQ").will("WWW", "x", 0).user("UUU");
        for field in [b"QQQ", b"WWW", b"UUU"] {
            for wrong in [&[0xff, b'a', b'b'], b"a\0b", b"\xed\xa0\x80"] {
                let mut bytes = connect.bytes();
                let at = bytes.windows(3).position(|it| it == field).unwrap();
                bytes[at..at + 3].copy_from_slice(wrong);
                let code = is_not_let_in(&server, version, &bytes);
                let is_right =
                    code.is_none_or(|code| version == V5 && [0x81, 0x85].contains(&code));
                assert!(is_right, "{field:?} {wrong:02x?}: {code:?}");
            }
        }
        connect.open(server.client).disconnect();
    }
}

#[test]
fn mqtt_3_2_2_4_and_5_who_is_refused_has_no_session_and_is_closed() {
    let server = server(&[]);
    for (version, refused) in [(V3, 5), (V5, 0x87)] {
        let persistent = Connect::persistent(version, "kept");
        let mut client = persistent.open(server.client);
        client.subscribe(&[filter("a", 1)]);
        client.disconnect();
        let (mut client, reply) =
            persistent.clone().will("test/nopublish", "x", 0).try_open(server.client);
        assert_eq!((reply.code, reply.session_present), (refused, false));
        // All other flags are reserved.
        assert_eq!(client.raw[2], 0, "{:02x?}", client.raw);
        client.expect_events(&[Event::Closed]);
        // The session still exists.
        let mut client = Client::new(server.client, version);
        client.send(&persistent.bytes());
        assert!(client.connack().session_present);
        assert_eq!(client.raw[2], 1, "{:02x?}", client.raw);
    }
}

#[test]
fn mqtt5_3_2_2_19_and_20_connack_is_no_larger_than_the_client_takes() {
    let server = server(&[]);
    let refused = Connect::new(V5, "x").will("test/nopublish", "x", 0);
    let method = (id::AUTHENTICATION_METHOD, Value::Text("other"));
    for connect in [refused, Connect::new(V5, "x").with(method)] {
        let (client, reply) = connect.try_open(server.client);
        assert!(reply.code >= 0x80 && reply.property(id::REASON_STRING).is_some(), "{reply:?}");
        assert!(client.raw.len() > 20);
        let small = connect.with(number(id::MAXIMUM_PACKET_SIZE, 20));
        let (client, same) = small.try_open(server.client);
        assert_eq!((same.code, same.property(id::REASON_STRING)), (reply.code, None));
        assert!(client.raw.len() <= 20, "{:02x?}", client.raw);
    }
}
