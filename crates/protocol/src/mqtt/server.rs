//! Writes the server's packets to its clients.

use model::{CloseReason, Data, Encoding, Message, Name, Qos};

use super::message::{ClientLimits, ConfirmKind};
use super::property::{Value, id};
use super::reason::ReasonOf;
use super::write::{self, ConfirmType, Property, PublishParts};
use super::{MqttError, ReasonCode, Version, WriteError, allowed};
use crate::websocket::frame::{self, Opcode};

/// MQTT in one of its versions, in one of its framings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mqtt {
    /// The version.
    pub version: Version,
    /// Packets are in binary frames of a WebSocket.
    pub framed: bool,
}

/// The contents of CONNACK for an accepted client. `None` is the value that the client requested, or the default of
/// the standard.
#[derive(Clone, Copy, Debug)]
pub struct Accepted<'a> {
    /// The client's session continues.
    pub session_present: bool,
    /// Seconds for which the session outlives the connection.
    pub seconds: Option<u32>,
    /// Unconfirmed messages of QoS 1 and 2 from the client, at most.
    pub receive_max: u16,
    /// Bytes of a packet, at most.
    pub packet_bytes_max: u32,
    /// Topic aliases that the client may use.
    pub topic_alias_max: u16,
    /// The identifier that the server assigned.
    pub client: Option<&'a str>,
    /// The keep-alive, in seconds.
    pub keep_alive_s: Option<u16>,
    /// The client may use wildcards.
    pub wildcards: bool,
    /// The client may publish retained messages.
    pub retains: bool,
    /// The authentication method.
    pub method: Option<&'a str>,
}

/// The parts of PUBLISH that differ between clients.
#[derive(Clone, Copy, Debug)]
pub struct Stamp<'a> {
    /// The QoS.
    pub qos: Qos,
    /// The packet identifier; ignored with QoS 0.
    pub id: u16,
    /// The server sent it before.
    pub again: bool,
    /// It is a retained message, or was published as one and the subscription is `retain_as_published`.
    pub retain: bool,
    /// The identifiers of the subscriptions that it matches.
    pub subscriptions: &'a [u32],
    /// The topic's alias, and whether the client knows it.
    pub alias: Option<(u16, bool)>,
    /// The time, in milliseconds since 1970.
    pub now_ms: u64,
}

impl Mqtt {
    /// All variants: their encodings count from `FIRST` on.
    pub const ALL: [Mqtt; 4] = [
        Mqtt { version: Version::V3, framed: false },
        Mqtt { version: Version::V5, framed: false },
        Mqtt { version: Version::V3, framed: true },
        Mqtt { version: Version::V5, framed: true },
    ];

    /// The MQTT of an encoding; `None` for another protocol's.
    pub fn of(encoding: Encoding) -> Option<Mqtt> {
        let at = encoding.0.checked_sub(FIRST)?;
        Mqtt::ALL.get(usize::from(at)).copied()
    }

    /// The number of the encoding.
    pub fn number(self) -> Encoding {
        let version = u8::from(self.version == Version::V5);
        Encoding(FIRST + version + 2 * u8::from(self.framed))
    }

    /// Returns true if packets can contain the server's limits, and the server to use instead.
    pub fn reports_limits(self) -> bool {
        self.version == Version::V5
    }

    /// Returns true if a client learns why the server rejected a request.
    pub fn reports_reasons(self) -> bool {
        self.version == Version::V5
    }

