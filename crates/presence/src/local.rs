//! Presence of one process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::registry::{EXPIRE_TOPICS_MAX, Registry};
use crate::sharing::Sharing;
use crate::{
    Batch, Change, Changes, Completion, Limits, List, NodeId, Page, PassedEntry, Presence,
    PresenceReply, Ref, Stats,
};

/// Entries that one hold of the lock changes (those of other nodes) or reads (own ones): about 100 microseconds.
pub(crate) const ENTRIES_PER_LOCK: usize = 64;

/// The registry of one process, which all its threads share. It replies at once.
///
/// Its lock is a leaf: a call that holds it never takes another lock, publishes or calls back.
pub struct Local {
    registry: Mutex<Registry>,
    /// A copy of the registry's count, for callers that don't wait for the lock.
    connections: AtomicUsize,
}

impl Local {
    /// Creates an empty registry, whose refs name `node`.
    pub fn new(limits: Limits, node: NodeId) -> Self {
        let registry = Mutex::new(Registry::new(limits, node));
        Local { registry, connections: AtomicUsize::new(0) }
    }

    /// Shares the entries with other nodes: the registry records changes for them, and has up to so many bytes of
    /// theirs.
    #[must_use]
    pub fn with_nodes(self, others_bytes_max: usize) -> Self {
        self.lock().sharing = Some(Box::new(Sharing::new(others_bytes_max)));
        self
    }

    /// Sets the bytes of untaken changes beyond which they are dropped, in place of 64 MiB. For simulations.
    #[must_use]
    pub fn with_pending_bytes_max(self, bytes_max: usize) -> Self {
        if let Some(sharing) = &mut self.lock().sharing {
            sharing.pending_bytes_max = bytes_max;
        }
        self
    }

    /// Takes the changes of this node's own entries since the call before, up to about so many bytes. Call it often,
    /// since untaken changes use memory: beyond 64 MiB they are dropped, and [`Changes::is_whole`] is false once.
    pub fn take_changes(&self, bytes_max: usize) -> Changes {
        let mut changes = Changes { list: Vec::new(), is_whole: true, has_more: true };
        let mut bytes = 0;
        while changes.has_more && bytes < bytes_max {
            let part = self.lock().take_changes(ENTRIES_PER_LOCK, bytes_max - bytes);
            bytes += part.list.iter().map(Change::bytes).sum::<usize>();
            changes.list.extend(part.list);
            changes.is_whole &= part.is_whole;
            changes.has_more = part.has_more;
        }
        changes
    }

    /// Reads this node's own entries from a number on, up to about so many bytes. The entries are not of one moment:
    /// each is as it was at some time between the call and its return.
    pub fn read_page(&self, from: u64, bytes_max: usize) -> Page {
        let (mut page, mut bytes) = (Page { from, to: Some(from), entries: Vec::new() }, 0);
        while let Some(next) = page.to.filter(|_| bytes < bytes_max) {
            let part = self.lock().read_page(next, ENTRIES_PER_LOCK, bytes_max - bytes);
            bytes += part.entries.iter().map(crate::SharedEntry::bytes).sum::<usize>();
            page.to = part.to;
            page.entries.extend(part.entries);
        }
        page
    }

    /// Removes the entries of all other nodes, since no more changes of them will come. Members get notices.
    pub fn expire_others(&self, now_us: u64) {
        let nodes = self.lock().other_nodes();
        nodes.into_iter().for_each(|node| self.expire(node, now_us));
    }

    /// Ignores poisoning: a panic under the lock leaves the registry intact.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, registry: &Registry) {
        self.connections.store(registry.stats().connections, Ordering::Relaxed);
    }
}

impl Presence for Local {
    fn enter(&self, topic: &str, user: &str, meta: &str, now_us: u64) -> Ref {
        let mut registry = self.lock();
        let of = registry.enter(topic, user, meta, now_us);
        self.count(&registry);
        of
    }

    fn update(&self, topic: &str, user: &str, of: Ref, meta: &str, now_us: u64) -> Option<Ref> {
        self.lock().update(topic, user, of, meta, now_us)
    }

    fn leave(&self, topic: &str, user: &str, of: Ref, now_us: u64) {
        let mut registry = self.lock();
        registry.leave(topic, user, of, now_us);
        self.count(&registry);
    }

    fn list(
        &self,
        topic: &str,
        own: Option<(&str, Ref)>,
        _: Completion<List>,
    ) -> PresenceReply<List> {
        PresenceReply::Now(self.lock().list(topic, own))
    }

    fn take(&self, now_us: u64, topics_max: usize) -> Vec<Batch> {
        self.lock().take(now_us, topics_max)
    }

    fn confirm(&self, batches: Vec<Batch>, now_us: u64) {
        self.lock().confirm(batches, now_us);
    }

    /// Frees the lock after every few entries or topics, so that members enter and leave meanwhile.
    fn expire(&self, node: NodeId, now_us: u64) {
        if self.lock().sharing.is_some() {
            while self.lock().expire_some(node, ENTRIES_PER_LOCK, now_us) > 0 {}
            return;
        }
        let mut after = None;
        loop {
            let mut registry = self.lock();
            after = registry.expire(node, after.as_deref(), EXPIRE_TOPICS_MAX, now_us);
            self.count(&registry);
            drop(registry);
            if after.is_none() {
                return;
            }
        }
    }

    fn passed(&self, topic: &str, user: &str, of: Ref) -> Option<PassedEntry> {
        self.lock().passed(topic, user, of)
    }

    fn restore(&self, topic: &str, user: &str, of: Ref, passed: &PassedEntry) {
        let mut registry = self.lock();
        registry.restore(topic, user, of, passed);
        self.count(&registry);
    }

    fn unrestore(&self, topic: &str, user: &str, of: Ref) {
        let mut registry = self.lock();
        registry.unrestore(topic, user, of);
        self.count(&registry);
    }

    fn hasten(&self, now_us: u64) {
        self.lock().hasten(now_us);
    }

    fn is_settled(&self) -> bool {
        self.lock().due.is_empty()
    }

    /// Scans every topic when a cap is new.
    fn set_limits(&self, limits: Limits, now_us: u64) {
        self.lock().set_limits(limits, now_us);
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    fn stats(&self) -> Stats {
        self.lock().stats()
    }
}
