//! What the rest of Throng knows of the history.

use std::sync::Arc;

use broker::HistoryLog;
use model::{
    AcknowledgeRule, Envelope, Epoch, HistoryRule, Name, Position, RecoveryGap, ResumeRequest,
    ResumeToken, Rules,
};

use crate::{AcknowledgeError, Completion, Cursor, HistoryError};

/// A reply of the history: at once, or later.
#[derive(Debug)]
pub enum HistoryReply<T> {
    /// This is the reply. The completion is dropped uncalled.
    Now(T),
    /// The completion is called with the reply: exactly once, from any thread, maybe before the
    /// call returns. Where nobody waits any more ([`Completion::is_wanted`]), maybe never.
    Later,
}

/// The topics with history: what was published to them, and how far their users have it.
///
/// **Who may wait.** Nobody. What an implementation would have to wait for takes a [`Completion`]
/// and gives an [`HistoryReply`]; an error that is returned stands for the answer, and the completion is
/// dropped uncalled. All other calls are lookups in memory, and changes that are written behind.
///
/// **Live messages and history meet** at one position: messages go to the inboxes in the order of
/// their offsets, and no answer speaks of a message that has not been handed to them: no position in
/// a [`Start`] or a [`Piece`] is above [`History::top`] at the moment of the answer. Whoever is a
/// member of a topic before it asks finds every message up to that position in the history, and gets
/// every message after it by the inboxes.
pub trait History: HistoryLog {
    /// The epoch of the log.
    fn epoch(&self) -> Epoch;

    /// The last position that was handed to the inboxes.
    fn top(&self) -> Position;

    /// Whether any topic has history: nearly free to ask.
    fn retains_any(&self) -> bool;

    /// Takes new rules, and how long idempotency keys are known, in seconds.
    fn set_rules(&self, rules: Arc<Rules>, idempotency_seconds_max: u64);

    /// Retains messages that are confirmed for somebody who is away, where no rule says otherwise; or
    /// nothing.
    fn set_implicit(&self, implicit: Option<Implicit>);

    /// What is held, and what was done so far.
    fn stats(&self) -> HistoryStats;

    /// Drops what is too old. To be called about once a second.
    fn sweep(&self);

    /// The time by which it counts ages before it drops something, in milliseconds since 1970. It does not jump forwards,
    /// as the time of day may.
    fn age_ms(&self) -> u64;

    /// From where to read topics (hash and name), for somebody who comes back with this request, or
    /// begins. Whoever asks must be a member of the topics already, as far as the inboxes know.
    fn start(
        &self,
        topics: &[(u64, &str)],
        request: &ResumeRequest,
        completion: Completion<Start>,
    ) -> Result<HistoryReply<Start>, HistoryError>;

    /// The next piece of what was missed.
    fn read(
        &self,
        pull: Pull,
        completion: Completion<Piece>,
    ) -> Result<HistoryReply<Piece>, HistoryError>;

    /// The topics that one of these filters matches (MQTT 5.0, section 4.7) and that have messages after an
    /// offset.
    fn matching(
        &self,
        filters: &[Name],
        after: u64,
        completion: Completion<Matching>,
        hash: TopicHash,
    ) -> Result<HistoryReply<Matching>, HistoryError>;

    /// A page of a topic's history.
    fn page(
        &self,
        query: PageQuery,
        completion: Completion<Page>,
    ) -> Result<HistoryReply<Page>, HistoryError>;

    /// Deletes what is retained of a topic (hash and name) up to now; whoever comes back to it from
    /// before is told that it is gone. It is answered when nothing of it is stored any more.
    fn delete(
        &self,
        hash: u64,
        topic: &str,
        completion: Completion<()>,
    ) -> Result<HistoryReply<()>, HistoryError>;

    /// Whether something is gone of the topic's messages after this offset; `None` where memory does
    /// not know, and a [`Piece`] says so.
    fn gone(&self, hash: u64, topic: &str, after: u64) -> Option<Gone>;

    /// Of these offsets of a topic, in order, those whose messages may still be there; `None` where
    /// memory does not know, and [`Piece::first`] says which is the first.
    fn retained(&self, hash: u64, topic: &str, offsets: &[u64]) -> Option<Vec<u64>>;

    /// The offset from which the user is given a topic's messages: that of the last one that was
    /// acknowledged or given up. One who was never here begins with all that waits in the own topic,
    /// and elsewhere now.
    fn cursor(&self, user: &str, topic: &str) -> u64;

