//! The topics that cost a shard most: deliveries and bytes of the last minute, in a fixed number of counters.

use std::collections::HashMap;
use std::sync::Arc;

use model::{Envelope, Name};
use tables::Heaviest;

/// So many topics are counted by deliveries, and as many by bytes, in each span of a shard.
pub const COUNTED_TOPICS: usize = 128;

/// The length of a span, in microseconds.
const SPAN_US: u64 = 10_000_000;

/// A minute of spans, and the present one.
const SPANS: usize = 7;

/// What the messages of topics cost a shard. It takes no memory while no message is published.
pub(crate) struct Costs {
    /// Spans by their number, modulo [`SPANS`].
    spans: [Span; SPANS],
    /// The time at which the counting began.
    since_us: Option<u64>,
}

struct Span {
    number: u64,
    by_deliveries: Heaviest<Name>,
    by_bytes: Heaviest<Name>,
}

/// What a topic's messages cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The number of deliveries of a message to a member.
    pub deliveries: u64,
    /// Bytes that were encoded for members, as their transports write messages.
    pub bytes: u64,
}

/// The topics that cost a shard most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Costliest {
    /// The length of the measured time, which ends now.
    pub span_us: u64,
    /// Topics by name, in no order.
    pub topics: HashMap<Name, Cost>,
}

/// What a slice of a fan-out has cost so far.
#[derive(Clone, Copy, Default)]
pub(crate) struct SliceCost {
    /// Members that have got the same bytes as others. `bytes` counts these bytes once for each of them.
    pub grouped: u64,
    pub bytes: u64,
}

impl Default for Span {
    fn default() -> Self {
        Span {
            number: 0,
            by_deliveries: Heaviest::new(COUNTED_TOPICS),
            by_bytes: Heaviest::new(COUNTED_TOPICS),
        }
    }
}

impl Default for Costs {
    fn default() -> Self {
        Costs { spans: std::array::from_fn(|_| Span::default()), since_us: None }
    }
}

impl Span {
    fn clear(&mut self) {
        self.by_deliveries.clear();
        self.by_bytes.clear();
    }
}

fn number(now_us: u64) -> u64 {
    now_us / SPAN_US
}

impl Costs {
    /// Counts the cost of a slice of so many members. `one_topic` is true when all of its messages have one topic.
    pub fn count<'a>(
        &mut self,
        now_us: u64,
        messages: impl ExactSizeIterator<Item = &'a Arc<Envelope>> + Clone,
        one_topic: bool,
        members: usize,
        slice: SliceCost,
    ) {
        let (members, count) = (members as u64, messages.len() as u64);
        if members == 0 || count == 0 {
            return;
        }
        // Members with bytes of their own count as if each took the data of all messages.
        let others = members.saturating_sub(slice.grouped);
        let data = |message: &Arc<Envelope>| message.publication.data.bytes() as u64;
        let others_bytes = match others {
            0 => 0,
            others => others * messages.clone().map(data).sum::<u64>(),
        };
        let bytes = slice.bytes + others_bytes;
        if one_topic && let Some(first) = messages.clone().next() {
            return self.add(now_us, first, Cost { deliveries: members * count, bytes });
        }
        for message in messages {
            self.add(now_us, message, Cost { deliveries: members, bytes: bytes / count });
        }
    }

    fn add(&mut self, now_us: u64, message: &Envelope, cost: Cost) {
        let number = number(now_us);
        let index = usize::try_from(number % SPANS as u64).unwrap_or_default();
        let span = &mut self.spans[index];
        if span.number != number {
            span.clear();
            span.number = number;
        }
        let (hash, topic) = (message.topic_hash, &message.publication.topic);
        let Cost { deliveries, bytes } = cost;
        span.by_deliveries.add(hash, deliveries, bytes, || topic.clone());
        span.by_bytes.add(hash, bytes, deliveries, || topic.clone());
    }

    /// Clears spans that ended more than a minute ago. Called once a second.
    pub fn expire(&mut self, now_us: u64) {
        self.since_us.get_or_insert(now_us);
        let now = number(now_us);
        let is_old = |span: &&mut Span| span.number + SPANS as u64 <= now;
        self.spans.iter_mut().filter(is_old).for_each(Span::clear);
    }

    /// Returns the topics that cost most in the last minute and the present span.
    pub fn costliest(&self, now_us: u64) -> Costliest {
        let now = number(now_us);
        let first = (now + 1).saturating_sub(SPANS as u64);
        let since_us = self.since_us.unwrap_or(now_us).max(first * SPAN_US);
        let mut topics: HashMap<Name, Cost> = HashMap::new();
        for span in self.spans.iter().filter(|span| (first..=now).contains(&span.number)) {
            // A topic that is light in one order may be heavy in the other.
            let mut here: HashMap<&Name, Cost> = HashMap::new();
            for heavy in span.by_deliveries.iter() {
                let cost = Cost { deliveries: heavy.weight, bytes: heavy.beside };
                here.insert(&heavy.value, cost);
            }
            for heavy in span.by_bytes.iter() {
                let cost = here.entry(&heavy.value).or_default();
                cost.deliveries = cost.deliveries.max(heavy.beside);
                cost.bytes = heavy.weight;
            }
            for (name, cost) in here {
                let sum = topics.entry(name.clone()).or_default();
                sum.deliveries += cost.deliveries;
                sum.bytes += cost.bytes;
            }
        }
        Costliest { span_us: now_us.saturating_sub(since_us), topics }
    }
}

