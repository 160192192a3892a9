//! Passes a node to another process, which continues as the same node: with its id, its numbers, its retained
//! messages, and its state of other nodes. Other nodes notice only a moment of silence.
//!
//! The state consists of records with keys ([`Node::export`], [`Node::export_messages`]), which [`Handover`] imports
//! in any order; newer ones replace earlier ones. Kinds of keys and numbers of fields never change; a reader skips
//! those that it does not know.
//!
//! The other process connects anew, so packets in flight to this one are lost, as with a connection that breaks: it
//! requests missing messages anew, and the entries of others in presence. Requests and their replies, and messages
//! that wait for earlier ones, are not passed.

use std::collections::BTreeMap;

use bytes::Bytes;
use minicbor::{Decode, Encode};
use model::NodeId;

use super::{NEVER, Node, PEERS_MAX, Settings};
use crate::entries::PeerEntries;
use crate::incoming::ExportedStreams;
use crate::peer::Peer;
use crate::replay::{MessagesFrom, Replay, RetainedMessage};
use crate::{Output, PeerState, Stream};

/// Kinds of keys.
const NUMBERS: u8 = b'n';
const STREAM: u8 = b's';
const PEER: u8 = b'p';
const MESSAGE: u8 = b'm';

/// No valid number or time of a node is larger: all are counted up from 0.
const NUMBER_MAX: u64 = u64::MAX >> 2;

/// A key, and its value.
pub type Record = (Vec<u8>, Vec<u8>);

/// Why a record can't be imported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HandoverError(String);

impl HandoverError {
    fn new(what: impl ToString) -> Self {
        HandoverError(what.to_string())
    }
}

type Result<T> = std::result::Result<T, HandoverError>;

/// Numbers of the node itself.
#[derive(Debug, Default, PartialEq, Encode, Decode)]
#[cbor(map)]
struct Numbers {
    #[n(0)]
    hello_number: u64,
    #[n(1)]
    presence_diffs: u64,
    #[n(2)]
    request_id: u64,
    #[n(3)]
    has_left_out_entries: bool,
    /// `None` before the first connect.
    #[n(4)]
    packet_bytes_max: Option<u64>,
    /// When it lost its connection, in microseconds of its clock.
    #[n(5)]
    disconnected_us: Option<u64>,
    #[n(6)]
    time_us: u64,
    /// When the newest message that it no longer retains was published, and the newest diff of presence.
    #[n(7)]
    evicted_us: Option<u64>,
    #[n(8)]
    presence_evicted_us: Option<u64>,
    /// The number of the newest change of groups.
    #[cbor(n(9), default)]
    groups_number: u64,
    /// The largest number of the logical clock.
    #[cbor(n(10), default)]
    clock: u64,
}

/// A stream: what the node has published to it, and its interest.
#[derive(Debug, Default, PartialEq, Encode, Decode)]
#[cbor(map)]
struct StreamRecord {
    /// The newest number, and when its message was published.
    #[n(0)]
    head: u64,
    #[n(1)]
    head_us: u64,
    /// The newest number that is no longer retained.
    #[n(2)]
    evicted: u64,
    /// True if no hello has named the newest number yet.
    #[n(3)]
    is_changed: bool,
    #[n(4)]
    interest_begun_us: Option<u64>,
}

/// Another node.
#[derive(Debug, Default, PartialEq, Encode, Decode)]
#[cbor(map)]
struct PeerRecord {
    #[n(0)]
    name: String,
    #[n(1)]
    version: String,
    #[n(2)]
    connections: u64,
    #[n(3)]
    is_draining: bool,
    #[n(4)]
    has_calls: bool,
    #[n(5)]
    is_up: bool,
    #[n(6)]
    has_left: bool,
    #[n(7)]
    received_us: u64,
    #[n(8)]
    hello_number: u64,
    /// How often its entries in presence were read.
    #[n(9)]
    reads: u64,
    /// True if some of its entries may be here.
    #[n(10)]
    has_entries: bool,
    /// The newest number of each stream that was delivered, or is lost.
    #[n(11)]
    last: Vec<(u16, u64)>,
    /// Numbers of messages that are known to have been published, and have not come.
    #[n(12)]
    missing: Vec<(u16, u64)>,
    /// Streams whose first number is still unknown.
    #[n(13)]
    beginning: Vec<u16>,
    #[cbor(n(14), default)]
    joins: u64,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct MessageRecord<'b> {
    #[n(0)]
    at_us: u64,
    #[b(1)]
    #[cbor(with = "minicbor::bytes")]
    bytes: &'b [u8],
}

