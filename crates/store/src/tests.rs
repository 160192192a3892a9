//! Tests of the whole store. Tests that need their own clock run on the tables (`retention`, `reference`).

mod clock_jump;
mod copies;
mod earlier_formats;
mod end_to_end;
mod events;
mod full_disk;
mod handover;
mod kill;
mod known_damage;
mod open;
mod permissions;
mod power;
mod random_damage;
mod reference;
mod retention;
mod transfer;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use model::{Attributes, Data, HistoryRule, Publication};

use crate::{Append, Options, QueueError, ReadLimits, Reader, Store, StoreError};

/// The longest wait in these tests.
const WAIT: Duration = Duration::from_secs(60);

const ALL: ReadLimits = ReadLimits { messages_max: usize::MAX, bytes_max: usize::MAX };

/// A directory that the test removes at its end.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("throng-store-test-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        // A process with the same id may have left one.
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn options(dir: &Path) -> Options {
    Options {
        dir: dir.into(),
        new_epoch: 0x5f3a_91c2,
        queue_messages_max: 10_000,
        queue_bytes_max: 64 << 20,
        cache_bytes_max: 8 << 20,
        verify_bytes_max: 256 << 20,
        idempotency_seconds_max: 300,
    }
}

fn history() -> HistoryRule {
    HistoryRule {
        messages_max: 1_000_000,
        bytes_max: u64::MAX,
        seconds_max: 1_000_000_000_000,
        durable: true,
        compact: false,
        acknowledge: None,
    }
}

fn publication(topic: &str, text: &str) -> Publication {
    Publication::new(topic, Data::Text(text.into()))
}

fn keyed(topic: &str, key: &str, json: &str) -> Publication {
    let attributes = Attributes { key: Some(key.into()), ..Attributes::default() };
    Publication {
        attributes: Some(Box::new(attributes)),
        ..Publication::new(topic, Data::Json(json.into()))
    }
}

/// Appends a message and returns the channel on which its result arrives.
fn append(
    store: &Store,
    publication: &Publication,
    offset: u64,
) -> Result<mpsc::Receiver<Result<(), StoreError>>, QueueError> {
    let (send, receive) = mpsc::channel();
    let rule = history();
    let append = Append {
        publication,
        offset,
        at_ms: offset,
        rule: &rule,
        idempotency_key: None,
        with: None,
    };
    store.append(append, Box::new(move |result| drop(send.send(result))))?;
    Ok(receive)
}

fn appended(store: &Store, publication: &Publication, offset: u64) {
    let result = append(store, publication, offset).unwrap();
    assert_eq!(result.recv_timeout(WAIT).unwrap(), Ok(()));
}

fn offsets(store: &Store, topic: &str, after: u64) -> Vec<u64> {
    read(&store.reader(), topic, after)
}

fn read(reader: &Reader, topic: &str, after: u64) -> Vec<u64> {
    let stored = reader.after(topic, after, ALL, 0).unwrap();
    stored.records.iter().map(|record| record.offset).collect()
}

/// Runs one test of this binary in a process of its own, with this variable in its environment.
fn child(test: &str, variable: &str, value: &Path) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(variable, value);
    command
}
