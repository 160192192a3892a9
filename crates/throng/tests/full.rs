//! Limits of the node: the server rejects what is beyond a limit on every transport, counts it, and accepts again as
//! soon as it is below the limit.

use crate::support::*;
use serde_json::json;

fn limited(server: &Server, name: &str) -> f64 {
    server.metric(&format!("throng_limited_total{{name=\"{name}\"}}"))
}

/// Makes a request. Returns the body only if the server rejects the request, since a stream has no end.
fn get(server: &Server, target: &str) -> (Stream, String, String) {
    let mut stream = Stream::new(server.connect());
    stream.send(&format!("GET {target} HTTP/1.1\r\nHost: t\r\n\r\n"));
    let head = stream.head();
    let body = if head.starts_with("HTTP/1.1 200") { String::new() } else { stream.rest() };
    (stream, head, body)
}

/// Returns the error of a `/ws` command, and the reply to a Phoenix join, for the same topic.
fn by_command(server: &Server, topic: &str, user: &str) -> (String, String) {
    let mut socket = websocket(server, user);
    let reply = command(&mut socket, json!({"type": "subscribe", "id": "1", "topic": topic}));
    let url = format!("ws://{}/socket/websocket?vsn=2.0.0&{user}", server.client);
    let (mut socket, _) = tungstenite::client(url, server.connect()).unwrap();
    let join = json!(["1", "1", topic, "phx_join", {}]).to_string();
    socket.send(tungstenite::Message::text(join)).unwrap();
    let joined = loop {
        let message = receive(&mut socket);
        if message[3] == "phx_reply" {
            break message;
        }
    };
    (reply["error"]["code"].as_str().unwrap_or("ok").into(), joined.to_string())
}

#[test]
fn the_node_has_so_many_topics() {
    let server = Server::with(&["--shards", "1"], &[("THRONG_LIMITS_TOPICS_MAX", "4")]);
    let (connections, head, _) = get(&server, "/sse?topic=a&topic=b&topic=c&topic=d");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    for target in
        ["/sse?topic=e", "/stream?topic=a&topic=e", "/poll?topic=e&timeout=0", "/sse?user=al"]
    {
        let (_, head, body) = get(&server, target);
        assert!(head.starts_with("HTTP/1.1 503") && body.contains("topics_full"), "{head}{body}");
        assert!(header(&head, "retry-after").is_some() && body.contains("limits.topics_max"));
    }
    // A client may enter an existing topic even at the limit.
    let (_, head, _) = get(&server, "/sse?topic=a");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(by_command(&server, "a", "").0, "ok");
    let (reply, joined) = by_command(&server, "e", "");
    assert_eq!(reply, "topics_full");
    assert!(joined.contains("limits.topics_max"), "{joined}");
    assert_eq!(limited(&server, "limits.topics_max"), 6.0);
    assert_eq!(server.metric("throng_limit{name=\"limits.topics_max\"}"), 4.0);
    drop(connections);
    server.until("there is room again", |server| {
        get(server, "/sse?topic=e").1.starts_with("HTTP/1.1 200")
    });
}

#[test]
fn the_node_has_so_many_presences() {
    let scratch = Scratch::new("full");
    let rules = scratch.write(
        "throng.toml",
        "[presence]\nconnections_max = 2\n[[topics]]\npattern = \"room:*\"\npresence = true\n",
    );
    let config = ["--shards", "2", "--config", rules.to_str().unwrap()];
    let server = Server::with(&config, &[]);
    let connections: Vec<_> = ["al", "bo"]
        .map(|user| get(&server, &format!("/sse?topic=room:1&user={user}")))
        .into_iter()
        .collect();
    assert!(connections.iter().all(|(_, head, _)| head.starts_with("HTTP/1.1 200")));
    server.until("both are counted", |server| server.metric("throng_presence_connections") == 2.0);
    let (_, head, body) = get(&server, "/sse?topic=room:1&user=cy");
    assert!(head.starts_with("HTTP/1.1 503") && body.contains("presence_full"), "{head}{body}");
    let (reply, joined) = by_command(&server, "room:2", "user=cy");
    assert_eq!(reply, "presence_full");
    assert!(joined.contains("presence.connections_max"), "{joined}");
    assert_eq!(limited(&server, "presence.connections_max"), 3.0);
    // The limit does not apply to topics without presence.
    assert_eq!(by_command(&server, "news", "user=cy").0, "ok");
    drop(connections);
    server.until("there is room again", |server| {
        get(server, "/sse?topic=room:1&user=cy").1.starts_with("HTTP/1.1 200")
    });
}

