//! Messages to MQTT clients: how each wants them, and when.
//!
//! What needs no confirmation is sent as it comes. What does has a packet identifier, and only so many may
//! be under way. A client whose session ends with its connection has what is too much wait in memory, up to
//! a limit. Of a session that goes on, the history has it: the client is *behind*, what comes live is
//! passed over, and it reads on from its position when it has room (`catchup.rs`).

use std::collections::HashSet;
use std::sync::Arc;

use model::event::is_reserved;
use model::filter::{check_name, matches};
use model::{CloseReason, Envelope, FilterKey, Message, Name, Qos, TopicKind};
use protocol::mqtt::{Mqtt, Stamp};
use sessions::{Session, Source, State, Subscription, SubscriptionOptions};

use super::state::{Behind, Details, UNASKED, Waiting, Way};
use crate::command::Command;
use crate::connection::Flag;
use crate::connections::Connections;
use crate::core::Core;
use crate::metrics::Limited;

/// What becomes of a message that is to be confirmed.
enum Turn {
    Send,
    /// It waits in memory.
    Wait,
    /// It is read later, from its place.
    Read,
    /// Nothing: it was read, or will be.
    Pass,
    /// There is no room, and it can't be read later.
    Full,
}

impl Core {
    /// How a message comes to a client by a list; nothing where it doesn't. Of several subscriptions that
    /// match, the one that was made first brings it: who has a later one had that as well.
    fn mqtt_way(&self, slot: u32, list: Option<&str>, message: &Envelope) -> Option<Way> {
        let publication = &message.publication;
        let topic = publication.topic.as_str();
        if !self.mqtt_may_have(slot, message) {
            return None;
        }
        let list = list.unwrap_or(model::name::BROADCAST);
        let way = |options: SubscriptionOptions, ids| Way {
            qos: publication.qos.min(options.qos),
            retain: publication.retain && options.retain_as_published,
            ids,
        };
        let is_ordinary = TopicKind::of(topic).is_ordinary();
        let Some(details) = self.mqtt.details(slot) else {
            let options = self.mqtt.only_options(slot, topic);
            return options.or(is_ordinary.then_some(UNASKED)).map(|it| way(it, Vec::new()));
        };
        if details.brought.iter().any(|known| std::ptr::eq(&**known, message)) {
            return None;
        }
        let subscriptions = &details.session.subscriptions;
        match bringing(subscriptions, message) {
            Some(first) if first.hub_name() != list => None,
            // Those count as well that were made, or taken up, since it was published: the session may read it
            // of the history as all of them want it.
            Some(_) => {
                let matching = subscriptions.iter().filter(|it| it.matches(topic));
                Some(joined(matching, publication.qos, publication.retain))
            }
            // The application has put it there.
            None => (is_ordinary && list == topic).then(|| way(UNASKED, Vec::new())),
        }
    }

    /// How a message comes to a client that reads it of the history: nothing where none of its
    /// subscriptions wants it confirmed.
    pub(super) fn mqtt_way_read(&self, slot: u32, message: &Message) -> Option<Way> {
        let subscriptions = &self.mqtt.details(slot)?.session.subscriptions;
        if !self.mqtt_may_have(slot, message) {
            return None;
        }
        let publication = &message.publication;
        let (topic, offset) = (&publication.topic, message.id.offset);
        let matching = subscriptions.iter().filter(|it| it.matches_at(topic, offset));
        let way = joined(matching, publication.qos, publication.retain);
        way.qos.is_confirmed().then_some(way)
    }

    /// The same for a message that is the client's by itself: a group may have chosen it for it.
    pub(super) fn mqtt_way_source(&self, slot: u32, message: &Message) -> Option<Way> {
        self.mqtt_way_read(slot, message).or_else(|| {
            let subscriptions = &self.mqtt.details(slot)?.session.subscriptions;
            let publication = &message.publication;
            let mut shared = subscriptions.iter().filter(|it| it.group.is_some());
            let one = shared.find(|it| matches(&it.reach(), &publication.topic))?;
            let way = joined(std::iter::once(one), publication.qos, publication.retain);
            way.qos.is_confirmed().then_some(way)
        })
    }

