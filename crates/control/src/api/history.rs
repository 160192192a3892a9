//! Topics' history, page by page, and its deletion.

use std::sync::Arc;

use ::history::{Completion, HistoryError, HistoryReply, Page, PageFrom, PageQuery, Requester};
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use broker::PublishError;
use model::{ErrorCode, Position, Since};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::timeout;
use utoipa::{IntoParams, ToSchema};

use super::messages::{PublishedMessage, fits, zero_us};
use super::publish::DISK_TIMEOUT;
use crate::http::{ErrorBody, QueryParams, Rejection, checked_limit, path_name};
use crate::node::{History, Node};

/// Messages in one page, by default.
const MESSAGES: usize = 100;

/// Messages in one page at most.
const MESSAGES_MAX: usize = 1_000;

/// Bytes of payload that a page may read from the disk.
const PAGE_BYTES: usize = 16 << 20;

/// Selects messages.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct HistoryQuery {
    /// The id of a message: the page begins after it, or with `reverse` before it. Without it, or with `start`, the
    /// page begins with the oldest message of the history, with `reverse` with the newest. `last:50` is the newest
    /// 50, the oldest of them first.
    #[param(example = "5f3a91c2:1042")]
    since: Option<String>,
    /// How many at most: up to 1,000, by default 100. A page ends at 4 MiB, too.
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
#[schema(as = History)]
struct HistoryPage<'a> {
    topic: &'a str,
    /// All ids of topics with history begin with it.
    epoch: String,
    /// The oldest first; with `reverse` the newest first.
    messages: Vec<PublishedMessage<'a>>,
    /// There is another page in this direction.
    more: bool,
    /// The `since` of that page; null on the last.
    next: Option<String>,
    /// The newest id of all topics with history at the lookup. A client that has read the last page has everything up
    /// to it, and can use it as `since`, here or in a connection, or as `if_offset` of a publish.
    last: String,
    /// False when the history no longer has messages after `since`: the page begins with its oldest.
    /// With `reverse` it is false only with `lost`.
    complete: bool,
    /// Messages of the topic after the first id and up to the second may have been lost: the store's file had lost
    /// its last commit. Left out if none was.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<RecoveryGap>,
}

/// A gap in the history.
#[derive(Serialize, ToSchema)]
#[schema(as = Lost)]
struct RecoveryGap {
    #[schema(example = "5f3a91c2:1042")]
    after: String,
    #[schema(example = "5f3a91c2:1049618")]
    through: String,
}

/// A topic's history, page by page. Users' own topics are `@alice`.
#[utoipa::path(get, path = "/api/history/{topic}", tag = "history",
    params(("topic" = String, Path, description = "The topic, percent-encoded"), HistoryQuery),
    responses(
        (status = 200, body = HistoryPage),
        (status = 404, body = ErrorBody, description = "The topic has no history (no_history)"),
        (status = 409, body = ErrorBody,
            description = "`since` has another epoch than the topic (epoch_changed, with the current epoch)"),
        (status = 503, body = ErrorBody,
            description = "Too many reads are queued for the store (store_busy): try again; or the stored messages of \
                           the topic are damaged (store_damaged, with the offsets)"),
        (status = 504, body = ErrorBody, description = "The disk did not respond in 20 seconds")))]
pub(crate) async fn page(
    State(node): State<Arc<Node>>,
    name: Result<Path<String>, PathRejection>,
    QueryParams(query): QueryParams<HistoryQuery>,
) -> Result<Response, Rejection> {
    let topic = path_name(name)?;
    let limit = checked_limit(query.limit, MESSAGES, MESSAGES_MAX)?;
    let history = node.history();
    if history.rule(&topic).is_none() {
        return Err(no_history());
    }
    let from = match query.since.as_deref() {
        Some(since) => from(history, since, query.reverse)?,
        None => PageFrom::End,
    };
    // Read before the lookup: a message that the lookup doesn't find came after it.
    let top = history.top();
    let mut page = read_page(&node, &topic, from, query.reverse, limit).await?;
    let count = fits(&page.messages);
    page.more |= count < page.messages.len();
    page.messages.truncate(count);
    let next = page.messages.last().filter(|_| page.more).map(|last| last.id.to_string());
    let newest = page.messages.iter().map(|message| message.id.offset).max().unwrap_or(0);
    let last = Position { offset: top.offset.max(newest), ..top };
    let zero_us = zero_us(&node);
    let messages =
        page.messages.iter().map(|message| PublishedMessage::new(message, zero_us)).collect();
    Ok(Json(HistoryPage {
        topic: &topic,
        epoch: top.epoch.to_string(),
        messages,
        more: page.more,
        next,
        last: last.to_string(),
        complete: !page.gone || (query.reverse && page.gap.is_none()),
        lost: page.gap.map(|(after, through)| RecoveryGap {
            after: Position { offset: after, ..top }.to_string(),
            through: Position { offset: through, ..top }.to_string(),
        }),
    })
    .into_response())
}

fn no_history() -> Rejection {
    let message = "this topic has no history: the configuration has no [[topics]] table for it \
                   with history_messages_max (for a user's own topic: inbox.enabled)";
    Rejection::with_status(StatusCode::NOT_FOUND, ErrorCode::NoHistory, message)
}

/// Returns where a page with this `since` begins.
fn from(history: &dyn History, since: &str, reverse: bool) -> Result<PageFrom, Rejection> {
    let since = since.parse::<Since>();
    let since = since.map_err(|error| Rejection::new(ErrorCode::BadSince, error.to_string()))?;
    match since {
        Since::Start | Since::Last(_) if reverse => {
            let message = "start and last:N read forwards: remove since or reverse";
            Err(Rejection::new(ErrorCode::BadSince, message))
        }
        Since::Start => Ok(PageFrom::End),
        Since::Last(messages) => Ok(PageFrom::Newest(messages as usize)),
        Since::Token(token) => {
            let offset = token.offset(history.epoch());
            let offset = offset.ok_or_else(|| Rejection::epoch_changed(history.epoch()))?;
            Ok(PageFrom::Offset(offset))
        }
    }
}

