//! What the application hears of connections and topics, if it wants to.
//!
//! Events wait in [`Core::hook_events`] until the driver has its next turn. Polls are requests, and no
//! connections: of them only that a topic has members is heard.

use model::{CloseReason, Name};
use protocol::Delivery;

use crate::core::Core;
use crate::core::settings::Settings;
use crate::webhook::events::{HookEvent, Whose};

impl Settings {
    /// Whether the application hears who comes to a topic and goes.
    fn follows(&self, topic: &str) -> bool {
        let topic = self.session.policy.topic(topic);
        topic.kind.is_ordinary() && topic.rule.is_some_and(|rule| rule.events)
    }
}

impl Core {
    /// A connection has come and says whose it is.
    pub(crate) fn notify_connected(&mut self, slot: u32, users: &[Name]) {
        if self.settings.events.connected
            && let Some(whose) = self.whose(slot, || users.to_vec())
        {
            self.hook_events.push(HookEvent::Connected(whose));
        }
    }

    /// The events of a connection that has left its topics.
    pub(crate) fn gone(&self, slot: u32, reason: CloseReason) -> Option<HookEvent> {
        if !self.settings.events.disconnected || !self.hub.is_here(slot) {
            return None;
        }
        let whose = self.whose(slot, || self.users(slot).map(Into::into).collect())?;
        let opened_s = self.table.get(slot)?.opened_s;
        let seconds = self.now_s().saturating_sub(opened_s);
        Some(HookEvent::Disconnected { whose, reason, seconds })
    }

    /// A connection has entered a topic.
    pub(crate) fn notify_joined(&mut self, slot: u32, hash: u64, topic: &str) {
        let events = self.settings.events;
        if !events.topics() || !self.settings.follows(topic) {
            return;
        }
        if events.occupancy() && self.hub.members(hash, topic) == 1 {
            self.hook_events.push(HookEvent::Occupied(topic.into()));
        }
        if events.joined
            && let Some(whose) = self.whose(slot, || self.users(slot).map(Into::into).collect())
        {
            self.hook_events.push(HookEvent::Joined(whose, topic.into()));
        }
    }

    /// A connection has left a topic, as its last member or not.
    pub(crate) fn notify_left(&mut self, slot: u32, topic: &str, ended: bool) {
        if self.settings.events.topics() && self.settings.follows(topic) {
            let whose = self.whose(slot, || self.users(slot).map(Into::into).collect());
            self.notify_left_as(whose.as_ref(), topic.into(), ended);
        }
    }

    fn notify_left_as(&mut self, whose: Option<&Whose>, topic: Name, ended: bool) {
        let events = self.settings.events;
        if events.left
            && let Some(whose) = whose
        {
            self.hook_events.push(HookEvent::Left(whose.clone(), topic.clone()));
        }
        if events.occupancy() && ended {
            self.hook_events.push(HookEvent::Vacated(topic));
        }
    }

    /// The topics of a connection that the application follows, and whose it is; it is about to leave all
    /// of them.
    pub(crate) fn followed(&self, slot: u32) -> Option<(Option<Whose>, Vec<Name>)> {
        if !self.settings.events.topics() || !self.hub.is_here(slot) {
            return None;
        }
        let topics = self.hub.topics_of(slot).filter(|topic| self.settings.follows(topic));
        let topics: Vec<Name> = topics.cloned().collect();
        let whose = self.whose(slot, || self.users(slot).map(Into::into).collect());
        (!topics.is_empty()).then_some((whose, topics))
    }

    /// It has left these.
    pub(crate) fn notify_left_all(&mut self, (whose, topics): (Option<Whose>, Vec<Name>)) {
        for topic in topics {
            let ended = self.hub.members(self.broker.hash(&topic), &topic) == 0;
            self.notify_left_as(whose.as_ref(), topic, ended);
        }
    }

    /// The topics that came from another engine have their members here.
    pub(crate) fn notify_imported(&mut self) {
        if !self.settings.events.occupancy() {
            return;
        }
        let topics = self.hub.all_topics().filter(|(name, ..)| self.settings.follows(name));
        let hook_events: Vec<_> =
            topics.map(|(name, ..)| HookEvent::Occupied(name.clone())).collect();
        self.hook_events.extend(hook_events);
    }

    /// Other topics may be followed than before.
    pub(crate) fn notify_changed(&mut self, before: &Settings) {
        let now = self.settings.clone();
        if !now.events.occupancy() && !before.events.occupancy() {
            return;
        }
        let follows = |settings: &Settings, topic: &str| {
            settings.events.occupancy() && settings.follows(topic)
        };
        for (topic, ..) in self.hub.all_topics() {
            match (follows(before, topic), follows(&now, topic)) {
                (false, true) => self.hook_events.push(HookEvent::Occupied(topic.clone())),
                (true, false) => self.hook_events.push(HookEvent::Vacated(topic.clone())),
                (true, true) | (false, false) => {}
            }
        }
    }

    /// Whose a connection is that lasts.
    fn whose(&self, slot: u32, users: impl FnOnce() -> Vec<Name>) -> Option<Whose> {
        let found = self.table.get(slot)?;
        if !matches!(
            self.delivery(found),
            Delivery::Pushed | Delivery::Subscribed | Delivery::Gathered
        ) {
            return None;
        }
        let transport = self.shared.protocols.of(found.encoding).name();
        Some(Whose { connection: self.id(slot, found.serial), users: users(), transport })
    }
}
