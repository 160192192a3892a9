//! How a connection recovers what it missed of topics with history, so that what was before and what comes
//! meet.
//!
//! It enters the topic in the hub first and then asks the history, at one place of the order:
//! whatever was published up to there is found, and whatever comes after it arrives by the mailbox.
//! What arrives by the mailbox and is not after it, since it was under way at that moment, is held
//! back from this connection, until all that was under way has passed.
//!
//! What was missed is pulled in pieces, the next one when the connection has taken the one before;
//! until it has caught up nothing of the topic reaches it live. Of a topic whose users acknowledge
//! nothing ever does: it is pulled as the window allows, and a message only wakes it.

mod acknowledge;
mod handover;
pub(crate) mod page_requests;
pub(crate) mod pages;
mod per_member;
mod position;
mod pull;
mod request;
#[cfg(test)]
pub(crate) mod simulation;
mod verify;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use history::{Asker, History, TopicCursor};
use model::{Name, Position, RecoveryGap, TopicKind};
use model::{ResumeRequest, Since};
use protocol::phoenix::ClientMessage;

use crate::connection::Flag;
use crate::core::Core;
use crate::core::shrink::Shrink;
use position::{Delivered, Pulled, id_with};

pub(crate) use acknowledge::Acks;
pub(crate) use handover::RecoveryRecord;
pub(crate) use per_member::Care;
pub(crate) use verify::has_gap_notice;

/// Catches connections up with their topics that have history, and delivers again what users do not
/// acknowledge.
#[derive(Default)]
pub(crate) struct Recovery {
    pub(crate) catchups: CatchupTable,
    /// Connections for which a message of an acknowledged topic came.
    pub(crate) due: Vec<u32>,
    /// When messages are delivered again: second, slot, and the catch-up's number.
    again: BTreeSet<(u32, u32, u32)>,
}

/// How connections catch up, by slot, and what goes with it. Most connections are in none of these.
#[derive(Default)]
pub(crate) struct CatchupTable {
    by_slot: HashMap<u32, Catchups>,
    /// Connections on SSE that are in more than one topic with history: the id of a message alone
    /// doesn't say how far they have everything.
    many: HashSet<u32>,
    /// What connections choose by tags.
    filters: HashMap<u32, Filter>,
    /// Holds that end when all that was under way has passed, in the order of their places.
    releases: VecDeque<Release>,
    /// Every message with history up to this offset that was for this shard has been taken from its
    /// mailbox.
    taken: u64,
    /// The last number that a catch-up or a query has.
    number: u32,
    /// How often the mailbox was emptied.
    pub(crate) takes: u64,
}

/// The catch-ups of a connection. They stay here while something is to be done.
#[derive(Default)]
struct Catchups {
    list: Vec<Catchup>,
    /// The history reads the next piece; with the number of the query.
    reading: Option<u32>,
    /// What the client is answered when the first piece is there.
    replies: Vec<PendingReply>,
}

/// How a connection catches up with a topic.
struct Catchup {
    /// Tells it from one of the same topic that was before.
    number: u32,
    /// The topic, and the offset up to which it was pulled.
    cursor: TopicCursor,
    /// Live messages are deferred up to this offset; all of them, while there is more to pull.
    through: u64,
    /// The history has still to say from where. Until then `cursor` claims no more than is known.
    starting: Option<Starting>,
    /// The offset of the last live message that was deferred, or only woke the connection.
    deferred_offset: u64,
    /// The connection's user acknowledges the messages.
    acks: Option<Box<Acks>>,
    /// The topic is compacted: the client is told when it has all of the state.
    compact: bool,
}

/// The history was asked where a catch-up begins.
struct Starting {
    query: Query,
    /// From where the client said that it wants the topic; one that did not begins where it entered.
    since: Option<Box<Since>>,
    /// The last offset that was handed on when it entered.
    top: u64,
}

/// A query that the history answers later.
#[derive(Clone)]
pub(crate) struct Query {
    pub number: u32,
    /// Goes with what waits for the answer, so that nothing is read for who has left.
    pub asker: Asker,
}

/// Releases that one turn checks.
const RELEASES: usize = 1_024;

/// Everything that comes live is held back.
const ALL: u64 = u64::MAX;

impl CatchupTable {
    /// Gives room back that a crowd has left.
    pub fn shrink(&mut self) {
        self.by_slot.shrink();
        self.many.shrink();
        self.filters.shrink();
        self.releases.shrink();
    }

    /// A number for a query or a catch-up.
    pub fn query(&mut self) -> u32 {
        self.number = self.number.wrapping_add(1);
        self.number
    }
}

