//! Messages to MQTT clients: how each client gets them, and when.
//!
//! A message with QoS 0 leaves at once. Any other has a packet identifier, and only so many may be in flight. If the
//! session ends with its connection, excess messages wait in memory, up to a limit. If the session outlives it, the
//! history has them: the client is *behind*. The engine then skips live messages, and the client reads on from its
//! position when it has capacity (`catchup.rs`).

use std::cell::LazyCell;
use std::collections::HashSet;
use std::sync::Arc;

use model::event::is_reserved;
use model::filter::check_name;
use model::{CloseReason, Envelope, Message, Name, Publication, Qos, TopicKind};
use protocol::mqtt::{Mqtt, Stamp};
use sessions::{Session, Source, State, Subscription, SubscriptionOptions, session_mark};

use super::state::{Behind, Delivery, Details, OPTIONS_OF_ADDED, OutgoingMessage};
use crate::connection::Flag;
use crate::core::Core;
use crate::core::command::Command;
use crate::core::metrics::Limited;
use crate::engine::Engine;
use crate::trace::event::NotDelivered;

/// What the engine does with a message that needs a confirmation.
enum Turn {
    Send,
    /// The message waits in memory.
    Wait,
    /// The session reads it later, by its offset.
    Read,
    /// Nothing: the session has read it, or will.
    Pass,
    /// The client has no capacity, and can't read it later.
    Full,
}

impl Core {
    /// Returns how the client gets a message for a list's members, or `None` if it does not. Of several matching
    /// subscriptions the first one delivers it: a client with a later one has the first one as well.
    fn mqtt_delivery(&self, slot: u32, list: Option<&str>, message: &Envelope) -> Option<Delivery> {
        let publication = &message.publication;
        let topic = publication.topic.as_str();
        if !self.mqtt_may_have(slot, message) {
            return None;
        }
        let list = list.unwrap_or(model::name::BROADCAST);
        let delivery = |options: SubscriptionOptions, ids| Delivery {
            qos: publication.qos.min(options.qos),
            retain: publication.retain && options.retain_as_published,
            ids,
        };
        let is_ordinary = TopicKind::of(topic).is_ordinary();
        let Some(details) = self.mqtt.details(slot) else {
            let options = self.mqtt.only_options(slot, list);
            let of_added = || (is_ordinary && list == topic).then_some(OPTIONS_OF_ADDED);
            return options.or_else(of_added).map(|it| delivery(it, Vec::new()));
        };
        if details.already_delivered.iter().any(|known| std::ptr::eq(&**known, message)) {
            return None;
        }
        let subscriptions = &details.session.subscriptions;
        match bringing(subscriptions, message) {
            Some(first) if *first.hub_name() != *list => None,
            // Subscriptions made or resumed since the message was published also count: the session may read it from
            // the history for all of them.
            Some(_) => {
                let mut matching = self.mqtt_reaching(slot, subscriptions, publication).peekable();
                // Every matching subscription is No Local, and the message is the client's own.
                matching.peek()?;
                Some(merged(matching, publication.qos, publication.retain))
            }
            None => (is_ordinary && list == topic).then(|| delivery(OPTIONS_OF_ADDED, Vec::new())),
        }
    }

    /// Returns how the client gets a message from the history, or `None` if none of its subscriptions has a QoS above
    /// 0.
    pub(super) fn mqtt_delivery_of_read(&self, slot: u32, message: &Message) -> Option<Delivery> {
        let subscriptions = &self.mqtt.details(slot)?.session.subscriptions;
        if !self.mqtt_may_have(slot, message) {
            return None;
        }
        let publication = &message.publication;
        let offset = message.id.offset;
        let matching = self.mqtt_reaching(slot, subscriptions, publication);
        let matching = matching.filter(|it| offset > it.since);
        let delivery = merged(matching, publication.qos, publication.retain);
        delivery.qos.is_confirmed().then_some(delivery)
    }

