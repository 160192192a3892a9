//! The groups that share messages, with their numbers of members: those of this node, as it reports them to others,
//! and those of another one.
//!
//! A node numbers the changes of its groups: 1, 2, 3. The changes come in order ([`crate::Stream::MQTT`]). A node
//! that lacks some of them requests all groups of the other one, in pages, which say up to which change they are
//! complete. Changes that come meanwhile wait.

use std::collections::BTreeMap;

use crate::{GroupDiff, GroupsPage};

/// Groups of one node that others know, at most. Only the node itself knows further ones.
pub(crate) const GROUPS_MAX: usize = 16_384;

/// How long the node waits for the next page of another one's groups before it requests all of them once more, in
/// microseconds.
const REPLY_US: u64 = 1_000_000;

/// Diffs that may wait for the groups of a node. Beyond it, the node requests the groups anew.
const WAITING_MAX: usize = 256;

/// A group, and its number of members.
pub type GroupMembers = (String, u32);

/// Groups with members at this node, as it reports them to others.
#[derive(Default)]
pub(crate) struct OwnGroups {
    /// The number of the newest diff.
    pub number: u64,
    members: BTreeMap<String, u32>,
}

impl OwnGroups {
    /// Applies changes. Returns those that are reported to others.
    pub fn change(&mut self, changes: Vec<GroupMembers>) -> Vec<GroupMembers> {
        let mut reported = Vec::with_capacity(changes.len());
        for (group, members) in changes {
            let is_known = self.members.contains_key(&group);
            if members == 0 {
                if self.members.remove(&group).is_some() {
                    reported.push((group, 0));
                }
            } else if is_known || self.members.len() < GROUPS_MAX {
                self.members.insert(group.clone(), members);
                reported.push((group, members));
            }
        }
        reported
    }

    /// Replaces all groups.
    pub fn replace(&mut self, groups: Vec<GroupMembers>) {
        self.members = groups.into_iter().take(GROUPS_MAX).collect();
    }

    /// Returns all groups, in parts of about `bytes_max` bytes: at least one part.
    pub fn parts(&self, bytes_max: usize) -> Vec<Vec<GroupMembers>> {
        let all = self.members.iter().map(|(group, members)| (group.clone(), *members));
        parts(all.collect(), bytes_max)
    }
}

/// Splits groups into parts of about `bytes_max` bytes: at least one part.
pub(crate) fn parts(groups: Vec<GroupMembers>, bytes_max: usize) -> Vec<Vec<GroupMembers>> {
    let (mut parts, mut bytes) = (vec![Vec::new()], 0);
    for group in groups {
        let group_bytes = group.0.len() + 16;
        bytes += group_bytes;
        if bytes > bytes_max && parts.last().is_some_and(|part| !part.is_empty()) {
            parts.push(Vec::new());
            bytes = group_bytes;
        }
        parts.last_mut().into_iter().for_each(|part| part.push(group.clone()));
    }
    parts
}

/// The known groups of another node.
#[derive(Default)]
pub(crate) struct PeerGroups {
    phase: Phase,
    members: BTreeMap<String, u32>,
    /// The id of the newest request.
    request: u64,
}

#[derive(Default)]
enum Phase {
    /// The node is down, or has no groups.
    #[default]
    Unknown,
    /// All groups are requested, or must be.
    Requested(Request),
    /// All groups are known, up to the diff of this number.
    Known(u64),
}

/// A request for all groups.
#[derive(Default)]
struct Request {
    /// When it is sent once more, in microseconds; `None` if it must be sent now.
    due_us: Option<u64>,
    /// The groups of the reply so far, and the number of its parts.
    groups: Vec<GroupMembers>,
    parts: u32,
    /// Diffs that came meanwhile.
    waiting: Vec<GroupDiff>,
}

impl PeerGroups {
    /// Returns true if all groups are known.
    pub fn is_whole(&self) -> bool {
        matches!(self.phase, Phase::Known(_))
    }

    /// Returns the number of groups with members there.
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// Handles that the node is up, and has groups.
    pub fn on_up(&mut self) {
        if matches!(self.phase, Phase::Unknown) {
            self.request_all();
        }
    }

    /// Handles that changes are lost, or may be.
    pub fn on_gap(&mut self) {
        if !matches!(self.phase, Phase::Unknown) {
            self.request_all();
        }
    }

    fn request_all(&mut self) {
        self.phase = Phase::Requested(Request::default());
    }

