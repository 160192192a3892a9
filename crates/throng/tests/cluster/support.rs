//! A NATS server, and nodes that join it.

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Mark, Server, TIMEOUT, free_port};

/// A NATS server (`scripts/install` builds it), which a test can kill and start again at the same port.
pub struct Nats {
    port: u16,
    flags: Vec<String>,
    child: Option<Child>,
    mark: Mark,
}

impl Nats {
    pub fn start() -> Self {
        Nats::with(&[])
    }

    /// Starts a NATS server with further flags.
    pub fn with(flags: &[&str]) -> Self {
        let flags = flags.iter().map(|flag| (*flag).to_string()).collect();
        let mut nats = Nats { port: free_port(), flags, child: None, mark: Mark::new() };
        nats.run();
        nats
    }

    /// Starts NATS, and waits until it accepts connections.
    pub fn run(&mut self) {
        let program = std::env::var("TEST_NATS").expect("TEST_NATS, which scripts/test sets");
        let mut command = Command::new(program);
        command.args(["-a", "127.0.0.1", "-p", &self.port.to_string()]).args(&self.flags);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.mark.put(&mut command);
        self.child = Some(command.spawn().unwrap());
        let end = Instant::now() + TIMEOUT;
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(Instant::now() < end, "NATS does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Kills NATS, which keeps its state only in memory.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Starts a node with this name and further settings. It may not know the other nodes yet.
    pub fn node(&self, name: &str, settings: &[(&str, &str)]) -> Server {
        self.node_with(name, &[], settings)
    }

    /// Like [`Self::node`], with further flags.
    pub fn node_with(&self, name: &str, flags: &[&str], settings: &[(&str, &str)]) -> Server {
        let url = self.url();
        let flags = [&["--shards", "2", "--cluster", &url], flags].concat();
        let named = [("THRONG_CLUSTER_NODE", name), ("THRONG_CLIENT_PUBLISH_PREFIXES", "*")];
        Server::with(&flags, &[&named, settings].concat())
    }

    /// Starts `N` nodes, called `a`, `b` and so on, and waits until they know each other.
    pub fn nodes<const N: usize>(&self, settings: &[(&str, &str)]) -> [Server; N] {
        let names = ["a", "b", "c", "d"];
        let nodes = std::array::from_fn(|at| self.node(names[at], settings));
        nodes.iter().for_each(|node| until_nodes(node, N - 1));
        nodes
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns a node's view of the cluster.
pub fn state(node: &Server) -> Value {
    let (status, state) = node.api("GET", "/api/cluster", None);
    assert_eq!(status, 200, "{state}");
    state
}

/// Returns the names of the other nodes that a node has in this state.
pub fn nodes_in(node: &Server, state_name: &str) -> Vec<String> {
    let state = state(node);
    let others = state["nodes"].as_array().unwrap().iter();
    let others = others.filter(|other| other["state"] == state_name);
    others.map(|other| other["name"].as_str().unwrap().to_string()).collect()
}

/// Waits until a node is connected, knows `count` other nodes, and awaits no message of them. It then counts no gap
/// if a test kills one of them.
pub fn until_nodes(node: &Server, count: usize) {
    node.until(&format!("{count} others are there"), |node| {
        let state = state(node);
        let others = state["nodes"].as_array().unwrap().iter();
        let up: Vec<_> = others.filter(|other| other["state"] == "up").collect();
        // Older versions do not report this number.
        let is_whole = |other: &&Value| other["pending_streams"].as_u64().unwrap_or(0) == 0;
        state["nats"]["connected"] == true && up.len() == count && up.iter().all(is_whole)
    });
}

/// Waits until a node has lost its connection to NATS.
pub fn until_disconnected(node: &Server) {
    node.until("NATS is away", |node| state(node)["nats"]["connected"] == false);
}
