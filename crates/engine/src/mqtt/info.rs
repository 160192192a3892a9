//! MQTT clients as an operator sees them, and the end of their sessions at an operator's request.

use std::collections::BinaryHeap;

use model::{CloseReason, Name};
use protocol::mqtt::{Mqtt, Version};
use sessions::{Listing, SessionKey, Subscription};

use crate::core::Core;
use crate::engine::Engine;

/// A connected MQTT client, as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MqttInfo {
    /// The key of its session: [`SessionKey::parse`].
    pub key: Name,
    /// The version of MQTT. 3.1 counts as 3.1.1.
    pub version: &'static str,
    /// Seconds that the session outlives the connection, or [`sessions::WITHOUT_END`].
    pub seconds: u32,
    /// Keep-alive interval, in seconds; 0 is none.
    pub keep_alive_s: u16,
    /// The number of subscriptions.
    pub subscriptions: usize,
    /// The subscriptions, if the operator requested them.
    pub filters: Vec<Subscription>,
    /// Messages that the client has not confirmed yet.
    pub in_flight: usize,
    /// Messages that wait until the client has confirmed others.
    pub waiting: usize,
}

impl Core {
    /// Returns an MQTT client, or `None` for other connections.
    pub(crate) fn mqtt_info(&self, slot: u32, with_filters: bool) -> Option<MqttInfo> {
        let row = self.mqtt.row(slot)?;
        let mqtt = Mqtt::of(self.table.get(slot)?.encoding)?;
        let details = self.mqtt.details(slot);
        let session = details.map(|details| &details.session);
        let subscriptions = match session {
            Some(session) => session.subscriptions.len(),
            None => usize::from(row.only_bits().is_some()),
        };
        let filters = match with_filters {
            true => self.mqtt.subscriptions(slot, self.hub.topics_of(slot)),
            false => Vec::new(),
        };
        let refs = session.map_or(0, |session| session.refs.len());
        Some(MqttInfo {
            key: row.key.clone(),
            version: match mqtt.version {
                Version::V3 => "3.1.1",
                Version::V5 => "5.0",
            },
            seconds: session.map_or(0, |session| session.seconds),
            keep_alive_s: row.keep_alive_s,
            subscriptions,
            filters,
            in_flight: session.map_or(0, |session| session.flow.in_flight()),
            waiting: details.map_or(0, |details| details.waiting.len()) + refs,
        })
    }

    /// Returns the first MQTT clients of a list. Scans all clients.
    pub(crate) fn mqtt_listed(&self, listing: &Listing) -> Vec<u32> {
        let mut first: BinaryHeap<(SessionKey<'_>, u32)> = BinaryHeap::new();
        for (slot, row) in self.mqtt.all() {
            let key = SessionKey::parse(&row.key);
            let is_behind =
                |(last, _): &(SessionKey<'_>, u32)| first.len() < listing.limit || key < *last;
            if listing.limit > 0 && first.peek().is_none_or(is_behind) && listing.has(key) {
                first.push((key, slot));
                if first.len() > listing.limit {
                    first.pop();
                }
            }
        }
        first.into_sorted_vec().into_iter().map(|(_, slot)| slot).collect()
    }

    /// Returns true if the open connection in the slot has the session with this key.
    pub(crate) fn mqtt_has(&self, slot: u32, key: &str) -> bool {
        self.mqtt.row(slot).is_some_and(|row| row.key == *key) && self.is_open(slot)
    }
}

impl Engine {
    /// Ends a session and the connection that has it. Returns false if the connection has another session.
    pub(crate) fn mqtt_end(&mut self, slot: u32, key: &str) -> bool {
        let has = self.core.mqtt_has(slot, key);
        if has {
            if let Some(details) = self.core.mqtt.details_mut(slot) {
                details.session.seconds = 0;
            }
            self.say_goodbye(slot, CloseReason::ByApplication);
        }
        has
    }
}