/// Checks the metrics of docs/limits.md: those that it names exist, and `throng_limit` has each setting but those of
/// topics, keys and forward.
#[test]
fn the_page_of_limits_names_metrics_that_are_there() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/limits.md");
    let page = std::fs::read_to_string(page).unwrap();
    let scratch = Scratch::new("full-data");
    let settings = [
        ("THRONG_AUTH_HMAC_KEY", "0123456789abcdef0123456789abcdef"),
        ("THRONG_STORE_DATA", scratch.path().to_str().unwrap()),
        ("THRONG_WEBHOOK_URL", "http://127.0.0.1:9/"),
        // The NATS server does not exist, but the cluster's metrics do.
        ("THRONG_CLUSTER_URLS", "nats://127.0.0.1:9"),
        // Nor does the PostgreSQL server.
        ("THRONG_OUTBOX_URL", "postgres://throng@127.0.0.1:9/app"),
    ];
    let server = Server::with(&["--shards", "1"], &settings);
    let (status, metrics) = text(server.admin, "GET", "/metrics", None, "");
    assert_eq!(status, 200);
    // A history in PostgreSQL and a store exclude each other, so this needs a second server.
    let postgres = crate::outbox::support::Postgres::start();
    let url = postgres.url("postgres");
    let history = Server::with(&["--shards", "1"], &[("THRONG_HISTORY_URL", &url)]);
    let metrics = metrics + &text(history.admin, "GET", "/metrics", None, "").1;
    let (mut rows, mut named) = (0, 0);
    for row in page.lines().filter(|line| line.starts_with("| [`")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let key = cells[0].split('`').nth(1).unwrap();
        rows += 1;
        for metric in cells[4].split('`').filter(|word| word.starts_with("throng_")) {
            let family = metric.strip_suffix("_total").unwrap_or(metric);
            assert!(metrics.contains(&format!("# TYPE {family} ")), "{key}: {metric}");
            named += 1;
        }
        if !["topics.", "keys.", "forward."].iter().any(|table| key.starts_with(table)) {
            let limit = format!("throng_limit{{name=\"{key}\"}} ");
            assert!(metrics.contains(&limit), "{key}");
        }
        if cells[4].split(", ").any(|cell| cell == "L") {
            let limited = format!("throng_limited_total{{name=\"{key}\"}} ");
            assert!(metrics.contains(&limited), "{key} is not counted");
        }
    }
    assert!(rows > 60 && named > 40, "{rows} {named}");
}

/// Returns a command for a server with a limit on open files.
fn limited_to(files: u32) -> std::process::Command {
    let mut command = std::process::Command::new("sh");
    let serve = "exec \"$0\" serve --listen 127.0.0.1:0 --admin 127.0.0.1:0";
    command.args(["-c", &format!("ulimit -n {files} && {serve}"), env!("CARGO_BIN_EXE_throng")]);
    command
}

#[test]
fn with_few_descriptors_the_server_starts_smaller_or_says_what_it_needs() {
    for files in [150, 256, 400, 700] {
        let server = Server::run(limited_to(files), &[]);
        assert_eq!(server.get("/healthz").0, 200, "{files}");
        let mut stream = server.listen("/sse?topic=a");
        server.publish("a", json!("hello"));
        assert_eq!(stream.data(), "hello");
    }
    let end = output_within(&mut limited_to(100));
    let error = String::from_utf8(end.stderr).unwrap();
    assert_eq!(end.status.code(), Some(1), "{error}");
    let want =
        "the limit on open files is 100, and one shard needs 130 or more: raise it (ulimit -n";
    assert!(error.contains(want), "{error}");
}