    /// Returns how the client gets a message for which a group chose it, or `None` if it has left the group.
    pub(super) fn mqtt_delivery_in_group(
        &self,
        slot: u32,
        group: &str,
        message: &Message,
    ) -> Option<Delivery> {
        let subscriptions = &self.mqtt.details(slot)?.session.subscriptions;
        let one = subscriptions.iter().find(|it| it.hub_name().as_str() == group)?;
        if !self.mqtt_may_have(slot, message) {
            return None;
        }
        let publication = &message.publication;
        let delivery = merged(std::iter::once(one), publication.qos, publication.retain);
        delivery.qos.is_confirmed().then_some(delivery)
    }

    /// Returns the client's subscriptions that get a message. A wildcard reaches only topics that are open to all, as
    /// when a message is published ([`broker::Router::routes`]). A No Local subscription gets no message of the
    /// client's own.
    fn mqtt_reaching<'a>(
        &self,
        slot: u32,
        subscriptions: &'a [Subscription],
        publication: &Publication,
    ) -> impl Iterator<Item = &'a Subscription> {
        let topic = publication.topic.as_str();
        let is_open = LazyCell::new(|| self.mqtt_is_open(topic));
        let is_own = LazyCell::new(move || self.mqtt_is_own(slot, publication));
        subscriptions.iter().filter(move |it| {
            it.matches(topic) && (it.is_exact() || *is_open) && !(it.options.no_local && *is_own)
        })
    }

    /// Checks whether this client's session published a message.
    fn mqtt_is_own(&self, slot: u32, publication: &Publication) -> bool {
        publication.by_session().is_some_and(|by| Some(by) == self.mqtt_session_mark(slot))
    }

    /// Returns the mark of this client's session in messages.
    pub(super) fn mqtt_session_mark(&self, slot: u32) -> Option<u64> {
        self.mqtt.row(slot).map(|row| session_mark(&row.key))
    }

    /// Checks whether wildcards reach a topic.
    pub(super) fn mqtt_is_open(&self, topic: &str) -> bool {
        self.settings.session.policy.rules().is_open_to_wildcards(topic)
    }

    /// Checks whether this client may get a message at all.
    pub(super) fn mqtt_may_have(&self, slot: u32, message: &Message) -> bool {
        let publication = &message.publication;
        // Only Throng's own clients understand reserved events, and not every name is valid in MQTT.
        if is_reserved(message.event()) || check_name(&publication.topic).is_err() {
            return false;
        }
        let own = || self.table.get(slot).map(|connection| self.id(slot, connection.serial));
        let mark = || self.mqtt_session_mark(slot);
        (publication.except.is_none() || publication.except != own())
            && (publication.except_session().is_none() || publication.except_session() != mark())
    }

    /// Returns the messages that the hub still has for a client, by all lists or by a topic's. A message that one
    /// list has delivered may still wait in another.
    pub(super) fn mqtt_owed(&self, slot: u32, topic: Option<(u64, &str)>) -> Vec<Arc<Envelope>> {
        let mut owed: Vec<Arc<Envelope>> =
            self.hub.owed(slot, topic).into_iter().cloned().collect();
        let mut known = HashSet::new();
        owed.retain(|message| known.insert(Arc::as_ptr(message)));
        let Some(details) = self.mqtt.details(slot).filter(|_| !owed.is_empty()) else {
            return owed;
        };
        owed.retain(|message| {
            if details.already_delivered.iter().any(|known| Arc::ptr_eq(known, message)) {
                return false;
            }
            let first = bringing(&details.session.subscriptions, message);
            first.map(Subscription::hub_name).is_none_or(|name| {
                let list = (self.broker.hash(name), name.as_str());
                self.hub.owed(slot, Some(list)).into_iter().any(|it| Arc::ptr_eq(it, message))
            })
        });
        owed
    }

    /// Returns the messages that this subscription has delivered and other lists still have for the client. When the
    /// subscription ends, they must not come twice.
    pub(super) fn mqtt_already_delivered(&self, slot: u32, name: &str) -> Vec<Arc<Envelope>> {
        let Some(details) = self.mqtt.details(slot) else { return Vec::new() };
        let is_delivered = |message: &&Arc<Envelope>| {
            bringing(&details.session.subscriptions, message)
                .is_some_and(|first| *first.hub_name() == *name)
        };
        self.hub.owed(slot, None).into_iter().filter(is_delivered).cloned().collect()
    }

    /// Appends what the hub still has for a leaving client, by all lists or by a topic's, except what its session can
    /// read later.
    pub(crate) fn mqtt_flush_owed(
        &mut self,
        slot: u32,
        topic: Option<(u64, &str)>,
        out: &mut Vec<u8>,
    ) {
        let mut owed = self.mqtt_owed(slot, topic);
        owed.retain(|message| self.mqtt_may_have(slot, message));
        let subscriptions = self.mqtt.subscriptions(slot, self.hub.topics_of(slot));
        for message in &owed {
            let publication = &message.publication;
            let name = &publication.topic;
            let mut matching = self.mqtt_reaching(slot, &subscriptions, publication).peekable();
            if matching.peek().is_none() && !TopicKind::of(name).is_ordinary() {
                continue;
            }
            let delivery = merged(matching, publication.qos, publication.retain);
            if delivery.qos.is_confirmed() {
                let Some(details) = self.mqtt_details(slot) else { return };
                let is_later = details.session.outlives()
                    || !details.waiting.is_empty()
                    || details.is_reading_on();
                if is_later {
                    continue;
                }
            }
            let _ = self.mqtt_send(slot, message, &delivery, None, out);
        }
    }

    /// Returns how many more messages with a QoS above 0 may leave.
    pub(super) fn mqtt_capacity(&self, slot: u32) -> usize {
        let Some(details) = self.mqtt.details(slot) else { return 0 };
        let max = self.settings.mqtt().map_or(u16::MAX, |it| it.inflight_max);
        details.window(max).saturating_sub(details.session.flow.in_flight())
    }

    /// Appends a message to a client. `source` is where the session can read it again. Drops a message that has
    /// expired or is larger than the client accepts. Returns false if too many messages are in flight.
    #[must_use]
    pub(super) fn mqtt_send(
        &mut self,
        slot: u32,
        message: &Message,
        delivery: &Delivery,
        source: Option<Source>,
        out: &mut Vec<u8>,
    ) -> bool {
        let Some(mqtt) = self.mqtt_protocol(slot) else { return true };
        let now_ms = self.unix_ms();
        if message.is_expired(now_ms) {
            self.trace_not_delivered(slot, message, NotDelivered::Expired);
            return true;
        }
        let capacity = self.mqtt_capacity(slot);
        if delivery.qos.is_confirmed() && capacity == 0 {
            return false;
        }
        let is_deferred = self.mqtt_is_deferred(slot, delivery);
        let mut stamp = self.mqtt_stamp(slot, message, delivery);
        if self.mqtt_is_too_large(slot, message, &stamp) {
            self.trace_not_delivered(slot, message, NotDelivered::TooLarge);
            return true;
        }
        let alias = stamp.alias;
        if let Some(details) = self.mqtt.details_mut(slot) {
            if delivery.qos.is_confirmed() {
                let flow = &mut details.session.flow;
                let window = flow.in_flight() + capacity;
                let Some(id) = flow.send(delivery.qos, source, window) else { return false };
                stamp.id = id;
            }
            if let Some((alias, false)) = alias {
                details.outgoing_aliases.insert(message.publication.topic.clone(), alias);
            }
        }
        self.metrics.delivered.add(1);
        self.trace_delivered(slot, [message]);
        match self.mqtt.details_mut(slot).filter(|_| is_deferred) {
            // A crash must not lose the packet identifier, or the client would take the message for another.
            Some(details) => {
                details.unsent.push(stamp.id);
                mqtt.message(message, &stamp, &mut details.deferred);
            }
            None => {
                mqtt.message(message, &stamp, out);
                if delivery.qos.is_confirmed() {
                    self.mqtt.changed(slot);
                }
            }
        }
        true
    }

    /// Checks whether a message leaves only when the session that knows it is stored.
    fn mqtt_is_deferred(&self, slot: u32, delivery: &Delivery) -> bool {
        delivery.qos == Qos::ExactlyOnce && self.mqtt_survives(slot)
    }

    /// Checks whether a client's session is stored and outlives its connection.
    pub(super) fn mqtt_survives(&self, slot: u32) -> bool {
        self.shared.mqtt_sessions.is_stored()
            && self.mqtt.details(slot).is_some_and(|it| it.session.outlives())
    }

    /// Returns how a message leaves now, without its packet identifier.
    pub(super) fn mqtt_stamp<'w>(
        &self,
        slot: u32,
        message: &Message,
        delivery: &'w Delivery,
    ) -> Stamp<'w> {
        // A deferred message leaves after later ones, which must not use an alias that it introduces.
        let details = self.mqtt.details(slot);
        let alias = details.and_then(|it| it.alias(&message.publication.topic));
        Stamp {
            qos: delivery.qos,
            id: 0,
            again: false,
            retain: delivery.retain,
            subscriptions: &delivery.ids,
            alias: alias
                .filter(|(_, is_known)| *is_known || !self.mqtt_is_deferred(slot, delivery)),
            now_ms: self.unix_ms(),
        }
    }

    /// Checks whether a message is too large for a client, which then does not get it (MQTT 5.0, section 3.1.2.11.4).
    pub(super) fn mqtt_is_too_large(
        &self,
        slot: u32,
        message: &Message,
        stamp: &Stamp<'_>,
    ) -> bool {
        // Most clients accept any size.
        let max = self.mqtt_limits(slot).packet_bytes_max;
        let is = max < u32::MAX
            && self
                .mqtt_protocol(slot)
                .is_some_and(|mqtt| mqtt.message_bytes(message, stamp) > max as usize);
        if is {
            self.metrics.limited[Limited::PacketBytes as usize].add(1);
        }
        is
    }

    /// Returns how a client gets a retained message, or `None` if no subscription matches.
    pub(super) fn mqtt_delivery_of_retained(
        &self,
        slot: u32,
        message: &Message,
    ) -> Option<Delivery> {
        let details = self.mqtt.details(slot)?;
        let publication = &message.publication;
        let subscriptions = &details.session.subscriptions;
        let mut matching = self.mqtt_reaching(slot, subscriptions, publication).peekable();
        matching.peek()?;
        Some(Delivery { retain: true, ..merged(matching, publication.qos, true) })
    }

    /// Appends a message of the previous connection again, under its packet identifier.
    pub(super) fn mqtt_send_again(
        &mut self,
        slot: u32,
        id: u16,
        message: &Message,
        delivery: Option<Delivery>,
        out: &mut Vec<u8>,
    ) {
        let (Some(mqtt), Some(details)) = (self.mqtt_protocol(slot), self.mqtt.details(slot))
        else {
            return;
        };
        let found = details.session.flow.out().find(|outgoing| outgoing.id == id);
        let qos = match found.map(|outgoing| outgoing.state) {
            Some(State::AtLeastOnce) => Qos::AtLeastOnce,
            Some(State::ExactlyOnce) => Qos::ExactlyOnce,
            Some(State::Released) | None => return,
        };
        let (retain, ids) =
            delivery.map_or((false, Vec::new()), |delivery| (delivery.retain, delivery.ids));
        let subscriptions = &ids;
        let now_ms = self.unix_ms();
        let stamp = Stamp { qos, id, again: true, retain, subscriptions, alias: None, now_ms };
        if self.mqtt_is_too_large(slot, message, &stamp) {
            return self.mqtt_give_up(slot, id, out);
        }
        // The previous connection may have ended before the disk had what it sent.
        let out = match qos {
            Qos::ExactlyOnce => self.mqtt_deferred(slot).unwrap_or(out),
            Qos::AtMostOnce | Qos::AtLeastOnce => out,
        };
        mqtt.message(message, &stamp, out);
        self.metrics.mqtt_repeated.add(1);
    }

    /// Returns the buffer of packets that leave only once the store knows of them, or `None` if the session does not
    /// outlive a crash.
    pub(super) fn mqtt_deferred(&mut self, slot: u32) -> Option<&mut Vec<u8>> {
        let survives = self.mqtt_survives(slot);
        self.mqtt.details_mut(slot).filter(|_| survives).map(|details| &mut details.deferred)
    }

    /// Returns the protocol of an MQTT client.
    pub(crate) fn mqtt_protocol(&self, slot: u32) -> Option<Mqtt> {
        self.table.get(slot).and_then(|connection| Mqtt::of(connection.encoding))
    }

    /// Returns a completion that sends packets when the client's progress, or something else of it, is stored.
    pub(super) fn mqtt_done(
        &self,
        slot: u32,
        packets: Vec<u8>,
        is_progress: bool,
    ) -> Option<sessions::Done> {
        let serial = self.table.get(slot)?.serial;
        let (handle, under_way) = (self.handle.clone(), self.under_way.clone());
        Some(Box::new(move |stored| {
            let _under_way = under_way;
            handle.send(Command::MqttStored { slot, serial, packets, stored, is_progress });
        }))
    }

    /// Stores the progress of a client's session. Returns false if the store rejects it.
    pub(super) fn mqtt_save(&mut self, slot: u32, done: Option<sessions::Done>) -> bool {
        let session = self.mqtt_session(slot);
        let (Some(session), Some(row)) = (session, self.mqtt.row(slot)) else { return true };
        let is_taken = self.shared.mqtt_sessions.save(&row.key, &session, done);
        if let Some(details) = self.mqtt.details_mut(slot).filter(|_| is_taken) {
            details.is_unsaved = false;
        }
        is_taken
    }

    /// Returns a client's session as another connection would resume it now.
    pub(crate) fn mqtt_session(&self, slot: u32) -> Option<Session> {
        let Some(details) = self.mqtt.details(slot) else {
            let subscriptions = self.mqtt.subscriptions(slot, self.hub.topics_of(slot));
            return self.mqtt.has(slot).then(|| Session { subscriptions, ..Session::default() });
        };
        let mut session = details.session.clone();
        let work = &details.work;
        let live = self.mqtt_taken.max(work.through);
        let (position, live) = match &work.behind {
            Some(behind) => (behind.after, behind.from),
            None => (live, live),
        };
        // The next connection starts at the position: the session notes earlier messages that the hub still has.
        for message in &self.mqtt_owed(slot, None) {
            let is_due = message.is_retained()
                && message.id.offset <= live
                && message.id.offset > work.through
                && self.mqtt_delivery_of_read(slot, message).is_some();
            let offset = message.id.offset;
            if is_due && session.refs.iter().all(|it| it.offset != offset) {
                let topic = message.publication.topic.clone();
                session.refs.push(Source { topic, offset, retained: false, group: None });
            }
        }
        let waits = details.waiting.iter().filter(|it| it.qos.is_confirmed());
        session.refs.extend(waits.filter_map(|it| {
            let message = &it.message.message;
            let can_be_read = it.retained || message.is_retained();
            can_be_read.then(|| Source {
                topic: message.publication.topic.clone(),
                offset: message.id.offset,
                retained: it.retained,
                group: it.group.as_ref().map(|key| key.name.as_str().into()),
            })
        }));
        session.position = position;
        Some(session)
    }
}

