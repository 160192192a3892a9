//! Copies of a store with random damage: each is refused, or gives all that was stored, or names
//! what is gone. Never fewer messages, never a panic that ends a thread.
//!
//! `STORE_DAMAGE_COPIES=10000` makes so many copies; `STORE_DAMAGE_SEED=n` replays one,
//! with the very file in `STORE_DAMAGE_FILE` (which commits took what together differs by run).

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, OnceLock};

use super::*;
use crate::{Damage, FILE, OFFSETS_SKIPPED, Record, Report, Stored, check};

const COPIES: u64 = 400;
const THREADS: usize = 4;
const TOPICS: [&str; 9] = ["a", "b", "big", "c", "compact", "d", "e", "room:1", "z"];
const NOW_MS: u64 = 10_000;

struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x2545_f491_4f6c_dd1d) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// In memory where that is to be had.
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

/// What is in a store.
#[derive(Clone, Debug, Default, PartialEq)]
struct Contents {
    topics: BTreeMap<&'static str, Vec<Record>>,
    rows: BTreeMap<&'static str, Vec<String>>,
}

fn rows(reader: &Reader, table: &str) -> (Vec<String>, Result<(), Fault>) {
    let mut rows = Vec::new();
    let result = match table {
        "cursors" => {
            reader.each_cursor(|user, topic, at| rows.push(format!("{user} {topic} {at}")))
        }
        "keys" => reader.each_idempotency_key(|topic, key, at, ms| {
            rows.push(format!("{topic} {key} {at} {ms}"));
        }),
        "subscriptions" => reader.each_subscriber(|user, row| rows.push(format!("{user} {row:?}"))),
        _ => reader.each_name(|number, name| rows.push(format!("{number} {name}"))),
    };
    (rows, result)
}

const TABLES: [&str; 4] = ["cursors", "keys", "subscriptions", "names"];

fn contents(reader: &Reader) -> Contents {
    let topics = TOPICS.map(|name| (name, reader.after(name, 0, ALL, NOW_MS).unwrap().records));
    let rows = TABLES.map(|table| {
        let (rows, result) = rows(reader, table);
        result.unwrap();
        (table, rows)
    });
    Contents { topics: topics.into(), rows: rows.into() }
}

/// Files of stores as they lie on the disk, with what is in them.
struct Whole {
    files: Vec<(Vec<u8>, Contents)>,
}

fn fill(store: &Store, random: &mut Random, offsets: std::ops::Range<u64>) {
    let mut last = None;
    for offset in offsets {
        let name = TOPICS[random.below(9) as usize];
        let draft = match name {
            "compact" => keyed(name, &format!("k{}", random.below(9)), &format!("{offset}")),
            "big" => draft(name, &"b".repeat(random.below(30_000) as usize)),
            _ => draft(name, &format!("{offset}:{}", "x".repeat(random.below(400) as usize))),
        };
        let keep = History { compact: name == "compact", ..history() };
        let key = format!("key{offset}");
        let idempotency_key = (random.below(4) == 0).then_some(&*key);
        let (send, receive) = mpsc::channel();
        let append = Append { draft: &draft, offset, at_ms: 1_000, keep: &keep, idempotency_key };
        store.append(append, Box::new(move |result| drop(send.send(result)))).unwrap();
        if random.below(5) == 0 {
            let user = format!("user{}", random.below(9)).into();
            store.cursor(&user, &name.into(), offset).unwrap();
            let puts = vec![(user, [offset as u8, 2, 3].into())];
            let names = vec![(offset as u32 % 7, name.into())];
            store.subscriptions(puts, names, Box::new(|_| ())).unwrap();
        }
        if random.below(8) == 0 {
            assert_eq!(receive.recv_timeout(WAIT).unwrap(), Ok(()));
        }
        last = Some(receive);
    }
    last.unwrap().recv_timeout(WAIT).unwrap().unwrap();
}

fn whole() -> &'static Whole {
    static WHOLE: OnceLock<Whole> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let dir = dir();
        let options = Options { idempotency_seconds_max: u64::MAX / 2_000, ..options(&dir.0) };
        let (store, reader, _) = Store::open(options).unwrap();
        let mut random = Random::new(7);
        fill(&store, &mut random, 1..500);
        // As a kill leaves it, under load and idle, and as a close does.
        let mut files = vec![(std::fs::read(dir.0.join(FILE)).unwrap(), contents(&reader))];
        std::thread::sleep(Duration::from_millis(2_300));
        files.push((std::fs::read(dir.0.join(FILE)).unwrap(), contents(&reader)));
        fill(&store, &mut random, 500..560);
        let last = contents(&reader);
        store.close().unwrap();
        files.push((std::fs::read(dir.0.join(FILE)).unwrap(), last));
        Whole { files }
    })
}

