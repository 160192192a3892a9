use model::Qos;

use super::client::{self, ConnectParts, SubscribeParts, WillParts};
use super::packet::{Packet, Side, Version};
use super::property::{Value, id};
use super::write::{self, ConfirmType, PublishParts};
use super::{
    ClientLimits, ConnectReturnCode, Mqtt, MqttError, ReasonCode, ReasonOf, WriteError,
    packet_bytes, read,
};

use Side::{Client, Server};
use Version::{V3, V5};

const MAX: usize = 1 << 20;

/// Reads one whole packet. CONNECT is read without a version.
fn whole(bytes: &[u8], version: Version, from: Side) -> Result<Packet<'_>, MqttError> {
    let version = (bytes[0] >> 4 != 1).then_some(version);
    let (packet, consumed) = read(bytes, version, from, MAX)?.expect("whole");
    assert_eq!(consumed, bytes.len());
    Ok(packet)
}

#[track_caller]
fn refused(version: Version, from: Side, bytes: &[u8], error: MqttError) {
    assert_eq!(whole(bytes, version, from), Err(error), "{bytes:02x?}");
}

#[track_caller]
fn accepted(version: Version, from: Side, bytes: &[u8]) {
    assert!(whole(bytes, version, from).is_ok(), "{bytes:02x?}");
}

/// A packet with this first byte, and the length of its body.
fn of(first: u8, body: &[u8]) -> Vec<u8> {
    [&[first, u8::try_from(body.len()).unwrap()], body].concat()
}

fn written(
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), WriteError>,
) -> Result<Vec<u8>, WriteError> {
    let mut out = b"before".to_vec();
    let result = write(&mut out);
    assert!(out.starts_with(b"before") && (result.is_ok() || out.len() == 6));
    result.map(|()| out.split_off(6))
}

/// The example of MQTT 3.1.1, section 3.1.2, with a payload.
#[test]
fn connect_of_3_1_1() {
    let bytes = of(0x10, b"\0\x04MQTT\x04\xce\0\x0a\0\x01c\0\x01w\0\x03bye\0\x05alice\0\x02\xff\0");
    let Packet::Connect(it) = whole(&bytes, V3, Client).unwrap() else { panic!() };
    assert_eq!((it.version, it.is_3_1, it.clean, it.keep_alive_s), (V3, false, true, 10));
    assert_eq!((it.client, it.user, it.password), ("c", Some("alice"), Some(&b"\xff\0"[..])));
    let will = it.will.unwrap();
    assert_eq!((will.qos, will.retain), (Qos::AtLeastOnce, false));
    assert_eq!((will.topic, will.payload), ("w", &b"bye"[..]));
    let parts = ConnectParts {
        version: V3,
        is_3_1: false,
        clean: true,
        keep_alive_s: 10,
        properties: &[],
        client: "c",
        will: Some(WillParts {
            qos: Qos::AtLeastOnce,
            retain: false,
            properties: &[],
            topic: "w",
            payload: b"bye",
        }),
        user: Some("alice"),
        password: Some(b"\xff\0"),
    };
    assert_eq!(written(|out| client::connect(&parts, out)).unwrap(), bytes);
}

#[test]
fn connect_of_3_1() {
    let bytes = of(0x10, b"\0\x06MQIsdp\x03\x02\0\x3c\0\x01c");
    let Packet::Connect(it) = whole(&bytes, V3, Client).unwrap() else { panic!() };
    assert_eq!((it.version, it.is_3_1, it.client, it.keep_alive_s), (V3, true, "c", 60));
}

/// As in the example of MQTT 5.0, section 3.1.2.12: a session that lives for ten seconds; a password without a user
/// name is fine there.
#[test]
fn connect_of_5() {
    let bytes = of(0x10, b"\0\x04MQTT\x05\x42\0\x0a\x05\x11\0\0\0\x0a\0\0\0\x01p");
    let Packet::Connect(it) = whole(&bytes, V5, Client).unwrap() else { panic!() };
    assert_eq!((it.version, it.client, it.password), (V5, "", Some(&b"p"[..])));
    assert_eq!(it.properties.session_expiry_s(), Some(10));
    assert!(it.will.is_none() && it.user.is_none());
}

