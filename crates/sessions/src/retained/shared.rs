//! Retained messages that several nodes share by a table.
//!
//! **Writes.** The node where a message was published retains it at once, and writes its row. A message that all nodes get
//! from one log is written by each of them, so that no node's death loses it; its offset decides which write counts.
//!
//! **Other nodes.** A message of another node that reaches this one is retained for now, for those who subscribe before its row
//! comes. It may be older than a row that is here already, so the row is read again some seconds later.
//!
//! **Reads.** Each node has all messages in memory, and reads the rows that have changed, in the order of their changes. A
//! row of a topic for which this node has a write is skipped: that write comes later. So all nodes come to have what
//! the table has.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use model::{Envelope, MessageSource, Name, Publication};

use super::{LocalRetained, Record, RetainedQueue, RetainedTable, RetainedWrite, UNSTORED_MAX};

/// Messages that are read under the lock at a time.
const PAGE_MESSAGES: usize = 256;

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetainedRow {
    /// The topic.
    pub topic: Name,
    /// The record of its message; `None` if it was removed.
    pub record: Option<Vec<u8>>,
}

impl RetainedWrite {
    /// Returns the write of a message's record; `None` if the record can't be read.
    pub fn of_record(record: Vec<u8>) -> Option<Self> {
        let publication = minicbor::decode::<Record>(&record).ok()?.publication;
        let expires_ms = Publication::from(publication).expires_ms();
        Some(RetainedWrite { record: Some(record), expires_ms, ..RetainedWrite::default() })
    }
}

impl LocalRetained {
    /// Makes this node share its messages with others, by the writes in this queue. Call it once, before any message comes.
    pub fn share(&self, queue: Arc<RetainedQueue>) {
        let _ = self.queue.set(queue);
    }

    /// Retains a message, and queues the write of its row.
    pub(super) fn retain_shared(
        &self,
        queue: &RetainedQueue,
        message: &Arc<Envelope>,
        source: MessageSource,
    ) {
        let is_in_log = match source {
            MessageSource::OtherNode => return self.retain_until_row(queue, message),
            MessageSource::SharedLog => true,
            MessageSource::Here => false,
        };
        let topic = &message.publication.topic;
        // The lock orders the queue like the messages.
        let mut table = self.write();
        if is_in_log && table.has_it_or_later(message) {
            return;
        }
        let log_offset = is_in_log.then_some(message.id.offset);
        let is_removal = message.publication.removes_retained();
        if is_removal || !self.has_capacity(&table, message) {
            self.refused.fetch_add(u64::from(!is_removal), Relaxed);
            let is_there = table.of_clients(topic).is_some();
            table.remove_of_clients(topic);
            // Another node may have capacity for a message of the log: its write counts in any case.
            let yields = is_in_log && !is_removal;
            // The row may be there even if memory does not have it yet.
            if is_there || queue.pending() < UNSTORED_MAX {
                queue.push(topic, RetainedWrite { log_offset, yields, ..RetainedWrite::default() });
            }
            return;
        }
        table.insert(message.clone());
        queue.push(topic, RetainedWrite { log_offset, ..self.row_of(message) });
    }

    /// Retains a message of another node, whose row comes later. It may come after a later row, so the row is read again.
    fn retain_until_row(&self, queue: &RetainedQueue, message: &Arc<Envelope>) {
        let topic = &message.publication.topic;
        let is_removal = message.publication.removes_retained();
        let mut table = self.write();
        let present = table.of_clients(topic);
        let is_known = match is_removal {
            true => present.is_none(),
            false => present.is_some_and(|it| it.publication == message.publication),
        };
        let fits = is_removal || self.has_capacity(&table, message);
        if is_known || queue.is_pending(topic) || !fits || !queue.note_unverified(topic) {
            return;
        }
        match is_removal {
            true => table.remove_of_clients(topic),
            false => table.insert(message.clone()),
        }
    }

    /// Returns the write of a message.
    fn row_of(&self, message: &Envelope) -> RetainedWrite {
        RetainedWrite {
            // A record of its own types is always encoded.
            record: minicbor::to_vec(self.record(message)).ok(),
            expires_ms: message.publication.expires_ms(),
            ..RetainedWrite::default()
        }
    }

