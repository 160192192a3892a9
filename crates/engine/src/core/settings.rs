//! Settings that may change while an engine runs.

use std::net::IpAddr;

use protocol::MqttSettings;
use proxies::Network;
use quotas::Limits;

use crate::auth::credentials::Expiry;
use crate::webhook::events::HookEvents;
use crate::webhook::forward_rule::Forwards;

/// The longest time that the engine waits for a silent peer, in seconds. It measures silence in 16 bits and checks it
/// about once a second, so the counter would wrap around before the engine saw a longer one.
pub const SILENCE_SECONDS_MAX: u32 = 60_000;

// An engine that is blocked for an hour still sees the silence.
const _: () = assert!(SILENCE_SECONDS_MAX + 3_600 < u16::MAX as u32);

/// Settings that may change while the shard runs: [`crate::Command::Settings`].
#[derive(Clone, Debug)]
pub struct Settings {
    /// How the protocols read requests and reply.
    pub session: protocol::Settings,
    /// The limit on connections of the process.
    pub connections_max: u64,
    /// The limit on connections of one address; 0 is no limit.
    pub connections_per_address_max: u32,
    /// IPv6 addresses with the same prefix of so many bits count as one.
    pub ipv6_prefix_bits: u8,
    /// The limit on new connections of the process in a second; 0 is no limit.
    pub accept_per_second_max: u32,
    /// The limit on unsent bytes of a connection.
    pub outbox_bytes_max: usize,
    /// The limit on unsent messages of a connection.
    pub outbox_messages_max: usize,
    /// The limit on incomplete input of the process, in bytes.
    pub input_bytes_max: usize,
    /// The limit on all outboxes of the process, in bytes.
    pub outboxes_bytes_max: usize,
    /// The limit on messages that a connection publishes in a second; 0 is no limit.
    pub publishes_per_second_max: u32,
    /// The limit on topics that a connection enters in a second; 0 is no limit.
    pub joins_per_second_max: u32,
    /// The limits of a user in a second, over all connections of the node.
    pub per_user: Limits,
    /// The limits of an address in a second, over all connections of the node.
    pub per_address: Limits,
    /// The limit on a user's connections to the node; 0 is no limit.
    pub connections_per_user_max: u32,
    /// The limit on topics of all connections of a user; 0 is no limit.
    pub topics_per_user_max: u32,
    /// The limit on topics with members, over all shards; 0 is no limit.
    pub topics_max: u32,
    /// The limit on connections of users in topics with presence, over all shards; 0 is no limit.
    pub presence_connections_max: u32,
    /// The time until a request's head and body must be complete, in seconds, at most [`SILENCE_SECONDS_MAX`].
    pub head_seconds: u32,
    /// The longest time of a connection between requests, in seconds, at most [`SILENCE_SECONDS_MAX`].
    pub idle_seconds: u32,
    /// How long a Phoenix long poll waits for messages, in seconds.
    pub longpoll_seconds: u32,
    /// The limit on Phoenix long-poll sessions of the process.
    pub longpoll_sessions_max: u64,
    /// The limit on Phoenix long-poll sessions of one address; 0 is no limit.
    pub longpoll_sessions_per_address_max: u32,
    /// When connections with expiring tokens get a warning and end.
    pub token_expiry: Expiry,
    /// The limit on a member's presence payload, in bytes.
    pub presence_meta_bytes_max: usize,
    /// True if a request that the application does not respond to is allowed.
    pub silence_allows: bool,
    /// The events that the application gets.
    pub events: HookEvents,
    /// Which client messages are forwarded to a back end.
    pub forwards: Forwards,
}

impl Settings {
    /// Returns the settings for MQTT clients, if MQTT is enabled.
    pub fn mqtt(&self) -> Option<&MqttSettings> {
        self.session.mqtt.as_ref()
    }

    /// Returns the address under which a peer counts for the limits: for IPv6, the first address of its network.
    pub fn network(&self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(_) => Network::of(address, self.ipv6_prefix_bits).address(),
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl Settings {
    /// Settings for the tests of engines and of their drivers. Outboxes and messages are small; no client is rejected,
    /// slowed down, or closed because of silence.
    pub fn for_tests(policy: auth::Policy) -> Self {
        let never: u32 = 1_000_000;
        Settings {
            session: protocol::Settings::for_tests(policy),
            connections_max: never.into(),
            connections_per_address_max: 0,
            ipv6_prefix_bits: 64,
            accept_per_second_max: 0,
            outbox_bytes_max: 12 << 10,
            outbox_messages_max: 60,
            input_bytes_max: never as usize,
            outboxes_bytes_max: never as usize,
            publishes_per_second_max: 0,
            joins_per_second_max: 0,
            per_user: Limits::NONE,
            per_address: Limits::NONE,
            connections_per_user_max: 0,
            topics_per_user_max: 0,
            topics_max: 0,
            presence_connections_max: 0,
            head_seconds: never,
            idle_seconds: never,
            longpoll_seconds: 25,
            longpoll_sessions_max: 10,
            longpoll_sessions_per_address_max: 0,
            token_expiry: Expiry { warning_s: 60, spread_s: 30 },
            presence_meta_bytes_max: 100,
            silence_allows: false,
            events: HookEvents::default(),
            forwards: Forwards::default(),
        }
    }
}
