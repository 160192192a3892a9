//! Packets of MQTT as their senders write them.

use model::Qos;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use protocol::mqtt::client::{self, ConnectParts, SubscribeParts, WillParts};
use protocol::mqtt::property::{Value, id};
use protocol::mqtt::write::{self, ConfirmType, Property, PublishParts};
use protocol::mqtt::{ReasonCode, Side, Version};

/// The most bytes of a packet here.
pub const BYTES_MAX: usize = 1 << 16;

/// A packet, who sent it, and in which version.
#[derive(Clone, Debug)]
pub struct Sent {
    pub version: Version,
    pub from: Side,
    pub bytes: Vec<u8>,
}

impl Sent {
    /// The version that its reader knows of.
    pub fn known(&self) -> Option<Version> {
        (self.bytes[0] >> 4 != 1).then_some(self.version)
    }
}

#[derive(Clone, Debug)]
enum Owned {
    Number(u32),
    Text(String),
    Binary(Vec<u8>),
    Pair(String, String),
}

type List = Vec<(u8, Owned)>;

fn borrowed(list: &List) -> Vec<Property<'_>> {
    let value = |owned| match owned {
        &Owned::Number(number) => Value::Number(number),
        Owned::Text(text) => Value::Text(text),
        Owned::Binary(bytes) => Value::Binary(bytes),
        Owned::Pair(name, value) => Value::Pair(name, value),
    };
    list.iter().map(|(number, owned)| (*number, value(owned))).collect()
}

fn text() -> impl Strategy<Value = String> {
    "[a-z/é€😀]{0,9}"
}

fn topic() -> impl Strategy<Value = String> {
    "[a-z/é]{1,9}"
}

fn filter() -> impl Strategy<Value = String> {
    prop_oneof![
        topic(),
        "([a-z]{0,3}/|\\+/){0,3}(#|\\+|[a-z]{1,3})",
        "\\$share/[a-z]{1,3}/(\\+/){0,2}[a-z]{1,3}"
    ]
}

fn value(number: u8) -> BoxedStrategy<Owned> {
    match number {
        id::PAYLOAD_FORMAT_INDICATOR
        | id::REQUEST_PROBLEM_INFORMATION
        | id::REQUEST_RESPONSE_INFORMATION
        | id::MAXIMUM_QOS
        | id::RETAIN_AVAILABLE
        | id::WILDCARD_SUBSCRIPTION_AVAILABLE
        | id::SUBSCRIPTION_IDENTIFIER_AVAILABLE
        | id::SHARED_SUBSCRIPTION_AVAILABLE => (0..2_u32).prop_map(Owned::Number).boxed(),
        id::SERVER_KEEP_ALIVE | id::RECEIVE_MAXIMUM | id::TOPIC_ALIAS_MAXIMUM | id::TOPIC_ALIAS => {
            (1..=0xffff_u32).prop_map(Owned::Number).boxed()
        }
        id::SUBSCRIPTION_IDENTIFIER => {
            prop_oneof![1..300_u32, 1..=268_435_455_u32].prop_map(Owned::Number).boxed()
        }
        id::MESSAGE_EXPIRY_INTERVAL
        | id::SESSION_EXPIRY_INTERVAL
        | id::WILL_DELAY_INTERVAL
        | id::MAXIMUM_PACKET_SIZE => (1..=u32::MAX).prop_map(Owned::Number).boxed(),
        id::CORRELATION_DATA | id::AUTHENTICATION_DATA => {
            vec(any::<u8>(), 0..9).prop_map(Owned::Binary).boxed()
        }
        id::RESPONSE_TOPIC => topic().prop_map(Owned::Text).boxed(),
        id::USER_PROPERTY => {
            (text(), text()).prop_map(|(name, value)| Owned::Pair(name, value)).boxed()
        }
        _ => text().prop_map(Owned::Text).boxed(),
    }
}

