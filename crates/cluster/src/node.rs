//! A node of a cluster: the struct, and all its inputs.
//!
//! The shell calls the inputs in any order, and after each of them [`Node::poll_outputs`]. It calls
//! [`Node::on_time`] at [`Node::due_us`] at the latest.

mod clients;
mod entries;
mod groups;
mod handover;
mod requests;

pub use entries::{PRESENCE_PACKET_BYTES, PRESENCE_US};
pub use handover::{Handover, HandoverError, Record};

use std::collections::BTreeMap;

use bytes::Bytes;
use model::NodeId;

use crate::entries::PresenceMemory;
use crate::groups::OwnGroups;
use crate::incoming::StreamOutput;
use crate::logical_clock::LogicalClock;
use crate::peer::Peer;
use crate::replay::{RETAINED_US, Replay};
use crate::stream::PerStream;
use crate::{
    Counts, Hello, Message, Output, Packet, PacketError, PeerState, Stream, Target, TooLarge,
};

/// The interval of a node's hellos, in microseconds.
pub const HELLO_US: u64 = 1_000_000;

/// A node that has sent nothing for so long is gone, in microseconds. The others notice its death within 5 seconds,
/// including the delay of its last message.
pub const SILENT_US: u64 = 3_500_000;

/// A node that the shell did not call for so long was suspended, in microseconds. It received nothing meanwhile, but
/// other nodes may still be up.
const STOOD_STILL_US: u64 = 2_000_000;

/// How long a node remembers another one that is gone, in microseconds. That node may have been cut off, and continue
/// its numbers.
const REMEMBERED_US: u64 = 600_000_000;

/// Nodes that a node knows, at most, including those that are gone. A new one replaces the one that has been gone the
/// longest.
const PEERS_MAX: usize = 256;

/// The time of an interest that has not begun.
const NEVER: u64 = u64::MAX;

/// The settings of a node.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its id, which no other process has or had.
    pub node: NodeId,
    /// The name that its operator chose.
    pub name: String,
    /// The version of its program.
    pub version: String,
    /// Bytes of its newest messages that it retains for nodes that have missed some.
    pub replay_bytes_max: usize,
}

/// The properties of a node that change while it runs: part of its hellos.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// Connections that it has.
    pub connections: u64,
    /// True while it drains.
    pub is_draining: bool,
}

/// A node of a cluster.
pub struct Node {
    settings: Settings,
    description: Description,
    replay: Replay,
    peers: BTreeMap<NodeId, Peer>,
    /// When interest in each stream began.
    interest_begun_us: PerStream<u64>,
    is_connected: bool,
    /// When it lost its last connection; `None` before the first one.
    disconnected_us: Option<u64>,
    /// The largest packet that NATS takes, in bytes.
    packet_bytes_max: usize,
    /// Diffs of presence that it has published.
    presence_diffs: u64,
    /// True if shared entries exclude some that are too large for NATS.
    has_left_out_entries: bool,
    /// The memory for entries of other nodes.
    presence_memory: PresenceMemory,
    /// Its groups that share messages.
    groups: OwnGroups,
    /// Orders the connects of MQTT clients.
    clock: LogicalClock,
    /// The time since which the shell reads no packets.
    reading_paused_us: Option<u64>,
    hello_number: u64,
    hello_due_us: u64,
    /// The number of the last request.
    request_id: u64,
    /// The time of the last call of [`Node::on_time`].
    time_us: u64,
    outputs: Vec<Output>,
    counts: Counts,
}

impl Node {
    /// Makes a node that is not connected to NATS yet. It is interested in the broadcast stream and those of presence
    /// and MQTT from now on.
    pub fn new(settings: Settings, now_us: u64) -> Self {
        let mut node = Node {
            replay: Replay::new(settings.node, settings.replay_bytes_max),
            settings,
            description: Description::default(),
            peers: BTreeMap::new(),
            interest_begun_us: PerStream::new(NEVER),
            is_connected: false,
            disconnected_us: None,
            packet_bytes_max: usize::MAX,
            presence_diffs: 0,
            has_left_out_entries: false,
            presence_memory: PresenceMemory { bytes: 0, bytes_max: usize::MAX },
            groups: OwnGroups::default(),
            clock: LogicalClock::default(),
            reading_paused_us: None,
            hello_number: 0,
            hello_due_us: now_us,
            request_id: 0,
            time_us: now_us,
            outputs: Vec::new(),
            counts: Counts::default(),
        };
        node.on_interest_begun(Stream::EVERYONE, now_us, now_us);
        node.on_interest_begun(Stream::PRESENCE, now_us, now_us);
        node.on_interest_begun(Stream::MQTT, now_us, now_us);
        node
    }

