//! Recovery: how a connection gets the messages of topics with history that it missed, without a gap and without a
//! duplicate before the live messages.
//!
//! The connection first joins the topic in the hub. Then the engine queries the history at one offset of the log: the
//! history has every message up to this offset, and every later message arrives by the mailbox. A message that was in
//! the mailbox at that moment may come both ways. So live messages up to the offset are deferred for this connection
//! until the mailbox has been emptied.
//!
//! Missed messages are pulled in pieces, the next one when the connection has sent the one before. Until the connection
//! has caught up, it gets no live messages of the topic. A topic whose users acknowledge never sends live messages: its
//! messages are pulled as the window allows, and a live message only wakes the connection.

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

use history::{History, Requester, TopicCursor};
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

/// The catch-ups of all connections, and the messages that are delivered again because their users did not acknowledge
/// them.
#[derive(Default)]
pub(crate) struct Recovery {
    pub(crate) catchups: CatchupTable,
    /// Connections that a message of an acknowledged topic has woken.
    pub(crate) due: Vec<u32>,
    /// When messages are delivered again: the second, the slot, and the number of the catch-up.
    again: BTreeSet<(u32, u32, u32)>,
}

/// Catch-ups by slot, and what belongs to them. Most connections are in none of these tables.
#[derive(Default)]
pub(crate) struct CatchupTable {
    by_slot: HashMap<u32, Catchups>,
    /// Connections by SSE in more than one topic with history. The id of one message does not say up to where they have
    /// the messages of all topics.
    many: HashSet<u32>,
    /// The tag filters of connections.
    filters: HashMap<u32, Filter>,
    /// Holds in the order of their offsets. Each ends when the mailbox has been emptied after it began.
    releases: VecDeque<Release>,
    /// This shard has taken every message with history up to this offset from its mailbox.
    taken: u64,
    /// The last number of a catch-up or a query.
    number: u32,
    /// How many times the mailbox was emptied.
    pub(crate) takes: u64,
}

/// The catch-ups of a connection that are not finished.
#[derive(Default)]
struct Catchups {
    list: Vec<Catchup>,
    /// The number of the query, while the history reads the next piece.
    reading: Option<u32>,
    /// The reply to the client that waits for the first piece.
    replies: Vec<PendingReply>,
}

/// How a connection catches up with one topic.
struct Catchup {
    /// A number that no earlier catch-up with the same topic has.
    number: u32,
    /// The topic, and the offset up to which its messages were pulled.
    cursor: TopicCursor,
    /// Live messages up to this offset are deferred. While there is more to pull, all are.
    through: u64,
    /// The history has not replied yet where the catch-up begins. Until then `cursor` claims only what is certain.
    starting: Option<Starting>,
    /// The offset of the last live message that was deferred or that woke the connection.
    deferred_offset: u64,
    /// The user of the connection acknowledges the messages.
    acks: Option<Box<Acks>>,
    /// The topic is compacted: the client gets a notice when it has the whole state.
    compact: bool,
}

/// A query where a catch-up begins.
struct Starting {
    query: Query,
    /// The position that the client named. Without one, the catch-up begins where the connection joined.
    since: Option<Box<Since>>,
    /// The last offset that had been delivered when the connection joined.
    top: u64,
}

/// A query to which the history replies later.
#[derive(Clone)]
pub(crate) struct Query {
    pub number: u32,
    /// Is dropped with what waits for the reply, so that the history reads nothing for a connection that has ended.
    pub requester: Requester,
}

/// How many releases one turn checks.
const RELEASES: usize = 1_024;

/// All live messages are deferred.
const ALL: u64 = u64::MAX;

impl CatchupTable {
    /// Gives memory back after many connections have ended.
    pub fn shrink(&mut self) {
        self.by_slot.shrink();
        self.many.shrink();
        self.filters.shrink();
        self.releases.shrink();
    }

    /// Returns a new number for a query or a catch-up.
    pub fn query(&mut self) -> u32 {
        self.number = self.number.wrapping_add(1);
        self.number
    }
}

impl Catchup {
    fn pulls(&self) -> bool {
        self.acks.is_none() && self.through == ALL
    }

    /// A query whether the history still has every message that the user has not acknowledged is pending or due.
    fn verifies(&self) -> bool {
        self.acks.as_ref().is_some_and(|acks| acks.verifies)
    }