impl Details {
    /// Returns the alias of a topic for the client, and whether the client knows it already.
    fn alias(&self, topic: &Name) -> Option<(u16, bool)> {
        if let Some(alias) = self.outgoing_aliases.get(topic) {
            return Some((*alias, true));
        }
        let next = u16::try_from(self.outgoing_aliases.len() + 1).ok()?;
        (next <= self.limits.topic_alias_max.min(ALIASES_MAX)).then_some((next, false))
    }
}

/// Returns where a session that outlives its connection can read a message again.
pub(super) fn mqtt_source(session: &Session, message: &Message) -> Option<Source> {
    let is_in_history = message.is_retained();
    (session.outlives() && is_in_history).then(|| Source {
        topic: message.publication.topic.clone(),
        offset: message.id.offset,
        retained: false,
        group: None,
    })
}

/// The most topic aliases that a client gets.
const ALIASES_MAX: u16 = 64;

/// Returns the subscription that delivers a message: the first one made of all whose lists it goes to.
fn bringing<'a>(subscriptions: &'a [Subscription], message: &Envelope) -> Option<&'a Subscription> {
    let topic = &message.publication.topic;
    subscriptions.iter().find(|it| {
        let is_matched = || match it.is_exact() {
            true => it.hub_name() == topic,
            false => message.is_matched_by(it.hub_name()),
        };
        it.group.is_none() && is_matched()
    })
}