impl RetainedMessage {
    /// Returns the key of its record.
    pub fn key(&self) -> Vec<u8> {
        let (stream, number) = (self.stream.number().to_be_bytes(), self.number.to_be_bytes());
        [&[MESSAGE][..], &stream, &number].concat()
    }

    /// Returns the value of its record.
    pub fn value(&self) -> Vec<u8> {
        encode(MessageRecord { at_us: self.at_us, bytes: &self.bytes })
    }
}

fn encode(record: impl Encode<()>) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Writing to a vector can't fail.
    let _ = minicbor::encode(record, &mut bytes);
    bytes
}

/// Decodes a record, which takes all of the bytes.
fn decode<'b, T: Decode<'b, ()>>(bytes: &'b [u8]) -> Result<T> {
    let mut decoder = minicbor::Decoder::new(bytes);
    let record = decoder.decode().map_err(HandoverError::new)?;
    match decoder.position() == bytes.len() {
        true => Ok(record),
        false => Err(HandoverError::new("a record has data after its end")),
    }
}

fn verify(numbers: impl IntoIterator<Item = u64>) -> Result<()> {
    match numbers.into_iter().all(|number| number <= NUMBER_MAX) {
        true => Ok(()),
        false => Err(HandoverError::new("a number is too large")),
    }
}

fn stream_of(number: u16) -> Result<Stream> {
    let unknown = || HandoverError::new(format!("stream {number} does not exist"));
    Stream::from_number(number).ok_or_else(unknown)
}

fn key_bytes<const N: usize>(key: &[u8]) -> Result<[u8; N]> {
    key.try_into().map_err(|_| HandoverError::new("a key has the wrong length"))
}

impl Node {
    /// Sends a last hello before another process continues as this node: others count its silence from here on.
    pub fn on_rest(&mut self, now_us: u64) {
        self.send_hello(now_us, false, false);
    }

    /// Returns all state as records, except for the retained messages: [`Node::export_messages`]. It takes less than
    /// a millisecond for each ten other nodes.
    pub fn export(&self) -> Vec<Record> {
        let (evicted_us, presence_evicted_us) = self.replay.evicted_us();
        let numbers = Numbers {
            hello_number: self.hello_number,
            presence_diffs: self.presence_diffs,
            request_id: self.request_id,
            has_left_out_entries: self.has_left_out_entries,
            packet_bytes_max: (self.packet_bytes_max < usize::MAX)
                .then_some(self.packet_bytes_max as u64),
            disconnected_us: self.disconnected_us,
            time_us: self.time_us,
            evicted_us,
            presence_evicted_us,
            groups_number: self.groups.number,
            clock: self.clock.newest(),
        };
        let streams = Stream::all().filter_map(|stream| {
            let ((head, head_us), evicted, is_changed) = self.replay.stream(stream);
            let begun_us = self.interest_begun_us.get(stream);
            let interest_begun_us = (begun_us != NEVER).then_some(begun_us);
            let record = StreamRecord { head, head_us, evicted, is_changed, interest_begun_us };
            let key = [&[STREAM][..], &stream.number().to_be_bytes()].concat();
            (record != StreamRecord::default()).then(|| (key, encode(record)))
        });
        let peers = self.peers.iter().map(|(id, peer)| {
            ([&[PEER][..], &id.0.to_be_bytes()].concat(), encode(peer_record(peer)))
        });
        let numbers = std::iter::once((vec![NUMBERS], encode(numbers)));
        numbers.chain(streams).chain(peers).collect()
    }

    /// Returns true if messages of other nodes are known to be missing.
    #[cfg(test)]
    pub fn is_missing_messages(&self) -> bool {
        self.peers.values().any(|peer| !peer.streams.export().missing.is_empty())
    }

