//! Tests of copies of a store with random damage. The store rejects each copy, or returns everything that was stored,
//! or names what is gone. It never returns fewer messages silently, and it never panics in a way that ends a thread.
//!
//! `STORE_DAMAGE_COPIES=10000` sets the number of copies. `STORE_DAMAGE_SEED=n` replays one, with
//! the same file in `STORE_DAMAGE_FILE` (the operations that share a commit differ by run).

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, OnceLock};

use random::Random;

use super::copies::finished;
use super::*;
use crate::{Damage, FILE, OFFSETS_SKIPPED, Record, Report, StoredMessages, check};

const COPIES: u64 = 400;
const THREADS: usize = 4;
const TOPICS: [&str; 9] = ["a", "b", "big", "c", "compact", "d", "e", "room:1", "z"];
const NOW_MS: u64 = 10_000;

/// Makes a directory in memory, if the machine has one.
fn dir() -> Dir {
    let shm = Path::new("/dev/shm");
    let dir = Dir::new();
    if !shm.is_dir() {
        return dir;
    }
    let path = shm.join(dir.0.file_name().unwrap());
    std::fs::create_dir_all(&path).unwrap();
    Dir(path)
}

/// The content of a store.
#[derive(Clone, Debug, Default, PartialEq)]
struct Contents {
    topics: BTreeMap<&'static str, Vec<Record>>,
    rows: BTreeMap<&'static str, Vec<String>>,
}

fn rows(reader: &Reader, table: &str) -> (Vec<String>, Result<(), StoreError>) {
    let mut rows = Vec::new();
    let result = match table {
        "cursors" => {
            reader.each_cursor(|user, topic, at| rows.push(format!("{user} {topic} {at}")))
        }
        "keys" => reader.each_idempotency_key(|topic, key, at, ms| {
            rows.push(format!("{topic} {key} {at} {ms}"));
        }),
        "subscriptions" => reader.each_subscriber(|user, row| rows.push(format!("{user} {row:?}"))),
        "records" => reader.each_record(|_, key, value| rows.push(format!("{key} {value:?}"))),
        _ => reader.each_name(|number, name| rows.push(format!("{number} {name}"))),
    };
    (rows, result)
}

const TABLES: [&str; 5] = ["cursors", "keys", "subscriptions", "names", "records"];

fn contents(reader: &Reader) -> Contents {
    let topics = TOPICS.map(|name| (name, reader.after(name, 0, ALL, NOW_MS).unwrap().records));
    let rows = TABLES.map(|table| {
        let (rows, result) = rows(reader, table);
        result.unwrap();
        (table, rows)
    });
    Contents { topics: topics.into(), rows: rows.into() }
}

/// The bytes of store files, with their content.
struct Originals {
    files: Vec<(Vec<u8>, Contents)>,
}

fn fill(store: &Store, random: &mut Random, offsets: std::ops::Range<u64>) {
    let mut last = None;
    for offset in offsets {
        let name = TOPICS[random.below(9) as usize];
        let publication = match name {
            "compact" => keyed(name, &format!("k{}", random.below(9)), &format!("{offset}")),
            "big" => publication(name, &"b".repeat(random.below(30_000) as usize)),
            _ => publication(name, &format!("{offset}:{}", "x".repeat(random.below(400) as usize))),
        };
        let rule = HistoryRule { compact: name == "compact", ..history() };
        let key = format!("key{offset}");
        let idempotency_key = (random.below(4) == 0).then_some(&*key);
        let (send, receive) = mpsc::channel();
        let append = Append {
            publication: &publication,
            offset,
            at_ms: 1_000,
            rule: &rule,
            idempotency_key,
            with: None,
        };
        store.append(append, Box::new(move |result| drop(send.send(result)))).unwrap();
        if random.below(5) == 0 {
            let user = format!("user{}", random.below(9)).into();
            store.put_cursor(&user, &name.into(), offset).unwrap();
            let puts = vec![(user, [offset as u8, 2, 3].into())];
            let names = vec![(offset as u32 % 7, name.into())];
            store.put_subscriptions(puts, names, Box::new(|_| ())).unwrap();
            let record = (random.below(5) > 0).then(|| [offset as u8].into());
            let puts = vec![(format!("key{}", random.below(20)).into(), record)];
            store.put_records("part", puts, Box::new(|_| ())).unwrap();
        }
        if random.below(8) == 0 {
            assert_eq!(receive.recv_timeout(WAIT).unwrap(), Ok(()));
        }
        last = Some(receive);
    }
    last.unwrap().recv_timeout(WAIT).unwrap().unwrap();
}

