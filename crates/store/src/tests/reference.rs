//! A seeded random run against a simple model. `STORE_SEED=n` replays one.

use std::collections::BTreeMap;

use model::Name;
use random::Random;

use super::retention::{Tables, op};
use super::*;
use crate::batch::{Op, REMOVAL_SECONDS, SweepPlan};
use crate::read;
use crate::topic::Retention;

/// A message that was neither deleted nor replaced.
struct Message {
    publication: Publication,
    at_ms: u64,
    /// True if retention may have dropped the message.
    may_be_gone: bool,
}

#[derive(Default)]
struct TopicRow {
    messages: BTreeMap<u64, Message>,
    retention: Retention,
    /// True once it was a compacted topic.
    was_compact: bool,
    last: u64,
}

impl Message {
    fn is_expired(&self, now_ms: u64) -> bool {
        let expires_ms =
            self.publication.attributes.as_ref().and_then(|attributes| attributes.expires_ms);
        expires_ms.is_some_and(|expires_ms| expires_ms <= now_ms)
    }

    fn is_old_removal(&self, now_ms: u64) -> bool {
        self.publication.key().is_some()
            && self.publication.data == Data::Json("null".into())
            && self.at_ms + REMOVAL_SECONDS * 1000 <= now_ms
    }
}

impl TopicRow {
    /// Removes the messages of each key but the last.
    fn remove_replaced(&mut self) {
        let mut known = std::collections::HashSet::new();
        let mut replaced = Vec::new();
        for (offset, message) in self.messages.iter().rev() {
            let is_replaced = message.publication.key().is_some_and(|key| !known.insert(key));
            replaced.extend(is_replaced.then_some(*offset));
        }
        replaced.iter().for_each(|offset| _ = self.messages.remove(offset));
    }

    /// Marks the messages that retention may drop.
    fn retain(&mut self, now_ms: u64) {
        let (mut count, mut bytes) = (0, 0);
        for message in self.messages.values_mut().rev() {
            count += 1;
            bytes += message.publication.data.bytes() as u64;
            message.may_be_gone |= count > self.retention.messages_max
                || (bytes > self.retention.bytes_max && count > 1)
                || self.retention.is_too_old(message.at_ms, now_ms)
                || (self.was_compact && message.is_old_removal(now_ms));
        }
    }

    fn check(&self, tables: &Tables, name: &str, after: u64, now_ms: u64) {
        let limits = ReadLimits { messages_max: 7, bytes_max: 200 };
        let (mut page_records, mut floor, mut from) = (Vec::new(), 0, after);
        loop {
            let page = read::after(&tables.db, name, from, limits, now_ms).unwrap();
            assert!(page.records.len() <= 7);
            floor = page.floor.max(floor);
            from = page.through;
            page_records.extend(page.records);
            if !page.more {
                assert_eq!(page.through, page.last.max(after));
                break;
            }
        }
        let mut bytes = 0;
        for record in &page_records {
            let message = self.messages.get(&record.offset).expect("it was deleted or replaced");
            assert_eq!((&record.publication, record.at_ms), (&message.publication, message.at_ms));
            assert!(
                !message.is_expired(now_ms) && !self.retention.is_too_old(message.at_ms, now_ms)
            );
            bytes += message.publication.data.bytes() as u64;
        }
        let Retention { messages_max, bytes_max, .. } = self.retention;
        assert!(page_records.len() as u64 <= messages_max);
        assert!(bytes <= bytes_max || page_records.len() == 1);
        assert!(page_records.is_sorted_by_key(|record| record.offset));
        for (offset, message) in self.messages.range(after + 1..) {
            let is_there = page_records.iter().any(|record| record.offset == *offset);
            // Where the rule changes, the message may have been dropped before that.
            let leaves_gap =
                self.retention.compact && message.publication.key().is_some() && name != "changes";
            let is_covered = *offset <= floor || (message.is_expired(now_ms) && !leaves_gap);
            assert!(is_there || is_covered, "{name}: {offset} is missing without a gap");
            assert!(is_there || message.may_be_gone || message.is_expired(now_ms));
        }
        let back = read::before(&tables.db, name, u64::MAX, ALL, now_ms).unwrap();
        let newest_first: Vec<u64> = back.records.iter().map(|record| record.offset).collect();
        let back = back.records.into_iter().rev().filter(|record| record.offset > after);
        assert_eq!(back.collect::<Vec<_>>(), page_records);
        // A count finds the same messages, in pieces of any size.
        for limits in
            [ALL, ReadLimits { messages_max: 3, ..ALL }, ReadLimits { bytes_max: 90, ..ALL }]
        {
            let (mut before, mut messages) = (u64::MAX, 0);
            loop {
                let counted = read::count_before(&tables.db, name, before, limits, now_ms).unwrap();
                messages += counted.messages;
                assert!(
                    counted.messages <= limits.messages_max && counted.rows >= counted.messages
                );
                if counted.messages == limits.messages_max {
                    assert_eq!(Some(&counted.through), newest_first.get(messages - 1));
                }
                if !counted.more {
                    break;
                }
                assert!(counted.through < before);
                before = counted.through;
            }
            assert_eq!(messages, newest_first.len(), "{name}");
        }
    }
}

