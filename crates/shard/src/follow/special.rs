//! Messages that not every member of a topic gets alike.

use std::collections::HashSet;
use std::sync::Arc;

use wire::message::PERSONAL;
use wire::{ConnectionId, Message, Since, Variant};

use super::{Following, Given, id_with};
use crate::batch::{Outboxes, Room};
use crate::deliver::encode;
use crate::shard::Shard;

/// What a slice's messages are to members that are looked at one by one.
#[derive(Clone, Copy, Default)]
pub(crate) struct Care {
    /// Some member is left out, or chooses, or may hold messages back.
    pub each: bool,
    /// All messages have history, and nobody acknowledges them.
    pub kept: bool,
}

impl Following {
    /// What must be looked at for each member of a slice with these messages.
    pub fn care<'a>(&self, messages: impl Iterator<Item = &'a Arc<Message>>) -> Care {
        let mut care = Care { each: !self.filters.is_empty(), kept: true };
        let follows = !self.followers.is_empty();
        for message in messages {
            care.kept &= message.kept == wire::Kept::History;
            let kept = message.kept != wire::Kept::No;
            care.each |= message.draft.except.is_some() || (kept && follows);
        }
        care
    }

    /// True when this member is not served with all others.
    pub fn is_special(&self, slot: u32, variant: Variant, care: Care, left_out: &[u32]) -> bool {
        let each = || {
            self.followers.contains_key(&slot)
                || self.filters.contains_key(&slot)
                || left_out.contains(&slot)
        };
        // The id of a message of the only topic with history says all.
        let positions = || !care.kept || self.many.contains(&slot);
        (care.each && each()) || (variant.is_kept() && positions())
    }
}

impl Shard {
    /// Puts the messages of a slice into the batch for one member, with what is its own in them.
    /// Gives how many it gets, and what room it has left.
    pub(crate) fn deliver_specially(
        &mut self,
        slot: u32,
        messages: &[Arc<Message>],
    ) -> (usize, Room) {
        let Some(connection) = self.table.get(slot) else {
            return (0, Room::Enough);
        };
        let variant = connection.variant;
        let id = ConnectionId { shard: self.number, slot, serial: connection.serial };
        let wanted: Vec<Arc<Message>> = messages
            .iter()
            .filter(|message| {
                message.draft.except != Some(id)
                    && self.admits(slot, message)
                    && self.chooses(slot, message)
            })
            .cloned()
            .collect();
        if wanted.is_empty() {
            return (0, Room::Enough);
        }
        let bytes = match variant.sse_json() {
            Some(json) if variant.is_kept() => self.with_positions(slot, json, &wanted),
            _ => encode(wanted.iter(), variant, &mut self.tools),
        };
        if bytes.is_empty() {
            return (0, Room::Enough);
        }
        let piece = self.batch.piece(bytes, wanted.len() as u32);
        let now_us = self.now_us;
        let limits = Outboxes { settings: &self.settings, metrics: &self.metrics, now_us };
        match self.table.get_mut(slot) {
            Some(connection) => (wanted.len(), self.batch.gather(connection, slot, piece, limits)),
            None => (0, Room::Enough),
        }
    }

    /// Whether a message that comes live is for this connection, or held back from it.
    pub(crate) fn admits(&mut self, slot: u32, message: &Message) -> bool {
        if message.kept == wire::Kept::No {
            return true;
        }
        let Some(follower) = self.following.followers.get(&slot) else {
            return true;
        };
        let follows = |follow: &&super::Follow| follow.wanted.hash == message.topic_hash;
        let Some(follow) = follower.follows.iter().find(follows) else {
            return true;
        };
        if follow.acks.is_some() {
            self.following.due.push(slot);
            return false;
        }
        message.id.offset > follow.through
    }

    /// Whether a message has one of the tags that the connection chose, if it did.
    pub(crate) fn chooses(&self, slot: u32, message: &Message) -> bool {
        let Some(filter) = self.following.filters.get(&slot) else {
            return true;
        };
        let own = message.draft.topic.starts_with(PERSONAL) || message.is_broadcast();
        let named = filter.topics.iter().find(|(hash, _)| *hash == message.topic_hash);
        let tags = match named {
            Some((_, tags)) => tags,
            None if own => return true,
            None => &filter.all,
        };
        tags.is_empty() || message.draft.tags().iter().any(|tag| tags.contains(tag))
    }

    /// Events whose ids say how far the connection has everything when it has read them: what comes
    /// behind one in the same write may be cut off.
    fn with_positions(&self, slot: u32, json: bool, messages: &[Arc<Message>]) -> Arc<[u8]> {
        let mut out = Vec::new();
        let waiting = &self.waiting(slot);
        for (at, message) in messages.iter().enumerate() {
            let given = Given { behind: &messages[at + 1..], waiting, pulled: None };
            let id = self.id_of(slot, message, &given);
            wire::transport::sse_with_id(message, json, &id, &mut out);
        }
        out.into()
    }

    /// Appends messages that the connection is owed and will not get from the hub, for it is about
    /// to leave: by all, or by one topic.
    pub(crate) fn settle_these(&mut self, slot: u32, messages: &[Arc<Message>], out: &mut Vec<u8>) {
        let Some(variant) = self.table.get(slot).map(|connection| connection.variant) else {
            return;
        };
        let json = variant.sse_json().filter(|_| variant.is_kept());
        let Some(json) = json else {
            for message in messages {
                out.extend_from_slice(&message.encoded(variant, &mut self.tools));
            }
            return;
        };
        let ours: HashSet<u64> = messages
            .iter()
            .filter(|message| message.kept != wire::Kept::No)
            .map(|message| message.id.offset)
            .collect();
        let mut waiting = self.hub.owed(slot, None);
        waiting
            .retain(|message| message.kept == wire::Kept::No || !ours.contains(&message.id.offset));
        let waiting = self.first_of_each(slot, waiting.into_iter().map(|message| &**message));
        for (at, message) in messages.iter().enumerate() {
            let given = Given { behind: &messages[at + 1..], waiting: &waiting, pulled: None };
            let id = self.id_of(slot, message, &given);
            wire::transport::sse_with_id(message, json, &id, out);
        }
    }

    /// The id of an event: the message's own comes first in it.
    fn id_of(&self, slot: u32, message: &Message, given: &Given<'_>) -> Since {
        match self.says_all(slot, message) {
            true => message.id.into(),
            false => id_with(message.id, self.position(slot, given)),
        }
    }
}