    /// The client gets a reply when the history has replied.
    fn waits(&self) -> bool {
        self.pulls() || self.verifies()
    }
}

struct Release {
    slot: u32,
    number: u32,
    /// How many times the mailbox had been emptied when the hold began.
    takes: u64,
}

/// The tag filters of a connection.
#[derive(Default)]
struct Filter {
    /// The filter of all topics that have none of their own.
    all: Box<[Name]>,
    topics: Vec<(u64, Box<[Name]>)>,
}

/// How a client learns where its catch-up begins.
#[derive(Debug)]
pub(crate) enum ReplyTo {
    /// The client did not request it.
    Nowhere,
    /// By a line or an event of its own, where the transport has these.
    Line,
    /// By the reply to the request of this id, for this topic.
    Id(Box<str>, Name),
    /// By the reply to the join of a Phoenix client, with the application's response.
    Phoenix(Box<ClientMessage>, Box<str>),
}

/// A reply to a client that waits for the first piece.
struct PendingReply {
    to: ReplyTo,
    /// The position from which the client would have to recover next time.
    since: Position,
    /// The position is what is certain until the history has replied where the catch-up begins.
    claimed: bool,
    /// The client requested what it missed.
    requested: bool,
    /// The catch-ups of the reply.
    numbers: Vec<u32>,
    gaps: Vec<(Name, RecoveryGap)>,
    /// Some of them begin with the oldest stored message. The first piece has its position.
    whole: bool,
}

impl PendingReply {
    /// Returns true if the reply says whether anything is missing: to a client that requested recovery, or for which a
    /// queued message was dropped.
    fn says_gaps(&self) -> bool {
        self.requested || !self.gaps.is_empty()
    }
}

impl Recovery {
    /// Gives memory back after many connections have ended.
    pub fn shrink(&mut self) {
        self.catchups.shrink();
        self.due.shrink();
    }

    /// The connection has joined these topics, and requests what it missed. The reply and the first messages go to
    /// `out`.
    pub(crate) fn begin(
        &mut self,
        core: &mut Core,
        slot: u32,
        topics: &[Name],
        request: &ResumeRequest,
        to: ReplyTo,
        out: &mut Vec<u8>,
    ) {
        // An MQTT client recovers by its session.
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
                // Every connection is in its users' personal topics. Only a client that names them gets a gap notice.
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
        // Without a request, a line of its own only says where the connection has joined.
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

    /// Begins the catch-ups of topics that the connection has joined without a request for recovery, and sends the
    /// first messages, if there are any.
    pub(crate) fn begin_now(&mut self, core: &mut Core, slot: u32, topics: &[Name]) {
        if core.protocol(slot).is_some_and(|protocol| protocol.capabilities().joins) {
            // A Phoenix client recovers each topic by its join.
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
            // A compacted topic is always read to its end: there its state is complete.
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

    /// If the client comes back with ids, the ids of a connection in topics with history say up to where it has
    /// everything.
    fn become_recoverable(&mut self, core: &mut Core, slot: u32, any: bool, plain: usize) {
        if !any || !core.protocol(slot).is_some_and(|protocol| protocol.capabilities().ids_resume) {
            return;
        }
        // Topics that it has left still count: a position that the client comes back with may name them.
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
            // While the history reads for this connection, it has no other query.
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

    /// Lets connections that have caught up get live messages again, once no deferred message can come any more. The
    /// driver calls this once a turn, after the commands.
    pub fn release_pending(&mut self, core: &mut Core) {
        if self.catchups.releases.is_empty() || !core.commands.is_empty() {
            return;
        }
        let (mut later, mut left) = (VecDeque::new(), RELEASES);
        // If the mailbox was emptied since the hold began, or is empty, then everything that was pushed before the hold
        // has been taken, and what was taken has been processed.
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
    /// Sets the tag filter of a connection: of one topic, or of all topics but personal ones.
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

    /// Returns the user for whom the connection acknowledges messages of this topic.
    pub(crate) fn user_of(&self, slot: u32, topic: &str) -> Option<Name> {
        let mut users = self.users(slot);
        match TopicKind::of(topic).user() {
            Some(own) => users.find(|user| *user == own).map(Name::from),
            None => users.next().map(Name::from),
        }
    }
}

/// Removes the redeliveries of a catch-up that has ended.
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
