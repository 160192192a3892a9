//! Finds the topics that filters match: searches for all filters at once, and scans each topic once. On disk it does
//! so in steps, between which others may read.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use filters::FilterTrie;
use history::{Completion, HistoryError, HistoryReply, Matching, TopicCursor};
use model::Name;
use model::filter::has_wildcard;
use store::{QueueError, Reader};

use super::Local;
use super::count::panicked;
use crate::error::{queue_error, store_error};

/// Topics that are scanned under one lock, or in one step on disk: other threads get their turns in between.
const SCANNED: u32 = if cfg!(test) { 2 } else { 1_024 };

impl Local {
    /// Finds the topics that one of the filters matches, with messages after an offset. With a store, only the store
    /// knows all of them.
    pub(super) fn topics_matching(
        &self,
        filters: &[Name],
        after: u64,
        completion: Completion<Matching>,
        hash: impl Fn(&str) -> u64 + Send + 'static,
    ) -> Result<HistoryReply<Matching>, HistoryError> {
        // Delivered messages are on disk.
        let top = self.state().delivered;
        let mut requested = FilterTrie::default();
        filters.iter().for_each(|filter| _ = requested.insert(filter, ()));
        let (prefixes, found) = (prefixes(filters), Matching { topics: Vec::new(), top });
        let mut search =
            Search { requested, prefixes, behind: None, after, found, hash: Box::new(hash) };
        if self.0.store.is_none() {
            let mut from = Some(0);
            while let Some(at) = from {
                let each = |name: &Name, last: u64| search.scan(name, last);
                from = self.state().windows.topics_after(at, SCANNED, after, each);
            }
            return Ok(HistoryReply::Now(search.found));
        }
        search.go_on(self.clone(), completion).map_err(|(_, error)| error)?;
        Ok(HistoryReply::Later)
    }
}

/// A search for topics.
struct Search {
    requested: FilterTrie<()>,
    /// The prefixes of names on disk that are still to be scanned; the next ones last.
    prefixes: Vec<Name>,
    /// The name after which the current prefix continues.
    behind: Option<String>,
    after: u64,
    found: Matching,
    hash: Box<dyn Fn(&str) -> u64 + Send>,
}

impl Search {
    fn scan(&mut self, name: &str, last: u64) {
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

    /// Queues the next step for the store's reader. Returns the completion if that is impossible.
    fn go_on(
        self,
        history: Local,
        completion: Completion<Matching>,
    ) -> Result<(), (Option<Completion<Matching>>, HistoryError)> {
        let next = Arc::new(Mutex::new(Some((self, completion))));
        let take =
            |next: &Mutex<Option<_>>| next.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (store, queued) = (history.0.store.clone(), next.clone());
        let job = move |reader: &Reader| {
            if let Some((search, completion)) = take(&queued) {
                search.step(history, reader, completion);
            }
        };
        let result = store.map_or(Err(QueueError::Closed), |store| store.read_later(Box::new(job)));
        result.map_err(|error| (take(&next).map(|(_, completion)| completion), queue_error(error)))
    }

    /// Scans some topics on disk, as long as the caller waits for the reply.
    fn step(mut self, history: Local, reader: &Reader, completion: Completion<Matching>) {
        if !completion.is_awaited() {
            return;
        }
        let scanned = catch_unwind(AssertUnwindSafe(|| self.scan_some(reader)));
        match scanned.unwrap_or_else(|_| Err(panicked())) {
            Ok(true) => completion.complete(Ok(self.found)),
            Ok(false) => {
                if let Err((Some(completion), error)) = self.go_on(history, completion) {
                    completion.complete(Err(error));
                }
            }
            Err(error) => completion.complete(Err(error)),
        }
    }

    /// Returns true when all topics are found.
    fn scan_some(&mut self, reader: &Reader) -> Result<bool, HistoryError> {
        let Some(prefix) = self.prefixes.pop() else { return Ok(true) };
        let behind = self.behind.take();
        let mut each = |name: &str, last: u64| self.scan(name, last);
        let next = reader.each_topic(&prefix, behind.as_deref(), SCANNED as usize, &mut each);
        self.behind = next.map_err(store_error)?;
        if self.behind.is_some() {
            self.prefixes.push(prefix);
        }
        Ok(self.prefixes.is_empty())
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
