//! Passes retained messages to another process.

use std::sync::Arc;

use handover::{PartError, message};
use model::{Envelope, Name};

use super::{LocalRetained, RetainedTable};
use crate::records::{key, parts};

/// Messages that are read under the lock at a time.
const PIECE: usize = 256;

/// Kinds of keys. They never change.
const MESSAGE: u8 = b'm';
const REMOVED: u8 = b'r';
const UNSTORED: u8 = b'u';

/// The retained messages, for another process.
///
/// The import gives nothing to the store: the old process has done so, and the list of unstored topics names the
/// rest.
pub struct RetainedPart {
    retained: Arc<LocalRetained>,
    hash: Box<dyn Fn(&str) -> u64 + Send + Sync>,
}

impl RetainedPart {
    /// Makes the part of these messages. `hash` is the hash of a topic's name in this process.
    pub fn new(
        retained: Arc<LocalRetained>,
        hash: impl Fn(&str) -> u64 + Send + Sync + 'static,
    ) -> Self {
        RetainedPart { retained, hash: Box::new(hash) }
    }

    fn import_message(&self, topic: &str, value: Option<&[u8]>) -> Result<(), String> {
        let decode = |bytes| message::decode(bytes, &self.hash).map_err(|error| error.to_string());
        let message = value.map(decode).transpose()?;
        let mut table = self.retained.write();
        match message {
            Some(message) if message.publication.topic != topic => {
                return Err(format!("{topic}: the message belongs to another topic"));
            }
            Some(message) => table.insert(Arc::new(message)),
            None => _ = table.remove(topic),
        }
        Ok(())
    }
}

impl RetainedTable {
    /// Returns when each topic's message was removed, the first one first.
    fn removed_in_order(&self) -> Vec<(u64, Name)> {
        let counts =
            |(at_us, topic): &&(u64, Name)| self.removed.get(topic).is_some_and(|it| it == at_us);
        self.removals.iter().filter(counts).cloned().collect()
    }
}

impl handover::Part for RetainedPart {
    fn name(&self) -> &'static str {
        "retained"
    }

    fn export(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        let mut after: Option<Name> = None;
        loop {
            let table = self.retained.read();
            let some = table.names.behind(after.as_deref()).take(PIECE);
            let some: Vec<Arc<Envelope>> = some.map(|(_, message)| message.clone()).collect();
            drop(table);
            for message in &some {
                each(&key(MESSAGE, &message.publication.topic), &message::encode(message));
            }
            match some.last() {
                Some(last) if some.len() == PIECE => after = Some(last.publication.topic.clone()),
                _ => break,
            }
        }
        let removed = self.retained.read().removed_in_order();
        for (at_us, topic) in removed {
            each(&key(REMOVED, &topic), &at_us.to_le_bytes());
        }
        self.retained.unstored.all().iter().for_each(|topic| each(&key(UNSTORED, topic), &[]));
    }

    fn import(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), PartError> {
        let damaged = |what: String| PartError::new("retained", what);
        let (kind, topic) = parts(key).map_err(|what| damaged(what.into()))?;
        match (kind, value) {
            (MESSAGE, value) => self.import_message(topic, value).map_err(damaged)?,
            (REMOVED, Some(at_us)) => {
                let at_us =
                    at_us.try_into().map_err(|_| damaged("a time must have 8 bytes".into()))?;
                self.retained.write().removed.insert(topic.into(), u64::from_le_bytes(at_us));
            }
            (REMOVED, None) => _ = self.retained.write().removed.remove(topic),
            (UNSTORED, Some(_)) => self.retained.unstored.insert(topic),
            (UNSTORED, None) => self.retained.unstored.remove(topic),
            // A newer version may have other kinds.
            _ => {}
        }
        Ok(())
    }

    fn complete(&self) -> Result<(), PartError> {
        let mut table = self.retained.write();
        let mut removals: Vec<(u64, Name)> =
            table.removed.iter().map(|(topic, at_us)| (*at_us, topic.clone())).collect();
        removals.sort_unstable();
        table.removals = removals.into();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use handover::testing::pass_all;
    use handover::{Part, Sent};
    use model::{Attributes, Data, Epoch, Message, Position, Publication};

    use super::*;
    use crate::Retained;
    use crate::contract::Done;

    fn published(topic: &str, text: &str, at_us: u64, is_own: bool) -> Arc<Envelope> {
        let attributes = Attributes { is_own, tags: vec!["t".into()], ..Attributes::default() };
        let publication = Publication {
            attributes: Some(Box::new(attributes)),
            ..Publication::new(topic, Data::Text(text.into()))
        };
        let id = Position { epoch: Epoch(3), offset: at_us };
        Arc::new(Message { at_ms: 9, ..Message::new(publication, id, 1, at_us) }.into())
    }

    fn all(retained: &LocalRetained) -> Vec<(u64, u64, Publication)> {
        let page = retained.matching("#", None, usize::MAX).messages;
        let own = retained.get("$SYS/up").into_iter();
        page.into_iter()
            .chain(own)
            .map(|it| (it.id.offset, it.published_us, it.publication.clone()))
            .collect()
    }

    #[test]
    fn another_process_has_what_is_retained() {
        type Written = Arc<Mutex<Vec<(String, bool)>>>;
        let stored = |takes: bool| {
            let written = Written::default();
            let notes = written.clone();
            let keep = move |topic: &str, value: Option<Vec<u8>>, done: Done| {
                notes.lock().unwrap().push((topic.into(), value.is_some()));
                done(takes || topic != "full");
            };
            (Arc::new(LocalRetained::new(Some(Box::new(keep)))), written)
        };
        let ((old, _), (new, written)) = (stored(false), stored(true));
        for n in 0..600 {
            old.retain(&published(&format!("t/{n}"), "x", n, false));
        }
        old.retain(&published("$SYS/up", "1", 5, true));
        old.retain(&published("full", "x", 5, false));
        old.retain(&published("t/7", "", 700, false));
        let parts = [&old, &new].map(|it| RetainedPart::new(it.clone(), |name| name.len() as u64));
        let mut sent = Sent::new();
        let mut pass = || pass_all(&parts[0], &parts[1], &mut sent);
        assert_eq!(pass(), 599 + 2 + 1 + 1);
        assert_eq!(all(&new), all(&old));
        assert_eq!(pass(), 0);
        old.retain(&published("t/8", "y", 701, false));
        old.retain(&published("t/9", "", 702, false));
        old.retain(&published("t/7", "z", 703, false));
        old.remove("t/10");
        // One message changes, two go, one comes, and the removal before that is forgotten.
        assert_eq!(pass(), 1 + 2 + 1 + 1 + 1);
        assert_eq!((all(&new), new.stats()), (all(&old), old.stats()));
        assert_eq!(new.get("t/8").unwrap().topic_hash, 3, "in the hash of this process");
        // Nothing was written; the store now gets the record that it has rejected.
        assert!(written.lock().unwrap().is_empty());
        new.store_again();
        assert_eq!(*written.lock().unwrap(), [("full".to_string(), true)]);
        // A message from before a removal comes too late.
        new.retain(&published("t/9", "older", 702 - 1, false));
        assert!(new.get("t/9").is_none());
    }

    #[test]
    fn damaged_records_are_reported() {
        let part = RetainedPart::new(Arc::new(LocalRetained::new(None)), |_| 0);
        let other = message::encode(&published("b", "x", 1, false));
        for (key, value) in [(&b""[..], &b""[..]), (b"ma", b"\xff"), (b"ra", b"1"), (b"ma", &other)]
        {
            assert!(part.import(key, Some(value)).is_err());
        }
    }
}
