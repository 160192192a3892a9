//! Tests of the API, with fake shards and a fake broker.

mod cursors;
pub(crate) mod fake;
mod history;
mod login;
mod monitor;
mod mqtt;
mod outbox_publisher;
mod presence;
mod publish;
mod reply_publisher;
mod subscriptions;
mod trace;
mod upgrade;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use model::CloseReason;
use model::name::{NAME_BYTES_MAX, PERSONAL_BYTES_MAX};
use serde_json::json;

use fake::{Bench, Mood, bench};

#[tokio::test]
async fn users_are_moved_and_disconnected_on_every_shard() {
    let bench = bench(Mood::Willing);
    let body = json!({"user": "alice", "topic": "news"});
    assert_eq!(bench.post("/api/subscribe", &body).await.json(), json!({"connections": 4}));
    assert_eq!(bench.post("/api/unsubscribe", &body).await.json(), json!({"connections": 2}));
    let reply = bench.post("/api/disconnect", json!({"user": "alice"})).await;
    assert_eq!(reply.json(), json!({"disconnected": 4}));
    let want = [
        "0 subscribe alice news",
        "1 subscribe alice news",
        "0 unsubscribe alice news",
        "1 unsubscribe alice news",
        "0 disconnect alice application",
        "1 disconnect alice application",
    ];
    assert_eq!(*bench.commands.lock().unwrap(), want);
}

#[tokio::test]
async fn a_connection_is_sought_on_its_own_shard() {
    let bench = bench(Mood::Willing);
    for (connection, disconnected) in [("00000009-1-12-345", 1), ("00000009-7-12-345", 0)] {
        let reply = bench.post("/api/disconnect", json!({"connection": connection})).await;
        assert_eq!(reply.json(), json!({"disconnected": disconnected}));
    }
    assert_eq!(*bench.commands.lock().unwrap(), ["1 disconnect 00000009-1-12-345"]);
    for (body, code) in [
        (json!({"connection": "x"}), "bad_connection"),
        (json!({}), "bad_request"),
        (json!({"user": "a", "connection": "00000009-0-1-2"}), "bad_request"),
        (json!({"user": ""}), "bad_user"),
    ] {
        let reply = bench.post("/api/disconnect", body).await;
        assert_eq!((reply.status, reply.code().as_str()), (400, code));
    }
}

#[tokio::test]
async fn topics_are_merged_over_shards_and_paged() {
    let bench = bench(Mood::Willing);
    let page = bench.get("/api/topics?limit=2").await.json();
    let topic = |name: &str, members: u64| json!({"topic": name, "members": members});
    assert_eq!(page, json!({"topics": [topic("a", 6), topic("b", 3)], "next": "b"}));
    let page = bench.get("/api/topics?limit=2&after=b").await.json();
    assert_eq!(page, json!({"topics": [topic("c", 6), topic("d", 3)], "next": null}));
    let page = bench.get("/api/topics?prefix=c").await.json();
    assert_eq!(page, json!({"topics": [topic("c", 6)], "next": null}));
    for query in ["limit=0", "limit=1001", "limit=x", "page=2"] {
        let reply = bench.get(&format!("/api/topics?{query}")).await;
        assert_eq!(reply.status, 400, "{query}");
        assert!(reply.code().starts_with("bad_"), "{query}");
    }
}

#[tokio::test]
async fn topics_and_users_are_found_by_percent_encoded_names() {
    let bench = bench(Mood::Willing);
    let topic = bench.get("/api/topics/news").await;
    assert_eq!(topic.json(), json!({"topic": "news", "members": 4}));
    let topic = bench.get("/api/topics/a%2Fb%20%C3%A9").await;
    assert_eq!((topic.status, topic.json()), (200, json!({"topic": "a/b é", "members": 0})));
    let user = bench.get("/api/users/alice").await.json();
    let connection = &user["connections"][5];
    assert_eq!((&user["user"], &connection["id"]), (&json!("alice"), &json!("00000009-1-12-345")));
    assert_eq!(connection["age_seconds"], 60);
    assert_eq!(connection["address"], "10.0.0.1:5000");
    assert_eq!(connection["outbox_bytes"], 7);
    assert!(connection["opened_at"].as_u64().unwrap() > 1_600_000_000);
    for path in ["/api/users/a%0Ab", "/api/users/%FF", "/api/topics/%FF"] {
        let reply = bench.get(path).await;
        assert_eq!(reply.status, 400, "{path}");
        reply.code();
    }
}

