//! A node's requests to others; and its replies to theirs, for the last numbers of streams and for missing messages.

use model::NodeId;

use super::Node;
use crate::incoming::Times;
use crate::{
    GroupsRequest, HeadsReply, HeadsRequest, Output, Packet, PresenceRequest, ReplayReply,
    ReplayRequest, Target, TooLarge,
};

/// Streams in one request: its packet stays below 64 kB.
const REQUEST_STREAMS_MAX: usize = 1_024;

/// Bytes of a stream in a request or its reply, at most.
const REQUEST_STREAM_BYTES: usize = 64;

impl Node {
    /// Sends the requests of streams, presence and groups, one packet for each node and kind.
    pub(super) fn send_requests(&mut self, now_us: u64) {
        let node = self.settings.node.0;
        // A reply has no more streams than its request.
        let streams_max = self.packet_bytes_max / REQUEST_STREAM_BYTES;
        let streams_max = streams_max.clamp(1, REQUEST_STREAMS_MAX);
        for (id, peer) in &mut self.peers {
            let target = Target::Node(*id);
            let mut streams = std::mem::take(&mut peer.streams.heads_to_request);
            streams.sort_unstable();
            streams.dedup();
            for streams in streams.chunks(streams_max) {
                self.request_id += 1;
                let numbers = streams.iter().map(|stream| stream.number()).collect();
                peer.insert_request(self.request_id, now_us, streams.to_vec());
                let request = HeadsRequest { node, id: self.request_id, streams: numbers };
                let bytes = Packet::HeadsRequest(request).encode();
                self.outputs.push(Output::Send { target, bytes });
            }
            let ranges = std::mem::take(&mut peer.streams.ranges_to_request);
            for ranges in ranges.chunks(streams_max) {
                self.request_id += 1;
                self.counts.requests += 1;
                let request = ReplayRequest { node, id: self.request_id, ranges: ranges.to_vec() };
                let bytes = Packet::ReplayRequest(request).encode();
                self.outputs.push(Output::Send { target, bytes });
            }
            if let Some((id, from)) = peer.entries.poll_request() {
                let request = PresenceRequest { node, id, from };
                let bytes = Packet::PresenceRequest(request).encode();
                self.outputs.push(Output::Send { target, bytes });
            }
            if let Some(id) = peer.groups.poll_request(now_us) {
                let bytes = Packet::GroupsRequest(GroupsRequest { node, id }).encode();
                self.outputs.push(Output::Send { target, bytes });
            }
        }
    }

    /// Sends the last numbers of streams to a node that requests them.
    pub(super) fn on_heads_request(&mut self, request: &HeadsRequest, now_us: u64) {
        let heads = self.replay.heads(&request.streams);
        let reply = HeadsReply { node: self.settings.node.0, id: request.id, now_us, heads };
        self.send(Target::Node(NodeId(request.node)), Packet::HeadsReply(reply).encode());
    }

    /// Finds in the last numbers of another node's streams which messages are missing.
    pub(super) fn on_heads_reply(&mut self, reply: &HeadsReply, now_us: u64) {
        let node = NodeId(reply.node);
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let Some((sent_us, streams)) = peer.take_request(reply.id) else { return };
        peer.state.received_us = now_us;
        let mut out = Vec::new();
        let times = Times { sent_us, their_us: reply.now_us, now_us };
        peer.streams.on_heads(&streams, &reply.heads, times, &mut out);
        self.deliver(node, out, now_us);
    }

    /// Sends messages again to a node that misses them.
    pub(super) fn on_replay_request(&mut self, request: &ReplayRequest) {
        let found = self.replay.find(&request.ranges);
        let target = Target::Node(NodeId(request.node));
        self.counts.replayed += found.packets.len() as u64;
        for packet in found.packets {
            self.send_or_report(target, packet, TooLarge::Message);
        }
        let (node, ranges) = (self.settings.node.0, found.ranges);
        let reply = ReplayReply { node, id: request.id, ranges };
        self.send(target, Packet::ReplayReply(reply).encode());
    }

    /// Notes which of the requested messages the other node has sent again. The others are gone.
    pub(super) fn on_replay_reply(&mut self, reply: &ReplayReply, now_us: u64) {
        let node = NodeId(reply.node);
        let Some(peer) = self.peers.get_mut(&node) else { return };
        peer.state.received_us = now_us;
        let mut out = Vec::new();
        for replayed in &reply.ranges {
            peer.streams.on_replayed(replayed, now_us, &mut out);
        }
        self.deliver(node, out, now_us);
    }
}
