//! The reason codes that each packet may have (MQTT 5.0, sections 3.2.2.2, 3.4.2.1 to 3.7.2.1, 3.9.3, 3.11.3,
//! 3.14.2.1 and 3.15.2.1; MQTT 3.1.1, sections 3.2.2.3 and 3.9.3).

use super::MqttError;
use super::packet::{Side, Version};
use super::reason::ReasonCode;

pub(super) const CONNACK: &[u8] = &[
    0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x8c, 0x90, 0x95, 0x97,
    0x99, 0x9a, 0x9b, 0x9c, 0x9d, 0x9f,
];

pub(super) const SUBACK: &[u8] =
    &[0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8f, 0x91, 0x97, 0x9e, 0xa1, 0xa2];

pub(super) const UNSUBACK: &[u8] = &[0x00, 0x11, 0x80, 0x83, 0x87, 0x8f, 0x91];

/// PUBACK and PUBREC.
pub(super) const PUBACK: &[u8] = &[0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99];

/// PUBREL and PUBCOMP.
pub(super) const PUBREL: &[u8] = &[0x00, 0x92];

const CLIENT_DISCONNECT: &[u8] =
    &[0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99];

/// Only the table of section 2.4 has 0x8c for DISCONNECT.
const SERVER_DISCONNECT: &[u8] = &[
    0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8b, 0x8c, 0x8d, 0x8e, 0x8f, 0x90, 0x93, 0x94, 0x95,
    0x96, 0x97, 0x98, 0x99, 0x9a, 0x9b, 0x9c, 0x9d, 0x9e, 0x9f, 0xa0, 0xa1, 0xa2,
];

/// Parses a code, and checks that it is one of these.
pub(super) fn reason(code: u8, allowed: &[u8]) -> Result<ReasonCode, MqttError> {
    let found = ReasonCode::from_number(code).filter(|_| allowed.contains(&code));
    found.ok_or(MqttError::Reason(code))
}

/// Returns the code if it is one of these, and otherwise the other.
pub(super) fn or(reason: ReasonCode, allowed: &[u8], other: ReasonCode) -> ReasonCode {
    if allowed.contains(&reason.number()) { reason } else { other }
}

fn check(code: u8, is_allowed: bool) -> Result<(), MqttError> {
    if is_allowed { Ok(()) } else { Err(MqttError::Reason(code)) }
}

pub(super) fn check_connack(code: u8, version: Version) -> Result<(), MqttError> {
    check(code, if version == Version::V3 { code <= 5 } else { CONNACK.contains(&code) })
}

pub(super) fn check_suback(code: u8, version: Version) -> Result<(), MqttError> {
    check(
        code,
        if version == Version::V3 { code <= 2 || code == 0x80 } else { SUBACK.contains(&code) },
    )
}

pub(super) fn check_unsuback(code: u8) -> Result<(), MqttError> {
    check(code, UNSUBACK.contains(&code))
}

/// The reasons that this side may send in DISCONNECT.
pub(super) fn disconnect(from: Side) -> &'static [u8] {
    match from {
        Side::Client => CLIENT_DISCONNECT,
        Side::Server => SERVER_DISCONNECT,
    }
}

/// The reasons that this side may send in AUTH.
pub(super) fn auth(from: Side) -> &'static [u8] {
    match from {
        Side::Client => &[0x18, 0x19],
        Side::Server => &[0x00, 0x18],
    }
}
