//! Many commands in one call.

use std::fmt;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use model::ErrorCode;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::call_span::{begin_span, end_span};
use super::pending::Pending;
use super::{Broadcast, CallerContext, Publish, Published, Publisher, Send};
use crate::api::connections::{Disconnect, Done, Membership, PendingCount};
use crate::api::spread::{OtherNodes, PendingCommand};
use crate::http::access::{COMMAND, Caller, RequiredScope};
use crate::http::{Body, ErrorBody, Rejection, parse};
use crate::node::{Node, ShardRequestError};

/// Commands in one batch.
const COMMANDS_MAX: usize = 1_000;

/// Many commands, each with its own result.
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
    Disconnect(Disconnect),
    /// As /api/subscribe.
    Subscribe(Membership),
    /// As /api/unsubscribe.
    Unsubscribe(Membership),
}

impl Command {
    pub(super) fn parse(raw: &RawValue) -> Result<Command, Rejection> {
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
                    "there is no command {other:?}: the commands are publish, send, broadcast, \
                     disconnect, subscribe and unsubscribe"
                );
                return Err(Rejection::new(ErrorCode::BadRequest, message));
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

/// The results, in the order of the commands.
#[derive(Serialize, ToSchema)]
pub(crate) struct Results {
    results: Vec<CommandResult>,
}

/// The result of one command.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum CommandResult {
    /// It was published.
    Published {
        /// Its id and members.
        ok: Published,
    },
    /// It was done.
    Done {
        /// The number of connections.
        ok: DoneAtAll,
    },
    /// It was not done; others were.
    Rejected(ErrorBody),
}

/// The count of a command, in a cluster that of all nodes.
#[derive(Serialize, ToSchema)]
pub(crate) struct DoneAtAll {
    #[serde(flatten)]
    done: Done,
    /// In a cluster: nodes that did not reply, or could not do it. They may have done it all the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<Vec<String>>,
}

/// A command that was done, or a message on its way.
enum Begun {
    Message(Pending),
    Result(CommandResult),
}

/// What a command waits for.
enum Waiting {
    Message(Pending),
    /// The counts of this node, and of the others of its cluster.
    Count(PendingCount, Option<PendingCommand>),
    Rejected(Rejection),
}

/// Carry out many commands, in order, with a result for each. A rejected one doesn't stop the others. Each requires
/// the scope of its own call.
#[utoipa::path(post, path = "/api/batch", tag = "publish", request_body = Batch, responses(
    (status = 200, body = Results)))]
pub(crate) async fn batch(
    State(node): State<Arc<Node>>,
    caller: Caller,
    context: CallerContext,
    Body(batch): Body<Batch>,
) -> Result<Json<Results>, Rejection> {
    let span = begin_span(&node, "POST /api/batch", context);
    let publisher = Publisher { caller: &caller, span: span.as_ref() };
    let result = carry_out(&node, publisher, batch).await;
    end_span(span, &result);
    result.map(Json)
}

async fn carry_out(
    node: &Arc<Node>,
    publisher: Publisher<'_>,
    batch: Batch,
) -> Result<Results, Rejection> {
    if batch.commands.len() > COMMANDS_MAX {
        let message = format!("a batch has at most {COMMANDS_MAX} commands");
        return Err(Rejection::new(ErrorCode::BatchTooLong, message));
    }
    // All messages are on their way before the call waits for any, so that those to one connection
    // leave together. Only a change of members must be complete before the next message: a shard
    // that has no member yet would not get it.
    let mut begun = Vec::with_capacity(batch.commands.len());
    // The call waits for a silent shard once, not with every command for it.
    let mut is_silent = false;
    let mut others = OtherNodes::new(node);
    for command in &batch.commands {
        begun.push(match begin(node, &others, publisher, command) {
            Waiting::Count(..) if is_silent => {
                Begun::Result(CommandResult::Rejected(Rejection::no_reply().body()))
            }
            Waiting::Count(count, by_others) => Begun::Result(match count.done().await {
                Ok(done) => {
                    CommandResult::Done { ok: done_at_all(done, &mut others, by_others).await }
                }
                Err(error) => {
                    is_silent = error == ShardRequestError::Timeout;
                    CommandResult::Rejected(Rejection::from(error).body())
                }
            }),
            Waiting::Message(pending) => Begun::Message(pending),
            Waiting::Rejected(rejection) => {
                Begun::Result(CommandResult::Rejected(rejection.body()))
            }
        });
    }
    let mut results = Vec::with_capacity(begun.len());
    for begun in begun {
        results.push(match begun {
            Begun::Message(pending) => match pending.published().await {
                Ok(ok) => CommandResult::Published { ok },
                Err(rejection) => CommandResult::Rejected(rejection.body()),
            },
            Begun::Result(result) => result,
        });
    }
    Ok(Results { results })
}

/// Adds the counts of other nodes.
async fn done_at_all(
    mut done: Done,
    others: &mut OtherNodes,
    pending: Option<PendingCommand>,
) -> DoneAtAll {
    let Some(pending) = pending else { return DoneAtAll { done, missing: None } };
    let by_others = others.done(pending, done.field()).await;
    done.add(by_others.count);
    DoneAtAll { done, missing: Some(by_others.missing) }
}

fn begin(
    node: &Node,
    others: &OtherNodes,
    publisher: Publisher<'_>,
    command: &RawValue,
) -> Waiting {
    let Publisher { caller, .. } = publisher;
    let command = match Command::parse(command) {
        Ok(command) => command,
        Err(rejection) => return Waiting::Rejected(rejection),
    };
    if let Err(rejection) = caller.spend(&COMMAND, node) {
        return Waiting::Rejected(rejection);
    }
    let changes_members = match &command {
        Command::Publish(_) | Command::Send(_) | Command::Broadcast(_) => false,
        Command::Disconnect(_) | Command::Subscribe(_) | Command::Unsubscribe(_) => true,
    };
    if changes_members && let Err(rejection) = caller.check(RequiredScope::Admin) {
        return Waiting::Rejected(rejection);
    }
    let message = match &command {
        Command::Publish(publish) => publish.start(node, publisher),
        Command::Send(send) => send.start(node, publisher),
        Command::Broadcast(broadcast) => broadcast.start(node, publisher),
        Command::Disconnect(disconnect) => {
            return waiting(disconnect.start(node), || {
                others.begin("/api/disconnect", disconnect, disconnect.owner())
            });
        }
        Command::Subscribe(membership) => {
            return waiting(membership.start(node, true), || {
                others.begin("/api/subscribe", membership, None)
            });
        }
        Command::Unsubscribe(membership) => {
            return waiting(membership.start(node, false), || {
                others.begin("/api/unsubscribe", membership, None)
            });
        }
    };
    message.map_or_else(Waiting::Rejected, Waiting::Message)
}

/// Begins a change of members at other nodes as well, unless this one rejects it.
fn waiting(
    own: Result<PendingCount, Rejection>,
    begin_others: impl FnOnce() -> Option<PendingCommand>,
) -> Waiting {
    match own {
        Ok(count) => Waiting::Count(count, begin_others()),
        Err(rejection) => Waiting::Rejected(rejection),
    }
}
