//! Routes a message to the shards: by its topic, and by the filters that match it.

use std::collections::HashMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use filters::FilterTrie;
use model::filter::has_wildcard;
use model::name::of_filter;
use model::{Envelope, FilterKey, GroupChoice, MessageSource, Name, NodeId, Rules, TopicKind};

use crate::entry::{Chosen, Entry};
use crate::group::{ChangedGroups, GroupChanges};
use crate::{Delivery, Gap, Inbox, Passed, Receipt};

/// The shards' inboxes, and the filters of their connections.
///
/// The router matches a message once, outside of all locks but its own, and only if any connection has a filter.
pub struct Router {
    inboxes: Vec<Arc<dyn Inbox>>,
    /// True if any connection has had a filter.
    any: AtomicBool,
    filters: RwLock<Filters>,
    /// How often a new filter was added.
    version: AtomicU64,
    /// The rules that say which topics a filter may reach.
    rules: RwLock<Arc<Rules>>,
    /// This node, if there are others.
    node: OnceLock<NodeId>,
    /// True while other nodes can't be reached.
    is_alone: AtomicBool,
    retain: Option<Retain>,
}

/// Takes the messages that become their topics' retained ones, in the order of each topic.
pub type Retain = Arc<dyn Fn(&Arc<Envelope>, MessageSource) + Send + Sync>;

/// How often a shard is offered a message for its members of a group.
const ROUNDS: usize = 3;

#[derive(Default)]
struct Filters {
    /// By the topic filter: the entry of the filter itself, and those of groups.
    trie: FilterTrie<Vec<Arc<Entry>>>,
    /// By the name in the hub.
    entries: HashMap<Name, Arc<Entry>>,
    /// Groups whose members here have changed since other nodes were notified.
    changed: ChangedGroups,
}

/// The destinations of a message besides its topic's members.
#[derive(Debug, Default)]
pub struct Routes {
    /// The filters that match it.
    pub filters: Option<Box<[Arc<FilterKey>]>>,
    /// The groups that share it, each with the shard whose member gets it.
    groups: Vec<Group>,
    /// The nodes that pass the message to members of groups, if there are other nodes.
    choices: Vec<GroupChoice>,
    /// Groups for which this node was chosen, though their last member has left it.
    left: Vec<Arc<FilterKey>>,
    version: u64,
}

/// A group that shares a message, with the number of the shard whose member gets it.
pub type Group = (usize, Arc<FilterKey>);

impl Router {
    /// Makes a router to these inboxes, which are in the order of their shards' numbers.
    pub fn new(inboxes: Vec<Arc<dyn Inbox>>) -> Self {
        Router {
            inboxes,
            any: AtomicBool::new(false),
            filters: RwLock::default(),
            version: AtomicU64::new(0),
            rules: RwLock::default(),
            node: OnceLock::new(),
            is_alone: AtomicBool::new(false),
            retain: None,
        }
    }

    /// Sets the number of this node. There are other nodes from now on.
    pub(crate) fn set_node(&self, node: NodeId) {
        // It never changes.
        let _ = self.node.set(node);
    }

    /// Sets whether other nodes can't be reached.
    pub(crate) fn set_alone(&self, is_alone: bool) {
        self.is_alone.store(is_alone, Relaxed);
    }

    /// Returns true while other nodes can't be reached.
    pub(crate) fn is_alone(&self) -> bool {
        self.is_alone.load(Relaxed)
    }

    /// Also passes messages that are to be retained to `retain`.
    #[must_use]
    pub fn retaining(mut self, retain: Retain) -> Self {
        self.retain = Some(retain);
        self
    }

    /// Replaces the rules: a filter reaches only topics that every client may enter.
    pub fn set_rules(&self, rules: Arc<Rules>) {
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = rules;
    }

    /// Makes all shards send their members notices of a gap.
    pub fn notify_gap(&self, gap: &Arc<Gap>) {
        self.inboxes.iter().for_each(|inbox| inbox.notify_gap(gap.clone()));
    }

    /// Adds a filter of a connection of a shard, by its name in the hub ([`model::name::filter`]) and that name's
    /// hash.
    pub fn enter_filter(&self, shard: u16, hash: u64, name: &str) {
        let mut filters = self.write();
        let entry = self.entry(&mut filters, hash, name);
        entry.enter(shard);
        self.note_change(&mut filters, &entry);
    }

