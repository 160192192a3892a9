//! Writes packets: those of both sides, and those of servers. Each function appends one packet, or nothing and
//! returns an error. It checks nothing else: tests write invalid packets.

use model::Qos;

use super::cursor::{put_binary, put_variable, variable_bytes};
use super::packet::Version;
use super::property::{Form, Value, form};
use super::{ReasonCode, WriteError};

/// Bytes of a packet behind its fixed header, at most (MQTT 5.0, section 2.1.4).
pub const REMAINING_BYTES_MAX: usize = 268_435_455;

/// A property to write, by its number (see [`property::id`](super::property::id)).
pub type Property<'a> = (u8, Value<'a>);

/// Appends a packet with this first byte (type and flags) and the body that `body` appends.
pub(super) fn packet(
    first: u8,
    out: &mut Vec<u8>,
    body: impl FnOnce(&mut Vec<u8>) -> Result<(), WriteError>,
) -> Result<(), WriteError> {
    let before = out.len();
    out.push(first);
    let from = out.len();
    let written = body(out).and_then(|()| remaining(out.len() - from));
    let length = match written {
        Ok(length) => length,
        Err(error) => {
            out.truncate(before);
            return Err(error);
        }
    };
    let end = out.len();
    put_variable(length, out);
    // Moves the length before the body. Most packets are short, and move by one byte.
    let header = out.len() - end;
    out[from..].rotate_right(header);
    Ok(())
}

/// Checks and converts a remaining length.
pub(super) fn remaining(bytes: usize) -> Result<u32, WriteError> {
    let length = u32::try_from(bytes).ok().filter(|_| bytes <= REMAINING_BYTES_MAX);
    length.ok_or(WriteError::Packet(bytes))
}

/// Appends properties behind their length.
pub(super) fn properties<'a>(
    all: impl Iterator<Item = Property<'a>> + Clone,
    out: &mut Vec<u8>,
) -> Result<(), WriteError> {
    put_variable(remaining(properties_bytes(all.clone()))?, out);
    all.into_iter().try_for_each(|(number, value)| property(number, value, out))
}

/// Appends properties in MQTT 5.0 only.
pub(super) fn properties_of(
    version: Version,
    all: &[Property<'_>],
    out: &mut Vec<u8>,
) -> Result<(), WriteError> {
    match version {
        Version::V3 => Ok(()),
        Version::V5 => properties(all.iter().copied(), out),
    }
}

pub(super) fn properties_bytes<'a>(all: impl Iterator<Item = Property<'a>>) -> usize {
    all.map(|(number, value)| property_bytes(number, value)).sum()
}

fn property_bytes(number: u8, value: Value<'_>) -> usize {
    1 + match value {
        Value::Number(value) => match form(number) {
            Some(Form::Four) => 4,
            Some(Form::Two) => 2,
            Some(Form::Variable) => variable_bytes(value as usize),
            _ => 1,
        },
        Value::Text(text) => 2 + text.len(),
        Value::Binary(bytes) => 2 + bytes.len(),
        Value::Pair(name, value) => 4 + name.len() + value.len(),
    }
}

pub(super) fn property(number: u8, value: Value<'_>, out: &mut Vec<u8>) -> Result<(), WriteError> {
    let none = WriteError::Property(number);
    let form = form(number).ok_or(none)?;
    out.push(number);
    match (form, value) {
        (Form::Byte, Value::Number(value)) => out.push(u8::try_from(value).map_err(|_| none)?),
        (Form::Two, Value::Number(value)) => {
            out.extend_from_slice(&u16::try_from(value).map_err(|_| none)?.to_be_bytes());
        }
        (Form::Four, Value::Number(value)) => out.extend_from_slice(&value.to_be_bytes()),
        (Form::Variable, Value::Number(value)) => {
            put_variable(remaining(value as usize).map_err(|_| none)?, out);
        }
        (Form::Text, Value::Text(text)) => put_binary(text.as_bytes(), out)?,
        (Form::Binary, Value::Binary(bytes)) => put_binary(bytes, out)?,
        (Form::Pair, Value::Pair(name, value)) => {
            put_binary(name.as_bytes(), out)?;
            put_binary(value.as_bytes(), out)?;
        }
        _ => return Err(none),
    }
    Ok(())
}

/// The parts of PUBLISH.
#[derive(Clone, Copy, Debug)]
pub struct PublishParts<'a, P> {
    /// The version.
    pub version: Version,
    /// The sender may have sent it before.
    pub dup: bool,
    /// The QoS.
    pub qos: Qos,
    /// The message is to be retained, or was.
    pub retain: bool,
    /// The topic; empty if an alias stands for it.
    pub topic: &'a str,
    /// The packet identifier; ignored with QoS 0.
    pub id: u16,
    /// Properties of 5.0.
    pub properties: P,
    /// The message.
    pub payload: &'a [u8],
}

