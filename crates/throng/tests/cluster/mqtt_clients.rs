//! MQTT clients in a cluster: each client identifier has one connection.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use protocol::mqtt::{Version, id};
use serde_json::json;

use super::mqtt::nodes;
use super::support::*;
use crate::mqtt::client::*;
use crate::support::*;
use crate::upgrade::node::{Node, Options};

/// DISCONNECT: session taken over.
const TAKEN_OVER: u8 = 0x8e;

/// A client that receives the wills.
fn watcher(node: &Server) -> Client {
    let mut client = Connect::new(V5, "watcher").open(node.client);
    client.subscribe(&[filter("gone", 1)]);
    client
}

/// Returns the status of an API call about a client's session at a node, and whether the client is connected there.
fn session(node: &Server, name: &str) -> (u16, bool) {
    let path = format!("/api/mqtt/sessions/{name}");
    let (status, session) = node.api("GET", &path, None);
    (status, session["connected"] == true)
}

fn until_away(node: &Server, name: &str) {
    node.until(&format!("{name} is away"), |node| session(node, name) == (200, false));
}

fn connects_to_one_after_the_other(version: Version, [a, b]: [&Server; 2], watcher: &mut Client) {
    let connect = Connect::persistent(version, "c").will("gone", "bye", 1);
    let mut first = connect.open(a.client);
    first.subscribe(&[filter("t", 1)]);
    until_known(a, b, Connect::new(version, "known"));
    let mut second = connect.open(b.client);
    assert!(!second.session_present, "its session is that of the other node");
    first.is_ended_for(TAKEN_OVER);
    // The first connection has sent no DISCONNECT, so its will is due.
    assert_eq!(watcher.message().payload, "bye");
    second.is_quiet();
    // The session at node a waits for the client.
    until_away(a, "c");
    a.publish("t", "waits".into());
    let mut third = connect.open(a.client);
    assert!(third.session_present);
    second.is_ended_for(TAKEN_OVER);
    assert_eq!(watcher.message().payload, "bye");
    assert_eq!(third.message().payload, "waits");
    // A clean start ends the client's sessions at all nodes.
    until_away(b, "c");
    let clean = Connect::new(version, "c").open(b.client);
    third.is_ended_for(TAKEN_OVER);
    assert_eq!(watcher.message().payload, "bye");
    a.until("its session has ended", |a| session(a, "c").0 == 404);
    clean.disconnect();
    b.until("it has gone", |b| session(b, "c").0 == 404);
}

#[test]
fn a_client_that_connects_to_another_node_is_taken_over() {
    let nats = Nats::start();
    let [a, b] = nodes(&nats);
    let mut watcher = watcher(&b);
    for version in [V3, V5] {
        connects_to_one_after_the_other(version, [&a, &b], &mut watcher);
    }
    assert_eq!(a.metric("throng_mqtt_taken_over_by_nodes_total"), 4.0);
    assert_eq!(b.metric("throng_mqtt_taken_over_by_nodes_total"), 2.0);
    assert_eq!(a.metric("throng_mqtt_taken_over_total"), 0.0, "no connection here has taken over");
}

#[test]
fn the_will_of_a_client_that_is_back_at_another_node_waits_no_longer() {
    let nats = Nats::start();
    let [a, b] = nodes(&nats);
    let mut watcher = watcher(&b);
    let connect = |name: &str| {
        let mut connect = Connect::persistent(V5, name).will("gone", "bye", 1);
        let will = connect.will.as_mut().unwrap();
        will.properties.push(number(id::WILL_DELAY_INTERVAL, 1_000));
        connect
    };
    connect("c").open(a.client).cut();
    until_away(&a, "c");
    // The session ends, so its will is due.
    let clean = Connect::new(V5, "c").open(b.client);
    assert_eq!(watcher.message().payload, "bye");
    assert_eq!(session(&a, "c").0, 404);
    clean.disconnect();
    // The session goes on, so its will is not due: neither for a connected client, nor for one that is away.
    let mut connected = connect("d").open(a.client);
    for name in ["e", "f"] {
        connect(name).open(a.client).cut();
        until_away(&a, name);
    }
    let _back = ["d", "e"].map(|name| Connect::persistent(V5, name).open(b.client));
    connected.is_ended_for(TAKEN_OVER);
    until_away(&a, "d");
    settle([&a, &b]);
    // Only the session of `f` still has a will: the clients `d` and `e` have connected again.
    for (name, will) in [("d", false), ("e", false), ("f", true)] {
        let (status, ended) = a.api("DELETE", &format!("/api/mqtt/sessions/{name}"), None);
        assert_eq!(status, 200, "{ended}");
        a.publish("gone", name.into());
        if will {
            assert_eq!(watcher.message().payload, "bye");
        }
        assert_eq!(watcher.message().payload, name);
    }
}

