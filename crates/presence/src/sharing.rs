//! What the nodes of a cluster share of their entries, and which entries each of them has.

use std::collections::BTreeMap;
use std::sync::Arc;

use minicbor::{Decode, Encode};

use crate::NodeId;

/// Bytes of changes that wait to be taken. Beyond, all are dropped, and other nodes read the entries anew.
const PENDING_BYTES_MAX: usize = 64 << 20;

/// What a change takes in memory or in a packet beside its texts, in bytes, roughly.
const CHANGE_BYTES: usize = 48;

/// An entry as other nodes take it. It never changes: a connection that shows another meta has a new one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct SharedEntry {
    /// The number of its ref: its node gives each once, in ascending order.
    #[n(0)]
    pub number: u64,
    /// The topic.
    #[n(1)]
    pub topic: Box<str>,
    /// The user.
    #[n(2)]
    pub user: Box<str>,
    /// What the connection shows: the text of a JSON object; empty for `{}`.
    #[cbor(n(3), default)]
    pub meta: Box<str>,
}

/// A change of a node's entries: one that is gone, one that is new, or one in the place of another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Change {
    /// The number of the entry that is gone.
    #[n(0)]
    pub gone: Option<u64>,
    /// The entry that is new.
    #[n(1)]
    pub entry: Option<SharedEntry>,
}

/// What has changed of a node's own entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The changes, in an order in which no user is gone between two connections.
    pub list: Vec<Change>,
    /// False where changes were dropped, because no caller took them: other nodes must read the entries anew.
    pub is_whole: bool,
}

/// A node's entries whose numbers are in a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The first number of the range.
    pub from: u64,
    /// The number behind the range; `None` where it has no end.
    pub to: Option<u64>,
    /// The entries, in the order of their numbers.
    pub entries: Vec<SharedEntry>,
}

impl SharedEntry {
    /// What it takes in a packet, in bytes, at most.
    pub fn bytes(&self) -> usize {
        CHANGE_BYTES + self.topic.len() + self.user.len() + self.meta.len()
    }
}

impl Change {
    /// What it takes in a packet, in bytes, at most.
    pub fn bytes(&self) -> usize {
        CHANGE_BYTES + self.entry.as_ref().map_or(0, SharedEntry::bytes)
    }
}

impl Page {
    /// Whether a number is in the range.
    pub fn has(&self, number: u64) -> bool {
        number >= self.from && self.to.is_none_or(|to| number < to)
    }
}

/// Where an entry is.
#[derive(Clone)]
pub(crate) struct Located {
    pub topic: Arc<str>,
    pub user: Arc<str>,
    /// For an entry of another node: the topic was made for it.
    pub is_first: bool,
    /// For an entry of another node: what it takes in memory, in bytes, roughly.
    pub bytes: usize,
}

/// The entries of other nodes.
#[derive(Default)]
pub(crate) struct OtherEntries {
    by_node: BTreeMap<NodeId, BTreeMap<u64, Located>>,
    count: usize,
    bytes: usize,
}

impl OtherEntries {
    pub fn count(&self) -> usize {
        self.count
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn get(&self, node: NodeId, number: u64) -> Option<&Located> {
        self.by_node.get(&node)?.get(&number)
    }

    pub fn insert(&mut self, node: NodeId, number: u64, located: Located) {
        self.count += 1;
        self.bytes += located.bytes;
        self.by_node.entry(node).or_default().insert(number, located);
    }

    pub fn remove(&mut self, node: NodeId, number: u64) -> Option<Located> {
        let entries = self.by_node.get_mut(&node)?;
        let located = entries.remove(&number)?;
        if entries.is_empty() {
            self.by_node.remove(&node);
        }
        self.count -= 1;
        self.bytes -= located.bytes;
        Some(located)
    }

    /// The nodes that have entries.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.by_node.keys().copied()
    }

