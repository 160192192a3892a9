//! Topics whose users acknowledge: what is not acknowledged is delivered again.
//!
//! A connection has a window of messages that it may have without an acknowledgement; the next one
//! is pulled from the history when there is room. Acknowledgements are cumulative. When one does
//! not come in time, everything after the last one is delivered again.

use std::collections::VecDeque;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use broker::{AcknowledgeError, Piece, Pull, Wanted};
use wire::message::{PERSONAL, personal};
use wire::session::{Acknowledged, Asked};
use wire::{Acknowledge, Data, Draft, History, Id, Message, Name};

use super::{ALL, Follow, Follower, id_with};
use crate::command::Command;
use crate::shard::Shard;

/// Connections that one second delivers to again; more wait for the next.
const AGAIN_MAX: usize = 10_000;

/// How a connection stands with a topic that its user acknowledges.
pub(crate) struct Acks {
    user: Name,
    rule: Acknowledge,
    /// Offsets of the messages that it has and that are not acknowledged, in order.
    flight: VecDeque<u64>,
    /// They are delivered again in this second, if none is acknowledged before.
    due_s: u32,
    /// When that is looked at; not always the same, so that an acknowledgement costs nothing.
    pub(super) queued_s: Option<u32>,
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
            redelivery_seconds: 1,
            tries_max: 0,
            dead_letter: None,
        });
        let acks = Acks { user, rule, flight: VecDeque::new(), due_s: 0, queued_s: None };
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
        let Some((follow, acks)) = acks_of(self.following.followers.get_mut(&slot), number) else {
            return false;
        };
        let room = (acks.rule.window_messages_max as usize).saturating_sub(acks.flight.len());
        if room == 0 {
            return false;
        }
        let wanted = follow.clone();
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

    /// Messages of an acknowledged topic, as many as its window had room for.
    pub(super) fn serve_piece(&mut self, slot: u32, number: u32, piece: Piece, out: &mut Vec<u8>) {
        let now_s = self.now_s();
        let kept = self.kept().clone();
        for message in &piece.messages {
            let followers = &mut self.following.followers;
            let Some((wanted, acks)) = acks_of(followers.get_mut(&slot), number) else {
                return;
            };
            let offset = message.id.offset;
            if offset <= wanted.after || acks.flight.len() >= acks.rule.window_messages_max as usize
            {
                continue;
            }
            wanted.after = offset;
            let (user, topic) = (acks.user.clone(), wanted.topic.clone());
            let own = self.table.get(slot).map(|connection| self.id(slot, connection.serial));
            if !self.chooses(slot, message) || message.draft.except == own {
                continue;
            }
            let followers = &mut self.following.followers;
            let Some((_, acks)) = acks_of(followers.get_mut(&slot), number) else {
                return;
            };
            if acks.flight.is_empty() {
                let rule = acks.rule.clone();
                let seconds = rule.redelivery_seconds;
                let tries = kept.tried(&user, &topic, offset, now_s, seconds);
                let is_over = rule.tries_max > 0 && tries > rule.tries_max;
                if is_over && self.give_up(&user, &rule, message) {
                    continue;
                }
                let followers = &mut self.following.followers;
                let Some((_, acks)) = acks_of(followers.get_mut(&slot), number) else {
                    return;
                };
                let due_s = now_s.saturating_add(rule.redelivery_seconds.max(1));
                acks.due_s = due_s;
                if acks.queued_s.is_none() {
                    acks.queued_s = Some(due_s);
                    self.following.again.insert((due_s, slot, number));
                }
            }
            let followers = &mut self.following.followers;
            if let Some((_, acks)) = acks_of(followers.get_mut(&slot), number) {
                acks.flight.push_back(offset);
            }
            self.give_one(slot, message, out);
        }
        let followers = &mut self.following.followers;
        if let Some((wanted, acks)) = acks_of(followers.get_mut(&slot), number)
            && acks.flight.len() < acks.rule.window_messages_max as usize
        {
            wanted.after = wanted.after.max(piece.through);
        }
    }

    fn give_one(&mut self, slot: u32, message: &Arc<Message>, out: &mut Vec<u8>) {
        let Some(variant) = self.table.get(slot).map(|connection| connection.variant) else {
            return;
        };
        self.metrics.delivered.add(1);
        match variant.sse_json() {
            Some(json) if variant.is_kept() => {
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
            self.kept().give_up(user, &draft.topic, message.id.offset);
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
        self.kept().give_up(user, &draft.topic, message.id.offset);
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
            if acks.flight.is_empty() {
                continue;
            }
            if acks.due_s > now_s {
                acks.queued_s = Some(acks.due_s);
                self.following.again.insert((acks.due_s, slot, number));
                continue;
            }
            let (user, topic) = (acks.user.clone(), wanted.topic.clone());
            let cursor = self.kept().cursor(&user, &topic);
            let followers = &mut self.following.followers;
            let Some((wanted, acks)) = acks_of(followers.get_mut(&slot), number) else {
                continue;
            };
            // One that does not read gets it when it does.
            let reads = self
                .table
                .get(slot)
                .is_some_and(|it| it.outbox().is_none_or(|outbox| outbox.is_empty()));
            if reads {
                acks.flight.clear();
                wanted.after = cursor;
                self.kept().delivers_again();
                self.pull_more(slot);
            } else {
                acks.due_s = now_s + acks.rule.redelivery_seconds.max(1);
                acks.queued_s = Some(acks.due_s);
                self.following.again.insert((acks.due_s, slot, number));
            }
        }
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
        let hash = self.broker.hash(&personal(&user));
        for shard in self.shards.iter().filter(|shard| shard.inbox.filter.holds(hash)) {
            let (user, topic) = (user.clone(), topic.clone());
            shard.send(Command::Acknowledged { user, topic, offset });
        }
        Ok((topic, Id { offset, ..id }))
    }

    /// A user has acknowledged a topic up to this offset: the windows of the user's connections have
    /// room for more.
    pub(crate) fn acknowledged(&mut self, user: &str, topic: &str, offset: u64) {
        let own = personal(user);
        let hash = self.broker.hash(topic);
        let now_s = self.now_s();
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
            let before = acks.flight.len();
            while acks.flight.pop_front_if(|first| *first <= offset).is_some() {}
            if acks.flight.len() < before && !acks.flight.is_empty() {
                acks.due_s = now_s.saturating_add(acks.rule.redelivery_seconds.max(1));
            }
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
