//! A new process takes the place of a node of a cluster: no client and no other node notices.

use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::presence::{Member as Present, list, until_alike};
use super::support::*;
use crate::upgrade::member::{Kind, Member, Publisher, numbers};
use crate::upgrade::node::{Node, Options, signal};

const TOPICS: &str = "[timeouts]\ndrain_seconds = 0\n\n[presence]\ninterval_milliseconds = 20\n\n\
    [[topics]]\npattern = \"room:*\"\npresence = true\n";

fn config(nats: &Nats, cluster: &str, name: &str) -> String {
    let url = nats.url();
    format!("[cluster]\nurls = [\"{url}\"]\nname = \"{cluster}\"\nnode = \"{name}\"\n\n{TOPICS}")
}

/// Starts a node. It may not know the other nodes yet.
fn node(nats: &Nats, name: &str) -> Node {
    Node::with(Options { topics: config(nats, "test", name), ..Options::default() })
}

/// Starts two nodes, called `a` and `b`, and waits until they know each other.
fn two(nats: &Nats) -> [Node; 2] {
    let nodes = ["a", "b"].map(|name| node(nats, name));
    nodes.iter().for_each(|node| until_nodes(node, 1));
    nodes
}

/// Connects members of the topics `a` and `b` at both nodes.
fn members(nodes: &[Node]) -> Vec<Member> {
    let mut members = Vec::new();
    for node in nodes {
        for topic in ["a", "b"] {
            members.extend([Kind::Sse, Kind::Ws].map(|kind| Member::open(node, kind, topic)));
        }
    }
    members
}

/// Publishes numbers to topic `a` at node `a` and to topic `b` at node `b` while `act` runs. Then checks that each
/// member got each number of its topic once and in order.
fn all_the_while(nodes: &[Node; 2], members: &mut [Member], act: impl FnOnce()) {
    let publishers = [Publisher::default(), Publisher::default()];
    let counts = thread::scope(|scope| {
        let [a, b] = [("a", 0), ("b", 1)].map(|(topic, at)| {
            let (publisher, node) = (&publishers[at], &nodes[at]);
            scope.spawn(move || publisher.run(node, &[topic]))
        });
        publishers[0].meanwhile(|| publishers[1].meanwhile(act));
        [a, b].map(|it| it.join().unwrap())
    });
    for member in members {
        let received = member.before_end();
        let count = counts[usize::from(member.topic == "b")];
        member.check_received(&received, &numbers(0..count));
        member.ids.clear();
    }
    for node in nodes {
        assert_eq!(state(node)["messages"]["gaps"], 0, "{}", node.log());
    }
}

/// Returns what a node says about the only other node.
fn other(node: &Node) -> Value {
    let state = state(node);
    let mut other = state["nodes"][0].clone();
    assert_eq!(state["nodes"].as_array().unwrap().len(), 1, "{state}");
    assert_eq!(other["state"], "up", "{state}");
    other.as_object_mut().unwrap().retain(|key, _| ["node", "id", "name"].contains(&&**key));
    other
}

#[test]
fn messages_presence_and_the_node_go_on_in_the_new_process() {
    let nats = Nats::start();
    let nodes = two(&nats);
    let [a, b] = &nodes;
    let mut members = members(&nodes);
    let mut present =
        [("al", a), ("bo", b), ("cy", b)].map(|(user, node)| Present::new(node, "room:1", user));
    present.iter_mut().for_each(|member| member.until(&["al", "bo", "cy"]));
    until_alike(&[a, b], "room:1", 3);
    let before = (other(a), list(a, "room:1"), list(b, "room:1"));
    all_the_while(&nodes, &mut members, || {
        for _ in 0..2 {
            b.upgrade();
            assert_eq!((other(a), list(a, "room:1"), list(b, "room:1")), before, "{}", a.log());
        }
    });
    until_nodes(b, 1);
    // Any presence notice that an upgrade caused would come before this one.
    let late =
        ["dee", "eve"].map(|user| Present::new(if user == "dee" { a } else { b }, "room:1", user));
    present.iter_mut().for_each(|member| member.until(&["al", "bo", "cy", "dee", "eve"]));
    assert!(present.iter().all(|member| member.left.is_empty()));
    assert!(!a.log().contains("silent"), "{}", a.log());
    // Members leave that were present before the upgrades, and members that came after them.
    drop(late);
    let [mut al, mut bo, cy] = present;
    drop(cy);
    [&mut al, &mut bo].into_iter().for_each(|member| member.until(&["al", "bo"]));
    until_alike(&[a, b], "room:1", 2);
    // Upgrades the other node as well.
    all_the_while(&nodes, &mut members, || a.upgrade());
    assert_eq!(list(b, "room:1"), list(a, "room:1"));
    assert_eq!(al.left, ["cy", "dee", "eve"].map(String::from).into());
    assert_eq!(bo.left, al.left);
}

