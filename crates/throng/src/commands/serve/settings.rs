//! Converts the configuration to the settings of each part of the server.
// A cast would silently truncate a value that the type can't hold: see `clamped`.
#![deny(clippy::as_conversions)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use auth::{Authenticator, Policy};
use config::{Config, Loaded};
use model::{AcknowledgeRule, HistoryRule, Name, Rule, Rules};

use protocol::Listener;
use quotas::Unit;
use shard::Port;

use super::demo;

/// Converts a number of the configuration to the type that holds it. The tests in `bounds.rs` prove
/// that every setting's bounds fit; where `usize` is smaller than there, its maximum stands for
/// larger values.
pub(super) fn clamped<T: TryFrom<u64> + Most>(number: u64) -> T {
    T::try_from(number).unwrap_or(T::MOST)
}

/// The largest value of a type.
pub(super) trait Most {
    const MOST: Self;
}

impl Most for u32 {
    const MOST: u32 = u32::MAX;
}

impl Most for u8 {
    const MOST: u8 = u8::MAX;
}

impl Most for u16 {
    const MOST: u16 = u16::MAX;
}

impl Most for usize {
    const MOST: usize = usize::MAX;
}

/// The inputs of the settings besides the configuration. They never change while the process runs.
pub(super) struct Fixed {
    /// `--ws-echo`.
    pub ws_echo: bool,
    /// `--demo`.
    pub demo: bool,
    /// The key that signs the tokens of long-poll sessions.
    pub longpoll_key: protocol::phoenix::token::Key,
}

fn rules(config: &Config, demo: bool) -> Rules {
    let any = |prefix: &String| {
        if prefix == "*" { String::new() } else { prefix.clone() }
    };
    let rule = |rule: &config::TopicRule| Rule {
        pattern: rule.pattern.clone(),
        join: rule.join,
        publish: rule.publish,
        presence: rule.presence,
        events: rule.events,
        conflate: rule.conflate,
        webhook_url: rule.webhook_url.as_deref().map(Arc::from),
        history: history(rule).map(Arc::new),
    };
    let mut rules: Vec<Rule> = config.topics.iter().map(rule).collect();
    if demo {
        // The demo's rules come last, so that the rules of the configuration win.
        rules.extend(demo::rules(config.limits.message_bytes_max));
    }
    let publish_prefixes = config.client.publish_prefixes.iter().map(any).collect();
    Rules { rules, publish_prefixes, inbox: inbox(config).map(Arc::new) }
}

/// Returns what clients may do.
fn policy(config: &Config, fixed: &Fixed) -> Policy {
    Policy::new(rules(config, fixed.demo), config.client.login)
}

/// Returns the proxies that the server trusts to say where a client is. The configuration has validated the networks.
fn proxies(config: &Config) -> proxies::Trusted {
    let networks = proxies::Networks::parse(&config.client.trusted_proxies).unwrap_or_default();
    proxies::Trusted { networks, header: config.client.proxy_header }
}

/// Returns the limits of a user, per second.
fn per_user(limits: &config::Limits) -> quotas::Limits {
    quotas::Limits::NONE
        .with(Unit::Commands, limits.commands_per_second_per_user_max)
        .with(Unit::Bytes, limits.bytes_per_second_per_user_max)
        .with(Unit::Publishes, limits.publishes_per_second_per_user_max)
        .with(Unit::Joins, limits.joins_per_second_per_user_max)
}

/// Returns the limits of an API key, per second: its own, or those of all keys.
fn per_key(limits: &config::Limits, key: Option<&config::KeyRule>) -> quotas::Limits {
    let of = |own: fn(&config::KeyRule) -> Option<u64>, all| key.and_then(own).unwrap_or(all);
    quotas::Limits::NONE
        .with(
            Unit::Commands,
            of(|key| key.commands_per_second_max, limits.commands_per_second_per_key_max),
        )
        .with(Unit::Bytes, of(|key| key.bytes_per_second_max, limits.bytes_per_second_per_key_max))
        .with(
            Unit::Publishes,
            of(|key| key.publishes_per_second_max, limits.publishes_per_second_per_key_max),
        )
}

/// Returns the limits of an address, per second.
fn per_address(limits: &config::Limits) -> quotas::Limits {
    quotas::Limits::NONE
        .with(Unit::Commands, limits.commands_per_second_per_address_max)
        .with(Unit::Bytes, limits.bytes_per_second_per_address_max)
        .with(Unit::Publishes, limits.publishes_per_second_per_address_max)
        .with(Unit::Joins, limits.joins_per_second_per_address_max)
}

