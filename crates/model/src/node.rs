//! A node's id.

use std::fmt;

/// A node: one process that serves connections, from its start to its end. Written as 8 hexadecimal digits.
///
/// The process draws it at random at each start: ids and refs of two nodes, or of one before and after
/// a restart, must not be the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}
