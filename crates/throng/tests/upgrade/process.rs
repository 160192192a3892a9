//! Upgrades one after the other, at the same time, by signal, while the server ends, and as process 1.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::application::{Act, Application};
use crate::support::{Scratch, Server, Signal, Stream, end_by, output_within, text, wait_within};
use crate::upgrade::api::Api;
use crate::upgrade::member::{Kind, Member};
use crate::upgrade::node::{Node, Options, Storage, TOPICS, signal, throng};

#[test]
fn a_second_upgrade_at_the_same_time_is_refused() {
    let node = Node::new(Storage::Memory);
    let mut member = Member::open(&node, Kind::Sse, "h:a");
    let binary = node.waiting_binary("first");
    let first = node.begin(&["--binary", binary.path()]);
    binary.process();
    let second = node.try_upgrade(&[]);
    assert_eq!(second.code, Some(3), "{second:?}");
    assert!(second.text().contains("an upgrade is in progress"), "{second:?}");
    binary.go();
    node.finish(first);
    Api::new(node.admin).publish("h:a", "one did it");
    assert_eq!(member.next(), "one did it");
    node.upgrade();
}

#[test]
fn a_server_that_ends_is_not_replaced() {
    let app = Application::start(|_| Act::Hang);
    let url = app.url();
    let more = format!(
        "[webhook]\nurl = \"{url}\"\n[[topics]]\npattern = \"order:*\"\npublish = \"webhook\"\n"
    );
    let topics = TOPICS.replace("drain_seconds = 0", "drain_seconds = 600");
    let settings = vec![("THRONG_WEBHOOK_TIMEOUT_MILLISECONDS", "600000")];
    let mut node = Node::with(Options { topics, more, settings, ..Options::default() });
    // The server's end waits for the reply to this request.
    let mut client = Stream::new(node.connect());
    client.send("POST /publish?topic=order:1 HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\n\r\n1");
    app.until("the application has the request", |events| !events.is_empty());
    node.signal("-TERM");
    node.until("it drains", |node| text(node.admin, "GET", "/readyz", None, "").0 == 503);
    let outcome = node.try_upgrade(&[]);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(outcome.text().contains("this process is ending"), "{outcome:?}");
    assert_eq!(node.processes(), [node.child.id()]);
    // The second signal ends the server at once.
    node.signal("-TERM");
    assert_eq!(wait_within(&mut node.server.child).code(), Some(130));
    node.until_all_ended();
}

#[test]
fn sigusr2_replaces_the_server() {
    let node = Node::new(Storage::Disk);
    let mut member = Member::open(&node, Kind::Phoenix, "h:a");
    for round in 0..3 {
        let before = node.only();
        signal(before, "-USR2");
        node.until("another serves", |_| {
            let now = node.processes();
            now.len() == 1 && now[0] != before
        });
        let text = format!("round {round}");
        Api::new(node.admin).publish("h:a", &text);
        assert_eq!(member.next(), text);
    }
}

/// The command and the API show the progress of an upgrade.
#[test]
fn the_progress_is_shown() {
    let node = Node::new(Storage::Memory);
    let _members = Member::all(&node, "h:a");
    let outcome = node.try_upgrade(&["--json"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let lines: Vec<Value> =
        outcome.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() > 1, "{outcome:?}");
    assert_eq!(lines.last().unwrap()["result"], "done", "{outcome:?}");
    let outcome = node.try_upgrade(&[]);
    let expected = format!("process {} serves", node.only());
    assert!(outcome.code == Some(0) && outcome.stdout.contains(&expected), "{outcome:?}");
    let (status, state) = node.api("GET", "/api/upgrade", None);
    assert_eq!((status, &state["result"]), (200, &json!("done")), "{state}");
}

#[test]
fn an_upgrade_needs_the_key() {
    let key = "a-key-of-an-administrator-for-tests";
    let settings = vec![("THRONG_ADMIN_API_KEY", key)];
    let node = Node::with(Options { settings, ..Options::default() });
    let before = node.only();
    let outcome = node.try_upgrade(&[]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.text().contains("key"), "{outcome:?}");
    assert_eq!(node.only(), before);
    let output = output_within(node.command(&[]).env("THRONG_ADMIN_API_KEY", key));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_ne!(node.only(), before);
}

/// The old process ends by itself, with status 0. After many upgrades the new process has no more threads or
/// descriptors than after one.
#[test]
fn the_old_process_ends_and_the_new_one_leaks_nothing() {
    let mut node = Node::new(Storage::Disk);
    let _member = Member::open(&node, Kind::Ws, "h:a");
    node.upgrade();
    let status = wait_within(&mut node.server.child);
    assert!(status.success(), "{status}");
    let counts = |pid: u32| {
        let count = |what| std::fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
        [count("task"), count("fd")]
    };
    let first = counts(node.only());
    (0..6).for_each(|_| node.upgrade());
    // Requests open and close some for a moment.
    let last = node.only();
    node.until("it has no more than the first had", |_| {
        counts(last).iter().zip(first).all(|(last, first)| *last < first + 4)
    });
}

/// In a container the server is process 1, whose end would end the container. So the old process stays as a parent.
#[test]
fn as_process_1_the_old_one_stays_as_a_parent() {
    let mut probe = Command::new("unshare");
    probe.args(["--pid", "--fork", "--mount-proc", "true"]).stderr(Stdio::null());
    if !probe.status().is_ok_and(|status| status.success()) {
        println!("skipped: this needs to make namespaces of processes");
        return;
    }
    let folder = Scratch::new("upgrade-one");
    let file = folder.write("throng.toml", TOPICS);
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child", throng()]);
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--shards", "2"]);
    command.arg("--config").arg(&file).env("TMPDIR", folder.path());
    let mut server = Server::run(command, &[("THRONG_LOG_LEVEL", "error")]);
    let mut stream = server.listen("/stream?topic=h:a");
    assert_eq!(stream.object()["type"], "welcome");
    for round in 0..3 {
        let mut upgrade = Command::new(throng());
        upgrade.args(["upgrade", "--admin", &format!("http://{}", server.admin)]);
        let output = output_within(&mut upgrade);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        server.publish("h:a", json!(round));
        let message = (0..2).map(|_| stream.next_object()).find(|it| it["type"] == "message");
        assert_eq!(message.unwrap()["data"], round);
        assert!(server.child.try_wait().unwrap().is_none(), "process 1 has ended");
    }
    // A signal to process 1 ends the server.
    let unshare = server.child.id();
    let children = std::fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children"));
    let one: u32 = children.unwrap().split_whitespace().next().unwrap().parse().unwrap();
    assert!(end_by(one, Signal::TERM));
    let status = wait_within(&mut server.child);
    assert!(status.success(), "{status}");
}