/// Connects a client to both nodes at the same time. Returns both connections.
fn race(nodes: [&Server; 2], name: &str) -> [Client; 2] {
    thread::scope(|scope| {
        let connect = |node: &Server| {
            let at = node.client;
            scope.spawn(move || Connect::new(V5, name).try_open(at).0)
        };
        nodes.map(connect).map(|thread| thread.join().unwrap())
    })
}

/// Waits until one of two connections has ended, and checks that the other one goes on. Returns the index of the
/// other one.
fn one_remains(mut clients: [Client; 2]) -> usize {
    let is_ended = |client: &mut Client| {
        let event = client.within(Duration::from_millis(20));
        matches!(event, Some(Event::Disconnect(TAKEN_OVER, _)))
    };
    let end = Instant::now() + TIMEOUT;
    let ended = loop {
        if let Some(ended) = clients.iter_mut().position(is_ended) {
            break ended;
        }
        assert!(Instant::now() < end, "a client has two connections");
    };
    clients[1 - ended].is_quiet();
    1 - ended
}

/// Waits until each node has applied everything that the other one has published.
fn settle(nodes: [&Server; 2]) {
    settle_by(nodes, |name| Connect::new(V5, name));
}

/// Like [`settle`], with clients that `connect` makes.
fn settle_by(nodes: [&Server; 2], connect: impl Fn(&str) -> Connect) {
    for [from, to] in [nodes, [nodes[1], nodes[0]]] {
        let mut mark = connect("mark").open(from.client);
        until_known(from, to, connect("known"));
        let _later = connect("mark").open(to.client);
        mark.is_ended_for(TAKEN_OVER);
    }
}

/// Waits until the node `to` knows all connects at `from`, by a group of a client that is not connected yet. `to`
/// then gives later connects higher numbers, whatever its clock says.
fn until_known(from: &Server, to: &Server, connect: Connect) {
    // A node publishes its groups after its connects.
    let groups = |to: &Server| {
        let from = state(from)["node"]["id"].clone();
        let others = state(to)["nodes"].as_array().unwrap().clone();
        others.into_iter().find(|other| other["id"] == from).unwrap()["groups"].clone()
    };
    let before = groups(to).as_u64().unwrap();
    let mut client = connect.open(from.client);
    client.subscribe(&[filter("$share/known/t", 0)]);
    to.until("the connects are known", |to| groups(to) == before + 1);
    client.disconnect();
    to.until("the group is gone", |to| groups(to) == before);
}

/// Waits until all turns of the node's shards that began before now have ended. A connect has the time of day at which
/// its turn began, and only that orders connects at nodes that can't reach each other.
fn end_earlier_turns(node: &Server) {
    // Clocks of two processes on one machine differ by less than this.
    thread::sleep(Duration::from_millis(100));
    // Each shard replies in a turn that begins after the request, and accepts nothing more in an earlier one.
    let (status, topics) = node.api("GET", "/api/topics?node=self", None);
    assert_eq!(status, 200, "{topics}");
}

#[test]
fn of_two_connections_at_the_same_moment_one_remains() {
    let mut nats = Nats::start();
    let [a, b] = nodes(&nats);
    let pairs: Vec<_> = (0..20).map(|round| race([&a, &b], &format!("c{round}"))).collect();
    // While nodes can't reach each other, they can't compare connects. Afterwards the later connect wins.
    nats.kill();
    [&a, &b].into_iter().for_each(until_disconnected);
    let first = Connect::new(V5, "apart").open(b.client);
    end_earlier_turns(&a);
    let apart = [Connect::new(V5, "apart").open(a.client), first];
    nats.run();
    [&a, &b].into_iter().for_each(|node| until_nodes(node, 1));
    settle([&a, &b]);
    assert_eq!(one_remains(apart), 0);
    pairs.into_iter().for_each(|pair| _ = one_remains(pair));
}

#[test]
fn connects_that_a_node_did_not_retain_are_published_again() {
    let mut nats = Nats::start();
    let (mqtt, settings) =
        (["--mqtt", "127.0.0.1:0"], [("THRONG_CLUSTER_REPLAY_BYTES_MAX", "2KiB")]);
    let [a, b] = ["a", "b"].map(|name| nats.node_with(name, &mqtt, &settings));
    [&a, &b].into_iter().for_each(|node| until_nodes(node, 1));
    nats.kill();
    [&a, &b].into_iter().for_each(until_disconnected);
    // The later connects are at node b. Node b has dropped their announcements, can't replay them, and publishes the
    // connects again.
    let connect =
        |node: &Server| ["c0", "c1", "c2"].map(|name| Connect::new(V5, name).open(node.client));
    let earlier = connect(&a);
    end_earlier_turns(&b);
    let pairs = earlier.into_iter().zip(connect(&b));
    let pairs: Vec<[Client; 2]> = pairs.map(|(first, second)| [first, second]).collect();
    for node in [&a, &b] {
        (0..100).for_each(|number| _ = node.publish("t", json!(number)));
    }
    nats.run();
    [&a, &b].into_iter().for_each(|node| until_nodes(node, 1));
    for pair in pairs {
        assert_eq!(one_remains(pair), 1);
    }
    a.until("the gap is counted", |a| a.metric("throng_cluster_gaps_total") >= 1.0);
}