/// Damages a copy, and says how.
fn damage(random: &mut Random, which: usize) -> (Vec<u8>, String) {
    let mut bytes = whole().files[which].0.clone();
    let page = |random: &mut Random, bytes: &[u8]| {
        // Half of it where the most is.
        let pages = bytes.len() as u64 / 4096;
        let pages = if random.below(2) == 0 { pages.min(120) } else { pages };
        random.below(pages) as usize * 4096
    };
    let how = match random.below(10) {
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
            // A page of which a part was not written, or was by another version.
            let (at, other) = (page(random, &bytes), &whole().files[random.below(3) as usize].0);
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
            // Where the small tables are.
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
    (bytes, how)
}

/// What became of copies.
#[derive(Debug, Default)]
struct Outcomes {
    refused: u64,
    whole: u64,
    gap_told: u64,
    topics_refused: u64,
    rows_refused: u64,
}

impl Outcomes {
    fn add(&mut self, other: &Outcomes) {
        self.refused += other.refused;
        self.whole += other.whole;
        self.gap_told += other.gap_told;
        self.topics_refused += other.topics_refused;
        self.rows_refused += other.rows_refused;
    }
}

/// True where the topic is whole; false where what is gone is told.
fn check_read(name: &str, stored: Stored, from: u64, want: &[Record]) -> bool {
    let want: Vec<&Record> = want.iter().filter(|record| record.offset > from).collect();
    for record in &stored.records {
        assert!(want.contains(&record), "{name}: {record:?} was never stored");
    }
    assert!(stored.records.is_sorted_by_key(|record| record.offset));
    let gone = want.iter().filter(|record| !stored.records.contains(record));
    let gone: Vec<u64> = gone.map(|record| record.offset).collect();
    let is_told = |offset: &u64| {
        let (after, through) = stored.lost.unwrap_or_default();
        *offset <= stored.floor && *offset > after && *offset <= through
    };
    assert!(gone.iter().all(is_told), "{name}: {gone:?} are gone, told is {:?}", stored.lost);
    gone.is_empty()
}

fn names_the_topic(name: &str, fault: &Fault) {
    let Fault::Damaged(damage) = fault else { panic!("{name}: {fault}") };
    assert!(damage.topic.as_deref() == Some(name) || damage.table == "facts", "{name}: {fault}");
}

/// Reads everything each way, and gives whether all is there.
fn check_all(
    reader: &Reader,
    want: &Contents,
    outcomes: &mut Outcomes,
) -> (bool, Vec<&'static str>) {
    let (mut is_whole, mut damaged) = (true, Vec::new());
    for (name, want) in &want.topics {
        let middle = want.get(want.len() / 2).map_or(0, |record| record.offset);
        let mut bad = None;
        for from in [0, middle] {
            let mut all = Vec::new();
            let mut at = from;
            let last = loop {
                let amount = Amount { messages_max: 7, bytes_max: 50_000 };
                match reader.after(name, at, amount, NOW_MS) {
                    Ok(page) => {
                        assert!(page.through > at || !page.more, "{name}: it goes nowhere");
                        all.extend(page.records.clone());
                        at = page.through;
                        if !page.more {
                            break Some(page);
                        }
                    }
                    Err(fault) => {
                        names_the_topic(name, &fault);
                        bad = Some(fault);
                        break None;
                    }
                }
            };
            if let Some(last) = last {
                is_whole &= check_read(name, Stored { records: all, ..last }, from, want);
            }
        }
        match reader.before(name, u64::MAX, ALL, NOW_MS) {
            // Up to the damage: the next page is refused.
            Ok(stored) if stored.more => {
                let next = reader.before(name, stored.through, ALL, NOW_MS);
                bad = Some(next.expect_err("there is no more"));
            }
            Ok(mut stored) => {
                stored.records.reverse();
                is_whole &= check_read(name, stored, 0, want);
            }
            Err(fault) => {
                names_the_topic(name, &fault);
                bad = Some(fault);
            }
        }
        if bad.is_some() {
            outcomes.topics_refused += 1;
            damaged.push(*name);
            is_whole = false;
        }
    }
    let is_lost = reader.after("a", 0, ALL, NOW_MS).is_ok_and(|stored| stored.lost.is_some());
    for (table, want) in &want.rows {
        let (rows, result) = rows(reader, table);
        match result {
            Ok(()) if rows == *want => {}
            Ok(()) if is_lost => is_whole = false,
            Ok(()) => panic!("{table}: {rows:?}"),
            Err(fault) => {
                assert!(matches!(fault, Fault::Damaged(_)), "{fault}");
                outcomes.rows_refused += 1;
                is_whole = false;
            }
        }
    }
    (is_whole, damaged)
}

/// Writes to each topic: it is there, or was refused.
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
        let draft = match *name {
            "compact" => keyed(name, "new", "1"),
            _ => draft(name, "new"),
        };
        let Ok(answer) = append(store, &draft, offset) else { continue };
        match answer.recv_timeout(WAIT).unwrap() {
            Ok(()) => {
                let Ok(stored) = store.reader().after(name, 0, ALL, NOW_MS) else { continue };
                assert_eq!(stored.records.last().unwrap().draft, draft, "{name}");
                if !is_bad && stored.lost.is_none() {
                    assert_eq!(stored.records.len(), before.len() + 1, "{name}");
                }
            }
            Err(fault) => assert!(matches!(fault, Fault::Damaged(_) | Fault::Disk(_)), "{fault}"),
        }
    }
}

