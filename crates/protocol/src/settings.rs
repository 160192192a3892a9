//! The settings that decide how bytes are answered.

use std::borrow::Cow;
use std::sync::Arc;

use auth::Policy;

use crate::http;
use crate::phoenix::token;

/// The settings that decide how bytes are answered.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The limits of a request's parts.
    pub http: http::Limits,
    /// Origins that browsers may read from: `*`, or `scheme://host[:port]`.
    pub cors_origins: Vec<String>,
    /// What clients may do with which topics.
    pub policy: Policy,
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
    /// Agree to permessage-deflate.
    pub compression: bool,
    /// Serve the conformance tests' echo at `/echo`.
    pub ws_echo: bool,
    /// Serve `/status`.
    pub status_page: bool,
    /// Signs the tokens of Phoenix long-poll sessions.
    pub longpoll_key: token::Key,
    /// Files that are served as they are.
    pub files: Arc<[File]>,
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
