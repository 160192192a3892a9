//! `throng rebalance`: makes the nodes of a cluster that have more connections than the mean give some to the others.

use std::fmt::Write as _;
use std::io::{Write, stderr, stdout};
use std::thread::sleep;
use std::time::{Duration, Instant};

use admin::text::{cut, grouped, plain};
use admin::{Admin, AdminError, encoded, refusal};
use clap::Args;
use serde_json::{Value, json};

use super::drain::per_second;
use crate::error::CommandError;

/// The `User-Agent` of the requests.
const AGENT: &str = "throng-rebalance";
const NODES: &str = "/api/cluster/nodes";
const PATH: &str = "/api/rebalance";
/// The most rounds of closing and counting again: if a balancer takes nodes in turn, some clients come back to the
/// node that they have left.
const ROUNDS_MAX: u32 = 5;
/// Time between two reads of the nodes' progress.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The shortest time before connections are counted again: a client that gets the notice to go may leave its end open
/// for a while.
const SETTLE_MIN: Duration = Duration::from_secs(4);
/// The longest time for clients to come back before connections are counted again.
const SETTLE_MAX: Duration = Duration::from_secs(10);
/// The clients are back when this percentage of the connections is open again.
const SETTLED_PERCENT: u64 = 98;
/// How long a node may give no reply before the command gives up.
const AWAY_MAX: Duration = Duration::from_secs(30);
/// The limit on the characters of a node's name.
const NAME_MAX: usize = 40;

#[derive(Args, Default)]
pub struct Rebalance {
    /// The admin port of any node of the cluster: a URL, or a host and port.
    #[arg(long, default_value = "http://127.0.0.1:8001", value_name = "URL")]
    pub admin: String,
    #[command(flatten)]
    pub access: crate::node::Access,
    /// Close at most this many connections per second on each node: 100, or 100/s. A node closes
    /// at most a tenth of its connections in a minute.
    #[arg(long, value_name = "N", default_value = "100/s", value_parser = per_second)]
    pub rate: u64,
    /// Leave nodes alone that are at most this many percent above the mean.
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub within: u64,
    /// Only print how many connections each node would close.
    #[arg(long)]
    pub dry_run: bool,
    /// Cancel the rebalance on all nodes.
    #[arg(long, conflicts_with_all = ["rate", "within", "dry_run"])]
    pub cancel: bool,
}

/// A node as the cluster counts it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    id: String,
    name: String,
    connections: u64,
    draining: bool,
}

impl Node {
    /// Parses a row of [`NODES`].
    fn parse(row: &Value) -> Option<Self> {
        Some(Node {
            id: row["id"].as_str()?.into(),
            name: row["name"].as_str()?.into(),
            connections: row["connections"].as_u64()?,
            draining: row["draining"].as_bool()?,
        })
    }

    /// Returns the node's name, or its id without one, safe for a terminal.
    fn label(&self) -> String {
        let label = if self.name.is_empty() { &self.id } else { &self.name };
        cut(&plain(label), NAME_MAX)
    }
}

/// How many connections each node closes.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    /// Connections of a node that has its share: the mean.
    mean: u64,
    /// Connections of all nodes that serve.
    connections: u64,
    /// The nodes that serve, each with how many it closes.
    nodes: Vec<(Node, u64)>,
}

impl Plan {
    /// Plans to bring nodes down to the mean that are more than `within` percent above it. It leaves out draining
    /// nodes: they accept no connections, and close all of theirs anyway.
    fn new(nodes: Vec<Node>, within: u64) -> Result<Self, String> {
        let (drain, serve): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|node| node.draining);
        if serve.len() < 2 {
            return Err(match drain.len() {
                0 => "the cluster has no other node: there is nothing to balance".into(),
                _ => "all other nodes of the cluster are draining: cancel a drain, or start \
                      another node"
                    .into(),
            });
        }
        let connections: u64 = serve.iter().map(|node| node.connections).sum();
        let mean = connections.div_ceil(serve.len() as u64);
        let most = mean + mean * within / 100;
        let surplus = |node: Node| {
            let surplus = if node.connections > most { node.connections - mean } else { 0 };
            (node, surplus)
        };
        Ok(Plan { mean, connections, nodes: serve.into_iter().map(surplus).collect() })
    }

    /// Returns the nodes that close some connections.
    fn with_surplus(&self) -> Vec<(Node, u64)> {
        self.nodes.iter().filter(|(_, surplus)| *surplus > 0).cloned().collect()
    }

    /// Returns a line for each node.
    fn text(&self) -> String {
        let mut out = String::new();
        let width = self.nodes.iter().map(|(node, _)| node.label().chars().count()).max();
        for (node, surplus) in &self.nodes {
            let (label, width) = (node.label(), width.unwrap_or(0));
            let closes = match surplus {
                0 => String::new(),
                surplus => format!(", closes {}", grouped(*surplus)),
            };
            let _ = writeln!(out, "{label:width$}  {}{closes}", grouped(node.connections));
        }
        let _ = writeln!(out, "the mean is {}", grouped(self.mean));
        out
    }
}

