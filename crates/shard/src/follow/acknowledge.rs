//! Topics whose users acknowledge: what is not acknowledged is delivered again.
//!
//! A connection has a window of messages that it may have without an acknowledgement; the next one
//! is pulled from the history when there is room. Acknowledgements are cumulative. A connection is
//! given each message once, and whoever connects is given all that is not acknowledged: what was
//! written to a connection that is open arrives, or the connection ends. Only where the rule says so,
//! and the client acknowledges on the connection itself, so that a handler that failed can be told
//! from a page that nobody reads, a message is given again there after a time.

use std::collections::VecDeque;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use broker::{AcknowledgeError, GivenUp, Piece, Pull, Wanted};
use wire::message::{PERSONAL, personal};
use wire::session::{Acknowledged, Asked};
use wire::{Acknowledge, Data, Draft, History, Id, Message, Name};

use super::{ALL, Follow, Follower, id_with};
use crate::command::Command;
use crate::shard::Shard;

/// Connections that one second delivers to again; more wait for the next.
const AGAIN_MAX: usize = 10_000;

/// A window of more messages than this is looked through for such as are gone once a second only.
const LOOKED_THROUGH: usize = 1_000;

/// How a connection stands with a topic that its user acknowledges.
pub(crate) struct Acks {
    user: Name,
    rule: Acknowledge,
    /// It was given everything after this offset, as far as it was there.
    from: u64,
    /// The messages that it has and that are not acknowledged, in order.
    flight: VecDeque<Given>,
    /// When it is looked at whether they are delivered again; not always the same, so that an
    /// acknowledgement costs nothing.
    pub(super) queued_s: Option<u32>,
    /// When it was last looked at which of them are gone.
    looked_s: u32,
}

/// A message that a connection has.
struct Given {
    offset: u64,
    given_s: u32,
    /// It was not acknowledged in time and is given again.
    again: bool,
}

impl Acks {
    fn window(&self) -> usize {
        self.rule.window_messages_max as usize
    }
}

/// What becomes of a message of an acknowledged topic.
enum Next {
    /// The connection gets it.
    Give,
    /// It has it, or is not to have it.
    Pass,
    /// There is no room for it now.
    Wait,
}

impl Shard {
    /// Begins to follow an acknowledged topic, from where its user has acknowledged it. Only who
    /// names the topic skips what another of the user's connections has got.
    pub(super) fn follow_acknowledged(
        &mut self,
        slot: u32,
        topic: &Name,
        user: Name,
        keep: Arc<History>,
        asked: &Asked,
    ) -> (u32, bool) {
        let kept = self.kept();
        let named = asked.topics.iter().find(|(name, _)| name == topic);
        let named = named.and_then(|(_, since)| since.offset(kept.epoch()));
        let top = kept.top().offset;
        let named = named.filter(|offset| *offset <= top).unwrap_or(0);
        let after = kept.cursor(&user, topic).max(named);
        let hash = self.broker.hash(topic);
        self.following.number = self.following.number.wrapping_add(1);
        let number = self.following.number;
        let rule = keep.acknowledge.clone().unwrap_or(Acknowledge {
            window_messages_max: 1,
            redelivery_seconds: 0,
            tries_max: 0,
            dead_letter: None,
        });
        let flight = VecDeque::new();
        let acks = Acks { user, rule, from: after, flight, queued_s: None, looked_s: 0 };
        let wanted = Wanted { hash, topic: topic.clone(), after, state: false };
        let follower = self.following.followers.entry(slot).or_default();
        for old in follower.follows.extract_if(.., |follow| follow.wanted.hash == hash) {
            super::forget(&mut self.following.again, slot, &old);
        }
        follower.follows.push(Follow { number, wanted, through: ALL, acks: Some(acks.into()) });
        // One who begins with all that waits has missed nothing.
        (number, after == 0 || self.kept().has_all(hash, topic, after))
    }

