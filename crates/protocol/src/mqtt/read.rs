//! Reads packets (MQTT 5.0 and 3.1.1, sections 2 and 3), and rejects what the standards call malformed or a protocol
//! error, as far as one packet shows it.

use model::Qos;
use model::filter::{Filter, check_name};

use super::MqttError;
use super::allowed;
use super::cursor::{Cursor, is_shortest, variable};
use super::packet::{
    Confirm, Connack, Connect, Disconnect, Packet, Publish, Results, Side, Subscribe, Unsubscribe,
    Version, Will, subscription,
};
use super::property::{Properties, PropertyContext};
use super::reason::ReasonCode;

/// The size of the first packet of `bytes` in bytes, including its fixed header, at most 268,435,460; `None` until
/// the length has come.
///
/// # Errors
/// The remaining length is invalid.
pub fn packet_bytes(bytes: &[u8]) -> Result<Option<usize>, MqttError> {
    let Some(rest) = bytes.get(1..) else { return Ok(None) };
    Ok(variable(rest)?.map(|(length, consumed)| 1 + consumed + length as usize))
}

/// Reads the first packet, which `from` sent, and returns it with its size in bytes; `None` until it is complete.
/// Without a version it must be CONNECT, and with one it must not.
///
/// # Errors
/// The error that ends the connection. Errors of the first bytes (type, flags, length, protocol name) come before the
/// packet is complete.
pub fn read(
    bytes: &[u8],
    version: Option<Version>,
    from: Side,
    packet_bytes_max: usize,
) -> Result<Option<(Packet<'_>, usize)>, MqttError> {
    let Some(first) = bytes.first() else { return Ok(None) };
    let (kind, flags) = (first >> 4, first & 0x0f);
    check_kind(kind, flags, version, from)?;
    let Some((length, consumed)) = variable(&bytes[1..])? else { return Ok(None) };
    if version == Some(Version::V5) && !is_shortest(length, consumed) {
        return Err(MqttError::NotShortest);
    }
    check_length(kind, version, length)?;
    let total = 1 + consumed + length as usize;
    if total > packet_bytes_max {
        return Err(MqttError::TooLarge(packet_bytes_max));
    }
    if kind == CONNECT {
        check_protocol(&bytes[1 + consumed..])?;
    }
    let Some(body) = bytes.get(1 + consumed..total) else { return Ok(None) };
    let mut cursor = Cursor(body);
    let packet = packet(kind, flags, &mut cursor, version.unwrap_or(Version::V3), from)?;
    cursor.end()?;
    if let Packet::Connect(Connect { version: Version::V5, .. }) = packet
        && !is_shortest(length, consumed)
    {
        return Err(MqttError::NotShortest);
    }
    Ok(Some((packet, total)))
}

const CONNECT: u8 = 1;

/// Checks that a packet with this type and these flags may come now.
fn check_kind(kind: u8, flags: u8, version: Option<Version>, from: Side) -> Result<(), MqttError> {
    match (version, kind == CONNECT) {
        (None, false) => return Err(MqttError::ConnectFirst),
        (Some(_), true) if from == Side::Client => return Err(MqttError::ConnectAgain),
        _ => {}
    }
    if kind == 0 || (kind == 15 && version == Some(Version::V3)) {
        return Err(MqttError::ReservedType(kind));
    }
    // In MQTT 3 only clients send DISCONNECT.
    let is_both = matches!(kind, 3..=7 | 15) || (kind == 14 && version == Some(Version::V5));
    let (fits, to) = match from {
        Side::Client => (matches!(kind, CONNECT | 8 | 10 | 12 | 14), "server"),
        Side::Server => (matches!(kind, 2 | 9 | 11 | 13), "client"),
    };
    if !(is_both || fits) {
        return Err(MqttError::PacketType(to));
    }
    match (kind, flags) {
        (3, _) if flags & 0b0110 == 0b0110 => Err(MqttError::Qos),
        (3, _) if flags & 0b1110 == 0b1000 => Err(MqttError::Duplicate),
        (3, _) | (6 | 8 | 10, 0b0010) => Ok(()),
        (6 | 8 | 10, _) => Err(MqttError::Flags),
        (_, 0) => Ok(()),
        _ => Err(MqttError::Flags),
    }
}

/// Checks the remaining length against the packet's type.
fn check_length(kind: u8, version: Option<Version>, length: u32) -> Result<(), MqttError> {
    let is_v5 = version == Some(Version::V5);
    let (min, max) = match kind {
        CONNECT => (12, u32::MAX),
        12 | 13 => (0, 0),
        14 if !is_v5 => (0, 0),
        14 | 15 => (0, u32::MAX),
        2 | 4..=7 | 11 if !is_v5 => (2, 2),
        _ => (2, u32::MAX),
    };
    match length {
        _ if length < min => Err(MqttError::Truncated),
        _ if length > max => Err(MqttError::TooLong),
        _ => Ok(()),
    }
}