    /// Appends what `write` appends, in a frame of a WebSocket if there is one. Appends nothing if a field is longer
    /// than MQTT allows: names and settings never are, and properties came in such packets.
    fn framed(self, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>) -> Result<(), WriteError>) {
        if !self.framed {
            let written = write(out);
            debug_assert_eq!(written, Ok(()));
            return;
        }
        let mut packet = Vec::new();
        let written = write(&mut packet);
        debug_assert_eq!(written, Ok(()));
        if written.is_ok() {
            frame::encode(Opcode::Binary, false, &packet, out);
        }
    }

    /// Appends CONNACK to an accepted client. Returns false if the packet is larger than the client accepts, even
    /// without topic aliases: then the client can't connect, because it would not learn what it must.
    #[must_use]
    pub fn accept(self, accepted: &Accepted<'_>, limits: &ClientLimits, out: &mut Vec<u8>) -> bool {
        let without_aliases = Accepted { topic_alias_max: 0, ..*accepted };
        for accepted in [accepted, &without_aliases] {
            let properties: Vec<_> = accepted.properties().collect();
            let is_present = accepted.session_present;
            let connack =
                |out: &mut Vec<u8>| write::connack(self.version, is_present, 0, &properties, out);
            if self.fitting(limits, out, connack) {
                return true;
            }
        }
        false
    }

    /// Appends what `write` appends, in a frame of a WebSocket if there is one, unless it is larger than the client
    /// accepts. Returns true if it appended the packet.
    fn fitting(
        self,
        limits: &ClientLimits,
        out: &mut Vec<u8>,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), WriteError>,
    ) -> bool {
        let mut packet = Vec::new();
        let fits = write(&mut packet).is_ok() && packet.len() <= limits.packet_bytes_max as usize;
        if fits {
            self.framed(out, |out| {
                out.extend_from_slice(&packet);
                Ok(())
            });
        }
        fits
    }

    /// Appends a packet that `write` writes with its last properties: a reason string, if the client accepts that
    /// many bytes. Appends nothing if the packet is too large even without the text.
    fn explained(
        self,
        text: Option<&str>,
        limits: &ClientLimits,
        out: &mut Vec<u8>,
        write: impl Fn(&[Property<'_>], &mut Vec<u8>) -> Result<(), WriteError>,
    ) {
        for text in text.into_iter().map(Some).chain([None]) {
            let text = text.map(|text| (id::REASON_STRING, Value::Text(text)));
            if self.fitting(limits, out, |out| write(text.as_slice(), out)) {
                return;
            }
        }
    }

    /// Appends CONNACK to a rejected client, with a text for its developer.
    pub fn refuse(
        self,
        reason: ReasonCode,
        text: Option<&str>,
        limits: &ClientLimits,
        out: &mut Vec<u8>,
    ) {
        // Some codes of DISCONNECT are not valid in CONNACK.
        let known = allowed::or(reason, allowed::CONNACK, ReasonCode::ServerUnavailable);
        let code = match self.version {
            Version::V3 => reason.connect_return_code(),
            Version::V5 => known.number(),
        };
        let text = text.or(reason.text(ReasonOf::Connection));
        self.explained(text, limits, out, |text, out| {
            write::connack(self.version, false, code, text, out)
        });
    }

    /// Appends CONNACK to a client that should use another server. MQTT 3 has no code for that.
    fn send_elsewhere(self, reference: &str, limits: &ClientLimits, out: &mut Vec<u8>) {
        let reason = ReasonCode::UseAnotherServer;
        if self.version == Version::V3 {
            return self.refuse(ReasonCode::ServerUnavailable, None, limits, out);
        }
        let reference = [(id::SERVER_REFERENCE, Value::Text(reference))];
        self.explained(reason.text(ReasonOf::Connection), limits, out, |text, out| {
            let all = [&reference, text].concat();
            write::connack(self.version, false, reason.number(), &all, out)
        });
    }

    /// Appends the rejection of a client that waits for CONNACK.
    pub fn send_away(
        self,
        close: CloseReason,
        reference: Option<&str>,
        limits: &ClientLimits,
        out: &mut Vec<u8>,
    ) {
        match reference.filter(|_| has_reference(close)) {
            Some(reference) => self.send_elsewhere(reference, limits, out),
            None => self.refuse(reason_of(close), None, limits, out),
        }
    }

    /// Appends DISCONNECT with the reason why the connection ends.
    pub fn say_goodbye(
        self,
        close: CloseReason,
        reference: Option<&str>,
        limits: &ClientLimits,
        out: &mut Vec<u8>,
    ) {
        let reference = reference.filter(|_| has_reference(close));
        let reason = match reference {
            Some(_) => ReasonCode::UseAnotherServer,
            None => reason_of(close),
        };
        self.end(reason, reason.text(ReasonOf::Connection), reference, limits, out);
    }

    /// Appends PUBACK, PUBREC, PUBREL or PUBCOMP.
    pub fn confirm(self, kind: ConfirmKind, id: u16, out: &mut Vec<u8>) {
        let success = ReasonCode::Success;
        self.framed(out, |out| write::confirm(kind.packet(), self.version, id, success, &[], out));
    }

    /// Appends the same with an error.
    pub fn confirm_error(
        self,
        kind: ConfirmKind,
        id: u16,
        reason: ReasonCode,
        limits: &ClientLimits,
        out: &mut Vec<u8>,
    ) {
        let text = reason.text(ReasonOf::Message).filter(|_| limits.problem_information);
        self.explained(text, limits, out, |text, out| {
            write::confirm(kind.packet(), self.version, id, reason, text, out)
        });
    }

    /// Appends PUBREL.
    pub fn release(self, id: u16, out: &mut Vec<u8>) {
        self.confirm(ConfirmKind::Release, id, out);
    }

    /// Appends SUBACK.
    pub fn subscribed(
        self,
        id: u16,
        results: &[Result<Qos, ReasonCode>],
        limits: &ClientLimits,
        out: &mut Vec<u8>,
    ) {
        let code = |result: &Result<Qos, ReasonCode>| match (result, self.version) {
            (Ok(qos), _) => qos.number(),
            (Err(_), Version::V3) => ReasonCode::UnspecifiedError.number(),
            (Err(reason), Version::V5) => {
                allowed::or(*reason, allowed::SUBACK, ReasonCode::QuotaExceeded).number()
            }
        };
        let codes: Vec<u8> = results.iter().map(code).collect();
        let text = results.iter().find_map(|it| it.err()?.text(ReasonOf::Subscription));
        let text = text.filter(|_| limits.problem_information);
        self.explained(text, limits, out, |text, out| {
            write::suback(self.version, id, text, &codes, out)
        });
    }

    /// Appends UNSUBACK.
    pub fn unsubscribed(
        self,
        id: u16,
        results: &[ReasonCode],
        limits: &ClientLimits,
        out: &mut Vec<u8>,
    ) {
        // UNSUBACK has no code for some of them, such as an exceeded quota.
        let other = ReasonCode::ImplementationSpecificError;
        let known = |reason: &ReasonCode| allowed::or(*reason, allowed::UNSUBACK, other);
        let codes: Vec<u8> = results.iter().map(|reason| known(reason).number()).collect();
        let text = results.iter().find_map(|it| known(it).text(ReasonOf::Subscription));
        let text = text.filter(|_| limits.problem_information);
        self.explained(text, limits, out, |text, out| {
            write::unsuback(self.version, id, text, &codes, out)
        });
    }

    /// Appends PINGRESP.
    pub fn pong(self, out: &mut Vec<u8>) {
        self.framed(out, |out| {
            write::pingresp(out);
            Ok(())
        });
    }

    /// Appends AUTH: the client may continue. It always fits: CONNACK had the method as well, and was larger.
    pub fn authenticated(self, method: &str, out: &mut Vec<u8>) {
        let method = [(id::AUTHENTICATION_METHOD, Value::Text(method))];
        self.framed(out, |out| write::auth(ReasonCode::Success, &method, out));
    }

    /// Appends DISCONNECT. In MQTT 3 servers send none.
    pub fn disconnect(self, reason: ReasonCode, limits: &ClientLimits, out: &mut Vec<u8>) {
        self.end(reason, reason.text(ReasonOf::Connection), None, limits, out);
    }

    /// Appends DISCONNECT for an invalid packet.
    pub fn break_off(self, error: MqttError, limits: &ClientLimits, out: &mut Vec<u8>) {
        self.end(error.reason(), Some(&error.to_string()), None, limits, out);
    }

    fn end(
        self,
        reason: ReasonCode,
        text: Option<&str>,
        reference: Option<&str>,
        limits: &ClientLimits,
        out: &mut Vec<u8>,
    ) {
        if self.version == Version::V5 {
            let reference = reference.map(|it| (id::SERVER_REFERENCE, Value::Text(it)));
            self.explained(text, limits, out, |text, out| {
                let all = [reference.as_slice(), text].concat();
                write::disconnect(self.version, reason, &all, out)
            });
        }
        self.end_frames(out);
    }

    /// Appends the close frame of a WebSocket, if there is one.
    pub fn end_frames(self, out: &mut Vec<u8>) {
        if self.framed {
            crate::websocket::close(1000, "", out);
        }
    }

    /// Appends a message for one client.
    pub fn message(self, message: &Message, stamp: &Stamp<'_>, out: &mut Vec<u8>) {
        let properties = properties(message, stamp);
        self.framed(out, |out| self.parts(message, stamp, properties.iter().copied()).write(out));
    }

    /// The size of that packet, in bytes.
    pub fn message_bytes(self, message: &Message, stamp: &Stamp<'_>) -> usize {
        let properties = properties(message, stamp);
        self.parts(message, stamp, properties.iter().copied()).bytes()
    }

    fn parts<'a, P>(
        self,
        message: &'a Message,
        stamp: &Stamp<'_>,
        properties: P,
    ) -> PublishParts<'a, P> {
        let publication = &message.publication;
        let is_known = self.version == Version::V5 && stamp.alias.is_some_and(|(_, known)| known);
        PublishParts {
            version: self.version,
            dup: stamp.again,
            qos: stamp.qos,
            retain: stamp.retain,
            topic: if is_known { "" } else { &publication.topic },
            id: stamp.id,
            properties,
            payload: payload(&publication.data),
        }
    }
}