fn originals() -> &'static Originals {
    static ORIGINALS: OnceLock<Originals> = OnceLock::new();
    ORIGINALS.get_or_init(|| {
        let dir = dir();
        let options = Options { idempotency_seconds_max: u64::MAX / 2_000, ..options(&dir.0) };
        let (store, reader, _) = Store::open(options).unwrap();
        let mut random = Random::new(7);
        fill(&store, &mut random, 1..500);
        // The three files are those after a kill under load, after a kill while idle, and after a
        // close.
        let mut files = vec![(std::fs::read(dir.0.join(FILE)).unwrap(), contents(&reader))];
        std::thread::sleep(Duration::from_millis(2_300));
        files.push((std::fs::read(dir.0.join(FILE)).unwrap(), contents(&reader)));
        fill(&store, &mut random, 500..560);
        let last = contents(&reader);
        store.close().unwrap();
        files.push((std::fs::read(dir.0.join(FILE)).unwrap(), last));
        Originals { files }
    })
}

/// Damages a copy and describes the damage.
fn damage(random: &mut Random, which: usize) -> (Vec<u8>, String) {
    let mut bytes = originals().files[which].0.clone();
    let page = |random: &mut Random, bytes: &[u8]| {
        // Half of the damage goes where most of the data is.
        let pages = bytes.len() as u64 / 4096;
        let pages = if random.below(2) == 0 { pages.min(120) } else { pages };
        random.below(pages) as usize * 4096
    };
    let description = match random.below(10) {
        0 => {
            let length = random.below(bytes.len() as u64 + 1) as usize;
            bytes.truncate(length);
            format!("cut to {length}")
        }
        1 => {
            let bit = random.below(320 * 8) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
            format!("bit {bit} of the header")
        }
        2 => {
            // A torn page: a part of it was not written, or comes from another version.
            let (at, other) =
                (page(random, &bytes), &originals().files[random.below(3) as usize].0);
            let from = random.below(8) as usize * 512;
            let length = (512 << random.below(4)).min(4096 - from);
            match other.get(at + from..at + from + length).filter(|_| random.below(2) == 0) {
                Some(old) => bytes[at + from..at + from + length].copy_from_slice(old),
                None => bytes[at + from..at + from + length].fill(0),
            }
            format!("torn page at {at}")
        }
        3 => {
            let (to, from) = (page(random, &bytes), page(random, &bytes));
            bytes.copy_within(from..from + 4096, to);
            format!("page {from} at {to}")
        }
        4 => {
            let at = page(random, &bytes);
            bytes[at..at + 4096].iter_mut().for_each(|byte| *byte = random.below(256) as u8);
            format!("noise at {at}")
        }
        5 => {
            // These bits are in the pages of the small tables.
            let needle = [&b"user"[..], b"key", b"compact", b"room:1"][random.below(4) as usize];
            let has = |page: &&[u8]| page.windows(needle.len()).any(|window| window == needle);
            let pages: Vec<usize> = bytes
                .chunks(4096)
                .enumerate()
                .filter(|(_, page)| has(page))
                .map(|(at, _)| at * 4096)
                .collect();
            let at = pages[random.below(pages.len() as u64) as usize];
            let bits: Vec<usize> =
                (0..3).map(|_| at * 8 + random.below(4096 * 8) as usize).collect();
            bits.iter().for_each(|bit| bytes[bit / 8] ^= 1 << (bit % 8));
            format!("bits {bits:?} near {needle:?}")
        }
        _ => {
            let bits: Vec<usize> = (0..1 + random.below(10))
                .map(|_| page(random, &bytes) * 8 + random.below(4096 * 8) as usize)
                .collect();
            bits.iter().for_each(|bit| bytes[bit / 8] ^= 1 << (bit % 8));
            format!("bits {bits:?}")
        }
    };
    (bytes, description)
}

