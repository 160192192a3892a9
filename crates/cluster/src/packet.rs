//! Packets as bytes.
//!
//! The first byte is the version, 1; the second is the kind.
//!
//! | second byte | packet | what follows |
//! | --- | --- | --- |
//! | 1 | [`Message`] | 4 bytes node, 2 stream, 8 number, all little-endian; then the payload |
//! | 2 | [`Hello`] | a CBOR map with numbered fields, as in all below |
//! | 3 | [`HeadsRequest`] | |
//! | 4 | [`HeadsReply`] | |
//! | 5 | [`ReplayRequest`] | |
//! | 6 | [`ReplayReply`] | |
//! | 7 | [`PresenceRequest`] | |
//! | 8 | [`PresencePage`] | |
//! | 9 | [`Call`] | |
//! | 10 | [`CallReply`] | |
//! | 11 | [`GroupsRequest`] | |
//! | 12 | [`GroupsPage`] | |
//!
//! The payload of a message of [`Stream::PRESENCE`] is a [`PresenceDiff`], a map as well, and that of one of
//! [`Stream::MQTT`] a [`MqttEvent`].
//!
//! Numbers of fields never change. A reader skips fields that it doesn't know, so that nodes of two successive
//! versions understand each other. A packet of another version, or of another kind, is an error: the reader drops and
//! counts it. So a node sends kinds that earlier versions don't know only to nodes whose hello announces them, or to
//! a stream to which only those subscribe.

use bytes::Bytes;
use minicbor::{Decode, Encode};
use model::NodeId;
use presence::{Change, Page, SharedEntry};

use crate::Stream;

const VERSION: u8 = 1;

const MESSAGE: u8 = 1;
const HELLO: u8 = 2;
const HEADS_REQUEST: u8 = 3;
const HEADS_REPLY: u8 = 4;
const REPLAY_REQUEST: u8 = 5;
const REPLAY_REPLY: u8 = 6;
const PRESENCE_REQUEST: u8 = 7;
const PRESENCE_PAGE: u8 = 8;
const CALL: u8 = 9;
const CALL_REPLY: u8 = 10;
const GROUPS_REQUEST: u8 = 11;
const GROUPS_PAGE: u8 = 12;

/// Bytes of a message before its payload.
const HEADER_BYTES: usize = 16;

/// A packet from one node to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// A published message.
    Message(Message),
    /// A node's description of itself.
    Hello(Hello),
    /// A request for the newest numbers.
    HeadsRequest(HeadsRequest),
    /// Its reply.
    HeadsReply(HeadsReply),
    /// A request for missing messages.
    ReplayRequest(ReplayRequest),
    /// The end of its reply: the messages came before.
    ReplayReply(ReplayReply),
    /// A request for a page of a node's entries in presence.
    PresenceRequest(PresenceRequest),
    /// Its reply.
    PresencePage(PresencePage),
    /// A call of the API.
    Call(Call),
    /// Its reply.
    CallReply(CallReply),
    /// A request for a node's groups.
    GroupsRequest(GroupsRequest),
    /// A part of its reply.
    GroupsPage(GroupsPage),
}

/// A published message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The node that published it.
    pub node: NodeId,
    /// Its stream.
    pub stream: Stream,
    /// Its number among the node's messages to the stream. The one before has the number before.
    pub number: u64,
    /// The payload.
    pub payload: Bytes,
}

/// A node's description of itself, sent once a second and when it has connected to NATS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Hello {
    /// The node.
    #[n(0)]
    pub node: u32,
    /// The name that its operator chose.
    #[cbor(n(1), default)]
    pub name: String,
    /// The version of its program.
    #[cbor(n(2), default)]
    pub version: String,
    /// The number of this hello. A reader that misses one requests the newest numbers of all its streams.
    #[cbor(n(3), default)]
    pub number: u64,
    /// The newest numbers of the streams that changed since the hello before.
    #[cbor(n(4), default)]
    pub heads: Vec<(u16, u64)>,
    /// True if the node leaves.
    #[cbor(n(5), default)]
    pub is_goodbye: bool,
    /// True if every other node must reply with a hello.
    #[cbor(n(6), default)]
    pub is_reply_requested: bool,
    /// Connections that it has.
    #[cbor(n(7), default)]
    pub connections: u64,
    /// True while it drains.
    #[cbor(n(8), default)]
    pub is_draining: bool,
    /// True if it shares its entries in presence: it sends changes, and replies to requests for pages.
    #[cbor(n(9), default)]
    pub has_presence: bool,
    /// True if it replies to calls of the API.
    #[cbor(n(10), default)]
    pub has_calls: bool,
    /// True if it takes part in groups over nodes: it sends its numbers of members, and replies to requests for them.
    #[cbor(n(11), default)]
    pub has_groups: bool,
    /// The largest number of the [logical clock](crate::LogicalClock) that it knows.
    #[cbor(n(12), default)]
    pub clock: u64,
}