    /// Returns at most `messages_max` retained messages from a position on, and the position of the next ones, if
    /// there may be more.
    pub fn export_messages(
        &self,
        from: MessagesFrom,
        messages_max: usize,
    ) -> (Vec<RetainedMessage>, Option<MessagesFrom>) {
        self.replay.export(from, messages_max)
    }
}

fn peer_record(peer: &Peer) -> PeerRecord {
    let PeerState { name, version, connections, is_draining, .. } = &peer.state;
    let PeerState { node: _, has_calls, is_up, joins, has_left, received_us, .. } = peer.state;
    let ExportedStreams { last, missing, beginning } = peer.streams.export();
    PeerRecord {
        name: name.clone(),
        version: version.clone(),
        connections: *connections,
        is_draining: *is_draining,
        has_calls,
        is_up,
        has_left,
        received_us,
        hello_number: peer.hello_number,
        reads: peer.entries.reads(),
        has_entries: peer.entries.may_have_some(),
        last,
        missing,
        beginning,
        joins,
    }
}

/// The imported state of a node of another process.
#[derive(Default)]
pub struct Handover {
    numbers: Option<Numbers>,
    streams: BTreeMap<Stream, StreamRecord>,
    peers: BTreeMap<NodeId, PeerRecord>,
    messages: BTreeMap<(Stream, u64), (u64, Bytes)>,
}

impl Handover {
    /// Imports a record, which replaces the one with the same key; without a value it removes that one. Skips unknown
    /// kinds of keys.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn import(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        match key.split_first() {
            Some((&NUMBERS, [])) => self.numbers = value.map(decode_numbers).transpose()?,
            Some((&STREAM, key)) => {
                let stream = stream_of(u16::from_be_bytes(key_bytes(key)?))?;
                put(&mut self.streams, stream, value.map(decode_stream).transpose()?);
            }
            Some((&PEER, key)) => {
                let node = NodeId(u32::from_be_bytes(key_bytes(key)?));
                put(&mut self.peers, node, value.map(decode_peer).transpose()?);
            }
            Some((&MESSAGE, key)) => {
                let [high, low, at @ ..] = key_bytes::<10>(key)?;
                let (stream, at) = (u16::from_be_bytes([high, low]), u64::from_be_bytes(at));
                verify([at])?;
                let message = value.map(decode::<MessageRecord>).transpose()?;
                let message = message.map(|it| (it.at_us, Bytes::copy_from_slice(it.bytes)));
                verify(message.iter().map(|(at_us, _)| *at_us))?;
                put(&mut self.messages, (stream_of(stream)?, at), message);
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns true if the node is interested in a stream.
    pub fn has_interest(&self, stream: Stream) -> bool {
        self.streams.get(&stream).is_some_and(|it| it.interest_begun_us.is_some())
    }

    /// Makes the node that continues in this process: it is not connected yet.
    ///
    /// # Errors
    /// If a record is missing, or records contradict each other.
    pub fn complete(self, settings: Settings, now_us: u64) -> Result<Node> {
        let missing = || HandoverError::new("the record with the node's next numbers is missing");
        let numbers = self.numbers.ok_or_else(missing)?;
        if self.peers.len() > PEERS_MAX || self.peers.contains_key(&settings.node) {
            return Err(HandoverError::new(
                "there are too many other nodes, or one of them is this node",
            ));
        }
        let mut node = Node::new(settings, now_us);
        node.hello_number = numbers.hello_number;
        node.presence_diffs = numbers.presence_diffs;
        node.request_id = numbers.request_id;
        node.has_left_out_entries = numbers.has_left_out_entries;
        node.groups.number = numbers.groups_number;
        node.clock.observe(numbers.clock);
        let bytes_max = numbers.packet_bytes_max;
        node.packet_bytes_max =
            bytes_max.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        node.disconnected_us = Some(numbers.disconnected_us.unwrap_or(now_us));
        node.time_us = numbers.time_us.min(now_us);
        restore_streams(&mut node, &self.streams);
        restore_messages(&mut node.replay, &numbers, self.messages)?;
        for (id, record) in self.peers {
            restore_peer(&mut node, id, record, now_us);
        }
        node.replay.evict(now_us);
        Ok(node)
    }
}

fn put<K: Ord, V>(all: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => _ = all.insert(key, value),
        None => _ = all.remove(&key),
    }
}

