//! The sessions of Phoenix long polls: connections without a socket, which outlive requests.
//!
//! A session is a connection like any other, but has no socket: bytes for it stay in its outbox until a request takes
//! them. Requests arrive at any shard. That shard sends a command to the session's own shard, so that no other shard
//! touches a session.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use auth::{Permit, Principal};
use model::{CloseReason, ConnectionId, Encoding, Name};
use protocol::http::{Rejection, json_reply};
use protocol::phoenix::longpoll::{self, LongpollStatus};
use protocol::phoenix::longpoll_rejection;
use protocol::request::{Entry, Longpoll, Op, Respond};
use protocol::{Delivery, Listener};

use crate::connection::peers::Arrival;
use crate::connection::reject::refused;
use crate::connection::{
    Connection, Flag, PendingSessionRequest, Phase, Session, Waiter, wrapping_s,
};
use crate::core::command::{Command, SessionReply, SessionRequest};
use crate::core::metrics::Refusal;
use crate::core::output::Output;
use crate::core::{Core, Effect};
use crate::delivery::outbox::{Chunk, Outbox, Piece};
use crate::engine::Engine;
use crate::limits::reject::limit_rejection;

/// How long a session may last without a poll, beyond two waits, in seconds.
const GRACE_SECONDS: u32 = 10;

/// How long a session may last without its first poll, in seconds: its client polls as soon as it has the token.
const UNPOLLED_SECONDS: u32 = 10;

/// How long a request waits for another shard's reply, beyond the longest wait, in seconds.
const REPLY_SECONDS: u32 = 10;

impl Engine {
    /// Serves a request of a long poll.
    pub(crate) fn longpoll(&mut self, slot: u32, request: Longpoll, out: &mut Vec<u8>) {
        let Longpoll { op, respond } = request;
        match op {
            Op::Open { encoding, principal, topics } => {
                self.longpoll_open(slot, (encoding, principal, topics), respond, out);
            }
            Op::Poll { session, anew } => {
                let session_request = PendingSessionRequest {
                    session,
                    respond,
                    anew,
                    topics: Vec::new(),
                    opens: false,
                };
                self.longpoll_request(slot, SessionRequest::Poll, session_request, out);
            }
            Op::Post { session, messages } => {
                let (anew, topics) = (None, Vec::new());
                let session_request =
                    PendingSessionRequest { session, respond, anew, topics, opens: false };
                self.longpoll_request(slot, SessionRequest::Post(messages), session_request, out);
            }
            Op::Gone => self.longpoll_say(slot, LongpollStatus::Gone, &respond, out),
            Op::Forbidden => self.longpoll_say(slot, LongpollStatus::Forbidden, &respond, out),
        }
    }

    fn longpoll_say(
        &mut self,
        slot: u32,
        status: LongpollStatus,
        respond: &Respond,
        out: &mut Vec<u8>,
    ) {
        let mut body = Vec::new();
        longpoll::reply(status, &mut body);
        self.longpoll_reply(slot, &body, respond, out);
    }

    fn longpoll_reply(&mut self, slot: u32, body: &[u8], respond: &Respond, out: &mut Vec<u8>) {
        let from = out.len();
        let keep_alive = respond.keep_alive && !self.core.draining && !self.core.is_drained();
        json_reply(&Respond { keep_alive, ..respond.clone() }, body, out);
        self.on_replied(slot, from, keep_alive, out);
    }

    /// Begins a new session: first the driver reports the address of the request.
    fn longpoll_open(
        &mut self,
        slot: u32,
        (encoding, principal, topics): (Encoding, Principal, Vec<Name>),
        respond: Respond,
        out: &mut Vec<u8>,
    ) {
        if !self.send_earlier(slot, out) {
            return;
        }
        self.rates.has_joined(&mut self.core, slot);
        let session = self.core.id(slot, 0);
        let session_request = PendingSessionRequest {
            session,
            respond,
            anew: Some((encoding, Some(principal))),
            topics,
            opens: true,
        };
        wait_for_session(&mut self.core, slot, session_request);
        self.core.outputs.push(Output::Address { slot });
    }

