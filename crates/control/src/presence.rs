//! Who is in a topic.

use std::sync::{Arc, PoisonError};

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::Node;
use crate::error::{ErrorBody, Refused, bad, refused};

/// Who is in a topic.
#[derive(Serialize, ToSchema)]
pub(crate) struct Presence {
    topic: String,
    /// Users with at least one connection in it.
    users: usize,
    /// Connections of all of them.
    connections: usize,
    /// By user, `{"metas":[{"phx_ref":"…",…}]}` with a meta for each connection, as members were
    /// last told; null while there are more users than presence.users_max, or their list is larger
    /// than presence.list_bytes_max.
    #[schema(value_type = Option<Object>)]
    presences: Option<Box<RawValue>>,
}

/// Who is in a topic with presence.
#[utoipa::path(get, path = "/api/presence/{topic}", tag = "inspect",
    params(("topic" = String, Path, description = "The topic, percent-encoded")), responses(
    (status = 200, body = Presence),
    (status = 404, body = ErrorBody, description = "Presence is off for the topic")))]
pub(crate) async fn presence(
    State(node): State<Arc<Node>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Presence>, Refused> {
    let Path(topic) = name.map_err(|error| bad("bad_path", error.body_text()))?;
    let on = node.live.read().unwrap_or_else(PoisonError::into_inner).rules.presence(&topic);
    if !on {
        let message = "presence is off for this topic: the configuration has no [[topics]] table \
                       for it with presence = true";
        return Err(refused(StatusCode::NOT_FOUND, "no_presence", message));
    }
    let registry = node.shared.presence.lock().unwrap_or_else(PoisonError::into_inner);
    let counts = registry.counts(&topic);
    let list = counts.listed.then(|| registry.state(&topic));
    // The text is copied and looked through without the lock, which members need to come and go.
    drop(registry);
    let presences = list.and_then(|list| RawValue::from_string((*list).into()).ok());
    let (users, connections) = (counts.users, counts.connections);
    Ok(Json(Presence { topic, users, connections, presences }))
}
