//! What came to connections by one list of members, and comes by another: a topic's, or that of a filter.

use std::collections::HashMap;
use std::sync::Arc;

use model::Envelope;

use crate::core::shrink::Shrink;
use crate::handover::message_key::MessageKey;

/// The connections that have filters and are no MQTT clients, and what has come to them by one of their lists
/// while others have it still for them. Hardly ever anything.
#[derive(Default)]
pub(crate) struct Dedup {
    by_slot: HashMap<u32, Vec<Arc<Envelope>>>,
}

impl Dedup {
    /// Whether there is any such connection: what is nearly free to ask.
    pub fn is_empty(&self) -> bool {
        self.by_slot.is_empty()
    }

    /// Whether a connection has a filter.
    pub fn holds(&self, slot: u32) -> bool {
        self.by_slot.contains_key(&slot)
    }

    /// A connection has a filter.
    pub fn insert(&mut self, slot: u32) {
        self.by_slot.entry(slot).or_default();
    }

    /// It has none any more.
    pub fn remove(&mut self, slot: u32) {
        self.by_slot.remove(&slot);
    }

    /// Notes that a message comes to a connection, to which its lists owe these still, and gives whether it is
    /// for the first time. `rest` comes right behind it by the same list, which owes it no more.
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

    /// Writes out what has come to a connection, if anything has.
    pub fn export(&self, slot: u32) -> Option<Vec<MessageKey>> {
        let known = self.by_slot.get(&slot).filter(|known| !known.is_empty())?;
        Some(known.iter().map(|message| MessageKey::of(message)).collect())
    }

    /// Takes up what has come to a connection that has a filter.
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
        // Two by one list, and then both by the last one.
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
