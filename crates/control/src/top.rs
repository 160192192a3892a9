//! Which topics matter: the biggest and the busiest, who is in one, and what was published last.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use broker::{Activity, Latest};
use serde::{Deserialize, Serialize};
use shard::Command;
use tokio::sync::Mutex;
use tokio::time::Instant;
use utoipa::{IntoParams, ToSchema};
use wire::Name;
use wire::message::BROADCAST;

use crate::Node;
use crate::error::{Refused, bad};
use crate::history::Figure;
use crate::inspect::{Asked, Connection, path};
use crate::live::Monitor;
use crate::message::{self, Shown};

/// Topics or messages in an answer, if it isn't said.
const ROWS: usize = 20;

/// Topics or messages in an answer at most.
const ROWS_MAX: usize = 100;

/// Members in an answer, if it isn't said.
const MEMBERS: usize = 100;

/// Members in an answer at most.
const MEMBERS_MAX: usize = 1_000;

/// How long the top topics are good for everyone who asks.
const FRESH: Duration = Duration::from_secs(2);

/// Messages are counted over so long at most.
const ACTIVITY_SECONDS_MAX: u64 = 60;

/// By what topics are on top.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum By {
    /// The biggest: by connections in them.
    #[default]
    Members,
    /// The busiest: by messages in the recent window.
    Messages,
}

/// Which topics, and how many.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopQuery {
    /// `members` for the biggest, without users' own (as if it isn't said), or `messages` for the
    /// busiest.
    #[serde(default)]
    #[param(inline)]
    by: By,
    /// At most so many, up to 100; 20 if it isn't said.
    limit: Option<usize>,
}

/// The topics on top.
#[derive(Serialize, ToSchema)]
pub(crate) struct Top {
    by: By,
    topics: Vec<TopTopic>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct TopTopic {
    /// Its name; `@alice` is the user `alice`, `*` everyone.
    topic: String,
    /// Connections in it, on this node.
    members: u64,
    /// Over the last minute, or as much of it as the recent window reaches back.
    #[schema(value_type = f64)]
    messages_per_minute: Figure,
}

/// The topics on top as they were when somebody last asked.
#[derive(Default)]
pub(crate) struct Tops {
    biggest: Mutex<Option<Found>>,
    busiest: Mutex<Option<Found>>,
}

/// What the shards answered; a shard that is silent is not asked again by each who waits.
struct Found {
    at: Instant,
    limit: usize,
    topics: Result<Vec<TopTopic>, Refused>,
}

/// The topics with the most members, or with the most messages in the recent window. The answer
/// may be 2 seconds old.
#[utoipa::path(get, path = "/api/top", tag = "inspect", params(TopQuery), responses(
    (status = 200, body = Top)))]
pub(crate) async fn top(
    State(monitor): State<Arc<Monitor>>,
    Asked(query): Asked<TopQuery>,
) -> Result<Json<Top>, Refused> {
    let limit = limited(query.limit, ROWS, ROWS_MAX)?;
    let tops = &monitor.tops;
    let cache = if query.by == By::Members { &tops.biggest } else { &tops.busiest };
    // One scan at a time: who comes meanwhile waits for what it finds.
    let mut found = cache.lock().await;
    let is_fresh = |found: &&Found| found.at.elapsed() < FRESH && found.limit >= limit;
    let mut topics = match found.as_ref().filter(is_fresh) {
        Some(fresh) => fresh.topics.clone()?,
        None => {
            let limit = limit.max(ROWS);
            let topics = match query.by {
                By::Members => biggest(&monitor.node, limit).await,
                By::Messages => busiest(&monitor.node, limit).await,
            };
            *found = Some(Found { at: Instant::now(), limit, topics: topics.clone() });
            topics?
        }
    };
    topics.truncate(limit);
    Ok(Json(Top { by: query.by, topics }))
}

/// What a `limit` comes to; refused when it is 0 or too large.
pub(crate) fn limited(asked: Option<usize>, usual: usize, max: usize) -> Result<usize, Refused> {
    let limit = asked.unwrap_or(usual);
    if (1..=max).contains(&limit) {
        return Ok(limit);
    }
    Err(bad("bad_limit", format!("limit is from 1 to {max}")))
}

/// The biggest topics. Connections are spread over the shards by chance, so those of the node are
/// among twice as many of each shard; one that is left out is hardly bigger than the last.
async fn biggest(node: &Node, limit: usize) -> Result<Vec<TopTopic>, Refused> {
    let asked = 2 * limit;
    let lists = node.ask_all(|reply| Command::Biggest { limit: asked, reply }).all().await?;
    // A list that is not full leaves out no topic that has members on its shard.
    let full_lists = lists.iter().filter(|list| list.len() >= asked).count();
    let mut sums: HashMap<Name, (u64, usize)> = HashMap::new();
    for list in lists {
        let is_full = list.len() >= asked;
        for info in list {
            let (members, in_full) = sums.entry(info.topic).or_default();
            *members += u64::from(info.members);
            *in_full += usize::from(is_full);
        }
    }
    let mut topics: Vec<_> = sums.into_iter().collect();
    let by_members = |a: &(Name, (u64, usize)), b: &(Name, (u64, usize))| {
        b.1.0.cmp(&a.1.0).then_with(|| a.0.cmp(&b.0))
    };
    topics.sort_unstable_by(by_members);
    topics.truncate(limit);
    let is_partial = |(_, (_, in_full)): &&mut (Name, (u64, usize))| *in_full < full_lists;
    let partial: Vec<_> = topics.iter_mut().filter(is_partial).collect();
    let names = partial.iter().map(|(topic, _)| topic.clone()).collect();
    for ((_, (members, _)), counted) in partial.into_iter().zip(members_of(node, names).await?) {
        *members = counted;
    }
    topics.sort_unstable_by(by_members);
    let activity = node.broker.activity(ACTIVITY_SECONDS_MAX);
    let topics = topics.into_iter().map(|(topic, (members, _))| {
        let messages = activity.messages(node.broker.hash(&topic));
        TopTopic::new(topic, members, messages, &activity)
    });
    Ok(topics.collect())
}

