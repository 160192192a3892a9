//! Every number of the configuration arrives unchanged at both of its bounds in the type that holds
//! it, and calculations with it don't overflow.
// These casts widen: they show what a narrower type has truncated before.
#![allow(clippy::as_conversions)]

use config::{FORWARD_KEYS, Kind, SETTINGS, Sources, TOPIC_KEYS};
use protocol::phoenix::token::Key;

use super::super::storage;
use super::*;

/// A rule's history needs at least one message.
const HISTORY: &str = "history_messages_max";

fn bounds(kind: Kind) -> Option<(u64, u64)> {
    match kind {
        Kind::Number(min, max) | Kind::Bytes(min, max) | Kind::TextBytes(min, max) => {
            Some((min, max))
        }
        Kind::Bool | Kind::Text | Kind::Choice(_) | Kind::List => None,
        Kind::Address | Kind::OptionalAddress | Kind::Time | Kind::Hash => None,
    }
}

/// A configuration in which every number is at one of its bounds.
fn at(pick: fn((u64, u64)) -> u64) -> Loaded {
    let mut file = String::new();
    let mut section = "";
    for setting in SETTINGS {
        let (of, key) = setting.parts();
        if of != section {
            file += &format!("[{of}]\n");
            section = of;
        }
        match bounds(setting.kind) {
            Some(bounds) => file += &format!("{key} = {}\n", pick(bounds)),
            None if setting.key == "inbox.enabled" => file += "enabled = true\n",
            None if setting.key == "mqtt.listen" => file += "listen = \"127.0.0.1:1883\"\n",
            None => {}
        }
    }
    file += "[[topics]]\nacknowledge = true\n";
    for key in TOPIC_KEYS {
        let Some(bounds) = bounds(key.kind) else { continue };
        file += &match key.kind {
            Kind::TextBytes(..) => {
                format!("{} = \"{}\"\n", key.key, "*".repeat(pick(bounds) as usize))
            }
            _ if key.key == HISTORY => format!("{HISTORY} = {}\n", pick(bounds).max(1)),
            _ => format!("{} = {}\n", key.key, pick(bounds)),
        };
    }
    file += "[[forward]]\nurl = \"http://127.0.0.1:9\"\n";
    for key in FORWARD_KEYS {
        let Some(bounds) = bounds(key.kind) else { continue };
        file += &match key.kind {
            Kind::TextBytes(..) => {
                format!("{} = \"{}\"\n", key.key, "a".repeat(pick(bounds) as usize))
            }
            _ => format!("{} = {}\n", key.key, pick(bounds)),
        };
    }
    let sources = Sources { file: Some(("bounds.toml", &file)), ..Sources::default() };
    Loaded::load(&sources).unwrap_or_else(|error| panic!("{error}\nin\n{file}"))
}

fn fixed() -> Fixed {
    Fixed { ws_echo: false, demo: false, longpoll_key: Key([0; 32]) }
}

fn address() -> database::Address {
    database::Address::new("postgres://h/d", None).unwrap()
}

