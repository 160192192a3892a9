//! Reason codes of MQTT 5.0 (section 2.4) and return codes of MQTT 3.1.1 (section 3.2.2.3).

use model::ErrorCode;

macro_rules! reason_codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $code:literal,)+) => {
        /// A reason code of MQTT 5.0. If a number has several names, the packet decides which one applies.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum ReasonCode {
            $($(#[doc = $doc])+ $name = $code,)+
        }

        impl ReasonCode {
            /// All codes, in the order of their numbers.
            pub const ALL: &'static [ReasonCode] = &[$(ReasonCode::$name),+];

            /// The code with this number.
            pub fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($code => Some(ReasonCode::$name),)+
                    _ => None,
                }
            }
        }
    };
}

reason_codes! {
    /// Done; a normal disconnection; granted QoS 0.
    Success = 0x00,
    /// Granted QoS 1.
    GrantedQos1 = 0x01,
    /// Granted QoS 2.
    GrantedQos2 = 0x02,
    /// The client disconnects, and the server publishes its will.
    DisconnectWithWillMessage = 0x04,
    /// The server accepted the message, and the topic has no subscribers.
    NoMatchingSubscribers = 0x10,
    /// There was no such subscription.
    NoSubscriptionExisted = 0x11,
    /// The authentication continues.
    ContinueAuthentication = 0x18,
    /// The client authenticates again.
    ReAuthenticate = 0x19,
    /// An error without a code of its own.
    UnspecifiedError = 0x80,
    /// The packet can't be read.
    MalformedPacket = 0x81,
    /// The packet is not allowed here.
    ProtocolError = 0x82,
    /// The packet is valid, but this server does not accept it.
    ImplementationSpecificError = 0x83,
    /// The server does not speak this version.
    UnsupportedProtocolVersion = 0x84,
    /// The client identifier is not allowed.
    ClientIdentifierNotValid = 0x85,
    /// The user name or the password is invalid.
    BadUserNameOrPassword = 0x86,
    /// The client may not do this.
    NotAuthorized = 0x87,
    /// The server is not available.
    ServerUnavailable = 0x88,
    /// The server is busy: try again later.
    ServerBusy = 0x89,
    /// The client was banned.
    Banned = 0x8a,
    /// The server is shutting down.
    ServerShuttingDown = 0x8b,
    /// The authentication method is not supported, or differs from that of CONNECT.
    BadAuthenticationMethod = 0x8c,
    /// The client sent nothing for one and a half times the keep-alive.
    KeepAliveTimeout = 0x8d,
    /// Another connection took over the client identifier.
    SessionTakenOver = 0x8e,
    /// The filter is valid, but this server does not accept it.
    TopicFilterInvalid = 0x8f,
    /// The topic is valid, but this server does not accept it.
    TopicNameInvalid = 0x90,
    /// The packet identifier is in use.
    PacketIdentifierInUse = 0x91,
    /// The packet identifier is unknown.
    PacketIdentifierNotFound = 0x92,
    /// The sender exceeded the receive maximum of unconfirmed messages.
    ReceiveMaximumExceeded = 0x93,
    /// The topic alias is 0 or too large.
    TopicAliasInvalid = 0x94,
    /// The packet is larger than the receiver accepts.
    PacketTooLarge = 0x95,
    /// The client sent too much in a short time.
    MessageRateTooHigh = 0x96,
    /// A limit was reached.
    QuotaExceeded = 0x97,
    /// The operator ended the connection.
    AdministrativeAction = 0x98,
    /// The payload does not have the format that the packet gives.
    PayloadFormatInvalid = 0x99,
    /// Retained messages are not supported.
    RetainNotSupported = 0x9a,
    /// The QoS is not supported.
    QosNotSupported = 0x9b,
    /// The client should use another server for now.
    UseAnotherServer = 0x9c,
    /// The client should use another server from now on.
    ServerMoved = 0x9d,
    /// Shared subscriptions are not supported.
    SharedSubscriptionsNotSupported = 0x9e,
    /// Too many connections were made in a short time.
    ConnectionRateExceeded = 0x9f,
    /// The connection reached its maximum duration.
    MaximumConnectTime = 0xa0,
    /// Subscription identifiers are not supported.
    SubscriptionIdentifiersNotSupported = 0xa1,
    /// Wildcards are not supported.
    WildcardSubscriptionsNotSupported = 0xa2,
}

