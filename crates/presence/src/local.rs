//! Presence of one process.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::registry::{EXPIRE_TOPICS_MAX, Registry};
use crate::{Answer, Batch, Completion, Limits, List, NodeId, Presence, Ref, Stats};

/// The registry of one process, which all its threads share. It answers everything at once.
///
/// Its lock is a leaf: no call locks anything else, publishes or calls back while it holds it.
pub struct Local(Mutex<Registry>);

impl Local {
    /// A registry with nobody in it, whose refs name `node`.
    pub fn new(limits: Limits, node: NodeId) -> Self {
        Local(Mutex::new(Registry::new(limits, node)))
    }

    /// A registry that a panicking thread held is whole: its calls leave it so.
    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Presence for Local {
    fn enter(&self, topic: &str, user: &str, meta: &str, now_us: u64) -> Ref {
        self.lock().enter(topic, user, meta, now_us)
    }

    fn update(&self, topic: &str, user: &str, of: Ref, meta: &str, now_us: u64) -> Option<Ref> {
        self.lock().update(topic, user, of, meta, now_us)
    }

    fn leave(&self, topic: &str, user: &str, of: Ref, now_us: u64) {
        self.lock().leave(topic, user, of, now_us);
    }

    fn list(&self, topic: &str, own: Option<(&str, Ref)>, _: Completion<List>) -> Answer<List> {
        Answer::Now(self.lock().list(topic, own))
    }

    fn take(&self, now_us: u64, topics_max: usize) -> Vec<Batch> {
        self.lock().take(now_us, topics_max)
    }

    fn confirm(&self, batches: Vec<Batch>, now_us: u64) {
        self.lock().confirm(batches, now_us);
    }

    /// Frees the lock after every few topics, so that members enter and leave meanwhile.
    fn expire(&self, node: NodeId, now_us: u64) {
        let mut after = None;
        loop {
            after = self.lock().expire(node, after.as_deref(), EXPIRE_TOPICS_MAX, now_us);
            if after.is_none() {
                return;
            }
        }
    }

    /// Looks at every topic when a cap is new.
    fn set_limits(&self, limits: Limits, now_us: u64) {
        self.lock().set_limits(limits, now_us);
    }

    fn stats(&self) -> Stats {
        self.lock().stats()
    }
}