#[test]
fn connect_is_refused() {
    let connect = |body: &[u8], error| refused(V3, Client, &of(0x10, body), error);
    // [MQTT-3.1.2-1], [MQTT-3.1.2-2]
    connect(b"\0\x04mqtt\x04\x02\0\x3c\0\0", MqttError::ProtocolName);
    connect(b"\0\x06MQTTxx\x04\x02\0\x3c\0\0", MqttError::ProtocolName);
    for (name, level) in [(&b"\0\x04MQTT"[..], 3), (b"\0\x04MQTT", 6), (b"\0\x06MQIsdp", 4)] {
        let body = [name, &[level, 2, 0, 60, 0, 0]].concat();
        connect(&body, MqttError::Version);
    }
    // [MQTT-3.1.2-3]; then 3.1.1: [MQTT-3.1.2-11], [MQTT-3.1.2-13], [MQTT-3.1.2-15] and 5.0: [MQTT-3.1.2-11],
    // [MQTT-3.1.2-13]; last QoS 3: [MQTT-3.1.2-14] and [MQTT-3.1.2-12]
    for flags in [0x03, 0x0a, 0x12, 0x22, 0x1e] {
        for (level, more) in [(4, &b""[..]), (5, b"\0")] {
            let body =
                [b"\0\x04MQTT", &[level, flags, 0, 60][..], more, b"\0\0\0\x01w\0\0"].concat();
            connect(&body, MqttError::ConnectFlags);
        }
    }
    // [MQTT-3.1.2-22] of 3.1.1
    connect(b"\0\x04MQTT\x04\x42\0\x3c\0\0\0\x01p", MqttError::ConnectFlags);
    // A will with an empty topic, and with a wildcard.
    connect(b"\0\x04MQTT\x04\x06\0\x3c\0\0\0\0\0\0", MqttError::Topic);
    connect(b"\0\x04MQTT\x04\x06\0\x3c\0\0\0\x01#\0\0", MqttError::Topic);
    connect(b"\0\x04MQTT\x04\x02\0\x3c\0\x02c", MqttError::Truncated);
    connect(b"\0\x04MQTT\x04\x02\0\x3c\0\x01cx", MqttError::TooLong);
    // [MQTT-3.1.4-1]: the will's properties are not those of CONNECT.
    let late = b"\0\x04MQTT\x05\x02\0\x3c\x05\x18\0\0\0\x01\0\0";
    connect(late, MqttError::Property(0x18));
    let data = b"\0\x04MQTT\x05\x02\0\x3c\x04\x16\0\x01x\0\0";
    connect(data, MqttError::AuthenticationMethod);
    let response = b"\0\x04MQTT\x05\x06\0\x3c\0\0\0\x04\x08\0\x01#\0\x01w\0\0";
    connect(response, MqttError::Topic);
    // [MQTT-3.1.0-1], [MQTT-3.1.0-2]
    assert_eq!(read(&[0xc0], None, Client, MAX), Err(MqttError::ConnectFirst));
    assert_eq!(read(&[0x10], Some(V3), Client, MAX), Err(MqttError::ConnectAgain));
    assert_eq!(read(&[0x10], Some(V5), Server, MAX), Err(MqttError::PacketType("client")));
}

