//! `throng rebalance`, and drains of one node in a cluster.

use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::json;

use super::stream;
use super::support::*;
use crate::support::*;

fn command(server: &Server, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(["rebalance", "--admin", &server.admin.to_string()]).args(flags);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(server: &Server, flags: &[&str]) -> Output {
    output_within(&mut command(server, flags))
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn connections(node: &Server) -> u64 {
    state(node)["node"]["connections"].as_u64().unwrap()
}

/// A client that connects to `b` when its server sends it to another server, as a load balancer would do.
fn client(a: &Server, b: &Server, at: usize, ends: &AtomicBool) {
    let mut stream = stream(a, &format!("topic=all&user=u{at}"));
    loop {
        let object = stream.next_object();
        match object["type"].as_str() {
            Some("close") if object["reason"] == "use_another_server" => {
                stream = super::stream(b, &format!("topic=all&user=u{at}"));
            }
            Some("close") => panic!("{object}"),
            _ if object["data"] == "end" => break,
            _ => {}
        }
    }
    assert!(ends.load(Ordering::Relaxed));
}

#[test]
fn nodes_with_more_than_the_mean_give_the_surplus_to_the_others() {
    let nats = Nats::start();
    let [a, b] = nats.nodes(&[]);
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        for at in 0..40 {
            let (a, b, ends) = (&a, &b, &ends);
            scope.spawn(move || client(a, b, at, ends));
        }
        a.until_members("all", 40);
        let plan = "a  40, closes 20\nb  0\nthe mean is 20\n";
        let sorted = |output: &Output| {
            let mut lines: Vec<String> = text(&output.stdout).lines().map(Into::into).collect();
            lines.sort();
            lines
        };
        let mut plan: Vec<String> = plan.lines().map(Into::into).collect();
        plan.sort();
        // Any node can make the plan.
        let output = run(&b, &["--dry-run"]);
        assert_eq!((output.status.code(), sorted(&output)), (Some(0), plan), "{output:?}");
        assert_eq!((connections(&a), connections(&b)), (40, 0));
        // A rebalance closes at most a tenth of the connections in a minute: 20 of 40 take five minutes.
        let mut slow = command(&b, &["--rate", "1000/s"]).spawn().unwrap();
        a.until("one is closed", |a| {
            a.api("GET", "/api/rebalance", None).1["closed"].as_u64() >= Some(1)
        });
        let (_, state) = a.api("GET", "/api/rebalance", None);
        assert_eq!((&state["stage"], &state["to_close"]), (&json!("closing"), &json!(20)));
        let seconds = ["seconds", "seconds_left"].map(|name| state[name].as_f64().unwrap());
        assert!(seconds.iter().sum::<f64>() > 299.0, "{state}");
        assert_eq!(a.metric("throng_rebalancing"), 1.0);
        assert_eq!(a.metric("throng_ready"), 1.0);
        let refused = run(&a, &[]);
        assert_eq!(refused.status.code(), Some(1));
        assert!(text(&refused.stderr).contains("drain_under_way"), "{refused:?}");
        let output = run(&a, &["--cancel"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(wait_within(&mut slow).code(), Some(1));
        assert_eq!(a.metric("throng_rebalancing"), 0.0);
        let closed = a.api("GET", "/api/rebalance", None).1["closed"].as_u64().unwrap();
        // Exactly the closed clients are at the other node.
        b.until_members("all", 40);
        b.until("they are there", |b| (connections(&a), connections(b)) == (40 - closed, closed));
        ends.store(true, Ordering::Relaxed);
        a.publish("all", json!("end"));
    });
}

#[test]
fn the_command_ends_when_nodes_are_balanced() {
    let nats = Nats::start();
    let [a, b] = nats.nodes(&[]);
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        for at in 0..3 {
            let (a, b, ends) = (&a, &b, &ends);
            scope.spawn(move || client(a, b, at, ends));
        }
        a.until_members("all", 3);
        let output = run(&a, &[]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let last = text(&output.stdout).lines().last().unwrap();
        assert!(last.ends_with("the nodes are balanced"), "{last}");
        assert_eq!((connections(&a), connections(&b)), (2, 1));
        let reason = "throng_connections_closed_total{reason=\"use_another_server\"}";
        assert_eq!((a.metric(reason), b.metric(reason)), (1.0, 0.0));
        ends.store(true, Ordering::Relaxed);
        b.publish("all", json!("end"));
    });
}

#[test]
fn a_node_that_is_alone_or_the_last_that_serves_says_so() {
    let alone = Server::start();
    let output = run(&alone, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("this node is not in a cluster"), "{output:?}");
    let nats = Nats::start();
    let [a, b] = nats.nodes(&[]);
    // Node a starts a drain of node b.
    let (status, begun) = a.api("POST", "/api/drain?node=b", Some(json!({"wait_seconds": 86_400})));
    assert_eq!((status, &begun["stage"]), (200, &json!("waiting")), "{begun}");
    a.until("it is known that b drains", |a| state(a)["nodes"][0]["draining"] == true);
    assert_eq!(state(&b)["node"]["draining"], true);
    assert_eq!(state(&a)["node"]["draining"], false);
    let output = run(&a, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("drain"), "{output:?}");
    let (_, cancelled) = a.api("DELETE", "/api/drain?node=b", None);
    assert_eq!(cancelled["stage"], "serving");
    a.until("b serves again", |a| state(a)["nodes"][0]["draining"] == false);
    let output = run(&a, &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}
