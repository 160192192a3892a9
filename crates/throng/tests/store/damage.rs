//! Damaged copies of a store: responses of a real server, and `throng store`.

use std::collections::HashMap;
use std::process::Command;

use random::Random;
use serde_json::{Value, json};

use crate::store::folder::{Caller, Folder, HistoryMessage, end, flip_bits};
use crate::support::output_within;

const DURABLE: &str = "[[topics]]\npattern = \"*\"\nhistory_messages_max = 1000\ndurable = true\n";
const TOPICS: [&str; 4] = ["a", "b", "c", "d"];
const COPIES: u64 = 24;

/// Returns a folder with a store that was closed properly, and its messages.
fn stored(name: &str, more: &str) -> (Folder, HashMap<&'static str, Vec<HistoryMessage>>) {
    let folder = Folder::new(name, &format!("{DURABLE}{more}"));
    let server = folder.serve();
    for number in 0..200 {
        let text = format!("message {number} {}", "x".repeat(number * 7 % 300));
        server.publish(TOPICS[number % 4], text.into());
    }
    let mut caller = Caller::new(server.admin).unwrap();
    let all = TOPICS.map(|topic| (topic, caller.history(topic, None, 1_000)));
    assert_eq!(end(server), Some(0));
    (folder, all.into())
}

/// Runs `throng store …`. Returns the exit status and the output.
fn throng_store(folder: &Folder, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    let output = output_within(command.arg("store").args(args).current_dir(&folder.root));
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

fn flip(bytes: &mut [u8], text: &[u8]) {
    let occurrences: Vec<usize> =
        (0..bytes.len()).filter(|at| bytes[*at..].starts_with(text)).collect();
    assert!(!occurrences.is_empty());
    occurrences.iter().for_each(|at| bytes[*at] ^= 1);
}

/// Reads all pages of a topic. Returns its messages, and whether a page reported a gap. Returns `None`
/// if a request was rejected.
fn pages(caller: &mut Caller, topic: &str) -> Option<(Vec<String>, bool)> {
    let (mut all, mut since, mut lost) = (Vec::new(), String::new(), false);
    loop {
        let target = format!("/api/history/{topic}?limit=20{since}");
        let reply = caller.call("GET", &target, "", "").unwrap();
        if reply.status != 200 {
            let error = &reply.body["error"];
            assert_eq!((reply.status, &error["code"]), (503, &json!("store_damaged")), "{error}");
            let message = error["message"].as_str().unwrap();
            assert!(
                message.contains(&format!("of {topic}")) || message.contains("facts"),
                "{message}"
            );
            return None;
        }
        let page = reply.body;
        lost |= page["lost"] != Value::Null;
        assert!(page["lost"].is_null() || page["complete"] == false, "{page}");
        all.extend(
            page["messages"]
                .as_array()
                .unwrap()
                .iter()
                .map(|message| format!("{} {}", message["id"], message["data"])),
        );
        match (page["more"] == true, page["next"].as_str()) {
            (true, Some(next)) => since = format!("&since={next}"),
            _ => return Some((all, lost)),
        }
    }
}

#[test]
fn a_damaged_store_never_silently_omits_messages() {
    // In half of the cases the store counts as too large for a complete check.
    let (folder, all) = stored("damage", "");
    let whole = std::fs::read(folder.file()).unwrap();
    let mut random = Random::new(5);
    let (mut refused, mut errors) = (0, 0);
    for copy in 0..COPIES {
        let limit = if copy % 2 == 0 { "256MiB" } else { "0" };
        folder.configure(&format!("{DURABLE}[store]\nverify_bytes_max = \"{limit}\"\n"));
        let mut bytes = whole.clone();
        flip_bits(&mut random, &mut bytes, 10);
        std::fs::write(folder.file(), &bytes).unwrap();
        let Some(server) = folder.try_serve() else {
            refused += 1;
            assert!(std::fs::read(folder.file()).unwrap() == bytes, "the file was changed");
            continue;
        };
        let mut caller = Caller::new(server.admin).unwrap();
        for (topic, want) in &all {
            let Some((given, lost)) = pages(&mut caller, topic) else {
                errors += 1;
                continue;
            };
            let want: Vec<String> = want
                .iter()
                .map(|message| format!("\"{}\" \"{}\"", message.id, message.data))
                .collect();
            assert!(given == want || lost, "copy {copy}: {topic} has {} messages", given.len());
        }
        assert_eq!(caller.call("GET", "/healthz", "", "").unwrap().status, 200);
    }
    println!("{refused} of {COPIES} were refused, and {errors} topics");
}

#[test]
fn damage_is_reported_by_topic_and_offsets_with_a_remedy() {
    let unverified = "[store]\nverify_bytes_max = 0\n";
    let (folder, all) = stored("named", unverified);
    let mut bytes = std::fs::read(folder.file()).unwrap();
    let bad = &all["b"][10];
    flip(&mut bytes, bad.data.as_bytes());
    std::fs::write(folder.file(), &bytes).unwrap();
    let data = folder.data();
    let location = format!("messages of b after offset {} up to {}", bad.offset - 4, bad.offset);
    // The command works on a copy and changes nothing.
    let (code, text) = throng_store(&folder, &["check", data.to_str().unwrap()]);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains(&location) && text.contains("throng store salvage"), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    assert!(std::fs::read(folder.file()).unwrap() == bytes, "the file was changed");
    // This start checks the whole file.
    folder.configure(DURABLE);
    let (code, text) = folder.serve_rejected(&data);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(&location) && text.contains("throng store check"), "{text}");
    // This start does not. The server rejects reads of damaged messages, and everything else works.
    folder.configure(&format!("{DURABLE}{unverified}"));
    let server = folder.serve();
    let mut caller = Caller::new(server.admin).unwrap();
    assert_eq!(pages(&mut caller, "b"), None);
    assert_eq!(pages(&mut caller, "a").unwrap().0.len(), 50);
    let target = format!("/poll?topic=b&since={}&timeout=0", all["b"][5].id);
    let reply = server.exchange(format!("GET {target} HTTP/1.0\r\nHost: t\r\n\r\n").as_bytes());
    assert!(reply.contains("\"recovered\":false"), "{reply}");
    // The command does not check a store in use.
    let (code, text) = throng_store(&folder, &["check", data.to_str().unwrap()]);
    assert!(code == Some(1) && text.contains("in use by another process"), "{text}");
    // Deleting the topic's history works.
    assert_eq!(caller.call("DELETE", "/api/history/b", "", "").unwrap().status, 200);
    server.publish("b", "new".into());
    assert_eq!(pages(&mut caller, "b").unwrap().0.len(), 1);
    assert_eq!(end(server), Some(0));
    let (code, text) = throng_store(&folder, &["check", data.to_str().unwrap()]);
    assert!(code == Some(0) && text.contains("nothing is damaged"), "{text}");
}

