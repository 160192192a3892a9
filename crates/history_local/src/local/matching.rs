//! Finds the topics that filters match: searches for all filters at once, and scans each topic once. On disk it does
//! so in steps, between which others may read.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use history::{Completion, HistoryError, HistoryReply, Matching, TopicHash};
use model::Name;
use store::{QueueError, Reader};

use super::Local;
use super::count::panicked;
use crate::error::{queue_error, store_error};
use crate::search::TopicSearch;

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
        hash: TopicHash,
    ) -> Result<HistoryReply<Matching>, HistoryError> {
        // Delivered messages are on disk.
        let top = self.state().delivered;
        let mut search = TopicSearch::new(filters, after, top, hash);
        if self.0.store.is_none() {
            let mut from = Some(0);
            while let Some(at) = from {
                let each = |name: &Name, last: u64| search.scan(name, last);
                from = self.state().windows.topics_after(at, SCANNED, after, each);
            }
            return Ok(HistoryReply::Now(search.into_found()));
        }
        Search(search).go_on(self.clone(), completion).map_err(|(_, error)| error)?;
        Ok(HistoryReply::Later)
    }
}

/// A search on disk, in steps between which others may read.
struct Search(TopicSearch);

impl Search {
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
            Ok(true) => completion.complete(Ok(self.0.into_found())),
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
        let Self(search) = self;
        let Some((prefix, behind)) = search.next_part() else { return Ok(true) };
        let mut each = |name: &str, last: u64| search.scan(name, last);
        let next = reader.each_topic(&prefix, behind.as_deref(), SCANNED as usize, &mut each);
        search.end_part(next.map_err(store_error)?);
        Ok(search.next_part().is_none())
    }
}
