//! How a connection follows topics with history, so that what was before and what comes meet.
//!
//! It enters the topic in the hub first and then looks at the history, at one place of the order:
//! whatever was published up to there is found, and whatever comes after it arrives by the mailbox.
//! What arrives by the mailbox and is not after it, since it was under way at that moment, is held
//! back from this connection, until all that was under way has passed.
//!
//! What was missed is pulled in pieces, the next one when the connection has taken the one before;
//! until it has caught up nothing of the topic reaches it live. Of a topic whose users acknowledge
//! nothing ever does: it is pulled as the window allows, and a message only wakes it.

mod acknowledge;
mod pull;
#[cfg(test)]
pub(crate) mod simulation;
mod special;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use broker::{Kept, Wanted};
use wire::message::PERSONAL;
use wire::session::{Asked, Heard};
use wire::{Behind, Id, Lost, Message, Name, Position, Since};

use crate::shard::Shard;
use crate::tidy::Roomy;

pub(crate) use acknowledge::Acks;

/// What connections follow, by slot, and what goes with it. Most connections are in none of these.
#[derive(Default)]
pub(crate) struct Following {
    followers: HashMap<u32, Follower>,
    /// Connections on SSE that are in more than one topic with history: the id of a message alone
    /// doesn't say how far they have everything.
    many: HashSet<u32>,
    /// What connections choose by tags.
    filters: HashMap<u32, Filter>,
    /// Holds that end when all that was under way has passed, in the order of their places.
    lifts: VecDeque<Lift>,
    /// Connections for which a message of an acknowledged topic came.
    pub(crate) due: Vec<u32>,
    /// When messages are delivered again: second, slot, and the follow's number.
    again: BTreeSet<(u32, u32, u32)>,
    /// Every message with history up to this offset that was for this shard has been taken from its
    /// mailbox.
    taken: u64,
    /// The last number that was given to a follow.
    number: u32,
    /// How often the mailbox was emptied.
    pub(crate) takes: u64,
}

/// A connection that follows topics with history. It stays here while something is to be done.
#[derive(Default)]
struct Follower {
    follows: Vec<Follow>,
    /// The disk was asked for the next piece; with the number of the question.
    reading: Option<u32>,
    /// What the client is told when the first piece is there.
    tells: Vec<Tell>,
}

/// A topic that is followed.
struct Follow {
    /// Tells it from one of the same topic that was before.
    number: u32,
    /// The topic, and the offset up to which it was pulled.
    wanted: Wanted,
    /// What comes live is held back up to this offset; all of it, while there is more to pull.
    through: u64,
    /// The connection's user acknowledges the messages.
    acks: Option<Box<Acks>>,
}

/// Holds that one turn looks at.
const LIFTS: usize = 1_024;

/// Everything that comes live is held back.
const ALL: u64 = u64::MAX;

impl Following {
    /// Gives room back that a crowd has left.
    pub fn tidy(&mut self) {
        self.followers.tidy();
        self.many.tidy();
        self.filters.tidy();
        self.lifts.tidy();
        self.due.tidy();
    }

    /// A number for what is asked or followed.
    pub fn question(&mut self) -> u32 {
        self.number = self.number.wrapping_add(1);
        self.number
    }
}

impl Follow {
    fn pulls(&self) -> bool {
        self.acks.is_none() && self.through == ALL
    }
}

struct Lift {
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

/// How a client is told from where it follows.
#[derive(Debug)]
pub(crate) enum To {
    /// Nobody asked.
    Nobody,
    /// By a line or an event of its own, where that is the transport's way.
    Line,
    /// By the answer to a WebSocket's command of this id, for this topic.
    Ws(Box<str>, Name),
    /// By the answer to a Phoenix client's join, with the application's response to it.
    Phoenix(Box<Heard>, Box<str>),
}

/// What a client is to be told.
struct Tell {
    to: To,
    /// The place from which it would have to ask again.
    since: Id,
    /// It asked for what it missed.
    asked: bool,
    /// The follows that it is about.
    numbers: Vec<u32>,
    lost: Vec<(Name, Lost)>,
}

impl Shard {
    pub(crate) fn kept(&self) -> &Kept {
        self.broker.kept()
    }

