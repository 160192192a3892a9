//! Retained messages: the last one of each topic, for later subscribers.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use model::filter::Filter;
use model::{ErrorCode, Message};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::timeout;
use utoipa::{IntoParams, ToSchema};

use crate::api::messages::{PublishedMessage, published_ms, zero_us};
use crate::http::{ErrorBody, QueryParams, Rejection, checked_limit, path_name};
use crate::monitor::process;
use crate::node::Node;

/// Messages in one page, by default.
const MESSAGES: usize = 100;

/// Messages in one page at most.
const MESSAGES_MAX: usize = 1_000;

/// How long a deletion waits until all nodes can see it: less than another node waits for this one.
const SETTLE_WAIT: Duration = Duration::from_secs(3);

/// Selects retained messages.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetainedQuery {
    /// Only topics that this MQTT filter matches. Without it: all but the node's own topics (`$SYS/#`).
    #[param(example = "state/#")]
    filter: Option<String>,
    /// Only topics after this one: the `next` of the page before.
    after: Option<String>,
    /// How many at most: up to 1,000, by default 100.
    limit: Option<usize>,
}

/// A page of retained messages, sorted by topic. A page with fewer messages than the limit, or none, may still not be
/// the last.
#[derive(Serialize, ToSchema)]
pub(crate) struct RetainedMessages {
    retained: Vec<RetainedInfo>,
    /// The `after` of the next page; null on the last page.
    next: Option<String>,
}

/// A retained message without its data.
#[derive(Serialize, ToSchema)]
pub(crate) struct RetainedInfo {
    #[schema(example = "state/light")]
    topic: String,
    /// Its payload, in bytes.
    #[schema(example = 2)]
    bytes: usize,
    /// The QoS with which it was published.
    #[schema(example = 1)]
    qos: u8,
    /// When it was published, in milliseconds since 1970.
    #[schema(example = 1_760_000_000_000_u64)]
    published_at: u64,
    /// When it expires, in milliseconds since 1970; null if it never does.
    expires_at: Option<u64>,
}

/// A retained message.
#[derive(Serialize, ToSchema)]
#[schema(as = RetainedMessage)]
struct RetainedDetails<'a> {
    #[serde(flatten)]
    message: PublishedMessage<'a>,
    /// Its payload, in bytes.
    #[schema(example = 2)]
    bytes: usize,
    /// The QoS with which it was published.
    #[schema(example = 1)]
    qos: u8,
    /// When it expires, in milliseconds since 1970; null if it never does.
    expires_at: Option<u64>,
}

/// A retained message was deleted.
#[derive(Serialize, ToSchema)]
pub(crate) struct RetainedDeleted {
    #[schema(example = "state/light")]
    topic: String,
    /// Always true.
    deleted: bool,
}

impl RetainedInfo {
    fn new(message: &Message, zero_us: u64) -> Self {
        let publication = &message.publication;
        RetainedInfo {
            topic: publication.topic.to_string(),
            bytes: publication.data.bytes(),
            qos: publication.qos.number(),
            published_at: published_ms(message, zero_us),
            expires_at: publication.expires_ms(),
        }
    }
}

/// Retained messages: the last one of each topic, for later subscribers.
#[utoipa::path(get, path = "/api/mqtt/retained", tag = "mqtt", params(RetainedQuery), responses(
    (status = 200, body = RetainedMessages),
    (status = 400, body = ErrorBody, description = "`filter` is not a valid topic filter (bad_filter)")))]
pub(crate) async fn list(
    State(node): State<Arc<Node>>,
    QueryParams(query): QueryParams<RetainedQuery>,
) -> Result<Json<RetainedMessages>, Rejection> {
    let limit = checked_limit(query.limit, MESSAGES, MESSAGES_MAX)?;
    let (retained, after) = (&node.shared.retained, query.after.as_deref());
    let page = match &query.filter {
        None => retained.all(after, limit),
        Some(filter) => {
            check_filter(filter).map_err(|error| Rejection::new(ErrorCode::BadFilter, error))?;
            retained.matching(filter, after, limit)
        }
    };
    let (now_ms, zero_us) = (process::unix_ms(), zero_us(&node));
    let current = page.messages.iter().filter(|message| !message.is_expired(now_ms));
    let retained = current.map(|message| RetainedInfo::new(message, zero_us)).collect();
    Ok(Json(RetainedMessages { retained, next: page.after.map(String::from) }))
}

fn check_filter(filter: &str) -> Result<(), String> {
    match Filter::parse(filter) {
        Err(error) => Err(error.to_string()),
        Ok(parts) if parts.group.is_some() => {
            Err("groups share subscriptions, not retained messages: remove $share/…".into())
        }
        Ok(_) => Ok(()),
    }
}

/// A topic's retained message, with its data.
#[utoipa::path(get, path = "/api/mqtt/retained/{topic}", tag = "mqtt",
    params(("topic" = String, Path, description = "The topic, percent-encoded")),
    responses((status = 200, body = RetainedDetails),
    (status = 404, body = ErrorBody, description = "The topic has no retained message (no_retained)")))]
pub(crate) async fn one(
    State(node): State<Arc<Node>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Rejection> {
    let topic = path_name(name)?;
    let found = node.shared.retained.get(&topic);
    let message = found.filter(|message| !message.is_expired(process::unix_ms()));
    let message = message.ok_or_else(no_retained)?;
    Ok(Json(RetainedDetails {
        message: PublishedMessage::new(&message, zero_us(&node)),
        bytes: message.publication.data.bytes(),
        qos: message.publication.qos.number(),
        expires_at: message.publication.expires_ms(),
    })
    .into_response())
}

/// Delete a topic's retained message. Clients get no event. An empty message with `"mqtt":{"retain":true}` to the
/// topic deletes it as well, and its subscribers get that message.
#[utoipa::path(delete, path = "/api/mqtt/retained/{topic}", tag = "mqtt",
    params(("topic" = String, Path, description = "The topic, percent-encoded")),
    responses((status = 200, body = RetainedDeleted),
    (status = 404, body = ErrorBody, description = "The topic has no retained message (no_retained)"),
    (status = 503, body = ErrorBody, description = "The message is deleted at this node, but PostgreSQL has not confirmed it within 3 seconds (store_failed)")))]
pub(crate) async fn delete(
    State(node): State<Arc<Node>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<RetainedDeleted>, Rejection> {
    let topic = path_name(name)?;
    if !node.shared.retained.remove(&topic) {
        return Err(no_retained());
    }
    let (sender, removed) = oneshot::channel();
    node.shared.retained.settle(Box::new(move |is_stored| _ = sender.send(is_stored)));
    match timeout(SETTLE_WAIT, removed).await {
        Ok(Ok(true)) => Ok(Json(RetainedDeleted { topic, deleted: true })),
        _ => Err(Rejection::new(
            ErrorCode::StoreFailed,
            "the message is deleted at this node, and will be at all others once PostgreSQL can be used, \
             unless this node ends before",
        )),
    }
}

fn no_retained() -> Rejection {
    let message =
        "this topic has no retained message: /api/mqtt/retained lists the topics that have one";
    Rejection::new(ErrorCode::NoRetained, message)
}
