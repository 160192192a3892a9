//! What members get while nodes and NATS die and come back. docs/cluster.md has a row for each.

use serde_json::{Value, json};

use super::support::*;
use super::{stream, until_end};
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
    // It comes back as a new node.
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

#[test]
fn what_a_node_did_not_retain_is_a_gap_for_polls() {
    let mut nats = Nats::start();
    let [a, b] = nats.nodes(&[("THRONG_CLUSTER_REPLAY_BYTES_MAX", "2KiB")]);
    let mut there = stream(&b, "topic=t");
    a.publish("t", json!("end"));
    assert!(until_end(&mut there).is_empty());
    let (_, poll) = b.get("/poll?topic=t&timeout=0");
    let since = poll["since"].as_str().unwrap();
    nats.kill();
    [&a, &b].into_iter().for_each(until_disconnected);
    for number in 0..100 {
        a.publish("t", json!(number));
    }
    nats.run();
    [&a, &b].into_iter().for_each(|node| until_nodes(node, 1));
    a.publish("t", json!("end"));
    // The newest are there, in order.
    let rest = until_end(&mut there);
    let first = rest[0].as_u64().unwrap();
    assert!(first > 0, "{rest:?}");
    assert_eq!(rest, (first..100).map(Value::from).collect::<Vec<_>>());
    b.until("the gap is counted", |b| b.metric("throng_cluster_gaps_total") >= 1.0);
    let (_, poll) = b.get(&format!("/poll?topic=t&since={since}&timeout=0"));
    assert_eq!(poll["recovered"], false, "{poll}");
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
