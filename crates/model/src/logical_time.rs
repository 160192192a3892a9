//! The order of events at several nodes, whose clocks differ.

use crate::NodeId;

/// The time of an event in a cluster, by the logical clock of the node where it happened.
///
/// All nodes agree which of two events is later: the one with the larger number, and of equal numbers the one at
/// the node with the larger id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogicalTime {
    /// The time of the node's clock.
    pub number: u64,
    /// The node.
    pub node: NodeId,
}
