//! Delivers a message to its members.

use std::sync::Arc;

use hub::Slice;
use model::name::of_filter;
use model::{CloseReason, Encoding, Envelope, Name};
use protocol::{Delivery, Protocols};

use crate::connection::{Flag, Table};
use crate::core::count::count;
use crate::core::output::{Output, Outputs};
use crate::core::settings::Settings;
use crate::delivery::conflation::Conflation;
use crate::delivery::costs::SliceCost;
use crate::delivery::encode::{encode, encode_by};
use crate::delivery::outbox::{Chunk, Piece};
use crate::engine::Engine;
use crate::mqtt::Clients;
use crate::recovery::{Care, CatchupTable};
use crate::topics::dedup::Dedup;

/// The most members that one fan-out serves before the next has its turn.
const SLICE: usize = if cfg!(test) { 2 } else { 256 };

/// The members of a slice that are not in a group of their encoding.
#[derive(Default)]
struct Others {
    /// Members that get bytes of their own for the messages.
    per_member: Vec<u32>,
    /// Members that get the newest message when they have taken their queued bytes.
    conflated: Vec<u32>,
    /// MQTT clients whose bytes differ.
    subscribed: Vec<u32>,
    /// Long-poll sessions, by the bytes that they get.
    sessions: Vec<(Arc<[u8]>, Vec<u32>)>,
    /// Members of groups that have a trace.
    traced: Vec<u32>,
}

/// Sorts the members of a slice: most into the group of their encoding, which gets the same bytes.
struct Sorter<'a> {
    slice: &'a Slice<'a, Arc<Envelope>>,
    protocols: &'a Protocols,
    list: Option<&'a str>,
    /// Members that don't keep up get only the newest message.
    conflates: bool,
    /// True when a member may get a message by several lists.
    dedups: bool,
    /// Members that one of the messages excepts.
    left_out: Vec<u32>,
    care: Care,
    catchups: &'a CatchupTable,
    mqtt: &'a Clients,
    conflation: &'a Conflation,
    dedup: &'a Dedup,
    table: &'a mut Table,
    woken: &'a mut Vec<u32>,
    groups: &'a mut [Vec<u32>],
    others: Others,
}

impl Others {
    /// True when no member needs the messages themselves.
    fn is_empty(&self) -> bool {
        self.per_member.is_empty()
            && self.conflated.is_empty()
            && self.subscribed.is_empty()
            && self.traced.is_empty()
    }
}

impl Sorter<'_> {
    #[inline]
    fn sort(&mut self, slot: u32) {
        let Some(connection) = self.table.get_mut(slot) else {
            return;
        };
        let encoding = connection.encoding;
        let group = usize::from(encoding.0);
        let delivery = self.protocols.delivery(encoding);
        if delivery == Delivery::Woken {
            // It reads by itself.
            if !connection.is(Flag::Woken) {
                connection.set(Flag::Woken, true);
                self.woken.push(slot);
            }
            return;
        }
        if connection.is_closing() {
            return;
        }
        if delivery == Delivery::Subscribed {
            match self.mqtt.shares(slot, self.list, self.slice.messages()) {
                true => self.groups[group].push(slot),
                false => self.others.subscribed.push(slot),
            }
            return;
        }
        // A member with unsent bytes gets the newest message when it has taken them.
        if self.conflates
            && (connection.is(Flag::Blocked) || self.conflation.holds(slot))
            && delivery == Delivery::Pushed
        {
            self.others.conflated.push(slot);
            return;
        }
        if self.catchups.is_per_member(slot, connection, self.care, &self.left_out)
            || (self.dedups
                && self.dedup.holds(slot)
                && !self.protocols.of(encoding).capabilities().joins)
        {
            self.others.per_member.push(slot);
            return;
        }
        connection.set(Flag::WroteRecently, true);
        self.groups[group].push(slot);
    }
}

