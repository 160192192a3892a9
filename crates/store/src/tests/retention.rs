//! Retention on the tables, with a clock of the test's.

use std::collections::HashSet;

use redb::{Database, ReadableDatabase, ReadableTableMetadata, backends::InMemoryBackend};
use wire::Name;

use super::*;
use crate::batch::{self, Due, Op, TOMBSTONE_SECONDS, apply};
use crate::facts::Node;
use crate::tables::EXPIRIES;
use crate::topic::Keep;
use crate::{Stored, read, record};

/// The tables, in memory.
pub(super) struct Tables {
    pub db: Database,
    pub node: Node,
}

pub(super) const EMPTY_MS: u64 = 1_000_000;

impl Tables {
    pub fn new() -> Self {
        let db = Database::builder().create_with_backend(InMemoryBackend::new()).unwrap();
        let txn = db.begin_write().unwrap();
        Node::default().put(&txn).unwrap();
        txn.commit().unwrap();
        Tables { db, node: Node::default() }
    }

    /// Gives whether the sweep took as many rows as it may.
    pub fn apply(&mut self, now_ms: u64, ops: &[Op], due: &Due) -> bool {
        let txn = self.db.begin_write().unwrap();
        let applied = apply(&txn, self.node, now_ms, ops.iter(), due, &HashSet::new()).unwrap();
        txn.commit().unwrap();
        self.node = applied.node;
        applied.more
    }

    fn expiries(&self) -> u64 {
        self.db.begin_read().unwrap().open_table(EXPIRIES).unwrap().len().unwrap()
    }

    /// One sweep over these topics.
    pub fn sweep(&mut self, now_ms: u64, topics: &[&str]) {
        let due = Due {
            topics: topics.iter().map(|topic| Name::from(*topic)).collect(),
            expired: true,
            keys_before_ms: Some(now_ms),
            rows_max: 8_192,
            empty_before_ms: now_ms.saturating_sub(EMPTY_MS),
        };
        self.apply(now_ms, &[], &due);
    }

    pub fn after(&self, topic: &str, after: u64, now_ms: u64) -> Stored {
        read::after(&self.db, topic, after, ALL, now_ms).unwrap()
    }

    fn offsets(&self, topic: &str, now_ms: u64) -> (Vec<u64>, u64) {
        let stored = self.after(topic, 0, now_ms);
        (stored.records.iter().map(|record| record.offset).collect(), stored.floor)
    }
}

pub(super) fn op(draft: &Draft, offset: u64, at_ms: u64, keep: Keep) -> Op {
    Op::Append(batch::Append {
        topic: draft.topic.clone(),
        offset,
        at_ms,
        record: record::encode(draft, at_ms),
        keep,
        idempotency_key: None,
    })
}

fn keep() -> Keep {
    Keep { messages_max: 1_000, bytes_max: u64::MAX, seconds_max: 1_000_000, compact: false }
}

fn ops(offsets: std::ops::RangeInclusive<u64>, keep: Keep) -> Vec<Op> {
    offsets.map(|offset| op(&draft("t", "12345678"), offset, offset, keep)).collect()
}

#[test]
fn small_limits_are_exact_and_large_ones_are_met_in_bulk() {
    let mut tables = Tables::new();
    let one = Keep { messages_max: 1, ..keep() };
    tables.apply(0, &ops(1..=3, one), &Due::default());
    assert_eq!(tables.offsets("t", 0), (vec![3], 2));
    let hundred = Keep { messages_max: 100, ..keep() };
    tables.apply(0, &ops(4..=112, hundred), &Due::default());
    assert_eq!(tables.offsets("t", 0).0.len(), 110, "a tenth over is not worth a transaction");
    tables.apply(0, &ops(113..=113, hundred), &Due::default());
    assert_eq!(tables.offsets("t", 0), ((14..=113).collect(), 13));
    let bytes = Keep { bytes_max: 40, ..keep() };
    tables.apply(0, &ops(114..=114, bytes), &Due::default());
    assert_eq!(tables.offsets("t", 0), ((110..=114).collect(), 109));
    let tiny = Keep { bytes_max: 1, ..keep() };
    tables.apply(0, &ops(115..=115, tiny), &Due::default());
    assert_eq!(tables.offsets("t", 0), (vec![115], 114), "the newest stays");
}

