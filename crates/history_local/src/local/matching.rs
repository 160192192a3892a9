//! Finds the topics that filters match.

use history::{Answer, Completion, HistoryError, Matching, TopicCursor};
use model::Name;
use model::filter::{has_wildcard, matches};
use store::Reader;

use super::Local;
use super::count::panicked;
use crate::error::{queue_error, store_error};

/// Topics that are looked at in one hold of the lock: publishers have their turns in between.
const LOOKED: u32 = 1_024;

impl Local {
    /// The topics that one of the filters matches, with messages after an offset. With a store, only that
    /// knows all of them.
    pub(super) fn topics_matching(
        &self,
        filters: &[Name],
        after: u64,
        completion: Completion<Matching>,
        hash: impl Fn(&str) -> u64 + Send + 'static,
    ) -> Result<Answer<Matching>, HistoryError> {
        let Some(store) = &self.0.store else {
            let (top, names) = self.names_in_memory(filters, after);
            let topics = names.into_iter().map(|topic| cursor(topic, after, &hash));
            return Ok(Answer::Now(Matching { topics: topics.collect(), top }));
        };
        let (history, filters) = (self.clone(), filters.to_vec());
        let job = move |reader: &Reader| {
            if !completion.is_wanted() {
                return;
            }
            let find = || history.find_on_disk(reader, &filters, after, &hash);
            let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(find));
            completion.complete(found.unwrap_or_else(|_| Err(panicked())));
        };
        store.read_later(Box::new(job)).map_err(queue_error)?;
        Ok(Answer::Later)
    }

    fn names_in_memory(&self, filters: &[Name], after: u64) -> (u64, Vec<Name>) {
        let top = self.state().delivered;
        let (mut names, mut from) = (Vec::new(), Some(0));
        while let Some(at) = from {
            from = self.state().windows.topics_after(at, LOOKED, after, |name| {
                if filters.iter().any(|filter| matches(filter, name)) {
                    names.push(name.clone());
                }
            });
        }
        (top, names)
    }

    fn find_on_disk(
        &self,
        reader: &Reader,
        filters: &[Name],
        after: u64,
        hash: &impl Fn(&str) -> u64,
    ) -> Result<Matching, HistoryError> {
        // What is handed on is on disk.
        let top = self.state().delivered;
        let mut topics = Vec::new();
        for filter in filters {
            let prefix = prefix(filter);
            let each = |name: &str, last: u64| {
                if last > after && matches(filter, name) {
                    topics.push(cursor(name.into(), after, hash));
                }
            };
            reader.each_topic(prefix, each).map_err(store_error)?;
        }
        topics.sort_by(|a, b| a.topic.cmp(&b.topic));
        topics.dedup_by(|a, b| a.topic == b.topic);
        Ok(Matching { topics, top })
    }
}

/// What the names of all topics begin with that a filter matches.
fn prefix(filter: &str) -> &str {
    if !has_wildcard(filter) {
        return filter;
    }
    let end = filter.find(['+', '#']).unwrap_or(filter.len());
    // `a/#` matches `a`, too.
    filter[..end].strip_suffix('/').unwrap_or(&filter[..end])
}

fn cursor(topic: Name, after: u64, hash: &impl Fn(&str) -> u64) -> TopicCursor {
    TopicCursor { hash: hash(&topic), topic, after, whole: false }
}
