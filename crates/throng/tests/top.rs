//! `throng top` against a server: its output and its errors.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use crate::cluster::support::{Nats, nodes_in};
use crate::support::*;
use serde_json::{Value, json};

const KEY: &str = "a-key-of-some-length";

fn command(admin: SocketAddr, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(["top", &format!("http://{admin}")]).args(arguments.split_whitespace());
    command.env_remove("THRONG_ADMIN_API_KEY");
    command
}

/// Runs the command. Returns the exit status, standard output and standard error.
fn run(mut command: Command) -> (i32, String, String) {
    let output = output_within(&mut command);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[track_caller]
fn good(command: Command) -> String {
    let (code, out, error) = run(command);
    assert_eq!((code, error.as_str()), (0, ""), "{out}");
    out
}

/// Asserts that the command prints only this error and exits with status 1.
#[track_caller]
fn bad(command: Command, why: &str) {
    let (code, out, error) = run(command);
    assert_eq!((code, out.as_str()), (1, ""), "{error}");
    assert!(error.starts_with("error: ") && error.contains(why), "{why} in {error}");
}

#[test]
fn one_sample_is_printed_as_text_and_as_json() {
    let server = Server::with(&["--shards", "2"], &[]);
    let _streams: Vec<_> =
        (0..3).map(|n| server.listen(&format!("/sse?user=u{n}&topic=lobby"))).collect();
    let _socket = server.listen("/stream?topic=lobby");
    server.until_members("lobby", 4);
    server.publish("lobby", json!("hello"));
    let mut text = String::new();
    server.until("a sample shows all connections", |server| {
        text = good(command(server.admin, "--once"));
        text.contains("connections     4 (")
    });
    for want in
        ["transports      sse 3 · stream 1\n", "shards          ", "lobby · 4 members", "CPU "]
    {
        assert!(text.contains(want), "{want} in\n{text}");
    }
    // Standard output is no terminal here, so it prints text.
    assert!(good(command(server.admin, "")).contains("connections     4 ("));
    assert!(text.contains("\nbusiest shard   "), "{text}");
    let json = good(command(server.admin, "--json --once"));
    assert_eq!(json.matches('\n').count(), 1, "{json}");
    let sample: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&sample["connections"], &sample["transports"]["sse"]), (&json!(4), &json!(3)));
    let by_shard = sample["by_shard"].as_object().unwrap();
    assert!(by_shard.values().all(|column| column.as_array().unwrap().len() == 2), "{by_shard:?}");
}

#[test]
fn each_shard_says_where_its_time_goes() {
    let server = Server::with(&["--shards", "2"], &[("THRONG_LIMITS_OUTBOX_BYTES_MAX", "64MiB")]);
    let of = |name: &str, shard: u32| {
        server.metric(&format!("throng_shard_{name}{{shard=\"{shard}\"}}"))
    };
    let before = [0, 1].map(|shard| of("turn_seconds_count", shard));
    // Idle shards sleep, and wake up now and then.
    server.until("both shards have slept and done turns", |_| {
        (0..2).all(|shard| {
            let turns = of("turn_seconds_count", shard) > before[shard as usize] + 2.0;
            turns && of("asleep_seconds_total", shard) > 0.01
        })
    });
    let uptime = server.metric("throng_uptime_seconds");
    for shard in 0..2 {
        assert_eq!((of("mailbox", shard), of("listen_queue", shard)), (0.0, 0.0));
        assert_eq!((of("outboxes", shard), of("bulk_seconds_total", shard)), (0.0, 0.0));
        let cpu = of("cpu_seconds_total", shard);
        assert!(cpu > 0.0 && cpu < uptime + 60.0, "{cpu} of {uptime}");
        assert!(of("system_seconds_total", shard) >= 0.0);
        assert!(of("cpu_wait_seconds_total", shard) >= 0.0);
    }
    // The bytes that wait for a slow client count for the client's own shard.
    let slow = server.listen("/sse?topic=big");
    server.until_members("big", 1);
    let data = "x".repeat(60_000);
    server.until("bytes wait for the client", |server| {
        server.publish("big", json!(data));
        (0..2).any(|shard| of("outboxes", shard) == 1.0 && of("outbox_bytes", shard) > 0.0)
    });
    assert_eq!((0..2).map(|shard| of("outboxes", shard)).sum::<f64>(), 1.0);
    drop(slow);
}

