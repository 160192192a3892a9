//! An operator drains a node: the server sends its clients to another server, by the means of each protocol.

mod command;
mod with_upgrade;
mod words;

use std::io::BufRead;

use serde_json::{Value, json};

use crate::support::*;

/// Returns the state of the drain.
fn state(server: &Server) -> Value {
    let (status, state) = server.api("GET", "/api/drain", None);
    assert_eq!(status, 200, "{state}");
    state
}

fn until_drained(server: &Server) {
    server.until("the node is drained", |server| state(server)["stage"] == "drained");
    assert_eq!(state(server)["connections"], 0);
}

fn is_ready(server: &Server) -> bool {
    let (status, body) = server.api("GET", "/readyz", None);
    assert!(status == 200 || body["error"]["code"] == "going_down", "{status} {body}");
    status == 200
}

#[test]
fn while_balancers_take_the_node_out_it_serves_all() {
    let server = Server::with(&["--shards", "2"], &[]);
    let mut before = server.listen("/sse?topic=a");
    let begun = server.post("/api/drain", json!({"wait_seconds": 86_400}));
    assert_eq!(begun["stage"], "waiting");
    assert!(!is_ready(&server));
    assert_eq!(server.metric("throng_draining"), 1.0);
    assert_eq!(server.metric("throng_ready"), 0.0);
    let mut since = server.listen("/sse?topic=a");
    server.until_members("a", 2);
    server.publish("a", json!("one"));
    assert_eq!((before.data(), since.data()), ("one".into(), "one".into()));
    // There is one drain at a time.
    let (status, refused) = server.api("POST", "/api/drain", Some(json!({})));
    assert_eq!((status, &refused["error"]["code"]), (409, &json!("drain_under_way")));
    let body = json!({"connections": 1});
    let (status, refused) = server.api("POST", "/api/rebalance", Some(body));
    assert_eq!((status, &refused["error"]["code"]), (409, &json!("drain_under_way")));
    assert_eq!(state(&server)["closed"], 0);
    let (status, cancelled) = server.api("DELETE", "/api/drain", None);
    assert_eq!((status, &cancelled["stage"]), (200, &json!("serving")));
    assert!(is_ready(&server));
    assert_eq!(server.metric("throng_draining"), 0.0);
    server.publish("a", json!("two"));
    assert_eq!((before.data(), since.data()), ("two".into(), "two".into()));
}

#[test]
fn a_drain_closes_one_after_the_other_and_goes_no_further_when_it_is_cancelled() {
    let server = Server::with(&["--shards", "2"], &[]);
    let mut clients: Vec<Stream> = (0..40).map(|_| server.listen("/sse?topic=a")).collect();
    server.until_members("a", 40);
    server.post("/api/drain", json!({"wait_seconds": 0, "per_second": 2}));
    server.until("some are closed", |server| state(server)["closed"].as_u64() >= Some(3));
    // The server accepts a new client during the drain.
    clients.push(server.listen("/sse?topic=a"));
    let (_, cancelled) = server.api("DELETE", "/api/drain", None);
    assert_eq!(cancelled["stage"], "serving");
    server.publish("a", json!("one"));
    let mut still: Vec<Stream> = Vec::new();
    let mut closed = 0.0;
    for mut client in clients {
        match gets(&mut client, "one") {
            true => still.push(client),
            false => closed += 1.0,
        }
    }
    assert!(closed >= 3.0, "{closed}");
    // After the cancel the server closes no more clients.
    server.until("the connections have ended", |server| {
        server.metric("throng_connections_closed_total{reason=\"use_another_server\"}") == closed
    });
    server.publish("a", json!("two"));
    assert!(still.iter_mut().all(|client| gets(client, "two")));
}

#[test]
fn a_bad_request_begins_nothing() {
    let server = Server::start();
    for body in [
        json!({"seconds": 0}),
        json!({"seconds": 86_401}),
        json!({"per_second": 0}),
        json!({"per_second": 5, "seconds": 5}),
        json!({"wait_seconds": 100_000}),
        json!({"second": 5}),
        json!({"exit": "yes"}),
    ] {
        let (status, error) = server.api("POST", "/api/drain", Some(body.clone()));
        assert_eq!(status, 400, "{body}: {error}");
    }
    for body in [json!({}), json!({"connections": 0}), json!({"connections": 5, "per_second": 0})] {
        assert_eq!(server.api("POST", "/api/rebalance", Some(body)).0, 400);
    }
    assert!(is_ready(&server));
    assert_eq!(state(&server)["stage"], "serving");
}

/// Returns true if an event stream gets this message before the server closes it.
fn gets(client: &mut Stream, data: &str) -> bool {
    loop {
        let mut line = String::new();
        client.reader.read_line(&mut line).unwrap();
        if line.starts_with(": closing, use_another_server") {
            return false;
        }
        assert!(!line.is_empty(), "it was closed without a word");
        if let Some(found) = line.strip_prefix("data: ") {
            assert_eq!(found.trim_end(), data);
            return true;
        }
    }
}