fn decode_numbers(value: &[u8]) -> Result<Numbers> {
    let numbers: Numbers = decode(value)?;
    let Numbers { hello_number, presence_diffs, request_id, time_us, groups_number, .. } = numbers;
    let times = [numbers.disconnected_us, numbers.evicted_us, numbers.presence_evicted_us];
    let counted = [hello_number, presence_diffs, request_id, time_us, groups_number];
    verify(counted.into_iter().chain(times.into_iter().flatten()))?;
    Ok(numbers)
}

fn decode_stream(value: &[u8]) -> Result<StreamRecord> {
    let record: StreamRecord = decode(value)?;
    let StreamRecord { head, head_us, evicted, interest_begun_us, .. } = record;
    verify([head, head_us, evicted, interest_begun_us.unwrap_or_default()])?;
    Ok(record)
}

fn decode_peer(value: &[u8]) -> Result<PeerRecord> {
    let record: PeerRecord = decode(value)?;
    let PeerRecord { connections: _, received_us, hello_number, reads, .. } = record;
    let numbers = record.last.iter().chain(&record.missing);
    verify([received_us, hello_number, reads].into_iter().chain(numbers.map(|(_, it)| *it)))?;
    let streams = record.last.iter().chain(&record.missing).map(|(stream, _)| *stream);
    for stream in streams.chain(record.beginning.iter().copied()) {
        stream_of(stream)?;
    }
    Ok(record)
}

fn restore_streams(node: &mut Node, streams: &BTreeMap<Stream, StreamRecord>) {
    for (stream, record) in streams {
        let StreamRecord { head, head_us, evicted, is_changed, interest_begun_us } = *record;
        node.replay.restore_stream(*stream, (head, head_us), evicted.min(head), is_changed);
        if let Some(begun_us) = interest_begun_us {
            if node.interest_begun_us.get(*stream) == NEVER {
                node.outputs.push(Output::Subscribe(*stream));
            }
            node.interest_begun_us.set(*stream, begun_us);
        }
    }
}

fn restore_messages(
    replay: &mut Replay,
    numbers: &Numbers,
    messages: BTreeMap<(Stream, u64), (u64, Bytes)>,
) -> Result<()> {
    let restored = messages.into_iter().map(|((stream, number), (at_us, bytes))| RetainedMessage {
        stream,
        number,
        at_us,
        bytes,
    });
    let mut restored: Vec<RetainedMessage> = restored.collect();
    // Messages are evicted in the order in which they were published; in one stream that is the order of their
    // numbers.
    restored.sort_by_key(|it| (it.at_us, it.stream, it.number));
    let is_beyond = |it: &RetainedMessage| it.number > replay.stream(it.stream).0.0;
    if restored.iter().any(is_beyond) {
        return Err(HandoverError::new(
            "a message has a higher number than the newest one of its stream",
        ));
    }
    replay.restore(restored, (numbers.evicted_us, numbers.presence_evicted_us));
    Ok(())
}

fn restore_peer(node: &mut Node, id: NodeId, record: PeerRecord, now_us: u64) {
    let mut peer = Peer::new(id, now_us);
    peer.state = PeerState {
        node: id,
        name: record.name,
        version: record.version,
        connections: record.connections,
        is_draining: record.is_draining,
        has_calls: record.has_calls,
        is_up: record.is_up,
        joins: record.joins,
        has_left: record.has_left,
        received_us: record.received_us.min(now_us),
    };
    peer.hello_number = record.hello_number;
    let may_have_entries = record.has_entries && record.is_up;
    peer.entries = PeerEntries::restored(record.reads, may_have_entries, now_us);
    if !may_have_entries {
        // The removal of its entries may not have been finished.
        node.outputs.push(Output::PresenceExpired(id));
    }
    peer.streams.restore(&record.last, &record.missing, now_us);
    for stream in Stream::all() {
        let begun_us = node.interest_begun_us.get(stream);
        let is_beginning = record.is_up || record.beginning.contains(&stream.number());
        match begun_us {
            NEVER => peer.streams.on_interest_ended(stream),
            begun_us if is_beginning => peer.streams.on_interest_begun(stream, begun_us, now_us),
            _ => {}
        }
    }
    node.peers.insert(id, peer);
}
