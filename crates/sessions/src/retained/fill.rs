//! Retained messages of the other nodes of a cluster, for a node that joins them.
//!
//! A node that begins has none of what was published before it. It reads the messages of another node, a page at a time,
//! while messages come to it. Whatever it has learned of a topic since it began is newer than the page: a message, or
//! that there is none any more. So [`LocalRetained`] notes all removals meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use model::{Envelope, Epoch, Message, Position, Publication};

use super::{LocalRetained, Record};

/// Messages that are read under the lock at a time.
const PIECE: usize = 64;

/// Retained messages of a node, in the order of their topics' names. The numbers of fields stay for good.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct FillPage {
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
#[error("a retained message of another node is damaged, or of a newer version")]
pub struct DamagedRecord;

impl LocalRetained {
    pub(super) fn page_for_node(
        &self,
        after: Option<&str>,
        bytes_max: usize,
        now_ms: u64,
    ) -> FillPage {
        let (mut page, mut bytes) = (FillPage::default(), 0);
        page.is_complete = !self.is_filling.load(Relaxed);
        page.after = after.map(str::to_owned);
        loop {
            let table = self.read();
            let behind = table.names.behind(page.after.as_deref());
            let some: Vec<Arc<Envelope>> = behind.take(PIECE).map(|(_, it)| it.clone()).collect();
            drop(table);
            for message in &some {
                if bytes >= bytes_max {
                    return page;
                }
                page.after = Some(message.publication.topic.to_string());
                if message.publication.is_own() || message.is_expired(now_ms) {
                    continue;
                }
                if let Ok(record) = minicbor::to_vec(self.record(message)) {
                    bytes += record.len();
                    page.records.push(record.into());
                }
            }
            if some.len() < PIECE {
                page.after = None;
                return page;
            }
        }
    }

    pub(super) fn take_page(
        &self,
        page: &FillPage,
        hash: &dyn Fn(&str) -> u64,
    ) -> Result<usize, DamagedRecord> {
        let mut taken = 0;
        for record in &page.records {
            let Record { publication, epoch, offset, at_ms } =
                minicbor::decode(record).map_err(|_| DamagedRecord)?;
            let publication = Publication::from(publication);
            let hash = hash(&publication.topic);
            let id = Position { epoch: Epoch(epoch), offset };
            // Any message that comes is newer.
            let message = Message::new(publication, id, hash, 0);
            let message = Message { at_ms: at_ms.unwrap_or(0), ..message };
            taken += usize::from(self.take(Arc::new(message.into())));
        }
        Ok(taken)
    }

    /// Takes a message of another node, unless this one knows something newer of the topic. Returns false then.
    fn take(&self, message: Arc<Envelope>) -> bool {
        let topic = message.publication.topic.clone();
        let mut table = self.write();
        let present = table.names.get(&topic);
        // A message of the store is as old as its time of day says.
        let is_newer =
            |present: &Arc<Envelope>| present.published_us > 0 || present.at_ms >= message.at_ms;
        if present.is_some_and(is_newer) || table.removed.contains_key(&topic) {
            return false;
        }
        let before = present.map_or(0, |present| present.bytes());
        let is_one_more = before == 0;
        let messages = table.names.len() - table.own + usize::from(is_one_more);
        let bytes = table.bytes - before + message.bytes();
        if messages > self.messages_max.load(Relaxed) || bytes > self.bytes_max.load(Relaxed) {
            self.refused.fetch_add(1, Relaxed);
            return false;
        }
        table.insert(message);
        self.keep(&table, &topic);
        true
    }
}

#[cfg(test)]
mod tests {
    use model::Data;

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

    /// Reads all pages of a node, and does something between two of them.
    fn fill(from: &LocalRetained, to: &LocalRetained, bytes_max: usize, mut between: impl FnMut()) {
        let mut after: Option<String> = None;
        loop {
            let page = from.fill_page(after.as_deref(), bytes_max, 0);
            let page: FillPage = minicbor::decode(&minicbor::to_vec(page).unwrap()).unwrap();
            between();
            to.fill(&page, &|topic| topic.len() as u64).unwrap();
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
        new.begin_fill();
        assert!(!new.fill_page(None, 9, 0).is_complete && old.fill_page(None, 9, 0).is_complete);
        let mut pages = 0;
        fill(&old, &new, 1_000, || pages += 1);
        assert!(pages > 5, "{pages}");
        assert_eq!((new.stats(), text(&new, "t/300").unwrap()), (old.stats(), "old".into()));
        assert_eq!(new.get("t/300").unwrap().topic_hash, 5, "in the hash of this node");
    }

    #[test]
    fn what_comes_meanwhile_is_newer_than_a_page() {
        let [old, new] = [(); 2].map(|()| LocalRetained::new(None));
        ["a", "b", "c", "d"].iter().for_each(|topic| old.retain(&message(topic, "old", 1)));
        new.begin_fill();
        fill(&old, &new, usize::MAX, || {
            new.retain(&message("a", "new", 2));
            // Removed, before anything was known of it.
            new.retain(&message("b", "", 3));
            new.remove("c");
        });
        let texts = ["a", "b", "c", "d"].map(|topic| text(&new, topic));
        assert_eq!(texts, [Some("new".into()), None, None, Some("old".into())]);
        new.end_fill();
        assert!(new.fill_page(None, 9, 0).is_complete);
        // It is a message like all others.
        new.retain(&message("d", "newer", 4));
        assert_eq!(text(&new, "d").unwrap(), "newer");
    }

    #[test]
    fn the_limits_apply_and_damage_is_reported() {
        let [old, new] = [(); 2].map(|()| LocalRetained::new(None));
        (1..=9).for_each(|n| old.retain(&message(&format!("t/{n}"), "x", n)));
        new.set_limits(4, 1 << 20);
        fill(&old, &new, usize::MAX, || ());
        assert_eq!((new.stats().messages, new.stats().refused), (4, 5));
        let page = FillPage { records: vec![vec![0xff].into()], ..FillPage::default() };
        assert!(new.fill(&page, &|_| 0).is_err());
    }
}
