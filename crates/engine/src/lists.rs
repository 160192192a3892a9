//! The lists of presence that Phoenix clients get when they have joined a topic.

use auth::Action;
use presence::List;
use protocol::ProtocolRef;
use protocol::phoenix::ClientMessage;
use protocol::phoenix::{Content, Status};

use crate::core::Core;
use crate::phoenix::{answer, say};
use crate::presence::join_notices;

/// A list of presence that goes out whatever else waits, in bytes.
const SHORT_LIST_BYTES: usize = 16 << 10;

impl Core {
    /// Tells a client that it has joined, and then who is there.
    pub(crate) fn phoenix_entered(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        message: &ClientMessage,
        response: &str,
        out: &mut Vec<u8>,
    ) {
        answer(protocol, message, Status::Ok, Content::Json(response), out);
        let policy = &self.settings.session.policy;
        let topic = policy.topic(&message.topic);
        if policy.decide(&self.principal(slot), Action::Presence, &topic).is_allowed() {
            self.send_list_of(slot, protocol, &message.topic, out);
        }
    }

    /// Tells a member who is there. A long list waits while anything else does, so that a client
    /// which joins many topics at once is not taken for one that doesn't read.
    fn send_list_of(&mut self, slot: u32, protocol: ProtocolRef, topic: &str, out: &mut Vec<u8>) {
        let hash = self.broker.hash(topic);
        let Some(join) = self.joins.get(slot, hash).filter(|join| !join.pending) else {
            return;
        };
        let join_ref = join.join_ref.into_owned();
        if let Some(list) = self.presence_of(slot, topic, &join_ref) {
            self.send_list(slot, protocol, topic, &join_ref, list, out);
        }
    }

    /// Sends a list that was not there at once, if the join that it is for still stands.
    pub(crate) fn send_late_list(&mut self, slot: u32, topic: &str, join_ref: &str, list: List) {
        let hash = self.broker.hash(topic);
        let join = self.joins.get(slot, hash).filter(|join| !join.pending);
        let protocol = self.protocol(slot);
        let (Some(join), Some(protocol)) = (join, protocol) else { return };
        if join.join_ref != join_ref {
            return;
        }
        let mut out = Vec::new();
        self.send_list(slot, protocol, topic, join_ref, list, &mut out);
        if !out.is_empty() {
            self.send(slot, &out, 0);
        }
    }

    fn send_list(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        topic: &str,
        join_ref: &str,
        list: List,
        out: &mut Vec<u8>,
    ) {
        let lists = join_notices(list);
        let long = lists.iter().map(|(_, json)| json.len()).sum::<usize>() > SHORT_LIST_BYTES;
        if long {
            if !out.is_empty() {
                self.send(slot, out, 0);
                out.clear();
            }
            if self.is_backlogged(slot) {
                let due = self.lists_due.entry(slot).or_default();
                if !due.iter().any(|name| name == topic) {
                    due.push(topic.into());
                }
                return;
            }
        }
        for (event, json) in lists {
            say(protocol, out, |serializer, out| {
                serializer.push(join_ref, topic, event, Content::Json(&json), out)
            });
        }
        if long {
            // The next one waits until this one has left.
            self.send_and_wait(slot, out);
            out.clear();
        }
    }

    /// The client has taken what waited for it: it is told the next of the lists that do.
    pub(crate) fn send_due_lists(&mut self, slot: u32) {
        while let Some(due) = self.lists_due.get_mut(&slot) {
            let topic = due.remove(0);
            if due.is_empty() {
                self.lists_due.remove(&slot);
            }
            let Some(protocol) = self.protocol(slot) else {
                return;
            };
            let mut out = Vec::new();
            self.send_list_of(slot, protocol, &topic, &mut out);
            if !out.is_empty() {
                self.send(slot, &out, 0);
            }
            if self.is_backlogged(slot) {
                return;
            }
        }
    }
}