#[test]
fn what_is_too_old_is_not_given_and_goes_with_a_sweep() {
    let mut tables = Tables::new();
    let second = Keep { seconds_max: 1, ..keep() };
    tables.apply(0, &ops(1..=20, second), &Due::default());
    assert_eq!(tables.offsets("t", 1_010), ((11..=20).collect(), 10));
    let before = read::before(&tables.db, "t", u64::MAX, ALL, 1_010).unwrap();
    assert_eq!((before.records.len(), before.floor, before.more), (10, 10, false));
    tables.sweep(1_010, &["t"]);
    assert_eq!(tables.offsets("t", 0), ((11..=20).collect(), 10));
    tables.sweep(5_000, &["t"]);
    assert_eq!((tables.offsets("t", 0), tables.node.empty), ((vec![], 20), 1));
    tables.sweep(5_000 + EMPTY_MS, &["t"]);
    assert_eq!(tables.node.gone, 0, "it is not forgotten yet");
    tables.sweep(5_001 + EMPTY_MS, &["t"]);
    assert_eq!((tables.node.gone, tables.node.empty), (20, 0));
    assert_eq!(tables.after("t", 0, 0).floor, 20, "all topics without a row may have lost that");
    tables.apply(0, &[op(&draft("u", ""), 21, 0, keep())], &Due::default());
    assert_eq!(tables.offsets("u", 0), (vec![21], 20), "a new row does not hide it");
}

#[test]
fn what_expires_goes_and_is_not_missed() {
    let mut tables = Tables::new();
    let marks = Marks { expires_ms: Some(100), ..Marks::default() };
    let expires = Draft { marks: Some(Box::new(marks)), ..draft("t", "x") };
    let all = [op(&expires, 1, 0, keep()), op(&draft("t", "y"), 2, 0, keep())];
    tables.apply(0, &all, &Due::default());
    assert_eq!(tables.offsets("t", 99), (vec![1, 2], 0));
    assert_eq!(tables.offsets("t", 100), (vec![2], 0));
    tables.sweep(100, &[]);
    assert_eq!(tables.offsets("t", 0), (vec![2], 0));
    tables.apply(0, &[Op::Delete { topic: "t".into(), through: 1, rows_max: 99 }], &Due::default());
    assert_eq!(tables.offsets("t", 0), (vec![2], 0), "there was nothing");
    tables.apply(0, &[Op::Delete { topic: "t".into(), through: 9, rows_max: 99 }], &Due::default());
    assert_eq!(tables.offsets("t", 0), (vec![], 2));
}

#[test]
fn a_compact_topic_keeps_the_last_of_each_key() {
    let mut tables = Tables::new();
    let compact = Keep { compact: true, ..keep() };
    let drafts = [
        keyed("t", "a", "1"),
        keyed("t", "b", "1"),
        draft("t", "without a key"),
        keyed("t", "a", "2"),
        keyed("t", "b", "null"),
    ];
    for (at, draft) in drafts.iter().enumerate() {
        let op = op(draft, at as u64 + 1, 0, compact);
        tables.apply(0, &[op], &Due::default());
    }
    assert_eq!(tables.offsets("t", 0), (vec![3, 4, 5], 0), "the floor does not tell");
    tables.sweep(TOMBSTONE_SECONDS * 1000 - 1, &[]);
    assert_eq!(tables.offsets("t", 0), (vec![3, 4, 5], 0));
    tables.sweep(TOMBSTONE_SECONDS * 1000, &[]);
    assert_eq!(tables.offsets("t", 0), (vec![3, 4], 5), "who has not seen 5 misses something");
    tables.apply(0, &[Op::Delete { topic: "t".into(), through: 4, rows_max: 99 }], &Due::default());
    tables.apply(0, &[op(&keyed("t", "a", "3"), 6, 0, compact)], &Due::default());
    assert_eq!(tables.offsets("t", 0), (vec![6], 5));
    let other = [op(&keyed("u", "a", "1"), 7, 0, compact)];
    tables.apply(0, &other, &Due::default());
    assert_eq!((tables.offsets("t", 0).0, tables.offsets("u", 0).0), (vec![6], vec![7]));
}

