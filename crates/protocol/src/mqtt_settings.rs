//! What MQTT clients may do and have, where there is MQTT.

/// What MQTT clients may do and have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MqttSettings {
    /// The longest keep-alive of a client that can be told so, in seconds; 0 is what each has.
    pub keep_alive_seconds_max: u16,
    /// How long a session outlives its connection at most, in seconds.
    pub session_seconds_max: u32,
    /// Sessions of clients that are away.
    pub sessions_max: usize,
    /// Those of one user, where users are proved; 0 is no limit.
    pub sessions_per_user_max: usize,
    /// What the sessions of clients that are away may hold, with their wills, in bytes.
    pub away_bytes_max: usize,
    /// Messages that a topic retains for sessions, where no rule says what it retains.
    pub session_messages_max: usize,
    /// What those may hold, in bytes of payload.
    pub session_bytes_max: usize,
    /// A packet from a client, in bytes.
    pub packet_bytes_max: u32,
    /// Messages with QoS 1 and 2 that a client may have under way to the server.
    pub receive_max: u16,
    /// Such messages that may be under way to a client.
    pub inflight_max: u16,
    /// Messages that may wait for a client beyond those.
    pub queue_messages_max: usize,
    /// The highest alias that a client may give a topic; 0 is none.
    pub topic_alias_max: u16,
    /// Topics with a retained message.
    pub retained_messages_max: usize,
    /// What retained messages may hold, in bytes of payload.
    pub retained_bytes_max: usize,
    /// The server to which clients are sent when this one drains, if any.
    pub server_reference: Option<Box<str>>,
    /// Clients may subscribe with `+` and `#`.
    pub wildcards: bool,
    /// Clients may publish to each topic of which nothing says who may.
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
