//! Messages that differ between the members of a topic.

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

/// The limit on messages in one delivery of those that waited until the connection reads.
const SERVED_MESSAGES: usize = 64;

/// The part of an outbox's limit for their payloads.
const SERVED_PART: usize = 4;

/// What must be checked for each member of a slice.
#[derive(Clone, Copy, Default)]
pub(crate) struct Care {
    /// A member may be left out, have a tag filter, or have deferred messages.
    pub each: bool,
    /// Messages of topics with history that no user acknowledges, or messages without an id.
    pub plain: bool,
}

impl CatchupTable {
    /// Returns what must be checked for each member of a slice with these messages.
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

    /// Returns true if this member does not get the same bytes as all others.
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
        // In the only topic with history, the message's own id is enough.
        let positions = || !care.plain || self.many.contains(&slot);
        (care.each && each()) || (connection.is(Flag::Resumable) && positions())
    }
}

impl Recovery {
    /// Sends the messages of a slice of a list to one member, with the parts that are the member's own. Returns how
    /// many it gets.
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

    /// Returns why a message of a slice does not go to a member. `rest` are the messages right behind it.
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

    /// Queues the messages of a slice for a slow member, which gets the newest message of each key when it reads again.
    /// Returns false if the limit on messages that wait is reached.
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

    /// Everything was sent to the connection: it gets the next of the messages that wait for it.
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

    /// Returns whether a live message is for this connection, or is deferred for it.
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

    /// Appends messages that the hub would not deliver any more, because the connection is about to leave one topic or
    /// all.
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

    /// Appends the messages that are still due to the connection, because it is about to leave one topic or all. A
    /// publisher that sends a last message and then disconnects the user expects the message to arrive.
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
                // The hub still has them for this connection.
                && core.comes_first(slot, message, &[])
        });
        self.flush_messages(core, slot, &owed, out);
        core.metrics.delivered.add(owed.len() as u64);
        core.trace_delivered(slot, owed.iter().map(|it| &it.message));
    }

    /// The last bytes to a connection: messages that were published before, and why the connection ends.
    pub(crate) fn goodbye(&mut self, core: &mut Core, slot: u32, close: CloseReason) -> Vec<u8> {
        let mut out = Vec::new();
        self.flush_owed(core, slot, None, &mut out);
        if let Some(connection) = core.table.get(slot) {
            // Each connection gets its own delay, so that those that end together do not come back together.
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
    /// Returns whether a message passes the tag filter of the connection.
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
        // Presence notices bypass tag filters: a client with the snapshot needs the changes.
        tags.is_empty()
            || is_reserved(message.event())
            || message.publication.tags().iter().any(|tag| tags.contains(tag))
    }

    /// Events whose ids say up to where the connection has everything once it has read them. The connection may end
    /// within one write, so each event has an id for what comes before it.
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

    /// The id of an event. It begins with the message's own id.
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