/// The outcomes of the copies.
#[derive(Debug, Default)]
struct Outcomes {
    rejected: u64,
    whole: u64,
    gaps: u64,
    topics_rejected: u64,
    rows_rejected: u64,
    backups: u64,
}

impl Outcomes {
    fn add(&mut self, other: &Outcomes) {
        self.rejected += other.rejected;
        self.whole += other.whole;
        self.gaps += other.gaps;
        self.topics_rejected += other.topics_rejected;
        self.rows_rejected += other.rows_rejected;
        self.backups += other.backups;
    }
}

/// Returns true if the topic is complete. Panics if messages are missing without a reported gap.
fn check_read(name: &str, stored: StoredMessages, from: u64, want: &[Record]) -> bool {
    let want: Vec<&Record> = want.iter().filter(|record| record.offset > from).collect();
    // Without its last commit a file has messages that later ones of the same keys replaced.
    let is_of_before = |record: &Record| {
        let key = record.publication.key();
        let newer = |it: &&Record| it.offset > record.offset && it.publication.key() == key;
        stored.lost_range.is_some() && key.is_some() && want.iter().any(newer)
    };
    for record in &stored.records {
        let is_known = want.contains(&record) || is_of_before(record);
        assert!(is_known, "{name}: {record:?} was never stored");
    }
    assert!(stored.records.is_sorted_by_key(|record| record.offset));
    let gone = want.iter().filter(|record| !stored.records.contains(record));
    let gone: Vec<u64> = gone.map(|record| record.offset).collect();
    let is_reported = |offset: &u64| {
        let (after, through) = stored.lost_range.unwrap_or_default();
        *offset <= stored.floor && *offset > after && *offset <= through
    };
    assert!(
        gone.iter().all(is_reported),
        "{name}: {gone:?} are gone, reported is {:?}",
        stored.lost_range
    );
    gone.is_empty()
}

fn assert_names_topic(name: &str, error: &StoreError) {
    let StoreError::Damaged(damage) = error else { panic!("{name}: {error}") };
    assert!(damage.topic.as_deref() == Some(name) || damage.table == "facts", "{name}: {error}");
}

