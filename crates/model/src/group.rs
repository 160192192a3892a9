//! Groups that share messages, over the nodes of a cluster.

use crate::{Name, NodeId};

/// The node that delivers a message to one of its members of a group. The node where the message was published
/// chooses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupChoice {
    /// The node.
    pub node: NodeId,
    /// The group, by the name of its filter beside those of topics: see [`crate::name::filter`].
    pub group: Name,
}
