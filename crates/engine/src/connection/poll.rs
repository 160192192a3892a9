//! The state of a long poll that waits.

use history::{Requester, Start, TopicCursor};
use minicbor::{Decode, Encode};
use model::{Name, Position, RecoveryGap, ResumeRequest, Since};
use protocol::request::Respond;

use crate::core::count::count;
use crate::handover::value::{CursorRecord, ImportError, RespondRecord, Text, gap_number, gap_of};

/// A long poll that waits.
pub(crate) struct Poll {
    /// The position up to which its client has everything.
    pub since: Position,
    /// True if every message since the requested position was found; `None` without a requested position.
    pub recovered: Option<bool>,
    /// When it gets its reply at the latest, in seconds of the node's clock.
    pub deadline_s: u32,
    pub respond: Respond,
    /// Its topics with history, if it has any.
    pub history: Option<Box<PollHistory>>,
}

/// The topics of a poll that have history.
#[derive(Default)]
pub(crate) struct PollHistory {
    /// The topics, and the position in each.
    pub cursors: Vec<TopicCursor>,
    /// So many of the first topics are not acknowledged.
    pub plain: usize,
    /// The gap, if messages that the client requested were dropped.
    pub gap: Option<RecoveryGap>,
    /// The limit on messages in one reply. Each poll has a new window, because it names its position.
    pub messages_max: usize,
    /// The client did not name its position in the acknowledged topics: a gap in these causes no reply.
    pub is_quiet: bool,
    /// Queued messages were dropped: the reply has a gap notice.
    pub gone: bool,
    /// The number of the pending query.
    pub reading: Option<u32>,
    /// The query is where to begin.
    pub starting: Option<PollStart>,
    /// A message has come during the query.
    pub woken: bool,
    /// The poll gets its reply when the history has replied, whatever it is.
    pub now: bool,
}

/// The beginning of a poll that waits for the history.
pub(crate) struct PollStart {
    pub request: ResumeRequest,
    /// The cursors of the acknowledged topics.
    pub cursors: Vec<u64>,
    /// Is dropped with the poll, so that the history reads nothing for one that has ended.
    pub _requester: Option<Requester>,
}

impl PollHistory {
    /// The history has replied where to begin.
    pub fn begin(&mut self, start: Start, PollStart { request, cursors, .. }: &PollStart) {
        self.gap = start.gaps.iter().take(self.plain).flatten().next().copied().or(self.gap);
        let claimed = std::mem::replace(&mut self.cursors, start.topics);
        for (it, claimed) in self.cursors.iter_mut().zip(claimed) {
            if request.of(&it.topic).is_none() {
                // Messages that were published during the query are not missed.
                it.after = it.after.min(claimed.after);
            }
        }
        let acknowledged = self.cursors.iter_mut().zip(&start.gaps).skip(self.plain);
        for ((it, gap), cursor) in acknowledged.zip(cursors) {
            // A poll names its position in each request.
            let says = request.token_of(&it.topic).is_some() && *gap != Some(RecoveryGap::Epoch);
            it.after = if says { it.after.max(*cursor) } else { *cursor };
            // A client that requests stored messages, and names no position, has missed nothing.
            it.whole = request.of(&it.topic).is_some_and(|since| since.token().is_none());
            self.is_quiet |= !says;
        }
    }
}

/// The export of a poll to another engine.
#[derive(Encode, Decode)]
#[cbor(map)]
pub(crate) struct PollRecord {
    #[n(0)]
    since: Text<Position>,
    #[n(1)]
    recovered: Option<bool>,
    /// In seconds of the node's clock.
    #[n(2)]
    deadline_s: u32,
    #[n(3)]
    respond: RespondRecord,
    #[n(4)]
    history: Option<HistoryRecord>,
}

