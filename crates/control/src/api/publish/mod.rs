//! Publish to a topic, to a user, to everyone; and many of these at once.

pub(super) mod batch;
mod mqtt;
mod options;
mod pending;
mod reply_publisher;

use std::sync::Arc;

use auth::{Action, Deny};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use broker::PublishError;
use model::event::check_event;
use model::name::{BROADCAST, check_name, check_topic, personal};
use model::{Attributes, CodedError, ErrorCode, Name, Publication};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::http::access::{Caller, PUBLISH, RequiredScope};
use crate::http::{Body, ErrorBody, Rejection};
use crate::node::Node;
use mqtt::MqttOptions;
use options::{IfOffset, PublishOptions, checked_sender};
pub(super) use pending::DISK_TIMEOUT;
use pending::{Pending, pending};
pub(crate) use reply_publisher::ReplyPublisher;

/// A message to a topic.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Publish {
    /// Not beginning with `@`.
    #[schema(example = "news")]
    topic: String,
    /// Any JSON value; a string is text.
    #[schema(value_type = Value, example = json!({"n": 1}))]
    data: Box<RawValue>,
    /// The event's name; `message` without one. `recovery`, `state_complete`, `error`, `open` and
    /// names that begin with `phx_`, `chan_reply_` or `presence_` are reserved.
    event: Option<String>,
    /// For a string: `text` (as without it), `base64` for bytes, or `json` to keep its quotes on
    /// transports that carry raw data.
    encoding: Option<String>,
    /// 1 to 128 bytes that are new for each message: one that the topic has had within
    /// `history.idempotency_seconds_max` is not published again but answered with its first
    /// message, so that a publish whose answer was lost can be repeated. For topics with history.
    #[schema(min_length = 1, max_length = 128, example = "order-1042-paid")]
    idempotency_key: Option<String>,
    /// After so many seconds those who come back no longer get the message; fractions
    /// are fine. Without history it changes nothing.
    #[schema(exclusive_minimum = 0, example = 3600)]
    ttl_seconds: Option<f64>,
    /// Publish only if the topic has no message after this one; else it is answered 409 with the
    /// newest. An offset (0: the topic has no message at all) or an id, whose epoch is checked,
    /// too. For topics with history.
    if_offset: Option<IfOffset>,
    /// Give it to those who are there only: it is not in the topic's history. In a topic with history it
    /// comes to them without an id.
    #[serde(default)]
    #[schema(default = false)]
    no_history: bool,
    /// What members may choose by: at most 16, each of 1 to 64 bytes.
    #[serde(default)]
    #[schema(max_items = 16, example = json!(["urgent", "de"]))]
    tags: Vec<String>,
    /// What the message is the newest state of: where the topic's configuration says
    /// `compact = true`, history holds the last message of each key, and a message without one is
    /// refused (`key_required`) unless it has `no_history`. Elsewhere it is information only.
    #[schema(example = "AAPL")]
    key: Option<String>,
    /// The user whom the message is from: clients see who sent it, as with what they publish
    /// themselves.
    #[schema(example = "alice")]
    sender: Option<String>,
    /// What only MQTT clients see of it.
    mqtt: Option<MqttOptions>,
}

/// A message to all connections of a user.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Send {
    #[schema(example = "alice")]
    user: String,
    /// Any JSON value; a string is text.
    #[schema(value_type = Value, example = json!({"n": 1}))]
    data: Box<RawValue>,
    /// The event's name; `message` without one. `recovery`, `state_complete`, `error`, `open` and
    /// names that begin with `phx_`, `chan_reply_` or `presence_` are reserved.
    event: Option<String>,
    /// As in publish.
    encoding: Option<String>,
    /// As in publish.
    idempotency_key: Option<String>,
    /// As in publish.
    #[schema(minimum = 0, example = 3600)]
    ttl_seconds: Option<f64>,
    /// As in publish.
    if_offset: Option<IfOffset>,
    /// As in publish.
    #[serde(default)]
    no_history: bool,
    /// As in publish.
    #[serde(default)]
    tags: Vec<String>,
    /// As in publish.
    key: Option<String>,
    /// As in publish.
    sender: Option<String>,
}

