//! Presence over all nodes. docs/cluster.md has a row for each fault.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::support::*;
use crate::support::*;

/// A configuration with presence for some topics.
struct Config(Scratch);

impl Config {
    fn new() -> Self {
        let scratch = Scratch::new("presence");
        scratch.write("throng.toml", "[[topics]]\npattern = \"room:*\"\npresence = true\n");
        Config(scratch)
    }

    /// Starts a node with this configuration. The node may not know the others yet.
    fn node(&self, nats: &Nats, name: &str, settings: &[(&str, &str)]) -> Server {
        let file = self.0.path().join("throng.toml").display().to_string();
        nats.node_with(name, &["--config", &file], settings)
    }

    /// Starts `N` nodes, called `a`, `b` and so on, and waits until they know each other.
    fn nodes<const N: usize>(&self, nats: &Nats) -> [Server; N] {
        let names = ["a", "b", "c", "d"];
        let nodes = std::array::from_fn(|at| self.node(nats, names[at], &[]));
        nodes.iter().for_each(|node| until_nodes(node, N - 1));
        nodes
    }
}

/// A member of a topic with its presence list: for each ref the user and the user's meta.
pub struct Member {
    stream: Stream,
    here: BTreeMap<String, (String, Value)>,
    /// Users for whom a notice said that a connection has left.
    pub left: BTreeSet<String>,
}

/// Returns the entries of a snapshot or of a part of a diff: ref, user and meta.
fn metas(list: &Value) -> Vec<(String, (String, Value))> {
    let users = list.as_object().unwrap().iter();
    let metas = users.flat_map(|(user, entry)| {
        entry["metas"].as_array().unwrap().iter().map(move |meta| (user.clone(), meta.clone()))
    });
    let split = |(user, meta): (String, Value)| {
        let mut meta = meta.as_object().unwrap().clone();
        meta.remove("phx_ref_prev");
        let of = meta.remove("phx_ref").unwrap().as_str().unwrap().to_string();
        (of, (user, Value::from(meta)))
    };
    metas.map(split).collect()
}

impl Member {
    /// Enters a topic as this user.
    pub fn new(node: &Server, topic: &str, user: &str) -> Self {
        let mut stream = node.listen(&format!("/stream?topic={topic}&user={user}"));
        assert_eq!(stream.next_object()["type"], "welcome");
        Member { stream, here: BTreeMap::new(), left: BTreeSet::new() }
    }

    /// Reads one presence notice.
    fn read(&mut self) {
        let object = self.stream.next_object();
        let data = &object["data"];
        match object["event"].as_str() {
            Some("presence_state") => self.here = metas(data).into_iter().collect(),
            Some("presence_diff") => {
                for (of, meta) in metas(&data["joins"]) {
                    // The first snapshot may have the member's own entry already.
                    let before = self.here.insert(of, meta.clone());
                    assert!(before.is_none_or(|before| before == meta), "{object}");
                }
                for (of, (user, _)) in metas(&data["leaves"]) {
                    self.here.remove(&of);
                    self.left.insert(user);
                }
            }
            _ => panic!("{object}"),
        }
    }

    /// Returns the users, each as often as it has connections.
    fn users(&self) -> Vec<String> {
        let mut users: Vec<_> = self.here.values().map(|(user, _)| user.clone()).collect();
        users.sort();
        users
    }

    /// Reads notices until exactly these users are present.
    pub fn until(&mut self, users: &[&str]) {
        while self.users() != users {
            self.read();
        }
    }
}

/// Returns a topic's presence as a node's API has it.
pub fn list(node: &Server, topic: &str) -> Value {
    node.api("GET", &format!("/api/presence/{topic}"), None).1
}

/// Waits until all nodes have the same presence of a topic, with `connections` connections.
pub fn until_alike(nodes: &[&Server], topic: &str, connections: usize) {
    for node in nodes {
        node.until(&format!("{topic} has {connections} connections"), |node| {
            let here = list(node, topic);
            // The node updates this list only with each notice, so the count may be newer.
            let listed = metas(&here["presences"]).len();
            here["connections"] == connections && listed == connections
        });
        assert_eq!(list(node, topic), list(nodes[0], topic));
    }
}

#[test]
fn a_list_has_the_users_of_all_nodes() {
    let (nats, config) = (Nats::start(), Config::new());
    let [a, b] = config.nodes(&nats);
    let mut al = Member::new(&a, "room:1", "al");
    al.until(&["al"]);
    let mut bo = Member::new(&b, "room:1", "bo");
    bo.until(&["al", "bo"]);
    al.until(&["al", "bo"]);
    // One user at both nodes, by another transport and with something to show.
    let mut socket = websocket(&b, "user=al");
    let subscribe = json!({"type": "subscribe", "id": 1, "topic": "room:1", "meta": {"n": 1}});
    command(&mut socket, subscribe);
    for member in [&mut al, &mut bo] {
        member.until(&["al", "al", "bo"]);
        assert!(member.here.values().any(|(_, meta)| meta["n"] == 1));
    }
    until_alike(&[&a, &b], "room:1", 3);
    assert_eq!(list(&a, "room:1")["users"], 2);
    let update = json!({"type": "presence_update", "id": 2, "topic": "room:1", "meta": {"n": 2}});
    command(&mut socket, update);
    for member in [&mut al, &mut bo] {
        while !member.here.values().any(|(_, meta)| meta["n"] == 2) {
            member.read();
        }
        assert_eq!(member.users(), ["al", "al", "bo"], "the other one is gone with it");
    }
    let (_, list) = a.get("/presence?topic=room:1");
    assert_eq!((&list["users"], &list["connections"]), (&json!(2), &json!(3)), "{list}");
    drop(socket);
    drop(bo);
    al.until(&["al"]);
    until_alike(&[&a, &b], "room:1", 1);
    // Each node counts its own entries.
    assert_eq!(a.metric("throng_presence_connections"), 1.0);
    assert_eq!(b.metric("throng_presence_connections"), 0.0);
    b.until("it knows one of the other node", |b| {
        b.metric("throng_cluster_presence_connections") == 1.0
    });
    assert_eq!(state(&b)["presence"]["other_entries"], 1);
}

