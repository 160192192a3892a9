//! The registry of one process: which users are in which topic, and which topics have notices due.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use crate::meta::Meta;
use crate::sharing::{Located, OtherEntries, SharedEntry, Sharing};
use crate::topic::{Listing, Owner, TopicState};
use crate::{Batch, Counts, Limits, List, NodeId, PassedEntry, Ref, Snapshot, Stats};

/// The bytes that one [`Registry::take`] composes; the last topic may exceed them.
const TAKE_BYTES_MAX: usize = 256 << 10;

/// Topics that [`Registry::expire`] scans at a time.
pub(crate) const EXPIRE_TOPICS_MAX: usize = 64;

/// The users of all topics with presence. [`crate::Presence`] says what the calls do.
pub(crate) struct Registry {
    pub limits: Limits,
    /// The ref of the next entry.
    pub next: Ref,
    pub topics: BTreeMap<Arc<str>, TopicState>,
    /// The topics with a notice due, by time.
    pub due: BTreeSet<(u64, Arc<str>)>,
    /// Topics whose users another process did not list, and the time of its last notice there. Empty once everything
    /// has come from it.
    pub unlisted: HashMap<Arc<str>, Option<u64>>,
    /// The caps of that process on users and on bytes of a list.
    pub caps_before: (usize, usize),
    /// State shared between nodes; `None` for a node that is alone.
    pub sharing: Option<Box<Sharing>>,
    /// Connections of all nodes.
    pub connections: usize,
    notices: u64,
    notices_delayed: u64,
}

impl Registry {
    /// Creates an empty registry. Every ref names `node`.
    pub fn new(limits: Limits, node: NodeId) -> Self {
        Registry {
            limits,
            next: Ref::new(node, 0),
            topics: BTreeMap::new(),
            due: BTreeSet::new(),
            unlisted: HashMap::new(),
            caps_before: (limits.users_max, limits.list_bytes_max),
            sharing: None,
            connections: 0,
            notices: 0,
            notices_delayed: 0,
        }
    }

    /// Scans every topic when a cap is new.
    pub fn set_limits(&mut self, limits: Limits, now_us: u64) {
        let caps = |limits: &Limits| (limits.users_max, limits.list_bytes_max);
        let new = caps(&limits) != caps(&self.limits);
        self.limits = limits;
        self.caps_before = caps(&self.limits);
        if new {
            let names: Vec<_> = self.topics.keys().cloned().collect();
            names.iter().for_each(|name| self.changed(name, now_us));
        }
    }

    /// Adds a connection of a user.
    pub fn enter(&mut self, topic: &str, key: &str, meta: &str, now_us: u64) -> Ref {
        let of = self.take_ref();
        let (name, user) = self.insert((topic, key), of, Meta::new(meta, None), Owner::ThisNode);
        if let Some(sharing) = &mut self.sharing {
            let entry = shared_entry(of, &name, &user, meta);
            sharing.on_entered(entry, Located { topic: name, user, is_first: false, bytes: 0 });
        }
        self.changed(topic, now_us);
        of
    }

    /// Adds a connection to a topic, and returns the topic and the user.
    pub fn insert(
        &mut self,
        (topic, key): (&str, &str),
        of: Ref,
        meta: Meta,
        owner: Owner,
    ) -> (Arc<str>, Arc<str>) {
        if !self.topics.contains_key(topic) {
            let new = TopicState::new(topic, &self.limits);
            self.topics.insert(new.name.clone(), new);
        }
        match self.topics.get_mut(topic) {
            Some(topic_state) => {
                self.connections += 1;
                (topic_state.name.clone(), topic_state.enter(key, of, meta, owner))
            }
            // Never: the topic exists by now.
            None => (topic.into(), key.into()),
        }
    }

    /// Replaces the meta of a connection and returns the ref that names it from now on.
    pub fn update(
        &mut self,
        topic: &str,
        key: &str,
        of: Ref,
        meta: &str,
        now_us: u64,
    ) -> Option<Ref> {
        let fresh = self.next;
        let is_shared = self.sharing.as_ref().is_some_and(|it| it.is_shared(of.number()));
        let topic_state = self.topics.get_mut(topic)?;
        let new = topic_state.update(topic_state.entry(key, of)?, fresh, meta, is_shared);
        if let Some(sharing) = &mut self.sharing {
            let entry = shared_entry(new, topic, key, meta);
            match new == of {
                true => sharing.on_changed(of.number(), entry.meta),
                false => sharing.on_replaced(of.number(), entry),
            }
        }
        if new == fresh {
            self.take_ref();
        }
        self.changed(topic, now_us);
        Some(new)
    }

