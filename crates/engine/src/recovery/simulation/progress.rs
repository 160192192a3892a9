//! How far a client has received a topic with history, and where it may begin with what is there.

use super::log::{Log, What, what};

/// How far a client has received a topic with history.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// The message that comes next, by its position in the topic.
    pub next: usize,
    /// It was told that some are lost: the next may be a later one.
    pub jump: bool,
    /// Others of its user have acknowledged so many messages; of a poll's topic.
    pub acknowledged: usize,
    /// It requested what is there, and has received nothing of it.
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

/// What is asked for of what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wants {
    Start,
    Last(usize),
}

impl std::fmt::Display for Wants {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Wants::Start => f.write_str("start"),
            Wants::Last(messages) => write!(f, "last:{messages}"),
        }
    }
}

/// With which message a topic begins for whoever asked for what is there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begins {
    /// So many of the newest messages, at the most.
    newest: usize,
    /// The first message, had it been answered when it was asked.
    pub low: usize,
    /// That is when it was answered.
    pub exact: bool,
    /// What comes from this one on comes in any case: it was in the topic by then.
    latest: usize,
}

impl Begins {
    pub fn new(log: &Log, topic: usize, wants: Wants, exact: bool) -> Self {
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
        let newest = match wants {
            Wants::Start => retained,
            Wants::Last(messages) => messages.min(retained),
        };
        let low = log[topic].len().saturating_sub(newest);
        Begins { newest, low, exact, latest: usize::MAX }
    }

    /// It was in the topic when it had so many messages.
    pub fn by(self, latest: usize) -> Self {
        Begins { latest, ..self }
    }

    /// Whether the topic, of so many messages by now, may have begun with this one.
    pub fn may_be(&self, first: usize, len: usize) -> bool {
        let high = if self.exact { self.low } else { len.saturating_sub(self.newest) };
        (self.low..=high.max(self.low)).contains(&first) && first <= self.latest
    }
}
