//! Retention on the tables, with the test's own clock.

use std::collections::HashSet;

use model::Name;
use redb::{Database, ReadableDatabase, ReadableTableMetadata, backends::InMemoryBackend};

use super::*;
use crate::batch::{self, Op, REMOVAL_SECONDS, SweepPlan, apply};
use crate::metadata::Metadata;
use crate::tables::{EXPIRIES, MESSAGES};
use crate::topic::Retention;
use crate::{ReadLimits, StoredMessages, read, record};

/// The tables, in memory.
pub(super) struct Tables {
    pub db: Database,
    pub metadata: Metadata,
}

pub(super) const EMPTY_MS: u64 = 1_000_000;

impl Tables {
    pub fn new() -> Self {
        let db = Database::builder().create_with_backend(InMemoryBackend::new()).unwrap();
        let txn = db.begin_write().unwrap();
        Metadata::default().save(&txn).unwrap();
        txn.commit().unwrap();
        Tables { db, metadata: Metadata::default() }
    }

    /// Applies operations. Returns true if the sweep reached its limit of rows.
    pub fn apply(&mut self, now_ms: u64, ops: &[Op], plan: &SweepPlan) -> bool {
        let txn = self.db.begin_write().unwrap();
        let applied =
            apply(&txn, self.metadata, now_ms, ops.iter(), plan, &HashSet::new()).unwrap();
        txn.commit().unwrap();
        self.metadata = applied.metadata;
        applied.more
    }

    fn expiries(&self) -> u64 {
        self.db.begin_read().unwrap().open_table(EXPIRIES).unwrap().len().unwrap()
    }

    /// Sweeps these topics once.
    pub fn sweep(&mut self, now_ms: u64, topics: &[&str]) {
        let plan = SweepPlan {
            topics: topics.iter().map(|topic| Name::from(*topic)).collect(),
            expired: true,
            keys_before_ms: Some(now_ms),
            rows_max: 8_192,
            empty_before_ms: now_ms.saturating_sub(EMPTY_MS),
        };
        self.apply(now_ms, &[], &plan);
    }

    pub fn after(&self, topic: &str, after: u64, now_ms: u64) -> StoredMessages {
        read::after(&self.db, topic, after, ALL, now_ms).unwrap()
    }

    /// Returns the number of messages in the file, of all topics.
    fn rows(&self) -> u64 {
        self.db.begin_read().unwrap().open_table(MESSAGES).unwrap().len().unwrap()
    }

    fn offsets(&self, topic: &str, now_ms: u64) -> (Vec<u64>, u64) {
        let stored = self.after(topic, 0, now_ms);
        (stored.records.iter().map(|record| record.offset).collect(), stored.floor)
    }
}

pub(super) fn op(publication: &Publication, offset: u64, at_ms: u64, retention: Retention) -> Op {
    Op::Append(batch::Append {
        topic: publication.topic.clone(),
        offset,
        at_ms,
        record: record::encode(publication, at_ms),
        retention,
        idempotency_key: None,
        with: None,
    })
}

fn spacious() -> Retention {
    Retention { messages_max: 1_000, bytes_max: u64::MAX, seconds_max: 1_000_000, compact: false }
}

fn ops(offsets: std::ops::RangeInclusive<u64>, retention: Retention) -> Vec<Op> {
    offsets.map(|offset| op(&publication("t", "12345678"), offset, offset, retention)).collect()
}

#[test]
fn retention_is_exact_for_small_limits_and_works_in_bulk_for_large_ones() {
    let mut tables = Tables::new();
    let one = Retention { messages_max: 1, ..spacious() };
    tables.apply(0, &ops(1..=3, one), &SweepPlan::default());
    assert_eq!(tables.offsets("t", 0), (vec![3], 2));
    let hundred = Retention { messages_max: 100, ..spacious() };
    tables.apply(0, &ops(4..=112, hundred), &SweepPlan::default());
    assert_eq!(tables.rows(), 110, "a tenth over is not worth a deletion");
    assert_eq!(tables.offsets("t", 0), ((13..=112).collect(), 12), "and is not read");
    assert_eq!(tables.after("t", 0, 0).dropped, 12);
    let few = ReadLimits { messages_max: 99, bytes_max: 1 << 20 };
    let back = read::before(&tables.db, "t", u64::MAX, few, 0).unwrap();
    assert!(back.more && back.through == 14);
    let back = read::before(&tables.db, "t", 14, few, 0).unwrap();
    assert_eq!((back.records.len(), back.more, back.floor), (1, false, 12));
    assert_eq!(tables.after("t", 50, 0).records.len(), 62);
    tables.apply(0, &ops(113..=113, hundred), &SweepPlan::default());
    assert_eq!(tables.offsets("t", 0), ((14..=113).collect(), 13));
    let bytes = Retention { bytes_max: 40, ..spacious() };
    tables.apply(0, &ops(114..=114, bytes), &SweepPlan::default());
    assert_eq!(tables.offsets("t", 0), ((110..=114).collect(), 109));
    let tiny = Retention { bytes_max: 1, ..spacious() };
    tables.apply(0, &ops(115..=115, tiny), &SweepPlan::default());
    assert_eq!(tables.offsets("t", 0), (vec![115], 114), "the newest stays");
}

