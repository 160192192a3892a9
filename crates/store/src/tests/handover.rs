//! Tests of the file's way from one process to the next, and back if that one fails.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Instant;

use crate::{OpenError, OpenInfo, Passed};

use super::*;

const DIR: &str = "THRONG_STORE_HANDOVER";
const PASSED: &str = "THRONG_STORE_PASSED";

fn hex(passed: &Passed) -> String {
    passed.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Passed> {
    let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(byte).collect();
    Passed::from_bytes(&bytes?)
}

/// Opens the file until this process is killed.
fn own_store(dir: &Path) {
    let passed = from_hex(&std::env::var(PASSED).unwrap()).unwrap();
    let store = Store::waiting(&options(dir));
    store.open_now(&passed).unwrap();
    println!("holds");
    std::io::stdout().flush().unwrap();
    std::thread::sleep(WAIT);
}

/// Starts a process that has the file open.
fn owner(dir: &Path, passed: &Passed) -> std::process::Child {
    let name = "tests::handover::a_process_that_is_killed_gives_the_file_back";
    let mut child =
        child(name, DIR, dir).env(PASSED, hex(passed)).stdout(Stdio::piped()).spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    assert!(output.lines().map_while(Result::ok).any(|line| line.contains("holds")));
    child
}

#[test]
fn passed_is_read_as_it_was_written() {
    let passed = Passed { epoch: 7, last_offset: u64::MAX - 3, commits: 1 << 40 };
    assert_eq!(Passed::from_bytes(&passed.to_bytes()), Some(passed));
    assert_eq!(from_hex(&hex(&passed)), Some(passed));
    assert_eq!(Passed::from_bytes(&passed.to_bytes()[1..]), None);
    assert_eq!(Passed::from_bytes(&[0; Passed::BYTES + 1]), None);
    assert!(crate::can_read(crate::FORMAT) && !crate::can_read(crate::FORMAT + 1));
    assert!(!crate::can_read(1), "such a file is written anew");
}

#[test]
fn the_next_process_goes_on_with_the_file() {
    let dir = Dir::new();
    let (old, old_reader, found) = Store::open(options(&dir.0)).unwrap();
    let new = Store::waiting(&options(&dir.0));
    let clone = new.clone();
    appended(&old, &publication("a", "1"), 1);
    old.put_cursor(&"u".into(), &"a".into(), 1).unwrap();
    assert!(matches!(append(&new, &publication("a", "2"), 2), Err(QueueError::Away)));
    assert!(matches!(new.read_later(Box::new(|_| ())), Err(QueueError::Away)));
    let none = Passed { epoch: 0, last_offset: 0, commits: 0 };
    assert!(matches!(new.open_now(&none), Err(OpenError::InUse { .. })));
    // An offset is assigned, but its message is not stored.
    old.shared.last.fetch_max(9, std::sync::atomic::Ordering::Relaxed);
    let passed = old.pass_on().unwrap();
    assert_eq!((passed.epoch, passed.last_offset), (found.epoch, 9));
    assert!(matches!(append(&old, &publication("a", "2"), 10), Err(QueueError::Away)));
    assert_eq!(old_reader.last("a"), Err(StoreError::Closed));
    assert_eq!(old.pass_on(), Err(StoreError::Closed));
    let info = new.open_now(&passed).unwrap();
    assert_eq!(info, OpenInfo { epoch: found.epoch, last_offset: 9, clean: true });
    assert!(matches!(old.take_back(), Err(OpenError::InUse { .. })));
    appended(&clone, &publication("a", "10"), 10);
    assert_eq!(offsets(&new, "a", 0), [1, 10]);
    let mut cursors = Vec::new();
    let each =
        |user: &str, topic: &str, offset| cursors.push((user.to_owned(), topic.to_owned(), offset));
    new.reader().each_cursor(each).unwrap();
    assert_eq!(cursors, [("u".to_owned(), "a".to_owned(), 1)]);
    // The end of the old process does not affect the file.
    assert_eq!(old.close(), Ok(()));
    appended(&new, &publication("a", "11"), 11);
    new.close().unwrap();
    assert!(matches!(old.take_back(), Err(OpenError::NotPassed { .. })), "it is closed");
    let (last, reader, found) = Store::open(options(&dir.0)).unwrap();
    assert!(found.clean && found.last_offset == 11, "{found:?}");
    assert_eq!(read(&reader, "a", 0), [1, 10, 11]);
    last.close().unwrap();
}

#[test]
fn the_file_comes_back_to_who_passed_it_on() {
    let dir = Dir::new();
    let (old, reader, _) = Store::open(options(&dir.0)).unwrap();
    let clone = old.clone();
    for round in 0..5 {
        let offset = 2 * round + 1;
        appended(&old, &publication("a", "x"), offset);
        let passed = old.pass_on().unwrap();
        if round % 2 == 0 {
            let new = Store::waiting(&options(&dir.0));
            new.open_now(&passed).unwrap();
            new.close().unwrap();
            // The process marked the file as closed, which is a use of it.
            assert!(matches!(old.take_back(), Err(OpenError::NotPassed { .. })));
            *old.shared.passed.lock().unwrap() = None;
        }
        let info = old.take_back().unwrap();
        assert_eq!(info.last_offset, offset);
        appended(&clone, &publication("a", "y"), offset + 1);
        assert_eq!(read(&reader, "a", offset - 1), [offset, offset + 1]);
    }
    old.close().unwrap();
}

#[test]
fn a_process_that_is_killed_gives_the_file_back() {
    if let Some(dir) = std::env::var_os(DIR) {
        return own_store(Path::new(&dir));
    }
    let dir = Dir::new();
    let (old, reader, _) = Store::open(options(&dir.0)).unwrap();
    for round in 0..3 {
        let offset = 3 * round + 1;
        appended(&old, &publication("a", "x"), offset);
        let passed = old.pass_on().unwrap();
        let mut owner = owner(&dir.0, &passed);
        assert!(matches!(old.take_back(), Err(OpenError::InUse { .. })));
        let third = Store::waiting(&options(&dir.0));
        assert!(matches!(third.open_now(&passed), Err(OpenError::InUse { .. })));
        owner.kill().unwrap();
        owner.wait().unwrap();
        assert_eq!(old.take_back().unwrap().last_offset, offset);
        appended(&old, &publication("a", "y"), offset + 1);
        assert_eq!(read(&reader, "a", offset - 1), [offset, offset + 1]);
    }
    // Both are killed: the next one skips offsets that may have been assigned.
    let passed = old.pass_on().unwrap();
    let mut owner = owner(&dir.0, &passed);
    owner.kill().unwrap();
    owner.wait().unwrap();
    let (next, reader, found) = Store::open(options(&dir.0)).unwrap();
    assert!(!found.clean && found.last_offset == passed.last_offset + crate::OFFSETS_SKIPPED);
    assert_eq!(read(&reader, "a", 0), [1, 2, 4, 5, 7, 8]);
    assert!(matches!(old.take_back(), Err(OpenError::InUse { .. })));
    next.close().unwrap();
    assert!(matches!(old.take_back(), Err(OpenError::NotPassed { .. })), "another one used it");
}

#[test]
fn what_waits_is_written_before_the_file_goes() {
    let dir = Dir::new();
    let (old, _, _) = Store::open(options(&dir.0)).unwrap();
    assert!(old.is_idle());
    let results: Vec<_> =
        (1..200).map(|offset| append(&old, &publication("a", "x"), offset).unwrap()).collect();
    let (send, read_done) = mpsc::channel();
    old.read_later(Box::new(move |reader| {
        send.send(reader.last("none")).unwrap();
    }))
    .unwrap();
    let passed = old.pass_on().unwrap();
    assert!(old.is_idle());
    assert!(results.into_iter().all(|result| result.try_recv() == Ok(Ok(()))));
    assert_eq!(read_done.try_recv(), Ok(Ok(None)));
    let new = Store::waiting(&options(&dir.0));
    new.open_now(&passed).unwrap();
    assert_eq!(offsets(&new, "a", 0).len(), 199);
    assert!(matches!(new.open_now(&passed), Err(OpenError::NotPassed { .. })), "it is open");
    new.close().unwrap();
}

#[test]
fn a_store_is_not_idle_while_it_writes() {
    let dir = Dir::new();
    let (store, _, _) = Store::open(options(&dir.0)).unwrap();
    let (go, wait) = mpsc::channel::<()>();
    let rule = history();
    let publication = publication("a", "x");
    let message = Append {
        publication: &publication,
        offset: 1,
        at_ms: 1,
        rule: &rule,
        idempotency_key: None,
        with: None,
    };
    let (send, begun) = mpsc::channel();
    let done = move |_: Result<(), StoreError>| {
        send.send(()).unwrap();
        let _ = wait.recv_timeout(WAIT);
    };
    store.append(message, Box::new(done)).unwrap();
    begun.recv_timeout(WAIT).unwrap();
    assert!(!store.is_idle(), "the caller is being told");
    go.send(()).unwrap();
    let started = Instant::now();
    while !store.is_idle() {
        assert!(started.elapsed() < WAIT);
        std::thread::sleep(Duration::from_millis(1));
    }
    store.close().unwrap();
}

#[test]
fn a_file_that_something_else_has_changed_is_not_taken() {
    let dir = Dir::new();
    let (old, _, _) = Store::open(options(&dir.0)).unwrap();
    appended(&old, &publication("a", "x"), 1);
    let passed = old.pass_on().unwrap();
    let new = Store::waiting(&options(&dir.0));
    std::fs::rename(dir.0.join(crate::FILE), dir.0.join("away")).unwrap();
    assert!(new.open_now(&passed).is_err(), "and no new file is made");
    assert!(!dir.0.join(crate::FILE).exists());
    std::fs::rename(dir.0.join("away"), dir.0.join(crate::FILE)).unwrap();
    for wrong in [
        Passed { commits: passed.commits + 1, ..passed },
        Passed { epoch: passed.epoch + 1, ..passed },
        Passed { last_offset: passed.last_offset + 1, ..passed },
    ] {
        assert!(matches!(new.open_now(&wrong), Err(OpenError::NotPassed { .. })), "{wrong:?}");
    }
    new.open_now(&passed).unwrap();
    appended(&new, &publication("a", "y"), 2);
    new.close().unwrap();
}

#[test]
fn the_first_commit_raises_the_format() {
    let dir = Dir::new();
    let (old, _, _) = Store::open(options(&dir.0)).unwrap();
    let set = |format: u64| {
        let db = redb::Database::open(dir.0.join(crate::FILE)).unwrap();
        let txn = db.begin_write().unwrap();
        let table = crate::tables::FORMAT_TABLE;
        txn.open_table(table).unwrap().insert(crate::tables::FORMAT_KEY, format).unwrap();
        txn.commit().unwrap();
    };
    let format = || {
        let db = redb::Database::open(dir.0.join(crate::FILE)).unwrap();
        crate::database::file_format(&db).unwrap()
    };
    let passed = old.pass_on().unwrap();
    set(crate::FORMAT - 1);
    let new = Store::waiting(&options(&dir.0));
    new.open_now(&passed).unwrap();
    new.pass_on().unwrap();
    assert_eq!(format(), Some(crate::FORMAT - 1), "nothing was stored");
    new.take_back().unwrap();
    appended(&new, &publication("a", "x"), 1);
    new.pass_on().unwrap();
    assert_eq!(format(), Some(crate::FORMAT));
    set(crate::FORMAT + 1);
    assert!(matches!(new.take_back(), Err(OpenError::Format { .. })));
    set(crate::FORMAT);
    new.take_back().unwrap();
    new.close().unwrap();
}

/// Copies this process's descriptors of the directory's files, like threads with a table of their own.
#[expect(unsafe_code, reason = "the descriptors are open, and the store's")]
fn copied_descriptors(dir: &Path) -> Vec<std::os::fd::OwnedFd> {
    let mut copies = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().map_while(Result::ok) {
        let number: i32 = entry.file_name().to_str().unwrap().parse().unwrap();
        if std::fs::read_link(entry.path()).is_ok_and(|file| file.starts_with(dir)) {
            // SAFETY: nothing closes the store's files before `pass_on`.
            let descriptor = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
            copies.push(descriptor.try_clone_to_owned().unwrap());
        }
    }
    copies
}

#[test]
fn copies_of_descriptors_keep_no_lock() {
    let dir = Dir::new();
    let (old, _, _) = Store::open(options(&dir.0)).unwrap();
    appended(&old, &publication("a", "x"), 1);
    let copies = copied_descriptors(&dir.0);
    assert!(copies.len() >= 2, "{copies:?}");
    let passed = old.pass_on().unwrap();
    let new = Store::waiting(&options(&dir.0));
    new.open_now(&passed).unwrap();
    appended(&new, &publication("a", "y"), 2);
    new.close().unwrap();
    drop(copies);
}