    /// Whether a message may go to this client at all.
    fn mqtt_may_have(&self, slot: u32, message: &Message) -> bool {
        let except = message.publication.except;
        let id = self.table.get(slot).map(|connection| self.id(slot, connection.serial));
        // Reserved events mean nothing without Throng's own clients, and not every name is one in MQTT.
        !is_reserved(message.event())
            && check_name(&message.publication.topic).is_ok()
            && (except.is_none() || except != id)
    }

    /// What the hub has still for a client, by all lists or by a topic's. What one list has brought
    /// already may wait in another.
    pub(super) fn mqtt_owed(&self, slot: u32, topic: Option<(u64, &str)>) -> Vec<Arc<Envelope>> {
        let mut owed: Vec<Arc<Envelope>> =
            self.hub.owed(slot, topic).into_iter().cloned().collect();
        let mut known = HashSet::new();
        owed.retain(|message| known.insert(Arc::as_ptr(message)));
        let Some(details) = self.mqtt.details(slot).filter(|_| !owed.is_empty()) else {
            return owed;
        };
        owed.retain(|message| {
            if details.brought.iter().any(|known| Arc::ptr_eq(known, message)) {
                return false;
            }
            let first = bringing(&details.session.subscriptions, message);
            first.map(Subscription::hub_name).is_none_or(|name| {
                let list = (self.broker.hash(&name), name.as_str());
                self.hub.owed(slot, Some(list)).into_iter().any(|it| Arc::ptr_eq(it, message))
            })
        });
        owed
    }

    /// What subscriptions other than this one have still for a client, and this one has brought: nobody
    /// would know that without it.
    pub(super) fn mqtt_brought(&self, slot: u32, name: &str) -> Vec<Arc<Envelope>> {
        let Some(details) = self.mqtt.details(slot) else { return Vec::new() };
        let has_brought = |message: &&Arc<Envelope>| {
            bringing(&details.session.subscriptions, message)
                .is_some_and(|first| first.hub_name() == name)
        };
        self.hub.owed(slot, None).into_iter().filter(has_brought).cloned().collect()
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
        let topics: Vec<Name> = self.hub.topics_of(slot).cloned().collect();
        let subscriptions = self.mqtt.subscriptions(slot, topics.iter());
        for message in &owed {
            let publication = &message.publication;
            let name = &publication.topic;
            let mut matching = subscriptions.iter().filter(|it| it.matches(name)).peekable();
            if matching.peek().is_none() && !TopicKind::of(name).is_ordinary() {
                continue;
            }
            let way = joined(matching, publication.qos, publication.retain);
            if way.qos.is_confirmed() {
                let Some(details) = self.mqtt.details_or_new(slot, topics.iter()) else { return };
                let is_later = details.session.outlives() || !details.waiting.is_empty();
                if is_later {
                    continue;
                }
            }
            self.mqtt_send(slot, message, &way, None, out);
        }
    }

    /// How many more messages may be sent that are to be confirmed.
    pub(super) fn mqtt_room(&self, slot: u32) -> usize {
        let Some(details) = self.mqtt.details(slot) else { return 0 };
        let max = self.settings.mqtt().map_or(u16::MAX, |it| it.inflight_max);
        details.window(max).saturating_sub(details.session.flow.in_flight())
    }

    /// Appends a message to a client, as it wants it. `source` is where it can be read again. One that is
    /// larger than the client takes, or that has expired, goes nowhere.
    pub(super) fn mqtt_send(
        &mut self,
        slot: u32,
        message: &Message,
        way: &Way,
        source: Option<Source>,
        out: &mut Vec<u8>,
    ) {
        let Some(mqtt) = self.mqtt_protocol(slot) else { return };
        let now_ms = self.unix_ms();
        if message.is_expired(now_ms) {
            return;
        }
        let topics_max = self.mqtt.details(slot).map_or(0, |it| it.limits.topic_alias_max);
        let alias = if topics_max > 0 { self.mqtt_alias(slot, message) } else { None };
        let packet_bytes_max =
            self.mqtt.details(slot).map_or(u32::MAX, |it| it.limits.packet_bytes_max);
        let mut stamp = Stamp {
            qos: way.qos,
            id: 0,
            again: false,
            retain: way.retain,
            subscriptions: &way.ids,
            alias,
            now_ms,
        };
        if mqtt.message_bytes(message, &stamp) > packet_bytes_max as usize {
            self.metrics.limited[Limited::PacketBytes as usize].add(1);
            return;
        }
        if !way.qos.is_confirmed() {
            mqtt.message(message, &stamp, out);
            self.metrics.delivered.add(1);
            return;
        }
        let room = self.mqtt_room(slot);
        let Some(details) = self.mqtt.details_mut(slot) else { return };
        let flow = &mut details.session.flow;
        let window = flow.in_flight() + room;
        let Some(id) = flow.send(way.qos, source, window) else { return };
        stamp.id = id;
        self.metrics.delivered.add(1);
        let is_exact = way.qos == Qos::ExactlyOnce;
        if is_exact && details.session.outlives() && self.shared.mqtt_sessions.is_stored() {
            // Its packet identifier must be known after a crash, or the client would take it for another
            // message.
            mqtt.message(message, &stamp, &mut details.held);
        } else {
            mqtt.message(message, &stamp, out);
            self.mqtt.changed(slot);
        }
    }

