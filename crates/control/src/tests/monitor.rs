//! Live figures, their samples, top topics, members and messages.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Request;
use futures_util::Stream;
use model::CloseReason;
use serde_json::{Value, json};

use super::fake::{self, Bench, Mood, bench};
use crate::monitor::READERS_MAX;

/// Opens the live figures.
async fn live(bench: &Bench) -> axum::body::BodyDataStream {
    let response = bench.open(Request::get("/api/live").body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    assert_eq!(response.headers()["cache-control"], "no-store, no-transform");
    assert_eq!(response.headers()["x-accel-buffering"], "no");
    response.into_body().into_data_stream()
}

/// Returns the next piece of a body, or `None` at its end.
async fn next(body: &mut axum::body::BodyDataStream) -> Option<Bytes> {
    let piece = std::future::poll_fn(|context| std::pin::Pin::new(&mut *body).poll_next(context));
    piece.await.map(Result::unwrap)
}

fn sample(event: &[u8]) -> Value {
    let text = std::str::from_utf8(event).unwrap();
    let data =
        text.strip_prefix("event: sample\ndata: ").and_then(|text| text.strip_suffix("\n\n"));
    serde_json::from_str(data.unwrap_or_else(|| panic!("{text:?}"))).unwrap()
}

#[tokio::test]
async fn live_figures_begin_with_the_newest_and_end_with_the_sampler() {
    let mut bench = bench(Mood::Willing);
    let shard = bench.node.shards.metrics(1);
    shard.connections[1].add(1);
    shard.connections[2].add(1);
    shard.open_connections.add(2);
    shard.closed[CloseReason::SlowConsumer as usize].add(1);
    shard.closed[CloseReason::ByClient as usize].add(1);
    shard.delivered.add(100);
    shard.delivery_latency.record(1000, 100);
    shard.refused[0].add(1);
    shard.replies[2].add(1);
    bench.node.shared.connections.store(2, Ordering::Relaxed);
    let mut early = live(&bench).await;
    bench.sampler.sample();
    let mut late = live(&bench).await;
    let first = next(&mut early).await.unwrap();
    let same = next(&mut late).await.unwrap();
    assert_eq!(first.as_ptr(), same.as_ptr(), "encoded once");
    let first = sample(&first);
    assert!(first["at"].as_u64().unwrap() > 1_600_000_000_000);
    assert_eq!(first["connections_max"], 5000);
    assert_eq!((&first["connections"], &first["shards"]), (&json!(2), &json!([0, 2])));
    assert_eq!((&first["transports"]["sse"], &first["transports"]["ws"]), (&json!(2), &json!(0)));
    for rate in ["closed", "slow", "delivered", "refused", "answers", "cpu"] {
        assert!(first[rate].as_f64().unwrap() > 0.0, "{rate}");
    }
    assert_eq!(first["closed_by"].as_object().unwrap().len(), 2);
    assert_eq!(first["latency_ms"]["p50"], 1.024);
    assert!(first["user_bytes"].as_u64().unwrap() <= first["rss_bytes"].as_u64().unwrap());
    let kernel = first["kernel_bytes"].as_f64().unwrap();
    assert!(kernel >= 2.0 * 4170.0);
    assert!((first["kernel_bytes_per_connection"].as_f64().unwrap() - kernel / 2.0).abs() < 1.0);
    let stats = bench.get("/api/stats").await.json();
    for gauge in ["connections", "outboxes", "outbox_bytes", "topics"] {
        assert_eq!(first[gauge], stats[gauge], "{gauge}");
    }
    bench.node.live.write().unwrap().limits[1].1 = 7000;
    bench.sampler.sample();
    let second = sample(&next(&mut early).await.unwrap());
    assert_eq!((&second["latency_ms"], &second["closed_by"]), (&Value::Null, &json!({})));
    assert_eq!((&second["delivered"], &second["connections_max"]), (&json!(0), &json!(7000)));
    drop(bench.sampler);
    assert!(next(&mut early).await.is_none());
    assert!(next(&mut late).await.is_some(), "it had not seen the second");
    assert!(next(&mut late).await.is_none());
}

#[tokio::test]
async fn only_so_many_read_the_live_figures() {
    let mut bench = bench(Mood::Willing);
    bench.sampler.sample();
    let mut readers = Vec::new();
    for _ in 0..READERS_MAX {
        readers.push(live(&bench).await);
    }
    let reply = bench.get("/api/live").await;
    assert_eq!((reply.status, reply.code().as_str()), (503, "too_many_readers"));
    readers.pop();
    assert_eq!(sample(&next(&mut live(&bench).await).await.unwrap())["connections"], 0);
}

#[tokio::test]
async fn the_samples_say_what_node_they_are_of() {
    let mut bench = bench(Mood::Willing);
    for _ in 0..3 {
        bench.sampler.sample();
    }
    let reply = bench.get("/api/samples").await.json();
    assert_eq!(reply["epoch"], "5f3a91c2");
    assert_eq!(reply["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!((&reply["interval_seconds"], &reply["connections_max"]), (&json!(1), &json!(5000)));
    assert_eq!((&reply["is_clustered"], &reply["has_outbox"]), (&json!(false), &json!(false)));
    assert!(reply["cores"].as_u64().unwrap() > 0);
    assert!(reply["started_at"].as_u64().unwrap() > 1_600_000_000);
    let samples = &reply["samples"];
    for column in [
        "at",
        "connections",
        "opened",
        "closed",
        "refused",
        "messages_in",
        "delivered",
        "bytes_in",
        "bytes_out",
        "answers",
        "p50",
        "p90",
        "p99",
        "user_bytes",
        "user_bytes_per_connection",
        "kernel_bytes_per_connection",
        "rss_bytes",
        "cpu",
        "slow",
        "outboxes",
        "outbox_bytes",
        "topics",
    ] {
        assert_eq!(samples[column].as_array().map(Vec::len), Some(3), "{column}");
    }
    assert_eq!(samples["transports"]["ws"], json!([0, 0, 0]));
    assert_eq!(samples["closed_by"], json!({}));
}

/// Earlier versions had the samples at this path: the error names the new one.
#[tokio::test]
async fn history_without_a_topic_is_rejected_and_names_the_samples() {
    let bench = bench(Mood::Willing);
    for path in ["/api/history", "/api/history?limit=3"] {
        let reply = bench.get(path).await;
        assert_eq!((reply.status, reply.code().as_str()), (400, "no_topic"), "{path}");
        assert!(reply.text.contains("/api/history/{topic}"), "{}", reply.text);
        assert!(reply.text.contains("/api/samples"), "{}", reply.text);
    }
    assert_eq!(bench.post("/api/samples", "{}").await.status, 405);
}

#[tokio::test(start_paused = true)]
async fn the_biggest_topics_are_counted_exactly_and_for_all_who_ask_in_two_seconds() {
    let bench = bench(Mood::Willing);
    bench.post("/api/publish", json!({"topic": "a", "data": 1})).await;
    let top = bench.get("/api/top?limit=3").await.json();
    let row = |topic: &str, members: u64, rate: u64| json!({"topic": topic, "members": members, "messages_per_minute": rate});
    let want = [row("deep", 33, 0), row("a", 11, 2), row("b", 0, 0)];
    assert_eq!(top["by"], "members");
    assert_eq!(top["topics"].as_array().unwrap()[..2], want[..2]);
    // A topic that a list at its limit leaves out is counted again: this one has no members any more.
    assert_eq!(top["topics"][2]["members"], 0);
    let sent = |what: &str| {
        bench.commands.lock().unwrap().iter().filter(|line| line.contains(what)).count()
    };
    assert_eq!((sent("biggest 40"), sent("biggest")), (2, 2));
    bench.get("/api/top?by=members").await;
    assert_eq!(sent("biggest"), 2);
    assert_eq!(bench.get("/api/top?limit=30").await.json()["topics"].as_array().unwrap().len(), 30);
    assert_eq!((sent("biggest 60"), sent("biggest")), (2, 4));
    tokio::time::advance(Duration::from_secs(2)).await;
    bench.get("/api/top").await;
    assert_eq!(sent("biggest"), 6);
    for query in ["limit=0", "limit=101", "by=size", "x=1"] {
        let reply = bench.get(&format!("/api/top?{query}")).await;
        assert_eq!(reply.status, 400, "{query}");
        reply.code();
    }
}

#[tokio::test]
async fn the_busiest_topics_are_those_with_the_most_recent_messages() {
    let bench = bench(Mood::Willing);
    bench.node.shared.connections.store(9, Ordering::Relaxed);
    for (path, body) in [
        ("publish", json!({"topic": "news", "data": 1})),
        ("publish", json!({"topic": "news", "data": 2})),
        ("publish", json!({"topic": "news", "data": 3})),
        ("broadcast", json!({"data": 4})),
        ("broadcast", json!({"data": 5})),
        ("send", json!({"user": "alice", "data": 6})),
    ] {
        assert_eq!(bench.post(&format!("/api/{path}"), body).await.status, 200);
    }
    let top = bench.get("/api/top?by=messages").await.json();
    let want = json!([
        {"topic": "news", "members": 4, "messages_per_minute": 6},
        {"topic": "*", "members": 9, "messages_per_minute": 4},
        {"topic": "@alice", "members": 4, "messages_per_minute": 2},
    ]);
    assert_eq!((&top["by"], &top["topics"]), (&json!("messages"), &want));
}

#[tokio::test]
async fn the_costliest_topics_are_summed_over_shards() {
    let bench = bench(Mood::Willing);
    bench.node.shared.connections.store(9, Ordering::Relaxed);
    let row = |topic: &str, members: u64, deliveries: u64, bytes: u64| {
        json!({"topic": topic, "members": members, "messages_per_minute": 0,
            "deliveries_per_minute": deliveries, "bytes_per_minute": bytes})
    };
    // The shards have counted for half a minute.
    let top = bench.get("/api/top?by=deliveries").await.json();
    let want = [row("news", 4, 120, 2_400), row("@alice", 4, 80, 200), row("a", 0, 6, 10_000)];
    assert_eq!((&top["by"], &top["topics"]), (&json!("deliveries"), &json!(want)));
    let top = bench.get("/api/top?by=bytes&limit=1").await.json();
    assert_eq!(top, json!({"by": "bytes", "topics": [row("a", 0, 6, 10_000)]}));
}

#[tokio::test]
async fn the_slowest_connections_are_the_first_of_all_shards() {
    let bench = bench(Mood::Willing);
    let found = bench.get("/api/slowest?limit=3").await.json();
    assert_eq!(found["count"], 10);
    let rows = found["connections"].as_array().unwrap().iter();
    let waiting: Vec<_> = rows.map(|it| it["outbox_bytes"].as_u64().unwrap()).collect();
    assert_eq!(waiting, [1_001, 1_000, 901]);
    let first = &found["connections"][0];
    assert_eq!(
        (&first["id"], &first["outbox_age_ms"]),
        (&json!("00000009-1-12-345"), &json!(1_500))
    );
    assert_eq!((&first["users"], &first["transport"]), (&json!(["alice"]), &json!("sse")));
    for query in ["limit=0", "limit=101", "by=age"] {
        let reply = bench.get(&format!("/api/slowest?{query}")).await;
        assert_eq!(reply.status, 400, "{query}");
    }
}

/// The callers wait for a silent shard once, not each of them.
#[tokio::test(start_paused = true)]
async fn top_topics_of_silent_shards_are_503_for_all_who_wait() {
    let bench = bench(Mood::Silent);
    let began = tokio::time::Instant::now();
    for _ in 0..5 {
        let reply = bench.get("/api/top").await;
        assert_eq!((reply.status, reply.code().as_str()), (503, "no_answer"));
    }
    assert!(began.elapsed().as_secs_f64() < 5.1, "{:?}", began.elapsed());
}

#[tokio::test]
async fn members_of_a_topic_are_counted_and_some_described() {
    let bench = bench(Mood::Willing);
    let reply = bench.get("/api/topics/a%2Fb/members?limit=7").await.json();
    assert_eq!((&reply["topic"], &reply["members"]), (&json!("a/b"), &json!(10)));
    let connections = reply["connections"].as_array().unwrap();
    assert_eq!(connections.len(), 7);
    let user = bench.get("/api/users/alice?limit=6").await.json();
    assert_eq!(user["count"], 10);
    assert_eq!(user["connections"].as_array().unwrap().len(), 6);
    bench.get("/api/users/bob").await;
    assert_eq!(connections[0]["id"], "00000009-0-12-345");
    assert_eq!(connections[0]["topics"], user["connections"][0]["topics"]);
    let commands =
        ["0 members a/b 7", "1 members a/b 7", "0 members @alice 6", "1 members @alice 6"];
    assert_eq!(bench.commands.lock().unwrap()[..4], commands);
    assert_eq!(bench.commands.lock().unwrap()[4..], ["0 members @bob 100", "1 members @bob 100"]);
    for path in ["topics/a/members", "users/a"] {
        for query in ["limit=0", "limit=1001", "limit=x", "page=1", "limit=%FF"] {
            let reply = bench.get(&format!("/api/{path}?{query}")).await;
            assert_eq!(reply.status, 400, "{path} {query}");
            assert!(["bad_limit", "bad_query"].contains(&reply.code().as_str()));
        }
    }
}

#[tokio::test]
async fn messages_come_newest_first_as_they_were_published() {
    let bench = bench(Mood::Willing);
    let none = bench.get("/api/messages").await.json();
    assert_eq!(none, json!({"messages": [], "complete": true}));
    assert_eq!(bench.get("/api/messages?topic=needle").await.json()["complete"], false);
    for (path, body) in [
        ("publish", "{\"topic\":\"news\",\"data\":{\"a\": 1.50}}"),
        ("publish", "{\"topic\":\"news\",\"data\":\"hi\",\"event\":\"note\"}"),
        ("send", "{\"user\":\"alice\",\"data\":\"AP8=\",\"encoding\":\"base64\"}"),
    ] {
        assert_eq!(bench.post(&format!("/api/{path}"), body).await.status, 200);
    }
    let reply = bench.get("/api/messages").await;
    assert!(reply.text.contains("{\"a\":1.50}"), "digits stay: {}", reply.text);
    let reply = reply.json();
    let message = |n: usize| {
        let mut message = reply["messages"][n].clone();
        let at = message.as_object_mut().unwrap().remove("published_at").unwrap();
        assert!(at.as_u64().unwrap() > 1_600_000_000_000);
        message
    };
    let bytes = json!({"id": "5f3a91c2:3", "offset": 3, "topic": "@alice", "event": "message", "data": "AP8=",
        "encoding": "base64"});
    let text =
        json!({"id": "5f3a91c2:2", "offset": 2, "topic": "news", "event": "note", "data": "hi"});
    let number = json!({"id": "5f3a91c2:1", "offset": 1, "topic": "news", "event": "message", "data": {"a": 1.5}});
    assert_eq!([message(0), message(1), message(2)], [bytes, text, number]);
    let at = |n: usize| reply["messages"][n]["published_at"].as_u64().unwrap();
    assert_eq!(at(0) - at(1), 1000);
    let one = bench.get("/api/messages?topic=news&limit=1").await.json();
    assert_eq!(
        (one["messages"].as_array().unwrap().len(), &one["messages"][0]["data"]),
        (1, &json!("hi"))
    );
    let user = bench.get("/api/messages?topic=%40alice").await.json();
    assert_eq!(user["messages"].as_array().unwrap().len(), 1);
    for query in ["limit=0", "limit=101", "user=alice"] {
        assert_eq!(bench.get(&format!("/api/messages?{query}")).await.status, 400, "{query}");
    }
    // Text that is not UTF-8 is rejected, and not taken for a name with U+FFFD in it.
    for path in ["messages?topic=%FF", "topics?prefix=%C3", "messages?%80=1"] {
        let reply = bench.get(&format!("/api/{path}")).await;
        assert_eq!((reply.status, reply.code().as_str()), (400, "bad_query"), "{path}");
    }
    assert_eq!(bench.get("/api/messages?topic=%EF%BF%BD").await.status, 200);
}

#[tokio::test]
async fn what_is_monitored_needs_the_key_as_all_does() {
    let bench = bench(Mood::Willing);
    bench.node.access.set(crate::tests::fake::access(&[("horse", &["admin"])]));
    for path in ["live", "samples", "history", "top", "messages", "topics/a/members"] {
        assert_eq!(bench.get(&format!("/api/{path}")).await.status, 401, "{path}");
    }
}

#[test]
fn live_figures_come_every_second_and_end_with_the_stop() {
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
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(b"GET /api/live HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    let mut samples = Vec::new();
    while samples.len() < 2 {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0, "the stream ended: {samples:?}");
        if let Some(data) = line.strip_prefix("data: ") {
            samples.push(serde_json::from_str::<Value>(data).unwrap()["at"].as_u64().unwrap());
        }
    }
    assert!(samples[1] - samples[0] >= 900, "{samples:?}");
    running.stop();
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("0\r\n\r\n"), "the answer ends in order: {rest:?}");
}

#[tokio::test]
async fn the_kernels_stats_and_findings_are_served_and_measured() {
    let bench = bench(Mood::Willing);
    let reply = bench.get("/api/kernel").await.json();
    assert!(reply["seconds"].is_u64() && reply["findings"].is_array(), "{reply}");
    // This kernel has counters of TCP.
    assert!(reply["stats"]["listen_drops"].is_u64(), "{reply}");
    assert!(reply["kernel_id"].as_str().is_some_and(|id| id.contains(':')), "{reply}");
    let metrics = bench.get("/metrics").await.text;
    for name in ["listen_overflows", "tcp_aborts_on_memory", "tcp_segments_out", "softnet_dropped"]
    {
        assert!(metrics.contains(&format!("\nthrong_kernel_{name}_total ")), "{name}");
    }
    // A metric that this kernel does not report has help, and no value.
    for name in ["conntrack_entries", "conntrack_entries_max", "files_max", "pressure_ratio"] {
        assert!(metrics.contains(&format!("# HELP throng_kernel_{name} ")), "{name}");
    }
}
