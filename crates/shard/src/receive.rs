//! What a connection's peer sends: read into the shard's one buffer, understood by wire, done
//! here.

use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use wire::session::{self, Action, Asked, Input, Open, Step};
use wire::ws::Decoder;
use wire::{Close, Variant};

use crate::command::Answer;
use crate::connection::Flag;
use crate::follow::To;
use crate::input::{ahead, is_held};
use crate::metrics::{Counter, Metrics};
use crate::publish::acknowledged_json;
use crate::shard::Shard;

/// Answers that are gathered before they are sent, in bytes.
const OUT_BYTES: usize = 64 << 10;

/// Reads of one connection in one turn, so that nobody else waits for it.
const READS: usize = 4;

impl Shard {
    /// The socket has input, or its end, up to which it is read if `to_end`.
    pub(crate) fn readable(&mut self, slot: u32, to_end: bool) {
        // A session has no socket: this was meant for one that had the number before, in this turn.
        if self.table.get(slot).is_none_or(|connection| connection.variant.is_polled()) {
            return;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        for left in (0..READS).rev() {
            let Some(connection) = self.table.get(slot) else {
                break;
            };
            let room = ahead(connection, buffer.len());
            if room == 0 {
                self.pause(slot);
                break;
            }
            match recv(&connection.fd, &mut buffer[..room], RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    self.peer_closed(slot);
                    break;
                }
                Ok((read, _)) => {
                    self.metrics.bytes_in.add(read as u64);
                    self.received(slot, &mut buffer[..read]);
                    // Edge-triggered: only a read that did not fill the buffer has emptied the
                    // socket.
                    if read < room && !to_end {
                        break;
                    }
                    if left == 0 {
                        self.unread.push(slot);
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.end(slot, Close::Lost);
                    break;
                }
            }
        }
        self.buffer = buffer;
        self.relieve_input();
    }

    fn peer_closed(&mut self, slot: u32) {
        let Some(connection) = self.table.get(slot) else {
            return;
        };
        // Half-closed peers (`printf … | nc`) still want the answers that are under way.
        let outbox = connection.outbox().is_some();
        if outbox && connection.variant == Variant::Http && !connection.is(Flag::Closing) {
            return self.close(slot, Close::ByClient, &[]);
        }
        if !(outbox && connection.is(Flag::Closing)) {
            self.end(slot, Close::ByClient);
        }
    }

    fn received(&mut self, slot: u32, bytes: &mut [u8]) {
        let now_s = self.now_s() as u16;
        let Some(connection) = self.table.get_mut(slot) else {
            return;
        };
        if connection.is(Flag::Closing) {
            return;
        }
        match connection.variant {
            // Nothing that is sent after such a request means anything.
            Variant::Stream => connection.heard_s = now_s,
            variant if variant.sse_json().is_some() => connection.heard_s = now_s,
            _ if is_held(connection) => self.stash(slot, bytes),
            _ => {
                if connection.variant != Variant::Http {
                    connection.heard_s = now_s;
                } else if connection.is(Flag::Resting) {
                    connection.set(Flag::Resting, false);
                    connection.heard_s = now_s;
                }
                let stashed = match &mut connection.extra {
                    // Nothing of it means anything before it is whole.
                    Some(extra) if (extra.needs as usize) > extra.input.len() + bytes.len() => {
                        return self.stash(slot, bytes);
                    }
                    Some(extra) => std::mem::take(&mut extra.input),
                    None => Vec::new(),
                };
                if stashed.is_empty() {
                    self.understand(slot, bytes);
                } else {
                    let mut all = stashed;
                    all.extend_from_slice(bytes);
                    self.understand(slot, &mut all);
                }
            }
        }
    }

    /// What held the connection up is over: what it asked for meanwhile has its turn.
    pub(crate) fn go_on(&mut self, slot: u32) {
        let Some(connection) = self.table.get_mut(slot) else {
            return;
        };
        if connection.is(Flag::Closing) || is_held(connection) {
            return;
        }
        if let Some(extra) = &mut connection.extra {
            let mut input = std::mem::take(&mut extra.input);
            self.understand(slot, &mut input);
        }
    }

    /// True while the connection is there and not about to end.
    pub(crate) fn is_open(&self, slot: u32) -> bool {
        self.table.get(slot).is_some_and(|connection| !connection.is(Flag::Closing))
    }

    /// Does what whole requests and frames say, sends the answers, and keeps what is not whole.
    pub(crate) fn understand(&mut self, slot: u32, bytes: &mut [u8]) {
        let mut at = 0;
        let mut out = std::mem::take(&mut self.out);
        while at < bytes.len() {
            let Some(connection) = self.table.get(slot) else {
                break;
            };
            if connection.is(Flag::Closing) {
                at = bytes.len();
                break;
            }
            if is_held(connection) {
                break;
            }
            let variant = connection.variant;
            let taken = match variant {
                Variant::Http => {
                    let taken = self.request(slot, &bytes[at..], &mut out);
                    self.spill(slot, &mut out);
                    taken
                }
                Variant::Stream => bytes.len() - at,
                variant if variant.sse_json().is_some() => bytes.len() - at,
                // A frame at a time: after each it may have to wait.
                _ => self.frames(slot, variant, &mut bytes[at..], &mut out),
            };
            at += taken;
            if taken == 0 {
                break;
            }
        }
        if !out.is_empty() {
            self.send(slot, &out, 0);
            out.clear();
        }
        out.shrink_to(OUT_BYTES);
        self.out = out;
        let now_s = self.now_s() as u16;
        if let Some(connection) = self.table.get_mut(slot) {
            if at < bytes.len() && !connection.is(Flag::Closing) {
                if connection.is(Flag::Resting) {
                    // The next request has begun, and has its own time.
                    connection.set(Flag::Resting, false);
                    connection.heard_s = now_s;
                }
                connection.extra().input = bytes[at..].to_vec();
            }
            self.count_input(slot);
            self.resume(slot);
        }
        if let Some(connection) = self.table.get_mut(slot) {
            connection.trim();
        }
    }

    /// Sends earlier answers of a pipeline, before a request that is not answered at once. False when
    /// the connection ended with that.
    pub(crate) fn send_earlier(&mut self, slot: u32, out: &mut Vec<u8>) -> bool {
        if !out.is_empty() {
            let earlier = std::mem::take(out);
            self.send(slot, &earlier, 0);
        }
        self.is_open(slot)
    }

    /// Sends the answers so far when they are many: what a client asks for with few bytes may be
    /// large, and a client that does not read it must be noticed before it asks for more.
    pub(crate) fn spill(&mut self, slot: u32, out: &mut Vec<u8>) {
        if out.len() > OUT_BYTES {
            self.send(slot, out, 0);
            out.clear();
        }
    }

    /// One request; gives the bytes taken, 0 when more must come.
    fn request(&mut self, slot: u32, bytes: &[u8], out: &mut Vec<u8>) -> usize {
        let Some(connection) = self.table.get_mut(slot) else {
            return bytes.len();
        };
        if connection.extra.as_ref().is_some_and(|extra| extra.reserved) {
            return self.request_beyond(slot, bytes, out);
        }
        let serial = connection.serial;
        let continued = connection.is(Flag::Continued);
        let settings = self.settings.clone();
        let from = out.len();
        match session::request(&settings.session, self.id(slot, serial), bytes, out) {
            Step::Partial { continue_wanted, bytes } => {
                if let Some(bytes) = bytes
                    && let Some(connection) = self.table.get_mut(slot)
                {
                    connection.extra().needs = bytes as u32;
                }
                if continue_wanted && !continued {
                    session::continue_answer(out);
                    self.set(slot, Flag::Continued, true);
                }
                0
            }
            Step::Refused => {
                self.count_answer(&out[from..]);
                self.close_after(slot, Close::BadRequest, out);
                bytes.len()
            }
            Step::Request { taken, action } => {
                self.set(slot, Flag::Continued, false);
                let extra = self.table.get_mut(slot).and_then(|it| it.extra.as_mut());
                if let Some(extra) = extra {
                    extra.needs = 0;
                }
                self.act(slot, action, from, out);
                taken
            }
        }
    }

    fn act(&mut self, slot: u32, action: Action, from: usize, out: &mut Vec<u8>) {
        match action {
            Action::Answered { keep_alive } => {
                self.answered(slot, from, keep_alive, out);
            }
            Action::Open(open) => self.open(slot, open, out),
            Action::Poll(poll) => {
                self.has_joined(slot);
                self.poll(slot, poll, out);
            }
            Action::Longpoll(request) => self.longpoll(slot, request, out),
            Action::Presence { topic, respond } => {
                session::json_answer(&respond, self.presence_answer(&topic).as_bytes(), out);
                self.answered(slot, from, respond.keep_alive, out);
            }
            Action::Status { respond } => {
                session::json_answer(&respond, self.status().as_bytes(), out);
                self.answered(slot, from, respond.keep_alive, out);
            }
            Action::Acknowledge { acknowledged, respond } => {
                self.acknowledge_request(slot, acknowledged, &respond, from, out);
            }
            Action::Publish { draft, respond } => {
                self.publish_request(slot, draft, respond, from, out);
            }
        }
    }

    pub(crate) fn set(&mut self, slot: u32, flag: Flag, on: bool) {
        if let Some(connection) = self.table.get_mut(slot) {
            connection.set(flag, on);
        }
    }

    /// The class of an answer's status, from its own first line (`HTTP/1.1 200 …`).
    pub(crate) fn count_answer(&self, answer: &[u8]) {
        if let Some(class @ b'1'..=b'5') = answer.get(9) {
            self.metrics.answers[usize::from(class - b'0')].add(1);
            let took_us = (self.started.elapsed().as_micros() as u64).saturating_sub(self.now_us);
            self.metrics.answer_us.add(took_us);
        }
    }

    /// The figures of the public status page, over all shards.
    fn status(&self) -> String {
        let sum = |read: &dyn Fn(&Metrics) -> u64| -> u64 {
            self.shards.iter().map(|shard| read(&shard.metrics)).sum()
        };
        format!(
            "{{\"connections\":{},\"answers\":{},\"answer_us\":{},\"uptime_ms\":{}}}",
            self.shared.connections.load(Ordering::Relaxed),
            sum(&|metrics| metrics.answers[2..].iter().map(Counter::get).sum()),
            sum(&|metrics| metrics.answer_us.get()),
            self.now_us / 1_000
        )
    }

    /// A short answer stands in `out` from there on: it is counted, and the connection rests or ends.
    pub(crate) fn answered(&mut self, slot: u32, from: usize, keep_alive: bool, out: &mut Vec<u8>) {
        self.count_answer(&out[from..]);
        self.rest_or_close(slot, keep_alive, out);
    }

    /// After a short answer the connection rests, or ends with it.
    pub(crate) fn rest_or_close(&mut self, slot: u32, keep_alive: bool, out: &mut Vec<u8>) {
        if keep_alive && self.drain.is_none() {
            let now_s = self.now_s() as u16;
            if let Some(connection) = self.table.get_mut(slot) {
                connection.set(Flag::Resting, true);
                connection.heard_s = now_s;
            }
        } else {
            self.close_after(slot, Close::Answered, out);
        }
    }

    /// Sends what is in `out` and closes.
    pub(crate) fn close_after(&mut self, slot: u32, close: Close, out: &mut Vec<u8>) {
        let last = std::mem::take(out);
        self.close(slot, close, &last);
    }

    /// The connection stays and enters its topics. Its greeting is in `out`, and leaves before
    /// anything that is published from now on.
    fn open(&mut self, slot: u32, open: Open, out: &mut Vec<u8>) {
        self.become_variant(slot, open.variant);
        if open.variant.name() != "echo" {
            self.enter_hub(slot, &open.users, &open.topics);
            self.choose(slot, None, &open.tags);
            // A Phoenix client follows what it joins.
            let asks = self.kept().keeps() || !open.since.is_empty();
            if asks && open.variant.phoenix().is_none() {
                let topics: Vec<wire::Name> = self.hub.topics_of(slot).cloned().collect();
                self.follow(slot, &topics, &open.since, To::Line, out);
            }
        }
        let now_s = self.now_s() as u16;
        if let Some(connection) = self.table.get_mut(slot) {
            connection.heard_s = now_s;
            // The greeting breaks the silence: no heartbeat follows on its heels.
            connection.set(Flag::Spoken, true);
        }
    }

    pub(crate) fn become_http(&mut self, slot: u32) {
        let Some(connection) = self.table.get_mut(slot) else {
            return;
        };
        self.metrics.connections[connection.variant as usize].sub(1);
        self.metrics.connections[Variant::Http as usize].add(1);
        connection.variant = Variant::Http;
    }

    /// A WebSocket frame; gives the bytes taken.
    fn frames(
        &mut self,
        slot: u32,
        variant: Variant,
        bytes: &mut [u8],
        out: &mut Vec<u8>,
    ) -> usize {
        let Some(connection) = self.table.get_mut(slot) else {
            return bytes.len();
        };
        let mut kept = connection.extra.as_mut().and_then(|extra| extra.decoder.take());
        // Most frames come whole, and need no decoder that outlives them.
        let mut fresh = Decoder::default();
        let decoder = kept.as_deref_mut().unwrap_or(&mut fresh);
        let mut inputs = Vec::new();
        let settings = &self.settings.session;
        let taken =
            session::websocket(settings, variant, decoder, &mut self.tools, bytes, &mut inputs);
        if !decoder.is_idle() {
            connection.extra().decoder = Some(kept.unwrap_or_else(|| Box::new(fresh)));
        }
        for input in inputs {
            if self.table.get(slot).is_none_or(|connection| connection.is(Flag::Closing)) {
                break;
            }
            self.input(slot, variant, input, out);
            self.spill(slot, out);
        }
        taken
    }

    fn input(&mut self, slot: u32, variant: Variant, input: Input, out: &mut Vec<u8>) {
        match input {
            Input::Send(bytes) => out.extend_from_slice(&bytes),
            Input::Subscribe(id, asked) => self.subscribe(slot, variant, id, asked, out),
            Input::Acknowledge(id, acknowledged) => {
                let done = self.acknowledge(Some(slot), acknowledged);
                let ok = done.as_ref().map(|(topic, place)| acknowledged_json(topic, *place));
                let fault = done.as_ref().err().map(|error| (error.code(), error.to_string()));
                let result = match (&ok, &fault) {
                    (Ok(ok), _) => Ok(ok.as_str()),
                    (_, Some((code, message))) => Err((*code, message.as_str())),
                    (Err(_), None) => return,
                };
                session::ws_reply(variant, &mut self.tools, &id, result, out);
            }
            Input::Unsubscribe(id, topic) => {
                let named = named("topic", &topic);
                self.settle(slot, Some(&topic), out);
                let result = match self.leave(slot, &topic) {
                    true => Ok(named.as_str()),
                    false => Err(("not_subscribed", "this connection is not in that topic")),
                };
                session::ws_reply(variant, &mut self.tools, &id, result, out);
            }
            Input::Publish(id, draft) => {
                let topic = draft.topic.clone();
                if self.is_durable(&topic) {
                    self.publish_durable(slot, draft, Answer::Ws(id));
                } else {
                    let published = self.publish(draft);
                    self.ws_published(variant, &id, &published, out);
                }
                self.has_published(slot, &topic);
            }
            Input::Phoenix(heard) => self.phoenix(slot, variant, heard, out),
            Input::Close(close, last) => {
                out.extend_from_slice(&last);
                self.close_after(slot, close, out);
            }
        }
    }

    fn subscribe(
        &mut self,
        slot: u32,
        variant: Variant,
        id: Box<str>,
        asked: wire::command::Subscribe,
        out: &mut Vec<u8>,
    ) {
        let wire::command::Subscribe { topic, since, tags } = asked;
        self.has_joined(slot);
        let max = self.settings.session.topics_per_connection_max;
        let is_in = self.hub.topics_of(slot).any(|name| *name == topic);
        if !is_in && self.hub.count(slot) >= max {
            let full = ("too_many_topics", "this connection is in as many topics as it may");
            return session::ws_reply(variant, &mut self.tools, &id, Err(full), out);
        }
        if is_in && since.is_some() {
            // It begins anew from there: what it is still owed is among what it asks for.
            let hash = self.broker.hash(&topic);
            self.tell_waiting(slot, hash, out);
            self.unfollow(slot, hash);
        }
        self.join(slot, &topic);
        self.choose(slot, Some(&topic), &tags);
        if is_in && since.is_none() {
            let named = named("topic", &topic);
            return session::ws_reply(variant, &mut self.tools, &id, Ok(&named), out);
        }
        let all = None;
        let asked =
            Asked { all, topics: since.map(|since| (topic.clone(), since)).into_iter().collect() };
        self.follow(slot, std::slice::from_ref(&topic), &asked, To::Ws(id, topic.clone()), out);
    }

    /// For an answer to a request that did not come in time.
    pub(crate) fn request_timeout(&mut self, slot: u32) {
        let mut out = Vec::new();
        let extra = self.table.get(slot).and_then(|connection| connection.extra.as_ref());
        if extra.is_some_and(|extra| extra.reserved) {
            // It is no health check: it gets the answer that it would have had at once.
            self.refuse_beyond(slot);
            return;
        }
        let message = "the request did not arrive in time: send it whole, at once";
        let refused = wire::http::refused(408, "request_timeout", message);
        session::refuse(&refused, "", false, false, &mut out);
        self.count_answer(&out);
        self.close(slot, Close::RequestTimeout, &out);
    }
}

/// `{"topic":"…"}`
pub(crate) fn named(key: &str, name: &str) -> String {
    let mut out = format!("{{\"{key}\":").into_bytes();
    wire::command::push_string(name, &mut out);
    out.push(b'}');
    String::from_utf8_lossy(&out).into_owned()
}
