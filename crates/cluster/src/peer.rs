//! A node's state of another one.

use std::collections::{BTreeMap, BTreeSet};

use model::NodeId;

use crate::entries::PeerEntries;
use crate::groups::PeerGroups;
use crate::incoming::{IncomingStreams, StreamOutput};
use crate::{Hello, Stream};

/// Requests that await a reply, at most. Beyond it, the node forgets the oldest.
const REQUESTS_MAX: usize = 64;

/// How long the node waits for the newest numbers, in microseconds, before it requests them once more. The request or
/// its reply may be lost.
const HEADS_REPLY_US: u64 = 2_000_000;

/// How long a node may be silent and still come back with the messages that it has sent, in microseconds: as long as
/// its messages are requested.
const GONE_US: u64 = 12_000_000;

/// The state of another node at its last hello.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerState {
    /// The node.
    pub node: NodeId,
    /// The name that its operator chose.
    pub name: String,
    /// The version of its program.
    pub version: String,
    /// Connections that it has.
    pub connections: u64,
    /// True while it drains.
    pub is_draining: bool,
    /// True if it replies to calls of the API.
    pub has_calls: bool,
    /// True while it sends hellos.
    pub is_up: bool,
    /// How often the node joined or came back, or one of both nodes connected to NATS again. Calls before that may be
    /// lost.
    pub joins: u64,
    /// True if it has said goodbye.
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
    /// Requests for heads: when they were sent, and their streams.
    requests: BTreeMap<u64, (u64, Vec<Stream>)>,
    /// Streams in which this node may have missed messages without noticing. A reply to a request for heads clears a
    /// stream.
    unsure: BTreeSet<Stream>,
    /// Since when messages may be missing, in microseconds. Earlier requests do not count.
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

    /// Applies a hello of the node. Returns false if a newer one has come before.
    pub fn on_hello(&mut self, hello: &Hello, now_us: u64) -> bool {
        if hello.number <= self.hello_number {
            return false;
        }
        self.hello_number = hello.number;
        // A node requests replies when it is connected.
        let has_joined = !hello.is_goodbye && (!self.state.is_up || hello.is_reply_requested);
        self.state = PeerState {
            node: self.state.node,
            name: hello.name.clone(),
            version: hello.version.clone(),
            connections: hello.connections,
            is_draining: hello.is_draining,
            has_calls: hello.has_calls,
            is_up: !hello.is_goodbye,
            joins: self.state.joins + u64::from(has_joined),
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

    /// Handles a possible loss of the peer's packets. Requests the newest numbers of these streams: all in which this
    /// node is interested.
    pub fn on_loss(&mut self, streams: &[Stream], now_us: u64) {
        self.unsure_us = now_us;
        self.unsure.extend(streams);
        self.streams.heads_to_request.extend(streams);
    }

    /// Handles that interest in a stream has ended.
    pub fn on_interest_ended(&mut self, stream: Stream) {
        self.unsure.remove(&stream);
        self.streams.on_interest_ended(stream);
    }

    /// Returns the number of streams of which messages are missing, or may be.
    pub fn pending_streams(&self) -> usize {
        self.streams.pending().chain(self.unsure.iter().copied()).collect::<BTreeSet<_>>().len()
    }

    /// Returns when a silent node counts as gone for good, if messages of it may be missing.
    pub fn unsure_due_us(&self) -> Option<u64> {
        let is_waiting = !self.state.is_up && !self.unsure.is_empty();
        is_waiting.then_some(self.state.received_us.saturating_add(GONE_US))
    }

    /// Handles that the node is gone: missing messages of it can't be detected any more.
    pub fn give_up_unsure(&mut self, out: &mut Vec<StreamOutput>) {
        let unsure = std::mem::take(&mut self.unsure).into_iter();
        out.extend(unsure.map(|stream| StreamOutput::Gap(stream, None)));
    }

    /// Handles that the shell reads packets again.
    pub fn on_resumed(&mut self, now_us: u64) {
        self.resumed_us = now_us;
    }

    /// Requests heads once more whose reply is late. A late reply still counts.
    pub fn request_again(&mut self, now_us: u64) {
        for (id, (sent_us, streams)) in self.requests.range(self.repeated + 1..) {
            if now_us < HEADS_REPLY_US.saturating_add(self.resumed_us.max(*sent_us)) {
                return;
            }
            self.repeated = *id;
            self.streams.heads_to_request.extend(streams);
        }
    }

    /// Handles a reply: returns when the request was sent, and its streams.
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
