//! The contract between the history and its callers.

use std::sync::Arc;

use broker::HistoryLog;
use model::{
    AcknowledgeRule, Envelope, Epoch, HistoryRule, Name, Position, RecoveryGap, ResumeRequest,
    ResumeToken, Rules, Since,
};

use crate::{AcknowledgeError, Completion, Cursor, HistoryError};

/// A reply of the history: now or later.
#[derive(Debug)]
pub enum HistoryReply<T> {
    /// The reply. The completion is dropped uncalled.
    Now(T),
    /// The history calls the completion with the reply, exactly once, from any thread, maybe before the call returns.
    /// If the caller no longer waits ([`Completion::is_awaited`]), it may never call it.
    Later,
}

/// The topics with history: their messages, and the cursors of their users.
///
/// **No call blocks.** A call that needs the disk takes a [`Completion`] and returns a [`HistoryReply`]. If it
/// returns an error, that is the reply, and the completion is dropped uncalled. All other calls are lookups in
/// memory, or changes that are written later.
///
/// **Live messages and history meet at one position.** Messages go to the inboxes in the order of their offsets. No
/// reply has a message that was not delivered to the inboxes before: no position in a [`Start`] or a [`Piece`] is
/// above [`History::top`] at the moment of the reply. So a client that becomes a member of a topic first, and
/// requests its history then, finds each message up to that position in the history and gets each later one from its
/// inbox.
pub trait History: HistoryLog {
    /// Returns the epoch of the log.
    fn epoch(&self) -> Epoch;

    /// Returns the position of the last message that was delivered to the inboxes.
    fn top(&self) -> Position;

    /// Returns true if any topic has history. Cheap enough for each publish.
    fn retains_any(&self) -> bool;

    /// Replaces the rules, and sets how long idempotency keys are known, in seconds.
    fn set_rules(&self, rules: Arc<Rules>, idempotency_seconds_max: u64);

    /// Sets how topics without a rule are retained for MQTT sessions; `None` retains nothing there.
    fn set_implicit(&self, implicit: Option<Implicit>);

    /// Returns counts for metrics.
    fn stats(&self) -> HistoryStats;

    /// Drops messages and keys that are too old. Called about once a second.
    fn sweep(&self);

    /// Returns the time by which the history counts ages before it drops messages, in milliseconds since 1970. Unlike
    /// the time of day it does not jump forwards.
    fn age_ms(&self) -> u64;

    /// Finds the offsets from which a client reads topics (hash and name). The client must be a member of these
    /// topics in the inboxes already.
    fn start(
        &self,
        topics: &[(u64, &str)],
        request: &ResumeRequest,
        completion: Completion<Start>,
    ) -> Result<HistoryReply<Start>, HistoryError>;

    /// Reads the next piece of what a client has missed.
    fn read(
        &self,
        pull: Pull,
        completion: Completion<Piece>,
    ) -> Result<HistoryReply<Piece>, HistoryError>;

    /// Finds the topics that have messages after an offset and that one of these filters matches (MQTT 5.0, section
    /// 4.7).
    fn matching(
        &self,
        filters: &[Name],
        after: u64,
        completion: Completion<Matching>,
        hash: TopicHash,
    ) -> Result<HistoryReply<Matching>, HistoryError>;

    /// Reads a page of a topic's history.
    fn page(
        &self,
        query: PageQuery,
        completion: Completion<Page>,
    ) -> Result<HistoryReply<Page>, HistoryError>;

    /// Deletes the messages of a topic (hash and name). A client that comes back from an earlier position gets a gap
    /// notice. Replies when the disk has none of the messages any more.
    fn delete(
        &self,
        hash: u64,
        topic: &str,
        completion: Completion<()>,
    ) -> Result<HistoryReply<()>, HistoryError>;

    /// Returns whether messages of the topic after this offset are gone. `None` if memory can't tell: then a
    /// [`Piece`] does.
    fn gone(&self, hash: u64, topic: &str, after: u64) -> Option<Gone>;

