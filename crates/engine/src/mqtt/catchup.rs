//! Messages that wait for MQTT clients, in this order: those in flight on the previous connection, those in memory,
//! those that a session still has to send, retained messages for new subscriptions, and all that the history has
//! behind the session's position.

use std::sync::Arc;

use history::{
    Completion, Gone, HistoryError, HistoryReply, Matching, Piece, Pull, Requester, TopicCursor,
    TopicHash,
};
use model::filter::{check_name, has_wildcard};
use model::{CloseReason, Envelope, Name};
use sessions::{Backlog, Outgoing, Session, Source, State, SubscriptionOptions};

use super::deliver::{NOTED_MAX, mqtt_source};
use super::shared_groups::has_left;
use super::state::{Delivery, Found, OutgoingMessage, Reading, Reads};
use crate::core::Core;
use crate::core::command::Command;
use crate::engine::Engine;

/// Retained messages per lookup.
const REPLAYED: usize = 64;

/// Steps of one client per turn, so that others have theirs.
const STEPS: usize = 256;

/// Bytes of payload per read of the history.
const PIECE_BYTES: usize = 64 << 10;

/// The result of a step.
enum Step {
    /// More steps may follow.
    More,
    /// The client waits for something else.
    Stop,
}

impl Engine {
    /// Serves the clients whose work can continue.
    pub(crate) fn mqtt_serve_due(&mut self) {
        for slot in std::mem::take(&mut self.core.mqtt.due) {
            self.mqtt_serve(slot);
        }
    }

    /// Sends a client its waiting messages, as many as the client takes.
    pub(crate) fn mqtt_serve(&mut self, slot: u32) {
        if self.core.mqtt.details(slot).is_none() {
            return;
        }
        let mut out = Vec::new();
        for steps in 0.. {
            if !self.core.is_open(slot) {
                return;
            }
            if out.len() > PIECE_BYTES {
                self.core.send_and_wait(slot, &out);
                out.clear();
            }
            if self.core.is_backlogged(slot) {
                break;
            }
            if steps == STEPS {
                self.core.mqtt.wake(slot);
                break;
            }
            if let Step::Stop = self.mqtt_step(slot, &mut out) {
                break;
            }
        }
        self.mqtt_flush(slot, &mut out);
        self.core.mqtt.trim(slot);
    }

    fn mqtt_step(&mut self, slot: u32, out: &mut Vec<u8>) -> Step {
        let capacity = self.core.mqtt_capacity(slot);
        let Some(details) = self.core.mqtt.details_mut(slot) else { return Step::Stop };
        if details.work.reading.is_some() {
            return Step::Stop;
        }
        if let Some(id) = details.work.again.front().copied() {
            return self.mqtt_again(slot, id, out);
        }
        if let Some(first) = details.waiting.front() {
            if first.qos.is_confirmed() && capacity == 0 {
                return Step::Stop;
            }
            let Some(first) = details.waiting.pop_front() else { return Step::Stop };
            return self.mqtt_send_waiting(slot, first, out);
        }
        if capacity == 0 {
            return Step::Stop;
        }
        if let Some(backlog) = details.session.backlogs.first().cloned() {
            return self.mqtt_read_backlog(slot, &backlog, capacity, out);
        }
        if let Some(source) = details.session.refs.first().cloned() {
            return self.mqtt_read_source(slot, &source, out);
        }
        if !details.session.replays.is_empty() {
            return self.mqtt_replay(slot);
        }
        if details.work.behind.is_some() {
            return self.mqtt_read_on(slot, capacity, out);
        }
        Step::Stop
    }

