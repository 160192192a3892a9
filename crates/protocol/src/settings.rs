//! The settings that protocols need to read requests and write replies.

use std::borrow::Cow;
use std::sync::Arc;

use auth::{Authenticator, Policy};

use crate::MqttSettings;
use crate::http;
use crate::phoenix::token;

/// The settings that protocols need to read requests and write replies.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The limits of a request's parts.
    pub http: http::Limits,
    /// Origins whose pages may read replies: `*`, or `scheme://host[:port]`.
    pub cors_origins: Vec<String>,
    /// The proxies whose headers with a client's address are trusted.
    pub proxies: proxies::Trusted,
    /// The policy: what clients may do with which topics.
    pub policy: Policy,
    /// Verifies tokens; without it, users need no proof.
    pub auth: Option<Arc<dyn Authenticator>>,
    /// The header in which a trusted proxy names a request's user. The request itself can't choose it then.
    pub user_header: Option<String>,
    /// Certificates name users, so a client without a certificate or a token has no user.
    pub has_certificate_users: bool,
    /// The application decides about clients without a token, and gets these headers of the request, whose names are
    /// in lower case. Without it the application gets no request.
    pub connect_headers: Option<Arc<[String]>>,
    /// The cookie with a token.
    pub token_cookie: Option<String>,
    /// Topics of a connection, at most, including its users' personal ones.
    pub topics_per_connection_max: usize,
    /// Bytes of a message's payload, at most.
    pub message_bytes_max: usize,
    /// Bytes of a WebSocket frame from a client, at most. Whole messages have the same limit.
    pub frame_bytes_max: usize,
    /// Milliseconds that an EventSource waits before it reconnects.
    pub sse_retry_ms: u32,
    /// Seconds that a poll waits if it sets no timeout.
    pub poll_seconds: u32,
    /// Seconds that a poll may wait, at most.
    pub poll_seconds_max: u32,
    /// Seconds between the comments of SSE.
    pub sse_heartbeat_seconds: u32,
    /// Seconds between the heartbeat lines of an HTTP stream.
    pub stream_heartbeat_seconds: u32,
    /// Seconds between WebSocket pings.
    pub ws_ping_seconds: u32,
    /// Seconds of silence after which the server closes a WebSocket.
    pub ws_silence_seconds: u32,
    /// Seconds of silence after which the server closes a Phoenix WebSocket, whose client sends the heartbeats.
    pub phoenix_silence_seconds: u32,
    /// The limits and features of MQTT clients; `None` disables MQTT.
    pub mqtt: Option<MqttSettings>,
    /// Enables permessage-deflate.
    pub compression: bool,
    /// Enables the conformance tests' echo at `/echo`.
    pub ws_echo: bool,
    /// Enables `/status`.
    pub status_page: bool,
    /// Clients may use wildcards; MQTT clients have a setting of their own.
    pub wildcards: bool,
    /// Levels of a filter with wildcards, at most, for all clients.
    pub filter_levels_max: usize,
    /// Signs the tokens of Phoenix long-poll sessions.
    pub longpoll_key: token::Key,
    /// Files that the server serves unchanged.
    pub files: Arc<[File]>,
}

#[cfg(any(test, feature = "testing"))]
impl Settings {
    /// Settings for tests, here and in other crates: small limits, and no timeouts for silence.
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

/// A file that the server serves unchanged.
#[derive(Clone, Debug)]
pub struct File {
    /// Its path, such as `/chat.css`.
    pub path: &'static str,
    /// Its media type.
    pub content_type: &'static str,
    /// Its contents.
    pub body: Cow<'static, [u8]>,
}
