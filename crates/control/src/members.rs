//! Change who is where: disconnect, and subscribe or unsubscribe a user from the server's side.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use shard::{Reply, Target};
use tokio::sync::oneshot;
use utoipa::ToSchema;
use wire::message::{check_name, check_topic};
use wire::{Close, ConnectionId, Name};

use crate::Node;
use crate::api::Body;
use crate::error::{ErrorBody, Refused, bad};

/// Which connections to close: a user's, or one.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Disconnect {
    /// All connections of this user.
    #[schema(example = "alice")]
    user: Option<String>,
    /// This connection, by the name that /api/users gives.
    #[schema(example = "0-12-345")]
    connection: Option<String>,
}

/// A user's place in a topic.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Membership {
    /// All connections of this user that are open now.
    #[schema(example = "alice")]
    user: String,
    /// The topic.
    #[schema(example = "room:1")]
    topic: String,
}

/// How many connections it concerned.
#[derive(Serialize, ToSchema)]
pub(crate) struct Counted {
    /// Connections.
    #[schema(example = 2)]
    pub connections: u64,
}

/// Shards that were asked and have not all answered.
pub(crate) struct Waiting(Vec<oneshot::Receiver<u32>>);

impl Waiting {
    pub async fn counted(self) -> Result<Counted, Refused> {
        let mut connections = 0;
        for answer in self.0 {
            connections += u64::from(answer.await.map_err(|_| Refused::gone())?);
        }
        Ok(Counted { connections })
    }
}

/// A reply that can be awaited.
pub(crate) fn reply<T: Send + 'static>() -> (Reply<T>, oneshot::Receiver<T>) {
    let (sender, receiver) = oneshot::channel();
    let reply = Box::new(move |value| {
        // Nobody waits any more: the caller went away.
        let _ = sender.send(value);
    });
    (reply, receiver)
}

/// Asks every shard.
pub(crate) fn ask_all<T: Send + 'static>(
    node: &Node,
    command: impl Fn(Reply<T>) -> shard::Command,
) -> Vec<oneshot::Receiver<T>> {
    let ask = |shard: &shard::Handle| {
        let (reply, answer) = reply();
        shard.send(command(reply));
        answer
    };
    node.shards.iter().map(ask).collect()
}

impl Disconnect {
    pub fn start(&self, node: &Node) -> Result<Waiting, Refused> {
        let close = Close::ByApplication;
        match (&self.user, &self.connection) {
            (Some(user), None) => {
                check_name(user).map_err(|wrong| bad("bad_user", wrong))?;
                let target = || Target::User(user.as_str().into());
                Ok(Waiting(ask_all(node, |reply| shard::Command::Disconnect {
                    target: target(),
                    close,
                    reply,
                })))
            }
            (None, Some(connection)) => {
                let id: ConnectionId = connection.parse().map_err(|_| {
                    bad("bad_connection", "a connection's name has the form 0-12-345")
                })?;
                let Some(shard) = node.shards.get(usize::from(id.shard)) else {
                    return Ok(Waiting(Vec::new()));
                };
                let (reply, answer) = reply();
                let target = Target::Connection(id);
                shard.send(shard::Command::Disconnect { target, close, reply });
                Ok(Waiting(vec![answer]))
            }
            _ => Err(bad("bad_request", "say either a user or a connection")),
        }
    }
}

impl Membership {
    pub fn start(&self, node: &Node, subscribe: bool) -> Result<Waiting, Refused> {
        check_name(&self.user).map_err(|wrong| bad("bad_user", wrong))?;
        check_topic(&self.topic).map_err(|wrong| bad("bad_topic", wrong))?;
        let (user, topic) = (Name::from(self.user.as_str()), Name::from(self.topic.as_str()));
        Ok(Waiting(ask_all(node, |reply| {
            let (user, topic) = (user.clone(), topic.clone());
            if subscribe {
                shard::Command::Subscribe { user, topic, reply }
            } else {
                shard::Command::Unsubscribe { user, topic, reply }
            }
        })))
    }
}

/// Close a user's connections, or one. The clients are told not to come back.
#[utoipa::path(post, path = "/api/disconnect", tag = "members", request_body = Disconnect, responses(
    (status = 200, body = Counted), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
    (status = 503, body = ErrorBody)))]
pub(crate) async fn disconnect(
    State(node): State<Arc<Node>>,
    Body(disconnect): Body<Disconnect>,
) -> Result<Json<Counted>, Refused> {
    disconnect.start(&node)?.counted().await.map(Json)
}

/// Put all open connections of a user into a topic; answers how many are in it.
#[utoipa::path(post, path = "/api/subscribe", tag = "members", request_body = Membership, responses(
    (status = 200, body = Counted), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
    (status = 503, body = ErrorBody)))]
pub(crate) async fn subscribe(
    State(node): State<Arc<Node>>,
    Body(membership): Body<Membership>,
) -> Result<Json<Counted>, Refused> {
    membership.start(&node, true)?.counted().await.map(Json)
}

/// Take all open connections of a user out of a topic; answers how many left.
#[utoipa::path(post, path = "/api/unsubscribe", tag = "members", request_body = Membership, responses(
    (status = 200, body = Counted), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
    (status = 503, body = ErrorBody)))]
pub(crate) async fn unsubscribe(
    State(node): State<Arc<Node>>,
    Body(membership): Body<Membership>,
) -> Result<Json<Counted>, Refused> {
    membership.start(&node, false)?.counted().await.map(Json)
}
