//! Statements of the standards about text, properties and packet identifiers (chapters 1 and 2).
//! Each has its number: `mqtt3_` those of MQTT 3.1.1, `mqtt5_` those of 5.0, and `mqtt_` those that have one number in
//! both. `COVERED.md` beside this file has them all.

use protocol::mqtt::write::ConfirmType;

use crate::mqtt::client::*;
use crate::mqtt::raw::*;
use crate::mqtt::server;

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
fn mqtt_2_3_1_7_replies_have_the_identifier_of_their_packet() {
    let server = server(&[]);
    for version in BOTH {
        let mut client = Connect::new(version, "ids").open(server.client);
        for packet_id in [1, 0x00ff, 0xff00, 0xffff] {
            let publish = Publish { id: packet_id, ..Publish::new("a", "x", 1) };
            client.send(&publish.bytes(version));
            client.expect_events(&[Event::Confirm("PUBACK", packet_id, 0)]);
            let publish = Publish { id: packet_id, ..Publish::new("a", "x", 2) };
            client.send(&publish.bytes(version));
            client.expect_events(&[Event::Confirm("PUBREC", packet_id, 0)]);
            client.confirm(ConfirmType::Pubrel, packet_id);
            client.expect_events(&[Event::Confirm("PUBCOMP", packet_id, 0)]);
        }
    }
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
fn mqtt5_1_5_7_1_both_of_a_pair_are_text() {
    let server = server(&[]);
    for (name, value) in [(&b"\xff"[..], &b"b"[..]), (b"a", b"\xed\xa0\x80"), (b"a", b"\0")] {
        let pair = [&[0x26], &text(name)[..], &text(value)].concat();
        let properties = [&[u8::try_from(pair.len()).unwrap()], &pair[..]].concat();
        let publish = [&text(b"a"), &properties[..], b"x"].concat();
        ends(&server, V5, &packet(0x30, &publish), &[0x81]);
    }
}

#[test]
fn mqtt_2_3_1_4_identifiers_under_way_are_each_its_own() {
    let server = server(&[]);
    for version in BOTH {
        let mut one = Connect::new(version, "ids").open(server.client);
        one.subscribe(&[filter("a", 2)]);
        let mut two = Connect::new(version, "two").open(server.client);
        let mut under_way = std::collections::BTreeSet::new();
        let mut first = None;
        for qos in [1, 2, 1, 2, 1] {
            two.publish("a", "x", qos);
            let id = one.unconfirmed().id;
            assert!(id > 0 && under_way.insert(id), "{id} of {under_way:?}");
            first.get_or_insert(id);
        }
        // A confirmed message frees its identifier, and no other one.
        one.confirm(ConfirmType::Puback, first.unwrap());
        under_way.remove(&first.unwrap());
        for _ in 0..5 {
            two.publish("a", "x", 1);
            let id = one.unconfirmed().id;
            assert!(id > 0 && under_way.insert(id), "{id} of {under_way:?}");
        }
    }
}

#[test]
fn mqtt_2_3_1_5_messages_with_qos_0_have_no_identifier() {
    let server = server(&[]);
    for version in BOTH {
        let mut client = Connect::new(version, "bare").open(server.client);
        client.subscribe(&[filter("a", 2)]);
        // The payload follows the topic at once, in both directions.
        let bare = packet(0x30, &body(version, b"\0\x01a", b"\0\x07x"));
        client.send(&bare);
        assert_eq!(client.unconfirmed().payload, "\0\x07x");
        assert_eq!(client.raw, bare);
        // With QoS 1 the identifier stands between topic and payload.
        client.publish("a", "x", 1);
        let message = client.message();
        let confirmed = packet(0x32, &body(version, &[0, 1, b'a', 0, message.id as u8], b"x"));
        assert!(message.id > 0 && client.raw == confirmed, "{:02x?}", client.raw);
    }
}