impl Catchup {
    fn pulls(&self) -> bool {
        self.acks.is_none() && self.through == ALL
    }

    /// The history was asked, or is to be, whether what waits for its user is all there.
    fn verifies(&self) -> bool {
        self.acks.as_ref().is_some_and(|acks| acks.verifies)
    }

    /// Who asked is told when the history has answered.
    fn waits(&self) -> bool {
        self.pulls() || self.verifies()
    }
}

struct Release {
    slot: u32,
    number: u32,
    /// How often the mailbox had been emptied when the hold was made.
    takes: u64,
}

/// The messages that a connection wants, by their tags.
#[derive(Default)]
struct Filter {
    /// Of all topics that are not named below.
    all: Box<[Name]>,
    topics: Vec<(u64, Box<[Name]>)>,
}

/// How a client learns where its catch-up begins.
#[derive(Debug)]
pub(crate) enum ReplyTo {
    /// The client did not request it.
    Nowhere,
    /// By a line or an event of its own, where that is the transport's way.
    Line,
    /// By the reply to the request of this id, for this topic.
    Id(Box<str>, Name),
    /// By the answer to a Phoenix client's join, with the application's response to it.
    Phoenix(Box<ClientMessage>, Box<str>),
}

/// An answer to a client that waits for the first piece.
struct PendingReply {
    to: ReplyTo,
    /// The place from which it would have to ask again.
    since: Position,
    /// That place is what can be claimed until the history has said where the catch-up begins.
    claimed: bool,
    /// It asked for what it missed.
    requested: bool,
    /// The catch-ups that it is about.
    numbers: Vec<u32>,
    gaps: Vec<(Name, RecoveryGap)>,
    /// Some of them begin with what is there: where that is, the first piece says.
    whole: bool,
}

impl PendingReply {
    /// Whether it says if all is there: to who asked, and to whom something is gone that waited.
    fn says_gaps(&self) -> bool {
        self.requested || !self.gaps.is_empty()
    }
}

impl Recovery {
    /// Gives room back that a crowd has left.
    pub fn shrink(&mut self) {
        self.catchups.shrink();
        self.due.shrink();
    }

    /// The connection is in these topics now, and asked for what it missed. The answer and the
    /// first of that go to `out`.
    pub(crate) fn begin(
        &mut self,
        core: &mut Core,
        slot: u32,
        topics: &[Name],
        request: &ResumeRequest,
        to: ReplyTo,
        out: &mut Vec<u8>,
    ) {
        // An MQTT client has its session for that.
        if !core.is_open(slot) || core.mqtt.has(slot) {
            return;
        }
        let mut reply = PendingReply {
            to,
            since: core.history().top(),
            claimed: false,
            requested: !request.is_empty(),
            numbers: Vec::new(),
            gaps: Vec::new(),
            whole: false,
        };
        let (mut plain, mut any) = (Vec::new(), false);
        for topic in topics {
            let Some(rule_of_topic) = core.history().rule(topic) else {
                // Users' own topics come along with everything: only who names them learns of a gap.
                let own = TopicKind::of(topic).is_personal();
                if request.of(topic).is_some_and(|_| !own)
                    || request.topics.iter().any(|it| it.0 == *topic)
                {
                    reply.gaps.push((topic.clone(), RecoveryGap::NoHistory));
                }
                continue;
            };
            any = true;
            let user = rule_of_topic.acknowledge.as_ref().and_then(|_| core.user_of(slot, topic));
            match user {
                Some(user) => {
                    let (number, is_gone) =
                        self.begin_acknowledged(core, slot, topic, user, rule_of_topic, request);
                    reply.numbers.push(number);
                    if is_gone {
                        reply.gaps.push((topic.clone(), RecoveryGap::TooOld));
                    }
                }
                None => plain.push((topic.clone(), rule_of_topic.compact)),
            }
        }
        if reply.requested && !any && reply.gaps.is_empty() {
            let named = topics.iter().find(|topic| !TopicKind::of(topic).is_personal());
            reply.gaps.extend(
                named.or(topics.first()).map(|name| (name.clone(), RecoveryGap::NoHistory)),
            );
        }
        self.begin_plain(core, slot, &plain, request, &mut reply);
        self.become_recoverable(core, slot, any, plain.len());
        let Some(catchups) = self.catchups.by_slot.get_mut(&slot) else {
            return self.reply(core, slot, reply, out);
        };
        let waits = |number: &u32| {
            catchups.list.iter().any(|catchup| catchup.number == *number && catchup.waits())
        };
        // In a line of its own nobody is told of more than where it has entered, if nobody asked.
        let verifies =
            |number: &u32| catchups.list.iter().any(|it| it.number == *number && it.verifies());
        let says_more = reply.requested
            || reply.whole
            || !matches!(reply.to, ReplyTo::Line | ReplyTo::Nowhere)
            || reply.numbers.iter().any(verifies);
        if says_more && reply.numbers.iter().any(waits) {
            catchups.replies.push(reply);
        } else {
            self.reply(core, slot, reply, out);
        }
        self.pull_on(core, slot, out);
    }

