//! Tests of damage in one known place: the store names it, and offers a way to continue.

use redb::{Database, ReadableTable};

use super::*;
use crate::tables::{CURSORS, MESSAGES, METADATA, TOPICS};
use crate::{FILE, OpenError, check, salvage};

/// Makes a closed store with three topics of twenty messages.
pub(super) fn stored() -> Dir {
    let dir = Dir::new();
    let (store, ..) = Store::open(options(&dir.0)).unwrap();
    let names = ["a", "b", "c"];
    for offset in 1..=60 {
        appended(
            &store,
            &publication(names[offset as usize % 3], &format!("text {offset}")),
            offset,
        );
    }
    store.put_cursor(&"alice".into(), &"a".into(), 9).unwrap();
    store.close().unwrap();
    dir
}

/// Changes the file in a way that redb's own checksums don't show.
pub(super) fn change(dir: &Dir, change: impl FnOnce(&redb::WriteTransaction)) {
    let db = Database::create(dir.0.join(FILE)).unwrap();
    let txn = db.begin_write().unwrap();
    change(&txn);
    txn.commit().unwrap();
    db.close().unwrap();
}

pub(super) fn number(txn: &redb::WriteTransaction, name: &str) -> u64 {
    let table = txn.open_table(TOPICS).unwrap();
    let row = table.get(name).unwrap().unwrap();
    crate::topic_rows::decode(name, row.value()).unwrap().number
}

fn flip(dir: &Dir, name: &str, offset: u64) {
    change(dir, |txn| {
        let number = number(txn, name);
        let mut table = txn.open_table(MESSAGES).unwrap();
        let mut row = table.get((number, offset)).unwrap().unwrap().value().to_vec();
        *row.last_mut().unwrap() ^= 1;
        table.insert((number, offset), &*row).unwrap();
    });
}

fn remove_message(dir: &Dir, name: &str, offset: u64) {
    change(dir, |txn| {
        let number = number(txn, name);
        txn.open_table(MESSAGES).unwrap().remove((number, offset)).unwrap().unwrap();
    });
}

fn damage_of(error: StoreError) -> crate::Damage {
    let StoreError::Damaged(damage) = error else { panic!("{error}") };
    (*damage).clone()
}

#[test]
fn a_read_names_topic_and_offset_of_a_damaged_message_and_never_returns_it() {
    for change in [flip, remove_message] {
        let dir = stored();
        change(&dir, "b", 31);
        let report = check(&dir.0).unwrap();
        let ranges = report.damages.iter().map(|at| (at.topic.as_deref(), at.after, at.through));
        assert_eq!(ranges.collect::<Vec<_>>(), [(Some("b"), 28, 31)], "{report:?}");
        assert_eq!((report.topics, report.messages, report.clean), (3, 59, true));
        let (store, reader, _) = Store::open(options(&dir.0)).unwrap();
        // The read returns what precedes the damage, and then fails.
        let page = reader.after("b", 0, ALL, 0).unwrap();
        assert!(page.more && page.through == 28 && page.records.len() == 10);
        let damage = damage_of(reader.after("b", 28, ALL, 0).unwrap_err());
        assert_eq!((damage.topic.as_deref(), damage.after), (Some("b"), 28));
        assert!(damage.through == 31 || damage.through == 34, "{damage}");
        let text = StoreError::Damaged(damage.into()).to_string();
        for want in ["messages of b after offset 28", "throng store check", "salvage"] {
            assert!(text.contains(want), "{want} in {text}");
        }
        let page = reader.before("b", u64::MAX, ALL, 0).unwrap();
        assert!(page.more && page.through == 34);
        assert!(reader.before("b", 34, ALL, 0).is_err());
        let counted = reader.count_before("b", u64::MAX, ALL, 0).unwrap();
        assert_eq!(
            (counted.messages, counted.through, counted.more),
            (page.records.len(), 34, true)
        );
        assert!(reader.count_before("b", 34, ALL, 0).is_err());
        assert_eq!(read(&reader, "b", 31).len(), 9, "a client that has it continues");
        assert_eq!((read(&reader, "a", 0).len(), read(&reader, "c", 0).len()), (20, 20));
        assert!(store.stats().damaged_reads > 0);
        // Deleting the topic's history removes the damage.
        let (send, receive) = mpsc::channel();
        let done = Box::new(move |result| drop(send.send(result)));
        store.delete_history(&"b".into(), 60, done).unwrap();
        assert_eq!(receive.recv_timeout(WAIT).unwrap(), Ok(()));
        appended(&store, &publication("b", "new"), 61);
        let stored = reader.after("b", 0, ALL, 0).unwrap();
        assert_eq!((stored.records.len(), stored.floor), (1, 58));
        store.close().unwrap();
        assert_eq!(check(&dir.0).unwrap().damages, []);
    }
}

