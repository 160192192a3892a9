//! A filter of connections, and how a group chooses the member that gets a message.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use model::{FilterKey, NodeId};

/// A filter of connections.
pub(crate) struct Entry {
    pub key: Arc<FilterKey>,
    /// True for a group: one member of all gets a message, and not each.
    pub shared: bool,
    /// The number of connections of each shard.
    members: Box<[AtomicUsize]>,
    /// For a group, the number of connections of each other node.
    nodes: RwLock<BTreeMap<NodeId, usize>>,
    /// The number of messages that the group has had.
    turn: AtomicUsize,
}

/// The next destination of a message on its way to a member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chosen {
    /// A shard of this node.
    Shard(usize),
    /// Another node.
    Node(NodeId),
}

impl Entry {
    pub fn new(key: FilterKey, shared: bool, shards: usize) -> Self {
        Entry {
            key: Arc::new(key),
            shared,
            members: (0..shards).map(|_| AtomicUsize::new(0)).collect(),
            nodes: RwLock::default(),
            turn: AtomicUsize::new(0),
        }
    }

    /// Adds a connection of a shard.
    pub fn enter(&self, shard: u16) {
        if let Some(members) = self.members.get(usize::from(shard)) {
            members.fetch_add(1, Relaxed);
        }
    }

    /// Removes a connection of a shard. All changes are made under one lock.
    pub fn leave(&self, shard: u16) {
        if let Some(members) = self.members.get(usize::from(shard)) {
            members.store(members.load(Relaxed).saturating_sub(1), Relaxed);
        }
    }

    /// Sets the number of connections of a shard.
    pub fn set_members(&self, shard: u16, count: usize) {
        if let Some(members) = self.members.get(usize::from(shard)) {
            members.store(count, Relaxed);
        }
    }

    /// Returns the number of connections of a shard.
    pub fn members_of(&self, shard: u16) -> usize {
        self.members.get(usize::from(shard)).map_or(0, |members| members.load(Relaxed))
    }

    /// Returns the number of connections of this node.
    pub fn members(&self) -> usize {
        self.members.iter().map(|members| members.load(Relaxed)).sum()
    }

    /// Sets the number of connections of another node.
    pub fn set_node(&self, node: NodeId, members: usize) {
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        match members {
            0 => drop(nodes.remove(&node)),
            members => drop(nodes.insert(node, members)),
        }
    }

    /// Returns true if no node has a connection with the filter any more.
    pub fn is_unused(&self) -> bool {
        self.members() == 0 && self.nodes().is_empty()
    }

    /// Chooses the shard whose member gets the next message of a group, of those that `may` allows: each as often as
    /// it has members.
    pub fn choose_shard(&self, may: impl Fn(u16) -> bool) -> Option<usize> {
        let members = |(shard, members): (usize, &AtomicUsize)| match u16::try_from(shard) {
            Ok(shard) if may(shard) => members.load(Relaxed),
            _ => 0,
        };
        let all: usize = self.members.iter().enumerate().map(members).sum();
        let turn = self.turn.fetch_add(1, Relaxed).checked_rem(all)?;
        at_turn(self.members.iter().enumerate().map(members), turn)
    }

    /// Chooses the node whose member gets the next message of a group, of those that `may` allows: each as often as
    /// it has members.
    pub fn choose_node(&self, may: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let nodes = self.nodes();
        let members = |(node, members): (&NodeId, &usize)| if may(*node) { *members } else { 0 };
        let all: usize = nodes.iter().map(members).sum();
        let turn = self.turn.fetch_add(1, Relaxed).checked_rem(all)?;
        let at = at_turn(nodes.iter().map(members), turn)?;
        nodes.keys().nth(at).copied()
    }

    /// Chooses the shard or node that passes the next message of a group to a member, of all nodes. While others
    /// can't be reached, a member of this node gets it, if there is one.
    pub fn choose(&self, is_alone: bool) -> Option<Chosen> {
        let here = self.members();
        if is_alone && here > 0 {
            return self.choose_shard(|_| true).map(Chosen::Shard);
        }
        let nodes = self.nodes();
        if nodes.is_empty() {
            return self.choose_shard(|_| true).map(Chosen::Shard);
        }
        let all = here.saturating_add(nodes.values().sum());
        let turn = self.turn.fetch_add(1, Relaxed).checked_rem(all)?;
        match turn.checked_sub(here) {
            None => {
                let members = self.members.iter().map(|members| members.load(Relaxed));
                // A member may have left since: a shard without one passes the message on.
                Some(Chosen::Shard(at_turn(members, turn).unwrap_or(0)))
            }
            Some(turn) => {
                let at = at_turn(nodes.values().copied(), turn)?;
                nodes.keys().nth(at).copied().map(Chosen::Node)
            }
        }
    }