/// Returns how a client gets a message that all of these subscriptions match.
pub(super) fn merged<'a>(
    subscriptions: impl Iterator<Item = &'a Subscription>,
    qos: Qos,
    retain: bool,
) -> Delivery {
    let mut delivery = Delivery { qos: Qos::AtMostOnce, retain: false, ids: Vec::new() };
    for Subscription { options, id, .. } in subscriptions {
        delivery.qos = delivery.qos.max(options.qos);
        delivery.retain |= options.retain_as_published;
        delivery.ids.extend((*id > 0).then_some(*id));
    }
    delivery.qos = delivery.qos.min(qos);
    delivery.retain &= retain;
    delivery
}

impl Engine {
    /// Gives an MQTT client the messages of a list of members: a topic's, a filter's, or everyone's.
    pub(crate) fn mqtt_deliver(
        &mut self,
        slot: u32,
        list: Option<&str>,
        messages: &[Arc<Envelope>],
    ) {
        let mut out = Vec::new();
        for message in messages {
            if let Some(delivery) = self.core.mqtt_delivery(slot, list, message) {
                self.mqtt_offer(slot, message, delivery, &mut out);
            }
        }
        self.mqtt_flush(slot, &mut out);
        let core = &mut self.core;
        let Some(details) = core.mqtt.details_mut(slot) else { return };
        if !details.already_delivered.is_empty() {
            let owed = core.hub.owed(slot, None);
            details.already_delivered.retain(|known| owed.iter().any(|it| Arc::ptr_eq(it, known)));
        }
        if details.work.behind.is_some() {
            // The client may have waited for these, even if they were not for it.
            core.mqtt.wake(slot);
        }
    }

