//! The order of events at several nodes, whose clocks differ.

use crate::NodeId;

/// When something happened in a cluster, by the logical clock of the node where it happened.
///
/// Of two events all nodes know the same as the later one: the one with the larger number, and of equal numbers the one at
/// the node with the larger id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogicalTime {
    /// What the clock of the node said.
    pub number: u64,
    /// The node.
    pub node: NodeId,
}