    /// What the user has acknowledged, or was taken to have, and what was given up; nothing of
    /// either for one who was never here. Unlike [`History::cursor`] it changes nothing.
    fn progress(&self, user: &str, topic: &str) -> Cursor;

    /// The user has all of the topic's messages up to this one. Gives the cursor's offset.
    fn acknowledge(&self, user: &str, topic: &str, id: Position) -> Result<u64, AcknowledgeError>;

    /// Counts a delivery of a message that the user has not acknowledged; gives how many there were
    /// of this one, and 0 when it is done.
    ///
    /// A user's connections get it together, and those that come and go get it again: within
    /// [`AcknowledgeRule::redelivery_seconds`], or 30 where that is 0, it counts once, as of `now_s`, in
    /// seconds of the node's clock.
    fn delivered(
        &self,
        user: &str,
        topic: &str,
        offset: u64,
        now_s: u32,
        rule: &AcknowledgeRule,
    ) -> u32;

    /// Counts that a message was delivered again to a connection that had it.
    fn delivered_again(&self);

    /// Nobody acknowledged the message in all its tries, and all before it is done: it is done for
    /// this user, and not acknowledged.
    fn give_up(&self, user: &str, topic: &str, offset: u64, given_up: GivenUp);
}

/// A topic with history, and how far somebody has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicCursor {
    /// The hash of its name.
    pub hash: u64,
    /// Its name.
    pub topic: Name,
    /// Messages after this offset are to be read.
    pub after: u64,
    /// It begins with all that is there, or with the newest of that: what is gone when it is first read
    /// is not missed. [`Piece::begin`] takes this back.
    pub whole: bool,
}

impl TopicCursor {
    /// How far a client with this token has a topic: the offset, or `None` when the token is of
    /// another log.
    pub fn offset_of(epoch: Epoch, topic: &str, token: &ResumeToken) -> Option<u64> {
        let position = token.frontier(epoch)?;
        let mark = model::resume::mark(topic);
        let behind = position.behind.iter().filter(|behind| behind.topic == mark);
        let behind = behind.map(|behind| behind.through).min();
        Some(behind.map_or(position.through.offset, |less| less.min(position.through.offset)))
    }
}

/// From where topics are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The topics, in the order in which they were asked for.
    pub topics: Vec<TopicCursor>,
    /// What can't be said to be complete; in the order of the topics. A [`Piece`] may know of more.
    pub gaps: Vec<Option<RecoveryGap>>,
    /// The last position that was handed on at the moment of the answer.
    pub top: Position,
}

/// How topics are retained that no rule retains.
#[derive(Clone)]
pub struct Implicit {
    /// The limits, for each topic.
    pub rule: Arc<HistoryRule>,
    /// Whether there is any such topic. Nearly free to ask.
    pub any: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Whether this is one.
    pub wants: Arc<dyn Fn(&str) -> bool + Send + Sync>,
}

/// The hash of a topic's name that all indexes of the node share.
pub type TopicHash = Arc<dyn Fn(&str) -> u64 + Send + Sync>;

/// The topics that filters match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matching {
    /// All that had messages after the given offset and up to `top`, to be read from that offset on; each
    /// with the offset of its last message then, or a later one.
    pub topics: Vec<(TopicCursor, u64)>,
    /// The last offset that was handed on when they were looked for: a topic that has messages after it
    /// alone may be missing.
    pub top: u64,
}

/// What is to be read.
#[derive(Clone, Debug)]
pub struct Pull {
    /// Of these topics.
    pub topics: Vec<TopicCursor>,
    /// At most so many messages.
    pub messages_max: usize,
    /// And, once one is there, so many bytes of payload.
    pub bytes_max: usize,
}

/// A piece of what was missed.
#[derive(Debug, Default)]
pub struct Piece {
    /// In the order of their offsets.
    pub messages: Vec<Arc<Envelope>>,
    /// All topics are complete up to this offset now.
    pub through: u64,
    /// There was nothing more at the moment of the answer. Where that comes later, messages may have
    /// come by the inboxes since: whoever held them back reads on unless none of them is after
    /// `through`.
    pub caught_up: bool,
    /// For each topic, whether messages that were to be read are gone; not of one that is
    /// [`TopicCursor::whole`].
    pub gone: Vec<Gone>,
    /// For each topic, the offset of its first message that was to be read, where one is there; the
    /// piece may end before it.
    pub first: Vec<Option<u64>>,
}

/// Whether messages that were to be read are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gone {
    /// All are there.
    #[default]
    Nothing,
    /// Some may be: too little is known of the topic.
    Maybe,
    /// Some were dropped or deleted.
    Some,
}

