//! Messages that not every member of a topic gets alike.

use std::collections::HashSet;
use std::sync::Arc;

use model::event::is_reserved;
use model::name::of_filter;
use model::{CloseReason, ConnectionId, Envelope, Message, ResumeToken, Retention, TopicKind};
use protocol::{Delivery, ProtocolRef, encoded};

use super::{CatchupTable, Delivered, Recovery, id_with};
use crate::connection::{Connection, Flag, Phase};
use crate::core::Core;
use crate::core::count::count;
use crate::delivery::encode::{encode, encode_by};
use crate::delivery::outbox::{Chunk, Piece};
use crate::trace::event::NotDelivered;

/// Messages that a connection is given together of those that waited for it to read.
const SERVED_MESSAGES: usize = 64;

/// The part of an outbox's limit that their payloads may take.
const SERVED_PART: usize = 4;

/// What a slice's messages are to members that are looked at one by one.
#[derive(Clone, Copy, Default)]
pub(crate) struct Care {
    /// Some member is left out, or chooses, or may hold messages back.
    pub each: bool,
    /// The messages of topics with history, that nobody acknowledges, or pass it by without an id.
    pub plain: bool,
}

impl CatchupTable {
    /// What must be looked at for each member of a slice with these messages.
    pub fn care<'a>(&self, messages: impl Iterator<Item = &'a Arc<Envelope>>) -> Care {
        let mut care = Care { each: !self.filters.is_empty(), plain: true };
        let catching_up = !self.by_slot.is_empty();
        for message in messages {
            care.plain &= matches!(message.retention, Retention::History | Retention::Passing);
            let retained = message.is_retained();
            care.each |= message.publication.except.is_some() || (retained && catching_up);
        }
        care
    }

    /// True when this member is not served with all others.
    pub fn is_per_member(
        &self,
        slot: u32,
        connection: &Connection,
        care: Care,
        left_out: &[u32],
    ) -> bool {
        let each = || {
            self.by_slot.contains_key(&slot)
                || self.filters.contains_key(&slot)
                || left_out.contains(&slot)
        };
        // The id of a message of the only topic with history says all.
        let positions = || !care.plain || self.many.contains(&slot);
        (care.each && each()) || (connection.is(Flag::Resumable) && positions())
    }
}

impl Recovery {
    /// Sends the messages of a slice of a list to one member, with what is its own in them. Gives how many it
    /// gets.
    pub(crate) fn deliver_specially(
        &mut self,
        core: &mut Core,
        slot: u32,
        list: Option<&str>,
        messages: &[Arc<Envelope>],
    ) -> usize {
        let Some(connection) = core.table.get_mut(slot) else {
            return 0;
        };
        connection.set(Flag::WroteRecently, true);
        let resumable = connection.is(Flag::Resumable);
        let protocol = core.shared.protocols.of(connection.encoding);
        let id = ConnectionId {
            node: core.shared.node,
            shard: core.number,
            slot,
            serial: connection.serial,
        };
        let mut matching: Vec<Arc<Envelope>> = Vec::with_capacity(messages.len());
        for (at, message) in messages.iter().enumerate() {
            match self.excludes(core, slot, id, message, &messages[at + 1..]) {
                None => matching.push(message.clone()),
                Some(why) => core.trace_not_delivered(slot, message, why),
            }
        }
        if matching.is_empty() {
            return 0;
        }
        let bytes =
            match list.filter(|list| protocol.capabilities().joins && of_filter(list).is_some()) {
                Some(list) => encode_by(matching.iter(), list, protocol, &mut core.codecs),
                None if resumable => self.catchups.with_positions(core, slot, protocol, &matching),
                None => encode(matching.iter(), protocol, &mut core.codecs),
            };
        if bytes.is_empty() {
            return 0;
        }
        if protocol.delivery() == Delivery::Gathered {
            let piece = Piece::new(bytes, &core.metrics);
            core.session_take(slot, Chunk::new(piece, count(matching.len())));
        } else {
            let topic = matching.first().map(|message| message.topic_hash);
            core.outputs.share(bytes, &[slot], count(matching.len()), topic);
        }
        core.trace_delivered(slot, matching.iter().map(|it| &it.message));
        matching.len()
    }

    /// Why a message of a slice does not go to a member that gets it for itself; `rest` comes right behind it.
    fn excludes(
        &mut self,
        core: &mut Core,
        slot: u32,
        id: ConnectionId,
        message: &Arc<Envelope>,
        rest: &[Arc<Envelope>],
    ) -> Option<NotDelivered> {
        if message.publication.except == Some(id) {
            return Some(NotDelivered::Own);
        }
        if !self.admits(slot, message) {
            return Some(NotDelivered::CatchingUp);
        }
        if !self.catchups.chooses(slot, message) {
            return Some(NotDelivered::Tags);
        }
        (!core.comes_first(slot, message, rest)).then_some(NotDelivered::Duplicate)
    }

