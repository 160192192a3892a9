use std::time::Instant;

use super::*;
use model::{Properties, Qos};

use crate::{OFFSETS_SKIPPED, OpenInfo};

#[test]
fn everything_stored_survives_a_close() {
    let dir = Dir::new();
    let (store, _, found) = Store::open(options(&dir.0)).unwrap();
    assert_eq!(found, OpenInfo { epoch: 0x5f3a_91c2, last_offset: 0, clean: true });
    let attributes = Attributes {
        tags: vec!["a".into()],
        key: Some("k".into()),
        sender: Some("bob".into()),
        expires_ms: Some(9_999),
        properties: Some(Box::new(Properties {
            response_topic: Some("answers".into()),
            user: vec![("unit".into(), "kelvin".into())],
            ..Properties::default()
        })),
        except_session: Some(9),
        by_session: None,
        is_own: false,
    };
    let marked = Publication {
        event: Some("e".into()),
        qos: Qos::AtLeastOnce,
        retain: true,
        attributes: Some(Box::new(attributes)),
        ..Publication::new("room:1", Data::Binary([0, 255].into()))
    };
    appended(&store, &publication("room:1", "one"), 1);
    appended(&store, &publication("room:2", "two"), 2);
    appended(&store, &marked, 7);
    let (user, topic) = ("alice".into(), "room:1".into());
    store.put_cursor(&user, &topic, 5).unwrap();
    store.put_cursor(&"bob".into(), &topic, 5).unwrap();
    store.put_cursor(&"bob".into(), &topic, 0).unwrap();
    let (send, receive) = mpsc::channel();
    let puts = vec![(user, [1, 2].into()), ("bob".into(), [3].into())];
    let done = Box::new(move |result| drop(send.send(result)));
    store.put_subscriptions(puts, vec![(4, "room:4".into())], done).unwrap();
    assert_eq!(receive.recv_timeout(WAIT).unwrap(), Ok(()));
    store.put_subscriptions(vec![("bob".into(), [].into())], vec![], Box::new(|_| ())).unwrap();
    let value = |bytes: &[u8]| Some(Box::from(bytes));
    let puts = vec![("b".into(), value(&[1])), ("a".into(), value(&[])), ("c".into(), value(&[3]))];
    store.put_records("one", puts, Box::new(|_| ())).unwrap();
    let puts = vec![("a".into(), value(&[4])), ("d".into(), None)];
    store.put_records("two", puts, Box::new(|_| ())).unwrap();
    let puts = vec![("c".into(), None), ("b".into(), value(&[2]))];
    store.put_records("one", puts, Box::new(|_| ())).unwrap();
    let rule = history();
    let append = Append {
        publication: &marked,
        offset: 9,
        at_ms: 50,
        rule: &rule,
        idempotency_key: Some("once"),
        with: None,
    };
    store.append(append, Box::new(|_| ())).unwrap();
    store.close().unwrap();
    assert_eq!(store.append(append, Box::new(|_| ())), Err(QueueError::Closed));
    assert_eq!(store.reader().after("room:1", 0, ALL, 0), Err(StoreError::Closed));

    let (store, _, found) = Store::open(Options { new_epoch: 7, ..options(&dir.0) }).unwrap();
    assert_eq!(found, OpenInfo { epoch: 0x5f3a_91c2, last_offset: 9, clean: true });
    let stored = store.reader().after("room:1", 1, ALL, 0).unwrap();
    assert_eq!(stored.records[0].publication, marked);
    assert_eq!((stored.records.len(), stored.floor, stored.last), (2, 0, 9));
    let expired = store.reader().after("room:1", 0, ALL, 9_999).unwrap();
    assert_eq!((expired.records.len(), expired.floor, expired.through), (1, 0, 9));
    assert_eq!(store.reader().last("room:2"), Ok(Some(2)));
    assert_eq!((store.reader().last("room:3"), store.reader().floor("room:3")), (Ok(None), Ok(0)));
    let mut seen = Vec::new();
    store
        .reader()
        .each_cursor(|user, topic, offset| seen.push(format!("{user} {topic} {offset}")))
        .unwrap();
    store
        .reader()
        .each_idempotency_key(|topic, key, offset, at_ms| {
            seen.push(format!("{topic} {key} {offset} {at_ms}"));
        })
        .unwrap();
    store.reader().each_subscriber(|user, packed| seen.push(format!("{user} {packed:?}"))).unwrap();
    store.reader().each_name(|number, name| seen.push(format!("{number} {name}"))).unwrap();
    store
        .reader()
        .each_record(|part, key, value| seen.push(format!("{part} {key} {value:?}")))
        .unwrap();
    assert_eq!(
        seen,
        [
            "alice room:1 5",
            "bob room:1 5",
            "room:1 once 9 50",
            "alice [1, 2]",
            "4 room:4",
            "one a []",
            "one b [2]",
            "two a [4]"
        ]
    );
    store.close().unwrap();
    store.close().unwrap();
}

