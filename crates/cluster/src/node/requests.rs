//! A node's requests to others.

use super::Node;
use crate::{GroupsRequest, HeadsRequest, Output, Packet, PresenceRequest, ReplayRequest, Target};

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
}