/// Reads everything in each way. Returns whether everything exists, and the damaged topics.
fn check_all(
    reader: &Reader,
    want: &Contents,
    outcomes: &mut Outcomes,
) -> (bool, Vec<&'static str>) {
    let (mut is_complete, mut damaged) = (true, Vec::new());
    for (name, want) in &want.topics {
        let middle = want.get(want.len() / 2).map_or(0, |record| record.offset);
        let mut damage = None;
        for from in [0, middle] {
            let mut all = Vec::new();
            let mut at = from;
            let last = loop {
                let limits = ReadLimits { messages_max: 7, bytes_max: 50_000 };
                match reader.after(name, at, limits, NOW_MS) {
                    Ok(page) => {
                        assert!(
                            page.through > at || !page.more,
                            "{name}: the read makes no progress"
                        );
                        all.extend(page.records.clone());
                        at = page.through;
                        if !page.more {
                            break Some(page);
                        }
                    }
                    Err(error) => {
                        assert_names_topic(name, &error);
                        damage = Some(error);
                        break None;
                    }
                }
            };
            if let Some(last) = last {
                is_complete &=
                    check_read(name, StoredMessages { records: all, ..last }, from, want);
            }
        }
        let backwards = reader.before(name, u64::MAX, ALL, NOW_MS);
        let counted = reader.count_before(name, u64::MAX, ALL, NOW_MS);
        match (&backwards, counted) {
            (Ok(stored), Ok(counted)) => {
                assert_eq!((counted.messages, counted.more), (stored.records.len(), stored.more));
            }
            (Err(_), Err(_)) => {}
            (read, counted) => panic!("{name}: read {read:?}, but counted {counted:?}"),
        }
        match backwards {
            // The page ends before the damage, so the next one must fail.
            Ok(stored) if stored.more => {
                let next = reader.before(name, stored.through, ALL, NOW_MS);
                damage = Some(next.expect_err("there is no more"));
            }
            Ok(mut stored) => {
                stored.records.reverse();
                is_complete &= check_read(name, stored, 0, want);
            }
            Err(error) => {
                assert_names_topic(name, &error);
                damage = Some(error);
            }
        }
        if damage.is_some() {
            outcomes.topics_rejected += 1;
            damaged.push(*name);
            is_complete = false;
        }
    }
    let is_lost = reader.after("a", 0, ALL, NOW_MS).is_ok_and(|stored| stored.lost_range.is_some());
    for (table, want) in &want.rows {
        let (rows, result) = rows(reader, table);
        match result {
            Ok(()) if rows == *want => {}
            Ok(()) if is_lost => is_complete = false,
            Ok(()) => panic!("{table}: {rows:?}"),
            Err(error) => {
                assert!(matches!(error, StoreError::Damaged(_)), "{error}");
                outcomes.rows_rejected += 1;
                is_complete = false;
            }
        }
    }
    (is_complete, damaged)
}

