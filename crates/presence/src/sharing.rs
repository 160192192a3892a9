//! The entries that the nodes of a cluster share, and which entries each of them has.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use minicbor::{Decode, Encode};

use crate::NodeId;

/// The most bytes of untaken changes. Beyond, all are dropped, and other nodes read the entries anew.
const PENDING_BYTES_MAX: usize = 64 << 20;

/// Bytes of a change in memory or in a packet besides its texts, roughly.
const CHANGE_BYTES: usize = 48;

/// An entry as other nodes take it. It never changes: a connection with another meta gets a new one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct SharedEntry {
    /// The number of its ref: its node uses each once, in ascending order.
    #[n(0)]
    pub number: u64,
    /// The topic.
    #[n(1)]
    pub topic: Box<str>,
    /// The user.
    #[n(2)]
    pub user: Box<str>,
    /// The meta of the connection: the text of a JSON object; empty for `{}`.
    #[cbor(n(3), default)]
    pub meta: Box<str>,
}

/// A change of a node's entries: one is gone, one is new, or one replaces another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Change {
    /// The number of the entry that is gone.
    #[n(0)]
    pub gone: Option<u64>,
    /// The new entry.
    #[n(1)]
    pub entry: Option<SharedEntry>,
}

/// Changes of a node's own entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The changes, in an order in which no user is gone between two connections.
    pub list: Vec<Change>,
    /// False when untaken changes were dropped: other nodes must read the entries anew.
    pub is_whole: bool,
    /// True when more changes wait.
    pub has_more: bool,
}

/// The entries of a node whose numbers are in a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The first number of the range.
    pub from: u64,
    /// The number behind the range; `None` if it has no end.
    pub to: Option<u64>,
    /// The entries, in the order of their numbers.
    pub entries: Vec<SharedEntry>,
}

impl SharedEntry {
    /// Returns its bytes in a packet, at most.
    pub fn bytes(&self) -> usize {
        CHANGE_BYTES + self.topic.len() + self.user.len() + self.meta.len()
    }
}

impl Change {
    /// Returns its bytes in a packet, at most.
    pub fn bytes(&self) -> usize {
        CHANGE_BYTES + self.entry.as_ref().map_or(0, SharedEntry::bytes)
    }
}

impl Page {
    /// True when a number is in the range.
    pub fn has(&self, number: u64) -> bool {
        number >= self.from && self.to.is_none_or(|to| number < to)
    }
}

/// The topic and user of an entry.
#[derive(Clone)]
pub(crate) struct Located {
    pub topic: Arc<str>,
    pub user: Arc<str>,
    /// True for an entry of another node whose topic was created for it.
    pub is_first: bool,
    /// For an entry of another node: its memory in bytes, roughly.
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

    /// Returns the nodes that have entries.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.by_node.keys().copied()
    }

    /// Returns the numbers of a node's entries from one on, in their order.
    pub fn numbers(&self, node: NodeId, from: u64) -> impl Iterator<Item = u64> {
        let entries = self.by_node.get(&node).into_iter();
        entries.flat_map(move |entries| entries.range(from..)).map(|(number, _)| *number)
    }
}

/// The additional state of a registry that shares its entries with other nodes.
pub(crate) struct Sharing {
    /// The node's own entries, by number.
    pub own: BTreeMap<u64, Located>,
    pub others: OtherEntries,
    /// The most bytes of entries of other nodes.
    pub others_bytes_max: usize,
    /// By number, entries that other nodes do not have yet, each with the one that it replaces.
    entered: BTreeMap<u64, Change>,
    /// Entries that are gone, and that other nodes have.
    gone: VecDeque<u64>,
    pending_bytes: usize,
    /// The limit of `pending_bytes`.
    pub pending_bytes_max: usize,
    /// True when changes were dropped.
    is_lost: bool,
    /// Other nodes may have entries with numbers below this.
    shared_below: u64,
}

impl Sharing {
    pub fn new(others_bytes_max: usize) -> Self {
        Sharing {
            own: BTreeMap::new(),
            others: OtherEntries::default(),
            others_bytes_max,
            entered: BTreeMap::new(),
            gone: VecDeque::new(),
            pending_bytes: 0,
            pending_bytes_max: PENDING_BYTES_MAX,
            is_lost: false,
            shared_below: 0,
        }
    }

    /// True when other nodes may have an entry of this node: then it never changes any more.
    pub fn is_shared(&self, number: u64) -> bool {
        number < self.shared_below
    }

    /// The node has a new entry.
    pub fn on_entered(&mut self, entry: SharedEntry, located: Located) {
        self.own.insert(entry.number, located);
        self.push_entered(Change { gone: None, entry: Some(entry) });
    }

    /// An entry that no other node has gets another meta.
    pub fn on_changed(&mut self, number: u64, meta: Box<str>) {
        if let Some(Change { entry: Some(entry), .. }) = self.entered.get_mut(&number) {
            self.pending_bytes = (self.pending_bytes + meta.len()).saturating_sub(entry.meta.len());
            entry.meta = meta;
        }
    }

