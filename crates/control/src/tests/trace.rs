//! A trace as its reader gets it.

use axum::body::Body;
use axum::http::Request;
use futures_util::StreamExt;
use serde_json::{Value, json};
use shard::TRACES_MAX;

use super::fake::{self, Bench, EVENTS, Mood, bench};
use crate::api::TRACE_EVENTS_MAX;

async fn open(bench: &Bench, query: &str) -> axum::body::BodyDataStream {
    let request = Request::get(format!("/api/trace?{query}"));
    let request = request.header("authorization", "Bearer horsehorse");
    let response = bench.open(request.body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    assert_eq!(response.headers()["cache-control"], "no-store, no-transform");
    assert_eq!(response.headers()["x-accel-buffering"], "no");
    response.into_body().into_data_stream()
}

/// Returns the lines of the next pieces, until there are `count` lines in all or the trace ends.
async fn lines(body: &mut axum::body::BodyDataStream, count: usize) -> Vec<Value> {
    let mut all = Vec::new();
    while all.len() < count
        && let Some(piece) = body.next().await
    {
        let piece = piece.unwrap();
        let lines = piece.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        all.extend(lines.map(|line| serde_json::from_slice::<Value>(line).unwrap()));
    }
    all
}

fn commands(bench: &Bench) -> Vec<String> {
    std::mem::take(&mut *bench.commands.lock().unwrap())
}

#[tokio::test]
async fn a_trace_begins_with_a_count_and_ends_on_every_shard_with_its_reader() {
    let bench = bench(Mood::Willing);
    let mut body = open(&bench, "user=alice").await;
    let lines = lines(&mut body, 2).await;
    assert_eq!((&lines[0]["event"], &lines[0]["connections"]), (&json!("trace"), &json!(2)));
    let id = lines[1]["connection"].as_str().unwrap().to_owned();
    let want = json!({"at": 5000, "event": "delivered", "connection": id, "topic": "news", "id": "0badcafe:7",
        "name": "message", "bytes": 4, "age_ms": 1.5, "outbox_bytes": 3});
    assert_eq!(lines[1], want);
    assert_eq!(commands(&bench), ["0 trace 0 alice", "1 trace 0 alice"]);
    drop(body);
    assert_eq!(commands(&bench), ["0 trace end 0", "1 trace end 0"]);
    // A trace of one connection goes to its shard alone.
    let body = open(&bench, &format!("connection={id}")).await;
    assert_eq!(commands(&bench), [format!("0 trace 1 {id}")]);
    drop(body);
}

#[tokio::test]
async fn events_that_a_slow_reader_does_not_take_are_counted() {
    let bench = bench(Mood::Willing);
    let mut body = open(&bench, "user=alice").await;
    // It ends, as both shards have dropped it.
    let all = lines(&mut body, usize::MAX).await;
    let events = |name: &str| all.iter().filter(|line| line["event"] == name).count();
    assert_eq!((events("trace"), events("delivered")), (1, TRACE_EVENTS_MAX));
    let left_out: u64 = all.iter().filter_map(|line| line["events"].as_u64()).sum();
    assert_eq!(left_out as usize, 2 * EVENTS - TRACE_EVENTS_MAX);
}

#[tokio::test]
async fn what_can_not_be_followed_is_rejected() {
    let bench = bench(Mood::Willing);
    for (query, status, code) in [
        ("", 400, "bad_request"),
        ("user=alice&connection=00000009-0-12-345", 400, "bad_request"),
        ("user=", 400, "bad_user"),
        ("connection=x", 400, "bad_connection"),
        ("connection=00000009-0-13-345", 404, "no_connection"),
        ("connection=00000009-7-12-345", 404, "no_connection"),
    ] {
        let reply = bench.get(&format!("/api/trace?{query}")).await;
        assert_eq!((reply.status, reply.code().as_str()), (status, code), "{query}");
    }
    assert_eq!(bench.get("/api/trace?user=a&x=1").await.status, 400);
    // No trace is under way.
    let ended = commands(&bench).iter().filter(|line| line.contains("trace end")).count();
    assert_eq!(ended, 4, "two of connections, on both shards");
}

#[tokio::test]
async fn there_are_only_so_many_traces() {
    let bench = bench(Mood::Willing);
    let mut all = Vec::new();
    for _ in 0..TRACES_MAX {
        all.push(open(&bench, "user=alice").await);
    }
    let reply = bench.get("/api/trace?user=alice").await;
    assert_eq!((reply.status, reply.code().as_str()), (503, "too_many_readers"));
    all.pop();
    drop(open(&bench, "user=alice").await);
}

#[tokio::test]
async fn a_trace_ends_with_its_key() {
    let bench = bench(Mood::Willing);
    bench.node.access.set(fake::access(&[("horse", &["read"])]));
    let mut body = open(&bench, "user=alice").await;
    assert_eq!(lines(&mut body, 1).await.len(), 1);
    bench.node.access.set(fake::access(&[("other", &["read"])]));
    assert!(body.next().await.is_none());
    let reply = bench.get("/api/trace?user=alice").await;
    assert_eq!((reply.status, reply.code().as_str()), (401, "no_key"));
}
