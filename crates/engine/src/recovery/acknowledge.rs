//! Topics whose users acknowledge messages: a message without an acknowledgement is delivered again.
//!
//! A connection has a window: so many messages may be delivered to it without an acknowledgement. The next message is
//! pulled from the history when the window has capacity. Acknowledgements are cumulative. A connection gets each
//! message once, since what was written to an open connection arrives or the connection ends. A new connection of the
//! user gets all messages without an acknowledgement. A message is delivered to the same connection again, after a
//! time, only if the rule says so and the client acknowledges on the connection itself: otherwise a handler that failed
//! could not be told from a page whose user is away.

use std::collections::VecDeque;
use std::sync::Arc;

use auth::{Action, Deny, Principal};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use broker::{Options, Publish, PublishError, Published};
use history::{AcknowledgeError, GivenUp, Gone, Piece, Pull, TopicCursor};
use model::ResumeRequest;
use model::name::personal;
use model::{
    AcknowledgeRule, Attributes, Data, Envelope, HistoryRule, Message, Name, Position, Publication,
    TopicKind,
};
use protocol::encoded;
use protocol::request::Acknowledgement;
use throttle::Throttle;

use super::verify::has_gap_notice;
use super::{ALL, Catchup, CatchupTable, Recovery, ReplyTo, acks_of, id_with};
use crate::connection::Flag;
use crate::core::Core;
use crate::core::handle::Handle;
use crate::trace::event::NotDelivered;

/// The limit on connections that get messages again in one second. Others wait for the next second.
const AGAIN_MAX: usize = 10_000;

/// Log lines about dead letters that a shared log does not take: one in 10 seconds.
static UNPUBLISHED: Throttle = Throttle::new(1, 10_000_000);

/// A window with more messages than this is scanned for dropped messages only once a second.
const SCANNED_MAX: usize = 1_000;

/// The state of a connection in a topic whose user acknowledges.
pub(crate) struct Acks {
    pub(super) user: Name,
    pub(super) rule: AcknowledgeRule,
    /// The connection gets every message after this offset that the history has.
    pub(super) from: u64,
    /// The messages in flight, in order: delivered and without an acknowledgement.
    pub(super) flight: VecDeque<Delivery>,
    /// When the messages in flight are checked for redelivery. An acknowledgement does not change it, and so costs
    /// nothing.
    pub(super) queued_s: Option<u32>,
    /// When the messages in flight were last scanned for dropped ones.
    pub(super) scanned_s: u32,
    /// The history had no message after this offset when it last replied; 0 is unknown.
    pub(super) rests_at: u64,
    /// The history has not replied yet whether it still has every message after `from`.
    pub(super) verifies: bool,
    /// It is not certain yet where the user begins: the connection gets no messages.
    pub(super) awaits_begin: bool,
    /// The history has not replied yet which of the messages in flight were dropped.
    pub(super) peeks: bool,
    /// The offset of the last message when the history was queried.
    pub(super) peeked_at: u64,
}

/// A message in flight.
pub(super) struct Delivery {
    pub offset: u64,
    pub delivered_s: u32,
    /// It was not acknowledged in time and is delivered again.
    pub again: bool,
}

impl Acks {
    fn window(&self) -> usize {
        self.rule.window_messages_max as usize
    }
}

/// What happens to a message of an acknowledged topic.
enum Next {
    /// It is delivered to the connection.
    Deliver,
    /// The connection has it already, or does not get it.
    Pass,
    /// The window has no capacity for it now.
    Wait,
}