#[test]
fn the_costliest_topics_and_the_slowest_connections_are_named() {
    let server = Server::with(&["--shards", "2"], &[("THRONG_LIMITS_OUTBOX_BYTES_MAX", "64MiB")]);
    let none = server.api("GET", "/api/slowest", None).1;
    assert_eq!(none, json!({"count": 0, "connections": []}));
    // Three members of the chat, and one of each small topic.
    let _members: Vec<_> = (0..3).map(|_| server.listen("/sse?topic=chat")).collect();
    let _small: Vec<_> =
        (0..20).map(|n| server.listen(&format!("/stream?topic=small:{n}"))).collect();
    let slow = server.listen("/sse?user=alice&topic=big");
    let slower = server.listen("/sse?user=bob&topic=big&topic=bigger");
    server.until_members("chat", 3);
    server.until_members("bigger", 1);
    (0..20).for_each(|n| server.until_members(&format!("small:{n}"), 1));
    for n in 0..20 {
        server.publish(&format!("small:{n}"), json!("x"));
        server.publish("chat", json!("hello"));
    }
    let slowest = |server: &Server| server.api("GET", "/api/slowest", None).1;
    let data = json!("x".repeat(60_000));
    server.until("bytes wait for both", |server| {
        server.publish("big", data.clone());
        server.publish("bigger", data.clone());
        slowest(server)["count"] == 2
    });
    let found = slowest(&server);
    let [first, second] = &found["connections"].as_array().unwrap()[..] else { panic!("{found}") };
    assert_eq!((&first["users"], &second["users"]), (&json!(["bob"]), &json!(["alice"])));
    let bytes = |row: &Value| row["outbox_bytes"].as_u64().unwrap();
    assert!(bytes(first) > bytes(second) && bytes(second) > 0, "{found}");
    assert_eq!(first["transport"], "sse");
    assert!(first["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{found}");
    // The age grows as long as data wait.
    let age = first["outbox_age_ms"].as_u64().unwrap();
    server.until("it has waited for longer", |server| {
        slowest(server)["connections"][0]["outbox_age_ms"].as_u64().unwrap() > age
    });
    // The server caches the result for two seconds.
    let top = |by: &str| server.api("GET", &format!("/api/top?by={by}&limit=3"), None).1;
    server.until("the chat has most deliveries but for the large topics", |_| {
        let top = top("deliveries");
        let rows = top["topics"].as_array().unwrap().iter();
        rows.filter(|row| row["topic"] == "chat").count() == 1
    });
    let by_bytes = top("bytes");
    let rows = by_bytes["topics"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["topic"].as_str().unwrap()).collect();
    assert_eq!(names, ["big", "bigger", "chat"], "{by_bytes}");
    assert_eq!((&rows[0]["members"], &rows[1]["members"]), (&json!(2), &json!(1)));
    let figure = |row: &Value, name: &str| row[name].as_f64().unwrap();
    // The ratio does not depend on how long the server has counted.
    let ratio =
        figure(&rows[0], "deliveries_per_minute") / figure(&rows[1], "deliveries_per_minute");
    assert!((1.99..2.01).contains(&ratio), "{by_bytes}");
    let each = figure(&rows[0], "bytes_per_minute") / figure(&rows[0], "deliveries_per_minute");
    assert!((60_000.0..60_400.0).contains(&each), "{each} bytes a delivery: {by_bytes}");
    let text = good(command(server.admin, "--once"));
    assert!(text.contains("\nslowest         ") && text.contains(" · bob\n"), "{text}");
    assert!(text.contains("\ncostliest       ") && text.contains(" deliveries/min · "), "{text}");
    drop((slow, slower));
}

#[test]
fn samples_are_printed_as_lines_until_an_interrupt() {
    let server = Server::start();
    let mut child =
        command(server.admin, "--json").stdout(Stdio::piped()).spawn().expect("it starts");
    let lines = Lines::of(child.stdout.take().unwrap()).take(2);
    let at = |line: String| serde_json::from_str::<Value>(&line).unwrap()["at"].as_u64();
    let times: Vec<_> = lines.map(|line| at(line).unwrap()).collect();
    assert!(times.len() == 2 && times[0] < times[1], "{times:?}");
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert_eq!(wait_within(&mut child).code(), Some(0));
}

#[test]
fn the_key_is_read_from_a_file_or_a_variable() {
    let server = Server::with(&[], &[("THRONG_ADMIN_API_KEY", KEY)]);
    let scratch = Scratch::new("top-key");
    let path = scratch.path().join("key");
    write_secret(&path, &format!("{KEY}\n"));
    let with_file = |arguments: &str| {
        let mut command = command(server.admin, arguments);
        command.arg("--api-key-file").arg(&path);
        command
    };
    let with_variable = |key: &str| {
        let mut command = command(server.admin, "--once");
        command.env("THRONG_ADMIN_API_KEY", key);
        command
    };
    assert!(good(with_file("--once")).contains("connections"));
    assert!(good(with_file("--once --json")).starts_with("{\"at\":"));
    assert!(good(with_variable(KEY)).contains("connections"));
    let mut named = command(server.admin, "--once");
    named.env("THRONG_ADMIN_API_KEY_FILE", &path);
    assert!(good(named).contains("connections"));
    let mut both = with_variable(KEY);
    both.env("THRONG_ADMIN_API_KEY_FILE", &path);
    let (code, _, error) = run(both);
    assert!(code == 2 && error.contains("only one can be the key"), "{error}");
    bad(with_variable("another"), "it is not the node's API key");
    for arguments in ["--once", "--json"] {
        bad(command(server.admin, arguments), "requires an API key");
    }
    std::fs::write(&path, "\n").unwrap();
    let (code, _, error) = run(with_file("--once"));
    assert!(code == 2 && error.contains("the file is empty"), "{error}");
}

#[test]
fn a_port_that_is_no_admin_port_is_reported() {
    let server = Server::start();
    bad(command(server.client, "--once"), "like Throng's admin port (status 404)");
    // No server listens on this port.
    let unused = SocketAddr::from(([127, 0, 0, 1], 1));
    for arguments in ["--once", "--json", "--json --once", ""] {
        bad(command(unused, arguments), "can't reach 127.0.0.1:");
    }
    let mut tls = Command::new(env!("CARGO_BIN_EXE_throng"));
    tls.args(["top", &format!("https://{}", server.admin), "--once"]);
    let (code, _, error) = run(tls);
    assert!(code == 1 && error.contains("does not speak TLS at this port"), "{code} {error}");
}

#[test]
fn attempts_to_connect_that_the_kernel_drops_are_shown_with_what_to_do() {
    let server = Server::with(&["--shards", "1"], &[("THRONG_SOCKET_BACKLOG", "16")]);
    let dropped = |server: &Server| server.metric("throng_kernel_listen_overflows_total");
    let before = dropped(&server);
    // A stopped process accepts no connection.
    server.pause();
    let queued = kernel::overflow(server.client);
    server.signal("-CONT");
    drop(queued);
    assert!(dropped(&server) > before);
    let mut text = String::new();
    server.until("the finding is shown", |server| {
        text = good(command(server.admin, "--once"));
        text.contains("because a listener's queue was full (")
    });
    assert!(text.contains("\nkernel          ! "), "{text}");
    assert!(text.contains(" ago): raise net.core.somaxconn, which is "), "{text}");
    let report = server.api("GET", "/api/kernel", None).1;
    let findings = report["findings"].as_array().unwrap();
    assert!(findings.iter().any(|it| it["kind"] == "listen_overflows"), "{report}");
    assert!(report["stats"]["listen_overflows"].as_f64() > Some(before), "{report}");
}

/// Returns the cells of a node's row in the text of `--cluster`.
fn cells<'a>(text: &'a str, node: &str) -> Vec<&'a str> {
    let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.find(|cells| cells.first() == Some(&node)).unwrap_or_else(|| panic!("{node} in\n{text}"))
}

