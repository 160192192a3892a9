//! Acknowledgements of MQTT clients' messages.

use model::Qos;

/// How the server confirms a client's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MqttAck {
    /// The packet identifier; 0 with QoS 0.
    pub id: u16,
    /// The QoS of the message.
    pub qos: Qos,
    /// The store writes the session's progress with the message.
    pub with: bool,
    /// The message becomes its topic's retained message.
    pub retain: bool,
}