    /// Returns those of these offsets, in order, whose messages may still exist. `None` if memory can't tell: then
    /// [`Piece::first`] is the first of them.
    fn retained(&self, hash: u64, topic: &str, offsets: &[u64]) -> Option<Vec<u64>>;

    /// Returns the user's cursor in a topic: the offset of the last message that was acknowledged or given up. A new
    /// user's cursor is before the first message in the personal topic, and behind the last one in others.
    fn cursor(&self, user: &str, topic: &str) -> u64;

    /// Returns false while it is not certain that a new user begins where [`History::cursor`] says: another node may know
    /// an earlier cursor. Until then the user must get no messages of the topic, and acknowledges none.
    fn is_begin_confirmed(&self, _user: &str, _topic: &str) -> bool {
        true
    }

    /// Returns the user's stored cursor, which is empty for a new user. Unlike [`History::cursor`] this makes none.
    fn progress(&self, user: &str, topic: &str) -> Cursor;

    /// Acknowledges all of the topic's messages up to this one. Returns the cursor's offset.
    fn acknowledge(&self, user: &str, topic: &str, id: Position) -> Result<u64, AcknowledgeError>;

    /// Counts a delivery of a message that the user has not acknowledged. Returns the deliveries so far, or 0 if the
    /// message was acknowledged or given up.
    ///
    /// Deliveries to several connections of the user count once within
    /// [`AcknowledgeRule::deliveries_apart_seconds`]. `now_s` is in seconds of the node's clock.
    fn delivered(
        &self,
        user: &str,
        topic: &str,
        offset: u64,
        now_s: u32,
        rule: &AcknowledgeRule,
    ) -> u32;

    /// Counts a message that was delivered again to a connection that had got it before.
    fn delivered_again(&self);

    /// Gives a message up for this user, who did not acknowledge it in all its deliveries. All messages before it are
    /// acknowledged or given up.
    fn give_up(&self, user: &str, topic: &str, offset: u64, given_up: GivenUp);
}

/// A topic with history, and the offset up to which a client has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicCursor {
    /// The hash of its name.
    pub hash: u64,
    /// Its name.
    pub topic: Name,
    /// The client reads the messages after this offset.
    pub after: u64,
    /// True if the client begins with all messages in the history, or the newest of them. Messages that are gone when
    /// it first reads are no gap. [`Piece::begin`] resets this.
    pub whole: bool,
    /// The last offset of the log when the client began to read the state of the compacted topic, and 0 if it reads no
    /// state. The client never had states from before that are gone, so they are no gap.
    pub state_top: u64,
}

impl TopicCursor {
    /// Makes the cursor of a client that has a topic up to an offset, and reads no state.
    pub fn new(hash: u64, topic: Name, after: u64) -> Self {
        TopicCursor { hash, topic, after, whole: false, state_top: 0 }
    }

    /// Makes the first cursor of a client that requested a topic `since`, and reads it after an offset. Of a compacted
    /// topic (`compact`) it reads the state, if it has nothing yet, or only a part of the state. `top` is
    /// [`History::top`].
    pub fn first(
        hash: u64,
        topic: &str,
        after: u64,
        compact: bool,
        since: Option<&Since>,
        top: Position,
    ) -> Self {
        let token = since.and_then(Since::token);
        let mut cursor = TopicCursor::new(hash, topic.into(), after);
        if compact && after == 0 {
            cursor.begin_state(top.offset);
        } else if compact && let Some(token) = token {
            // A node that has delivered less than the one where the state began has keys that were removed after that.
            let state_top = TopicCursor::state_top_of(top.epoch, topic, token);
            cursor.state_top = state_top.min(top.offset);
        }
        cursor.whole |= since.is_some() && token.is_none();
        cursor
    }

    /// Makes the client read the state of a compacted topic from its beginning. `top` is the offset of
    /// [`History::top`].
    pub fn begin_state(&mut self, top: u64) {
        (self.after, self.whole, self.state_top) = (0, true, top);
    }

