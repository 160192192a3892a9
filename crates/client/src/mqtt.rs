//! MQTT 3.1.1 over TCP, the client's side.
//!
//! The query of a target has the client's parameters, as on the other transports: `user`, `topic` once for each
//! topic, `qos`, `keepalive` in seconds, and `session`: with it the session persists between connections, and its
//! name makes it this run's alone. The client subscribes to the user's own topic as well.

use std::borrow::Cow;

use model::Qos;
use protocol::mqtt::client::{ConnectParts, SubscribeParts, connect, pingreq, subscribe};
use protocol::mqtt::write::{ConfirmType, confirm};
use protocol::mqtt::{Packet, ReasonCode, Side, Version, read};

use super::{Client, ClientError, Event, Head, PENDING_BYTES_MAX, Request};

pub(super) struct Mqtt;

/// Twice the time between heartbeats, in seconds.
const KEEP_ALIVE_SECONDS: u16 = 2 * super::HEARTBEAT_SECONDS as u16;

/// The packet identifier of the only SUBSCRIBE.
const SUBSCRIBE_ID: u16 = 1;

/// The error of any packet that breaks the rules: a load generator needs no more detail.
const WRONG: ClientError = ClientError::InvalidBody("a packet breaks MQTT 3.1.1");

/// The parameters in the query of a target.
#[derive(Default)]
struct Wish<'a> {
    user: Option<Cow<'a, str>>,
    topics: Vec<Cow<'a, str>>,
    qos: Qos,
    session: Option<Cow<'a, str>>,
    keep_alive_s: Option<u16>,
}

impl<'a> Wish<'a> {
    fn of(target: &'a str) -> Self {
        let query = target.split_once('?').map_or("", |(_, query)| query);
        let mut wish = Wish::default();
        for (key, value) in protocol::query::pairs(query).filter_map(Result::ok) {
            match &*key {
                "user" => wish.user = Some(value),
                "topic" => wish.topics.push(value),
                "qos" => wish.qos = qos(&value),
                "session" => wish.session = Some(value),
                "keepalive" => wish.keep_alive_s = value.parse().ok(),
                _ => {}
            }
        }
        wish
    }
}

fn qos(text: &str) -> Qos {
    match text {
        "1" => Qos::AtLeastOnce,
        "2" => Qos::ExactlyOnce,
        _ => Qos::AtMostOnce,
    }
}

impl Client for Mqtt {
    fn name(&self) -> &'static str {
        "mqtt"
    }

    fn default_target(&self) -> &'static str {
        "/mqtt?user={user}&topic={topic}"
    }

    fn is_http(&self) -> bool {
        false
    }

    fn request(&self, request: &Request<'_>, out: &mut Vec<u8>) {
        let wish = Wish::of(request.target);
        let session = wish.session.as_deref().unwrap_or("flood");
        let parts = ConnectParts {
            version: Version::V3,
            is_3_1: false,
            clean: wish.session.is_none(),
            keep_alive_s: wish.keep_alive_s.unwrap_or(KEEP_ALIVE_SECONDS),
            properties: &[],
            client: &format!("{session}-{}", request.number),
            will: None,
            user: wish.user.as_deref(),
            password: None,
        };
        // Only parts longer than 64 KiB can't be written, and no URL is that long.
        let _ = connect(&parts, out);
    }

    /// MQTT has no head.
    fn head(&self, _head: &Head<'_>) -> Result<(), ClientError> {
        Ok(())
    }

    fn joins(&self) -> bool {
        true
    }

    fn join(&self, request: &Request<'_>, out: &mut Vec<u8>) -> u32 {
        let wish = Wish::of(request.target);
        let own = wish.user.as_deref().map(model::name::personal);
        let topics = wish.topics.iter().map(|topic| &**topic);
        let filters: Vec<SubscribeParts<'_>> = own
            .as_deref()
            .into_iter()
            .chain(topics)
            .map(|filter| SubscribeParts {
                filter,
                qos: wish.qos,
                no_local: false,
                retain_as_published: false,
                retain_handling: 0,
            })
            .collect();
        if filters.is_empty() {
            // Any reply shows that the connection is open.
            pingreq(out);
        } else {
            let _ = subscribe(Version::V3, SUBSCRIBE_ID, &[], &filters, out);
        }
        1
    }

    fn heartbeat(&self, out: &mut Vec<u8>) {
        pingreq(out);
    }

    fn farewell(&self, out: &mut Vec<u8>) {
        // DISCONNECT (section 3.14).
        out.extend_from_slice(&[0xe0, 0]);
    }

    fn body(
        &self,
        body: &[u8],
        _ended: bool,
        out: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> Result<usize, ClientError> {
        let mut used = 0;
        while let Some((packet, bytes)) =
            read(&body[used..], Some(Version::V3), Side::Server, PENDING_BYTES_MAX)
                .map_err(|_| WRONG)?
        {
            used += bytes;
            take(&packet, out, emit)?;
        }
        Ok(used)
    }
}

/// Returns the meaning of a return code of CONNACK (section 3.2.2.3).
fn refusal(code: u8) -> &'static str {
    match code {
        1 => "CONNACK 1, the server speaks another version of MQTT",
        2 => "CONNACK 2, the client identifier is not allowed",
        3 => "CONNACK 3, the server is unavailable",
        4 => "CONNACK 4, user name or password are wrong",
        5 => "CONNACK 5, not authorized",
        _ => "CONNACK with a code that MQTT 3.1.1 doesn't have",
    }
}

/// Handles a packet.
fn take(
    packet: &Packet<'_>,
    out: &mut Vec<u8>,
    emit: &mut dyn FnMut(Event<'_>),
) -> Result<(), ClientError> {
    let mut reply =
        |kind, id| confirm(kind, Version::V3, id, ReasonCode::Success, &[], out).map_err(|_| WRONG);
    match packet {
        Packet::Connack(connack) if connack.code != 0 => {
            return Err(ClientError::Rejected(refusal(connack.code)));
        }
        Packet::Connack(connack) => {
            if connack.session_present {
                emit(Event::Session);
            }
            // An earlier connection may have been cut before the server had read its SUBSCRIBE.
            emit(Event::Join);
        }
        Packet::Suback(results) => {
            if results.codes.iter().any(|code| *code >= 0x80) {
                return Err(ClientError::Rejected("SUBACK rejects a topic"));
            }
            emit(Event::Open);
        }
        Packet::Publish(publish) => {
            let exactly = publish.qos == Qos::ExactlyOnce;
            if publish.qos.is_confirmed() {
                emit(Event::Delivery { id: publish.id, again: publish.dup, exactly });
            }
            emit(Event::Message(publish.payload));
            match publish.qos {
                Qos::AtMostOnce => {}
                Qos::AtLeastOnce => reply(ConfirmType::Puback, publish.id)?,
                Qos::ExactlyOnce => reply(ConfirmType::Pubrec, publish.id)?,
            }
        }
        Packet::Pubrel(pubrel) => {
            emit(Event::Released(pubrel.id));
            reply(ConfirmType::Pubcomp, pubrel.id)?;
        }
        // For a client without topics this opens the connection; otherwise it counts for nothing else.
        Packet::Pingresp => {
            emit(Event::Heartbeat);
            emit(Event::Open);
        }
        _ => {
            return Err(ClientError::InvalidBody(
                "a packet that a server does not send without a request",
            ));
        }
    }
    Ok(())
}