/// The first bytes show that a client does not speak MQTT.
#[test]
fn first_bytes_decide() {
    assert_eq!(read(b"GET /", None, Client, MAX), Err(MqttError::ConnectFirst));
    assert_eq!(read(b"\x16\x03\x01", None, Client, MAX), Err(MqttError::Flags));
    for bytes in [&b""[..], b"\x10", b"\x10\x80", b"\x10\x7f", b"\x10\x7f\0", b"\x10\x7f\0\x06MQI"]
    {
        assert_eq!(read(bytes, None, Client, MAX), Ok(None));
    }
    assert_eq!(read(b"\x10\x7f\0\x05", None, Client, MAX), Err(MqttError::ProtocolName));
    assert_eq!(read(b"\x10\x7f\0\x04MX", None, Client, MAX), Err(MqttError::ProtocolName));
}

/// MQTT 3.1.1, table 2.4, and 5.0, section 1.5.5.
#[test]
fn lengths() {
    for (length, field) in [
        (0, &[0x00][..]),
        (127, &[0x7f]),
        (128, &[0x80, 0x01]),
        (16_383, &[0xff, 0x7f]),
        (16_384, &[0x80, 0x80, 0x01]),
        (2_097_151, &[0xff, 0xff, 0x7f]),
        (2_097_152, &[0x80, 0x80, 0x80, 0x01]),
        (268_435_455, &[0xff, 0xff, 0xff, 0x7f]),
    ] {
        let packet = [&[0x30][..], field].concat();
        assert_eq!(packet_bytes(&packet), Ok(Some(packet.len() + length)));
        assert_eq!(packet_bytes(&packet[..packet.len() - 1]), Ok(None));
        if length > 2 {
            let whole = packet.len() + length;
            assert_eq!(read(&packet, Some(V5), Client, whole), Ok(None));
            let error = Err(MqttError::TooLarge(whole - 1));
            assert_eq!(read(&packet, Some(V5), Client, whole - 1), error);
        }
    }
    let five = [0x30, 0x80, 0x80, 0x80, 0x80];
    assert_eq!(read(&five, Some(V3), Client, MAX), Err(MqttError::Length));
    // [MQTT-1.5.5-1] of 5.0; 3.1.1 has no such rule.
    let ping = [0xc0, 0x80, 0x00];
    refused(V5, Client, &ping, MqttError::NotShortest);
    accepted(V3, Client, &ping);
    let connect = b"\x10\x8d\0\0\x04MQTT\x05\x02\0\x3c\0\0\0";
    refused(V5, Client, connect, MqttError::NotShortest);
    refused(V5, Client, &of(0x30, b"\0\x01a\x80\0"), MqttError::NotShortest);
    // A packet of an impossible length is rejected before it is complete.
    assert_eq!(read(&[0xc0, 1], Some(V5), Client, MAX), Err(MqttError::TooLong));
    assert_eq!(read(&[0x40, 3], Some(V3), Client, MAX), Err(MqttError::TooLong));
    assert_eq!(read(&[0xe0, 1], Some(V3), Client, MAX), Err(MqttError::TooLong));
    assert_eq!(read(&[0x40, 1], Some(V5), Client, MAX), Err(MqttError::Truncated));
}

/// [MQTT-2.2.2-2] of 3.1.1, [MQTT-2.1.3-1] of 5.0; [MQTT-3.6.1-1], [MQTT-3.8.1-1], [MQTT-3.10.1-1],
/// [MQTT-3.14.1-1], [MQTT-3.15.1-1].
#[test]
fn flags_of_the_fixed_header() {
    for first in 0..=0xff_u8 {
        let (kind, flags) = (first >> 4, first & 15);
        let version = (kind != 1).then_some(V5);
        let side = if matches!(kind, 2 | 9 | 11 | 13) { Server } else { Client };
        let fits = match kind {
            0 => false,
            3 => flags & 6 != 6 && flags & 14 != 8,
            6 | 8 | 10 => flags == 2,
            _ => flags == 0,
        };
        assert_eq!(read(&[first], version, side, MAX).is_ok(), fits, "{first:02x}");
        let other = if side == Client { Server } else { Client };
        let is_both = matches!(kind, 3..=7 | 14 | 15);
        assert_eq!(read(&[first], version, other, MAX).is_ok(), fits && is_both, "{first:02x}");
    }
    assert_eq!(read(&[0xf0], Some(V3), Client, MAX), Err(MqttError::ReservedType(15)));
    assert_eq!(read(&[0xe0], Some(V3), Server, MAX), Err(MqttError::PacketType("client")));
    // [MQTT-3.3.1-4], [MQTT-3.3.1-2]
    assert_eq!(read(&[0x36], Some(V3), Client, MAX), Err(MqttError::Qos));
    assert_eq!(read(&[0x38], Some(V3), Client, MAX), Err(MqttError::Duplicate));
}

