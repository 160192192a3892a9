//! `throng store backup` of a server under load, killed in the middle, onto a full disk, and of a damaged store;
//! `throng store compact` and `throng store restore`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::store::folder::{Caller, Folder, end};
use crate::store::full::Mount;
use crate::support::{Server, TIMEOUT, output_within, printed_within};

const TOPICS: &str = "[[topics]]\npattern = \"*\"\nhistory_messages_max = 1000000\n\
                      history_bytes_max = \"1GiB\"\ndurable = true\n";

/// The command `throng store …`.
fn throng_store(folder: &Folder, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.arg("store").args(args).current_dir(&folder.root).stdin(Stdio::null());
    command
}

/// Runs the command. Returns the exit status and the output.
fn run(folder: &Folder, args: &[&str]) -> (Option<i32>, String) {
    status_and_text(output_within(&mut throng_store(folder, args)))
}

fn status_and_text(output: Output) -> (Option<i32>, String) {
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// Starts the command that backs a server up.
fn begin(folder: &Folder, server: &Server, name: &str) -> Child {
    let mut command = throng_store(folder, &["backup", name, "--admin", &server.admin.to_string()]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn backup(folder: &Folder, server: &Server, name: &str) -> (Option<i32>, String) {
    status_and_text(printed_within(begin(folder, server, name)))
}

/// The default folder of this backup.
fn backup_dir(folder: &Folder, name: &str) -> PathBuf {
    folder.data().join("backups").join(name)
}

/// Publishes a message of 50 kB for each number. The data begin with the number.
fn fill(server: &Server, topic: &str, numbers: std::ops::Range<usize>) {
    let mut caller = Caller::new(server.admin).unwrap();
    for number in numbers {
        let data = format!("{number} {}", "x".repeat(50_000));
        let reply = caller.post("/api/publish", &json!({"topic": topic, "data": data})).unwrap();
        assert_eq!(reply.status, 200, "{}", reply.body);
    }
}

/// Returns the number at the beginning of each message of a topic, and whether each page of its history is complete.
fn history(server: &Server, topic: &str) -> (Vec<usize>, bool) {
    let mut caller = Caller::new(server.admin).unwrap();
    let (mut numbers, mut since, mut is_complete) = (Vec::new(), String::new(), true);
    loop {
        let target = format!("/api/history/{topic}?limit=100{since}");
        let reply = caller.call("GET", &target, "application/json", "").unwrap();
        assert_eq!(reply.status, 200, "{}", reply.body);
        is_complete &= reply.body["complete"] == true;
        let number = |data: &str| data.split(' ').next().unwrap().parse::<usize>().unwrap();
        let messages = reply.body["messages"].as_array().unwrap();
        numbers.extend(messages.iter().map(|it| number(it["data"].as_str().unwrap())));
        match reply.body["next"].as_str() {
            Some(next) if reply.body["more"] == true => since = format!("&since={next}"),
            _ => return (numbers, is_complete),
        }
    }
}

fn numbers(server: &Server, topic: &str) -> Vec<usize> {
    let (numbers, is_complete) = history(server, topic);
    assert!(is_complete, "{topic} lacks something");
    numbers
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn has_file(dir: &Path) -> bool {
    dir.join("throng.redb").exists()
}

/// Returns the response to a client that resumes a topic from this id.
fn poll(server: &Server, topic: &str, id: &str) -> Value {
    server.get(&format!("/poll?topic={topic}&since={id}&timeout=0")).1
}

#[test]
fn a_backup_of_a_busy_server_has_what_was_acknowledged_before() {
    let folder = Folder::new("backup", TOPICS);
    let server = folder.serve();
    fill(&server, "old", 0..200);
    let stops = AtomicBool::new(false);
    let (before, published) = std::thread::scope(|scope| {
        let publisher = scope.spawn(|| {
            let (mut caller, mut number) = (Caller::new(server.admin).unwrap(), 0);
            let started = Instant::now();
            while !stops.load(Ordering::Relaxed) && started.elapsed() < TIMEOUT {
                let message = json!({"topic": "new", "data": format!("{number} ")});
                assert_eq!(caller.post("/api/publish", &message).unwrap().status, 200);
                number += 1;
            }
            number
        });
        until("something is published", || numbers(&server, "new").len() > 10);
        let before = numbers(&server, "new").len();
        let (code, text) = backup(&folder, &server, "today");
        stops.store(true, Ordering::Relaxed);
        assert!(code == Some(0) && text.contains("/data/backups/today"), "{text}");
        (before, publisher.join().unwrap())
    });
    let copy = backup_dir(&folder, "today");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&copy), mode(&copy.join("throng.redb"))), (0o700, 0o600));
    // A backup does not overwrite another one.
    let (code, text) = backup(&folder, &server, "today");
    assert!(code == Some(1) && text.contains("already has a store"), "{text}");
    let (code, text) = run(&folder, &["check", "data/backups/today"]);
    assert!(code == Some(0) && text.contains("nothing is damaged"), "{text}");
    let last = numbers(&server, "new").len();
    let publish = |server: &Server| server.publish("new", "9 ".into())["id"].clone();
    let seen = publish(&server);
    assert_eq!(end(server), Some(0));

    let server = folder.serve_in(&copy);
    let (old, is_complete) = history(&server, "old");
    assert!(old == (0..200).collect::<Vec<_>>() && !is_complete, "{old:?}");
    let (new, is_complete) = history(&server, "new");
    assert!(!is_complete, "what came after the backup may be missing");
    assert!(new == (0..new.len()).collect::<Vec<_>>(), "{new:?}");
    assert!(new.len() >= before && new.len() <= published && published == last, "{}", new.len());
    // A client that has seen later messages learns that the log is another one, even when the offsets have reached
    // those that it has seen.
    let next = publish(&server);
    let (seen, next) = (seen.as_str().unwrap(), next.as_str().unwrap());
    assert_ne!(seen.split(':').next(), next.split(':').next());
    let reply = poll(&server, "new", seen);
    assert_eq!((&reply["recovered"], &reply["reason"]), (&json!(false), &json!("epoch_changed")));
    assert_eq!(poll(&server, "new", next)["recovered"], true);
}

#[test]
fn a_kill_during_a_backup_leaves_the_store_intact_and_no_half_copy_under_its_name() {
    let folder = Folder::new("backup-kill", TOPICS);
    let mut server = folder.serve();
    fill(&server, "a", 0..300);
    let copy = backup_dir(&folder, "copy");
    let half = copy.join("throng.redb.new");
    for round in 0..4 {
        let client = begin(&folder, &server, "copy");
        // The kill comes later in each round.
        until("a backup begins", || {
            std::fs::metadata(&half).is_ok_and(|file| file.len() > round * 2_000_000)
                || has_file(&copy)
        });
        drop(server);
        let (code, text) = status_and_text(printed_within(client));
        if has_file(&copy) {
            // The backup was complete before the kill.
            assert_eq!(run(&folder, &["check", "data/backups/copy"]).0, Some(0));
            std::fs::remove_file(copy.join("throng.redb")).unwrap();
        } else {
            assert_eq!(code, Some(1), "{text}");
        }
        server = folder.serve();
        assert_eq!(numbers(&server, "a"), (0..300).collect::<Vec<_>>());
    }
    let (code, text) = backup(&folder, &server, "copy");
    assert_eq!(code, Some(0), "{text}");
    assert!(!half.exists());
    let (code, text) = run(&folder, &["check", "data/backups/copy"]);
    assert!(code == Some(0) && text.contains("300 messages"), "{text}");
}

#[test]
fn a_backup_is_complete_or_gone_when_its_server_ends() {
    let folder = Folder::new("backup-end", TOPICS);
    let server = folder.serve();
    fill(&server, "a", 0..200);
    let client = begin(&folder, &server, "copy");
    let copy = backup_dir(&folder, "copy");
    until("a backup begins", || copy.exists());
    assert_eq!(end(server), Some(0));
    printed_within(client);
    match has_file(&copy) {
        true => assert_eq!(run(&folder, &["check", "data/backups/copy"]).0, Some(0)),
        false => assert!(!copy.exists()),
    }
    assert!(!copy.join("throng.redb.new").exists());
}

#[test]
fn a_backup_whose_client_is_gone_is_completed() {
    let folder = Folder::new("backup-client", TOPICS);
    let server = folder.serve();
    fill(&server, "a", 0..100);
    let mut client = begin(&folder, &server, "copy");
    server.until("the backup begins", |server| {
        server.api("GET", "/api/backup", None).1["state"] != "none"
    });
    client.kill().unwrap();
    client.wait().unwrap();
    server.until("the copy is complete", |server| {
        server.api("GET", "/api/backup", None).1["state"] == "done"
    });
    let (code, text) = run(&folder, &["check", "data/backups/copy"]);
    assert!(code == Some(0) && text.contains("100 messages"), "{text}");
}

#[test]
fn a_backup_onto_a_full_disk_fails_and_publishing_goes_on() {
    let folder = Folder::new("backup-full", TOPICS);
    let Some(mount) = Mount::new(&folder.root.join("disk"), "size=4m") else { return };
    let configure = |backups: &str| {
        let backups = folder.root.join(backups);
        folder.configure(&format!("{TOPICS}[store]\nbackups = {backups:?}\n"));
    };
    configure("disk");
    let server = folder.serve();
    fill(&server, "a", 0..200);
    for _ in 0..2 {
        let (code, text) = backup(&folder, &server, "copy");
        assert_eq!(code, Some(1), "{text}");
        for want in ["the disk is full", "/disk/copy", "another disk"] {
            assert!(text.contains(want), "{want:?} in {text}");
        }
        assert!(!mount.path.join("copy").exists());
        fill(&server, "b", 0..2);
    }
    let state = server.api("GET", "/api/backup", None).1;
    assert!(state["state"] == "failed" && state["error"].to_string().contains("full"), "{state}");
    // A reload changes the directory for backups.
    configure("elsewhere");
    server.signal("-HUP");
    until("a backup is made elsewhere", || {
        let (code, _) = backup(&folder, &server, "copy");
        code == Some(0) && has_file(&folder.root.join("elsewhere/copy"))
    });
    assert_eq!(end(server), Some(0));
    let (code, text) = run(&folder, &["backup", "disk/copy", "--from", "data"]);
    assert!(code == Some(1) && text.contains("the disk is full"), "{text}");
    assert!(!mount.path.join("copy").exists());
}

#[test]
fn a_damaged_store_is_not_copied_and_the_damage_is_named() {
    let folder = Folder::new("backup-damage", TOPICS);
    let server = folder.serve();
    fill(&server, "a", 0..20);
    server.publish("b", "find me".into());
    assert_eq!(end(server), Some(0));
    let mut bytes = std::fs::read(folder.file()).unwrap();
    let occurrences: Vec<usize> =
        (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"find me")).collect();
    assert!(!occurrences.is_empty());
    occurrences.iter().for_each(|at| bytes[*at] ^= 1);
    std::fs::write(folder.file(), &bytes).unwrap();
    for args in [&["backup", "copy", "--from", "data"][..], &["compact", "data"]] {
        let (code, text) = run(&folder, args);
        assert!(code == Some(3) && text.contains("damaged: messages of b"), "{text}");
        assert!(text.contains("throng store salvage"), "{text}");
    }
    assert!(std::fs::read(folder.file()).unwrap() == bytes, "the file was changed");
    folder.configure(&format!("{TOPICS}[store]\nverify_bytes_max = 0\n"));
    let server = folder.serve();
    let (code, text) = backup(&folder, &server, "copy");
    assert!(code == Some(1) && text.contains("messages of b"), "{text}");
    assert!(!backup_dir(&folder, "copy").exists() && !folder.root.join("copy").exists());
}

