//! MQTT clients that connect to another node of the cluster: their connections and sessions here, and what other nodes are told
//! of the clients of this one.

use model::{CloseReason, LogicalTime, Name};
use sessions::NodeConnect;

use super::detached::{Leaving, on_left};
use crate::engine::Engine;

/// Clients of which an engine tells other nodes again in a second.
const REPEATED_MAX: usize = 16_384;

/// How far the engine is in telling other nodes of all its clients again.
#[derive(Default)]
pub(crate) struct Repeat {
    /// The slot that is next; `None` while there is nothing to do.
    next: Option<u32>,
    /// All of it once more: connects of another node were lost meanwhile.
    has_to_begin_again: bool,
}

impl Repeat {
    /// Other nodes are to know of all clients.
    pub fn begin(&mut self) {
        match self.next {
            None => self.next = Some(0),
            Some(_) => self.has_to_begin_again = true,
        }
    }
}

impl Engine {
    /// A client that has, or had, the session of this key in a slot here has connected to another node.
    pub(crate) fn mqtt_connected_to_node(
        &mut self,
        slot: u32,
        key: &Name,
        time: LogicalTime,
        is_clean: bool,
    ) {
        let own = self.core.shared.node;
        let is_later = |number| LogicalTime { number, node: own } > time;
        if let Some(waiter) = self.core.mqtt.waiters.get(&slot).filter(|it| it.key == *key) {
            if !is_later(waiter.number) && self.core.is_open(slot) {
                self.core.metrics.mqtt_taken_over_by_nodes.add(1);
                self.say_goodbye(slot, CloseReason::TakenOver);
            }
            return;
        }
        if Leaving::is(slot) {
            return self.core.mqtt.leaving.on_connected_to_node(slot, key, is_later, is_clean);
        }
        if self.core.mqtt.row(slot).is_none_or(|row| row.key != *key) {
            // It has ended meanwhile. A connection that has the session by now has a later connect.
            match self.core.shared.mqtt_sessions.on_connected_to_node(key, time, is_clean) {
                NodeConnect::Away(will) => self.core.publish_wills(will),
                NodeConnect::Connected(_) => {}
            }
            return;
        }
        let number = self.core.mqtt.connect_number(slot);
        if is_later(number) {
            self.core.metrics.mqtt_node_connects_outdated.add(1);
            return self.core.broker.client_connected(key, number, false);
        }
        if let Some(details) = self.core.mqtt.details_mut(slot) {
            on_left(&mut details.session, &mut details.will, is_clean);
        }
        if self.core.is_open(slot) {
            self.core.metrics.mqtt_taken_over_by_nodes.add(1);
            self.say_goodbye(slot, CloseReason::TakenOver);
        }
    }

    /// Tells other nodes of some clients again, where they may have missed them.
    pub(super) fn mqtt_repeat_some(&mut self) {
        let mqtt = &mut self.core.mqtt;
        let Some(first) = mqtt.repeat.next else { return };
        let mut connects = mqtt.connects(first);
        for (_, key, number) in connects.by_ref().take(REPEATED_MAX) {
            self.core.broker.client_connected(key, number, false);
        }
        let next = connects.next().map(|(slot, ..)| slot);
        drop(connects);
        mqtt.repeat.next = next;
        if next.is_none() && std::mem::take(&mut mqtt.repeat.has_to_begin_again) {
            mqtt.repeat.begin();
        }
    }
}