    /// How a retained message comes to a client: nothing where none of its subscriptions matches.
    pub(super) fn mqtt_way_retained(&self, slot: u32, message: &Message) -> Option<Way> {
        let details = self.mqtt.details(slot)?;
        let publication = &message.publication;
        let matching = details.session.subscriptions.iter();
        let mut matching = matching.filter(|it| it.matches(&publication.topic)).peekable();
        matching.peek()?;
        Some(Way { retain: true, ..joined(matching, publication.qos, true) })
    }

    /// Appends a message again that was sent on the connection before, under its packet identifier.
    pub(super) fn mqtt_send_again(
        &mut self,
        slot: u32,
        id: u16,
        message: &Message,
        way: Option<Way>,
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
        let (retain, ids) = way.map_or((false, Vec::new()), |way| (way.retain, way.ids));
        let subscriptions = &ids;
        let now_ms = self.unix_ms();
        let stamp = Stamp { qos, id, again: true, retain, subscriptions, alias: None, now_ms };
        mqtt.message(message, &stamp, out);
        self.metrics.mqtt_repeated.add(1);
    }

    /// What an MQTT client speaks.
    pub(crate) fn mqtt_protocol(&self, slot: u32) -> Option<Mqtt> {
        self.table.get(slot).and_then(|connection| Mqtt::of(connection.encoding))
    }

    /// Sends bytes when the client's progress is stored as it is now.
    pub(super) fn mqtt_send_stored(&mut self, slot: u32, packets: Vec<u8>) {
        let done = self.mqtt_done(slot, packets);
        self.mqtt_save(slot, done);
    }

    /// Has bytes sent to a client when something of its is stored.
    pub(super) fn mqtt_done(&self, slot: u32, packets: Vec<u8>) -> Option<sessions::Done> {
        let serial = self.table.get(slot)?.serial;
        let handle = self.handle.clone();
        Some(Box::new(move |stored| {
            handle.send(Command::MqttStored { slot, serial, packets, stored });
        }))
    }

    /// Stores how far a client's session is.
    pub(super) fn mqtt_save(&mut self, slot: u32, done: Option<sessions::Done>) {
        let session = self.mqtt_session(slot);
        let (Some(session), Some(row)) = (session, self.mqtt.row(slot)) else { return };
        self.shared.mqtt_sessions.save(&row.key, &session, done);
        if let Some(details) = self.mqtt.details_mut(slot) {
            details.is_unsaved = false;
        }
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
                && self.mqtt_way_read(slot, message).is_some();
            let offset = message.id.offset;
            if is_due && session.refs.iter().all(|it| it.offset != offset) {
                let topic = message.publication.topic.clone();
                session.refs.push(Source { topic, offset, retained: false });
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
            })
        }));
        session.position = position;
        Some(session)
    }

    /// The alias under which a topic goes to a client, and whether the client knows it already.
    fn mqtt_alias(&mut self, slot: u32, message: &Message) -> Option<(u16, bool)> {
        let details = self.mqtt.details_mut(slot)?;
        let topic = &message.publication.topic;
        if let Some(alias) = details.given.get(topic) {
            return Some((*alias, true));
        }
        let next = u16::try_from(details.given.len() + 1).ok()?;
        let max = details.limits.topic_alias_max.min(ALIASES_MAX);
        (next <= max).then(|| {
            details.given.insert(topic.clone(), next);
            (next, false)
        })
    }
}