/// Its topics with history.
#[derive(Encode, Decode)]
#[cbor(map)]
struct HistoryRecord {
    #[n(0)]
    cursors: Vec<CursorRecord>,
    #[n(1)]
    plain: u32,
    #[n(2)]
    gap: Option<u8>,
    #[n(3)]
    messages_max: u32,
    #[n(4)]
    starting: Option<StartRecord>,
    /// It gets its reply when the history has replied, whatever it is.
    #[n(5)]
    now: bool,
    /// A query for a piece is pending.
    #[n(6)]
    reading: bool,
    /// Absent if false, as in records of versions without it.
    #[n(7)]
    is_quiet: Option<bool>,
    #[n(8)]
    gone: Option<bool>,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct StartRecord {
    #[n(0)]
    all: Option<Text<Since>>,
    #[n(1)]
    topics: Vec<(Text<Name>, Text<Since>)>,
    #[n(2)]
    cursors: Vec<u64>,
}

impl Poll {
    /// Exports the poll.
    pub fn export(&self) -> PollRecord {
        let Poll { since, recovered, deadline_s, respond, history } = self;
        PollRecord {
            since: Text(*since),
            recovered: *recovered,
            deadline_s: *deadline_s,
            respond: respond.into(),
            history: history.as_ref().map(|history| history.export()),
        }
    }
}

impl PollRecord {
    /// Returns whether a query for a piece is pending.
    pub fn reads(&self) -> bool {
        self.history.as_ref().is_some_and(|history| history.reading)
    }

    /// Imports the poll.
    pub fn import(self, hash: &dyn Fn(&str) -> u64) -> Result<Poll, ImportError> {
        let history = self.history.map(|history| history.import(hash)).transpose()?;
        Ok(Poll {
            since: self.since.0,
            recovered: self.recovered,
            deadline_s: self.deadline_s,
            respond: self.respond.into(),
            history: history.map(Box::new),
        })
    }
}

impl PollHistory {
    fn export(&self) -> HistoryRecord {
        // The query is made again, and finds messages that came during the first one.
        let PollHistory { cursors, plain, gap, messages_max, is_quiet, .. } = self;
        let PollHistory { gone, reading, starting, woken: _, now, .. } = self;
        HistoryRecord {
            cursors: cursors.iter().map(CursorRecord::from).collect(),
            plain: count(*plain),
            gap: gap.map(gap_number),
            messages_max: count(*messages_max),
            starting: starting.as_ref().map(PollStart::export),
            now: *now,
            reading: reading.is_some(),
            is_quiet: is_quiet.then_some(true),
            gone: gone.then_some(true),
        }
    }
}

impl HistoryRecord {
    fn import(self, hash: &dyn Fn(&str) -> u64) -> Result<PollHistory, ImportError> {
        let plain = self.plain as usize;
        let starts = self.starting.as_ref().map(|it| it.cursors.len());
        if plain > self.cursors.len() || starts.is_some_and(|it| it != self.cursors.len() - plain) {
            return Err(ImportError::damaged("a poll does not have the topics that it lists"));
        }
        Ok(PollHistory {
            cursors: self.cursors.into_iter().map(|cursor| cursor.import(hash)).collect(),
            plain,
            gap: self.gap.map(gap_of).transpose()?,
            messages_max: (self.messages_max as usize).max(1),
            // `Engine::restart_poll` makes the query again.
            reading: None,
            starting: self.starting.map(StartRecord::import),
            woken: false,
            now: self.now,
            is_quiet: self.is_quiet.unwrap_or(false),
            gone: self.gone.unwrap_or(false),
        })
    }
}

impl PollStart {
    fn export(&self) -> StartRecord {
        let PollStart { request: ResumeRequest { all, topics }, cursors, _requester: _ } = self;
        let named = |(name, since): &(Name, Since)| (Text(name.clone()), Text(since.clone()));
        StartRecord {
            all: all.clone().map(Text),
            topics: topics.iter().map(named).collect(),
            cursors: cursors.clone(),
        }
    }
}

impl StartRecord {
    fn import(self) -> PollStart {
        let topics = self.topics.into_iter().map(|(name, since)| (name.0, since.0)).collect();
        let request = ResumeRequest { all: self.all.map(|since| since.0), topics };
        PollStart { request, cursors: self.cursors, _requester: None }
    }
}
