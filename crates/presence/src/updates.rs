//! Updates of other nodes' entries that wait to be applied.
//!
//! A node that dies may have had a million entries, and the thread that removes them has other work as well. So
//! updates wait here, those of each node in their order, and [`Local::advance`] applies them bit by bit.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use crate::local::ENTRIES_PER_LOCK;
use crate::registry::Registry;
use crate::{Change, Local, NodeId, Page, SharedEntry};

/// Updates of other nodes' entries that wait to be applied.
#[derive(Default)]
pub struct Updates {
    /// The updates of each node, in their order; no node without any.
    by_node: BTreeMap<NodeId, VecDeque<Update>>,
    /// The node whose entries were changed last. The next node goes on.
    last: Option<NodeId>,
    bytes: usize,
}

/// An update of a node's entries.
struct Update {
    kind: Kind,
    bytes: usize,
}

enum Kind {
    /// Removes all.
    Expire,
    /// The changes that are not applied yet.
    Change(VecDeque<Change>),
    /// The entries in the range of a page become those of the page.
    Page(Page, PageStep),
}

/// The progress of a page.
enum PageStep {
    /// Adds its entries, from this index on. Some did not fit.
    Enter { at: usize, has_dropped: bool },
    /// Removes entries that are not in it, from this number on.
    Leave { from: u64, has_dropped: bool },
    /// Adds those that did not fit, from this index on, since others are gone.
    EnterRest(usize),
}

/// The outcome of a part of an update.
struct Part {
    /// The number of its entries.
    entries: usize,
    /// The memory of new entries that did not fit, in bytes.
    dropped_bytes: usize,
    is_last: bool,
}

impl Updates {
    /// Queues changes of a node's entries.
    pub fn push_changes(&mut self, node: NodeId, changes: Vec<Change>) {
        let bytes = changes.iter().map(Change::bytes).sum();
        self.push(node, Update { kind: Kind::Change(changes.into()), bytes });
    }

    /// Queues a page: the node's entries in its range become those of the page, which are in the order of their
    /// numbers.
    pub fn push_page(&mut self, node: NodeId, page: Page) {
        let bytes = page.entries.iter().map(SharedEntry::bytes).sum();
        self.push(
            node,
            Update { kind: Kind::Page(page, PageStep::Enter { at: 0, has_dropped: false }), bytes },
        );
    }

    /// Queues the removal of all entries of a node, and drops its earlier updates, which are of no use any more.
    pub fn push_expire(&mut self, node: NodeId) {
        let before = self.by_node.remove(&node).into_iter().flatten();
        self.bytes -= before.map(|update| update.bytes).sum::<usize>();
        self.push(node, Update { kind: Kind::Expire, bytes: 0 });
    }

    /// Returns the bytes of the waiting changes and pages.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// True when no update waits.
    pub fn is_empty(&self) -> bool {
        self.by_node.is_empty()
    }

    /// True when an update of a node waits.
    pub fn has(&self, node: NodeId) -> bool {
        self.by_node.contains_key(&node)
    }

    fn push(&mut self, node: NodeId, update: Update) {
        self.bytes += update.bytes;
        self.by_node.entry(node).or_default().push_back(update);
    }

    /// Returns the oldest update of the next node in turn.
    fn next(&mut self) -> Option<(NodeId, &mut Update)> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.by_node.range((after, Bound::Unbounded)).next();
        let node = *next.or_else(|| self.by_node.first_key_value())?.0;
        self.last = Some(node);
        let update = self.by_node.get_mut(&node)?.front_mut()?;
        Some((node, update))
    }

    /// Removes the oldest update of a node, which has been applied.
    fn pop(&mut self, node: NodeId) {
        let Some(updates) = self.by_node.get_mut(&node) else { return };
        self.bytes -= updates.pop_front().map_or(0, |update| update.bytes);
        if updates.is_empty() {
            self.by_node.remove(&node);
        }
    }
}

