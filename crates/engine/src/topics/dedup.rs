//! Deduplicates messages that reach a connection by several lists of members: that of the topic, and those of topic
//! filters.

use std::collections::HashMap;
use std::sync::Arc;

use model::Envelope;

use crate::core::shrink::Shrink;
use crate::handover::message_key::MessageKey;

/// The connections with topic filters that are no MQTT clients, and the messages that one of their lists has
/// delivered while others still owe them. Nearly always empty.
#[derive(Default)]
pub(crate) struct Dedup {
    by_slot: HashMap<u32, Vec<Arc<Envelope>>>,
}

impl Dedup {
    /// True when no connection has a filter: a nearly free check.
    pub fn is_empty(&self) -> bool {
        self.by_slot.is_empty()
    }

    /// True when a connection has a filter.
    pub fn holds(&self, slot: u32) -> bool {
        self.by_slot.contains_key(&slot)
    }

    /// Called when a connection has a filter.
    pub fn insert(&mut self, slot: u32) {
        self.by_slot.entry(slot).or_default();
    }

    /// Called when a connection has no filter any more.
    pub fn remove(&mut self, slot: u32) {
        self.by_slot.remove(&slot);
    }

    /// Notes that a message reaches a connection, and returns whether it is the first time. `owed` is what the
    /// connection's lists still owe it; `rest` follows at once by the same list, which no longer owes it.
    pub fn comes(
        &mut self,
        slot: u32,
        message: &Arc<Envelope>,
        rest: &[Arc<Envelope>],
        owed: &[&Arc<Envelope>],
    ) -> bool {
        let Some(known) = self.by_slot.get_mut(&slot) else { return true };
        let is = |it: &Arc<Envelope>| Arc::ptr_eq(it, message);
        let is_first = !known.iter().any(is);
        if is_first {
            known.push(message.clone());
        }
        let is_to_come = |it: &Arc<Envelope>| {
            owed.iter().copied().chain(rest).any(|other| Arc::ptr_eq(other, it))
        };
        known.retain(is_to_come);
        is_first
    }

    /// Exports the messages that have reached a connection, if there are any.
    pub fn export(&self, slot: u32) -> Option<Vec<MessageKey>> {
        let known = self.by_slot.get(&slot).filter(|known| !known.is_empty())?;
        Some(known.iter().map(|message| MessageKey::of(message)).collect())
    }

    /// Restores the messages that have reached a connection with a filter.
    pub fn restore(&mut self, slot: u32, messages: Vec<Arc<Envelope>>) {
        if let Some(known) = self.by_slot.get_mut(&slot).filter(|_| !messages.is_empty()) {
            *known = messages;
        }
    }

    /// Gives memory back after a spike.
    pub fn shrink(&mut self) {
        self.by_slot.shrink();
    }
}

#[cfg(test)]
mod tests {
    use model::{Data, Epoch, Message, Position, Publication};

    use super::*;

    #[test]
    fn a_message_comes_once_and_is_forgotten_when_no_list_has_it() {
        let [message, other] = [message(1), message(2)];
        let mut dedup = Dedup::default();
        assert!(dedup.comes(1, &message, &[], &[&message]), "it has no filter");
        assert!(dedup.comes(1, &message, &[], &[&message]));
        dedup.insert(1);
        assert!(dedup.comes(1, &message, &[], &[&message]));
        assert!(!dedup.comes(1, &message, &[], &[&message]));
        assert!(!dedup.comes(1, &message, &[], &[]));
        assert_eq!(Arc::strong_count(&message), 1);
        // One list brings two messages, and then the last list brings both.
        let (both, rest) = ([&message, &other], [other.clone()]);
        assert!(dedup.comes(1, &message, &rest, &both));
        assert!(dedup.comes(1, &other, &[], &both));
        assert!(!dedup.comes(1, &message, &rest, &[]));
        assert!(!dedup.comes(1, &other, &[], &[]));
        drop(rest);
        assert_eq!(Arc::strong_count(&other), 1);
        dedup.remove(1);
        assert!(dedup.is_empty() && !dedup.holds(1));
    }

    fn message(offset: u64) -> Arc<Envelope> {
        let id = Position { epoch: Epoch(1), offset };
        let publication = Publication::new("a/b", Data::Text("x".into()));
        Arc::new(Envelope::from(Message::new(publication, id, 0, 0)))
    }
}
