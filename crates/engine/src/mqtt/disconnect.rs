//! The last packet to an MQTT client, also to one that is not accepted yet.

use model::CloseReason;
use protocol::mqtt::{ClientLimits, Mqtt, MqttError};

use crate::connection::Phase;
use crate::core::Core;
use crate::engine::Engine;

impl Core {
    /// Returns the client's limits.
    pub(crate) fn mqtt_limits(&self, slot: u32) -> ClientLimits {
        self.mqtt.details(slot).map_or_else(ClientLimits::default, |details| details.limits)
    }

    /// Returns true until a complete CONNECT has arrived.
    pub(crate) fn mqtt_awaits_connect(&self, slot: u32) -> bool {
        let phase = self.table.get(slot).map(|connection| connection.phase());
        // A WebSocket opens before CONNECT.
        let is_early = phase == Some(Phase::Request) || phase == Some(Phase::Open);
        is_early && self.mqtt_protocol(slot).is_some() && !self.mqtt.has(slot)
    }

    /// Appends why the connection ends: in DISCONNECT, or in CONNACK if the client waits for that.
    pub(crate) fn mqtt_goodbye(&self, slot: u32, close: CloseReason, out: &mut Vec<u8>) {
        let Some(mqtt) = self.mqtt_protocol(slot) else { return };
        let reference = self.server_reference();
        if self.mqtt.has(slot) {
            return mqtt.say_goodbye(close, reference, &self.mqtt_limits(slot), out);
        }
        if let Some(connect) = self.mqtt.waiters.get(&slot).map(|waiter| &waiter.connect) {
            let mqtt = Mqtt::of(connect.encoding).unwrap_or(mqtt);
            mqtt.send_away(close, reference, &connect.limits, out);
        } else if let Some(cold) = self.table.cold(slot) {
            // The engine consumes CONNECT only once it knows the client.
            let gathered = cold.decoder.as_ref().map(|decoder| decoder.gathered());
            let first = gathered.filter(|_| mqtt.framed).unwrap_or(&cold.input);
            mqtt.turn_away_to(first, close, reference, out);
        }
        mqtt.end_frames(out);
    }
}

impl Engine {
    /// Closes a connection after an invalid packet.
    pub(crate) fn mqtt_broken(&mut self, slot: u32, error: MqttError, out: &mut Vec<u8>) {
        if let Some(mqtt) = self.core.mqtt_protocol(slot) {
            mqtt.break_off(error, &self.core.mqtt_limits(slot), out);
        }
        self.close_after(slot, error.close(), out);
    }
}