#[test]
fn old_idempotency_keys_go() {
    let mut tables = Tables::new();
    let mut all = Vec::new();
    for offset in 1..=9 {
        let Op::Append(append) = op(&draft("t", ""), offset, offset * 10, keep()) else { continue };
        all.push(Op::Append(batch::Append { idempotency_key: Some("k".into()), ..append }));
    }
    tables.apply(0, &all, &Due::default());
    let due = Due { keys_before_ms: Some(50), rows_max: 3, ..Due::default() };
    let keys = |tables: &Tables| {
        let txn = tables.db.begin_read().unwrap();
        txn.open_table(crate::tables::IDEMPOTENCY).unwrap().len().unwrap()
    };
    assert!(tables.apply(0, &[], &due), "there is more");
    assert_eq!(keys(&tables), 6);
    assert!(!tables.apply(0, &[], &due));
    assert_eq!(keys(&tables), 5);
}

fn expiring(draft: Draft, expires_ms: u64) -> Draft {
    let marks = draft.marks.map_or_else(Marks::default, |marks| *marks);
    let marks = Marks { expires_ms: Some(expires_ms), ..marks };
    Draft { marks: Some(Box::new(marks)), ..draft }
}

#[test]
fn an_expiry_goes_with_its_message() {
    let mut tables = Tables::new();
    let far = |text: &str| expiring(draft("t", text), 1_000_000);
    let two = Keep { messages_max: 2, ..keep() };
    for offset in 1..=9 {
        tables.apply(0, &[op(&far("x"), offset, 0, two)], &Due::default());
    }
    assert_eq!((tables.offsets("t", 0).0, tables.expiries()), (vec![8, 9], 2), "retention");
    tables.apply(0, &[op(&expiring(draft("t", "y"), 2_000_000), 9, 0, two)], &Due::default());
    assert_eq!((tables.offsets("t", 0).0, tables.expiries()), (vec![8, 9], 2), "the same again");
    tables.apply(0, &[Op::Delete { topic: "t".into(), through: 9, rows_max: 99 }], &Due::default());
    assert_eq!(tables.expiries(), 0, "a deletion");
    let compact = Keep { compact: true, ..keep() };
    for (offset, json) in [(10, "1"), (11, "null"), (12, "2")] {
        let draft = expiring(keyed("t", "a", json), 1_000_000_000);
        tables.apply(0, &[op(&draft, offset, 0, compact)], &Due::default());
        assert_eq!(tables.expiries(), 1, "compaction");
    }
    tables.apply(0, &[op(&keyed("t", "a", "null"), 13, 0, compact)], &Due::default());
    assert_eq!(tables.expiries(), 1, "a message without a time that says its key is no more");
    tables.apply(0, &[op(&keyed("t", "a", "3"), 14, 0, compact)], &Due::default());
    assert_eq!(tables.expiries(), 0);
}

#[test]
fn who_misses_a_value_that_expired_in_a_compact_topic_is_told() {
    let mut tables = Tables::new();
    let compact = Keep { compact: true, ..keep() };
    let drafts = [
        keyed("t", "a", "1"),
        expiring(keyed("t", "a", "2"), 100),
        expiring(draft("t", "without a key"), 100),
    ];
    for (at, draft) in drafts.iter().enumerate() {
        tables.apply(0, &[op(draft, at as u64 + 1, 0, compact)], &Due::default());
    }
    assert_eq!(tables.offsets("t", 99), (vec![2, 3], 0));
    assert_eq!(tables.offsets("t", 100), (vec![], 2), "before the sweep");
    tables.sweep(100, &[]);
    assert_eq!(tables.offsets("t", 100), (vec![], 2), "who has seen 1 only takes it for the last");
}
