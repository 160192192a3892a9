//! Publish to a topic, to a user, to everyone; and many of these at once.

pub(super) mod batch;
mod call_span;
mod message;
mod mqtt;
mod options;
mod outbox_publisher;
mod pending;
mod reply_publisher;

use std::sync::Arc;

use auth::{Action, Deny, Principal};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use broker::PublishError;
use model::name::{BROADCAST, check_name, check_topic, personal};
use model::{CodedError, ErrorCode, Name};
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::access::{Caller, PUBLISH, RequiredScope};
use crate::http::{Body, ErrorBody, Rejection};
use crate::node::Node;
use crate::spans::ActiveSpan;
use call_span::{CallerContext, begin_span, end_span};
pub(crate) use message::{Broadcast, Publish, Send};
use message::{Message, Reply};
pub(crate) use outbox_publisher::OutboxPublisher;
pub(super) use pending::DISK_TIMEOUT;
use pending::{Pending, pending};
pub(crate) use reply_publisher::ReplyPublisher;

/// The id of a message, and the number of its members.
#[derive(Serialize, ToSchema)]
pub(crate) struct Published {
    /// `epoch:offset`, as clients see it.
    #[schema(example = "5f3a91c2:1042")]
    id: String,
    /// The message's number in its epoch.
    #[schema(example = 1042)]
    offset: u64,
    /// Connections on this node that it goes to; left out when it is `queued` or `repeated`, and
    /// when they could not be counted in 5 seconds.
    #[schema(example = 3, nullable = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    members: Option<u64>,
    /// True if the response doesn't wait for the disk, but the members do (a topic with history and a store that is
    /// not `durable`): the message goes out when it is written, and a crash before that may lose it. Else left out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    queued: bool,
    /// True if it was published before with the same idempotency key, and not again now; else left out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    repeated: bool,
}

/// Rejects topics to which only the server publishes, and a caller whose key has no scope for the topic. It is the
/// first check, so that other errors reveal nothing of the topic.
fn check_scope(node: &Node, caller: &Caller, topic: &str) -> Result<(), Rejection> {
    let live = node.live();
    let policy = &live.policy;
    let decision = policy.decide(caller.principal(), Action::Publish, &policy.topic(topic));
    match decision.without_webhook() {
        Ok(_) => Ok(()),
        Err(Deny::PublishSystem) => Err(denied(Deny::PublishSystem)),
        Err(deny) => {
            let (name, to) = (
                caller.name().unwrap_or_default(),
                match topic {
                    BROADCAST => "everyone".to_owned(),
                    topic => format!("{topic:?}"),
                },
            );
            let message = format!(
                "the API key {name:?} may not publish to {to}: it requires the scope \
                 \"publish:{topic}\", a publish scope whose pattern matches the topic, or admin"
            );
            let rejection = Rejection::insufficient_scope(RequiredScope::Publish.scope(), message);
            Err(Rejection { code: deny.code(), ..rejection })
        }
    }
}

/// The response to a caller whose request the rules deny.
fn denied(deny: Deny) -> Rejection {
    Rejection { status: StatusCode::FORBIDDEN, ..CodedError::from(deny).into() }
}

/// Rejects topics to which not even a caller with all scopes may publish.
fn check_rules(node: &Node, topic: &str) -> Result<(), Rejection> {
    let policy = &node.live().policy;
    let decision = policy.decide(&Principal::application(), Action::Publish, &policy.topic(topic));
    decision.without_webhook().map(drop).map_err(denied)
}

/// Checks the message and its size.
fn checked(node: &Node, message: &Message, topic: Name) -> Result<broker::Publish, Rejection> {
    let publish = message.checked(node.history(), topic)?;
    let max = node.live().message_bytes_max;
    if publish.publication.data.bytes() > max {
        let message = protocol::data::too_large(max);
        return Err(Rejection::new(ErrorCode::MessageTooLarge, message));
    }
    Ok(publish)
}

/// The caller that publishes, and the span of its call if that is recorded.
#[derive(Clone, Copy)]
struct Publisher<'a> {
    caller: &'a Caller,
    span: Option<&'a ActiveSpan>,
}

/// Publishes to this topic, without waiting for members or the disk.
fn start(
    node: &Node,
    Publisher { caller, span }: Publisher<'_>,
    message: &Message,
    topic: Name,
) -> Result<Pending, Rejection> {
    check_scope(node, caller, &topic)?;
    caller.spend(&PUBLISH, node)?;
    let observer = span.map(|span| span.observe(&topic, node.shared.clock_began_us()));
    let publish = checked(node, message, topic)?;
    let (pending, receipt, done) = pending(observer);
    node.broker.submit(publish, Some(receipt), done);
    Ok(pending)
}

