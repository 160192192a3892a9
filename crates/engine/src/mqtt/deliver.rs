//! Messages to MQTT clients: how each wants them, and when.
//!
//! What needs no confirmation is sent as it comes. What does has a packet identifier, and only so many may
//! be under way. A client whose session ends with its connection has what is too much wait in memory, up to
//! a limit. Of a session that goes on, the history has it: the client is *behind*, what comes live is
//! passed over, and it reads on from its position when it has capacity (`catchup.rs`).

use std::cell::LazyCell;
use std::collections::HashSet;
use std::sync::Arc;

use model::event::is_reserved;
use model::filter::check_name;
use model::{CloseReason, Envelope, Message, Name, Publication, Qos, TopicKind};
use protocol::mqtt::{Mqtt, Stamp};
use sessions::{Session, Source, State, Subscription, SubscriptionOptions, session_mark};

use super::state::{Behind, Delivery, Details, OPTIONS_OF_ADDED, Waiting};
use crate::connection::Flag;
use crate::core::Core;
use crate::core::command::Command;
use crate::core::metrics::Limited;
use crate::engine::Engine;
use crate::trace::event::NotDelivered;

/// What becomes of a message that is to be confirmed.
enum Turn {
    Send,
    /// It waits in memory.
    Wait,
    /// It is read later, from its place.
    Read,
    /// Nothing: it was read, or will be.
    Pass,
    /// There is no capacity, and it can't be read later.
    Full,
}