/// How long messages are retained, if the configuration does not say: a day.
const HISTORY_SECONDS: u64 = 86_400;

/// Returns the history rule of a topic rule.
fn history(rule: &config::TopicRule) -> Option<HistoryRule> {
    let acknowledge = || AcknowledgeRule {
        window_messages_max: clamped(rule.ack_window_messages_max),
        redelivery_seconds: clamped(rule.ack_redelivery_seconds),
        delivery_count_max: delivery_count_max(rule.ack_tries_max, &rule.dead_letter),
        dead_letter: name(&rule.dead_letter),
    };
    // A state stays valid however old it is.
    let seconds_max = if rule.compact { u64::MAX } else { HISTORY_SECONDS };
    (rule.history_messages_max > 0).then(|| HistoryRule {
        messages_max: rule.history_messages_max,
        bytes_max: rule.history_bytes_max,
        seconds_max: rule.history_seconds_max.unwrap_or(seconds_max),
        durable: rule.durable,
        compact: rule.compact,
        acknowledge: rule.acknowledge.then(acknowledge),
    })
}

/// Returns the history rule of users' inboxes.
fn inbox(config: &Config) -> Option<HistoryRule> {
    let inbox = &config.inbox;
    inbox.enabled.then(|| HistoryRule {
        messages_max: inbox.messages_max,
        bytes_max: inbox.bytes_max,
        seconds_max: inbox.seconds_max,
        durable: inbox.durable,
        compact: false,
        acknowledge: Some(AcknowledgeRule {
            window_messages_max: clamped(inbox.window_messages_max),
            redelivery_seconds: clamped(inbox.redelivery_seconds),
            delivery_count_max: delivery_count_max(inbox.tries_max, &inbox.dead_letter),
            dead_letter: name(&inbox.dead_letter),
        }),
    })
}

/// After how many deliveries a message goes to the dead letters, if the configuration does not say.
const DEAD_LETTER_DELIVERIES: u32 = 5;

/// Returns how often a message is delivered before it is given up. 0 means without limit, which is the default
/// without dead letters.
fn delivery_count_max(delivery_count_max: u64, dead_letter: &str) -> u32 {
    match clamped(delivery_count_max) {
        0 if !dead_letter.is_empty() => DEAD_LETTER_DELIVERIES,
        delivery_count_max => delivery_count_max,
    }
}

/// Returns the name; an empty text means none.
fn name(text: &str) -> Option<Name> {
    Some(text).filter(|text| !text.is_empty()).map(Name::from)
}

/// How many members delay a topic's presence messages by one millisecond, beyond the configured
/// interval: 50,000 members get a message every five seconds at most.
const PRESENCE_MEMBERS_PER_MS: u64 = 10;

pub(super) fn presence(config: &Config) -> presence::Limits {
    presence::Limits {
        users_max: clamped(config.presence.users_max),
        // The configuration checks this bound only if one of its own rules has presence; the demo's
        // rule always has.
        list_bytes_max: clamped(
            config.presence.list_bytes_max.min(config.limits.outbox_bytes_max / 2),
        ),
        interval_us: config.presence.interval_milliseconds * 1_000,
        members_per_ms: PRESENCE_MEMBERS_PER_MS,
    }
}

pub(super) fn webhook(config: &Config) -> control::webhook::Settings {
    let (events, forwards) = (events(config), config.forwards.iter().map(forward).collect());
    let config = &config.webhook;
    let text = |text: &str| Some(text).filter(|text| !text.is_empty()).map(str::to_string);
    control::webhook::Settings {
        url: text(&config.url).map(Arc::from),
        secret: text(&config.secret),
        signing_key: config::signing_key(&config.signing_key)
            .and_then(control::webhook::SigningKey::new),
        timeout: Duration::from_millis(config.timeout_milliseconds),
        batch_events_max: clamped(config.batch_events_max),
        events,
        event_retry: Duration::from_secs(config.event_retry_seconds),
        occupancy: Duration::from_millis(config.occupancy_milliseconds),
        forwards,
    }
}