/// Runs the command. Its error decides the exit status.
pub fn run(args: &Rebalance) -> Result<(), CommandError> {
    let mut admin = Admin::new(&args.access.target(&args.admin)?, AGENT);
    if args.cancel {
        for node in nodes(&mut admin)? {
            call(&mut admin, "DELETE", &node, "")?;
        }
        say("the rebalance is cancelled: no node closes connections for it\n");
        return Ok(());
    }
    for round in 0..=ROUNDS_MAX {
        let plan = Plan::new(nodes(&mut admin)?, args.within).map_err(CommandError::Runtime)?;
        let with_surplus = plan.with_surplus();
        say(&plan.text());
        if with_surplus.is_empty() {
            say(&format!(
                "no node is more than {} % above the mean: the nodes are balanced\n",
                args.within
            ));
            return Ok(());
        }
        if args.dry_run {
            return Ok(());
        }
        if round == ROUNDS_MAX {
            break;
        }
        begin(&mut admin, &with_surplus, args.rate)?;
        watch(&mut admin, &with_surplus)?;
        settle(&mut admin, plan.connections)?;
    }
    eprintln!(
        "after {ROUNDS_MAX} rounds some nodes are still above the mean, because their clients came \
         back to them: make the load balancer choose the node with the fewest connections"
    );
    Err(CommandError::Findings)
}

/// Prints a text. A closed pipe is not an error.
fn say(text: &str) {
    let _ = stdout().write_all(text.as_bytes());
}

/// Returns all nodes, or an error if one sent no reply.
fn nodes(admin: &mut Admin) -> Result<Vec<Node>, CommandError> {
    let error = |error: AdminError| CommandError::Runtime(error.to_string());
    let (status, body) = admin.exchange("GET", NODES, "text/plain", "").map_err(error)?;
    if status == 409 {
        return Err(CommandError::Runtime(refusal(status, &body)));
    }
    let reply: Value = serde_json::from_slice(&body).unwrap_or_default();
    let rows = reply["nodes"].as_array().filter(|_| status == 200);
    let parsed = rows.and_then(|rows| rows.iter().map(Node::parse).collect());
    let Some(nodes) = parsed else {
        return Err(error(admin.error_of(NODES, status, &body)));
    };
    if let Some(missing) = reply["missing"][0].as_str() {
        let missing = cut(&plain(missing), NAME_MAX);
        return Err(CommandError::Runtime(format!(
            "node {missing} of the cluster did not reply, so the mean is not known: see throng top \
             --cluster"
        )));
    }
    Ok(nodes)
}

/// Sends a call to a node.
fn call(admin: &mut Admin, method: &str, node: &Node, body: &str) -> Result<Value, CommandError> {
    let path = format!("{PATH}?node={}", encoded(&node.id));
    let reply = admin.exchange(method, &path, "application/json", body);
    let (status, body) = reply.map_err(|error| CommandError::Runtime(error.to_string()))?;
    match (status, serde_json::from_slice(&body)) {
        (200, Ok(state)) => Ok(state),
        (404, _) => Err(CommandError::Runtime(format!(
            "node {} is gone, or its version doesn't support rebalancing",
            node.label()
        ))),
        (400 | 409 | 500.., _) => {
            Err(CommandError::Runtime(format!("node {}: {}", node.label(), refusal(status, &body))))
        }
        _ => Err(CommandError::Runtime(admin.error_of(&path, status, &body).to_string())),
    }
}

/// Makes each of these nodes begin to close its surplus. If one rejects this, the others are cancelled.
fn begin(admin: &mut Admin, with_surplus: &[(Node, u64)], rate: u64) -> Result<(), CommandError> {
    for (at, (node, surplus)) in with_surplus.iter().enumerate() {
        let body = json!({ "connections": surplus, "per_second": rate }).to_string();
        let Err(error) = call(admin, "POST", node, &body) else { continue };
        let mut text = error.text().to_owned();
        for (begun, _) in &with_surplus[..at] {
            let label = begun.label();
            let _ = match call(admin, "DELETE", begun, "") {
                Ok(_) => write!(text, "; the rebalance that node {label} had begun is cancelled"),
                Err(_) => write!(
                    text,
                    "; node {label} continues: cancel it with throng rebalance --cancel"
                ),
            };
        }
        return Err(CommandError::Runtime(text));
    }
    Ok(())
}