#[tokio::test(start_paused = true)]
async fn shards_that_ended_or_are_silent_are_503() {
    for (mood, code) in [(Mood::Ended, "going_down"), (Mood::Silent, "no_answer")] {
        let bench = bench(mood);
        for path in ["/api/topics", "/api/topics/a", "/api/users/a"] {
            let reply = bench.get(path).await;
            assert_eq!((reply.status, reply.code().as_str()), (503, code), "{path}");
            assert_eq!(reply.headers["retry-after"], "1");
        }
        let reply = bench.post("/api/disconnect", json!({"user": "a"})).await;
        assert_eq!((reply.status, reply.code().as_str()), (503, code));
    }
}

/// Sets counters as a node with three connections has them.
fn count(bench: &Bench) {
    let first = bench.node.shards.metrics(0);
    first.connections[1].add(1);
    first.connections[2].add(1);
    first.open_connections.add(2);
    first.delivered.add(10);
    first.closed[CloseReason::SlowConsumer as usize].add(1);
    first.delivery_latency.record(1000, 99);
    let second = bench.node.shards.metrics(1);
    second.connections[5].add(1);
    second.open_connections.add(1);
    second.delivered.add(5);
    second.delivery_latency.record(1_000_000, 1);
    second.turn_time.record(700, 3);
    second.turn_time.record(20_000_000, 1);
    second.asleep_us.add(2_500_000);
    second.bulk_us.add(500_000);
    second.commands_pending.set(6);
    second.listen_queue.set(5);
    second.outboxes.add(1);
    second.outbox_bytes.add(900);
    bench.node.shared.connections.store(3, Ordering::Relaxed);
}

#[tokio::test]
async fn stats_add_the_shards_up() {
    let bench = bench(Mood::Willing);
    assert_eq!(bench.get("/api/stats").await.json()["bytes_per_connection"], 0.0);
    count(&bench);
    let stats = bench.get("/api/stats").await.json();
    assert_eq!(stats["epoch"], "5f3a91c2");
    assert_eq!(stats["connections"], 3);
    assert_eq!(stats["connections_by_transport"]["sse"], 2);
    assert_eq!(stats["connections_by_transport"]["ws"], 1);
    assert_eq!(stats["connections_by_shard"], json!([2, 1]));
    assert_eq!(stats["closed_by_reason"]["slow_consumer"], 1);
    assert_eq!(stats["messages_delivered"], 15);
    assert_eq!(stats["delivery_ms"]["p99"], 1.024);
    assert!(stats["rss_bytes"].as_u64().unwrap() >= stats["rss_anon_bytes"].as_u64().unwrap());
    assert!(stats["bytes_per_connection"].as_f64().unwrap() > 0.0);
}

#[tokio::test]
async fn metrics_have_help_and_units_and_end_with_eof() {
    let bench = bench(Mood::Willing);
    count(&bench);
    let reply = bench.get("/metrics").await;
    let media = reply.headers["content-type"].to_str().unwrap();
    assert!(media.starts_with("application/openmetrics-text; version=1.0.0"), "{media}");
    for line in [
        "throng_connections{transport=\"sse\"} 2.0",
        "throng_connections{transport=\"ws\"} 1.0",
        "throng_connections_closed_total{reason=\"slow_consumer\"} 1.0",
        "throng_slow_consumers_closed_total 1.0",
        "throng_messages_delivered_total 15.0",
        "throng_delivery_latency_seconds_bucket{le=\"0.001024\"} 99",
        "throng_delivery_latency_seconds_bucket{le=\"+Inf\"} 100",
        "throng_delivery_latency_seconds_count 100",
        "throng_shard_connections{shard=\"1\"} 1.0",
        "throng_shard_mailbox{shard=\"1\"} 6.0",
        "throng_shard_listen_queue{shard=\"1\"} 5.0",
        "throng_shard_outboxes{shard=\"1\"} 1.0",
        "throng_shard_outbox_bytes{shard=\"1\"} 900.0",
        "throng_shard_asleep_seconds_total{shard=\"1\"} 2.5",
        "throng_shard_bulk_seconds_total{shard=\"1\"} 0.5",
        "throng_shard_turn_seconds_bucket{le=\"0.000256\",shard=\"1\"} 0",
        "throng_shard_turn_seconds_bucket{le=\"0.001024\",shard=\"1\"} 3",
        "throng_shard_turn_seconds_bucket{le=\"+Inf\",shard=\"1\"} 4",
        "throng_shard_turn_seconds_count{shard=\"1\"} 4",
        "throng_limit{name=\"limits.message_bytes_max\"} 100.0",
        "throng_ready 1.0",
        "throng_webhook_asked_total 0.0",
        "throng_webhook_waiting_bytes 0.0",
        "# UNIT throng_process_cpu_seconds seconds",
        "# EOF",
    ] {
        assert!(reply.text.lines().any(|have| have == line), "{line} in\n{}", reply.text);
    }
    for line in reply.text.lines() {
        let Some(kind) = line.strip_prefix("# TYPE ") else { continue };
        let name = kind.split(' ').next().unwrap();
        assert!(reply.text.contains(&format!("# HELP {name} ")), "{name}");
    }
}