/// The topics with the most messages in the recent window, users' own and everyone's included.
async fn busiest(node: &Node, limit: usize) -> Result<Vec<TopTopic>, Refused> {
    let mut activity = node.broker.activity(ACTIVITY_SECONDS_MAX);
    let mut topics: Vec<_> = activity.topics.drain().map(|(_, topic)| topic).collect();
    topics.sort_unstable_by(|a, b| b.messages.cmp(&a.messages).then_with(|| a.topic.cmp(&b.topic)));
    topics.truncate(limit);
    let names = topics.iter().map(|topic| topic.topic.clone()).collect();
    let members = members_of(node, names).await?;
    let topics = topics.into_iter().zip(members).map(|(topic, members)| {
        let members = match topic.topic == BROADCAST {
            true => node.shared.connections.load(Ordering::Relaxed),
            false => members,
        };
        TopTopic::new(topic.topic, members, topic.messages, &activity)
    });
    Ok(topics.collect())
}

/// How many connections are in each of the topics. All are asked for before any is waited for.
async fn members_of(node: &Node, topics: Vec<Name>) -> Result<Vec<u64>, Refused> {
    let ask = |topic: Name| node.ask_all(|reply| Command::Topic { topic: topic.clone(), reply });
    let waiting: Vec<_> = topics.into_iter().map(ask).collect();
    let mut members = Vec::with_capacity(waiting.len());
    for answers in waiting {
        members.push(answers.all().await?.into_iter().map(u64::from).sum());
    }
    Ok(members)
}

impl TopTopic {
    fn new(topic: Name, members: u64, messages: u64, activity: &Activity) -> Self {
        let seconds = (activity.span_us as f64 / 1e6).clamp(1.0, ACTIVITY_SECONDS_MAX as f64);
        let messages_per_minute = Figure::new(messages as f64 * 60.0 / seconds);
        TopTopic { topic: topic.into(), members, messages_per_minute }
    }
}

/// How many connections to describe.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct MembersQuery {
    /// At most so many, up to 1,000; 100 if it isn't said.
    limit: Option<usize>,
}

/// A topic and some of its members.
#[derive(Serialize, ToSchema)]
pub(crate) struct TopicMembers {
    topic: String,
    /// All connections in it, on this node.
    members: u64,
    /// Some of them, in no order.
    connections: Vec<Connection>,
}

/// A topic's members; none when there is no such topic.
#[utoipa::path(get, path = "/api/topics/{topic}/members", tag = "inspect",
    params(("topic" = String, Path, description = "The topic, percent-encoded"), MembersQuery),
    responses((status = 200, body = TopicMembers)))]
pub(crate) async fn members(
    State(node): State<Arc<Node>>,
    name: Result<Path<String>, PathRejection>,
    Asked(query): Asked<MembersQuery>,
) -> Result<Json<TopicMembers>, Refused> {
    let topic = path(name)?;
    let (members, connections) = some_members(&node, Name::from(&topic), &query).await?;
    Ok(Json(TopicMembers { topic, members, connections }))
}

/// How many connections are in a topic, and some of them.
pub(crate) async fn some_members(
    node: &Node,
    topic: Name,
    query: &MembersQuery,
) -> Result<(u64, Vec<Connection>), Refused> {
    let limit = limited(query.limit, MEMBERS, MEMBERS_MAX)?;
    let answers =
        node.ask_all(|reply| Command::Members { topic: topic.clone(), limit, reply }).all().await?;
    let members = answers.iter().map(|(members, _)| u64::from(*members)).sum();
    let connections = answers.into_iter().flat_map(|(_, connections)| connections).take(limit);
    Ok((members, connections.map(Connection::from).collect()))
}

/// Which messages.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct MessagesQuery {
    /// Only those of this topic: `@alice` for what went to a user, `*` for broadcasts.
    topic: Option<String>,
    /// At most so many, up to 100; 20 if it isn't said.
    limit: Option<usize>,
}

/// The newest messages.
#[derive(Serialize, ToSchema)]
struct Messages<'a> {
    /// The newest first.
    messages: Vec<Shown<'a>>,
    /// False when the recent window may hold more of them though the limit is not reached:
    /// looking ends after the newest 100,000 messages of all topics, and listing at 4 MiB.
    complete: bool,
}

/// The newest messages that the recent window holds, of a topic or of all. Fewer, with `complete`
/// false, when they hold over 4 MiB or are not among the newest 100,000 of all topics.
#[utoipa::path(get, path = "/api/messages", tag = "inspect", params(MessagesQuery), responses(
    (status = 200, body = Messages)))]
pub(crate) async fn messages(
    State(node): State<Arc<Node>>,
    Asked(query): Asked<MessagesQuery>,
) -> Result<Response, Refused> {
    let limit = limited(query.limit, ROWS, ROWS_MAX)?;
    let topic = query.topic.as_deref().map(|topic| (node.broker.hash(topic), topic));
    let Latest { messages: mut latest, complete } = node.broker.latest(topic, limit);
    let fits = message::fits(&latest);
    let complete = complete && fits == latest.len();
    latest.truncate(fits);
    let zero_ms = message::zero_ms(&node);
    let messages = latest.iter().map(|message| Shown::new(message, zero_ms)).collect();
    Ok(Json(Messages { messages, complete }).into_response())
}