#[test]
fn a_damaged_topic_does_not_affect_the_others() {
    let dir = stored();
    flip(&dir, "b", 1);
    let (store, ..) = Store::open(options(&dir.0)).unwrap();
    // Retention meets the damage. The other operations of the same batch are stored.
    let rule = HistoryRule { messages_max: 5, ..history() };
    let mut results = Vec::new();
    for (offset, name) in [(61, "a"), (62, "b"), (63, "c"), (64, "b")] {
        let (send, receive) = mpsc::channel();
        let publication = publication(name, "x");
        let append = Append {
            publication: &publication,
            offset,
            at_ms: 1,
            rule: &rule,
            idempotency_key: None,
            with: None,
        };
        store.append(append, Box::new(move |result| drop(send.send(result)))).unwrap();
        results.push(receive);
    }
    let results: Vec<_> = results.iter().map(|result| result.recv_timeout(WAIT).unwrap()).collect();
    assert_eq!((&results[0], &results[2]), (&Ok(()), &Ok(())));
    for damaged in [&results[1], &results[3]] {
        assert_eq!(damage_of(damaged.clone().unwrap_err()).topic.as_deref(), Some("b"));
    }
    assert_eq!((store.stats().damaged_topics, store.write_error()), (1, None));
    assert_eq!(offsets(&store, "a", 0), [51, 54, 57, 60, 61]);
    store.close().unwrap();
}

#[test]
fn a_missing_topic_row_is_damage_and_not_an_unknown_topic() {
    let dir = stored();
    change(&dir, |txn| {
        txn.open_table(TOPICS).unwrap().remove("b").unwrap().unwrap();
    });
    let (store, reader, _) = Store::open(options(&dir.0)).unwrap();
    assert_eq!(damage_of(reader.after("b", 0, ALL, 0).unwrap_err()).topic.as_deref(), Some("b"));
    assert!(reader.last("b").is_err() && reader.last("bb").is_err());
    assert_eq!(
        (reader.last("aa"), reader.last("d")),
        (Err(reader.last("aa").unwrap_err()), Ok(None))
    );
    store.close().unwrap();
    assert_eq!(check(&dir.0).unwrap().damages.len(), 1);
}

#[test]
fn damage_in_cursors_and_metadata_is_noticed() {
    let dir = stored();
    change(&dir, |txn| {
        txn.open_table(CURSORS).unwrap().remove(("alice", "a")).unwrap().unwrap();
    });
    let (store, reader, _) = Store::open(options(&dir.0)).unwrap();
    let damage = damage_of(reader.each_cursor(|_, _, _| ()).unwrap_err());
    assert_eq!(damage.to_string(), "cursors: 1 rows were written, but the table has 0");
    store.close().unwrap();
    let dir = stored();
    change(&dir, |txn| {
        let mut table = txn.open_table(CURSORS).unwrap();
        let sum = table.get(("alice", "a")).unwrap().unwrap().value().1;
        table.insert(("alice", "a"), (8, sum)).unwrap();
    });
    let damages = check(&dir.0).unwrap().damages;
    assert_eq!(damages[0].to_string(), "cursors: the row of alice in a is damaged");
    let dir = stored();
    change(&dir, |txn| {
        let mut table = txn.open_table(METADATA).unwrap();
        let mut row = table.get("store").unwrap().unwrap().value().to_vec();
        row[9] ^= 4;
        table.insert("store", &*row).unwrap();
    });
    let error = Store::open(options(&dir.0)).err().unwrap();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
}

