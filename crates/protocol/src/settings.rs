//! The settings that decide how bytes are answered.

use std::borrow::Cow;
use std::sync::Arc;

use auth::{Authenticator, Policy};

use crate::MqttSettings;
use crate::http;
use crate::phoenix::token;

/// The settings that decide how bytes are answered.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The limits of a request's parts.
    pub http: http::Limits,
    /// Origins that browsers may read from: `*`, or `scheme://host[:port]`.
    pub cors_origins: Vec<String>,
    /// Who is believed when it says where a client is.
    pub proxies: proxies::Trusted,
    /// What clients may do with which topics.
    pub policy: Policy,
    /// Who says what tokens are worth; without it everybody is who they say.
    pub auth: Option<Arc<dyn Authenticator>>,
    /// The header in which a trusted proxy says who a request is from. Nobody is then who it says itself.
    pub user_header: Option<String>,
    /// Certificates name users, so a client without a certificate or a token is no user.
    pub has_certificate_users: bool,
    /// The application is asked about whoever has no token, and is told these headers of the request, whose
    /// names are in lower case. Without it nobody is asked.
    pub connect_headers: Option<Arc<[String]>>,
    /// The cookie in which a token may come.
    pub token_cookie: Option<String>,
    /// Topics a connection may be in, its users' personal ones included.
    pub topics_per_connection_max: usize,
    /// The payload of a message, in bytes.
    pub message_bytes_max: usize,
    /// A WebSocket frame from a client, in bytes. Whole messages have the same limit.
    pub frame_bytes_max: usize,
    /// What an EventSource waits before it comes back, in milliseconds.
    pub sse_retry_ms: u32,
    /// How long a poll waits when it doesn't say, in seconds.
    pub poll_seconds: u32,
    /// How long a poll may wait at most, in seconds.
    pub poll_seconds_max: u32,
    /// Between the comments of SSE, in seconds.
    pub sse_heartbeat_seconds: u32,
    /// Between the heartbeat lines of an HTTP stream, in seconds.
    pub stream_heartbeat_seconds: u32,
    /// Between WebSocket pings, in seconds.
    pub ws_ping_seconds: u32,
    /// A WebSocket that was silent for so many seconds is closed.
    pub ws_silence_seconds: u32,
    /// The same for a Phoenix WebSocket, whose client sends the heartbeats.
    pub phoenix_silence_seconds: u32,
    /// What MQTT clients may do and have; without it there is no MQTT.
    pub mqtt: Option<MqttSettings>,
    /// Agree to permessage-deflate.
    pub compression: bool,
    /// Serve the conformance tests' echo at `/echo`.
    pub ws_echo: bool,
    /// Serve `/status`.
    pub status_page: bool,
    /// Clients other than those of MQTT, who have their own setting, may name topics by wildcards.
    pub wildcards: bool,
    /// The levels of a filter with wildcards, for all clients.
    pub filter_levels_max: usize,
    /// Signs the tokens of Phoenix long-poll sessions.
    pub longpoll_key: token::Key,
    /// Files that are served as they are.
    pub files: Arc<[File]>,
}

#[cfg(any(test, feature = "testing"))]
impl Settings {
    /// Settings for tests, here and in other crates: small limits, and nobody is closed for a silence.
    pub fn for_tests(policy: Policy) -> Self {
        let never = 1_000_000;
        Settings {
            http: http::Limits {
                head_bytes_max: 8192,
                uri_bytes_max: 4096,
                body_bytes_max: 4096,
                longpoll_body_bytes_max: 4096,
            },
            cors_origins: vec!["*".into()],
            proxies: proxies::Trusted::default(),
            user_header: None,
            has_certificate_users: false,
            policy,
            auth: None,
            connect_headers: None,
            token_cookie: None,
            topics_per_connection_max: 16,
            message_bytes_max: 4096,
            frame_bytes_max: 4096,
            sse_retry_ms: 2000,
            poll_seconds: 25,
            poll_seconds_max: 60,
            sse_heartbeat_seconds: 10,
            stream_heartbeat_seconds: 10,
            ws_ping_seconds: never,
            ws_silence_seconds: never,
            phoenix_silence_seconds: never,
            mqtt: Some(MqttSettings::for_tests()),
            compression: false,
            ws_echo: false,
            status_page: false,
            wildcards: true,
            filter_levels_max: 8,
            longpoll_key: token::Key([0; 32]),
            files: [].into(),
        }
    }
}

/// A file that is served as it is.
#[derive(Clone, Debug)]
pub struct File {
    /// Where: `/chat.css`.
    pub path: &'static str,
    /// Its media type.
    pub content_type: &'static str,
    /// What it holds.
    pub body: Cow<'static, [u8]>,
}