impl ReasonCode {
    /// The name of 0x00 in DISCONNECT.
    pub const NORMAL_DISCONNECTION: ReasonCode = ReasonCode::Success;

    /// The name of 0x00 in SUBACK.
    pub const GRANTED_QOS_0: ReasonCode = ReasonCode::Success;

    /// Its number.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Returns true if the code reports an error.
    pub fn is_error(self) -> bool {
        self.number() >= 0x80
    }

    /// The CONNACK return code of MQTT 3.1.1 for this reason.
    pub fn connect_return(self) -> ConnectReturnCode {
        let same = ConnectReturnCode::ALL.into_iter().find(|code| code.reason() == self);
        let may_not = [ReasonCode::Banned, ReasonCode::BadAuthenticationMethod].contains(&self);
        same.unwrap_or(if may_not {
            ConnectReturnCode::NotAuthorized
        } else {
            ConnectReturnCode::ServerUnavailable
        })
    }

    /// The number of [`ReasonCode::connect_return`].
    pub fn connect_return_code(self) -> u8 {
        self.connect_return().number()
    }
}

/// The reason that MQTT clients get for an error.
impl From<ErrorCode> for ReasonCode {
    fn from(code: ErrorCode) -> Self {
        let known = code.mqtt_reason().and_then(ReasonCode::from_number);
        known.unwrap_or(ReasonCode::UnspecifiedError)
    }
}

/// The subject of a reason code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasonOf {
    /// A message of its own, by PUBACK, PUBREC, PUBREL or PUBCOMP.
    Message,
    /// Subscriptions, by SUBACK or UNSUBACK.
    Subscription,
    /// Its connection, by CONNACK or DISCONNECT.
    Connection,
}

/// What happened and what to do, for the client's developer.
const TEXTS: &[(ReasonOf, ReasonCode, &str)] = {
    use ReasonCode::*;
    use ReasonOf::*;
    &[
        (
            Message,
            NotAuthorized,
            "the client may not publish to this topic: its token, a rule or the application does \
             not allow it",
        ),
        (
            Message,
            TopicNameInvalid,
            "the topic is longer than 254 bytes, or has control characters",
        ),
        (
            Message,
            QuotaExceeded,
            "a limit of the client or of the server is reached: publish the message again later",
        ),
        (
            Message,
            ImplementationSpecificError,
            "messages to this topic require a key, which MQTT can't carry: publish the message \
             through the API",
        ),
        (
            Message,
            PacketIdentifierNotFound,
            "no message has this packet identifier: it is complete, or belongs to another session",
        ),
        (
            Message,
            UnspecifiedError,
            "the message did not reach its destination: publish it again later",
        ),
        (
            Subscription,
            NotAuthorized,
            "the client may not subscribe to this filter: its token, a rule or the application \
             does not allow it",
        ),
        (
            Subscription,
            TopicFilterInvalid,
            "the filter or its group is longer than 254 bytes, or is not valid",
        ),
        (
            Subscription,
            QuotaExceeded,
            "a limit of the client or of the server is reached: use fewer subscriptions, or try \
             again later",
        ),
        (Subscription, ServerBusy, "the application did not respond: subscribe again later"),
        (
            Subscription,
            WildcardSubscriptionsNotSupported,
            "this server does not allow filters with wildcards: subscribe to topics by their names",
        ),
        (
            Subscription,
            ImplementationSpecificError,
            "the client exceeds its limit per second: try again later",
        ),
        (Subscription, UnspecifiedError, "the subscription failed: try again later"),
        (Connection, UnspecifiedError, "the server has failed: connect again"),
        (Connection, MalformedPacket, "the server received a packet that it can't parse"),
        (
            Connection,
            ProtocolError,
            "the server received a packet that is not allowed at this point, or not in this form",
        ),
        (
            Connection,
            NotAuthorized,
            "the token does not allow this, or is no longer valid: connect with another token",
        ),
        (
            Connection,
            ServerUnavailable,
            "the server is shutting down: connect again, or to another server",
        ),
        (Connection, ServerBusy, "the server is busy: connect again later"),
        (
            Connection,
            ServerShuttingDown,
            "the server is shutting down: connect again, or to another server",
        ),
        (
            Connection,
            UseAnotherServer,
            "connect to another server: the one in the Server Reference, if it is present",
        ),
        (
            Connection,
            BadAuthenticationMethod,
            "the authentication method is not the one of CONNECT",
        ),
        (
            Connection,
            KeepAliveTimeout,
            "the client sent nothing for one and a half times the keep-alive: send PINGREQ in time",
        ),
        (
            Connection,
            SessionTakenOver,
            "another connection now uses the client identifier: give each client its own \
             identifier",
        ),
        (
            Connection,
            ReceiveMaximumExceeded,
            "more messages are unacknowledged than the receive maximum allows: wait for \
             acknowledgements",
        ),
        (
            Connection,
            TopicAliasInvalid,
            "the topic alias is higher than the topic alias maximum of CONNACK",
        ),
        (Connection, PacketTooLarge, "a message is larger than the server accepts"),
        (Connection, MessageRateTooHigh, "the client exceeds its limit per second: slow down"),
        (
            Connection,
            QuotaExceeded,
            "too much data is queued for the client: read faster, or subscribe to fewer topics",
        ),
        (Connection, AdministrativeAction, "the application or the operator closed the connection"),
    ]
};