    /// The same for topics that nobody asked anything about, and that the connection got into.
    pub(crate) fn begin_now(&mut self, core: &mut Core, slot: u32, topics: &[Name]) {
        if core.protocol(slot).is_some_and(|protocol| protocol.capabilities().joins) {
            // Its client catches up with what it joins.
            return;
        }
        let mut out = Vec::new();
        self.begin(core, slot, topics, &ResumeRequest::default(), ReplyTo::Nowhere, &mut out);
        if !out.is_empty() {
            core.send(slot, &out, 0);
        }
    }

    fn begin_plain(
        &mut self,
        core: &mut Core,
        slot: u32,
        topics: &[(Name, bool)],
        request: &ResumeRequest,
        reply: &mut PendingReply,
    ) {
        if topics.is_empty() {
            return;
        }
        let hashed: Vec<(u64, &str)> =
            topics.iter().map(|(topic, _)| (core.broker.hash(topic), topic.as_str())).collect();
        let (start, query) = self.request_start(core, slot, &hashed, request);
        let top = start.top.offset;
        (reply.since, reply.claimed) = (start.top, query.is_some());
        reply.whole = start.topics.iter().all(|cursor| cursor.whole);
        for ((cursor, gap), (_, compact)) in start.topics.into_iter().zip(start.gaps).zip(topics) {
            if let Some(gap) = gap {
                reply.gaps.push((cursor.topic.clone(), gap));
            }
            let (since, compact) = (request.of(&cursor.topic), *compact);
            let says = since.is_some();
            let starting = query.clone().map(|query| {
                let since = since.cloned().map(Box::new);
                Starting { query, since, top }
            });
            // The end of a compacted topic is where its state is complete: it is read in any case.
            let pulls = compact || cursor.after < top || starting.is_some();
            if pulls && says && !cursor.whole {
                reply.since.offset = reply.since.offset.min(cursor.after);
            }
            reply.whole |= says && cursor.whole;
            self.catchups.number = self.catchups.number.wrapping_add(1);
            let number = self.catchups.number;
            let through = if pulls { ALL } else { top };
            reply.numbers.push(number);
            if !pulls {
                self.catchups.release_later(slot, number);
            }
            let catchups = self.catchups.by_slot.entry(slot).or_default();
            catchups.list.retain(|catchup| catchup.cursor.hash != cursor.hash);
            let (deferred_offset, acks) = (0, None);
            let catchup =
                Catchup { number, cursor, through, starting, deferred_offset, acks, compact };
            catchups.list.push(catchup);
        }
    }

    /// Where ids are what a client returns with, those of a connection that is in topics with history say
    /// how far it has everything.
    fn become_recoverable(&mut self, core: &mut Core, slot: u32, any: bool, plain: usize) {
        if !any || !core.protocol(slot).is_some_and(|protocol| protocol.capabilities().ids_resume) {
            return;
        }
        // Topics that it leaves count on: what it comes back with may name them.
        if plain > 0 && self.catchups.plain_topics(core, slot).nth(1).is_some() {
            self.catchups.many.insert(slot);
        }
        core.set(slot, Flag::Resumable, true);
    }

    /// The connection has left a topic.
    pub(crate) fn end_topic(&mut self, slot: u32, hash: u64) {
        if let Some(catchups) = self.catchups.by_slot.get_mut(&slot) {
            for catchup in catchups.list.extract_if(.., |catchup| catchup.cursor.hash == hash) {
                cancel_redelivery(&mut self.again, slot, &catchup);
            }
            let Catchups { list, replies, .. } = catchups;
            let is_here = |number: &u32| list.iter().any(|catchup| catchup.number == *number);
            replies.retain(|reply| reply.numbers.iter().any(is_here));
            // While the disk reads for it, it asks for nothing else.
            if catchups.list.is_empty() && catchups.reading.is_none() {
                self.catchups.by_slot.remove(&slot);
            }
        }
        if let Some(filter) = self.catchups.filters.get_mut(&slot) {
            filter.topics.retain(|(of, _)| *of != hash);
        }
    }

