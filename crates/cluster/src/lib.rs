//! What the nodes of a cluster send each other, without I/O: packets and a time go in, outputs come out.
//!
//! NATS stands between the nodes. It delivers at most once: a message that is under way while a connection breaks is
//! lost, and subjects may overtake each other. So messages are numbered, and nodes ask each other for what is missing.
//!
//! - A topic belongs to a [`Stream`], by the hash of its name. A node subscribes to the streams of the topics that
//!   have members there ([`Interest`]), and gets some messages of other topics along, which it drops.
//! - Each node numbers what it sends to a stream: 1, 2, 3. So each message of a topic says which one came before it.
//!   The node retains the newest messages of all streams, up to a number of bytes ([`Settings::replay_bytes_max`]).
//! - A node that misses a number requests it, and delivers what came behind it afterwards: no message comes twice, and
//!   none before an older one. Where the sender does not have it any more, the node reports a gap ([`Output::Gap`]).
//! - Once a second a node sends a [`Hello`] with the newest numbers of the streams that changed, so that a loss at the
//!   end of a stream is noticed, too. A node that sends none for [`SILENT_US`] is gone.
//! - A stream whose interest has just begun starts at the message that was published when it began: the
//!   subscription takes a round trip to count, and the node requests what was sent meanwhile.
//!
//! Nodes share who is present in the same way: each owns its entries, and publishes what changes of them to a stream of
//! its own ([`PresenceDiff`]), so that losses are noticed and repaired like those of messages. A node that has not all
//! changes of another one reads its entries page by page ([`PresencePage`]).
//!
//! Groups of MQTT that share messages go over all nodes: each tells the others how many members it has of each
//! ([`GroupDiff`]), the node where a message is published chooses the node that gives it to a member, and a node that has
//! no member any more passes it on ([`GroupMessage`]).
//!
//! A client identifier of MQTT has one connection in the cluster: a node tells the others which clients connect
//! ([`ClientConnect`]), and they end earlier connections of theirs. A [`LogicalClock`] says which one is earlier.
//!
//! Another process can go on as the same node ([`Handover`]): others notice nothing but a connection that broke.
//!
//! [`Node`] is all of it. Nothing here knows a socket, a clock, a thread or randomness, so that a simulation of several
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