#[test]
fn users_have_client_identifiers_of_their_own_at_all_nodes() {
    const KEY: &str = "0123456789abcdef0123456789abcdef";
    let nats = Nats::start();
    let (mqtt, settings) = (["--mqtt", "127.0.0.1:0"], [("THRONG_AUTH_HMAC_KEY", KEY)]);
    let [a, b] = ["a", "b"].map(|name| nats.node_with(name, &mqtt, &settings));
    [&a, &b].into_iter().for_each(|node| until_nodes(node, 1));
    let connect = |user: &str, name: &str| {
        let signer = token::Signer::new(KEY, "HS256".parse().unwrap(), None).unwrap();
        let grants = json!({"subscribe": ["t"]});
        let claims = json!({"sub": user, "exp": 4_000_000_000_u32, "throng": grants});
        Connect::new(V5, name).authenticates(&signer.sign(&claims).unwrap())
    };
    let settle = || settle_by([&a, &b], |name| connect("cy", name));
    let mut al = connect("al", "phone").open(a.client);
    let mut bo = connect("bo", "phone").open(b.client);
    settle();
    al.is_quiet();
    bo.is_quiet();
    let mut again = connect("al", "phone").open(b.client);
    al.is_ended_for(TAKEN_OVER);
    settle();
    bo.is_quiet();
    again.is_quiet();
}

#[test]
fn an_upgraded_node_goes_on_with_the_order_of_connects() {
    let nats = Nats::start();
    let [a, b] = ["a", "b"].map(|name| {
        let url = nats.url();
        let topics = format!(
            "[timeouts]\ndrain_seconds = 0\n\n[cluster]\nurls = [\"{url}\"]\nnode = \"{name}\"\n"
        );
        Node::with(Options { topics, ..Options::default() })
    });
    [&a, &b].into_iter().for_each(|node| until_nodes(node, 1));
    let mut clients = ["c", "d"].map(|name| Connect::new(V5, name).open(a.client));
    settle([&a, &b]);
    a.upgrade();
    until_nodes(&b, 1);
    settle([&a, &b]);
    clients.iter_mut().for_each(Client::is_quiet);
    // The new process knows that the client `c` has connected before, and that those connects are earlier.
    let [mut c, mut d] = clients;
    let mut later = Connect::new(V5, "c").open(b.client);
    c.is_ended_for(TAKEN_OVER);
    b.upgrade();
    until_nodes(&a, 1);
    settle([&a, &b]);
    later.is_quiet();
    d.is_quiet();
    let _back = Connect::new(V5, "c").open(a.client);
    later.is_ended_for(TAKEN_OVER);
}

/// Starts a client of mosquitto at a node.
fn mosquitto(program: &str, node: &Server, version: &str, arguments: &[&str]) -> Child {
    let mut command = Command::new(program);
    let port = node.client.port().to_string();
    command.args(["-h", "127.0.0.1", "-p", &port, "-V", version, "-i", "c", "-t", "t", "-q", "1"]);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("mosquitto's clients, which scripts/install installs")
}

fn subscriber(node: &Server, version: &str) -> Child {
    let child = mosquitto("mosquitto_sub", node, version, &["-d"]);
    node.until("mosquitto is there", |node| session(node, "c") == (200, true));
    child
}

/// A publisher at one node connects with the client identifier of a client at another node.
fn publisher_takes_over(nodes: [&Server; 2], version: &str) {
    let [here, there] = nodes;
    let mut client = Connect::new(V5, "c").open(there.client);
    let publisher = mosquitto("mosquitto_pub", here, version, &["-m", "x"]);
    assert!(printed_within(publisher).status.success());
    client.is_ended_for(TAKEN_OVER);
}

#[test]
fn clients_of_mosquitto_are_taken_over_and_take_over() {
    let nats = Nats::start();
    let [a, b] = nodes(&nats);
    // A client of MQTT 3 connects again, and so takes over its identifier in turn.
    let mut child = subscriber(&a, "mqttv311");
    let mut client = Connect::new(V5, "c").open(b.client);
    client.is_ended_for(TAKEN_OVER);
    child.kill().unwrap();
    child.wait().unwrap();
    publisher_takes_over([&a, &b], "mqttv311");
    // A client of MQTT 5 gets the reason, and ends.
    let child = subscriber(&a, "mqttv5");
    let mut client = Connect::new(V5, "c").open(b.client);
    let output = printed_within(child);
    let printed = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(printed.concat().contains("Received DISCONNECT (142)"), "{printed:?}");
    client.is_quiet();
    publisher_takes_over([&a, &b], "mqttv5");
}