/// The value of a setting where the server uses it.
fn arrived(key: &str, loaded: &Loaded) -> Option<u128> {
    let config = &loaded.config;
    let (shard, options) = (settings(config, &fixed(), None), options(config));
    let (session, http) = (&shard.session, &shard.session.http);
    let (live, admin, presence) =
        (live(loaded, &fixed(), Arc::default()), admin(config), presence(config));
    let (webhook, queue) =
        (webhook(config), webhook_fixed(config, control::Authorities::SYSTEM, None));
    let (broker, store) = (broker(config), storage::options(config, 0));
    let memory = storage::limits(config);
    let cluster = super::super::cluster::settings(config, model::NodeId(1));
    let outbox = super::super::outbox::settings(config, address());
    let database = super::super::history::settings(config, address());
    let inbox = inbox(config)?;
    let acknowledge = inbox.acknowledge.as_ref()?;
    let mqtt = session.mqtt.as_ref()?;
    let number = match key {
        "tls.handshakes_max" => handshakes(config) as u128,
        "mqtt.keep_alive_seconds_max" => mqtt.keep_alive_seconds_max.into(),
        "mqtt.session_seconds_max" => mqtt.session_seconds_max.into(),
        "mqtt.sessions_max" => mqtt.sessions_max as u128,
        "mqtt.sessions_per_user_max" => mqtt.sessions_per_user_max as u128,
        "mqtt.away_bytes_max" => mqtt.away_bytes_max as u128,
        "mqtt.filter_levels_max" => session.filter_levels_max as u128,
        "mqtt.session_messages_max" => mqtt.session_messages_max as u128,
        "mqtt.session_bytes_max" => mqtt.session_bytes_max as u128,
        // 0 stands for what the largest message needs.
        "mqtt.packet_bytes_max" if config.mqtt.packet_bytes_max == 0 => {
            u128::from(mqtt.packet_bytes_max == clamped::<u32>(config.mqtt_packet_bytes_max())) - 1
        }
        "mqtt.packet_bytes_max" => mqtt.packet_bytes_max.into(),
        "mqtt.receive_max" => mqtt.receive_max.into(),
        "mqtt.inflight_max" => mqtt.inflight_max.into(),
        "mqtt.queue_messages_max" => mqtt.queue_messages_max as u128,
        "mqtt.topic_alias_max" => mqtt.topic_alias_max.into(),
        "mqtt.retained_messages_max" => mqtt.retained_messages_max as u128,
        "mqtt.retained_bytes_max" => mqtt.retained_bytes_max as u128,
        "admin.body_bytes_max" => clamped::<usize>(config.admin.body_bytes_max) as u128,
        "admin.bodies_bytes_max" => admin.bodies_bytes_max as u128,
        "admin.session_seconds" => access(config).session.as_secs().into(),
        "admin.connections_max" => admin.connections_max as u128,
        "admin.connections_per_address_max" => admin.per_address_max as u128,
        "admin.head_seconds" => admin.head_max.as_secs().into(),
        "admin.idle_seconds" => admin.idle_max.as_secs().into(),
        "auth.jwks_refresh_seconds" => {
            token::Jwks::new(&[], &[], config.auth.jwks_refresh_seconds).refresh_seconds().into()
        }
        "auth.expiry_warning_seconds" => shard.token_expiry.warning_s.into(),
        "auth.expiry_spread_seconds" => shard.token_expiry.spread_s.into(),
        "auth.revocations_max" => live.revocations_max as u128,
        "auth.revocation_seconds" => live.revocation_seconds.into(),
        "mqtt.sys_seconds" => live.sys_seconds.into(),
        "shards.count" => options.shards as u128,
        "limits.connections_max" => shard.connections_max.into(),
        "limits.connections_per_address_max" => shard.connections_per_address_max.into(),
        "limits.ipv6_prefix_bits" => shard.ipv6_prefix_bits.into(),
        "limits.accept_per_second_max" => shard.accept_per_second_max.into(),
        "limits.longpoll_sessions_max" => shard.longpoll_sessions_max.into(),
        "limits.topics_per_connection_max" => session.topics_per_connection_max as u128,
        "limits.message_bytes_max" => {
            assert_eq!(live.message_bytes_max, session.message_bytes_max);
            assert_eq!(http.body_bytes_max, session.message_bytes_max);
            session.message_bytes_max as u128
        }
        "limits.head_bytes_max" => http.head_bytes_max as u128,
        "limits.uri_bytes_max" => http.uri_bytes_max as u128,
        "limits.frame_bytes_max" => session.frame_bytes_max as u128,
        "limits.longpoll_body_bytes_max" => http.longpoll_body_bytes_max as u128,
        "limits.outbox_bytes_max" => shard.outbox_bytes_max as u128,
        "limits.outbox_messages_max" => shard.outbox_messages_max as u128,
        "limits.input_bytes_max" => shard.input_bytes_max as u128,
        "limits.outboxes_bytes_max" => shard.outboxes_bytes_max as u128,
        "limits.publishes_per_second_max" => shard.publishes_per_second_max.into(),
        "limits.joins_per_second_max" => shard.joins_per_second_max.into(),
        "limits.connections_per_user_max" => shard.connections_per_user_max.into(),
        "limits.topics_max" => shard.topics_max.into(),
        "presence.connections_max" => shard.presence_connections_max.into(),
        "limits.topics_per_user_max" => shard.topics_per_user_max.into(),
        "limits.commands_per_second_per_user_max" => shard.per_user.of(Unit::Commands).into(),
        "limits.bytes_per_second_per_user_max" => shard.per_user.of(Unit::Bytes).into(),
        "limits.publishes_per_second_per_user_max" => shard.per_user.of(Unit::Publishes).into(),
        "limits.joins_per_second_per_user_max" => shard.per_user.of(Unit::Joins).into(),
        "limits.commands_per_second_per_address_max" => shard.per_address.of(Unit::Commands).into(),
        "limits.bytes_per_second_per_address_max" => shard.per_address.of(Unit::Bytes).into(),
        "limits.publishes_per_second_per_address_max" => {
            shard.per_address.of(Unit::Publishes).into()
        }
        "limits.joins_per_second_per_address_max" => shard.per_address.of(Unit::Joins).into(),
        "limits.commands_per_second_per_key_max" => {
            per_key(&config.limits, None).of(Unit::Commands).into()
        }
        "limits.bytes_per_second_per_key_max" => {
            per_key(&config.limits, None).of(Unit::Bytes).into()
        }
        "limits.publishes_per_second_per_key_max" => {
            per_key(&config.limits, None).of(Unit::Publishes).into()
        }
        "limits.longpoll_sessions_per_address_max" => {
            shard.longpoll_sessions_per_address_max.into()
        }
        "limits.memory_bytes_max" => live.memory_bytes_max.into(),
        "limits.mailbox_messages_max" => options.mailbox_messages_max as u128,
        "limits.recent_messages_max" => broker.recent_messages_max as u128,
        "limits.recent_bytes_max" => broker.recent_bytes_max as u128,
        "limits.recent_seconds_max" => broker.recent_seconds_max.into(),
        "timeouts.head_seconds" => shard.head_seconds.into(),
        "timeouts.idle_seconds" => shard.idle_seconds.into(),
        "timeouts.sse_heartbeat_seconds" => session.sse_heartbeat_seconds.into(),
        "timeouts.sse_retry_milliseconds" => session.sse_retry_ms.into(),
        "timeouts.stream_heartbeat_seconds" => session.stream_heartbeat_seconds.into(),
        "timeouts.ws_ping_seconds" => session.ws_ping_seconds.into(),
        "timeouts.ws_silence_seconds" => session.ws_silence_seconds.into(),
        "timeouts.phoenix_silence_seconds" => session.phoenix_silence_seconds.into(),
        "timeouts.longpoll_seconds" => shard.longpoll_seconds.into(),
        "timeouts.poll_seconds" => session.poll_seconds.into(),
        "timeouts.poll_seconds_max" => session.poll_seconds_max.into(),
        "timeouts.drain_seconds" => drain_seconds(config).into(),
        "timeouts.tcp_keepalive_seconds" => options.tcp_keepalive_seconds.into(),
        "timeouts.tcp_user_timeout_seconds" => options.tcp_user_timeout_seconds.into(),
        "socket.backlog" => options.backlog.into(),
        "socket.send_buffer_bytes" => options.send_buffer_bytes as u128,
        "websocket.compression_level" => options.compression_level.into(),
        "websocket.compression_bytes_min" => options.compression_bytes_min as u128,
        "webhook.timeout_milliseconds" => webhook.timeout.as_millis(),
        "webhook.batch_events_max" => webhook.batch_events_max as u128,
        "webhook.event_queue_events_max" => queue.events.events_max as u128,
        "webhook.event_queue_bytes_max" => queue.events.bytes_max as u128,
        "webhook.event_retry_seconds" => webhook.event_retry.as_secs().into(),
        "webhook.occupancy_milliseconds" => webhook.occupancy.as_millis(),
        "webhook.queue_events_max" => queue.queue_events_max as u128,
        "webhook.queue_events_per_url_max" => queue.queue_events_per_url_max as u128,
        "webhook.queue_bytes_max" => queue.queue_bytes_max as u128,
        "webhook.requests_max" => queue.requests_max as u128,
        "presence.users_max" => presence.users_max as u128,
        // The list is a part of an outbox, so it is at most half of it.
        "presence.list_bytes_max" if shard.outbox_bytes_max == 2 << 10 => {
            assert_eq!(presence.list_bytes_max, 1 << 10);
            presence.list_bytes_max as u128
        }
        "presence.list_bytes_max" => presence.list_bytes_max as u128,
        "presence.interval_milliseconds" => {
            assert_eq!(presence.interval_us % 1_000, 0);
            u128::from(presence.interval_us / 1_000)
        }
        "presence.meta_bytes_max" => shard.presence_meta_bytes_max as u128,
        "store.queue_messages_max" => store.queue_messages_max as u128,
        "store.queue_bytes_max" => store.queue_bytes_max as u128,
        "store.verify_bytes_max" => store.verify_bytes_max.into(),
        "store.cache_bytes_max" => store.cache_bytes_max as u128,
        "cluster.queue_bytes_max" => cluster.queue_bytes_max as u128,
        "tracing.sample_per_million" => {
            let mut config = config.clone();
            config.tracing.otlp_url = "http://h/".into();
            let tracing = tracing(&config, control::Authorities::SYSTEM, String::new())?;
            tracing.sample_per_million.into()
        }
        "outbox.batch_rows_max" => outbox.batch_rows_max as u128,
        "outbox.batch_bytes_max" => outbox.batch_bytes_max as u128,
        "outbox.refused_rows_max" => outbox.refused_rows_max as u128,
        "cluster.replay_bytes_max" => cluster.replay_bytes_max as u128,
        "cluster.presence_bytes_max" => cluster.presence_bytes_max as u128,
        "history.bytes_max" => memory.history_bytes_max as u128,
        "history.queue_messages_max" => database.queue_messages_max as u128,
        "history.queue_bytes_max" => database.queue_bytes_max as u128,
        "history.topics_max" => memory.topics_max as u128,
        "history.idempotency_seconds_max" => store.idempotency_seconds_max.into(),
        "history.idempotency_keys_max" => memory.idempotency_keys_max as u128,
        "history.cursors_max" => memory.cursors_max as u128,
        "history.subscriptions_max" => live.subscriptions_max.into(),
        "history.subscriptions_per_user_max" => live.subscriptions_per_user_max as u128,
        "inbox.messages_max" => inbox.messages_max.into(),
        "inbox.bytes_max" => inbox.bytes_max.into(),
        "inbox.seconds_max" => inbox.seconds_max.into(),
        "inbox.window_messages_max" => acknowledge.window_messages_max.into(),
        "inbox.redelivery_seconds" => acknowledge.redelivery_seconds.into(),
        "inbox.tries_max" => acknowledge.delivery_count_max.into(),
        _ => return None,
    };
    Some(number)
}