impl Recovery {
    /// Begins a catch-up with an acknowledged topic, after the last message that its user has acknowledged. Only a
    /// client that names the topic skips messages that another connection of the user has got. Returns the number of
    /// the catch-up, and whether the client gets a notice that queued messages were dropped, as far as this is known
    /// now.
    pub(super) fn begin_acknowledged(
        &mut self,
        core: &mut Core,
        slot: u32,
        topic: &Name,
        user: Name,
        rule_of_topic: Arc<HistoryRule>,
        request: &ResumeRequest,
    ) -> (u32, bool) {
        let history = core.history();
        let named = request.topics.iter().find(|(name, _)| name == topic);
        let named = named.and_then(|(_, since)| since.token()?.offset(history.epoch()));
        let top = history.top().offset;
        let named = named.filter(|offset| *offset <= top).unwrap_or(0);
        let after = history.cursor(&user, topic).max(named);
        let awaits_begin = !history.is_begin_confirmed(&user, topic);
        let hash = core.broker.hash(topic);
        self.catchups.number = self.catchups.number.wrapping_add(1);
        let number = self.catchups.number;
        let rule = rule_of_topic.acknowledge.clone().unwrap_or(AcknowledgeRule {
            window_messages_max: 1,
            redelivery_seconds: 0,
            delivery_count_max: 0,
            dead_letter: None,
        });
        // A client that requests stored messages, and names no position, has missed nothing.
        let is_new = request.of(topic).is_some_and(|since| since.token().is_none());
        let gone = match is_new {
            true => Some(Gone::Nothing),
            false => core.history().gone(hash, topic, after),
        };
        let is_gone = gone.is_some_and(|gone| has_gap_notice(gone, !request.is_empty(), after));
        let acks = Acks {
            user,
            rule,
            from: after,
            flight: VecDeque::new(),
            queued_s: None,
            scanned_s: 0,
            rests_at: 0,
            verifies: gone.is_none(),
            awaits_begin,
            peeks: false,
            peeked_at: 0,
        };
        let cursor = TopicCursor::new(hash, topic.clone(), after);
        let catchups = self.catchups.by_slot.entry(slot).or_default();
        for old in catchups.list.extract_if(.., |catchup| catchup.cursor.hash == hash) {
            super::cancel_redelivery(&mut self.again, slot, &old);
        }
        let (starting, deferred_offset, acks) = (None, 0, Some(acks.into()));
        let through = ALL;
        let compact = false;
        let catchup = Catchup { number, cursor, through, starting, deferred_offset, acks, compact };
        catchups.list.push(catchup);
        (number, is_gone)
    }

    /// The connection has lost a user. In topics where it acknowledged as this user and stays a member, it goes on as
    /// another of its users, or without acknowledgements.
    pub(crate) fn begin_as_others(
        &mut self,
        core: &mut Core,
        slot: u32,
        user: &str,
        out: &mut Vec<u8>,
    ) {
        let theirs =
            |catchup: &mut Catchup| catchup.acks.as_ref().is_some_and(|acks| acks.user == user);
        self.begin_again(core, slot, theirs, out);
    }

    /// The cursor of a user in a topic is at an earlier offset than this node knew, or certain now. A connection that
    /// began behind it, or waited for it, begins anew.
    pub(crate) fn begin_again_at(
        &mut self,
        core: &mut Core,
        slot: u32,
        (user, topic, offset): (&str, &str, Option<u64>),
        out: &mut Vec<u8>,
    ) {
        let began_behind = |catchup: &mut Catchup| {
            let has_read = catchup.cursor.after;
            let is_theirs = |acks: &Acks| {
                let is_behind = offset.is_some_and(|offset| acks.from.max(has_read) > offset);
                acks.user == *user && (acks.awaits_begin || is_behind)
            };
            catchup.cursor.topic == *topic && catchup.acks.as_deref().is_some_and(is_theirs)
        };
        self.begin_again(core, slot, began_behind, out);
    }

    /// Begins anew with the topics of some catch-ups.
    fn begin_again(
        &mut self,
        core: &mut Core,
        slot: u32,
        is_one: impl FnMut(&mut Catchup) -> bool,
        out: &mut Vec<u8>,
    ) {
        let Some(catchups) = self.catchups.by_slot.get_mut(&slot) else {
            return;
        };
        let mut topics = Vec::new();
        for old in catchups.list.extract_if(.., is_one) {
            super::cancel_redelivery(&mut self.again, slot, &old);
            topics.push(old.cursor.topic);
        }
        if !topics.is_empty() {
            self.begin(core, slot, &topics, &ResumeRequest::default(), ReplyTo::Nowhere, out);
        }
    }

    /// Appends messages of the connection's acknowledged topics, as their windows allow.
    pub(super) fn serve(&mut self, core: &mut Core, slot: u32, out: &mut Vec<u8>) {
        let numbers: Vec<u32> = match self.catchups.by_slot.get(&slot) {
            Some(catchups) if catchups.reading.is_none() => {
                // No message comes before the reply to the request that joined.
                let has_replied = |it: &&Catchup| {
                    !catchups.replies.iter().any(|reply| reply.numbers.contains(&it.number))
                };
                let acknowledged = catchups.list.iter().filter(|it| it.acks.is_some());
                acknowledged.filter(has_replied).map(|catchup| catchup.number).collect()
            }
            _ => return,
        };
        for number in numbers {
            let mut pieces = 0;
            while self.serve_one(core, slot, number, out) {
                pieces += 1;
                if pieces == super::pull::PIECES {
                    // The other topics have their turn.
                    self.due.push(slot);
                    break;
                }
            }
        }
    }

