//! Entries of several nodes in one registry: what a node passes to the others of its own, and applies of theirs.

use crate::meta::Meta;
use crate::registry::{Registry, shared_entry};
use crate::sharing::Located;
use crate::topic::Owner;
use crate::{Change, Changes, NodeId, Page, Ref, SharedEntry};

/// Memory of an entry besides its texts, in bytes, roughly: its slots in the tables of its topic and of its node.
const ENTRY_BYTES: usize = 320;

/// Memory of a topic, in bytes, roughly: its tables begin with capacity for eleven entries.
const TOPIC_BYTES: usize = 1_250;

impl Registry {
    /// Takes the changes of this node's entries since the call before: so many, or fewer if they take so many bytes.
    pub fn take_changes(&mut self, changes_max: usize, bytes_max: usize) -> Changes {
        match &mut self.sharing {
            Some(sharing) => sharing.take_changes(changes_max, bytes_max),
            None => Changes { list: Vec::new(), is_whole: true, has_more: false },
        }
    }

    /// Reads this node's entries from a number on: so many, or fewer if they take more than so many bytes. The page
    /// has no end if they are the last.
    pub fn read_page(&mut self, from: u64, entries_max: usize, bytes_max: usize) -> Page {
        let mut page = Page { from, to: None, entries: Vec::new() };
        let (node, next) = (self.next.node(), self.next.number());
        let Some(sharing) = &mut self.sharing else { return page };
        sharing.on_read(next);
        let mut bytes = 0;
        for (number, Located { topic, user, .. }) in sharing.own.range(from..) {
            if page.entries.len() >= entries_max || bytes > bytes_max {
                page.to = Some(*number);
                break;
            }
            let entry = (user.clone(), Ref::new(node, *number));
            let meta = self.topics.get(topic).and_then(|topic| topic.meta(&entry));
            // It has a meta, as long as the entry is the node's.
            let meta = meta.map(|meta| meta.passed().meta).unwrap_or_default();
            let entry = shared_entry(entry.1, topic, user, &meta);
            bytes += entry.bytes();
            page.entries.push(entry);
        }
        page
    }

    /// Changes another node's entries. Returns the memory of new ones that did not fit, in bytes.
    pub fn apply(&mut self, node: NodeId, changes: &[Change], now_us: u64) -> usize {
        if node == self.next.node() {
            return 0;
        }
        let apply = |Change { gone, entry }: &Change| {
            self.apply_change(node, *gone, entry.as_ref(), now_us)
        };
        changes.iter().map(apply).sum()
    }

