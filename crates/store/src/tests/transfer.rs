//! Tests of a history that leaves a store, and of one that comes into a new store.

use std::fs;

use model::Name;

use super::end_to_end::wait_until;
use super::known_damage::{change, number, stored};
use super::*;
use crate::metadata::OFFSETS_SKIPPED;
use crate::tables::MESSAGES;
use crate::{
    CursorRow, FILE, LogHead, LogKey, LogRow, LogTopic, OpenError, PutFailed, StoreExport,
    TransferError, back_up, check, import, salvage,
};

/// The epoch of the new stores in these tests.
const EPOCH: u32 = 77;

/// A message as an export reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    topic: String,
    offset: u64,
    previous: u64,
    at_ms: u64,
    expires_ms: Option<u64>,
    bytes: u64,
    key: Option<String>,
    is_removal: bool,
    record: Vec<u8>,
}

fn opened(dir: &Path) -> StoreExport {
    let (report, export) = StoreExport::open(dir).unwrap();
    assert_eq!(report.damages, []);
    export.unwrap()
}

fn rows(export: &StoreExport) -> Vec<Row> {
    let mut rows = Vec::new();
    for topic in export.topics() {
        let read = export.messages(topic, |message| {
            rows.push(Row {
                topic: topic.name().to_string(),
                offset: message.offset,
                previous: message.previous,
                at_ms: message.at_ms,
                expires_ms: message.expires_ms,
                bytes: message.bytes,
                key: message.key.map(str::to_owned),
                is_removal: message.is_removal,
                record: message.record.to_vec(),
            });
            Ok::<(), PutFailed>(())
        });
        read.unwrap();
    }
    rows
}

/// The links of a topic: pairs of a message's offset and the one before it.
fn links(rows: &[Row], topic: &str) -> Vec<(u64, u64)> {
    let of_topic = rows.iter().filter(|row| row.topic == topic);
    of_topic.map(|row| (row.offset, row.previous)).collect()
}

/// Appends a message at the time of its offset, and waits.
fn put(
    store: &Store,
    publication: &Publication,
    offset: u64,
    rule: &HistoryRule,
    key: Option<&str>,
) {
    put_at(store, publication, (offset, offset), rule, key);
}

/// Appends a message with an offset and a time, and waits.
fn put_at(
    store: &Store,
    publication: &Publication,
    (offset, at_ms): (u64, u64),
    rule: &HistoryRule,
    key: Option<&str>,
) {
    let (send, receive) = mpsc::channel();
    let append = Append { publication, offset, at_ms, rule, idempotency_key: key, with: None };
    store.append(append, Box::new(move |result| drop(send.send(result)))).unwrap();
    assert_eq!(receive.recv_timeout(WAIT).unwrap(), Ok(()));
}

fn delete(store: &Store, topic: &str) {
    let (send, receive) = mpsc::channel();
    let done = Box::new(move |result| drop(send.send(result)));
    store.delete_history(&topic.into(), u64::MAX, done).unwrap();
    assert_eq!(receive.recv_timeout(WAIT).unwrap(), Ok(()));
}

/// Users' packed subscriptions, and the names of their topics.
type Subscriptions = (Vec<(Name, Box<[u8]>)>, Vec<(u32, Name)>);

/// The subscriptions of the filled store.
fn stored_subscriptions() -> Subscriptions {
    let users = vec![("bob".into(), Box::from([3])), ("cy".into(), Box::from([2, 1]))];
    (users, vec![(1, "feed:a".into()), (2, "feed:b".into())])
}

/// The subscriptions of an export.
fn subscriptions(export: &StoreExport) -> Subscriptions {
    let (mut users, mut names) = Subscriptions::default();
    let read = export.subscriptions(
        |number, name| names.push((number, name.into())),
        |user, packed| users.push((user.into(), packed.into())),
    );
    read.unwrap();
    (users, names)
}

/// Copies an export into a new store, as its database would return it.
fn copy(export: &StoreExport, to: &Path) -> Result<crate::Imported, TransferError<PutFailed>> {
    import(to, EPOCH, |store| {
        for topic in export.topics() {
            store.put(LogRow::Topic(&topic.topic))?;
            let read = export.messages(topic, |message| {
                // A day after the last of these times, a removal goes.
                let at_ms = message.at_ms.min(1_000) + 1;
                let (offset, record) = (message.offset, message.record);
                store.put(LogRow::Message { offset, at_ms, record })
            });
            read.map_err(|_| PutFailed)?;
        }
        store.put_keys(&export.keys().unwrap())?;
        let (puts, names) = subscriptions(export);
        store.put_subscriptions(&puts, &names)?;
        store.put_cursors(&export.cursors().unwrap())?;
        Ok(export.head())
    })
}

