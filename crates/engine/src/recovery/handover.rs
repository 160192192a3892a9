//! The export of catch-ups and acknowledgements to another engine.

use history::{Requester, TopicCursor};
use minicbor::{Decode, Encode};
use model::{AcknowledgeRule, Name, Position, ResumeRequest, Since};

use super::acknowledge::{Acks, Delivery};
use super::{
    ALL, Catchup, CatchupTable, Catchups, Filter, PendingReply, Query, Recovery, ReplyTo, Starting,
};
use crate::core::Core;
use crate::handover::value::{CursorRecord, ImportError, Message, Text, gap_number, gap_of};

/// How a connection catches up.
#[derive(Encode, Decode)]
#[cbor(map)]
pub(crate) struct RecoveryRecord {
    #[cbor(n(0), default)]
    catchups: Vec<CatchupRecord>,
    /// The reply to the client that waits for the first piece.
    #[cbor(n(1), default)]
    replies: Vec<ReplyRecord>,
    /// A query for the next piece is pending.
    #[cbor(n(2), default)]
    reading: bool,
    /// The ids of its messages say up to where it has everything.
    #[cbor(n(3), default)]
    many: bool,
    #[n(4)]
    filter: Option<FilterRecord>,
}

/// The tag filters of a connection.
#[derive(Encode, Decode)]
#[cbor(map)]
struct FilterRecord {
    /// The filter of all topics that have none of their own.
    #[n(0)]
    all: Vec<Text<Name>>,
    #[n(1)]
    topics: Vec<(Text<Name>, Vec<Text<Name>>)>,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct CatchupRecord {
    #[n(0)]
    number: u32,
    #[n(1)]
    cursor: CursorRecord,
    #[n(2)]
    through: u64,
    #[n(3)]
    deferred_offset: u64,
    #[n(4)]
    starting: Option<StartingRecord>,
    #[n(5)]
    acks: Option<AcksRecord>,
    /// Absent if false, as in records of versions without it.
    #[n(6)]
    compact: Option<bool>,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct StartingRecord {
    #[n(0)]
    since: Option<Text<Since>>,
    #[n(1)]
    top: u64,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct AcksRecord {
    #[n(0)]
    user: Text<Name>,
    #[n(1)]
    window_messages_max: u32,
    #[n(2)]
    redelivery_seconds: u32,
    #[n(3)]
    delivery_count_max: u32,
    #[n(4)]
    dead_letter: Option<Text<Name>>,
    #[n(5)]
    from: u64,
    /// The offset, when the message was delivered, and whether it is delivered again.
    #[n(6)]
    flight: Vec<(u64, u32, bool)>,
    #[n(7)]
    queued_s: Option<u32>,
    #[n(8)]
    scanned_s: u32,
    #[n(9)]
    rests_at: u64,
    /// Absent if false, as in records of versions without it.
    #[n(10)]
    verifies: Option<bool>,
    /// Absent if false, as in records of versions without it.
    #[n(11)]
    begins: Option<bool>,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct ReplyRecord {
    #[n(0)]
    to: To,
    #[n(1)]
    since: Text<Position>,
    #[n(2)]
    claimed: bool,
    #[n(3)]
    requested: bool,
    #[n(4)]
    numbers: Vec<u32>,
    #[n(5)]
    gaps: Vec<(Text<Name>, u8)>,
    /// Absent if false, as in records of versions without it.
    #[n(6)]
    whole: Option<bool>,
}

#[derive(Encode, Decode)]
enum To {
    #[n(0)]
    Nowhere,
    #[n(1)]
    Line,
    #[n(2)]
    Id(#[n(0)] String, #[n(1)] Text<Name>),
    #[n(3)]
    Phoenix(#[n(0)] Message, #[n(1)] String),
}

impl Catchup {
    fn export(&self) -> CatchupRecord {
        let Catchup { number, cursor, through, starting, deferred_offset, acks, compact } = self;
        let starting = starting.as_ref().map(|Starting { query: _, since, top }| StartingRecord {
            since: since.as_deref().cloned().map(Text),
            top: *top,
        });
        CatchupRecord {
            number: *number,
            cursor: cursor.into(),
            through: *through,
            deferred_offset: *deferred_offset,
            starting,
            acks: acks.as_ref().map(|acks| acks.export()),
            compact: compact.then_some(true),
        }
    }
}

impl CatchupRecord {
    fn import(self, hash: &dyn Fn(&str) -> u64) -> Catchup {
        // The query is made again.
        let starting = self.starting.map(|StartingRecord { since, top }| Starting {
            query: Query { number: 0, requester: Requester::default() },
            since: since.map(|since| Box::new(since.0)),
            top,
        });
        Catchup {
            number: self.number,
            cursor: self.cursor.import(hash),
            through: self.through,
            starting,
            deferred_offset: self.deferred_offset,
            acks: self.acks.map(|acks| acks.import().into()),
            compact: self.compact.unwrap_or(false),
        }
    }
}

impl Acks {
    fn export(&self) -> AcksRecord {
        // The query for dropped messages in flight is made again.
        let Acks { user, rule, from, flight, queued_s, scanned_s, rests_at, .. } = self;
        let Acks { verifies, awaits_begin, .. } = self;
        let AcknowledgeRule {
            window_messages_max,
            redelivery_seconds,
            delivery_count_max,
            dead_letter,
        } = rule;
        let delivered = |it: &Delivery| (it.offset, it.delivered_s, it.again);
        AcksRecord {
            user: Text(user.clone()),
            window_messages_max: *window_messages_max,
            redelivery_seconds: *redelivery_seconds,
            delivery_count_max: *delivery_count_max,
            dead_letter: dead_letter.clone().map(Text),
            from: *from,
            flight: flight.iter().map(delivered).collect(),
            queued_s: *queued_s,
            scanned_s: *scanned_s,
            rests_at: *rests_at,
            verifies: verifies.then_some(true),
            begins: awaits_begin.then_some(true),
        }
    }
}

impl AcksRecord {
    fn import(self) -> Acks {
        let rule = AcknowledgeRule {
            window_messages_max: self.window_messages_max,
            redelivery_seconds: self.redelivery_seconds,
            delivery_count_max: self.delivery_count_max,
            dead_letter: self.dead_letter.map(|topic| topic.0),
        };
        let delivery = |(offset, delivered_s, again)| Delivery { offset, delivered_s, again };
        Acks {
            user: self.user.0,
            rule,
            from: self.from,
            flight: self.flight.into_iter().map(delivery).collect(),
            queued_s: self.queued_s,
            scanned_s: self.scanned_s,
            rests_at: self.rests_at,
            verifies: self.verifies.unwrap_or(false),
            awaits_begin: self.begins.unwrap_or(false),
            peeks: false,
            peeked_at: 0,
        }
    }
}

impl PendingReply {
    fn export(&self) -> ReplyRecord {
        let PendingReply { to, since, claimed, requested, numbers, gaps, whole } = self;
        let to = match to {
            ReplyTo::Nowhere => To::Nowhere,
            ReplyTo::Line => To::Line,
            ReplyTo::Id(id, topic) => To::Id(id.to_string(), Text(topic.clone())),
            ReplyTo::Phoenix(message, response) => {
                To::Phoenix((&**message).into(), response.to_string())
            }
        };
        ReplyRecord {
            to,
            since: Text(*since),
            claimed: *claimed,
            requested: *requested,
            numbers: numbers.clone(),
            gaps: gaps.iter().map(|(topic, gap)| (Text(topic.clone()), gap_number(*gap))).collect(),
            whole: whole.then_some(true),
        }
    }
}

impl ReplyRecord {
    fn import(self) -> Result<PendingReply, ImportError> {
        let to = match self.to {
            To::Nowhere => ReplyTo::Nowhere,
            To::Line => ReplyTo::Line,
            To::Id(id, topic) => ReplyTo::Id(id.into(), topic.0),
            To::Phoenix(message, response) => {
                ReplyTo::Phoenix(Box::new(message.into()), response.into())
            }
        };
        let gaps = self.gaps.into_iter().map(|(topic, gap)| Ok((topic.0, gap_of(gap)?)));
        Ok(PendingReply {
            to,
            since: self.since.0,
            claimed: self.claimed,
            requested: self.requested,
            numbers: self.numbers,
            gaps: gaps.collect::<Result<_, _>>()?,
            whole: self.whole.unwrap_or(false),
        })
    }
}

impl RecoveryRecord {
    /// Whether a query for the next piece is pending.
    pub(crate) fn reads(&self) -> bool {
        self.reading
    }
}

impl CatchupTable {
    /// Exports the last number of a query, and the offset up to which the mailbox was taken.
    pub(crate) fn export_numbers(&self) -> (u32, u64) {
        (self.number, self.taken)
    }

    /// Imports the same of another engine.
    pub(crate) fn import_numbers(&mut self, number: u32, taken: u64) {
        (self.number, self.taken) = (number, taken);
    }
}

impl Recovery {
    /// Returns true if nothing is due now.
    pub(crate) fn is_quiet(&self) -> bool {
        self.due.is_empty() && self.catchups.releases.is_empty()
    }

    /// Exports the catch-ups of a connection, if it has any. `name` returns the name of a topic that it is in.
    pub(crate) fn export(
        &self,
        slot: u32,
        name: &dyn Fn(u64) -> Option<Name>,
    ) -> Option<RecoveryRecord> {
        // Holds are in the catch-ups, redeliveries are in the acknowledgements, and what is due is computed again.
        let Recovery { catchups: table, due: _, again: _ } = self;
        let CatchupTable { by_slot, many, filters, releases: _, taken: _, number: _, takes: _ } =
            table;
        let (catchups, many, filter) =
            (by_slot.get(&slot), many.contains(&slot), filters.get(&slot));
        if catchups.is_none() && !many && filter.is_none() {
            return None;
        }
        let mut record = RecoveryRecord {
            catchups: Vec::new(),
            replies: Vec::new(),
            reading: false,
            many,
            filter: filter.map(|Filter { all, topics }| {
                let named =
                    |(hash, tags): &(u64, Box<[Name]>)| Some((Text(name(*hash)?), Text::all(tags)));
                FilterRecord {
                    all: Text::all(all),
                    topics: topics.iter().filter_map(named).collect(),
                }
            }),
        };
        if let Some(Catchups { list, reading, replies }) = catchups {
            record.catchups = list.iter().map(Catchup::export).collect();
            record.reading = reading.is_some();
            record.replies = replies.iter().map(PendingReply::export).collect();
        }
        Some(record)
    }

    /// Imports the catch-ups of a connection. No query is made yet.
    pub(crate) fn import(
        &mut self,
        slot: u32,
        record: RecoveryRecord,
        hash: &dyn Fn(&str) -> u64,
    ) -> Result<(), ImportError> {
        let replies = record.replies.into_iter().map(ReplyRecord::import);
        let replies = replies.collect::<Result<Vec<_>, _>>()?;
        let list: Vec<Catchup> =
            record.catchups.into_iter().map(|catchup| catchup.import(hash)).collect();
        for catchup in &list {
            if let Some(second) = catchup.acks.as_ref().and_then(|acks| acks.queued_s) {
                self.again.insert((second, slot, catchup.number));
            }
        }
        if record.many {
            self.catchups.many.insert(slot);
        }
        if let Some(FilterRecord { all, topics }) = record.filter {
            let named = |(name, tags): (Text<Name>, Vec<Text<Name>>)| {
                (hash(&name.0), Text::values::<Vec<Name>>(tags).into())
            };
            let all: Vec<Name> = Text::values(all);
            let topics = topics.into_iter().map(named).collect();
            self.catchups.filters.insert(slot, Filter { all: all.into(), topics });
        }
        if !list.is_empty() {
            self.catchups.by_slot.insert(slot, Catchups { list, reading: None, replies });
        }
        Ok(())
    }

    /// Makes the queries of an imported connection again: where its catch-ups begin, and the next piece if that query
    /// was pending.
    pub(crate) fn restart(&mut self, core: &mut Core, slot: u32, reads: bool) {
        let Some(Catchups { list, .. }) = self.catchups.by_slot.get(&slot) else {
            return;
        };
        // Messages that were in the mailbox then have been taken, or are exported with the fan-outs.
        let pending = list.iter().filter(|it| it.acks.is_none() && it.through != ALL);
        for number in pending.map(|it| it.number).collect::<Vec<_>>() {
            self.catchups.release_later(slot, number);
        }
        self.due.push(slot);
        self.start_again(core, slot);
        if reads {
            self.pull_more(core, slot);
        }
    }

    fn start_again(&mut self, core: &mut Core, slot: u32) {
        let Some(catchups) = self.catchups.by_slot.get(&slot) else {
            return;
        };
        let starting =
            |it: &Catchup| Some((it.cursor.clone(), it.starting.as_ref()?.since.clone()));
        let starting: Vec<_> = catchups.list.iter().filter_map(starting).collect();
        if starting.is_empty() {
            return;
        }
        let topics: Vec<(u64, &str)> =
            starting.iter().map(|(cursor, _)| (cursor.hash, cursor.topic.as_str())).collect();
        let since = |(cursor, since): &(TopicCursor, Option<Box<Since>>)| {
            Some((cursor.topic.clone(), since.as_deref()?.clone()))
        };
        let request =
            ResumeRequest { all: None, topics: starting.iter().filter_map(since).collect() };
        let (start, query) = self.request_start(core, slot, &topics, &request);
        // The positions that the first query returned as certain stay.
        let is_later = query.is_some();
        let query = query.unwrap_or_else(|| Query {
            number: self.catchups.query(),
            requester: Requester::default(),
        });
        let catchups = self.catchups.by_slot.get_mut(&slot).map(|it| &mut it.list);
        for starting in catchups.into_iter().flatten().filter_map(|it| it.starting.as_mut()) {
            starting.query = query.clone();
        }
        if !is_later {
            self.started(core, slot, query.number, start);
        }
    }
}
