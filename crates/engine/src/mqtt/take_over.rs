//! MQTT clients that connect to another node of the cluster: this node ends their connections here and updates their
//! sessions. It notifies other nodes of its own clients.

use model::{CloseReason, LogicalTime, Name};
use sessions::NodeConnect;

use super::detached::{Leaving, on_left};
use crate::engine::Engine;

/// Clients per second that an engine announces to other nodes again.
const REPEATED_MAX: usize = 16_384;

/// Progress of an engine that announces all its clients to other nodes again.
#[derive(Default)]
pub(crate) struct Repeat {
    /// The next slot; `None` while the engine has nothing to announce.
    next: Option<u32>,
    /// Another node has lost connects meanwhile: afterwards the engine starts again.
    has_to_begin_again: bool,
}

impl Repeat {
    /// Starts to announce all clients to other nodes.
    pub fn begin(&mut self) {
        match self.next {
            None => self.next = Some(0),
            Some(_) => self.has_to_begin_again = true,
        }
    }
}

impl Engine {
    /// Handles the connect to another node of a client that has, or had, the session with this key in a slot here.
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
            // The connection has ended meanwhile. If another one has the session now, its connect is later.
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

    /// Announces some clients again to other nodes that may have missed them.
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