    /// The driver has reported the address of a request for a session. The reply has the session's token.
    pub(crate) fn longpoll_address(&mut self, slot: u32, address: Option<IpAddr>) {
        let cold = self.core.table.cold_mut(slot);
        let found = cold.and_then(|cold| {
            let session_request =
                cold.session_request.take_if(|session_request| session_request.opens)?;
            Some(session_request)
        });
        let Some(session_request) = found else {
            return;
        };
        let PendingSessionRequest {
            respond, anew: Some((encoding, Some(principal))), topics, ..
        } = *session_request
        else {
            return;
        };
        self.core.await_request(slot);
        let mut out = Vec::new();
        match self.new_session(encoding, &principal, topics, address) {
            Ok(session) => {
                let token = self.core.settings.session.longpoll_key.sign(session);
                let mut body = Vec::new();
                longpoll::poll(LongpollStatus::Gone, &token, [], &mut body);
                self.longpoll_reply(slot, &body, &respond, &mut out);
            }
            Err(refused) => {
                longpoll_rejection(&refused, protocol::http::Method::Get, &respond, &mut out);
                self.on_replied(slot, 0, respond.keep_alive, &mut out);
            }
        }
        if !out.is_empty() {
            self.send(slot, &out, 0);
        }
        self.core.resumed.push(slot);
    }

    fn new_session(
        &mut self,
        encoding: Encoding,
        principal: &Principal,
        topics: Vec<Name>,
        address: Option<IpAddr>,
    ) -> Result<ConnectionId, Rejection> {
        let address = address.map(|address| self.core.settings.network(address));
        let sessions = &self.core.shared.sessions;
        let connections = &self.core.shared.connections;
        if sessions.load(Ordering::Relaxed) >= self.core.settings.longpoll_sessions_max {
            return Err(self.refuse_session(Refusal::Sessions));
        }
        let fits = connections.load(Ordering::Relaxed) < self.core.settings.connections_max;
        if !fits || self.core.draining {
            return Err(self.refuse_session(Refusal::Connections));
        }
        if self.core.is_drained() {
            return Err(self.refuse_session(Refusal::Drained));
        }
        if self.core.shared.memory_full.load(Ordering::Relaxed) {
            return Err(self.refuse_session(Refusal::Memory));
        }
        // A session counts as a connection of the address that requested it.
        let per_address = self.core.settings.connections_per_address_max;
        let peer = address.filter(|_| per_address > 0);
        if peer.is_some_and(|peer| !self.core.shared.addresses.enter(peer, per_address)) {
            return Err(self.refuse_session(Refusal::Address));
        }
        let sessions_max = self.core.settings.longpoll_sessions_per_address_max;
        let of = address.filter(|_| sessions_max > 0);
        if of.is_some_and(|of| !self.core.shared.session_addresses.enter(of, sessions_max)) {
            peer.into_iter().for_each(|peer| self.core.shared.addresses.leave(peer));
            // It counts as the limit of all sessions, but another setting raises it.
            let message = "your address is at its limit on long-poll sessions \
                           (limits.longpoll_sessions_per_address_max): try again later";
            return Err(Rejection {
                message: message.into(),
                ..self.refuse_session(Refusal::Sessions)
            });
        }
        let (sessions, connections) = (&self.core.shared.sessions, &self.core.shared.connections);
        sessions.fetch_add(1, Ordering::Relaxed);
        connections.fetch_add(1, Ordering::Relaxed);
        let slot = self.open(Listener::Client, Arrival::Direct(None));
        let Engine { core, rates, .. } = self;
        let entered = principal.users.len() + topics.len();
        let rejection = rates.quota.open(core, slot, &principal.users, entered);
        if let Some(cold) = self.core.table.cold_or_new(slot) {
            cold.session = Some(Box::new(Session { address: of, peer, ..Session::default() }));
        }
        self.core.take_up(slot, encoding, Phase::Open);
        if let Some(limited) = rejection {
            self.end(slot, CloseReason::RateLimited);
            return Err(limit_rejection(limited));
        }
        let policy = self.core.settings.clone();
        let entry = |topic: Name| {
            let permit = Permit::of(&policy.session.policy.topic(&topic));
            Entry { topic, permit, meta: None }
        };
        let entries: Vec<Entry> = topics.into_iter().map(entry).collect();
        self.enter_hub(slot, principal, &entries);
        Ok(self.core.id(slot, self.serial))
    }