    /// The connection is in these topics now, and asked for what it missed. What it is told and the
    /// first of that goes to `out`.
    pub(crate) fn follow(
        &mut self,
        slot: u32,
        topics: &[Name],
        asked: &Asked,
        to: To,
        out: &mut Vec<u8>,
    ) {
        if !self.is_open(slot) {
            return;
        }
        let mut tell = Tell {
            to,
            since: self.kept().top(),
            asked: !asked.is_empty(),
            numbers: Vec::new(),
            lost: Vec::new(),
        };
        let (mut plain, mut any) = (Vec::new(), false);
        for topic in topics {
            let Some(keep) = self.kept().rule(topic) else {
                // Users' own topics come along with everything: only who names them is told.
                let own = topic.starts_with(PERSONAL);
                if asked.of(topic).is_some_and(|_| !own)
                    || asked.topics.iter().any(|it| it.0 == *topic)
                {
                    tell.lost.push((topic.clone(), Lost::NoHistory));
                }
                continue;
            };
            any = true;
            let user = keep.acknowledge.as_ref().and_then(|_| self.user_of(slot, topic));
            match user {
                Some(user) => {
                    let (number, whole) = self.follow_acknowledged(slot, topic, user, keep, asked);
                    tell.numbers.push(number);
                    if tell.asked && !whole {
                        tell.lost.push((topic.clone(), Lost::TooOld));
                    }
                }
                None => plain.push(topic.clone()),
            }
        }
        if tell.asked && !any && tell.lost.is_empty() {
            let named = topics.iter().find(|topic| !topic.starts_with(PERSONAL));
            tell.lost.extend(named.or(topics.first()).map(|name| (name.clone(), Lost::NoHistory)));
        }
        self.follow_plain(slot, &plain, asked, &mut tell);
        self.keep_variant(slot, any, plain.len());
        let Some(follower) = self.following.followers.get_mut(&slot) else {
            return self.tell(slot, tell, out);
        };
        let waits = |number: &u32| {
            follower.follows.iter().any(|follow| follow.number == *number && follow.pulls())
        };
        if tell.numbers.iter().any(waits) {
            follower.tells.push(tell);
        } else {
            self.tell(slot, tell, out);
        }
        self.pull_on(slot, out);
    }

    /// The same for topics that nobody asked anything about, and that the connection got into.
    pub(crate) fn follow_now(&mut self, slot: u32, topics: &[Name]) {
        let variant = self.table.get(slot).map(|connection| connection.variant);
        if variant.is_some_and(|variant| variant.phoenix().is_some()) {
            // A Phoenix client follows what it joins.
            return;
        }
        let mut out = Vec::new();
        self.follow(slot, topics, &Asked::default(), To::Nobody, &mut out);
        if !out.is_empty() {
            self.send(slot, &out, 0);
        }
    }

    fn follow_plain(&mut self, slot: u32, topics: &[Name], asked: &Asked, tell: &mut Tell) {
        if topics.is_empty() {
            return;
        }
        let hashed: Vec<(u64, &str)> =
            topics.iter().map(|topic| (self.broker.hash(topic), topic.as_str())).collect();
        let start = self.kept().start(&hashed, asked);
        let top = start.top.offset;
        tell.since = start.top;
        for (wanted, lost) in start.topics.into_iter().zip(start.lost) {
            if let Some(lost) = lost {
                tell.lost.push((wanted.topic.clone(), lost));
            }
            let pulls = wanted.after < top;
            if pulls && asked.of(&wanted.topic).is_some() {
                tell.since.offset = tell.since.offset.min(wanted.after);
            }
            self.following.number = self.following.number.wrapping_add(1);
            let number = self.following.number;
            let through = if pulls { ALL } else { top };
            tell.numbers.push(number);
            if !pulls {
                self.lift_later(slot, number);
            }
            let follower = self.following.followers.entry(slot).or_default();
            follower.follows.retain(|follow| follow.wanted.hash != wanted.hash);
            follower.follows.push(Follow { number, wanted, through, acks: None });
        }
    }