/// Checks that the received part of CONNECT begins with the protocol's name.
fn check_protocol(body: &[u8]) -> Result<(), MqttError> {
    let begins = |name: &[u8]| body.iter().zip(name).all(|(one, other)| one == other);
    if begins(b"\0\x04MQTT") || begins(b"\0\x06MQIsdp") {
        Ok(())
    } else {
        Err(MqttError::ProtocolName)
    }
}

fn packet<'a>(
    kind: u8,
    flags: u8,
    cursor: &mut Cursor<'a>,
    version: Version,
    from: Side,
) -> Result<Packet<'a>, MqttError> {
    Ok(match kind {
        CONNECT => Packet::Connect(connect(cursor)?),
        2 => Packet::Connack(connack(cursor, version)?),
        3 => Packet::Publish(publish(flags, cursor, version, from)?),
        4 => Packet::Puback(confirm(cursor, version, allowed::PUBACK)?),
        5 => Packet::Pubrec(confirm(cursor, version, allowed::PUBACK)?),
        6 => Packet::Pubrel(confirm(cursor, version, allowed::PUBREL)?),
        7 => Packet::Pubcomp(confirm(cursor, version, allowed::PUBREL)?),
        8 => Packet::Subscribe(subscribe(cursor, version)?),
        9 => Packet::Suback(suback(cursor, version)?),
        10 => Packet::Unsubscribe(unsubscribe(cursor, version)?),
        11 => Packet::Unsuback(unsuback(cursor, version)?),
        12 => Packet::Pingreq,
        13 => Packet::Pingresp,
        14 => Packet::Disconnect(disconnect(cursor, version, from)?),
        _ => Packet::Auth(auth(cursor, from)?),
    })
}

fn properties<'a>(
    cursor: &mut Cursor<'a>,
    version: Version,
    context: PropertyContext,
) -> Result<Properties<'a>, MqttError> {
    match version {
        Version::V3 => Ok(Properties::NONE),
        Version::V5 => Properties::read(cursor, context),
    }
}

fn connect<'a>(cursor: &mut Cursor<'a>) -> Result<Connect<'a>, MqttError> {
    let name = cursor.text()?;
    let level = cursor.byte()?;
    let (version, is_3_1) = match (name, level) {
        ("MQTT", 4) => (Version::V3, false),
        ("MQTT", 5) => (Version::V5, false),
        ("MQIsdp", 3) => (Version::V3, true),
        ("MQTT" | "MQIsdp", _) => return Err(MqttError::Version),
        _ => return Err(MqttError::ProtocolName),
    };
    let flags = cursor.byte()?;
    let has = |bit: u8| flags & bit != 0;
    let will_qos = Qos::from_number(flags >> 3 & 3).ok_or(MqttError::ConnectFlags)?;
    let (has_user, has_password, has_will) = (has(0x80), has(0x40), has(0x04));
    let is_bare = will_qos == Qos::AtMostOnce && !has(0x20);
    if has(0x01) || (!has_will && !is_bare) || (version == Version::V3 && has_password && !has_user)
    {
        return Err(MqttError::ConnectFlags);
    }
    let keep_alive_s = cursor.two()?;
    let own = properties(cursor, version, PropertyContext::Connect)?;
    let client = cursor.text()?;
    let will = if has_will {
        let properties = properties(cursor, version, PropertyContext::Will)?;
        let topic = topic(cursor.text()?)?;
        check_response_topic(&properties)?;
        let payload = cursor.binary()?;
        check_payload(&properties, payload)?;
        Some(Will { qos: will_qos, retain: has(0x20), properties, topic, payload })
    } else {
        None
    };
    let user = if has_user { Some(cursor.text()?) } else { None };
    let password = if has_password { Some(cursor.binary()?) } else { None };
    let (clean, properties) = (has(0x02), own);
    Ok(Connect { version, is_3_1, clean, keep_alive_s, properties, client, will, user, password })
}

fn connack<'a>(cursor: &mut Cursor<'a>, version: Version) -> Result<Connack<'a>, MqttError> {
    let flags = cursor.byte()?;
    let code = cursor.byte()?;
    if flags > 1 || (flags == 1 && code != 0) {
        return Err(MqttError::ConnackFlags);
    }
    allowed::check_connack(code, version)?;
    let properties = properties(cursor, version, PropertyContext::Connack)?;
    Ok(Connack { session_present: flags == 1, code, properties })
}

fn publish<'a>(
    flags: u8,
    cursor: &mut Cursor<'a>,
    version: Version,
    from: Side,
) -> Result<Publish<'a>, MqttError> {
    let qos = Qos::from_number(flags >> 1 & 3).ok_or(MqttError::Qos)?;
    let name = cursor.text()?;
    let id = if qos.is_confirmed() { cursor.packet_id()? } else { 0 };
    let context = match from {
        Side::Client => PropertyContext::ClientPublish,
        Side::Server => PropertyContext::Publish,
    };
    let properties = properties(cursor, version, context)?;
    let topic = match name.is_empty() {
        true if properties.topic_alias().is_some() => name,
        true => return Err(MqttError::NoTopic),
        false => topic(name)?,
    };
    check_response_topic(&properties)?;
    let payload = cursor.take(cursor.0.len())?;
    check_payload(&properties, payload)?;
    let (dup, retain) = (flags & 8 != 0, flags & 1 != 0);
    Ok(Publish { dup, qos, retain, topic, id, properties, payload })
}