#[test]
fn reads_page_in_both_directions() {
    let dir = Dir::new();
    let (store, _, _) = Store::open(options(&dir.0)).unwrap();
    for offset in 1..=9 {
        append(&store, &publication("t", "12345"), offset * 10).unwrap();
    }
    appended(&store, &publication("u", ""), 100);
    let limits = ReadLimits { messages_max: 4, bytes_max: 1_000 };
    let offsets = |stored: &crate::StoredMessages| -> Vec<u64> {
        stored.records.iter().map(|record| record.offset).collect()
    };
    let page = store.reader().after("t", 30, limits, 0).unwrap();
    assert_eq!((offsets(&page), page.through, page.more), (vec![40, 50, 60, 70], 70, true));
    let page = store.reader().after("t", page.through, limits, 0).unwrap();
    assert_eq!((offsets(&page), page.through, page.more), (vec![80, 90], 90, false));
    let page = store.reader().before("t", u64::MAX, limits, 0).unwrap();
    assert_eq!((offsets(&page), page.through, page.more), (vec![90, 80, 70, 60], 60, true));
    let page = store.reader().before("t", 20, limits, 0).unwrap();
    assert_eq!((offsets(&page), page.more), (vec![10], false));
    let small = ReadLimits { messages_max: 9, bytes_max: 11 };
    assert_eq!(offsets(&store.reader().after("t", 0, small, 0).unwrap()), [10, 20]);
    let none = ReadLimits { messages_max: 0, bytes_max: 0 };
    assert_eq!(
        offsets(&store.reader().after("t", 0, none, 0).unwrap()),
        [10],
        "a read returns at least one message"
    );
    assert!(store.reader().after("t", u64::MAX, ALL, 0).unwrap().records.is_empty());
    assert!(store.reader().before("t", 0, ALL, 0).unwrap().records.is_empty());
    let count = |before, limits| {
        let counted = store.reader().count_before("t", before, limits, 0).unwrap();
        (counted.messages, counted.through, counted.more)
    };
    assert_eq!(count(u64::MAX, limits), (4, 60, true));
    assert_eq!(count(20, limits), (1, 10, false));
    assert_eq!(count(u64::MAX, none), (1, 90, true), "a count counts at least one message");
    assert_eq!((count(0, ALL), count(10, ALL)), ((0, 0, false), (0, 10, false)));
    let (send, receive) = mpsc::channel();
    let done = Box::new(move |result| drop(send.send(result)));
    store.delete_history(&"t".into(), 50, done).unwrap();
    assert_eq!(receive.recv_timeout(WAIT).unwrap(), Ok(()));
    for (before, want) in [(20, 0), (50, 0), (60, 0), (61, 1), (95, 4)] {
        let page = store.reader().before("t", before, ALL, 0).unwrap();
        assert_eq!((page.records.len(), page.more), (want, false), "before {before}");
    }
    store.close().unwrap();
}

