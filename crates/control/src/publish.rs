//! Publish to a topic, to a user, to everyone; and many of these at once.

use std::fmt;
use std::sync::{Arc, PoisonError};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use broker::Receipt;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use utoipa::ToSchema;
use wire::message::{BROADCAST, check_name, check_topic, personal};
use wire::{Data, Draft, Id, Name};

use crate::Node;
use crate::api::{Body, parse};
use crate::error::{ErrorBody, Refused, bad, refused};
use crate::members::{self, Done};
use crate::shards::PATIENCE;

/// Commands in one batch.
const COMMANDS_MAX: usize = 1_000;

/// A message to a topic.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Publish {
    /// 1 to 254 bytes, not beginning with `@`.
    #[schema(example = "news")]
    topic: String,
    /// Any JSON value; a string is text.
    #[schema(value_type = Value)]
    data: Box<RawValue>,
    /// The event's name; `message` without one.
    event: Option<String>,
    /// For a string: `text` (as without it), `base64` for bytes, or `json` to keep its quotes on
    /// transports that carry raw data.
    encoding: Option<String>,
}

/// A message to all connections of a user.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Send {
    /// 1 to 254 bytes.
    #[schema(example = "alice")]
    user: String,
    /// Any JSON value; a string is text.
    #[schema(value_type = Value)]
    data: Box<RawValue>,
    /// The event's name; `message` without one.
    event: Option<String>,
    /// As in publish.
    encoding: Option<String>,
}

/// A message to every connection.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Broadcast {
    /// Any JSON value; a string is text.
    #[schema(value_type = Value)]
    data: Box<RawValue>,
    /// The event's name; `message` without one.
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
    offset: u64,
    /// Connections on this node that it goes to; null when they could not be counted in 5 seconds.
    members: Option<u64>,
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

/// A message that is with the broker; its members are being counted.
struct Pending {
    id: Id,
    members: oneshot::Receiver<u64>,
    until: Instant,
}

impl Pending {
    /// Waits for the count. The message is published, whether it can be had or not.
    async fn published(self) -> Published {
        let members = timeout_at(self.until, self.members).await;
        let members = members.ok().and_then(Result::ok);
        Published { id: self.id.to_string(), offset: self.id.offset, members }
    }
}

/// Publishes without waiting for anyone.
fn start(
    node: &Node,
    topic: Name,
    data: &RawValue,
    event: Option<&str>,
    encoding: Option<&str>,
) -> Result<Pending, Refused> {
    let event = event.filter(|event| *event != "message");
    if let Some(event) = event {
        check_name(event).map_err(|wrong| bad("bad_event", wrong))?;
    }
    let data = Data::from_json(data, encoding).map_err(|wrong| bad("bad_data", wrong))?;
    let max = node.live.read().unwrap_or_else(PoisonError::into_inner).message_bytes_max;
    if data.bytes() > max {
        let message = format!("a message is at most {max} bytes (limits.message_bytes_max)");
        return Err(refused(StatusCode::PAYLOAD_TOO_LARGE, "message_too_large", message));
    }
    let (count, members) = oneshot::channel();
    let receipt = Receipt::new(move |total| {
        // Nobody waits any more: the caller went away.
        let _ = count.send(total);
    });
    let draft = Draft { topic, event: event.map(Name::from), data, except: None };
    match node.broker.publish(draft, Some(receipt)) {
        Ok(id) => Ok(Pending { id, members, until: Instant::now() + PATIENCE }),
        Err(error) => {
            Err(refused(StatusCode::SERVICE_UNAVAILABLE, "overloaded", error.to_string()))
        }
    }
}

impl Publish {
    fn start(&self, node: &Node) -> Result<Pending, Refused> {
        check_topic(&self.topic).map_err(|wrong| bad("bad_topic", wrong))?;
        let topic = self.topic.as_str().into();
        start(node, topic, &self.data, self.event.as_deref(), self.encoding.as_deref())
    }
}

impl Send {
    fn start(&self, node: &Node) -> Result<Pending, Refused> {
        check_name(&self.user).map_err(|wrong| bad("bad_user", wrong))?;
        let topic = personal(&self.user);
        start(node, topic, &self.data, self.event.as_deref(), self.encoding.as_deref())
    }
}

impl Broadcast {
    fn start(&self, node: &Node) -> Result<Pending, Refused> {
        let topic = BROADCAST.into();
        start(node, topic, &self.data, self.event.as_deref(), self.encoding.as_deref())
    }
}

/// Publish a message to a topic.
#[utoipa::path(post, path = "/api/publish", tag = "publish", request_body = Publish, responses(
    (status = 200, body = Published),
    (status = 503, body = ErrorBody, description = "The shards are behind: nothing was published; try again")))]
pub(crate) async fn publish(
    State(node): State<Arc<Node>>,
    Body(publish): Body<Publish>,
) -> Result<Json<Published>, Refused> {
    Ok(Json(publish.start(&node)?.published().await))
}

/// Send a message to all connections of a user.
#[utoipa::path(post, path = "/api/send", tag = "publish", request_body = Send, responses(
    (status = 200, body = Published)))]
pub(crate) async fn send(
    State(node): State<Arc<Node>>,
    Body(send): Body<Send>,
) -> Result<Json<Published>, Refused> {
    Ok(Json(send.start(&node)?.published().await))
}

/// Send a message to every connection.
#[utoipa::path(post, path = "/api/broadcast", tag = "publish", request_body = Broadcast, responses(
    (status = 200, body = Published)))]
pub(crate) async fn broadcast(
    State(node): State<Arc<Node>>,
    Body(broadcast): Body<Broadcast>,
) -> Result<Json<Published>, Refused> {
    Ok(Json(broadcast.start(&node)?.published().await))
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
            Begun::Message(pending) => CommandResult::Published { ok: pending.published().await },
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
