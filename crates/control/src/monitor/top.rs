//! The top topics: the biggest, the busiest, and those that cost most.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use broker::Activity;
use model::Name;
use model::name::BROADCAST;
use serde::{Deserialize, Serialize};
use shard::{Command, Cost};
use tokio::sync::Mutex;
use tokio::time::Instant;
use utoipa::ToSchema;

use super::figure::Figure;
use crate::node::{Node, ShardRequestError};

/// Topics that a scan lists at least: the next caller may request more than this one.
const SCAN_MIN: usize = 20;

/// How long the result of a scan serves all callers.
const FRESH: Duration = Duration::from_secs(2);

/// The longest time over which messages are counted, in seconds.
const ACTIVITY_SECONDS_MAX: u64 = 60;

/// The figure that orders topics.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum By {
    /// The biggest: by connections in them.
    #[default]
    Members,
    /// The busiest: by messages in the recent window.
    Messages,
    /// The costliest: by messages times the members that they went to.
    Deliveries,
    /// The costliest: by bytes that went to members.
    Bytes,
}

/// A top topic.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct TopTopic {
    /// Its name; `@alice` is the user `alice`, `*` everyone.
    topic: String,
    /// Connections in it, on this node.
    members: u64,
    /// Messages over the last minute, or as much of it as the recent window reaches back.
    #[schema(value_type = f64)]
    messages_per_minute: Figure,
    /// Messages times the members that they went to, over the last minute. With `by=deliveries` and `by=bytes` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    deliveries_per_minute: Option<Figure>,
    /// Bytes that went to members, as their transports write messages. With `by=deliveries` and `by=bytes` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    bytes_per_minute: Option<Figure>,
}

/// The top topics as of the last scan.
#[derive(Default)]
pub(crate) struct Tops {
    biggest: Mutex<Option<Found>>,
    busiest: Mutex<Option<Found>>,
    by_deliveries: Mutex<Option<Found>>,
    by_bytes: Mutex<Option<Found>>,
}

/// The result of a scan. An error counts, too, so that not every caller waits for a silent shard.
struct Found {
    at: Instant,
    limit: usize,
    topics: Result<Vec<TopTopic>, ShardRequestError>,
}

impl Tops {
    /// Returns the top topics, from a scan that is at most 2 seconds old.
    pub async fn get(
        &self,
        node: &Node,
        by: By,
        limit: usize,
    ) -> Result<Vec<TopTopic>, ShardRequestError> {
        let cache = match by {
            By::Members => &self.biggest,
            By::Messages => &self.busiest,
            By::Deliveries => &self.by_deliveries,
            By::Bytes => &self.by_bytes,
        };
        // One scan runs at a time: later callers wait for its result.
        let mut found = cache.lock().await;
        let is_fresh = |found: &&Found| found.at.elapsed() < FRESH && found.limit >= limit;
        let mut topics = match found.as_ref().filter(is_fresh) {
            Some(fresh) => fresh.topics.clone()?,
            None => {
                let limit = limit.max(SCAN_MIN);
                let topics = match by {
                    By::Members => biggest(node, limit).await,
                    By::Messages => busiest(node, limit).await,
                    By::Deliveries => costliest(node, limit, |cost| cost.deliveries).await,
                    By::Bytes => costliest(node, limit, |cost| cost.bytes).await,
                };
                *found = Some(Found { at: Instant::now(), limit, topics: topics.clone() });
                topics?
            }
        };
        topics.truncate(limit);
        Ok(topics)
    }
}