/// The value of a key of a rule where the server uses it.
fn arrived_rule(key: &str, loaded: &Loaded) -> Option<u128> {
    let rules = rules(&loaded.config, false);
    let rule = rules.rules.first()?;
    let history = rule.history.as_ref()?;
    let acknowledge = history.acknowledge.as_ref()?;
    let number = match key {
        "pattern" => rule.pattern.len() as u128,
        HISTORY => history.messages_max.into(),
        "history_bytes_max" => history.bytes_max.into(),
        "history_seconds_max" => history.seconds_max.into(),
        "ack_window_messages_max" => acknowledge.window_messages_max.into(),
        "ack_redelivery_seconds" => acknowledge.redelivery_seconds.into(),
        "ack_tries_max" => acknowledge.delivery_count_max.into(),
        _ => return None,
    };
    Some(number)
}

/// The value of a key of a rule that forwards where the server uses it.
fn arrived_forward(key: &str, loaded: &Loaded) -> Option<u128> {
    let webhook = webhook(&loaded.config);
    let forward = webhook.forwards.first()?;
    let number = match key {
        "filter" => forward.filter.len() as u128,
        "timeout_milliseconds" => forward.timeout.as_millis(),
        "retry_seconds" => forward.retry.as_secs().into(),
        "batch_messages_max" => forward.batch_messages_max as u128,
        "batch_wait_milliseconds" => forward.batch_wait.as_millis(),
        "queue_messages_max" => forward.queue_messages_max as u128,
        "queue_bytes_max" => forward.queue_bytes_max as u128,
        _ => return None,
    };
    Some(number)
}