    /// Sends the next message that was in flight on the previous connection.
    fn mqtt_again(&mut self, slot: u32, id: u16, out: &mut Vec<u8>) -> Step {
        let max = self.core.settings.mqtt().map_or(u16::MAX, |it| it.inflight_max);
        let Some(details) = self.core.mqtt.details_mut(slot) else { return Step::Stop };
        let flow = &details.session.flow;
        let found = flow.out().find(|outgoing| outgoing.id == id).cloned();
        // Resent messages count for the window as new ones do.
        let sent = flow.in_flight().saturating_sub(details.work.again.len());
        let is_full = sent >= details.window(max);
        match found {
            Some(Outgoing { source: Some(_), .. }) if is_full => Step::Stop,
            Some(Outgoing { state: State::Released, .. }) => {
                details.work.again.pop_front();
                self.core.mqtt_send_pubrel(slot, id, out);
                Step::More
            }
            Some(Outgoing { source: Some(source), .. }) => {
                self.mqtt_read_source(slot, &source, out)
            }
            // The server no longer knows what the message was.
            Some(Outgoing { source: None, .. }) | None => {
                details.work.again.pop_front();
                self.core.mqtt_give_up(slot, id, out);
                Step::More
            }
        }
    }

    fn mqtt_send_waiting(
        &mut self,
        slot: u32,
        waiting: OutgoingMessage,
        out: &mut Vec<u8>,
    ) -> Step {
        if waiting.group.is_some() {
            self.core.mqtt_send_shared(slot, waiting, out);
            return Step::More;
        }
        let OutgoingMessage { message, qos, retained, retain, ids, group: _ } = waiting;
        let delivery = Delivery { qos, retain, ids: ids.into() };
        let details = self.core.mqtt.details(slot);
        let outlives = details.is_some_and(|it| it.session.outlives());
        let source = match retained {
            true => outlives.then(|| Source {
                topic: message.publication.topic.clone(),
                offset: message.id.offset,
                retained: true,
                group: None,
            }),
            false => details.and_then(|it| mqtt_source(&it.session, &message)),
        };
        // The client has capacity.
        let _ = self.core.mqtt_send(slot, &message, &delivery, source, out);
        Step::More
    }

    /// Looks up the next retained messages for a new subscription.
    fn mqtt_replay(&mut self, slot: u32) -> Step {
        let retained = self.core.shared.retained.clone();
        let now_ms = self.core.unix_ms();
        let settings = self.core.settings.clone();
        let own = self.core.mqtt_session_mark(slot);
        let Some(details) = self.core.mqtt.details_mut(slot) else { return Step::Stop };
        let Some(replay) = details.session.replays.first_mut() else { return Step::Stop };
        let options = SubscriptionOptions::from_bits(replay.options);
        let is_wide = has_wildcard(&replay.reach);
        let page = retained.matching(&replay.reach, replay.after.as_deref(), REPLAYED);
        let id = replay.id;
        match page.after {
            Some(after) => replay.after = Some(after.into()),
            None => drop(details.session.replays.remove(0)),
        }
        let rules = settings.session.policy.rules();
        let is_due = |message: &Arc<Envelope>| {
            let (topic, by) = (&message.publication.topic, message.publication.by_session());
            !message.is_expired(now_ms)
                && (!is_wide || rules.is_open_to_wildcards(topic))
                && is_topic(message)
                && !(options.no_local && by.is_some() && by == own)
        };
        for message in page.messages.into_iter().filter(is_due) {
            let qos = message.publication.qos.min(options.qos);
            let ids = if id > 0 { Box::from([id]) } else { Box::default() };
            let group = None;
            details.waiting.push_back(OutgoingMessage {
                message,
                qos,
                retained: true,
                retain: true,
                ids,
                group,
            });
        }
        Step::More
    }

    /// Reads a message whose offset the session has noted.
    fn mqtt_read_source(&mut self, slot: u32, source: &Source, out: &mut Vec<u8>) -> Step {
        let Source { topic, offset, retained, group: _ } = source;
        if *retained {
            let found = self.core.shared.retained.get(topic);
            self.mqtt_found_source(slot, found, out);
            return Step::More;
        }
        let cursor = self.core.mqtt_cursor(topic.clone(), offset.saturating_sub(1));
        let pull = Pull { topics: vec![cursor], messages_max: 1, bytes_max: usize::MAX / 2 };
        self.mqtt_request(slot, Reads::Source, |core, reading| read(core, slot, reading, pull), out)
    }