#[test]
fn a_store_is_compacted_only_while_no_server_has_it_open() {
    let folder = Folder::new("compact", TOPICS);
    let server = folder.serve();
    fill(&server, "gone", 0..200);
    fill(&server, "a", 0..3);
    let seen = server.publish("a", "3 ".into())["id"].clone();
    assert_eq!(server.api("DELETE", "/api/history/gone", None).0, 200);
    for args in [&["compact", "data"][..], &["backup", "copy", "--from", "data"]] {
        let (code, text) = run(&folder, args);
        assert!(code == Some(1) && text.contains("in use by another process"), "{text}");
    }
    // The file of a killed server works as well.
    drop(server);
    let before = std::fs::metadata(folder.file()).unwrap().len();
    let (code, text) = run(&folder, &["compact", "data"]);
    assert!(code == Some(0) && text.contains("4 messages"), "{text}");
    let after = std::fs::metadata(folder.file()).unwrap().len();
    assert!(after * 4 < before, "{before} {after}");
    let server = folder.serve();
    assert_eq!((numbers(&server, "a"), numbers(&server, "gone").len()), (vec![0, 1, 2, 3], 0));
    // Unlike a backup it is the same log, so a client that returns has missed nothing.
    assert_eq!(poll(&server, "a", seen.as_str().unwrap())["recovered"], true);
    fill(&server, "a", 4..6);
    assert_eq!(numbers(&server, "a"), [0, 1, 2, 3, 4, 5]);
    assert_eq!(end(server), Some(0));
    for args in [&["compact", "nothing"][..], &["backup", "copy", "--from", "nothing"]] {
        let (code, text) = run(&folder, args);
        assert!(code == Some(1) && text.contains("nothing has no store"), "{text}");
    }
    assert!(!folder.root.join("nothing").exists() && !folder.root.join("copy").exists());
}