/// Reports whether the disk has messages of a topic without a rule. Messages that can't be read count: they can be
/// deleted, too.
async fn disk_has_some(node: &Node, topic: &str) -> bool {
    let (hash, topic) = (node.broker.hash(topic), topic.into());
    let (from, backwards, limit, bytes_max) = (PageFrom::End, false, 1, PAGE_BYTES);
    let query = PageQuery { hash, topic, from, backwards, limit, bytes_max };
    let page = reply(|completion| node.history().page(query, completion)).await;
    !matches!(
        page,
        Err(HistoryReplyError::NotTaken(HistoryError::NoHistory)
            | HistoryReplyError::Error(HistoryError::NoHistory))
    )
}

/// Reads a page from memory, or from the disk.
async fn read_page(
    node: &Node,
    topic: &str,
    from: PageFrom,
    reverse: bool,
    limit: usize,
) -> Result<Page, Rejection> {
    let hash = node.broker.hash(topic);
    let (topic, backwards, bytes_max) = (topic.into(), reverse, PAGE_BYTES);
    let query = PageQuery { hash, topic, from, backwards, limit, bytes_max };
    let page = reply(|completion| node.history().page(query, completion)).await;
    page.map_err(|error| match error {
        HistoryReplyError::NotTaken(_) => {
            let message = "too many reads are queued for the store: try again in a second";
            Rejection::new(ErrorCode::StoreBusy, message)
        }
        HistoryReplyError::Late => {
            let message = "the disk did not respond in 20 seconds: try again later";
            Rejection::new(ErrorCode::Timeout, message)
        }
        HistoryReplyError::Gone => Rejection::going_down(),
        HistoryReplyError::Error(error) => PublishError::from(error).into(),
    })
}

/// Why the history gave no result.
enum HistoryReplyError {
    /// It did not take the request.
    NotTaken(HistoryError),
    /// It replied with this error.
    Error(HistoryError),
    /// It did not reply in time.
    Late,
    /// It ends.
    Gone,
}

/// Sends a request to the history, and waits for its reply up to the limit of the disk.
async fn reply<T: Send + 'static>(
    request: impl FnOnce(Completion<T>) -> Result<HistoryReply<T>, HistoryError>,
) -> Result<T, HistoryReplyError> {
    let (sender, receiver) = oneshot::channel();
    // Sending fails if the caller has gone away.
    let requester = Requester::default();
    let completion = Completion::of(&requester, move |reply| _ = sender.send(reply));
    if let HistoryReply::Now(now) = request(completion).map_err(HistoryReplyError::NotTaken)? {
        return Ok(now);
    }
    let reply = timeout(DISK_TIMEOUT, receiver).await.map_err(|_| HistoryReplyError::Late)?;
    reply.map_err(|_| HistoryReplyError::Gone)?.map_err(HistoryReplyError::Error)
}

/// Earlier versions served the node's samples at `/api/history`: the error names the new path.
pub(crate) async fn without_topic() -> Rejection {
    Rejection::new(
        ErrorCode::NoTopic,
        "name the topic: /api/history/{topic}; the samples of the last 15 minutes are at \
         /api/samples",
    )
}

/// A topic's history was deleted.
#[derive(Serialize, ToSchema)]
pub(crate) struct Deleted {
    #[schema(example = "news")]
    topic: String,
    /// Always true.
    deleted: bool,
    /// Messages up to this are deleted. Messages that were published meanwhile may be, too.
    #[schema(example = "5f3a91c2:1050")]
    through: String,
}

/// Delete a topic's history up to now, from memory and disk. A client that comes back with an older position learns
/// that messages are gone.
#[utoipa::path(delete, path = "/api/history/{topic}", tag = "history",
    params(("topic" = String, Path, description = "The topic, percent-encoded")),
    responses(
        (status = 200, body = Deleted, description = "The history is deleted from the disk"),
        (status = 404, body = ErrorBody, description = "The topic has no history (no_history)"),
        (status = 503, body = ErrorBody, description = "The store can't write (store_failed); a full disk does not \
                prevent a deletion"),
        (status = 504, body = ErrorBody,
            description = "The disk did not respond in 20 seconds: the history may be deleted or not")))]
pub(crate) async fn delete(
    State(node): State<Arc<Node>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Deleted>, Rejection> {
    let topic = path_name(name)?;
    let history = node.history();
    // A store may still have messages that earlier rules retained.
    if history.rule(&topic).is_none()
        && (node.store.is_none() || !disk_has_some(&node, &topic).await)
    {
        return Err(no_history());
    }
    let through = history.top().to_string();
    let hash = node.broker.hash(&topic);
    let deleted = reply(|completion| history.delete(hash, &topic, completion)).await;
    deleted.map_err(|error| match error {
        HistoryReplyError::Late => {
            let message = "the disk did not respond in 20 seconds: the history may be deleted or \
                           not; repeat the call later, which is safe";
            Rejection::new(ErrorCode::Timeout, message)
        }
        HistoryReplyError::Gone => Rejection::going_down(),
        HistoryReplyError::NotTaken(error) | HistoryReplyError::Error(error) => {
            let error = PublishError::from(error);
            let message = format!("the history was not deleted from the disk: {error}");
            Rejection::new(error.code(), message)
        }
    })?;
    Ok(Json(Deleted { topic, deleted: true, through }))
}
