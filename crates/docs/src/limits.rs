//! The page of limits: those that are settings, from the configuration's tables, with what happens beyond
//! each and where it shows; those that are not, from the table of docs/internals/limits.md.

use std::fmt::Write;

use config::{Absent, FORWARD_KEYS, KEY_KEYS, Kind, SETTINGS, TOPIC_KEYS, TableKey};

/// What people wrote around the tables.
const TEXT: &str = include_str!("limits.md");

/// Where the fixed limits stand.
const FIXED: &str = include_str!("../../../docs/internals/limits.md");

/// A limit that is a setting.
struct Row {
    /// As [`config::SETTINGS`] has it; of a rule or a key with its table in front.
    key: &'static str,
    /// What happens beyond it, with the code of the error.
    beyond: &'static str,
    /// The metrics that show how much of it is used, or how often it was met.
    metrics: &'static str,
}

const fn row(key: &'static str, beyond: &'static str, metrics: &'static str) -> Row {
    Row { key, beyond, metrics }
}

/// In the order of the page.
const ROWS: &[Row] = &[
    row(
        "limits.connections_max",
        "503, `overloaded`",
        "`throng_connections`, `throng_connections_refused_total`, L",
    ),
    row(
        "limits.connections_per_address_max",
        "503, `overloaded`; a health check is answered",
        "`throng_connections_refused_total`, L",
    ),
    row("limits.connections_per_user_max", "429, `too_many_connections`", "L"),
    row(
        "limits.accept_per_second_max",
        "503, `overloaded`",
        "`throng_connections_refused_total`, L",
    ),
    row(
        "limits.memory_bytes_max",
        "new connections: 503, `overloaded`; `/readyz`: 503, `memory_full`",
        "`throng_process_resident_memory_bytes`, `throng_memory_full`, L",
    ),
    row("limits.longpoll_sessions_max", "503, `overloaded`", "`throng_longpoll_sessions`, L"),
    row(
        "limits.longpoll_sessions_per_address_max",
        "503, `overloaded`",
        "`throng_longpoll_sessions`",
    ),
    row(
        "limits.topics_max",
        "503, `topics_full`, for a topic that nobody is in",
        "the sum of `throng_shard_topics`, L",
    ),
    row(
        "limits.topics_per_connection_max",
        "400, `too_many_topics`; Phoenix: `too many channels joined`",
        "L",
    ),
    row("limits.topics_per_user_max", "429, `too_many_topics`", "L"),
    row("limits.message_bytes_max", "413, `message_too_large` or `body_too_large`", "L"),
    row("limits.head_bytes_max", "431, `head_too_large`", "L"),
    row("limits.uri_bytes_max", "414, `uri_too_long`", "L"),
    row(
        "limits.frame_bytes_max",
        "closed with 1009, `too_big`",
        "`throng_connections_closed_total`, L",
    ),
    row(
        "limits.longpoll_body_bytes_max",
        "413, `body_too_large`",
        "L as `limits.message_bytes_max`",
    ),
    row(
        "limits.outbox_bytes_max",
        "closed as `slow_consumer`; with `conflate` only the newest of each key waits",
        "`throng_outbox_bytes`, `throng_slow_consumers_closed_total`, L",
    ),
    row("limits.outbox_messages_max", "the same", "`throng_slow_consumers_closed_total`"),
    row(
        "limits.outboxes_bytes_max",
        "those that hold most are closed as `slow_consumer`",
        "`throng_outbox_memory_bytes`, L",
    ),
    row(
        "limits.input_bytes_max",
        "those that hold most: 503 or closed, `overloaded`",
        "`throng_input_memory_bytes`, L",
    ),
    row("limits.publishes_per_second_max", "the connection is left unread for a while", "L"),
    row("limits.joins_per_second_max", "the connection is left unread for a while", "L"),
    row(
        "limits.commands_per_second_per_user_max",
        "429, `rate_limited`; in the end closed with 4029",
        "`throng_accounts`, L",
    ),
    row(
        "limits.bytes_per_second_per_user_max",
        "its connections are left unread for a while; a request: 429, `rate_limited`",
        "L",
    ),
    row("limits.publishes_per_second_per_user_max", "429, `rate_limited`", "L"),
    row("limits.joins_per_second_per_user_max", "429, `rate_limited`", "L"),
    row(
        "limits.commands_per_second_per_address_max",
        "429, `rate_limited`; in the end closed with 4029",
        "`throng_accounts`, L",
    ),
    row(
        "limits.bytes_per_second_per_address_max",
        "its connections are left unread for a while; a request: 429, `rate_limited`",
        "L",
    ),
    row("limits.publishes_per_second_per_address_max", "429, `rate_limited`", "L"),
    row("limits.joins_per_second_per_address_max", "429, `rate_limited`", "L"),
    row(
        "limits.commands_per_second_per_key_max",
        "429, `rate_limited`",
        "`throng_api_key_calls_total`, L",
    ),
    row("limits.bytes_per_second_per_key_max", "429, `rate_limited`", "L"),
    row("limits.publishes_per_second_per_key_max", "429, `rate_limited`", "L"),
    row("keys.commands_per_second_max", "429, `rate_limited`", "L as that of all keys"),
    row("keys.bytes_per_second_max", "429, `rate_limited`", "L as that of all keys"),
    row("keys.publishes_per_second_max", "429, `rate_limited`", "L as that of all keys"),
    row(
        "limits.mailbox_messages_max",
        "publishing: 503, `overloaded`",
        "L for what clients publish",
    ),
    row(
        "limits.recent_messages_max",
        "the oldest is let go: a poll that comes back later gets less",
        "–",
    ),
    row("limits.recent_bytes_max", "the same", "–"),
    row("limits.recent_seconds_max", "the same", "–"),
    row("timeouts.head_seconds", "408, `request_timeout`", "`throng_connections_closed_total`, L"),
    row("timeouts.idle_seconds", "closed", "`throng_connections_closed_total`"),
    row(
        "timeouts.ws_silence_seconds",
        "closed with 4009, `silent`",
        "`throng_connections_closed_total`",
    ),
    row(
        "timeouts.phoenix_silence_seconds",
        "closed with 4009, `silent`",
        "`throng_connections_closed_total`",
    ),
    row("timeouts.poll_seconds_max", "a longer `timeout` is cut to it", "–"),
    row(
        "presence.connections_max",
        "503, `presence_full`, for a topic with presence",
        "`throng_presence_connections`, L",
    ),
    row("presence.users_max", "members get [counts only](presence.md#in-a-crowd)", "–"),
    row("presence.list_bytes_max", "members get [counts only](presence.md#in-a-crowd)", "–"),
    row("presence.meta_bytes_max", "`bad_meta`", "L"),
    row(
        "tls.handshakes_max",
        "closed with the alert `internal_error`",
        "`throng_tls_handshakes_pending`, `throng_tls_handshakes_total`",
    ),
    row(
        "mqtt.sessions_max",
        "the session of a client that goes ends with its connection",
        "`throng_mqtt_sessions_away`, `throng_mqtt_sessions_ended_total`",
    ),
    row(
        "mqtt.sessions_per_user_max",
        "the same for a session of this user",
        "`throng_mqtt_sessions_ended_total`",
    ),
    row(
        "mqtt.away_bytes_max",
        "the same for the session of any client",
        "`throng_mqtt_sessions_away_bytes`, `throng_mqtt_sessions_ended_total`",
    ),
    row(
        "mqtt.session_seconds_max",
        "the session ends; a longer wish is cut to it",
        "`throng_mqtt_sessions_ended_total`",
    ),
    row(
        "mqtt.session_messages_max",
        "the oldest message of the topic is dropped",
        "`throng_mqtt_session_messages`, `throng_mqtt_messages_gone_total`",
    ),
    row(
        "mqtt.session_bytes_max",
        "the same",
        "`throng_mqtt_session_messages_bytes`, `throng_mqtt_messages_gone_total`",
    ),
    row(
        "mqtt.packet_bytes_max",
        "closed with reason code 0x95",
        "`throng_connections_closed_total`",
    ),
    row(
        "mqtt.keep_alive_seconds_max",
        "an MQTT 5 client is told this one; who is silent for one and a half of its keep-alive is closed",
        "`throng_connections_closed_total`",
    ),
    row("mqtt.receive_max", "closed with reason code 0x93", "`throng_connections_closed_total`"),
    row("mqtt.inflight_max", "the next one waits until one is confirmed", "–"),
    row(
        "mqtt.queue_messages_max",
        "closed with reason code 0x97, `slow_consumer`; a session that goes on reads the history instead",
        "`throng_slow_consumers_closed_total`",
    ),
    row(
        "mqtt.topic_alias_max",
        "closed with reason code 0x94",
        "`throng_connections_closed_total`",
    ),
    row(
        "mqtt.retained_messages_max",
        "a further topic has no retained message",
        "`throng_mqtt_retained_messages`, `throng_mqtt_retained_refused_total`",
    ),
    row(
        "mqtt.retained_bytes_max",
        "the same",
        "`throng_mqtt_retained_bytes`, `throng_mqtt_retained_refused_total`",
    ),
    row(
        "mqtt.filter_levels_max",
        "SUBACK with 0x8F (MQTT 3: 0x80); 400, `bad_filter`, on other transports",
        "–",
    ),
    row(
        "history.bytes_max",
        "the oldest messages leave memory",
        "`throng_history_bytes`, `throng_history_dropped_total`",
    ),
    row(
        "history.topics_max",
        "the topic that was quiet longest is forgotten in memory",
        "`throng_history_topics`",
    ),
    row("history.idempotency_keys_max", "the oldest is forgotten", "`throng_idempotency_keys`"),
    row("history.idempotency_seconds_max", "the key is forgotten", "`throng_idempotency_keys`"),
    row("history.cursors_max", "the one not used longest is forgotten", "`throng_cursors`"),
    row("history.subscriptions_max", "409, `subscriptions_full`", "`throng_subscriptions`"),
    row("history.subscriptions_per_user_max", "409, `too_many_subscriptions`", "–"),
    row(
        "topics.history_messages_max",
        "the oldest message of the topic is dropped; with `compact` the key that has not changed for the longest",
        "`throng_history_messages`, `throng_history_dropped_total`",
    ),
    row(
        "topics.history_bytes_max",
        "the same",
        "`throng_history_bytes`, `throng_history_dropped_total`",
    ),
    row("topics.history_seconds_max", "the same", "`throng_history_dropped_total`"),
    row("topics.ack_window_messages_max", "no more are sent until one is acknowledged", "–"),
    row(
        "topics.ack_tries_max",
        "the message is given up, or goes to `dead_letter`",
        "`throng_messages_given_up_total`",
    ),
    row(
        "inbox.messages_max",
        "the oldest that waits for the user is dropped",
        "`throng_history_dropped_total`",
    ),
    row("inbox.bytes_max", "the same", "`throng_history_dropped_total`"),
    row("inbox.seconds_max", "the same", "`throng_history_dropped_total`"),
    row("inbox.window_messages_max", "no more are sent until one is acknowledged", "–"),
    row("inbox.tries_max", "the message is given up", "`throng_messages_given_up_total`"),
    row("store.queue_messages_max", "503, `store_busy`", "`throng_store_queue_messages`"),
    row("cluster.queue_bytes_max", "503, `overloaded`", "`throng_cluster_queue_bytes`"),
    row(
        "cluster.replay_bytes_max",
        "nodes that missed older messages get a gap",
        "`throng_cluster_replay_bytes`, `throng_cluster_gaps_total`",
    ),
    row(
        "cluster.presence_bytes_max",
        "users of other nodes are missing from lists and counts; tried again each 30 s",
        "`throng_cluster_presence_bytes`, `throng_cluster_presence_incomplete`",
    ),
    row(
        "outbox.batch_rows_max",
        "the rest comes with the next batch",
        "`throng_outbox_lag_seconds`",
    ),
    row(
        "outbox.batch_bytes_max",
        "the same; a larger row comes alone",
        "`throng_outbox_lag_seconds`",
    ),
    row(
        "outbox.refused_rows_max",
        "the oldest are deleted from `outbox_refused`",
        "`throng_outbox_refused_total`",
    ),
    row("store.queue_bytes_max", "503, `store_busy`", "`throng_store_queue_bytes`"),
    row("store.cache_bytes_max", "pages are read from the disk again", "–"),
    row("store.verify_bytes_max", "a larger store is not looked through at the start", "–"),
    row(
        "webhook.queue_events_max",
        "503, `overloaded`, or as `webhook.silence` says",
        "`throng_webhook_waiting`",
    ),
    row(
        "webhook.queue_events_per_url_max",
        "the same",
        "`throng_webhook_url_waiting`, `throng_webhook_url_refused_total`",
    ),
    row("webhook.queue_bytes_max", "the same", "`throng_webhook_waiting_bytes`"),
    row("webhook.batch_events_max", "the rest goes with the next request", "–"),
    row(
        "webhook.requests_max",
        "events wait for one that is under way",
        "`throng_webhook_waiting`",
    ),
    row(
        "webhook.event_queue_events_max",
        "events to tell are dropped, and the application is told how many",
        "`throng_webhook_told_waiting`, `throng_webhook_told_total`",
    ),
    row(
        "webhook.event_queue_bytes_max",
        "the same",
        "`throng_webhook_told_waiting_bytes`, `throng_webhook_told_total`",
    ),
    row(
        "forward.batch_messages_max",
        "the rest goes with the next request",
        "`throng_forward_waiting`",
    ),
    row(
        "forward.queue_messages_max",
        "503, `overloaded`; MQTT: reason code 0x97; with QoS 0 dropped",
        "`throng_forward_waiting`, `throng_forward_refused_total`, `throng_forward_dropped_total`",
    ),
    row("forward.queue_bytes_max", "the same", "`throng_forward_waiting_bytes`"),
    row("auth.revocations_max", "409, `too_many_revocations`", "`throng_token_revocations`"),
    row("admin.body_bytes_max", "413, `body_too_large`", "–"),
    row("admin.bodies_bytes_max", "503, `overloaded`", "`throng_admin_bodies_bytes`"),
    row(
        "admin.connections_max",
        "the connection that was silent longest [gives way](security.md#who-has-no-key)",
        "`throng_admin_connections`",
    ),
    row(
        "admin.connections_per_address_max",
        "one of the address's own gives way",
        "`throng_admin_connections`",
    ),
    row("admin.head_seconds", "closed", "–"),
    row("admin.idle_seconds", "closed", "–"),
    row("admin.session_seconds", "401, `no_session`: sign in again", "`throng_admin_sessions`"),
];

