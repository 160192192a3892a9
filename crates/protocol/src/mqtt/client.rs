//! Writes packets of clients (MQTT 5.0 and 3.1.1, sections 3.1, 3.8, 3.10 and 3.12).

use model::Qos;

use super::WriteError;
use super::cursor::put_binary;
use super::packet::Version;
use super::write::{Property, packet, properties_of, put_id};

/// The parts of CONNECT.
#[derive(Clone, Copy, Debug)]
pub struct ConnectParts<'a> {
    /// The version.
    pub version: Version,
    /// The version is 3.1, if `version` is 3.
    pub is_3_1: bool,
    /// The client requests a new session.
    pub clean: bool,
    /// The keep-alive, in seconds.
    pub keep_alive_s: u16,
    /// Properties of 5.0.
    pub properties: &'a [Property<'a>],
    /// The client identifier.
    pub client: &'a str,
    /// The will, which the server publishes when the client is gone.
    pub will: Option<WillParts<'a>>,
    /// The user name.
    pub user: Option<&'a str>,
    /// The password. MQTT 3 allows it only with a user name.
    pub password: Option<&'a [u8]>,
}

/// The will in CONNECT.
#[derive(Clone, Copy, Debug)]
pub struct WillParts<'a> {
    /// The QoS of the message.
    pub qos: Qos,
    /// The message is to be retained.
    pub retain: bool,
    /// Properties of 5.0.
    pub properties: &'a [Property<'a>],
    /// The topic.
    pub topic: &'a str,
    /// The message.
    pub payload: &'a [u8],
}

/// Appends CONNECT.
///
/// # Errors
/// A field is too long, or a property can't be written.
pub fn connect(parts: &ConnectParts<'_>, out: &mut Vec<u8>) -> Result<(), WriteError> {
    let version = parts.version;
    let (name, level) = match version {
        Version::V3 if parts.is_3_1 => (&b"MQIsdp"[..], 3),
        Version::V3 => (&b"MQTT"[..], 4),
        Version::V5 => (&b"MQTT"[..], 5),
    };
    let will =
        parts.will.map_or(0, |will| 0x04 | will.qos.number() << 3 | u8::from(will.retain) << 5);
    let flags = u8::from(parts.clean) << 1
        | will
        | u8::from(parts.password.is_some()) << 6
        | u8::from(parts.user.is_some()) << 7;
    packet(0x10, out, |out| {
        put_binary(name, out)?;
        out.extend_from_slice(&[level, flags]);
        out.extend_from_slice(&parts.keep_alive_s.to_be_bytes());
        properties_of(version, parts.properties, out)?;
        put_binary(parts.client.as_bytes(), out)?;
        if let Some(will) = &parts.will {
            properties_of(version, will.properties, out)?;
            put_binary(will.topic.as_bytes(), out)?;
            put_binary(will.payload, out)?;
        }
        let user = parts.user.map(str::as_bytes);
        user.into_iter().chain(parts.password).try_for_each(|bytes| put_binary(bytes, out))
    })
}

/// One filter of SUBSCRIBE.
#[derive(Clone, Copy, Debug)]
pub struct SubscribeParts<'a> {
    /// The filter, with `$share` and the group if it is shared.
    pub filter: &'a str,
    /// The maximum QoS.
    pub qos: Qos,
    /// The client gets no messages of its own. This option and the next ones are of 5.0.
    pub no_local: bool,
    /// Messages retain the RETAIN flag of their publisher.
    pub retain_as_published: bool,
    /// When retained messages are sent: 0 always, 1 for a new subscription, 2 never.
    pub retain_handling: u8,
}

/// Appends SUBSCRIBE.
///
/// # Errors
/// The identifier is 0, a filter is too long, or a property can't be written.
pub fn subscribe(
    version: Version,
    id: u16,
    all: &[Property<'_>],
    filters: &[SubscribeParts<'_>],
    out: &mut Vec<u8>,
) -> Result<(), WriteError> {
    packet(0x82, out, |out| {
        put_id(id, out)?;
        properties_of(version, all, out)?;
        filters.iter().try_for_each(|one| {
            put_binary(one.filter.as_bytes(), out)?;
            let options = match version {
                Version::V3 => 0,
                Version::V5 => {
                    u8::from(one.no_local) << 2
                        | u8::from(one.retain_as_published) << 3
                        | (one.retain_handling & 3) << 4
                }
            };
            out.push(one.qos.number() | options);
            Ok(())
        })
    })
}

/// Appends UNSUBSCRIBE.
///
/// # Errors
/// The identifier is 0, a filter is too long, or a property can't be written.
pub fn unsubscribe(
    version: Version,
    id: u16,
    all: &[Property<'_>],
    filters: &[&str],
    out: &mut Vec<u8>,
) -> Result<(), WriteError> {
    packet(0xa2, out, |out| {
        put_id(id, out)?;
        properties_of(version, all, out)?;
        filters.iter().try_for_each(|filter| put_binary(filter.as_bytes(), out))
    })
}

/// Appends PINGREQ.
pub fn pingreq(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0xc0, 0]);
}
