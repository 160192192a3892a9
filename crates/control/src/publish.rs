//! Publish to a topic, to a user, to everyone; and many of these at once.

mod options;
mod pending;

use std::fmt;
use std::sync::{Arc, PoisonError};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use wire::events::check_event;
use wire::message::{BROADCAST, check_name, check_topic, personal};
use wire::{Data, Draft, Marks, Name};

use crate::Node;
use crate::api::{Body, parse};
use crate::error::{ErrorBody, Refused, bad, refused};
use crate::members::{self, Done};
use options::{Asked, IfOffset};
pub(crate) use pending::DISK_PATIENCE;
use pending::{Pending, pending};

/// Commands in one batch.
const COMMANDS_MAX: usize = 1_000;

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
    /// The event's name; `message` without one. `recovery`, `error`, `open` and names that begin
    /// with `phx_`, `chan_reply_` or `presence_` are reserved.
    event: Option<String>,
    /// For a string: `text` (as without it), `base64` for bytes, or `json` to keep its quotes on
    /// transports that carry raw data.
    encoding: Option<String>,
    /// 1 to 128 bytes that are new for each message: one that the topic has had within
    /// `history.idempotency_seconds_max` is not published again but answered with its first
    /// message, so that a publish whose answer was lost can be repeated. For topics with history.
    #[schema(min_length = 1, max_length = 128, example = "order-1042-paid")]
    idempotency_key: Option<String>,
    /// After so many seconds the message is not given any more to those who come back; fractions
    /// are fine. Without history it changes nothing.
    #[schema(exclusive_minimum = 0, example = 3600)]
    ttl_seconds: Option<f64>,
    /// Publish only if the topic has no message after this one; else it is answered 409 with the
    /// newest. An offset (0: the topic has no message at all) or an id, whose epoch is checked,
    /// too. For topics with history.
    if_offset: Option<IfOffset>,
    /// Give it to those who are there, and keep nothing: it has an id of the numbering of topics
    /// without history.
    #[serde(default)]
    #[schema(default = false)]
    no_history: bool,
    /// What members may choose by: at most 16, each of 1 to 64 bytes.
    #[serde(default)]
    #[schema(max_items = 16, example = json!(["urgent", "de"]))]
    tags: Vec<String>,
    /// What the message is the newest state of: where the topic's configuration says
    /// `compact = true`, history keeps the last message of each key. Elsewhere it is kept as
    /// information only.
    #[schema(example = "AAPL")]
    key: Option<String>,
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
    /// The event's name; `message` without one. `recovery`, `error`, `open` and names that begin
    /// with `phx_`, `chan_reply_` or `presence_` are reserved.
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
}

/// A message to every connection.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Broadcast {
    /// Any JSON value; a string is text.
    #[schema(value_type = Value, example = json!({"n": 1}))]
    data: Box<RawValue>,
    /// The event's name; `message` without one. `recovery`, `error`, `open` and names that begin
    /// with `phx_`, `chan_reply_` or `presence_` are reserved.
    event: Option<String>,
    /// As in publish.
    encoding: Option<String>,
}

/// Where a message is, and whom it had.
#[derive(Serialize, ToSchema)]
pub(crate) struct Published {
    /// `epoch:offset`, as clients see it.
    #[schema(example = "5f3a91c2:1042")]
    id: String,
    /// The message's place in its epoch.
    #[schema(example = 1042)]
    offset: u64,
    /// Connections on this node that it goes to; null when they could not be counted in 5 seconds,
    /// when it is a repeat, and when the answer doesn't wait for the disk, as they do (a topic with
    /// history and a store that is not `durable`).
    #[schema(example = 3)]
    members: Option<u64>,
    /// True where this was published before with the same idempotency key, and not again now; else
    /// it is left out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    repeated: bool,
}

/// Many commands, answered one by one.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Batch {
    /// At most 1,000, done in order.
    #[schema(value_type = Vec<Command>)]
    commands: Vec<Box<RawValue>>,
}

/// One command of a batch: an object with the call's name and its body.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub(crate) enum Command {
    /// As /api/publish.
    Publish(Publish),
    /// As /api/send.
    Send(Send),
    /// As /api/broadcast.
    Broadcast(Broadcast),
    /// As /api/disconnect.
    Disconnect(members::Disconnect),
    /// As /api/subscribe.
    Subscribe(members::Membership),
    /// As /api/unsubscribe.
    Unsubscribe(members::Membership),
}