/// A request for the newest numbers of some streams.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct HeadsRequest {
    /// The node that requests them.
    #[n(0)]
    pub node: u32,
    /// The id, which the reply repeats.
    #[n(1)]
    pub id: u64,
    /// The streams.
    #[n(2)]
    pub streams: Vec<u16>,
}

/// The newest numbers of some streams.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct HeadsReply {
    /// The node that replies.
    #[n(0)]
    pub node: u32,
    /// The id of the request.
    #[n(1)]
    pub id: u64,
    /// The time by the clock of the node that replies, in microseconds.
    #[n(2)]
    pub now_us: u64,
    /// The streams to which it has sent a message.
    #[n(3)]
    pub heads: Vec<Head>,
}

/// The newest message that a node sent to a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Head {
    /// The stream.
    #[n(0)]
    pub stream: u16,
    /// The message's number.
    #[n(1)]
    pub number: u64,
    /// When the node published it, by its own clock, in microseconds.
    #[n(2)]
    pub at_us: u64,
}

/// A request for missing messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct ReplayRequest {
    /// The node that requests them.
    #[n(0)]
    pub node: u32,
    /// The id, which the reply repeats.
    #[n(1)]
    pub id: u64,
    /// The missing messages.
    #[n(2)]
    pub ranges: Vec<RequestedRange>,
}

/// Messages of a stream that a node requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct RequestedRange {
    /// The stream.
    #[n(0)]
    pub stream: u16,
    /// The number before the first one.
    #[n(1)]
    pub after: u64,
    /// The last number.
    #[n(2)]
    pub to: u64,
    /// The earliest time, by the clock of the node that published the messages, in microseconds; 0 for any.
    #[cbor(n(3), default)]
    pub since_us: u64,
}

/// The end of a reply to a request for messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct ReplayReply {
    /// The node that replies.
    #[n(0)]
    pub node: u32,
    /// The id of the request.
    #[n(1)]
    pub id: u64,
    /// The sent messages.
    #[n(2)]
    pub ranges: Vec<ReplayedRange>,
}

/// Messages of a stream that a node sent once more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct ReplayedRange {
    /// The stream.
    #[n(0)]
    pub stream: u16,
    /// The first number; `to` + 1 if none was sent.
    #[n(1)]
    pub first: u64,
    /// The last number.
    #[n(2)]
    pub to: u64,
    /// True if no message is missing between the requested start and `first`. False if the node retains some no
    /// longer.
    #[n(3)]
    pub is_whole: bool,
}

/// Changes of a node's entries in presence: the payload of a message of [`Stream::PRESENCE`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct PresenceDiff {
    /// Its number. The diff before has the number before.
    #[n(0)]
    pub number: u64,
    /// The changes, in their order.
    #[cbor(n(1), default)]
    pub changes: Vec<Change>,
    /// True if the node has lost changes: others must read all its entries anew.
    #[cbor(n(2), default)]
    pub is_reset: bool,
}

/// A request for a page of a node's own entries in presence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct PresenceRequest {
    /// The node that requests it.
    #[n(0)]
    pub node: u32,
    /// The id, which the reply repeats.
    #[n(1)]
    pub id: u64,
    /// The first number of the page.
    #[n(2)]
    pub from: u64,
}

/// A page of a node's own entries in presence: all whose numbers are in a range.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct PresencePage {
    /// The node, whose entries they are.
    #[n(0)]
    pub node: u32,
    /// The id of the request.
    #[n(1)]
    pub id: u64,
    /// The number of the last diff whose changes are in the page. It may have later ones.
    #[n(2)]
    pub number: u64,
    /// The first number of the range.
    #[n(3)]
    pub from: u64,
    /// The number behind the range; `None` if it has no end.
    #[n(4)]
    pub to: Option<u64>,
    /// The entries, in ascending order of their numbers.
    #[cbor(n(5), default)]
    pub entries: Vec<SharedEntry>,
}

/// A call of the API that another node must perform by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Call {
    /// The node that calls.
    #[n(0)]
    pub node: u32,
    /// The id, which the reply repeats.
    #[n(1)]
    pub id: u64,
    /// The HTTP method.
    #[n(2)]
    pub method: String,
    /// The path and the query.
    #[n(3)]
    pub target: String,
    /// The body: JSON, or nothing.
    #[cbor(n(4), with = "minicbor::bytes", default)]
    pub body: Vec<u8>,
}

