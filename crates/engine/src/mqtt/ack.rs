//! What a client is told of a message that it published.

use model::Qos;

/// How a message of a client is confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MqttAck {
    /// The packet identifier; 0 with QoS 0.
    pub id: u16,
    /// How surely it was sent.
    pub qos: Qos,
    /// What is known of it is stored with the message.
    pub with: bool,
    /// It is to be its topic's retained message.
    pub retain: bool,
}