#[test]
fn salvage_copies_everything_intact_and_reports_the_gap() {
    let dir = stored();
    flip(&dir, "b", 31);
    remove_message(&dir, "b", 34);
    let before = std::fs::read(dir.0.join(FILE)).unwrap();
    let new = Dir::new();
    let report = salvage(&dir.0, &new.0, 7).unwrap();
    assert_eq!(report.damages.len(), 1, "{report:?}");
    assert!(std::fs::read(dir.0.join(FILE)).unwrap() == before);
    assert_eq!(check(&new.0).unwrap().damages, []);
    let (store, reader, found) = Store::open(options(&new.0)).unwrap();
    assert_eq!((found.epoch, found.last_offset), (0x5f3a_91c2, 60));
    let stored = reader.after("b", 28, ALL, 0).unwrap();
    assert_eq!((stored.records.len(), stored.floor, stored.more), (8, 34, false));
    assert_eq!(reader.after("a", 0, ALL, 0).unwrap().floor, 0);
    let mut cursors = Vec::new();
    reader.each_cursor(|user, topic, at| cursors.push(format!("{user} {topic} {at}"))).unwrap();
    assert_eq!(cursors, ["alice a 9"]);
    appended(&store, &publication("b", "new"), 61);
    store.close().unwrap();
    assert!(salvage(&dir.0, &new.0, 7).is_err(), "there is one already");
}

#[test]
fn salvage_locks_the_store_against_servers() {
    let (dir, new) = (Dir::new(), Dir::new());
    let (store, ..) = Store::open(options(&dir.0)).unwrap();
    (1..400)
        .for_each(|at| drop(append(&store, &publication(&format!("topic{at}"), "x"), at).unwrap()));
    appended(&store, &publication("last", "x"), 400);
    store.close().unwrap();
    let lock = std::fs::File::open(dir.0.join("throng.lock")).unwrap();
    let mut locked = 0;
    std::thread::scope(|scope| {
        let salvage = scope.spawn(|| salvage(&dir.0, &new.0, 7).unwrap());
        // The copy has begun. The directory was locked before the check, too.
        while !new.0.join("throng.redb.new").exists() && !salvage.is_finished() {}
        while !new.0.join(FILE).exists() && !salvage.is_finished() {
            match lock.try_lock() {
                Ok(()) => assert!(
                    new.0.join(FILE).exists(),
                    "a server could open the store during the copy"
                ),
                Err(_) => locked += 1,
            }
        }
    });
    assert!(locked > 0);
    assert_eq!(check(&new.0).unwrap().messages, 400);
}

#[test]
fn the_floor_of_a_copy_covers_what_vanished_after_the_check() {
    let dir = stored();
    remove_message(&dir, "b", 34);
    let disk = || crate::staged_file::StagedFile::open_to_read(&dir.0.join(FILE));
    let opened = crate::database::open_database(disk, 8 << 20, false).unwrap();
    let source = crate::source::Source::new(&opened.db, crate::FORMAT, true);
    let new = Dir::new();
    let directory = crate::open::Directory::claim(&new.0).unwrap();
    // The check has found nothing.
    let no_damage = crate::Report::default();
    let damages =
        directory.replace(|new| crate::rewrite::copy(&source, new, &no_damage, 7)).unwrap();
    directory.release();
    assert_eq!(damages.len(), 1, "{damages:?}");
    let (store, reader, _) = Store::open(options(&new.0)).unwrap();
    assert_eq!((reader.floor("b"), reader.floor("a")), (Ok(34), Ok(0)));
    store.close().unwrap();
}

#[test]
fn an_open_error_names_topic_and_offsets_of_the_damage() {
    let dir = stored();
    let file = dir.0.join(FILE);
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.windows(7).rposition(|window| window == b"text 31").unwrap();
    // Every copy of the text changes.
    for start in 0..=at {
        if bytes[start..].starts_with(b"text 31") {
            bytes[start] ^= 1;
        }
    }
    std::fs::write(&file, &bytes).unwrap();
    let error = Store::open(options(&dir.0)).err().unwrap().to_string();
    assert!(error.contains("messages of b after offset 28 up to 31"), "{error}");
    // The store does not verify a large file, so its readers find the damage.
    let large = Options { verify_bytes_max: 0, ..options(&dir.0) };
    let (store, reader, _) = Store::open(large).unwrap();
    assert!(reader.after("b", 28, ALL, 0).is_err());
    assert_eq!(read(&reader, "a", 0).len(), 20);
    store.close().unwrap();
}

#[test]
fn check_changes_nothing_and_rejects_a_store_in_use() {
    let dir = stored();
    let copy = Dir::new();
    std::fs::copy(dir.0.join(FILE), copy.0.join(FILE)).unwrap();
    let before = std::fs::read(copy.0.join(FILE)).unwrap();
    assert_eq!(check(&copy.0).unwrap().damages, []);
    assert!(std::fs::read(copy.0.join(FILE)).unwrap() == before);
    assert_eq!(std::fs::read_dir(&copy.0).unwrap().count(), 1, "files came to it");
    let (store, ..) = Store::open(options(&dir.0)).unwrap();
    let error = check(&dir.0).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    store.close().unwrap();
}