impl Piece {
    /// Whether messages of the topic at this place that were to be read are gone, or may be.
    pub fn is_gone(&self, at: usize) -> bool {
        self.gone_at(at) > Gone::Nothing
    }

    /// What is gone of the topic at this place.
    pub fn gone_at(&self, at: usize) -> Gone {
        self.gone.get(at).copied().unwrap_or_default()
    }

    /// A topic of the piece, by its place among them, of which something is gone or that is
    /// [`TopicCursor::whole`] begins before its first message, wherever the piece ends: what is gone
    /// from there on is missed, and nobody is told twice of the same. True for one that was whole.
    pub fn begin(&self, at: usize, cursor: &mut TopicCursor) -> bool {
        let whole = std::mem::take(&mut cursor.whole);
        if whole || self.is_gone(at) {
            let first = self.first.get(at).copied().flatten();
            let place = first.map_or(self.through, |first| first.saturating_sub(1));
            cursor.after = cursor.after.max(place);
        }
        whole
    }
}

/// Which page of a topic's history.
#[derive(Clone, Debug)]
pub struct PageQuery {
    /// The hash of the topic's name.
    pub hash: u64,
    /// The topic.
    pub topic: Name,
    /// Where it begins.
    pub from: PageFrom,
    /// The newest first.
    pub backwards: bool,
    /// At most so many messages.
    pub limit: usize,
    /// And, once one is there, so many bytes of payload, where they have to be read for it.
    pub bytes_max: usize,
}

/// Where a page begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageFrom {
    /// With the oldest message, backwards with the newest.
    End,
    /// Forwards with the messages after this offset, backwards with those before it.
    Offset(u64),
    /// Forwards with so many of the newest messages; backwards it means nothing, and is
    /// [`PageFrom::End`].
    Newest(usize),
}

impl PageFrom {
    /// The offset, if it is one.
    pub fn offset(self) -> Option<u64> {
        match self {
            PageFrom::Offset(offset) => Some(offset),
            PageFrom::End | PageFrom::Newest(_) => None,
        }
    }
}

/// A page of a topic's history.
#[derive(Debug, Default)]
pub struct Page {
    /// Forwards the oldest first, backwards the newest first.
    pub messages: Vec<Arc<Envelope>>,
    /// There are more in this direction.
    pub more: bool,
    /// Messages that were asked for are gone: the position is older than what is retained, or they
    /// are in the gap.
    pub gone: bool,
    /// Messages that came after the first offset and up to the second may be missing: the store's
    /// file did not hold its last commit. Only where they were asked for.
    pub gap: Option<(u64, u64)>,
}

/// What becomes of a message that nobody acknowledged in all its tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// It is in the dead-letter topic.
    DeadLettered,
    /// It is dropped.
    Dropped,
}

/// Messages that limits have dropped, by the limit; none that had expired by themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedBy {
    /// By the number of a topic's messages.
    pub messages: u64,
    /// By the bytes of a topic's messages.
    pub bytes: u64,
    /// By their age.
    pub seconds: u64,
    /// By what all topics may take together; none where a store has them.
    pub memory: u64,
}

/// What the topics with history hold and did.
#[derive(Clone, Copy, Debug, Default)]
pub struct HistoryStats {
    /// Messages in memory.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those of them that are there only for MQTT sessions, and no rule retains.
    pub session_messages: u64,
    /// Their bytes.
    pub session_bytes: u64,
    /// Topics that something is known of.
    pub topics: u64,
    /// Users' cursors.
    pub cursors: u64,
    /// Idempotency keys.
    pub idempotency_keys: u64,
    /// Messages that were published to topics with history.
    pub published: u64,
    /// Publishes that were answered with an earlier message, for they had its idempotency key.
    pub repeated: u64,
    /// Messages that the store could not write although their publishers had been told that they
    /// are on their way; never of a durable topic.
    pub unwritten: u64,
    /// Acknowledgements that moved a cursor.
    pub acknowledged: u64,
    /// Messages that were delivered again to a connection that had them, for they were not
    /// acknowledged in time.
    pub redelivered: u64,
    /// Messages that nobody acknowledged in all their tries, and that went to a dead-letter topic.
    pub dead_lettered: u64,
    /// The same where there is no such topic.
    pub dropped: u64,
    /// Messages that limits have dropped.
    pub dropped_by: DroppedBy,
    /// Clients that came back and were told that they have everything.
    pub recovered: u64,
    /// Clients that came back and were told that something is missing.
    pub unrecovered: u64,
    /// Reads that memory could not answer.
    pub disk_reads: u64,
}