#[test]
fn an_upgrade_that_fails_leaves_the_node_in_its_cluster() {
    let nats = Nats::start();
    let nodes = two(&nats);
    let [a, b] = &nodes;
    let mut members = members(&nodes);
    let before = other(a);
    let mut took = Duration::ZERO;
    all_the_while(&nodes, &mut members, || {
        b.upgrade_fails(&["--binary", "/bin/false"]);
        let outcome = b.try_upgrade(&["--check"]);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let outcome = b.try_upgrade(&[]);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        b.only();
        took = outcome.took;
    });
    // The test kills the new process later in each round, until the upgrade is complete: so some rounds fail in the
    // switch.
    let mut has_everything = false;
    for round in 0_u32..=6 {
        let publisher = Publisher::default();
        let (count, code) = thread::scope(|scope| {
            let thread = scope.spawn(|| publisher.run(a, &["a"]));
            let mut code = None;
            publisher.meanwhile(|| {
                let binary = b.waiting_binary(&format!("new-{round}"));
                let upgrade = b.begin(&["--binary", binary.path()]);
                let new = binary.process();
                binary.go();
                thread::sleep(took * (1 + round) / 6);
                signal(new, "-KILL");
                code = upgrade.end().code;
            });
            (thread.join().unwrap(), code)
        });
        has_everything = code != Some(3);
        if has_everything {
            break;
        }
        for member in members.iter_mut().filter(|member| member.topic == "a") {
            let received = member.before_end();
            member.check_received(&received, &numbers(0..count));
            member.ids.clear();
        }
        assert_eq!(other(a), before);
    }
    if !has_everything {
        all_the_while(&nodes, &mut members, || b.upgrade());
    }
}

#[test]
fn an_upgrade_without_nats_loses_nothing() {
    let mut nats = Nats::start();
    let nodes = two(&nats);
    let [a, b] = &nodes;
    let mut members = members(&nodes);
    let bo = Present::new(b, "room:1", "bo");
    let mut al = Present::new(a, "room:1", "al");
    al.until(&["al", "bo"]);
    let before = other(a);
    all_the_while(&nodes, &mut members, || {
        nats.kill();
        nodes.iter().for_each(|node| until_disconnected(node));
        let missed = Present::new(b, "room:1", "cy");
        b.upgrade();
        nats.run();
        nodes.iter().for_each(|node| until_nodes(node, 1));
        drop(missed);
    });
    assert_eq!(other(a), before);
    drop(bo);
    al.until(&["al"]);
    until_alike(&[a, b], "room:1", 1);
}

#[test]
fn a_node_stays_in_its_cluster_and_none_comes_in_by_an_upgrade() {
    let nats = Nats::start();
    let b = node(&nats, "b");
    let alone = Node::with(Options { topics: TOPICS.into(), ..Options::default() });
    let refused = |node: &Node, text: &str, part: &str| {
        std::fs::write(node.path("throng.toml"), text).unwrap();
        let said = node.upgrade_fails(&[]);
        assert!(said.contains(part) && said.contains("restart"), "{said}");
        assert_eq!(node.try_upgrade(&["--check"]).code, Some(3));
    };
    refused(&b, TOPICS, "can't take a node out of its cluster");
    refused(&b, &config(&nats, "other", "b"), "can't move a node to another cluster");
    refused(&alone, &config(&nats, "test", "alone"), "the running server is alone");
    until_nodes(&b, 0);
    // An upgrade may change the name of a node.
    std::fs::write(b.path("throng.toml"), config(&nats, "test", "new-name")).unwrap();
    b.upgrade();
    assert_eq!(state(&b)["node"]["name"], "new-name");
}