/// The example of MQTT 3.1.1, section 3.3.2: topic a/b and packet identifier 10.
#[test]
fn publish() {
    let bytes = of(0x3d, b"\0\x03a/b\0\x0ahello");
    let Packet::Publish(it) = whole(&bytes, V3, Client).unwrap() else { panic!() };
    assert_eq!((it.dup, it.qos, it.retain), (true, Qos::ExactlyOnce, true));
    assert_eq!((it.topic, it.id, it.payload), ("a/b", 10, &b"hello"[..]));
    let more = b"\x01\x01\x02\0\0\0\x09\x23\0\x01\x0b\x05\x0b\x80\x01\x26\0\x01k\0\x01v";
    let body = [&b"\0\x03a/b\0\x0a"[..], &[u8::try_from(more.len()).unwrap()], &more[..], b"hello"]
        .concat();
    let bytes = of(0x32, &body);
    let Packet::Publish(it) = whole(&bytes, V5, Server).unwrap() else { panic!() };
    let properties = it.properties;
    assert_eq!(properties.subscription_identifiers().collect::<Vec<_>>(), [5, 128]);
    assert_eq!(properties.user().collect::<Vec<_>>(), [("k", "v")]);
    assert_eq!((properties.topic_alias(), properties.message_expiry_s()), (Some(1), Some(9)));
    assert_eq!((properties.payload_is_text(), properties.content_type()), (Some(true), None));
    let all: Vec<_> = properties.iter().collect();
    let mut parts = PublishParts {
        version: V5,
        dup: false,
        qos: Qos::AtLeastOnce,
        retain: false,
        topic: "a/b",
        id: 10,
        properties: all.iter().copied(),
        payload: b"hello",
    };
    assert_eq!(written(|out| parts.write(out)).unwrap(), bytes);
    assert_eq!(parts.bytes(), bytes.len());
    parts.id = 0;
    assert_eq!(written(|out| parts.write(out)), Err(WriteError::PacketId));
}

