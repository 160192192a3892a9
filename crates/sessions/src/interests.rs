//! The topics that are retained for sessions.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use filters::FilterTrie;
use model::filter::has_wildcard;
use model::{Name, Rules, TopicKind};

/// The filters of subscriptions with acknowledgements of sessions that outlive their connections. A message to a
/// topic that one of them matches is retained.
#[derive(Default)]
pub struct Interests {
    noted: RwLock<Noted>,
    count: AtomicUsize,
    /// The rules that say which topics a filter may reach.
    rules: RwLock<Arc<Rules>>,
}

/// The number of sessions with each filter.
#[derive(Default)]
struct Noted {
    /// Filters that name one topic.
    topics: HashMap<Name, u32>,
    /// All other filters.
    filters: FilterTrie<u32>,
}

impl Interests {
    /// Adds a session with the filter.
    pub fn add(&self, filter: &str) {
        let mut noted = self.write();
        if !has_wildcard(filter) {
            *noted.topics.entry(filter.into()).or_default() += 1;
        } else if let Some(sessions) = noted.filters.get_mut(filter) {
            *sessions += 1;
        } else {
            noted.filters.insert(filter, 1);
        }
        self.count.store(noted.topics.len() + noted.filters.len(), Ordering::Relaxed);
    }

    /// Removes a session with the filter.
    pub fn remove(&self, filter: &str) {
        let mut noted = self.write();
        let sessions = match has_wildcard(filter) {
            true => noted.filters.get_mut(filter),
            false => noted.topics.get_mut(filter),
        };
        let Some(sessions) = sessions else { return };
        *sessions -= 1;
        if *sessions == 0 {
            match has_wildcard(filter) {
                true => drop(noted.filters.remove(filter)),
                false => drop(noted.topics.remove(filter)),
            }
        }
        self.count.store(noted.topics.len() + noted.filters.len(), Ordering::Relaxed);
    }

    /// Replaces the rules.
    pub fn set_rules(&self, rules: Arc<Rules>) {
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = rules;
    }

    /// Returns the number of different filters. Nearly free to call.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns true if messages of the topic are retained for a session.
    pub fn holds(&self, topic: &str) -> bool {
        if self.count() == 0 || matches!(TopicKind::of(topic), TopicKind::Filter(_)) {
            return false;
        }
        let noted = self.noted.read().unwrap_or_else(PoisonError::into_inner);
        let mut found = noted.topics.contains_key(topic);
        if !found && !noted.filters.is_empty() {
            noted.filters.matching(topic, &mut |_| found = true);
            found = found && {
                let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
                rules.is_open_to_wildcards(topic)
            };
        }
        found
    }

    fn write(&self) -> RwLockWriteGuard<'_, Noted> {
        self.noted.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use model::{JoinRule, Rule};

    use super::*;

    #[test]
    fn a_filter_counts_as_long_as_a_session_has_it() {
        let interests = Interests::default();
        for filter in ["a/b", "a/+", "a/+", "@alice"] {
            interests.add(filter);
        }
        let holds = |topics: [&str; 4]| topics.map(|topic| interests.holds(topic));
        assert_eq!(holds(["a/b", "a/c", "@alice", "\0a/+"]), [true, true, true, false]);
        assert_eq!(interests.count(), 3);
        for filter in ["a/+", "a/b", "never"] {
            interests.remove(filter);
        }
        assert_eq!(holds(["a/b", "a/c", "b", "*"]), [true, true, false, false]);
        interests.remove("a/+");
        interests.remove("@alice");
        assert_eq!((interests.count(), interests.holds("a/b")), (0, false));
    }

    #[test]
    fn a_wildcard_holds_no_topic_that_is_not_open_to_all() {
        let interests = Interests::default();
        let closed = Rule { pattern: "secret/*".into(), join: JoinRule::Refuse, ..Rule::default() };
        interests.set_rules(Arc::new(Rules { rules: vec![closed], ..Rules::default() }));
        ["#", "secret/a"].iter().for_each(|filter| interests.add(filter));
        let interested = ["a", "secret/a", "secret/b"].map(|topic| interests.holds(topic));
        assert_eq!(interested, [true, true, false]);
    }
}