#[test]
fn a_node_that_ends_or_is_killed_takes_its_users_along() {
    let (nats, config) = (Nats::start(), Config::new());
    let [a, b, mut c] = config.nodes(&nats);
    let mut al = Member::new(&a, "room:1", "al");
    let bo = Member::new(&b, "room:1", "bo");
    let _cy = Member::new(&c, "room:1", "cy");
    al.until(&["al", "bo", "cy"]);
    c.child.kill().unwrap();
    c.child.wait().unwrap();
    al.until(&["al", "bo"]);
    until_alike(&[&a, &b], "room:1", 2);
    assert_eq!(nodes_in(&a, "silent"), ["c"]);
    b.signal("-TERM");
    al.until(&["al"]);
    drop(bo);
    until_alike(&[&a], "room:1", 1);
}

#[test]
fn users_stay_while_nats_is_away_and_all_is_exact_when_it_is_back() {
    let (mut nats, config) = (Nats::start(), Config::new());
    let [a, b] = config.nodes(&nats);
    let mut al = Member::new(&a, "room:1", "al");
    let mut bo = Member::new(&b, "room:1", "bo");
    let gone = Member::new(&b, "room:1", "gone");
    al.until(&["al", "bo", "gone"]);
    bo.until(&["al", "bo", "gone"]);
    nats.kill();
    [&a, &b].into_iter().for_each(until_disconnected);
    drop(gone);
    bo.until(&["al", "bo"]);
    let _late = Member::new(&a, "room:1", "late");
    al.until(&["al", "bo", "gone", "late"]);
    nats.run();
    for member in [&mut al, &mut bo] {
        member.until(&["al", "bo", "late"]);
        // If the machine stalls, a node may count as silent: then others left as well, and came back.
        assert!(member.left.contains("gone"), "{:?}", member.left);
    }
    until_alike(&[&a, &b], "room:1", 3);
}

#[test]
fn a_node_that_comes_late_has_all_and_one_that_stood_still_again() {
    let (nats, config) = (Nats::start(), Config::new());
    let [a, b] = config.nodes(&nats);
    // These entries need more than one page.
    let topics: Vec<String> = (0..40).map(|n| format!("topic=room:{n}")).collect();
    let query = |user: usize| format!("{}&user=u{user}", topics.join("&"));
    let _crowd: Vec<WebSocket> = (0..40).map(|user| websocket(&a, &query(user))).collect();
    let c = config.node(&nats, "c", &[]);
    let nodes = [&a, &b, &c];
    (0..40).for_each(|n| until_alike(&nodes, &format!("room:{n}"), 40));
    c.until("all is there", |c| {
        let nodes = state(c)["nodes"].as_array().unwrap().clone();
        nodes.len() == 2 && nodes.iter().all(|node| node["presence_complete"] == true)
    });
    let mut member = Member::new(&c, "room:x", "cy");
    member.until(&["cy"]);
    let bo = Member::new(&b, "room:x", "bo");
    member.until(&["bo", "cy"]);
    b.pause();
    member.until(&["cy"]);
    a.until("b is silent", |a| nodes_in(a, "silent") == ["b"]);
    b.signal("-CONT");
    member.until(&["bo", "cy"]);
    until_alike(&nodes, "room:x", 2);
    (0..40).for_each(|n| until_alike(&nodes, &format!("room:{n}"), 40));
    drop(bo);
    member.until(&["cy"]);
}

#[test]
fn users_of_other_nodes_take_no_more_memory_than_they_may() {
    let (nats, config) = (Nats::start(), Config::new());
    let a = config.node(&nats, "a", &[]);
    let small = config.node(&nats, "b", &[("THRONG_CLUSTER_PRESENCE_BYTES_MAX", "2KiB")]);
    [&a, &small].into_iter().for_each(|node| until_nodes(node, 1));
    let _crowd: Vec<_> = (0..5).map(|n| Member::new(&a, "room:1", &format!("u{n}"))).collect();
    until_alike(&[&a], "room:1", 5);
    small.until("some are missing", |small| {
        state(small)["nodes"][0]["presence_complete"] == false
            && list(small, "room:1")["connections"] == 2
    });
    assert_eq!(small.metric("throng_cluster_presence_incomplete"), 1.0);
    assert!(small.metric("throng_cluster_presence_bytes") <= 2048.0);
}
