//! Closes connections for an operator that drains the node, or moves some to other nodes.

use model::CloseReason;
use random::Random;

use crate::core::Core;
use crate::engine::Engine;

/// Random draws of a slot for each connection before all slots are scanned: enough where one slot in four is taken.
const DRAWS: u32 = 4;

impl Engine {
    /// Closes so many connections, each with the same probability, with a notice that the client must use another
    /// server. Returns the number of closed connections. It is smaller if the others are about to end, wait for a
    /// reply that comes soon, or have a pending MQTT CONNECT.
    pub(crate) fn evict(&mut self, connections: u32, seed: u64) -> u32 {
        let mut random = Random::of(seed, u64::from(self.core.number));
        let end = self.core.table.end();
        let mut closed = 0;
        for _ in 0..connections.saturating_mul(DRAWS).min(end.saturating_mul(DRAWS)) {
            if closed == connections {
                return closed;
            }
            closed += self.evict_one(random.below(end));
        }
        // If few slots are taken, draws among those.
        let mut left: Vec<u32> = (0..end).filter(|slot| self.core.may_go(*slot)).collect();
        while closed < connections && !left.is_empty() {
            let slot = left.swap_remove(random.below(left.len()));
            closed += self.evict_one(slot);
        }
        closed
    }

    fn evict_one(&mut self, slot: u32) -> u32 {
        let may_go = self.core.may_go(slot);
        if may_go {
            self.say_goodbye(slot, CloseReason::UseAnotherServer);
        }
        u32::from(may_go)
    }
}

impl Core {
    /// True when a connection exists and may be closed now. A connection that gets a reply soon ends later, and so
    /// does one whose MQTT CONNECT is pending.
    pub(crate) fn may_go(&self, slot: u32) -> bool {
        self.table.get(slot).is_some_and(|connection| !connection.is_closing())
            && !self.has_reply_soon(slot)
            && !self.mqtt_awaits_connect(slot)
    }
}
