//! Damaged copies of a store under the real server: what it says by HTTP, and `throng store`.

use std::collections::HashMap;
use std::process::Command;

use serde_json::{Value, json};

use crate::place::{Caller, Folder, Kept, Random, end};

const KEPT: &str = "[[topics]]\npattern = \"*\"\nhistory_messages_max = 1000\ndurable = true\n";
const TOPICS: [&str; 4] = ["a", "b", "c", "d"];
const COPIES: u64 = 24;

/// A folder with a store that was closed in order, and what is in it.
fn stored(name: &str, more: &str) -> (Folder, HashMap<&'static str, Vec<Kept>>) {
    let folder = Folder::new(name, &format!("{KEPT}{more}"));
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

/// `throng store …`: the exit status and what it said.
fn throng_store(folder: &Folder, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    let output = command.arg("store").args(args).current_dir(&folder.root).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

fn flip(bytes: &mut [u8], text: &[u8]) {
    let places: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(text)).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|at| bytes[*at] ^= 1);
}

/// All pages of a topic: its messages, and whether a page said that some are lost. `None` if one
/// was refused.
fn pages(caller: &mut Caller, topic: &str) -> Option<(Vec<String>, bool)> {
    let (mut all, mut since, mut lost) = (Vec::new(), String::new(), false);
    loop {
        let target = format!("/api/history/{topic}?limit=20{since}");
        let answer = caller.call("GET", &target, "", "").unwrap();
        if answer.status != 200 {
            let error = &answer.body["error"];
            assert_eq!((answer.status, &error["code"]), (503, &json!("store_damaged")), "{error}");
            let message = error["message"].as_str().unwrap();
            assert!(
                message.contains(&format!("of {topic}")) || message.contains("facts"),
                "{message}"
            );
            return None;
        }
        let page = answer.body;
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
fn no_damaged_copy_gives_fewer_messages_with_a_200() {
    // As a store that is too large to be looked at whole, every other time.
    let (folder, all) = stored("damage", "");
    let whole = std::fs::read(folder.file()).unwrap();
    let mut random = Random(5);
    let (mut refused, mut errors) = (0, 0);
    for copy in 0..COPIES {
        let limit = if copy % 2 == 0 { "256MiB" } else { "0" };
        folder.configure(&format!("{KEPT}[store]\nverify_bytes_max = \"{limit}\"\n"));
        let mut bytes = whole.clone();
        random.flip_bits(&mut bytes, 10);
        std::fs::write(folder.file(), &bytes).unwrap();
        let Some(server) = folder.serve_or_refused() else {
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
            let want: Vec<String> =
                want.iter().map(|kept| format!("\"{}\" \"{}\"", kept.id, kept.data)).collect();
            assert!(given == want || lost, "copy {copy}: {topic} has {} messages", given.len());
        }
        assert_eq!(caller.call("GET", "/healthz", "", "").unwrap().status, 200);
    }
    println!("{refused} of {COPIES} were refused, and {errors} topics");
}

#[test]
fn damage_is_named_by_topic_and_offsets_and_there_is_a_way_on() {
    let unverified = "[store]\nverify_bytes_max = 0\n";
    let (folder, all) = stored("named", unverified);
    let mut bytes = std::fs::read(folder.file()).unwrap();
    let bad = &all["b"][10];
    flip(&mut bytes, bad.data.as_bytes());
    std::fs::write(folder.file(), &bytes).unwrap();
    let data = folder.data();
    let place = format!("messages of b after offset {} up to {}", bad.offset - 4, bad.offset);
    // The command, on a copy and without a change.
    let (code, text) = throng_store(&folder, &["check", data.to_str().unwrap()]);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains(&place) && text.contains("throng store salvage"), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    assert!(std::fs::read(folder.file()).unwrap() == bytes, "the file was changed");
    // A start that looks at the whole file.
    folder.configure(KEPT);
    let (code, text) = folder.refused(&data);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(&place) && text.contains("throng store check"), "{text}");
    // A start that does not: what is read is refused, and the rest goes on.
    folder.configure(&format!("{KEPT}{unverified}"));
    let server = folder.serve();
    let mut caller = Caller::new(server.admin).unwrap();
    assert_eq!(pages(&mut caller, "b"), None);
    assert_eq!(pages(&mut caller, "a").unwrap().0.len(), 50);
    let target = format!("/poll?topic=b&since={}&timeout=0", all["b"][5].id);
    let answer = server.exchange(format!("GET {target} HTTP/1.0\r\nHost: t\r\n\r\n").as_bytes());
    assert!(answer.contains("\"recovered\":false"), "{answer}");
    // While it is in use it is not looked at.
    let (code, text) = throng_store(&folder, &["check", data.to_str().unwrap()]);
    assert!(code == Some(1) && text.contains("in use by another process"), "{text}");
    // Its history may go.
    assert_eq!(caller.call("DELETE", "/api/history/b", "", "").unwrap().status, 200);
    server.publish("b", "new".into());
    assert_eq!(pages(&mut caller, "b").unwrap().0.len(), 1);
    assert_eq!(end(server), Some(0));
    let (code, text) = throng_store(&folder, &["check", data.to_str().unwrap()]);
    assert!(code == Some(0) && text.contains("nothing is damaged"), "{text}");
}

#[test]
fn a_salvaged_store_is_served_and_says_what_it_lacks() {
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
fn a_file_that_is_no_store_is_not_said_to_be_whole() {
    let folder = Folder::new("none", KEPT);
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