impl Update {
    /// Applies a part of it, with as many entries as go into one hold of the lock.
    fn advance(&mut self, registry: &mut Registry, node: NodeId, now_us: u64) -> Part {
        match &mut self.kind {
            Kind::Expire => {
                let entries = registry.expire_some(node, ENTRIES_PER_LOCK, now_us);
                Part { entries, dropped_bytes: 0, is_last: entries < ENTRIES_PER_LOCK }
            }
            Kind::Change(changes) => {
                let part = changes.len().min(ENTRIES_PER_LOCK);
                let part: Vec<Change> = changes.drain(..part).collect();
                let dropped_bytes = registry.apply(node, &part, now_us);
                Part { entries: part.len(), dropped_bytes, is_last: changes.is_empty() }
            }
            Kind::Page(page, step) => step.advance(page, registry, node, now_us),
        }
    }
}

impl PageStep {
    /// Adds new entries before it removes others, so that no user is gone between two connections; except new ones
    /// that do not fit before.
    fn advance(&mut self, page: &Page, registry: &mut Registry, node: NodeId, now_us: u64) -> Part {
        let count = page.entries.len();
        let mut enter_from = |at: usize| {
            let part = page.entries.iter().skip(at).take(ENTRIES_PER_LOCK);
            (part.len(), registry.enter_some(node, part, now_us))
        };
        match self {
            PageStep::Enter { at, has_dropped } => {
                let (entries, dropped_bytes) = enter_from(*at);
                let (at, has_dropped) = (*at + entries, *has_dropped || dropped_bytes > 0);
                *self = match at < count {
                    true => PageStep::Enter { at, has_dropped },
                    false => PageStep::Leave { from: page.from, has_dropped },
                };
                Part { entries, dropped_bytes: 0, is_last: false }
            }
            PageStep::Leave { from, has_dropped } => {
                let (entries, last) =
                    registry.leave_some(node, page, *from, ENTRIES_PER_LOCK, now_us);
                *from = last.map_or(*from, |last| last.saturating_add(1));
                let (has_dropped, is_through) = (*has_dropped, entries < ENTRIES_PER_LOCK);
                if is_through && has_dropped {
                    *self = PageStep::EnterRest(0);
                }
                Part { entries, dropped_bytes: 0, is_last: is_through && !has_dropped }
            }
            PageStep::EnterRest(at) => {
                let (entries, dropped_bytes) = enter_from(*at);
                *at += entries;
                Part { entries, dropped_bytes, is_last: *at == count }
            }
        }
    }
}

