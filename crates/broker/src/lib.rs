//! The broker gives a published message its position, and passes it to every inbox with members for it.
//!
//! [`Local`] connects the shards of one process. The broker knows nothing about connections; messages of topics with
//! history go to a log: [`HistoryLog`].

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

/// Orders messages and passes them to every inbox that wants them.
pub trait Broker: Send + Sync {
    /// Gives the publication its position and passes it to every interested inbox before it returns; with a store, it
    /// passes a message of a topic with history on when it is on disk. `receipt` gets the number of members that the
    /// message had on this node.
    fn publish(
        &self,
        publication: Publication,
        receipt: Option<Receipt>,
    ) -> Result<Position, PublishError>;

    /// Publishes by the options. `done` is called once, from any thread, and must not block: at once, but if the
    /// topic is durable not before the message is on disk.
    fn submit(&self, publish: Publish, receipt: Option<Receipt>, done: Done);

    /// Returns the messages of the topics after `after`, as far as the recent window reaches, and the newest position
    /// of all when the scan began: every message up to it has been passed to the inboxes, and no found message is
    /// after it. Publishers may publish while it searches.
    fn recent(&self, topics: &[(u64, &str)], after: Option<Position>) -> Recent;

    /// Returns the newest messages of a topic (hash and name), or of all topics, newest first: at most `limit`, as
    /// far as the recent window reaches and among its newest 100,000. For operators: publishers may publish while it
    /// searches.
    fn latest(&self, topic: Option<(u64, &str)>, limit: usize) -> Latest;

    /// Returns how often each topic occurs in the last `seconds_max` seconds, as far as the recent window reaches
    /// back and among its newest 100,000 messages. Publishers may publish meanwhile.
    fn activity(&self, seconds_max: u64) -> Activity;

    /// Returns the hash of a topic's name that all indexes of this node share. It is keyed, so that a client that
    /// chooses names can't make them collide.
    fn hash(&self, topic: &str) -> u64;

    /// Returns the epoch of the log that topics without history share.
    fn epoch(&self) -> Epoch;

    /// Returns true if there are other nodes: then shards must call [`Broker::enter_topic`] and
    /// [`Broker::leave_topic`].
    fn has_nodes(&self) -> bool {
        false
    }

    /// Adds a topic that has its first member on a shard.
    fn enter_topic(&self, _topic: &str) {}

    /// Removes a topic that has lost its last member on a shard.
    fn leave_topic(&self, _topic: &str) {}

    /// Adds a topic filter of a connection of a shard, by its name in the hub ([`model::name::filter`]) and that
    /// name's hash.
    fn enter_filter(&self, shard: u16, hash: u64, name: &str);

    /// Removes a filter of a connection of a shard.
    fn leave_filter(&self, shard: u16, name: &str);

    /// Removes all filters of a shard.
    fn leave_filters(&self, shard: u16);

    /// Passes a message to a shard with members of a group that was tried less often than others. Returns false if
    /// all were tried.
    fn pass_to_group(&self, message: &Arc<Envelope>, key: &Arc<FilterKey>, passed: Passed) -> bool;

    /// Passes a message to another node with members of a group, but to none of `passed`. Returns false if there is
    /// none.
    fn pass_to_node(&self, _message: &Arc<Envelope>, _group: &Name, _passed: &[NodeId]) -> bool {
        false
    }

    /// Returns the number of an MQTT client's connect at this time of day, in microseconds since 1970. It is larger
    /// than those of all connects in the cluster that this node knows. `None` without other nodes.
    fn connect_number(&self, _unix_us: u64) -> Option<u64> {
        None
    }

    /// Notifies other nodes of the connect of an MQTT client whose session has this key: its earlier connections
    /// there end, and if it `is_clean` its sessions, too.
    fn client_connected(&self, _key: &Name, _number: u64, _is_clean: bool) {}
}
