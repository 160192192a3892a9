//! What must hold between settings.

use crate::source::Values;
use crate::{Config, Origin, Problem};

/// An API key's least length in characters.
const API_KEY_CHARS_MIN: usize = 16;

/// Room for what a transport puts around a payload, in bytes.
const FRAMING_BYTES: u64 = 1024;

pub(crate) fn together(config: &Config, values: &Values, problems: &mut Vec<Problem>) {
    let mut must = |holds: bool, key: &'static str, message: String| {
        if !holds {
            let origin = values.get(key).map_or(Origin::Default, |(_, origin)| origin.clone());
            problems.push(Problem { origin, key: key.into(), message });
        }
    };
    let Config { client, admin, limits, timeouts, .. } = config;
    must(
        client.listen.ip().is_loopback() || client.insecure,
        "client.listen",
        format!(
            "{} is open to other machines, and nothing authenticates clients: listen on \
             127.0.0.1, or say --insecure (client.insecure = true) if a firewall or a proxy \
             guards it",
            client.listen
        ),
    );
    must(
        admin.listen.ip().is_loopback() || !admin.api_key.is_empty(),
        "admin.listen",
        format!(
            "{} is open to other machines: set admin.api_key (THRONG_ADMIN_API_KEY, or \
             --api-key-file), or listen on 127.0.0.1",
            admin.listen
        ),
    );
    must(
        admin.api_key.is_empty() || admin.api_key.chars().count() >= API_KEY_CHARS_MIN,
        "admin.api_key",
        format!("a key has at least {API_KEY_CHARS_MIN} characters: try openssl rand -hex 24"),
    );
    must(
        admin.api_key.chars().all(|c| c.is_ascii_graphic()),
        "admin.api_key",
        "a key has no spaces and only ASCII characters: it is sent in a header".into(),
    );
    must(
        client.listen != admin.listen || client.listen.port() == 0,
        "admin.listen",
        "clients and applications need a port each: client.listen is the same".into(),
    );
    for origin in &client.cors_origins {
        must(
            is_origin(origin),
            "client.cors_origins",
            format!("{origin:?} is no origin: write \"*\" or scheme://host[:port], no path"),
        );
    }
    // message ≤ message + framing ≤ outbox; uri ≤ head.
    must(
        limits.message_bytes_max + FRAMING_BYTES <= limits.outbox_bytes_max,
        "limits.outbox_bytes_max",
        format!(
            "an outbox must hold a message and {FRAMING_BYTES} bytes around it: make it at least \
             {}",
            limits.message_bytes_max + FRAMING_BYTES
        ),
    );
    must(
        limits.uri_bytes_max <= limits.head_bytes_max,
        "limits.uri_bytes_max",
        format!("the target is part of the head: at most {}", limits.head_bytes_max),
    );
    must(
        timeouts.ws_ping_seconds < timeouts.ws_silence_seconds,
        "timeouts.ws_silence_seconds",
        format!(
            "a WebSocket that only answers pings must not count as silent: more than {}",
            timeouts.ws_ping_seconds
        ),
    );
    must(
        timeouts.poll_seconds <= timeouts.poll_seconds_max,
        "timeouts.poll_seconds",
        format!("at most timeouts.poll_seconds_max, which is {}", timeouts.poll_seconds_max),
    );
}

fn is_origin(text: &str) -> bool {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    text == "*"
        || text == "null"
        || host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#', ' ']))
}