fn random_publication(random: &mut Random, name: &str, now_ms: u64) -> Publication {
    let text = "x".repeat(random.below(60) as usize);
    let key = Name::from(["a", "b", "c", "d"][random.below(4) as usize]);
    let data = match random.below(4) {
        0 => Data::Json("null".into()),
        _ => Data::Text(text.into()),
    };
    let attributes = Attributes {
        tags: Vec::new(),
        key: (random.below(2) == 0).then_some(key),
        sender: (random.below(2) == 0).then(|| "alice".into()),
        expires_ms: (random.below(5) == 0).then(|| now_ms + random.below(20_000)),
        ..Attributes::default()
    };
    let attributes = (attributes != Attributes::default()).then(|| Box::new(attributes));
    Publication { attributes, ..Publication::new(name, data) }
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let names = ["a", "b", "changes", "compact:a", "compact:b"];
    let mut tables = Tables::new();
    let mut topics: BTreeMap<&str, TopicRow> = BTreeMap::new();
    let (mut offset, mut now_ms) = (0u64, 1_000_000u64);
    for _ in 0..120 {
        now_ms += [0, 1, 1_000, 30_000, 50_000_000][random.below(5) as usize];
        let mut ops = Vec::new();
        for _ in 0..random.below(25) {
            let name = names[random.below(5) as usize];
            let topic = topics.entry(name).or_default();
            if random.below(20) == 0 {
                let through = offset.saturating_sub(random.below(30));
                topic.messages.retain(|at, _| *at > through);
                ops.push(Op::Delete { topic: name.into(), through, rows_max: usize::MAX });
                continue;
            }
            offset += 1 + random.below(3);
            topic.retention = Retention {
                messages_max: [1, 5, 20, 100][random.below(4) as usize],
                bytes_max: [50, 300, u64::MAX][random.below(3) as usize],
                seconds_max: [10, 100, 1_000_000][random.below(3) as usize],
                compact: name.starts_with("compact") || name == "changes" && random.below(4) == 0,
            };
            if topic.retention.compact {
                topic.was_compact = true;
                topic.remove_replaced();
            }
            topic.last = offset;
            let publication = random_publication(&mut random, name, now_ms);
            if let Some(key) = publication.key().filter(|_| topic.retention.compact) {
                topic.messages.retain(|_, message| message.publication.key() != Some(key));
            }
            ops.push(op(&publication, offset, now_ms, topic.retention));
            topic
                .messages
                .insert(offset, Message { publication, at_ms: now_ms, may_be_gone: false });
        }
        tables.apply(now_ms, &ops, &SweepPlan::default());
        topics.values_mut().for_each(|topic| topic.retain(now_ms));
        if random.below(4) == 0 {
            tables.sweep(now_ms, &names);
        }
        for (name, topic) in &topics {
            let after = [0, offset.saturating_sub(random.below(40))][random.below(2) as usize];
            topic.check(&tables, name, after, now_ms);
            let (floor, last) = read::floor_and_last(&tables.db, name).unwrap();
            assert!(last == topic.last || (last == 0 && floor >= topic.last));
        }
    }
}

#[test]
fn the_store_matches_a_simple_model() {
    if let Ok(seed) = std::env::var("STORE_SEED") {
        return run(seed.parse().unwrap());
    }
    for seed in 0..15 {
        let outcome = std::panic::catch_unwind(|| run(seed));
        assert!(outcome.is_ok(), "STORE_SEED={seed} replays it");
    }
}
