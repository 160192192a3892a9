//! The ways of a message to the shards: by its topic, and by the filters that match it.

use std::collections::HashMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use filters::FilterTrie;
use model::filter::has_wildcard;
use model::name::of_filter;
use model::{Envelope, FilterKey, Name, Rules, TopicKind};

use crate::{Delivery, Gap, Inbox, Passed, Receipt};

/// The shards' inboxes, and which filters their connections have.
///
/// A message is matched once, outside of all locks but this one's, and only where anybody has a
/// filter.
pub struct Router {
    inboxes: Vec<Arc<dyn Inbox>>,
    /// Somebody has a filter.
    any: AtomicBool,
    filters: RwLock<Filters>,
    /// How often a filter came that nobody had before.
    version: AtomicU64,
    /// Which topics a filter may reach.
    rules: RwLock<Arc<Rules>>,
    retain: Option<Retain>,
}

/// Takes the messages that are to be their topics' retained ones, in the order of each topic.
pub type Retain = Arc<dyn Fn(&Arc<Envelope>) + Send + Sync>;

/// How often a shard is asked for a member that gets a message.
const ROUNDS: usize = 3;

#[derive(Default)]
struct Filters {
    /// By the filter: a filter of its own, and those of groups.
    trie: FilterTrie<Vec<Arc<Entry>>>,
    /// By the name in the hub.
    entries: HashMap<Name, Arc<Entry>>,
}

/// A filter that connections have.
struct Entry {
    key: Arc<FilterKey>,
    /// One member of all gets a message, and not each.
    shared: bool,
    /// How many connections each shard has.
    members: Box<[AtomicUsize]>,
    /// Messages that a group has had.
    turn: AtomicUsize,
}

/// Where a message goes beside its topic's members.
#[derive(Debug, Default)]
pub struct Routes {
    /// The filters that match it.
    pub filters: Option<Box<[Arc<FilterKey>]>>,
    /// The groups that share it, each with the shard whose member gets it.
    groups: Vec<Group>,
    version: u64,
}

/// A group that shares a message, with the number of the shard whose member gets it.
pub type Group = (usize, Arc<FilterKey>);

impl Router {
    /// The way to these inboxes, which are in the order of their shards' numbers.
    pub fn new(inboxes: Vec<Arc<dyn Inbox>>) -> Self {
        Router {
            inboxes,
            any: AtomicBool::new(false),
            filters: RwLock::default(),
            version: AtomicU64::new(0),
            rules: RwLock::default(),
            retain: None,
        }
    }

    /// The same; messages that are to be retained go there as well.
    #[must_use]
    pub fn retaining(mut self, retain: Retain) -> Self {
        self.retain = Some(retain);
        self
    }

    /// Takes new rules: a filter reaches topics alone that anybody may enter.
    pub fn set_rules(&self, rules: Arc<Rules>) {
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = rules;
    }

    /// Has all shards send their members notices of a gap.
    pub(crate) fn notify_gap(&self, gap: &Arc<Gap>) {
        self.inboxes.iter().for_each(|inbox| inbox.notify_gap(gap.clone()));
    }

    /// A connection of a shard has a filter from now on, by its name in the hub
    /// ([`model::name::filter`]), whose hash this is.
    pub fn enter_filter(&self, shard: u16, hash: u64, name: &str) {
        let mut filters = self.write();
        let Filters { trie, entries } = &mut *filters;
        let entry = entries.entry(name.into()).or_insert_with(|| {
            let (group, filter) = of_filter(name).unwrap_or((None, name));
            let members = self.inboxes.iter().map(|_| AtomicUsize::new(0)).collect();
            let key = Arc::new(FilterKey { hash, name: name.into() });
            let (shared, turn) = (group.is_some(), AtomicUsize::new(0));
            let entry = Arc::new(Entry { key, shared, members, turn });
            match trie.get_mut(filter) {
                Some(entries) => entries.push(entry.clone()),
                None => drop(trie.insert(filter, vec![entry.clone()])),
            }
            // Who sees the version sees that somebody has a filter, and waits for this lock.
            self.any.store(true, Relaxed);
            self.version.fetch_add(1, Release);
            entry
        });
        if let Some(members) = entry.members.get(usize::from(shard)) {
            members.fetch_add(1, Relaxed);
        }
    }

    /// A connection of a shard has a filter no longer.
    pub fn leave_filter(&self, shard: u16, name: &str) {
        let mut filters = self.write();
        let Filters { trie, entries } = &mut *filters;
        let Some(entry) = entries.get(name) else { return };
        if let Some(members) = entry.members.get(usize::from(shard)) {
            // All changes are made under the lock.
            members.store(members.load(Relaxed).saturating_sub(1), Relaxed);
        }
        if entry.members.iter().any(|members| members.load(Relaxed) > 0) {
            return;
        }
        let filter = of_filter(name).map_or(name, |(_, filter)| filter);
        if let Some(entries) = trie.get_mut(filter) {
            entries.retain(|other| other.key.name != name);
            if entries.is_empty() {
                trie.remove(filter);
            }
        }
        entries.remove(name);
        self.any.store(!entries.is_empty(), Relaxed);
    }

    /// All connections of a shard have no filter any more.
    pub fn leave_filters(&self, shard: u16) {
        let filters = self.read();
        let here = |entry: &&Arc<Entry>| {
            let members = entry.members.get(usize::from(shard));
            members.is_some_and(|members| members.load(Relaxed) > 0)
        };
        let names: Vec<Name> =
            filters.entries.values().filter(here).map(|entry| entry.key.name.clone()).collect();
        drop(filters);
        for name in names {
            let entry = self.read().entries.get(&name).cloned();
            let members = entry.as_ref().and_then(|it| it.members.get(usize::from(shard)));
            members.into_iter().for_each(|members| members.store(1, Relaxed));
            self.leave_filter(shard, &name);
        }
    }