/// Returns the destination of the messages of a rule.
fn forward(rule: &config::ForwardRule) -> control::webhook::Forward {
    control::webhook::Forward {
        filter: rule.filter.as_str().into(),
        url: rule.url.as_str().into(),
        timeout: Duration::from_millis(rule.timeout_milliseconds),
        retry: Duration::from_secs(rule.retry_seconds),
        batch_messages_max: clamped(rule.batch_messages_max),
        batch_wait: Duration::from_millis(rule.batch_wait_milliseconds),
        queue_messages_max: clamped(rule.queue_messages_max),
        queue_bytes_max: clamped(rule.queue_bytes_max),
    }
}

/// Returns the rules that say which messages go to a back end.
fn forwards(config: &Config) -> shard::Forwards {
    let rule = |rule: &config::ForwardRule| shard::ForwardRule {
        filter: rule.filter.as_str().into(),
        deliver: rule.deliver,
        answer_filters: rule.answer_filters.iter().map(|filter| filter.as_str().into()).collect(),
    };
    shard::Forwards::new(config.forwards.iter().map(rule).collect())
}

/// Returns the events that the application requests.
fn events(config: &Config) -> shard::HookEvents {
    let wants = |event: &str| config.webhook.events.iter().any(|it| it == event);
    shard::HookEvents {
        connected: wants("connected"),
        disconnected: wants("disconnected"),
        joined: wants("joined"),
        left: wants("left"),
        occupied: wants("occupied"),
        vacated: wants("vacated"),
    }
}

pub(super) fn webhook_fixed(
    config: &Config,
    authorities: control::Authorities,
    tracer: Option<Arc<control::Tracer>>,
) -> control::webhook::Fixed {
    control::webhook::Fixed {
        authorities,
        queue_events_max: clamped(config.webhook.queue_events_max),
        queue_events_per_url_max: clamped(config.webhook.queue_events_per_url_max),
        queue_bytes_max: clamped(config.webhook.queue_bytes_max),
        requests_max: clamped(config.webhook.requests_max),
        events: control::webhook::EventLimits {
            events_max: clamped(config.webhook.event_queue_events_max),
            bytes_max: clamped(config.webhook.event_queue_bytes_max),
        },
        tracer,
    }
}

/// Returns the destination of spans of traces; `None` if no collector is configured.
pub(super) fn tracing(
    config: &Config,
    authorities: control::Authorities,
    node: String,
) -> Option<control::TracingSettings> {
    let config = &config.tracing;
    (!config.otlp_url.is_empty()).then(|| control::TracingSettings {
        url: config.otlp_url.clone(),
        sample_per_million: config.sample_per_million,
        authorities,
        node,
    })
}

pub(super) fn admin(config: &Config) -> control::ConnectionLimits {
    let config = &config.admin;
    control::ConnectionLimits {
        connections_max: clamped(config.connections_max),
        per_address_max: clamped(config.connections_per_address_max),
        head_max: Duration::from_secs(config.head_seconds),
        idle_max: Duration::from_secs(config.idle_seconds),
        bodies_bytes_max: clamped(config.bodies_bytes_max),
    }
}

/// Returns the callers that the admin port accepts.
pub(super) fn access(config: &Config) -> control::AccessSettings {
    let named = config.keys.iter().map(|key| control::ApiKey {
        name: key.name.clone(),
        hash: key.hash.0,
        // The configuration has validated them.
        scopes: key.scopes.iter().filter_map(|scope| scope.parse().ok()).collect(),
        expires: key.expires,
        limits: per_key(&config.limits, Some(key)),
    });
    let plain = Some(&config.admin.api_key).filter(|key| !key.is_empty());
    let plain = plain.map(|key| control::ApiKey {
        limits: per_key(&config.limits, None),
        ..control::ApiKey::of_text("admin.api_key", key)
    });
    control::AccessSettings {
        keys: plain.into_iter().chain(named).collect(),
        hosts: config.admin.hosts.clone(),
        // The configuration has validated them.
        proxies: proxies::Networks::parse(&config.admin.trusted_proxies).unwrap_or_default(),
        session: Duration::from_secs(config.admin.session_seconds),
    }
}

pub(super) fn broker(config: &Config) -> broker::Limits {
    broker::Limits {
        recent_messages_max: clamped(config.limits.recent_messages_max),
        recent_bytes_max: clamped(config.limits.recent_bytes_max),
        recent_seconds_max: config.limits.recent_seconds_max,
    }
}

/// Returns how long a drain may take, in seconds.
pub(super) fn drain_seconds(config: &Config) -> u32 {
    clamped(config.timeouts.drain_seconds)
}