#[test]
fn both_bounds_of_every_setting_arrive_unchanged() {
    for (pick, loaded) in both() {
        for setting in SETTINGS {
            let Some(bounds) = bounds(setting.kind) else { continue };
            let arrived = arrived(setting.key, &loaded)
                .unwrap_or_else(|| panic!("{}: say above where it is held", setting.key));
            assert_eq!(arrived, u128::from(pick(bounds)), "{}", setting.key);
        }
        for key in TOPIC_KEYS {
            let Some(bounds) = bounds(key.kind) else { continue };
            let arrived = arrived_rule(key.key, &loaded)
                .unwrap_or_else(|| panic!("{}: say above where it is held", key.key));
            let least = u64::from(key.key == HISTORY);
            assert_eq!(arrived, u128::from(pick(bounds).max(least)), "{}", key.key);
        }
        for key in FORWARD_KEYS {
            let Some(bounds) = bounds(key.kind) else { continue };
            let arrived = arrived_forward(key.key, &loaded)
                .unwrap_or_else(|| panic!("{}: say above where it is held", key.key));
            assert_eq!(arrived, u128::from(pick(bounds)), "{}", key.key);
        }
    }
    let none = "[[topics]]\npattern = \"a\"\nhistory_messages_max = 0\n";
    let sources = Sources { file: Some(("none.toml", none)), ..Sources::default() };
    let none = rules(&Loaded::load(&sources).unwrap().config, false);
    assert!(none.rules[0].history.is_none());
}