    /// Counts a rejection for lack of capacity, and returns the reason that any connection would get.
    fn refuse_session(&self, refusal: Refusal) -> Rejection {
        self.core.metrics.refused[refusal as usize].add(1);
        refused(refusal)
    }

    /// Sends a request to the session's shard, which may be this one, and lets the client's request wait.
    fn longpoll_request(
        &mut self,
        slot: u32,
        request: SessionRequest,
        session_request: PendingSessionRequest,
        out: &mut Vec<u8>,
    ) {
        if !self.send_earlier(slot, out) {
            return;
        }
        let session = session_request.session;
        if let Some(from) = wait_for_session(&mut self.core, slot, session_request) {
            self.core.request_session(session, request, from);
        }
    }

    /// Carries out a request for a session of this shard.
    pub(crate) fn session_request(
        &mut self,
        session: ConnectionId,
        request: SessionRequest,
        from: ConnectionId,
    ) {
        let core = &self.core;
        let found = core.table.get(session.slot).filter(|connection| {
            connection.serial == session.serial && core.delivery(connection) == Delivery::Gathered
        });
        let Some(connection) = found else {
            if matches!(request, SessionRequest::Poll | SessionRequest::Post(_)) {
                self.core.reply_request(session, from, SessionReply::Gone);
            }
            return;
        };
        let (slot, protocol) = (session.slot, core.shared.protocols.of(connection.encoding));
        match request {
            SessionRequest::Poll => self.session_poll(slot, from),
            SessionRequest::Withdraw => session_withdraw(&mut self.core, slot, from),
            SessionRequest::Return(elements) => self.core.session_return(slot, elements),
            SessionRequest::Post(_) if connection.is_closing() => {
                self.core.reply_request(session, from, SessionReply::Gone);
            }
            SessionRequest::Post(messages) => {
                let mut out = Vec::new();
                for message in messages {
                    let closing = |connection: &Connection| connection.is_closing();
                    if self.core.table.get(slot).is_none_or(closing) {
                        break;
                    }
                    self.on_phoenix_message(slot, protocol, message, &mut out);
                    self.flush_if_large(slot, &mut out);
                }
                self.core.reply_request(session, from, SessionReply::Taken);
                if !out.is_empty() {
                    self.send(slot, &out, 0);
                }
            }
        }
    }

    fn session_poll(&mut self, slot: u32, from: ConnectionId) {
        let now_s = self.core.now_s();
        // The second that has begun is not counted.
        let deadline_s =
            now_s.saturating_add(self.core.settings.longpoll_seconds).saturating_add(1);
        let Some(connection) = self.core.table.get_mut(slot) else {
            return;
        };
        connection.last_received_s = wrapping_s(now_s);
        let serial = connection.serial;
        let Some(session) = self.core.table.cold_mut(slot).and_then(|cold| cold.session.as_mut())
        else {
            return;
        };
        session.polled = true;
        let waiter = Waiter { request: from, deadline_s };
        if let Some(before) = session.waiter.replace(waiter) {
            // The client has given that poll up.
            let nothing = SessionReply::Messages([].into());
            self.core.reply_request(self.core.id(slot, serial), before.request, nothing);
        }
        self.session_wake(slot, false);
    }