    /// The connection has left.
    pub(crate) fn forget(&mut self, slot: u32) {
        if let Some(catchups) = self.catchups.by_slot.remove(&slot) {
            catchups
                .list
                .iter()
                .for_each(|catchup| cancel_redelivery(&mut self.again, slot, catchup));
        }
        self.catchups.many.remove(&slot);
        self.catchups.filters.remove(&slot);
    }

    /// Sends live messages to connections again that have caught up, once no deferred message is under way
    /// any more. To be called once a turn, when commands have been done.
    pub fn release_pending(&mut self, core: &mut Core) {
        if self.catchups.releases.is_empty() || !core.commands.is_empty() {
            return;
        }
        let (mut later, mut left) = (VecDeque::new(), RELEASES);
        // What was pushed before a hold was made has been taken, if the mailbox was emptied since or
        // is empty; and all that was taken is done.
        let takes = self.catchups.takes;
        let empty = core.handle.inbox.queue.is_empty();
        while let Some(release) = self
            .catchups
            .releases
            .pop_front_if(|release| left > 0 && (empty || release.takes < takes))
        {
            left -= 1;
            let Some(catchups) = self.catchups.by_slot.get(&release.slot) else {
                continue;
            };
            let found = catchups.list.iter().find(|catchup| catchup.number == release.number);
            let Some(catchup) = found else {
                continue;
            };
            let (through, hash) = (catchup.through, catchup.cursor.hash);
            let owed = core.hub.owed(release.slot, Some((hash, &catchup.cursor.topic)));
            if owed.iter().any(|message| message.id.offset <= through) {
                later.push_back(release);
                continue;
            }
            self.catchups.taken = self.catchups.taken.max(through);
            self.catchups.complete(release.slot, release.number);
        }
        self.catchups.releases.append(&mut later);
    }
}

impl CatchupTable {
    /// The connection wants only messages with one of these tags: of one topic, or of all but
    /// users' own.
    pub(crate) fn choose(
        &mut self,
        core: &mut Core,
        slot: u32,
        topic: Option<&str>,
        tags: &[Name],
    ) {
        if topic.is_none() && tags.is_empty() {
            return;
        }
        let hash = topic.map(|topic| core.broker.hash(topic));
        let filter = self.filters.entry(slot).or_default();
        match hash {
            None => filter.all = tags.into(),
            Some(hash) => {
                filter.topics.retain(|(of, _)| *of != hash);
                if !tags.is_empty() {
                    filter.topics.push((hash, tags.into()));
                }
            }
        }
        if filter.all.is_empty() && filter.topics.is_empty() {
            self.filters.remove(&slot);
        }
    }

    /// A message with history was taken from the mailbox.
    pub(crate) fn took(&mut self, offset: u64) {
        self.taken = self.taken.max(offset);
    }

    pub(crate) fn release_later(&mut self, slot: u32, number: u32) {
        let takes = self.takes;
        self.releases.push_back(Release { slot, number, takes });
    }

    pub(crate) fn complete(&mut self, slot: u32, number: u32) {
        if let Some(catchups) = self.by_slot.get_mut(&slot) {
            catchups.list.retain(|catchup| catchup.number != number);
            if catchups.list.is_empty() && catchups.reading.is_none() {
                self.by_slot.remove(&slot);
            }
        }
    }
}

impl Core {
    pub(crate) fn history(&self) -> &dyn History {
        &*self.history
    }

    /// The user of the connection who acknowledges messages of this topic.
    pub(crate) fn user_of(&self, slot: u32, topic: &str) -> Option<Name> {
        let mut users = self.users(slot);
        match TopicKind::of(topic).user() {
            Some(own) => users.find(|user| *user == own).map(Name::from),
            None => users.next().map(Name::from),
        }
    }
}

/// Nothing of a catch-up that has ended is delivered again.
fn cancel_redelivery(again: &mut BTreeSet<(u32, u32, u32)>, slot: u32, catchup: &Catchup) {
    if let Some(second) = catchup.acks.as_ref().and_then(|acks| acks.queued_s) {
        again.remove(&(second, slot, catchup.number));
    }
}

/// The cursor and the acknowledgements of one catch-up.
fn acks_of(catchups: Option<&mut Catchups>, number: u32) -> Option<(&mut TopicCursor, &mut Acks)> {
    let catchup = catchups?.list.iter_mut().find(|catchup| catchup.number == number)?;
    let Catchup { cursor, acks, .. } = catchup;
    Some((cursor, acks.as_deref_mut()?))
}
