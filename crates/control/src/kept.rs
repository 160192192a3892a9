//! What is kept of topics: pages of their history, and its deletion.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use broker::{Kept, Page};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, timeout};
use utoipa::{IntoParams, ToSchema};
use wire::{Id, Since};

use crate::Node;
use crate::error::{ErrorBody, Refused, bad, refused};
use crate::inspect::{Asked, path};
use crate::message::{self, Shown};
use crate::publish::DISK_PATIENCE;
use crate::top::limited;

/// Messages in one page, if it isn't said.
const MESSAGES: usize = 100;

/// Messages in one page at most.
const MESSAGES_MAX: usize = 1_000;

/// Lets go what is too old, once a second.
pub(crate) async fn sweep(node: Arc<Node>) {
    let mut clock = tokio::time::interval(Duration::from_secs(1));
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        clock.tick().await;
        node.broker.kept().sweep();
    }
}

/// Which messages.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct HistoryQuery {
    /// The id of a message: those after it, or with `reverse` those before it. Without it the page
    /// begins with the oldest message that is kept, or with the newest.
    #[param(example = "5f3a91c2:1042")]
    since: Option<String>,
    /// At most so many, up to 1,000; 100 if it isn't said. A page ends at 4 MiB, too.
    limit: Option<usize>,
    /// The newest first, and backwards from there.
    #[serde(default)]
    reverse: bool,
}

/// A page of a topic's history.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "topic": "news", "epoch": "5f3a91c2",
    "messages": [{"id": "5f3a91c2:1042", "offset": 1042, "topic": "news", "event": "message",
        "data": {"n": 1}, "tags": ["urgent"], "published_at": 1_760_000_000_000_u64}],
    "more": true, "next": "5f3a91c2:1042", "last": "5f3a91c2:1050", "complete": true}))]
struct History<'a> {
    topic: &'a str,
    /// The life of the numbering: all ids of topics with history begin with it.
    epoch: String,
    /// The oldest first; with `reverse` the newest first.
    messages: Vec<Shown<'a>>,
    /// There is another page in this direction.
    more: bool,
    /// The `since` of that page; null on the last.
    next: Option<String>,
    /// The newest place of all topics with history when this was looked up: whoever has read the
    /// last page has everything up to it, and can go on from it as `since`, here or in a
    /// connection, or publish with it as `if_offset`.
    last: String,
    /// False when messages after `since` are no longer kept: the page begins with the oldest that
    /// is. With `reverse` it is false only with `lost`.
    complete: bool,
    /// Messages of the topic after the first place and up to the second may have been lost: the
    /// store's file did not keep its last commit. Left out where that is not so.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<Lost>,
}

/// A gap in the history.
#[derive(Serialize, ToSchema)]
struct Lost {
    #[schema(example = "5f3a91c2:1042")]
    after: String,
    #[schema(example = "5f3a91c2:1049618")]
    through: String,
}

/// What is kept of a topic, page by page. Users' own topics are `@alice`.
#[utoipa::path(get, path = "/api/history/{topic}", tag = "history",
    params(("topic" = String, Path, description = "The topic, percent-encoded"), HistoryQuery),
    responses(
        (status = 200, body = History),
        (status = 404, body = ErrorBody, description = "Nothing is kept of the topic (no_history)"),
        (status = 409, body = ErrorBody,
            description = "`since` is of another numbering (epoch_changed, with the epoch of now)"),
        (status = 503, body = ErrorBody,
            description = "Too many read from the store already (store_busy): try again; or what \
                           it has of the topic is damaged (store_damaged, with the offsets)"),
        (status = 504, body = ErrorBody, description = "The disk did not answer in 20 seconds")))]
pub(crate) async fn page(
    State(node): State<Arc<Node>>,
    name: Result<Path<String>, PathRejection>,
    Asked(query): Asked<HistoryQuery>,
) -> Result<Response, Refused> {
    let topic = path(name)?;
    let limit = limited(query.limit, MESSAGES, MESSAGES_MAX)?;
    let kept = node.broker.kept();
    if kept.rule(&topic).is_none() {
        return Err(no_history());
    }
    let since = query.since.as_deref().map(|since| place(kept, since)).transpose()?;
    // Before the look: what it doesn't find came after this.
    let top = kept.top();
    let mut page = look(&node, &topic, since, query.reverse, limit).await?;
    let fits = message::fits(&page.messages);
    page.more |= fits < page.messages.len();
    page.messages.truncate(fits);
    let next = page.messages.last().filter(|_| page.more).map(|last| last.id.to_string());
    let newest = page.messages.iter().map(|message| message.id.offset).max().unwrap_or(0);
    let last = Id { offset: top.offset.max(newest), ..top };
    let zero_ms = message::zero_ms(&node);
    let messages = page.messages.iter().map(|message| Shown::new(message, zero_ms)).collect();
    Ok(Json(History {
        topic: &topic,
        epoch: top.epoch.to_string(),
        messages,
        more: page.more,
        next,
        last: last.to_string(),
        complete: !page.gone || (query.reverse && page.lost.is_none()),
        lost: page.lost.map(|(after, through)| Lost {
            after: Id { offset: after, ..top }.to_string(),
            through: Id { offset: through, ..top }.to_string(),
        }),
    })
    .into_response())
}

