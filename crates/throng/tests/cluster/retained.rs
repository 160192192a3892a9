//! Retained messages of MQTT at a node that joins others.

use protocol::mqtt::id;
use serde_json::{Value, json};

use super::mqtt::nodes;
use super::support::*;
use crate::mqtt::client::*;
use crate::support::*;

/// Starts a node, and waits until it knows `others` other nodes.
fn join(nats: &Nats, name: &str, others: usize) -> Server {
    let node = nats.node_with(name, &["--mqtt", "127.0.0.1:0"], &[]);
    until_nodes(&node, others);
    node
}

/// Publishes a retained message. An empty one removes the topic's retained message.
fn retain(node: &Server, topic: &str, data: &str) {
    node.post(
        "/api/publish",
        json!({"topic": topic, "data": data, "mqtt": {"retain": true, "qos": 1}}),
    );
}

/// Returns the retained messages of a node: topic, bytes, QoS and expiry.
fn retained(node: &Server) -> Vec<Value> {
    let (status, page) = node.api("GET", "/api/mqtt/retained?limit=1000", None);
    assert_eq!((status, &page["next"]), (200, &json!(null)), "{page}");
    let messages = page["retained"].as_array().unwrap().iter();
    messages.map(|it| json!([it["topic"], it["bytes"], it["qos"], it["expires_at"]])).collect()
}

#[test]
fn a_node_that_joins_has_what_was_retained_before() {
    let nats = Nats::start();
    let [a, b] = nodes(&nats);
    // A node that joins reads these messages in several pages.
    let filler = "x".repeat(4_000);
    (0..200).for_each(|number| retain(&a, &format!("t/{number:03}"), &filler));
    retain(&b, "light", "on");
    retain(&a, "gone", "here");
    // Two nodes' messages have no order until one node knows the other's.
    b.until("it has it", |b| retained(b).iter().any(|it| it[0] == "gone"));
    retain(&b, "gone", "");
    let mut publisher = Connect::new(V5, "p").open(a.client);
    let mut bytes = Publish::new("bytes", "\u{1}\u{2}", 1);
    bytes.retain = true;
    bytes.properties.push(number(id::MESSAGE_EXPIRY_INTERVAL, 1_000));
    publisher.publish_all(bytes);
    b.until("it has all", |b| retained(b) == retained(&a) && retained(b).len() == 202);
    let c = join(&nats, "c", 2);
    c.until("it has all", |c| retained(c).len() == 202);
    assert_eq!(retained(&c), retained(&a));
    let mut client = Connect::new(V5, "c").open(c.client);
    client.subscribe(&[filter("light", 1)]);
    let light = client.message();
    assert_eq!((light.payload.as_str(), light.retain, light.qos), ("on", true, 1));
    // A deletion applies at all nodes. A node passes all messages that it has read on to the next node that joins.
    let (status, deleted) = b.api("DELETE", "/api/mqtt/retained/light", None);
    assert_eq!((status, &deleted["missing"]), (200, &json!([])), "{deleted}");
    for node in [&a, &b, &c] {
        assert_eq!(retained(node).len(), 201);
    }
    drop((a, b));
    c.until("the others have gone", |c| nodes_in(c, "up").is_empty());
    let d = join(&nats, "d", 1);
    d.until("it has all", |d| retained(d) == retained(&c));
}

#[test]
fn what_comes_while_a_node_joins_is_not_lost() {
    let nats = Nats::start();
    let [a, b] = nodes(&nats);
    (0..100).for_each(|number| retain(&a, &format!("t/{number:03}"), "before"));
    for round in 0..5 {
        let c = std::thread::scope(|scope| {
            let joining = scope.spawn(|| join(&nats, &format!("c{round}"), 2));
            for number in 0..100 {
                let data = if number % 3 == 0 { "" } else { "x" };
                retain(if number % 2 == 0 { &a } else { &b }, &format!("t/{number:03}"), data);
            }
            joining.join().unwrap()
        });
        c.until("it has what the others have", |c| {
            let all = retained(&a);
            retained(c) == all && retained(&b) == all
        });
        (0..100).for_each(|number| retain(&b, &format!("t/{number:03}"), "again"));
        let is_again = |node: &Server| {
            let all = retained(node);
            all.len() == 100 && all.iter().all(|it| it[1] == "again".len())
        };
        [&a, &b, &c].into_iter().for_each(|node| node.until("it has all again", is_again));
        drop(c);
        a.until("it has gone", |a| nodes_in(a, "up").len() == 1);
    }
}