    /// Notes the messages of a slice for a member that doesn't keep up, and gets the newest of each key
    /// when it does. False when more would wait for it than may.
    pub(crate) fn conflate(
        &mut self,
        core: &mut Core,
        slot: u32,
        messages: &[Arc<Envelope>],
    ) -> bool {
        let Some(connection) = core.table.get(slot) else {
            return true;
        };
        let id = core.id(slot, connection.serial);
        let max = core.settings.outbox_bytes_max;
        messages.iter().enumerate().all(|(at, message)| {
            let excluded = self.excludes(core, slot, id, message, &messages[at + 1..]);
            core.trace_not_delivered(slot, message, excluded.unwrap_or(NotDelivered::Conflated));
            excluded.is_some() || core.conflation.push(slot, message.clone(), max, &core.metrics)
        })
    }

    /// A connection has taken what it was sent: it gets the next of what waits for it.
    pub(crate) fn serve_conflated(&mut self, core: &mut Core, slot: u32) {
        if !core.conflation.holds(slot) {
            return;
        }
        let (messages_max, bytes_max) = (
            core.settings.outbox_messages_max.min(SERVED_MESSAGES),
            core.settings.outbox_bytes_max / SERVED_PART,
        );
        let messages = core.conflation.take(slot, messages_max, bytes_max, &core.metrics);
        let Some(protocol) = core.protocol(slot) else {
            return;
        };
        let bytes = match core.is(slot, Flag::Resumable) {
            true => self.catchups.with_positions(core, slot, protocol, &messages),
            false => encode(messages.iter(), protocol, &mut core.codecs),
        };
        core.metrics.delivered.add(messages.len() as u64);
        core.send_and_wait(slot, &bytes);
        core.trace_delivered(slot, messages.iter().map(|it| &it.message));
    }

    /// Whether a message that comes live is for this connection, or held back from it.
    pub(crate) fn admits(&mut self, slot: u32, message: &Message) -> bool {
        if !message.is_retained() {
            return true;
        }
        let Some(catchups) = self.catchups.by_slot.get_mut(&slot) else {
            return true;
        };
        let list = |catchup: &&mut super::Catchup| catchup.cursor.hash == message.topic_hash;
        let Some(catchup) = catchups.list.iter_mut().find(list) else {
            return true;
        };
        let offset = message.id.offset;
        if catchup.acks.is_none() && offset > catchup.through {
            return true;
        }
        catchup.deferred_offset = catchup.deferred_offset.max(offset);
        if catchup.acks.is_some() {
            self.due.push(slot);
        }
        false
    }

    /// Appends messages that the connection is owed and will not get from the hub, for it is about
    /// to leave: by all, or by one topic.
    pub(crate) fn flush_messages(
        &mut self,
        core: &mut Core,
        slot: u32,
        messages: &[Arc<Envelope>],
        out: &mut Vec<u8>,
    ) {
        let Some(protocol) = core.protocol(slot) else {
            return;
        };
        if !core.is(slot, Flag::Resumable) {
            for message in messages {
                out.extend_from_slice(&encoded(message, protocol, &mut core.codecs));
            }
            return;
        }
        let ours: HashSet<u64> = messages
            .iter()
            .filter(|message| message.is_retained())
            .map(|message| message.id.offset)
            .collect();
        let mut waiting = core.hub.owed(slot, None);
        waiting.extend(core.conflation.of(slot));
        waiting.retain(|message| !message.is_retained() || !ours.contains(&message.id.offset));
        let waiting =
            self.catchups.first_of_each(slot, waiting.into_iter().map(|message| &message.message));
        for (at, message) in messages.iter().enumerate() {
            let delivered =
                Delivered { behind: &messages[at + 1..], waiting: &waiting, pulled: None };
            let id = self.catchups.id_of(core, slot, message, &delivered);
            protocol.encode_with(message, &id, out);
        }
    }