    /// Appends one piece of one topic. Returns true if there may be more.
    fn serve_one(&mut self, core: &mut Core, slot: u32, number: u32, out: &mut Vec<u8>) -> bool {
        if !self.takes_more(core, slot, out) {
            return false;
        }
        if self.catchups.rests(slot, number) {
            return false;
        }
        let Some(capacity) = self.capacity(core, slot, number) else {
            return self.peek(core, slot, number, out);
        };
        let Some((cursor, _)) = acks_of(self.catchups.by_slot.get_mut(&slot), number) else {
            return false;
        };
        if capacity == 0 {
            return false;
        }
        let topics = vec![cursor.clone()];
        let bytes_max = core.settings.outbox_bytes_max / 2;
        let pull = Pull { topics, messages_max: capacity, bytes_max };
        let Some(piece) = self.request_piece(core, slot, &[number], pull, out) else {
            return false;
        };
        let more = !piece.caught_up;
        self.serve_piece(core, slot, number, piece, out);
        more
    }

    /// The history has replied later that it has no message after this offset. It is queried again only after the next
    /// message.
    pub(super) fn rest_at(&mut self, slot: u32, number: u32, end: Option<u64>) {
        if let Some((_, acks)) = acks_of(self.catchups.by_slot.get_mut(&slot), number) {
            acks.rests_at = end.unwrap_or(0);
        }
    }

    /// Returns how many messages of one topic may be pulled now, including messages in flight that will be skipped.
    /// `None` if the history must be queried first.
    pub(super) fn capacity(&mut self, core: &mut Core, slot: u32, number: u32) -> Option<usize> {
        let now_s = core.now_s();
        let history = core.history.clone();
        let catchups = self.catchups.by_slot.get_mut(&slot)?;
        let catchup = catchups.list.iter_mut().find(|catchup| catchup.number == number);
        let Some(Catchup { cursor, deferred_offset, acks: Some(acks), .. }) = catchup else {
            return Some(0);
        };
        if acks.awaits_begin {
            let from = history.cursor(&acks.user, &cursor.topic);
            if !history.is_begin_confirmed(&acks.user, &cursor.topic) {
                return Some(0);
            }
            (acks.awaits_begin, acks.from, cursor.after) = (false, from, from);
        }
        let scans = acks.flight.len() <= SCANNED_MAX || acks.scanned_s != now_s;
        if acks.flight.len() >= acks.window() && scans {
            // Messages that the limits of history have dropped can't be acknowledged, and take no capacity.
            acks.scanned_s = now_s;
            let offsets: Vec<u64> = acks.flight.iter().map(|delivered| delivered.offset).collect();
            match history.retained(cursor.hash, &cursor.topic, &offsets) {
                Some(here) => {
                    acks.flight.retain(|delivered| here.binary_search(&delivered.offset).is_ok());
                }
                // Without a new message, none was dropped.
                None if acks.peeked_at < *deferred_offset => {
                    acks.peeked_at = *deferred_offset;
                    return None;
                }
                None => {}
            }
        }
        let free = acks.window().saturating_sub(acks.flight.len());
        Some(match acks.flight.back() {
            Some(last) if cursor.after < last.offset => free + acks.flight.len(),
            _ => free,
        })
    }

    /// Delivers messages of an acknowledged topic, as many as its window has capacity for.
    pub(super) fn serve_piece(
        &mut self,
        core: &mut Core,
        slot: u32,
        number: u32,
        piece: Piece,
        out: &mut Vec<u8>,
    ) {
        let acks = acks_of(self.catchups.by_slot.get_mut(&slot), number);
        if acks.is_some_and(|(_, acks)| acks.awaits_begin) {
            return;
        }
        for message in &piece.messages {
            match self.next(core, slot, number, message) {
                Next::Deliver => self.deliver_one(core, slot, message, out),
                Next::Pass => {}
                Next::Wait => return,
            }
        }
        let by_slot = &mut self.catchups.by_slot;
        if let Some((cursor, _)) = acks_of(by_slot.get_mut(&slot), number) {
            cursor.after = cursor.after.max(piece.through);
        }
    }

