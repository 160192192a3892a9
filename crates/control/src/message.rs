//! A message that was published, as the API shows it.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use wire::{Data, Message, Name};

use crate::{Node, process};

/// Payload of the messages in an answer, in bytes; one message may be larger.
const BYTES_MAX: usize = 4 << 20;

/// A message that was published.
#[derive(Serialize, ToSchema)]
pub(crate) struct Shown<'a> {
    /// `epoch:offset`, as clients see it.
    #[schema(example = "5f3a91c2:1042")]
    id: String,
    /// The place in its epoch.
    #[schema(example = 1042)]
    offset: u64,
    #[schema(example = "news")]
    topic: &'a str,
    #[schema(example = "message")]
    event: &'a str,
    /// JSON as it is, text as a string.
    #[schema(value_type = Value, example = json!({"n": 1}))]
    data: Payload<'a>,
    /// `base64` where data is bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<&'static str>,
    /// What members choose by; left out where there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<&'a str>,
    /// What it is the newest state of; left out where nothing was said.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    /// Milliseconds since 1970.
    #[schema(example = 1_760_000_000_000_u64)]
    published_at: u64,
}

/// What a message carries, as JSON has it.
#[derive(Serialize)]
#[serde(untagged)]
enum Payload<'a> {
    Json(&'a RawValue),
    Text(&'a str),
    Bytes(String),
}

impl<'a> Shown<'a> {
    /// `zero_ms` is when the node's clock began: [`zero_ms`].
    pub fn new(message: &'a Message, zero_ms: u64) -> Self {
        let (data, encoding) = match &message.draft.data {
            Data::Json(json) => match serde_json::from_str(json) {
                Ok(raw) => (Payload::Json(raw), None),
                Err(_) => (Payload::Text(json), None),
            },
            Data::Text(text) => (Payload::Text(text), None),
            Data::Binary(bytes) => (Payload::Bytes(STANDARD.encode(bytes)), Some("base64")),
        };
        // What is kept knows its time itself: it may be of another process.
        let published_at = match message.at_ms {
            0 => zero_ms + message.published_us / 1_000,
            at_ms => at_ms,
        };
        Shown {
            id: message.id.to_string(),
            offset: message.id.offset,
            topic: &message.draft.topic,
            event: message.event(),
            data,
            encoding,
            tags: message.draft.tags().iter().map(Name::as_str).collect(),
            key: message.draft.key().map(Name::as_str),
            published_at,
        }
    }
}

/// When the node's clock began, in milliseconds since 1970.
pub(crate) fn zero_ms(node: &Node) -> u64 {
    process::unix_ms().saturating_sub(node.started.elapsed().as_millis() as u64)
}

/// How many of the messages go into one answer.
pub(crate) fn fits(messages: &[Arc<Message>]) -> usize {
    let mut bytes = 0;
    let fits = messages.iter().take_while(|message| {
        let before = bytes;
        bytes += message.draft.data.bytes();
        before == 0 || bytes <= BYTES_MAX
    });
    fits.count()
}