impl Command {
    fn parse(raw: &RawValue) -> Result<Command, Refused> {
        let Named { name, body } = parse(raw.get().as_bytes())?;
        let body = body.get().as_bytes();
        Ok(match name.as_str() {
            "publish" => Command::Publish(parse(body)?),
            "send" => Command::Send(parse(body)?),
            "broadcast" => Command::Broadcast(parse(body)?),
            "disconnect" => Command::Disconnect(parse(body)?),
            "subscribe" => Command::Subscribe(parse(body)?),
            "unsubscribe" => Command::Unsubscribe(parse(body)?),
            other => {
                let message = format!(
                    "there is no command {other:?}: publish, send, broadcast, disconnect, \
                     subscribe and unsubscribe are known"
                );
                return Err(bad("bad_request", message));
            }
        })
    }
}

/// An object with one field. (A map would take `{"publish":…,"publish":…}`, and lose the first.)
struct Named {
    name: String,
    body: Box<RawValue>,
}

impl<'de> Deserialize<'de> for Named {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneField;

        impl<'de> Visitor<'de> for OneField {
            type Value = Named;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with one field: the command's name, and its body")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Named, M::Error> {
                let Some((name, body)) = map.next_entry()? else {
                    return Err(M::Error::invalid_length(0, &self));
                };
                match map.next_key::<String>()? {
                    None => Ok(Named { name, body }),
                    Some(_) => Err(M::Error::invalid_length(2, &self)),
                }
            }
        }

        deserializer.deserialize_map(OneField)
    }
}

/// The answers, in the order of the commands.
#[derive(Serialize, ToSchema)]
pub(crate) struct Results {
    results: Vec<CommandResult>,
}

/// The answer to one command.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum CommandResult {
    /// It was published.
    Published {
        /// Where it is.
        ok: Published,
    },
    /// It was done.
    Done {
        /// To how many connections.
        ok: Done,
    },
    /// It was not done; others were.
    Refused(ErrorBody),
}

/// What a command says of its message.
struct Said<'a> {
    topic: Name,
    data: &'a RawValue,
    event: Option<&'a str>,
    encoding: Option<&'a str>,
    marks: Option<Box<Marks>>,
    options: broker::Options,
}

impl Said<'_> {
    fn draft(self) -> Result<Draft, Refused> {
        let event = self.event.filter(|event| *event != "message");
        if let Some(event) = event {
            check_event(event).map_err(|(code, wrong)| bad(code, wrong))?;
        }
        let data = Data::from_json(self.data, self.encoding);
        let data = data.map_err(|wrong| bad("bad_data", wrong))?;
        Ok(Draft {
            topic: self.topic,
            event: event.map(Name::from),
            data,
            except: None,
            marks: self.marks,
        })
    }
}

/// Publishes without waiting for anyone.
fn start(node: &Node, said: Said<'_>) -> Result<Pending, Refused> {
    let options = said.options.clone();
    let draft = said.draft()?;
    let max = node.live.read().unwrap_or_else(PoisonError::into_inner).message_bytes_max;
    if draft.data.bytes() > max {
        let message = format!("a message is at most {max} bytes (limits.message_bytes_max)");
        return Err(refused(StatusCode::PAYLOAD_TOO_LARGE, "message_too_large", message));
    }
    let (pending, receipt, done) = pending();
    node.broker.submit(broker::Publish { draft, options }, Some(receipt), done);
    Ok(pending)
}

impl Publish {
    fn start(&self, node: &Node) -> Result<Pending, Refused> {
        check_topic(&self.topic).map_err(|wrong| bad("bad_topic", wrong))?;
        let topic = Name::from(self.topic.as_str());
        let (marks, options) = Asked {
            idempotency_key: self.idempotency_key.as_deref(),
            ttl_seconds: self.ttl_seconds,
            if_offset: self.if_offset,
            no_history: self.no_history,
            tags: &self.tags,
            key: self.key.as_deref(),
        }
        .checked(node.broker.kept(), &topic)?;
        let (event, encoding) = (self.event.as_deref(), self.encoding.as_deref());
        start(node, Said { topic, data: &self.data, event, encoding, marks, options })
    }
}

impl Send {
    fn start(&self, node: &Node) -> Result<Pending, Refused> {
        check_name(&self.user).map_err(|wrong| bad("bad_user", wrong))?;
        let topic = personal(&self.user);
        let (marks, options) = Asked {
            idempotency_key: self.idempotency_key.as_deref(),
            ttl_seconds: self.ttl_seconds,
            if_offset: self.if_offset,
            no_history: self.no_history,
            tags: &self.tags,
            key: self.key.as_deref(),
        }
        .checked(node.broker.kept(), &topic)?;
        let (event, encoding) = (self.event.as_deref(), self.encoding.as_deref());
        start(node, Said { topic, data: &self.data, event, encoding, marks, options })
    }
}