    /// Reads more of the messages older than a subscription.
    fn mqtt_read_backlog(
        &mut self,
        slot: u32,
        backlog: &Backlog,
        capacity: usize,
        out: &mut Vec<u8>,
    ) -> Step {
        let cursor = self.core.mqtt_cursor(backlog.topic.clone(), backlog.after);
        let bytes_max = PIECE_BYTES.min(self.core.settings.outbox_bytes_max / 4);
        let pull = Pull { topics: vec![cursor], messages_max: capacity, bytes_max };
        self.mqtt_request(
            slot,
            Reads::Backlog,
            |core, reading| read(core, slot, reading, pull),
            out,
        )
    }

    /// Sends the next messages of the first backlog.
    fn mqtt_found_backlog(&mut self, slot: u32, piece: &Piece, out: &mut Vec<u8>) {
        let Some(details) = self.core.mqtt.details_mut(slot) else { return };
        let Some(backlog) = details.session.backlogs.first_mut() else { return };
        let until = backlog.until;
        backlog.after = piece.through;
        if piece.caught_up || piece.through >= until {
            details.session.backlogs.remove(0);
        }
        let mut due = piece.messages.iter().filter(|it| it.id.offset <= until);
        while let Some(message) = due.next() {
            let Some(delivery) = self.core.mqtt_delivery_of_read(slot, message) else { continue };
            let details = self.core.mqtt.details(slot);
            let source = details.and_then(|it| mqtt_source(&it.session, message));
            if self.core.mqtt_send(slot, message, &delivery, source, out) {
                continue;
            }
            // A group has used the capacity meanwhile.
            let noted = std::iter::once(message).chain(due);
            let noted = noted.map(|it| Source {
                topic: it.publication.topic.clone(),
                offset: it.id.offset,
                retained: false,
                group: None,
            });
            if let Some(details) = self.core.mqtt.details_mut(slot) {
                details.session.refs.splice(0..0, noted);
            }
            break;
        }
        self.core.mqtt.changed(slot);
    }

    /// Reads on behind the session's position.
    fn mqtt_read_on(&mut self, slot: u32, capacity: usize, out: &mut Vec<u8>) -> Step {
        let core = &mut self.core;
        let Some(details) = core.mqtt.details(slot) else { return Step::Stop };
        let Some(behind) = &details.work.behind else { return Step::Stop };
        let (after, from, through) = (behind.after, behind.from, details.work.through);
        // Messages on their way when the client fell behind come before later ones.
        let is_before = |message: &Arc<Envelope>| {
            message.is_retained() && message.id.offset <= from && message.id.offset > through
        };
        if core.hub.owed(slot, None).into_iter().any(is_before) {
            return Step::Stop;
        }
        if let Some(topics) = &behind.topics {
            let bytes_max = PIECE_BYTES.min(core.settings.outbox_bytes_max / 4);
            let topics = topics.iter().map(|(cursor, _)| cursor.clone()).collect();
            // The session notes messages beyond its capacity: each query of many topics is expensive.
            let pull = Pull { topics, messages_max: capacity.max(NOTED_MAX), bytes_max };
            let query = |core: &mut Core, reading: &Reading| read(core, slot, reading, pull);
            return self.mqtt_request(slot, Reads::Piece, query, out);
        }
        let (mut topics, mut filters) = (Vec::new(), Vec::new());
        for subscription in &details.session.subscriptions {
            if subscription.group.is_some() || !subscription.options.qos.is_confirmed() {
                continue;
            }
            if !subscription.is_exact() {
                filters.push(Name::from(subscription.reach()));
            } else if core.history.rule(&subscription.filter).is_some() {
                topics.push((core.mqtt_cursor(subscription.filter.clone(), after), u64::MAX));
            }
        }
        let query = |core: &mut Core, reading: &Reading| match filters.is_empty() {
            true => Ok(HistoryReply::Now(Found::Topics(Vec::new(), u64::MAX))),
            false => find(core, slot, reading, &filters, after),
        };
        self.mqtt_request(slot, Reads::Topics(topics), query, out)
    }