    /// Returns the entry of a filter, and makes it if it does not exist.
    fn entry(&self, filters: &mut Filters, hash: u64, name: &str) -> Arc<Entry> {
        let Filters { trie, entries, .. } = filters;
        let new = || {
            let (group, filter) = of_filter(name).unwrap_or((None, name));
            let key = FilterKey { hash, name: name.into() };
            let entry = Arc::new(Entry::new(key, group.is_some(), self.inboxes.len()));
            match trie.get_mut(filter) {
                Some(entries) => entries.push(entry.clone()),
                None => drop(trie.insert(filter, vec![entry.clone()])),
            }
            // A thread that reads this version then reads `any` as true, and waits for this lock.
            self.any.store(true, Relaxed);
            self.version.fetch_add(1, Release);
            entry
        };
        entries.entry(name.into()).or_insert_with(new).clone()
    }

    /// Removes a filter of a connection of a shard.
    pub fn leave_filter(&self, shard: u16, name: &str) {
        let mut filters = self.write();
        let Some(entry) = filters.entries.get(name).cloned() else { return };
        entry.leave(shard);
        self.note_change(&mut filters, &entry);
        self.remove_unused(&mut filters, &entry);
    }

    /// Records that other nodes need the new number of members of a group here.
    fn note_change(&self, filters: &mut Filters, entry: &Entry) {
        if entry.shared && self.node.get().is_some() {
            filters.changed.insert(&entry.key.name);
        }
    }

    /// Removes the entry of a filter that no connection has any more.
    fn remove_unused(&self, filters: &mut Filters, entry: &Entry) {
        if !entry.is_unused() {
            return;
        }
        let Filters { trie, entries, .. } = filters;
        let name = &entry.key.name;
        let filter = of_filter(name).map_or(name.as_str(), |(_, filter)| filter);
        if let Some(entries) = trie.get_mut(filter) {
            entries.retain(|other| other.key.name != *name);
            if entries.is_empty() {
                trie.remove(filter);
            }
        }
        entries.remove(name);
        self.any.store(!entries.is_empty(), Relaxed);
    }

    /// Removes all filters of a shard.
    pub fn leave_filters(&self, shard: u16) {
        let filters = self.read();
        let here = |entry: &&Arc<Entry>| entry.members_of(shard) > 0;
        let names: Vec<Name> =
            filters.entries.values().filter(here).map(|entry| entry.key.name.clone()).collect();
        drop(filters);
        for name in names {
            let entry = self.read().entries.get(&name).cloned();
            entry.into_iter().for_each(|entry| entry.set_members(shard, 1));
            self.leave_filter(shard, &name);
        }
    }

    /// Returns the number of different filters that connections of this node have.
    pub fn filters(&self) -> usize {
        let filters = self.read();
        match self.node.get() {
            None => filters.entries.len(),
            Some(_) => filters.entries.values().filter(|entry| entry.members() > 0).count(),
        }
    }

    /// Finds the destinations of a message besides the topic's members. Call it before taking any lock.
    pub fn routes(&self, topic: &str) -> Routes {
        let (mut routes, shared) = self.routes_without_groups(topic);
        let is_alone = self.is_alone.load(Relaxed);
        for entry in shared {
            let Some(chosen) = entry.choose(is_alone) else { continue };
            let node = match chosen {
                Chosen::Shard(shard) => {
                    routes.groups.push((shard, entry.key.clone()));
                    self.node.get().copied()
                }
                Chosen::Node(node) => Some(node),
            };
            let group = || entry.key.name.clone();
            routes.choices.extend(node.map(|node| GroupChoice { node, group: group() }));
        }
        routes
    }

    /// Finds the destinations of a message that goes to no other node.
    pub(crate) fn routes_here(&self, topic: &str) -> Routes {
        let (mut routes, shared) = self.routes_without_groups(topic);
        let groups = shared.iter().filter_map(|entry| {
            let shard = entry.choose_shard(|_| true)?;
            Some((shard, entry.key.clone()))
        });
        routes.groups.extend(groups);
        routes
    }

    /// Finds the destinations of a message of a log that all nodes read: its number in the log decides which member
    /// of a group gets it, and so at which node.
    pub fn routes_from_log(&self, topic: &str, number: u64) -> Routes {
        match self.node.get() {
            None => self.routes(topic),
            Some(_) => self.routes_from_node(topic, &[], number),
        }
    }