    /// Adds entries of another node, except those that are here. Returns as [`Registry::apply`].
    pub fn enter_some<'a>(
        &mut self,
        node: NodeId,
        entries: impl Iterator<Item = &'a SharedEntry>,
        now_us: u64,
    ) -> usize {
        if node == self.next.node() {
            return 0;
        }
        entries.map(|entry| self.apply_change(node, None, Some(entry), now_us)).sum()
    }

    /// Visits up to so many of another node's entries in the range of a page, from a number on, and removes those
    /// that are not in the page. Returns how many it has visited, and the number of the last one.
    pub fn leave_some(
        &mut self,
        node: NodeId,
        page: &Page,
        from: u64,
        entries_max: usize,
        now_us: u64,
    ) -> (usize, Option<u64>) {
        let Some(sharing) = &self.sharing else { return (0, None) };
        let numbers = sharing.others.numbers(node, from).take_while(|number| page.has(*number));
        let numbers: Vec<u64> = numbers.take(entries_max).collect();
        for number in &numbers {
            if page.entries.binary_search_by_key(number, |entry| entry.number).is_err() {
                self.remove_of(node, *number, now_us);
            }
        }
        (numbers.len(), numbers.last().copied())
    }

    /// Returns the memory of the new entry if it does not fit, in bytes.
    fn apply_change(
        &mut self,
        node: NodeId,
        gone: Option<u64>,
        entry: Option<&SharedEntry>,
        now_us: u64,
    ) -> usize {
        let name = entry.map(|entry| &*entry.topic);
        let has_topic = name.is_some_and(|name| self.topics.contains_key(name));
        let Some(sharing) = self.sharing.as_deref_mut() else { return 0 };
        let (others, bytes_max) = (&mut sharing.others, sharing.others_bytes_max);
        let is_new = |entry: &&SharedEntry| others.get(node, entry.number).is_none();
        let entry = entry.filter(is_new);
        let gone = gone.and_then(|number| Some((number, others.remove(node, number)?)));
        let is_first = gone.as_ref().map_or(!has_topic, |(_, old)| old.is_first);
        let bytes = entry.map_or(0, |entry| memory_bytes(entry, is_first));
        let has_capacity = others.bytes() + bytes <= bytes_max;
        match (gone, entry.filter(|_| has_capacity)) {
            (Some((number, old)), Some(entry))
                if *old.topic == *entry.topic && *old.user == *entry.user =>
            {
                self.replace_of(node, (number, old), entry, now_us);
            }
            (gone, entry) => {
                if let Some(entry) = entry {
                    self.enter_of(node, entry, now_us);
                }
                if let Some((number, located)) = gone {
                    self.leave_of(Ref::new(node, number), &located, now_us);
                }
            }
        }
        if has_capacity { 0 } else { bytes }
    }

    fn enter_of(&mut self, node: NodeId, entry: &SharedEntry, now_us: u64) {
        let of = Ref::new(node, entry.number);
        let meta = Meta::new(&entry.meta, None);
        let is_first = !self.topics.contains_key(&*entry.topic);
        let (topic, user) = self.insert((&entry.topic, &entry.user), of, meta, Owner::OtherNode);
        if let Some(sharing) = &mut self.sharing {
            let located = Located { topic, user, is_first, bytes: memory_bytes(entry, is_first) };
            sharing.others.insert(node, entry.number, located);
        }
        self.changed(&entry.topic, now_us);
    }

    /// Adds an entry of another node from another process. Members know it. The memory limit applies to new entries
    /// only: that process's entries stay.
    pub fn restore_other(
        &mut self,
        of: Ref,
        entry: &SharedEntry,
        prev: Option<Ref>,
        is_first: bool,
    ) {
        self.unrestore_other(of);
        if self.sharing.is_none() || of.node() == self.next.node() {
            return;
        }
        let meta = Meta::new(&entry.meta, prev);
        let Some((topic, user)) = self.insert_known((&entry.topic, &entry.user), of, meta) else {
            return;
        };
        if let Some(sharing) = &mut self.sharing {
            let located = Located { topic, user, is_first, bytes: memory_bytes(entry, is_first) };
            sharing.others.insert(of.node(), of.number(), located);
        }
    }

    /// Removes an entry of another node that was restored in vain.
    pub fn unrestore_other(&mut self, of: Ref) {
        let located = self.sharing.as_mut().and_then(|it| it.others.remove(of.node(), of.number()));
        if let Some(located) = located {
            self.remove_known(&located.topic, &located.user, of);
        }
    }

    fn replace_of(
        &mut self,
        node: NodeId,
        (number, Located { topic, user, is_first, .. }): (u64, Located),
        entry: &SharedEntry,
        now_us: u64,
    ) {
        if let Some(topic_state) = self.topics.get_mut(&topic) {
            let fresh = Ref::new(node, entry.number);
            topic_state.replace(
                (user.clone(), Ref::new(node, number)),
                fresh,
                &entry.meta,
                Owner::OtherNode,
            );
        }
        if let Some(sharing) = &mut self.sharing {
            let bytes = memory_bytes(entry, is_first);
            let located = Located { topic: topic.clone(), user, is_first, bytes };
            sharing.others.insert(node, entry.number, located);
        }
        self.changed(&topic, now_us);
    }

    fn leave_of(&mut self, of: Ref, Located { topic, user, .. }: &Located, now_us: u64) {
        if let Some(topic_state) = self.topics.get_mut(topic)
            && let Some(entry) = topic_state.entry(user, of)
        {
            topic_state.leave(entry);
            self.connections -= 1;
        }
        self.changed(topic, now_us);
    }

    /// Returns the other nodes that have entries.
    pub fn other_nodes(&self) -> Vec<NodeId> {
        self.sharing.iter().flat_map(|sharing| sharing.others.nodes()).collect()
    }

    /// Removes up to so many entries of another node, and returns how many.
    pub fn expire_some(&mut self, node: NodeId, entries_max: usize, now_us: u64) -> usize {
        let Some(sharing) = &self.sharing else { return 0 };
        let numbers: Vec<u64> = sharing.others.numbers(node, 0).take(entries_max).collect();
        numbers.iter().for_each(|number| self.remove_of(node, *number, now_us));
        numbers.len()
    }

    fn remove_of(&mut self, node: NodeId, number: u64, now_us: u64) {
        let located = self.sharing.as_mut().and_then(|it| it.others.remove(node, number));
        if let Some(located) = located {
            self.leave_of(Ref::new(node, number), &located, now_us);
        }
    }
}

/// Returns the memory of an entry, in bytes, roughly; with that of its topic, if it is the first there.
fn memory_bytes(entry: &SharedEntry, is_first: bool) -> usize {
    let topic_bytes = if is_first { TOPIC_BYTES } else { 0 };
    ENTRY_BYTES + topic_bytes + entry.topic.len() + entry.user.len() + entry.meta.len()
}
