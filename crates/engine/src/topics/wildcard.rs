//! Topic filters of connections: `site/+/temp`.
//!
//! For the hub, a filter with a wildcard is a topic with a special name, which the broker knows: each message goes to
//! the shards with matching filters, along with the names of those. So several lists of members may bring a
//! connection the same message. An MQTT client knows which of its subscriptions brings it. Any other client gets it
//! by the first list only; but a Phoenix client gets it once for each filter, since each is a channel of its own.

use std::sync::Arc;

use model::{Envelope, Name, TopicKind};
use protocol::Delivery;

use crate::core::Core;
use crate::engine::Engine;

impl Core {
    /// Adds a connection to the list of a filter. False when it is in it already.
    pub(crate) fn enter_filter(&mut self, slot: u32, name: &str) -> bool {
        let hash = self.broker.hash(name);
        let entered = self.enter_topic(slot, hash, name);
        if entered {
            self.broker.enter_filter(self.number, hash, name);
            let connection = self.table.get(slot);
            if connection.is_some_and(|it| self.delivery(it) != Delivery::Subscribed) {
                self.dedup.insert(slot);
            }
        }
        entered
    }

    /// Removes a connection from the list of a filter. False when it is not in it.
    pub(crate) fn leave_filter(&mut self, slot: u32, name: &str) -> bool {
        let hash = self.broker.hash(name);
        let Some(ended) = self.hub.leave(slot, hash, name) else { return false };
        if self.is_open(slot) {
            self.trace_left(slot, name);
        }
        self.topics_ended += usize::from(ended);
        if ended {
            self.mqtt.turns.remove(&hash);
        }
        self.broker.leave_filter(self.number, name);
        if self.filters_of(slot).next().is_none() {
            self.dedup.remove(slot);
        }
        true
    }

    /// Removes a connection that is no MQTT client from the lists of all its filters.
    pub(crate) fn leave_filters(&mut self, slot: u32) {
        if self.dedup.holds(slot) {
            let names: Vec<Name> = self.filters_of(slot).cloned().collect();
            for name in &names {
                self.leave_filter(slot, name);
            }
        }
    }

    fn filters_of(&self, slot: u32) -> impl Iterator<Item = &Name> {
        self.hub.topics_of(slot).filter(|name| matches!(TopicKind::of(name), TopicKind::Filter(_)))
    }

    /// True when a message that a list brings to a connection is new to it: no other list has delivered it. `rest`
    /// follows at once by the same list.
    pub(crate) fn comes_first(
        &mut self,
        slot: u32,
        message: &Arc<Envelope>,
        rest: &[Arc<Envelope>],
    ) -> bool {
        if message.filters.is_none() || !self.dedup.holds(slot) || self.has_channels(slot) {
            return true;
        }
        let owed = self.hub.owed(slot, None);
        self.dedup.comes(slot, message, rest, &owed)
    }

    /// Returns what the lists of filters still owe to a client for whom each is a channel: those of all filters, or
    /// of this one, by hash and name.
    pub(crate) fn owed_by_channels(
        &self,
        slot: u32,
        only: Option<(u64, &str)>,
    ) -> Vec<(Name, Vec<Arc<Envelope>>)> {
        if !self.dedup.holds(slot) || !self.has_channels(slot) {
            return Vec::new();
        }
        let names = self.filters_of(slot).filter(|name| only.is_none_or(|(_, only)| *name == only));
        let owed = |name: &Name| {
            let owed = self.hub.owed(slot, Some((self.broker.hash(name), name)));
            (name.clone(), owed.into_iter().cloned().collect())
        };
        names.map(owed).collect()
    }

    fn has_channels(&self, slot: u32) -> bool {
        self.protocol(slot).is_some_and(|protocol| protocol.capabilities().joins)
    }
}

impl Engine {
    /// Enters a connection into a topic filter. False when it is in it already.
    pub(crate) fn listen(&mut self, slot: u32, filter: &str) -> bool {
        let entered = self.core.enter_filter(slot, filter);
        self.rates.quota.settle(&self.core, slot);
        entered
    }

    /// Takes a connection out of a topic filter. False when it isn't in it.
    pub(crate) fn stop_listening(&mut self, slot: u32, filter: &str) -> bool {
        let left = self.core.leave_filter(slot, filter);
        let hash = self.core.broker.hash(filter);
        self.explicit.remove(slot, hash);
        self.recovery.end_topic(slot, hash);
        self.rates.quota.settle(&self.core, slot);
        left
    }
}
