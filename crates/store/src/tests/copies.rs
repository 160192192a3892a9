//! Tests of backups of a store that is in use or closed, and of rewritten files.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::time::Instant;

use redb::{ReadableTable, ReadableTableMetadata};

use super::full_disk::{mount, unmount};
use super::known_damage::{change, stored};
use super::*;
use crate::metadata::OFFSETS_SKIPPED;
use crate::tables::{MESSAGES, TOPICS};
use crate::{Backup, BackupError, FILE, OpenError, back_up, check, compact, salvage};

/// The epoch of the copies in these tests.
const EPOCH: u32 = 77;

/// Returns the last backup, once it has a result.
pub(super) fn finished(store: &Store) -> Backup {
    let started = Instant::now();
    loop {
        let backup = store.last_backup().unwrap();
        if backup.result.is_some() {
            return backup;
        }
        assert!(started.elapsed() < WAIT, "the backup does not end: {backup:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Writes a row of every table.
fn one_of_each(store: &Store) {
    let rule = HistoryRule { compact: true, ..history() };
    let keyed = keyed("compact", "k", "1");
    let with = ("part", ("key".into(), Some(Box::from(&b"value"[..]))));
    let append = Append {
        publication: &Publication {
            attributes: Some(Box::new(Attributes {
                expires_ms: Some(u64::MAX),
                ..*keyed.attributes.clone().unwrap()
            })),
            ..keyed
        },
        offset: 1,
        at_ms: 1 << 50,
        rule: &rule,
        idempotency_key: Some("once"),
        with: Some(&with),
    };
    store.append(append, Box::new(|result| assert_eq!(result, Ok(())))).unwrap();
    store.put_cursor(&"user".into(), &"compact".into(), 1).unwrap();
    let (puts, names) =
        (vec![("user".into(), Box::from(&b"packed"[..]))], vec![(7, "topic".into())]);
    store.put_subscriptions(puts, names, Box::new(|_| ())).unwrap();
    store.put_events(vec![(3, Box::from(&b"event"[..]))], None).unwrap();
    appended(store, &publication("t", "a"), 2);
}

/// Returns the rows of the small tables.
fn small_rows(reader: &Reader) -> Vec<String> {
    let mut all = Vec::new();
    reader.each_cursor(|user, topic, at| all.push(format!("{user} {topic} {at}"))).unwrap();
    reader
        .each_idempotency_key(|topic, key, at, _| all.push(format!("{topic} {key} {at}")))
        .unwrap();
    reader.each_subscriber(|user, packed| all.push(format!("{user} {packed:?}"))).unwrap();
    reader.each_name(|number, name| all.push(format!("{number} {name}"))).unwrap();
    reader.each_record(|part, key, value| all.push(format!("{part} {key} {value:?}"))).unwrap();
    reader.each_event(|number, event| all.push(format!("{number} {event:?}"))).unwrap();
    all
}

#[test]
fn a_backup_is_one_commit_of_a_store_in_use_under_a_new_epoch() {
    let dir = Dir::new();
    let (data, to) = (dir.0.join("data"), dir.0.join("deep/backup"));
    let (store, reader, _) = Store::open(options(&data)).unwrap();
    one_of_each(&store);
    for offset in 3..2_000 {
        append(&store, &publication("t", &"x".repeat(1_000)), offset).unwrap();
    }
    appended(&store, &publication("t", "last"), 2_000);
    let rows = small_rows(&reader);
    assert_eq!(rows.len(), 6, "{rows:?}");
    store.begin_backup(&to, EPOCH).unwrap();
    let mut next = 2_001;
    while store.last_backup().unwrap().result.is_none() {
        appended(&store, &publication("t", "meanwhile"), next);
        next += 1;
    }
    let backup = finished(&store);
    assert_eq!(backup.result, Some(Ok(())));
    assert!(backup.rows == backup.rows_total && backup.rows > 2_000, "{backup:?}");
    assert!(backup.bytes > 2_000_000, "{backup:?}");
    let report = check(&to).unwrap();
    assert_eq!((report.damages, report.topics, report.clean), (vec![], 2, true));
    let (copy, copied, found) = Store::open(options(&to)).unwrap();
    let stored = offsets(&copy, "t", 0);
    let last = *stored.last().unwrap();
    assert!(last >= 2_000 && last < next && stored.len() as u64 == last - 1, "{last} {next}");
    assert_eq!((found.epoch, found.last_offset), (EPOCH, last + OFFSETS_SKIPPED));
    assert_eq!(small_rows(&copied), rows);
    assert_eq!(offsets(&copy, "compact", 0), [1]);
    // A user's cursor has no epoch: the floor shows that messages after it may be missing.
    assert_eq!(copied.floor("t").unwrap(), found.last_offset);
    appended(&copy, &publication("t", "new"), found.last_offset + 1);
    copy.close().unwrap();
    store.close().unwrap();
}

#[test]
fn a_copy_never_has_the_epoch_of_its_source() {
    let dir = Dir::new();
    let (data, mut copies) = (dir.0.join("data"), 0);
    for epoch in [1, 0x5f3a_91c2] {
        let _ = fs::remove_dir_all(&data);
        let options = Options { new_epoch: epoch, ..options(&data) };
        Store::open(options.clone()).unwrap().0.close().unwrap();
        for new_epoch in [0, epoch] {
            let to = dir.0.join(copies.to_string());
            copies += 1;
            back_up(&data, &to, new_epoch).unwrap();
            let (copy, _, found) = Store::open(Options { dir: to, ..options.clone() }).unwrap();
            assert!(found.epoch != 0 && found.epoch != epoch, "{found:?}");
            copy.close().unwrap();
        }
    }
}

#[test]
fn one_backup_runs_at_a_time_and_never_over_a_store() {
    let dir = Dir::new();
    let (data, to) = (dir.0.join("data"), dir.0.join("backup"));
    let (store, _, _) = Store::open(options(&data)).unwrap();
    appended(&store, &publication("t", "a"), 1);
    // The reader's thread waits, so that the backup does not begin.
    let (go, wait) = mpsc::channel::<()>();
    store.read_later(Box::new(move |_| assert!(wait.recv().is_err()))).unwrap();
    store.begin_backup(&to, EPOCH).unwrap();
    let refused = store.begin_backup(&dir.0.join("other"), EPOCH);
    assert_eq!(refused, Err(BackupError::Running { dir: to.clone() }));
    drop(go);
    assert_eq!(finished(&store).result, Some(Ok(())));
    let before = fs::read(to.join(FILE)).unwrap();
    for there in [&to, &data] {
        let refused = store.begin_backup(there, EPOCH);
        assert_eq!(refused, Err(BackupError::Exists { dir: there.clone() }));
    }
    // The one that ended is still the last one.
    assert_eq!(store.last_backup().unwrap().dir, to);
    store.close().unwrap();
    let refused = store.begin_backup(&dir.0.join("other"), EPOCH);
    assert_eq!(refused, Err(BackupError::Closed));
    for refused in [back_up(&data, &to, EPOCH), salvage(&data, &to, EPOCH)] {
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("already has a store"), "{text}");
    }
    assert!(fs::read(to.join(FILE)).unwrap() == before);
}

#[test]
fn a_store_that_appears_while_a_backup_begins_is_left_alone() {
    let dir = Dir::new();
    let (data, to) = (dir.0.join("data"), dir.0.join("backup"));
    let (store, _, _) = Store::open(options(&data)).unwrap();
    let (go, wait) = mpsc::channel::<()>();
    store.read_later(Box::new(move |_| assert!(wait.recv().is_err()))).unwrap();
    store.begin_backup(&to, EPOCH).unwrap();
    fs::create_dir(&to).unwrap();
    fs::write(to.join(FILE), "another").unwrap();
    drop(go);
    let Some(Err(reason)) = finished(&store).result else { panic!("it was replaced") };
    assert!(reason.contains("already has a store"), "{reason}");
    assert_eq!(fs::read(to.join(FILE)).unwrap(), b"another");
    store.close().unwrap();
}

#[test]
fn a_backup_into_a_directory_that_a_process_has_locked_leaves_it_alone() {
    let dir = Dir::new();
    let (data, to) = (dir.0.join("data"), dir.0.join("backup"));
    let (store, _, _) = Store::open(options(&data)).unwrap();
    fs::create_dir(&to).unwrap();
    let lock = fs::File::create(to.join("throng.lock")).unwrap();
    lock.try_lock().unwrap();
    store.begin_backup(&to, EPOCH).unwrap();
    let Some(Err(reason)) = finished(&store).result else { panic!("the lock was ignored") };
    assert!(reason.contains("in use by another process"), "{reason}");
    assert!(to.join("throng.lock").exists());
    drop(lock);
    store.begin_backup(&to, EPOCH).unwrap();
    assert_eq!(finished(&store).result, Some(Ok(())));
    store.close().unwrap();
}

#[test]
fn a_close_ends_the_backup_and_leaves_nothing_of_it() {
    let dir = Dir::new();
    let (data, to) = (dir.0.join("data"), dir.0.join("deep/er/backup"));
    let (store, _, _) = Store::open(options(&data)).unwrap();
    appended(&store, &publication("t", "a"), 1);
    let (go, wait) = mpsc::channel::<()>();
    store.read_later(Box::new(move |_| assert!(wait.recv().is_err()))).unwrap();
    store.begin_backup(&to, EPOCH).unwrap();
    let closing = store.clone();
    let closing = std::thread::spawn(move || closing.close());
    let started = Instant::now();
    while store.read_later(Box::new(|_| ())).is_ok() {
        assert!(started.elapsed() < WAIT, "the store does not close");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(go);
    closing.join().unwrap().unwrap();
    let Some(Err(reason)) = finished(&store).result else { panic!("it went on") };
    assert!(reason.contains("was closed before") && reason.contains("try again"), "{reason}");
    assert!(!dir.0.join("deep").exists());
    let report = back_up(&data, &to, EPOCH).unwrap();
    assert_eq!((report.damages, report.messages), (vec![], 1));
    assert_eq!(check(&to).unwrap().messages, 1);
}

#[test]
fn a_copy_continues_where_a_killed_one_left_its_half() {
    let dir = Dir::new();
    let (data, to) = (dir.0.join("data"), dir.0.join("backup"));
    let (store, _, _) = Store::open(options(&data)).unwrap();
    appended(&store, &publication("t", "a"), 1);
    store.close().unwrap();
    fs::create_dir(&to).unwrap();
    for left in ["throng.redb.new", "throng.lock", "throng.mark"] {
        fs::write(to.join(left), "half").unwrap();
    }
    back_up(&data, &to, EPOCH).unwrap();
    assert!(!to.join("throng.redb.new").exists());
    let report = check(&to).unwrap();
    assert_eq!((report.damages, report.messages, report.clean), (vec![], 1, true));
}

#[test]
fn a_compacted_file_is_shorter_and_has_the_same_content() {
    let dir = Dir::new();
    let (store, reader, _) = Store::open(options(&dir.0)).unwrap();
    one_of_each(&store);
    for offset in 3..1_000 {
        append(&store, &publication("gone", &"x".repeat(10_000)), offset).unwrap();
    }
    appended(&store, &publication("t", "last"), 1_000);
    let rows = small_rows(&reader);
    let (send, done) = mpsc::channel();
    store
        .delete_history(&"gone".into(), 999, Box::new(move |result| drop(send.send(result))))
        .unwrap();
    assert_eq!(done.recv_timeout(WAIT).unwrap(), Ok(()));
    assert!(matches!(compact(&dir.0), Err(OpenError::InUse { .. })));
    store.close().unwrap();
    // A process that was killed while it wrote has left this file.
    fs::write(dir.0.join("throng.redb.new"), "half").unwrap();
    let compacted = compact(&dir.0).unwrap();
    assert_eq!((compacted.report.damages, compacted.report.messages), (vec![], 3));
    assert!(compacted.bytes * 4 < compacted.bytes_before, "{}", compacted.bytes);
    assert!(!dir.0.join("throng.redb.new").exists());
    let (store, reader, found) = Store::open(options(&dir.0)).unwrap();
    assert_eq!((found.clean, found.last_offset), (true, 1_000));
    assert_eq!((offsets(&store, "t", 0), offsets(&store, "compact", 0)), (vec![2, 1_000], vec![1]));
    assert_eq!((small_rows(&reader), reader.floor("t").unwrap()), (rows, 0));
    appended(&store, &publication("t", "new"), 1_001);
    store.close().unwrap();
}

#[test]
fn a_damaged_store_is_neither_copied_nor_compacted() {
    let dir = Dir::new();
    let (data, to) = (dir.0.join("data"), dir.0.join("backup"));
    let (store, ..) = Store::open(options(&data)).unwrap();
    for offset in 1..50 {
        appended(
            &store,
            &publication("t", &format!("message {offset}.{}", "x".repeat(1_000))),
            offset,
        );
    }
    store.close().unwrap();
    let mut bytes = fs::read(data.join(FILE)).unwrap();
    let text = b"message 30.";
    let occurrences: Vec<usize> =
        (0..bytes.len()).filter(|at| bytes[*at..].starts_with(text)).collect();
    assert!(!occurrences.is_empty());
    occurrences.iter().for_each(|at| bytes[*at] ^= 1);
    fs::write(data.join(FILE), &bytes).unwrap();
    assert!(!back_up(&data, &to, EPOCH).unwrap().damages.is_empty());
    assert!(!compact(&data).unwrap().report.damages.is_empty());
    assert!(!to.exists() && fs::read(data.join(FILE)).unwrap() == bytes);
    // A server that does not verify the whole file serves it, and its backup is rejected.
    let (store, ..) = Store::open(Options { verify_bytes_max: 0, ..options(&data) }).unwrap();
    store.begin_backup(&to, EPOCH).unwrap();
    let Some(Err(reason)) = finished(&store).result else { panic!("damage was copied") };
    for want in ["messages of t", "up to 30", "throng store check", "incomplete copy"] {
        assert!(reason.contains(want), "{want:?} in {reason}");
    }
    assert!(!to.exists());
    store.close().unwrap();
}

#[test]
fn a_backup_onto_a_full_disk_says_so_and_removes_what_it_wrote() {
    let dir = Dir::new();
    let (data, disk) = (dir.0.join("data"), dir.0.join("disk"));
    fs::create_dir_all(&disk).unwrap();
    let (store, ..) = Store::open(options(&data)).unwrap();
    for offset in 1..400 {
        append(&store, &publication("t", &"x".repeat(50_000)), offset).unwrap();
    }
    appended(&store, &publication("t", "last"), 400);
    store.close().unwrap();
    if !mount(&disk) {
        eprintln!("this user may not mount a disk: left out");
        return;
    }
    // The threads of a store that is opened now use the small disk.
    let (store, ..) = Store::open(options(&data)).unwrap();
    let to = disk.join("backup");
    store.begin_backup(&to, EPOCH).unwrap();
    let Some(Err(reason)) = finished(&store).result else { panic!("there was no room") };
    assert!(reason.contains("the disk is full") && reason.contains("another disk"), "{reason}");
    assert!(!to.exists());
    appended(&store, &publication("t", "publishers do not notice"), 401);
    store.close().unwrap();
    for full in
        [back_up(&data, &disk.join("offline"), EPOCH), salvage(&data, &disk.join("offline"), EPOCH)]
    {
        assert!(matches!(full, Err(OpenError::Disk { .. })), "{full:?}");
    }
    assert_eq!(fs::read_dir(&disk).unwrap().count(), 0);
    unmount(&disk);
}

#[test]
fn a_compaction_on_a_full_disk_changes_nothing() {
    let dir = Dir::new();
    if !mount(&dir.0) {
        eprintln!("this user may not mount a disk: left out");
        return;
    }
    let (store, ..) = Store::open(options(&dir.0)).unwrap();
    for offset in 1..=60 {
        appended(&store, &publication("t", &"x".repeat(50_000)), offset);
    }
    store.close().unwrap();
    let mut rest = fs::File::create(dir.0.join("rest")).unwrap();
    while std::io::Write::write(&mut rest, &[1; 512]).is_ok() {}
    let before = fs::read(dir.0.join(FILE)).unwrap();
    let text = compact(&dir.0).unwrap_err().to_string();
    for want in
        ["the disk is full", "free that much", "throng store salvage", "Nothing was changed"]
    {
        assert!(text.contains(want), "{want:?} in {text}");
    }
    assert!(fs::read(dir.0.join(FILE)).unwrap() == before);
    assert!(!dir.0.join("throng.redb.new").exists());
    unmount(&dir.0);
}

#[test]
fn rows_that_a_damaged_topic_left_behind_are_not_copied() {
    let dir = stored();
    change(&dir, |txn| {
        let mut topics = txn.open_table(TOPICS).unwrap();
        let mut row = topics.get("b").unwrap().unwrap().value().to_vec();
        *row.last_mut().unwrap() ^= 1;
        topics.insert("b", &*row).unwrap();
    });
    assert!(!compact(&dir.0).unwrap().report.damages.is_empty());
    let (store, ..) = Store::open(options(&dir.0)).unwrap();
    let (send, done) = mpsc::channel();
    let done_with = Box::new(move |result| drop(send.send(result)));
    store.delete_history(&"b".into(), 60, done_with).unwrap();
    assert_eq!(done.recv_timeout(WAIT).unwrap(), Ok(()));
    appended(&store, &publication("b", "new"), 61);
    store.close().unwrap();
    let rows = |dir: &Dir| {
        let mut rows = 0;
        change(dir, |txn| rows = txn.open_table(MESSAGES).unwrap().len().unwrap());
        rows
    };
    assert_eq!(rows(&dir), 61);
    let copy = Dir(dir.0.with_extension("copy"));
    assert_eq!(back_up(&dir.0, &copy.0, EPOCH).unwrap().damages, []);
    assert_eq!(compact(&dir.0).unwrap().report.damages, []);
    for dir in [&dir, &copy] {
        assert_eq!(rows(dir), 41);
        let report = check(&dir.0).unwrap();
        assert_eq!((report.damages, report.messages, report.topics), (vec![], 41, 3));
    }
}

#[test]
fn a_store_with_a_missing_message_is_not_copied() {
    // The first message of a topic, one in the middle, and the last one.
    for (name, offset) in [("a", 3), ("a", 60), ("b", 31), ("b", 58), ("c", 2), ("c", 59)] {
        let dir = stored();
        change(&dir, |txn| {
            let number = super::known_damage::number(txn, name);
            let mut messages = txn.open_table(MESSAGES).unwrap();
            assert!(messages.remove((number, offset)).unwrap().is_some(), "{name} {offset}");
        });
        let to = dir.0.join("backup");
        let (store, ..) = Store::open(Options { verify_bytes_max: 0, ..options(&dir.0) }).unwrap();
        store.begin_backup(&to, EPOCH).unwrap();
        let Some(Err(reason)) = finished(&store).result else {
            panic!("{name} {offset} is copied")
        };
        assert!(reason.contains(&format!("messages of {name}")), "{reason}");
        assert!(!to.exists());
        store.close().unwrap();
    }
}

#[test]
fn copies_belong_to_the_owner_of_the_store() {
    let dir = stored();
    let (other_uid, copy) = (65_534, Dir(dir.0.with_extension("copy")));
    let give = |path: &Path| chown(path, Some(other_uid), Some(other_uid)).is_ok();
    let files = || fs::read_dir(&dir.0).unwrap().map(|file| file.unwrap().path());
    if !files().all(|path| give(&path)) {
        eprintln!("this user may not give files away: left out");
        return;
    }
    compact(&dir.0).unwrap();
    back_up(&dir.0, &copy.0, EPOCH).unwrap();
    let copied = fs::read_dir(&copy.0).unwrap().map(|file| file.unwrap().path());
    for path in files().chain(copied).chain([copy.0.clone()]) {
        assert_eq!(fs::metadata(&path).unwrap().uid(), other_uid, "{path:?}");
    }
}