/// Some of these properties, those of `must`, and user properties.
fn list(may: &'static [u8], must: &'static [u8]) -> impl Strategy<Value = List> {
    (subsequence(may, 0..=may.len()), 0..4_usize).prop_flat_map(move |(mut some, users)| {
        some.extend(must);
        if some.contains(&id::AUTHENTICATION_DATA) && !some.contains(&id::AUTHENTICATION_METHOD) {
            some.retain(|number| *number != id::AUTHENTICATION_DATA);
        }
        some.extend(std::iter::repeat_n(id::USER_PROPERTY, users));
        some.into_iter()
            .map(|number| value(number).prop_map(move |it| (number, it)))
            .collect::<Vec<_>>()
    })
}

fn qos() -> impl Strategy<Value = Qos> {
    select(vec![Qos::AtMostOnce, Qos::AtLeastOnce, Qos::ExactlyOnce])
}

fn version() -> impl Strategy<Value = Version> {
    select(vec![Version::V3, Version::V5])
}

fn side() -> impl Strategy<Value = Side> {
    select(vec![Side::Client, Side::Server])
}

fn codes(all: &'static [u8]) -> impl Strategy<Value = Vec<u8>> {
    vec(select(all), 1..5)
}

fn sent(version: Version, from: Side, write: impl FnOnce(&mut Vec<u8>)) -> Sent {
    let mut bytes = Vec::new();
    write(&mut bytes);
    Sent { version, from, bytes }
}

fn connect() -> impl Strategy<Value = Sent> {
    const OWN: &[u8] = &[
        id::SESSION_EXPIRY_INTERVAL,
        id::AUTHENTICATION_METHOD,
        id::AUTHENTICATION_DATA,
        id::REQUEST_PROBLEM_INFORMATION,
        id::REQUEST_RESPONSE_INFORMATION,
        id::RECEIVE_MAXIMUM,
        id::TOPIC_ALIAS_MAXIMUM,
        id::MAXIMUM_PACKET_SIZE,
    ];
    const WILL: &[u8] = &[id::MESSAGE_EXPIRY_INTERVAL, id::CONTENT_TYPE, id::WILL_DELAY_INTERVAL];
    let will = (qos(), any::<bool>(), list(WILL, &[]), topic(), vec(any::<u8>(), 0..20));
    let names = (text(), option::of(text()), option::of(vec(any::<u8>(), 0..9)));
    let head = (version(), any::<bool>(), any::<bool>(), any::<u16>());
    (head, list(OWN, &[]), option::of(will), names).prop_map(|(head, own, will, names)| {
        let (version, is_3_1, clean, keep_alive_s) = head;
        let (client, user, password) = &names;
        let own = borrowed(&own);
        let listed = will.as_ref().map(|will| borrowed(&will.2));
        let will = will.as_ref().zip(listed.as_ref()).map(|(will, properties)| WillParts {
            qos: will.0,
            retain: will.1,
            properties,
            topic: &will.3,
            payload: &will.4,
        });
        let parts = ConnectParts {
            version,
            is_3_1: is_3_1 && version == Version::V3,
            clean,
            keep_alive_s,
            properties: &own,
            client,
            will,
            user: user.as_deref(),
            password: password.as_deref().filter(|_| version == Version::V5 || user.is_some()),
        };
        sent(version, Side::Client, |out| client::connect(&parts, out).unwrap())
    })
}

fn connack() -> impl Strategy<Value = Sent> {
    const OWN: &[u8] = &[
        id::SESSION_EXPIRY_INTERVAL,
        id::ASSIGNED_CLIENT_IDENTIFIER,
        id::SERVER_KEEP_ALIVE,
        id::AUTHENTICATION_METHOD,
        id::AUTHENTICATION_DATA,
        id::RESPONSE_INFORMATION,
        id::SERVER_REFERENCE,
        id::REASON_STRING,
        id::RECEIVE_MAXIMUM,
        id::TOPIC_ALIAS_MAXIMUM,
        id::MAXIMUM_QOS,
        id::RETAIN_AVAILABLE,
        id::MAXIMUM_PACKET_SIZE,
        id::WILDCARD_SUBSCRIPTION_AVAILABLE,
        id::SUBSCRIPTION_IDENTIFIER_AVAILABLE,
        id::SHARED_SUBSCRIPTION_AVAILABLE,
    ];
    let five = select(&[0, 0x80, 0x85, 0x86, 0x87, 0x8c, 0x9f][..]);
    (version(), any::<bool>(), 0..6_u8, five, list(OWN, &[])).prop_map(
        |(version, present, three, five, own)| {
            let code = if version == Version::V3 { three } else { five };
            let present = present && code == 0;
            let own = borrowed(&own);
            sent(version, Side::Server, |out| {
                write::connack(version, present, code, &own, out).unwrap();
            })
        },
    )
}