#[test]
fn publish_is_refused() {
    let publish = |version, body: &[u8], error| refused(version, Client, &of(0x30, body), error);
    for (version, more) in [(V3, &b""[..]), (V5, b"\0")] {
        let topic = |topic: &[u8]| [&[0, u8::try_from(topic.len()).unwrap()], topic, more].concat();
        // [MQTT-3.3.2-2]
        publish(version, &topic(b"a/+"), MqttError::Topic);
        publish(version, &topic(b"a/#"), MqttError::Topic);
        // [MQTT-4.7.3-1]
        publish(version, &topic(b""), MqttError::NoTopic);
        // [MQTT-1.5.3-2] of 3.1.1, [MQTT-1.5.4-2] of 5.0
        publish(version, &topic(b"a\0"), MqttError::Text);
        // [MQTT-1.5.3-1] of 3.1.1, [MQTT-1.5.4-1] of 5.0: a surrogate, a byte too many, one too few.
        for text in [&b"\xed\xa0\x80"[..], b"\xc0\x80", b"\xe2\x82"] {
            publish(version, &topic(text), MqttError::Text);
        }
        // [MQTT-2.3.1-1] of 3.1.1, [MQTT-2.2.1-3] of 5.0
        let no_id = [b"\0\x01a\0\0", more].concat();
        refused(version, Client, &of(0x32, &no_id), MqttError::PacketId);
    }
    let properties = |list: &[u8], error| {
        let body = [&b"\0\x01a"[..], &[u8::try_from(list.len()).unwrap()], list, b"\xff"].concat();
        publish(V5, &body, error);
    };
    properties(b"\x01\x01", MqttError::PayloadFormat);
    properties(b"\x01\x02", MqttError::PropertyValue(1));
    properties(b"\x01\0\x01\0", MqttError::PropertyTwice(1));
    // [MQTT-3.3.2-8]
    properties(b"\x23\0\0", MqttError::TopicAlias);
    // [MQTT-3.3.2-14]
    properties(b"\x08\0\x01+", MqttError::Topic);
    // [MQTT-3.3.4-6]
    properties(b"\x0b\x01", MqttError::Property(0x0b));
    properties(b"\x11\0\0\0\x01", MqttError::Property(0x11));
    properties(b"\x04", MqttError::Property(4));
    properties(b"\x02\0\0", MqttError::Truncated);
    publish(V5, b"\0\x01a\x05\x01\0", MqttError::Truncated);
    // An alias stands for the topic.
    accepted(V5, Client, &of(0x30, b"\0\0\x03\x23\0\x01"));
    let zero = of(0x30, b"\0\x01a\x02\x0b\0");
    refused(V5, Server, &zero, MqttError::PropertyValue(0x0b));
}

/// MQTT 5.0, sections 3.4 to 3.7.
#[test]
fn confirmations() {
    for (kind, first) in [
        (ConfirmType::Puback, 0x40),
        (ConfirmType::Pubrec, 0x50),
        (ConfirmType::Pubrel, 0x62),
        (ConfirmType::Pubcomp, 0x70),
    ] {
        let is_late = matches!(kind, ConfirmType::Pubrel | ConfirmType::Pubcomp);
        let reason =
            if is_late { ReasonCode::PacketIdentifierNotFound } else { ReasonCode::QuotaExceeded };
        let text = [(id::REASON_STRING, Value::Text("no"))];
        let confirm = |version, id, reason, all: &[_]| {
            written(|out| write::confirm(kind, version, id, reason, all, out))
        };
        assert_eq!(confirm(V3, 7, reason, &text).unwrap(), [first, 2, 0, 7]);
        assert_eq!(confirm(V5, 7, ReasonCode::Success, &[]).unwrap(), [first, 2, 0, 7]);
        let short = confirm(V5, 7, reason, &[]).unwrap();
        assert_eq!(short, [first, 3, 0, 7, reason.number()]);
        let long = confirm(V5, 7, reason, &text).unwrap();
        assert_eq!(long, of(first, &[0, 7, reason.number(), 5, 0x1f, 0, 2, b'n', b'o']));
        assert_eq!(confirm(V5, 0, reason, &[]), Err(WriteError::PacketId));
        accepted(V5, Client, &short);
        let (Packet::Puback(found)
        | Packet::Pubrec(found)
        | Packet::Pubrel(found)
        | Packet::Pubcomp(found)) = whole(&long, V5, Server).unwrap()
        else {
            panic!()
        };
        assert_eq!((found.id, found.reason), (7, reason));
        assert_eq!(found.properties.reason_string(), Some("no"));
        refused(V5, Client, &of(first, &[0, 0]), MqttError::PacketId);
        refused(V5, Client, &of(first, &[0, 7, 0x8e]), MqttError::Reason(0x8e));
        refused(V5, Client, &of(first, &[0, 7, 0, 0, 0]), MqttError::TooLong);
        let other = if is_late { 0x97 } else { 0x92 };
        refused(V5, Client, &of(first, &[0, 7, other]), MqttError::Reason(other));
    }
}

