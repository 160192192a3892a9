//! MQTT 3.1, 3.1.1 and 5.0 (OASIS, 2014 and 2019) over TCP and in binary frames of a WebSocket.

use model::event::is_reserved;
use model::filter::check_name;
use model::{Attributes, CloseReason, Data, Encoding, Message, Name, Publication, Qos};

use super::identity::{self, Refusal};
use super::message::{
    ClientLimits, Confirm, ConfirmKind, Connect, Incoming, Publish, RetainHandling, Subscribe,
    Want, Will,
};
use super::packet::{self, Packet, Side};
use super::property::{Properties, id};
use super::server::{Mqtt, Stamp};
use super::{MqttError, ReasonCode, Version};
use crate::http::{Endpoint, Needs, Route};
use crate::protocol::{
    Capabilities, Delivery, Listener, Liveness, Protocol, Read, Reader, Recognised,
};
use crate::request::{Interrupt, Open, Request, Secret};
use crate::websocket::{Event, Frames, Outcome, handshake};
use crate::{Codecs, Settings};

/// The first byte of CONNECT, with which every connection begins. No HTTP request begins with it.
const CONNECT: u8 = 0x10;

/// The subprotocols of a WebSocket, in order of preference (MQTT 5.0, section 6; `mqttv3.1` is that of 3.1).
const SUBPROTOCOLS: [&str; 2] = ["mqtt", "mqttv3.1"];

/// The limits of a client that has sent none yet: it accepts at least a CONNACK without properties.
const SHORTEST: ClientLimits = ClientLimits {
    receive_max: u16::MAX,
    packet_bytes_max: 5,
    topic_alias_max: 0,
    problem_information: false,
};

/// The server reads a larger packet only when it is complete.
const WAITED_BYTES: usize = 4 << 10;

impl Protocol for Mqtt {
    fn name(&self) -> &'static str {
        "mqtt"
    }

    fn encoding(&self) -> Encoding {
        self.number()
    }

    fn delivery(&self) -> Delivery {
        Delivery::Subscribed
    }

    fn liveness(&self, _: &Settings) -> Liveness {
        Liveness::ClientItself
    }

    fn recognise(&self, first: &[u8]) -> Recognised {
        Recognised::by_prefix(&[CONNECT], first)
    }

    fn is_on(&self, settings: &Settings) -> bool {
        settings.mqtt.is_some()
    }

    fn listener(&self) -> Option<Listener> {
        Some(Listener::Mqtt)
    }

    fn endpoints(&self) -> &'static [Endpoint] {
        const { &[Endpoint::new("GET", "/mqtt", Needs::TokenByCommand)] }
    }

    fn route(&self, route: &Route<'_>, out: &mut Vec<u8>) -> Option<Result<Request, Interrupt>> {
        let settings = route.settings.mqtt.as_ref().filter(|_| route.request.path == "/mqtt");
        settings.map(|settings| {
            route.get()?;
            let accept = route.upgrade()?;
            if settings.open {
                route.of_this_machine()?;
            }
            let offered = route.request.values("sec-websocket-protocol");
            let offered: Vec<&str> =
                offered.flat_map(|line| line.split(',')).map(str::trim).collect();
            let subprotocol = SUBPROTOCOLS.into_iter().find(|it| offered.contains(it));
            handshake::response(&accept, subprotocol, None, out);
            // The first packet contains the version.
            let encoding = Mqtt { version: Version::V3, framed: true }.number();
            Ok(Request::Open(Open {
                encoding,
                principal: auth::Principal::anonymous(Vec::new()),
                topics: Vec::new(),
                resume: Default::default(),
                tags: Vec::new(),
                stranger: true,
            }))
        })
    }

    fn read(&self, reader: &mut Reader<'_>, bytes: &mut [u8], out: &mut Vec<u8>) -> Read {
        if !self.framed {
            return self.read_packet(reader, bytes, out).unwrap_or(Read::MORE);
        }
        if let Some(read) = self.read_gathered(reader, out) {
            return read;
        }
        let bytes_max = reader.settings.mqtt.as_ref().map_or(0, |it| it.packet_bytes_max as usize);
        let frames = Frames { bytes_max, window_bits: 0 };
        let mut gathered = Vec::new();
        // Clients may split and merge packets over frames (MQTT 5.0, section 6).
        let read = frames.read(reader, bytes, out, &mut |_, event| match event {
            Event::Binary(payload) => {
                gathered.extend_from_slice(payload);
                Outcome::Nothing
            }
            Event::Text(_) => {
                let text = "MQTT packets must be sent in binary frames";
                Outcome::Close(CloseReason::ProtocolError, text.into())
            }
            Event::Ping(_) | Event::Pong(_) | Event::Close(_) => Outcome::Nothing,
        });
        if read.request.is_some() {
            return read;
        }
        reader.decoder.gather(&gathered);
        match self.read_gathered(reader, out) {
            Some(packet) => Read { consumed: read.consumed, ..packet },
            None => read,
        }
    }

    fn encode(&self, message: &Message, _: &mut Codecs, out: &mut Vec<u8>) {
        // MQTT can't carry such topics, and presence notices are for Throng's own clients.
        if check_name(&message.publication.topic).is_err() || is_reserved(message.event()) {
            return;
        }
        let stamp = Stamp {
            qos: Qos::AtMostOnce,
            id: 0,
            again: false,
            retain: false,
            subscriptions: &[],
            alias: None,
            now_ms: message.at_ms,
        };
        self.message(message, &stamp, out);
    }

    fn goodbye(&self, close: CloseReason, _: u32, out: &mut Vec<u8>) {
        self.say_goodbye(close, None, &ClientLimits::default(), out);
    }

    fn turn_away(&self, first: &[u8], close: CloseReason, out: &mut Vec<u8>) {
        self.turn_away_to(first, close, None, out);
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { joins: true, ..Capabilities::NONE }
    }
}