type Bound = fn((u64, u64)) -> u64;

fn both() -> [(Bound, Loaded); 2] {
    let (least, most): (Bound, Bound) = (|(min, _)| min, |(_, max)| max);
    [(least, at(least)), (most, at(most))]
}

/// A shard's clock counts seconds of silence in 16 bits, so every limit that is compared with it
/// must be less.
#[test]
fn no_silence_limit_exceeds_a_shards_clock() {
    let [_, (_, most)] = both();
    let settings = settings(&most.config, &fixed(), None);
    let poll = settings.longpoll_seconds;
    for (name, seconds) in [
        ("head_seconds", Some(settings.head_seconds)),
        ("idle_seconds", Some(settings.idle_seconds)),
        ("ws_silence_seconds", Some(settings.session.ws_silence_seconds)),
        ("phoenix_silence_seconds", Some(settings.session.phoenix_silence_seconds)),
        // An MQTT client may be silent for one and a half times its keep-alive.
        (
            "keep_alive_seconds_max",
            settings.mqtt().map(|mqtt| u32::from(mqtt.keep_alive_seconds_max) * 3 / 2),
        ),
        // A session waits for two long polls, a request for one, and each a little longer.
        ("longpoll_seconds", poll.checked_mul(2).and_then(|seconds| seconds.checked_add(100))),
    ] {
        let seen = seconds.is_some_and(|seconds| seconds <= shard::SILENCE_SECONDS_MAX);
        assert!(seen, "{name}: {seconds:?}");
    }
}

/// The code multiplies times: seconds by 1,000 and by 1,000,000 in 64 bits, and the kernel's in 32.
#[test]
fn calculations_with_times_do_not_overflow() {
    let [_, (_, most)] = both();
    let keys = SETTINGS.iter().map(|setting| (setting.key, setting.kind));
    for (key, kind) in keys.chain(TOPIC_KEYS.iter().map(|key| (key.key, key.kind))) {
        let (Some((_, max)), true) = (bounds(kind), key.contains("seconds")) else { continue };
        // The sum includes a clock that has run for a hundred years.
        let century_us = 100 * 366 * 86_400 * 1_000_000;
        let us = max.checked_mul(1_000_000).and_then(|us| us.checked_add(century_us));
        assert!(us.is_some(), "{key}");
    }
    let options = options(&most.config);
    assert!(options.tcp_user_timeout_seconds.checked_mul(1_000).is_some());
    assert!(i32::try_from(options.backlog).is_ok());
    assert!(i32::try_from(options.send_buffer_bytes).is_ok());
    let settings = settings(&most.config, &fixed(), None);
    assert!(u64::from(settings.accept_per_second_max).checked_mul(1_000_000).is_some());
    // A hundred years of seconds, to which a request adds its own.
    let century_s: u32 = 100 * 366 * 86_400;
    let inbox = inbox(&most.config).unwrap().acknowledge.unwrap();
    for seconds in [settings.session.poll_seconds_max, inbox.redelivery_seconds] {
        assert!(century_s.checked_add(seconds).is_some());
    }
}