    /// Queries the history.
    fn mqtt_request(
        &mut self,
        slot: u32,
        reads: Reads,
        query: impl FnOnce(&mut Core, &Reading) -> Result<HistoryReply<Found>, HistoryError>,
        out: &mut Vec<u8>,
    ) -> Step {
        let number = self.recovery.catchups.query();
        let reading = Reading { number, requester: Requester::default(), reads };
        let reply = query(&mut self.core, &reading);
        let Some(details) = self.core.mqtt.details_mut(slot) else { return Step::Stop };
        match reply {
            Ok(HistoryReply::Now(found)) => {
                self.mqtt_found(slot, reading.reads, found, out);
                Step::More
            }
            Ok(HistoryReply::Later) => {
                details.work.reading = Some(reading);
                Step::Stop
            }
            // A client closed for this would be closed again each time it returns.
            Err(error) if matches!(reading.reads, Reads::Source) && error.is_lasting() => {
                self.mqtt_found(slot, reading.reads, Found::Gone, out);
                Step::More
            }
            Err(_) => {
                self.mqtt_flush(slot, out);
                self.say_goodbye(slot, CloseReason::Overloaded);
                Step::Stop
            }
        }
    }

    /// Takes a later reply of the history; `None` if the history can't read.
    pub(crate) fn mqtt_was_read(&mut self, slot: u32, number: u32, found: Option<Found>) {
        let Some(details) = self.core.mqtt.details_mut(slot) else { return };
        let Some(reading) = details.work.reading.take_if(|reading| reading.number == number) else {
            return;
        };
        let Some(found) = found else {
            // The client loses nothing: it comes back.
            return self.say_goodbye(slot, CloseReason::Overloaded);
        };
        let mut out = Vec::new();
        self.mqtt_found(slot, reading.reads, found, &mut out);
        self.mqtt_flush(slot, &mut out);
        self.mqtt_serve(slot);
    }

    fn mqtt_found(&mut self, slot: u32, reads: Reads, found: Found, out: &mut Vec<u8>) {
        match (reads, found) {
            (Reads::Source, Found::Piece(piece)) => {
                self.mqtt_found_source(slot, piece.messages.into_iter().next(), out);
            }
            (Reads::Source, Found::Gone) => self.mqtt_found_source(slot, None, out),
            (Reads::Piece, Found::Piece(piece)) => self.mqtt_found_piece(slot, piece, out),
            (Reads::Backlog, Found::Piece(piece)) => self.mqtt_found_backlog(slot, &piece, out),
            (Reads::Topics(mut topics), Found::Topics(more, top)) => {
                // A wildcard reaches only topics that are open to all. The history may have no rule for the others, and then
                // rejects the whole read.
                let is_open = |it: &(TopicCursor, u64)| self.core.mqtt_is_open(&it.0.topic);
                topics.extend(more.into_iter().filter(is_open));
                // Of two entries for a topic, the one with an unknown end comes first, and stays.
                topics.sort_by(|(a, a_last), (b, b_last)| {
                    a.topic.cmp(&b.topic).then(b_last.cmp(a_last))
                });
                topics.dedup_by(|(a, _), (b, _)| a.topic == b.topic);
                let details = self.core.mqtt.details_mut(slot);
                let behind = details.and_then(|details| details.work.behind.as_mut());
                if let Some(behind) = behind {
                    (behind.topics, behind.top) = (Some(topics), top);
                }
            }
            (Reads::Source | Reads::Piece | Reads::Backlog, Found::Topics(..))
            | (Reads::Topics(_), Found::Piece(_))
            | (Reads::Topics(_) | Reads::Piece | Reads::Backlog, Found::Gone) => {}
        }
    }