/// Returns the biggest topics. Connections are spread over the shards by chance, so those of the node are among twice
/// as many of each shard; one that is left out is hardly bigger than the last.
async fn biggest(node: &Node, limit: usize) -> Result<Vec<TopTopic>, ShardRequestError> {
    let per_shard = 2 * limit;
    let lists =
        node.request_all(|reply| Command::Biggest { limit: per_shard, reply }).all().await?;
    // A list below its limit leaves out no topic that has members on its shard.
    let full_lists = lists.iter().filter(|list| list.len() >= per_shard).count();
    let mut sums: HashMap<Name, (u64, usize)> = HashMap::new();
    for list in lists {
        let is_full = list.len() >= per_shard;
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

/// Returns the topics with the most messages in the recent window, users' own and everyone's included.
async fn busiest(node: &Node, limit: usize) -> Result<Vec<TopTopic>, ShardRequestError> {
    let mut activity = node.broker.activity(ACTIVITY_SECONDS_MAX);
    let mut topics: Vec<_> = activity.topics.drain().map(|(_, topic)| topic).collect();
    topics.sort_unstable_by(|a, b| b.messages.cmp(&a.messages).then_with(|| a.topic.cmp(&b.topic)));
    topics.truncate(limit);
    let names = topics.iter().map(|topic| topic.topic.clone()).collect();
    let members = members_of(node, names).await?;
    let topics = topics
        .into_iter()
        .zip(members)
        .map(|(topic, members)| TopTopic::new(topic.topic, members, topic.messages, &activity));
    Ok(topics.collect())
}

/// Returns the topics that cost most in the last minute, users' own and everyone's included.
async fn costliest(
    node: &Node,
    limit: usize,
    order: fn(&Cost) -> u64,
) -> Result<Vec<TopTopic>, ShardRequestError> {
    let mut sums: HashMap<Name, Cost> = HashMap::new();
    let mut span_us = 0;
    for of_shard in node.request_all(|reply| Command::Costliest { reply }).all().await? {
        // All shards have counted since nearly the same moment.
        span_us = span_us.max(of_shard.span_us);
        for (topic, cost) in of_shard.topics {
            let sum = sums.entry(topic).or_default();
            sum.deliveries += cost.deliveries;
            sum.bytes += cost.bytes;
        }
    }
    let mut topics: Vec<_> = sums.into_iter().filter(|(_, cost)| order(cost) > 0).collect();
    topics.sort_unstable_by(|a, b| order(&b.1).cmp(&order(&a.1)).then_with(|| a.0.cmp(&b.0)));
    topics.truncate(limit);
    let members = members_of(node, topics.iter().map(|(topic, _)| topic.clone()).collect()).await?;
    let activity = node.broker.activity(ACTIVITY_SECONDS_MAX);
    let minutes = (span_us as f64 / 60e6).max(1.0 / 60.0);
    let topics = topics.into_iter().zip(members).map(|((topic, cost), members)| {
        let messages = activity.messages(node.broker.hash(&topic));
        let per_minute = |count: u64| Some(Figure::new(count as f64 / minutes));
        TopTopic {
            deliveries_per_minute: per_minute(cost.deliveries),
            bytes_per_minute: per_minute(cost.bytes),
            ..TopTopic::new(topic, members, messages, &activity)
        }
    });
    Ok(topics.collect())
}

/// Returns how many connections are in each of the topics; all are in everyone's. Sends all requests before it waits
/// for a reply.
async fn members_of(node: &Node, topics: Vec<Name>) -> Result<Vec<u64>, ShardRequestError> {
    let everyone = node.shared.connections.load(Ordering::Relaxed);
    let is_everyone: Vec<bool> = topics.iter().map(|topic| *topic == BROADCAST).collect();
    let request =
        |topic: Name| node.request_all(|reply| Command::Topic { topic: topic.clone(), reply });
    let waiting: Vec<_> = topics.into_iter().map(request).collect();
    let mut members = Vec::with_capacity(waiting.len());
    for (answers, is_everyone) in waiting.into_iter().zip(is_everyone) {
        let sum = answers.all().await?.into_iter().map(u64::from).sum();
        members.push(if is_everyone { everyone } else { sum });
    }
    Ok(members)
}

impl TopTopic {
    fn new(topic: Name, members: u64, messages: u64, activity: &Activity) -> Self {
        let seconds = (activity.span_us as f64 / 1e6).clamp(1.0, ACTIVITY_SECONDS_MAX as f64);
        let messages_per_minute = Figure::new(messages as f64 * 60.0 / seconds);
        TopTopic {
            topic: topic.into(),
            members,
            messages_per_minute,
            deliveries_per_minute: None,
            bytes_per_minute: None,
        }
    }
}