fn publish() -> impl Strategy<Value = Sent> {
    const CLIENT: &[u8] = &[
        id::PAYLOAD_FORMAT_INDICATOR,
        id::MESSAGE_EXPIRY_INTERVAL,
        id::CONTENT_TYPE,
        id::RESPONSE_TOPIC,
        id::CORRELATION_DATA,
        id::TOPIC_ALIAS,
    ];
    let identifiers = vec(value(id::SUBSCRIPTION_IDENTIFIER), 0..3);
    let head = (version(), side(), qos(), any::<bool>(), any::<bool>(), any::<bool>());
    let body = (topic(), 1..=u16::MAX, vec(any::<u8>(), 0..300), text());
    (head, body, list(CLIENT, &[]), identifiers).prop_map(|(head, body, mut own, identifiers)| {
        let (version, from, qos, dup, retain, leaves_out) = head;
        let (topic, id, binary, text) = &body;
        let is_text = own.iter().any(|(number, it)| *number == 1 && matches!(it, Owned::Number(1)));
        let has_alias = own.iter().any(|(number, _)| *number == id::TOPIC_ALIAS);
        if from == Side::Server {
            own.extend(identifiers.into_iter().map(|it| (id::SUBSCRIPTION_IDENTIFIER, it)));
        }
        let leaves_out = leaves_out && has_alias && version == Version::V5;
        let own = borrowed(&own);
        let parts = PublishParts {
            version,
            dup: dup && qos.is_confirmed(),
            qos,
            retain,
            topic: if leaves_out { "" } else { topic },
            id: *id,
            properties: own.iter().copied(),
            payload: if is_text { text.as_bytes() } else { binary },
        };
        let sent = sent(version, from, |out| parts.write(out).unwrap());
        assert_eq!(parts.bytes(), sent.bytes.len());
        sent
    })
}

fn confirm() -> impl Strategy<Value = Sent> {
    const FIRST: &[ReasonCode] = &[
        ReasonCode::Success,
        ReasonCode::NoMatchingSubscribers,
        ReasonCode::QuotaExceeded,
        ReasonCode::PayloadFormatInvalid,
    ];
    const LATE: &[ReasonCode] = &[ReasonCode::Success, ReasonCode::PacketIdentifierNotFound];
    use ConfirmType::{Puback, Pubcomp, Pubrec, Pubrel};
    let kind = prop_oneof![
        (select(vec![Puback, Pubrec]), select(FIRST)),
        (select(vec![Pubrel, Pubcomp]), select(LATE)),
    ];
    (version(), side(), kind, 1..=u16::MAX, list(&[id::REASON_STRING], &[])).prop_map(
        |(version, from, (kind, reason), id, own)| {
            let own = borrowed(&own);
            sent(version, from, |out| {
                write::confirm(kind, version, id, reason, &own, out).unwrap();
            })
        },
    )
}

fn subscribe() -> impl Strategy<Value = Sent> {
    let one = (filter(), qos(), any::<bool>(), any::<bool>(), 0..3_u8);
    let own = list(&[id::SUBSCRIPTION_IDENTIFIER], &[]);
    (version(), 1..=u16::MAX, own, vec(one, 1..4)).prop_map(|(version, id, own, all)| {
        let parts: Vec<SubscribeParts<'_>> = all
            .iter()
            .map(|(filter, qos, no_local, retain_as_published, retain_handling)| SubscribeParts {
                filter,
                qos: *qos,
                no_local: *no_local && !filter.starts_with("$share/"),
                retain_as_published: *retain_as_published,
                retain_handling: *retain_handling,
            })
            .collect();
        let own = borrowed(&own);
        sent(version, Side::Client, |out| {
            client::subscribe(version, id, &own, &parts, out).unwrap();
        })
    })
}