/// A message to every connection.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Broadcast {
    /// Any JSON value; a string is text.
    #[schema(value_type = Value, example = json!({"n": 1}))]
    data: Box<RawValue>,
    /// The event's name; `message` without one. `recovery`, `state_complete`, `error`, `open` and
    /// names that begin with `phx_`, `chan_reply_` or `presence_` are reserved.
    event: Option<String>,
    /// As in publish.
    encoding: Option<String>,
    /// As in publish.
    sender: Option<String>,
}

/// Where a message is, and to how many it goes.
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
    /// True where the answer doesn't wait for the disk, as the members do (a topic with history and a
    /// store that is not `durable`): the message goes out when it is written, and a crash before
    /// that may lose it. Else it is left out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    queued: bool,
    /// True where this was published before with the same idempotency key, and not again now; else
    /// it is left out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    repeated: bool,
}

/// A message as a caller sends it.
struct Submission<'a> {
    topic: Name,
    data: &'a RawValue,
    event: Option<&'a str>,
    encoding: Option<&'a str>,
    attributes: Option<Box<Attributes>>,
    options: broker::Options,
    mqtt: Option<&'a MqttOptions>,
}

impl Submission<'_> {
    /// The same for the broker, checked.
    fn publication(self) -> Result<Publication, Rejection> {
        let event = self.event.filter(|event| *event != "message");
        if let Some(event) = event {
            check_event(event)?;
        }
        let data = protocol::data::from_json(self.data, self.encoding);
        let data = data.map_err(|error| Rejection::new(ErrorCode::BadData, error))?;
        let publication = Publication {
            event: event.map(Name::from),
            attributes: self.attributes,
            ..Publication::new(self.topic, data)
        };
        match self.mqtt {
            None => Ok(publication),
            Some(mqtt) => mqtt.apply(publication),
        }
    }
}

/// Rejects what nobody publishes but the server, and a caller whose key has no scope for the topic, before
/// anything else is said of it.
fn check_scope(node: &Node, caller: &Caller, topic: &str) -> Result<(), Rejection> {
    let live = node.live();
    let policy = &live.policy;
    let decision = policy.decide(caller.principal(), Action::Publish, &policy.topic(topic));
    match decision.unasked() {
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
                "the API key {name:?} may not publish to {to}: it needs the scope \
                 \"publish:{topic}\", or one with a pattern that matches it, or admin"
            );
            let rejection = Rejection::insufficient_scope(RequiredScope::Publish.scope(), message);
            Err(Rejection { code: deny.code(), ..rejection })
        }
    }
}

/// The answer to a caller that the rules deny what it asks for.
fn denied(deny: Deny) -> Rejection {
    Rejection { status: StatusCode::FORBIDDEN, ..CodedError::from(deny).into() }
}

/// The same for the broker, checked.
fn checked(node: &Node, submission: Submission<'_>) -> Result<broker::Publish, Rejection> {
    let options = submission.options.clone();
    let publication = submission.publication()?;
    let max = node.live().message_bytes_max;
    if publication.data.bytes() > max {
        let message = protocol::data::too_large(max);
        return Err(Rejection::new(ErrorCode::MessageTooLarge, message));
    }
    Ok(broker::Publish { publication, options })
}

/// Publishes without waiting for anyone.
fn start(node: &Node, submission: Submission<'_>) -> Result<Pending, Rejection> {
    let publish = checked(node, submission)?;
    let (pending, receipt, done) = pending();
    node.broker.submit(publish, Some(receipt), done);
    Ok(pending)
}

impl Publish {
    fn start(&self, node: &Node, caller: &Caller) -> Result<Pending, Rejection> {
        check_topic(&self.topic).map_err(|error| Rejection::new(ErrorCode::BadTopic, error))?;
        let topic = Name::from(self.topic.as_str());
        check_scope(node, caller, &topic)?;
        caller.spend(&PUBLISH, node)?;
        start(node, self.to(node, topic)?)
    }

    /// The message as one to this topic.
    fn to(&self, node: &Node, topic: Name) -> Result<Submission<'_>, Rejection> {
        let (attributes, options) = PublishOptions {
            idempotency_key: self.idempotency_key.as_deref(),
            ttl_seconds: self.ttl_seconds,
            if_offset: self.if_offset,
            no_history: self.no_history,
            tags: &self.tags,
            key: self.key.as_deref(),
            sender: self.sender.as_deref(),
        }
        .checked(node.history(), &topic)?;
        let (event, encoding) = (self.event.as_deref(), self.encoding.as_deref());
        let (data, mqtt) = (&*self.data, self.mqtt.as_ref());
        Ok(Submission { topic, data, event, encoding, attributes, options, mqtt })
    }
}