/// Returns the most TLS handshakes under way at a time, in all shards together.
pub(super) fn handshakes(config: &Config) -> usize {
    clamped(config.tls.handshakes_max)
}

/// Returns the ports and addresses at which clients connect.
pub(super) fn listeners(config: &Config) -> Vec<(Port, SocketAddr)> {
    let ports = [
        (Port::plain(Listener::Client), config.client.listen),
        (Port::tls(Listener::Client), config.client.listen_tls),
        (Port::plain(Listener::Mqtt), config.mqtt.listen),
        (Port::tls(Listener::Mqtt), config.mqtt.listen_tls),
    ];
    ports.into_iter().filter_map(|(port, address)| Some((port, address?))).collect()
}

/// Returns the settings of MQTT clients, if there is MQTT.
fn mqtt(config: &Config) -> Option<protocol::MqttSettings> {
    let mqtt = &config.mqtt;
    config.has_mqtt().then(|| protocol::MqttSettings {
        keep_alive_seconds_max: clamped(mqtt.keep_alive_seconds_max),
        session_seconds_max: clamped(mqtt.session_seconds_max),
        sessions_max: clamped(mqtt.sessions_max),
        sessions_per_user_max: clamped(mqtt.sessions_per_user_max),
        away_bytes_max: clamped(mqtt.away_bytes_max),
        session_messages_max: clamped(mqtt.session_messages_max),
        session_bytes_max: clamped(mqtt.session_bytes_max),
        packet_bytes_max: clamped(config.mqtt_packet_bytes_max()),
        receive_max: clamped(mqtt.receive_max),
        inflight_max: clamped(mqtt.inflight_max),
        queue_messages_max: clamped(mqtt.queue_messages_max),
        topic_alias_max: clamped(mqtt.topic_alias_max),
        retained_messages_max: clamped(mqtt.retained_messages_max),
        retained_bytes_max: clamped(mqtt.retained_bytes_max),
        server_reference: (!mqtt.server_reference.is_empty())
            .then(|| mqtt.server_reference.as_str().into()),
        wildcards: mqtt.wildcards,
        open: config.is_open_to_mqtt(),
    })
}

pub(super) fn options(config: &Config) -> shard::Options {
    shard::Options {
        listen: listeners(config),
        shards: clamped(config.shards.count),
        pin_cpus: config.shards.pin_cpus,
        sender: match config.shards.sender {
            config::Sender::Auto => shard::SenderKind::Auto,
            config::Sender::IoUring => shard::SenderKind::IoUring,
            config::Sender::Write => shard::SenderKind::Write,
        },
        backlog: clamped(config.socket.backlog),
        send_buffer_bytes: clamped(config.socket.send_buffer_bytes),
        tcp_keepalive_seconds: clamped(config.timeouts.tcp_keepalive_seconds),
        tcp_user_timeout_seconds: clamped(config.timeouts.tcp_user_timeout_seconds),
        mailbox_messages_max: clamped(config.limits.mailbox_messages_max),
        compression_level: clamped(config.websocket.compression_level),
        compression_bytes_min: clamped(config.websocket.compression_bytes_min),
    }
}

