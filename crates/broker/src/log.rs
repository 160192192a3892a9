//! The log that retains messages, as the broker uses it. The crate `history` implements it.

use std::sync::Arc;

use model::{Envelope, HistoryRule, Position, Publication};

use crate::{Activity, Done, Latest, Options, PublishError, Receipt, Routes};

/// A publication for a topic with history.
pub struct Append {
    /// The hash of the topic's name.
    pub hash: u64,
    /// The publication.
    pub publication: Publication,
    /// The topic's rule.
    pub rule: Arc<HistoryRule>,
    /// The options of the publish.
    pub options: Options,
    /// Gets the number of members that the message had on this node.
    pub receipt: Option<Receipt>,
    /// Its destinations besides the topic's members.
    pub routes: Routes,
}

/// The log of the topics with history, apart from that of all other messages: the broker passes their messages to the
/// log, and the log passes them to the inboxes.
pub trait HistoryLog: Send + Sync {
    /// Returns how a topic's messages are retained; `None` if they are not. Never waits.
    fn rule(&self, topic: &str) -> Option<Arc<HistoryRule>>;

    /// Returns how this message is retained. A message with QoS 0 is not retained for sessions alone.
    fn rule_for(&self, publication: &Publication) -> Option<Arc<HistoryRule>> {
        self.rule(&publication.topic)
    }

    /// Returns true if all nodes of a cluster share the log: then each delivers all of its messages by itself.
    fn is_shared(&self) -> bool {
        false
    }

    /// Returns true if each message of the topic is in the log, apart from those that bypass it. A topic that is
    /// retained for sessions alone has others: those with QoS 0, and those of nodes without such a session.
    fn has_each_message(&self, topic: &str) -> bool {
        self.rule(topic).is_some()
    }

    /// Appends a message, and passes it to every interested inbox once it is as safe as the rule says. Calls `done`
    /// once, from any thread: at once, or if the rule is durable, after the message is on disk.
    fn append(&self, append: Append, done: Done);

    /// Appends a message for a publisher that needs its position at once.
    fn append_now(&self, append: Append) -> Result<Position, PublishError>;

    /// Returns the newest messages of all topics in memory, newest first: at most `limit`, and at most 1,024.
    fn latest(&self, limit: usize) -> Vec<Arc<Envelope>>;

    /// Returns the newest messages of one topic in memory, newest first.
    fn latest_of(&self, hash: u64, topic: &str, limit: usize) -> Latest;

    /// Counts the newest messages since a time, in microseconds of the node's clock: at most `messages_max`. Returns
    /// the time after which all were counted. Publishers may publish meanwhile.
    fn count_newest(&self, from_us: u64, messages_max: usize, activity: &mut Activity) -> u64;
}

/// The log of a broker that retains nothing.
pub struct NoHistory;

impl HistoryLog for NoHistory {
    fn rule(&self, _: &str) -> Option<Arc<HistoryRule>> {
        None
    }

    fn append(&self, _: Append, done: Done) {
        done(Err(PublishError::NoHistory));
    }

    fn append_now(&self, _: Append) -> Result<Position, PublishError> {
        Err(PublishError::NoHistory)
    }

    fn latest(&self, _: usize) -> Vec<Arc<Envelope>> {
        Vec::new()
    }

    fn latest_of(&self, _: u64, _: &str, _: usize) -> Latest {
        Latest { messages: Vec::new(), complete: true }
    }

    fn count_newest(&self, _: u64, _: usize, _: &mut Activity) -> u64 {
        0
    }
}