#[test]
fn reads_hide_messages_that_are_too_old_until_a_sweep_deletes_them() {
    let mut tables = Tables::new();
    let second = Retention { seconds_max: 1, ..spacious() };
    tables.apply(0, &ops(1..=20, second), &SweepPlan::default());
    assert_eq!(tables.offsets("t", 1_010), ((11..=20).collect(), 10));
    let before = read::before(&tables.db, "t", u64::MAX, ALL, 1_010).unwrap();
    assert_eq!((before.records.len(), before.floor, before.more), (10, 10, false));
    tables.sweep(1_010, &["t"]);
    assert_eq!(tables.offsets("t", 0), ((11..=20).collect(), 10));
    tables.sweep(5_000, &["t"]);
    assert_eq!((tables.offsets("t", 0), tables.metadata.empty_topics), ((vec![], 20), 1));
    tables.sweep(5_000 + EMPTY_MS, &["t"]);
    assert_eq!(tables.metadata.forgotten_floor, 0, "it is not forgotten yet");
    tables.sweep(5_001 + EMPTY_MS, &["t"]);
    assert_eq!((tables.metadata.forgotten_floor, tables.metadata.empty_topics), (20, 0));
    assert_eq!(tables.after("t", 0, 0).floor, 20, "all topics without a row may have lost that");
    tables.apply(0, &[op(&publication("u", ""), 21, 0, spacious())], &SweepPlan::default());
    assert_eq!(tables.offsets("u", 0), (vec![21], 20), "a new row does not hide it");
}

#[test]
fn an_expired_message_goes_without_raising_the_floor() {
    let mut tables = Tables::new();
    let attributes = Attributes { expires_ms: Some(100), ..Attributes::default() };
    let expires = Publication { attributes: Some(Box::new(attributes)), ..publication("t", "x") };
    let all = [op(&expires, 1, 0, spacious()), op(&publication("t", "y"), 2, 0, spacious())];
    tables.apply(0, &all, &SweepPlan::default());
    assert_eq!(tables.offsets("t", 99), (vec![1, 2], 0));
    assert_eq!(tables.offsets("t", 100), (vec![2], 0));
    tables.sweep(100, &[]);
    assert_eq!(tables.offsets("t", 0), (vec![2], 0));
    tables.apply(
        0,
        &[Op::Delete { topic: "t".into(), through: 1, rows_max: 99 }],
        &SweepPlan::default(),
    );
    assert_eq!(tables.offsets("t", 0), (vec![2], 0), "there was nothing");
    tables.apply(
        0,
        &[Op::Delete { topic: "t".into(), through: 9, rows_max: 99 }],
        &SweepPlan::default(),
    );
    assert_eq!(tables.offsets("t", 0), (vec![], 2));
}

#[test]
fn a_state_without_an_age_limit_stands() {
    let mut tables = Tables::new();
    let lasting = Retention { compact: true, seconds_max: u64::MAX, ..spacious() };
    tables.apply(0, &[op(&keyed("t", "a", "1"), 1, 0, lasting)], &SweepPlan::default());
    tables.sweep(u64::MAX - 1, &["t"]);
    assert_eq!(tables.offsets("t", u64::MAX - 1), (vec![1], 0));
}

#[test]
fn a_compact_topic_retains_the_last_message_of_each_key() {
    let mut tables = Tables::new();
    let compact = Retention { compact: true, ..spacious() };
    let publications = [
        keyed("t", "a", "1"),
        keyed("t", "b", "1"),
        publication("t", "without a key"),
        keyed("t", "a", "2"),
        keyed("t", "b", "null"),
    ];
    for (at, publication) in publications.iter().enumerate() {
        let op = op(publication, at as u64 + 1, 0, compact);
        tables.apply(0, &[op], &SweepPlan::default());
    }
    assert_eq!(tables.offsets("t", 0), (vec![3, 4, 5], 0), "the floor does not tell");
    tables.sweep(REMOVAL_SECONDS * 1000 - 1, &[]);
    assert_eq!(tables.offsets("t", 0), (vec![3, 4, 5], 0));
    tables.sweep(REMOVAL_SECONDS * 1000, &[]);
    assert_eq!(tables.offsets("t", 0), (vec![3, 4], 5), "a client that has not seen 5 has a gap");
    tables.apply(
        0,
        &[Op::Delete { topic: "t".into(), through: 4, rows_max: 99 }],
        &SweepPlan::default(),
    );
    tables.apply(0, &[op(&keyed("t", "a", "3"), 6, 0, compact)], &SweepPlan::default());
    assert_eq!(tables.offsets("t", 0), (vec![6], 5));
    let other = [op(&keyed("u", "a", "1"), 7, 0, compact)];
    tables.apply(0, &other, &SweepPlan::default());
    assert_eq!((tables.offsets("t", 0).0, tables.offsets("u", 0).0), (vec![6], vec![7]));
}

