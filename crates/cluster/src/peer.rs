//! What a node knows of another one.

use std::collections::{BTreeMap, BTreeSet};

use model::NodeId;

use crate::entries::PeerEntries;
use crate::groups::PeerGroups;
use crate::incoming::{IncomingStreams, StreamOutput};
use crate::{Hello, Stream};

/// The most requests that await a reply. The node forgets the oldest beyond.
const REQUESTS_MAX: usize = 64;

/// How long the node waits for the newest numbers, in microseconds, before it requests them once more. The request or
/// its reply may be lost.
const HEADS_REPLY_US: u64 = 2_000_000;

/// How long a node may be silent and still come back with what it has sent, in microseconds: as long as its messages are
/// requested.
const GONE_US: u64 = 12_000_000;

/// Another node, as it was at its last hello.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerState {
    /// The node.
    pub node: NodeId,
    /// What its operator calls it.
    pub name: String,
    /// The version of its program.
    pub version: String,
    /// Connections that it has.
    pub connections: u64,
    /// It drains.
    pub is_draining: bool,
    /// It replies to calls of the API.
    pub has_calls: bool,
    /// It sends hellos.
    pub is_up: bool,
    /// How often it came or came back, or the connection to NATS of one of both nodes did. A call may have been lost before.
    pub comings: u64,
    /// It has said that it leaves.
    pub has_left: bool,
    /// When its last packet came, in microseconds.
    pub received_us: u64,
}

/// Another node, its streams, its entries in presence, and its groups.
pub(crate) struct Peer {
    pub state: PeerState,
    pub hello_number: u64,
    pub streams: IncomingStreams,
    pub entries: PeerEntries,
    pub groups: PeerGroups,
    /// Requests for heads: when they were sent, and of which streams.
    requests: BTreeMap<u64, (u64, Vec<Stream>)>,
    /// Streams in which this node may have missed messages without noticing. A reply to a request for heads clears a
    /// stream.
    unsure: BTreeSet<Stream>,
    /// Since when they may be missing, in microseconds. A request that was sent earlier does not count.
    unsure_us: u64,
    /// The last request that was sent once more.
    repeated: u64,
    /// When the shell began to read packets again, in microseconds. Replies may have waited until then.
    resumed_us: u64,
}

impl Peer {
    pub fn new(node: NodeId, now_us: u64) -> Self {
        let state = PeerState { node, received_us: now_us, ..PeerState::default() };
        Peer {
            state,
            hello_number: 0,
            streams: IncomingStreams::new(),
            entries: PeerEntries::default(),
            groups: PeerGroups::default(),
            requests: BTreeMap::new(),
            unsure: BTreeSet::new(),
            unsure_us: 0,
            repeated: 0,
            resumed_us: 0,
        }
    }

    /// Takes what the node says of itself. False where a newer hello has come before.
    pub fn on_hello(&mut self, hello: &Hello, now_us: u64) -> bool {
        if hello.number <= self.hello_number {
            return false;
        }
        self.hello_number = hello.number;
        // A node requests replies when it is connected.
        let has_come = !hello.is_goodbye && (!self.state.is_up || hello.is_reply_requested);
        self.state = PeerState {
            node: self.state.node,
            name: hello.name.clone(),
            version: hello.version.clone(),
            connections: hello.connections,
            is_draining: hello.is_draining,
            has_calls: hello.has_calls,
            is_up: !hello.is_goodbye,
            comings: self.state.comings + u64::from(has_come),
            has_left: hello.is_goodbye,
            received_us: now_us,
        };
        true
    }

    /// Remembers a request that is sent now, and its streams.
    pub fn insert_request(&mut self, id: u64, now_us: u64, streams: Vec<Stream>) {
        self.requests.insert(id, (now_us, streams));
        if self.requests.len() > REQUESTS_MAX {
            self.requests.pop_first();
        }
    }

    /// Packets of the peer may be lost. Requests the newest numbers of these streams: all in which this node is interested.
    pub fn on_loss(&mut self, streams: &[Stream], now_us: u64) {
        self.unsure_us = now_us;
        self.unsure.extend(streams);
        self.streams.heads_to_request.extend(streams);
    }

    /// Interest in a stream has ended.
    pub fn on_interest_ended(&mut self, stream: Stream) {
        self.unsure.remove(&stream);
        self.streams.on_interest_ended(stream);
    }

    /// How many streams the node has not received as far as the peer has sent them, or does not know whether it has.
    pub fn pending_streams(&self) -> usize {
        self.streams.pending().chain(self.unsure.iter().copied()).collect::<BTreeSet<_>>().len()
    }

    /// When a node that is silent is taken to be gone for good, where messages of it may be missing.
    pub fn unsure_due_us(&self) -> Option<u64> {
        let is_waiting = !self.state.is_up && !self.unsure.is_empty();
        is_waiting.then_some(self.state.received_us.saturating_add(GONE_US))
    }

    /// The node is gone: what is missing of it can't be known any more.
    pub fn give_up_unsure(&mut self, out: &mut Vec<StreamOutput>) {
        let unsure = std::mem::take(&mut self.unsure).into_iter();
        out.extend(unsure.map(|stream| StreamOutput::Gap(stream, None)));
    }

    /// The shell reads packets again.
    pub fn on_resumed(&mut self, now_us: u64) {
        self.resumed_us = now_us;
    }

    /// Requests the heads once more whose reply is late. It still counts when it comes.
    pub fn request_again(&mut self, now_us: u64) {
        for (id, (sent_us, streams)) in self.requests.range(self.repeated + 1..) {
            if now_us < HEADS_REPLY_US.saturating_add(self.resumed_us.max(*sent_us)) {
                return;
            }
            self.repeated = *id;
            self.streams.heads_to_request.extend(streams);
        }
    }

    /// A reply has come: when the request was sent, and its streams.
    pub fn take_request(&mut self, id: u64) -> Option<(u64, Vec<Stream>)> {
        let (sent_us, streams) = self.requests.remove(&id)?;
        if sent_us >= self.unsure_us {
            for stream in &streams {
                self.unsure.remove(stream);
            }
        }
        Some((sent_us, streams))
    }
}