#[test]
fn a_full_queue_rejects_operations_without_calling_done() {
    let dir = Dir::new();
    let (store, _, _) = Store::open(Options { queue_messages_max: 2, ..options(&dir.0) }).unwrap();
    let (go_on, waits) = mpsc::channel::<()>();
    let (holding, holds) = mpsc::channel();
    let rule = history();
    let one = publication("t", "x");
    let message = Append {
        publication: &one,
        offset: 1,
        at_ms: 1,
        rule: &rule,
        idempotency_key: None,
        with: None,
    };
    let wait = move |_| {
        holding.send(()).unwrap();
        let _ = waits.recv_timeout(WAIT);
    };
    store.append(message, Box::new(wait)).unwrap();
    holds.recv_timeout(WAIT).unwrap();
    let (send, receive) = mpsc::channel();
    let mut rejected = 0;
    for offset in 2..6 {
        let send = send.clone();
        let done =
            Box::new(move |result: Result<(), StoreError>| drop(send.send((offset, result))));
        match store.append(Append { offset, ..message }, done) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error, QueueError::Full);
                rejected += 1;
            }
        }
    }
    assert_eq!((rejected, store.stats().queue_messages), (2, 2));
    go_on.send(()).unwrap();
    drop(send);
    let results: Vec<_> = receive.iter().collect();
    assert_eq!(results, [(2, Ok(())), (3, Ok(()))]);
    assert_eq!(offsets(&store, "t", 0), [1, 2, 3]);
    store.close().unwrap();
    let found = Store::open(options(&dir.0)).unwrap().2;
    assert_eq!(found.last_offset, 5, "an assigned offset is not assigned again");
}

#[test]
fn a_panicking_callback_does_not_stop_the_writer() {
    let dir = Dir::new();
    let (store, _, _) = Store::open(options(&dir.0)).unwrap();
    let rule = history();
    let one = publication("t", "x");
    let message = Append {
        publication: &one,
        offset: 1,
        at_ms: 1,
        rule: &rule,
        idempotency_key: None,
        with: None,
    };
    store.append(message, Box::new(|_| panic!("as it should in this test"))).unwrap();
    appended(&store, &one, 2);
    store.close().unwrap();
}

#[test]
fn reads_run_on_the_reader_thread() {
    let dir = Dir::new();
    let (store, _, _) = Store::open(options(&dir.0)).unwrap();
    appended(&store, &publication("t", "x"), 3);
    let (send, receive) = mpsc::channel();
    let job = move |reader: &Reader| {
        let name = std::thread::current().name().map(String::from);
        let _ = send.send((name, read(reader, "t", 0)));
    };
    store.read_later(Box::new(job)).unwrap();
    assert_eq!(receive.recv_timeout(WAIT).unwrap(), (Some("store-read".into()), vec![3]));
    let stats = store.stats();
    assert_eq!((stats.messages, stats.topics, stats.commits), (1, 1, 1));
    assert!(stats.file_bytes > 0 && stats.failed.is_none());
    store.close().unwrap();
    assert_eq!(store.read_later(Box::new(|_| ())), Err(QueueError::Closed));
}

#[test]
fn a_panicking_read_does_not_stop_the_reader() {
    let dir = Dir::new();
    let (store, _, _) = Store::open(options(&dir.0)).unwrap();
    appended(&store, &publication("t", "x"), 1);
    let (send, receive) = mpsc::channel();
    store.read_later(Box::new(|_| panic!("as it should in this test"))).unwrap();
    let job = move |reader: &Reader| drop(send.send(read(reader, "t", 0)));
    store.read_later(Box::new(job)).unwrap();
    assert_eq!(receive.recv_timeout(WAIT), Ok(vec![1]));
    assert_eq!(store.stats().read_panics, 1);
    store.close().unwrap();
}