impl Engine {
    /// Serves a slice of the next fan-out. Returns its number of members, or `None` if no fan-out waits. Fan-outs
    /// over long lists go on only with `bulk`.
    pub fn slice(&mut self, bulk: bool) -> Option<usize> {
        let Engine { core, recovery, groups, .. } = &mut *self;
        let slice = core.hub.next_slice(SLICE, bulk, core.now_us)?;
        for message in slice.done() {
            core.handle.inbox.backlog.leave(message);
        }
        let left_out = left_out(slice.messages(), core.number);
        let protocols = core.shared.protocols;
        let by_filter = slice.topic.is_some_and(|list| of_filter(list).is_some());
        let list = slice.topic.map(Name::as_str);
        let mut sorter = Sorter {
            slice: &slice,
            protocols,
            list,
            // A filter brings messages of several topics.
            conflates: !by_filter && conflates(&core.settings, slice.messages().next()),
            dedups: !core.dedup.is_empty() && slice.messages().any(|it| it.filters.is_some()),
            left_out,
            care: recovery.catchups.care(slice.messages()),
            catchups: &recovery.catchups,
            mqtt: &core.mqtt,
            conflation: &core.conflation,
            dedup: &core.dedup,
            table: &mut core.table,
            woken: &mut core.woken,
            groups,
            others: Others::default(),
        };
        slice.slots.iter().for_each(|slot| sorter.sort(*slot));
        let Sorter { conflates, mut others, .. } = sorter;
        let messages = count(slice.messages().len());
        // Publishers don't wait for the outboxes of members that get only the newest message.
        let topic = slice.messages().next().filter(|_| !conflates);
        let topic = topic.map(|message| message.topic_hash);
        let (mut delivered, mut bytes_out) = (0, 0);
        for encoding in Encoding::ALL {
            let group = &mut groups[usize::from(encoding.0)];
            if group.is_empty() {
                continue;
            }
            let (protocol, codecs) = (protocols.of(encoding), &mut core.codecs);
            let bytes = match list.filter(|_| by_filter && protocol.capabilities().joins) {
                Some(list) => encode_by(slice.messages(), list, protocol, codecs),
                None => encode(slice.messages(), protocol, codecs),
            };
            if !bytes.is_empty() {
                delivered += group.len() as u64;
                bytes_out += (bytes.len() * group.len()) as u64;
                others.traced.extend(core.traces.among(group));
                if protocol.delivery() == Delivery::Gathered {
                    others.sessions.push((bytes, std::mem::take(group)));
                } else {
                    core.outputs.share(bytes, group, messages, topic);
                }
            }
            group.clear();
        }
        let cost = SliceCost { grouped: delivered, bytes: bytes_out };
        core.costs.count(core.now_us, slice.messages(), !by_filter, slice.slots.len(), cost);
        core.metrics.delivered.add(delivered * u64::from(messages));
        push_delivered(&mut core.outputs, delivered, slice.messages());
        let observed = core.observed.on_done(slice.done(), core.number);
        if let Some(since_us) = slice.finished_since_us {
            core.metrics.fanout_time.record(core.now_us.saturating_sub(since_us), 1);
        }
        let served = slice.slots.len();
        let (list, shared) = match others.is_empty() {
            true => (None, Vec::new()),
            false => (slice.topic.cloned(), slice.messages().cloned().collect()),
        };
        self.serve_others(others, list.as_deref(), &shared, messages);
        self.core.outputs.list.extend(observed);
        Some(served)
    }

    /// Serves the members of a slice that are in no group.
    fn serve_others(
        &mut self,
        others: Others,
        list: Option<&str>,
        messages: &[Arc<Envelope>],
        count: u32,
    ) {
        let Others { per_member, conflated, subscribed, sessions, traced } = others;
        for slot in traced {
            self.core.trace_delivered(slot, messages.iter().map(|it| &it.message));
        }
        if !per_member.is_empty() {
            self.serve_per_member(&per_member, list, messages);
        }
        self.serve_subscribed(&subscribed, list, messages);
        for slot in conflated {
            let fits = self.recover(|it, core| it.conflate(core, slot, messages));
            if !fits {
                self.close(slot, CloseReason::SlowConsumer, &[]);
            }
        }
        for (bytes, slots) in sessions {
            let piece = Piece::new(bytes, &self.core.metrics);
            for slot in slots {
                self.core.session_take(slot, Chunk::new(piece.clone(), count));
                self.perform_effects();
            }
        }
    }

    /// Replies to the polls and the long-poll sessions that have new messages.
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

/// True when the topic of this message conflates: members that don't keep up get only the newest.
fn conflates(settings: &Settings, message: Option<&Arc<Envelope>>) -> bool {
    let policy = &settings.session.policy;
    policy.rules().conflates_any()
        && message.is_some_and(|message| {
            let topic = policy.topic(&message.publication.topic);
            topic.rule.is_some_and(|rule| rule.conflate)
        })
}

impl Engine {
    /// Sends the queued newest messages to a connection that has taken all of its bytes.
    pub(crate) fn serve_conflated(&mut self, slot: u32) {
        self.recover(|recovery, core| recovery.serve_conflated(core, slot));
    }

    /// Serves the members of a slice that get bytes of their own.
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

    /// Serves the MQTT clients of a slice whose bytes differ.
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

    /// Notes that messages have gone to so many connections: their latency is measured when the bytes have left.
    fn delivered_to(&mut self, connections: u64, messages: &[Arc<Envelope>]) {
        push_delivered(&mut self.core.outputs, connections, messages.iter());
    }
}

/// Returns the members that one of the messages excepts: hardly ever any.
fn left_out<'a>(messages: impl Iterator<Item = &'a Arc<Envelope>>, shard: u16) -> Vec<u32> {
    let except = messages.filter_map(|message| message.publication.except);
    except.filter(|id| id.shard == shard).map(|id| id.slot).collect()
}

fn push_delivered<'a>(
    outputs: &mut Outputs,
    connections: u64,
    messages: impl Iterator<Item = &'a Arc<Envelope>>,
) {
    for message in messages.filter(|_| connections > 0) {
        let published_us = message.published_us;
        outputs.push(Output::Delivered { published_us, connections });
    }
}
