//! A node's part in take-overs of MQTT clients: it notifies other nodes of clients that connect here, and gets their
//! notices. The node with the later connect has the client: [`model::LogicalTime`] orders them.

use bytes::Bytes;
use model::NodeId;

use super::Node;
use crate::{ClientConnect, MqttEvent, Output, TooLarge};

/// The approximate limit on bytes of connects in one packet.
const PACKET_BYTES: usize = 32 << 10;

/// Bytes of a connect in a packet besides its key, at most.
const CONNECT_BYTES: usize = 20;

/// Bytes of a packet of connects besides them, at most.
const HEAD_BYTES: usize = 128;

impl Node {
    /// Returns the largest number of the logical clock that this node knows.
    pub fn clock_newest(&self) -> u64 {
        self.clock.newest()
    }

    /// Notifies other nodes of MQTT clients that have connected here, so that they end earlier connections. Also of
    /// clients whose connects another node may not know.
    pub fn publish_connects(&mut self, connects: Vec<ClientConnect>, now_us: u64) {
        let bytes_max = self.packet_bytes_max.saturating_sub(HEAD_BYTES).min(PACKET_BYTES);
        let (mut part, mut bytes) = (Vec::new(), 0);
        for connect in connects {
            self.clock.observe(connect.number);
            let more = connect.key.len() + CONNECT_BYTES;
            if bytes + more > bytes_max && !part.is_empty() {
                self.publish_part(std::mem::take(&mut part), now_us);
                bytes = 0;
            }
            bytes += more;
            part.push(connect);
        }
        if !part.is_empty() {
            self.publish_part(part, now_us);
        }
    }

    fn publish_part(&mut self, connects: Vec<ClientConnect>, now_us: u64) {
        let event = MqttEvent { connects, ..MqttEvent::default() };
        self.publish_mqtt_event(&event, TooLarge::Other, now_us);
    }

    /// Handles a message of the MQTT stream.
    pub(super) fn on_mqtt_event(&mut self, node: NodeId, payload: &Bytes) {
        let Ok(MqttEvent { diff, message, connects }) = MqttEvent::decode(payload) else {
            self.counts.damaged += 1;
            return self.on_mqtt_gap(node);
        };
        self.on_group_event(node, diff, message);
        if connects.is_empty() {
            return;
        }
        connects.iter().for_each(|connect| self.clock.observe(connect.number));
        self.outputs.push(Output::ClientsConnected { node, connects });
    }

    /// Handles lost messages of the MQTT stream. They may include connects: the other node compares those of this
    /// one.
    pub(super) fn on_mqtt_gap(&mut self, node: NodeId) {
        self.on_groups_gap(node);
        if !matches!(self.outputs.last(), Some(Output::RepeatConnects)) {
            self.outputs.push(Output::RepeatConnects);
        }
    }
}