    /// The numbers of a node's entries in the range of a page, in their order.
    pub fn numbers(&self, node: NodeId, page: &Page) -> impl Iterator<Item = u64> {
        let entries = self.by_node.get(&node).into_iter();
        let numbers = entries.flat_map(|entries| entries.range(page.from..)).map(|(it, _)| *it);
        numbers.take_while(|number| page.has(*number))
    }
}

/// What a registry has besides, where other nodes share its entries.
pub(crate) struct Sharing {
    /// The node's own entries, by number.
    pub own: BTreeMap<u64, Located>,
    pub others: OtherEntries,
    /// The most bytes of entries of other nodes.
    pub others_bytes_max: usize,
    /// Entries that other nodes do not have yet, by number; each with the one in whose place it is.
    entered: BTreeMap<u64, Change>,
    /// Entries that are gone, and that other nodes have.
    gone: Vec<u64>,
    pending_bytes: usize,
    /// Changes were dropped.
    is_lost: bool,
    /// Other nodes may have entries with numbers below.
    shared_below: u64,
}

impl Sharing {
    pub fn new(others_bytes_max: usize) -> Self {
        Sharing {
            own: BTreeMap::new(),
            others: OtherEntries::default(),
            others_bytes_max,
            entered: BTreeMap::new(),
            gone: Vec::new(),
            pending_bytes: 0,
            is_lost: false,
            shared_below: 0,
        }
    }

    /// Whether other nodes may have an entry of this node: then it changes no more.
    pub fn is_shared(&self, number: u64) -> bool {
        number < self.shared_below
    }

    /// The node has a new entry.
    pub fn on_entered(&mut self, entry: SharedEntry, located: Located) {
        self.own.insert(entry.number, located);
        self.push_entered(Change { gone: None, entry: Some(entry) });
    }

    /// An entry that no other node has shows another meta.
    pub fn on_changed(&mut self, number: u64, meta: Box<str>) {
        if let Some(Change { entry: Some(entry), .. }) = self.entered.get_mut(&number) {
            self.pending_bytes = (self.pending_bytes + meta.len()).saturating_sub(entry.meta.len());
            entry.meta = meta;
        }
    }

    /// An entry is in the place of another.
    pub fn on_replaced(&mut self, old: u64, entry: SharedEntry) {
        if let Some(located) = self.own.remove(&old) {
            self.own.insert(entry.number, located);
        }
        let before = self.remove_entered(old).and_then(|change| change.gone);
        let gone = match self.is_shared(old) {
            true => {
                before.into_iter().for_each(|number| self.push_gone(number));
                Some(old)
            }
            false => before,
        };
        self.push_entered(Change { gone, entry: Some(entry) });
    }

    /// An entry is gone.
    pub fn on_left(&mut self, number: u64) {
        self.own.remove(&number);
        let before = self.remove_entered(number).and_then(|change| change.gone);
        let gone = self.is_shared(number).then_some(number);
        before.into_iter().chain(gone).for_each(|number| self.push_gone(number));
    }

    /// Takes what has changed since the call before. Other nodes may have all entries with numbers below `next` from
    /// now on.
    pub fn take_changes(&mut self, next: u64) -> Changes {
        self.shared_below = next;
        self.pending_bytes = 0;
        let gone = std::mem::take(&mut self.gone).into_iter();
        let gone = gone.map(|number| Change { gone: Some(number), entry: None });
        let list = std::mem::take(&mut self.entered).into_values().chain(gone).collect();
        Changes { list, is_whole: !std::mem::take(&mut self.is_lost) }
    }

    /// Other nodes may have all entries with numbers below `next` from now on, since a caller reads them: one that goes
    /// is a change for them, even where it has not been taken as a new one.
    pub fn on_read(&mut self, next: u64) {
        self.shared_below = next;
    }

    fn remove_entered(&mut self, number: u64) -> Option<Change> {
        let change = self.entered.remove(&number)?;
        self.pending_bytes -= change.bytes();
        Some(change)
    }