    /// Returns its id.
    pub fn id(&self) -> NodeId {
        self.settings.node
    }

    /// Returns other nodes, also those that are gone and not yet forgotten.
    pub fn peers(&self) -> impl Iterator<Item = &PeerState> {
        self.peers.values().map(|peer| &peer.state)
    }

    /// Returns true if all entries in presence of another node are here, as far as this one knows.
    pub fn has_entries_of(&self, node: NodeId) -> bool {
        self.peers.get(&node).is_some_and(|peer| peer.entries.is_whole())
    }

    /// Returns true if all groups of another node are here, as far as this one knows.
    pub fn has_groups_of(&self, node: NodeId) -> bool {
        self.peers.get(&node).is_some_and(|peer| peer.groups.is_whole())
    }

    /// Returns the number of groups that share messages and have members at another node, as far as this one knows.
    pub fn groups_of(&self, node: NodeId) -> usize {
        self.peers.get(&node).map_or(0, |peer| peer.groups.count())
    }

    /// Returns the number of another node's streams whose messages, or whose reply about missing messages, this node
    /// awaits.
    pub fn pending_streams_of(&self, node: NodeId) -> usize {
        self.peers.get(&node).map_or(0, Peer::pending_streams)
    }

    /// Returns its counters.
    pub fn counts(&self) -> Counts {
        let duplicates = self.peers.values().map(|peer| peer.streams.duplicates).sum::<u64>();
        let reads = self.peers.values().map(|peer| peer.entries.reads()).sum::<u64>();
        Counts {
            duplicates: self.counts.duplicates + duplicates,
            presence_reads: self.counts.presence_reads + reads,
            ..self.counts
        }
    }

    /// Returns the bytes of its own messages that it retains.
    pub fn replay_bytes(&self) -> usize {
        self.replay.bytes()
    }

    /// Returns the number of streams in which it is interested.
    pub fn streams(&self) -> usize {
        self.interested_streams().count()
    }

    /// Sets the contents of its hellos from now on.
    pub fn describe(&mut self, description: Description) {
        self.description = description;
    }

    /// Handles that interest in a stream has begun at this time, with its first member.
    pub fn on_interest_begun(&mut self, stream: Stream, interest_begun_us: u64, now_us: u64) {
        if self.interest_begun_us.get(stream) != NEVER {
            return;
        }
        self.interest_begun_us.set(stream, interest_begun_us);
        self.outputs.push(Output::Subscribe(stream));
        for peer in self.peers.values_mut().filter(|peer| peer.state.is_up) {
            peer.streams.on_interest_begun(stream, interest_begun_us, now_us);
        }
    }

    /// Handles that interest in a stream has ended.
    pub fn on_interest_ended(&mut self, stream: Stream) {
        if self.interest_begun_us.get(stream) != NEVER {
            self.interest_begun_us.set(stream, NEVER);
            self.outputs.push(Output::Unsubscribe(stream));
            self.peers.values_mut().for_each(|peer| peer.on_interest_ended(stream));
        }
    }

    /// Publishes a message, which `write` appends. Without NATS the node retains it, and others request it later.
    pub fn publish(&mut self, stream: Stream, now_us: u64, write: impl FnOnce(&mut Vec<u8>)) {
        self.counts.published += 1;
        let bytes = self.replay.publish(stream, now_us, write);
        self.send_or_report(Target::Stream(stream), bytes, TooLarge::Message);
    }

    /// Sets the largest packet that NATS takes, in bytes. Call it before [`Node::on_connected`], as it may be another
    /// NATS.
    pub fn set_packet_bytes_max(&mut self, bytes: usize, now_us: u64) {
        let is_more = bytes > self.packet_bytes_max;
        self.packet_bytes_max = bytes;
        if is_more {
            self.share_left_out_entries(now_us);
        }
    }

