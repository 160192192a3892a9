//! A model of NATS core: at most once, in order on each subject, in no order between subjects.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use random::Random;

use crate::{Stream, Target};

/// NATS always rejects larger packets.
pub const PAYLOAD_BYTES_MAX: usize = 64 << 10;

/// A node's connection.
#[derive(Default)]
pub struct Connection {
    /// The number of this connection of the node: packets in flight on an earlier one are lost.
    pub number: u32,
    pub is_up: bool,
    /// True if all packets are lost, and neither end notices.
    pub is_cut_off: bool,
    subscriptions: BTreeSet<Stream>,
    /// The connection of the process before, whose sent packets all arrive.
    earlier: Option<u32>,
    /// When the last sent packet arrives at NATS, in microseconds.
    sent_us: u64,
}

/// A command of a node to NATS.
#[derive(Clone)]
pub enum Command {
    Subscribe(Stream),
    Unsubscribe(Stream),
    Publish(Target, Bytes),
}

/// A packet that NATS sends to a node.
pub struct Sent {
    pub at_us: u64,
    pub node: usize,
    pub connection: u32,
    pub target: Target,
    pub bytes: Bytes,
}

/// The server, with the connections of all nodes by their numbers.
pub struct Nats {
    pub connections: Vec<Connection>,
    /// The ids of the nodes.
    pub ids: Vec<model::NodeId>,
    /// When the last packet of each subject arrives at each node.
    arrival_us: BTreeMap<(usize, String), u64>,
    /// The reciprocal of the probability that a packet is lost on its way to a node.
    pub one_lost_in: u32,
}

impl Nats {
    pub fn new(nodes: usize, one_lost_in: u32) -> Self {
        Nats {
            connections: (0..nodes).map(|_| Connection::default()).collect(),
            ids: Vec::new(),
            arrival_us: BTreeMap::new(),
            one_lost_in,
        }
    }

    /// Returns when a command that a node sends now arrives: in the order of its connection.
    pub fn send(&mut self, node: usize, now_us: u64, random: &mut Random) -> (u64, u32) {
        let connection = &mut self.connections[node];
        connection.sent_us = connection.sent_us.max(now_us + 100 + random.below(900_u64));
        (connection.sent_us, connection.number)
    }

    /// Handles a command. Returns the packets that nodes get, and when.
    pub fn on_command(
        &mut self,
        (node, number): (usize, u32),
        command: Command,
        now_us: u64,
        random: &mut Random,
    ) -> Vec<Sent> {
        let connection = &mut self.connections[node];
        let is_current = connection.number == number && connection.is_up && !connection.is_cut_off;
        let is_earlier = connection.earlier == Some(number);
        if !(is_current || is_earlier && matches!(command, Command::Publish(..))) {
            return Vec::new();
        }
        let (target, bytes) = match command {
            Command::Subscribe(stream) => {
                connection.subscriptions.insert(stream);
                return Vec::new();
            }
            Command::Unsubscribe(stream) => {
                connection.subscriptions.remove(&stream);
                return Vec::new();
            }
            Command::Publish(target, bytes) if bytes.len() <= PAYLOAD_BYTES_MAX => (target, bytes),
            Command::Publish(..) => return Vec::new(),
        };
        let mut sent = Vec::new();
        for (to, connection) in self.connections.iter().enumerate() {
            let wants = match target {
                Target::Stream(stream) => connection.subscriptions.contains(&stream),
                Target::Nodes => true,
                Target::Node(id) => self.ids[to] == id,
            };
            if to == node || !connection.is_up || !wants || random.one_in(self.one_lost_in) {
                continue;
            }
            let arrival_us = self.arrival_us.entry((to, format!("{target:?}"))).or_default();
            *arrival_us = (*arrival_us).max(now_us + 100 + random.below(5_000_u64));
            let connection = connection.number;
            let (at_us, bytes) = (*arrival_us, bytes.clone());
            sent.push(Sent { at_us, node: to, connection, target, bytes });
        }
        sent
    }

    /// Handles that another process continues as the node, and is about to connect.
    pub fn pass_on(&mut self, node: usize) {
        let connection = &self.connections[node];
        let earlier =
            Some(connection.number).filter(|_| connection.is_up && !connection.is_cut_off);
        let number = connection.number + 1;
        self.connections[node] = Connection { number, earlier, ..Connection::default() };
    }

    /// Breaks the node's connection.
    pub fn disconnect(&mut self, node: usize) {
        let connection = &mut self.connections[node];
        let number = connection.number + 1;
        *connection = Connection { number, ..Connection::default() };
    }
}
