//! Where the reply to a client's request goes.

use protocol::phoenix::ClientMessage;

use crate::mqtt::MqttAck;

/// How a client gets the reply to its publish, or to its request for a page of history.
#[derive(Debug)]
pub enum ReplyTarget {
    /// As an HTTP request.
    Http(protocol::request::Respond),
    /// As a WebSocket's command with this id.
    Id(Box<str>),
    /// As a Phoenix client's message.
    Phoenix(Box<ClientMessage>),
    /// As a message of an MQTT client.
    Mqtt(MqttAck),
    /// As AUTH of an MQTT client, with this method.
    MqttAuth(Box<str>),
}
