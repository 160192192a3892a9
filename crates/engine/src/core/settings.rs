//! What may change while an engine runs.

use std::net::IpAddr;

use protocol::MqttSettings;
use proxies::Network;
use quotas::Limits;

use crate::auth::credentials::Expiry;
use crate::webhook::events::HookEvents;
use crate::webhook::forward_rule::Forwards;

/// The most seconds that anything may wait for a silent peer: silence is measured in 16 bits, and
/// looked at about once a second, so that a longer one would pass unseen.
pub const SILENCE_SECONDS_MAX: u32 = 60_000;

// A shard that is held up for an hour still sees it.
const _: () = assert!(SILENCE_SECONDS_MAX + 3_600 < u16::MAX as u32);

/// Settings that may change while the shard runs: [`crate::Command::Settings`].
#[derive(Clone, Debug)]
pub struct Settings {
    /// How bytes are answered.
    pub session: protocol::Settings,
    /// Connections in the whole process.
    pub connections_max: u64,
    /// Connections from one address; 0 is no limit.
    pub connections_per_address_max: u32,
    /// Addresses of IPv6 that begin with the same so many bits count as one.
    pub ipv6_prefix_bits: u8,
    /// New connections a second in the whole process; 0 is no limit.
    pub accept_per_second_max: u32,
    /// Bytes that may wait for a connection that doesn't read.
    pub outbox_bytes_max: usize,
    /// Messages that may wait for it.
    pub outbox_messages_max: usize,
    /// Bytes that input which is not whole may take up in the whole process.
    pub input_bytes_max: usize,
    /// Bytes that all outboxes may take up in the whole process.
    pub outboxes_bytes_max: usize,
    /// Messages that a connection may publish in a second; 0 is no limit.
    pub publishes_per_second_max: u32,
    /// Topics that a connection may enter in a second; 0 is no limit.
    pub joins_per_second_max: u32,
    /// What a user may do in a second, on all connections of the node.
    pub per_user: Limits,
    /// What an address may do.
    pub per_address: Limits,
    /// Connections of a user on the node; 0 is no limit.
    pub connections_per_user_max: u32,
    /// Topics of all of these; 0 is no limit.
    pub topics_per_user_max: u32,
    /// Topics that have members, over all shards; 0 is no limit.
    pub topics_max: u32,
    /// Connections of users in topics with presence, over all shards; 0 is no limit.
    pub presence_connections_max: u32,
    /// Until a request's head and body must be whole, in seconds, at most [`SILENCE_SECONDS_MAX`].
    pub head_seconds: u32,
    /// How long a connection may rest between requests, in seconds, at most
    /// [`SILENCE_SECONDS_MAX`].
    pub idle_seconds: u32,
    /// How long a Phoenix long poll waits, in seconds.
    pub longpoll_seconds: u32,
    /// Phoenix long-poll sessions in the whole process.
    pub longpoll_sessions_max: u64,
    /// Those of one address; 0 is no limit.
    pub longpoll_sessions_per_address_max: u32,
    /// When connections end whose tokens expire.
    pub token_expiry: Expiry,
    /// What a member may say about itself, in bytes.
    pub presence_meta_bytes_max: usize,
    /// An application that does not answer allows what it was asked about.
    pub silence_allows: bool,
    /// What the application wants to hear.
    pub events: HookEvents,
    /// Which messages of clients go to a back end.
    pub forwards: Forwards,
}

impl Settings {
    /// What MQTT clients may do and have, if there is MQTT.
    pub fn mqtt(&self) -> Option<&MqttSettings> {
        self.session.mqtt.as_ref()
    }

    /// The address as which a peer counts, for limits by address: the first of its network, for IPv6.
    pub fn network(&self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(_) => Network::of(address, self.ipv6_prefix_bits).address(),
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl Settings {
    /// Settings for the tests of engines and of their drivers: outboxes and messages are small, and
    /// nobody is refused, slowed or closed for a silence.
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