    /// The user of the connection who acknowledges messages of this topic.
    pub(crate) fn user_of(&self, slot: u32, topic: &str) -> Option<Name> {
        let own = topic.strip_prefix(PERSONAL);
        let mut users = self.hub.topics_of(slot).filter_map(|name| name.strip_prefix(PERSONAL));
        match own {
            Some(own) => users.find(|user| *user == own).map(Name::from),
            None => users.next().map(Name::from),
        }
    }

    /// On SSE the ids of a connection that is in topics with history say how far it has everything.
    fn keep_variant(&mut self, slot: u32, any: bool, plain: usize) {
        let Some(variant) = self.table.get(slot).map(|connection| connection.variant) else {
            return;
        };
        if !any || variant.sse_json().is_none() {
            return;
        }
        // Topics that it leaves count on: what it comes back with may name them.
        if plain > 0 && self.plain_topics(slot).nth(1).is_some() {
            self.following.many.insert(slot);
        }
        if !variant.is_kept() {
            self.metrics.connections[variant as usize].sub(1);
            self.metrics.connections[variant.kept() as usize].add(1);
            if let Some(connection) = self.table.get_mut(slot) {
                connection.variant = variant.kept();
            }
        }
    }

    /// The connection wants only messages with one of these tags: of one topic, or of all but
    /// users' own.
    pub(crate) fn choose(&mut self, slot: u32, topic: Option<&str>, tags: &[Name]) {
        if topic.is_none() && tags.is_empty() {
            return;
        }
        let hash = topic.map(|topic| self.broker.hash(topic));
        let filter = self.following.filters.entry(slot).or_default();
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
            self.following.filters.remove(&slot);
        }
    }

    /// The connection has left a topic.
    pub(crate) fn unfollow(&mut self, slot: u32, hash: u64) {
        if let Some(follower) = self.following.followers.get_mut(&slot) {
            for follow in follower.follows.extract_if(.., |follow| follow.wanted.hash == hash) {
                forget(&mut self.following.again, slot, &follow);
            }
            let Follower { follows, tells, .. } = follower;
            let is_here = |number: &u32| follows.iter().any(|follow| follow.number == *number);
            tells.retain(|tell| tell.numbers.iter().any(is_here));
            // While the disk reads for it, it asks for nothing else.
            if follower.follows.is_empty() && follower.reading.is_none() {
                self.following.followers.remove(&slot);
            }
        }
        if let Some(filter) = self.following.filters.get_mut(&slot) {
            filter.topics.retain(|(of, _)| *of != hash);
        }
    }

    /// The connection has left.
    pub(crate) fn unfollow_all(&mut self, slot: u32) {
        if let Some(follower) = self.following.followers.remove(&slot) {
            let again = &mut self.following.again;
            follower.follows.iter().for_each(|follow| forget(again, slot, follow));
        }
        self.following.many.remove(&slot);
        self.following.filters.remove(&slot);
    }

    /// A message with history was taken from the mailbox.
    pub(crate) fn took(&mut self, offset: u64) {
        self.following.taken = self.following.taken.max(offset);
    }

    fn lift_later(&mut self, slot: u32, number: u32) {
        let takes = self.following.takes;
        self.following.lifts.push_back(Lift { slot, number, takes });
    }