    /// Handles that NATS is connected, with all subscriptions.
    pub fn on_connected(&mut self, now_us: u64) {
        self.is_connected = true;
        self.disconnected_us = None;
        let streams: Vec<Stream> = self.interested_streams().collect();
        for peer in self.peers.values_mut() {
            peer.state.received_us = peer.state.received_us.max(now_us);
            peer.state.joins += 1;
            peer.streams.on_connected(now_us);
            peer.entries.on_connected(now_us);
            peer.on_loss(&streams, now_us);
        }
        self.send_hello(now_us, true, false);
    }

    /// Handles that the connection to NATS is gone. The node requests missing messages when it is back.
    pub fn on_disconnected(&mut self, now_us: u64) {
        self.is_connected = false;
        self.disconnected_us.get_or_insert(now_us);
    }

    /// Handles that the shell reads no packets from now on. The node ignores the silence of others meanwhile, and
    /// missing replies.
    pub fn on_reading_paused(&mut self, now_us: u64) {
        self.reading_paused_us.get_or_insert(now_us);
    }

    /// Handles that the shell reads packets again.
    pub fn on_reading_resumed(&mut self, now_us: u64) {
        let Some(since_us) = self.reading_paused_us.take() else { return };
        let paused_us = now_us.saturating_sub(since_us);
        for peer in self.peers.values_mut() {
            peer.state.received_us = (peer.state.received_us + paused_us).min(now_us);
            peer.streams.on_resumed(paused_us, now_us);
            peer.entries.on_resumed(paused_us);
            peer.groups.on_resumed(paused_us);
            peer.on_resumed(now_us);
        }
    }

    /// Sends a goodbye.
    pub fn on_leave(&mut self, now_us: u64) {
        self.send_hello(now_us, false, true);
    }

    /// Handles a packet, which was sent to this target.
    ///
    /// # Errors
    /// If it can't be decoded.
    pub fn on_packet(
        &mut self,
        target: Target,
        bytes: &Bytes,
        now_us: u64,
    ) -> Result<(), PacketError> {
        let packet = Packet::decode(bytes).inspect_err(|_| self.counts.damaged += 1)?;
        match packet {
            Packet::Message(message) => {
                let is_replayed = matches!(target, Target::Node(_));
                self.on_message(message, is_replayed, now_us);
            }
            Packet::Hello(hello) => self.on_hello(&hello, now_us),
            Packet::HeadsRequest(request) => self.on_heads_request(&request, now_us),
            Packet::HeadsReply(reply) => self.on_heads_reply(&reply, now_us),
            Packet::ReplayRequest(request) => self.on_replay_request(&request),
            Packet::ReplayReply(reply) => self.on_replay_reply(&reply, now_us),
            Packet::PresenceRequest(request) => self.on_presence_request(request),
            Packet::PresencePage(page) => self.on_presence_page(page, now_us),
            Packet::Call(call) => self.outputs.push(Output::Call(call)),
            Packet::CallReply(reply) => self.outputs.push(Output::CallReply(reply)),
            Packet::GroupsRequest(request) => self.on_groups_request(request),
            Packet::GroupsPage(page) => self.on_groups_page(page, now_us),
        }
        Ok(())
    }

    /// Lets time pass.
    pub fn on_time(&mut self, now_us: u64) {
        let stood_still = now_us.saturating_sub(self.time_us) > STOOD_STILL_US;
        self.time_us = now_us;
        self.replay.evict(now_us);
        if !self.is_connected {
            return self.expire_unreachable(now_us);
        }
        if self.reading_paused_us.is_none() {
            self.verify_peers(stood_still, now_us);
        }
        if now_us >= self.hello_due_us {
            self.send_hello(now_us, false, false);
        }
    }

    /// Finds silent nodes and late replies, and forgets nodes that have been gone for long.
    fn verify_peers(&mut self, stood_still: bool, now_us: u64) {
        let mut all = Vec::new();
        for peer in self.peers.values_mut() {
            if stood_still {
                peer.state.received_us = now_us;
            }
            let mut out = Vec::new();
            if peer.state.is_up && now_us.saturating_sub(peer.state.received_us) >= SILENT_US {
                peer.state.is_up = false;
                self.outputs.push(Output::Down { node: peer.state.node, has_left: false });
                if peer.entries.on_down() {
                    self.outputs.push(Output::PresenceExpired(peer.state.node));
                }
                let (node, changes) = (peer.state.node, peer.groups.on_down());
                if !changes.is_empty() {
                    self.outputs.push(Output::GroupsChanged { node, changes });
                }
            }
            if peer.unsure_due_us().is_some_and(|due_us| due_us <= now_us) {
                peer.give_up_unsure(&mut out);
            }
            peer.entries.on_time(self.presence_memory, now_us);
            peer.groups.on_time(now_us);
            peer.streams.on_time(peer.state.has_left, now_us, &mut out);
            if peer.state.is_up {
                peer.request_again(now_us);
            }
            all.push((peer.state.node, out));
        }
        all.into_iter().for_each(|(node, out)| self.deliver(node, out, now_us));
        self.forget_old_peers(now_us);
    }

