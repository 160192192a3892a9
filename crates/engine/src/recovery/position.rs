//! Up to where a connection has all messages, so that it can recover the rest when it comes back.

use std::sync::Arc;

use history::TopicCursor;
use model::{Behind, Envelope, Frontier, Message, Name, Position, ResumeToken};

use super::{Catchup, CatchupTable};
use crate::core::Core;

impl CatchupTable {
    /// Returns up to where a connection has all messages of its topics with history, once it has received what was sent
    /// so far, and `delivered`.
    pub(super) fn position(&self, core: &Core, slot: u32, delivered: &Delivered<'_>) -> Frontier {
        // In one topic, messages of a catch-up come before those that wait in the hub.
        let mut behind =
            self.first_of_each(slot, delivered.behind.iter().map(|message| &message.message));
        delivered.waiting.iter().for_each(|waits| lower(&mut behind, *waits));
        let mut through = self.taken;
        if self.plain_catchups(slot).next().is_some() {
            // Topics that still catch up are behind the mailbox.
            let has = self.has(core, slot, delivered);
            through = has.iter().map(|topic| topic.after).max().unwrap_or(through);
            for topic in has.into_iter().filter(|topic| topic.after < through) {
                let mark = model::resume::mark(&topic.topic);
                lower(&mut behind, Behind { topic: mark, through: topic.after });
            }
        }
        if behind.len() > model::resume::BEHIND_MAX {
            // There are too many topics to name. A duplicate is better than a lost message.
            through = behind.iter().map(|it| it.through).min().unwrap_or(through);
            behind.clear();
        }
        Frontier { through: Position { epoch: core.history().epoch(), offset: through }, behind }
    }

    /// Returns up to where a connection has the topics with messages that wait in the hub.
    pub(crate) fn waiting(&self, core: &Core, slot: u32) -> Vec<Behind> {
        let owed = core.hub.owed(slot, None).into_iter().chain(core.conflation.of(slot));
        self.first_of_each(slot, owed.map(|message| &message.message))
    }

