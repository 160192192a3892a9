//! Pages of topics that were read from the database a moment ago. Clients that come back at one time, or that enter a
//! compacted topic, need the same ones.

use std::collections::HashMap;
use std::sync::Arc;

use model::{Envelope, Name};

/// The bytes of messages in all pages, at most.
const BYTES_MAX: usize = 16 << 20;

/// The bytes of a page without messages.
const ENTRY_BYTES: usize = 256;

/// The age of a page in milliseconds from which on it counts no more.
const AGE_MS: u64 = 5_000;

/// What a page was read for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PageKey {
    pub topic: Name,
    /// The page has messages after this offset.
    pub after: u64,
    /// The limits of the read.
    pub messages_max: usize,
    pub bytes_max: usize,
}

/// Messages of a topic, the oldest first.
pub(crate) struct TopicPage {
    /// The node had delivered the log up to this offset: a compacted topic has the states of that moment.
    pub delivered: u64,
    /// Some of the topic's messages up to this offset are gone.
    pub floor: u64,
    /// True if the topic has later messages.
    pub more: bool,
    pub messages: Vec<Arc<Envelope>>,
}

/// The pages.
#[derive(Default)]
pub(crate) struct Pages {
    pages: HashMap<PageKey, Entry>,
    /// Those of all entries.
    bytes: usize,
    /// How often all pages were dropped.
    generation: u64,
}

/// A page, with its bytes and the time when its read began.
struct Entry {
    page: Arc<TopicPage>,
    bytes: usize,
    read_ms: u64,
}

/// Pages that count no more. Drop them after the lock is released: that frees their memory.
#[must_use]
#[derive(Default)]
pub(crate) struct DroppedPages(Vec<(PageKey, Entry)>);

/// When a read began.
#[derive(Clone, Copy)]
pub(crate) struct ReadBegin {
    generation: u64,
    read_ms: u64,
}

impl Pages {
    /// Returns a page that has the log up to an offset at least. `now_ms` is in milliseconds of the process's clock.
    pub fn get(&self, key: &PageKey, seen: u64, now_ms: u64) -> Option<Arc<TopicPage>> {
        let Entry { page, read_ms, .. } = self.pages.get(key)?;
        (page.delivered >= seen && now_ms < read_ms + AGE_MS).then(|| page.clone())
    }

    /// Begins a read.
    pub fn begin(&self, now_ms: u64) -> ReadBegin {
        ReadBegin { generation: self.generation, read_ms: now_ms }
    }

    /// Adds a page, unless all pages were dropped since the read began, or a later read has added one.
    pub fn put(&mut self, key: PageKey, page: &Arc<TopicPage>, begin: ReadBegin) -> DroppedPages {
        let bytes = bytes_of(page);
        let is_later = |entry: &Entry| entry.page.delivered > page.delivered;
        let is_late =
            begin.generation != self.generation || self.pages.get(&key).is_some_and(is_later);
        if is_late || bytes > BYTES_MAX {
            return DroppedPages::default();
        }
        let mut dropped = DroppedPages::default();
        if self.bytes + bytes > BYTES_MAX {
            dropped.0.extend(self.pages.drain());
            self.bytes = 0;
        }
        self.bytes += bytes;
        let entry = Entry { page: page.clone(), bytes, read_ms: begin.read_ms };
        if let Some(before) = self.pages.insert(key.clone(), entry) {
            self.bytes -= before.bytes;
            dropped.0.push((key, before));
        }
        dropped
    }

    /// Removes pages that are too old.
    pub fn sweep(&mut self, now_ms: u64) -> DroppedPages {
        let is_old = |entry: &Entry| now_ms >= entry.read_ms + AGE_MS;
        let dropped: Vec<_> = self.pages.extract_if(|_, entry| is_old(entry)).collect();
        self.bytes -= dropped.iter().map(|(_, entry)| entry.bytes).sum::<usize>();
        DroppedPages(dropped)
    }

    /// Removes all pages: messages were deleted that they may have.
    pub fn clear(&mut self) -> DroppedPages {
        (self.bytes, self.generation) = (0, self.generation + 1);
        DroppedPages(self.pages.drain().collect())
    }
}

/// Returns the bytes of a page and of its entry.
fn bytes_of(page: &TopicPage) -> usize {
    page.messages.iter().map(|message| message.bytes()).sum::<usize>() + ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use model::{Data, Epoch, Message, Position, Publication};

    use super::*;

    fn key(topic: &str, after: u64) -> PageKey {
        PageKey { topic: topic.into(), after, messages_max: 9, bytes_max: 9 }
    }

    fn page(delivered: u64, bytes: usize) -> Arc<TopicPage> {
        let publication = Publication::new("a", Data::Text("x".repeat(bytes).into()));
        let message = Message::new(publication, Position { epoch: Epoch(1), offset: 1 }, 0, 0);
        let messages = vec![Arc::new(message.into())];
        Arc::new(TopicPage { delivered, floor: 0, more: false, messages })
    }

    #[test]
    fn a_page_serves_clients_that_have_seen_no_more_for_a_while() {
        let mut pages = Pages::default();
        let begin = pages.begin(100);
        drop(pages.put(key("a", 0), &page(7, 1), begin));
        assert_eq!(pages.get(&key("a", 0), 7, 100).unwrap().delivered, 7);
        assert!(pages.get(&key("a", 0), 8, 100).is_none());
        assert!(pages.get(&key("a", 1), 7, 100).is_none());
        assert!(pages.get(&key("b", 0), 7, 100).is_none());
        assert!(pages.get(&key("a", 0), 7, 100 + AGE_MS).is_none());
        // A read that took longer has less.
        drop(pages.put(key("a", 0), &page(6, 1), begin));
        assert_eq!(pages.get(&key("a", 0), 6, 100).unwrap().delivered, 7);
        drop(pages.sweep(99 + AGE_MS));
        assert_eq!(pages.pages.len(), 1);
        drop(pages.sweep(100 + AGE_MS));
        assert_eq!((pages.pages.len(), pages.bytes), (0, 0));
    }

    #[test]
    fn what_was_read_before_a_deletion_counts_no_more() {
        let mut pages = Pages::default();
        let before = pages.begin(0);
        drop(pages.put(key("a", 0), &page(7, 1), before));
        assert_eq!(pages.clear().0.len(), 1);
        assert!(pages.get(&key("a", 0), 7, 0).is_none());
        drop(pages.put(key("a", 0), &page(7, 1), before));
        assert!(pages.get(&key("a", 0), 7, 0).is_none(), "the read began before");
        let begin = pages.begin(0);
        drop(pages.put(key("a", 0), &page(7, 1), begin));
        assert!(pages.get(&key("a", 0), 7, 0).is_some());
    }

    #[test]
    fn pages_have_a_limit() {
        let mut pages = Pages::default();
        let begin = pages.begin(0);
        // The text counts twice.
        (0..5).for_each(|after| drop(pages.put(key("a", after), &page(7, 2 << 20), begin)));
        assert!(pages.bytes <= BYTES_MAX && pages.get(&key("a", 4), 7, 0).is_some());
        let before = pages.bytes;
        drop(pages.put(key("a", 4), &page(8, 2 << 20), begin));
        assert_eq!(pages.bytes, before);
        drop(pages.put(key("b", 0), &page(7, BYTES_MAX), begin));
        assert!(pages.get(&key("b", 0), 7, 0).is_none());
        assert!(pages.bytes > 0 && !pages.clear().0.is_empty());
    }
}
