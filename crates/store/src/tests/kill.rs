//! `kill -9` at any moment loses no acknowledged message.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use random::Random;

use super::*;

const ROUNDS: u64 = 20;
const DIR: &str = "THRONG_STORE_KILL";

/// Appends until the process is killed, and prints each append that is on disk.
fn append_for_ever(dir: &Path) {
    let (store, _, found) = Store::open(options(dir)).unwrap();
    let rule = HistoryRule { messages_max: 1_000_000, ..history() };
    let started = Instant::now();
    let mut offset = found.last_offset;
    println!("from {offset}");
    while started.elapsed() < WAIT {
        offset += 1;
        let topic = format!("t{}", offset % 5);
        let publication = publication(&topic, &"x".repeat((offset * 37 % 2_000) as usize));
        let message = Append {
            publication: &publication,
            offset,
            at_ms: offset,
            rule: &rule,
            idempotency_key: None,
            with: None,
        };
        let done = move |result: Result<(), StoreError>| {
            result.unwrap();
            let mut out = std::io::stdout().lock();
            let _ = writeln!(out, "stored {offset}").and_then(|()| out.flush());
        };
        if store.append(message, Box::new(done)).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        if offset % 50 == 0 {
            std::thread::sleep(Duration::from_millis(offset % 7));
        }
    }
}

#[test]
fn a_kill_loses_no_acknowledged_message() {
    if let Some(dir) = std::env::var_os(DIR) {
        return append_for_ever(Path::new(&dir));
    }
    let dir = Dir::new();
    let mut acknowledged = BTreeSet::new();
    let mut random = Random::new(77);
    let mut last = 0;
    for round in 0..ROUNDS {
        let mut child = child("tests::kill::a_kill_loses_no_acknowledged_message", DIR, &dir.0)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (send, opened) = mpsc::channel();
        let (send_first, first_stored) = mpsc::channel();
        let reading = std::thread::spawn(move || {
            let mut stored: Vec<u64> = Vec::new();
            for line in output.lines().map_while(Result::ok) {
                match line.split_once(' ') {
                    // The test harness prints on the same line before it.
                    _ if line.contains("from ") => {
                        let from =
                            line.rsplit(' ').next().and_then(|from| from.parse::<u64>().ok());
                        send.send(from.unwrap()).unwrap();
                    }
                    Some(("stored", offset)) => {
                        stored.extend(offset.parse::<u64>());
                        let _ = send_first.send(());
                    }
                    _ => {}
                }
            }
            stored
        });
        let from = opened.recv_timeout(WAIT).unwrap();
        // In every other round the kill waits for an acknowledgement, even on a slow disk.
        if round % 2 == 0 {
            first_stored.recv_timeout(WAIT).unwrap();
        }
        std::thread::sleep(Duration::from_micros(random.below(150_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        let stored = reading.join().unwrap();
        assert!(from >= last, "round {round}: an offset is assigned again");
        last = stored.last().copied().unwrap_or(from).max(from);
        acknowledged.extend(stored);
    }
    let (store, _, found) = Store::open(options(&dir.0)).unwrap();
    assert!(!found.clean && found.last_offset > last);
    let stored: BTreeSet<u64> =
        (0..5).flat_map(|topic| offsets(&store, &format!("t{topic}"), 0)).collect();
    let lost: Vec<_> = acknowledged.difference(&stored).collect();
    assert!(lost.is_empty(), "{} of {} are lost: {lost:?}", lost.len(), acknowledged.len());
    assert!(acknowledged.len() as u64 >= ROUNDS / 2, "{} were acknowledged", acknowledged.len());
    store.close().unwrap();
}