/// Waits until these nodes have closed their surplus.
fn watch(admin: &mut Admin, with_surplus: &[(Node, u64)]) -> Result<(), CommandError> {
    for (node, surplus) in with_surplus {
        let mut replied_at = Instant::now();
        let mut logged = Instant::now();
        loop {
            match call(admin, "GET", node, "") {
                Ok(state) if state["stage"] == "closing" => {
                    replied_at = Instant::now();
                    if logged.elapsed() >= Duration::from_secs(10) {
                        logged = Instant::now();
                        let closed = state["closed"].as_u64().unwrap_or_default();
                        let (closed, all) = (grouped(closed), grouped(*surplus));
                        let _ =
                            writeln!(stderr(), "{}: {closed} of {all} are closed", node.label());
                    }
                }
                Ok(state) if state["stage"] == "done" => break,
                Ok(_) => {
                    return Err(CommandError::Runtime(format!(
                        "node {} has stopped closing connections: the rebalance was cancelled, or \
                         the node was upgraded or restarted",
                        node.label()
                    )));
                }
                Err(error) if replied_at.elapsed() > AWAY_MAX => return Err(error),
                Err(_) => {}
            }
            sleep(POLL_INTERVAL);
        }
    }
    Ok(())
}

/// Waits until the clients are back, but no longer than `SETTLE_MAX`.
fn settle(admin: &mut Admin, before: u64) -> Result<(), CommandError> {
    let end = Instant::now() + SETTLE_MAX;
    sleep(SETTLE_MIN);
    loop {
        let nodes = nodes(admin)?;
        let serve = nodes.iter().filter(|node| !node.draining);
        let connections: u64 = serve.map(|node| node.connections).sum();
        if connections * 100 >= before * SETTLED_PERCENT || Instant::now() >= end {
            return Ok(());
        }
        sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(connections: &[u64]) -> Vec<Node> {
        let node = |(at, connections): (usize, &u64)| Node {
            id: format!("{at:08x}"),
            name: format!("n{at}"),
            connections: *connections,
            draining: false,
        };
        connections.iter().enumerate().map(node).collect()
    }

    fn closes(connections: &[u64], within: u64) -> Vec<u64> {
        let plan = Plan::new(nodes(connections), within).unwrap();
        plan.nodes.iter().map(|(_, surplus)| *surplus).collect()
    }

    #[test]
    fn nodes_above_the_mean_come_down_to_it() {
        assert_eq!(closes(&[1_000, 0], 5), [500, 0]);
        assert_eq!(closes(&[0, 1_000, 200], 5), [0, 600, 0]);
        assert_eq!(closes(&[105, 95, 100], 5), [0, 0, 0]);
        assert_eq!(closes(&[106, 94, 100], 5), [6, 0, 0]);
        assert_eq!(closes(&[0, 0, 0], 5), [0, 0, 0]);
        assert_eq!(closes(&[1, 0], 5), [0, 0]);
        // No node comes below the mean, however many nodes the cluster has.
        for seed in 0..200_u64 {
            let count = 2 + seed % 7;
            let connections: Vec<u64> =
                (0..count).map(|at| (seed * 7_919 + at * at * 104_729) % 10_007).collect();
            let plan = Plan::new(nodes(&connections), 1 + seed % 20).unwrap();
            for (node, surplus) in &plan.nodes {
                assert!(*surplus == 0 || node.connections - surplus == plan.mean, "{plan:?}");
            }
            let given: u64 = plan.nodes.iter().map(|(_, surplus)| surplus).sum();
            let lacks = |(node, _): &(Node, u64)| plan.mean.saturating_sub(node.connections);
            assert!(given <= plan.nodes.iter().map(lacks).sum::<u64>(), "{plan:?}");
        }
    }

    #[test]
    fn nodes_that_drain_are_left_out() {
        let mut all = nodes(&[900, 100, 5_000]);
        all[2].draining = true;
        let plan = Plan::new(all.clone(), 5).unwrap();
        assert_eq!((plan.mean, plan.connections, plan.with_surplus().len()), (500, 1_000, 1));
        all[1].draining = true;
        assert!(Plan::new(all, 5).unwrap_err().contains("drain"));
        assert!(Plan::new(nodes(&[5]), 5).unwrap_err().contains("no other node"));
    }

    #[test]
    fn the_plan_is_for_people() {
        let mut all = nodes(&[3_500, 500]);
        all[1].name = "longer\u{1b}".into();
        let text = "n0       3,500, closes 1,500\nlonger\u{fffd}  500\nthe mean is 2,000\n";
        assert_eq!(Plan::new(all, 5).unwrap().text(), text);
        let mut all = nodes(&[40_210, 38_902, 1_900]);
        all.iter_mut().zip(["a", "b", "c"]).for_each(|(node, name)| node.name = name.into());
        let text = "\
a  40,210, closes 13,206
b  38,902, closes 11,898
c  1,900
the mean is 27,004
";
        assert_eq!(Plan::new(all, 5).unwrap().text(), text);
    }
}