/// The examples of MQTT 3.1.1, sections 3.8.3 and 3.9.3: a/b with QoS 1 and c/d with QoS 2, and their results.
#[test]
fn subscribe_and_its_reply() {
    let bytes = of(0x82, b"\0\x0a\0\x03a/b\x01\0\x03c/d\x02");
    let Packet::Subscribe(it) = whole(&bytes, V3, Client).unwrap() else { panic!() };
    let found: Vec<_> = it.subscriptions().map(|one| (one.filter.filter, one.qos)).collect();
    assert_eq!(
        (it.id, &found[..]),
        (10, &[("a/b", Qos::AtLeastOnce), ("c/d", Qos::ExactlyOnce)][..])
    );
    let part = |filter, qos| SubscribeParts {
        filter,
        qos,
        no_local: false,
        retain_as_published: false,
        retain_handling: 0,
    };
    let parts = [part("a/b", Qos::AtLeastOnce), part("c/d", Qos::ExactlyOnce)];
    assert_eq!(written(|out| client::subscribe(V3, 10, &[], &parts, out)).unwrap(), bytes);

    let bytes = of(0x82, b"\0\x0a\x02\x0b\x07\0\x0a$share/g/+\x19\0\x01#\x26");
    let Packet::Subscribe(it) = whole(&bytes, V5, Client).unwrap() else { panic!() };
    assert_eq!(it.properties.subscription_identifiers().collect::<Vec<_>>(), [7]);
    let [shared, all] = it.subscriptions().collect::<Vec<_>>()[..] else { panic!() };
    assert_eq!((shared.filter.group, shared.filter.filter), (Some("g"), "+"));
    assert_eq!(
        (shared.no_local, shared.retain_as_published, shared.retain_handling),
        (false, true, 1)
    );
    assert_eq!((all.no_local, all.retain_as_published, all.retain_handling), (true, false, 2));

    accepted(V3, Server, &of(0x90, b"\0\x0a\0\x01\x02\x80"));
    refused(V3, Server, &of(0x90, b"\0\x0a\x87"), MqttError::Reason(0x87));
    accepted(V5, Server, &of(0x90, b"\0\x0a\0\x02\x87"));
    refused(V5, Server, &of(0x90, b"\0\x0a\0\x03"), MqttError::Reason(3));
    refused(V5, Server, &of(0x90, b"\0\x0a\0"), MqttError::NoResult);
    accepted(V5, Server, &of(0xb0, b"\0\x0a\0\0\x11"));
    refused(V5, Server, &of(0xb0, b"\0\x0a\0\x01"), MqttError::Reason(1));
    assert_eq!(
        written(|out| write::suback(V5, 10, &[], &[2], out)).unwrap(),
        b"\x90\x04\0\x0a\0\x02"
    );
    assert_eq!(written(|out| write::unsuback(V3, 10, &[], &[0], out)).unwrap(), b"\xb0\x02\0\x0a");
}

#[test]
fn subscribe_is_refused() {
    let both = |first: u8, after: &[u8], error| {
        refused(V3, Client, &of(first, &[b"\0\x0a", after].concat()), error);
        refused(V5, Client, &of(first, &[b"\0\x0a\0", after].concat()), error);
    };
    let five = |after: &[u8], error| refused(V5, Client, &of(0x82, after), error);
    let filter = |text| MqttError::Filter(model::filter::Filter::parse(text).unwrap_err());
    // [MQTT-3.8.3-3] of 3.1.1, [MQTT-3.8.3-2] of 5.0; [MQTT-3.10.3-2]
    both(0x82, b"", MqttError::NoFilter);
    both(0xa2, b"", MqttError::NoFilter);
    // [MQTT-4.7.3-1], [MQTT-4.7.1-2], [MQTT-4.7.1-3] of 3.1.1; [MQTT-4.7.1-1], [MQTT-4.7.1-2] of 5.0
    both(0x82, b"\0\0\0", filter(""));
    both(0x82, b"\0\x03a/#\0\0\x04#/ab\0", filter("#/ab"));
    both(0xa2, b"\0\x02a+", filter("a+"));
    // [MQTT-4.8.2-1]
    five(b"\0\x0a\0\0\x09$share//a\0", filter("$share//a"));
    // [MQTT-3.8.3-4] of 3.1.1, [MQTT-3.8.3-5] of 5.0
    both(0x82, b"\0\x01a\x40", MqttError::Options);
    refused(V3, Client, &of(0x82, b"\0\x0a\0\x01a\x04"), MqttError::Options);
    both(0x82, b"\0\x01a\x03", MqttError::SubscriptionQos);
    five(b"\0\x0a\0\0\x01a\x30", MqttError::RetainHandling);
    // [MQTT-3.8.3-4] of 5.0
    five(b"\0\x0a\0\0\x0a$share/g/a\x04", MqttError::SharedNoLocal);
    five(b"\0\x0a\x02\x0b\0\0\x01a\0", MqttError::PropertyValue(0x0b));
    five(b"\0\x0a\x04\x0b\x01\x0b\x02\0\x01a\0", MqttError::PropertyTwice(0x0b));
    both(0x82, b"\0\x01a", MqttError::Truncated);
    refused(V5, Client, &of(0x82, b"\0\0\0\0\x01a\0"), MqttError::PacketId);
}