impl ConfirmKind {
    fn packet(self) -> ConfirmType {
        match self {
            ConfirmKind::Acknowledged => ConfirmType::Puback,
            ConfirmKind::Received => ConfirmType::Pubrec,
            ConfirmKind::Release => ConfirmType::Pubrel,
            ConfirmKind::Complete => ConfirmType::Pubcomp,
        }
    }
}

/// The first encoding of MQTT. The numbers never change.
pub const FIRST: u8 = 15;

/// The bytes of a message's payload: the application's text as it is, other JSON as its text.
pub fn payload(data: &Data) -> &[u8] {
    match data {
        Data::Json(text) | Data::Text(text) => text.as_bytes(),
        Data::Binary(bytes) => bytes,
    }
}

impl Accepted<'_> {
    fn properties(&self) -> impl Iterator<Item = (u8, Value<'_>)> + Clone {
        let number = |number: u8, value: u32| Some((number, Value::Number(value)));
        [
            self.seconds.and_then(|it| number(id::SESSION_EXPIRY_INTERVAL, it)),
            number(id::RECEIVE_MAXIMUM, self.receive_max.into()),
            number(id::MAXIMUM_PACKET_SIZE, self.packet_bytes_max),
            self.client.map(|it| (id::ASSIGNED_CLIENT_IDENTIFIER, Value::Text(it))),
            Some(self.topic_alias_max)
                .filter(|max| *max > 0)
                .and_then(|max| number(id::TOPIC_ALIAS_MAXIMUM, max.into())),
            if self.retains { None } else { number(id::RETAIN_AVAILABLE, 0) },
            if self.wildcards { None } else { number(id::WILDCARD_SUBSCRIPTION_AVAILABLE, 0) },
            self.keep_alive_s.and_then(|it| number(id::SERVER_KEEP_ALIVE, it.into())),
            self.method.map(|it| (id::AUTHENTICATION_METHOD, Value::Text(it))),
        ]
        .into_iter()
        .flatten()
    }
}