impl Broadcast {
    fn start(&self, node: &Node) -> Result<Pending, Refused> {
        let (event, encoding) = (self.event.as_deref(), self.encoding.as_deref());
        let (topic, marks) = (BROADCAST.into(), None);
        let options = broker::Options::default();
        start(node, Said { topic, data: &self.data, event, encoding, marks, options })
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
    Body(publish): Body<Publish>,
) -> Result<Json<Published>, Refused> {
    Ok(Json(publish.start(&node)?.published().await?))
}

/// Send a message to all connections of a user.
#[utoipa::path(post, path = "/api/send", tag = "publish", request_body = Send, responses(
    (status = 200, body = Published),
    (status = 409, body = ErrorBody, description = NOT_NOW),
    (status = 503, body = ErrorBody, description = UNABLE),
    (status = 504, body = ErrorBody, description = UNSURE)))]
pub(crate) async fn send(
    State(node): State<Arc<Node>>,
    Body(send): Body<Send>,
) -> Result<Json<Published>, Refused> {
    Ok(Json(send.start(&node)?.published().await?))
}

/// Send a message to every connection.
#[utoipa::path(post, path = "/api/broadcast", tag = "publish", request_body = Broadcast, responses(
    (status = 200, body = Published)))]
pub(crate) async fn broadcast(
    State(node): State<Arc<Node>>,
    Body(broadcast): Body<Broadcast>,
) -> Result<Json<Published>, Refused> {
    Ok(Json(broadcast.start(&node)?.published().await?))
}

/// A command of a batch that was done, or is a message on its way.
enum Begun {
    Message(Pending),
    Result(CommandResult),
}

/// What a command of a batch waits for.
enum Waiting {
    Message(Pending),
    Count(members::Waiting),
    Refused(Refused),
}

/// Do many commands, in order, and answer each. One that is wrong doesn't stop the others.
#[utoipa::path(post, path = "/api/batch", tag = "publish", request_body = Batch, responses(
    (status = 200, body = Results)))]
pub(crate) async fn batch(
    State(node): State<Arc<Node>>,
    Body(batch): Body<Batch>,
) -> Result<Json<Results>, Refused> {
    if batch.commands.len() > COMMANDS_MAX {
        let message = format!("a batch has at most {COMMANDS_MAX} commands");
        return Err(bad("batch_too_long", message));
    }
    // Messages are all on their way before any is waited for, so that those to one connection
    // leave together. Only who is where must be settled before what is published next: a shard
    // that has no member yet would not be given the message.
    let mut begun = Vec::with_capacity(batch.commands.len());
    // One silent shard is waited for once, not by every command that asks it.
    let mut silent = false;
    for command in &batch.commands {
        begun.push(match begin(&node, command) {
            Waiting::Count(_) if silent => {
                Begun::Result(CommandResult::Refused(Refused::silent().body()))
            }
            Waiting::Count(count) => Begun::Result(match count.done().await {
                Ok(ok) => CommandResult::Done { ok },
                Err(refused) => {
                    silent = refused == Refused::silent();
                    CommandResult::Refused(refused.body())
                }
            }),
            Waiting::Message(pending) => Begun::Message(pending),
            Waiting::Refused(refused) => Begun::Result(CommandResult::Refused(refused.body())),
        });
    }
    let mut results = Vec::with_capacity(begun.len());
    for begun in begun {
        results.push(match begun {
            Begun::Message(pending) => match pending.published().await {
                Ok(ok) => CommandResult::Published { ok },
                Err(refused) => CommandResult::Refused(refused.body()),
            },
            Begun::Result(result) => result,
        });
    }
    Ok(Json(Results { results }))
}

fn begin(node: &Node, command: &RawValue) -> Waiting {
    let command = match Command::parse(command) {
        Ok(command) => command,
        Err(refused) => return Waiting::Refused(refused),
    };
    let message = match &command {
        Command::Publish(publish) => publish.start(node),
        Command::Send(send) => send.start(node),
        Command::Broadcast(broadcast) => broadcast.start(node),
        Command::Disconnect(disconnect) => {
            return disconnect.start(node).map_or_else(Waiting::Refused, Waiting::Count);
        }
        Command::Subscribe(membership) => {
            return membership.start(node, true).map_or_else(Waiting::Refused, Waiting::Count);
        }
        Command::Unsubscribe(membership) => {
            return membership.start(node, false).map_or_else(Waiting::Refused, Waiting::Count);
        }
    };
    message.map_or_else(Waiting::Refused, Waiting::Message)
}