/// The page.
///
/// # Errors
/// When a row is of no setting, or docs/internals/limits.md has no table.
pub fn page() -> Result<String, String> {
    Ok(TEXT
        .replace("{{SETTINGS}}", settings()?.trim_end())
        .replace("{{FIXED}}", fixed()?.trim_end()))
}

/// The kind of a setting and its default, or what a table without it has.
fn of(key: &str) -> Option<(Kind, String)> {
    if let Some(setting) = SETTINGS.iter().find(|setting| setting.key == key) {
        return Some((setting.kind, setting.default.to_owned()));
    }
    let (table, name) = key.split_once('.')?;
    let keys: &[TableKey] = match table {
        "topics" => TOPIC_KEYS,
        "forward" => FORWARD_KEYS,
        "keys" => KEY_KEYS,
        _ => return None,
    };
    let found = keys.iter().find(|known| known.key == name)?;
    let default = match found.absent {
        Absent::Default(value) => value.to_owned(),
        Absent::Unset(_) | Absent::Required(_) => String::new(),
    };
    Some((found.kind, default))
}

/// The unit that a key's name ends with, before what it is counted for.
fn unit(key: &str) -> String {
    let name = key.split_once('.').map_or(key, |(_, name)| name);
    let name = name.trim_end_matches("_max");
    let counted = name.split("_per_").next().unwrap_or(name);
    let word = match counted.rsplit('_').next().unwrap_or(counted) {
        "accept" => "connections",
        // They count what a client of MQTT has under way, and the numbers that it gives topics.
        "receive" | "inflight" => "messages",
        "alias" => "aliases",
        word => word,
    };
    let rate = if name.contains("per_second") { " a second" } else { "" };
    format!("{word}{rate}")
}

