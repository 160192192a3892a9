//! The protocol between the nodes of a cluster, without I/O: packets and a time go in, outputs come out.
//!
//! The nodes communicate by NATS. It delivers at most once: a message in flight is lost when a connection breaks, and
//! subjects may overtake each other. So messages are numbered, and nodes request missing ones from each other.
//!
//! - A topic belongs to a [`Stream`], by the hash of its name. A node subscribes to the streams of the topics that
//!   have members there ([`Interest`]), and drops the messages of other topics in these streams.
//! - Each node numbers its messages to a stream: 1, 2, 3. So each message of a topic says which one came before it.
//!   The node retains the newest messages of all streams, up to a number of bytes ([`Settings::replay_bytes_max`]).
//! - A node that misses a number requests it, and delivers later messages afterwards: no message comes twice, and
//!   none before an older one. If the sender does not have it any more, the node reports a gap ([`Output::Gap`]).
//! - Once a second a node sends a [`Hello`] with the newest numbers of the streams that changed, so that other nodes
//!   also notice a loss at the end of a stream. A node that sends none for [`SILENT_US`] is gone.
//! - A stream whose interest has just begun starts at the message that was published when it began: the subscription
//!   takes effect after a round trip, and the node requests what was sent meanwhile.
//!
//! Nodes share presence in the same way: each owns its entries, and publishes their changes to a stream of its own
//! ([`PresenceDiff`]), so that losses are noticed and repaired like those of messages. A node that lacks changes of
//! another one reads its entries page by page ([`PresencePage`]).
//!
//! MQTT groups that share messages span all nodes: each node sends the others its number of members of each group
//! ([`GroupDiff`]), the node where a message is published chooses the node that passes it to a member, and a node
//! that has no member any more passes it on ([`GroupMessage`]).
//!
//! An MQTT client identifier has one connection in the cluster: a node notifies the others of connecting clients
//! ([`ClientConnect`]), and they end their earlier connections. A [`LogicalClock`] says which one is earlier.
//!
//! Another process can continue as the same node ([`Handover`]): others notice only a connection that broke.
//!
//! [`Node`] is all of it. This crate has no socket, clock, thread or randomness, so that a simulation of several
//! nodes and a NATS that loses connections repeats by its seed.

#![forbid(unsafe_code)]
#![warn(clippy::match_wildcard_for_single_variants, clippy::wildcard_enum_match_arm)]

mod entries;
mod groups;
mod incoming;
mod interest;
mod logical_clock;
mod node;
mod output;
mod packet;
mod peer;
mod replay;
#[cfg(test)]
mod simulation;
mod stream;
mod subject;

pub use groups::GroupMembers;
pub use interest::Interest;
pub use logical_clock::LogicalClock;
pub use node::{
    Description, HELLO_US, Handover, HandoverError, Node, PRESENCE_PACKET_BYTES, PRESENCE_US,
    Record, SILENT_US, Settings,
};
pub use output::{Counts, Output, Target, TooLarge};
pub use packet::{
    Call, CallReply, ClientConnect, GroupDiff, GroupMessage, GroupsPage, GroupsRequest, Head,
    HeadsReply, HeadsRequest, Hello, Message, MqttEvent, Packet, PacketError, PresenceDiff,
    PresencePage, PresenceRequest, ReplayReply, ReplayRequest, ReplayedRange, RequestedRange,
};
pub use peer::PeerState;
pub use replay::{MessagesFrom, RetainedMessage};
pub use stream::{Stream, number_of};
pub use subject::Subjects;
