//! Filters of topics that connections have: `site/+/temp`.
//!
//! A filter with a wildcard is a topic of the hub by another name, which the broker knows: it gives a message to
//! the shards that have a filter which matches it, with the names of those. So a connection may have one message
//! by several lists of members. An MQTT client knows which of its subscriptions brings it; any other gets it by
//! the list that comes first, but for a Phoenix client, to whom each filter is a channel of its own.

use std::sync::Arc;

use model::{Envelope, Name, TopicKind};
use protocol::Delivery;

use crate::core::Core;
use crate::engine::Engine;

impl Core {
    /// Puts a connection into the list of a filter. False when it is in it already.
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

    /// Takes a connection out of the list of a filter. False when it is not in it.
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

    /// Takes a connection that is no MQTT client out of the lists of all its filters.
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

    /// Whether a message that a list brings to a connection is new to it: no other list has delivered it.
    /// `rest` comes right behind it by the same list.
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

    /// What the lists of filters have still for a client to whom each is a channel: of all, or of this one, by
    /// hash and name.
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
    /// Has a connection listen by a filter. False when it does already.
    pub(crate) fn listen(&mut self, slot: u32, filter: &str) -> bool {
        let entered = self.core.enter_filter(slot, filter);
        self.rates.quota.settle(&self.core, slot);
        entered
    }

    /// The connection listens by a filter no longer. False when it doesn't.
    pub(crate) fn stop_listening(&mut self, slot: u32, filter: &str) -> bool {
        let left = self.core.leave_filter(slot, filter);
        let hash = self.core.broker.hash(filter);
        self.explicit.remove(slot, hash);
        self.recovery.end_topic(slot, hash);
        self.rates.quota.settle(&self.core, slot);
        left
    }
}