    /// Decides about the next message of a topic. A message that is delivered is in the window from now on.
    fn next(&mut self, core: &mut Core, slot: u32, number: u32, message: &Message) -> Next {
        let (now_s, offset) = (core.now_s(), message.id.offset);
        let by_slot = &mut self.catchups.by_slot;
        let Some((cursor, acks)) = acks_of(by_slot.get_mut(&slot), number) else {
            return Next::Wait;
        };
        if offset <= cursor.after {
            return Next::Pass;
        }
        let position = acks.flight.binary_search_by_key(&offset, |delivered| delivered.offset);
        let again = match position {
            Ok(at) => acks.flight[at].again,
            Err(at) if at == acks.flight.len() && at >= acks.window() => return Next::Wait,
            Err(_) => false,
        };
        cursor.after = offset;
        // Only a redelivery comes to a message that is not in flight but before one that is. The client named a later
        // position when it connected, so it has this message: if the window has no capacity, the message is skipped.
        let is_full = position.is_err() && acks.flight.len() >= acks.window();
        if (position.is_ok() && !again) || is_full {
            return Next::Pass;
        }
        let own = core.table.get(slot).map(|connection| core.id(slot, connection.serial));
        if !self.catchups.chooses(slot, message) || message.publication.except == own {
            return Next::Pass;
        }
        if self.is_done(core, slot, number, message) {
            return Next::Pass;
        }
        let acknowledges =
            core.protocol(slot).is_some_and(|protocol| protocol.capabilities().acknowledges);
        let by_slot = &mut self.catchups.by_slot;
        let Some((_, acks)) = acks_of(by_slot.get_mut(&slot), number) else {
            return Next::Wait;
        };
        let delivered = Delivery { offset, delivered_s: now_s, again: false };
        match position {
            Ok(at) => acks.flight[at] = delivered,
            Err(at) => acks.flight.insert(at, delivered),
        }
        let seconds = acks.rule.redelivery_seconds;
        if acknowledges && seconds > 0 && acks.queued_s.is_none() {
            let due_s = now_s.saturating_add(seconds);
            acks.queued_s = Some(due_s);
            self.again.insert((due_s, slot, number));
        }
        if again {
            core.history().delivered_again();
        }
        Next::Deliver
    }

    /// Counts a delivery, if the rule limits deliveries. Returns true for a message that has reached the limit and is
    /// given up now, or that was acknowledged meanwhile. Only the first message without an acknowledgement can be given
    /// up: earlier ones must not count as acknowledged.
    fn is_done(&mut self, core: &mut Core, slot: u32, number: u32, message: &Message) -> bool {
        let (now_s, offset) = (core.now_s(), message.id.offset);
        let by_slot = &mut self.catchups.by_slot;
        let Some((cursor, acks)) = acks_of(by_slot.get_mut(&slot), number) else {
            return false;
        };
        if acks.rule.delivery_count_max == 0 {
            return false;
        }
        let is_first = acks.flight.front().is_none_or(|first| first.offset >= offset);
        let (rule, from) = (acks.rule.clone(), acks.from);
        let (user, topic) = (acks.user.clone(), cursor.topic.clone());
        let delivery_count = core.history().delivered(&user, &topic, offset, now_s, &rule);
        if delivery_count == 0 {
            return true;
        }
        let may = is_first && from <= core.history().cursor(&user, &topic);
        if delivery_count <= rule.delivery_count_max
            || !may
            || !give_up(core, &user, &rule, message)
        {
            return false;
        }
        // It takes no capacity in the window of this connection or of others.
        let by_slot = &mut self.catchups.by_slot;
        if let Some((_, acks)) = acks_of(by_slot.get_mut(&slot), number) {
            acks.flight.pop_front_if(|first| first.offset == offset);
        }
        announce_acknowledged(core, &user, &topic, offset);
        core.trace_not_delivered(slot, message, NotDelivered::GivenUp);
        true
    }