    /// Ends the holds behind which nothing is under way any more. To be called once a turn, when
    /// commands have been done.
    pub(crate) fn lift(&mut self) {
        if self.following.lifts.is_empty() || !self.commands.is_empty() {
            return;
        }
        let (mut later, mut left) = (VecDeque::new(), LIFTS);
        // What was pushed before a hold was made has been taken, if the mailbox was emptied since or
        // is empty; and all that was taken is done.
        let takes = self.following.takes;
        let empty = self.handle.inbox.mailbox.is_empty();
        while let Some(lift) =
            self.following.lifts.pop_front_if(|lift| left > 0 && (empty || lift.takes < takes))
        {
            left -= 1;
            let Some(follower) = self.following.followers.get(&lift.slot) else {
                continue;
            };
            let found = follower.follows.iter().find(|follow| follow.number == lift.number);
            let Some(follow) = found else {
                continue;
            };
            let (through, hash) = (follow.through, follow.wanted.hash);
            let owed = self.hub.owed(lift.slot, Some((hash, &follow.wanted.topic)));
            if owed.iter().any(|message| message.id.offset <= through) {
                later.push_back(lift);
                continue;
            }
            self.following.taken = self.following.taken.max(through);
            self.let_go(lift.slot, lift.number);
        }
        self.following.lifts.append(&mut later);
    }

    fn let_go(&mut self, slot: u32, number: u32) {
        if let Some(follower) = self.following.followers.get_mut(&slot) {
            follower.follows.retain(|follow| follow.number != number);
            if follower.follows.is_empty() && follower.reading.is_none() {
                self.following.followers.remove(&slot);
            }
        }
    }

    /// How far a connection has everything of its topics with history, when what was sent to it so
    /// far has come, and what is said in `given`.
    fn position(&self, slot: u32, given: &Given<'_>) -> Position {
        // Of one topic, what is behind comes before what waits.
        let mut behind = self.first_of_each(slot, given.behind.iter().map(|message| &**message));
        given.waiting.iter().for_each(|waits| lower(&mut behind, *waits));
        let mut through = self.following.taken;
        if self.plain_follows(slot).next().is_some() {
            // Not all topics are as far as the mailbox.
            let has = self.has(slot, given);
            through = has.iter().map(|topic| topic.after).max().unwrap_or(through);
            for topic in has.into_iter().filter(|topic| topic.after < through) {
                let mark = wire::since::mark(&topic.topic);
                lower(&mut behind, Behind { topic: mark, through: topic.after });
            }
        }
        if behind.len() > wire::since::BEHIND_MAX {
            // Too many to name: better some twice than one not at all.
            through = behind.iter().map(|it| it.through).min().unwrap_or(through);
            behind.clear();
        }
        Position { through: Id { epoch: self.kept().epoch(), offset: through }, behind }
    }

    /// How far a connection has the topics of which the hub owes it something.
    fn waiting(&self, slot: u32) -> Vec<Behind> {
        self.first_of_each(slot, self.hub.owed(slot, None).into_iter().map(|message| &**message))
    }

