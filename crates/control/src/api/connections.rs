//! Changes of open connections: disconnect, and subscribe or unsubscribe a user from the server's side.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use model::name::{check_name, check_topic};
use model::{CloseReason, ConnectionId, ErrorCode, NodeId};
use serde::{Deserialize, Serialize};
use shard::Target;
use utoipa::ToSchema;

use crate::http::{Body, Rejection};
use crate::node::{Node, ShardReplies, ShardRequestError};

/// The connections to close: a user's, or one.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Disconnect {
    /// All connections of this user.
    #[schema(example = "alice")]
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    /// This connection, by the name that /api/users gives.
    #[schema(example = "5f3a91c2-0-12-345")]
    #[serde(skip_serializing_if = "Option::is_none")]
    connection: Option<String>,
}

/// A user and a topic.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Membership {
    /// All connections of this user that are open now.
    #[schema(example = "alice")]
    user: String,
    /// The topic.
    #[schema(example = "room:1")]
    topic: String,
}

/// How many connections were closed.
#[derive(Serialize, ToSchema)]
pub(crate) struct Disconnected {
    /// Closed connections.
    #[schema(example = 2)]
    disconnected: u64,
}

/// How many of the user's connections are in the topic now, or have left it.
#[derive(Serialize, ToSchema)]
pub(crate) struct Subscribed {
    /// Connections.
    #[schema(example = 2)]
    connections: u64,
}

/// A command to which not all shards have replied.
pub(crate) enum PendingCount {
    /// To close connections.
    Disconnect(ShardReplies<u32>),
    /// To change the members of a topic.
    Membership(ShardReplies<u32>),
}

/// The sum of the shards' replies.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Done {
    /// The response to disconnect.
    Disconnected(Disconnected),
    /// The response to subscribe and unsubscribe.
    Subscribed(Subscribed),
}

impl Done {
    /// The field of the count in JSON.
    pub fn field(&self) -> &'static str {
        match self {
            Done::Disconnected(_) => "disconnected",
            Done::Subscribed(_) => "connections",
        }
    }

    /// Adds connections of other nodes.
    pub fn add(&mut self, connections: u64) {
        match self {
            Done::Disconnected(done) => done.disconnected += connections,
            Done::Subscribed(done) => done.connections += connections,
        }
    }
}

impl PendingCount {
    /// Waits for the shards.
    pub async fn done(self) -> Result<Done, ShardRequestError> {
        Ok(match self {
            PendingCount::Disconnect(replies) => {
                Done::Disconnected(Disconnected { disconnected: sum(replies).await? })
            }
            PendingCount::Membership(replies) => {
                Done::Subscribed(Subscribed { connections: sum(replies).await? })
            }
        })
    }
}

async fn sum(replies: ShardReplies<u32>) -> Result<u64, ShardRequestError> {
    Ok(replies.all().await?.into_iter().map(u64::from).sum())
}

impl Disconnect {
    /// Returns the node of the connection, if the request names one.
    pub fn owner(&self) -> Option<NodeId> {
        let id: ConnectionId = self.connection.as_deref()?.parse().ok()?;
        Some(id.node)
    }

    pub fn start(&self, node: &Node) -> Result<PendingCount, Rejection> {
        let close = CloseReason::ByApplication;
        let replies = match (&self.user, &self.connection) {
            (Some(user), None) => {
                check_name(user).map_err(|error| Rejection::new(ErrorCode::BadUser, error))?;
                node.request_all(|reply| {
                    let target = Target::User(user.as_str().into());
                    shard::Command::Disconnect { target, close, reply }
                })
            }
            (None, Some(connection)) => {
                let id: ConnectionId = connection.parse().map_err(|_| {
                    Rejection::new(
                        ErrorCode::BadConnection,
                        "the name of a connection has the form 5f3a91c2-0-12-345",
                    )
                })?;
                let shard = usize::from(id.shard);
                if shard < node.shards.count() {
                    node.request(shard, |reply| {
                        let target = Target::Connection(id);
                        shard::Command::Disconnect { target, close, reply }
                    })
                } else {
                    ShardReplies::none()
                }
            }
            _ => {
                return Err(Rejection::new(
                    ErrorCode::BadRequest,
                    "send either user or connection",
                ));
            }
        };
        Ok(PendingCount::Disconnect(replies))
    }
}

impl Membership {
    pub fn start(&self, node: &Node, subscribe: bool) -> Result<PendingCount, Rejection> {
        check_name(&self.user).map_err(|error| Rejection::new(ErrorCode::BadUser, error))?;
        check_topic(&self.topic).map_err(|error| Rejection::new(ErrorCode::BadTopic, error))?;
        Ok(PendingCount::Membership(node.request_all(|reply| {
            let (user, topic) = (self.user.as_str().into(), self.topic.as_str().into());
            if subscribe {
                shard::Command::Subscribe { user, topic, reply }
            } else {
                shard::Command::Unsubscribe { user, topic, reply }
            }
        })))
    }
}

/// Close a user's connections, or one. The server closes a WebSocket with 4000, ends a stream with the reason
/// `application`, and responds to a poll with 503: clients should not come back then. An `EventSource` and
/// `phoenix.js` do, by themselves.
#[utoipa::path(post, path = "/api/disconnect", tag = "members", request_body = Disconnect, responses(
    (status = 200, body = Disconnected)))]
pub(crate) async fn disconnect(
    State(node): State<Arc<Node>>,
    Body(disconnect): Body<Disconnect>,
) -> Result<Json<Done>, Rejection> {
    Ok(Json(disconnect.start(&node)?.done().await?))
}

/// Put all open connections of a user into a topic; the response says how many are in it.
#[utoipa::path(post, path = "/api/subscribe", tag = "members", request_body = Membership, responses(
    (status = 200, body = Subscribed)))]
pub(crate) async fn subscribe(
    State(node): State<Arc<Node>>,
    Body(membership): Body<Membership>,
) -> Result<Json<Done>, Rejection> {
    Ok(Json(membership.start(&node, true)?.done().await?))
}

/// Take all open connections of a user out of a topic; the response says how many left.
#[utoipa::path(post, path = "/api/unsubscribe", tag = "members", request_body = Membership, responses(
    (status = 200, body = Subscribed)))]
pub(crate) async fn unsubscribe(
    State(node): State<Arc<Node>>,
    Body(membership): Body<Membership>,
) -> Result<Json<Done>, Rejection> {
    Ok(Json(membership.start(&node, false)?.done().await?))
}