    /// Finds the destinations of a message of another node. That node has made choices for groups; for groups that it
    /// did not know, the message's number decides.
    pub(crate) fn routes_from_node(
        &self,
        topic: &str,
        choices: &[GroupChoice],
        number: u64,
    ) -> Routes {
        let (mut routes, shared) = self.routes_without_groups(topic);
        let Some(own) = self.node.get().copied() else { return routes };
        for entry in shared {
            let choice = choices.iter().find(|choice| choice.group == entry.key.name);
            let is_ours = match choice {
                Some(choice) => choice.node == own,
                None => entry.is_chosen(own, number),
            };
            match entry.choose_shard(|_| is_ours) {
                Some(shard) => routes.groups.push((shard, entry.key.clone())),
                None if is_ours => routes.left.push(entry.key.clone()),
                None => {}
            }
        }
        routes
    }

    /// Finds the filters that match a topic, and the groups.
    fn routes_without_groups(&self, topic: &str) -> (Routes, Vec<Arc<Entry>>) {
        let version = self.version.load(Acquire);
        let (alone, shared): (Vec<_>, Vec<_>) =
            self.matching(topic).into_iter().partition(|entry| !entry.shared);
        (Routes { filters: keys(&alone), version, ..Routes::default() }, shared)
    }

    /// Returns the entries that match a topic and may reach it.
    fn matching(&self, topic: &str) -> Vec<Arc<Entry>> {
        let mut found = Vec::new();
        if !self.any.load(Relaxed) || !TopicKind::of(topic).is_ordinary() {
            return found;
        }
        let filters = self.read();
        filters.trie.matching(topic, &mut |entries: &Vec<Arc<Entry>>| {
            found.extend(entries.iter().cloned());
        });
        drop(filters);
        if found.is_empty() {
            return found;
        }
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner).clone();
        if !rules.is_open_to_wildcards(topic) {
            // A group or a filter without a wildcard names one topic, for which access was decided before.
            found.retain(|entry| {
                of_filter(&entry.key.name).is_some_and(|(_, filter)| !has_wildcard(filter))
            });
        }
        found
    }

    /// Returns the inboxes that want a message, which is a broadcast or of a topic with this hash.
    fn wanting<'a>(
        &'a self,
        hash: u64,
        is_broadcast: bool,
        filters: &'a [Arc<FilterKey>],
        groups: &'a [Group],
    ) -> impl Iterator<Item = (usize, &'a Arc<dyn Inbox>)> {
        let wants = move |(at, inbox): &(usize, &Arc<dyn Inbox>)| {
            is_broadcast
                || inbox.wants(hash)
                || filters.iter().any(|key| inbox.wants(key.hash))
                || groups.iter().any(|(shard, _)| shard == at)
        };
        self.inboxes.iter().enumerate().filter(wants)
    }

    /// Returns true if all inboxes that want a message have capacity for it.
    pub fn has_capacity(&self, hash: u64, is_broadcast: bool, routes: &Routes) -> bool {
        let filters = routes.filters.as_deref().unwrap_or_default();
        let mut wanting = self.wanting(hash, is_broadcast, filters, &routes.groups);
        wanting.all(|(_, inbox)| inbox.has_capacity())
    }

    /// Returns the same for a message with known destinations.
    pub fn has_capacity_for(&self, message: &Envelope, groups: &[Group]) -> bool {
        let filters = message.filters.as_deref().unwrap_or_default();
        let (hash, is_broadcast) = (message.topic_hash, message.is_broadcast());
        self.wanting(hash, is_broadcast, filters, groups).all(|(_, inbox)| inbox.has_capacity())
    }

    /// Returns true if the shards whose members get a message of groups have capacity.
    pub(crate) fn has_capacity_for_groups(&self, groups: &[Group]) -> bool {
        groups.iter().all(|(at, _)| self.inboxes.get(*at).is_none_or(|it| it.has_capacity()))
    }

    /// Makes a message the retained one of its topic, if it was published to be retained.
    pub fn retain(&self, message: &Arc<Envelope>, source: MessageSource) {
        if message.publication.retain
            && let Some(retain) = &self.retain
        {
            retain(message, source);
        }
    }

    /// Passes a message to all inboxes that want it. The caller holds the lock that orders its topic's messages.
    pub fn deliver(
        &self,
        message: &Arc<Envelope>,
        groups: &[Group],
        receipt: Option<&Receipt>,
        source: MessageSource,
    ) {
        self.retain(message, source);
        self.deliver_to_inboxes(message, groups, receipt);
    }

    /// Delivers a message to the inboxes alone.
    pub(crate) fn deliver_to_inboxes(
        &self,
        message: &Arc<Envelope>,
        groups: &[Group],
        receipt: Option<&Receipt>,
    ) {
        let filters = message.filters.as_deref().unwrap_or_default();
        let (hash, is_broadcast) = (message.topic_hash, message.is_broadcast());
        for (at, inbox) in self.wanting(hash, is_broadcast, filters, groups) {
            let ours = groups.iter().filter(|(shard, _)| *shard == at);
            let groups: Vec<Arc<FilterKey>> = ours.map(|(_, key)| key.clone()).collect();
            let (message, receipt) = (message.clone(), receipt.cloned());
            inbox.deliver(Delivery { message, groups, passed: None, receipt });
        }
    }

    /// Passes a message to a shard with members of a group that was tried less often than others. Returns false if
    /// all were tried.
    pub fn pass_on(&self, message: &Arc<Envelope>, key: &Arc<FilterKey>, passed: Passed) -> bool {
        let entry = self.read().entries.get(&key.name).cloned();
        let attempts = |shard| passed.tried.iter().filter(|it| **it == shard).count();
        let shard = entry.and_then(|entry| {
            (0..ROUNDS).find_map(|round| entry.choose_shard(|shard| attempts(shard) <= round))
        });
        let Some(inbox) = shard.and_then(|shard| self.inboxes.get(shard)) else { return false };
        let (message, groups, passed) = (message.clone(), vec![key.clone()], Some(passed));
        inbox.deliver(Delivery { message, groups, passed, receipt: None });
        true
    }

    /// Returns another node with members of a group, except for some nodes.
    pub(crate) fn choose_node(&self, group: &str, but: &[NodeId]) -> Option<NodeId> {
        let entry = self.read().entries.get(group).cloned()?;
        entry.choose_node(|node| !but.contains(&node))
    }

    /// Returns the shard whose member gets the next message of a group, if this node has a member.
    pub(crate) fn choose_shard(&self, group: &str) -> Option<Group> {
        let entry = self.read().entries.get(group).cloned()?;
        Some((entry.choose_shard(|_| true)?, entry.key.clone()))
    }

    /// Sets the number of members that another node has of a group, whose name has this hash.
    pub(crate) fn set_group(&self, node: NodeId, (hash, name): (u64, &str), members: usize) {
        let mut filters = self.write();
        let entry = match (filters.entries.get(name).cloned(), members) {
            (None, 0) => return,
            (None, _) => self.entry(&mut filters, hash, name),
            (Some(entry), _) => entry,
        };
        entry.set_node(node, members);
        self.remove_unused(&mut filters, &entry);
    }

    /// Returns the groups whose members here have changed since the last call, with their new numbers.
    pub(crate) fn take_group_changes(&self) -> GroupChanges {
        let mut filters = self.write();
        let (names, is_whole) = filters.changed.take();
        let members = |name: &Name| filters.entries.get(name).map_or(0, |entry| entry.members());
        let groups = match is_whole {
            false => names.into_iter().map(|name| (members(&name), name)).collect(),
            true => {
                let entries = filters.entries.values().filter(|entry| entry.shared);
                let entries = entries.map(|entry| (entry.members(), entry.key.name.clone()));
                entries.filter(|(members, _)| *members > 0).collect()
            }
        };
        GroupChanges { is_whole, groups }
    }

    fn read(&self) -> RwLockReadGuard<'_, Filters> {
        self.filters.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Filters> {
        self.filters.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Router {
    /// Matches a message again if a filter was added since it was matched: a connection with the new filter may have
    /// read the history up to the message, and relies on getting it. Call it under the lock that orders the message
    /// with such reads.
    pub fn matched_again(&self, message: Arc<Envelope>, version: u64) -> Arc<Envelope> {
        if self.version.load(Acquire) == version {
            return message;
        }
        // Groups have no history: the message goes to those that it first matched.
        let mut found = self.matching(&message.publication.topic);
        found.retain(|entry| !entry.shared);
        Arc::new(Envelope::from(message.message.clone()).matched_by(keys(&found)))
    }
}

impl Routes {
    /// Returns the version for [`Router::matched_again`].
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Takes the groups that share the message.
    pub fn take_groups(&mut self) -> Vec<Group> {
        std::mem::take(&mut self.groups)
    }

    /// Takes the nodes that pass the message to members of groups.
    pub(crate) fn take_choices(&mut self) -> Vec<GroupChoice> {
        std::mem::take(&mut self.choices)
    }

    /// Takes the groups for which this node was chosen, though their last member has left it.
    pub(crate) fn take_left(&mut self) -> Vec<Arc<FilterKey>> {
        std::mem::take(&mut self.left)
    }
}

/// Returns the keys of filters; `None` if there are none.
fn keys(entries: &[Arc<Entry>]) -> Option<Box<[Arc<FilterKey>]>> {
    (!entries.is_empty()).then(|| entries.iter().map(|entry| entry.key.clone()).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, Mutex};

    use model::{Data, Epoch, Message, Position, Publication, name};

    use super::*;

    #[derive(Default)]
    struct Taken(Mutex<Vec<Passed>>);

    impl Inbox for Taken {
        fn wants(&self, _: u64) -> bool {
            false
        }
        fn has_capacity(&self) -> bool {
            true
        }
        fn deliver(&self, delivery: Delivery) {
            self.0.lock().unwrap().push(delivery.passed.unwrap());
        }
        fn notify_gap(&self, _: Arc<Gap>) {}
    }

    fn message() -> Arc<Envelope> {
        let publication = Publication::new("a", Data::Text("x".into()));
        let id = Position { epoch: Epoch(1), offset: 1 };
        Arc::new(Message::new(publication, id, 1, 1).into())
    }

    #[test]
    fn a_message_is_passed_to_each_shard_with_members_in_turn() {
        let inboxes: Vec<Arc<Taken>> = (0..4).map(|_| Arc::default()).collect();
        let router = Router::new(inboxes.iter().map(|it| it.clone() as _).collect());
        let group = name::filter(Some("g"), "a");
        // The first shard has most members, the last one none.
        for shard in [0, 0, 0, 0, 1, 2] {
            router.enter_filter(shard, 7, &group);
        }
        let key = Arc::new(FilterKey { hash: 7, name: group.clone() });
        let (mut passed, mut way) = (Passed::default(), Vec::new());
        while router.pass_on(&message(), &key, passed.clone()) {
            let got = |at: &usize| inboxes[*at].0.lock().unwrap().pop().is_some();
            let at = (0..4).find(got).unwrap();
            way.push(at);
            passed.tried.push(u16::try_from(at).unwrap());
        }
        assert_eq!(way.len(), 9);
        for round in way.chunks_mut(3) {
            round.sort_unstable();
            assert_eq!(round, [0, 1, 2]);
        }
        // If no other shard has members, a shard is tried again.
        (1..3).for_each(|shard| router.leave_filter(shard, &group));
        let passed =
            Passed { tried: vec![0], is_left: true, redispatch: Some(9), ..Passed::default() };
        assert!(router.pass_on(&message(), &key, passed));
        assert_eq!(inboxes[0].0.lock().unwrap().pop().unwrap().tried, [0]);
        (0..4).for_each(|_| router.leave_filter(0, &group));
        assert!(!router.pass_on(&message(), &key, Passed::default()));
    }

    #[test]
    fn a_message_that_is_matched_again_draws_no_turn() {
        let inboxes: Vec<Arc<Taken>> = (0..2).map(|_| Arc::default()).collect();
        let router = Router::new(inboxes.iter().map(|it| it.clone() as _).collect());
        let group = name::filter(Some("g"), "a");
        router.enter_filter(0, 7, &group);
        router.enter_filter(1, 7, &group);
        let mut shards = Vec::new();
        for _ in 0..6 {
            let mut routes = router.routes("a");
            let again = router.matched_again(message(), u64::MAX);
            assert!(again.filters.is_none());
            shards.extend(routes.take_groups().into_iter().map(|(shard, _)| shard));
        }
        assert_eq!(shards, [0, 1, 0, 1, 0, 1]);
        router.enter_filter(1, 8, &name::filter(None, "+"));
        let again = router.matched_again(message(), router.routes("b/c").version() - 1);
        assert_eq!(again.filters.as_deref().map(<[_]>::len), Some(1));
    }

    #[test]
    fn who_sees_the_version_of_the_first_filter_finds_it() {
        for _ in 0..500 {
            let router = Router::new(vec![Arc::<Taken>::default()]);
            let begin = Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    begin.wait();
                    router.enter_filter(0, 7, &name::filter(None, "+"));
                });
                begin.wait();
                loop {
                    let routes = router.routes("a");
                    if routes.version() > 0 {
                        assert!(routes.filters.is_some(), "it is known, and not found");
                        break;
                    }
                }
            });
        }
    }
}
