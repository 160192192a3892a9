//! The users in a topic.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use model::ErrorCode;
use presence::{List, PresenceReply, Snapshot};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::timeout;
use utoipa::ToSchema;

use crate::http::{ErrorBody, Rejection, path_name};
use crate::node::{Node, SHARD_TIMEOUT, ShardRequestError};

/// The users in a topic.
#[derive(Serialize, ToSchema)]
pub(crate) struct Presence {
    topic: String,
    /// Users with at least one connection in it.
    users: usize,
    /// Connections of all of them.
    connections: usize,
    /// By user, `{"metas":[{"phx_ref":"…",…}]}` with a meta for each connection, as members last got
    /// it; null while there are more users than presence.users_max, or their list is larger
    /// than presence.list_bytes_max.
    #[schema(value_type = Option<Object>)]
    presences: Option<Box<RawValue>>,
}

/// The users in a topic with presence.
#[utoipa::path(get, path = "/api/presence/{topic}", tag = "inspect",
    params(("topic" = String, Path, description = "The topic, percent-encoded")), responses(
    (status = 200, body = Presence),
    (status = 404, body = ErrorBody, description = "Presence is off for the topic")))]
pub(crate) async fn presence(
    State(node): State<Arc<Node>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Presence>, Rejection> {
    let topic = path_name(name)?;
    let has_presence = node.live().policy.rules().presence(&topic);
    if !has_presence {
        let message = "presence is off for this topic: the configuration has no [[topics]] table \
                       for it with presence = true";
        return Err(Rejection::new(ErrorCode::NoPresence, message));
    }
    let List { counts, users } = list(&*node.shared.presence, &topic).await?;
    let presences = users.map(Snapshot::into_json);
    let presences = presences.and_then(|json| RawValue::from_string(json).ok());
    let (users, connections) = (counts.users, counts.connections);
    Ok(Json(Presence { topic, users, connections, presences }))
}

/// Returns the users in a topic, or an error if no reply comes within [`SHARD_TIMEOUT`].
pub(crate) async fn list(
    presence: &dyn presence::Presence,
    topic: &str,
) -> Result<List, ShardRequestError> {
    let (sender, receiver) = oneshot::channel();
    let later = Box::new(move |list| {
        // Sending fails if the caller has gone away.
        let _ = sender.send(list);
    });
    match presence.list(topic, None, later) {
        PresenceReply::Now(list) => Ok(list),
        PresenceReply::Later => {
            let list =
                timeout(SHARD_TIMEOUT, receiver).await.map_err(|_| ShardRequestError::Timeout)?;
            list.map_err(|_| ShardRequestError::Ended)
        }
    }
}
