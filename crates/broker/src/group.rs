//! Notices between nodes about groups, and messages that one node passes to another one's member.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::{Envelope, Name, NodeId};

/// Groups whose changes are recorded one by one, at most; beyond it, all groups are listed anew.
const CHANGED_MAX: usize = 65_536;

/// Groups whose members here have changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct GroupChanges {
    /// True if these are all groups with members here. Others have none.
    pub is_whole: bool,
    /// The number of members of each.
    pub groups: Vec<(usize, Name)>,
}

/// A message that another node passes to a member of a group.
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
    /// True if only changes are recorded.
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

    /// Returns the names, or true if all groups must be listed.
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
