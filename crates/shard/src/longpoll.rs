//! The sessions of Phoenix long polls: connections without a socket, that outlive requests.
//!
//! A session is a connection like any other: its place in the table is a descriptor's number (an
//! event descriptor's, which nothing else is done with), and what is sent to it stays in its
//! outbox until a request takes it. Requests arrive at any shard; the session's own shard is asked
//! by its mailbox, so that nobody else touches a session.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

use rustix::event::EventfdFlags;
use wire::phoenix::longpoll::{self, Status};
use wire::session::{Heard, Longpoll, Op, Respond, json_answer, longpoll_refusal};
use wire::{Close, ConnectionId, Name, Variant};

use crate::command::Command;
use crate::connection::{Connection, Flag};
use crate::metrics::Refusal;
use crate::outbox::{Chunk, Outbox, Piece};
use crate::shard::{Addresses, Shard};

/// How long a session may do without a poll, beyond two waits, in seconds.
const GRACE_SECONDS: u32 = 10;

/// How long a session may do without its first poll, in seconds: its client asks for that as soon
/// as it has the token.
const UNPOLLED_SECONDS: u32 = 10;

/// Beyond the longest wait, how long the answer of another shard is waited for, in seconds.
const ANSWER_SECONDS: u32 = 10;

/// What a session has beside its outbox.
#[derive(Default)]
pub(crate) struct Session {
    waiter: Option<Waiter>,
    /// Somebody has come back with its token.
    polled: bool,
    /// Whose it is, where the sessions of an address are limited.
    address: Option<IpAddr>,
}

/// A poll that waits for something to come.
struct Waiter {
    request: ConnectionId,
    deadline_s: u32,
}

/// What a request knows while it waits for its session's answer.
pub(crate) struct Asking {
    session: ConnectionId,
    respond: Respond,
    /// A poll whose session is gone is given a new one.
    anew: Option<(Variant, Vec<Name>)>,
}

/// What a session's shard is asked.
pub enum SessionRequest {
    /// What has come.
    Poll,
    /// Take these messages.
    Post(Vec<Heard>),
    /// The poll's client is gone: nothing is to be given to it.
    Withdraw,
    /// These messages could not be given to the poll, whose client is gone: they come first again.
    Return(Box<[u8]>),
}

/// What a session answers.
pub enum SessionAnswer {
    /// The messages of a POST were taken.
    Taken,
    /// What has come, as elements of the answer's `messages`; nothing when the wait is over.
    Messages(Box<[u8]>),
    /// There is no such session any more.
    Gone,
}

impl Shard {
    /// A request of a long poll.
    pub(crate) fn longpoll(&mut self, slot: u32, request: Longpoll, out: &mut Vec<u8>) {
        let Longpoll { op, respond } = request;
        match op {
            Op::Open { variant, users } => self.longpoll_open(slot, variant, &users, &respond, out),
            Op::Poll { session, variant, users } => {
                let asking = Asking { session, respond, anew: Some((variant, users)) };
                self.longpoll_ask(slot, SessionRequest::Poll, asking, out);
            }
            Op::Post { session, heard } => {
                let asking = Asking { session, respond, anew: None };
                self.longpoll_ask(slot, SessionRequest::Post(heard), asking, out);
            }
            Op::Gone => self.longpoll_say(slot, Status::Gone, &respond, out),
            Op::Forbidden => self.longpoll_say(slot, Status::Forbidden, &respond, out),
        }
    }

    fn longpoll_say(&mut self, slot: u32, status: Status, respond: &Respond, out: &mut Vec<u8>) {
        let mut body = Vec::new();
        longpoll::answer(status, &mut body);
        self.longpoll_reply(slot, &body, respond, out);
    }

    fn longpoll_reply(&mut self, slot: u32, body: &[u8], respond: &Respond, out: &mut Vec<u8>) {
        let from = out.len();
        let keep_alive = respond.keep_alive && self.drain.is_none();
        json_answer(&Respond { keep_alive, ..respond.clone() }, body, out);
        self.answered(slot, from, keep_alive, out);
    }

    /// A new session; its token is in the answer.
    fn longpoll_open(
        &mut self,
        slot: u32,
        variant: Variant,
        users: &[Name],
        respond: &Respond,
        out: &mut Vec<u8>,
    ) {
        self.has_joined(slot);
        match self.new_session(slot, variant, users) {
            Ok(session) => {
                let token = self.settings.session.longpoll_key.sign(session);
                let mut body = Vec::new();
                longpoll::poll(Status::Gone, &token, [], &mut body);
                self.longpoll_reply(slot, &body, respond, out);
            }
            Err(message) => {
                let refused = wire::http::refused(503, "overloaded", message);
                let from = out.len();
                longpoll_refusal(&refused, wire::http::Method::Get, respond, out);
                self.answered(slot, from, respond.keep_alive, out);
            }
        }
    }

