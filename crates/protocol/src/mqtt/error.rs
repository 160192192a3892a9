//! The reasons why a packet is rejected.

use model::CloseReason;
use model::filter::FilterError;

use super::ReasonCode;

/// The reason why a packet can't be read, or may not be sent. The connection ends with it. Texts are for the client's
/// developer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MqttError {
    /// The first packet is no CONNECT.
    #[error("the first packet of a connection is CONNECT")]
    ConnectFirst,
    /// A second CONNECT.
    #[error("CONNECT is sent once a connection: open another one")]
    ConnectAgain,
    /// The type of the packet is reserved in this version.
    #[error("there is no packet of the type {0} in this version of MQTT")]
    ReservedType(u8),
    /// This side may not send the packet's type.
    #[error("a packet of this type is not sent to a {0}")]
    PacketType(&'static str),
    /// The flags of the fixed header are invalid.
    #[error("the flags of the fixed header are not those of the packet's type")]
    Flags,
    /// The remaining length is invalid.
    #[error("the remaining length has more than four bytes")]
    Length,
    /// A number has more bytes than it needs.
    #[error("a number of variable length has more bytes than it needs")]
    NotShortest,
    /// The packet ends too soon.
    #[error("the packet ends in the middle of a field")]
    Truncated,
    /// The packet has bytes behind its last field.
    #[error("the packet goes on behind its last field")]
    TooLong,
    /// The packet is larger than the receiver accepts.
    #[error("the packet is larger than the {0} bytes that may be")]
    TooLarge(usize),
    /// A text is not UTF-8.
    #[error("a text is not valid UTF-8, or has the character U+0000")]
    Text,
    /// The name of the protocol is unknown.
    #[error("the name of the protocol is MQTT (in 3.1 MQIsdp)")]
    ProtocolName,
    /// The version of the protocol is unknown.
    #[error("the versions that are spoken here are 3.1, 3.1.1 and 5.0")]
    Version,
    /// The flags of CONNECT are invalid.
    #[error("the flags of CONNECT contradict each other, or the reserved one is set")]
    ConnectFlags,
    /// QoS 3.
    #[error("there is no QoS 3")]
    Qos,
    /// DUP with QoS 0.
    #[error("a message with QoS 0 is never a duplicate")]
    Duplicate,
    /// A packet identifier of 0.
    #[error("a packet identifier is not 0")]
    PacketId,
    /// The flags of CONNACK are invalid.
    #[error("the flags of CONNACK have a reserved bit, or a session beside a refusal")]
    ConnackFlags,
    /// SUBSCRIBE or UNSUBSCRIBE has no filter.
    #[error("SUBSCRIBE and UNSUBSCRIBE have at least one filter")]
    NoFilter,
    /// The options of a subscription are invalid.
    #[error("the options of a subscription have reserved bits")]
    Options,
    /// QoS 3 of a subscription.
    #[error("a subscription has QoS 0, 1 or 2: there is no QoS 3")]
    SubscriptionQos,
    /// Retain handling 3.
    #[error("the retain handling of a subscription is 0, 1 or 2")]
    RetainHandling,
    /// SUBACK or UNSUBACK has no result.
    #[error("SUBACK has a result for each filter, and UNSUBACK of 5.0 too")]
    NoResult,
    /// No-local on a shared subscription.
    #[error("a shared subscription can't leave out the client's own messages")]
    SharedNoLocal,
    /// A filter is invalid.
    #[error(transparent)]
    Filter(FilterError),
    /// A topic is invalid.
    #[error("a topic is published to by its name, without wildcards, and it is not empty")]
    Topic,
    /// A message without a topic and without an alias.
    #[error("a message has a topic, or the alias of one")]
    NoTopic,
    /// A property that the packet can't have.
    #[error("the property {0:#04x} is unknown, or not for this packet from this side")]
    Property(u8),
    /// A property repeats that may not.
    #[error("the property {0:#04x} is there twice")]
    PropertyTwice(u8),
    /// A property with a value that it can't have.
    #[error("the value of the property {0:#04x} is not allowed")]
    PropertyValue(u8),
    /// A topic alias of 0.
    #[error("a topic alias is not 0")]
    TopicAlias,
    /// A reason code that the packet can't have.
    #[error("the reason code {0:#04x} is not one of this packet")]
    Reason(u8),
    /// Authentication without a method.
    #[error("authentication data need an authentication method, and so does AUTH")]
    AuthenticationMethod,
    /// The payload is not UTF-8, although its format indicator says so.
    #[error("the payload is said to be text, and is not UTF-8")]
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
    #[error("the packet has {0} bytes behind its fixed header: at most 268,435,455 can be sent")]
    Packet(usize),
    /// A property has a value of another form, or out of the range of its form.
    #[error("the property {0:#04x} is unknown, or has no such value")]
    Property(u8),
    /// A packet that needs a packet identifier has none.
    #[error("the packet needs a packet identifier other than 0")]
    PacketId,
}
