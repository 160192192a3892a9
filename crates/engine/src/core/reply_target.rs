//! Where the reply to a client's request goes.

use protocol::phoenix::ClientMessage;

use crate::mqtt::MqttAck;

/// How the reply to a client's publish or history request is written.
#[derive(Debug)]
pub enum ReplyTarget {
    /// To an HTTP request.
    Http(protocol::request::Respond),
    /// To a WebSocket command with this id.
    Id(Box<str>),
    /// To a message of a Phoenix client.
    Phoenix(Box<ClientMessage>),
    /// To a packet of an MQTT client.
    Mqtt(MqttAck),
    /// By an AUTH packet to an MQTT client, with this method.
    MqttAuth(Box<str>),
}
