//! Files of the format version before.

use redb::{Database, TableDefinition};

use super::*;
use crate::record::{encode, put_number};
use crate::tables::{EXPIRIES, KEYS, MESSAGES, NODE, SUBSCRIPTIONS, TOPICS};
use crate::{FILE, Found, OpenError, check};

const IDEMPOTENCY: TableDefinition<(u64, u64), (&str, &str)> = TableDefinition::new("idempotency");
const CURSORS: TableDefinition<(&str, &str), u64> = TableDefinition::new("cursors");
const NAMES: TableDefinition<u32, &str> = TableDefinition::new("names");

/// A row as that version wrote it.
fn topic(compact: bool, numbers: [u64; 10]) -> Vec<u8> {
    let mut row = vec![u8::from(compact)];
    numbers.iter().for_each(|number| put_number(&mut row, *number));
    row
}

/// A store with two topics, as that version left it.
fn written(dir: &Dir, messages: u64) {
    let db = Database::create(dir.0.join(FILE)).unwrap();
    let txn = db.begin_write().unwrap();
    {
        let mut node = txn.open_table(NODE).unwrap();
        let facts = [
            ("format", 1),
            ("epoch", 0xab),
            ("clean", 1),
            ("last", messages + 5),
            ("gone", 3),
            ("next", 2),
        ];
        for (name, number) in facts {
            node.insert(name, number).unwrap();
        }
        let mut topics = txn.open_table(TOPICS).unwrap();
        let limits = [1_000_000, u64::MAX, 1_000_000_000];
        let rest = |head: [u64; 7]| [head.as_slice(), &limits].concat().try_into().unwrap();
        let plain = topic(false, rest([1, 7, messages + 5, messages, messages * 4, 9, 0]));
        topics.insert("plain", &*plain).unwrap();
        let compact = topic(true, rest([2, 0, 4, 1, 1, 9, 0]));
        topics.insert("compact", &*compact).unwrap();
        let mut table = txn.open_table(MESSAGES).unwrap();
        for offset in 6..6 + messages {
            table.insert((1, offset), &*encode(&draft("plain", "text"), 9)).unwrap();
        }
        table.insert((2, 4), &*encode(&keyed("compact", "k", "1"), 9)).unwrap();
        txn.open_table(KEYS).unwrap().insert((2, "k"), 4).unwrap();
        txn.open_table(EXPIRIES).unwrap();
        let names = ("plain", "once");
        txn.open_table(IDEMPOTENCY).unwrap().insert((u64::MAX / 2_000, 6), names).unwrap();
        txn.open_table(CURSORS).unwrap().insert(("alice", "plain"), 8).unwrap();
        txn.open_table(SUBSCRIPTIONS).unwrap().insert("alice", &[1, 2][..]).unwrap();
        txn.open_table(NAMES).unwrap().insert(4, "plain").unwrap();
    }
    txn.commit().unwrap();
    db.close().unwrap();
}

#[test]
fn a_file_of_the_version_before_keeps_all_that_it_has() {
    let dir = Dir::new();
    written(&dir, 500);
    let window = Options { idempotency_seconds_max: u64::MAX, ..options(&dir.0) };
    let (store, reader, found) = Store::open(window).unwrap();
    assert_eq!(found, Found { epoch: 0xab, last_offset: 505, clean: true });
    assert_eq!(read(&reader, "plain", 0), (6..506).collect::<Vec<_>>());
    assert_eq!((reader.floor("plain"), reader.floor("other")), (Ok(7), Ok(3)));
    let mut seen = Vec::new();
    reader.each_cursor(|user, topic, at| seen.push(format!("{user} {topic} {at}"))).unwrap();
    reader
        .each_idempotency_key(|topic, key, at, _| seen.push(format!("{topic} {key} {at}")))
        .unwrap();
    reader.each_subscriber(|user, packed| seen.push(format!("{user} {packed:?}"))).unwrap();
    reader.each_name(|number, name| seen.push(format!("{number} {name}"))).unwrap();
    assert_eq!(seen, ["alice plain 8", "plain once 6", "alice [1, 2]", "4 plain"]);
    // The last of a key goes when a new one comes.
    let keep = History { compact: true, ..history() };
    let new = keyed("compact", "k", "2");
    let append = Append { draft: &new, offset: 506, at_ms: 9, keep: &keep, idempotency_key: None };
    store.append(append, Box::new(|_| ())).unwrap();
    appended(&store, &draft("new", "x"), 507);
    assert_eq!((read(&reader, "compact", 0), read(&reader, "new", 0)), (vec![506], vec![507]));
    store.close().unwrap();
    let report = check(&dir.0).unwrap();
    assert_eq!((report.format, report.damages.len(), report.messages), (2, 0, 502));
}

#[test]
fn a_damaged_file_of_the_version_before_is_refused_and_stays() {
    let dir = Dir::new();
    written(&dir, 500);
    let file = dir.0.join(FILE);
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.windows(8).position(|window| window == b"texttext" || window.ends_with(b"text"));
    bytes[at.unwrap() + 5] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    for verify_bytes_max in [0, u64::MAX] {
        let options = Options { verify_bytes_max, ..options(&dir.0) };
        let error = Store::open(options).err().unwrap();
        assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
        assert!(std::fs::read(&file).unwrap() == bytes, "the file was changed");
    }
}