/// A copy that stays where its test fails.
struct Was(std::path::PathBuf);

impl Drop for Was {
    fn drop(&mut self) {
        match std::thread::panicking() {
            true => eprintln!("the damaged file is {}", self.0.display()),
            false => drop(std::fs::remove_file(&self.0)),
        }
    }
}

fn one(seed: u64, outcomes: &mut Outcomes) -> String {
    let mut random = Random::new(seed);
    let which = random.below(3) as usize;
    let (mut bytes, how) = damage(&mut random, which);
    if let Ok(file) = std::env::var("STORE_DAMAGE_FILE") {
        bytes = std::fs::read(file).unwrap();
    }
    let how = format!("file {which}, {how}");
    let want = &whole().files[which].1;
    // As a file that is looked at whole, and as one that is too large for that.
    let verify_bytes_max = [u64::MAX, 0][random.below(2) as usize];
    let dir = dir();
    let file = dir.0.join(FILE);
    std::fs::write(&file, &bytes).unwrap();
    // As it was, to look at where this does not come to its end.
    let was = Was(dir.0.with_extension("was"));
    std::fs::write(&was.0, &bytes).unwrap();
    let report = (random.below(4) == 0).then(|| check(&dir.0));
    assert!(report.is_none() || std::fs::read(&file).unwrap() == bytes, "the look changed it");
    let options =
        Options { verify_bytes_max, idempotency_seconds_max: u64::MAX / 2_000, ..options(&dir.0) };
    match Store::open(options) {
        Ok((store, reader, _)) => {
            let (is_whole, damaged) = check_all(&reader, want, outcomes);
            if is_whole {
                outcomes.whole += 1
            } else {
                outcomes.gap_told += 1
            }
            if let Some(Ok(report)) = report {
                is_named(&report, &damaged);
            }
            if random.below(2) == 0 {
                write_all(&store, want, &damaged);
            }
            let _ = store.close();
        }
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("Nothing was changed"), "{text}");
            outcomes.refused += 1;
        }
    }
    how
}

/// What a read refuses the look names.
fn is_named(report: &Report, damaged: &[&str]) {
    let whole = |damage: &Damage| damage.topic.is_none();
    for name in damaged {
        let names = |damage: &Damage| damage.topic.as_deref() == Some(*name);
        assert!(report.damages.iter().any(|damage| names(damage) || whole(damage)), "{name}");
    }
}

#[test]
fn no_damage_takes_messages_away_in_silence() {
    let mut outcomes = Outcomes::default();
    if let Ok(seed) = std::env::var("STORE_DAMAGE_SEED") {
        let how = one(seed.parse().unwrap(), &mut outcomes);
        println!("{how}: {outcomes:?}");
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
            if catch_unwind(AssertUnwindSafe(|| one(seed, &mut outcomes))).is_err() {
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
    assert!(outcomes.refused > 0 && outcomes.whole > 0 && outcomes.topics_refused > 0);
}