#[test]
fn a_salvaged_store_serves_and_reports_its_gaps() {
    let (folder, all) = stored("salvage", "");
    let mut bytes = std::fs::read(folder.file()).unwrap();
    flip(&mut bytes, all["b"][10].data.as_bytes());
    std::fs::write(folder.file(), &bytes).unwrap();
    let new = folder.root.join("new");
    let args =
        ["salvage", folder.data().to_str().unwrap(), new.to_str().unwrap()].map(String::from);
    let (code, text) = throng_store(&folder, &args.each_ref().map(String::as_str));
    assert_eq!(code, Some(0), "{text}");
    let server = folder.serve_in(&new);
    let mut caller = Caller::new(server.admin).unwrap();
    assert_eq!(caller.history("a", None, 1_000), all["a"]);
    let target = format!("/api/history/b?since={}", all["b"][5].id);
    let page = caller.call("GET", &target, "", "").unwrap().body;
    assert_eq!(
        (&page["complete"], page["messages"].as_array().unwrap().len()),
        (&json!(false), 43)
    );
}

#[test]
fn checking_a_file_that_is_no_store_reports_an_error() {
    let folder = Folder::new("none", DURABLE);
    let server = folder.serve();
    assert_eq!(end(server), Some(0));
    for bytes in [&b""[..], b"not what a store begins with"] {
        std::fs::write(folder.file(), bytes).unwrap();
        let data = folder.data();
        let (code, text) = throng_store(&folder, &["check", data.to_str().unwrap()]);
        assert!(code == Some(1) && text.contains("is not a store of Throng"), "{text}");
        assert!(!text.contains("nothing is damaged") && !text.contains("panicked"), "{text}");
    }
}