    fn new_session(
        &mut self,
        asker: u32,
        variant: Variant,
        users: &[Name],
    ) -> Result<ConnectionId, &'static str> {
        let sessions = &self.shared.sessions;
        let held = &self.shared.connections;
        if sessions.load(Ordering::Relaxed) >= self.settings.longpoll_sessions_max {
            self.metrics.refused[Refusal::Sessions as usize].add(1);
            return Err("the server holds as many long-poll sessions as it may: try later");
        }
        let room = held.load(Ordering::Relaxed) < self.settings.connections_max
            && self.metrics.held.get() < self.capacity;
        if !room || self.drain.is_some() {
            self.metrics.refused[Refusal::Connections as usize].add(1);
            return Err("the server holds as many connections as it may: try later");
        }
        if self.shared.memory_full.load(Ordering::Relaxed) {
            self.metrics.refused[Refusal::Memory as usize].add(1);
            return Err("the server is at its memory limit: try later");
        }
        // A session counts as a connection of the address that asked for it.
        let per_address = self.settings.connections_per_address_max;
        let address = self.peers.get(&asker).copied().filter(|_| per_address > 0);
        if address.is_some_and(|address| !self.addresses.enter(address, per_address)) {
            self.metrics.refused[Refusal::Address as usize].add(1);
            return Err("your address has as many connections as it may");
        }
        let leave = |addresses: &Addresses, address: Option<IpAddr>| {
            address.into_iter().for_each(|address| addresses.leave(address));
        };
        let sessions_max = self.settings.longpoll_sessions_per_address_max;
        let of = self.address(asker).filter(|_| sessions_max > 0);
        if of.is_some_and(|of| !self.shared.session_addresses.enter(of, sessions_max)) {
            leave(&self.addresses, address);
            self.metrics.refused[Refusal::Sessions as usize].add(1);
            return Err("your address has as many long-poll sessions as it may: try later");
        }
        let Ok(fd) = rustix::event::eventfd(0, EventfdFlags::CLOEXEC) else {
            leave(&self.addresses, address);
            leave(&self.shared.session_addresses, of);
            return Err("the server has no descriptor left for a session: try later");
        };
        let (sessions, held) = (&self.shared.sessions, &self.shared.connections);
        sessions.fetch_add(1, Ordering::Relaxed);
        held.fetch_add(1, Ordering::Relaxed);
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        let mut connection = Connection::new(fd, serial, self.now_s());
        let extra = connection.extra();
        // Always there, so that everything that is sent stays in it.
        extra.outbox = Some(Box::new(Outbox::default()));
        extra.session = Some(Box::new(Session { address: of, ..Session::default() }));
        let slot = self.table.insert(connection);
        if let Some(address) = address {
            self.peers.insert(slot, address);
        }
        self.metrics.connections[Variant::Http as usize].add(1);
        self.metrics.held.add(1);
        self.metrics.admitted.add(1);
        self.become_variant(slot, variant);
        self.enter_hub(slot, users, &[]);
        Ok(self.id(slot, serial))
    }

    /// Where a connection comes from.
    fn address(&self, slot: u32) -> Option<IpAddr> {
        let address = rustix::net::getpeername(&self.table.get(slot)?.fd).ok()??;
        Some(SocketAddr::try_from(address).ok()?.ip().to_canonical())
    }

    /// Asks the session's shard, which may be this one, and lets the request wait.
    fn longpoll_ask(
        &mut self,
        slot: u32,
        request: SessionRequest,
        asking: Asking,
        out: &mut Vec<u8>,
    ) {
        if !self.send_earlier(slot, out) {
            return;
        }
        let now_s = self.now_s() as u16;
        self.become_variant(slot, Variant::Asking);
        let Some(connection) = self.table.get_mut(slot) else {
            return;
        };
        connection.heard_s = now_s;
        let from = ConnectionId { shard: self.number, slot, serial: connection.serial };
        let session = asking.session;
        connection.extra().asking = Some(Box::new(asking));
        self.tell_session(session, request, from);
    }

    fn tell_session(&mut self, session: ConnectionId, request: SessionRequest, from: ConnectionId) {
        self.tell_shard(session.shard, Command::Session { session, request, from });
    }

    /// Leaves a command with the shard of a session or of a request, which may be this one.
    fn tell_shard(&mut self, shard: u16, command: Command) {
        if shard == self.number {
            self.commands.push_back(command);
        } else if let Some(shard) = self.shards.get(usize::from(shard)) {
            // There is one: this very process signed the token that names it.
            shard.send(command);
        }
    }

    /// A request's connection has ended before its answer came.
    pub(crate) fn asking_ended(&mut self, asking: &Asking, from: ConnectionId) {
        if asking.anew.is_some() {
            self.tell_session(asking.session, SessionRequest::Withdraw, from);
        }
    }

    /// A request for a session of this shard.
    pub(crate) fn session_request(
        &mut self,
        session: ConnectionId,
        request: SessionRequest,
        from: ConnectionId,
    ) {
        let found = self.table.get(session.slot).filter(|connection| {
            connection.serial == session.serial && connection.variant.is_polled()
        });
        let Some(connection) = found else {
            if matches!(request, SessionRequest::Poll | SessionRequest::Post(_)) {
                self.answer_request(session, from, SessionAnswer::Gone);
            }
            return;
        };
        let (slot, variant) = (session.slot, connection.variant);
        match request {
            SessionRequest::Poll => self.session_poll(slot, from),
            SessionRequest::Withdraw => self.session_withdraw(slot, from),
            SessionRequest::Return(elements) => self.session_return(slot, elements),
            SessionRequest::Post(_) if connection.is(Flag::Closing) => {
                self.answer_request(session, from, SessionAnswer::Gone);
            }
            SessionRequest::Post(heard) => {
                let mut out = Vec::new();
                for heard in heard {
                    let closing = |connection: &Connection| connection.is(Flag::Closing);
                    if self.table.get(slot).is_none_or(closing) {
                        break;
                    }
                    self.phoenix(slot, variant, heard, &mut out);
                    self.spill(slot, &mut out);
                }
                self.answer_request(session, from, SessionAnswer::Taken);
                if !out.is_empty() {
                    self.send(slot, &out, 0);
                }
            }
        }
    }

    fn session_poll(&mut self, slot: u32, from: ConnectionId) {
        let now_s = self.now_s();
        // The second that has begun is not counted.
        let deadline_s = now_s.saturating_add(self.settings.longpoll_seconds).saturating_add(1);
        let Some(connection) = self.table.get_mut(slot) else {
            return;
        };
        connection.heard_s = now_s as u16;
        let serial = connection.serial;
        let Some(session) = &mut connection.extra().session else {
            return;
        };
        session.polled = true;
        let waiter = Waiter { request: from, deadline_s };
        if let Some(before) = session.waiter.replace(waiter) {
            // The client gave that one up.
            let nothing = SessionAnswer::Messages([].into());
            self.answer_request(self.id(slot, serial), before.request, nothing);
        }
        self.session_wake(slot, false);
    }

    fn session_withdraw(&mut self, slot: u32, from: ConnectionId) {
        if let Some(connection) = self.table.get_mut(slot)
            && let Some(session) = &mut connection.extra().session
        {
            session.waiter.take_if(|waiter| waiter.request == from);
        }
    }

    fn session_return(&mut self, slot: u32, elements: Box<[u8]>) {
        let Some(connection) = self.table.get_mut(slot) else {
            return;
        };
        if let Some(outbox) = connection.outbox_mut() {
            self.metrics.outbox_bytes.add(elements.len() as u64);
            let mut first = Outbox::default();
            let piece = Piece::new(Vec::from(elements).into(), &self.metrics);
            first.push(Chunk::new(piece, 1), 0);
            let rest = std::mem::replace(outbox, first);
            outbox.append(rest);
        }
        self.session_wake(slot, false);
    }

    /// Gives a waiting poll what has come, if anything has or its time is over.
    pub(crate) fn session_wake(&mut self, slot: u32, over: bool) {
        let Some(connection) = self.table.get_mut(slot) else {
            return;
        };
        let (closing, serial) = (connection.is(Flag::Closing), connection.serial);
        let extra = connection.extra();
        let (Some(session), Some(outbox)) = (&mut extra.session, &mut extra.outbox) else {
            return;
        };
        let empty = outbox.is_empty();
        if session.waiter.is_none() || (empty && !over && !closing) {
            return;
        }
        let Some(waiter) = session.waiter.take() else {
            return;
        };
        let taken = std::mem::take(&mut **outbox);
        self.metrics.outbox_bytes.sub(taken.bytes() as u64);
        let elements: Vec<u8> = taken.parts().flatten().copied().collect();
        let answer = SessionAnswer::Messages(elements.into());
        self.answer_request(self.id(slot, serial), waiter.request, answer);
        if closing {
            self.end(slot, Close::Lost);
        } else {
            self.tell_due_lists(slot);
            self.pull_more(slot);
        }
    }

    fn session_body(&self, id: ConnectionId, answer: &SessionAnswer) -> Vec<u8> {
        let token = self.settings.session.longpoll_key.sign(id);
        let mut body = Vec::new();
        match answer {
            SessionAnswer::Taken => longpoll::answer(Status::Ok, &mut body),
            SessionAnswer::Gone => longpoll::answer(Status::Gone, &mut body),
            SessionAnswer::Messages(elements) if elements.is_empty() => {
                longpoll::poll(Status::NoContent, &token, [], &mut body);
            }
            SessionAnswer::Messages(elements) => {
                longpoll::poll(Status::Ok, &token, [&**elements], &mut body);
            }
        }
        body
    }

    /// Sends a session's answer to the shard of the request.
    fn answer_request(&mut self, session: ConnectionId, to: ConnectionId, answer: SessionAnswer) {
        self.tell_shard(to.shard, Command::SessionAnswer { session, to, answer });
    }

    /// The answer to a request that waits here.
    pub(crate) fn session_answered(
        &mut self,
        session: ConnectionId,
        to: ConnectionId,
        answer: SessionAnswer,
    ) {
        let slot = to.slot;
        let found = self.table.get_mut(slot).filter(|connection| connection.serial == to.serial);
        let found = found.and_then(|connection| {
            let extra = connection.extra.as_mut()?;
            Some((extra.asking.take()?, std::mem::take(&mut extra.input)))
        });
        let Some((asking, mut rest)) = found else {
            if let SessionAnswer::Messages(elements) = answer
                && !elements.is_empty()
            {
                self.tell_session(session, SessionRequest::Return(elements), to);
            }
            return;
        };
        self.become_http(slot);
        let Asking { respond, anew, .. } = *asking;
        let mut out = Vec::new();
        match (&answer, anew) {
            (SessionAnswer::Gone, Some((variant, users))) => {
                self.longpoll_open(slot, variant, &users, &respond, &mut out);
            }
            _ => {
                let body = self.session_body(session, &answer);
                self.longpoll_reply(slot, &body, &respond, &mut out);
            }
        }
        if !out.is_empty() {
            self.send(slot, &out, 0);
        }
        self.understand(slot, &mut rest);
    }

    /// Once a second: a poll's wait may be over, and a session that nobody polls ends.
    pub(crate) fn look_after_session(&mut self, slot: u32) {
        let now_s = self.now_s();
        let patience_s = self.settings.longpoll_seconds * 2 + GRACE_SECONDS;
        let Some(connection) = self.table.get_mut(slot) else {
            return;
        };
        let silence_s = connection.silence_s(now_s);
        let session = connection.extra().session.as_ref();
        let polled = session.is_some_and(|session| session.polled);
        let patience_s = if polled { patience_s } else { UNPOLLED_SECONDS };
        match session.and_then(|session| session.waiter.as_ref()) {
            Some(waiter) if waiter.deadline_s <= now_s => {
                connection.heard_s = now_s as u16;
                self.session_wake(slot, true);
            }
            Some(_) => {}
            None if silence_s > patience_s => self.end(slot, Close::Silent),
            None => {}
        }
    }

    /// A session is closed: at once when there is nothing to give or somebody takes it now, else
    /// with the next poll, or when none comes.
    pub(crate) fn close_session(&mut self, slot: u32) {
        self.session_wake(slot, false);
        if let Some(connection) = self.table.get(slot)
            && connection.outbox().is_none_or(Outbox::is_empty)
        {
            self.end(slot, Close::Lost);
        }
    }

    /// A session has ended: the poll that waits for it is told to come again, and finds it gone.
    pub(crate) fn session_ended(&mut self, id: ConnectionId, session: Session) {
        self.shared.sessions.fetch_sub(1, Ordering::Relaxed);
        if let Some(address) = session.address {
            self.shared.session_addresses.leave(address);
        }
        if let Some(waiter) = session.waiter {
            self.answer_request(id, waiter.request, SessionAnswer::Messages([].into()));
        }
    }

    /// The last words to a request whose session's answer is not waited for any longer: a poll comes
    /// again after a while, and the messages of a POST may have been taken or not.
    pub(crate) fn asking_goodbye(&self, slot: u32, out: &mut Vec<u8>) {
        let extra = self.table.get(slot).and_then(|connection| connection.extra.as_ref());
        let Some(asking) = extra.and_then(|extra| extra.asking.as_ref()) else {
            return;
        };
        let polls = asking.anew.is_some();
        let status = if polls { Status::Error } else { Status::RequestTimeout };
        let mut body = Vec::new();
        longpoll::answer(status, &mut body);
        let respond = Respond { keep_alive: false, ..asking.respond.clone() };
        json_answer(&respond, &body, out);
    }

    /// How long a request may wait for its session's answer, in seconds.
    pub(crate) fn asking_seconds_max(&self) -> u32 {
        self.settings.longpoll_seconds + ANSWER_SECONDS
    }
}