impl Core {
    /// How the client gets a message that is sent to the members of a list; nothing where it gets none. Of several
    /// subscriptions that match, the first one delivers it: a client with a later one has the first one as well.
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
            // Those count as well that were made, or taken up, since it was published: the session may read it
            // of the history as all of them want it.
            Some(_) => {
                let mut matching = self.mqtt_reaching(slot, subscriptions, publication).peekable();
                // Every matching subscription is No Local, and the message is the client's own.
                matching.peek()?;
                Some(merged(matching, publication.qos, publication.retain))
            }
            None => (is_ordinary && list == topic).then(|| delivery(OPTIONS_OF_ADDED, Vec::new())),
        }
    }

    /// How the client gets a message that was read from the history; nothing where none of its subscriptions has a
    /// QoS above 0.
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

    /// How the client gets a message for which a group has chosen it; nothing where the client is no member any more.
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

    /// The client's subscriptions that get a message. A wildcard reaches only topics that are open to all, as when a
    /// message is published ([`broker::Router::routes`]). A No Local subscription gets no message of the client's own.
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

    /// Whether a message says that this client's session has published it.
    fn mqtt_is_own(&self, slot: u32, publication: &Publication) -> bool {
        publication.by_session().is_some_and(|by| Some(by) == self.mqtt_session_mark(slot))
    }

    /// What messages say of this client's session.
    pub(super) fn mqtt_session_mark(&self, slot: u32) -> Option<u64> {
        self.mqtt.row(slot).map(|row| session_mark(&row.key))
    }

    /// Whether wildcards reach a topic.
    pub(super) fn mqtt_is_open(&self, topic: &str) -> bool {
        self.settings.session.policy.rules().is_open_to_wildcards(topic)
    }

    /// Whether a message may go to this client at all.
    pub(super) fn mqtt_may_have(&self, slot: u32, message: &Message) -> bool {
        let publication = &message.publication;
        // Reserved events mean nothing without Throng's own clients, and not every name is one in MQTT.
        if is_reserved(message.event()) || check_name(&publication.topic).is_err() {
            return false;
        }
        let own = || self.table.get(slot).map(|connection| self.id(slot, connection.serial));
        let mark = || self.mqtt_session_mark(slot);
        (publication.except.is_none() || publication.except != own())
            && (publication.except_session().is_none() || publication.except_session() != mark())
    }

    /// The messages that the hub still has for a client, by all lists or by a topic's. A message that one list has
    /// delivered may still wait in another.
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

    /// The messages that this subscription has delivered and others still have for the client. When the subscription
    /// ends, this list keeps them from coming twice.
    pub(super) fn mqtt_already_delivered(&self, slot: u32, name: &str) -> Vec<Arc<Envelope>> {
        let Some(details) = self.mqtt.details(slot) else { return Vec::new() };
        let is_delivered = |message: &&Arc<Envelope>| {
            bringing(&details.session.subscriptions, message)
                .is_some_and(|first| *first.hub_name() == *name)
        };
        self.hub.owed(slot, None).into_iter().filter(is_delivered).cloned().collect()
    }

    /// Appends what a client is owed, by all lists or by a topic's, for it is about to leave. What its
    /// session can read later, it reads later.
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

    /// How many more messages may be sent that are to be confirmed.
    pub(super) fn mqtt_capacity(&self, slot: u32) -> usize {
        let Some(details) = self.mqtt.details(slot) else { return 0 };
        let max = self.settings.mqtt().map_or(u16::MAX, |it| it.inflight_max);
        details.window(max).saturating_sub(details.session.flow.in_flight())
    }

    /// Appends a message to a client, as it wants it. `source` is where it can be read again. One that is
    /// larger than the client takes, or that has expired, goes nowhere. False where it could not be sent for
    /// as many are under way as may be.
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
                details.given.insert(message.publication.topic.clone(), alias);
            }
        }
        self.metrics.delivered.add(1);
        self.trace_delivered(slot, [message]);
        match self.mqtt.details_mut(slot).filter(|_| is_deferred) {
            // Its packet identifier must be known after a crash, or the client would take it for another
            // message.
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

    /// Whether a message is sent only when the session that knows it is stored.
    fn mqtt_is_deferred(&self, slot: u32, delivery: &Delivery) -> bool {
        delivery.qos == Qos::ExactlyOnce && self.mqtt_survives(slot)
    }

    /// Whether a client's session is stored, and outlives its connection.
    pub(super) fn mqtt_survives(&self, slot: u32) -> bool {
        self.shared.mqtt_sessions.is_stored()
            && self.mqtt.details(slot).is_some_and(|it| it.session.outlives())
    }

    /// How a message goes to a client now, without its packet identifier.
    pub(super) fn mqtt_stamp<'w>(
        &self,
        slot: u32,
        message: &Message,
        delivery: &'w Delivery,
    ) -> Stamp<'w> {
        // What is held leaves after what comes later, which must not count on an alias that is told in it.
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

    /// Whether a client does not take a message, which it then does without (MQTT 5.0, section 3.1.2.11.4).
    pub(super) fn mqtt_is_too_large(
        &self,
        slot: u32,
        message: &Message,
        stamp: &Stamp<'_>,
    ) -> bool {
        // Nearly all take what comes.
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

    /// How a retained message comes to a client: nothing where none of its subscriptions matches.
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

    /// Appends a message again that was sent on the connection before, under its packet identifier.
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
        // The connection before may have ended before it was on disk what was sent there.
        let out = match qos {
            Qos::ExactlyOnce => self.mqtt_deferred(slot).unwrap_or(out),
            Qos::AtMostOnce | Qos::AtLeastOnce => out,
        };
        mqtt.message(message, &stamp, out);
        self.metrics.mqtt_repeated.add(1);
    }

    /// Where packets are gathered that must be known after a crash before they leave; nothing where the session
    /// does not outlive one.
    pub(super) fn mqtt_deferred(&mut self, slot: u32) -> Option<&mut Vec<u8>> {
        let survives = self.mqtt_survives(slot);
        self.mqtt.details_mut(slot).filter(|_| survives).map(|details| &mut details.deferred)
    }

    /// What an MQTT client speaks.
    pub(crate) fn mqtt_protocol(&self, slot: u32) -> Option<Mqtt> {
        self.table.get(slot).and_then(|connection| Mqtt::of(connection.encoding))
    }

    /// Has bytes sent to a client when something of its is stored: how far its session is, or something else.
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

    /// Stores how far a client's session is. False where the store doesn't take it.
    pub(super) fn mqtt_save(&mut self, slot: u32, done: Option<sessions::Done>) -> bool {
        let session = self.mqtt_session(slot);
        let (Some(session), Some(row)) = (session, self.mqtt.row(slot)) else { return true };
        let is_taken = self.shared.mqtt_sessions.save(&row.key, &session, done);
        if let Some(details) = self.mqtt.details_mut(slot).filter(|_| is_taken) {
            details.is_unsaved = false;
        }
        is_taken
    }

    /// A client's session as another connection would take it up now.
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
        // What the hub has still for it was published before, and nobody else will bring it.
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
    /// The alias under which a topic goes to the client, and whether the client knows it already.
    fn alias(&self, topic: &Name) -> Option<(u16, bool)> {
        if let Some(alias) = self.given.get(topic) {
            return Some((*alias, true));
        }
        let next = u16::try_from(self.given.len() + 1).ok()?;
        (next <= self.limits.topic_alias_max.min(ALIASES_MAX)).then_some((next, false))
    }
}