impl Mqtt {
    /// Appends the rejection of a client whose first bytes these are, with the server to use instead. Only CONNECT
    /// gets a reply.
    pub fn turn_away_to(
        self,
        first: &[u8],
        close: CloseReason,
        reference: Option<&str>,
        out: &mut Vec<u8>,
    ) {
        if let Ok(Some((Packet::Connect(connect), _))) =
            super::read(first, None, Side::Client, usize::MAX)
        {
            let limits = ClientLimits::of(&connect.properties);
            Mqtt { version: connect.version, ..self }.send_away(close, reference, &limits, out);
        }
    }

    /// Reads the first packet of the gathered frames.
    fn read_gathered(&self, reader: &mut Reader<'_>, out: &mut Vec<u8>) -> Option<Read> {
        let gathered = reader.decoder.take_gathered();
        let read = self.read_packet(reader, gathered.unread(), out);
        let (consumed, read) = match read {
            // The packet is not complete: its other frames must come.
            Some(Read { consumed: 0, request: Some(Request::Continue { .. }), .. }) | None => {
                (0, None)
            }
            Some(read) => (read.consumed, Some(Read { consumed: 0, again: true, ..read })),
        };
        reader.decoder.put_gathered(gathered, consumed);
        read
    }

    /// Reads the first packet; `None` until it is complete.
    fn read_packet(
        &self,
        reader: &mut Reader<'_>,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<Read> {
        let is_known = reader.open && !reader.stranger;
        let version = is_known.then_some(self.version);
        let Some(settings) = &reader.settings.mqtt else {
            return Some(ends(bytes, CloseReason::BadRequest));
        };
        let max = settings.packet_bytes_max as usize;
        match super::read(bytes, version, Side::Client, max) {
            Ok(Some((Packet::Connect(connect), consumed))) if !is_known => {
                Some(self.connect(reader, &connect, consumed, bytes, out))
            }
            Ok(Some((packet, consumed))) => match incoming(reader, &packet) {
                Some(incoming) => Some(to_request(consumed, incoming)),
                None => Some(self.broken(MqttError::PacketType("server"), is_known, bytes, out)),
            },
            Ok(None) => {
                let whole = super::packet_bytes(bytes).ok().flatten();
                let whole = whole.filter(|whole| *whole > WAITED_BYTES)?;
                let request = Some(Request::Continue { bytes: whole, interim: b"" });
                Some(Read { consumed: 0, request, ..Read::MORE })
            }
            Err(error) => Some(self.broken(error, is_known, bytes, out)),
        }
    }

    /// Ends a connection that sent an invalid packet.
    fn broken(&self, error: MqttError, is_known: bool, bytes: &[u8], out: &mut Vec<u8>) -> Read {
        if is_known {
            return to_request(bytes.len(), Incoming::Broken(error));
        }
        if let Some(level) = level(bytes) {
            // A client of any version knows one of these two. MQTT 3 has a code for the version only.
            let version = if level > 4 { Version::V5 } else { Version::V3 };
            if version == Version::V5 || error == MqttError::Version {
                // The client's limits are unknown: send the shortest packet that every client accepts.
                Mqtt { version, ..*self }.refuse(error.reason(), None, &SHORTEST, out);
            }
        }
        ends(bytes, error.close())
    }