impl Local {
    /// Applies waiting updates, of about so many entries: of each node in turn, and those of one node in their order.
    /// Members get notices. Returns the nodes of new entries that did not fit into the memory for those of other
    /// nodes, and how much of it they would take, in bytes: these entries are missing.
    pub fn advance(
        &self,
        updates: &mut Updates,
        entries_max: usize,
        now_us: u64,
    ) -> BTreeMap<NodeId, usize> {
        let (mut entries, mut dropped) = (0, BTreeMap::new());
        while entries < entries_max
            && let Some((node, update)) = updates.next()
        {
            let part = update.advance(&mut self.lock(), node, now_us);
            // Each takes time, even one without entries.
            entries += part.entries.max(1);
            if part.dropped_bytes > 0 {
                *dropped.entry(node).or_default() += part.dropped_bytes;
            }
            if part.is_last {
                updates.pop(node);
            }
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, Presence as _};

    const OWN: NodeId = NodeId(1);
    const OTHERS: [NodeId; 2] = [NodeId(2), NodeId(3)];
    const LIMITS: Limits =
        Limits { users_max: 9, list_bytes_max: 1_000, interval_us: 1, members_per_ms: 0 };

    fn local() -> Local {
        Local::new(LIMITS, OWN).with_nodes(1 << 30)
    }

    fn entry(number: u64) -> SharedEntry {
        let user = format!("u{number}").into();
        SharedEntry { number, topic: "t".into(), user, meta: "".into() }
    }

    fn enter(numbers: std::ops::Range<u64>) -> Vec<Change> {
        numbers.map(|number| Change { gone: None, entry: Some(entry(number)) }).collect()
    }

    fn count(local: &Local) -> usize {
        local.stats().other_nodes
    }

    #[test]
    fn a_node_with_many_entries_leaves_bit_by_bit_and_delays_no_other() {
        let (local, mut updates) = (local(), Updates::default());
        updates.push_changes(OTHERS[0], enter(0..10_000));
        local.advance(&mut updates, usize::MAX, 0);
        assert_eq!((count(&local), updates.bytes()), (10_000, 0));
        updates.push_expire(OTHERS[0]);
        for _ in 0..8 {
            let before = count(&local);
            local.advance(&mut updates, 1_000, 0);
            let gone = before - count(&local);
            assert!((1_000..1_000 + ENTRIES_PER_LOCK).contains(&gone), "{gone} have gone");
        }
        updates.push_changes(OTHERS[1], enter(0..100));
        local.advance(&mut updates, 300, 0);
        assert_eq!((updates.has(OTHERS[0]), updates.has(OTHERS[1])), (true, false));
        // The node is back, with some of its entries, before all have been removed.
        let page = Page { from: 0, to: None, entries: (9_000..9_100).map(entry).collect() };
        updates.push_page(OTHERS[0], page);
        updates.push_changes(OTHERS[0], vec![Change { gone: Some(9_000), entry: None }]);
        while !updates.is_empty() {
            local.advance(&mut updates, 1, 0);
        }
        assert_eq!((count(&local), updates.bytes()), (199, 0));
    }

    #[test]
    fn a_page_replaces_many_entries_bit_by_bit() {
        let (local, mut updates) = (local(), Updates::default());
        updates.push_changes(OTHERS[0], enter(0..10_000));
        local.advance(&mut updates, usize::MAX, 0);
        // Half of its entries are here, along with many that are not in it.
        let entries = (0..1_000).chain(10_000..11_000).map(entry).collect();
        updates.push_page(OTHERS[0], Page { from: 500, to: Some(10_500), entries });
        let (mut parts, mut counts) = (0, vec![10_000]);
        while !updates.is_empty() {
            local.advance(&mut updates, 1, 0);
            (parts, counts) = (parts + 1, [counts, vec![count(&local)]].concat());
        }
        let steps = || counts.windows(2).map(|it| it[0].abs_diff(it[1]));
        assert!(steps().all(|step| step <= ENTRIES_PER_LOCK), "{counts:?}");
        assert_eq!(counts.iter().max(), Some(&11_000), "all come before others go");
        assert_eq!((count(&local), parts), (2_000, 2_000_usize.div_ceil(64) + 10_000 / 64 + 1));
    }

    #[test]
    fn what_goes_with_a_page_makes_space_for_what_comes_with_it() {
        let local = Local::new(LIMITS, OWN).with_nodes(100_000);
        let mut updates = Updates::default();
        updates.push_changes(OTHERS[0], enter(0..400));
        let dropped = local.advance(&mut updates, usize::MAX, 0);
        let before = count(&local);
        assert!((200..400).contains(&before), "{before} fit");
        let bytes_each = dropped[&OTHERS[0]] / (400 - before);
        assert!((320..350).contains(&bytes_each), "{bytes_each}");
        let page_of = |numbers: std::ops::Range<u64>| Page {
            from: 0,
            to: None,
            entries: numbers.map(entry).collect(),
        };
        let fewer = before - 10;
        updates.push_page(OTHERS[0], page_of(1_000..1_000 + fewer as u64));
        assert!(local.advance(&mut updates, usize::MAX, 0).is_empty());
        assert_eq!(count(&local), fewer);
        updates.push_page(OTHERS[0], page_of(2_000..2_400));
        let dropped = local.advance(&mut updates, usize::MAX, 0);
        // The topic's memory counted with an entry that is gone.
        assert!(dropped[&OTHERS[0]] >= (400 - before - 5) * bytes_each, "{dropped:?}");
        assert!((before..before + 5).contains(&count(&local)));
    }

    #[test]
    fn what_waits_of_a_node_that_goes_is_of_no_use() {
        let (local, mut updates) = (local(), Updates::default());
        updates.push_changes(OTHERS[0], enter(0..10));
        local.advance(&mut updates, usize::MAX, 0);
        updates.push_changes(OTHERS[0], enter(10..20));
        updates.push_page(OTHERS[0], Page { from: 0, to: None, entries: vec![entry(0)] });
        assert_eq!(updates.bytes(), 10 * (48 + 48 + 4) + 48 + 3);
        updates.push_expire(OTHERS[0]);
        assert_eq!(updates.bytes(), 0);
        local.advance(&mut updates, usize::MAX, 0);
        assert_eq!((count(&local), updates.is_empty()), (0, true));
    }
}