    /// An entry replaces another.
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

    /// Takes the changes since the call before: so many, or fewer if they take so many bytes. From now on other nodes
    /// may have the entries in them. Removals come last, even behind changes that are left for the next call, so that
    /// no user is gone between two connections.
    pub fn take_changes(&mut self, changes_max: usize, bytes_max: usize) -> Changes {
        let (mut list, mut bytes) = (Vec::new(), 0);
        while list.len() < changes_max
            && bytes < bytes_max
            && let Some(change) = self.take_change()
        {
            bytes += change.bytes();
            list.push(change);
        }
        self.pending_bytes -= bytes;
        let has_more = !self.entered.is_empty() || !self.gone.is_empty();
        Changes { list, is_whole: !std::mem::take(&mut self.is_lost), has_more }
    }

    fn take_change(&mut self) -> Option<Change> {
        if let Some((number, change)) = self.entered.pop_first() {
            self.shared_below = self.shared_below.max(number.saturating_add(1));
            return Some(change);
        }
        let gone = self.gone.pop_front()?;
        Some(Change { gone: Some(gone), entry: None })
    }

    /// From now on other nodes may have all entries with numbers below `next`, since a caller reads them: the removal
    /// of one is a change for them, even if it has not been taken as a new one.
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
            self.gone.push_back(number);
        }
    }

    /// True when a change of so many bytes is to be remembered. Drops all changes if they are too many.
    fn has_capacity(&mut self, bytes: usize) -> bool {
        if self.pending_bytes + bytes > self.pending_bytes_max {
            (self.entered, self.gone) = (BTreeMap::new(), VecDeque::new());
            (self.pending_bytes, self.is_lost) = (0, true);
        }
        !self.is_lost
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use random::Random;

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

    fn take(sharing: &mut Sharing) -> Changes {
        sharing.take_changes(usize::MAX, usize::MAX)
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
        let changes = take(&mut sharing);
        assert_eq!(changes.list, [change(None, Some(entry(2, "{\"a\":1}")))]);
        assert!(changes.is_whole && sharing.is_shared(2) && !sharing.is_shared(3));
        assert_eq!(take(&mut sharing).list, []);
        // Of several replacements in a row, the last one counts. It replaces the entry that other nodes have.
        sharing.on_replaced(2, entry(3, ""));
        sharing.on_replaced(3, entry(4, ""));
        assert_eq!(take(&mut sharing).list, [change(Some(2), Some(entry(4, "")))]);
        sharing.on_replaced(4, entry(5, ""));
        sharing.on_left(5);
        assert_eq!(take(&mut sharing).list, [change(Some(4), None)]);
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
        assert_eq!(take(&mut sharing).list, expected);
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
        let changes = take(&mut sharing);
        assert_eq!(changes, Changes { list: Vec::new(), is_whole: false, has_more: false });
        enter(&mut sharing, 70);
        let changes = take(&mut sharing);
        assert_eq!((changes.list.len(), changes.is_whole), (1, true));
        assert_eq!(sharing.own.len(), 71, "a page has all");
    }

    #[test]
    fn changes_that_are_taken_bit_by_bit_are_as_good() {
        for seed in 0..100 {
            let mut random = Random::new(seed);
            let (mut sharing, mut next) = (Sharing::new(0), 0);
            // The entries of another node.
            let mut theirs = BTreeSet::new();
            for _ in 0..300 {
                let own: Vec<u64> = sharing.own.keys().copied().collect();
                let any = own.get(random.below(own.len())).copied();
                match (random.below(6_u32), any) {
                    (0 | 1, _) | (2 | 3, None) => {
                        enter(&mut sharing, next);
                        next += 1;
                    }
                    (2, Some(number)) => sharing.on_left(number),
                    (3, Some(number)) => {
                        sharing.on_replaced(number, entry(next, ""));
                        next += 1;
                    }
                    _ => {
                        let most = 1 + random.below(4_usize);
                        let changes = sharing.take_changes(most, usize::MAX);
                        assert!(changes.list.len() <= most);
                        apply(&mut theirs, changes.list, seed);
                    }
                }
            }
            let mut has_more = true;
            while has_more {
                let changes = sharing.take_changes(9, 1);
                assert!(changes.list.len() <= 1, "one has more bytes");
                has_more = changes.has_more;
                apply(&mut theirs, changes.list, seed);
            }
            assert!(theirs.iter().eq(sharing.own.keys()), "seed {seed}");
            assert_eq!(sharing.pending_bytes, 0, "seed {seed}");
        }
    }

    /// Another node applies changes: no entry comes twice, and only existing ones go.
    fn apply(theirs: &mut BTreeSet<u64>, changes: Vec<Change>, seed: u64) {
        for Change { gone, entry } in changes {
            assert!(entry.is_none_or(|entry| theirs.insert(entry.number)), "seed {seed}");
            assert!(gone.is_none_or(|gone| theirs.remove(&gone)), "seed {seed}: {gone:?}");
        }
    }
}