/// The result of a call of the API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct CallReply {
    /// The node that replies.
    #[n(0)]
    pub node: u32,
    /// The id of the call.
    #[n(1)]
    pub id: u64,
    /// The HTTP status.
    #[n(2)]
    pub status: u16,
    /// The body: JSON.
    #[cbor(n(3), with = "minicbor::bytes", default)]
    pub body: Vec<u8>,
}

/// An event of MQTT that a node publishes: one of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct MqttEvent {
    /// Its changed numbers of members.
    #[n(0)]
    pub diff: Option<GroupDiff>,
    /// A message that it passes on.
    #[n(1)]
    pub message: Option<GroupMessage>,
    /// Connects of clients to it.
    #[cbor(n(2), default)]
    pub connects: Vec<ClientConnect>,
}

/// The connect of an MQTT client to a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct ClientConnect {
    /// The key of its session.
    #[n(0)]
    pub key: String,
    /// The number by the node's [logical clock](crate::LogicalClock), by which all nodes agree which of two connects
    /// is later.
    #[n(1)]
    pub number: u64,
    /// True if its session begins anew (Clean Start): earlier ones at other nodes end.
    #[cbor(n(2), default)]
    pub is_clean: bool,
}

/// Groups whose number of members at a node has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct GroupDiff {
    /// Its number among the diffs of the node.
    #[n(0)]
    pub number: u64,
    /// Groups by their names in the hub, with their numbers of members.
    #[cbor(n(1), default)]
    pub changes: Vec<(String, u32)>,
    /// True if another process continues as the node: others must read all its groups anew.
    #[cbor(n(2), default)]
    pub is_reset: bool,
}

/// A message for one member of a group, at one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct GroupMessage {
    /// The node.
    #[n(0)]
    pub to: u32,
    /// The group, by its name in the hub.
    #[n(1)]
    pub group: String,
    /// The nodes that the message has passed.
    #[cbor(n(2), default)]
    pub passed: Vec<u32>,
    /// The publication.
    #[cbor(n(3), with = "minicbor::bytes", default)]
    pub publication: Vec<u8>,
}

/// A request for all groups of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct GroupsRequest {
    /// The node that requests them.
    #[n(0)]
    pub node: u32,
    /// The id, which the reply repeats.
    #[n(1)]
    pub id: u64,
}

/// A part of all groups of a node. The parts come in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct GroupsPage {
    /// The node that replies.
    #[n(0)]
    pub node: u32,
    /// The id of the request.
    #[n(1)]
    pub id: u64,
    /// The number of the last diff whose changes it includes.
    #[n(2)]
    pub number: u64,
    /// The number of the part, from 0 on.
    #[n(3)]
    pub part: u32,
    /// True if no part follows.
    #[cbor(n(4), default)]
    pub is_last: bool,
    /// Groups, with their numbers of members.
    #[cbor(n(5), default)]
    pub groups: Vec<(String, u32)>,
}

/// Why bytes are not a valid packet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// The bytes are too few.
    #[error("the packet ends within its header")]
    Short,
    /// Another version sent it.
    #[error("the packet has version {0}, and this node supports version {VERSION}: upgrade it")]
    Version(u8),
    /// A later version sent it.
    #[error("this node does not support packets of kind {0}: upgrade it")]
    Kind(u8),
    /// It names a stream that does not exist.
    #[error("the packet names stream {0}, which does not exist")]
    Stream(u16),
    /// It is damaged.
    #[error("the packet is damaged: {0}")]
    Damaged(String),
}

impl Message {
    /// Encodes a message. `write` appends the payload.
    pub fn encode(
        node: NodeId,
        stream: Stream,
        number: u64,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Bytes {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + 128);
        bytes.extend_from_slice(&[VERSION, MESSAGE]);
        bytes.extend_from_slice(&node.0.to_le_bytes());
        bytes.extend_from_slice(&stream.number().to_le_bytes());
        bytes.extend_from_slice(&number.to_le_bytes());
        write(&mut bytes);
        bytes.into()
    }

    fn decode(bytes: &Bytes) -> Result<Message, PacketError> {
        let (header, _) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(PacketError::Short)?;
        let [_, _, n0, n1, n2, n3, s0, s1, number @ ..] = *header;
        let stream = u16::from_le_bytes([s0, s1]);
        Ok(Message {
            node: NodeId(u32::from_le_bytes([n0, n1, n2, n3])),
            stream: Stream::from_number(stream).ok_or(PacketError::Stream(stream))?,
            number: u64::from_le_bytes(number),
            payload: bytes.slice(HEADER_BYTES..),
        })
    }
}

