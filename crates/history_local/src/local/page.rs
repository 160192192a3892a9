//! Pages of a topic's history, and its deletion.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use broker::HistoryLog;
use model::{Envelope, Message, Name};
use store::{ReadLimits, Reader, StoredMessages};

use super::count::{Count, RequestedTopic, panicked};
use super::{Local, retention, unix_ms};
use crate::error::{queue_error, store_error};
use history::{Completion, HistoryError, HistoryReply, Page, PageFrom, PageQuery};

/// Reads for one page, at most, if many messages have expired.
const PASSES: usize = 64;

impl Local {
    /// Returns a page at once if memory has it, and otherwise by the store's reader.
    pub(super) fn page_of(
        &self,
        query: PageQuery,
        completion: Completion<Page>,
    ) -> Result<HistoryReply<Page>, HistoryError> {
        let PageQuery { hash, ref topic, backwards, limit, .. } = query;
        let (page, from, whole) = {
            let state = self.state();
            let newest = |messages| self.before_newest(&state, hash, topic, messages);
            let (from, known) = match query.from {
                PageFrom::Newest(messages) if !backwards => {
                    let before = newest(messages);
                    (before, before.is_some())
                }
                from => (from.offset(), true),
            };
            let oldest = if backwards { 0 } else { from.unwrap_or(0) };
            let page = state.windows.page(hash, topic, from, backwards, limit, unix_ms());
            // A backwards page with `limit` messages is complete, however far the window reaches.
            let full = backwards && page.messages.len() == limit && page.more;
            (page, from, known && (full || state.windows.reaches(hash, topic, oldest)))
        };
        let (Some(store), false) = (&self.0.store, whole) else {
            return Ok(HistoryReply::Now(Page {
                messages: page.messages,
                more: page.more,
                gone: !whole && query.from.offset().is_some(),
                gap: None,
            }));
        };
        if let (PageFrom::Newest(messages), None, false) = (query.from, from, backwards) {
            let requested = vec![RequestedTopic { hash, topic: topic.clone(), messages }];
            let read = move |history: &Local, reader: &Reader, found: &[(u64, u64)]| {
                history.read_page(reader, &query, found.first().map(|(_, after)| *after))
            };
            self.count_later(Count::new(requested, completion, read))?;
            return Ok(HistoryReply::Later);
        }
        let history = self.clone();
        self.0.counts.disk_reads.fetch_add(1, Ordering::Relaxed);
        // Log lines belong to the request.
        let span = tracing::Span::current();
        let job = move |reader: &Reader| {
            if !completion.is_awaited() {
                return;
            }
            // The caller waits for the reply, even after a panic.
            let read = || span.in_scope(|| history.read_page(reader, &query, from));
            let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
            completion.complete(read.unwrap_or_else(|_| Err(panicked())));
        };
        store.read_later(Box::new(job)).map_err(queue_error)?;
        Ok(HistoryReply::Later)
    }

    /// Reads a page from the disk. `from` is the offset, or that before the newest messages.
    fn read_page(
        &self,
        reader: &Reader,
        query: &PageQuery,
        from: Option<u64>,
    ) -> Result<Page, HistoryError> {
        let PageQuery { hash, ref topic, backwards, limit, bytes_max, .. } = *query;
        let now_ms = unix_ms();
        let delivered = self.state().delivered;
        let amount = ReadLimits { messages_max: limit, bytes_max };
        let read = |from: Option<u64>| match backwards {
            true => reader.before(topic, from.unwrap_or(u64::MAX), amount, now_ms),
            false => reader.after(topic, from.unwrap_or(0), amount, now_ms),
        };
        let mut stored = read(from);
        // This skips expired messages, a piece at a time.
        for _ in 0..PASSES {
            match &stored {
                Ok(found) if found.records.is_empty() && found.more => {
                    stored = read(Some(found.through));
                }
                _ => break,
            }
        }
        let stored = stored
            .inspect_err(|error| self.0.log.failed_read(topic, error))
            .map_err(store_error)?;
        let Some(rule) = self.rule(topic) else {
            // The store may still have messages under former rules, but clients may no longer read them.
            return match stored.records.is_empty() {
                true => Err(HistoryError::NoHistory),
                false => Ok(Page { more: true, ..Page::default() }),
            };
        };
        let gap = gap(&stored, query.from.offset(), backwards);
        // Messages on disk that are not delivered yet come with the next page.
        let records = stored.records.into_iter().filter(|record| record.offset <= delivered);
        let messages = records.map(|record| {
            let message = Message::new(record.publication, self.id(record.offset), hash, 0);
            Arc::new(Envelope::from(message.retained(retention(&rule), record.at_ms)))
        });
        let gone = query.from.offset().is_some_and(|from| !backwards && stored.floor > from);
        let gone = gone || gap.is_some();
        Ok(Page { messages: messages.collect(), more: stored.more, gone, gap })
    }

    /// Deletes a topic's history up to now.
    pub(super) fn delete_topic(
        &self,
        hash: u64,
        topic: &str,
        completion: Completion<()>,
    ) -> Result<HistoryReply<()>, HistoryError> {
        let through = {
            let mut state = self.state();
            // With a store, this includes messages being written: they reach the disk before the deletion.
            let through = state.last;
            state.windows.delete(hash, topic, through);
            through
        };
        let Some(store) = &self.0.store else { return Ok(HistoryReply::Now(())) };
        let (history, topic) = (self.clone(), Name::from(topic));
        let name = topic.clone();
        let written = move |result: Result<(), store::StoreError>| {
            // Messages that were written meanwhile have entered the window since.
            history.state().windows.delete(hash, &name, through);
            completion.complete(result.map_err(store_error));
        };
        store.delete_history(&topic, through, Box::new(written)).map_err(queue_error)?;
        Ok(HistoryReply::Later)
    }
}

/// Returns the recovery gap in a page's messages. Backwards without an offset the page has the last messages.
fn gap(stored: &StoredMessages, from: Option<u64>, backwards: bool) -> Option<(u64, u64)> {
    let (after, through) = stored.lost_range?;
    let is_requested = match backwards {
        true => from.is_none_or(|from| from > after + 1) && stored.through <= through,
        false => from.unwrap_or(0) < through && (!stored.more || stored.through > after),
    };
    is_requested.then_some((after, through))
}