#[tokio::test]
async fn readiness_ends_with_the_drain() {
    let bench = bench(Mood::Willing);
    assert_eq!(bench.get("/readyz").await.status, 200);
    bench.node.shared.draining.store(true, Ordering::Relaxed);
    let reply = bench.get("/readyz").await;
    assert_eq!((reply.status, reply.code().as_str()), (503, "going_down"));
    assert_eq!(bench.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn readiness_ends_at_the_memory_limit() {
    let bench = bench(Mood::Willing);
    bench.node.shared.memory_full.store(true, Ordering::Relaxed);
    let reply = bench.get("/readyz").await;
    assert_eq!((reply.status, reply.code().as_str()), (503, "memory_full"));
    assert!(reply.text.contains("limits.memory_bytes_max"), "{}", reply.text);
    assert!(bench.get("/metrics").await.text.contains("\nthrong_ready 0"));
    assert_eq!(bench.get("/healthz").await.status, 200);
    bench.node.shared.memory_full.store(false, Ordering::Relaxed);
    assert_eq!(bench.get("/readyz").await.status, 200);
    assert!(bench.get("/metrics").await.text.contains("\nthrong_ready 1"));
}

#[tokio::test]
async fn a_key_guards_all_but_page_and_health_from_the_moment_it_is_set() {
    let bench = bench(Mood::Willing);
    assert_eq!(bench.get("/api/config").await.json(), json!({"toml": "[limits]\n"}));
    bench.node.access.set(crate::tests::fake::access(&[("horse", &["admin"])]));
    for path in ["/", "/healthz", "/readyz"] {
        assert_eq!(bench.get(path).await.status, 200, "{path}");
    }
    for path in ["/metrics", "/api/stats", "/api/openapi.json", "/api/nothing", "/nothing"] {
        let reply = bench.get(path).await;
        assert_eq!((reply.status, reply.code().as_str()), (401, "no_key"), "{path}");
        assert_eq!(reply.headers["www-authenticate"], "Bearer");
        let request = Request::get(path).header("authorization", "Bearer wrong");
        let reply = bench.call(request.body(Body::empty()).unwrap()).await;
        assert_eq!((reply.status, reply.code().as_str()), (401, "bad_key"), "{path}");
    }
    let request = Request::get("/metrics").header("authorization", "Bearer horsehorse");
    assert_eq!(bench.call(request.body(Body::empty()).unwrap()).await.status, 200);
}

#[tokio::test]
async fn web_pages_of_others_are_rejected_before_anything_is_done() {
    let bench = bench(Mood::Willing);
    for (host, origin) in [
        ("127.0.0.1:8001", Some("http://evil.example")),
        ("127.0.0.1:8001", Some("http://127.0.0.1:3000")),
        ("127.0.0.1:8001", Some("null")),
        ("evil.example:8001", None),
        ("evil.example:8001", Some("http://evil.example:8001")),
    ] {
        let mut request = Request::post("/api/broadcast")
            .header("host", host)
            .header("content-type", "application/x-www-form-urlencoded");
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        let reply = bench.call(request.body("{\"data\":1}".into()).unwrap()).await;
        assert_eq!(reply.status, 403, "{host} {origin:?}");
        reply.code();
    }
    assert!(bench.published.lock().unwrap().is_empty());
}

#[tokio::test]
async fn no_reply_is_cached_or_guessed_at_by_a_browser() {
    let bench = bench(Mood::Willing);
    for (path, status) in [
        ("/healthz", 200),
        ("/readyz", 200),
        ("/metrics", 200),
        ("/api/stats", 200),
        ("/api/config", 200),
        ("/api/openapi.json", 200),
        ("/api/samples", 200),
        ("/api/history", 400),
        ("/api/users/alice", 200),
        ("/api/publish", 405),
        ("/api/nothing", 404),
        ("/api/topics?limit=0", 400),
    ] {
        let reply = bench.get(path).await;
        assert_eq!(reply.status, status, "{path}");
        assert_eq!(reply.headers["cache-control"], "no-store", "{path}");
        assert_eq!(reply.headers["x-content-type-options"], "nosniff", "{path}");
    }
    bench.node.access.set(crate::tests::fake::access(&[("horse", &["admin"])]));
    let rejected = bench.get("/api/stats").await;
    assert_eq!(
        (rejected.status, &rejected.headers["cache-control"]),
        (401, &"no-store".parse().unwrap())
    );
    assert_eq!(rejected.headers["x-content-type-options"], "nosniff");
}

#[tokio::test]
async fn bodies_have_a_bound_together_and_each_its_own() {
    let bench = bench(Mood::Willing);
    let publish = |chunks: Vec<String>| {
        let chunks = chunks.into_iter().map(Ok::<_, std::convert::Infallible>);
        let body = Body::from_stream(futures_util::stream::iter(chunks));
        Request::post("/api/publish").header("host", "localhost").body(body).unwrap()
    };
    let whole = r#"{"topic":"news","data":"in pieces"}"#;
    let pieces = || whole.chars().map(String::from).collect();
    assert_eq!(bench.call(publish(pieces())).await.status, 200);
    let reply = bench.call(publish(vec!["x".repeat(4000), "x".repeat(97)])).await;
    assert_eq!((reply.status, reply.code().as_str()), (413, "body_too_large"));
    let limits = crate::http::admission::tests::limits(9);
    bench.node.connections.set(crate::ConnectionLimits { bodies_bytes_max: 20, ..limits });
    let reply = bench.call(publish(pieces())).await;
    assert_eq!((reply.status, reply.code().as_str()), (503, "overloaded"));
    assert_eq!(reply.headers["retry-after"], "1");
    let metrics = bench.get("/metrics").await.text;
    for line in ["throng_admin_bodies_bytes 0.0", "throng_admin_bodies_refused_total 1.0"] {
        assert!(metrics.lines().any(|have| have == line), "{line} in\n{metrics}");
    }
}

#[tokio::test]
async fn what_is_not_there_is_served_in_json() {
    let bench = bench(Mood::Willing);
    let reply = bench.get("/api/nothing").await;
    assert_eq!((reply.status, reply.code().as_str()), (404, "not_found"));
    for (path, allowed) in [("/api/publish", "POST"), ("/api/broadcast", "POST")] {
        let reply = bench.get(path).await;
        assert_eq!((reply.status, reply.code().as_str()), (405, "method_not_allowed"));
        assert_eq!(reply.headers["allow"], allowed);
    }
    let reply = bench.post("/api/stats", "{}").await;
    assert_eq!((reply.status, &reply.headers["allow"]), (405, &"GET,HEAD".parse().unwrap()));
}

#[tokio::test]
async fn the_openapi_document_is_served() {
    let document = bench(Mood::Willing).get("/api/openapi.json").await.json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3."));
    assert!(document["paths"]["/api/batch"]["post"].is_object());
}

/// The OpenAPI document and the dashboard's fields have the length of names that is checked.
#[tokio::test]
async fn the_longest_name_is_documented_as_it_is_checked() {
    let document = bench(Mood::Willing).get("/api/openapi.json").await.json();
    let schemas = &document["components"]["schemas"];
    for (schema, fields) in [
        ("Publish", &["topic", "event", "key", "sender"][..]),
        ("Send", &["user", "event", "key", "sender"]),
        ("Broadcast", &["event", "sender"]),
        ("Disconnect", &["user"]),
        ("Membership", &["user", "topic"]),
        ("Acknowledgement", &["user"]),
        ("Subscribe", &["user"]),
        ("UserChange", &["user"]),
    ] {
        for field in fields {
            let name = &schemas[schema]["properties"][field];
            assert_eq!(
                (&name["minLength"], &name["maxLength"]),
                (&json!(1), &json!(NAME_BYTES_MAX))
            );
        }
    }
    let length = |text: &str, before: &str| -> Vec<usize> {
        let behind = text.split(before).skip(1);
        behind
            .map(|it| it.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap())
            .collect()
    };
    let help = include_str!("../dashboard/page/help.js");
    assert_eq!(length(help, "maxlength: "), [NAME_BYTES_MAX; 2]);
    let publish = include_str!("../dashboard/page/publish.js");
    assert_eq!(length(publish, "maxlength: "), [NAME_BYTES_MAX]);
    let index = include_str!("../dashboard/page/index.html");
    assert_eq!(length(index, "maxlength=\""), [PERSONAL_BYTES_MAX], "a user is sought as @alice");
}

#[test]
fn an_open_connection_does_not_keep_the_thread_from_ending() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let node = fake::node(Mood::Willing, Arc::default(), Arc::default());
    let (_, worker) = fake::webhook();
    let running = crate::spawn(
        crate::Runtime::new().unwrap(),
        crate::Listeners { plain: listener, tls: None },
        node,
        worker,
        None,
    )
    .unwrap();
    let mut open = TcpStream::connect(address).unwrap();
    let mut busy = TcpStream::connect(address).unwrap();
    open.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    open.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut head = [0; 15];
    open.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200 OK");
    busy.write_all(b"POST /api/send HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
        .unwrap();
    running.stop();
    assert!(TcpStream::connect(address).is_err());
}