    /// Queues the writes of all messages whose topics have no row. They may come from a process that did not share them.
    pub fn queue_missing_rows(&self) {
        let Some(queue) = self.queue.get() else { return };
        let mut after: Option<Name> = None;
        loop {
            let table = self.read();
            let some: Vec<Arc<Envelope>> = table
                .names
                .behind(after.as_deref())
                .take(PAGE_MESSAGES)
                .map(|(_, it)| it.clone())
                .collect();
            drop(table);
            for message in some.iter().filter(|message| !message.publication.is_own()) {
                let write = RetainedWrite { yields: true, ..self.row_of(message) };
                queue.push(&message.publication.topic, write);
            }
            match some.last() {
                Some(last) if some.len() == PAGE_MESSAGES => {
                    after = Some(last.publication.topic.clone())
                }
                _ => return,
            }
        }
    }

    /// Writes those messages of [`queue_missing_rows`](Self::queue_missing_rows) all the same that are later, by the time of day, than the rows
    /// that rejected them.
    pub fn queue_later_rows(&self, writes: &[(Name, RetainedWrite)], rejecting: &[RetainedRow]) {
        let Some(queue) = self.queue.get() else { return };
        let at_ms = |record: &Option<Vec<u8>>| {
            minicbor::decode::<Record>(record.as_deref()?).ok().and_then(|record| record.at_ms)
        };
        let rows: HashMap<&str, &RetainedRow> =
            rejecting.iter().map(|row| (&*row.topic, row)).collect();
        for (topic, write) in writes.iter().filter(|(_, write)| write.yields) {
            let Some(row) = rows.get(&**topic).filter(|row| row.record.is_some()) else { continue };
            // The lock orders the queue like the messages.
            let table = self.write();
            if at_ms(&row.record) < at_ms(&write.record) && !queue.is_pending(topic) {
                queue.push(topic, RetainedWrite { yields: false, ..write.clone() });
            }
            drop(table);
        }
    }

    /// Changes messages as rows of the table say, but for topics that this node has a write for. Returns how many rows
    /// could not be read: their topics have no message then. `hash` is the hash of a topic's name in this process.
    pub fn apply_rows(&self, rows: Vec<RetainedRow>, hash: &dyn Fn(&str) -> u64) -> usize {
        let mut damaged = 0;
        for RetainedRow { topic, record } in rows {
            let record = record.as_deref().map(minicbor::decode::<Record>);
            damaged += usize::from(matches!(record, Some(Err(_))));
            let message = record.and_then(Result::ok);
            let message = message.map(|it| Arc::new(it.message(Some(topic.clone()), hash).into()));
            let mut table = self.write();
            if self.queue.get().is_some_and(|queue| queue.is_pending(&topic)) {
                continue;
            }
            match message {
                Some(message) => table.insert(message),
                None => table.remove_of_clients(&topic),
            }
        }
        damaged
    }

    /// Changes messages as all rows of the table say whose topics come after a topic, up to the last row's or, if
    /// `is_last`, up to the end, but for unverified topics, whose rows are read later. The rows are in the order of their
    /// topics. Returns the same as [`apply_rows`](Self::apply_rows).
    pub fn apply_all_rows(
        &self,
        after: Option<&str>,
        mut rows: Vec<RetainedRow>,
        is_last: bool,
        hash: &dyn Fn(&str) -> u64,
    ) -> usize {
        let last = rows.last().filter(|_| !is_last).map(|row| row.topic.clone());
        let present: HashSet<&str> = rows.iter().map(|row| &*row.topic).collect();
        let table = self.read();
        let behind = table.names.behind(after).map(|(topic, _)| topic);
        let range = behind.take_while(|topic| last.as_ref().is_none_or(|last| *topic <= &**last));
        let gone: Vec<RetainedRow> = range
            .filter(|topic| !present.contains(topic))
            .map(|topic| RetainedRow { topic: topic.into(), record: None })
            .collect();
        drop(table);
        drop(present);
        rows.extend(gone);
        // The node that has published such a message may not have written it yet.
        rows.retain(|row| !self.queue.get().is_some_and(|queue| queue.is_unverified(&row.topic)));
        self.apply_rows(rows, hash)
    }
}

impl RetainedTable {
    /// Returns true if the topic has this message or a later one of the same log.
    fn has_it_or_later(&self, message: &Envelope) -> bool {
        self.of_clients(&message.publication.topic).is_some_and(|present| {
            present.id.epoch == message.id.epoch && present.id.offset >= message.id.offset
        })
    }