pub(super) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < WAIT, "timeout: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_shorter_idempotency_window_deletes_all_old_keys() {
    let dir = Dir::new();
    let window = Options { idempotency_seconds_max: u64::MAX, ..options(&dir.0) };
    let (store, _, _) = Store::open(window).unwrap();
    let rule = history();
    let one = publication("t", "x");
    // One sweep takes fewer keys than these.
    for offset in 1..=9_000 {
        let key = Some("k");
        let append = Append {
            publication: &one,
            offset,
            at_ms: 1,
            rule: &rule,
            idempotency_key: key,
            with: None,
        };
        store.append(append, Box::new(|_| ())).unwrap();
    }
    appended(&store, &one, 9_001);
    std::thread::sleep(Duration::from_millis(1_200));
    let keys = || {
        let mut keys = 0;
        store.reader().each_idempotency_key(|_, _, _, _| keys += 1).unwrap();
        keys
    };
    assert_eq!(keys(), 9_000);
    store.set_idempotency_seconds_max(300);
    wait_until("the last sweep", || keys() == 0);
    store.close().unwrap();
}

#[test]
fn a_commit_that_failed_but_reached_the_disk_keeps_its_topic_number() {
    let dir = Dir::new();
    let (store, _, _) = Store::open(options(&dir.0)).unwrap();
    appended(&store, &publication("a", "x"), 1);
    *crate::staged_file::SYNC_FAILS.lock().unwrap() = Some(dir.0.join(crate::FILE));
    let failed = append(&store, &publication("b", "x"), 2).unwrap().recv_timeout(WAIT).unwrap();
    assert!(matches!(failed, Err(StoreError::Disk(_))), "{failed:?}");
    wait_until("a probe that succeeds", || store.write_error().is_none());
    appended(&store, &publication("c", "x"), 3);
    let all = ["a", "b", "c"].map(|topic| offsets(&store, topic, 0));
    assert_eq!(all, [[1], [2], [3]], "a number for each");
    store.close().unwrap();
}

#[test]
fn offsets_jump_after_a_start_without_a_close() {
    let (dir, copy) = (Dir::new(), Dir::new());
    let (store, _, _) = Store::open(options(&dir.0)).unwrap();
    appended(&store, &publication("t", "x"), 3);
    // The copy is a file as a kill leaves it.
    for (round, last) in [(1, 3), (2, 3)] {
        std::fs::copy(dir.0.join(crate::FILE), copy.0.join(crate::FILE)).unwrap();
        let (killed, _, found) = Store::open(options(&copy.0)).unwrap();
        let want =
            OpenInfo { epoch: 0x5f3a_91c2, last_offset: last + OFFSETS_SKIPPED, clean: false };
        assert_eq!(found, want, "{round}");
        assert_eq!(offsets(&killed, "t", 0), [3]);
        killed.close().unwrap();
        let (closed, _, found) = Store::open(options(&copy.0)).unwrap();
        assert_eq!(found, OpenInfo { clean: true, ..want });
        closed.close().unwrap();
        // The second round copies a file that was idle.
        std::thread::sleep(Duration::from_millis(2_500));
    }
    store.close().unwrap();
}

#[test]
fn a_record_is_written_with_its_message() {
    let dir = Dir::new();
    let (store, _, _) = Store::open(options(&dir.0)).unwrap();
    let (one, rule) = (publication("t", "one"), history());
    let record = |key: &str, value: &[u8]| ("part", (key.into(), Some(value.into())));
    let put = |offset, with: &crate::PartRecord| {
        let (send, receive) = mpsc::channel();
        let append = Append {
            publication: &one,
            offset,
            at_ms: 1,
            rule: &rule,
            idempotency_key: None,
            with: Some(with),
        };
        store.append(append, Box::new(move |result| drop(send.send(result)))).unwrap();
        receive.recv_timeout(WAIT).unwrap()
    };
    put(1, &record("a", b"first")).unwrap();
    put(2, &("part", ("a".into(), None))).unwrap();
    put(3, &record("c", b"third")).unwrap();
    let mut found = Vec::new();
    let reader = store.reader();
    reader
        .each_record(|part, key, value| {
            found.push((part.to_owned(), key.to_owned(), value.to_vec()))
        })
        .unwrap();
    assert_eq!(found, [("part".to_owned(), "c".to_owned(), b"third".to_vec())]);
    store.close().unwrap();
}