    /// Removes a connection of a user.
    pub fn leave(&mut self, topic: &str, key: &str, of: Ref, now_us: u64) {
        let Some(topic_state) = self.topics.get_mut(topic) else { return };
        let Some(entry) = topic_state.entry(key, of) else { return };
        topic_state.leave(entry);
        self.connections -= 1;
        if let Some(sharing) = &mut self.sharing {
            sharing.on_left(of.number());
        }
        self.changed(topic, now_us);
    }

    /// Returns the state of a connection.
    pub fn passed(&self, topic: &str, key: &str, of: Ref) -> Option<PassedEntry> {
        let topic_state = self.topics.get(topic)?;
        topic_state.meta(&topic_state.entry(key, of)?).map(Meta::passed)
    }

    /// Adds a connection from another process. Members know it, and other nodes do as well.
    pub fn restore(&mut self, topic: &str, key: &str, of: Ref, passed: &PassedEntry) {
        let meta = Meta::new(&passed.meta, passed.prev);
        let Some((topic, user)) = self.insert_known((topic, key), of, meta) else { return };
        // No other connection gets its ref.
        if of.node() == self.next.node() && of.number() >= self.next.number() {
            self.next = of.next();
        }
        if let Some(sharing) = &mut self.sharing {
            let located = Located { topic, user, is_first: false, bytes: 0 };
            sharing.own.insert(of.number(), located);
        }
    }

    /// Adds a connection that members know, and returns the topic and the user; `None` if it is here.
    pub fn insert_known(
        &mut self,
        (topic, key): (&str, &str),
        of: Ref,
        meta: Meta,
    ) -> Option<(Arc<str>, Arc<str>)> {
        if !self.topics.contains_key(topic) {
            let mut new = TopicState::new(topic, &self.limits);
            if let Some(last_us) = self.unlisted.get(topic) {
                new.set_unlisted(*last_us);
            }
            self.topics.insert(new.name.clone(), new);
        }
        let topic_state = self.topics.get_mut(topic)?;
        if topic_state.entry(key, of).is_some() {
            return None;
        }
        self.connections += 1;
        Some((topic_state.name.clone(), topic_state.restore(key, of, meta)))
    }

    /// Removes a connection that was restored in vain.
    pub fn unrestore(&mut self, topic: &str, key: &str, of: Ref) {
        if self.remove_known(topic, key, of)
            && let Some(sharing) = &mut self.sharing
        {
            sharing.own.remove(&of.number());
        }
    }

    /// Removes a connection without a notice. False if it is not here.
    pub fn remove_known(&mut self, topic: &str, key: &str, of: Ref) -> bool {
        let Some(topic_state) = self.topics.get_mut(topic) else { return false };
        let Some(entry) = topic_state.entry(key, of) else { return false };
        topic_state.unrestore(&entry);
        self.connections -= 1;
        if topic_state.connections == 0 && topic_state.due_us.is_none() {
            self.topics.remove(topic);
        }
        true
    }

    /// Makes all waiting notices due now.
    pub fn hasten(&mut self, now_us: u64) {
        let later = self.due.split_off(&(now_us, Arc::from("")));
        for (_, name) in later {
            if let Some(topic) = self.topics.get_mut(&name) {
                topic.due_us = Some(now_us);
            }
            self.due.insert((now_us, name));
        }
    }

    /// Called when everything has come from another process. If the caps differ, members get notices.
    pub fn restored(&mut self) {
        self.unlisted = HashMap::new();
        if let Some(sharing) = &mut self.sharing {
            // That process has sent other nodes all its changes.
            sharing.on_read(self.next.number());
        }
        if self.caps_before != (self.limits.users_max, self.limits.list_bytes_max) {
            let names: Vec<_> = self.topics.keys().cloned().collect();
            names.iter().for_each(|name| self.changed(name, 0));
        }
    }