impl Send {
    fn start(&self, node: &Node, caller: &Caller) -> Result<Pending, Rejection> {
        check_name(&self.user).map_err(|error| Rejection::new(ErrorCode::BadUser, error))?;
        let topic = personal(&self.user);
        check_scope(node, caller, &topic)?;
        caller.spend(&PUBLISH, node)?;
        start(node, self.to(node, topic)?)
    }

    /// The message as one to this topic.
    fn to(&self, node: &Node, topic: Name) -> Result<Submission<'_>, Rejection> {
        let (attributes, options) = PublishOptions {
            idempotency_key: self.idempotency_key.as_deref(),
            ttl_seconds: self.ttl_seconds,
            if_offset: self.if_offset,
            no_history: self.no_history,
            tags: &self.tags,
            key: self.key.as_deref(),
            sender: self.sender.as_deref(),
        }
        .checked(node.history(), &topic)?;
        let (event, encoding) = (self.event.as_deref(), self.encoding.as_deref());
        let (data, mqtt) = (&*self.data, None);
        Ok(Submission { topic, data, event, encoding, attributes, options, mqtt })
    }
}

impl Broadcast {
    fn start(&self, node: &Node, caller: &Caller) -> Result<Pending, Rejection> {
        check_scope(node, caller, BROADCAST)?;
        caller.spend(&PUBLISH, node)?;
        let (event, encoding) = (self.event.as_deref(), self.encoding.as_deref());
        let sender = checked_sender(self.sender.as_deref())?;
        let topic = BROADCAST.into();
        let attributes = sender
            .map(|sender| Box::new(Attributes { sender: Some(sender), ..Attributes::default() }));
        let options = broker::Options::default();
        let (data, mqtt) = (&*self.data, None);
        start(node, Submission { topic, data, event, encoding, attributes, options, mqtt })
    }
}

const NOT_NOW: &str = "if_offset: the topic has a newer message (newer_message, with last), or the \
                       id is of another numbering (epoch_changed, with epoch)";
const UNABLE: &str = "The shards (overloaded) or the store (store_busy) are behind, or the store \
                      can't write (store_failed): nothing was published; try again";
const UNSURE: &str = "The disk did not answer in 20 seconds (timeout): it may be published or not; \
                      repeat it with the same idempotency_key";

/// Publish a message to a topic.
#[utoipa::path(post, path = "/api/publish", tag = "publish", request_body = Publish, responses(
    (status = 200, body = Published),
    (status = 409, body = ErrorBody, description = NOT_NOW),
    (status = 503, body = ErrorBody, description = UNABLE),
    (status = 504, body = ErrorBody, description = UNSURE)))]
pub(crate) async fn publish(
    State(node): State<Arc<Node>>,
    caller: Caller,
    Body(publish): Body<Publish>,
) -> Result<Json<Published>, Rejection> {
    Ok(Json(publish.start(&node, &caller)?.published().await?))
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
    Body(send): Body<Send>,
) -> Result<Json<Published>, Rejection> {
    Ok(Json(send.start(&node, &caller)?.published().await?))
}

/// Send a message to every connection.
#[utoipa::path(post, path = "/api/broadcast", tag = "publish", request_body = Broadcast, responses(
    (status = 200, body = Published)))]
pub(crate) async fn broadcast(
    State(node): State<Arc<Node>>,
    caller: Caller,
    Body(broadcast): Body<Broadcast>,
) -> Result<Json<Published>, Rejection> {
    Ok(Json(broadcast.start(&node, &caller)?.published().await?))
}

impl From<PublishError> for Rejection {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Newer(last) => Rejection::newer_message(last, error.to_string()),
            PublishError::Overloaded
            | PublishError::StoreBusy
            | PublishError::StoreFailed(_)
            | PublishError::StoreDamaged(_)
            | PublishError::NoHistory
            | PublishError::KeyRequired => CodedError::from(error).into(),
        }
    }
}