#[test]
fn a_kill_during_a_compaction_leaves_the_store_intact() {
    let folder = Folder::new("compact-kill", TOPICS);
    let server = folder.serve();
    fill(&server, "a", 0..150);
    assert_eq!(end(server), Some(0));
    let new = folder.data().join("throng.redb.new");
    for round in 0..4 {
        let mut child = throng_store(&folder, &["compact", "data"]).spawn().unwrap();
        until("the new file grows", || {
            std::fs::metadata(&new).is_ok_and(|file| file.len() > round * 1_000_000)
                || child.try_wait().unwrap().is_some()
        });
        let _ = child.kill();
        child.wait().unwrap();
        let (code, text) = run(&folder, &["check", "data"]);
        assert!(code == Some(0) && text.contains("150 messages"), "{text}");
    }
    let server = folder.serve();
    assert_eq!(numbers(&server, "a"), (0..150).collect::<Vec<_>>());
    assert!(!new.exists(), "the server keeps a half file");
}

#[test]
fn the_api_writes_only_new_directories_in_that_of_backups() {
    let folder = Folder::new("backup-api", TOPICS);
    let server = folder.serve();
    let begin = |server: &Server, name: &str| {
        let (status, body) = server.api("POST", "/api/backup", Some(json!({ "name": name })));
        (status, body["error"]["code"].clone())
    };
    assert_eq!(server.api("GET", "/api/backup", None).1["state"], "none");
    let outside = folder.root.join("outside");
    for name in
        ["", ".", "..", "../outside", outside.to_str().unwrap(), "a/b", ".a", &"x".repeat(129)]
    {
        assert_eq!(begin(&server, name), (400, json!("bad_backup")), "{name}");
    }
    let (status, _) = server.api("POST", "/api/backup", Some(json!({"name": "a", "dir": "/tmp"})));
    assert_eq!(status, 400);
    let (code, text) = backup(&folder, &server, "./here");
    assert!(code == Some(1) && text.contains("store.backups"), "{text}");
    assert_eq!(server.api("GET", "/api/backup", None).1["state"], "none");
    assert!(!outside.exists() && !folder.data().join("backups").exists());
    assert_eq!(begin(&server, "copy"), (200, Value::Null));
    server.until("the copy is complete", |server| {
        server.api("GET", "/api/backup", None).1["state"] == "done"
    });
    assert_eq!(begin(&server, "copy"), (409, json!("backup_exists")));
    let state = server.api("GET", "/api/backup", None).1;
    assert_eq!(state["dir"], backup_dir(&folder, "copy").to_str().unwrap());
    let without = Server::start();
    assert_eq!(begin(&without, "copy"), (409, json!("no_store")));
    assert_eq!(without.api("GET", "/api/backup", None).1["error"]["code"], "no_store");
}