#[test]
fn connack_and_the_end() {
    // [MQTT-3.2.2-4] of 3.1.1, [MQTT-3.2.2-6] of 5.0
    refused(V3, Server, &[0x20, 2, 1, 5], MqttError::ConnackFlags);
    refused(V5, Server, &[0x20, 3, 2, 0, 0], MqttError::ConnackFlags);
    refused(V3, Server, &[0x20, 2, 0, 6], MqttError::Reason(6));
    refused(V5, Server, &[0x20, 3, 0, 0x8e, 0], MqttError::Reason(0x8e));
    let limits = [(id::RECEIVE_MAXIMUM, Value::Number(20)), (id::MAXIMUM_QOS, Value::Number(1))];
    let bytes = written(|out| write::connack(V5, true, 0, &limits, out)).unwrap();
    assert_eq!(bytes, b"\x20\x08\x01\0\x05\x21\0\x14\x24\x01");
    let Packet::Connack(it) = whole(&bytes, V5, Server).unwrap() else { panic!() };
    assert_eq!((it.session_present, it.properties.receive_maximum()), (true, Some(20)));

    // DISCONNECT: each side has its own reasons. [MQTT-3.14.2-2]
    accepted(V5, Client, &[0xe0, 0]);
    accepted(V5, Client, &[0xe0, 1, 0x04]);
    refused(V5, Server, &[0xe0, 1, 0x04], MqttError::Reason(4));
    accepted(V5, Server, &[0xe0, 1, 0x8e]);
    refused(V5, Client, &[0xe0, 1, 0x8e], MqttError::Reason(0x8e));
    let expiry = of(0xe0, b"\0\x05\x11\0\0\0\x01");
    accepted(V5, Client, &expiry);
    refused(V5, Server, &expiry, MqttError::Property(0x11));

    // AUTH has a method; only success may omit it, and only from a server.
    accepted(V5, Client, &of(0xf0, b"\x19\x04\x15\0\x01m"));
    accepted(V5, Server, &[0xf0, 0]);
    refused(V5, Client, &[0xf0, 0], MqttError::Reason(0));
    refused(V5, Client, &[0xf0, 1, 0x19], MqttError::AuthenticationMethod);
    refused(V5, Server, &[0xf0, 2, 0x18, 0], MqttError::AuthenticationMethod);
    refused(V5, Server, &of(0xf0, b"\x19\x04\x15\0\x01m"), MqttError::Reason(0x19));
}

