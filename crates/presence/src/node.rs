//! Nodes, and the refs that they draw.

use std::fmt;

use model::NodeId;

/// The `phx_ref` of a meta, which names one entry among those of all nodes. The entries of a node sort by age.
///
/// Its text is the eight digits of its node and then its number in hexadecimal: 9 bytes at first, and 16 after four
/// billion refs. To clients it is opaque.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ref {
    node: NodeId,
    number: u64,
}

impl Ref {
    /// Creates a ref of a node, which uses each number once.
    pub fn new(node: NodeId, number: u64) -> Ref {
        Ref { node, number }
    }

    /// Returns the node that drew it.
    pub fn node(self) -> NodeId {
        self.node
    }

    /// Returns its number among those of its node.
    pub fn number(self) -> u64 {
        self.number
    }

    /// Returns the ref that the node draws next.
    pub(crate) fn next(self) -> Ref {
        Ref { number: self.number.wrapping_add(1), ..self }
    }

    /// Returns the length of its text, in bytes.
    pub(crate) fn text_bytes(self) -> usize {
        8 + self.number.checked_ilog2().unwrap_or(0) as usize / 4 + 1
    }
}

impl fmt::Display for Ref {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}{:x}", self.node, self.number)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_ref_begins_with_its_node_and_stays_short() {
        let of = |node, number| Ref::new(NodeId(node), number);
        assert_eq!(of(0x5f3a91c2, 0).to_string(), "5f3a91c20");
        assert_eq!(of(7, 0x1f).to_string(), "000000071f");
        assert_eq!(of(u32::MAX, u32::MAX.into()).to_string(), "ffffffffffffffff");
        assert_eq!(of(7, 1).node(), NodeId(7));
        assert!(of(7, 9) < of(7, 10) && of(7, u64::MAX) < of(8, 0));
        for number in (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, u64::MAX >> bit]) {
            let of = of(1, number);
            assert_eq!(of.text_bytes(), of.to_string().len(), "{of}");
        }
    }

    #[test]
    fn refs_of_two_nodes_never_collide() {
        let nodes = [0, 1, 0x10, 0x1000_0000, 0x1111_1111, u32::MAX];
        let numbers = [0, 1, 0x10, 0x11, 0x111, 0x1_0000_0000, u64::MAX];
        let all = || nodes.iter().flat_map(|node| numbers.map(|n| Ref::new(NodeId(*node), n)));
        assert_eq!(all().collect::<BTreeSet<_>>().len(), nodes.len() * numbers.len());
        let texts: BTreeSet<String> = all().map(|of| of.to_string()).collect();
        assert_eq!(texts.len(), nodes.len() * numbers.len());
    }
}