#[test]
fn all_nodes_of_a_cluster_are_in_one_table() {
    let nats = Nats::start();
    let [a, b] = nats.nodes(&[]);
    let _streams: Vec<_> = (0..3).map(|_| b.listen("/stream?topic=t")).collect();
    let _one = a.listen("/sse?topic=t");
    let version = env!("CARGO_PKG_VERSION");
    let mut text = String::new();
    // Without a terminal it prints text.
    a.until("all connections are shown", |a| {
        text = good(command(a.admin, "--cluster --sort connections"));
        cells(&text, "b")[..4] == ["b", "up", version, "3"]
    });
    assert_eq!(cells(&text, "a")[..5], ["a", "*", "up", version, "1"], "{text}");
    assert_eq!(cells(&text, "all")[..3], ["all", "2", "4"], "{text}");
    assert!(text.find("\nb ") < text.find("\na *"), "{text}");
    assert!(text.starts_with("cluster throng · 2 nodes: 2 up\n"), "{text}");
    // Any node shows the table, with itself in another place.
    let from_b = good(command(b.admin, "--cluster --once"));
    assert!(from_b.find("\na ") < from_b.find("\nb *"), "{from_b}");
    // A silent node stays in the table.
    b.pause();
    a.until("b is silent", |a| nodes_in(a, "silent") == ["b"]);
    let text = good(command(a.admin, "--cluster --once"));
    assert_eq!(cells(&text, "b")[..3], ["b", "!", "silent"], "{text}");
    b.signal("-CONT");
    // A node without a cluster has no table.
    bad(command(Server::start().admin, "--cluster"), "this node is not in a cluster");
    let (code, _, error) = run(command(a.admin, "--sort memory"));
    assert!(code == 2 && error.contains("--cluster"), "{code} {error}");
}

