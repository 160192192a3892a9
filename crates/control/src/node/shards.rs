//! The shards as this thread sees them: commands in, replies and counters out.

use std::ops::Range;
use std::time::Duration;

use shard::{Command, Metrics, Reply};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// How long a shard may take to reply.
pub(crate) const SHARD_TIMEOUT: Duration = Duration::from_secs(5);

/// All shards of a node, by number.
pub trait Shards: Send + Sync {
    /// Returns how many there are.
    fn count(&self) -> usize;

    /// Puts a command into the mailbox of a shard below [`Shards::count`]; never blocks.
    fn send(&self, shard: usize, command: Command);

    /// Returns the counters of a shard below [`Shards::count`].
    fn metrics(&self, shard: usize) -> &Metrics;

    /// Returns how many commands wait for a shard below [`Shards::count`].
    fn mailbox(&self, shard: usize) -> u64;
}

impl Shards for Vec<shard::Handle> {
    fn count(&self) -> usize {
        self.len()
    }

    fn send(&self, shard: usize, command: Command) {
        self[shard].send(command);
    }

    fn metrics(&self, shard: usize) -> &Metrics {
        &self[shard].metrics
    }

    fn mailbox(&self, shard: usize) -> u64 {
        self[shard].commands_pending()
    }
}

/// Why a shard has not replied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ShardRequestError {
    /// The shard has ended.
    #[error("a shard has ended")]
    Ended,
    /// The shard took longer than [`SHARD_TIMEOUT`]; it may still do the command.
    #[error("a shard did not reply in 5 seconds")]
    Timeout,
}

/// Replies of shards that have not all come.
pub(crate) struct ShardReplies<T> {
    waiting: Vec<oneshot::Receiver<T>>,
    until: Instant,
}

impl<T: Send + 'static> ShardReplies<T> {
    /// Sends a request to these shards.
    pub fn of<S: Shards + ?Sized>(
        all: &S,
        shards: Range<usize>,
        command: impl Fn(Reply<T>) -> Command,
    ) -> Self {
        let request = |shard| {
            let (reply, response) = reply();
            all.send(shard, command(reply));
            response
        };
        ShardReplies {
            waiting: shards.map(request).collect(),
            until: Instant::now() + SHARD_TIMEOUT,
        }
    }

    /// No replies, from no shard.
    pub fn none() -> Self {
        ShardReplies { waiting: Vec::new(), until: Instant::now() }
    }

    /// Returns all replies, by shard. Fails if a shard has ended or is silent for [`SHARD_TIMEOUT`].
    pub async fn all(self) -> Result<Vec<T>, ShardRequestError> {
        let mut replies = Vec::with_capacity(self.waiting.len());
        for response in self.waiting {
            let response =
                timeout_at(self.until, response).await.map_err(|_| ShardRequestError::Timeout)?;
            replies.push(response.map_err(|_| ShardRequestError::Ended)?);
        }
        Ok(replies)
    }
}

/// Makes a reply that can be awaited.
fn reply<T: Send + 'static>() -> (Reply<T>, oneshot::Receiver<T>) {
    let (sender, receiver) = oneshot::channel();
    let reply = Box::new(move |value| {
        // Sending fails if the caller has gone away.
        let _ = sender.send(value);
    });
    (reply, receiver)
}