impl<'a, P: Iterator<Item = Property<'a>> + Clone> PublishParts<'a, P> {
    /// The size of the packet, in bytes.
    pub fn bytes(&self) -> usize {
        let body = self.body_bytes();
        1 + variable_bytes(body) + body
    }

    fn body_bytes(&self) -> usize {
        let id = if self.qos.is_confirmed() { 2 } else { 0 };
        let properties = match self.version {
            Version::V3 => 0,
            Version::V5 => {
                let bytes = properties_bytes(self.properties.clone());
                variable_bytes(bytes) + bytes
            }
        };
        2 + self.topic.len() + id + properties + self.payload.len()
    }

    /// Appends the packet.
    ///
    /// # Errors
    /// A field or the whole is too long, or QoS 1 or 2 has no packet identifier.
    pub fn write(&self, out: &mut Vec<u8>) -> Result<(), WriteError> {
        let before = out.len();
        let written = self.append(out);
        if written.is_err() {
            out.truncate(before);
        }
        written
    }

    fn append(&self, out: &mut Vec<u8>) -> Result<(), WriteError> {
        let body = self.body_bytes();
        let length = remaining(body)?;
        out.reserve(body + 5);
        out.push(publish_first(self.dup, self.qos, self.retain));
        put_variable(length, out);
        put_binary(self.topic.as_bytes(), out)?;
        if self.qos.is_confirmed() {
            put_id(self.id, out)?;
        }
        if self.version == Version::V5 {
            properties(self.properties.clone(), out)?;
        }
        out.extend_from_slice(self.payload);
        Ok(())
    }
}

/// The first byte of PUBLISH.
pub(super) fn publish_first(dup: bool, qos: Qos, retain: bool) -> u8 {
    0x30 | u8::from(dup) << 3 | qos.number() << 1 | u8::from(retain)
}

pub(super) fn put_id(id: u16, out: &mut Vec<u8>) -> Result<(), WriteError> {
    if id == 0 {
        return Err(WriteError::PacketId);
    }
    out.extend_from_slice(&id.to_be_bytes());
    Ok(())
}

/// The packets that confirm a message or a step (MQTT 5.0, sections 3.4 to 3.7), by their types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ConfirmType {
    /// PUBACK.
    Puback = 4,
    /// PUBREC.
    Pubrec = 5,
    /// PUBREL.
    Pubrel = 6,
    /// PUBCOMP.
    Pubcomp = 7,
}

/// Appends PUBACK, PUBREC, PUBREL or PUBCOMP. In MQTT 3 they have neither a reason nor properties.
///
/// # Errors
/// The identifier is 0, or a property can't be written.
pub fn confirm(
    kind: ConfirmType,
    version: Version,
    id: u16,
    reason: ReasonCode,
    all: &[Property<'_>],
    out: &mut Vec<u8>,
) -> Result<(), WriteError> {
    let flags = if kind == ConfirmType::Pubrel { 2 } else { 0 };
    packet((kind as u8) << 4 | flags, out, |out| {
        put_id(id, out)?;
        put_reason(version, reason, all, out)
    })
}

/// Appends a reason and properties, each only if it must be sent.
fn put_reason(
    version: Version,
    reason: ReasonCode,
    all: &[Property<'_>],
    out: &mut Vec<u8>,
) -> Result<(), WriteError> {
    // The receiver takes a missing reason for success.
    if version == Version::V5 && (reason != ReasonCode::Success || !all.is_empty()) {
        out.push(reason.number());
        if !all.is_empty() {
            properties(all.iter().copied(), out)?;
        }
    }
    Ok(())
}

/// Appends CONNACK, with the code of its version: a [`ReasonCode`]'s or a
/// [`ConnectReturnCode`](super::ConnectReturnCode)'s.
///
/// # Errors
/// A property can't be written.
pub fn connack(
    version: Version,
    session_present: bool,
    code: u8,
    all: &[Property<'_>],
    out: &mut Vec<u8>,
) -> Result<(), WriteError> {
    packet(0x20, out, |out| {
        out.extend_from_slice(&[u8::from(session_present), code]);
        properties_of(version, all, out)
    })
}

/// Appends SUBACK, with a code for each filter of the SUBSCRIBE.
///
/// # Errors
/// The identifier is 0, a property can't be written, or there are too many codes.
pub fn suback(
    version: Version,
    id: u16,
    all: &[Property<'_>],
    codes: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), WriteError> {
    packet(0x90, out, |out| {
        put_id(id, out)?;
        properties_of(version, all, out)?;
        out.extend_from_slice(codes);
        Ok(())
    })
}

/// Appends UNSUBACK. In MQTT 3 it has no codes.
///
/// # Errors
/// The identifier is 0, a property can't be written, or there are too many codes.
pub fn unsuback(
    version: Version,
    id: u16,
    all: &[Property<'_>],
    codes: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), WriteError> {
    packet(0xb0, out, |out| {
        put_id(id, out)?;
        properties_of(version, all, out)?;
        out.extend_from_slice(if version == Version::V5 { codes } else { &[] });
        Ok(())
    })
}

/// Appends PINGRESP.
pub fn pingresp(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0xd0, 0]);
}

/// Appends DISCONNECT. In MQTT 3 it has no reason, and servers send none.
///
/// # Errors
/// A property can't be written.
pub fn disconnect(
    version: Version,
    reason: ReasonCode,
    all: &[Property<'_>],
    out: &mut Vec<u8>,
) -> Result<(), WriteError> {
    packet(0xe0, out, |out| put_reason(version, reason, all, out))
}

/// Appends AUTH, which only 5.0 has. Except for plain success, the properties need an authentication method.
///
/// # Errors
/// A property can't be written.
pub fn auth(reason: ReasonCode, all: &[Property<'_>], out: &mut Vec<u8>) -> Result<(), WriteError> {
    packet(0xf0, out, |out| put_reason(Version::V5, reason, all, out))
}