    /// Returns true if the client needs the removal of a key that has this offset: it may know the key. A client that
    /// reads a state has no key that was removed before it began.
    pub fn needs_removal(&self, offset: u64) -> bool {
        offset > self.state_top
    }

    /// Returns the offset above which messages that are gone are a gap.
    pub fn gap_after(&self) -> u64 {
        self.after.max(self.state_top)
    }

    /// Returns the last offset of the log when a client with this token began to read the state of a topic. 0 if it has
    /// the whole state, or the token is of another log.
    pub fn state_top_of(epoch: Epoch, topic: &str, token: &ResumeToken) -> u64 {
        let Some(position) = token.frontier(epoch) else { return 0 };
        let mark = model::resume::state_mark(topic);
        let found = position.behind.iter().find(|behind| behind.topic == mark);
        found.map_or(0, |behind| behind.through)
    }

    /// Returns the offset up to which a client with this token has a topic. `None` if the token is of another log.
    pub fn offset_of(epoch: Epoch, topic: &str, token: &ResumeToken) -> Option<u64> {
        let position = token.frontier(epoch)?;
        let mark = model::resume::mark(topic);
        let behind = position.behind.iter().filter(|behind| behind.topic == mark);
        let behind = behind.map(|behind| behind.through).min();
        Some(behind.map_or(position.through.offset, |less| less.min(position.through.offset)))
    }
}

/// The offsets from which a client reads topics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The topics, in the order of the request.
    pub topics: Vec<TopicCursor>,
    /// For each topic, why it can't be recovered completely. A [`Piece`] may find further gaps.
    pub gaps: Vec<Option<RecoveryGap>>,
    /// [`History::top`] at the moment of the reply.
    pub top: Position,
}

/// How topics without a rule are retained.
#[derive(Clone)]
pub struct Implicit {
    /// The limits, for each topic.
    pub rule: Arc<HistoryRule>,
    /// Returns true if any topic is retained so. Cheap enough for each publish.
    pub any: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Returns true if this topic is retained so.
    pub wants: Arc<dyn Fn(&str) -> bool + Send + Sync>,
}

/// The hash of a topic's name that all indexes of the node share.
pub type TopicHash = Arc<dyn Fn(&str) -> u64 + Send + Sync>;

/// The topics that filters match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matching {
    /// The topics that had messages after the requested offset and up to `top`, to be read from that offset on, each
    /// with the offset of its last message, or a later one.
    pub topics: Vec<(TopicCursor, u64)>,
    /// The offset of [`History::top`] when the topics were scanned. A topic may be missing whose messages are all
    /// later.
    pub top: u64,
}

/// A request for the next piece.
#[derive(Clone, Debug)]
pub struct Pull {
    /// The topics.
    pub topics: Vec<TopicCursor>,
    /// The limit on messages.
    pub messages_max: usize,
    /// The limit on bytes of payload, behind the first message.
    pub bytes_max: usize,
}

/// A piece of what a client has missed.
#[derive(Debug, Default)]
pub struct Piece {
    /// The messages, in the order of their offsets.
    pub messages: Vec<Arc<Envelope>>,
    /// With this piece the client has all topics up to this offset.
    pub through: u64,
    /// True if the history had no later message at the moment of the reply. If live messages have come from the inbox
    /// since, and one is after `through`, the client reads on.
    pub caught_up: bool,
    /// For each topic, whether requested messages are gone. Always [`Gone::Nothing`] for a topic that is
    /// [`TopicCursor::whole`].
    pub gone: Vec<Gone>,
    /// For each topic, the offset of its first message to read, if it has one. The piece may end before it.
    pub first: Vec<Option<u64>>,
}

/// Says whether messages that a client requested are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gone {
    /// The history has all messages.
    #[default]
    Nothing,
    /// Some messages may be gone: the history knows too little of the topic.
    Maybe,
    /// Some messages were dropped or deleted.
    Some,
}

impl Piece {
    /// Returns true if requested messages of the topic at this index are gone, or may be.
    pub fn is_gone(&self, at: usize) -> bool {
        self.gone_at(at) > Gone::Nothing
    }

