//! MQTT clients that connect to one node after another, and to several at a time: in the end each has one connection.

use std::collections::BTreeMap;

use model::{LogicalTime, NodeId};
use random::Random;

use super::{NODES, SECOND_US, World};
use crate::{ClientConnect, LogicalClock, Node};

/// Clients that continue to connect in quiet times.
const QUIET: usize = 8;

/// All clients. Beyond the first `QUIET`, they stay as faults have left them.
const CLIENTS: usize = 40;

/// The times of day of two nodes differ by at most so much, in milliseconds.
const APART_MS: u64 = 5_000;

/// After this time without faults all nodes know a connect.
const KNOWN_US: u64 = SECOND_US;

fn key(client: usize) -> String {
    format!("client {client}")
}

/// The MQTT clients of a process.
pub struct Clients {
    clock: LogicalClock,
    /// The connected ones, with the numbers of their connects.
    connected: BTreeMap<String, u64>,
    /// The offset of its time of day, in milliseconds.
    apart_ms: u64,
}

impl Clients {
    pub fn new(random: &mut Random) -> Self {
        let apart_ms = if random.one_in(2_u32) { 0 } else { random.below(APART_MS) };
        Clients { clock: LogicalClock::default(), connected: BTreeMap::new(), apart_ms }
    }

    /// Handles that another process continues with them.
    pub fn on_upgraded(&mut self, node: &Node) {
        self.clock = LogicalClock::default();
        self.clock.observe(node.clock_newest());
    }

    fn connect(&mut self, node: &mut Node, key: String, times_us: (u64, u64)) -> LogicalTime {
        let (world_us, now_us) = times_us;
        self.clock.observe(node.clock_newest());
        let number = self.clock.tick(world_us / 1_000 + self.apart_ms);
        self.connected.insert(key.clone(), number);
        node.publish_connects(vec![ClientConnect { key, number, is_clean: false }], now_us);
        LogicalTime { number, node: node.id() }
    }

    /// Handles clients that have connected to another node.
    pub fn on_connected(
        &mut self,
        by: NodeId,
        connects: &[ClientConnect],
        node: &mut Node,
        now_us: u64,
    ) {
        for ClientConnect { key, number, .. } in connects {
            let Some(own) = self.connected.get(key).copied() else { continue };
            let own = LogicalTime { number: own, node: node.id() };
            match own > (LogicalTime { number: *number, node: by }) {
                true => {
                    let connect =
                        ClientConnect { key: key.clone(), number: own.number, is_clean: false };
                    node.publish_connects(vec![connect], now_us);
                }
                false => _ = self.connected.remove(key),
            }
        }
    }

    /// Publishes the connects of all again.
    pub fn repeat(&self, node: &mut Node, now_us: u64) {
        let connect = |(key, number): (&String, &u64)| ClientConnect {
            key: key.clone(),
            number: *number,
            is_clean: false,
        };
        node.publish_connects(self.connected.iter().map(connect).collect(), now_us);
    }
}

/// The connects of all clients, as the simulation knows them.
#[derive(Default)]
pub struct Connects(BTreeMap<String, Known>);

/// A client.
#[derive(Default)]
struct Known {
    /// Its latest connect for all nodes.
    latest: LogicalTime,
    /// True if that was in quiet times, and the client has not disconnected since.
    is_connected: bool,
    /// When it connected last.
    last_us: u64,
    /// True if the last connect is the latest, because its node knew all earlier ones.
    is_last: bool,
}

impl World {
    /// Connects a client to a node, with `is_quiet` also to two at a time, or disconnects it.
    pub fn act_as_client(&mut self, is_quiet: bool) {
        let client = key(self.random.below(if is_quiet { QUIET } else { CLIENTS }));
        if self.random.one_in(8_u32) {
            let node = self.random.below(NODES);
            let Some(process) = &mut self.processes[node] else { return };
            let Some(number) = process.clients.connected.remove(&client) else { return };
            let time = LogicalTime { number, node: process.node.id() };
            if let Some(known) = self.connects.0.get_mut(&client) {
                known.is_connected &= known.latest != time;
            }
            return;
        }
        let count = if is_quiet { 1 + self.random.below(2_usize) } else { 1 };
        for _ in 0..count {
            let node = self.random.below(NODES);
            if self.processes[node].is_some() && self.stands_until(node).is_none() {
                self.connect_client(node, &client, is_quiet);
            }
        }
    }

    fn connect_client(&mut self, node: usize, client: &str, is_quiet: bool) {
        let (world_us, mut time) = (self.now_us, LogicalTime::default());
        self.input(node, |process, now_us| {
            let times_us = (world_us, now_us);
            time = process.clients.connect(&mut process.node, client.into(), times_us);
        });
        let known = self.connects.0.entry(client.into()).or_default();
        known.is_last = is_quiet && world_us >= known.last_us + KNOWN_US;
        known.last_us = world_us;
        let seed = self.seed;
        assert!(
            time > known.latest || !known.is_last,
            "seed {seed}: {client} was here after {time:?}"
        );
        if time > known.latest {
            (known.latest, known.is_connected) = (time, is_quiet);
        }
    }

    /// Verifies that each client has at most one connection, and that clients that have connected in quiet times have
    /// the latest.
    pub fn verify_clients(&mut self) {
        let (seed, mut quiet) = (self.seed, 0);
        for client in (0..CLIENTS).map(key) {
            let has = |it: &&super::Process| it.clients.connected.contains_key(&client);
            let nodes = self.processes.iter().flatten().filter(has);
            let nodes: Vec<_> = nodes.map(|process| process.node.id()).collect();
            assert!(nodes.len() <= 1, "seed {seed}: {client} is at {nodes:?}");
            let known = self.connects.0.get(&client).filter(|known| known.is_connected);
            let Some(known) = known else { continue };
            assert_eq!(nodes, [known.latest.node], "seed {seed}: {client}");
            quiet += 1;
            self.reached.causal += usize::from(known.is_last);
        }
        assert!(quiet > QUIET / 2, "seed {seed}: {quiet}");
    }
}
