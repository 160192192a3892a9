//! Several nodes and one NATS server: messages reach the members at all nodes.

mod api;
mod credentials;
mod faults;
mod max_payload;
mod mqtt;
mod mqtt_clients;
mod older;
mod presence;
mod rebalance;
mod retained;
mod revocations;
pub mod support;
mod upgrade;

use serde_json::{Value, json};

use crate::outbox::support::Postgres;
use crate::support::*;
use support::*;

/// Reads messages of an HTTP stream up to `"end"`, and returns the data of those before it.
fn until_end(stream: &mut Stream) -> Vec<Value> {
    let mut all = Vec::new();
    loop {
        let object = stream.next_object();
        match object["data"].clone() {
            Value::String(text) if text == "end" => return all,
            Value::Null => {}
            data => all.push(data),
        }
    }
}

/// Opens an HTTP stream and reads its welcome.
fn stream(node: &Server, query: &str) -> Stream {
    let mut stream = node.listen(&format!("/stream?{query}"));
    assert_eq!(stream.next_object()["type"], "welcome");
    stream
}

#[test]
fn a_message_reaches_the_members_on_all_nodes_by_every_transport() {
    let nats = Nats::start();
    let [a, b, c] = nats.nodes(&[]);
    let mut lines = stream(&b, "topic=news");
    let mut events = c.listen("/sse?topic=news");
    let mut socket = websocket(&c, "topic=news");
    let mut here = stream(&a, "topic=news");
    for number in 0..100 {
        a.publish("news", json!(number));
    }
    a.publish("news", json!("end"));
    let expected: Vec<Value> = (0..100).map(Value::from).collect();
    assert_eq!(until_end(&mut lines), expected);
    assert_eq!(until_end(&mut here), expected);
    for number in 0..100 {
        assert_eq!(events.data(), number.to_string());
        assert_eq!(receive(&mut socket)["data"], number);
    }
    // Messages of clients take the same path.
    let reply =
        command(&mut socket, json!({"type": "publish", "id": 1, "topic": "news", "data": "hello"}));
    assert!(reply["ok"].is_object(), "{reply}");
    assert_eq!(lines.next_object()["data"], "hello");
    assert_eq!(here.next_object()["data"], "hello");
    assert_eq!(state(&a)["messages"]["gaps"], 0);
}

#[test]
fn users_and_everyone_get_their_messages_at_any_node() {
    let nats = Nats::start();
    let [a, b, c] = nats.nodes(&[]);
    let mut alice = [stream(&b, "user=alice"), stream(&c, "user=alice")];
    let mut bob = stream(&b, "user=bob");
    a.post("/api/send", json!({"user": "alice", "data": "for alice"}));
    a.post("/api/send", json!({"user": "alice", "data": "end"}));
    a.post("/api/broadcast", json!({"data": "for everyone"}));
    a.post("/api/send", json!({"user": "bob", "data": "end"}));
    // Messages of different topics have no order.
    let sorted = |stream: &mut Stream, count| {
        let data = (0..count).map(|_| stream.next_object()["data"].as_str().unwrap().to_string());
        let mut data: Vec<String> = data.collect();
        data.sort();
        data
    };
    for stream in &mut alice {
        assert_eq!(sorted(stream, 3), ["end", "for alice", "for everyone"]);
    }
    assert_eq!(sorted(&mut bob, 2), ["end", "for everyone"]);
}

#[test]
fn what_a_transaction_publishes_reaches_the_members_on_all_nodes_once() {
    let (nats, postgres) = (Nats::start(), Postgres::start());
    let nodes = nats.nodes::<3>(&[("THRONG_OUTBOX_URL", &postgres.url("postgres"))]);
    let mut members = nodes.each_ref().map(|node| stream(node, "topic=orders"));
    postgres.until_schema();
    postgres.psql(
        "SELECT count(throng.publish('orders', to_jsonb(n))) FROM generate_series(1, 100) AS n; \
         SELECT throng.publish('orders', '\"end\"')",
    );
    let expected: Vec<Value> = (1..=100).map(Value::from).collect();
    for member in &mut members {
        assert_eq!(until_end(member), expected);
    }
    postgres.until_empty();
    let draining = nodes.iter().map(|node| node.metric("throng_outbox_draining"));
    assert_eq!(draining.sum::<f64>(), 1.0);
}

#[test]
fn a_wildcard_matches_what_other_nodes_publish() {
    let nats = Nats::start();
    let [a, b] = nats.nodes(&[("THRONG_CLIENT_WILDCARDS", "true")]);
    let mut all = stream(&b, "topic=site/%2B/temp&filter=mqtt");
    for site in 0..20 {
        a.publish(&format!("site/{site}/temp"), json!(site));
        a.publish(&format!("site/{site}/other"), json!("no"));
    }
    a.publish("site/x/temp", json!("end"));
    let mut sites = until_end(&mut all);
    // Messages of different topics have no order, so some may come after `"end"`.
    sites.extend((sites.len()..20).map(|_| all.next_object()["data"].clone()));
    sites.sort_by_key(Value::as_u64);
    assert_eq!(sites, (0..20).map(Value::from).collect::<Vec<_>>());
}