    /// Sends packets to a client. Deferred ones leave when its session is stored.
    pub(super) fn mqtt_flush(&mut self, slot: u32, out: &mut Vec<u8>) {
        if !out.is_empty() {
            self.core.set(slot, Flag::WroteRecently, true);
            self.core.send(slot, out, 0);
            out.clear();
        }
        let Some(details) = self.core.mqtt.details_mut(slot) else { return };
        // While the store writes the session, new packets wait for the next write.
        if !(details.deferred.is_empty() || details.is_saving) {
            let packets = details.begin_saving();
            let done = self.core.mqtt_done(slot, packets, true);
            self.core.mqtt_save(slot, done);
        }
    }

    /// Sends a message to a client, or lets it wait for its turn.
    fn mqtt_offer(
        &mut self,
        slot: u32,
        message: &Arc<Envelope>,
        delivery: Delivery,
        out: &mut Vec<u8>,
    ) {
        if !self.core.is_open(slot) {
            return;
        }
        if message.publication.retain
            && let Some(details) = self.core.mqtt.details_mut(slot)
        {
            // An older retained message would come later, and the client would take it for the newer one.
            details.waiting.retain(|it| !(it.retained && it.is_older(message)));
        }
        if !delivery.qos.is_confirmed() {
            let _ = self.core.mqtt_send(slot, message, &delivery, None, out);
            return;
        }
        let settings = self.core.settings.clone();
        let queue_max = settings.mqtt().map_or(0, |it| it.queue_messages_max);
        // The details count messages in flight, so the client needs them.
        if self.core.mqtt_details(slot).is_none() {
            return;
        }
        let (capacity, taken) = (self.core.mqtt_capacity(slot), self.core.mqtt_taken);
        let Some(details) = self.core.mqtt.details_mut(slot) else { return };
        match live_turn(details, message, (capacity, queue_max), taken) {
            Turn::Send => {
                let details = self.core.mqtt.details(slot);
                let source = details.and_then(|it| mqtt_source(&it.session, message));
                let _ = self.core.mqtt_send(slot, message, &delivery, source, out);
            }
            Turn::Wait => {
                let Delivery { qos, retain, ids } = delivery;
                let (message, ids) = (message.clone(), ids.into());
                self.core.trace_not_delivered(slot, &message, NotDelivered::Queued);
                let Some(details) = self.core.mqtt.details_mut(slot) else { return };
                let waiting =
                    OutgoingMessage { message, qos, retained: false, retain, ids, group: None };
                details.waiting.push_back(waiting);
                self.core.mqtt.wake(slot);
            }
            Turn::Read => {
                let (topic, offset) = (message.publication.topic.clone(), message.id.offset);
                details.session.refs.push(Source { topic, offset, retained: false, group: None });
                self.core.mqtt.wake(slot);
                self.core.trace_not_delivered(slot, message, NotDelivered::CatchingUp);
            }
            Turn::Pass => {
                self.core.mqtt.wake(slot);
                self.core.trace_not_delivered(slot, message, NotDelivered::CatchingUp);
            }
            Turn::Full => {
                self.core.trace_not_delivered(slot, message, NotDelivered::QueueFull);
                self.mqtt_flush(slot, out);
                self.say_goodbye(slot, CloseReason::SlowConsumer);
            }
        }
    }
}

