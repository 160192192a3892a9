//! The newest messages, and how the API shows a message.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use broker::Latest;
use model::{Data, Envelope, Message, Name};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use crate::http::{QueryParams, Rejection, checked_limit};
use crate::node::Node;

/// Messages in a response, by default.
const ROWS: usize = 20;

/// Messages in a response, at most.
const ROWS_MAX: usize = 100;

/// Payload of the messages in a response, in bytes; one message may be larger.
const BYTES_MAX: usize = 4 << 20;

/// A message that was published.
#[derive(Serialize, ToSchema)]
#[schema(as = Shown)]
pub(crate) struct PublishedMessage<'a> {
    /// `epoch:offset`, as clients see it.
    #[schema(example = "5f3a91c2:1042")]
    id: String,
    /// Its number in its epoch.
    #[schema(example = 1042)]
    offset: u64,
    #[schema(example = "news")]
    topic: &'a str,
    #[schema(example = "message")]
    event: &'a str,
    /// JSON as it is, text as a string.
    #[schema(value_type = Value, example = json!({"n": 1}))]
    data: Payload<'a>,
    /// `base64` if data is bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<&'static str>,
    /// The user who published it; left out if none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "alice")]
    sender: Option<&'a str>,
    /// Its tags, by which members filter; left out if it has none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<&'a str>,
    /// The key whose newest state it is; left out if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    /// Milliseconds since 1970.
    #[schema(example = 1_760_000_000_000_u64)]
    published_at: u64,
}

/// A message's payload in JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum Payload<'a> {
    Json(&'a RawValue),
    Text(&'a str),
    Bytes(String),
}

impl<'a> PublishedMessage<'a> {
    /// `zero_us` is when the node's clock began: [`zero_us`].
    pub fn new(message: &'a Message, zero_us: u64) -> Self {
        let (data, encoding) = match &message.publication.data {
            Data::Json(json) => match serde_json::from_str(json) {
                Ok(raw) => (Payload::Json(raw), None),
                Err(_) => (Payload::Text(json), None),
            },
            Data::Text(text) => (Payload::Text(text), None),
            Data::Binary(bytes) => (Payload::Bytes(STANDARD.encode(bytes)), Some("base64")),
        };
        PublishedMessage {
            id: message.id.to_string(),
            offset: message.id.offset,
            topic: &message.publication.topic,
            event: message.event(),
            data,
            encoding,
            sender: message.publication.sender().map(Name::as_str),
            tags: message.publication.tags().iter().map(Name::as_str).collect(),
            key: message.publication.key().map(Name::as_str),
            published_at: published_ms(message, zero_us),
        }
    }
}

/// When a message was published, in milliseconds since 1970. `zero_us` is when the node's clock began.
pub(crate) fn published_ms(message: &Message, zero_us: u64) -> u64 {
    // A message from the store knows its time: another process may have published it.
    match message.at_ms {
        0 => (zero_us + message.published_us) / 1_000,
        at_ms => at_ms,
    }
}

/// Returns when the node's clock began, in microseconds since 1970. It uses the shards' time of day, so that no
/// message expires later than its own time says.
pub(crate) fn zero_us(node: &Node) -> u64 {
    node.shared.clock_began_us()
}

/// Returns how many of the messages fit into one response.
pub(crate) fn fits(messages: &[Arc<Envelope>]) -> usize {
    let mut bytes = 0;
    let fits = messages.iter().take_while(|message| {
        let before = bytes;
        bytes += message.publication.data.bytes();
        before == 0 || bytes <= BYTES_MAX
    });
    fits.count()
}

/// Selects messages.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct MessagesQuery {
    /// Only those of this topic: `@alice` for what went to a user, `*` for broadcasts.
    topic: Option<String>,
    /// How many at most: up to 100, by default 20.
    limit: Option<usize>,
}

/// The newest messages.
#[derive(Serialize, ToSchema)]
struct Messages<'a> {
    /// The newest first.
    messages: Vec<PublishedMessage<'a>>,
    /// False if the recent window may have more of them although the limit is not reached: the search ends after the
    /// newest 100,000 messages of all topics, and the response at 4 MiB.
    complete: bool,
}

/// The newest messages of the recent window, of a topic or of all. `complete` is false if more of them would exceed 4
/// MiB or may be older than the newest 100,000 of all topics.
#[utoipa::path(get, path = "/api/messages", tag = "inspect", params(MessagesQuery), responses(
    (status = 200, body = Messages)))]
pub(crate) async fn messages(
    State(node): State<Arc<Node>>,
    QueryParams(query): QueryParams<MessagesQuery>,
) -> Result<Response, Rejection> {
    let limit = checked_limit(query.limit, ROWS, ROWS_MAX)?;
    let topic = query.topic.as_deref().map(|topic| (node.broker.hash(topic), topic));
    let Latest { messages: mut latest, complete } = node.broker.latest(topic, limit);
    let count = fits(&latest);
    let complete = complete && count == latest.len();
    latest.truncate(count);
    let zero_us = zero_us(&node);
    let messages = latest.iter().map(|message| PublishedMessage::new(message, zero_us)).collect();
    Ok(Json(Messages { messages, complete }).into_response())
}
