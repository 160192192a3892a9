//! The shards as this thread sees them: commands in, answers and counters out.

use std::sync::atomic::Ordering;
use std::time::Duration;

use shard::{Command, Metrics, Reply};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::Node;
use crate::error::Refused;

/// How long a shard's answer is waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// All shards of a node, by number.
pub trait Shards: Send + Sync {
    /// How many there are.
    fn count(&self) -> usize;

    /// Leaves a command in the mailbox of a shard below [`Shards::count`]; never blocks.
    fn send(&self, shard: usize, command: Command);

    /// What a shard below [`Shards::count`] counts.
    fn metrics(&self, shard: usize) -> &Metrics;
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
}

/// Shards that were asked and have not all answered.
pub(crate) struct Answers<T> {
    waiting: Vec<oneshot::Receiver<T>>,
    until: Instant,
}

impl<T> Answers<T> {
    /// Nobody was asked.
    pub fn none() -> Self {
        Answers { waiting: Vec::new(), until: Instant::now() }
    }

    /// All answers, by shard; refused when a shard has ended or is silent for [`PATIENCE`].
    pub async fn all(self) -> Result<Vec<T>, Refused> {
        let mut answers = Vec::with_capacity(self.waiting.len());
        for answer in self.waiting {
            let answer = timeout_at(self.until, answer).await.map_err(|_| Refused::silent())?;
            answers.push(answer.map_err(|_| Refused::gone())?);
        }
        Ok(answers)
    }
}

/// A reply that can be awaited.
fn reply<T: Send + 'static>() -> (Reply<T>, oneshot::Receiver<T>) {
    let (sender, receiver) = oneshot::channel();
    let reply = Box::new(move |value| {
        // Nobody waits any more: the caller went away.
        let _ = sender.send(value);
    });
    (reply, receiver)
}

impl Node {
    /// Asks one shard.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        shard: usize,
        command: impl Fn(Reply<T>) -> Command,
    ) -> Answers<T> {
        self.ask_shards(shard..shard + 1, command)
    }

    /// Asks every shard.
    pub(crate) fn ask_all<T: Send + 'static>(
        &self,
        command: impl Fn(Reply<T>) -> Command,
    ) -> Answers<T> {
        self.ask_shards(0..self.shards.count(), command)
    }

    fn ask_shards<T: Send + 'static>(
        &self,
        shards: std::ops::Range<usize>,
        command: impl Fn(Reply<T>) -> Command,
    ) -> Answers<T> {
        let ask = |shard| {
            let (reply, answer) = reply();
            self.shards.send(shard, command(reply));
            answer
        };
        Answers { waiting: shards.map(ask).collect(), until: Instant::now() + PATIENCE }
    }

    /// The counters of all shards.
    pub(crate) fn metrics(&self) -> impl Iterator<Item = &Metrics> {
        (0..self.shards.count()).map(|shard| self.shards.metrics(shard))
    }

    /// A counter, added up over all shards.
    pub(crate) fn sum(&self, read: impl Fn(&Metrics) -> u64) -> u64 {
        self.metrics().map(read).sum()
    }

    /// What the program's own memory grew since the start, over the open connections, in bytes;
    /// 0 while there is no connection.
    pub(crate) fn bytes_per_connection(&self, anonymous: u64) -> f64 {
        let open = self.shared.connections.load(Ordering::Relaxed);
        if open == 0 {
            return 0.0;
        }
        anonymous.saturating_sub(self.anonymous_at_start) as f64 / open as f64
    }
}