    /// The places before the first message of each topic.
    fn first_of_each<'a>(
        &self,
        slot: u32,
        messages: impl Iterator<Item = &'a Message>,
    ) -> Vec<Behind> {
        let mut behind = Vec::new();
        for message in messages.filter(|message| message.kept != wire::Kept::No) {
            if self.held(slot, message.topic_hash) < message.id.offset {
                let topic = wire::since::mark(&message.draft.topic);
                lower(&mut behind, Behind { topic, through: message.id.offset - 1 });
            }
        }
        behind
    }

    /// The position at the end of all that was sent.
    fn position_now(&self, slot: u32) -> Position {
        self.position(slot, &Given { waiting: &self.waiting(slot), ..Given::default() })
    }

    /// Whether an event with this message needs no more than the message's own id, which is the same
    /// each time. A place in its only topic with history says how far the connection has everything;
    /// where all such topics are acknowledged, their users' cursors do.
    fn says_all(&self, slot: u32, message: &Message) -> bool {
        let follower = self.following.followers.get(&slot);
        let acknowledged = || {
            let ours = |it: &Follow| it.wanted.hash == message.topic_hash && it.acks.is_some();
            follower.is_some_and(|follower| follower.follows.iter().any(ours))
        };
        let plain = message.kept != wire::Kept::No && !acknowledged();
        (plain && !self.following.many.contains(&slot)) || self.plain_topics(slot).next().is_none()
    }

    fn plain_follows(&self, slot: u32) -> impl Iterator<Item = &Follow> {
        let follower = self.following.followers.get(&slot);
        let follows = follower.map_or(&[][..], |follower| &follower.follows);
        follows.iter().filter(|follow| follow.acks.is_none())
    }

    /// The topics of a connection that have history and that its user doesn't acknowledge.
    fn plain_topics(&self, slot: u32) -> impl Iterator<Item = (u64, &Name)> {
        let follower = self.following.followers.get(&slot);
        let acknowledges = move |hash: u64| {
            follower.is_some_and(|follower| {
                follower.follows.iter().any(|it| it.wanted.hash == hash && it.acks.is_some())
            })
        };
        let kept = self.hub.topics_of(slot).filter(|topic| self.kept().rule(topic).is_some());
        kept.map(|topic| (self.broker.hash(topic), topic)).filter(move |it| !acknowledges(it.0))
    }

    /// How far a connection has each of those, but for what is under way to it in the hub.
    fn has(&self, slot: u32, given: &Given<'_>) -> Vec<Wanted> {
        let taken = self.following.taken;
        let topics = self.plain_topics(slot).map(|(hash, topic)| {
            let follow = self.plain_follows(slot).find(|follow| follow.wanted.hash == hash);
            let after = match follow {
                Some(follow) if follow.pulls() => {
                    let after = follow.wanted.after;
                    let pulled = given.pulled.as_ref();
                    let pulled = pulled.filter(|it| it.numbers.contains(&follow.number));
                    pulled.map_or(after, |pulled| match pulled.next(hash) {
                        Some(_) => after.max(pulled.offset),
                        None => after.max(pulled.through),
                    })
                }
                Some(follow) => taken.max(follow.through),
                None => taken,
            };
            Wanted { hash, topic: topic.clone(), after, state: false }
        });
        topics.collect()
    }

    /// What comes live of a topic is held back from the connection up to this offset.
    fn held(&self, slot: u32, hash: u64) -> u64 {
        let follower = self.following.followers.get(&slot);
        let follow = follower.and_then(|it| it.follows.iter().find(|it| it.wanted.hash == hash));
        follow.map_or(0, |follow| follow.through)
    }
}

/// What is about to be sent to a connection, at the place of it for which a position is wanted.
#[derive(Default)]
struct Given<'a> {
    /// Messages that come behind it in the same write.
    behind: &'a [Arc<Message>],
    /// The first message of each topic that the hub has for it: see [`Shard::waiting`].
    waiting: &'a [Behind],
    /// The same with a piece of what was missed.
    pulled: Option<Pulled<'a>>,
}

/// A place in a piece of what was missed.
struct Pulled<'a> {
    /// The follows that the piece is for.
    numbers: &'a [u32],
    /// They have everything up to here.
    offset: u64,
    /// What comes behind.
    rest: &'a [&'a Arc<Message>],
    /// They have everything up to here when all of it has come.
    through: u64,
}

impl Pulled<'_> {
    /// What comes next of a topic in the piece.
    fn next(&self, hash: u64) -> Option<u64> {
        let next = self.rest.iter().find(|message| message.topic_hash == hash);
        next.map(|message| message.id.offset)
    }
}

/// The id of a message that says how far its reader has everything, if its own does not.
fn id_with(own: Id, position: Position) -> Since {
    let plain = position.through == own && position.behind.is_empty();
    Since { id: own, position: Some(position).filter(|_| !plain) }
}

/// Nothing of what is not followed any more is delivered again.
fn forget(again: &mut BTreeSet<(u32, u32, u32)>, slot: u32, follow: &Follow) {
    if let Some(second) = follow.acks.as_ref().and_then(|acks| acks.queued_s) {
        again.remove(&(second, slot, follow.number));
    }
}

/// Notes that of a topic no more is there than this.
fn lower(behind: &mut Vec<Behind>, less: Behind) {
    match behind.iter_mut().find(|it| it.topic == less.topic) {
        Some(it) => it.through = it.through.min(less.through),
        None => behind.push(less),
    }
}
