//! Begins and ends traces, and takes the events of the engine's parts.

use std::sync::Arc;

use model::name::shown;
use model::{CloseReason, Message, Name, Position, Publication, TopicKind};

use crate::core::Core;
use crate::core::command::Target;
use crate::core::output::Output;
use crate::trace::event::{
    NotDelivered, TraceEvent, TraceKind, TraceSink, Traced, TracedConnection, TracedMessage,
};

impl Core {
    /// Begins a trace, and reports the open connections. Returns their number.
    pub(crate) fn trace_begin(
        &mut self,
        number: u64,
        target: Target,
        slots: &[u32],
        sink: Arc<dyn TraceSink>,
    ) -> u32 {
        let Some(index) = self.traces.begin(number, target, sink) else { return 0 };
        for &slot in slots {
            self.traces.follow(index, slot);
            if let Some(connection) = self.traced_connection(slot) {
                self.trace_to([index], slot, TraceKind::Open(connection.into()));
            }
        }
        crate::core::count::count(slots.len())
    }

    /// Reports an event of a connection, if a trace follows it.
    #[inline]
    pub(crate) fn trace(&mut self, slot: u32, kind: impl FnOnce() -> TraceKind) {
        if self.traces.has(slot) {
            self.trace_to(self.traces.followers(slot), slot, kind());
        }
    }

    fn trace_to(&mut self, indexes: impl IntoIterator<Item = usize>, slot: u32, kind: TraceKind) {
        for index in indexes {
            self.trace_event(index, Some(slot), kind.clone());
        }
    }

    /// Reports an event of a connection, or of the user.
    fn trace_event(&mut self, index: usize, slot: Option<u32>, kind: TraceKind) {
        let is_of_message = kind.is_of_message();
        let Some(admitted) = self.traces.admit(index, self.now_us, is_of_message) else { return };
        if admitted.left_out > 0 {
            self.trace_left_out(admitted.sink.clone(), admitted.left_out);
        }
        let connection = slot.and_then(|slot| Some((slot, self.table.get(slot)?.serial)));
        let connection = connection.map(|(slot, serial)| self.id(slot, serial));
        // The driver adds the bytes in a socket's outbox.
        let session = slot.and_then(|slot| self.table.cold(slot)?.session.as_ref());
        let outbox_bytes = session.map_or(0, |session| session.outbox.bytes());
        let event = TraceEvent { at_ms: self.unix_ms(), connection, outbox_bytes, kind };
        self.outputs.push(Output::Traced(Traced { sink: admitted.sink, slot, event }.into()));
    }

    fn trace_left_out(&mut self, sink: Arc<dyn TraceSink>, left_out: u64) {
        let kind = TraceKind::LeftOut(left_out);
        let event = TraceEvent { at_ms: self.unix_ms(), connection: None, outbox_bytes: 0, kind };
        self.outputs.push(Output::Traced(Traced { sink, slot: None, event }.into()));
    }

    /// Reports how many events were left out in past seconds. Called once a second.
    pub(crate) fn trace_seconds(&mut self) {
        if self.traces.is_empty() {
            return;
        }
        for admitted in self.traces.take_left_out(self.now_us) {
            self.trace_left_out(admitted.sink, admitted.left_out);
        }
    }

    /// A connection has entered a topic: if that is a user's own, the connection is now that user's.
    pub(crate) fn trace_entered(&mut self, slot: u32, topic: &str) {
        if self.traces.is_empty() {
            return;
        }
        let Some(user) = TopicKind::of(topic).user() else {
            return self.trace(slot, || TraceKind::Subscribed(shown(topic).into()));
        };
        self.trace(slot, || TraceKind::LoggedIn(user.into()));
        for index in self.traces.of_user(user) {
            if self.traces.follow(index, slot)
                && let Some(connection) = self.traced_connection(slot)
            {
                self.trace_to([index], slot, TraceKind::Connected(connection.into()));
            }
        }
    }

    /// A connection has left a topic, and stays open.
    pub(crate) fn trace_left(&mut self, slot: u32, topic: &str) {
        if !self.traces.has(slot) {
            return;
        }
        let Some(user) = TopicKind::of(topic).user() else {
            return self.trace(slot, || TraceKind::Unsubscribed(shown(topic).into()));
        };
        self.trace(slot, || TraceKind::LoggedOut(user.into()));
        for index in self.traces.of_user(user) {
            self.traces.leave(index, slot);
        }
    }

    /// A connection is about to end, or to leave its topics for good.
    pub(crate) fn trace_closed(&mut self, slot: u32, reason: CloseReason) {
        if self.traces.has(slot) {
            let opened_s = self.table.get(slot).map_or(0, |connection| connection.opened_s);
            let age_seconds = self.now_s().saturating_sub(opened_s);
            self.trace(slot, || TraceKind::Disconnected { reason, age_seconds });
            self.traces.forget(slot, true);
        }
    }

    /// A client publishes on this connection; an HTTP request names its user.
    pub(crate) fn trace_published(&mut self, slot: u32, publication: &Publication) {
        if self.traces.is_empty() {
            return;
        }
        let kind = || TraceKind::Published {
            topic: publication.topic.clone(),
            bytes: publication.bytes(),
        };
        if self.traces.has(slot) {
            return self.trace(slot, kind);
        }
        let of_sender = publication.sender().map(|user| self.traces.of_user(user));
        self.trace_to(of_sender.unwrap_or_default(), slot, kind());
    }

    /// A user has acknowledged a topic up to this message: this holds for all connections of the user.
    pub(crate) fn trace_acknowledged(&mut self, user: &str, topic: &Name, id: Position) {
        for index in self.traces.of_user(user) {
            let kind = TraceKind::Acknowledged { topic: topic.clone(), id };
            self.trace_event(index, None, kind);
        }
    }

    /// Messages go to a connection.
    pub(crate) fn trace_delivered<'a>(
        &mut self,
        slot: u32,
        messages: impl IntoIterator<Item = &'a Message>,
    ) {
        if self.traces.has(slot) {
            for message in messages {
                let message = TracedMessage::of(message, self.now_us, self.unix_ms());
                self.trace(slot, || TraceKind::Delivered(message));
            }
        }
    }

    /// A message does not go to a connection now.
    pub(crate) fn trace_not_delivered(&mut self, slot: u32, message: &Message, why: NotDelivered) {
        if self.traces.has(slot) {
            let message = TracedMessage::of(message, self.now_us, self.unix_ms());
            self.trace(slot, || TraceKind::NotDelivered(message, why));
        }
    }

    fn traced_connection(&self, slot: u32) -> Option<TracedConnection> {
        let connection = self.table.get(slot)?;
        let users: Vec<Name> = self.users(slot).map(Into::into).collect();
        Some(TracedConnection {
            transport: self.shared.protocols.of(connection.encoding).name(),
            age_seconds: self.now_s().saturating_sub(connection.opened_s),
            topics: self.hub.count(slot).saturating_sub(users.len()),
            users,
        })
    }
}