    /// Processes CONNECT.
    fn connect(
        &self,
        reader: &mut Reader<'_>,
        connect: &packet::Connect<'_>,
        consumed: usize,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Read {
        let mqtt = Mqtt { version: connect.version, framed: self.framed };
        let limits = ClientLimits::of(&connect.properties);
        let refuse = |reason: ReasonCode, text: &str, out: &mut Vec<u8>| {
            mqtt.refuse(reason, Some(text), &limits, out);
            let close = if reason == ReasonCode::ServerUnavailable {
                CloseReason::Overloaded
            } else if reason == ReasonCode::PacketTooLarge {
                CloseReason::TooBig
            } else if reason == ReasonCode::ClientIdentifierNotValid {
                CloseReason::BadRequest
            } else {
                CloseReason::Unauthorized
            };
            ends(bytes, close)
        };
        let is_old = connect.version == Version::V3;
        let is_nameless = connect.client.is_empty();
        if is_nameless && is_old && (!connect.clean || connect.is_3_1) {
            // MQTT 3.1.1, section 3.1.3.1.
            let text = "the client identifier is missing: it is required without Clean Session, \
                        and always in MQTT 3.1";
            return refuse(ReasonCode::ClientIdentifierNotValid, text, out);
        }
        if !is_nameless && model::name::check_name(connect.client).is_err() {
            let text = "a client identifier must have at most 254 bytes and no control characters";
            return refuse(ReasonCode::ClientIdentifierNotValid, text, out);
        }
        let (principal, is_proved) = match identity::principal(reader, connect) {
            Ok(principal) => principal,
            Err(Refusal::Code(reason, text)) => return refuse(reason, text, out),
            Err(Refusal::Pending(pending)) => {
                let request = Some(Request::Pending(pending));
                return Read { consumed: 0, request, ..Read::MORE };
            }
        };
        let properties = &connect.properties;
        let number = |number: u8| properties.number(number);
        let seconds = match (is_old, connect.clean) {
            (true, true) => 0,
            (true, false) => u32::MAX,
            (false, _) => number(id::SESSION_EXPIRY_INTERVAL).unwrap_or(0),
        };
        let will = connect.will.map(|will| will_of(&will, &principal));
        let properties_of =
            |will: &Will| will.publication.properties().map(model::Properties::check);
        if let Some(Err(error)) = will.as_ref().and_then(properties_of) {
            let text = format!("the will is too large: {error}");
            return refuse(ReasonCode::PacketTooLarge, &text, out);
        }
        let method = properties.text(id::AUTHENTICATION_METHOD).map(Into::into);
        to_request(
            consumed,
            Incoming::Connect(Box::new(Connect {
                encoding: mqtt.number(),
                principal,
                is_proved,
                client: connect.client.into(),
                is_assigned: false,
                clean: connect.clean,
                seconds,
                keep_alive_s: connect.keep_alive_s,
                will,
                limits,
                method,
            })),
        )
    }
}

/// Converts the will of a CONNECT packet.
fn will_of(will: &packet::Will<'_>, principal: &auth::Principal) -> Will {
    Will {
        delay_s: will.properties.number(id::WILL_DELAY_INTERVAL).unwrap_or(0),
        expiry_s: will.properties.number(id::MESSAGE_EXPIRY_INTERVAL),
        publication: Publication {
            qos: will.qos,
            retain: will.retain,
            ..publication(will.topic, will.payload, &will.properties, None)
                .sent_by(principal.users.first().cloned())
        },
    }
}

/// Ends the connection, and discards the rest of its input.
fn ends(bytes: &[u8], close: CloseReason) -> Read {
    let request = Some(Request::Close(close));
    Read { consumed: bytes.len(), request, ..Read::MORE }
}

fn to_request(consumed: usize, incoming: Incoming) -> Read {
    let request = Some(Request::Mqtt(Box::new(incoming)));
    Read { consumed, request, ..Read::MORE }
}

/// Converts a packet to a request; `None` if a connected client may not send it.
fn incoming(reader: &Reader<'_>, packet: &Packet<'_>) -> Option<Incoming> {
    let confirm = |kind, confirm: &packet::Confirm<'_>| {
        let failed = confirm.reason.is_error();
        Some(Incoming::Confirm(Confirm { kind, id: confirm.id, failed }))
    };
    match packet {
        Packet::Publish(publish) => {
            let alias = publish.properties.number(id::TOPIC_ALIAS).unwrap_or(0);
            let publication = publication(
                publish.topic,
                publish.payload,
                &publish.properties,
                Some(reader.now_ms),
            );
            let (qos, retain) = (publish.qos, publish.retain);
            Some(Incoming::Publish(Box::new(Publish {
                id: publish.id,
                alias: u16::try_from(alias).unwrap_or(u16::MAX),
                publication: Publication { qos, retain, ..publication },
            })))
        }
        Packet::Puback(it) => confirm(ConfirmKind::Acknowledged, it),
        Packet::Pubrec(it) => confirm(ConfirmKind::Received, it),
        Packet::Pubrel(it) => confirm(ConfirmKind::Release, it),
        Packet::Pubcomp(it) => confirm(ConfirmKind::Complete, it),
        Packet::Subscribe(subscribe) => Some(Incoming::Subscribe(Box::new(Subscribe {
            id: subscribe.id,
            subscription: subscribe.properties.number(id::SUBSCRIPTION_IDENTIFIER).unwrap_or(0),
            wants: subscribe.subscriptions().map(want).collect(),
        }))),
        Packet::Unsubscribe(it) => Some(Incoming::Unsubscribe {
            id: it.id,
            filters: it.filters().map(Name::from).collect(),
        }),
        Packet::Pingreq => Some(Incoming::Ping),
        Packet::Disconnect(it) => Some(Incoming::Disconnect {
            with_will: it.reason != ReasonCode::Success,
            seconds: it.properties.number(id::SESSION_EXPIRY_INTERVAL),
        }),
        Packet::Auth(it) if it.reason == ReasonCode::ReAuthenticate => {
            let data = it.properties.binary(id::AUTHENTICATION_DATA).unwrap_or_default();
            Some(Incoming::Authenticate {
                method: it.properties.text(id::AUTHENTICATION_METHOD).unwrap_or("").into(),
                token: Secret(String::from_utf8_lossy(data).into()),
            })
        }
        // A second CONNECT (MQTT 5.0, section 3.1), an AUTH that replies to no challenge, and packets of servers.
        Packet::Connect(_)
        | Packet::Auth(_)
        | Packet::Connack(_)
        | Packet::Suback(_)
        | Packet::Unsuback(_)
        | Packet::Pingresp => None,
    }
}