    /// Appends what the connection's acknowledged topics have for it, as their windows allow.
    pub(super) fn serve(&mut self, slot: u32, out: &mut Vec<u8>) {
        let numbers: Vec<u32> = match self.following.followers.get(&slot) {
            Some(follower) if follower.reading.is_none() => {
                let acknowledged = follower.follows.iter().filter(|it| it.acks.is_some());
                acknowledged.map(|follow| follow.number).collect()
            }
            _ => return,
        };
        for number in numbers {
            let mut pieces = 0;
            while self.serve_one(slot, number, out) {
                pieces += 1;
                if pieces == super::pull::PIECES {
                    // The others have their turn.
                    self.following.due.push(slot);
                    break;
                }
            }
        }
    }

    /// One piece of one topic; true when there may be more.
    fn serve_one(&mut self, slot: u32, number: u32, out: &mut Vec<u8>) -> bool {
        if !self.takes_more(slot, out) {
            return false;
        }
        let room = self.room(slot, number);
        let Some((wanted, _)) = acks_of(self.following.followers.get_mut(&slot), number) else {
            return false;
        };
        if room == 0 {
            return false;
        }
        let wanted = wanted.clone();
        let bytes_max = self.settings.outbox_bytes_max / 2;
        match self.kept().pull(std::slice::from_ref(&wanted), room, bytes_max) {
            Pull::Piece(piece) => {
                let more = !piece.caught_up;
                self.serve_piece(slot, number, piece, out);
                more
            }
            Pull::Disk => {
                self.read(slot, vec![number], vec![wanted], out);
                false
            }
        }
    }

    /// How many messages of one topic the connection may be given now, with those that it has and
    /// that are passed on the way.
    fn room(&mut self, slot: u32, number: u32) -> usize {
        let now_s = self.now_s();
        let kept = self.broker.kept();
        let Some((wanted, acks)) = acks_of(self.following.followers.get_mut(&slot), number) else {
            return 0;
        };
        let looks = acks.flight.len() <= LOOKED_THROUGH || acks.looked_s != now_s;
        if acks.flight.len() >= acks.window() && looks {
            // What the limits of history have dropped can't be acknowledged, and holds up nothing.
            acks.looked_s = now_s;
            let offsets: Vec<u64> = acks.flight.iter().map(|given| given.offset).collect();
            let here = kept.retain_kept(wanted.hash, &wanted.topic, &offsets);
            acks.flight.retain(|given| here.binary_search(&given.offset).is_ok());
        }
        let free = acks.window().saturating_sub(acks.flight.len());
        match acks.flight.back() {
            Some(last) if wanted.after < last.offset => free + acks.flight.len(),
            _ => free,
        }
    }

    /// Messages of an acknowledged topic, as many as its window had room for.
    pub(super) fn serve_piece(&mut self, slot: u32, number: u32, piece: Piece, out: &mut Vec<u8>) {
        for message in &piece.messages {
            match self.next(slot, number, message) {
                Next::Give => self.give_one(slot, message, out),
                Next::Pass => {}
                Next::Wait => return,
            }
        }
        let followers = &mut self.following.followers;
        if let Some((wanted, _)) = acks_of(followers.get_mut(&slot), number) {
            wanted.after = wanted.after.max(piece.through);
        }
    }

