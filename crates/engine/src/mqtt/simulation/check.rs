//! Conditions that hold when a run is over.

use std::collections::HashMap;

use model::Qos;

use super::client::{Client, kind, number};
use super::{Published, World};

impl World {
    pub(super) fn check(&self) {
        for client in &self.clients {
            self.check_order(client);
            let counts = client.counts();
            for published in &self.log {
                let payload = published.message.payload.as_str();
                let count = counts.get(payload).copied().unwrap_or(0);
                self.check_one(client, published, count);
            }
        }
        self.check_group();
    }

    /// Checks how often a message has come to a client.
    fn check_one(&self, client: &Client, published: &Published, count: usize) {
        let Published { message, by: _, ready } = published;
        let (payload, topic) = (&message.payload, &message.topic);
        let what = format!("{payload} of {topic} came {count} times to {}", client.name);
        let Some(qos) = client.wants(topic) else {
            return assert_eq!(count, 0, "{what}");
        };
        // The message comes to another member as well.
        if client.is_member() {
            return;
        }
        let is_done = self.done.borrow().contains_key(payload);
        let must = is_done
            && kind(payload) != 'x'
            && client.was_there_since(number(payload))
            && ready.contains(&client.name);
        // A subscription brings retained messages again.
        let may_repeat = kind(payload) == 'r' || self.may_repeat(payload);
        match qos.min(message.qos) {
            // A publisher may repeat a message with QoS 1; and a client may come back to another engine before the
            // message gets there.
            Qos::AtMostOnce => {
                let may_repeat = may_repeat || message.qos == Qos::AtLeastOnce;
                assert!(may_repeat || count <= client.connects, "{what}");
            }
            Qos::AtLeastOnce => assert!(count >= 1 || !must, "{what}"),
            Qos::ExactlyOnce if client.persistent => {
                assert!(count <= 1 || may_repeat, "{what}");
                assert!(count >= 1 || !must, "{what}");
            }
            Qos::ExactlyOnce => {}
        }
    }

    /// A will may be published again after a crash: its session is stored without it only later.
    fn may_repeat(&self, payload: &str) -> bool {
        kind(payload) == 'w' && self.crashes.iter().any(|crash| *crash > number(payload))
    }

    /// Checks that a client's QoS 2 messages to a topic come in order to clients that subscribe with QoS 2.
    fn check_order(&self, client: &Client) {
        let mut last = HashMap::new();
        for (topic, payload) in
            client.got.iter().filter(|_| client.persistent && !client.is_member())
        {
            let at = number(payload);
            let Published { message, by, .. } = &self.log[at];
            let is_exact = |qos: Option<Qos>| qos == Some(Qos::ExactlyOnce);
            let counts = is_exact(client.wants(topic)) && is_exact(Some(message.qos));
            if !counts || !matches!(kind(payload), 'm' | 'x') {
                continue;
            }
            let before = last.insert((topic, *by), at);
            assert!(
                before.is_none_or(|before| before < at),
                "{payload} of {topic} came to {} after {before:?}",
                client.name
            );
        }
    }

    /// Checks the messages of the group. Each message with QoS 0 or 2 comes at most once, to one member, unless it is a
    /// will that may repeat. Except for wills and expiring messages, no message is lost while all members are
    /// connected, and no QoS 1 message while one member stays connected.
    fn check_group(&self) {
        let members: Vec<&Client> = self.clients.iter().filter(|it| it.is_member()).collect();
        let counts: Vec<_> = members.iter().map(|member| member.counts()).collect();
        let Some(first) = members.first() else { return };
        for Published { message, ready, .. } in self.log.iter() {
            let payload = message.payload.as_str();
            let count: usize = counts.iter().filter_map(|counts| counts.get(payload)).sum();
            let what = format!("{payload} of {} came {count} times to a group", message.topic);
            let is_once = message.qos != Qos::AtLeastOnce && !self.may_repeat(payload);
            assert!(!is_once || count <= 1, "{what}");
            let is_calm = number(payload) >= self.calm && !matches!(kind(payload), 'w' | 'x');
            // If a member leaves with unconfirmed QoS 1 messages, another member gets them.
            let is_for_another = message.qos == Qos::AtLeastOnce
                && matches!(kind(payload), 'm' | 'r')
                && self.done.borrow().contains_key(payload)
                && self.stays.is_some_and(|name| ready.contains(&name));
            let must = is_calm || is_for_another;
            assert!(!must || first.wants(&message.topic).is_none() || count >= 1, "{what}");
        }
    }

    /// Checks that a topic retains the last message that was published for that, or one of several whose order is not
    /// known.
    pub(super) fn check_retained(&self, witness: &Client) {
        let done = self.done.borrow();
        let of_all: Vec<_> = self.log.iter().map(|it| &it.message).filter(|it| it.retain).collect();
        for message in &of_all {
            let Some(end) = done.get(&message.payload) else { continue };
            // A QoS 2 message is on disk before it is retained. After a crash, the server confirms it again without
            // retaining it.
            let from = number(&message.payload);
            let is_parted = |crash: &usize| (from + 1..=end.at).contains(crash);
            if message.qos == Qos::ExactlyOnce && self.crashes.iter().any(is_parted) {
                continue;
            }
            let topic = &message.topic;
            let found = witness.got.iter().find(|(name, _)| name == topic);
            let Some((_, found)) = found else { panic!("{topic} has lost {}", message.payload) };
            let is_newer = number(found) >= from || done.get(found).is_none_or(|it| it.at > from);
            assert!(is_newer, "{topic} has {found}, and {} was confirmed later", message.payload);
        }
        for (topic, payload) in &witness.got {
            let is_known = of_all.iter().any(|it| it.topic == *topic && it.payload == *payload);
            assert!(is_known && witness.counts()[payload.as_str()] == 1, "{topic} has {payload}");
        }
    }
}