/// Fills a store with messages of each kind, and closes it.
fn filled(dir: &Path) {
    let (store, ..) = Store::open(options(dir)).unwrap();
    let attributes = Attributes {
        expires_ms: Some(1 << 60),
        sender: Some("alice".into()),
        tags: vec!["red".into()],
        ..Attributes::default()
    };
    let tagged = Publication {
        attributes: Some(Box::new(attributes)),
        ..Publication::new("all", Data::Binary(Box::from(&b"abc"[..])))
    };
    put(&store, &publication("all", "first"), 1, &history(), Some("k"));
    put(&store, &publication("gone", "x"), 2, &history(), None);
    put(&store, &tagged, 3, &history(), None);
    let compacted = HistoryRule { compact: true, ..history() };
    // The first two are from before the topic was compacted.
    put(&store, &keyed("compacted", "k", "1"), 4, &history(), None);
    put(&store, &keyed("compacted", "k", "2"), 5, &history(), None);
    put(&store, &keyed("compacted", "gone", "3"), 6, &compacted, None);
    put(&store, &keyed("compacted", "l", "4"), 7, &compacted, None);
    // Its time is in the future, so that no sweep takes the removal.
    put_at(&store, &keyed("compacted", "gone", "null"), (8, 1 << 50), &compacted, None);
    delete(&store, "gone");
    let few = HistoryRule { messages_max: 20, bytes_max: 1_000, ..history() };
    for offset in 11..=32 {
        put(&store, &publication("few", "1234567890"), offset, &few, None);
    }
    store.put_cursor(&"alice".into(), &"all".into(), 1).unwrap();
    let (users, names) = stored_subscriptions();
    store.put_subscriptions(users, names, Box::new(|_| ())).unwrap();
    let puts = vec![("key".into(), Some(Box::from(&b"value"[..])))];
    store.put_records("part", puts, Box::new(|_| ())).unwrap();
    store.close().unwrap();
}

#[test]
fn an_export_has_what_reads_return_and_links_that_say_what_is_gone() {
    let dir = Dir::new();
    filled(&dir.0);
    let export = opened(&dir.0);
    let names: Vec<&str> = export.topics().iter().map(|topic| topic.name().as_str()).collect();
    assert_eq!(names, ["all", "compacted", "few", "gone"]);
    let rows = rows(&export);
    assert_eq!(links(&rows, "all"), [(1, 0), (3, 1)]);
    let few: Vec<(u64, u64)> = (13..=32).map(|offset| (offset, offset - 1)).collect();
    assert_eq!(links(&rows, "few"), few, "without what is beyond the limit");
    let gone_through = export.messages(&export.topics()[2], |_| Ok::<(), PutFailed>(()));
    assert_eq!(gone_through.unwrap(), 12);
    assert_eq!(links(&rows, "compacted"), [(5, 0), (7, 5), (8, 7)]);
    let keys: Vec<(&str, bool)> =
        rows.iter().filter_map(|row| row.key.as_deref().map(|key| (key, row.is_removal))).collect();
    assert_eq!(keys, [("k", false), ("l", false), ("gone", true)]);
    let compacted: Vec<bool> = export.topics().iter().map(|topic| topic.topic.compact).collect();
    assert_eq!(compacted, [false, true, false, false]);
    assert_eq!(links(&rows, "gone"), []);
    assert!(!export.has_gaps());
    let tagged = &rows[1];
    assert_eq!((tagged.at_ms, tagged.expires_ms, tagged.bytes), (3, Some(1 << 60), 3));
    let record = crate::Record::decode(&"all".into(), 3, &tagged.record).unwrap();
    let attributes = record.publication.attributes.unwrap();
    assert_eq!(
        (attributes.sender, &attributes.tags[..]),
        (Some("alice".into()), &["red".into()][..])
    );
    let LogTopic { floor, last_offset, messages_max, bytes_max, .. } = export.topics()[2].topic;
    assert_eq!((floor, last_offset, messages_max, bytes_max), (0, 32, 20, 1_000));
    let gone = &export.topics()[3].topic;
    assert!(
        (gone.floor, gone.last_offset) == (2, 2) && gone.last_ms > 1_600_000_000_000,
        "{gone:?}"
    );
    assert_eq!(export.head(), LogHead { epoch: 0x5f3a_91c2, last_offset: 32, forgotten: 0 });
    let key = LogKey { topic: "all".into(), key: "k".into(), offset: 1, at_ms: 1 };
    assert_eq!(export.keys().unwrap(), [key]);
    assert_eq!(subscriptions(&export), stored_subscriptions());
    let others = export.other_rows().unwrap();
    assert_eq!(others.events, 0);
    let cursor = CursorRow { user: "alice".into(), topic: "all".into(), offset: 1 };
    assert_eq!(export.cursors().unwrap(), [cursor]);
    assert_eq!(others.records.into_iter().collect::<Vec<_>>(), [("part".into(), 1)]);
}