fn want(subscription: packet::Subscription<'_>) -> Want {
    let packet::Subscription { filter, qos, no_local, retain_as_published, retain_handling } =
        subscription;
    Want {
        filter: filter.filter.into(),
        group: filter.group.map(Name::from),
        qos,
        no_local,
        retain_as_published,
        retain_handling: match retain_handling {
            0 => RetainHandling::Always,
            1 => RetainHandling::New,
            _ => RetainHandling::Never,
        },
    }
}

/// Builds a message from PUBLISH or a will. A payload that is UTF-8 becomes text.
fn publication(
    topic: &str,
    payload: &[u8],
    properties: &Properties<'_>,
    now_ms: Option<u64>,
) -> Publication {
    let data = match simdutf8::basic::from_utf8(payload) {
        Ok(text) => Data::Text(text.into()),
        Err(_) => Data::Binary(payload.into()),
    };
    let mut publication = Publication::new(topic, data);
    if properties.is_empty() {
        return publication;
    }
    let seconds = properties.number(id::MESSAGE_EXPIRY_INTERVAL);
    let own = model::Properties {
        is_text: properties.number(id::PAYLOAD_FORMAT_INDICATOR) == Some(1),
        content_type: properties.text(id::CONTENT_TYPE).map(Into::into),
        response_topic: properties.text(id::RESPONSE_TOPIC).map(Name::from),
        correlation_data: properties.binary(id::CORRELATION_DATA).map(Into::into),
        user: properties.user().map(|(name, value)| (name.into(), value.into())).collect(),
    };
    let attributes = Attributes {
        expires_ms: now_ms
            .zip(seconds)
            .map(|(now_ms, seconds)| now_ms + u64::from(seconds) * 1_000),
        properties: (own != model::Properties::default()).then(|| Box::new(own)),
        ..Attributes::default()
    };
    publication.attributes = (attributes != Attributes::default()).then(|| Box::new(attributes));
    publication
}

/// The protocol level in CONNECT, if the protocol is MQTT.
fn level(connect: &[u8]) -> Option<u8> {
    let length = connect.get(1..)?.iter().take(4).position(|byte| byte & 0x80 == 0)? + 1;
    let named = connect.get(1 + length..)?;
    named.strip_prefix(b"\0\x04MQTT")?.first().copied()
}

#[cfg(test)]
mod tests {
    use super::super::read;
    use super::*;

    #[test]
    fn a_message_does_not_expire_early() {
        // An expiry of one second.
        let bytes = b"\x30\x0a\0\x01a\x05\x02\0\0\0\x01x";
        let read = read(bytes, Some(Version::V5), Side::Client, 100);
        let Ok(Some((Packet::Publish(it), _))) = read else { panic!("{read:?}") };
        let expires_ms =
            |now_ms| publication(it.topic, it.payload, &it.properties, now_ms).expires_ms();
        assert_eq!(expires_ms(Some(1_999)), Some(2_999));
        assert_eq!(expires_ms(None), None);
    }
}
