//! How far a client has received a topic with history, and where its stored messages may begin.

use super::log::{Log, What, what};

/// How far a client has received a topic with history.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// The next message, by its position in the topic.
    pub next: usize,
    /// The client got a gap notice: the next message may be a later one.
    pub jump: bool,
    /// The number of messages that the user's other connections have acknowledged. Only for a topic of a poll.
    pub acknowledged: usize,
    /// The client requested stored messages, and has received none yet.
    pub begins: Option<Begins>,
}

impl Progress {
    pub fn new(next: usize, jump: bool) -> Self {
        Progress { next, jump, acknowledged: 0, begins: None }
    }

    pub fn with_what_is_there(begins: Begins) -> Self {
        Progress { begins: Some(begins), ..Progress::new(0, false) }
    }
}

/// The stored messages that a client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestedHistory {
    Start,
    Last(usize),
}

impl std::fmt::Display for RequestedHistory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RequestedHistory::Start => f.write_str("start"),
            RequestedHistory::Last(messages) => write!(f, "last:{messages}"),
        }
    }
}

/// The message with which a topic begins for a client that requested stored messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begins {
    /// The topic begins with at most so many of its newest messages.
    newest: usize,
    /// The first message, if the reply was made at the time of the request.
    pub low: usize,
    /// True if the reply was made at that time.
    pub exact: bool,
    /// All messages from this one on must come, because the client was in the topic by then.
    latest: usize,
}

impl Begins {
    pub fn new(log: &Log, topic: usize, requested: RequestedHistory, exact: bool) -> Self {
        let retained = match what(topic) {
            What::Small(retained) => retained,
            What::Big
            | What::Plain
            | What::Ack(_)
            | What::State(_)
            | What::Newest { .. }
            | What::Extra
            | What::All
            | What::Passing => usize::MAX,
        };
        let newest = match requested {
            RequestedHistory::Start => retained,
            RequestedHistory::Last(messages) => messages.min(retained),
        };
        let low = log[topic].len().saturating_sub(newest);
        Begins { newest, low, exact, latest: usize::MAX }
    }

    /// The client was in the topic when it had so many messages.
    pub fn by(self, latest: usize) -> Self {
        Begins { latest, ..self }
    }

    /// Returns whether the topic, which has `len` messages now, may have begun with this one.
    pub fn may_be(&self, first: usize, len: usize) -> bool {
        let high = if self.exact { self.low } else { len.saturating_sub(self.newest) };
        (self.low..=high.max(self.low)).contains(&first) && first <= self.latest
    }
}
