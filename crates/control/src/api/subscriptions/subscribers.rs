//! Durable subscribers of a topic, connected or not: the table of subscriptions by topic.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use model::name::personal;
use model::{ErrorCode, Name};
use serde::{Deserialize, Serialize};
use shard::Command;
use utoipa::{IntoParams, ToSchema};

use crate::http::{ErrorBody, QueryParams, Rejection, checked_limit, path_name};
use crate::node::Node;

/// Subscribers in one page, by default.
const SUBSCRIBERS: usize = 100;

/// Subscribers in one page at most.
const SUBSCRIBERS_MAX: usize = 10_000;

/// Selects subscribers.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct SubscribersQuery {
    /// Only names after this one: the `next` of the page before.
    #[serde(default)]
    #[param(example = "alice")]
    after: String,
    /// How many at most: up to 10,000, by default 100.
    limit: Option<usize>,
}

/// A page of a topic's subscribers, sorted by name.
#[derive(Serialize, ToSchema)]
pub(crate) struct Subscribers {
    #[schema(example = "feed:alice")]
    topic: String,
    /// All of them, in this page or not.
    #[schema(example = 20_291)]
    count: u64,
    subscribers: Vec<Subscriber>,
    /// The `after` of the next page; null on the last page.
    #[schema(example = "carol")]
    next: Option<String>,
}

/// A subscriber.
#[derive(Serialize, ToSchema)]
pub(crate) struct Subscriber {
    #[schema(example = "bob")]
    user: String,
    /// Whether the user has an open connection to this node.
    connected: bool,
}

/// The users who enter the topic on each connect by their durable subscriptions, connected or not. (The members of
/// now: /api/topics/{topic}/members.)
#[utoipa::path(get, path = "/api/topics/{topic}/subscribers", tag = "subscriptions",
    params(("topic" = String, Path, description = "The topic, percent-encoded"), SubscribersQuery),
    responses((status = 200, body = Subscribers),
    (status = 400, body = ErrorBody,
        description = "The node does not index followers by topic: subscriptions.by_topic is false (not_by_topic)")))]
pub(crate) async fn subscribers(
    State(node): State<Arc<Node>>,
    name: Result<Path<String>, PathRejection>,
    QueryParams(query): QueryParams<SubscribersQuery>,
) -> Result<Json<Subscribers>, Rejection> {
    let topic = path_name(name)?;
    let limit = checked_limit(query.limit, SUBSCRIBERS, SUBSCRIBERS_MAX)?;
    let mut search = node.subscriptions.search(&topic, &query.after, limit).ok_or_else(|| {
        let message = "this node does not index followers by topic: set subscriptions.by_topic = \
                       true (THRONG_SUBSCRIPTIONS_BY_TOPIC), and restart it";
        Rejection::new(ErrorCode::NotByTopic, message)
    })?;
    while search.step() {
        tokio::task::yield_now().await;
    }
    let page = search.page();
    let next = page.users.last().filter(|_| page.more).map(|last| last.to_string());
    let connected = connected(&node, &page.users).await?;
    let subscribers = page.users.into_iter().zip(connected);
    let subscribers =
        subscribers.map(|(user, connected)| Subscriber { user: user.into(), connected }).collect();
    Ok(Json(Subscribers { topic, count: page.count, subscribers, next }))
}

/// Returns which of these users have an open connection.
async fn connected(node: &Node, users: &[Name]) -> Result<Vec<bool>, Rejection> {
    if users.is_empty() {
        return Ok(Vec::new());
    }
    let topics: Arc<[Name]> = users.iter().map(|user| personal(user)).collect();
    let replies = node.request_all(|reply| Command::HaveMembers { topics: topics.clone(), reply });
    let mut connected = vec![false; users.len()];
    for response in replies.all().await? {
        for (connected, here) in connected.iter_mut().zip(response) {
            *connected |= here;
        }
    }
    Ok(connected)
}