#[test]
fn the_table_of_a_cluster_is_printed_as_json_with_rates_of_each_node() {
    let nats = Nats::start();
    let [a, b] = nats.nodes(&[]);
    let mut member = b.listen("/stream?topic=t");
    assert_eq!(member.next_object()["type"], "welcome");
    let mut child = command(a.admin, "--cluster --json").stdout(Stdio::piped()).spawn().unwrap();
    let mut rates = Vec::new();
    for line in Lines::of(child.stdout.take().unwrap()).take(20) {
        let line: Value = serde_json::from_str(&line).unwrap();
        let rate = |node: usize, what: &str| line["nodes"][node]["per_second"][what].as_f64();
        assert_eq!(
            (&line["nodes"][0]["name"], &line["nodes"][1]["name"]),
            (&json!("a"), &json!("b"))
        );
        rates = vec![rate(0, "published"), rate(1, "published"), rate(1, "delivered")];
        if rates[0] > Some(0.0) && rates[2] > Some(0.0) {
            break;
        }
        for number in 0..20 {
            a.publish("t", json!(number));
        }
    }
    assert!(rates[0] > Some(0.0) && rates[1] == Some(0.0) && rates[2] > Some(0.0), "{rates:?}");
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert_eq!(wait_within(&mut child).code(), Some(0));
}