#[test]
fn a_member_gets_all_that_is_published_once_it_has_subscribed() {
    let nats = Nats::start();
    let [a, b] = nats.nodes(&[]);
    for round in 0..20 {
        // The other node had no member of this topic, and its interest in it is still on the way to the first node.
        let topic = format!("round:{round}");
        let mut member = stream(&b, &format!("topic={topic}"));
        for number in 0..20 {
            a.publish(&topic, json!(number));
        }
        a.publish(&topic, json!("end"));
        let expected: Vec<Value> = (0..20).map(Value::from).collect();
        assert_eq!(until_end(&mut member), expected, "{topic}");
    }
}

#[test]
fn a_poll_gets_what_other_nodes_published_between_two_polls() {
    let nats = Nats::start();
    let [a, b] = nats.nodes(&[]);
    let (_, first) = b.get("/poll?topic=a&timeout=0");
    let mut since = first["since"].as_str().unwrap().to_string();
    for number in 0..10 {
        a.publish("a", json!(number));
        let (_, response) = b.get(&format!("/poll?topic=a&since={since}"));
        assert_eq!(response["recovered"], true, "{response}");
        assert_eq!(response["messages"][0]["data"], number, "{response}");
        since = response["since"].as_str().unwrap().to_string();
    }
}

#[test]
fn a_node_that_is_alone_says_so() {
    let server = Server::start();
    let (status, error) = server.api("GET", "/api/cluster", None);
    assert_eq!((status, &error["error"]["code"]), (409, &json!("no_cluster")), "{error}");
    let (_, metrics) = text(server.admin, "GET", "/metrics", None, "");
    assert!(!metrics.contains("throng_cluster"), "{metrics}");
}

#[test]
fn a_node_says_goodbye() {
    let nats = Nats::start();
    let [a, mut b] = nats.nodes(&[]);
    let state = state(&a);
    assert_eq!((&state["cluster"], &state["node"]["name"]), (&json!("throng"), &json!("a")));
    assert_eq!(state["nodes"][0]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(a.metric("throng_cluster_nodes"), 1.0);
    b.signal("-TERM");
    assert!(wait_within(&mut b.child).success());
    a.until("b has left", |a| nodes_in(a, "left") == ["b"]);
}

#[test]
fn clusters_with_other_names_receive_nothing_of_each_other() {
    let nats = Nats::start();
    let [a, b] = nats.nodes(&[]);
    let other = nats.node("x", &[("THRONG_CLUSTER_NAME", "other.one")]);
    until_nodes(&other, 0);
    let mut there = stream(&other, "topic=t");
    let mut here = stream(&b, "topic=t");
    for (node, data) in [(&a, "of a"), (&a, "end"), (&other, "of x"), (&other, "end")] {
        node.publish("t", json!(data));
    }
    assert_eq!(until_end(&mut here), ["of a"]);
    assert_eq!(until_end(&mut there), ["of x"]);
    assert!(nodes_in(&other, "up").is_empty());
}

#[test]
fn nats_lets_in_who_has_the_password_and_a_new_one_counts_after_sighup() {
    let nats = Nats::with(&["--user", "throng", "--pass", "0123456789abcdef"]);
    let scratch = Scratch::new("cluster");
    write_secret(&scratch.path().join("password"), "another-password-12\n");
    let file = "[cluster]\nuser = \"throng\"\npassword_file = \"password\"\n";
    let file = scratch.write("throng.toml", file).display().to_string();
    let flags = ["--config", &file, "--cluster", &nats.url()];
    let node = Server::with(&flags, &[]);
    node.until("NATS refuses it", |node| state(node)["nats"]["error"].is_string());
    assert_eq!(state(&node)["nats"]["connected"], false);
    write_secret(&scratch.path().join("password"), "0123456789abcdef\n");
    node.signal("-HUP");
    until_nodes(&node, 0);
}

#[test]
fn nodes_come_to_nats_through_tls() {
    let authority = tls::Authority::new();
    let path = |name: &str| authority.path(name).display().to_string();
    let (certificate, key, ca) = (path("server.pem"), path("server.key"), path("ca.pem"));
    let nats = Nats::with(&["--tls", "--tlscert", &certificate, "--tlskey", &key]);
    let [a, b] = nats.nodes(&[("THRONG_CLUSTER_CA_FILE", &*ca)]);
    let mut member = stream(&b, "topic=t");
    a.publish("t", json!("end"));
    assert!(until_end(&mut member).is_empty());
    // Without the test's certificate authority the node trusts no NATS server.
    let other = nats.node("x", &[]);
    other.until("TLS fails", |other| state(other)["nats"]["error"].is_string());
    assert_eq!(state(&other)["nats"]["connected"], false);
}
