//! From a message to its members.

use std::sync::Arc;

use model::name::of_filter;
use model::{CloseReason, Encoding, Envelope, Name};
use protocol::Delivery;

use crate::connection::Flag;
use crate::core::count::count;
use crate::core::output::Output;
use crate::delivery::encode::{encode, encode_by};
use crate::delivery::outbox::{Chunk, Piece};
use crate::engine::Engine;

/// Members that one fan-out serves before the next has its turn.
const SLICE: usize = if cfg!(test) { 2 } else { 256 };

impl Engine {
    /// A slice of the next fan-out: how many members it had, or nothing where none waits. Fan-outs
    /// over long lists go on only with `bulk`.
    pub fn slice(&mut self, bulk: bool) -> Option<usize> {
        let slice = self.core.hub.next_slice(SLICE, bulk, self.core.now_us)?;
        for message in slice.done() {
            self.core.handle.inbox.waiting.leave(message);
        }
        let (mut delivered, mut per_member) = (0, Vec::new());
        // Who is left out of one of the messages: hardly ever anybody.
        let left_out: Vec<u32> = slice
            .messages()
            .filter_map(|message| message.publication.except)
            .filter(|id| id.shard == self.core.number)
            .map(|id| id.slot)
            .collect();
        let protocols = self.core.shared.protocols;
        let care = self.recovery.catchups.care(slice.messages());
        let topic = slice.messages().next().map(|message| message.publication.topic.clone());
        let policy = &self.core.settings.session.policy;
        let by_filter = slice.topic.is_some_and(|list| of_filter(list).is_some());
        // What comes by a filter is of several topics.
        let conflates = policy.rules().conflates_any()
            && !by_filter
            && topic.is_some_and(|topic| policy.topic(&topic).rule.is_some_and(|it| it.conflate));
        let (mut behind, mut subscribed) = (Vec::new(), Vec::new());
        let list = slice.topic.map(Name::as_str);
        let dedup = !self.core.dedup.is_empty()
            && slice.messages().any(|message| message.filters.is_some());
        for &slot in slice.slots {
            let Some(connection) = self.core.table.get_mut(slot) else {
                continue;
            };
            let encoding = connection.encoding;
            if protocols.delivery(encoding) == Delivery::Woken {
                // It reads by itself.
                if !connection.is(Flag::Woken) {
                    connection.set(Flag::Woken, true);
                    self.core.woken.push(slot);
                }
                continue;
            }
            if connection.is_closing() {
                continue;
            }
            if protocols.delivery(encoding) == Delivery::Subscribed {
                match self.core.mqtt.shares(slot, list, slice.messages()) {
                    true => self.groups[usize::from(encoding.0)].push(slot),
                    false => subscribed.push(slot),
                }
                continue;
            }
            // Whoever has something to take gets the newest when it has taken that.
            if conflates
                && (connection.is(Flag::Blocked) || self.core.conflation.holds(slot))
                && protocols.delivery(encoding) == Delivery::Pushed
            {
                behind.push(slot);
                continue;
            }
            if self.recovery.catchups.is_per_member(slot, connection, care, &left_out)
                || (dedup
                    && self.core.dedup.holds(slot)
                    && !protocols.of(encoding).capabilities().joins)
            {
                per_member.push(slot);
                continue;
            }
            connection.set(Flag::WroteRecently, true);
            self.groups[usize::from(encoding.0)].push(slot);
        }
        let messages = count(slice.messages().len());
        // Nobody waits for those who get the newest alone.
        let topic = slice.messages().next().filter(|_| !conflates);
        let topic = topic.map(|message| message.topic_hash);
        let mut sessions = Vec::new();
        for encoding in Encoding::ALL {
            let number = usize::from(encoding.0);
            if self.groups[number].is_empty() {
                continue;
            }
            let mut group = std::mem::take(&mut self.groups[number]);
            let protocol = protocols.of(encoding);
            let codecs = &mut self.core.codecs;
            let bytes = match list.filter(|_| by_filter && protocol.capabilities().joins) {
                Some(list) => encode_by(slice.messages(), list, protocol, codecs),
                None => encode(slice.messages(), protocol, codecs),
            };
            if !bytes.is_empty() {
                delivered += group.len() as u64;
                if protocol.delivery() == Delivery::Gathered {
                    sessions.push((bytes, std::mem::take(&mut group)));
                } else {
                    self.core.outputs.share(bytes, &group, messages, topic);
                }
            }
            group.clear();
            self.groups[number] = group;
        }
        self.core.metrics.delivered.add(delivered * u64::from(messages));
        for message in slice.messages().filter(|_| delivered > 0) {
            let published_us = message.published_us;
            self.core.outputs.push(Output::Delivered { published_us, connections: delivered });
        }
        if let Some(since_us) = slice.finished_since_us {
            self.core.metrics.fanout_time.record(self.core.now_us.saturating_sub(since_us), 1);
        }
        let served = slice.slots.len();
        let all = per_member.is_empty() && behind.is_empty() && subscribed.is_empty();
        let (list, specials) = match all {
            true => (None, Vec::new()),
            false => (slice.topic.cloned(), slice.messages().cloned().collect()),
        };
        if !per_member.is_empty() {
            self.serve_per_member(&per_member, list.as_deref(), &specials);
        }
        self.serve_subscribed(&subscribed, list.as_deref(), &specials);
        for slot in behind {
            let fits = self.recover(|it, core| it.conflate(core, slot, &specials));
            if !fits {
                self.close(slot, CloseReason::SlowConsumer, &[]);
            }
        }
        for (bytes, slots) in sessions {
            let piece = Piece::new(bytes, &self.core.metrics);
            for slot in slots {
                self.core.session_take(slot, Chunk::new(piece.clone(), messages));
                self.perform_effects();
            }
        }
        Some(served)
    }