impl PresenceDiff {
    /// Appends its bytes.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        // Writing to a vector can't fail.
        let _ = minicbor::encode(self, out);
    }

    /// Decodes a diff.
    ///
    /// # Errors
    /// If the bytes are damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, PacketError> {
        read(bytes)
    }
}

impl MqttEvent {
    /// Appends its bytes.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        // Writing to a vector can't fail.
        let _ = minicbor::encode(self, out);
    }

    /// Decodes an event.
    ///
    /// # Errors
    /// If the bytes are damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, PacketError> {
        read(bytes)
    }
}

impl PresencePage {
    /// Decodes a page.
    ///
    /// # Errors
    /// If the bytes are damaged, or the entries are out of order or of the range.
    fn decode(bytes: &[u8]) -> Result<Self, PacketError> {
        let page: Self = read(bytes)?;
        let is_in_order = page.entries.is_sorted_by(|one, next| one.number < next.number);
        let ends = page.entries.first().into_iter().chain(page.entries.last());
        let is_in_range =
            |it: &SharedEntry| it.number >= page.from && page.to.is_none_or(|to| it.number < to);
        if !is_in_order
            || !ends.into_iter().all(is_in_range)
            || page.to.is_some_and(|to| to <= page.from)
        {
            let error = "the entries of a presence page are out of order or out of range";
            return Err(PacketError::Damaged(error.into()));
        }
        Ok(page)
    }

    /// Returns the entries as a page of presence.
    pub fn into_page(self) -> Page {
        Page { from: self.from, to: self.to, entries: self.entries }
    }
}

impl Packet {
    /// Encodes a packet.
    pub fn encode(&self) -> Bytes {
        match self {
            Packet::Message(message) => {
                let Message { node, stream, number, payload } = message;
                Message::encode(*node, *stream, *number, |out| out.extend_from_slice(payload))
            }
            Packet::Hello(hello) => map(HELLO, hello),
            Packet::HeadsRequest(request) => map(HEADS_REQUEST, request),
            Packet::HeadsReply(reply) => map(HEADS_REPLY, reply),
            Packet::ReplayRequest(request) => map(REPLAY_REQUEST, request),
            Packet::ReplayReply(reply) => map(REPLAY_REPLY, reply),
            Packet::PresenceRequest(request) => map(PRESENCE_REQUEST, request),
            Packet::PresencePage(page) => map(PRESENCE_PAGE, page),
            Packet::Call(call) => map(CALL, call),
            Packet::CallReply(reply) => map(CALL_REPLY, reply),
            Packet::GroupsRequest(request) => map(GROUPS_REQUEST, request),
            Packet::GroupsPage(page) => map(GROUPS_PAGE, page),
        }
    }

    /// Decodes a packet.
    ///
    /// # Errors
    /// If the bytes are damaged, or of a version that this one does not know.
    pub fn decode(bytes: &Bytes) -> Result<Packet, PacketError> {
        let ([version, kind], rest) = bytes.split_first_chunk().ok_or(PacketError::Short)?;
        if *version != VERSION {
            return Err(PacketError::Version(*version));
        }
        Ok(match *kind {
            MESSAGE => Packet::Message(Message::decode(bytes)?),
            HELLO => Packet::Hello(read(rest)?),
            HEADS_REQUEST => Packet::HeadsRequest(read(rest)?),
            HEADS_REPLY => Packet::HeadsReply(read(rest)?),
            REPLAY_REQUEST => Packet::ReplayRequest(read(rest)?),
            REPLAY_REPLY => Packet::ReplayReply(read(rest)?),
            PRESENCE_REQUEST => Packet::PresenceRequest(read(rest)?),
            PRESENCE_PAGE => Packet::PresencePage(PresencePage::decode(rest)?),
            CALL => Packet::Call(read(rest)?),
            CALL_REPLY => Packet::CallReply(read(rest)?),
            GROUPS_REQUEST => Packet::GroupsRequest(read(rest)?),
            GROUPS_PAGE => Packet::GroupsPage(read(rest)?),
            kind => return Err(PacketError::Kind(kind)),
        })
    }
}

fn map(kind: u8, packet: &impl Encode<()>) -> Bytes {
    let mut bytes = vec![VERSION, kind];
    // Writing to a vector can't fail.
    let _ = minicbor::encode(packet, &mut bytes);
    bytes.into()
}

fn read<'b, T: Decode<'b, ()>>(bytes: &'b [u8]) -> Result<T, PacketError> {
    minicbor::decode(bytes).map_err(|error| PacketError::Damaged(error.to_string()))
}

#[cfg(test)]
mod tests;