    /// Removes the entries of a node from up to `topics_max` topics, in the order of their names, from the first one
    /// after `after`. Returns the name to continue after; `None` when it has passed all topics.
    pub fn expire(
        &mut self,
        node: NodeId,
        after: Option<&str>,
        topics_max: usize,
        now_us: u64,
    ) -> Option<Arc<str>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.topics.range::<str, _>((from, Bound::Unbounded)).map(|(name, _)| name);
        let names: Vec<_> = names.take(topics_max).cloned().collect();
        for name in &names {
            let Some(topic) = self.topics.get_mut(name) else { continue };
            let gone = topic.entries_of(node);
            if gone.is_empty() {
                continue;
            }
            self.connections -= gone.len();
            gone.into_iter().for_each(|entry| topic.leave(entry));
            self.changed(name, now_us);
        }
        names.into_iter().nth(topics_max - 1)
    }

    /// Returns a topic's list; with the meta of `own` even when no notice has announced it.
    pub fn list(&self, topic: &str, own: Option<(&str, Ref)>) -> List {
        let counts = self.counts(topic);
        List { counts, users: counts.listed.then(|| self.snapshot(topic, own)) }
    }

    /// Returns the list of a topic as announced, with the meta of `own`; `{}` when it has no members or its users are
    /// not listed. Its text is made once for each notice.
    fn snapshot(&self, topic: &str, own: Option<(&str, Ref)>) -> Snapshot {
        let Some(topic) = self.topics.get(topic) else {
            return Snapshot::empty();
        };
        own.and_then(|(key, of)| topic.state_with(key, of))
            .or_else(|| topic.state().map(Snapshot::from))
            .unwrap_or_else(Snapshot::empty)
    }

    fn counts(&self, topic: &str) -> Counts {
        match self.topics.get(topic) {
            Some(topic) => Counts {
                users: topic.users.len(),
                connections: topic.connections,
                listed: topic.listing == Listing::Listed,
            },
            None => Counts { users: 0, connections: 0, listed: self.limits.list() },
        }
    }

    /// Returns figures without a scan of the topics.
    pub fn stats(&self) -> Stats {
        let others = self.sharing.as_ref().map(|sharing| &sharing.others);
        let other_nodes = others.map_or(0, OtherEntries::count);
        Stats {
            topics: self.topics.len(),
            connections: self.connections - other_nodes,
            other_nodes,
            other_nodes_bytes: others.map_or(0, OtherEntries::bytes),
            notices: self.notices,
            notices_delayed: self.notices_delayed,
        }
    }

    /// Returns the time when [`Registry::take`] has work next.
    #[cfg(test)]
    pub fn due_us(&self) -> Option<u64> {
        self.due.first().map(|(due_us, _)| *due_us)
    }

    /// Composes the notices that are due: one for each topic, or two when its users are no longer listed or are
    /// listed again, or several when one would be too large. It takes a topic once for each `now_us`.
    pub fn take(&mut self, now_us: u64, topics_max: usize) -> Vec<Batch> {
        let mut batches = Vec::new();
        let mut bytes = 0;
        while batches.len() < topics_max
            && bytes < TAKE_BYTES_MAX
            && let Some((due_us, _)) = self.due.first()
            && *due_us <= now_us
        {
            let Some((_, name)) = self.due.pop_first() else { break };
            let Some(topic) = self.topics.get_mut(&name) else { continue };
            topic.due_us = None;
            topic.last_us = Some(now_us);
            let notices = topic.take(self.limits.list_bytes_max);
            bytes += notices.iter().map(|(_, json)| json.len()).sum::<usize>();
            batches.push(Batch::new(name, notices));
        }
        batches
    }

    /// Takes the outcome of notices.
    pub fn confirm(&mut self, batches: Vec<Batch>, now_us: u64) {
        for batch in batches {
            let name = batch.topic().clone();
            let (published, rest) = batch.into_outcome();
            self.notices += published as u64;
            self.notices_delayed += u64::from(!rest.is_empty());
            if let Some(topic) = self.topics.get_mut(&name) {
                topic.confirm(rest);
            }
            self.schedule(&name, now_us);
        }
    }

    fn take_ref(&mut self) -> Ref {
        let of = self.next;
        self.next = of.next();
        of
    }

    /// The members of a topic have changed, or a meta, or a cap.
    pub fn changed(&mut self, name: &str, now_us: u64) {
        if let Some(topic) = self.topics.get_mut(name) {
            topic.relist(&self.limits);
        }
        self.schedule(name, now_us);
    }

    /// Makes a topic due when it has changes to announce, and frees it when it has neither these nor members.
    fn schedule(&mut self, name: &str, now_us: u64) {
        let Some(topic) = self.topics.get_mut(name) else { return };
        if topic.taken {
            return;
        }
        match (topic.has_news(), topic.due_us) {
            (true, None) => {
                let interval_us = self.limits.interval_us(topic.connections);
                // Never twice at one time: with an interval of 0, a notice that cannot be published would be retried
                // in a loop.
                let after_us = interval_us.max(1);
                let spaced_us = topic.last_us.map_or(0, |last| last.saturating_add(after_us));
                let due_us = spaced_us.max(now_us.saturating_add(self.limits.interval_us));
                topic.due_us = Some(due_us);
                self.due.insert((due_us, topic.name.clone()));
            }
            (false, Some(due_us)) => {
                topic.due_us = None;
                self.due.remove(&(due_us, topic.name.clone()));
            }
            _ => (),
        }
        if topic.connections == 0 && topic.due_us.is_none() {
            self.topics.remove(name);
        }
    }
}

/// Returns an entry as other nodes take it.
pub(crate) fn shared_entry(of: Ref, topic: &str, user: &str, meta: &str) -> SharedEntry {
    let meta = if meta == "{}" { "" } else { meta };
    SharedEntry { number: of.number(), topic: topic.into(), user: user.into(), meta: meta.into() }
}