#[test]
fn a_store_is_locked_while_it_is_exported_and_not_exported_while_it_is_open() {
    let dir = stored();
    let export = opened(&dir.0);
    assert!(matches!(Store::open(options(&dir.0)), Err(OpenError::InUse { .. })));
    drop(export);
    let (store, ..) = Store::open(options(&dir.0)).unwrap();
    assert!(matches!(StoreExport::open(&dir.0), Err(OpenError::InUse { .. })));
    store.close().unwrap();
    assert!(matches!(StoreExport::open(&dir.0.join("none")), Err(OpenError::Missing { .. })));
}

#[test]
fn offsets_that_a_killed_process_may_have_assigned_are_not_assigned_again() {
    let (dir, killed) = (Dir::new(), Dir::new());
    let (store, ..) = Store::open(options(&dir.0)).unwrap();
    appended(&store, &publication("t", "a"), 5);
    for file in [FILE, crate::last_commit::FILE] {
        fs::copy(dir.0.join(file), killed.0.join(file)).unwrap();
    }
    let head = opened(&killed.0).head();
    assert_eq!((head.epoch, head.last_offset), (0x5f3a_91c2, 5 + OFFSETS_SKIPPED));
    store.close().unwrap();
    assert_eq!(opened(&dir.0).head().last_offset, 5);
}

#[test]
fn of_a_damaged_store_nothing_is_read() {
    let dir = stored();
    change(&dir, |txn| {
        let number = number(txn, "b");
        txn.open_table(MESSAGES).unwrap().remove((number, 31)).unwrap().unwrap();
    });
    let (report, export) = StoreExport::open(&dir.0).unwrap();
    assert!(export.is_none());
    assert_eq!(report.damages.len(), 1, "{report:?}");
}

#[test]
fn a_store_that_may_lack_messages_says_so() {
    let dir = stored();
    let export = opened(&dir.0);
    assert_eq!(rows(&export).len(), 60);
    assert!(!export.has_gaps());
    drop(export);
    let backup = dir.0.join("backup");
    back_up(&dir.0, &backup, EPOCH).unwrap();
    assert!(opened(&backup).has_gaps(), "messages came after the backup");
    change(&dir, |txn| {
        let number = number(txn, "b");
        txn.open_table(MESSAGES).unwrap().remove((number, 31)).unwrap().unwrap();
    });
    let salvaged = dir.0.join("salvaged");
    salvage(&dir.0, &salvaged, EPOCH).unwrap();
    let export = opened(&salvaged);
    let rows = rows(&export);
    assert_eq!(rows.len(), 59, "the messages before the gap are there, too");
    assert!(export.has_gaps());
    assert_eq!(links(&rows, "b")[..2], [(1, 0), (4, 1)]);
}

#[test]
fn an_error_of_the_other_side_ends_the_export() {
    let dir = stored();
    let export = opened(&dir.0);
    let mut seen = 0;
    let result = export.messages(&export.topics()[1], |_| {
        seen += 1;
        if seen == 3 { Err("no more") } else { Ok(()) }
    });
    assert!(matches!(result, Err(TransferError::Other("no more"))) && seen == 3, "{seen}");
}

#[test]
fn a_new_store_has_the_rows_under_a_new_epoch() {
    let dir = Dir::new();
    let (from, to) = (dir.0.join("from"), dir.0.join("deep/to"));
    filled(&from);
    let export = opened(&from);
    let imported = copy(&export, &to).unwrap();
    assert_eq!((imported.topics, imported.messages, imported.keys), (4, 25, 1));
    assert_eq!(imported.lost_range, (32, 32 + OFFSETS_SKIPPED));
    let report = check(&to).unwrap();
    assert_eq!((report.damages, report.topics, report.messages), (vec![], 4, 25));
    assert!(report.clean);
    assert_eq!(subscriptions(&opened(&to)), stored_subscriptions());
    assert_eq!(opened(&to).cursors().unwrap(), export.cursors().unwrap());
    let (store, reader, found) = Store::open(options(&to)).unwrap();
    assert_eq!((found.epoch, found.last_offset), (EPOCH, 32 + OFFSETS_SKIPPED));
    assert_eq!(read(&reader, "few", 0), (13..=32).collect::<Vec<u64>>());
    assert_eq!(reader.last("gone").unwrap(), Some(2));
    let all = reader.after("all", 0, ALL, 0).unwrap().records;
    let original = rows(&export);
    for (record, row) in all.iter().zip(&original) {
        let expected = crate::Record::decode(&"all".into(), row.offset, &row.record).unwrap();
        assert_eq!(record.publication, expected.publication);
        assert_eq!(record.at_ms, row.at_ms + 1, "the time beside the record counts");
    }
    assert_eq!(all.len(), 2);
    let mut keys = Vec::new();
    reader
        .each_idempotency_key(|topic, key, at, _| keys.push(format!("{topic} {key} {at}")))
        .unwrap();
    assert_eq!(keys, ["all k 1"]);
    // The rules of the topics hold on.
    let few = HistoryRule { messages_max: 20, bytes_max: 1_000, ..history() };
    let mut offset = found.last_offset;
    for _ in 0..3 {
        offset += 1;
        put(&store, &publication("few", "new"), offset, &few, None);
    }
    assert_eq!(read(&reader, "few", 0).len(), 20);
    let compacted = HistoryRule { compact: true, ..history() };
    put(&store, &keyed("compacted", "l", "5"), offset + 1, &compacted, None);
    wait_until("a sweep of the removal", || read(&reader, "compacted", 0) == [5, offset + 1]);
    store.close().unwrap();
    assert_eq!(check(&to).unwrap().damages, []);
}