    /// The reply to a request that waits here.
    pub(crate) fn on_session_reply(
        &mut self,
        session: ConnectionId,
        to: ConnectionId,
        reply: SessionReply,
    ) {
        let slot = to.slot;
        let is_here = self.core.table.get(slot).is_some_and(|found| found.serial == to.serial);
        let cold = self.core.table.cold_mut(slot).filter(|_| is_here);
        let found = cold.and_then(|cold| {
            let session_request = cold
                .session_request
                .take_if(|session_request| session_request.session == session)?;
            Some(session_request)
        });
        let Some(session_request) = found else {
            if let SessionReply::Messages(elements) = reply
                && !elements.is_empty()
            {
                self.core.request_session(session, SessionRequest::Return(elements), to);
            }
            return;
        };
        self.core.await_request(slot);
        let PendingSessionRequest { respond, anew, .. } = *session_request;
        let mut out = Vec::new();
        match (&reply, anew) {
            (SessionReply::Gone, Some((_, None))) => {
                self.longpoll_say(slot, LongpollStatus::Forbidden, &respond, &mut out);
            }
            (SessionReply::Gone, Some((encoding, Some(principal)))) => {
                let session = (encoding, principal, Vec::new());
                return self.longpoll_open(slot, session, respond, &mut out);
            }
            _ => {
                let body = session_body(&self.core, session, &reply);
                self.longpoll_reply(slot, &body, &respond, &mut out);
            }
        }
        if !out.is_empty() {
            self.send(slot, &out, 0);
        }
        self.core.resumed.push(slot);
    }

    /// Called once a second: replies to a poll whose wait is over, and ends a session without polls.
    pub(crate) fn check_session(&mut self, slot: u32) {
        let now_s = self.core.now_s();
        let timeout_s = self.core.settings.longpoll_seconds * 2 + GRACE_SECONDS;
        let Some(connection) = self.core.table.get(slot) else {
            return;
        };
        let silence_s = connection.silence_s(now_s).saturating_sub(self.core.input_wait_s());
        let session = self.core.table.cold(slot).and_then(|cold| cold.session.as_ref());
        let polled = session.is_some_and(|session| session.polled);
        let timeout_s = if polled { timeout_s } else { UNPOLLED_SECONDS };
        match session.and_then(|session| session.waiter.as_ref()) {
            Some(waiter) if waiter.deadline_s <= now_s => {
                if let Some(connection) = self.core.table.get_mut(slot) {
                    connection.last_received_s = wrapping_s(now_s);
                }
                self.session_wake(slot, true);
            }
            Some(_) => {}
            None if silence_s > timeout_s => self.end(slot, CloseReason::Silent),
            None => {}
        }
    }
}

impl Engine {
    /// Closes a session: at once when its outbox is empty or a poll takes it now, else with the next poll, or when
    /// none comes.
    pub(crate) fn close_session(&mut self, slot: u32) {
        self.session_wake(slot, false);
        if self.core.table.get(slot).is_some() && !self.core.is_backlogged(slot) {
            self.end(slot, CloseReason::Lost);
        }
    }

    /// Gives a waiting poll the session's bytes, if it has any or the poll has timed out.
    pub(crate) fn session_wake(&mut self, slot: u32, is_timed_out: bool) {
        self.core.session_wake(slot, is_timed_out);
        self.perform_effects();
    }

    /// The session's client has taken all bytes: sends what has waited for that.
    pub(crate) fn session_taken(&mut self, slot: u32) {
        if self.core.is_open(slot) {
            self.core.flush_due_lists(slot);
            self.recover(|recovery, core| recovery.pull_more(core, slot));
            self.read_next_page(slot);
        } else if self.core.table.cold(slot).is_some_and(|cold| cold.closing.is_some()) {
            self.end(slot, CloseReason::Lost);
        }
    }
}

