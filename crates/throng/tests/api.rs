//! The admin API: every call, its responses and its rejections.

use crate::support::*;
use serde_json::json;

#[test]
fn users_with_many_connections_and_connections_with_many_users() {
    let server = Server::with(&["--shards", "3"], &[]);
    let mut both = server.listen("/stream?user=alice&user=bob&topic=room");
    let mut alice = server.listen("/sse?user=alice");
    both.next_object();
    assert_eq!(server.post("/api/send", json!({"user": "alice", "data": 1}))["members"], 2);
    assert_eq!((both.next_object()["data"].clone(), alice.data()), (json!(1), "1".into()));
    assert_eq!(server.post("/api/send", json!({"user": "nobody", "data": 1}))["members"], 0);
    let (_, user) = server.api("GET", "/api/users/alice", None);
    let connections = user["connections"].as_array().unwrap();
    assert_eq!((&user["count"], connections.len()), (&json!(2), 2));
    let (_, one) = server.api("GET", "/api/users/alice?limit=1", None);
    assert_eq!((&one["count"], one["connections"].as_array().unwrap().len()), (&json!(2), 1));
    let stream = connections.iter().find(|found| found["transport"] == "stream").unwrap();
    assert_eq!((&stream["users"], &stream["topics"]), (&json!(["alice", "bob"]), &json!(["room"])));
    let address = both.reader.get_ref().local_addr().unwrap().to_string();
    assert_eq!(stream["address"], address);
    assert!(
        stream["bytes_sent"].as_u64() > Some(100) && stream["bytes_received"].as_u64() > Some(20)
    );

    // The application subscribes a user to a topic and unsubscribes it again.
    assert_eq!(
        server.post("/api/subscribe", json!({"user": "alice", "topic": "vip"}))["connections"],
        2
    );
    assert_eq!(server.publish("vip", json!("in"))["members"], 2);
    assert_eq!((both.next_object()["data"].clone(), alice.data()), (json!("in"), "in".into()));
    assert_eq!(
        server.post("/api/unsubscribe", json!({"user": "bob", "topic": "vip"}))["connections"],
        1
    );
    assert_eq!(server.publish("vip", json!("out"))["members"], 1);
    assert_eq!(alice.data(), "out");

    // Closes one connection, and then all other connections of the user.
    let id = stream["id"].as_str().unwrap();
    assert_eq!(server.post("/api/disconnect", json!({"connection": id}))["disconnected"], 1);
    let last =
        std::iter::repeat_with(|| both.next_object()).find(|object| object["type"] == "close");
    assert_eq!(last.unwrap()["reason"], "application");
    assert_eq!(both.chunk(), "", "the stream ends in order");
    assert_eq!(server.post("/api/disconnect", json!({"connection": id}))["disconnected"], 0);
    assert_eq!(server.post("/api/disconnect", json!({"user": "alice"}))["disconnected"], 1);
    assert!(alice.rest().contains("closing, application"));
    assert_eq!(server.api("GET", "/api/users/alice", None).1["connections"], json!([]));
}

