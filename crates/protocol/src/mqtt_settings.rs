//! The limits and features of MQTT clients.

/// The limits and features of MQTT clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MqttSettings {
    /// Seconds of a keep-alive at most, for clients whose CONNACK can contain it; 0 is no limit.
    pub keep_alive_seconds_max: u16,
    /// Seconds for which a session outlives its connection, at most.
    pub session_seconds_max: u32,
    /// Sessions of disconnected clients, at most.
    pub sessions_max: usize,
    /// Sessions of one user's disconnected clients, at most, if users are proved; 0 is no limit.
    pub sessions_per_user_max: usize,
    /// Bytes of the sessions of disconnected clients, with their wills, at most.
    pub away_bytes_max: usize,
    /// Messages that a topic retains for sessions, if no rule sets a history for it.
    pub session_messages_max: usize,
    /// Bytes of payload of those messages, at most.
    pub session_bytes_max: usize,
    /// Bytes of a packet from a client, at most.
    pub packet_bytes_max: u32,
    /// Unconfirmed messages of QoS 1 and 2 from a client, at most.
    pub receive_max: u16,
    /// Unconfirmed messages of QoS 1 and 2 to a client, at most.
    pub inflight_max: u16,
    /// Further messages in a client's queue, at most.
    pub queue_messages_max: usize,
    /// The highest topic alias for clients; 0 is none.
    pub topic_alias_max: u16,
    /// Topics with a retained message, at most.
    pub retained_messages_max: usize,
    /// Bytes of payload of retained messages, at most.
    pub retained_bytes_max: usize,
    /// The server that clients should use when this one drains, if any.
    pub server_reference: Option<Box<str>>,
    /// Clients may subscribe with `+` and `#`.
    pub wildcards: bool,
    /// Clients may publish to topics for which no rule decides who may.
    pub open: bool,
}

#[cfg(any(test, feature = "testing"))]
impl MqttSettings {
    /// Settings for tests, here and in other crates: small limits.
    pub fn for_tests() -> Self {
        MqttSettings {
            keep_alive_seconds_max: 1_800,
            session_seconds_max: 86_400,
            sessions_max: 100,
            sessions_per_user_max: 0,
            away_bytes_max: 1 << 20,
            session_messages_max: 100,
            session_bytes_max: 64 << 10,
            packet_bytes_max: 8_192,
            receive_max: 10,
            inflight_max: 10,
            queue_messages_max: 20,
            topic_alias_max: 5,
            retained_messages_max: 100,
            retained_bytes_max: 64 << 10,
            server_reference: None,
            wildcards: true,
            open: false,
        }
    }
}