fn no_history() -> Refused {
    let message = "nothing is kept of this topic: the configuration has no [[topics]] table for it \
                   with history_messages_max (for a user's own topic: offline.enabled)";
    refused(StatusCode::NOT_FOUND, "no_history", message)
}

/// The offset that a `since` stands for.
fn place(kept: &Kept, since: &str) -> Result<u64, Refused> {
    let since: Since = since.parse().map_err(|wrong| bad("bad_since", format!("{wrong}")))?;
    since.offset(kept.epoch()).ok_or_else(|| Refused::epoch(kept.epoch()))
}

async fn look(
    node: &Node,
    topic: &str,
    since: Option<u64>,
    reverse: bool,
    limit: usize,
) -> Result<Page, Refused> {
    let (say, said) = oneshot::channel();
    // If nobody waits any more, the caller went away.
    let reply = Box::new(move |page| _ = say.send(page));
    let hash = node.broker.hash(topic);
    let asked = node.broker.kept().page(hash, topic, since, reverse, limit, reply);
    asked.map_err(|_| {
        let message = "too many read from the store already: try again after a second";
        refused(StatusCode::SERVICE_UNAVAILABLE, "store_busy", message)
    })?;
    let page = timeout(DISK_PATIENCE, said).await.map_err(|_| {
        let message = "the disk did not answer in 20 seconds: try again later";
        refused(StatusCode::GATEWAY_TIMEOUT, "timeout", message)
    })?;
    Ok(page.map_err(|_| Refused::gone())??)
}

/// A topic's history was deleted.
#[derive(Serialize, ToSchema)]
pub(crate) struct Deleted {
    #[schema(example = "news")]
    topic: String,
    /// Always true.
    deleted: bool,
    /// What is deleted ends with this, at least: what was published meanwhile may be deleted, too.
    #[schema(example = "5f3a91c2:1050")]
    through: String,
}

/// Delete what is kept of a topic up to now, from memory and disk. Whoever comes back to it from
/// before is told that messages are gone.
#[utoipa::path(delete, path = "/api/history/{topic}", tag = "history",
    params(("topic" = String, Path, description = "The topic, percent-encoded")),
    responses(
        (status = 200, body = Deleted, description = "It is off the disk"),
        (status = 404, body = ErrorBody, description = "Nothing is kept of the topic (no_history)"),
        (status = 503, body = ErrorBody, description = "The store can't write (store_failed); a full \
                                                        disk is no reason: a deletion makes room"),
        (status = 504, body = ErrorBody,
            description = "The disk did not answer in 20 seconds: it may be deleted or not")))]
pub(crate) async fn delete(
    State(node): State<Arc<Node>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Deleted>, Refused> {
    let topic = path(name)?;
    let kept = node.broker.kept();
    // A store may hold what was kept under rules of before.
    if kept.rule(&topic).is_none() && kept.store().is_none() {
        return Err(no_history());
    }
    let through = kept.top().to_string();
    let (say, said) = oneshot::channel();
    // If nobody waits any more, the caller went away.
    let done = Box::new(move |result| _ = say.send(result));
    kept.delete(node.broker.hash(&topic), &topic, done);
    let result = timeout(DISK_PATIENCE, said).await.map_err(|_| {
        let message = "the disk did not answer in 20 seconds: the history may be deleted or not; \
                       do it again later, which does no harm";
        refused(StatusCode::GATEWAY_TIMEOUT, "timeout", message)
    })?;
    result.map_err(|_| Refused::gone())?.map_err(|error| {
        let message = format!("the history is not deleted from the disk: {error}");
        refused(StatusCode::SERVICE_UNAVAILABLE, error.code(), message)
    })?;
    Ok(Json(Deleted { topic, deleted: true, through }))
}