    /// Returns whether requested messages of the topic at this index are gone.
    pub fn gone_at(&self, at: usize) -> Gone {
        self.gone.get(at).copied().unwrap_or_default()
    }

    /// Moves the cursor of the topic at this index before its first message, if messages are gone or the cursor is
    /// [`TopicCursor::whole`]: only messages that are gone from there on are a new gap. Returns true if it was whole.
    pub fn begin(&self, at: usize, cursor: &mut TopicCursor) -> bool {
        let whole = std::mem::take(&mut cursor.whole);
        if whole || self.is_gone(at) {
            let first = self.first.get(at).copied().flatten();
            let before_first = first.map_or(self.through, |first| first.saturating_sub(1));
            cursor.after = cursor.after.max(before_first);
        }
        whole
    }
}

/// A request for a page of a topic's history.
#[derive(Clone, Debug)]
pub struct PageQuery {
    /// The hash of the topic's name.
    pub hash: u64,
    /// The topic.
    pub topic: Name,
    /// The message with which the page begins.
    pub from: PageFrom,
    /// True if the newest message comes first.
    pub backwards: bool,
    /// The limit on messages.
    pub limit: usize,
    /// The limit on bytes of payload that are read from disk, behind the first message.
    pub bytes_max: usize,
}

/// The message with which a page begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageFrom {
    /// With the oldest message, backwards with the newest.
    End,
    /// Forwards with the messages after this offset, backwards with those before it.
    Offset(u64),
    /// Forwards with the first of so many newest messages. Backwards the same as [`PageFrom::End`].
    Newest(usize),
}

impl PageFrom {
    /// Returns the offset of [`PageFrom::Offset`].
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
    /// The messages: forwards the oldest first, backwards the newest first.
    pub messages: Vec<Arc<Envelope>>,
    /// True if the topic has further messages in this direction.
    pub more: bool,
    /// True if requested messages are gone: the position is older than all retained messages, or they are in the gap.
    pub gone: bool,
    /// Messages after the first offset and up to the second may be missing, because the store's file lacked its last
    /// commit. `None` if the request does not include them.
    pub gap: Option<(u64, u64)>,
}

/// What happens to a message that the user did not acknowledge in all its deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// It is in the dead-letter topic.
    DeadLettered,
    /// It is dropped.
    Dropped,
}

/// Messages dropped by limits, without those that had expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedBy {
    /// By the number of a topic's messages.
    pub messages: u64,
    /// By the bytes of a topic's messages.
    pub bytes: u64,
    /// By their age.
    pub seconds: u64,
    /// By the memory of all topics together. Always 0 with a store.
    pub memory: u64,
}

/// Counts of the topics with history.
#[derive(Clone, Copy, Debug, Default)]
pub struct HistoryStats {
    /// Messages in memory.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Messages in memory that no rule retains, only MQTT sessions.
    pub session_messages: u64,
    /// Their bytes.
    pub session_bytes: u64,
    /// Known topics.
    pub topics: u64,
    /// Users' cursors.
    pub cursors: u64,
    /// Idempotency keys.
    pub idempotency_keys: u64,
    /// Messages that were published to topics with history.
    pub published: u64,
    /// Publishes that had the idempotency key of an earlier message.
    pub repeated: u64,
    /// Messages that the store could not write after their publishers had got a reply. Never of a durable topic.
    pub unwritten: u64,
    /// Acknowledgements that moved a cursor.
    pub acknowledged: u64,
    /// Messages delivered again to a connection that had not acknowledged them in time.
    pub redelivered: u64,
    /// Messages that were not acknowledged in all their deliveries and went to a dead-letter topic.
    pub dead_lettered: u64,
    /// Messages that were not acknowledged in all their deliveries and were dropped.
    pub dropped: u64,
    /// Messages that limits have dropped.
    pub dropped_by: DroppedBy,
    /// Clients that came back and recovered all messages.
    pub recovered: u64,
    /// Clients that came back and got a gap notice.
    pub unrecovered: u64,
    /// Reads that needed the disk.
    pub disk_reads: u64,
}