    /// Counts the deliveries in the reply to a poll for the acknowledged topics whose rules limit deliveries, and takes
    /// out messages that are acknowledged or given up. Each poll has a new window.
    pub(crate) fn count_polled(
        &mut self,
        core: &mut Core,
        slot: u32,
        acknowledged: &[TopicCursor],
        messages: &mut Vec<Arc<Envelope>>,
    ) {
        let now_s = core.now_s();
        for TopicCursor { hash, topic, after, .. } in acknowledged {
            let rule_of_topic = core.history().rule(topic);
            let rule =
                rule_of_topic.as_ref().and_then(|rule_of_topic| rule_of_topic.acknowledge.as_ref());
            let rule = rule.filter(|rule| rule.delivery_count_max > 0);
            let (Some(rule), Some(user)) = (rule, core.user_of(slot, topic)) else {
                continue;
            };
            let mut is_first = *after <= core.history().cursor(&user, topic);
            messages.retain(|message| {
                if message.topic_hash != *hash || !message.is_retained() {
                    return true;
                }
                let offset = message.id.offset;
                let delivery_count = core.history().delivered(&user, topic, offset, now_s, rule);
                if delivery_count == 0 {
                    return false;
                }
                if is_first
                    && delivery_count > rule.delivery_count_max
                    && give_up(core, &user, rule, message)
                {
                    announce_acknowledged(core, &user, topic, offset);
                    return false;
                }
                is_first = false;
                true
            });
        }
    }

    fn deliver_one(
        &mut self,
        core: &mut Core,
        slot: u32,
        message: &Arc<Envelope>,
        out: &mut Vec<u8>,
    ) {
        let Some(protocol) = core.protocol(slot) else {
            return;
        };
        core.metrics.delivered.add(1);
        core.trace_delivered(slot, [&message.message]);
        if core.is(slot, Flag::Resumable) && !self.catchups.says_all(core, slot, message) {
            let id = id_with(message.id, self.catchups.position_now(core, slot));
            protocol.encode_with(message, &id, out);
        } else {
            out.extend_from_slice(&encoded(message, protocol, &mut core.codecs));
        }
    }

    /// Delivers to the connections that a message has woken. Called when a batch has been sent.
    pub fn serve_due(&mut self, core: &mut Core) {
        if self.due.is_empty() {
            return;
        }
        let mut due = std::mem::take(&mut self.due);
        due.sort_unstable();
        due.dedup();
        for slot in due {
            self.pull_more(core, slot);
        }
    }

    /// Delivers messages again that were not acknowledged in time. Called about once a second.
    pub(crate) fn deliver_again(&mut self, core: &mut Core) {
        let now_s = core.now_s();
        for _ in 0..AGAIN_MAX {
            let Some(&(due_s, slot, number)) = self.again.first() else {
                return;
            };
            // The second in which the message was delivered is not a whole one, and does not count.
            if due_s >= now_s {
                return;
            }
            self.again.pop_first();
            let by_slot = &mut self.catchups.by_slot;
            let Some((cursor, acks)) = acks_of(by_slot.get_mut(&slot), number) else {
                continue;
            };
            acks.queued_s = None;
            let seconds = acks.rule.redelivery_seconds.max(1);
            let Some(first_s) = acks.flight.iter().map(|delivered| delivered.delivered_s).min()
            else {
                continue;
            };
            let (user, topic) = (acks.user.clone(), cursor.topic.clone());
            let is_due = first_s.saturating_add(seconds) < now_s;
            // A connection that does not read gets the message when it reads.
            let reads = !core.is_backlogged(slot) && !self.catchups.is_reading(slot);
            let acknowledged = core.history().cursor(&user, &topic);
            let by_slot = &mut self.catchups.by_slot;
            let Some((cursor, acks)) = acks_of(by_slot.get_mut(&slot), number) else {
                continue;
            };
            let mut next_s = first_s.saturating_add(seconds);
            if is_due && reads {
                next_s = now_s;
                for delivered in &mut acks.flight {
                    if delivered.delivered_s.saturating_add(seconds) < now_s {
                        (delivered.delivered_s, delivered.again) = (now_s, true);
                    }
                    next_s = next_s.min(delivered.delivered_s);
                }
                next_s = next_s.saturating_add(seconds);
                (cursor.after, acks.from, acks.rests_at) = (acknowledged, acknowledged, 0);
            }
            // Never in the same second, or this loop would not end.
            let next_s = next_s.max(now_s);
            acks.queued_s = Some(next_s);
            self.again.insert((next_s, slot, number));
            if is_due && reads {
                self.pull_more(core, slot);
            }
        }
    }

