//! Sessions whose connections ended while the disk was writing QoS 2 messages of their clients.
//!
//! No client resumes such a session before the disk has written these messages, or failed: after a PUBREC for a
//! message that is not on disk, the client would forget the message.

use std::collections::HashMap;

use model::{ConnectionId, Name, Qos};
use sessions::{Ended, Session, Will};

use super::ack::MqttAck;
use crate::core::Core;
use crate::engine::Engine;

/// No connection has this slot or a higher one.
const FIRST: u32 = 1 << 28;

/// The sessions to release later, by the slots and serials of their former connections.
#[derive(Default)]
pub(crate) struct Leaving {
    all: HashMap<(u32, u32), Left>,
    /// The number of sessions so far, modulo `FIRST`.
    count: u32,
}

struct Left {
    /// The id that has the session meanwhile. Another connection may have the old slot.
    by: ConnectionId,
    key: Name,
    ended: Ended,
    /// Packet identifiers of the messages.
    writing: Vec<u16>,
}

impl Leaving {
    /// Returns true if no session waits for its release.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Handles the connect of such a session's client to another node. `is_later` says whether the connect here with
    /// a number is later.
    pub fn on_connected_to_node(
        &mut self,
        slot: u32,
        key: &Name,
        is_later: impl Fn(u64) -> bool,
        is_clean: bool,
    ) {
        let left = self.all.values_mut().find(|left| left.by.slot == slot && left.key == *key);
        let Some(Left { ended: Ended { session: Some(session), will }, .. }) = left else { return };
        if !is_later(session.connect_number) {
            on_left(session, will, is_clean);
        }
    }

    /// Checks whether a slot stands for such a session, which releases itself.
    pub fn is(slot: u32) -> bool {
        slot >= FIRST
    }
}

/// Updates session and will of a client that has connected to another node.
pub(super) fn on_left(session: &mut Session, will: &mut Option<Will>, is_clean: bool) {
    if is_clean {
        session.seconds = 0;
    } else if session.outlives() {
        // The client is back before its will is due (MQTT 5.0, section 3.1.3.2.2).
        will.take_if(|will| will.delay_s > 0);
    }
}

impl Core {
    /// Releases the session of a connection once these messages are on disk.
    pub(super) fn mqtt_leave(
        &mut self,
        key: &Name,
        from: ConnectionId,
        ended: Ended,
        writing: Vec<u16>,
    ) {
        // A server that shuts down waits for its store, and for nothing after that.
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
    /// Notes that a message is on disk, or can't be. Its connection has ended, or is about to.
    pub(crate) fn mqtt_written(&mut self, slot: u32, serial: u32, ack: MqttAck, is_written: bool) {
        if ack.qos != Qos::ExactlyOnce {
            return;
        }
        let connection = (slot, serial);
        let Some(left) = self.core.mqtt.leaving.all.get_mut(&connection) else {
            let is_here = self.core.table.get(slot).is_some_and(|it| it.serial == serial);
            let details = self.core.mqtt.details_mut(slot).filter(|_| is_here);
            return details.into_iter().for_each(|it| _ = it.written(ack.id, is_written));
        };
        left.writing.retain(|id| *id != ack.id);
        if let Some(session) = left.ended.session.as_mut().filter(|_| !is_written) {
            session.flow.release(ack.id);
        }
        if left.writing.is_empty()
            && let Some(Left { by, key, ended, .. }) =
                self.core.mqtt.leaving.all.remove(&connection)
        {
            self.core.mqtt_release(&key, by, ended);
        }
    }
}