/// Messages that a session notes before it falls behind.
pub(super) const NOTED_MAX: usize = 128;

/// Decides about a live message that needs a confirmation. `taken` is the last offset of the log that has come from
/// the mailbox.
fn live_turn(
    details: &mut Details,
    message: &Message,
    (capacity, queue_max): (usize, usize),
    taken: u64,
) -> Turn {
    let is_reading_on = details.is_reading_on();
    let work = &mut details.work;
    let is_in_order = details.waiting.is_empty()
        && details.session.refs.is_empty()
        && details.session.backlogs.is_empty();
    let offset = message.id.offset;
    // A session that ends with this connection may have outlived earlier ones.
    let is_read = details.session.outlives() || is_reading_on || offset <= work.through;
    if !(is_read && message.is_retained()) {
        let is_idle = work.again.is_empty() && work.reading.is_none();
        return match details.waiting.len() {
            _ if is_in_order && is_idle && capacity > 0 => Turn::Send,
            waiting if waiting < queue_max => Turn::Wait,
            // A client that came back would not find it in the history.
            _ => Turn::Full,
        };
    }
    if offset <= work.through {
        return Turn::Pass;
    }
    if let Some(behind) = &mut work.behind {
        if offset <= behind.from {
            // The message was on its way when the client fell behind.
            return Turn::Read;
        }
        behind.deferred_offset = behind.deferred_offset.max(offset);
        return Turn::Pass;
    }
    if is_in_order && work.is_idle() && capacity > 0 {
        return Turn::Send;
    }
    // It is expensive to find the topics that have more: the session notes a few messages one by one.
    if details.session.refs.len() >= NOTED_MAX {
        work.behind = Some(Behind::new(taken));
    }
    Turn::Read
}
