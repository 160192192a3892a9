//! A search for the topics that filters match: for all filters at once, over an index of names in any parts.

use filters::FilterTrie;
use history::{Matching, TopicCursor, TopicHash};
use model::Name;
use model::filter::has_wildcard;

/// A search for the topics that have messages after an offset and that one of some filters matches.
///
/// The caller either gives all topics to [`TopicSearch::scan`], or scans an index of names in the parts that
/// [`TopicSearch::next_part`] returns.
pub struct TopicSearch {
    requested: FilterTrie<()>,
    /// The prefixes of names that are still to be scanned; the next ones last.
    prefixes: Vec<Name>,
    /// The name after which the current prefix continues.
    behind: Option<String>,
    after: u64,
    found: Matching,
    hash: TopicHash,
}

impl TopicSearch {
    /// Begins a search for topics with messages after the offset `after`. `top` is that of [`history::History::top`].
    pub fn new(filters: &[Name], after: u64, top: u64, hash: TopicHash) -> Self {
        let mut requested = FilterTrie::default();
        filters.iter().for_each(|filter| _ = requested.insert(filter, ()));
        let found = Matching { topics: Vec::new(), top };
        TopicSearch { requested, prefixes: prefixes(filters), behind: None, after, found, hash }
    }

    /// Returns the offset after which the topics need a message.
    pub fn after(&self) -> u64 {
        self.after
    }

    /// Checks a topic whose last message has the offset `last`, or an earlier one.
    pub fn scan(&mut self, name: &str, last: u64) {
        let mut is_match = false;
        if last > self.after {
            self.requested.matching(name, &mut |()| is_match = true);
        }
        if is_match {
            let (hash, topic) = ((self.hash)(name), name.into());
            let cursor = TopicCursor::new(hash, topic, self.after);
            self.found.topics.push((cursor, last));
        }
    }

    /// Returns the prefix of the names to scan next, and the name after which to begin. `None` when all were scanned.
    pub fn next_part(&self) -> Option<(Name, Option<String>)> {
        Some((self.prefixes.last()?.clone(), self.behind.clone()))
    }

    /// Continues after the name `behind`, or with the next prefix without one.
    pub fn end_part(&mut self, behind: Option<String>) {
        self.behind = behind;
        if self.behind.is_none() {
            self.prefixes.pop();
        }
    }

    /// Returns what the search has found.
    pub fn into_found(self) -> Matching {
        self.found
    }
}

/// Returns the prefixes of the names that one of the filters matches; no prefix begins with another one.
fn prefixes(filters: &[Name]) -> Vec<Name> {
    let mut all: Vec<&str> = filters.iter().map(|filter| prefix(filter)).collect();
    all.sort_unstable();
    let mut last = None;
    all.retain(|prefix| {
        let is_apart = last.is_none_or(|last| !prefix.starts_with(last));
        if is_apart {
            last = Some(*prefix);
        }
        is_apart
    });
    all.into_iter().map(Name::from).collect()
}

/// Returns the prefix of all topics that a filter matches.
fn prefix(filter: &str) -> &str {
    if !has_wildcard(filter) {
        return filter;
    }
    let end = filter.find(['+', '#']).unwrap_or(filter.len());
    // `a/#` matches `a`, too.
    filter[..end].strip_suffix('/').unwrap_or(&filter[..end])
}
