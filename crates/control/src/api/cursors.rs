//! Cursors of users, and acknowledgements by applications on their behalf.

use std::sync::Arc;

use ::history::AcknowledgeError;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use model::name::{PERSONAL, check_name, check_topic, personal};
use model::{CodedError, ErrorCode, Position};
use serde::{Deserialize, Serialize};
use shard::Command;
use utoipa::{IntoParams, ToSchema};

use crate::http::{Body, ErrorBody, QueryParams, Rejection, path_name};
use crate::node::{History, Node};

/// The user whose messages are acknowledged, and the last of them.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Acknowledgement {
    #[schema(example = "alice")]
    user: String,
    /// The topic; the user's own (`@alice`) by default.
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
    /// All messages up to this are acknowledged or were given up; null while none is acknowledged.
    #[schema(example = "5f3a91c2:1042")]
    acknowledged: Option<String>,
    /// The last message that was given up: it was not acknowledged in all its deliveries, went to the dead-letter
    /// topic or was dropped, and is not delivered again. This requires a dead_letter topic or a limit of deliveries
    /// in the configuration. Null while none was.
    #[schema(example = "5f3a91c2:1040")]
    given_up: Option<String>,
}

/// Acknowledge messages on a user's behalf: they are not delivered to the user again. A cursor never goes back: an id
/// before it changes nothing.
#[utoipa::path(post, path = "/api/ack", tag = "history", request_body = Acknowledgement, responses(
    (status = 200, body = Cursor),
    (status = 409, body = ErrorBody,
        description = "The id has another epoch than the topic (epoch_changed, with the current epoch)")))]
pub(crate) async fn acknowledge(
    State(node): State<Arc<Node>>,
    Body(body): Body<Acknowledgement>,
) -> Result<Json<Cursor>, Rejection> {
    let topic = topic(&body.user, body.topic)?;
    let id = body.id.parse::<Position>();
    let id = id.map_err(|error| Rejection::new(ErrorCode::BadId, error.to_string()))?;
    let history = node.history();
    let offset = history.acknowledge(&body.user, &topic, id).map_err(|error| match error {
        AcknowledgeError::Epoch => Rejection::epoch_changed(history.epoch()),
        error => CodedError::from(error).into(),
    })?;
    // With a history in PostgreSQL, what this node has not delivered yet may be acknowledged.
    let offset = offset.min(history.top().offset);
    for shard in 0..node.shards.count() {
        // The user's open connections can get more messages now.
        let (user, topic) = (body.user.as_str().into(), topic.as_str().into());
        node.shards.send(shard, Command::Acknowledged { user, topic, offset });
    }
    Ok(Json(Cursor::new(history, body.user, topic)))
}

/// Selects a topic.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct CursorQuery {
    /// The topic; the user's own (`@alice`) by default.
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
    QueryParams(query): QueryParams<CursorQuery>,
) -> Result<Json<Cursor>, Rejection> {
    let user = path_name(name)?;
    let topic = topic(&user, query.topic)?;
    let history = node.history();
    if history.rule(&topic).is_none_or(|rule| rule.acknowledge.is_none()) {
        return Err(CodedError::from(AcknowledgeError::NotAcknowledged).into());
    }
    Ok(Json(Cursor::new(history, user, topic)))
}

impl Cursor {
    fn new(history: &dyn History, user: String, topic: String) -> Self {
        let id = |offset| Position { epoch: history.epoch(), offset }.to_string();
        let progress = history.progress(&user, &topic);
        let (acknowledged, given_up) = (progress.acknowledged.map(id), progress.given_up.map(id));
        Cursor { user, topic, acknowledged, given_up }
    }
}

/// Checks and returns a topic that the user may acknowledge: any but another user's own.
fn topic(user: &str, topic: Option<String>) -> Result<String, Rejection> {
    check_name(user).map_err(|error| Rejection::new(ErrorCode::BadUser, error))?;
    let own = personal(user);
    match topic {
        None => Ok(own.into()),
        Some(topic) if topic == own => Ok(topic),
        Some(topic) if topic.starts_with(PERSONAL) => Err(Rejection::new(
            ErrorCode::BadTopic,
            "this is another user's own topic: only that user can acknowledge it",
        )),
        Some(topic) => check_topic(&topic)
            .map_err(|error| Rejection::new(ErrorCode::BadTopic, error))
            .map(|()| topic),
    }
}
