//! How far users have acknowledged, for applications that do it on their behalf.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use broker::{AcknowledgeError, Kept};
use serde::{Deserialize, Serialize};
use shard::Command;
use utoipa::{IntoParams, ToSchema};
use wire::Id;
use wire::message::{PERSONAL, check_name, check_topic, personal};

use crate::Node;
use crate::api::Body;
use crate::error::{ErrorBody, Refused, bad};
use crate::inspect::{Asked, path};

/// What a user has.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Acknowledgement {
    #[schema(example = "alice")]
    user: String,
    /// The topic; the user's own (`@alice`) if it isn't said.
    #[schema(example = "jobs")]
    topic: Option<String>,
    /// The id of a message: it and all before it are acknowledged.
    #[schema(example = "5f3a91c2:1042")]
    id: String,
}

/// How far a user has acknowledged a topic's messages.
#[derive(Serialize, ToSchema)]
pub(crate) struct Cursor {
    #[schema(example = "alice")]
    user: String,
    #[schema(example = "@alice")]
    topic: String,
    /// Everything up to this is acknowledged, but for what was given up; null while nothing is.
    #[schema(example = "5f3a91c2:1042")]
    acknowledged: Option<String>,
    /// The last message that was given up, which only happens where the configuration has a
    /// dead_letter topic or a limit of tries: it was not acknowledged in all its deliveries, went to
    /// the dead-letter topic or was dropped, and is not delivered again. Null while none was.
    #[schema(example = "5f3a91c2:1040")]
    given_up: Option<String>,
}

/// Acknowledge messages on a user's behalf: they are not delivered to the user again. It never
/// goes back: an id that is older than what is acknowledged changes nothing.
#[utoipa::path(post, path = "/api/ack", tag = "history", request_body = Acknowledgement, responses(
    (status = 200, body = Cursor),
    (status = 409, body = ErrorBody,
        description = "The id is of another numbering (epoch_changed, with the epoch of now)")))]
pub(crate) async fn acknowledge(
    State(node): State<Arc<Node>>,
    Body(asked): Body<Acknowledgement>,
) -> Result<Json<Cursor>, Refused> {
    let topic = topic(&asked.user, asked.topic)?;
    let id: Id = asked.id.parse().map_err(|wrong| bad("bad_id", format!("{wrong}")))?;
    let kept = node.broker.kept();
    let offset = kept.acknowledge(&asked.user, &topic, id).map_err(|error| match error {
        AcknowledgeError::Epoch => Refused::epoch(kept.epoch()),
        error => bad(error.code(), error.to_string()),
    })?;
    for shard in 0..node.shards.count() {
        // The user's open connections have room for more.
        let (user, topic) = (asked.user.as_str().into(), topic.as_str().into());
        node.shards.send(shard, Command::Acknowledged { user, topic, offset });
    }
    Ok(Json(Cursor::new(kept, asked.user, topic)))
}

/// Which topic.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct CursorQuery {
    /// The topic; the user's own (`@alice`) if it isn't said.
    #[param(example = "jobs")]
    topic: Option<String>,
}

/// How far a user has acknowledged a topic's messages.
#[utoipa::path(get, path = "/api/cursors/{user}", tag = "history",
    params(("user" = String, Path, description = "The user, percent-encoded"), CursorQuery),
    responses((status = 200, body = Cursor)))]
pub(crate) async fn cursor(
    State(node): State<Arc<Node>>,
    name: Result<Path<String>, PathRejection>,
    Asked(query): Asked<CursorQuery>,
) -> Result<Json<Cursor>, Refused> {
    let user = path(name)?;
    let topic = topic(&user, query.topic)?;
    let kept = node.broker.kept();
    if kept.rule(&topic).is_none_or(|keep| keep.acknowledge.is_none()) {
        let error = AcknowledgeError::NotAcknowledged;
        return Err(bad(error.code(), error.to_string()));
    }
    Ok(Json(Cursor::new(kept, user, topic)))
}

impl Cursor {
    fn new(kept: &Kept, user: String, topic: String) -> Self {
        let id = |offset| Id { epoch: kept.epoch(), offset }.to_string();
        let progress = kept.progress(&user, &topic);
        let (acknowledged, given_up) = (progress.acknowledged.map(id), progress.given_up.map(id));
        Cursor { user, topic, acknowledged, given_up }
    }
}

/// A topic that the user may acknowledge: any but another user's own.
fn topic(user: &str, asked: Option<String>) -> Result<String, Refused> {
    check_name(user).map_err(|wrong| bad("bad_user", wrong))?;
    let own = personal(user);
    match asked {
        None => Ok(own.into()),
        Some(topic) if topic == own => Ok(topic),
        Some(topic) if topic.starts_with(PERSONAL) => Err(bad(
            "bad_topic",
            "this is another user's own topic, which only that user acknowledges",
        )),
        Some(topic) => check_topic(&topic).map_err(|wrong| bad("bad_topic", wrong)).map(|()| topic),
    }
}
