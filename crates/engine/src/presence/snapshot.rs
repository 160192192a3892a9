//! The presence snapshots that connections get when they have entered a topic.
//!
//! A Phoenix client gets the snapshot with the reply to its join. All other clients that messages are pushed to get
//! it whenever they enter a topic: behind the greeting, behind the reply to the command, or when the application
//! subscribes them. So each client has the snapshot that later notices change.

use auth::Action;
use presence::{COUNT, List, STATE, Snapshot};
use protocol::phoenix::{ClientMessage, Content, ReplyStatus};
use protocol::{Delivery, ProtocolRef};

use crate::core::Core;
use crate::core::responses::{reply, say};

/// A snapshot of at most so many bytes is sent whatever else waits.
const SHORT_LIST_BYTES: usize = 16 << 10;

impl Core {
    /// Sends a client the reply to its join, and then the snapshot.
    pub(crate) fn send_joined(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        message: &ClientMessage,
        response: &str,
        out: &mut Vec<u8>,
    ) {
        reply(protocol, message, ReplyStatus::Ok, Content::Json(response), out);
        self.send_list_of(slot, protocol, &message.topic, out);
    }

    /// The connection has entered a topic with presence. [`Core::send_due_lists`] sends it the snapshot after the
    /// reply. A poll requests it itself, and a Phoenix client gets it by its join.
    pub(crate) fn owe_list(&mut self, slot: u32, topic: &str) {
        let sends_presence = |protocol: ProtocolRef| {
            protocol.delivery() == Delivery::Pushed && !protocol.capabilities().joins
        };
        if self.protocol(slot).is_some_and(sends_presence) {
            self.is_list_due(slot, topic);
        }
    }

    fn is_list_due(&mut self, slot: u32, topic: &str) {
        let due = self.snapshots_due.entry(slot).or_default();
        if !due.iter().any(|name| name == topic) {
            due.push(topic.into());
        }
    }

    /// Forgets that the snapshot of a topic is due.
    pub(crate) fn forget_list(&mut self, slot: u32, topic: &str) {
        if let Some(due) = self.snapshots_due.get_mut(&slot) {
            due.retain(|name| name != topic);
            if due.is_empty() {
                self.snapshots_due.remove(&slot);
            }
        }
    }

    /// Sends a member the snapshot, if the topic's members may see it. A long snapshot waits while anything else
    /// does, so that a client which enters many topics at once does not look like one that doesn't read.
    pub(crate) fn send_list_of(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        topic: &str,
        out: &mut Vec<u8>,
    ) {
        let policy = &self.settings.session.policy;
        let rule = policy.topic(topic);
        if !rule.presence()
            || !policy.decide(&self.principal(slot), Action::Presence, &rule).is_allowed()
        {
            return;
        }
        let Some(join_ref) = self.listed_as(slot, protocol, topic) else {
            return;
        };
        if let Some(list) = self.presence_of(slot, topic, &join_ref) {
            self.send_list(slot, protocol, topic, &join_ref, list, out);
        }
    }

    /// Returns the ref under which a member gets a topic's snapshot: that of a Phoenix client's join, or the empty
    /// one of other clients. `None` for a connection that is no member.
    fn listed_as(&self, slot: u32, protocol: ProtocolRef, topic: &str) -> Option<String> {
        if !protocol.capabilities().joins {
            return self.hub.topics_of(slot).any(|name| name == topic).then(String::new);
        }
        let hash = self.broker.hash(topic);
        let join = self.joins.get(slot, hash).filter(|join| !join.pending)?;
        Some(join.join_ref.into_owned())
    }

    /// Sends a delayed snapshot, if its join is still the present one.
    pub(crate) fn send_late_list(&mut self, slot: u32, topic: &str, join_ref: &str, list: List) {
        let Some(protocol) = self.protocol(slot) else { return };
        if self.listed_as(slot, protocol, topic).is_none_or(|now| now != join_ref) {
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
                return self.is_list_due(slot, topic);
            }
        }
        for (event, json) in lists {
            if protocol.capabilities().joins {
                say(protocol, out, |serializer, out| {
                    serializer.push(join_ref, topic, event, Content::Json(&json), out)
                });
            } else {
                protocol.notice(topic, event, &json, &mut self.codecs, out);
            }
        }
        if long {
            // The next snapshot waits until this one has left.
            self.send_and_wait(slot, out);
            out.clear();
        }
    }

    /// Sends a connection the snapshots that are due, as long as it takes them.
    pub(crate) fn send_due_lists(&mut self, slot: u32, out: &mut Vec<u8>) {
        while !self.is_backlogged(slot)
            && let Some(due) = self.snapshots_due.get_mut(&slot)
        {
            let topic = due.remove(0);
            if due.is_empty() {
                self.snapshots_due.remove(&slot);
            }
            let Some(protocol) = self.protocol(slot) else {
                return;
            };
            self.send_list_of(slot, protocol, &topic, out);
        }
    }

    /// As [`Core::send_due_lists`], if nothing else is sent with them.
    pub(crate) fn flush_due_lists(&mut self, slot: u32) {
        if self.snapshots_due.contains_key(&slot) {
            let mut out = Vec::new();
            self.send_due_lists(slot, &mut out);
            if !out.is_empty() {
                self.send(slot, &out, 0);
            }
        }
    }
}

/// Returns the notices for a new member: the snapshot, and the counts if there is none.
fn join_notices(list: List) -> Vec<(&'static str, String)> {
    let counts = list.counts;
    let users = list.users.map_or_else(|| "{}".into(), Snapshot::into_json);
    let mut all = vec![(STATE, users)];
    if !counts.listed {
        let (users, connections) = (counts.users, counts.connections);
        let json = format!("{{\"users\":{users},\"connections\":{connections}}}");
        all.push((COUNT, json));
    }
    all
}