#[test]
fn nothing_is_written_over_a_store_and_nothing_is_left_of_half_a_new_one() {
    let dir = stored();
    let export = opened(&dir.0);
    let result = import(&dir.0, EPOCH, |_| Ok::<_, PutFailed>(export.head()));
    assert!(matches!(result, Err(TransferError::Store(OpenError::Exists { .. }))));
    assert_eq!(rows(&export).len(), 60);
    let to = dir.0.join("to");
    let topic = &export.topics()[0].topic;
    let half = import(&to, EPOCH, |store| {
        store.put(LogRow::Topic(topic)).unwrap();
        Err::<LogHead, _>("the connection broke")
    });
    assert!(matches!(half, Err(TransferError::Other("the connection broke"))));
    assert!(!to.exists());
    for record in [&[][..], &[0b11, 0], &[0, 0xff]] {
        let damaged = import(&to, EPOCH, |store| {
            store.put(LogRow::Topic(topic))?;
            store.put(LogRow::Message { offset: 900, at_ms: 1, record })?;
            Ok::<_, PutFailed>(export.head())
        });
        let Err(TransferError::Store(OpenError::NotImported { reason })) = damaged else {
            panic!("{damaged:?}")
        };
        assert!(reason.contains("messages of a after offset 899 up to 900"), "{reason}");
        assert!(!to.exists());
    }
}

#[test]
fn topics_may_come_in_any_order() {
    let dir = stored();
    let to = dir.0.join("to");
    let export = opened(&dir.0);
    let result = import(&to, EPOCH, |store| {
        for topic in export.topics().iter().rev() {
            store.put(LogRow::Topic(&topic.topic))?;
            let read = export.messages(topic, |message| {
                let (offset, at_ms, record) = (message.offset, message.at_ms, message.record);
                store.put(LogRow::Message { offset, at_ms, record })
            });
            read.map_err(|_| PutFailed)?;
        }
        Ok::<_, PutFailed>(export.head())
    });
    result.unwrap();
    assert_eq!(check(&to).unwrap().damages, []);
    let again = opened(&to);
    assert_eq!(rows(&again), rows(&export));
}

#[test]
fn a_long_history_is_written_in_parts() {
    let dir = Dir::new();
    let to = dir.0.join("to");
    let topics = ["a", "b"].map(|name| LogTopic {
        name: name.into(),
        floor: 0,
        last_offset: 0,
        last_ms: 0,
        messages_max: 1_000_000,
        bytes_max: 1 << 40,
        seconds_max: 1 << 40,
        compact: false,
    });
    let small = crate::Record::encode(&publication("a", "small"), 1);
    let large = crate::Record::encode(&publication("b", &"x".repeat(3 << 20)), 1);
    let result = import(&to, EPOCH, |store| {
        store.put(LogRow::Topic(&topics[0]))?;
        for offset in 1..=150_000 {
            store.put(LogRow::Message { offset, at_ms: offset, record: &small })?;
        }
        store.put(LogRow::Topic(&topics[1]))?;
        for offset in 150_001..=150_012 {
            store.put(LogRow::Message { offset, at_ms: offset, record: &large })?;
        }
        Ok::<_, PutFailed>(LogHead { epoch: 3, last_offset: 0, forgotten: 0 })
    });
    let imported = result.unwrap();
    assert_eq!((imported.topics, imported.messages), (2, 150_012));
    assert_eq!(imported.lost_range.0, 150_012, "the last message counts");
    let report = check(&to).unwrap();
    assert_eq!((report.damages, report.messages), (vec![], 150_012));
}
