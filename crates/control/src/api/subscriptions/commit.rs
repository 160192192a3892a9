//! Carries out planned changes of subscriptions: in the store, in memory, and on open connections.

use std::sync::Arc;

use ::subscriptions::{Change, Edited};
use model::name::personal;
use model::{ErrorCode, Name};
use shard::Command;
use tokio::sync::oneshot;

use crate::http::Rejection;
use crate::node::{Node, ShardReplies, UserLock};

/// Users whose connections the shards count at a time.
const USERS_AT_ONCE: usize = 256;

/// A user's edit, and how many open connections it reached, if that is known.
type Committed = ((Name, Edited), Option<u64>);

/// Stores a planned change, applies it, and makes connections enter and leave.
pub(super) async fn commit(
    node: Arc<Node>,
    change: Change,
    edits: Vec<(Name, Edited)>,
    lock: UserLock,
) -> Result<Vec<Committed>, Rejection> {
    check_capacity(&node, &edits)?;
    let task = tokio::spawn(async move {
        store(&node, &change).await?;
        node.subscriptions.apply(&change);
        let sent = send_all(&node, &edits).await;
        // The commands of the next change come after these, in the shards' mailboxes.
        drop(lock);
        let mut committed = Vec::with_capacity(edits.len());
        for (edit, sent) in edits.into_iter().zip(sent) {
            committed.push((edit, sent.connections().await));
        }
        Ok(committed)
    });
    task.await.unwrap_or_else(|_| Err(Rejection::going_down()))
}

/// Rejects a change that adds more than it removes if there is no capacity for the difference. Other changes that are
/// under way are not counted.
fn check_capacity(node: &Node, edits: &[(Name, Edited)]) -> Result<(), Rejection> {
    let count =
        |of: fn(&Edited) -> usize| edits.iter().map(|(_, edited)| of(edited)).sum::<usize>();
    let (added, removed) =
        (count(|edited| edited.added.len()), count(|edited| edited.removed.len()));
    let more = u64::try_from(added.saturating_sub(removed)).unwrap_or(u64::MAX);
    let max = node.live().subscriptions_max;
    if max == 0 || more == 0 || node.subscriptions.edges().saturating_add(more) <= max {
        return Ok(());
    }
    Err(full(max, more))
}

/// Waits until the change is on disk, if there is a store.
async fn store(node: &Node, change: &Change) -> Result<(), Rejection> {
    let Some(store) = node.keep_subscriptions.as_ref().filter(|_| !change.is_empty()) else {
        return Ok(());
    };
    let unavailable = |code, error: String| {
        let message = format!("the subscriptions are unchanged: {error}");
        Rejection::new(code, message)
    };
    let (done, result) = oneshot::channel();
    let done = Box::new(move |result| {
        // The waiting task is gone only when the process ends.
        let _ = done.send(result);
    });
    store.save(change.clone(), done).map_err(|error| unavailable(ErrorCode::StoreBusy, error))?;
    let result = result.await.map_err(|_| Rejection::going_down())?;
    result.map_err(|error| unavailable(ErrorCode::StoreFailed, error))
}

/// The commands about one user that are on their way.
#[derive(Default)]
struct Sent {
    connections: u64,
    /// A shard did not reply how many it has.
    is_unknown: bool,
    replies: Vec<ShardReplies<u32>>,
}

impl Sent {
    /// Returns how many connections they reach, or `None` if that is not known.
    async fn connections(self) -> Option<u64> {
        let mut is_known = !self.is_unknown;
        for response in self.replies {
            is_known &= response.all().await.is_ok();
        }
        is_known.then_some(self.connections)
    }
}

/// Makes the open connections of users enter and leave topics that the table has already. Returns when the shards have
/// replied.
pub(super) async fn enter_and_leave(node: &Node, edits: &[(Name, Edited)]) {
    for sent in send_all(node, edits).await {
        sent.connections().await;
    }
}

/// The rejection of a change that would add `more` subscriptions in all, above the limit `max`.
pub(super) fn full(max: u64, more: u64) -> Rejection {
    let message = format!(
        "the node may have {max} subscriptions (history.subscriptions_max), and {more} more would \
         exceed that: nothing was changed"
    );
    Rejection::new(ErrorCode::SubscriptionsFull, message)
}

/// Makes the open connections of users enter and leave topics, on the shards where they have any. Later connections
/// find the table changed. A shard that doesn't reply gets all commands.
async fn send_all(node: &Node, edits: &[(Name, Edited)]) -> Vec<Sent> {
    let mut all_sent = Vec::with_capacity(edits.len());
    let mut silent = vec![false; node.shards.count()];
    for edits in edits.chunks(USERS_AT_ONCE) {
        let counts: Vec<Vec<Option<ShardReplies<u32>>>> =
            edits.iter().map(|edit| count(node, edit, &silent)).collect();
        for ((user, edited), counts) in edits.iter().zip(counts) {
            let mut sent = Sent::default();
            for (shard, count) in counts.into_iter().enumerate() {
                let replies = match count {
                    Some(count) => count.all().await.ok(),
                    None => None,
                };
                match replies {
                    Some(counts) if counts.iter().all(|count| *count == 0) => continue,
                    Some(counts) => {
                        sent.connections += counts.into_iter().map(u64::from).sum::<u64>();
                    }
                    None => {
                        silent[shard] = true;
                        sent.is_unknown = true;
                    }
                }
                send(node, shard, user, edited, &mut sent.replies);
            }
            all_sent.push(sent);
        }
    }
    all_sent
}

/// Requests from each shard that is not known to be silent how many connections the user has there. If nothing changed
/// for the user, it requests nothing.
fn count(
    node: &Node,
    (user, edited): &(Name, Edited),
    silent: &[bool],
) -> Vec<Option<ShardReplies<u32>>> {
    if edited.added.is_empty() && edited.removed.is_empty() {
        return Vec::new();
    }
    let topic = personal(user);
    let request =
        |shard| node.request(shard, |reply| Command::Topic { topic: topic.clone(), reply });
    silent.iter().enumerate().map(|(shard, silent)| (!silent).then(|| request(shard))).collect()
}

fn send(
    node: &Node,
    shard: usize,
    user: &Name,
    edited: &Edited,
    replies: &mut Vec<ShardReplies<u32>>,
) {
    for topic in &edited.removed {
        replies.push(node.request(shard, |reply| Command::Unsubscribe {
            user: user.clone(),
            topic: topic.clone(),
            reply,
        }));
    }
    for topic in &edited.added {
        replies.push(node.request(shard, |reply| Command::Subscribe {
            user: user.clone(),
            topic: topic.clone(),
            reply,
        }));
    }
}
