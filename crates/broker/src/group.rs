//! What nodes tell each other of groups, and messages that pass from a node to another one's member.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::{Envelope, Name, NodeId};

/// The most groups whose changes are noted one by one; beyond, all groups are listed anew.
const CHANGED_MAX: usize = 65_536;

/// Groups whose members here have changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct GroupChanges {
    /// These are all groups with members here. Others have none.
    pub is_whole: bool,
    /// How many members each has.
    pub groups: Vec<(usize, Name)>,
}

/// A message that another node is to give to a member of a group.
#[derive(Clone, Debug)]
pub struct GroupMessage {
    /// The message.
    pub message: Arc<Envelope>,
    /// The group, by the name of its filter.
    pub group: Name,
    /// The node.
    pub to: NodeId,
    /// The nodes that the message has passed, this one included. None of them gets it again.
    pub passed: Vec<NodeId>,
}

/// The names of groups that have changed. At first all are new.
#[derive(Default)]
pub(crate) struct ChangedGroups {
    names: BTreeSet<Name>,
    /// The changes alone are known.
    is_part: bool,
}

impl ChangedGroups {
    pub fn insert(&mut self, name: &Name) {
        if !self.is_part || self.names.contains(name) {
            return;
        }
        if self.names.len() >= CHANGED_MAX {
            *self = ChangedGroups::default();
            return;
        }
        self.names.insert(name.clone());
    }

    /// The names, or true where all groups are to be listed.
    pub fn take(&mut self) -> (BTreeSet<Name>, bool) {
        let is_whole = !std::mem::replace(&mut self.is_part, true);
        (std::mem::take(&mut self.names), is_whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_is_noted_once_and_too_many_changes_are_all_groups() {
        let mut changed = ChangedGroups::default();
        changed.insert(&"a".into());
        assert_eq!(changed.take(), (BTreeSet::new(), true));
        ["a", "b", "a"].into_iter().for_each(|name| changed.insert(&name.into()));
        assert_eq!(changed.take(), (["a".into(), "b".into()].into(), false));
        assert_eq!(changed.take(), (BTreeSet::new(), false));
        (0..=CHANGED_MAX).for_each(|at| changed.insert(&format!("{at}").as_str().into()));
        assert_eq!(changed.take(), (BTreeSet::new(), true));
    }
}