/// Checks that a client may publish to this topic.
fn topic(name: &str) -> Result<&str, MqttError> {
    check_name(name).map(|()| name).map_err(|_| MqttError::Topic)
}

/// A response topic has no wildcards.
fn check_response_topic(properties: &Properties<'_>) -> Result<(), MqttError> {
    properties.response_topic().map_or(Ok(""), topic).map(drop)
}

/// Checks that a payload is UTF-8 if its format indicator says so.
fn check_payload(properties: &Properties<'_>, payload: &[u8]) -> Result<(), MqttError> {
    if properties.payload_is_text() == Some(true) && simdutf8::basic::from_utf8(payload).is_err() {
        return Err(MqttError::PayloadFormat);
    }
    Ok(())
}

fn confirm<'a>(
    cursor: &mut Cursor<'a>,
    version: Version,
    allowed: &[u8],
) -> Result<Confirm<'a>, MqttError> {
    let id = cursor.packet_id()?;
    let mut confirm = Confirm { id, reason: ReasonCode::Success, properties: Properties::NONE };
    if version == Version::V5 && !cursor.is_empty() {
        confirm.reason = allowed::reason(cursor.byte()?, allowed)?;
        if !cursor.is_empty() {
            confirm.properties = Properties::read(cursor, PropertyContext::Confirm)?;
        }
    }
    Ok(confirm)
}

fn subscribe<'a>(cursor: &mut Cursor<'a>, version: Version) -> Result<Subscribe<'a>, MqttError> {
    let id = cursor.packet_id()?;
    let properties = properties(cursor, version, PropertyContext::Subscribe)?;
    let filters = cursor.take(cursor.0.len())?;
    let mut left = Cursor(filters);
    if left.is_empty() {
        return Err(MqttError::NoFilter);
    }
    while !left.is_empty() {
        subscription(&mut left, version)?;
    }
    Ok(Subscribe { id, properties, version, filters })
}

fn unsubscribe<'a>(
    cursor: &mut Cursor<'a>,
    version: Version,
) -> Result<Unsubscribe<'a>, MqttError> {
    let id = cursor.packet_id()?;
    let properties = properties(cursor, version, PropertyContext::Unsubscribe)?;
    let filters = cursor.take(cursor.0.len())?;
    let mut left = Cursor(filters);
    if left.is_empty() {
        return Err(MqttError::NoFilter);
    }
    while !left.is_empty() {
        Filter::parse(left.text()?).map_err(MqttError::Filter)?;
    }
    Ok(Unsubscribe { id, properties, filters })
}

fn suback<'a>(cursor: &mut Cursor<'a>, version: Version) -> Result<Results<'a>, MqttError> {
    let id = cursor.packet_id()?;
    let properties = properties(cursor, version, PropertyContext::Confirm)?;
    let codes = cursor.take(cursor.0.len())?;
    if codes.is_empty() {
        return Err(MqttError::NoResult);
    }
    codes.iter().try_for_each(|code| allowed::check_suback(*code, version))?;
    Ok(Results { id, properties, codes })
}

fn unsuback<'a>(cursor: &mut Cursor<'a>, version: Version) -> Result<Results<'a>, MqttError> {
    let id = cursor.packet_id()?;
    if version == Version::V3 {
        return Ok(Results { id, properties: Properties::NONE, codes: &[] });
    }
    let properties = Properties::read(cursor, PropertyContext::Confirm)?;
    let codes = cursor.take(cursor.0.len())?;
    if codes.is_empty() {
        return Err(MqttError::NoResult);
    }
    codes.iter().try_for_each(|code| allowed::check_unsuback(*code))?;
    Ok(Results { id, properties, codes })
}

fn disconnect<'a>(
    cursor: &mut Cursor<'a>,
    version: Version,
    from: Side,
) -> Result<Disconnect<'a>, MqttError> {
    let mut end = Disconnect { reason: ReasonCode::Success, properties: Properties::NONE };
    if version == Version::V5 && !cursor.is_empty() {
        end.reason = allowed::reason(cursor.byte()?, allowed::disconnect(from))?;
        if !cursor.is_empty() {
            let context = match from {
                Side::Client => PropertyContext::ClientDisconnect,
                Side::Server => PropertyContext::Disconnect,
            };
            end.properties = Properties::read(cursor, context)?;
        }
    }
    Ok(end)
}

/// Only success may omit the method (MQTT 5.0, section 3.15.2.1).
fn auth<'a>(cursor: &mut Cursor<'a>, from: Side) -> Result<Disconnect<'a>, MqttError> {
    if cursor.is_empty() {
        let reason = allowed::reason(0, allowed::auth(from))?;
        return Ok(Disconnect { reason, properties: Properties::NONE });
    }
    let reason = allowed::reason(cursor.byte()?, allowed::auth(from))?;
    if cursor.is_empty() {
        return Err(MqttError::AuthenticationMethod);
    }
    Ok(Disconnect { reason, properties: Properties::read(cursor, PropertyContext::Auth)? })
}