impl Core {
    /// Queues bytes for a session; its next poll gets them. False when the session's limit is exceeded.
    pub(crate) fn session_take(&mut self, slot: u32, chunk: Chunk) -> bool {
        let bytes_max = self.settings.outbox_bytes_max;
        let bytes = chunk.bytes() as u64;
        let Some(session) = self.table.cold_mut(slot).and_then(|cold| cold.session.as_mut()) else {
            return false;
        };
        session.outbox.push(chunk, 0);
        self.metrics.outbox_bytes.add(bytes);
        // A poll gets all messages of a wait: only their bytes are limited.
        let slow = !session.outbox.is_one() && session.outbox.bytes() > bytes_max;
        if slow {
            self.close_soon(slot, CloseReason::SlowConsumer, Vec::new());
        } else if let Some(connection) = self.table.get_mut(slot)
            && !connection.is(Flag::Woken)
        {
            connection.set(Flag::Woken, true);
            self.woken.push(slot);
        }
        !slow
    }

    /// Returns the sessions with queued bytes, and how many.
    pub fn session_backlogs(&self) -> impl Iterator<Item = (u32, usize)> {
        let bytes = |slot| Some(self.table.cold(slot)?.session.as_ref()?.outbox.bytes());
        let all = (0..self.table.end()).filter_map(move |slot| Some((slot, bytes(slot)?)));
        all.filter(|(_, bytes)| *bytes > 0)
    }

    fn request_session(
        &mut self,
        session: ConnectionId,
        request: SessionRequest,
        from: ConnectionId,
    ) {
        self.send_to_engine(session.shard, Command::Session { session, request, from });
    }

    /// Sends a command to the shard of a session or of a request, which may be this one.
    fn send_to_engine(&mut self, shard: u16, command: Command) {
        if shard == self.number {
            self.commands.push_back(command);
        } else if let Some(shard) = self.engines.get(usize::from(shard)) {
            // The shard exists: this very process signed the token that names it.
            shard.send(command);
        }
    }

    /// A request's connection has ended before its reply came.
    pub(crate) fn on_session_request_ended(
        &mut self,
        session_request: &PendingSessionRequest,
        from: ConnectionId,
    ) {
        if session_request.anew.is_some() && !session_request.opens {
            self.request_session(session_request.session, SessionRequest::Withdraw, from);
        }
    }

    fn session_return(&mut self, slot: u32, elements: Box<[u8]>) {
        let session = self.table.cold_mut(slot).and_then(|cold| cold.session.as_mut());
        if let Some(Session { outbox, .. }) = session.map(|session| &mut **session) {
            self.metrics.outbox_bytes.add(elements.len() as u64);
            let mut first = Outbox::default();
            let piece = Piece::new(Vec::from(elements).into(), &self.metrics);
            first.push(Chunk::new(piece, 1), 0);
            let rest = std::mem::replace(outbox, first);
            outbox.append(rest);
        }
        self.session_wake(slot, false);
    }

    /// Gives a waiting poll the session's bytes, if it has any or the poll has timed out.
    pub(crate) fn session_wake(&mut self, slot: u32, is_timed_out: bool) {
        let Some(connection) = self.table.get_mut(slot) else {
            return;
        };
        let (closing, serial) = (connection.is_closing(), connection.serial);
        let Some(session) = self.table.cold_mut(slot).and_then(|cold| cold.session.as_mut()) else {
            return;
        };
        let empty = session.outbox.is_empty();
        if session.waiter.is_none() || (empty && !is_timed_out && !closing) {
            return;
        }
        let Some(waiter) = session.waiter.take() else {
            return;
        };
        let taken = std::mem::take(&mut session.outbox);
        self.metrics.outbox_bytes.sub(taken.bytes() as u64);
        let elements: Vec<u8> = taken.parts().flatten().copied().collect();
        let reply = SessionReply::Messages(elements.into());
        self.reply_request(self.id(slot, serial), waiter.request, reply);
        self.effects.push(Effect::SessionTaken { slot });
    }

