//! Failed upgrades: whatever is wrong with the new server, the old one serves on and reports the reason.

use std::path::Path;

use serde_json::Value;

use crate::support::Scratch;
use crate::upgrade::member::{Kind, Member, Publisher, numbers};
use crate::upgrade::node::{BOTH, DURABLE, Node, Options, Storage, executable, line_of, throng};

/// Publishes to some clients during the attempts, and checks that each has received everything.
fn all_the_while(node: &Node, attempts: impl FnOnce()) {
    let kinds = [Kind::Sse, Kind::Poll, Kind::Ws, Kind::Phoenix, Kind::Mqtt5(1), Kind::Mqtt3(2)];
    let members: Vec<Member> =
        kinds.iter().map(|kind| Member::open(node, *kind, "h:all")).collect();
    let publisher = Publisher::default();
    std::thread::scope(|scope| {
        let publishing = scope.spawn(|| publisher.run(node, &["h:all"]));
        publisher.meanwhile(attempts);
        let expected = numbers(0..publishing.join().unwrap());
        for mut member in members {
            let received = member.before_end();
            member.check_received(&received, &expected);
        }
    });
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Checks that a text has at least one of these words.
fn says(text: &str, words: &[&str]) {
    let lower = text.to_lowercase();
    let found = words.iter().any(|word| lower.contains(&word.to_lowercase()));
    assert!(found, "none of {words:?} in: {text}");
}

#[test]
fn a_bad_configuration_leaves_all_as_it_was() {
    for storage in BOTH {
        let node = Node::new(storage);
        all_the_while(&node, || {
            node.configure("[limits]\nframe_bytes_max = \"many\"\n");
            says(&node.upgrade_fails(&[]), &["frame_bytes_max"]);
            node.configure("this is no configuration");
            says(&node.upgrade_fails(&[]), &["throng.toml"]);
            node.configure(if storage == Storage::Disk { DURABLE } else { "" });
            // The configuration is valid again.
            node.upgrade();
        });
    }
}

#[test]
fn a_binary_that_is_none_leaves_all_as_it_was() {
    let node = Node::new(Storage::Disk);
    all_the_while(&node, || {
        says(&node.upgrade_fails(&["--binary", "/nonexistent/throng"]), &["/nonexistent/throng"]);
        let ended = "/bin/false has ended with status 1";
        says(&node.upgrade_fails(&["--binary", "/bin/false"]), &[ended]);
        let text = node.script("text", "");
        std::fs::write(&text, "no program").unwrap();
        says(&node.upgrade_fails(&["--binary", path(&text)]), &["can't be started"]);
        let crashes = node.script("crashes", "kill -SEGV $$");
        says(&node.upgrade_fails(&["--binary", path(&crashes)]), &["by signal 11"]);
        let speaks = node.script("speaks", "echo 'no such library' >&2; exit 1");
        says(&node.upgrade_fails(&["--binary", path(&speaks)]), &["with status 1"]);
        node.upgrade();
    });
}

/// The old server kills the process that it has started.
#[test]
#[ignore = "long: the server waits for 30 s for each of two processes"]
fn a_binary_that_never_waits_for_the_old_server_is_given_up() {
    let node = Node::new(Storage::Memory);
    all_the_while(&node, || {
        let reason = ["did not wait at the socket"];
        let sleeps = node.script("sleeps", "exec sleep 600");
        says(&node.upgrade_fails(&["--binary", path(&sleeps)]), &reason);
        // Without the upgrade's arguments the process would serve by itself. It must not serve beside the old one.
        let script = format!(
            "exec {} serve --listen 127.0.0.1:0 --admin 127.0.0.1:0 --shards 1 >/dev/null",
            throng()
        );
        let alone = node.script("alone", &script);
        says(&node.upgrade_fails(&["--binary", path(&alone)]), &reason);
        node.upgrade();
    });
}

/// The new process can't have as many connections as the old one has.
#[test]
fn too_few_descriptors_for_the_new_one_leave_all_as_it_was() {
    let node = Node::new(Storage::Memory);
    let idle: Vec<_> = (0..300).map(|_| node.listen("/sse?topic=plain")).collect();
    all_the_while(&node, || {
        for limit in [16, 64, 100] {
            let few = node.script("few", &format!("ulimit -n {limit}\nexec {} \"$@\"", throng()));
            says(
                &node.upgrade_fails(&["--binary", path(&few)]),
                &["descriptor", "open files", "room"],
            );
        }
        node.upgrade();
    });
    node.publish("plain", "to all of them".into());
    for mut stream in idle {
        assert_eq!(stream.data(), "to all of them");
    }
}

/// Another process uses the data directory of the new command line.
#[test]
fn a_data_directory_that_is_in_use_leaves_all_as_it_was() {
    let (node, other) = (Node::new(Storage::Disk), Node::new(Storage::Disk));
    let taken = other.path("data");
    all_the_while(&node, || {
        let folder = format!("s#--data [^ ]*#--data {}#", path(&taken));
        let script = format!("exec {} $(echo \"$@\" | sed '{folder}')", throng());
        let elsewhere = node.script("elsewhere", &script);
        says(&node.upgrade_fails(&["--binary", path(&elsewhere)]), &[path(&taken), "in use"]);
        node.upgrade();
    });
    other.publish("h:x", "untouched".into());
}

#[test]
fn a_check_says_what_would_happen_and_changes_nothing() {
    let node = Node::new(Storage::Disk);
    all_the_while(&node, || {
        let before = node.only();
        let outcome = node.try_upgrade(&["--check"]);
        assert_eq!((outcome.code, node.only()), (Some(0), before), "{outcome:?}");
        says(&outcome.text(), &["an upgrade is possible"]);
        let outcome = node.try_upgrade(&["--check", "--json"]);
        assert_eq!((outcome.code, node.only()), (Some(0), before), "{outcome:?}");
        let last: Value = serde_json::from_str(outcome.stdout.lines().last().unwrap()).unwrap();
        assert_eq!(last["result"], "possible", "{outcome:?}");
        node.configure("[limits]\nframe_bytes_max = \"many\"\n");
        let outcome = node.try_upgrade(&["--check"]);
        assert_eq!((outcome.code, node.only()), (Some(3), before), "{outcome:?}");
        says(&outcome.text(), &["frame_bytes_max"]);
    });
}

/// The upgrade runs the file that is now at the path of the old process's binary.
#[test]
fn the_binary_is_the_one_at_the_path_of_the_start() {
    let folder = Scratch::new("upgrade-path");
    let binary = folder.path().join("throng");
    std::fs::copy(throng(), &binary).unwrap();
    let node = Node::with(Options { binary: binary.clone(), ..Options::default() });
    all_the_while(&node, || {
        // This is how a package replaces a file.
        let started = node.path("started");
        let text = format!("#!/bin/sh\necho $$ > {}\nexec {} \"$@\"\n", path(&started), throng());
        let new = folder.write("new", &text);
        executable(&new);
        std::fs::rename(&new, &binary).unwrap();
        node.upgrade();
        assert_eq!(line_of(&started), node.only().to_string());
    });
}
