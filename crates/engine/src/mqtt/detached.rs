//! Sessions whose connections ended while messages with QoS 2 of theirs were on their way to the disk.
//!
//! Until these are there, or can't be, nobody takes a session up: PUBREC for a message that is not on disk would
//! let its client forget it.

use std::collections::HashMap;

use model::{ConnectionId, Name, Qos};
use sessions::{Ended, Session};

use super::ack::MqttAck;
use crate::core::Core;
use crate::engine::Engine;

/// No connection has such a slot, or a later one.
const FIRST: u32 = 1 << 28;

/// The sessions that are let go later, by the slots and serials that their connections had.
#[derive(Default)]
pub(crate) struct Leaving {
    all: HashMap<(u32, u32), Left>,
    /// How many there were.
    count: u32,
}

struct Left {
    /// Who has the session meanwhile. The connection's slot may be another one's.
    by: ConnectionId,
    key: Name,
    ended: Ended,
    /// The packet identifiers of the messages.
    writing: Vec<u16>,
}

impl Leaving {
    /// True while none is there.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether it is one of these that goes by this slot: it lets go by itself.
    pub fn is(slot: u32) -> bool {
        slot >= FIRST
    }
}

impl Core {
    /// A connection lets go of its session, when these messages are on disk.
    pub(super) fn mqtt_leave(
        &mut self,
        key: &Name,
        from: ConnectionId,
        ended: Ended,
        writing: Vec<u16>,
    ) {
        // A server that ends waits for its store, and then for nobody.
        let goes_on = ended.session.as_ref().is_some_and(Session::outlives);
        if writing.is_empty() || !goes_on || self.draining {
            return self.mqtt_release(key, from, ended);
        }
        let leaving = &mut self.mqtt.leaving;
        leaving.count = (leaving.count + 1) % FIRST;
        let by = ConnectionId { slot: FIRST + leaving.count, ..from };
        self.shared.mqtt_sessions.linger(key, from, by);
        let left = Left { by, key: key.clone(), ended, writing };
        leaving.all.insert((from.slot, from.serial), left);
    }
}

impl Engine {
    /// A message is on disk, or can't be. Its connection is gone, or about to be.
    pub(crate) fn mqtt_written(&mut self, slot: u32, serial: u32, ack: MqttAck, is_written: bool) {
        if ack.qos != Qos::ExactlyOnce {
            return;
        }
        let place = (slot, serial);
        let Some(left) = self.core.mqtt.leaving.all.get_mut(&place) else {
            let is_here = self.core.table.get(slot).is_some_and(|it| it.serial == serial);
            let details = self.core.mqtt.details_mut(slot).filter(|_| is_here);
            return details.into_iter().for_each(|it| _ = it.written(ack.id, is_written));
        };
        left.writing.retain(|id| *id != ack.id);
        if let Some(session) = left.ended.session.as_mut().filter(|_| !is_written) {
            session.flow.release(ack.id);
        }
        if left.writing.is_empty()
            && let Some(Left { by, key, ended, .. }) = self.core.mqtt.leaving.all.remove(&place)
        {
            self.core.mqtt_release(&key, by, ended);
        }
    }
}