/// Where a message can be read again for a session that goes on.
pub(super) fn mqtt_source(session: &Session, message: &Message) -> Option<Source> {
    let is_in_history = message.is_retained();
    (session.outlives() && is_in_history).then(|| Source {
        topic: message.publication.topic.clone(),
        offset: message.id.offset,
        retained: false,
    })
}

/// Aliases of topics that a client is given at the most.
const ALIASES_MAX: u16 = 64;

/// The subscription that brings a message: of all whose lists it goes to, the one that was made first.
fn bringing<'a>(subscriptions: &'a [Subscription], message: &Envelope) -> Option<&'a Subscription> {
    let topic = message.publication.topic.as_str();
    let by_filter = message.filters.as_deref().unwrap_or_default();
    subscriptions.iter().find(|it| {
        let name = it.hub_name();
        it.group.is_none() && (name == topic || by_filter.iter().any(|key| key.name == name))
    })
}

/// How a message comes by all of these subscriptions together.
fn joined<'a>(
    subscriptions: impl Iterator<Item = &'a Subscription>,
    qos: Qos,
    retain: bool,
) -> Way {
    let mut way = Way { qos: Qos::AtMostOnce, retain: false, ids: Vec::new() };
    for Subscription { options, id, .. } in subscriptions {
        way.qos = way.qos.max(options.qos);
        way.retain |= options.retain_as_published;
        way.ids.extend((*id > 0).then_some(*id));
    }
    way.qos = way.qos.min(qos);
    way.retain &= retain;
    way
}

impl Connections {
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
            if let Some(way) = self.core.mqtt_way(slot, list, message) {
                self.mqtt_offer(slot, message, (way, false), &mut out);
            }
        }
        self.mqtt_flush(slot, &mut out);
        let core = &mut self.core;
        if let Some(details) = core.mqtt.details_mut(slot).filter(|it| !it.brought.is_empty()) {
            let owed = core.hub.owed(slot, None);
            details.brought.retain(|known| owed.iter().any(|it| Arc::ptr_eq(it, known)));
        }
    }

    /// Gives a message to a client that a group has chosen for it.
    pub(crate) fn mqtt_deliver_shared(&mut self, slot: u32, name: &str, message: &Arc<Envelope>) {
        let details = self.core.mqtt.details(slot);
        let found = details.and_then(|details| {
            details.session.subscriptions.iter().find(|it| it.hub_name() == name)
        });
        let Some(subscription) = found else { return };
        if !self.core.mqtt_may_have(slot, message) {
            return;
        }
        let publication = &message.publication;
        let way = joined(std::iter::once(subscription), publication.qos, publication.retain);
        let mut out = Vec::new();
        self.mqtt_offer(slot, message, (way, true), &mut out);
        self.mqtt_flush(slot, &mut out);
    }

    /// Sends what was gathered for a client; what has to be stored first when it is.
    pub(super) fn mqtt_flush(&mut self, slot: u32, out: &mut Vec<u8>) {
        if !out.is_empty() {
            self.core.set(slot, Flag::WroteRecently, true);
            self.core.send(slot, out, 0);
            out.clear();
        }
        let held = self.core.mqtt.details_mut(slot).map(|details| &mut details.held);
        if let Some(held) = held.filter(|held| !held.is_empty()) {
            let packets = std::mem::take(held);
            self.core.mqtt_send_stored(slot, packets);
        }
    }

    /// A message is for a client: it is sent, or waits for its turn. One that a group has chosen for it
    /// comes by no other way.
    fn mqtt_offer(
        &mut self,
        slot: u32,
        message: &Arc<Envelope>,
        (way, is_chosen): (Way, bool),
        out: &mut Vec<u8>,
    ) {
        if !self.core.is_open(slot) {
            return;
        }
        if !way.qos.is_confirmed() {
            return self.core.mqtt_send(slot, message, &way, None, out);
        }
        let topics: Vec<Name> = match self.core.mqtt.is_plain(slot) {
            true => self.core.hub.topics_of(slot).cloned().collect(),
            false => Vec::new(),
        };
        let settings = self.core.settings.clone();
        let queue_max = settings.mqtt().map_or(0, |it| it.queue_messages_max);
        let (room, taken) = (self.core.mqtt_room(slot), self.core.mqtt_taken);
        let Some(details) = self.core.mqtt.details_or_new(slot, topics.iter()) else { return };
        let turn = match is_chosen {
            true => chosen_turn(details, message, (room, queue_max)),
            false => live_turn(details, message, (room, queue_max), taken),
        };
        match turn {
            Turn::Send => {
                let details = self.core.mqtt.details(slot);
                let source = details.and_then(|it| mqtt_source(&it.session, message));
                self.core.mqtt_send(slot, message, &way, source, out);
            }
            Turn::Wait => {
                let Way { qos, retain: _, ids } = way;
                let (message, ids) = (message.clone(), ids.into());
                details.waiting.push_back(Waiting { message, qos, retained: false, ids });
                self.core.mqtt.wake(slot);
            }
            Turn::Read => {
                let (topic, offset) = (message.publication.topic.clone(), message.id.offset);
                details.session.refs.push(Source { topic, offset, retained: false });
                self.core.mqtt.wake(slot);
            }
            Turn::Pass => self.core.mqtt.wake(slot),
            Turn::Full => {
                self.mqtt_flush(slot, out);
                self.say_goodbye(slot, CloseReason::SlowConsumer);
            }
        }
    }
}

