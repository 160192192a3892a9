//! Topics that have members.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use model::Name;
use serde::{Deserialize, Serialize};
use shard::Command;
use utoipa::{IntoParams, ToSchema};

use crate::http::{QueryParams, Rejection, checked_limit, path_name};
use crate::node::Node;

/// Topics in one page, by default.
const TOPICS: usize = 100;

/// Topics in one page at most.
const TOPICS_MAX: usize = 1_000;

/// Selects topics.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopicsQuery {
    /// Only names that begin with this; `@` for users' personal topics.
    #[serde(default)]
    prefix: String,
    /// Only names after this one: the `next` of the page before.
    after: Option<String>,
    /// How many at most: up to 1,000, by default 100.
    limit: Option<usize>,
}

/// A page of topics, sorted by name.
#[derive(Serialize, ToSchema)]
pub(crate) struct Topics {
    topics: Vec<Topic>,
    /// The `after` of the next page; null on the last page.
    next: Option<String>,
}

/// A topic.
#[derive(Serialize, ToSchema)]
pub(crate) struct Topic {
    topic: String,
    /// Connections in it.
    members: u64,
}

/// Topics that have members.
#[utoipa::path(get, path = "/api/topics", tag = "inspect", params(TopicsQuery), responses(
    (status = 200, body = Topics)))]
pub(crate) async fn topics(
    State(node): State<Arc<Node>>,
    QueryParams(query): QueryParams<TopicsQuery>,
) -> Result<Json<Topics>, Rejection> {
    let limit = checked_limit(query.limit, TOPICS, TOPICS_MAX)?;
    let replies = node.request_all(|reply| Command::Topics {
        prefix: query.prefix.clone(),
        after: query.after.clone(),
        // One more than the page shows whether there is a next page.
        limit: limit + 1,
        reply,
    });
    let mut all: BTreeMap<Name, u64> = BTreeMap::new();
    for info in replies.all().await?.into_iter().flatten() {
        *all.entry(info.topic).or_default() += u64::from(info.members);
    }
    let more = all.len() > limit;
    let topics: Vec<Topic> = all
        .into_iter()
        .take(limit)
        .map(|(topic, members)| Topic { topic: topic.into(), members })
        .collect();
    let next = topics.last().filter(|_| more).map(|last| last.topic.clone());
    Ok(Json(Topics { topics, next }))
}

/// How many members a topic has; 0 if the topic does not exist.
#[utoipa::path(get, path = "/api/topics/{topic}", tag = "inspect",
    params(("topic" = String, Path, description = "The topic, percent-encoded")), responses(
    (status = 200, body = Topic)))]
pub(crate) async fn topic(
    State(node): State<Arc<Node>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Topic>, Rejection> {
    let topic = path_name(name)?;
    let replies = node.request_all(|reply| Command::Topic { topic: topic.as_str().into(), reply });
    let members = replies.all().await?.into_iter().map(u64::from).sum();
    Ok(Json(Topic { topic, members }))
}