/// Where a message can be read again for a session that goes on.
pub(super) fn mqtt_source(session: &Session, message: &Message) -> Option<Source> {
    let is_in_history = message.is_retained();
    (session.outlives() && is_in_history).then(|| Source {
        topic: message.publication.topic.clone(),
        offset: message.id.offset,
        retained: false,
        group: None,
    })
}

/// Aliases of topics that a client is given at the most.
const ALIASES_MAX: u16 = 64;

/// The subscription that brings a message: of all whose lists it goes to, the one that was made first.
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

/// How a client gets a message that all of these subscriptions match.
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
    /// Gives messages to an MQTT client that come to it by a list of members: a topic's, a filter's, or
    /// that of everyone.
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
            // It may have waited for this, which was no message for it.
            core.mqtt.wake(slot);
        }
    }

    /// Sends what was gathered for a client; what has to be stored first when it is.
    pub(super) fn mqtt_flush(&mut self, slot: u32, out: &mut Vec<u8>) {
        if !out.is_empty() {
            self.core.set(slot, Flag::WroteRecently, true);
            self.core.send(slot, out, 0);
            out.clear();
        }
        let Some(details) = self.core.mqtt.details_mut(slot) else { return };
        // What comes while the session is on its way to the store goes with the next time.
        if !(details.deferred.is_empty() || details.is_saving) {
            let packets = details.begin_saving();
            let done = self.core.mqtt_done(slot, packets, true);
            self.core.mqtt_save(slot, done);
        }
    }

    /// A message is for a client: it is sent, or waits for its turn.
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
            // What was retained before it would come after it, and be taken for the newer one.
            details.waiting.retain(|it| !(it.retained && it.is_older(message)));
        }
        if !delivery.qos.is_confirmed() {
            let _ = self.core.mqtt_send(slot, message, &delivery, None, out);
            return;
        }
        let settings = self.core.settings.clone();
        let queue_max = settings.mqtt().map_or(0, |it| it.queue_messages_max);
        // Who has no details has capacity, which is counted in them.
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
                let waiting = Waiting { message, qos, retained: false, retain, ids, group: None };
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

/// Messages that a session notes before it is behind.
pub(super) const NOTED_MAX: usize = 128;

/// What becomes of a message that has come live and is to be confirmed. `taken` is the last offset of the
/// log that has come from the mailbox.
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
    // A session that ends with its connection may have been one that went on, until it was taken up.
    let is_read = details.session.outlives() || is_reading_on || offset <= work.through;
    if !(is_read && message.is_retained()) {
        let is_idle = work.again.is_empty() && work.reading.is_none();
        return match details.waiting.len() {
            _ if is_in_order && is_idle && capacity > 0 => Turn::Send,
            waiting if waiting < queue_max => Turn::Wait,
            // Who comes back for it finds it nowhere.
            _ => Turn::Full,
        };
    }
    if offset <= work.through {
        return Turn::Pass;
    }
    if let Some(behind) = &mut work.behind {
        if offset <= behind.from {
            // It was on its way when the client fell behind.
            return Turn::Read;
        }
        behind.deferred_offset = behind.deferred_offset.max(offset);
        return Turn::Pass;
    }
    if is_in_order && work.is_idle() && capacity > 0 {
        return Turn::Send;
    }
    // To find the topics that have more is dear: a few messages are noted one by one.
    if details.session.refs.len() >= NOTED_MAX {
        work.behind = Some(Behind::new(taken));
    }
    Turn::Read
}