    /// Sends the message that a read has found, if the history still had it.
    fn mqtt_found_source(&mut self, slot: u32, found: Option<Arc<Envelope>>, out: &mut Vec<u8>) {
        let Some(details) = self.core.mqtt.details_mut(slot) else { return };
        let session = &mut details.session;
        let (source, id) = match details.work.again.pop_front() {
            Some(id) => {
                let outgoing = session.flow.out().find(|outgoing| outgoing.id == id);
                (outgoing.and_then(|it| it.source.as_deref().cloned()), Some(id))
            }
            None if session.refs.is_empty() => return,
            None => (Some(session.refs.remove(0)), None),
        };
        let Some(source) = source else { return };
        let now_ms = self.core.unix_ms();
        // The server completes what it has sent once (MQTT 5.0, section 4.3.3).
        let is_due = |it: &Arc<Envelope>| id.is_some() || !it.is_expired(now_ms);
        let found = found.filter(|it| it.id.offset == source.offset && is_due(it) && is_topic(it));
        let Some(message) = found else {
            // The history's limits have dropped it, or it has expired.
            if let Some(id) = id {
                self.core.mqtt_give_up(slot, id, out);
            }
            return self.core.metrics.mqtt_gone.add(1);
        };
        let delivery = match source.retained {
            true => self.core.mqtt_delivery_of_retained(slot, &message),
            false => match &source.group {
                Some(group) => self.core.mqtt_delivery_in_group(slot, group, &message),
                None => self.core.mqtt_delivery_of_read(slot, &message),
            },
        };
        match (id, delivery) {
            (Some(id), delivery) => self.core.mqtt_send_again(slot, id, &message, delivery, out),
            (None, Some(delivery)) => {
                if !self.core.mqtt_send(slot, &message, &delivery, Some(source.clone()), out)
                    && let Some(details) = self.core.mqtt.details_mut(slot)
                {
                    details.session.refs.insert(0, source);
                }
            }
            // The client has left the group since, or may not have the message any more.
            (None, None) if source.group.is_some() => {
                if let Some(details) = self.core.mqtt.details_mut(slot) {
                    details.session.refs.insert(0, source.clone());
                }
                let is_left =
                    |session: &Session, it: &Source| *it == source || has_left(session, it);
                if !self.core.mqtt_leave_refs(slot, is_left) {
                    self.mqtt_flush(slot, out);
                    self.say_goodbye(slot, CloseReason::Overloaded);
                }
            }
            (None, None) => {}
        }
    }

    /// Sends the next messages behind the session's position.
    fn mqtt_found_piece(&mut self, slot: u32, piece: Piece, out: &mut Vec<u8>) {
        let Some(details) = self.core.mqtt.details_mut(slot) else { return };
        let Some(behind) = &mut details.work.behind else { return };
        // The read did not include later topics.
        let through = piece.through.min(behind.top);
        let is_known_to_end = piece.caught_up || piece.through >= behind.top;
        behind.after = behind.after.max(through);
        if let Some(topics) = &mut behind.topics {
            topics.retain(|(_, last)| *last > through);
            topics.iter_mut().for_each(|(topic, _)| topic.after = topic.after.max(through));
        }
        if is_known_to_end {
            match behind.deferred_offset <= behind.after {
                true => {
                    details.work.through = behind.after;
                    details.work.behind = None;
                }
                // More messages have come since.
                false => behind.topics = None,
            }
        }
        let gone = piece.gone.iter().filter(|gone| **gone == Gone::Some).count();
        self.core.metrics.mqtt_gone.add(gone as u64);
        for message in piece.messages.iter().filter(|it| it.id.offset <= through) {
            let Some(delivery) = self.core.mqtt_delivery_of_read(slot, message) else { continue };
            let details = self.core.mqtt.details(slot);
            let is_first = details.is_some_and(|it| it.session.refs.is_empty());
            let source = details.and_then(|it| mqtt_source(&it.session, message));
            if !(is_first && self.core.mqtt_send(slot, message, &delivery, source, out))
                && let Some(details) = self.core.mqtt.details_mut(slot)
            {
                let (topic, offset) = (message.publication.topic.clone(), message.id.offset);
                details.session.refs.push(Source { topic, offset, retained: false, group: None });
            }
        }
        self.core.mqtt.changed(slot);
    }
}

