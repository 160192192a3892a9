//! The cost of a durable append: `cargo bench -p store -- [--seconds N] [--bytes N] [--stored N]
//! [--dir DIR]`.
//!
//! For 1, 64 and 1,024 appends in flight, the benchmark prints appends a second and the duration of
//! a commit, for the store and for a bare file with `fdatasync` and the same batches. Then it
//! prints how long it takes to open a store of many messages, closed and not closed.

use std::fs::File;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use model::{Data, HistoryRule, Publication};
use store::{Append, FILE, Options, ReadLimits, Store};

struct Args {
    seconds: u64,
    bytes: usize,
    stored: u64,
    dir: PathBuf,
}

fn args() -> Result<Args, String> {
    let mut args = Args { seconds: 3, bytes: 128, stored: 1_000_000, dir: std::env::temp_dir() };
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        let value = words.next().ok_or(format!("{word} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{value} is no number"));
        match &*word {
            "--seconds" => args.seconds = number()?,
            "--bytes" => args.bytes = number()? as usize,
            "--stored" => args.stored = number()?,
            "--dir" => args.dir = value.into(),
            _ => return Err(format!("there is no option {word}")),
        }
    }
    // The benchmark removes its directory at the end, so it needs one of its own.
    args.dir.push(format!("throng-store-bench-{}", std::process::id()));
    Ok(args)
}

fn options(dir: &Path) -> Options {
    Options {
        dir: dir.into(),
        new_epoch: 1,
        queue_messages_max: 100_000,
        queue_bytes_max: 64 << 20,
        cache_bytes_max: 64 << 20,
        verify_bytes_max: 256 << 20,
        idempotency_seconds_max: 300,
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Performs appends for this many seconds, over 64 topics, with this many in flight.
fn appends(store: &Store, in_flight: usize, args: &Args, offset: &mut u64) {
    let rule = HistoryRule {
        messages_max: 1_000_000,
        bytes_max: u64::MAX,
        seconds_max: 86_400,
        durable: true,
        compact: false,
        acknowledge: None,
    };
    let (before, started) = (store.stats(), Instant::now());
    let (send, receive) = mpsc::channel();
    (0..in_flight).for_each(|_| send.send(()).expect("the channel is open"));
    let (mut waits, mut appended) = (in_flight, 0u64);
    let publications: Vec<Publication> = (0..64)
        .map(|topic| {
            Publication::new(format!("room:{topic}"), Data::Text("x".repeat(args.bytes).into()))
        })
        .collect();
    while waits > 0 {
        receive.recv().expect("the channel is open");
        waits -= 1;
        if started.elapsed() > Duration::from_secs(args.seconds) {
            continue;
        }
        *offset += 1;
        let append = Append {
            publication: &publications[(*offset % 64) as usize],
            offset: *offset,
            at_ms: now_ms(),
            rule: &rule,
            idempotency_key: None,
            with: None,
        };
        let send = send.clone();
        let done = move |result: Result<(), _>| {
            result.expect("the disk takes it");
            let _ = send.send(());
        };
        store.append(append, Box::new(done)).expect("there is room");
        waits += 1;
        appended += 1;
    }
    let (after, took) = (store.stats(), started.elapsed());
    let commits = after.commits - before.commits;
    println!(
        "store   , {in_flight:>5} in flight: {:>8.0} appends/s, {:>6.0} commits/s, {:>6.2} ms a commit",
        appended as f64 / took.as_secs_f64(),
        commits as f64 / took.as_secs_f64(),
        (after.commit_us_sum - before.commit_us_sum) as f64 / commits as f64 / 1000.0,
    );
}

/// The least that a disk can do: writes the same bytes into a file and calls `fdatasync`. It appends to the file, so
/// that the file system records the new length each time, or it overwrites existing bytes.
fn bare(batch: usize, in_place: bool, args: &Args) -> std::io::Result<()> {
    let path = args.dir.join("bare");
    let mut file = File::create(&path)?;
    let bytes = vec![b'x'; (args.bytes + 32) * batch];
    const THERE: usize = 64 << 20;
    if in_place {
        file.write_all(&vec![0; THERE])?;
        file.sync_all()?;
        file.rewind()?;
    }
    let (started, mut commits, mut at) = (Instant::now(), 0u64, 0);
    while started.elapsed() < Duration::from_secs(args.seconds) {
        at += bytes.len();
        if in_place && at > THERE {
            file.rewind()?;
            at = bytes.len();
        }
        file.write_all(&bytes)?;
        file.sync_data()?;
        commits += 1;
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{}, {batch:>5} in flight: {:>8.0} appends/s, {:>6.0} commits/s, {:>6.2} ms a commit",
        if in_place { "in place" } else { "file    " },
        commits as f64 * batch as f64 / seconds,
        commits as f64 / seconds,
        seconds * 1000.0 / commits as f64,
    );
    std::fs::remove_file(path)
}

/// Opens an existing store and reads from it.
fn opens(what: &str, dir: &Path) -> Store {
    let started = Instant::now();
    let (store, reader, found) = Store::open(options(dir)).expect("it opens");
    let opened = started.elapsed();
    let started = Instant::now();
    let limits = ReadLimits { messages_max: 100, bytes_max: 1 << 20 };
    let stored = reader.before("room:7", u64::MAX, limits, now_ms()).expect("it reads");
    println!(
        "open, {what}: {:.1} ms (closed before: {}); the last {} of a topic: {:.2} ms",
        opened.as_secs_f64() * 1000.0,
        found.clean,
        stored.records.len(),
        started.elapsed().as_secs_f64() * 1000.0,
    );
    store
}

fn run(args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    std::fs::create_dir_all(&args.dir)?;
    for in_flight in [1, 64, 1024] {
        bare(in_flight, false, args)?;
        bare(in_flight, true, args)?;
    }
    let dir = args.dir.join("store");
    let (store, _, found) = Store::open(options(&dir))?;
    let mut offset = found.last_offset;
    for in_flight in [1, 64, 1024] {
        appends(&store, in_flight, args, &mut offset);
    }
    let started = Instant::now();
    while store.stats().messages < args.stored {
        appends(&store, 16_384, &Args { seconds: 2, dir: dir.clone(), ..*args }, &mut offset);
    }
    let stats = store.stats();
    println!(
        "{} messages in {} MiB after {:.0} s",
        stats.messages,
        stats.file_bytes >> 20,
        started.elapsed().as_secs_f64()
    );
    // The copy is the file that a killed process leaves behind: it was not closed.
    let killed = args.dir.join("killed");
    std::fs::create_dir_all(&killed)?;
    std::fs::copy(dir.join(FILE), killed.join(FILE))?;
    store.close()?;
    opens("after a close", &dir).close()?;
    opens("after a kill", &killed).close()?;
    Ok(())
}

fn main() -> ExitCode {
    let result = args().map_err(Into::into).and_then(|args| {
        let result = run(&args);
        let _ = std::fs::remove_dir_all(&args.dir);
        result
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("store bench: {error}");
            ExitCode::FAILURE
        }
    }
}