    /// Different filters that connections have.
    pub fn filters(&self) -> usize {
        self.read().entries.len()
    }

    /// Where a message of this topic goes beside the topic's members. To be asked before any lock is
    /// taken.
    pub fn routes(&self, topic: &str) -> Routes {
        let version = self.version.load(Acquire);
        let (alone, shared): (Vec<_>, Vec<_>) =
            self.matching(topic).into_iter().partition(|entry| !entry.shared);
        let groups =
            shared.iter().filter_map(|entry| Some((entry.choose(|_| true)?, entry.key.clone())));
        Routes { filters: keys(&alone), groups: groups.collect(), version }
    }

    /// What connections have that matches a topic, and may reach it.
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
            // A group or a filter without a wildcard names one topic, which was decided about.
            found.retain(|entry| {
                of_filter(&entry.key.name).is_some_and(|(_, filter)| !has_wildcard(filter))
            });
        }
        found
    }

    /// The inboxes that want a message, which is everyone's or of a topic with this hash.
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

    /// Whether all inboxes that want a message have capacity for it.
    pub fn has_capacity(&self, hash: u64, is_broadcast: bool, routes: &Routes) -> bool {
        let filters = routes.filters.as_deref().unwrap_or_default();
        let mut wanting = self.wanting(hash, is_broadcast, filters, &routes.groups);
        wanting.all(|(_, inbox)| inbox.has_capacity())
    }

    /// The same for a message whose ways are known.
    pub fn has_capacity_for(&self, message: &Envelope, groups: &[Group]) -> bool {
        let filters = message.filters.as_deref().unwrap_or_default();
        let (hash, is_broadcast) = (message.topic_hash, message.is_broadcast());
        self.wanting(hash, is_broadcast, filters, groups).all(|(_, inbox)| inbox.has_capacity())
    }

    /// Gives a message to all inboxes that want it. The caller holds the lock that orders its topic's
    /// messages.
    pub fn deliver(&self, message: &Arc<Envelope>, groups: &[Group], receipt: Option<&Receipt>) {
        if message.publication.retain
            && let Some(retain) = &self.retain
        {
            retain(message);
        }
        let filters = message.filters.as_deref().unwrap_or_default();
        let (hash, is_broadcast) = (message.topic_hash, message.is_broadcast());
        for (at, inbox) in self.wanting(hash, is_broadcast, filters, groups) {
            let ours = groups.iter().filter(|(shard, _)| *shard == at);
            let groups: Vec<Arc<FilterKey>> = ours.map(|(_, key)| key.clone()).collect();
            let (message, receipt) = (message.clone(), receipt.cloned());
            inbox.deliver(Delivery { message, groups, passed: None, receipt });
        }
    }

    /// Gives a message to a shard with members of a group that was asked less often than others. False where
    /// all were asked.
    pub fn pass_on(&self, message: &Arc<Envelope>, key: &Arc<FilterKey>, passed: Passed) -> bool {
        let entry = self.read().entries.get(&key.name).cloned();
        let attempts = |shard| passed.tried.iter().filter(|it| **it == shard).count();
        let shard = entry.and_then(|entry| {
            (0..ROUNDS).find_map(|round| entry.choose(|shard| attempts(shard) <= round))
        });
        let Some(inbox) = shard.and_then(|shard| self.inboxes.get(shard)) else { return false };
        let (message, groups, passed) = (message.clone(), vec![key.clone()], Some(passed));
        inbox.deliver(Delivery { message, groups, passed, receipt: None });
        true
    }

    fn read(&self) -> RwLockReadGuard<'_, Filters> {
        self.filters.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Filters> {
        self.filters.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Router {
    /// The same message as it is matched now, if a filter has come since it was matched: whoever has the
    /// filter since then may have read the history up to the message, and counts on getting it. To be
    /// asked under the lock that orders it with such reads.
    pub fn matched_again(&self, message: Arc<Envelope>, version: u64) -> Arc<Envelope> {
        if self.version.load(Acquire) == version {
            return message;
        }
        // Groups have no memory: it goes to those that it was matched with.
        let mut found = self.matching(&message.publication.topic);
        found.retain(|entry| !entry.shared);
        Arc::new(Envelope::from(message.message.clone()).matched_by(keys(&found)))
    }
}

impl Routes {
    /// What [`Router::matched_again`] wants.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The groups that share the message.
    pub fn take_groups(&mut self) -> Vec<Group> {
        std::mem::take(&mut self.groups)
    }
}

impl Entry {
    /// The shard whose member gets the next message of a group, of those that may: each as often as it has
    /// members.
    fn choose(&self, may: impl Fn(u16) -> bool) -> Option<usize> {
        let members = |(shard, members): (usize, &AtomicUsize)| match u16::try_from(shard) {
            Ok(shard) if may(shard) => members.load(Relaxed),
            _ => 0,
        };
        let all: usize = self.members.iter().enumerate().map(members).sum();
        let mut turn = self.turn.fetch_add(1, Relaxed).checked_rem(all)?;
        self.members.iter().enumerate().position(|at| {
            let here = members(at);
            let is_here = turn < here;
            turn = turn.wrapping_sub(here);
            is_here
        })
    }
}

/// The keys of filters; nothing where there are none.
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
        // Where there is nobody else, who was asked is asked again.
        (1..3).for_each(|shard| router.leave_filter(shard, &group));
        let passed = Passed { tried: vec![0], is_left: true, redispatch: Some(9) };
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