impl Publish {
    /// Checks and returns the topic.
    fn topic(&self) -> Result<Name, Rejection> {
        check_topic(&self.0.to).map_err(|error| Rejection::new(ErrorCode::BadTopic, error))?;
        Ok(self.0.to.as_str().into())
    }

    fn start(&self, node: &Node, publisher: Publisher<'_>) -> Result<Pending, Rejection> {
        start(node, publisher, &self.0, self.topic()?)
    }
}

impl Send {
    /// The user's own topic.
    fn topic(&self) -> Result<Name, Rejection> {
        check_name(&self.0.to).map_err(|error| Rejection::new(ErrorCode::BadUser, error))?;
        Ok(personal(&self.0.to))
    }

    fn start(&self, node: &Node, publisher: Publisher<'_>) -> Result<Pending, Rejection> {
        start(node, publisher, &self.0, self.topic()?)
    }
}

impl Broadcast {
    /// The topic of everyone.
    fn topic(&self) -> Name {
        BROADCAST.into()
    }

    fn start(&self, node: &Node, publisher: Publisher<'_>) -> Result<Pending, Rejection> {
        start(node, publisher, &self.0, self.topic())
    }
}

/// Publishes one message and waits for the result, in a span of the call if that is recorded.
async fn call(
    node: &Node,
    caller: &Caller,
    mut span: Option<ActiveSpan>,
    message: &Message,
    topic: Result<Name, Rejection>,
) -> Result<Json<Published>, Rejection> {
    let pending = topic.and_then(|topic| {
        if let Some(span) = &mut span {
            span.set_text("messaging.destination.name", topic.as_str());
        }
        start(node, Publisher { caller, span: span.as_ref() }, message, topic)
    });
    let result = match pending {
        Ok(pending) => pending.published().await,
        Err(rejection) => Err(rejection),
    };
    if let (Some(span), Ok(published)) = (&mut span, &result) {
        span.set_text("messaging.message.id", &*published.id);
        if let Some(members) = published.members {
            span.set_number("throng.members", members);
        }
    }
    end_span(span, &result);
    result.map(Json)
}

const NOT_NOW: &str = "if_offset: the topic has a newer message (newer_message, with last), or \
                       the id has another epoch (epoch_changed, with epoch)";
const UNABLE: &str = "The shards (overloaded) or the store (store_busy) are overloaded, or the \
                      store can't write (store_failed): nothing was published; try again";
const UNSURE: &str = "The disk did not respond in 20 seconds (timeout): the message may be \
                      published or not; repeat the call with the same idempotency_key";

/// Publish a message to a topic.
#[utoipa::path(post, path = "/api/publish", tag = "publish", request_body = Publish, responses(
    (status = 200, body = Published),
    (status = 409, body = ErrorBody, description = NOT_NOW),
    (status = 503, body = ErrorBody, description = UNABLE),
    (status = 504, body = ErrorBody, description = UNSURE)))]
pub(crate) async fn publish(
    State(node): State<Arc<Node>>,
    caller: Caller,
    context: CallerContext,
    Body(publish): Body<Publish>,
) -> Result<Json<Published>, Rejection> {
    let span = begin_span(&node, "POST /api/publish", context);
    call(&node, &caller, span, &publish.0, publish.topic()).await
}

/// Send a message to all connections of a user.
#[utoipa::path(post, path = "/api/send", tag = "publish", request_body = Send, responses(
    (status = 200, body = Published),
    (status = 409, body = ErrorBody, description = NOT_NOW),
    (status = 503, body = ErrorBody, description = UNABLE),
    (status = 504, body = ErrorBody, description = UNSURE)))]
pub(crate) async fn send(
    State(node): State<Arc<Node>>,
    caller: Caller,
    context: CallerContext,
    Body(send): Body<Send>,
) -> Result<Json<Published>, Rejection> {
    let span = begin_span(&node, "POST /api/send", context);
    call(&node, &caller, span, &send.0, send.topic()).await
}

/// Send a message to every connection.
#[utoipa::path(post, path = "/api/broadcast", tag = "publish", request_body = Broadcast, responses(
    (status = 200, body = Published)))]
pub(crate) async fn broadcast(
    State(node): State<Arc<Node>>,
    caller: Caller,
    context: CallerContext,
    Body(broadcast): Body<Broadcast>,
) -> Result<Json<Published>, Rejection> {
    let span = begin_span(&node, "POST /api/broadcast", context);
    call(&node, &caller, span, &broadcast.0, Ok(broadcast.topic())).await
}

impl From<PublishError> for Rejection {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Newer(last) => Rejection::newer_message(last, error.to_string()),
            PublishError::Overloaded
            | PublishError::StoreBusy
            | PublishError::StoreFailed(_)
            | PublishError::Unconfirmed(_)
            | PublishError::StoreDamaged(_)
            | PublishError::NoHistory
            | PublishError::KeyRequired => CodedError::from(error).into(),
        }
    }
}