/// Backs the store up. Returns true if the store was copied: then everything in it is readable, and the copy equals
/// it.
fn back_up(store: &Store, reader: &Reader, damaged: &[&'static str]) -> bool {
    let to = dir();
    store.begin_backup(&to.0, 1).unwrap();
    if finished(store).result.unwrap().is_err() {
        return false;
    }
    assert!(damaged.is_empty(), "{damaged:?} are copied");
    let options = Options { idempotency_seconds_max: u64::MAX / 2_000, ..options(&to.0) };
    let (copy, copied, _) = Store::open(options).unwrap();
    assert!(contents(&copied) == contents(reader), "the copy is another store");
    copy.close().unwrap();
    true
}

/// Writes to each topic. The message must be readable, or the store must reject it.
fn write_all(store: &Store, want: &Contents, damaged: &[&'static str]) {
    for (name, before) in &want.topics {
        let offset = 3 * OFFSETS_SKIPPED;
        let is_bad = damaged.contains(name);
        if is_bad {
            let (send, receive) = mpsc::channel();
            let done = Box::new(move |result| drop(send.send(result)));
            store.delete_history(&(*name).into(), 2 * OFFSETS_SKIPPED, done).unwrap();
            if receive.recv_timeout(WAIT).unwrap().is_err() {
                continue;
            }
        }
        let publication = match *name {
            "compact" => keyed(name, "new", "1"),
            _ => publication(name, "new"),
        };
        let Ok(reply) = append(store, &publication, offset) else { continue };
        match reply.recv_timeout(WAIT).unwrap() {
            Ok(()) => {
                let Ok(stored) = store.reader().after(name, 0, ALL, NOW_MS) else { continue };
                assert_eq!(stored.records.last().unwrap().publication, publication, "{name}");
                if !is_bad && stored.lost_range.is_none() {
                    assert_eq!(stored.records.len(), before.len() + 1, "{name}");
                }
            }
            Err(error) => {
                assert!(matches!(error, StoreError::Damaged(_) | StoreError::Disk(_)), "{error}")
            }
        }
    }
}

/// A copy that stays on disk if its test fails.
struct Original(std::path::PathBuf);

impl Drop for Original {
    fn drop(&mut self) {
        match std::thread::panicking() {
            true => eprintln!("the damaged file is {}", self.0.display()),
            false => drop(std::fs::remove_file(&self.0)),
        }
    }
}

fn run_copy(seed: u64, outcomes: &mut Outcomes) -> String {
    let mut random = Random::new(seed);
    let which = random.below(3) as usize;
    let (mut bytes, description) = damage(&mut random, which);
    if let Ok(file) = std::env::var("STORE_DAMAGE_FILE") {
        bytes = std::fs::read(file).unwrap();
    }
    let description = format!("file {which}, {description}");
    let want = &originals().files[which].1;
    // Some files are verified completely when they are opened; others count as too large for that.
    let verify_bytes_max = [u64::MAX, 0][random.below(2) as usize];
    let dir = dir();
    let file = dir.0.join(FILE);
    std::fs::write(&file, &bytes).unwrap();
    // The original copy helps to investigate a failed run.
    let original = Original(dir.0.with_extension("original"));
    std::fs::write(&original.0, &bytes).unwrap();
    let report = (random.below(4) == 0).then(|| check(&dir.0));
    assert!(report.is_none() || std::fs::read(&file).unwrap() == bytes, "the check changed it");
    let options =
        Options { verify_bytes_max, idempotency_seconds_max: u64::MAX / 2_000, ..options(&dir.0) };
    match Store::open(options) {
        Ok((store, reader, _)) => {
            let (is_complete, damaged) = check_all(&reader, want, outcomes);
            if is_complete {
                outcomes.whole += 1
            } else {
                outcomes.gaps += 1
            }
            if let Some(Ok(report)) = report {
                check_report(&report, &damaged);
            }
            if seed.is_multiple_of(4) {
                outcomes.backups += u64::from(back_up(&store, &reader, &damaged));
            }
            if random.below(2) == 0 {
                write_all(&store, want, &damaged);
            }
            let _ = store.close();
        }
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("Nothing was changed"), "{text}");
            outcomes.rejected += 1;
        }
    }
    description
}

/// Checks that the report names every topic that a read rejected.
fn check_report(report: &Report, damaged: &[&str]) {
    let is_global = |damage: &Damage| damage.topic.is_none();
    for name in damaged {
        let names = |damage: &Damage| damage.topic.as_deref() == Some(*name);
        assert!(report.damages.iter().any(|damage| names(damage) || is_global(damage)), "{name}");
    }
}

#[test]
fn no_damage_loses_messages_silently() {
    let mut outcomes = Outcomes::default();
    if let Ok(seed) = std::env::var("STORE_DAMAGE_SEED") {
        let description = run_copy(seed.parse().unwrap(), &mut outcomes);
        println!("{description}: {outcomes:?}");
        return;
    }
    let copies =
        std::env::var("STORE_DAMAGE_COPIES").map_or(COPIES, |copies| copies.parse().unwrap());
    let started = std::time::Instant::now();
    let (next, failed) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let run = || {
        let mut outcomes = Outcomes::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= copies {
                return outcomes;
            }
            if catch_unwind(AssertUnwindSafe(|| run_copy(seed, &mut outcomes))).is_err() {
                failed.lock().unwrap().push(seed);
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(run)).collect();
        threads.into_iter().for_each(|thread| outcomes.add(&thread.join().unwrap()));
    });
    let failed = failed.into_inner().unwrap();
    println!("{copies} copies in {:?}: {outcomes:?}", started.elapsed());
    assert!(failed.is_empty(), "STORE_DAMAGE_SEED= one of {failed:?} replays it");
    assert!(outcomes.rejected > 0 && outcomes.whole > 0 && outcomes.topics_rejected > 0);
    assert!(outcomes.backups > 0);
}
