//! MQTT in a cluster: shared subscription groups.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::support::*;
use crate::mqtt::client::*;
use crate::mqtt::groups::{Work, member, once, publish};
use crate::support::*;

/// Starts `N` nodes with MQTT, called `a`, `b` and so on, and waits until they know each other.
pub fn nodes<const N: usize>(nats: &Nats) -> [Server; N] {
    let names = ["a", "b", "c"];
    let mqtt = ["--mqtt", "127.0.0.1:0"];
    let nodes = std::array::from_fn(|at| nats.node_with(names[at], &mqtt, &[]));
    nodes.iter().for_each(|node| until_nodes(node, N - 1));
    nodes
}

/// Waits until a node knows the number of groups at each other node that is up, in the order of the nodes' names.
fn until_groups(node: &Server, groups: &[u64]) {
    let of = |other: &Value| (other["name"].to_string(), other["groups"].as_u64().unwrap());
    node.until(&format!("the groups of others are {groups:?}"), |node| {
        let state = state(node);
        let others = state["nodes"].as_array().unwrap().iter();
        let up: BTreeSet<_> = others.filter(|other| other["state"] == "up").map(of).collect();
        up.iter().map(|(_, groups)| *groups).eq(groups.iter().copied())
    });
}

/// Reads and confirms `count` messages of a member. Returns their payloads.
fn take(member: &mut Client, count: usize) -> Vec<String> {
    let next = |_| {
        let message = member.message();
        assert_eq!(message.topic.split('/').next(), Some("work"));
        message.payload
    };
    (0..count).map(next).collect()
}

#[test]
fn one_member_over_all_nodes_gets_each_message() {
    let nats = Nats::start();
    let nodes = nodes::<3>(&nats);
    let [a, b, c] = &nodes;
    let member = |node: &Server, name: &str| member(node.client, name, 1_000);
    let members = Work::start([member(a, "a1"), member(b, "b1"), member(b, "b2"), member(b, "b3")]);
    until_groups(a, &[1, 0]);
    until_groups(c, &[1, 1]);
    // Publishes at a node with one member, at the node with most members, and at a node without members.
    let all = publish(a.client, 80, 1);
    publish(b.client, 80, 1);
    publish(c.client, 80, 1);
    let payloads = members.end(a, 3 * all.len());
    let counts: Vec<usize> = payloads.iter().map(Vec::len).collect();
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    let mut payloads: Vec<String> = payloads.into_iter().flatten().collect();
    payloads.sort();
    let mut expected: Vec<String> = (0..3).flat_map(|_| all.iter().cloned()).collect();
    expected.sort();
    assert_eq!(payloads, expected);
}

#[test]
fn what_a_member_has_not_confirmed_goes_to_one_at_another_node() {
    let nats = Nats::start();
    let [a, b] = nodes(&nats);
    let mut first = member(a.client, "first", 1_000);
    let all = publish(a.client, 20, 1);
    let sent: Vec<String> = (0..20).map(|_| first.unconfirmed().payload).collect();
    assert_eq!(once(sent), all);
    let mut second = member(b.client, "second", 1_000);
    until_groups(&a, &[1]);
    first.cut();
    assert_eq!(once(take(&mut second, 20)), all);
    second.is_quiet();
    let counts =
        [(&a, "throng_cluster_groups_passed_total"), (&b, "throng_cluster_groups_received_total")];
    for (node, metric) in counts {
        node.until("all are counted", |node| node.metric(metric) == 20.0);
    }
}

#[test]
fn members_here_get_all_without_the_others_and_one_gets_each_afterwards() {
    let mut nats = Nats::start();
    let [mut a, b] = nodes(&nats);
    let (mut here, mut there) = (member(a.client, "here", 1_000), member(b.client, "there", 1_000));
    until_groups(&a, &[1]);
    until_groups(&b, &[1]);
    nats.kill();
    [&a, &b].into_iter().for_each(until_disconnected);
    let all = publish(a.client, 20, 1);
    assert_eq!(once(take(&mut here, 20)), all);
    nats.run();
    [&a, &b].into_iter().for_each(|node| until_nodes(node, 1));
    until_groups(&a, &[1]);
    until_groups(&b, &[1]);
    // The other node now gets the messages that it missed, and delivers none of them to its member.
    let mut marks = Connect::new(V5, "marks").open(b.client);
    marks.subscribe(&[filter("work/0", 1)]);
    a.publish("work/0", json!("end"));
    while marks.message().payload != "end" {}
    let end = [&mut here, &mut there].map(|member| member.drain().len());
    assert_eq!(end.iter().sum::<usize>(), 1, "{end:?}");
    // A node that is silent has no members.
    a.child.kill().unwrap();
    a.child.wait().unwrap();
    b.until("a is silent", |b| nodes_in(b, "silent") == ["a"]);
    let all = publish(b.client, 20, 1);
    assert_eq!(once(take(&mut there, 20)), all);
}

#[test]
fn a_member_of_mosquitto_takes_part() {
    let nats = Nats::start();
    let [a, b] = nodes(&nats);
    let mosquitto = |node: &Server| {
        let mut command = std::process::Command::new("mosquitto_sub");
        let port = node.client.port().to_string();
        command.args(["-h", "127.0.0.1", "-p", &port, "-V", "mqttv5", "-q", "1", "-C", "10"]);
        command.args(["-t", "$share/g/work/#", "-F", "%p"]);
        command.stdout(std::process::Stdio::piped());
        command.spawn().expect("mosquitto_sub, which scripts/install installs")
    };
    let members = [mosquitto(&a), mosquitto(&b)];
    until_groups(&a, &[1]);
    until_groups(&b, &[1]);
    // Each member ends when it has half of the messages.
    let all = publish(a.client, 20, 1);
    let mut payloads = Vec::new();
    for member in members {
        let output = printed_within(member);
        let text = String::from_utf8(output.stdout).unwrap();
        payloads.extend(text.lines().map(String::from));
    }
    assert_eq!(once(payloads), all);
}