fn unsubscribe() -> impl Strategy<Value = Sent> {
    (version(), 1..=u16::MAX, list(&[], &[]), vec(filter(), 1..4)).prop_map(
        |(version, id, own, filters)| {
            let filters: Vec<&str> = filters.iter().map(String::as_str).collect();
            let own = borrowed(&own);
            sent(version, Side::Client, |out| {
                client::unsubscribe(version, id, &own, &filters, out).unwrap();
            })
        },
    )
}

fn results() -> impl Strategy<Value = Sent> {
    let three = codes(&[0, 1, 2, 0x80]);
    let five = codes(&[0, 1, 2, 0x80, 0x87, 0x8f, 0xa2]);
    let un = codes(&[0, 0x11, 0x80, 0x8f]);
    let own = list(&[id::REASON_STRING], &[]);
    (version(), 1..=u16::MAX, own, three, five, un, any::<bool>()).prop_map(
        |(version, id, own, three, five, un, is_un)| {
            let own = borrowed(&own);
            let codes = if version == Version::V3 { three } else { five };
            sent(version, Side::Server, |out| {
                let written = match is_un {
                    true => write::unsuback(version, id, &own, &un, out),
                    false => write::suback(version, id, &own, &codes, out),
                };
                written.unwrap();
            })
        },
    )
}

fn ends() -> impl Strategy<Value = Sent> {
    use ReasonCode::{ContinueAuthentication, ReAuthenticate, Success};
    const CLIENT: &[u8] = &[id::SESSION_EXPIRY_INTERVAL, id::REASON_STRING];
    const SERVER: &[u8] = &[id::SERVER_REFERENCE, id::REASON_STRING];
    const AUTH: &[u8] = &[id::AUTHENTICATION_DATA, id::REASON_STRING];
    let client =
        select(&[Success, ReasonCode::DisconnectWithWillMessage, ReasonCode::ProtocolError][..]);
    let server = select(&[Success, ReasonCode::SessionTakenOver, ReasonCode::ServerMoved][..]);
    prop_oneof![
        (version(), client, list(CLIENT, &[])).prop_map(|(version, reason, own)| {
            let own = borrowed(&own);
            sent(version, Side::Client, |out| {
                write::disconnect(version, reason, &own, out).unwrap();
            })
        }),
        (server, list(SERVER, &[])).prop_map(|(reason, own)| {
            let own = borrowed(&own);
            sent(Version::V5, Side::Server, |out| {
                write::disconnect(Version::V5, reason, &own, out).unwrap();
            })
        }),
        (side(), any::<bool>(), list(AUTH, &[id::AUTHENTICATION_METHOD])).prop_map(
            |(from, goes_on, own)| {
                let own = borrowed(&own);
                let reason = match (goes_on, from) {
                    (true, _) => ContinueAuthentication,
                    (false, Side::Client) => ReAuthenticate,
                    (false, Side::Server) => Success,
                };
                sent(Version::V5, from, |out| write::auth(reason, &own, out).unwrap())
            }
        ),
        version().prop_map(|version| sent(version, Side::Client, client::pingreq)),
        version().prop_map(|version| sent(version, Side::Server, write::pingresp)),
    ]
}

/// Any packet that may be sent.
pub fn packet() -> impl Strategy<Value = Sent> {
    prop_oneof![
        2 => connect(),
        1 => connack(),
        3 => publish(),
        1 => confirm(),
        1 => subscribe(),
        1 => unsubscribe(),
        1 => results(),
        1 => ends(),
    ]
}

/// A packet of which some bytes are others.
pub fn mutated() -> impl Strategy<Value = Sent> {
    let change = (any::<proptest::sample::Index>(), prop_oneof![any::<u8>(), 0..5_u8], 0..3_u8);
    (packet(), vec(change, 1..3)).prop_map(|(mut sent, changes)| {
        let first = sent.bytes[0];
        for (at, byte, kind) in changes {
            let at = at.index(sent.bytes.len());
            match kind {
                0 => sent.bytes[at] = byte,
                1 => sent.bytes.insert(at, byte),
                _ => drop(sent.bytes.remove(at)),
            }
            if sent.bytes.is_empty() {
                sent.bytes.push(first);
            }
        }
        sent
    })
}
