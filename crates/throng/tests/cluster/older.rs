//! A cluster of nodes of two versions, as it is while they are replaced one after the other. scripts/upgrade-from-older
//! builds the older one, and `OLDER_BIN` says where it is.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::presence::{Member, until_alike};
use super::support::*;
use super::{stream, until_end};
use crate::support::*;
use crate::upgrade::node::throng;

/// Starts a node of a cluster with this binary.
fn node(nats: &Nats, binary: &Path, name: &str, config: &Scratch) -> Server {
    let mut command = Command::new(binary);
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--shards", "2"]);
    command.args(["--cluster", &nats.url()]).arg("--config").arg(config.path().join("throng.toml"));
    Server::run(command, &[("THRONG_CLUSTER_NODE", name)])
}

/// Waits until each of two nodes knows only the other one, and no earlier process with its name.
fn until_pair(a: &Server, b: &Server) {
    for (node, other) in [(a, b), (b, a)] {
        let id = &state(other)["node"]["id"];
        node.until("it knows the other node alone", |node| {
            let nodes = state(node);
            let is_up = |other: &&Value| other["state"] == "up";
            let ids: Vec<&Value> = nodes["nodes"]
                .as_array()
                .unwrap()
                .iter()
                .filter(is_up)
                .map(|it| &it["id"])
                .collect();
            ids == [id]
        });
    }
}

/// Checks that messages, presence and calls go both ways between two nodes.
fn check(a: &Server, b: &Server) {
    let nodes = [a, b];
    let mut members = nodes.map(|node| stream(node, "topic=news"));
    nodes.iter().for_each(|node| node.until_members("news", 2));
    for (at, node) in nodes.iter().enumerate() {
        (0..50).for_each(|number| drop(node.publish("news", json!([at, number]))));
    }
    // Messages of one node come in the same order at both nodes.
    a.publish("news", json!("end"));
    b.publish("news", json!("end"));
    for member in &mut members {
        let mut got = until_end(member);
        got.extend(until_end(member));
        for at in 0..2 {
            let of: Vec<&Value> = got.iter().filter(|data| data[0] == at).collect();
            let expected: Vec<Value> = (0..50).map(|number| json!([at, number])).collect();
            assert_eq!(of, expected.iter().collect::<Vec<_>>());
        }
    }
    for node in nodes {
        assert_eq!(state(node)["messages"]["gaps"], 0);
        assert_eq!(state(node)["messages"]["damaged"], 0);
    }
    let mut al = Member::new(a, "room:1", "al");
    let bo = Member::new(b, "room:1", "bo");
    al.until(&["al", "bo"]);
    until_alike(&nodes, "room:1", 2);
    drop(bo);
    al.until(&["al"]);
    until_alike(&nodes, "room:1", 1);
    let user = [stream(a, "user=cy"), stream(b, "user=cy")];
    for node in nodes {
        let (status, reply) = node.api("GET", "/api/users/cy", None);
        assert_eq!((status, &reply["count"], &reply["missing"]), (200, &json!(2), &json!([])));
        let (_, figures) = node.api("GET", "/api/cluster/nodes", None);
        assert_eq!(figures["nodes"].as_array().unwrap().len(), 2, "{figures}");
    }
    let (_, done) = a.api("POST", "/api/disconnect", Some(json!({"user": "cy"})));
    assert_eq!((&done["disconnected"], &done["missing"]), (&json!(2), &json!([])));
    for mut stream in user {
        assert!(stream.chunks().contains("\"reason\":\"application\""));
    }
}

#[test]
#[ignore = "long: scripts/upgrade-from-older builds another version"]
fn nodes_of_an_older_version_and_of_this_one_are_a_cluster() {
    let older = std::env::var_os("OLDER_BIN").expect("OLDER_BIN is the binary of an older version");
    let (older, new) = (PathBuf::from(older), PathBuf::from(throng()));
    let config = Scratch::new("older");
    config.write("throng.toml", "[[topics]]\npattern = \"room:*\"\npresence = true\n");
    let nats = Nats::start();
    let start = |binary: &Path, name: &str| node(&nats, binary, name, &config);
    let (a, b) = (start(&older, "a"), start(&older, "b"));
    // The test replaces one node after the other. The two are a cluster all the time.
    until_nodes(&a, 1);
    drop(b);
    let b = start(&new, "b");
    until_pair(&a, &b);
    check(&a, &b);
    check(&b, &a);
    // The older node rejects an unknown call properly.
    let (status, reply) = b.api("GET", "/api/drain?node=a", None);
    assert!(status == 200 || status == 404, "{status} {reply}");
    drop(a);
    let a = start(&new, "a");
    until_pair(&a, &b);
    check(&a, &b);
}