#[test]
fn a_sweep_deletes_old_idempotency_keys() {
    let mut tables = Tables::new();
    let mut all = Vec::new();
    for offset in 1..=9 {
        let Op::Append(append) = op(&publication("t", ""), offset, offset * 10, spacious()) else {
            continue;
        };
        all.push(Op::Append(batch::Append { idempotency_key: Some("k".into()), ..append }));
    }
    tables.apply(0, &all, &SweepPlan::default());
    let plan = SweepPlan { keys_before_ms: Some(50), rows_max: 3, ..SweepPlan::default() };
    let keys = |tables: &Tables| {
        let txn = tables.db.begin_read().unwrap();
        txn.open_table(crate::tables::IDEMPOTENCY).unwrap().len().unwrap()
    };
    assert!(tables.apply(0, &[], &plan), "there is more");
    assert_eq!(keys(&tables), 6);
    assert!(!tables.apply(0, &[], &plan));
    assert_eq!(keys(&tables), 5);
}

fn expiring(publication: Publication, expires_ms: u64) -> Publication {
    let attributes =
        publication.attributes.map_or_else(Attributes::default, |attributes| *attributes);
    let attributes = Attributes { expires_ms: Some(expires_ms), ..attributes };
    Publication { attributes: Some(Box::new(attributes)), ..publication }
}

#[test]
fn an_expiry_row_is_deleted_with_its_message() {
    let mut tables = Tables::new();
    let far = |text: &str| expiring(publication("t", text), 1_000_000);
    let two = Retention { messages_max: 2, ..spacious() };
    for offset in 1..=9 {
        tables.apply(0, &[op(&far("x"), offset, 0, two)], &SweepPlan::default());
    }
    assert_eq!((tables.offsets("t", 0).0, tables.expiries()), (vec![8, 9], 2), "retention");
    tables.apply(
        0,
        &[op(&expiring(publication("t", "y"), 2_000_000), 9, 0, two)],
        &SweepPlan::default(),
    );
    assert_eq!((tables.offsets("t", 0).0, tables.expiries()), (vec![8, 9], 2), "the same again");
    tables.apply(
        0,
        &[Op::Delete { topic: "t".into(), through: 9, rows_max: 99 }],
        &SweepPlan::default(),
    );
    assert_eq!(tables.expiries(), 0, "a deletion");
    let compact = Retention { compact: true, ..spacious() };
    for (offset, json) in [(10, "1"), (11, "null"), (12, "2")] {
        let publication = expiring(keyed("t", "a", json), 1_000_000_000);
        tables.apply(0, &[op(&publication, offset, 0, compact)], &SweepPlan::default());
        assert_eq!(tables.expiries(), 1, "compaction");
    }
    tables.apply(0, &[op(&keyed("t", "a", "null"), 13, 0, compact)], &SweepPlan::default());
    assert_eq!(tables.expiries(), 1, "a message without a time that says its key is no more");
    tables.apply(0, &[op(&keyed("t", "a", "3"), 14, 0, compact)], &SweepPlan::default());
    assert_eq!(tables.expiries(), 0);
}

#[test]
fn an_expired_value_in_a_compact_topic_raises_the_floor() {
    let mut tables = Tables::new();
    let compact = Retention { compact: true, ..spacious() };
    let publications = [
        keyed("t", "a", "1"),
        expiring(keyed("t", "a", "2"), 100),
        expiring(publication("t", "without a key"), 100),
    ];
    for (at, publication) in publications.iter().enumerate() {
        tables.apply(0, &[op(publication, at as u64 + 1, 0, compact)], &SweepPlan::default());
    }
    assert_eq!(tables.offsets("t", 99), (vec![2, 3], 0));
    assert_eq!(tables.offsets("t", 100), (vec![], 2), "before the sweep");
    tables.sweep(100, &[]);
    assert_eq!(tables.offsets("t", 100), (vec![], 2), "a client that has only seen 1 has a gap");
}