impl ReasonCode {
    /// What happened and what to do; `None` if the code needs no explanation.
    pub fn text(self, of: ReasonOf) -> Option<&'static str> {
        TEXTS.iter().find(|row| (row.0, row.1) == (of, self)).map(|row| row.2)
    }
}

/// A return code of MQTT 3 in CONNACK (MQTT 3.1.1, section 3.2.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ConnectReturnCode {
    /// The server accepts the client.
    Accepted = 0,
    /// The server does not speak this version.
    UnacceptableProtocolVersion = 1,
    /// The client identifier is not allowed.
    IdentifierRejected = 2,
    /// The server is not available.
    ServerUnavailable = 3,
    /// The user name or the password is invalid.
    BadUserNameOrPassword = 4,
    /// The client may not connect.
    NotAuthorized = 5,
}

impl ConnectReturnCode {
    /// All codes, in the order of their numbers.
    pub const ALL: [ConnectReturnCode; 6] = [
        ConnectReturnCode::Accepted,
        ConnectReturnCode::UnacceptableProtocolVersion,
        ConnectReturnCode::IdentifierRejected,
        ConnectReturnCode::ServerUnavailable,
        ConnectReturnCode::BadUserNameOrPassword,
        ConnectReturnCode::NotAuthorized,
    ];

    /// Its number.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The code with this number; `None` from 6 on.
    pub fn from_number(number: u8) -> Option<Self> {
        ConnectReturnCode::ALL.get(usize::from(number)).copied()
    }

    /// The reason code of MQTT 5.0 for it.
    pub fn reason(self) -> ReasonCode {
        match self {
            ConnectReturnCode::Accepted => ReasonCode::Success,
            ConnectReturnCode::UnacceptableProtocolVersion => {
                ReasonCode::UnsupportedProtocolVersion
            }
            ConnectReturnCode::IdentifierRejected => ReasonCode::ClientIdentifierNotValid,
            ConnectReturnCode::ServerUnavailable => ReasonCode::ServerUnavailable,
            ConnectReturnCode::BadUserNameOrPassword => ReasonCode::BadUserNameOrPassword,
            ConnectReturnCode::NotAuthorized => ReasonCode::NotAuthorized,
        }
    }
}
