//! Batches of messages that one transaction appends.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use broker::{Done, Receipt};
use model::{HistoryRule, Name, Publication};

use crate::mqtt_sessions::ProgressWrite;

/// The most messages of one batch.
pub const BATCH_MESSAGES_MAX: usize = 256;

/// The most bytes of a batch's records. A single record may be larger.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// A message that waits to be appended.
pub(crate) struct PendingMessage {
    /// The hash of the topic's name.
    pub hash: u64,
    pub publication: Publication,
    pub rule: Arc<HistoryRule>,
    pub idempotency_key: Option<Name>,
    pub if_offset: Option<u64>,
    pub receipt: Option<Receipt>,
    pub done: Done,
    /// The publication, encoded for the database.
    pub record: Box<[u8]>,
    /// Progress of the MQTT session that published it.
    pub progress: Option<ProgressWrite>,
}

impl PendingMessage {
    /// Returns the bytes that the message counts in a queue.
    pub fn bytes(&self) -> usize {
        // Twice, because the message has its data in the publication too.
        let progress = self.progress.as_ref().map_or(0, |it| it.key.len() + it.record.len());
        2 * self.record.len() + self.publication.topic.len() + progress + 256
    }
}

/// The outcome of the append of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppendOutcome {
    /// The message has this offset.
    Appended(u64),
    /// An earlier message, with this offset, has the same idempotency key.
    Repeated(u64),
    /// The topic has a newer message than the publisher knows, with this offset.
    Newer(u64),
}

/// The outcome of the append of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Appended {
    /// The last offset of the log before the batch.
    pub base: u64,
    /// When the batch was appended, by the database's clock, in milliseconds since 1970.
    pub at_ms: u64,
    /// The outcomes, in the order of the batch's messages.
    pub outcomes: Vec<AppendOutcome>,
}

/// Takes the next batch. The database decides about all messages of a batch at once, so a message that depends on
/// another one waits for the next batch: the batch has its topic and key already, or it has a condition on a topic of
/// the batch.
pub(crate) fn next_batch(queue: &mut VecDeque<PendingMessage>) -> Vec<PendingMessage> {
    let (mut items, mut bytes) = (Vec::new(), 0);
    let (mut topics, mut keys) = (HashSet::new(), HashSet::new());
    while let Some(next) = queue.front() {
        let topic = next.publication.topic.clone();
        let capacity_reached = items.len() >= BATCH_MESSAGES_MAX
            || (!items.is_empty() && bytes + next.record.len() > BATCH_BYTES_MAX);
        let depends = next.if_offset.is_some() && topics.contains(&topic);
        let key = next.idempotency_key.clone().map(|key| (topic.clone(), key));
        if capacity_reached || depends || key.as_ref().is_some_and(|key| keys.contains(key)) {
            break;
        }
        topics.insert(topic);
        keys.extend(key);
        let Some(item) = queue.pop_front() else { break };
        bytes += item.record.len();
        items.push(item);
    }
    items
}

#[cfg(test)]
pub(crate) mod tests {
    use model::Data;

    use super::*;

    pub fn item(
        topic: &str,
        key: Option<&str>,
        if_offset: Option<u64>,
        bytes: usize,
    ) -> PendingMessage {
        let publication = Publication::new(topic, Data::Text("x".repeat(bytes).into()));
        let rule = HistoryRule {
            messages_max: 1_000,
            bytes_max: 1 << 30,
            seconds_max: 3_600,
            durable: true,
            compact: false,
            acknowledge: None,
        };
        PendingMessage {
            hash: 0,
            record: store::Record::encode(&publication, 0),
            publication,
            rule: Arc::new(rule),
            idempotency_key: key.map(Name::from),
            if_offset,
            receipt: None,
            done: Box::new(|_| ()),
            progress: None,
        }
    }

    fn lengths(items: Vec<PendingMessage>) -> Vec<usize> {
        let mut queue = VecDeque::from(items);
        std::iter::from_fn(|| Some(next_batch(&mut queue).len()).filter(|length| *length > 0))
            .collect()
    }

    #[test]
    fn a_batch_has_its_bounds() {
        let items =
            |count: usize, bytes: usize| (0..count).map(move |_| item("a", None, None, bytes));
        assert_eq!(lengths(items(600, 1).collect()), [256, 256, 88]);
        assert_eq!(lengths(items(5, 2 << 20).collect()), [1, 1, 1, 1, 1]);
        assert_eq!(lengths(items(3, 1 << 20).chain(items(3, 9 << 20)).collect()), [3, 1, 1, 1]);
        assert!(lengths(Vec::new()).is_empty());
    }

    #[test]
    fn what_depends_on_a_message_of_the_batch_is_left_to_the_next() {
        let keys = [("a", "k"), ("b", "k"), ("a", "l"), ("a", "k"), ("a", "l")];
        let keys = keys.map(|(topic, key)| item(topic, Some(key), None, 1));
        assert_eq!(lengths(keys.into()), [3, 2]);
        let conditions = [
            ("a", Some(1)),
            ("b", None),
            ("c", Some(0)),
            ("b", Some(1)),
            ("b", None),
            ("b", Some(7)),
        ];
        let conditions = conditions.map(|(topic, if_offset)| item(topic, None, if_offset, 1));
        assert_eq!(lengths(conditions.into()), [3, 2, 1]);
    }
}