    /// What becomes of the next message of a topic. One that is given is in the window from now on.
    fn next(&mut self, slot: u32, number: u32, message: &Message) -> Next {
        let (now_s, offset) = (self.now_s(), message.id.offset);
        let followers = &mut self.following.followers;
        let Some((wanted, acks)) = acks_of(followers.get_mut(&slot), number) else {
            return Next::Wait;
        };
        if offset <= wanted.after {
            return Next::Pass;
        }
        let place = acks.flight.binary_search_by_key(&offset, |given| given.offset);
        let again = match place {
            Ok(at) => acks.flight[at].again,
            Err(at) if at == acks.flight.len() && at >= acks.window() => return Next::Wait,
            Err(_) => false,
        };
        wanted.after = offset;
        // There is no room for one that the client said it has, and that is before others.
        let no_room = place.is_err() && acks.flight.len() >= acks.window();
        if (place.is_ok() && !again) || no_room {
            return Next::Pass;
        }
        let own = self.table.get(slot).map(|connection| self.id(slot, connection.serial));
        if !self.chooses(slot, message) || message.draft.except == own {
            return Next::Pass;
        }
        if self.is_done(slot, number, message) {
            return Next::Pass;
        }
        let acknowledges = self.table.get(slot).is_some_and(|it| it.variant.acknowledges());
        let followers = &mut self.following.followers;
        let Some((_, acks)) = acks_of(followers.get_mut(&slot), number) else {
            return Next::Wait;
        };
        let given = Given { offset, given_s: now_s, again: false };
        match place {
            Ok(at) => acks.flight[at] = given,
            Err(at) => acks.flight.insert(at, given),
        }
        let seconds = acks.rule.redelivery_seconds;
        if acknowledges && seconds > 0 && acks.queued_s.is_none() {
            let due_s = now_s.saturating_add(seconds);
            acks.queued_s = Some(due_s);
            self.following.again.insert((due_s, slot, number));
        }
        if again {
            self.kept().delivered_again();
        }
        Next::Give
    }

    /// Counts a delivery where there is an end to them. True for a message that was delivered as often
    /// as it may be, and is given up now, or that is done meanwhile. Only the first that is not done
    /// can be given up: what is before it must not be taken for done.
    fn is_done(&mut self, slot: u32, number: u32, message: &Message) -> bool {
        let (now_s, offset) = (self.now_s(), message.id.offset);
        let followers = &mut self.following.followers;
        let Some((wanted, acks)) = acks_of(followers.get_mut(&slot), number) else {
            return false;
        };
        if acks.rule.tries_max == 0 {
            return false;
        }
        let is_first = acks.flight.front().is_none_or(|first| first.offset >= offset);
        let (rule, from) = (acks.rule.clone(), acks.from);
        let (user, topic) = (acks.user.clone(), wanted.topic.clone());
        let tries = self.kept().delivered(&user, &topic, offset, now_s, &rule);
        if tries == 0 {
            return true;
        }
        let may = is_first && from <= self.kept().cursor(&user, &topic);
        if tries <= rule.tries_max || !may || !self.give_up(&user, &rule, message) {
            return false;
        }
        // It takes no place in this connection's window, nor in others'.
        let followers = &mut self.following.followers;
        if let Some((_, acks)) = acks_of(followers.get_mut(&slot), number) {
            acks.flight.pop_front_if(|first| first.offset == offset);
        }
        self.tell_done(&user, &topic, offset);
        true
    }

    /// The same for what a poll is answered, which has a new window each time: counts the deliveries
    /// of its acknowledged topics, and takes out what is done.
    pub(crate) fn count_polled(
        &mut self,
        slot: u32,
        acknowledged: &[Wanted],
        messages: &mut Vec<Arc<Message>>,
    ) {
        let now_s = self.now_s();
        for Wanted { hash, topic, after, .. } in acknowledged {
            let keep = self.kept().rule(topic);
            let rule = keep.as_ref().and_then(|keep| keep.acknowledge.as_ref());
            let rule = rule.filter(|rule| rule.tries_max > 0);
            let (Some(rule), Some(user)) = (rule, self.user_of(slot, topic)) else {
                continue;
            };
            let mut is_first = *after <= self.kept().cursor(&user, topic);
            messages.retain(|message| {
                if message.topic_hash != *hash {
                    return true;
                }
                let offset = message.id.offset;
                let tries = self.kept().delivered(&user, topic, offset, now_s, rule);
                if tries == 0 {
                    return false;
                }
                if is_first && tries > rule.tries_max && self.give_up(&user, rule, message) {
                    self.tell_done(&user, topic, offset);
                    return false;
                }
                is_first = false;
                true
            });
        }
    }