    /// Lets time pass: a request without reply is sent once more.
    pub fn on_time(&mut self, now_us: u64) {
        if let Phase::Requested(request) = &mut self.phase {
            request.due_us.take_if(|due_us| *due_us <= now_us);
        }
    }

    /// Returns the id of a request to send now.
    pub fn poll_request(&mut self, now_us: u64) -> Option<u64> {
        let Phase::Requested(request) = &mut self.phase else { return None };
        if request.due_us.is_some() {
            return None;
        }
        request.due_us = Some(now_us.saturating_add(REPLY_US));
        (request.groups, request.parts) = (Vec::new(), 0);
        self.request += 1;
        Some(self.request)
    }

    /// Returns when the next request is due.
    pub fn due_us(&self) -> Option<u64> {
        match &self.phase {
            Phase::Requested(request) => request.due_us,
            Phase::Unknown | Phase::Known(_) => None,
        }
    }

    /// Handles that the shell has read no packets for so long: replies have waited.
    pub fn on_resumed(&mut self, paused_us: u64) {
        if let Phase::Requested(Request { due_us: Some(due_us), .. }) = &mut self.phase {
            *due_us = due_us.saturating_add(paused_us);
        }
    }

    /// Handles a diff. Returns the changes.
    pub fn on_diff(&mut self, diff: GroupDiff) -> Vec<GroupMembers> {
        match &mut self.phase {
            Phase::Unknown => Vec::new(),
            Phase::Requested(request) if request.waiting.len() < WAITING_MAX && !diff.is_reset => {
                request.waiting.push(diff);
                Vec::new()
            }
            Phase::Requested(_) => {
                self.request_all();
                Vec::new()
            }
            Phase::Known(number) if diff.number <= *number => Vec::new(),
            Phase::Known(number) if diff.number == number.saturating_add(1) && !diff.is_reset => {
                *number = diff.number;
                self.apply(diff.changes)
            }
            Phase::Known(_) => {
                self.request_all();
                Vec::new()
            }
        }
    }

    /// Handles a page. Returns the changes.
    pub fn on_page(&mut self, page: GroupsPage, now_us: u64) -> Vec<GroupMembers> {
        let Phase::Requested(request) = &mut self.phase else { return Vec::new() };
        let is_requested = request.due_us.is_some() && page.id == self.request;
        if !is_requested || page.part != request.parts {
            return Vec::new();
        }
        request.parts += 1;
        // Many pages take long: the time counts from the last one.
        request.due_us = Some(now_us.saturating_add(REPLY_US));
        request.groups.extend(page.groups);
        request.groups.truncate(GROUPS_MAX);
        if !page.is_last {
            return Vec::new();
        }
        let Request { groups, waiting, .. } = std::mem::take(request);
        let new: BTreeMap<String, u32> = groups.into_iter().collect();
        let gone = self.members.keys().filter(|group| !new.contains_key(*group));
        let mut changes: Vec<GroupMembers> = gone.map(|group| (group.clone(), 0)).collect();
        let is_new = |(group, members): &(&String, &u32)| self.members.get(*group) != Some(members);
        changes.extend(new.iter().filter(is_new).map(|(group, it)| (group.clone(), *it)));
        self.members = new;
        self.phase = Phase::Known(page.number);
        for diff in waiting {
            changes.extend(self.on_diff(diff));
        }
        changes
    }

    /// Applies changes, except for groups beyond [`GROUPS_MAX`]. Returns the applied ones.
    fn apply(&mut self, mut changes: Vec<GroupMembers>) -> Vec<GroupMembers> {
        let known = &mut self.members;
        changes.retain(|(group, members)| match members {
            0 => known.remove(group).is_some(),
            _ if known.contains_key(group) || known.len() < GROUPS_MAX => {
                known.insert(group.clone(), *members);
                true
            }
            _ => false,
        });
        changes
    }

