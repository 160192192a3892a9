//! Reads topics from memory, and makes replies of the rows that the database has found.

use std::sync::Arc;

use broker::HistoryLog;
use history::{Gone, HistoryError, Page, PageFrom, PageQuery, Piece, Pull};
use history_local::windows::{TopicCursor, is_removal};
use model::{Envelope, Message, Name, Retention};
use store::Record;

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

    /// Makes a piece of the rows that the database has of each topic up to `delivered`.
    pub(crate) fn piece_of(
        &self,
        pull: &Pull,
        delivered: u64,
        found: Vec<TopicRows>,
    ) -> Result<Piece, HistoryError> {
        let (mut messages, mut gone, mut first) = (Vec::new(), Vec::new(), Vec::new());
        let mut through = delivered;
        for (topic, TopicRows { floor, rows, more }) in pull.topics.iter().zip(found) {
            // The topic may have lost its rule since the request: then nothing of it may be read.
            self.rule(&topic.topic).ok_or(HistoryError::NoHistory)?;
            // This node still delivers the messages after `delivered`.
            gone.push(match topic.whole || floor.min(delivered) <= topic.gap_after() {
                true => Gone::Nothing,
                false => Gone::Some,
            });
            if more {
                through = through.min(rows.last().map_or(topic.after, |row| row.offset));
            }
            let mut of_topic = self.messages(topic.hash, &topic.topic, rows)?;
            of_topic.retain(|message| {
                topic.needs_removal(message.id.offset) || !is_removal(&message.publication)
            });
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