/// Returns the nearest number of seconds until a message expires, and 1 at least. The thread that sends may have a time
/// some milliseconds before the publish, and the client must not get more than the publisher has given (MQTT 5.0,
/// section 3.3.2.3.3).
fn left_s(expires_ms: u64, now_ms: u64) -> u32 {
    let nearest_s = expires_ms.saturating_sub(now_ms).saturating_add(500) / 1_000;
    u32::try_from(nearest_s).unwrap_or(u32::MAX).max(1)
}

/// The properties of a message for one client.
fn properties<'a>(message: &'a Message, stamp: &Stamp<'a>) -> Vec<(u8, Value<'a>)> {
    let publication = &message.publication;
    let mut all = Vec::new();
    let mut add = |number: u8, value: Value<'a>| all.push((number, value));
    if let Some(expires_ms) = publication.expires_ms() {
        add(id::MESSAGE_EXPIRY_INTERVAL, Value::Number(left_s(expires_ms, stamp.now_ms)));
    }
    if let Some((alias, _)) = stamp.alias {
        add(id::TOPIC_ALIAS, Value::Number(alias.into()));
    }
    for subscription in stamp.subscriptions {
        add(id::SUBSCRIPTION_IDENTIFIER, Value::Number(*subscription));
    }
    if let Some(own) = publication.properties() {
        if own.is_text {
            add(id::PAYLOAD_FORMAT_INDICATOR, Value::Number(1));
        }
        let text = |text: &'a Option<Box<str>>| text.as_deref().map(Value::Text);
        text(&own.content_type).into_iter().for_each(|it| add(id::CONTENT_TYPE, it));
        if let Some(topic) = &own.response_topic {
            add(id::RESPONSE_TOPIC, Value::Text(topic));
        }
        if let Some(data) = &own.correlation_data {
            add(id::CORRELATION_DATA, Value::Binary(data));
        }
        for (name, value) in &own.user {
            add(id::USER_PROPERTY, Value::Pair(name, value));
        }
    }
    if let Some(event) = publication.event.as_ref().map(Name::as_str) {
        add(id::USER_PROPERTY, Value::Pair("event", event));
    }
    all
}

