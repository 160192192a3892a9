//! A node that joins a cluster reads the retained messages of another node.
//!
//! It reads them a page at a time, while messages of all nodes come to it. Whatever it has learned of a topic since it
//! began, a message or a removal, is newer than the page. So it notes all removals meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use model::Envelope;

use super::{LocalRetained, Record};

/// Messages that are read under the lock at a time.
const PIECE: usize = 64;

/// Retained messages of a node, in the order of their topics' names. The numbers of fields stay for good.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct SyncPage {
    /// A record of each message.
    #[n(0)]
    records: Vec<ByteVec>,
    /// The topic after which the next page begins; `None` on the last page.
    #[n(1)]
    pub after: Option<String>,
    /// False if the node joins itself, so that it may lack messages.
    #[n(2)]
    pub is_complete: bool,
}

/// A record of another node can't be read.
#[derive(Debug, thiserror::Error)]
#[error("a retained message from another node is damaged, or from a newer version")]
pub struct DamagedRecord;

impl LocalRetained {
    /// Implements [`Retained::sync_page`](super::Retained::sync_page).
    pub(super) fn read_page(&self, after: Option<&str>, bytes_max: usize, now_ms: u64) -> SyncPage {
        let is_complete = !self.is_syncing.load(Relaxed);
        let (mut records, mut bytes) = (Vec::new(), 0);
        let mut after = after.map(str::to_owned);
        loop {
            let table = self.read();
            let behind = table.names.behind(after.as_deref());
            let piece: Vec<Arc<Envelope>> = behind.take(PIECE).map(|(_, it)| it.clone()).collect();
            drop(table);
            for message in &piece {
                if bytes >= bytes_max {
                    return SyncPage { records, after, is_complete };
                }
                after = Some(message.publication.topic.to_string());
                if message.publication.is_own() || message.is_expired(now_ms) {
                    continue;
                }
                if let Ok(record) = minicbor::to_vec(self.record(message)) {
                    bytes += record.len();
                    records.push(record.into());
                }
            }
            if piece.len() < PIECE {
                return SyncPage { records, after: None, is_complete };
            }
        }
    }

    /// Implements [`Retained::apply_page`](super::Retained::apply_page).
    pub(super) fn apply_records(
        &self,
        page: &SyncPage,
        hash: &dyn Fn(&str) -> u64,
    ) -> Result<usize, DamagedRecord> {
        let mut applied = 0;
        for record in &page.records {
            let record: Record = minicbor::decode(record).map_err(|_| DamagedRecord)?;
            applied += usize::from(self.apply(Arc::new(record.message(None, hash).into())));
        }
        Ok(applied)
    }

    /// Retains a message of another node, unless this node has learned something newer of the topic. Returns false
    /// then.
    fn apply(&self, message: Arc<Envelope>) -> bool {
        let topic = message.publication.topic.clone();
        let mut table = self.write();
        // A message from the store has the time of day alone.
        let is_newer =
            |present: &Arc<Envelope>| present.published_us > 0 || present.at_ms >= message.at_ms;
        if table.names.get(&topic).is_some_and(is_newer) || table.removed.contains_key(&topic) {
            return false;
        }
        if !self.has_capacity(&table, &message) {
            self.refused.fetch_add(1, Relaxed);
            return false;
        }
        table.insert(message);
        self.store_record(&table, &topic);
        true
    }
}

#[cfg(test)]
mod tests {
    use model::{Data, Epoch, Message, Position, Publication};

    use super::*;
    use crate::Retained;

    fn message(topic: &str, text: &str, at_us: u64) -> Arc<Envelope> {
        let publication = Publication::new(topic, Data::Text(text.into()));
        let id = Position { epoch: Epoch(1), offset: at_us };
        Arc::new(Message::new(publication, id, 0, at_us).into())
    }

    fn text(retained: &LocalRetained, topic: &str) -> Option<String> {
        let message = retained.get(topic)?;
        let Data::Text(text) = &message.publication.data else { panic!("{topic}") };
        Some(text.to_string())
    }

    /// Reads all pages of a node, and calls `between` before each is applied.
    fn sync(from: &LocalRetained, to: &LocalRetained, bytes_max: usize, mut between: impl FnMut()) {
        let mut after: Option<String> = None;
        loop {
            let page = from.sync_page(after.as_deref(), bytes_max, 0);
            let page: SyncPage = minicbor::decode(&minicbor::to_vec(page).unwrap()).unwrap();
            between();
            to.apply_page(&page, &|topic| topic.len() as u64).unwrap();
            match page.after {
                Some(next) => after = Some(next),
                None => return,
            }
        }
    }

    #[test]
    fn a_node_that_joins_has_the_messages_of_another_one() {
        let [old, new] = [(); 2].map(|()| LocalRetained::new(None));
        (1..=300).for_each(|n| old.retain(&message(&format!("t/{n:03}"), "old", n)));
        new.begin_sync();
        assert!(!new.sync_page(None, 9, 0).is_complete && old.sync_page(None, 9, 0).is_complete);
        let mut pages = 0;
        sync(&old, &new, 1_000, || pages += 1);
        assert!(pages > 5, "{pages}");
        assert_eq!((new.stats(), text(&new, "t/300").unwrap()), (old.stats(), "old".into()));
        assert_eq!(new.get("t/300").unwrap().topic_hash, 5, "in the hash of this node");
    }

    #[test]
    fn what_comes_meanwhile_is_newer_than_a_page() {
        let [old, new] = [(); 2].map(|()| LocalRetained::new(None));
        ["a", "b", "c", "d"].iter().for_each(|topic| old.retain(&message(topic, "old", 1)));
        new.begin_sync();
        sync(&old, &new, usize::MAX, || {
            new.retain(&message("a", "new", 2));
            // This node gets the removal before the page.
            new.retain(&message("b", "", 3));
            new.remove("c");
        });
        let texts = ["a", "b", "c", "d"].map(|topic| text(&new, topic));
        assert_eq!(texts, [Some("new".into()), None, None, Some("old".into())]);
        new.end_sync();
        assert!(new.sync_page(None, 9, 0).is_complete);
        // A later message replaces an applied one.
        new.retain(&message("d", "newer", 4));
        assert_eq!(text(&new, "d").unwrap(), "newer");
    }

    #[test]
    fn the_limits_apply_and_damage_is_reported() {
        let [old, new] = [(); 2].map(|()| LocalRetained::new(None));
        (1..=9).for_each(|n| old.retain(&message(&format!("t/{n}"), "x", n)));
        new.set_limits(4, 1 << 20);
        sync(&old, &new, usize::MAX, || ());
        assert_eq!((new.stats().messages, new.stats().refused), (4, 5));
        let page = SyncPage { records: vec![vec![0xff].into()], ..SyncPage::default() };
        assert!(new.apply_page(&page, &|_| 0).is_err());
    }
}
