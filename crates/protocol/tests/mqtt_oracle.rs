//! The codec of MQTT beside rumqttc's two: what one writes the other reads alike, and what one refuses the
//! other refuses.
//!
//! Deliberate differences, where the codec is right by the standards:
//!
//! - rumqttc has no reader for AUTH, wants a reason and properties in DISCONNECT of 5.0 (section 3.14.2 lets
//!   them be left out), does not know the name that 3.1 has, wants a user name with each password and a password
//!   that is UTF-8 (5.0, section 3.1.3.6), and does not write empty ones: [`is_unknown_to_them`].
//! - rumqttc knows neither flags of fixed headers nor which side sends a packet, lets properties go on behind
//!   their length, and packets behind their last field, takes any text, and never asks whether a topic, a filter,
//!   an identifier, a value or options are allowed there. Both refuse what [`is_refused_by_both`] says.

mod mqtt_packets;

use std::panic::catch_unwind;

use bytes::BytesMut;
use mqtt_packets::{BYTES_MAX, Sent, mutated, packet};
use proptest::prelude::*;
use protocol::mqtt::{MqttError, Packet, Properties, Version, read};
use rumqttc::mqttbytes::v4;
use rumqttc::v5::mqttbytes::v5;

/// What the oracle reads, written again by it; nothing where it refuses.
fn theirs(sent: &Sent) -> Option<Vec<u8>> {
    const MAX: u32 = 1 << 16;
    let bytes = sent.bytes.clone();
    let version = sent.version;
    // It panics at some of what is damaged.
    catch_unwind(move || {
        let (mut input, mut output) = (BytesMut::from(&bytes[..]), BytesMut::new());
        match version {
            Version::V3 => {
                let packet = v4::Packet::read(&mut input, BYTES_MAX).ok()?;
                packet.write(&mut output, BYTES_MAX).ok()?;
            }
            Version::V5 => {
                let packet = v5::Packet::read(&mut input, Some(MAX)).ok()?;
                packet.write(&mut output, Some(MAX)).ok()?;
            }
        }
        Some(output.to_vec())
    })
    .ok()
    .flatten()
}

/// The packet without its properties, and these, each kind in its order: rumqttc has an order of its own.
fn parts(mut packet: Packet<'_>) -> (String, Vec<(u8, String)>) {
    let mut all = Vec::new();
    let mut take = |properties: &mut Properties<'_>| {
        let consumed = std::mem::take(properties);
        let from = all.len();
        all.extend(consumed.iter().map(|(id, value)| (id, format!("{value:?}"))));
        all[from..].sort_by_key(|(id, _)| *id);
    };
    match &mut packet {
        Packet::Connect(it) => {
            take(&mut it.properties);
            it.will.iter_mut().for_each(|will| take(&mut will.properties));
        }
        Packet::Connack(it) => take(&mut it.properties),
        Packet::Publish(it) => take(&mut it.properties),
        Packet::Puback(it) | Packet::Pubrec(it) | Packet::Pubrel(it) | Packet::Pubcomp(it) => {
            take(&mut it.properties);
        }
        Packet::Subscribe(it) => take(&mut it.properties),
        Packet::Unsubscribe(it) => take(&mut it.properties),
        Packet::Suback(it) | Packet::Unsuback(it) => take(&mut it.properties),
        Packet::Disconnect(it) | Packet::Auth(it) => take(&mut it.properties),
        Packet::Pingreq | Packet::Pingresp => {}
    }
    (format!("{packet:?}"), all)
}

/// What is right and rumqttc can't read, or not whole.
fn is_unknown_to_them(packet: &Packet<'_>, sent: &Sent) -> bool {
    match packet {
        Packet::Auth(_) => true,
        Packet::Disconnect(_) => sent.version == Version::V5 && sent.bytes[1] < 2,
        Packet::Connect(it) => {
            let is_full = it.user.is_some_and(|user| !user.is_empty())
                && it.password.is_some_and(|password| {
                    !password.is_empty() && std::str::from_utf8(password).is_ok()
                });
            let has_login = it.user.is_some() || it.password.is_some();
            it.is_3_1 || it.version != sent.version || (has_login && !is_full)
        }
        _ => false,
    }
}

/// What rumqttc looks at as we do.
fn is_refused_by_both(error: MqttError) -> bool {
    matches!(
        error,
        MqttError::Length
            | MqttError::ProtocolName
            | MqttError::Version
            | MqttError::Qos
            | MqttError::SubscriptionQos
            | MqttError::ReservedType(_)
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn both_read_alike(sent in packet()) {
        let found = read(&sent.bytes, sent.known(), sent.from, BYTES_MAX);
        let Ok(Some((ours, _))) = found else { panic!("{found:?}") };
        if is_unknown_to_them(&ours, &sent) {
            return Ok(());
        }
        let Some(again) = theirs(&sent) else { panic!("{ours:?}") };
        let found = read(&again, sent.known(), sent.from, BYTES_MAX);
        let Ok(Some((found, _))) = found else { panic!("{found:?} in {again:02x?}") };
        prop_assert_eq!(parts(found), parts(ours));
    }

    #[test]
    fn both_refuse_alike(sent in mutated()) {
        let ours = read(&sent.bytes, sent.known(), sent.from, BYTES_MAX);
        match (ours, theirs(&sent)) {
            (Ok(Some((packet, _))), None) => {
                prop_assert!(is_unknown_to_them(&packet, &sent), "they refuse {packet:?}");
            }
            (Err(error), Some(_)) => prop_assert!(!is_refused_by_both(error), "they take {error:?}"),
            (Ok(None), Some(read)) => prop_assert!(false, "they read {read:02x?}"),
            (Ok(_) | Err(_), _) => {}
        }
    }
}