/// What becomes of a message that has come live and is to be confirmed. `taken` is the last offset of the
/// log that has come from the mailbox.
fn live_turn(
    details: &mut Details,
    message: &Message,
    (room, queue_max): (usize, usize),
    taken: u64,
) -> Turn {
    let work = &mut details.work;
    let is_in_order = details.waiting.is_empty() && details.session.refs.is_empty();
    if !(details.session.outlives() && message.is_retained()) {
        return match details.waiting.len() {
            _ if is_in_order && work.again.is_empty() && room > 0 => Turn::Send,
            waiting if waiting < queue_max => Turn::Wait,
            // Who comes back for it finds it nowhere.
            _ => Turn::Full,
        };
    }
    let offset = message.id.offset;
    if offset <= work.through {
        return Turn::Pass;
    }
    if let Some(behind) = &mut work.behind {
        if offset <= behind.from {
            // It was on its way when the client fell behind.
            return Turn::Read;
        }
        behind.held_back = behind.held_back.max(offset);
        return Turn::Pass;
    }
    if is_in_order && work.is_idle() && room > 0 {
        return Turn::Send;
    }
    work.behind = Some(Behind::new(taken));
    Turn::Read
}

/// What becomes of a message that a group has chosen for a client.
fn chosen_turn(details: &Details, message: &Message, (room, queue_max): (usize, usize)) -> Turn {
    let Details { session, waiting, work, .. } = details;
    let is_in_order = waiting.is_empty() && session.refs.is_empty() && work.again.is_empty();
    if is_in_order && room > 0 {
        return Turn::Send;
    }
    match (session.outlives() && message.is_retained(), queue_max) {
        (true, max) if session.refs.len() < max => Turn::Read,
        (false, max) if waiting.len() < max => Turn::Wait,
        _ => Turn::Full,
    }
}

/// Members of a group that are tried, until one has room.
const TRIED: usize = 16;

impl Connections {
    /// Gives a message to one of the members that a group has here, whose turn it is and who has room; false
    /// where it goes elsewhere, for they have gone.
    pub(crate) fn mqtt_share(&mut self, key: &Arc<FilterKey>, message: &Arc<Envelope>) -> bool {
        let core = &mut self.core;
        let members = core.hub.members(key.hash, &key.name);
        if members == 0 {
            core.broker.pass_to_group(message, key);
            return false;
        }
        let turn = core.mqtt.turns.entry(key.hash).or_default();
        let first = *turn % members;
        *turn = turn.wrapping_add(1);
        let slots = || core.hub.each_slot(key.hash, &key.name);
        let (after, before) = (slots().skip(first as usize), slots().take(first as usize));
        let slots: Vec<u32> = after.chain(before).take(TRIED).collect();
        let has_room = |slot: &&u32| {
            let is_idle = core
                .mqtt
                .details(**slot)
                .is_some_and(|details| details.waiting.is_empty() && details.work.is_idle());
            is_idle && core.mqtt_room(**slot) > 0 && !core.is_backlogged(**slot)
        };
        let chosen = slots.iter().find(has_room).or(slots.first()).copied();
        if let Some(slot) = chosen {
            self.mqtt_deliver_shared(slot, &key.name, message);
        }
        chosen.is_some()
    }
}
