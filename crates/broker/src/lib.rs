//! The broker: a published message gets its position here, and goes to every inbox with members for
//! it.
//!
//! [`Local`] joins the shards of one process. The broker knows nothing about connections, and of
//! topics with history only the log that they go to: [`HistoryLog`].

#![forbid(unsafe_code)]
#![warn(clippy::match_wildcard_for_single_variants, clippy::wildcard_enum_match_arm)]

mod entry;
mod gap;
mod group;
mod handover;
mod inbox;
mod local;
mod log;
mod publish;
mod recent;
mod relay;
mod router;

use std::sync::Arc;

use model::{Envelope, Epoch, FilterKey, Name, NodeId, Position, Publication};

pub use gap::Gap;
pub use group::{GroupChanges, GroupMessage};
pub use handover::RecentPart;
pub use inbox::{Delivery, DeliveryObserver, Inbox, Passed, Receipt, ShardDelivery};
pub use local::{Local, SECRET_BYTES, epoch};
pub use log::{Append, HistoryLog, NoHistory};
pub use publish::{Done, Options, Publish, PublishError, Published, StoredRecord};
pub use recent::{Activity, Latest, Limits, Recent, TopicActivity, Window};
pub use relay::Relay;
pub use router::{Group, Retain, Router, Routes};

/// Puts messages in order and carries them to every inbox that wants them.
pub trait Broker: Send + Sync {
    /// Gives the publication its position and hands it to every interested inbox before it returns;
    /// with a store, a message of a topic with history is handed on when it is on disk. `receipt`
    /// gets the number of members that the message had on this node.
    fn publish(
        &self,
        publication: Publication,
        receipt: Option<Receipt>,
    ) -> Result<Position, PublishError>;

    /// Publishes as the options say. `done` is called once, from any thread, and must not block: at
    /// once, but where the topic is durable not before the message is on disk.
    fn submit(&self, publish: Publish, receipt: Option<Receipt>, done: Done);

    /// What was published to any of the topics after `after`, as far as the recent window
    /// reaches, together with the position that was the newest of all when the scan began: every
    /// message up to it has been handed to the inboxes, and none after it is among those found.
    /// Publishers get their turns while it searches.
    fn recent(&self, topics: &[(u64, &str)], after: Option<Position>) -> Recent;

    /// The newest messages of a topic (hash and name), or of all of them, newest first: at most
    /// `limit`, as far as the recent window reaches and among its newest 100,000. For operators:
    /// publishers get their turns while it searches.
    fn latest(&self, topic: Option<(u64, &str)>, limit: usize) -> Latest;

    /// How often each topic occurs in the last `seconds_max` seconds, as far as the recent window
    /// reaches back and among its newest 100,000 messages. Publishers get their turns meanwhile.
    fn activity(&self, seconds_max: u64) -> Activity;

    /// The hash of a topic's name that all indexes of this node share. It is keyed, so that a
    /// client that chooses names can't make them collide.
    fn hash(&self, topic: &str) -> u64;

    /// The epoch of the log that topics without history share.
    fn epoch(&self) -> Epoch;

    /// Whether other nodes publish, too: then [`Broker::enter_topic`] and [`Broker::leave_topic`] are to be called.
    fn has_nodes(&self) -> bool {
        false
    }

    /// A shard has its first member of a topic.
    fn enter_topic(&self, _topic: &str) {}

    /// A shard has no member of a topic any more.
    fn leave_topic(&self, _topic: &str) {}

    /// A connection of a shard has a filter of topics from now on, by its name in the hub
    /// ([`model::name::filter`]), whose hash this is.
    fn enter_filter(&self, shard: u16, hash: u64, name: &str);

    /// A connection of a shard has a filter no longer.
    fn leave_filter(&self, shard: u16, name: &str);

    /// All connections of a shard have no filter any more.
    fn leave_filters(&self, shard: u16);

    /// Gives a message to a shard with members of a group that was asked less often than others. False where
    /// all were asked.
    fn pass_to_group(&self, message: &Arc<Envelope>, key: &Arc<FilterKey>, passed: Passed) -> bool;

    /// Gives a message to another node with members of a group, but to none of `passed`. False where there is none.
    fn pass_to_node(&self, _message: &Arc<Envelope>, _group: &Name, _passed: &[NodeId]) -> bool {
        false
    }

    /// The number of the connect of an MQTT client now, by the time of day in microseconds since 1970: it is larger than those of all
    /// connects in the cluster of which this node knows. `None` without other nodes.
    fn connect_number(&self, _unix_us: u64) -> Option<u64> {
        None
    }

    /// Tells other nodes of the connect of an MQTT client whose session has this key: its earlier connections there end, and where it
    /// `is_clean` its sessions, too.
    fn client_connected(&self, _key: &Name, _number: u64, _is_clean: bool) {}
}