    /// Answers the polls and the long-poll sessions for which something was published.
    pub fn reply_woken(&mut self) {
        let protocols = self.core.shared.protocols;
        for slot in std::mem::take(&mut self.core.woken) {
            if let Some(connection) = self.core.table.get_mut(slot) {
                connection.set(Flag::Woken, false);
                if protocols.delivery(connection.encoding) == Delivery::Gathered {
                    self.session_wake(slot, false);
                } else {
                    self.poll_again(slot, false);
                    self.resume_inputs();
                }
            }
        }
    }
}

impl Engine {
    /// A connection has taken what it was sent: it gets what waited for that.
    pub(crate) fn serve_conflated(&mut self, slot: u32) {
        self.recover(|recovery, core| recovery.serve_conflated(core, slot));
    }

    /// The members of a slice that are not served alike.
    fn serve_per_member(
        &mut self,
        per_member: &[u32],
        list: Option<&str>,
        messages: &[Arc<Envelope>],
    ) {
        let mut connections = 0;
        for &slot in per_member {
            let delivered =
                self.recover(|it, core| it.deliver_specially(core, slot, list, messages));
            self.core.metrics.delivered.add(delivered as u64);
            connections += u64::from(delivered > 0);
        }
        self.delivered_to(connections, messages);
    }

    /// Its MQTT clients that get the messages each in its own way.
    fn serve_subscribed(
        &mut self,
        subscribed: &[u32],
        list: Option<&str>,
        messages: &[Arc<Envelope>],
    ) {
        let mut connections = 0;
        for &slot in subscribed {
            let before = self.core.metrics.delivered.get();
            self.mqtt_deliver(slot, list, messages);
            connections += u64::from(self.core.metrics.delivered.get() > before);
        }
        self.delivered_to(connections, messages);
    }

    /// Messages have gone to so many connections: how long they took is measured when they have left.
    fn delivered_to(&mut self, connections: u64, messages: &[Arc<Envelope>]) {
        for message in messages.iter().filter(|_| connections > 0) {
            let published_us = message.published_us;
            self.core.outputs.push(Output::Delivered { published_us, connections });
        }
    }
}
