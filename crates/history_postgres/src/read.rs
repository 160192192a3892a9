//! Reads topics from memory, and makes replies of the rows that the database has found.

use std::sync::Arc;

use broker::HistoryLog;
use history::{Gone, HistoryError, Page, PageFrom, PageQuery, Piece, Pull, TopicCursor as Topic};
use history_local::windows::{TopicCursor, is_removal};
use model::{Envelope, Message, Name, Retention};
use store::Record;

use crate::pages::{PageKey, ReadBegin, TopicPage};
use crate::postgres::{Postgres, unix_ms};
use crate::resolve::before_newest;
use crate::session::{TopicRow, TopicRows};

/// The result of a read of a page from memory.
pub(crate) enum MemoryPage {
    /// Memory has the whole page.
    Whole(Page),
    /// Memory lacks a part of the page: the caller reads the database.
    Missing,
}

impl Postgres {
    /// Returns the next piece, or `None` if memory lacks a part of it.
    pub(crate) fn read_memory(&self, pull: &Pull) -> Option<Piece> {
        let state = self.state();
        let topics = &pull.topics;
        if !topics.iter().all(|it| state.windows.reaches(it.hash, &it.topic, it.after)) {
            return None;
        }
        let cursors: Vec<TopicCursor<'_>> = topics.iter().map(Into::into).collect();
        let found = state.windows.collect(&cursors, pull.messages_max, pull.bytes_max, unix_ms());
        Some(Piece {
            messages: found.messages,
            through: found.through.unwrap_or(state.delivered),
            caught_up: found.through.is_none(),
            gone: vec![Gone::Nothing; topics.len()],
            first: found.first,
        })
    }

    /// Returns what the page of a request is read for; `None` if pages of it serve no other client. Of topics that users
    /// acknowledge, the server reads what is gone by now.
    fn page_key(&self, pull: &Pull) -> Option<PageKey> {
        let [topic] = &pull.topics[..] else { return None };
        self.rule(&topic.topic).filter(|rule| rule.acknowledge.is_none())?;
        Some(PageKey {
            topic: topic.topic.clone(),
            after: topic.after,
            messages_max: pull.messages_max,
            bytes_max: pull.bytes_max,
        })
    }

    /// Returns the page of the only topic of a request, if it was read a moment ago, and the topic had nothing between that
    /// and the begin of the client.
    pub(crate) fn known_page(&self, pull: &Pull) -> Option<Arc<TopicPage>> {
        let key = self.page_key(pull)?;
        let (topic, now_ms, state) = (&pull.topics[0], self.now_ms(), self.state());
        // A client gets no removal of a key from before it began: a page from before that may have the key.
        let last = state.windows.last(topic.hash, &topic.topic);
        let last = last.unwrap_or_else(|| state.windows.last_gone());
        state.pages.get(&key, topic.state_top.min(last), now_ms)
    }

    /// Makes pages of the rows that the database has of each topic up to `delivered`. The page of an only topic serves
    /// other clients, too, unless messages were deleted since the read began.
    pub(crate) fn pages_of(
        &self,
        pull: &Pull,
        (delivered, begin): (u64, ReadBegin),
        found: Vec<TopicRows>,
    ) -> Result<Vec<Arc<TopicPage>>, HistoryError> {
        let page = |(topic, TopicRows { floor, rows, more }): (&Topic, TopicRows)| {
            let messages = self.messages(topic.hash, &topic.topic, rows)?;
            Ok(Arc::new(TopicPage { delivered, floor, more, messages }))
        };
        let pages = pull.topics.iter().zip(found).map(page);
        let pages: Vec<Arc<TopicPage>> = pages.collect::<Result<_, HistoryError>>()?;
        if let (Some(key), Some(page)) = (self.page_key(pull), pages.first()) {
            let dropped = self.state().pages.put(key, page, begin);
            drop(dropped);
        }
        Ok(pages)
    }

