//! What members get while nodes and NATS die and come back. docs/cluster.md has a row for each.

use serde_json::{Value, json};

use super::support::*;
use super::{stream, until_end};
use crate::mqtt::client::{Connect, V5, filter};
use crate::support::*;

#[test]
fn the_others_notice_a_node_that_is_killed_and_go_on() {
    let nats = Nats::start();
    let [a, b, mut c] = nats.nodes(&[]);
    let mut member = stream(&b, "topic=t");
    c.publish("t", json!("before"));
    assert_eq!(member.next_object()["data"], "before");
    c.child.kill().unwrap();
    c.child.wait().unwrap();
    for node in [&a, &b] {
        node.until("c is silent", |node| nodes_in(node, "silent") == ["c"]);
        node.until("the other is there", |node| nodes_in(node, "up").len() == 1);
    }
    a.publish("t", json!("end"));
    assert!(until_end(&mut member).is_empty());
    // The process comes back as a new node.
    let again = nats.node("c", &[]);
    until_nodes(&again, 2);
    again.publish("t", json!("end"));
    assert!(until_end(&mut member).is_empty());
}

#[test]
fn while_nats_is_away_a_node_serves_its_own_members_and_others_get_the_rest_later() {
    let mut nats = Nats::start();
    let [a, b] = nats.nodes(&[]);
    let (mut here, mut there) = (stream(&a, "topic=t"), stream(&b, "topic=t"));
    a.publish("t", json!(0));
    assert_eq!(
        (here.next_object()["data"].clone(), &there.next_object()["data"]),
        (json!(0), &json!(0))
    );
    nats.kill();
    [&a, &b].into_iter().for_each(until_disconnected);
    assert_eq!(a.metric("throng_cluster_connected"), 0.0);
    assert_eq!(text(a.admin, "GET", "/readyz", None, "").0, 200);
    for number in 1..50 {
        a.publish("t", json!(number));
        assert_eq!(here.next_object()["data"], number);
    }
    nats.run();
    [&a, &b].into_iter().for_each(|node| until_nodes(node, 1));
    a.publish("t", json!("end"));
    assert_eq!(until_end(&mut there), (1..50).map(Value::from).collect::<Vec<_>>());
    assert_eq!(state(&b)["messages"]["gaps"], 0);
    assert!(state(&a)["nats"]["losses"].as_u64() >= Some(1));
}

/// Publishes the numbers below `count` to the topic `t` at the first node while NATS is away.
fn publish_without_nats(nats: &mut Nats, nodes: [&Server; 2], count: u64) {
    nats.kill();
    nodes.into_iter().for_each(until_disconnected);
    (0..count).for_each(|number| _ = nodes[0].publish("t", json!(number)));
    nats.run();
    nodes.into_iter().for_each(|node| until_nodes(node, 1));
}

#[test]
fn what_a_node_did_not_retain_is_a_gap_for_polls() {
    let mut nats = Nats::start();
    let [a, b] = nats.nodes(&[("THRONG_CLUSTER_REPLAY_BYTES_MAX", "2KiB")]);
    let mut there = stream(&b, "topic=t");
    a.publish("t", json!("end"));
    assert!(until_end(&mut there).is_empty());
    let (_, poll) = b.get("/poll?topic=t&timeout=0");
    let since = poll["since"].as_str().unwrap();
    publish_without_nats(&mut nats, [&a, &b], 100);
    a.publish("t", json!("end"));
    // The member gets the newest messages in order.
    let rest = until_end(&mut there);
    let first = rest[0].as_u64().unwrap();
    assert!(first > 0, "{rest:?}");
    assert_eq!(rest, (first..100).map(Value::from).collect::<Vec<_>>());
    b.until("the gap is counted", |b| b.metric("throng_cluster_gaps_total") >= 1.0);
    let (_, poll) = b.get(&format!("/poll?topic=t&since={since}&timeout=0"));
    assert_eq!(poll["recovered"], false, "{poll}");
}

/// Checks what a client got before `"end"`: the notice of a gap first, and then the newest messages.
#[track_caller]
fn assert_gap_and_newest(transport: &str, notice: &Value, rest: &[Value]) {
    assert_eq!(notice["recovered"], false, "{transport}: {notice}");
    assert_eq!(notice["topics"], json!({"t": "too_old"}), "{transport}: {notice}");
    assert!(notice["since"].is_string(), "{transport}: {notice}");
    let first = rest[0].as_u64().unwrap();
    let newest: Vec<Value> = (first..100).map(Value::from).collect();
    assert!(first > 0 && rest == newest, "{transport}: {rest:?}");
}

