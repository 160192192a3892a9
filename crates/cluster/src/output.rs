//! All outputs of a node.

use bytes::Bytes;
use model::NodeId;
use presence::{Change, Page};

use crate::{Call, CallReply, ClientConnect, GroupMembers, GroupMessage, PresenceRequest, Stream};

/// The target of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// All nodes that subscribe to a stream.
    Stream(Stream),
    /// All nodes.
    Nodes,
    /// One node.
    Node(NodeId),
}

/// An action for the shell; it performs all in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Subscribe to a stream. Packets that are sent afterwards must reach NATS after the subscription.
    Subscribe(Stream),
    /// End the subscription.
    Unsubscribe(Stream),
    /// Send a packet.
    Send {
        /// The target.
        target: Target,
        /// The packet.
        bytes: Bytes,
    },
    /// Deliver a message of another node to the members here.
    Deliver {
        /// The node that published it.
        node: NodeId,
        /// Its stream.
        stream: Stream,
        /// The payload.
        payload: Bytes,
    },
    /// Messages of a stream are lost. They came before those that are delivered from now on.
    Gap {
        /// The node that published them.
        node: NodeId,
        /// Their stream.
        stream: Stream,
        /// The number of messages, if it is known.
        lost: Option<u64>,
    },
    /// Change the entries of another node in presence.
    PresenceChanged {
        /// The node, whose entries they are.
        node: NodeId,
        /// The changes, in their order.
        changes: Vec<Change>,
    },
    /// Replace the entries of another node, in the range of a page, by those of the page.
    PresencePage {
        /// The node, whose entries they are.
        node: NodeId,
        /// The page.
        page: Page,
    },
    /// Remove all entries of another node.
    PresenceExpired(NodeId),
    /// Read a page of this node's own entries, of about [`crate::PRESENCE_PACKET_BYTES`] and from the number that the
    /// request names, and pass both to [`crate::Node::on_presence_read`].
    ReadPresence(PresenceRequest),
    /// Set the numbers of members that another node has of groups.
    GroupsChanged {
        /// The node.
        node: NodeId,
        /// The groups.
        changes: Vec<GroupMembers>,
    },
    /// MQTT clients have connected to another node: end their earlier connections here, and
    /// [publish](crate::Node::publish_connects) later ones again.
    ClientsConnected {
        /// The node.
        node: NodeId,
        /// Their connects.
        connects: Vec<ClientConnect>,
    },
    /// Connects to another node are lost: [publish](crate::Node::publish_connects) those of all MQTT clients here
    /// again, so that the other node compares them.
    RepeatConnects,
    /// Pass a message to a member of a group here alone.
    DeliverToGroup {
        /// The node that passed it on.
        node: NodeId,
        /// The message and the group.
        message: GroupMessage,
    },
    /// Perform a call of the API that another node has sent, and send it the reply.
    Call(Call),
    /// Take the reply to a call of this node.
    CallReply(CallReply),
    /// Report a packet that is not sent, because it is larger than NATS takes ([`crate::Node::set_packet_bytes_max`]).
    TooLarge {
        /// The content of the packet.
        content: TooLarge,
        /// Its length, in bytes.
        bytes: usize,
    },
    /// A node has joined, or came back.
    Up(NodeId),
    /// A node has left, or is silent.
    Down {
        /// The node.
        node: NodeId,
        /// True if it has said goodbye.
        has_left: bool,
    },
}

/// The content of a packet that is too large for NATS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooLarge {
    /// A message: members at other nodes don't get it.
    Message,
    /// A user's payload in a topic with presence: other nodes don't list the user.
    PresenceEntry,
    /// Another content.
    Other,
}

/// Counters of a node since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages of this node.
    pub published: u64,
    /// Messages of other nodes that were delivered here.
    pub delivered: u64,
    /// Messages that came a second time and were dropped.
    pub duplicates: u64,
    /// Messages of streams to which no topic here belongs.
    pub without_interest: u64,
    /// Messages that other nodes requested and got.
    pub replayed: u64,
    /// Requests of this node for messages that it missed.
    pub requests: u64,
    /// How often messages were lost for good.
    pub gaps: u64,
    /// Packets that could not be read.
    pub damaged: u64,
    /// Messages and entries in presence that were not sent, because they are larger than NATS takes: once for each time
    /// that another node requests them as well.
    pub too_large: u64,
    /// Changes of this node's entries in presence.
    pub presence_sent: u64,
    /// Changes of other nodes' entries.
    pub presence_received: u64,
    /// Messages for a group without a member here, which this node passed to another one.
    pub groups_passed: u64,
    /// Messages for members of groups that another node has passed to this one.
    pub groups_received: u64,
    /// How often this node has read all entries of another one: once for each that has joined or come back, and once
    /// for each loss of changes.
    pub presence_reads: u64,
}
