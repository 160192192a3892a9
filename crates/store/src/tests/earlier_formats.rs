//! Tests of files of earlier format versions. Those of the first are rewritten.

use std::os::unix::fs::MetadataExt;

use redb::{Database, TableDefinition};

use super::*;
use crate::checksum;
use crate::coding::put_varint;
use crate::record::encode;
use crate::tables::{
    EXPIRIES, FORMAT_TABLE, KEYS, MESSAGES, METADATA, METADATA_KEY, RECORDS, SUBSCRIPTIONS, TOPICS,
};
use crate::{FILE, FORMAT, OFFSETS_SKIPPED, OpenError, OpenInfo, check, salvage};

const IDEMPOTENCY: TableDefinition<(u64, u64), (&str, &str)> = TableDefinition::new("idempotency");
const CURSORS: TableDefinition<(&str, &str), u64> = TableDefinition::new("cursors");
const NAMES: TableDefinition<u32, &str> = TableDefinition::new("names");

/// Encodes a topic's row like the first version.
fn topic(compact: bool, numbers: [u64; 10]) -> Vec<u8> {
    let mut row = vec![u8::from(compact)];
    numbers.iter().for_each(|number| put_varint(&mut row, *number));
    row
}

/// Writes a store with two topics like the first version.
fn write_store(dir: &Dir, messages: u64) {
    let db = Database::create(dir.0.join(FILE)).unwrap();
    let txn = db.begin_write().unwrap();
    {
        let mut metadata = txn.open_table(FORMAT_TABLE).unwrap();
        let facts = [
            ("format", 1),
            ("epoch", 0xab),
            ("clean", 1),
            ("last", messages + 5),
            ("gone", 3),
            ("next", 2),
        ];
        for (name, number) in facts {
            metadata.insert(name, number).unwrap();
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
            table.insert((1, offset), &*encode(&publication("plain", "text"), 9)).unwrap();
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

/// A message's record, byte for byte as the second version wrote it.
const SECOND_RECORD: &[u8] = b"\x3e\x87\xad\x4b\x04tick\x02\x03red\x04blue\x01k\x8f\x4e\x00\xff";

/// Turns a store of this version into one of the second or third, which is equal as long as no message has a sender.
fn make_earlier(dir: &Dir, format: u64) {
    let db = Database::open(dir.0.join(FILE)).unwrap();
    let txn = db.begin_write().unwrap();
    txn.open_table(FORMAT_TABLE).unwrap().insert("format", format).unwrap();
    // These versions had no records, and no tally of them in the metadata.
    txn.delete_table(RECORDS).unwrap();
    {
        use redb::ReadableTable;
        let mut facts = txn.open_table(METADATA).unwrap();
        let row = facts.get(METADATA_KEY).unwrap().unwrap().value().to_vec();
        let row = checksum::verify(METADATA_KEY.as_bytes(), &row).unwrap();
        let row = row.strip_suffix(&[0, 0]).unwrap();
        facts.insert(METADATA_KEY, &*checksum::prepend(METADATA_KEY.as_bytes(), row)).unwrap();
    }
    txn.commit().unwrap();
    db.close().unwrap();
}

#[test]
fn a_file_of_the_second_to_fourth_format_is_used_as_it_is() {
    [2, 3, 4].into_iter().for_each(is_used_as_it_is);
}

fn is_used_as_it_is(format: u64) {
    let attributes = Attributes {
        tags: vec!["red".into(), "blue".into()],
        key: Some("k".into()),
        expires_ms: Some(9_999),
        ..Attributes::default()
    };
    let old = Publication {
        event: Some("tick".into()),
        attributes: Some(Box::new(attributes)),
        ..Publication::new("t", Data::Binary([0, 255].into()))
    };
    assert_eq!(*encode(&old, 1_234_567), *SECOND_RECORD);

    let dir = Dir::new();
    let (store, _, _) = Store::open(options(&dir.0)).unwrap();
    appended(&store, &old, 1);
    appended(&store, &publication("u", "two"), 2);
    store.close().unwrap();
    make_earlier(&dir, format);
    let report = check(&dir.0).unwrap();
    assert_eq!((report.format, report.damages.len(), report.messages), (format, 0, 2));
    let new = Dir::new();
    assert_eq!(salvage(&dir.0, &new.0, 7).unwrap(), report);
    let copy = check(&new.0).unwrap();
    assert_eq!((copy.format, copy.damages.len(), copy.messages), (FORMAT, 0, 2));

    let file = || std::fs::metadata(dir.0.join(FILE)).unwrap().ino();
    let before = file();
    let (store, reader, found) = Store::open(options(&dir.0)).unwrap();
    assert_eq!(found, OpenInfo { epoch: 0x5f3a_91c2, last_offset: 2, clean: true });
    assert_eq!(reader.after("t", 0, ALL, 0).unwrap().records[0].publication, old);
    let sent = publication("t", "three").sent_by(Some("alice".into()));
    appended(&store, &sent, 3);
    store.put_records("part", vec![("key".into(), Some([7].into()))], Box::new(|_| ())).unwrap();
    assert_eq!(reader.after("t", 1, ALL, 0).unwrap().records[0].publication, sent);
    store.close().unwrap();
    assert_eq!(file(), before, "nothing was copied");
    let report = check(&dir.0).unwrap();
    assert_eq!((report.format, report.damages.len(), report.messages), (FORMAT, 0, 3));
}

#[test]
fn a_file_of_the_first_format_is_upgraded_without_loss() {
    let dir = Dir::new();
    write_store(&dir, 500);
    let window = Options { idempotency_seconds_max: u64::MAX, ..options(&dir.0) };
    let (store, reader, found) = Store::open(window).unwrap();
    assert_eq!(found, OpenInfo { epoch: 0xab, last_offset: 505, clean: true });
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
    // A new message replaces the last one of its key.
    let rule = HistoryRule { compact: true, ..history() };
    let new = keyed("compact", "k", "2");
    let append = Append {
        publication: &new,
        offset: 506,
        at_ms: 9,
        rule: &rule,
        idempotency_key: None,
        with: None,
    };
    store.append(append, Box::new(|_| ())).unwrap();
    appended(&store, &publication("new", "x"), 507);
    assert_eq!((read(&reader, "compact", 0), read(&reader, "new", 0)), (vec![506], vec![507]));
    store.close().unwrap();
    let report = check(&dir.0).unwrap();
    assert_eq!((report.format, report.damages.len(), report.messages), (FORMAT, 0, 502));
}

#[test]
fn a_damaged_file_of_the_first_format_is_rejected_and_unchanged() {
    let dir = Dir::new();
    write_store(&dir, 500);
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

/// Flips one bit of the last byte of the last occurrence of these bytes.
fn flip(dir: &Dir, bytes: &[u8]) {
    let file = dir.0.join(FILE);
    let mut all = std::fs::read(&file).unwrap();
    let at = all.windows(bytes.len()).rposition(|window| window == bytes).unwrap();
    all[at + bytes.len() - 1] ^= 1;
    std::fs::write(&file, &all).unwrap();
}

/// Salvages the store. Returns the new store, the report, and the end of the gap that all clients learn about.
fn salvaged(dir: &Dir) -> (Dir, crate::Report, u64) {
    let before = std::fs::read(dir.0.join(FILE)).unwrap();
    let new = Dir::new();
    let report = salvage(&dir.0, &new.0, 7).unwrap();
    assert!(std::fs::read(dir.0.join(FILE)).unwrap() == before, "the file was changed");
    assert_eq!(check(&dir.0).unwrap(), report);
    let copy = check(&new.0).unwrap();
    assert_eq!((copy.format, copy.damages.len(), copy.messages), (FORMAT, 0, report.messages));
    (new, report, 505 + OFFSETS_SKIPPED)
}

#[test]
fn salvage_of_the_first_format_copies_everything_around_a_changed_message() {
    let dir = Dir::new();
    write_store(&dir, 500);
    flip(&dir, b"text");
    let error = Store::open(options(&dir.0)).err().unwrap().to_string();
    assert!(error.contains("salvage") && error.contains("an earlier version"), "{error}");
    let (new, report, gap) = salvaged(&dir);
    assert_eq!((report.format, report.topics, report.messages), (1, 2, 501));
    let text = report.damages.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(text.contains("no checksums"), "{text}");
    let (store, reader, found) = Store::open(options(&new.0)).unwrap();
    assert_eq!((found.epoch, found.last_offset), (0xab, gap));
    // The changed message is unknown, so all clients learn about the gap.
    assert_eq!((reader.floor("plain"), reader.floor("compact")), (Ok(gap), Ok(gap)));
    assert_eq!((read(&reader, "plain", 0).len(), read(&reader, "compact", 0)), (500, vec![4]));
    let mut seen = Vec::new();
    reader.each_cursor(|user, topic, at| seen.push(format!("{user} {topic} {at}"))).unwrap();
    reader.each_subscriber(|user, packed| seen.push(format!("{user} {packed:?}"))).unwrap();
    reader.each_name(|number, name| seen.push(format!("{number} {name}"))).unwrap();
    assert_eq!(seen, ["alice plain 8", "alice [1, 2]", "4 plain"]);
    appended(&store, &publication("plain", "new"), gap + 1);
    store.close().unwrap();
}

#[test]
fn salvage_of_the_first_format_names_and_skips_an_unreadable_message() {
    let dir = Dir::new();
    write_store(&dir, 500);
    let db = Database::open(dir.0.join(FILE)).unwrap();
    let txn = db.begin_write().unwrap();
    txn.open_table(MESSAGES).unwrap().insert((1, 100), &[0xff, 9][..]).unwrap();
    txn.commit().unwrap();
    db.close().unwrap();
    // redb's own checks accept the row.
    let error = Store::open(options(&dir.0)).err().unwrap().to_string();
    let location = "messages of plain after offset 99 up to 100";
    assert!(error.contains(location), "{error}");
    assert!(!dir.0.join("throng.redb.new").exists(), "a half copy is left");
    let (new, report, _) = salvaged(&dir);
    assert_eq!((report.damages.len(), report.messages), (1, 500));
    assert!(report.damages[0].to_string().contains(location), "{report:?}");
    let (store, reader, found) = Store::open(options(&new.0)).unwrap();
    assert_eq!(found, OpenInfo { epoch: 0xab, last_offset: 505, clean: true });
    assert_eq!((reader.floor("plain"), reader.floor("compact")), (Ok(100), Ok(0)));
    assert_eq!(read(&reader, "plain", 0).len(), 499);
    store.close().unwrap();
}

#[test]
fn salvage_of_the_first_format_reports_missing_messages() {
    let dir = Dir::new();
    write_store(&dir, 500);
    let db = Database::open(dir.0.join(FILE)).unwrap();
    let txn = db.begin_write().unwrap();
    txn.open_table(MESSAGES).unwrap().remove((1, 100)).unwrap();
    txn.commit().unwrap();
    db.close().unwrap();
    flip(&dir, b"text");
    let (new, report, gap) = salvaged(&dir);
    let text = report.damages.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let want = "messages of plain after offset 7 up to 505: 500 messages were written, but the file has 499";
    assert!(text.contains(want), "{text}");
    let (store, reader, _) = Store::open(options(&new.0)).unwrap();
    assert_eq!(reader.floor("plain"), Ok(gap));
    store.close().unwrap();
}

#[test]
fn salvage_copies_or_rejects_any_damaged_file_of_the_first_format() {
    let dir = Dir::new();
    write_store(&dir, 2_000);
    let file = dir.0.join(FILE);
    let original = std::fs::read(&file).unwrap();
    let (mut salvaged, mut fewer) = (0, 0);
    let is_used = |at: &usize| original[*at..].iter().take(4096).any(|byte| *byte != 0);
    let pages: Vec<usize> = (0..original.len()).step_by(4096).filter(is_used).collect();
    for round in 0..2 * pages.len() {
        let mut bytes = original.clone();
        // The test zeroes half a page or flips some of its bits. The first bytes stay, because a
        // debug build of redb asserts on them when it opens a file.
        let at = pages[round / 2];
        let end = original.len().min(at + 4096);
        match round % 2 {
            0 => bytes[(at + 2048).min(end)..end].fill(0),
            _ => bytes[at + 8..end].iter_mut().step_by(61).for_each(|byte| *byte ^= 4),
        }
        std::fs::write(&file, &bytes).unwrap();
        let new = Dir::new();
        let Ok(report) = salvage(&dir.0, &new.0, 7) else { continue };
        salvaged += 1;
        let found = check(&new.0).unwrap();
        assert_eq!((found.damages.len(), found.format), (0, FORMAT), "round {round}");
        if report.damages.is_empty() {
            assert_eq!(found.messages, 2_001, "round {round}");
        }
        let (store, reader, _) = Store::open(options(&new.0)).unwrap();
        if found.messages < 2_001 {
            fewer += 1;
            let floor = reader.floor("plain").unwrap();
            assert!(floor > OFFSETS_SKIPPED, "round {round}: no gap is reported, {report:?}");
        }
        store.close().unwrap();
    }
    assert!(salvaged > 20 && fewer > 5, "{salvaged} {fewer} of {}", 2 * pages.len());
}

#[test]
fn check_verifies_a_store_of_the_first_format() {
    let dir = Dir::new();
    write_store(&dir, 500);
    let report = check(&dir.0).unwrap();
    assert_eq!((report.format, report.clean, report.damages.len()), (1, true, 0));
    assert_eq!((report.topics, report.messages, report.others), (2, 501, 4));
    flip(&dir, b"text");
    assert!(!check(&dir.0).unwrap().damages.is_empty());
}

#[test]
fn check_rejects_unknown_files() {
    let dir = Dir::new();
    let file = dir.0.join(FILE);
    write_store(&dir, 5);
    for format in [Some(FORMAT + 1), None] {
        let db = Database::open(&file).unwrap();
        let txn = db.begin_write().unwrap();
        let mut metadata = txn.open_table(FORMAT_TABLE).unwrap();
        match format {
            Some(format) => drop(metadata.insert("format", format).unwrap()),
            None => drop(metadata.remove("format").unwrap()),
        }
        drop(metadata);
        txn.commit().unwrap();
        db.close().unwrap();
        let new = Dir::new();
        let errors = [check(&dir.0).unwrap_err(), salvage(&dir.0, &new.0, 7).unwrap_err()];
        for error in errors {
            let is_expected = match format {
                Some(_) => matches!(error, OpenError::Format { found, .. } if found == FORMAT + 1),
                None => matches!(error, OpenError::Unknown { .. }),
            };
            assert!(is_expected, "{error}");
        }
    }
    // Files of another program, and files that are no database at all.
    std::fs::remove_file(&file).unwrap();
    let db = Database::create(&file).unwrap();
    db.close().unwrap();
    assert!(matches!(check(&dir.0).unwrap_err(), OpenError::Unknown { .. }));
    for bytes in [&b""[..], b"no store at all, whatever it may be called"] {
        std::fs::write(&file, bytes).unwrap();
        assert!(matches!(check(&dir.0).unwrap_err(), OpenError::Unknown { .. }));
    }
}

#[test]
fn an_upgrade_on_a_full_disk_removes_its_partial_file() {
    let dir = Dir::new();
    if !full_disk::mount(&dir.0) {
        eprintln!("this user may not mount a disk: left out");
        return;
    }
    let data = Dir(dir.0.join("data"));
    std::fs::create_dir(&data.0).unwrap();
    write_store(&data, 10_000);
    let mut ballast = std::fs::File::create(dir.0.join("ballast")).unwrap();
    while std::io::Write::write(&mut ballast, &[1; 4096]).is_ok_and(|length| length == 4096) {}
    let length = ballast.metadata().unwrap().len();
    // The disk has capacity for the small files and for a part of the new one.
    ballast.set_len(length.saturating_sub(700 << 10)).unwrap();
    for _ in 0..2 {
        let error = Store::open(options(&data.0)).err().unwrap();
        assert!(matches!(error, OpenError::Disk { .. }), "{error}");
        let error = error.to_string();
        assert!(error.contains("the disk is full") && error.contains("start again"), "{error}");
        assert!(!error.contains("by itself"), "{error}");
        assert!(!data.0.join("throng.redb.new").exists(), "a half copy is left");
    }
    let to = dir.0.join("to");
    let error = salvage(&data.0, &to, 7).unwrap_err();
    assert!(matches!(error, OpenError::Disk { .. }), "{error}");
    assert!(!to.join("throng.redb.new").exists(), "a half copy is left");
    drop(ballast);
    std::fs::remove_file(dir.0.join("ballast")).unwrap();
    let (store, reader, _) = Store::open(options(&data.0)).unwrap();
    assert_eq!(read(&reader, "plain", 0).len(), 10_000);
    store.close().unwrap();
    full_disk::unmount(&dir.0);
}