#[test]
fn a_lost_commit_is_reported_as_a_gap() {
    let dir = Dir::new();
    let (store, ..) = Store::open(options(&dir.0)).unwrap();
    (1..=20).for_each(|offset| appended(&store, &publication("t", "before"), offset));
    appended(&store, &publication("t", "the last one"), 21);
    let mut bytes = std::fs::read(dir.0.join(FILE)).unwrap();
    store.close().unwrap();
    let occurrences: Vec<usize> =
        (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"the last one")).collect();
    occurrences.iter().for_each(|at| bytes[*at] ^= 1);
    let copy = Dir::new();
    // The copy has the file that records the commit as acknowledged, like a directory that was not moved.
    std::fs::write(copy.0.join(FILE), &bytes).unwrap();
    std::fs::copy(dir.0.join("throng.mark"), copy.0.join("throng.mark")).unwrap();
    let (store, reader, found) = Store::open(options(&copy.0)).unwrap();
    assert!(!found.clean);
    let stored = reader.after("t", 5, ALL, 0).unwrap();
    assert_eq!(stored.records.len(), 15, "redb went back to the commit before");
    let gap = (20, 20 + crate::OFFSETS_SKIPPED);
    assert_eq!((stored.lost_range, stored.floor), (Some(gap), gap.1));
    appended(&store, &publication("t", "new"), gap.1 + 1);
    let stored = reader.after("t", gap.1, ALL, 0).unwrap();
    assert!(stored.floor <= gap.1 && stored.records.len() == 1, "later clients miss nothing");
    store.close().unwrap();
    // If no caller had a reply for the commit, no message is lost, and no client learns about a gap.
    std::fs::write(copy.0.join(FILE), &bytes).unwrap();
    let mark = crate::last_commit::LastCommitFile::open(&copy.0).unwrap();
    let metadata =
        crate::metadata::Metadata { epoch: found.epoch, commits: 21, ..Default::default() };
    mark.record(&metadata, crate::Age { now_ms: 0, doubt_ms: 0 });
    let (store, reader, _) = Store::open(options(&copy.0)).unwrap();
    let stored = reader.after("t", 5, ALL, 0).unwrap();
    assert_eq!((stored.records.len(), stored.lost_range, stored.floor), (15, None, 0));
    store.close().unwrap();
    std::fs::remove_file(copy.0.join("throng.mark")).unwrap();
    // An ordinary kill loses nothing, and the store reports no gap.
    let (store, ..) = Store::open(options(&dir.0)).unwrap();
    appended(&store, &publication("t", "x"), 5_000_000);
    std::fs::copy(dir.0.join(FILE), copy.0.join(FILE)).unwrap();
    let (killed, reader, found) = Store::open(options(&copy.0)).unwrap();
    assert!(!found.clean && reader.after("t", 0, ALL, 0).unwrap().lost_range.is_none());
    killed.close().unwrap();
    store.close().unwrap();
}

#[test]
fn a_complete_commit_that_is_not_active_is_activated() {
    let (dir, copy) = (Dir::new(), Dir::new());
    let (store, ..) = Store::open(options(&dir.0)).unwrap();
    (1..=20).for_each(|offset| appended(&store, &publication("t", "x"), offset));
    // In the first round redb activates a commit in a separate write, in the second one in the same
    // write.
    for _ in 0..2 {
        let mut bytes = std::fs::read(dir.0.join(FILE)).unwrap();
        bytes[9] ^= 1;
        std::fs::write(copy.0.join(FILE), &bytes).unwrap();
        for verify_bytes_max in [0, u64::MAX] {
            let options = Options { verify_bytes_max, ..options(&copy.0) };
            let (store, reader, _) = Store::open(options).unwrap();
            let stored = reader.after("t", 0, ALL, 0).unwrap();
            assert_eq!((stored.records.len(), stored.lost_range, stored.floor), (20, None, 0));
            store.close().unwrap();
            std::fs::write(copy.0.join(FILE), &bytes).unwrap();
            std::fs::remove_file(copy.0.join("throng.mark")).unwrap();
        }
        std::thread::sleep(Duration::from_millis(2_300));
    }
    store.close().unwrap();
}