fn settings() -> Result<String, String> {
    let mut out =
        "| limit | unit | default | beyond it | shows in |\n| --- | --- | --- | --- | --- |\n"
            .to_owned();
    for Row { key, beyond, metrics } in ROWS {
        let (kind, default) = of(key).ok_or(format!("{key} is no setting"))?;
        let default = match default.trim_matches('"') {
            "" => "–".to_owned(),
            text => super::configuration::grouped(text).trim_end().to_owned(),
        };
        let unit = if matches!(kind, Kind::Bytes(..)) && !key.contains("per_second") {
            "bytes".to_owned()
        } else {
            unit(key)
        };
        let anchor = key.replace('.', "");
        let _ = writeln!(
            out,
            "| [`{key}`](configuration.md#{anchor}) | {unit} | {default} | {beyond} | {metrics} |"
        );
    }
    Ok(out)
}

fn fixed() -> Result<String, String> {
    let (_, rest) = FIXED
        .split_once("## Fixed limits\n")
        .ok_or("docs/internals/limits.md has no table of fixed limits")?;
    let mut out = "| limit | value |\n| --- | --- |\n".to_owned();
    let rows = rest.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|'));
    for row in rows.skip(2) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [limit, value, _] = cells.as_slice() else {
            return Err(format!("docs/internals/limits.md: {row} has not three cells"));
        };
        let _ = writeln!(out, "| {limit} | {value} |");
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A limit is what ends so; whoever adds one says what happens beyond it, and where that shows.
    #[test]
    fn every_limit_has_a_row() {
        let of_table = |table: &str, keys: &'static [TableKey]| -> Vec<String> {
            keys.iter().map(|key| format!("{table}.{}", key.key)).collect()
        };
        let settings = SETTINGS.iter().map(|setting| setting.key.to_owned());
        let rules = of_table("topics", TOPIC_KEYS).into_iter();
        let rules = rules.chain(of_table("forward", FORWARD_KEYS));
        let all = settings.chain(rules).chain(of_table("keys", KEY_KEYS));
        let limits: Vec<String> = all.filter(|key| key.ends_with("_max")).collect();
        assert!(limits.len() > 60, "{}", limits.len());
        for key in limits {
            let rows = ROWS.iter().filter(|row| row.key == key).count();
            assert_eq!(rows, 1, "{key}: say in {} what happens beyond it", file!());
        }
    }

    #[test]
    fn units_are_those_of_the_names() {
        for (key, want) in [
            ("limits.connections_per_user_max", "connections"),
            ("limits.accept_per_second_max", "connections a second"),
            ("limits.bytes_per_second_per_user_max", "bytes a second"),
            ("webhook.queue_events_per_url_max", "events"),
            ("timeouts.head_seconds", "seconds"),
            ("mqtt.receive_max", "messages"),
            ("mqtt.topic_alias_max", "aliases"),
        ] {
            assert_eq!(unit(key), want);
        }
        assert!(fixed().unwrap().lines().count() > 50);
    }
}