    fn push_entered(&mut self, change: Change) {
        let Some(number) = change.entry.as_ref().map(|entry| entry.number) else { return };
        if self.has_capacity(change.bytes()) {
            self.pending_bytes += change.bytes();
            self.entered.insert(number, change);
        }
    }

    fn push_gone(&mut self, number: u64) {
        if self.has_capacity(CHANGE_BYTES) {
            self.pending_bytes += CHANGE_BYTES;
            self.gone.push(number);
        }
    }

    /// Whether a change of so many bytes is to be remembered. Drops all where they are too many.
    fn has_capacity(&mut self, bytes: usize) -> bool {
        if self.pending_bytes + bytes > PENDING_BYTES_MAX {
            (self.entered, self.gone) = (BTreeMap::new(), Vec::new());
            (self.pending_bytes, self.is_lost) = (0, true);
        }
        !self.is_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u64, meta: &str) -> SharedEntry {
        SharedEntry { number, topic: "t".into(), user: "al".into(), meta: meta.into() }
    }

    fn located() -> Located {
        Located { topic: "t".into(), user: "al".into(), is_first: false, bytes: 0 }
    }

    fn enter(sharing: &mut Sharing, number: u64) {
        sharing.on_entered(entry(number, ""), located());
    }

    fn change(gone: Option<u64>, entry: Option<SharedEntry>) -> Change {
        Change { gone, entry }
    }

    #[test]
    fn what_comes_and_goes_between_two_calls_is_no_change() {
        let mut sharing = Sharing::new(0);
        enter(&mut sharing, 1);
        enter(&mut sharing, 2);
        sharing.on_left(1);
        sharing.on_changed(2, "{\"a\":1}".into());
        let changes = sharing.take_changes(3);
        assert_eq!(changes.list, [change(None, Some(entry(2, "{\"a\":1}")))]);
        assert!(changes.is_whole && sharing.is_shared(2) && !sharing.is_shared(3));
        assert_eq!(sharing.take_changes(3).list, []);
        // Of a row of replacements the last counts, in the place of the one that others have.
        sharing.on_replaced(2, entry(3, ""));
        sharing.on_replaced(3, entry(4, ""));
        assert_eq!(sharing.take_changes(5).list, [change(Some(2), Some(entry(4, "")))]);
        sharing.on_replaced(4, entry(5, ""));
        sharing.on_left(5);
        assert_eq!(sharing.take_changes(6).list, [change(Some(4), None)]);
        assert!(sharing.own.is_empty() && sharing.pending_bytes == 0);
    }

    #[test]
    fn what_a_caller_has_read_is_a_change_when_it_goes() {
        let mut sharing = Sharing::new(0);
        (1..4).for_each(|number| enter(&mut sharing, number));
        sharing.on_read(4);
        sharing.on_left(1);
        sharing.on_replaced(2, entry(4, ""));
        sharing.on_read(5);
        sharing.on_replaced(4, entry(5, ""));
        let expected = [
            change(None, Some(entry(3, ""))),
            change(Some(4), Some(entry(5, ""))),
            change(Some(1), None),
            change(Some(2), None),
        ];
        assert_eq!(sharing.take_changes(6).list, expected);
    }

    #[test]
    fn changes_that_no_caller_takes_are_dropped_once_they_are_too_many() {
        let mut sharing = Sharing::new(0);
        let mut large = entry(0, "");
        large.meta = "x".repeat(1 << 20).into();
        for number in 0..70 {
            sharing.on_entered(SharedEntry { number, ..large.clone() }, located());
        }
        assert!(sharing.entered.is_empty() && sharing.pending_bytes == 0);
        let changes = sharing.take_changes(70);
        assert_eq!(changes, Changes { list: Vec::new(), is_whole: false });
        enter(&mut sharing, 70);
        let changes = sharing.take_changes(71);
        assert_eq!((changes.list.len(), changes.is_whole), (1, true));
        assert_eq!(sharing.own.len(), 71, "a page has all");
    }
}