    /// Appends what the connection is still owed, by all or by one topic, for it is about to leave:
    /// whoever sends a user a last message and then disconnects them wants it to arrive.
    pub(crate) fn flush_owed(
        &mut self,
        core: &mut Core,
        slot: u32,
        topic: Option<&str>,
        out: &mut Vec<u8>,
    ) {
        let topic = topic.map(|topic| (core.broker.hash(topic), topic));
        if let Some((hash, _)) = topic {
            self.reply_waiting(core, slot, hash, out);
        }
        if core.mqtt.has(slot) {
            return core.mqtt_flush_owed(slot, topic, out);
        }
        let Some(connection) = core.table.get(slot) else {
            return;
        };
        let id = core.id(slot, connection.serial);
        let mut owed: Vec<Arc<Envelope>> =
            core.hub.owed(slot, topic).into_iter().cloned().collect();
        for (filter, messages) in core.owed_by_channels(slot, topic) {
            let Some(protocol) = core.protocol(slot) else { return };
            for message in &messages {
                let at = owed.iter().position(|it| Arc::ptr_eq(it, message));
                at.into_iter().for_each(|at| drop(owed.remove(at)));
            }
            out.extend_from_slice(&encode_by(messages.iter(), &filter, protocol, &mut core.codecs));
            core.metrics.delivered.add(messages.len() as u64);
            core.trace_delivered(slot, messages.iter().map(|it| &it.message));
        }
        let hash = topic.map(|(hash, _)| hash);
        let conflated = core.conflation.take_topic(slot, hash, &core.metrics);
        owed.splice(..0, conflated);
        owed.retain(|message| {
            message.publication.except != Some(id)
                && self.admits(slot, message)
                && self.catchups.chooses(slot, message)
                // The hub owes them still, whatever comes first.
                && core.comes_first(slot, message, &[])
        });
        self.flush_messages(core, slot, &owed, out);
        core.metrics.delivered.add(owed.len() as u64);
        core.trace_delivered(slot, owed.iter().map(|it| &it.message));
    }

    /// The last words to a connection: what was published to it before, and why it ends.
    pub(crate) fn goodbye(&mut self, core: &mut Core, slot: u32, close: CloseReason) -> Vec<u8> {
        let mut out = Vec::new();
        self.flush_owed(core, slot, None, &mut out);
        if let Some(connection) = core.table.get(slot) {
            // Each its own, so that those who are cut off together don't come back together.
            let set_ms = core.settings.session.sse_retry_ms;
            let retry_ms = protocol::sse::retry_ms(set_ms, core.id(slot, connection.serial));
            let protocol = core.shared.protocols.of(connection.encoding);
            if core.mqtt_protocol(slot).is_some() {
                core.mqtt_goodbye(slot, close, &mut out);
            } else if connection.phase() == Phase::Request && !core.speaks_first(slot) {
                let first = core.table.cold(slot).map_or(&[][..], |cold| &cold.input);
                protocol.turn_away(first, close, &mut out);
            } else {
                protocol.goodbye(close, retry_ms, &mut out);
            }
        }
        core.session_request_goodbye(slot, &mut out);
        out
    }
}

impl CatchupTable {
    /// Whether a message has one of the tags that the connection chose, if it did.
    pub(crate) fn chooses(&self, slot: u32, message: &Message) -> bool {
        let Some(filter) = self.filters.get(&slot) else {
            return true;
        };
        let own = !TopicKind::of(&message.publication.topic).is_ordinary();
        let named = filter.topics.iter().find(|(hash, _)| *hash == message.topic_hash);
        let tags = match named {
            Some((_, tags)) => tags,
            None if own => return true,
            None => &filter.all,
        };
        // Who is there is of no tag, and whoever has the list needs the changes.
        tags.is_empty()
            || is_reserved(message.event())
            || message.publication.tags().iter().any(|tag| tags.contains(tag))
    }

    /// Events whose ids say how far the connection has everything when it has read them: what comes
    /// behind one in the same write may be cut off.
    pub(crate) fn with_positions(
        &self,
        core: &Core,
        slot: u32,
        protocol: ProtocolRef,
        messages: &[Arc<Envelope>],
    ) -> Arc<[u8]> {
        let mut out = Vec::new();
        let waiting = &self.waiting(core, slot);
        for (at, message) in messages.iter().enumerate() {
            let delivered = Delivered { behind: &messages[at + 1..], waiting, pulled: None };
            let id = self.id_of(core, slot, message, &delivered);
            protocol.encode_with(message, &id, &mut out);
        }
        out.into()
    }

    /// The id of an event: the message's own comes first in it.
    fn id_of(
        &self,
        core: &Core,
        slot: u32,
        message: &Message,
        delivered: &Delivered<'_>,
    ) -> ResumeToken {
        match self.says_all(core, slot, message) {
            true => message.id.into(),
            false => id_with(message.id, self.position(core, slot, delivered)),
        }
    }
}