    /// Removes a topic's message, unless it is the node's message about itself.
    fn remove_of_clients(&mut self, topic: &str) {
        if self.of_clients(topic).is_some() {
            self.remove(topic);
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{Attributes, Data, Epoch, Message, Position};

    use super::*;
    use crate::Retained;

    fn publication(topic: &str, text: &str) -> Publication {
        Publication::new(topic, Data::Text(text.into()))
    }

    fn message(topic: &str, text: &str, epoch: u32, offset: u64) -> Arc<Envelope> {
        let id = Position { epoch: Epoch(epoch), offset };
        Arc::new(Message::new(publication(topic, text), id, 0, offset).into())
    }

    fn shared() -> (LocalRetained, Arc<RetainedQueue>) {
        let (retained, queue) =
            (LocalRetained::new(None), Arc::new(RetainedQueue::new(Box::new(|| ()))));
        retained.share(queue.clone());
        (retained, queue)
    }

    fn row(retained: &LocalRetained, topic: &str, text: &str) -> RetainedRow {
        let record = retained.row_of(&message(topic, text, 7, 1)).record;
        RetainedRow { topic: topic.into(), record: record.filter(|_| !text.is_empty()) }
    }

    fn text(retained: &LocalRetained, topic: &str) -> Option<String> {
        let message = retained.get(topic)?;
        let Data::Text(text) = &message.publication.data else { panic!("{topic}") };
        Some(text.to_string())
    }

    #[test]
    fn rows_replace_messages_that_are_in_the_table() {
        let (retained, queue) = shared();
        retained.retain(&message("a", "here", 1, 1));
        retained
            .apply_rows(vec![row(&retained, "a", "there"), row(&retained, "b", "there")], &|_| 5);
        assert_eq!(text(&retained, "a").unwrap(), "here", "its write comes later");
        assert_eq!(
            (text(&retained, "b").unwrap(), retained.get("b").unwrap().topic_hash),
            ("there".into(), 5)
        );
        queue.take(9, usize::MAX);
        retained.apply_rows(vec![row(&retained, "a", "there")], &|_| 5);
        assert_eq!(text(&retained, "a").unwrap(), "here", "the table may not have it yet");
        queue.written();
        retained.apply_rows(vec![row(&retained, "a", ""), row(&retained, "b", "later")], &|_| 5);
        assert_eq!((text(&retained, "a"), text(&retained, "b").unwrap()), (None, "later".into()));
        let damaged = RetainedRow { topic: "b".into(), record: Some(vec![0xff]) };
        assert_eq!(retained.apply_rows(vec![damaged], &|_| 5), 1);
        assert_eq!((text(&retained, "b"), retained.stats().bytes), (None, 0));
    }

    #[test]
    fn all_rows_remove_what_they_do_not_have() {
        let (retained, queue) = shared();
        let rows = ["a", "b", "c", "d", "e"].map(|topic| row(&retained, topic, "x"));
        retained.apply_rows(rows.to_vec(), &|_| 0);
        retained.retain(&message("d", "waits", 1, 1));
        let own = Attributes { is_own: true, ..Attributes::default() };
        let mut uptime = message("$SYS/broker/uptime", "1", 1, 2).publication.clone();
        uptime.attributes = Some(Box::new(own));
        let id = Position { epoch: Epoch(1), offset: 2 };
        retained.retain(&Arc::new(Message::new(uptime, id, 0, 2).into()));
        retained.apply_all_rows(None, vec![rows[1].clone()], false, &|_| 0);
        let topics = |retained: &LocalRetained| -> Vec<String> {
            let page = retained.all(None, 99);
            page.messages.iter().map(|it| it.publication.topic.to_string()).collect()
        };
        assert_eq!(topics(&retained), ["b", "c", "d", "e"], "the page ends with b");
        retained.apply_all_rows(Some("b"), vec![rows[4].clone()], true, &|_| 0);
        assert_eq!(topics(&retained), ["b", "d", "e"], "a write of d waits");
        assert!(retained.get("$SYS/broker/uptime").is_some());
        assert_eq!(queue.pending(), 1);
    }

    #[test]
    fn each_node_writes_log_messages_and_only_the_publishing_node_others() {
        let (retained, queue) = shared();
        retained.retain_from(&message("a", "1", 1, 9), MessageSource::OtherNode);
        assert!(text(&retained, "a").unwrap() == "1" && queue.is_idle());
        queue.on_verified();
        assert_eq!(queue.topics_to_verify(), ["a"], "its row must be read again");
        retained.retain_from(&message("a", "", 1, 10), MessageSource::OtherNode);
        assert_eq!(text(&retained, "a"), None);
        retained.retain_from(&message("a", "2", 7, 9), MessageSource::SharedLog);
        // The write of this node comes after the row of the other one.
        retained.retain_from(&message("a", "1", 1, 11), MessageSource::OtherNode);
        assert_eq!(text(&retained, "a").unwrap(), "2");
        let (_, write) = queue.take(1, usize::MAX).remove(0);
        assert!(write.record.is_some() && write.log_offset == Some(9) && !write.yields);
        queue.written();
        // Memory has a later one from the table.
        retained.retain_from(&message("a", "1", 7, 8), MessageSource::SharedLog);
        assert!(text(&retained, "a").unwrap() == "2" && queue.is_idle());
        retained.retain_from(&message("a", "", 7, 10), MessageSource::SharedLog);
        let (_, write) = queue.take(1, usize::MAX).remove(0);
        assert_eq!(write, RetainedWrite { log_offset: Some(10), ..RetainedWrite::default() });
        assert!(!retained.remove("a"));
    }

    #[test]
    fn messages_of_an_older_version_are_written_for_topics_without_rows() {
        let (retained, queue) = shared();
        let rows = (0..300).map(|n| row(&retained, &format!("t/{n:03}"), "x")).collect();
        retained.apply_rows(rows, &|_| 0);
        retained.retain(&message("t/007", "new", 1, 1));
        retained.queue_missing_rows();
        let writes = queue.take(usize::MAX, usize::MAX);
        assert_eq!(writes.len(), 300);
        assert_eq!(writes.iter().filter(|(_, write)| !write.yields).count(), 1);
        // The later message counts where the table has another one.
        let later = |topic: &str, at_ms: u64| {
            let (publication, id) =
                (publication(topic, "x"), Position { epoch: Epoch(7), offset: 1 });
            let message = Message { at_ms, ..Message::new(publication, id, 0, 1) };
            RetainedRow { topic: topic.into(), record: retained.row_of(&message.into()).record }
        };
        let yields = |row: RetainedRow| {
            let write = RetainedWrite::of_record(row.record.unwrap()).unwrap();
            (row.topic, RetainedWrite { yields: true, ..write })
        };
        queue.written();
        let writes = [yields(later("t/1", 5)), yields(later("t/2", 5)), yields(later("t/3", 5))];
        let gone = RetainedRow { topic: "t/3".into(), record: None };
        retained.queue_later_rows(&writes, &[later("t/1", 4), later("t/2", 6), gone]);
        let writes = queue.take(9, usize::MAX);
        assert!(writes.len() == 1 && *writes[0].0 == *"t/1" && !writes[0].1.yields);
    }

    #[test]
    fn a_message_above_a_limit_removes_the_earlier_one() {
        let (retained, queue) = shared();
        retained.set_limits(1, 1 << 20);
        retained.retain(&message("a", "1", 1, 1));
        retained.retain(&message("b", "1", 1, 2));
        assert_eq!((retained.stats().messages, retained.stats().refused), (1, 1));
        // Rows are applied whatever the limit: another node has accepted them.
        retained.apply_rows(vec![row(&retained, "c", "x")], &|_| 0);
        assert_eq!(retained.stats().messages, 2);
        retained.retain(&message("a", &"x".repeat(1 << 20), 1, 3));
        assert_eq!(text(&retained, "a"), None, "it is no longer the last one");
        let writes = queue.take(9, usize::MAX);
        assert!(writes.iter().all(|(_, write)| write.record.is_none()));
        assert_eq!(writes.len(), 2);
        queue.written();
        // Another node may accept a message of the log.
        retained.retain_from(&message("c", &"x".repeat(1 << 20), 7, 4), MessageSource::SharedLog);
        let write = RetainedWrite { log_offset: Some(4), yields: true, ..RetainedWrite::default() };
        assert_eq!(queue.take(9, usize::MAX), [("c".into(), write)]);
    }
}