    /// Returns the next time at which [`Node::on_time`] must be called, in microseconds.
    pub fn due_us(&self) -> u64 {
        let silent = |peer: &Peer| peer.state.is_up.then_some(peer.state.received_us + SILENT_US);
        let peers = self.peers.values();
        let peers = peers.flat_map(|peer| {
            let due_us = [peer.streams.due_us(), peer.entries.due_us(), peer.groups.due_us()];
            due_us.into_iter().chain([silent(peer), peer.unsure_due_us()]).flatten()
        });
        let peers_due_us = peers.min().unwrap_or(NEVER);
        match (self.is_connected, self.reading_paused_us) {
            (true, None) => peers_due_us.min(self.hello_due_us),
            (true, Some(_)) => self.hello_due_us,
            (false, _) => self.time_us + HELLO_US,
        }
    }

    /// Returns what the shell must do. Requests of several streams go in one packet.
    pub fn poll_outputs(&mut self, now_us: u64) -> Vec<Output> {
        if self.is_connected {
            self.send_requests(now_us);
        }
        std::mem::take(&mut self.outputs)
    }

    fn interested_streams(&self) -> impl Iterator<Item = Stream> {
        Stream::all().filter(|stream| self.interest_begun_us.get(*stream) != NEVER)
    }

    fn send(&mut self, target: Target, bytes: Bytes) {
        self.send_or_report(target, bytes, TooLarge::Other);
    }

    /// Sends a packet, or reports one that NATS would reject.
    fn send_or_report(&mut self, target: Target, bytes: Bytes, content: TooLarge) {
        if !self.is_connected {
            return;
        }
        if bytes.len() > self.packet_bytes_max {
            return self.report_too_large(content, bytes.len());
        }
        self.outputs.push(Output::Send { target, bytes });
    }

    fn report_too_large(&mut self, content: TooLarge, bytes: usize) {
        self.counts.too_large += 1;
        self.outputs.push(Output::TooLarge { content, bytes });
    }

    fn send_hello(&mut self, now_us: u64, is_reply_requested: bool, is_goodbye: bool) {
        self.hello_due_us = now_us + HELLO_US;
        if !self.is_connected {
            return;
        }
        self.hello_number += 1;
        let hello = Hello {
            node: self.settings.node.0,
            name: self.settings.name.clone(),
            version: self.settings.version.clone(),
            number: self.hello_number,
            heads: self.replay.take_changed(),
            is_goodbye,
            is_reply_requested,
            connections: self.description.connections,
            is_draining: self.description.is_draining,
            has_presence: true,
            has_calls: true,
            has_groups: true,
            clock: self.clock.newest(),
        };
        self.send(Target::Nodes, Packet::Hello(hello).encode());
    }

    /// Returns another node, which may be new here. `None` if there is no capacity for a new one.
    fn peer(&mut self, node: NodeId, now_us: u64) -> Option<&mut Peer> {
        if node == self.settings.node {
            return None;
        }
        let is_known = self.peers.contains_key(&node);
        if !is_known && self.peers.len() >= PEERS_MAX && !self.evict_peer(now_us) {
            return None;
        }
        Some(self.peers.entry(node).or_insert_with(|| Peer::new(node, now_us)))
    }

    fn on_message(&mut self, message: Message, is_replayed: bool, now_us: u64) {
        let Message { node, stream, number, payload } = message;
        let interest_begun_us = self.interest_begun_us.get(stream);
        if interest_begun_us == NEVER {
            self.counts.without_interest += 1;
            return;
        }
        let Some(peer) = self.peer(node, now_us) else { return };
        peer.state.received_us = now_us;
        if is_replayed && !peer.streams.has_requested(stream) {
            // The request was of an earlier interest.
            peer.streams.duplicates += 1;
            return;
        }
        let mut out = Vec::new();
        peer.streams.on_message(stream, number, payload, (interest_begun_us, now_us), &mut out);
        self.deliver(node, out, now_us);
    }