    /// Handles that the node is gone: it has no members any more. Returns the changes.
    pub fn on_down(&mut self) -> Vec<GroupMembers> {
        self.phase = Phase::Unknown;
        std::mem::take(&mut self.members).into_keys().map(|group| (group, 0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &str, members: u32) -> GroupMembers {
        (name.into(), members)
    }

    fn diff(number: u64, changes: &[(&str, u32)]) -> GroupDiff {
        let changes = changes.iter().map(|(name, members)| group(name, *members)).collect();
        GroupDiff { number, changes, is_reset: false }
    }

    fn page(id: u64, number: u64, part: u32, is_last: bool, groups: &[(&str, u32)]) -> GroupsPage {
        let groups = groups.iter().map(|(name, members)| group(name, *members)).collect();
        GroupsPage { node: 2, id, number, part, is_last, groups }
    }

    #[test]
    fn changes_that_come_before_the_pages_count_once() {
        let mut peer = PeerGroups::default();
        assert!(peer.on_diff(diff(1, &[("a", 1)])).is_empty(), "nothing is requested");
        peer.on_up();
        assert_eq!((peer.poll_request(5), peer.poll_request(6)), (Some(1), None));
        assert!(peer.on_diff(diff(2, &[("a", 2)])).is_empty());
        assert!(peer.on_diff(diff(3, &[("b", 1)])).is_empty());
        assert!(peer.on_page(page(1, 2, 1, true, &[]), 0).is_empty(), "a part is missing");
        assert!(peer.on_page(page(1, 2, 0, false, &[("a", 2)]), 0).is_empty());
        let changes = peer.on_page(page(1, 2, 1, true, &[("c", 1)]), 0);
        assert_eq!(changes, [group("a", 2), group("c", 1), group("b", 1)]);
        assert_eq!(peer.on_diff(diff(4, &[("a", 0)])), [group("a", 0)]);
        // A diff is lost.
        assert!(peer.on_diff(diff(6, &[("x", 1)])).is_empty() && !peer.is_whole());
        assert_eq!((peer.due_us(), peer.poll_request(9)), (None, Some(2)));
        assert!(peer.on_page(page(1, 4, 0, true, &[]), 0).is_empty(), "it is the reply of before");
        let changes = peer.on_page(page(2, 6, 0, true, &[("c", 2)]), 0);
        assert_eq!(changes, [group("b", 0), group("c", 2)]);
        assert_eq!(peer.on_down(), [group("c", 0)]);
        assert!(peer.on_down().is_empty() && peer.due_us().is_none());
    }

    #[test]
    fn a_reply_that_does_not_come_is_requested_again() {
        let mut peer = PeerGroups::default();
        peer.on_up();
        assert_eq!(peer.poll_request(0), Some(1));
        // Its time counts from the last page that came in order.
        assert!(peer.on_page(page(1, 0, 0, false, &[("a", 1)]), 400).is_empty());
        assert!(peer.on_page(page(1, 0, 2, false, &[("c", 1)]), 500).is_empty());
        let due_us = REPLY_US + 400;
        peer.on_time(due_us - 1);
        assert_eq!((peer.poll_request(due_us), peer.due_us()), (None, Some(due_us)));
        peer.on_time(due_us);
        assert_eq!(peer.poll_request(due_us), Some(2));
        let changes = peer.on_page(page(2, 0, 0, true, &[("b", 1)]), due_us);
        assert_eq!(changes, [group("b", 1)]);
        // Another process goes on as the node, or too many diffs have waited.
        let reset = GroupDiff { number: 1, changes: Vec::new(), is_reset: true };
        assert!(peer.on_diff(reset).is_empty() && peer.poll_request(0) == Some(3));
        for number in 0..=WAITING_MAX as u64 {
            assert!(peer.on_diff(diff(number, &[])).is_empty());
        }
        assert_eq!(peer.poll_request(0), Some(4));
    }

    #[test]
    fn groups_beyond_the_limit_are_known_to_their_node_alone() {
        let mut own = OwnGroups::default();
        let all = (0..GROUPS_MAX + 1).map(|at| group(&format!("{at:06}"), 1)).collect();
        assert_eq!(own.change(all).len(), GROUPS_MAX);
        let beyond = format!("{GROUPS_MAX:06}");
        assert!(own.change(vec![group(&beyond, 2), group(&beyond, 0)]).is_empty());
        let changes = vec![group("000000", 0), group(&beyond, 1), group("000001", 5)];
        assert_eq!(own.change(changes.clone()), changes);
        let parts = own.parts(100);
        assert!(parts.iter().all(|part| part.len() == 4));
        assert_eq!(parts.concat().len(), GROUPS_MAX);
        own.replace(vec![group("a", 1)]);
        assert_eq!(own.parts(0), [[group("a", 1)]]);
        assert_eq!(OwnGroups::default().parts(9), [[]]);
    }
}