#[test]
fn topics_are_listed_in_pages() {
    let server = Server::with(&["--shards", "3"], &[]);
    let streams: Vec<_> = (0..25)
        .map(|n| server.listen(&format!("/sse?topic=t{n:02}&topic=all&user=u{n}")))
        .collect();
    let (mut names, mut after) = (Vec::new(), String::new());
    loop {
        let (_, page) = server.api("GET", &format!("/api/topics?prefix=t&limit=10{after}"), None);
        names.extend(
            page["topics"]
                .as_array()
                .unwrap()
                .iter()
                .map(|topic| topic["topic"].as_str().unwrap().to_string()),
        );
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(names, (0..25).map(|n| format!("t{n:02}")).collect::<Vec<_>>());
    let (_, page) = server.api("GET", "/api/topics", None);
    assert_eq!(page["topics"][0], json!({"topic": "all", "members": 25}));
    assert_eq!(page["topics"].as_array().unwrap().len(), 26, "personal topics are left out");
    let (_, page) = server.api("GET", "/api/topics?prefix=@u1", None);
    assert_eq!(page["topics"].as_array().unwrap().len(), 11);
    assert_eq!(server.api("GET", "/api/topics/t07", None).1["members"], 1);
    assert_eq!(server.api("GET", "/api/topics/none", None).1["members"], 0);
    drop(streams);
    server.until("all topics are gone", |server| {
        server.api("GET", "/api/topics", None).1["topics"] == json!([])
    });
}

#[test]
fn a_batch_replies_each_command_separately() {
    let server = Server::start();
    let mut stream = server.listen("/sse?topic=a&user=u");
    let reply = server.post(
        "/api/batch",
        json!({"commands": [
            {"publish": {"topic": "a", "data": "one"}},
            {"publish": {"topic": "@x", "data": "refused"}},
            {"send": {"user": "u", "data": "two"}},
            {"jump": {}},
            {"subscribe": {"user": "u", "topic": "late"}},
            {"publish": {"topic": "late", "data": "three"}},
            {"broadcast": {"data": "four", "event": "e"}},
            {"unsubscribe": {"user": "u", "topic": "late"}},
            {"publish": {"topic": "late", "data": "nobody"}},
            {"disconnect": {"user": "u"}}
        ]}),
    );
    let results = reply["results"].as_array().unwrap();
    let members: Vec<_> = results.iter().map(|result| result["ok"]["members"].as_u64()).collect();
    assert_eq!(
        members,
        [Some(1), None, Some(1), None, None, Some(1), Some(1), None, Some(0), None]
    );
    assert_eq!(results[1]["error"]["code"], "bad_topic");
    assert_eq!(results[3]["error"]["code"], "bad_request");
    assert_eq!(results[9]["ok"]["disconnected"], 1);
    let mut got: Vec<String> = Vec::new();
    for line in stream.rest().lines() {
        got.extend(line.strip_prefix("data: ").map(str::to_string));
    }
    got.sort();
    assert_eq!(got, ["four", "one", "three", "two"]);
}

#[test]
fn every_rejection_is_json_with_its_status() {
    let server = Server::start();
    let refused = |method: &str, path: &str, body: Option<serde_json::Value>| {
        let (status, reply) = server.api(method, path, body);
        (status, reply["error"]["code"].as_str().unwrap_or("none").to_string())
    };
    for (method, path, body, status, code) in [
        ("GET", "/api/nope", None, 404, "not_found"),
        ("GET", "/api/publish", None, 405, "method_not_allowed"),
        ("POST", "/api/publish", Some(json!({"topic": "a"})), 400, "bad_request"),
        (
            "POST",
            "/api/publish",
            Some(json!({"topic": "a", "data": 1, "x": 1})),
            400,
            "bad_request",
        ),
        ("POST", "/api/publish", Some(json!({"topic": "", "data": 1})), 400, "bad_topic"),
        (
            "POST",
            "/api/publish",
            Some(json!({"topic": "a", "data": 1, "event": "a\nb"})),
            400,
            "bad_event",
        ),
        (
            "POST",
            "/api/publish",
            Some(json!({"topic": "a", "data": "?", "encoding": "base64"})),
            400,
            "bad_data",
        ),
        (
            "POST",
            "/api/publish",
            Some(json!({"topic": "a", "data": "x".repeat(70_000)})),
            413,
            "message_too_large",
        ),
        ("POST", "/api/send", Some(json!({"user": "", "data": 1})), 400, "bad_user"),
        ("POST", "/api/disconnect", Some(json!({})), 400, "bad_request"),
        ("POST", "/api/disconnect", Some(json!({"connection": "x"})), 400, "bad_connection"),
        ("GET", "/api/topics?limit=0", None, 400, "bad_limit"),
        ("GET", "/api/topics?limits=1", None, 400, "bad_query"),
        ("GET", "/api/users/a?limit=1001", None, 400, "bad_limit"),
        ("GET", "/api/messages?topic=%FF", None, 400, "bad_query"),
        ("GET", "/api/topics/%FF/members", None, 400, "bad_path"),
    ] {
        assert_eq!(refused(method, path, body), (status, code.to_string()), "{method} {path}");
    }
    let media = json_with_headers(&server, "Content-Type: text/xml\r\nContent-Length: 2\r\n", "{}");
    assert_eq!(media.0, 415);
    let broken = json_with_headers(&server, "Content-Length: 3\r\n", "{\"a");
    assert_eq!(broken.0, 400);
    assert!(broken.1.contains("line 1 column"), "{}", broken.1);
    let foreign = text(
        server.admin,
        "POST",
        "/api/broadcast",
        Some(json!({"data": 1})),
        "Origin: http://evil.example\r\n",
    );
    assert_eq!(foreign.0, 403);
}

fn json_with_headers(server: &Server, headers: &str, body: &str) -> (u16, String) {
    let mut stream = Stream::new(connect(server.admin));
    stream.send(&format!("POST /api/publish HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n{body}"));
    stream.read_reply()
}

#[test]
fn a_configured_key_is_required_and_reloaded() {
    let scratch = Scratch::new("key");
    let key = scratch.path().join("key");
    is_required_and_reloaded(&["--api-key-file", key.to_str().unwrap()], &key);
    // The server finds a file that the configuration names relative to the configuration, whatever its working
    // directory is.
    let config = scratch.write("throng.toml", "[admin]\napi_key_file = \"key\"\n");
    is_required_and_reloaded(&["--config", config.to_str().unwrap()], &key);
}

fn is_required_and_reloaded(flags: &[&str], file: &std::path::Path) {
    write_secret(file, "a-key-of-sixteen-chars\n");
    let server = Server::with(flags, &[]);
    let status = |path: &str, key: &str| {
        let header =
            if key.is_empty() { String::new() } else { format!("Authorization: Bearer {key}\r\n") };
        text(server.admin, "GET", path, None, &header).0
    };
    for path in ["/api/stats", "/metrics", "/api/openapi.json", "/api/nope"] {
        assert_eq!((status(path, ""), status(path, "wrong")), (401, 401), "{path}");
    }
    assert_eq!(status("/api/stats", "a-key-of-sixteen-chars"), 200);
    assert_eq!((status("/readyz", ""), status("/healthz", ""), status("/", "")), (200, 200, 200));
    std::fs::write(file, "another-key-of-some-length\n").unwrap();
    server.signal("-HUP");
    server.until("the new key is in force", |_| {
        status("/api/stats", "another-key-of-some-length") == 200
    });
    assert_eq!(status("/api/stats", "a-key-of-sixteen-chars"), 401);
    let config = text(
        server.admin,
        "GET",
        "/api/config",
        None,
        "Authorization: Bearer another-key-of-some-length\r\n",
    )
    .1;
    assert!(config.contains("api_key is set") && !config.contains("another-key"), "{config}");
}

#[test]
fn metrics_and_stats_count_events() {
    let server = Server::start();
    let mut stream = server.listen("/sse?topic=a");
    let _socket = websocket(&server, "topic=a");
    for n in 0..10 {
        server.publish("a", json!(n));
        assert_eq!(stream.data(), n.to_string());
    }
    server.until("all is counted", |server| {
        server.metric("throng_messages_delivered_total") == 20.0
            && server.metric("throng_delivery_latency_seconds_count") == 20.0
            && server.metric("throng_fanout_seconds_count") >= 10.0
    });
    assert_eq!(server.metric("throng_connections{transport=\"sse\"}"), 1.0);
    assert_eq!(server.metric("throng_connections{transport=\"ws\"}"), 1.0);
    assert_eq!(server.metric("throng_limit{name=\"limits.message_bytes_max\"}"), 65_536.0);
    assert!(server.metric("throng_process_resident_memory_bytes") > 1e6);
    let (_, stats) = server.api("GET", "/api/stats", None);
    assert_eq!((&stats["connections"], &stats["messages_delivered"]), (&json!(2), &json!(20)));
    assert!(stats["delivery_ms"]["p99"].as_f64() > Some(0.0));
    drop(stream);
    server.until("the close is counted", |server| {
        server.metric("throng_connections_closed_total{reason=\"client\"}") == 1.0
    });
    let (status, document) = server.api("GET", "/api/openapi.json", None);
    assert_eq!((status, document["openapi"].as_str().map(|v| &v[..2])), (200, Some("3.")));
}