    fn on_hello(&mut self, hello: &Hello, now_us: u64) {
        let (node, streams) = (NodeId(hello.node), self.interested_streams().collect::<Vec<_>>());
        let interest_begun_us: Vec<u64> =
            streams.iter().map(|it| self.interest_begun_us.get(*it)).collect();
        self.clock.observe(hello.clock);
        let Some(peer) = self.peer(node, now_us) else { return };
        let (was_up, before) = (peer.state.is_up, peer.hello_number);
        if !peer.on_hello(hello, now_us) {
            return;
        }
        let (is_up, mut out, mut has_expired) = (peer.state.is_up, Vec::new(), false);
        let mut gone = Vec::new();
        if before > 0 && hello.number > before.saturating_add(1) {
            peer.on_loss(&streams, now_us);
        }
        if is_up {
            for (stream, interest_begun_us) in streams.iter().zip(interest_begun_us) {
                peer.streams.on_interest_begun(*stream, interest_begun_us, now_us);
            }
            peer.streams.on_tails(&hello.heads, now_us);
            if hello.has_presence {
                peer.entries.on_up(now_us);
            }
            if hello.has_groups {
                peer.groups.on_up();
            }
        } else {
            peer.streams.give_up_all(&mut out);
            peer.give_up_unsure(&mut out);
            // A message may still be in flight.
            peer.streams.on_tails(&hello.heads, now_us);
            has_expired = peer.entries.on_down();
            gone = peer.groups.on_down();
        }
        self.deliver(node, out, now_us);
        self.on_groups_changed(node, gone);
        match (was_up, is_up) {
            (false, true) => self.outputs.push(Output::Up(node)),
            (true, false) => self.outputs.push(Output::Down { node, has_left: true }),
            _ => {}
        }
        if has_expired {
            self.outputs.push(Output::PresenceExpired(node));
        }
        if hello.is_reply_requested && is_up {
            self.send_hello(now_us, false, false);
        }
    }

    fn deliver(&mut self, node: NodeId, outputs: Vec<StreamOutput>, now_us: u64) {
        for it in outputs {
            match it {
                StreamOutput::Deliver(Stream::PRESENCE, payload) => {
                    self.on_presence_diff(node, &payload, now_us);
                }
                StreamOutput::Gap(Stream::PRESENCE, _) => self.on_presence_gap(node, now_us),
                StreamOutput::Deliver(Stream::MQTT, payload) => {
                    self.on_mqtt_event(node, &payload);
                }
                StreamOutput::Gap(Stream::MQTT, _) => {
                    self.counts.gaps += 1;
                    self.on_mqtt_gap(node);
                }
                StreamOutput::Deliver(stream, payload) => {
                    self.counts.delivered += 1;
                    self.outputs.push(Output::Deliver { node, stream, payload });
                }
                StreamOutput::Gap(stream, lost) => {
                    self.counts.gaps += 1;
                    self.outputs.push(Output::Gap { node, stream, lost });
                }
            }
        }
    }

    /// Returns the nodes that have been gone for longer than this, in microseconds.
    fn gone_peers(&self, longer_us: u64, now_us: u64) -> impl Iterator<Item = &PeerState> {
        self.peers()
            .filter(move |peer| !peer.is_up && now_us.saturating_sub(peer.received_us) > longer_us)
    }

    fn forget_old_peers(&mut self, now_us: u64) {
        let old: Vec<NodeId> = self.gone_peers(REMEMBERED_US, now_us).map(|it| it.node).collect();
        old.into_iter().for_each(|node| self.forget_peer(node));
    }

    /// Forgets the node that has been gone the longest. Returns false if none has been gone for longer than nodes
    /// retain messages: this node would request those anew, and deliver them twice, if the other came back.
    fn evict_peer(&mut self, now_us: u64) -> bool {
        let gone = self.gone_peers(RETAINED_US, now_us);
        let oldest = gone.min_by_key(|peer| peer.received_us).map(|peer| peer.node);
        oldest.map(|node| self.forget_peer(node)).is_some()
    }

    fn forget_peer(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.remove(&node) {
            self.counts.duplicates += peer.streams.duplicates;
            self.counts.presence_reads += peer.entries.reads();
        }
    }
}

#[cfg(test)]
mod handover_tests;
#[cfg(test)]
mod loss_tests;
#[cfg(test)]
mod tests;