pub(super) fn settings(
    config: &Config,
    fixed: &Fixed,
    auth: Option<Arc<dyn Authenticator>>,
) -> shard::Settings {
    let Config { limits, timeouts, client, .. } = config;
    shard::Settings {
        session: protocol::Settings {
            http: protocol::http::Limits {
                head_bytes_max: clamped(limits.head_bytes_max),
                uri_bytes_max: clamped(limits.uri_bytes_max),
                body_bytes_max: clamped(limits.message_bytes_max),
                longpoll_body_bytes_max: clamped(limits.longpoll_body_bytes_max),
            },
            cors_origins: client.cors_origins.clone(),
            proxies: proxies(config),
            has_certificate_users: config.tls.client_user != auth::CertificateUser::None,
            user_header: name(&config.client.user_header).map(|it| it.to_ascii_lowercase().into()),
            policy: policy(config, fixed),
            auth,
            connect_headers: config.webhook.connect.then(|| config.webhook.headers.clone().into()),
            token_cookie: Some(config.auth.cookie.clone()).filter(|name| !name.is_empty()),
            topics_per_connection_max: clamped(limits.topics_per_connection_max),
            message_bytes_max: clamped(limits.message_bytes_max),
            frame_bytes_max: clamped(limits.frame_bytes_max),
            sse_retry_ms: clamped(timeouts.sse_retry_milliseconds),
            poll_seconds: clamped(timeouts.poll_seconds),
            poll_seconds_max: clamped(timeouts.poll_seconds_max),
            sse_heartbeat_seconds: clamped(timeouts.sse_heartbeat_seconds),
            stream_heartbeat_seconds: clamped(timeouts.stream_heartbeat_seconds),
            ws_ping_seconds: clamped(timeouts.ws_ping_seconds),
            ws_silence_seconds: clamped(timeouts.ws_silence_seconds),
            phoenix_silence_seconds: clamped(timeouts.phoenix_silence_seconds),
            mqtt: mqtt(config),
            compression: config.websocket.compression,
            ws_echo: fixed.ws_echo,
            status_page: client.status_page,
            wildcards: client.wildcards,
            filter_levels_max: clamped(config.mqtt.filter_levels_max),
            longpoll_key: fixed.longpoll_key.clone(),
            files: if fixed.demo { demo::files(config.admin.listen).into() } else { [].into() },
        },
        connections_max: limits.connections_max,
        connections_per_address_max: clamped(limits.connections_per_address_max),
        ipv6_prefix_bits: clamped(limits.ipv6_prefix_bits),
        accept_per_second_max: clamped(limits.accept_per_second_max),
        outbox_bytes_max: clamped(limits.outbox_bytes_max),
        outbox_messages_max: clamped(limits.outbox_messages_max),
        input_bytes_max: clamped(limits.input_bytes_max),
        outboxes_bytes_max: clamped(limits.outboxes_bytes_max),
        publishes_per_second_max: clamped(limits.publishes_per_second_max),
        joins_per_second_max: clamped(limits.joins_per_second_max),
        per_user: per_user(limits),
        per_address: per_address(limits),
        connections_per_user_max: clamped(limits.connections_per_user_max),
        topics_per_user_max: clamped(limits.topics_per_user_max),
        topics_max: clamped(limits.topics_max),
        presence_connections_max: clamped(config.presence.connections_max),
        head_seconds: clamped(timeouts.head_seconds),
        idle_seconds: clamped(timeouts.idle_seconds),
        longpoll_seconds: clamped(timeouts.longpoll_seconds),
        longpoll_sessions_max: limits.longpoll_sessions_max,
        longpoll_sessions_per_address_max: clamped(limits.longpoll_sessions_per_address_max),
        presence_meta_bytes_max: clamped(config.presence.meta_bytes_max),
        token_expiry: shard::Expiry {
            warning_s: clamped(config.auth.expiry_warning_seconds),
            spread_s: clamped(config.auth.expiry_spread_seconds),
        },
        silence_allows: config.webhook.silence == config::Silence::Allow,
        events: events(config),
        forwards: forwards(config),
    }
}

/// The sections whose numbers are limits.
const LIMITS: [&str; 14] = [
    "limits.",
    "timeouts.",
    "presence.",
    "history.",
    "store.",
    "inbox.",
    "subscriptions.",
    "admin.",
    "auth.",
    "webhook.",
    "mqtt.",
    "tls.",
    "cluster.",
    "outbox.",
];

/// Returns the limits by name.
pub(super) fn limits(loaded: &Loaded) -> Vec<(String, u64)> {
    let limits = LIMITS.into_iter().flat_map(|section| loaded.numbers(section));
    limits.map(|(name, max)| (name.to_owned(), max)).collect()
}

pub(super) fn live(loaded: &Loaded, fixed: &Fixed, jwks: Arc<token::Jwks>) -> control::Live {
    let config = &loaded.config;
    let limits = LIMITS.into_iter().flat_map(|section| loaded.numbers(section));
    let in_force = |(key, max)| match key {
        // 0 stands for what the largest message needs.
        "mqtt.packet_bytes_max" => (key, config.mqtt_packet_bytes_max()),
        _ => (key, max),
    };
    control::Live {
        message_bytes_max: clamped(config.limits.message_bytes_max),
        memory_bytes_max: config.limits.memory_bytes_max,
        policy: policy(config, fixed),
        subscriptions_per_user_max: clamped(config.history.subscriptions_per_user_max),
        subscriptions_max: config.history.subscriptions_max,
        jwks,
        has_tokens: config.has_tokens() || config.webhook.connect,
        revocations_max: clamped(config.auth.revocations_max),
        revocation_seconds: config.auth.revocation_seconds,
        sys_seconds: if config.has_mqtt() { config.mqtt.sys_seconds } else { 0 },
        backups: backups(&config.store),
        limits: limits.map(in_force).collect(),
        config: config::effective(loaded),
    }
}