    /// The offsets before the first message of each topic.
    pub(crate) fn first_of_each<'a>(
        &self,
        slot: u32,
        messages: impl Iterator<Item = &'a Message>,
    ) -> Vec<Behind> {
        let mut behind = Vec::new();
        for message in messages.filter(|message| message.is_retained()) {
            if self.deferred_up_to(slot, message.topic_hash) < message.id.offset {
                let topic = model::resume::mark(&message.publication.topic);
                lower(&mut behind, Behind { topic, through: message.id.offset - 1 });
            }
        }
        behind
    }

    /// The position at the end of all that was sent.
    pub(crate) fn position_now(&self, core: &Core, slot: u32) -> Frontier {
        self.position(
            core,
            slot,
            &Delivered { waiting: &self.waiting(core, slot), ..Delivered::default() },
        )
    }

    /// Whether the id of this message is all that its event needs; this id is the same for all members. A position in
    /// the connection's only topic with history says up to where it has everything. If all such topics are
    /// acknowledged, the cursors of their users say it.
    pub(crate) fn says_all(&self, core: &Core, slot: u32, message: &Message) -> bool {
        let catchups = self.by_slot.get(&slot);
        let acknowledged = || {
            let ours = |it: &Catchup| it.cursor.hash == message.topic_hash && it.acks.is_some();
            catchups.is_some_and(|catchups| catchups.list.iter().any(ours))
        };
        let plain = message.is_retained() && !acknowledged();
        (plain && !self.many.contains(&slot)) || self.plain_topics(core, slot).next().is_none()
    }

    pub(super) fn plain_catchups(&self, slot: u32) -> impl Iterator<Item = &Catchup> {
        let catchups = self.by_slot.get(&slot);
        let list = catchups.map_or(&[][..], |catchups| &catchups.list);
        list.iter().filter(|catchup| catchup.acks.is_none())
    }

    /// Returns the topics of a connection that have history and that its user doesn't acknowledge.
    pub(crate) fn plain_topics<'a>(
        &'a self,
        core: &'a Core,
        slot: u32,
    ) -> impl Iterator<Item = (u64, &'a Name)> {
        let catchups = self.by_slot.get(&slot);
        let acknowledges = move |hash: u64| {
            catchups.is_some_and(|catchups| {
                catchups.list.iter().any(|it| it.cursor.hash == hash && it.acks.is_some())
            })
        };
        let with_history =
            core.hub.topics_of(slot).filter(|topic| core.history().rule(topic).is_some());
        with_history
            .map(|topic| (core.broker.hash(topic), topic))
            .filter(move |it| !acknowledges(it.0))
    }

    /// Returns up to where a connection has each of its [`plain_topics`](Self::plain_topics), without messages that
    /// wait in the hub.
    pub(super) fn has(
        &self,
        core: &Core,
        slot: u32,
        delivered: &Delivered<'_>,
    ) -> Vec<TopicCursor> {
        let taken = self.taken;
        let topics = self.plain_topics(core, slot).map(|(hash, topic)| {
            let catchup = self.plain_catchups(slot).find(|catchup| catchup.cursor.hash == hash);
            let after = match catchup {
                Some(catchup) if catchup.pulls() => {
                    let after = catchup.cursor.after;
                    let pulled = delivered.pulled.as_ref();
                    let pulled = pulled.filter(|it| it.numbers.contains(&catchup.number));
                    pulled.map_or(after, |pulled| match pulled.next(hash) {
                        Some(_) => after.max(pulled.offset),
                        None => after.max(pulled.through),
                    })
                }
                Some(catchup) => taken.max(catchup.through),
                None => taken,
            };
            TopicCursor::new(hash, topic.clone(), after)
        });
        topics.collect()
    }

    /// Up to this offset, live messages of the topic are deferred for the connection.
    pub(crate) fn deferred_up_to(&self, slot: u32, hash: u64) -> u64 {
        let catchups = self.by_slot.get(&slot);
        let catchup = catchups.and_then(|it| it.list.iter().find(|it| it.cursor.hash == hash));
        catchup.map_or(0, |catchup| catchup.through)
    }
}

/// Messages that are about to be sent to a connection, at the point for which a position is needed.
#[derive(Default)]
pub(super) struct Delivered<'a> {
    /// Messages behind this point in the same write.
    pub behind: &'a [Arc<Envelope>],
    /// The first message of each topic that waits in the hub: see [`CatchupTable::waiting`].
    pub waiting: &'a [Behind],
    /// The point in the piece of missed messages, if such a piece is being sent.
    pub pulled: Option<Pulled<'a>>,
}

/// A point in a piece of missed messages.
pub(super) struct Pulled<'a> {
    /// The catch-ups that the piece is for.
    pub numbers: &'a [u32],
    /// The offset up to which they have everything.
    pub offset: u64,
    /// The messages behind this point.
    pub rest: &'a [&'a Arc<Envelope>],
    /// The offset up to which they have everything when they have received the whole piece.
    pub through: u64,
}

impl Pulled<'_> {
    /// The next message of a topic in the piece.
    fn next(&self, hash: u64) -> Option<u64> {
        let next = self.rest.iter().find(|message| message.topic_hash == hash);
        next.map(|message| message.id.offset)
    }
}

/// The id that says up to where a reader has everything, if the id of the message does not.
pub(super) fn id_with(own: Position, position: Frontier) -> ResumeToken {
    let plain = position.through == own && position.behind.is_empty();
    ResumeToken { id: own, frontier: Some(position).filter(|_| !plain) }
}

/// Notes that a topic has no message after this offset.
fn lower(behind: &mut Vec<Behind>, less: Behind) {
    match behind.iter_mut().find(|it| it.topic == less.topic) {
        Some(it) => it.through = it.through.min(less.through),
        None => behind.push(less),
    }
}