#[test]
fn a_backup_is_restored_over_a_store_only_with_a_flag() {
    let folder = Folder::new("restore", TOPICS);
    let server = folder.serve();
    fill(&server, "a", 0..20);
    let seen = server.publish("a", "20 ".into())["id"].clone();
    assert_eq!(backup(&folder, &server, "copy").0, Some(0));
    fill(&server, "a", 21..30);
    let copy = backup_dir(&folder, "copy").to_str().unwrap().to_owned();
    let (code, text) = run(&folder, &["restore", &copy, "data", "--replace"]);
    assert!(code == Some(1) && text.contains("in use by another process"), "{text}");
    assert_eq!(end(server), Some(0));
    let (code, text) = run(&folder, &["restore", &copy, "data"]);
    assert!(code == Some(1) && text.contains("--replace"), "{text}");
    let (code, text) = run(&folder, &["restore", "data", "data/.", "--replace"]);
    assert!(code == Some(2) && text.contains("is the store itself"), "{text}");
    let (code, text) = run(&folder, &["restore", "nothing", "data", "--replace"]);
    assert!(code == Some(1) && text.contains("nothing has no store"), "{text}");
    let server = folder.serve();
    assert_eq!(numbers(&server, "a").len(), 30, "a restore that was refused changed something");
    let seen_later = server.publish("a", "30 ".into())["id"].clone();
    assert_eq!(end(server), Some(0));
    // The command takes the directory from the configuration.
    folder.configure(&format!("{TOPICS}[store]\ndata = \"data\"\n"));
    for _ in 0..2 {
        let args = ["restore", &copy, "--replace", "--config", "throng.toml"];
        let (code, text) = run(&folder, &args);
        assert!(code == Some(0) && text.contains("the backup is restored into data"), "{text}");
    }
    let server = folder.serve();
    // The history reports that messages may have come after the backup.
    assert_eq!(history(&server, "a"), ((0..=20).collect(), false));
    for seen in [&seen, &seen_later] {
        let polled = poll(&server, "a", seen.as_str().unwrap());
        assert_eq!(polled["recovered"], false, "{polled}");
    }
    fill(&server, "a", 21..23);
    assert_eq!(end(server), Some(0));
    // A directory without a store needs no flag.
    let (code, text) = run(&folder, &["restore", &copy, "new/data"]);
    assert_eq!(code, Some(0), "{text}");
    let server = folder.serve_in(&folder.root.join("new/data"));
    assert_eq!(history(&server, "a").0, (0..=20).collect::<Vec<_>>());
}

#[test]
fn a_damaged_backup_is_not_restored() {
    let folder = Folder::new("restore-damage", TOPICS);
    let server = folder.serve();
    server.publish("b", "find me".into());
    assert_eq!(backup(&folder, &server, "copy").0, Some(0));
    server.publish("b", "more".into());
    assert_eq!(end(server), Some(0));
    let copy = backup_dir(&folder, "copy");
    let file = copy.join("throng.redb");
    let mut bytes = std::fs::read(&file).unwrap();
    let occurrences: Vec<usize> =
        (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"find me")).collect();
    assert!(!occurrences.is_empty());
    occurrences.iter().for_each(|at| bytes[*at] ^= 1);
    std::fs::write(&file, &bytes).unwrap();
    let before = std::fs::read(folder.file()).unwrap();
    let (code, text) = run(&folder, &["restore", copy.to_str().unwrap(), "data", "--replace"]);
    assert!(code == Some(3) && text.contains("damaged: messages of b"), "{text}");
    assert!(std::fs::read(folder.file()).unwrap() == before, "the store was changed");
}