/// Checks whether a message's topic is valid in MQTT: a store may have others.
fn is_topic(message: &Arc<Envelope>) -> bool {
    check_name(&message.publication.topic).is_ok()
}

/// Reads messages from the history.
fn read(
    core: &mut Core,
    slot: u32,
    reading: &Reading,
    pull: Pull,
) -> Result<HistoryReply<Found>, HistoryError> {
    let Some(serial) = core.table.get(slot).map(|connection| connection.serial) else {
        return Ok(HistoryReply::Later);
    };
    let (handle, number) = (core.handle.clone(), reading.number);
    let reads_source = matches!(reading.reads, Reads::Source);
    let completion = Completion::of(&reading.requester, move |piece: Result<Piece, _>| {
        let found = match piece {
            Ok(piece) => Some(Found::Piece(piece)),
            Err(error) => (reads_source && error.is_lasting()).then_some(Found::Gone),
        };
        handle.send(Command::MqttRead { slot, serial, number, found });
    });
    Ok(match core.history.read(pull, completion)? {
        HistoryReply::Now(piece) => HistoryReply::Now(Found::Piece(piece)),
        HistoryReply::Later => HistoryReply::Later,
    })
}

/// Finds the topics of the history that match filters.
fn find(
    core: &mut Core,
    slot: u32,
    reading: &Reading,
    filters: &[Name],
    after: u64,
) -> Result<HistoryReply<Found>, HistoryError> {
    let Some(serial) = core.table.get(slot).map(|connection| connection.serial) else {
        return Ok(HistoryReply::Later);
    };
    let (handle, number) = (core.handle.clone(), reading.number);
    let broker = core.broker.clone();
    let hash: TopicHash = Arc::new(move |topic| broker.hash(topic));
    let completion = Completion::of(&reading.requester, move |found: Result<Matching, _>| {
        let found = found.ok().map(|Matching { topics, top }| Found::Topics(topics, top));
        handle.send(Command::MqttRead { slot, serial, number, found });
    });
    Ok(match core.history.matching(filters, after, completion, hash)? {
        HistoryReply::Now(Matching { topics, top }) => {
            HistoryReply::Now(Found::Topics(topics, top))
        }
        HistoryReply::Later => HistoryReply::Later,
    })
}

impl Core {
    /// Gives up a message that was in flight on the previous connection.
    pub(super) fn mqtt_give_up(&mut self, slot: u32, id: u16, out: &mut Vec<u8>) {
        let details = self.mqtt.details_mut(slot);
        if details.is_some_and(|details| details.session.flow.give_up(id)) {
            self.mqtt_send_pubrel(slot, id, out);
        }
    }

    /// Appends PUBREL. The client then forgets the identifier, so the message must not come again, even after a
    /// crash.
    pub(super) fn mqtt_send_pubrel(&mut self, slot: u32, id: u16, out: &mut Vec<u8>) {
        let Some(mqtt) = self.mqtt_protocol(slot) else { return };
        mqtt.release(id, self.mqtt_deferred(slot).unwrap_or(out));
    }

    /// Returns the cursor of a topic that has been read up to an offset.
    pub(super) fn mqtt_cursor(&self, topic: Name, after: u64) -> TopicCursor {
        TopicCursor::new(self.broker.hash(&topic), topic, after)
    }
}