#[cfg(test)]
mod tests {
    use model::{Data, Epoch, Message, Position, Publication};

    use super::*;

    const SECOND: u64 = 1_000_000;

    fn message(topic: &str, data: &str) -> Arc<Envelope> {
        let publication = Publication::new(topic, Data::Text(data.into()));
        let topic_hash = topic.bytes().fold(7, |hash: u64, byte| hash * 31 + u64::from(byte));
        let id = Position { epoch: Epoch(1), offset: 1 };
        Arc::new(Message::new(publication, id, topic_hash, 0).into())
    }

    fn count(costs: &mut Costs, at: u64, messages: &[Arc<Envelope>], members: usize, bytes: u64) {
        let one_topic = messages.iter().all(|it| it.topic_hash == messages[0].topic_hash);
        let slice = SliceCost { grouped: if bytes == 0 { 0 } else { members as u64 }, bytes };
        costs.count(at, messages.iter(), one_topic, members, slice);
    }

    fn costliest(costs: &Costs, at: u64) -> Vec<(String, u64, u64)> {
        let found = costs.costliest(at).topics.into_iter();
        let mut rows: Vec<_> =
            found.map(|(name, cost)| (name.to_string(), cost.deliveries, cost.bytes)).collect();
        rows.sort();
        rows
    }

    #[test]
    fn costs_are_those_of_the_last_minute() {
        let mut costs = Costs::default();
        costs.expire(SECOND);
        count(&mut costs, 2 * SECOND, &[message("a", "xyz")], 10, 1_000);
        // Two messages in one piece.
        count(&mut costs, 3 * SECOND, &[message("a", "x"), message("a", "y")], 10, 500);
        // Each member has bytes of its own, or data of several topics.
        count(&mut costs, 15 * SECOND, &[message("b", "12345")], 4, 0);
        count(&mut costs, 16 * SECOND, &[message("b", "x"), message("c", "y")], 3, 600);
        let want = [("a", 30, 1_500), ("b", 7, 320), ("c", 3, 300)];
        let want = want.map(|(name, deliveries, bytes)| (name.to_owned(), deliveries, bytes));
        assert_eq!(costliest(&costs, 16 * SECOND), want);
        assert_eq!(costs.costliest(16 * SECOND).span_us, 15 * SECOND);
        assert_eq!(costliest(&costs, 69 * SECOND), want);
        assert_eq!(costliest(&costs, 70 * SECOND), want[1..], "the first span is over");
        assert_eq!(costs.costliest(75 * SECOND).span_us, 65 * SECOND);
        // A new span reuses the memory of an old one, cleared or not.
        count(&mut costs, 71 * SECOND, &[message("d", "")], 1, 9);
        let rows = costliest(&costs, 71 * SECOND);
        assert_eq!(rows.iter().map(|row| &row.0).collect::<Vec<_>>(), ["b", "c", "d"]);
        costs.expire(141 * SECOND);
        assert!(costliest(&costs, 71 * SECOND).is_empty(), "all is forgotten");
    }

    #[test]
    fn a_costly_topic_stands_out_among_many() {
        let mut costs = Costs::default();
        for at in 0..20_u64 {
            for number in 0..1_000 {
                count(&mut costs, at, &[message(&format!("room:{number}"), "x")], 1, 20);
            }
            count(&mut costs, at, &[message("busy", "x")], 20, 0);
            count(&mut costs, at, &[message("large", "x")], 1, 4_000);
        }
        let found = costs.costliest(SECOND).topics;
        assert!(found.len() <= 2 * COUNTED_TOPICS, "{}", found.len());
        let total = 20 * 1_021;
        let deliveries = found["busy"].deliveries;
        assert!((400..=400 + total / COUNTED_TOPICS as u64).contains(&deliveries), "{deliveries}");
        assert!(found["large"].bytes >= 80_000, "{:?}", found["large"]);
        let above = |limit: u64| found.values().filter(|cost| cost.deliveries > limit).count();
        assert_eq!(above(399), 1);
    }
}
