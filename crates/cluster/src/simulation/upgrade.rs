//! Another process takes over, and continues as the same node.

use std::collections::BTreeSet;

use model::NodeId;

use super::{Event, Faults, PENDING_BYTES_MAX, Process, SECOND_US, World};
use crate::{Handover, MessagesFrom, Node, Settings};

/// The longest time until a new process has a connection.
const CONNECT_US: u64 = 50_000;

/// Retained messages in a page: few, so that there are several.
const PAGE_MESSAGES_MAX: usize = 7;

/// Passes all state of a node through its records.
fn passed(node: &Node, settings: Settings, now_us: u64) -> Node {
    let mut handover = Handover::default();
    for (key, value) in node.export() {
        handover.import(&key, Some(&value)).unwrap();
    }
    let mut from = Some(MessagesFrom::default());
    while let Some(page) = from {
        let (messages, next) = node.export_messages(page, PAGE_MESSAGES_MAX);
        for message in messages {
            handover.import(&message.key(), Some(&message.value())).unwrap();
        }
        from = next;
    }
    handover.complete(settings, now_us).unwrap()
}

impl World {
    /// Replaces a process that is not suspended by a new one.
    pub fn upgrade(&mut self, node: usize) {
        if self.processes[node].is_none() || self.stands_until(node).is_some() {
            return;
        }
        let (seed, id) = (self.seed, self.nats.ids[node]);
        self.input(node, |process, now_us| {
            process.registry.settle(now_us, seed);
            let mut has_more = true;
            while has_more {
                let changes = process.registry.local.take_changes(500);
                has_more = changes.has_more;
                process.node.publish_presence(changes, now_us);
            }
            process.groups.flush(&mut process.node, &mut process.interest, true, now_us);
            process.node.on_rest(now_us);
        });
        let (settings, bytes_max) = (self.settings(node, id), self.trial.entries_bytes_max());
        let Some(old) = self.processes[node].take() else { return };
        let now_us = self.now_us + old.clock_us;
        let mut new = Process {
            registry: old.registry.passed(bytes_max, PENDING_BYTES_MAX, seed),
            groups: old.groups.passed(),
            node: passed(&old.node, settings, now_us),
            subscribed: BTreeSet::new(),
            ..old
        };
        new.clients.on_upgraded(&new.node);
        let is_missing_some = new.node.is_missing_messages();
        self.reached.upgrades += usize::from(is_missing_some);
        self.processes[node] = Some(new);
        self.nats.pass_on(node);
        self.disturb(node);
        self.input(node, |_, _| {});
        let number = self.nats.connections[node].number;
        let at_us = self.now_us + 1 + self.random.below(CONNECT_US);
        self.push(at_us, Event::Connect(node, number));
    }

    /// With mild faults, a node counts another as gone only if one of the two has lost its connection.
    pub fn verify_down(&self, node: usize, by: NodeId) {
        let other = self.nats.ids.iter().position(|id| *id == by);
        let times = [Some(node), other].map(|it| it.and_then(|it| self.disconnected_us[it]));
        let is_recent =
            |at_us: &Option<u64>| at_us.is_some_and(|at_us| self.now_us < at_us + 9 * SECOND_US);
        assert!(
            self.faults != Faults::Mild || times.iter().any(is_recent),
            "seed {}: {by} has not been away",
            self.seed
        );
    }
}
