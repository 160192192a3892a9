//! Events of connections and topics for the application.
//!
//! Events wait in [`Core::hook_events`] until the driver's next turn. A poll does not count as a connection: its only
//! events are that a topic is occupied or vacated. A Phoenix long-poll session counts as one.

use model::{CloseReason, Name};
use protocol::Delivery;

use crate::core::Core;
use crate::core::settings::Settings;
use crate::webhook::events::{EventSource, HookEvent};

impl Settings {
    /// Returns whether the application gets events of a topic.
    fn follows(&self, topic: &str) -> bool {
        let topic = self.session.policy.topic(topic);
        topic.kind.is_ordinary() && topic.rule.is_some_and(|rule| rule.events)
    }
}

impl Core {
    /// A connection is open, with these users.
    pub(crate) fn notify_connected(&mut self, slot: u32, users: &[Name]) {
        if self.settings.events.connected
            && let Some(source) = self.source(slot, || users.to_vec())
        {
            self.hook_events.push(HookEvent::Connected(source));
        }
    }

    /// Returns the event of a connection that ends.
    pub(crate) fn gone(&self, slot: u32, reason: CloseReason) -> Option<HookEvent> {
        if !self.settings.events.disconnected || !self.hub.is_here(slot) {
            return None;
        }
        let source = self.source(slot, || self.users(slot).map(Into::into).collect())?;
        let opened_s = self.table.get(slot)?.opened_s;
        let seconds = self.now_s().saturating_sub(opened_s);
        Some(HookEvent::Disconnected { source, reason, seconds })
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
            && let Some(source) = self.source(slot, || self.users(slot).map(Into::into).collect())
        {
            self.hook_events.push(HookEvent::Joined(source, topic.into()));
        }
    }

    /// A connection has left a topic. `ended` is true if it was the last member.
    pub(crate) fn notify_left(&mut self, slot: u32, topic: &str, ended: bool) {
        if self.settings.events.topics() && self.settings.follows(topic) {
            let source = self.source(slot, || self.users(slot).map(Into::into).collect());
            self.notify_left_as(source.as_ref(), topic.into(), ended);
        }
    }

    fn notify_left_as(&mut self, source: Option<&EventSource>, topic: Name, ended: bool) {
        let events = self.settings.events;
        if events.left
            && let Some(source) = source
        {
            self.hook_events.push(HookEvent::Left(source.clone(), topic.clone()));
        }
        if events.occupancy() && ended {
            self.hook_events.push(HookEvent::Vacated(topic));
        }
    }

    /// Returns the topics of a connection whose events the application gets, and the source of the events. Called
    /// before the connection leaves all topics.
    pub(crate) fn followed(&self, slot: u32) -> Option<(Option<EventSource>, Vec<Name>)> {
        if !self.settings.events.topics() || !self.hub.is_here(slot) {
            return None;
        }
        let topics = self.hub.topics_of(slot).filter(|topic| self.settings.follows(topic));
        let topics: Vec<Name> = topics.cloned().collect();
        let source = self.source(slot, || self.users(slot).map(Into::into).collect());
        (!topics.is_empty()).then_some((source, topics))
    }

    /// A connection has left these topics.
    pub(crate) fn notify_left_all(&mut self, (source, topics): (Option<EventSource>, Vec<Name>)) {
        for topic in topics {
            let ended = self.hub.members(self.broker.hash(&topic), &topic) == 0;
            self.notify_left_as(source.as_ref(), topic, ended);
        }
    }

    /// Reports the topics of imported connections, which have members on this shard now.
    pub(crate) fn notify_imported(&mut self) {
        if !self.settings.events.occupancy() {
            return;
        }
        let topics = self.hub.all_topics().filter(|(name, ..)| self.settings.follows(name));
        let hook_events: Vec<_> =
            topics.map(|(name, ..)| HookEvent::Occupied(name.clone())).collect();
        self.hook_events.extend(hook_events);
    }

    /// The settings have changed. Reports topics that the application follows now or no longer follows.
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

    /// Returns the source of a connection's events; `None` for a connection that serves only a request.
    fn source(&self, slot: u32, users: impl FnOnce() -> Vec<Name>) -> Option<EventSource> {
        let found = self.table.get(slot)?;
        if !matches!(
            self.delivery(found),
            Delivery::Pushed | Delivery::Subscribed | Delivery::Gathered
        ) {
            return None;
        }
        let transport = self.shared.protocols.of(found.encoding).name();
        Some(EventSource { connection: self.id(slot, found.serial), users: users(), transport })
    }
}