#[test]
fn what_is_too_long_is_not_written() {
    let long = "x".repeat(65_536);
    let parts = |topic| PublishParts {
        version: V5,
        dup: false,
        qos: Qos::AtMostOnce,
        retain: false,
        topic,
        id: 0,
        properties: [(id::CONTENT_TYPE, Value::Text(&long))].into_iter(),
        payload: b"",
    };
    assert_eq!(written(|out| parts("a").write(out)), Err(WriteError::Field(65_536)));
    assert_eq!(written(|out| parts(&long).write(out)), Err(WriteError::Field(65_536)));
    let filters = [&long[1..], &long];
    let unsubscribe =
        |filters: &[&str]| written(|out| client::unsubscribe(V3, 1, &[], filters, out));
    assert_eq!(unsubscribe(&filters), Err(WriteError::Field(65_536)));
    assert_eq!(unsubscribe(&filters[..1]).unwrap().len(), 4 + 2 + 2 + 65_535);
    let many = vec![&long[1..]; 4_096];
    assert_eq!(unsubscribe(&many), Err(WriteError::Packet(2 + 4_096 * 65_537)));
    for (number, value) in [
        (id::TOPIC_ALIAS, Value::Number(65_536)),
        (id::MAXIMUM_QOS, Value::Number(256)),
        (id::SUBSCRIPTION_IDENTIFIER, Value::Number(1 << 28)),
        (id::CONTENT_TYPE, Value::Number(1)),
        (id::TOPIC_ALIAS, Value::Text("x")),
        (0x04, Value::Number(1)),
    ] {
        let auth = written(|out| write::auth(ReasonCode::ReAuthenticate, &[(number, value)], out));
        assert_eq!(auth, Err(WriteError::Property(number)));
    }
}

#[test]
fn reasons() {
    assert_eq!(ReasonCode::ALL.len(), 43);
    assert!(ReasonCode::ALL.is_sorted_by_key(|code| code.number()));
    for number in 0..=255 {
        let code = ReasonCode::from_number(number);
        assert_eq!(code.map(ReasonCode::number), code.map(|_| number));
        assert_eq!(code.is_some(), ReasonCode::ALL.iter().any(|code| code.number() == number));
    }
    for code in ConnectReturnCode::ALL {
        assert_eq!(ConnectReturnCode::from_number(code.number()), Some(code));
        assert_eq!(code.reason().connect_return(), code);
    }
    let explained = |of| ReasonCode::ALL.iter().filter_map(move |code| code.text(of));
    for of in [ReasonOf::Message, ReasonOf::Subscription, ReasonOf::Connection] {
        assert!(explained(of).all(|text| (20..120).contains(&text.len())));
        assert_eq!(ReasonCode::Success.text(of), None);
    }
    assert_eq!(ReasonCode::ServerBusy.connect_return_code(), 3);
    assert_eq!(ReasonCode::Banned.connect_return_code(), 5);
    // A reason without a code in the packet becomes another code.
    let (mqtt, limits) = (Mqtt { version: V5, framed: false }, ClientLimits::default());
    let whole_of = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        write(&mut bytes);
        let first = whole(&bytes, V5, Server).map(|_| bytes[0]);
        first.unwrap_or_else(|error| panic!("{bytes:02x?}: {error}"))
    };
    for &code in ReasonCode::ALL.iter().filter(|code| code.is_error()) {
        assert_eq!(whole_of(&|out| mqtt.refuse(code, None, &limits, out)), 0x20);
        assert_eq!(whole_of(&|out| mqtt.subscribed(7, &[Err(code)], &limits, out)), 0x90);
        assert_eq!(whole_of(&|out| mqtt.unsubscribed(7, &[code], &limits, out)), 0xb0);
    }
    // The code for each error.
    for (error, code) in [
        (MqttError::Truncated, 0x81),
        (MqttError::PropertyTwice(1), 0x82),
        (MqttError::Version, 0x84),
        (MqttError::Topic, 0x90),
        (MqttError::TopicAlias, 0x94),
        (MqttError::TooLarge(1), 0x95),
        (MqttError::PayloadFormat, 0x99),
    ] {
        assert_eq!(error.reason().number(), code);
    }
}