    /// Returns true if a member of this node gets a message for which its own node has chosen none. All nodes that
    /// know the same members come to the same result, by a number that the message has at each of them.
    pub fn is_chosen(&self, own: NodeId, number: u64) -> bool {
        let here = self.members();
        let mut nodes = self.nodes().clone();
        nodes.insert(own, here);
        let all: u64 = nodes.values().map(|members| *members as u64).sum();
        let turn = number.checked_rem(all).and_then(|turn| usize::try_from(turn).ok());
        let at = turn.and_then(|turn| at_turn(nodes.values().copied(), turn));
        at.and_then(|at| nodes.keys().nth(at)) == Some(&own)
    }

    fn nodes(&self) -> RwLockReadGuard<'_, BTreeMap<NodeId, usize>> {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the index of the owner of the member with this number; `members` are the numbers of members of each owner.
fn at_turn(mut members: impl Iterator<Item = usize>, mut turn: usize) -> Option<usize> {
    members.position(|here| {
        let is_here = turn < here;
        turn = turn.wrapping_sub(here);
        is_here
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(shards: &[usize], nodes: &[(u32, usize)]) -> Entry {
        let key = FilterKey { hash: 1, name: "g".into() };
        let entry = Entry::new(key, true, shards.len());
        for (shard, members) in shards.iter().enumerate() {
            entry.set_members(u16::try_from(shard).unwrap(), *members);
        }
        nodes.iter().for_each(|(node, members)| entry.set_node(NodeId(*node), *members));
        entry
    }

    #[test]
    fn each_shard_and_node_is_chosen_as_often_as_it_has_members() {
        let entry = entry(&[1, 0, 2], &[(7, 3), (9, 1)]);
        let mut chosen: Vec<String> =
            (0..14).map(|_| format!("{:?}", entry.choose(false).unwrap())).collect();
        chosen.sort();
        let count = |what: Chosen| chosen.iter().filter(|it| **it == format!("{what:?}")).count();
        let nodes = [7, 9].map(|node| count(Chosen::Node(NodeId(node))));
        assert_eq!((count(Chosen::Shard(0)), count(Chosen::Shard(2)), nodes), (2, 4, [6, 2]));
        // A node that can't reach others uses its own members.
        assert!((0..9).all(|_| matches!(entry.choose(true), Some(Chosen::Shard(0 | 2)))));
        [0, 2].into_iter().for_each(|shard| entry.set_members(shard, 0));
        assert!((0..9).all(|_| matches!(entry.choose(true), Some(Chosen::Node(_)))));
        assert_eq!(entry.choose_node(|node| node != NodeId(7)), Some(NodeId(9)));
        assert_eq!(entry.choose_node(|_| false), None);
        [7, 9].into_iter().for_each(|node| entry.set_node(NodeId(node), 0));
        assert!(entry.is_unused() && entry.choose(false).is_none());
    }

    #[test]
    fn nodes_that_know_the_same_members_choose_the_same_one() {
        let counts = [(3, 2), (5, 1), (8, 4)];
        let entries = counts.map(|(own, here)| {
            let others: Vec<_> = counts.into_iter().filter(|(node, _)| *node != own).collect();
            (NodeId(own), entry(&[here], &others))
        });
        let mut times = [0; 3];
        for number in 0..70 {
            let chosen = entries.each_ref().map(|(own, entry)| entry.is_chosen(*own, number));
            assert_eq!(chosen.iter().filter(|it| **it).count(), 1, "{number}");
            (0..3).for_each(|at| times[at] += usize::from(chosen[at]));
        }
        assert_eq!(times, [20, 10, 40]);
        assert!(!entry(&[0], &[]).is_chosen(NodeId(1), 5));
    }
}