#[test]
fn clients_of_all_transports_but_mqtt_get_a_notice_before_what_comes_behind_a_gap() {
    let mut nats = Nats::start();
    let settings = [("THRONG_CLUSTER_REPLAY_BYTES_MAX", "2KiB")];
    let a = nats.node("a", &settings);
    let b = nats.node_with("b", &["--mqtt", "127.0.0.1:0"], &settings);
    [&a, &b].into_iter().for_each(|node| until_nodes(node, 1));
    let mut lines = stream(&b, "topic=t");
    let mut other = stream(&b, "topic=other");
    let mut events = b.listen("/sse?topic=t");
    let mut socket = websocket(&b, "topic=t");
    let url = format!("ws://{}/socket/websocket?vsn=2.0.0", b.client);
    let mut phoenix = tungstenite::client(url, b.connect()).unwrap().0;
    let join = json!(["1", "1", "t", "phx_join", {}]).to_string();
    phoenix.send(tungstenite::Message::text(join)).unwrap();
    assert_eq!(receive(&mut phoenix)[4]["status"], "ok");
    let mut mqtt = Connect::new(V5, "m").open(b.client);
    mqtt.subscribe(&[filter("t", 0)]);
    a.publish("t", json!("begin"));
    assert_eq!(lines.next_object()["data"], "begin");
    assert_eq!(events.data(), "begin");
    assert_eq!(receive(&mut socket)["data"], "begin");
    assert_eq!(receive(&mut phoenix)[3], "message");
    assert_eq!(mqtt.message().payload, "begin");
    let (_, poll) = b.get("/poll?topic=t&timeout=0");
    let since = poll["since"].as_str().unwrap();
    let mut poll = Stream::new(b.connect());
    poll.send(&format!("GET /poll?topic=t&since={since} HTTP/1.1\r\nHost: b\r\n\r\n"));
    publish_without_nats(&mut nats, [&a, &b], 100);
    a.publish("t", json!("end"));
    a.publish("other", json!("end"));
    let notice = lines.next_object();
    assert_eq!(notice["type"], "recovery");
    assert_gap_and_newest("stream", &notice, &until_end(&mut lines));
    let event = events.event();
    let field = |name: &str| event.iter().find(|field| field.0 == name).map(|field| &*field.1);
    assert_eq!((field("event"), field("id")), (Some("recovery"), None));
    let notice: Value = serde_json::from_str(field("data").unwrap()).unwrap();
    let rest = std::iter::from_fn(|| Some(events.data()).filter(|data| data != "end"));
    let rest: Vec<Value> = rest.map(|data| serde_json::from_str(&data).unwrap()).collect();
    assert_gap_and_newest("SSE", &notice, &rest);
    let notice = receive(&mut socket);
    let rest = std::iter::from_fn(|| Some(receive(&mut socket)["data"].clone()));
    let rest: Vec<Value> = rest.take_while(|data| data != "end").collect();
    assert_gap_and_newest("/ws", &notice, &rest);
    let notice = receive(&mut phoenix);
    assert_eq!((&notice[2], &notice[3]), (&json!("t"), &json!("recovery")));
    let rest = std::iter::from_fn(|| Some(receive(&mut phoenix)[4].clone()));
    let rest: Vec<Value> = rest.take_while(|payload| payload["data"] != "end").collect();
    let rest: Vec<Value> = rest.iter().map(|payload| payload["data"].clone()).collect();
    assert_gap_and_newest("Phoenix", &notice[4], &rest);
    // MQTT has no packet for a gap notice. Its clients get the newest messages, and their connections go on.
    let payloads = std::iter::from_fn(|| Some(mqtt.message().payload));
    let payloads: Vec<String> = payloads.take_while(|payload| payload != "end").collect();
    assert!(payloads.len() == rest.len() && payloads.last().unwrap() == "99", "{payloads:?}");
    let (_, reply) = poll.read_reply();
    let reply: Value = serde_json::from_str(&reply).unwrap();
    assert_eq!((&reply["recovered"], &reply["reason"]), (&json!(false), &json!("too_old")));
    let is_message = |message: &Value| message["type"] == "message";
    assert!(reply["messages"].as_array().unwrap().iter().all(is_message), "{reply}");
    // Members of other topics get no gap notice.
    assert_eq!(other.next_object()["data"], "end");
}

#[test]
fn what_a_node_published_without_nats_before_it_died_is_a_gap_for_polls() {
    let mut nats = Nats::start();
    let [mut a, b] = nats.nodes(&[]);
    let mut there = stream(&b, "topic=t");
    a.publish("t", json!("end"));
    assert!(until_end(&mut there).is_empty());
    let (_, poll) = b.get("/poll?topic=t&timeout=0");
    let since = poll["since"].as_str().unwrap();
    nats.kill();
    [&a, &b].into_iter().for_each(until_disconnected);
    a.publish("t", json!("lost"));
    a.child.kill().unwrap();
    a.child.wait().unwrap();
    nats.run();
    b.until("a is silent", |b| nodes_in(b, "silent") == ["a"]);
    b.until("the gap is counted", |b| b.metric("throng_cluster_gaps_total") >= 1.0);
    let (_, poll) = b.get(&format!("/poll?topic=t&since={since}&timeout=0"));
    assert_eq!(poll["recovered"], false, "{poll}");
}

#[test]
fn a_node_starts_without_nats_and_joins_when_it_is_there() {
    let mut nats = Nats::start();
    nats.kill();
    let a = nats.node("a", &[]);
    let mut here = stream(&a, "topic=t");
    a.publish("t", json!("alone"));
    assert_eq!(here.next_object()["data"], "alone");
    nats.run();
    until_nodes(&a, 0);
    let b = nats.node("b", &[]);
    [&a, &b].into_iter().for_each(|node| until_nodes(node, 1));
    b.publish("t", json!("end"));
    assert!(until_end(&mut here).is_empty());
}

#[test]
fn a_node_that_stands_still_misses_nothing() {
    let nats = Nats::start();
    let [a, b] = nats.nodes(&[]);
    let mut there = stream(&b, "topic=t");
    b.pause();
    a.until("b is silent", |a| nodes_in(a, "silent") == ["b"]);
    for number in 0..50 {
        a.publish("t", json!(number));
    }
    a.publish("t", json!("end"));
    b.signal("-CONT");
    assert_eq!(until_end(&mut there), (0..50).map(Value::from).collect::<Vec<_>>());
    a.until("b is back", |a| nodes_in(a, "up") == ["b"]);
    b.until("a is there", |b| nodes_in(b, "up") == ["a"]);
}