/// Returns the directory in which the server makes copies of its store: absolute, because its callers have other
/// working directories.
fn backups(store: &config::Store) -> PathBuf {
    let dir = match &*store.backups {
        "" => Path::new(&store.data).join("backups"),
        named => PathBuf::from(named),
    };
    std::path::absolute(&dir).unwrap_or(dir)
}

#[cfg(test)]
mod bounds;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(file: &str) -> Rules {
        let sources = config::Sources { file: Some(("throng.toml", file)), ..Default::default() };
        rules(&Loaded::load(&sources).unwrap().config, false)
    }

    #[test]
    fn history_comes_from_the_topics_rule() {
        let file = "[store]\ndata = \"/x\"\n[[topics]]\npattern = \"live\"\n[[topics]]\n\
                    pattern = \"state\"\nhistory_messages_max = 1\ncompact = true\n[[topics]]\n\
                    pattern = \"job:*\"\nhistory_messages_max = 2\nhistory_bytes_max = 70000\n\
                    history_seconds_max = 4\ndurable = true\nacknowledge = true\n\
                    ack_window_messages_max = 5\nack_redelivery_seconds = 6\nack_tries_max = 7\n\
                    dead_letter = \"dead\"\n";
        let rules = of(file);
        assert_eq!(rules.history("live"), None);
        assert_eq!(rules.history("@alice"), None);
        let state = rules.history("state").unwrap();
        assert_eq!(
            (state.messages_max, state.bytes_max, state.seconds_max),
            (1, 1 << 20, u64::MAX)
        );
        assert!(state.compact && !state.durable && state.acknowledge.is_none());
        let job = HistoryRule {
            messages_max: 2,
            bytes_max: 70_000,
            seconds_max: 4,
            durable: true,
            compact: false,
            acknowledge: Some(AcknowledgeRule {
                window_messages_max: 5,
                redelivery_seconds: 6,
                delivery_count_max: 7,
                dead_letter: Some("dead".into()),
            }),
        };
        assert_eq!(rules.history("job:1").map(|history| &**history), Some(&job));
    }

    #[test]
    fn only_states_are_retained_without_end_unless_a_rule_says_how_long() {
        for (more, want) in [
            ("", 86_400),
            ("history_seconds_max = 5\n", 5),
            ("compact = true\n", u64::MAX),
            ("compact = true\nhistory_seconds_max = 86400\n", 86_400),
        ] {
            let file = format!("[[topics]]\npattern = \"a\"\nhistory_messages_max = 1\n{more}");
            assert_eq!(of(&file).history("a").unwrap().seconds_max, want, "{more}");
        }
    }

    #[test]
    fn inboxes_have_history_if_enabled() {
        assert!(!of("").retains_any());
        let inbox = "[inbox]\nenabled = true\n";
        let rules = of(inbox);
        assert_eq!(rules.history("a"), None);
        let want = HistoryRule {
            messages_max: 100,
            bytes_max: 256 << 10,
            seconds_max: 7 * 86_400,
            durable: false,
            compact: false,
            acknowledge: Some(AcknowledgeRule {
                window_messages_max: 100,
                redelivery_seconds: 0,
                delivery_count_max: 0,
                dead_letter: None,
            }),
        };
        assert_eq!(rules.history("@alice").map(|history| &**history), Some(&want));
        let own = "[[topics]]\npattern = \"@*\"\nhistory_messages_max = 3\n";
        let rules = of(&format!("{inbox}{own}"));
        assert_eq!(rules.history("@alice").unwrap().acknowledge, None);
    }

    #[test]
    fn messages_are_given_up_only_if_configured() {
        let count_max = |more: &str| {
            let own = format!("[inbox]\nenabled = true\n{more}");
            let rules = of(&own);
            rules.history("@alice").unwrap().acknowledge.as_ref().unwrap().delivery_count_max
        };
        assert_eq!(count_max(""), 0);
        assert_eq!(count_max("tries_max = 3\n"), 3);
        assert_eq!(count_max("dead_letter = \"dead\"\n"), DEAD_LETTER_DELIVERIES);
        assert_eq!(count_max("tries_max = 3\ndead_letter = \"dead\"\n"), 3);
    }
}
