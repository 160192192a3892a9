//! The reasons why a packet is rejected.

use model::CloseReason;
use model::filter::FilterError;

use super::ReasonCode;

/// The reason why a packet can't be read, or may not be sent. The connection ends with it. Texts are for the client's
/// developer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MqttError {
    /// The first packet is no CONNECT.
    #[error("the first packet of a connection must be CONNECT")]
    ConnectFirst,
    /// A second CONNECT.
    #[error("a connection may send CONNECT only once: open another connection")]
    ConnectAgain,
    /// The type of the packet is reserved in this version.
    #[error("this version of MQTT has no packet of the type {0}")]
    ReservedType(u8),
    /// This side may not send the packet's type.
    #[error("a packet of this type must not be sent to a {0}")]
    PacketType(&'static str),
    /// The flags of the fixed header are invalid.
    #[error("the flags of the fixed header do not match the packet's type")]
    Flags,
    /// The remaining length is invalid.
    #[error("the remaining length has more than four bytes")]
    Length,
    /// A number has more bytes than it needs.
    #[error("a variable byte integer has more bytes than it needs")]
    NotShortest,
    /// The packet ends too soon.
    #[error("the packet ends in the middle of a field")]
    Truncated,
    /// The packet has bytes behind its last field.
    #[error("the packet has bytes after its last field")]
    TooLong,
    /// The packet is larger than the receiver accepts.
    #[error("the packet is larger than the limit of {0} bytes")]
    TooLarge(usize),
    /// A text is not UTF-8.
    #[error("a text is not valid UTF-8, or contains the character U+0000")]
    Text,
    /// The name of the protocol is unknown.
    #[error("the name of the protocol must be MQTT (in 3.1 MQIsdp)")]
    ProtocolName,
    /// The version of the protocol is unknown.
    #[error("the version of the protocol must be 3.1, 3.1.1 or 5.0")]
    Version,
    /// The flags of CONNECT are invalid.
    #[error("the flags of CONNECT contradict each other, or the reserved flag is set")]
    ConnectFlags,
    /// QoS 3.
    #[error("there is no QoS 3")]
    Qos,
    /// DUP with QoS 0.
    #[error("a message with QoS 0 must not have the DUP flag")]
    Duplicate,
    /// A packet identifier of 0.
    #[error("a packet identifier must not be 0")]
    PacketId,
    /// The flags of CONNACK are invalid.
    #[error("the flags of CONNACK have a reserved bit set, or Session Present with an error code")]
    ConnackFlags,
    /// SUBSCRIBE or UNSUBSCRIBE has no filter.
    #[error("SUBSCRIBE and UNSUBSCRIBE must have at least one filter")]
    NoFilter,
    /// The options of a subscription are invalid.
    #[error("the options of a subscription have reserved bits set")]
    Options,
    /// QoS 3 of a subscription.
    #[error("a subscription must have QoS 0, 1 or 2: there is no QoS 3")]
    SubscriptionQos,
    /// Retain handling 3.
    #[error("the retain handling of a subscription must be 0, 1 or 2")]
    RetainHandling,
    /// SUBACK or UNSUBACK has no result.
    #[error("SUBACK, and UNSUBACK of 5.0, must have a result for each filter")]
    NoResult,
    /// No-local on a shared subscription.
    #[error("a shared subscription must not have the option No Local")]
    SharedNoLocal,
    /// A filter is invalid.
    #[error(transparent)]
    Filter(FilterError),
    /// A topic is invalid.
    #[error("the topic of a message must not be empty or contain wildcards")]
    Topic,
    /// A message without a topic and without an alias.
    #[error("a message must have a topic or a topic alias")]
    NoTopic,
    /// A property that the packet can't have.
    #[error("the property {0:#04x} is unknown, or not allowed in this packet from this side")]
    Property(u8),
    /// A property repeats that may not.
    #[error("the packet has the property {0:#04x} twice")]
    PropertyTwice(u8),
    /// A property with a value that it can't have.
    #[error("the value of the property {0:#04x} is not allowed")]
    PropertyValue(u8),
    /// A topic alias of 0.
    #[error("a topic alias must not be 0")]
    TopicAlias,
    /// A reason code that the packet can't have.
    #[error("the reason code {0:#04x} is not valid in this packet")]
    Reason(u8),
    /// Authentication without a method.
    #[error("authentication data and AUTH require an authentication method")]
    AuthenticationMethod,
    /// The payload is not UTF-8, although its format indicator says so.
    #[error("the payload is declared as text, but is not UTF-8")]
    PayloadFormat,
}

impl MqttError {
    /// The reason for the end of the connection, in logs and metrics.
    pub fn close(self) -> CloseReason {
        if matches!(self, MqttError::TooLarge(_)) {
            CloseReason::TooBig
        } else if self == MqttError::PayloadFormat {
            CloseReason::InvalidPayload
        } else {
            CloseReason::ProtocolError
        }
    }

    /// The reason code with which the connection ends.
    pub fn reason(self) -> ReasonCode {
        match self {
            MqttError::Version => ReasonCode::UnsupportedProtocolVersion,
            MqttError::TooLarge(_) => ReasonCode::PacketTooLarge,
            MqttError::TopicAlias => ReasonCode::TopicAliasInvalid,
            MqttError::Filter(_) => ReasonCode::TopicFilterInvalid,
            MqttError::Topic => ReasonCode::TopicNameInvalid,
            MqttError::PayloadFormat => ReasonCode::PayloadFormatInvalid,
            MqttError::ConnectFirst
            | MqttError::PacketType(_)
            | MqttError::PropertyTwice(_)
            | MqttError::PropertyValue(_)
            | MqttError::NoTopic
            | MqttError::ConnectAgain
            | MqttError::ConnackFlags
            | MqttError::SubscriptionQos
            | MqttError::RetainHandling
            | MqttError::NoResult
            | MqttError::NoFilter
            | MqttError::SharedNoLocal
            | MqttError::AuthenticationMethod => ReasonCode::ProtocolError,
            MqttError::Flags
            | MqttError::ReservedType(_)
            | MqttError::Length
            | MqttError::NotShortest
            | MqttError::Truncated
            | MqttError::TooLong
            | MqttError::Text
            | MqttError::ProtocolName
            | MqttError::ConnectFlags
            | MqttError::Qos
            | MqttError::Duplicate
            | MqttError::PacketId
            | MqttError::Options
            | MqttError::Property(_)
            | MqttError::Reason(_) => ReasonCode::MalformedPacket,
        }
    }
}

/// The reason why a packet can't be written. The buffer is then unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// A text or bytes are longer than their length field can express.
    #[error("a field has {0} bytes: at most 65,535 can be sent in one")]
    Field(usize),
    /// The packet is longer than its length field can express.
    #[error("the packet has {0} bytes after its fixed header: at most 268,435,455 can be sent")]
    Packet(usize),
    /// A property has a value of another form, or out of the range of its form.
    #[error("the property {0:#04x} is unknown, or can't have this value")]
    Property(u8),
    /// A packet that needs a packet identifier has none.
    #[error("the packet needs a packet identifier other than 0")]
    PacketId,
}