    /// Makes a piece of the page of each topic.
    pub(crate) fn piece_of(
        &self,
        pull: &Pull,
        pages: &[Arc<TopicPage>],
    ) -> Result<Piece, HistoryError> {
        let (mut messages, mut gone, mut first) = (Vec::new(), Vec::new(), Vec::new());
        // All pages of a request are of one moment.
        let delivered = pages.first().map_or(0, |page| page.delivered);
        let (mut through, now_ms) = (delivered, unix_ms());
        for (topic, page) in pull.topics.iter().zip(pages) {
            // The topic may have lost its rule since the request: then nothing of it may be read.
            self.rule(&topic.topic).ok_or(HistoryError::NoHistory)?;
            // This node still delivers the messages after `delivered`.
            gone.push(match topic.whole || page.floor.min(delivered) <= topic.gap_after() {
                true => Gone::Nothing,
                false => Gone::Some,
            });
            if page.more {
                let last = page.messages.last().map_or(topic.after, |message| message.id.offset);
                through = through.min(last);
            }
            let is_expected = |message: &&Arc<Envelope>| {
                let is_needed =
                    topic.needs_removal(message.id.offset) || !is_removal(&message.publication);
                is_needed && !message.is_expired(now_ms)
            };
            let of_topic: Vec<Arc<Envelope>> =
                page.messages.iter().filter(is_expected).cloned().collect();
            first.push(of_topic.first().map(|message| message.id.offset));
            messages.extend(of_topic);
        }
        messages.retain(|message| message.id.offset <= through);
        messages.sort_unstable_by_key(|message| message.id.offset);
        let mut bytes = 0;
        let mut fits = |message: &Arc<Envelope>| {
            let before = bytes;
            bytes += message.publication.data.bytes();
            before <= pull.bytes_max
        };
        let messages_max = pull.messages_max.max(1);
        let count = messages.iter().take_while(|message| fits(message)).count().min(messages_max);
        if count < messages.len() {
            messages.truncate(count.max(1));
            through = messages.last().map_or(through, |message| message.id.offset);
        }
        let (through, caught_up) = match through < delivered {
            true => (through, false),
            false => self.follow(pull, through),
        };
        Ok(Piece { messages, through, caught_up, gone, first })
    }

    /// Returns the offset up to which topics are read after a read of the database up to `through`, and true if that
    /// is the end: memory reaches back to `through` and has no later message.
    fn follow(&self, pull: &Pull, through: u64) -> (u64, bool) {
        let state = self.state();
        let cursors: Vec<TopicCursor<'_>> =
            pull.topics.iter().map(|it| TopicCursor { after: through, ..it.into() }).collect();
        let is_known = |it: &TopicCursor<'_>| state.windows.reaches(it.hash, it.topic, through);
        let is_end = cursors.iter().all(is_known)
            && state.windows.collect(&cursors, 1, 0, unix_ms()).messages.is_empty();
        if is_end { (state.delivered, true) } else { (through, false) }
    }

    /// Returns a page, if memory has it.
    pub(crate) fn page_of_memory(&self, query: &PageQuery) -> MemoryPage {
        let PageQuery { hash, ref topic, backwards, limit, .. } = *query;
        let state = self.state();
        let from = match query.from {
            PageFrom::Newest(messages) if !backwards => {
                match before_newest(&state, hash, topic, messages) {
                    Some(before) => Some(before),
                    None => return MemoryPage::Missing,
                }
            }
            PageFrom::End | PageFrom::Offset(_) | PageFrom::Newest(_) => query.from.offset(),
        };
        let oldest = if backwards { 0 } else { from.unwrap_or(0) };
        let page = state.windows.page(hash, topic, from, backwards, limit, unix_ms());
        // A full page backwards is complete, however far the window reaches.
        let is_full = backwards && page.messages.len() == limit && page.more;
        match is_full || state.windows.reaches(hash, topic, oldest) {
            true => {
                let (messages, more) = (page.messages, page.more);
                MemoryPage::Whole(Page { messages, more, gone: false, gap: None })
            }
            false => MemoryPage::Missing,
        }
    }

    /// Makes a page of the rows that the database has found.
    pub(crate) fn page_of(
        &self,
        query: &PageQuery,
        found: TopicRows,
    ) -> Result<Page, HistoryError> {
        self.rule(&query.topic).ok_or(HistoryError::NoHistory)?;
        let TopicRows { floor, rows, more } = found;
        let gone = query.from.offset().is_some_and(|from| !query.backwards && floor > from);
        let messages = self.messages(query.hash, &query.topic, rows)?;
        Ok(Page { messages, more, gone, gap: None })
    }

    fn messages(
        &self,
        hash: u64,
        topic: &Name,
        rows: Vec<TopicRow>,
    ) -> Result<Vec<Arc<Envelope>>, HistoryError> {
        let decode = |row: TopicRow| {
            let record = Record::decode(topic, row.offset, &row.record).map_err(|_| {
                let text = format!(
                    "the message {} of {topic:?} in PostgreSQL is damaged, or of a newer version: delete the topic's \
                     history, or start the newer version",
                    row.offset
                );
                HistoryError::Damaged(text.into())
            })?;
            let message = Message::new(record.publication, self.id(row.offset), hash, 0);
            Ok(Arc::new(Envelope::from(message.retained(Retention::History, row.at_ms))))
        };
        rows.into_iter().map(decode).collect()
    }
}