    /// A user has acknowledged a topic up to this offset, or messages were given up. The windows of the user's
    /// connections have capacity for more.
    pub(crate) fn acknowledged(&mut self, core: &mut Core, user: &str, topic: &str, offset: u64) {
        let own = personal(user);
        let hash = core.broker.hash(topic);
        for slot in core.hub.slots(core.broker.hash(&own), &own) {
            let Some(catchups) = self.catchups.by_slot.get_mut(&slot) else {
                continue;
            };
            let ours = |catchup: &&mut Catchup| catchup.cursor.hash == hash;
            let Some(catchup) = catchups.list.iter_mut().find(ours) else {
                continue;
            };
            let Some(acks) = catchup.acks.as_mut().filter(|acks| acks.user == user) else {
                continue;
            };
            while acks.flight.pop_front_if(|first| first.offset <= offset).is_some() {}
            if catchup.cursor.after < offset {
                catchup.cursor.after = offset;
            }
            self.pull_more(core, slot);
        }
    }
}

impl CatchupTable {
    pub(crate) fn rests(&self, slot: u32, number: u32) -> bool {
        let catchups = self.by_slot.get(&slot);
        let catchup = catchups.and_then(|it| it.list.iter().find(|it| it.number == number));
        catchup.is_some_and(|Catchup { cursor, deferred_offset, acks, .. }| {
            let rests_at = acks.as_ref().map_or(0, |acks| acks.rests_at);
            rests_at > 0 && cursor.after >= rests_at && *deferred_offset <= cursor.after
        })
    }

    /// Returns true while a query for the connection's next piece is pending.
    pub(crate) fn is_reading(&self, slot: u32) -> bool {
        self.by_slot.get(&slot).is_some_and(|catchups| catchups.reading.is_some())
    }
}

impl Core {
    /// A client acknowledges messages of a user. Returns the topic and the position that is acknowledged now. The
    /// client may name only its own users; without a name it is the first of them. It must be allowed to subscribe to
    /// the topic, or be a member: by this connection, or by a stored subscription.
    pub(crate) fn acknowledge(
        &mut self,
        slot: Option<u32>,
        principal: &Principal,
        acknowledged: Acknowledgement,
    ) -> Result<(Name, Position), AcknowledgeError> {
        let Acknowledgement { user, topic, id } = acknowledged;
        let own = topic.as_deref().and_then(|topic| TopicKind::of(topic).user());
        let user = user.or(own.map(Name::from)).or_else(|| principal.users.first().cloned());
        let user = user.ok_or(AcknowledgeError::NoUser)?;
        let topic = topic.unwrap_or_else(|| personal(&user));
        let policy = &self.settings.session.policy;
        let decision = policy.decide(principal, Action::Acknowledge(&user), &policy.topic(&topic));
        let is_in = || {
            slot.is_some_and(|slot| self.hub.topics_of(slot).any(|name| *name == topic))
                || self.shared.subscriptions.of(&user).contains(&topic)
        };
        match decision.without_webhook() {
            Ok(_) => {}
            Err(Deny::NotGranted) if !principal.is(&user) => return Err(AcknowledgeError::NoUser),
            Err(Deny::NotGranted) if is_in() => {}
            Err(Deny::NotGranted) => return Err(AcknowledgeError::NotGranted),
            Err(_) => return Err(AcknowledgeError::NoUser),
        }
        let offset = self.history().acknowledge(&user, &topic, id)?;
        // With a history in PostgreSQL, what this node has not delivered yet may be acknowledged.
        announce_acknowledged(self, &user, &topic, offset.min(self.history().top().offset));
        let id = Position { offset, ..id };
        self.trace_acknowledged(&user, &topic, id);
        Ok((topic, id))
    }
}

/// Publishes a message that was given up to the dead-letter topic, with the reason. Returns false if there is no
/// capacity for it now, or it is given up later: when the dead letter is in a log that nodes share.
fn give_up(core: &Core, user: &Name, rule: &AcknowledgeRule, message: &Message) -> bool {
    let publication = &message.publication;
    let Some(topic) = &rule.dead_letter else {
        core.history().give_up(user, &publication.topic, message.id.offset, GivenUp::Dropped);
        return true;
    };
    let letter = dead_letter(core, user, topic, rule, message);
    let history = core.history();
    let result = match history.is_shared() && history.rule(topic).is_some() {
        true => return give_up_later(core, user, letter, message),
        false => core.broker.publish(letter, None),
    };
    if let Err(error) = result {
        if let Some(suppressed) = core.lines.unsent.pass(core.now_us, 1) {
            tracing::warn!(
                user = user.as_str(),
                topic = topic.as_str(),
                message_id = %message.id,
                %error,
                suppressed,
                "a dead letter could not be published to this topic: the server tries again"
            );
        }
        return false;
    }
    history.give_up(user, &publication.topic, message.id.offset, GivenUp::DeadLettered);
    true
}