/// The reason code that a client gets when the server ends its connection.
fn reason_of(close: CloseReason) -> ReasonCode {
    match close {
        CloseReason::ByClient | CloseReason::Lost | CloseReason::Replied => ReasonCode::Success,
        CloseReason::ByApplication => ReasonCode::AdministrativeAction,
        CloseReason::Drain => ReasonCode::ServerShuttingDown,
        CloseReason::SlowConsumer => ReasonCode::QuotaExceeded,
        CloseReason::RequestTimeout | CloseReason::Idle | CloseReason::Silent => {
            ReasonCode::KeepAliveTimeout
        }
        CloseReason::BadRequest | CloseReason::ProtocolError => ReasonCode::ProtocolError,
        CloseReason::InvalidPayload => ReasonCode::PayloadFormatInvalid,
        CloseReason::TooBig => ReasonCode::PacketTooLarge,
        CloseReason::Overloaded => ReasonCode::ServerBusy,
        CloseReason::Internal => ReasonCode::UnspecifiedError,
        CloseReason::Unauthorized | CloseReason::TokenExpired | CloseReason::TokenRevoked => {
            ReasonCode::NotAuthorized
        }
        CloseReason::RateLimited => ReasonCode::MessageRateTooHigh,
        CloseReason::TakenOver => ReasonCode::SessionTakenOver,
        CloseReason::UseAnotherServer => ReasonCode::UseAnotherServer,
    }
}

/// Returns true if DISCONNECT for this reason may name another server.
fn has_reference(close: CloseReason) -> bool {
    matches!(close, CloseReason::Drain | CloseReason::UseAnotherServer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_no_more_seconds_than_the_publisher_has_given() {
        // Published with 1,000 seconds by a thread whose time is 5 ms ahead.
        assert_eq!(left_s(1_000_005, 0), 1_000);
        assert_eq!(left_s(1_000_000, 1_600), 998);
        assert_eq!((left_s(1_000, 999), left_s(1_000, 2_000)), (1, 1));
        assert_eq!(left_s(u64::MAX, 0), u32::MAX);
    }
}