    fn give_one(&mut self, slot: u32, message: &Arc<Message>, out: &mut Vec<u8>) {
        let Some(variant) = self.table.get(slot).map(|connection| connection.variant) else {
            return;
        };
        self.metrics.delivered.add(1);
        match variant.sse_json() {
            Some(json) if variant.is_kept() && !self.says_all(slot, message) => {
                let id = id_with(message.id, self.position_now(slot));
                wire::transport::sse_with_id(message, json, &id, out);
            }
            _ => out.extend_from_slice(&message.encoded(variant, &mut self.tools)),
        }
    }

    /// Nobody acknowledged the message: it goes to the dead-letter topic, with its story. False when
    /// that has no room for it now.
    fn give_up(&self, user: &str, rule: &Acknowledge, message: &Message) -> bool {
        let draft = &message.draft;
        let Some(topic) = &rule.dead_letter else {
            self.kept().give_up(user, &draft.topic, message.id.offset, GivenUp::Dropped);
            return true;
        };
        let mut text = b"{\"topic\":".to_vec();
        wire::command::push_string(&draft.topic, &mut text);
        text.extend_from_slice(b",\"user\":");
        wire::command::push_string(user, &mut text);
        text.extend_from_slice(format!(",\"id\":\"{}\",\"event\":", message.id).as_bytes());
        wire::command::push_string(message.event(), &mut text);
        text.extend_from_slice(format!(",\"tries\":{},", rule.tries_max).as_bytes());
        match &draft.data {
            Data::Json(json) => text.extend_from_slice(format!("\"data\":{json}}}").as_bytes()),
            Data::Text(string) => {
                text.extend_from_slice(b"\"data\":");
                wire::command::push_string(string, &mut text);
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
        let letter = Draft { event, ..Draft::new(topic.clone(), Data::Json(json.into())) };
        if let Err(error) = self.broker.publish(letter, None) {
            tracing::warn!("{}: no dead letter was published for {}: {error}", topic, message.id);
            return false;
        }
        self.kept().give_up(user, &draft.topic, message.id.offset, GivenUp::DeadLettered);
        true
    }

    /// Serves the connections for which something came. To be called when a batch has left.
    pub(crate) fn serve_due(&mut self) {
        if self.following.due.is_empty() {
            return;
        }
        let mut due = std::mem::take(&mut self.following.due);
        due.sort_unstable();
        due.dedup();
        for slot in due {
            self.pull_more(slot);
        }
    }

    /// Delivers again what was not acknowledged in time. To be called about once a second.
    pub(crate) fn deliver_again(&mut self) {
        let now_s = self.now_s();
        for _ in 0..AGAIN_MAX {
            let Some(&(due_s, slot, number)) = self.following.again.first() else {
                return;
            };
            if due_s > now_s {
                return;
            }
            self.following.again.pop_first();
            let followers = &mut self.following.followers;
            let Some((wanted, acks)) = acks_of(followers.get_mut(&slot), number) else {
                continue;
            };
            acks.queued_s = None;
            let seconds = acks.rule.redelivery_seconds.max(1);
            let Some(first_s) = acks.flight.iter().map(|given| given.given_s).min() else {
                continue;
            };
            let (user, topic) = (acks.user.clone(), wanted.topic.clone());
            let is_due = first_s.saturating_add(seconds) <= now_s;
            // One that does not read gets it when it does.
            let reads = self
                .table
                .get(slot)
                .is_some_and(|it| it.outbox().is_none_or(|outbox| outbox.is_empty()));
            let reads = reads && !self.is_reading(slot);
            let cursor = self.kept().cursor(&user, &topic);
            let followers = &mut self.following.followers;
            let Some((wanted, acks)) = acks_of(followers.get_mut(&slot), number) else {
                continue;
            };
            let mut next_s = first_s.saturating_add(seconds);
            if is_due && reads {
                next_s = now_s;
                for given in &mut acks.flight {
                    if given.given_s.saturating_add(seconds) <= now_s {
                        (given.given_s, given.again) = (now_s, true);
                    }
                    next_s = next_s.min(given.given_s);
                }
                next_s = next_s.saturating_add(seconds);
                (wanted.after, acks.from) = (cursor, cursor);
            }
            // Never the same second: this would go on for ever.
            let next_s = next_s.max(now_s + 1);
            acks.queued_s = Some(next_s);
            self.following.again.insert((next_s, slot, number));
            if is_due && reads {
                self.pull_more(slot);
            }
        }
    }

    /// The disk is asked for the connection's next piece.
    fn is_reading(&self, slot: u32) -> bool {
        self.following.followers.get(&slot).is_some_and(|follower| follower.reading.is_some())
    }

    /// A client says what a user has got. Gives the topic and the place that is acknowledged now.
    /// `slot` is the connection that says so, where it may speak for its own users only.
    pub(crate) fn acknowledge(
        &mut self,
        slot: Option<u32>,
        acknowledged: Acknowledged,
    ) -> Result<(Name, Id), AcknowledgeError> {
        let Acknowledged { user, topic, id } = acknowledged;
        let own = topic.as_deref().and_then(|topic| topic.strip_prefix(PERSONAL));
        let user = match slot {
            None => user.or(own.map(Name::from)),
            Some(slot) => {
                let asked = user.as_deref().or(own);
                let mut users =
                    self.hub.topics_of(slot).filter_map(|name| name.strip_prefix(PERSONAL));
                users.find(|user| asked.is_none_or(|asked| asked == *user)).map(Name::from)
            }
        };
        let user = user.ok_or(AcknowledgeError::NoUser)?;
        let topic = topic.unwrap_or_else(|| personal(&user));
        let offset = self.kept().acknowledge(&user, &topic, id)?;
        self.tell_done(&user, &topic, offset);
        Ok((topic, Id { offset, ..id }))
    }

    /// Tells all shards that a user has done with a topic's messages up to this offset.
    fn tell_done(&self, user: &Name, topic: &Name, offset: u64) {
        let hash = self.broker.hash(&personal(user));
        for shard in self.shards.iter().filter(|shard| shard.inbox.filter.holds(hash)) {
            let (user, topic) = (user.clone(), topic.clone());
            shard.send(Command::Acknowledged { user, topic, offset });
        }
    }

    /// A user has acknowledged a topic up to this offset, or it was given up: the windows of the
    /// user's connections have room for more.
    pub(crate) fn acknowledged(&mut self, user: &str, topic: &str, offset: u64) {
        let own = personal(user);
        let hash = self.broker.hash(topic);
        for slot in self.hub.slots(self.broker.hash(&own), &own) {
            let Some(follower) = self.following.followers.get_mut(&slot) else {
                continue;
            };
            let ours = |follow: &&mut Follow| follow.wanted.hash == hash;
            let Some(follow) = follower.follows.iter_mut().find(ours) else {
                continue;
            };
            let Some(acks) = follow.acks.as_mut().filter(|acks| acks.user == user) else {
                continue;
            };
            while acks.flight.pop_front_if(|first| first.offset <= offset).is_some() {}
            if follow.wanted.after < offset {
                follow.wanted.after = offset;
            }
            self.pull_more(slot);
        }
    }
}

/// The place and the acknowledgements of one follow.
fn acks_of(follower: Option<&mut Follower>, number: u32) -> Option<(&mut Wanted, &mut Acks)> {
    let follow = follower?.follows.iter_mut().find(|follow| follow.number == number)?;
    let Follow { wanted, acks, .. } = follow;
    Some((wanted, acks.as_deref_mut()?))
}