/// Publishes a dead letter, and then gives the message up. Until then it may be delivered once more. Its idempotency
/// key makes it the only one, also where another node gives the message up. Returns false.
fn give_up_later(core: &Core, user: &Name, letter: Publication, message: &Message) -> bool {
    let idempotency_key = Some(Name::from(format!("{} {user}", message.id)));
    let options = Options { idempotency_key, ..Options::default() };
    let (history, engines, now_us) = (core.history.clone(), core.engines.clone(), core.now_us);
    let (user, hash) = (user.clone(), core.broker.hash(&personal(user)));
    let (topic, id) = (message.publication.topic.clone(), message.id);
    let before = history.cursor(&user, &topic);
    let done = move |published: Result<Published, PublishError>| match published {
        // The cursor is earlier now: what lies between was not delivered.
        Ok(_) if history.cursor(&user, &topic) < before => {}
        Ok(_) => {
            history.give_up(&user, &topic, id.offset, GivenUp::DeadLettered);
            let notify = |it: &Handle| it.notify_acknowledged(hash, &user, &topic, id.offset);
            engines.iter().for_each(notify);
        }
        Err(error) => {
            if let Some(suppressed) = UNPUBLISHED.pass(now_us, 1) {
                tracing::warn!(
                    user = user.as_str(),
                    topic = topic.as_str(),
                    message_id = %id,
                    %error,
                    suppressed,
                    "the dead letter of a message could not be published: the server tries again"
                );
            }
        }
    };
    core.broker.submit(Publish { publication: letter, options }, None, Box::new(done));
    false
}

/// Makes the dead letter of a message, for a topic.
fn dead_letter(
    core: &Core,
    user: &str,
    topic: &Name,
    rule: &AcknowledgeRule,
    message: &Message,
) -> Publication {
    let publication = &message.publication;
    let mut text = b"{\"topic\":".to_vec();
    protocol::json::string(&publication.topic, &mut text);
    text.extend_from_slice(b",\"user\":");
    protocol::json::string(user, &mut text);
    text.extend_from_slice(format!(",\"id\":\"{}\",\"event\":", message.id).as_bytes());
    protocol::json::string(message.event(), &mut text);
    if let Some(sender) = publication.sender() {
        text.extend_from_slice(b",\"sender\":");
        protocol::json::string(sender, &mut text);
    }
    text.extend_from_slice(format!(",\"tries\":{},", rule.delivery_count_max).as_bytes());
    match &publication.data {
        Data::Json(json) => text.extend_from_slice(format!("\"data\":{json}}}").as_bytes()),
        Data::Text(string) => {
            text.extend_from_slice(b"\"data\":");
            protocol::json::string(string, &mut text);
            text.push(b'}');
        }
        Data::Binary(bytes) => {
            let base64 = STANDARD.encode(bytes);
            let field = format!("\"encoding\":\"base64\",\"data\":\"{base64}\"}}");
            text.extend_from_slice(field.as_bytes());
        }
    }
    let json = String::from_utf8_lossy(&text).into_owned();
    let event = Some("dead_letter".into());
    // In a compacted dead-letter topic each letter has a key of its own.
    let compact = core.history().rule(topic).is_some_and(|rule| rule.compact);
    let own = || format!("{}-{:08x}", message.id, model::resume::mark(user));
    let key = compact.then(|| Name::from(own()));
    let attributes = Attributes::of(Vec::new(), key);
    Publication { event, attributes, ..Publication::new(topic.clone(), Data::Json(json.into())) }
}

/// Notifies all shards that a user has acknowledged a topic up to this offset.
fn announce_acknowledged(core: &Core, user: &Name, topic: &Name, offset: u64) {
    let hash = core.broker.hash(&personal(user));
    core.engines.iter().for_each(|engine| engine.notify_acknowledged(hash, user, topic, offset));
}