    /// Counts a session that has come from another engine.
    pub(crate) fn session_entered(&self, slot: u32) {
        let Some(session) = self.table.cold(slot).and_then(|cold| cold.session.as_ref()) else {
            return;
        };
        self.shared.sessions.fetch_add(1, Ordering::Relaxed);
        self.metrics.outbox_bytes.add(session.outbox.bytes() as u64);
        // It was admitted before: no limit rejects it.
        if let Some(address) = session.address {
            self.shared.session_addresses.enter(address, u32::MAX);
        }
        if let Some(address) = session.peer {
            self.shared.addresses.enter(address, u32::MAX);
        }
    }

    /// Stops counting a session.
    pub(crate) fn session_uncounted(&self, session: &Session) {
        self.shared.sessions.fetch_sub(1, Ordering::Relaxed);
        self.metrics.outbox_bytes.sub(session.outbox.bytes() as u64);
        if let Some(address) = session.address {
            self.shared.session_addresses.leave(address);
        }
        if let Some(address) = session.peer {
            self.shared.addresses.leave(address);
        }
    }

    /// Sends a session's reply to the shard of the request.
    fn reply_request(&mut self, session: ConnectionId, to: ConnectionId, reply: SessionReply) {
        self.send_to_engine(to.shard, Command::SessionReply { session, to, reply });
    }

    /// A session has ended: the waiting poll gets an empty reply, and the next poll finds the session gone.
    pub(crate) fn session_ended(&mut self, id: ConnectionId, session: Session) {
        self.session_uncounted(&session);
        if let Some(waiter) = session.waiter {
            self.reply_request(id, waiter.request, SessionReply::Messages([].into()));
        }
    }

    /// Writes the last reply to a request that does not wait for its session any longer: a poll comes again after a
    /// while, and the session may or may not have taken the messages of a POST.
    pub(crate) fn session_request_goodbye(&self, slot: u32, out: &mut Vec<u8>) {
        let session_request = self.table.cold(slot).and_then(|cold| cold.session_request.as_ref());
        let Some(session_request) = session_request else {
            return;
        };
        let polls = session_request.anew.is_some();
        let status = if polls { LongpollStatus::Error } else { LongpollStatus::RequestTimeout };
        let mut body = Vec::new();
        longpoll::reply(status, &mut body);
        let respond = Respond { keep_alive: false, ..session_request.respond.clone() };
        json_reply(&respond, &body, out);
    }

    /// Returns how long a request may wait for its session's reply, in seconds.
    pub(crate) fn session_request_seconds_max(&self) -> u32 {
        self.settings.longpoll_seconds + REPLY_SECONDS
    }
}

fn session_body(core: &Core, id: ConnectionId, reply: &SessionReply) -> Vec<u8> {
    let token = core.settings.session.longpoll_key.sign(id);
    let mut body = Vec::new();
    match reply {
        SessionReply::Taken => longpoll::reply(LongpollStatus::Ok, &mut body),
        SessionReply::Gone => longpoll::reply(LongpollStatus::Gone, &mut body),
        SessionReply::Messages(elements) if elements.is_empty() => {
            longpoll::poll(LongpollStatus::NoContent, &token, [], &mut body);
        }
        SessionReply::Messages(elements) => {
            longpoll::poll(LongpollStatus::Ok, &token, [&**elements], &mut body);
        }
    }
    body
}

fn session_withdraw(core: &mut Core, slot: u32, from: ConnectionId) {
    let session = core.table.cold_mut(slot).and_then(|cold| cold.session.as_mut());
    if let Some(session) = session {
        session.waiter.take_if(|waiter| waiter.request == from);
    }
}

/// Lets the request's connection wait. Returns its id.
fn wait_for_session(
    core: &mut Core,
    slot: u32,
    session_request: PendingSessionRequest,
) -> Option<ConnectionId> {
    let now_s = core.now_wrapping_s();
    core.enter(slot, Phase::Waiting);
    let connection = core.table.get_mut(slot)?;
    connection.last_received_s = now_s;
    let from = ConnectionId {
        node: core.shared.node,
        shard: core.number,
        slot,
        serial: connection.serial,
    };
    core.table.cold_or_new(slot)?.session_request = Some(Box::new(session_request));
    Some(from)
}
