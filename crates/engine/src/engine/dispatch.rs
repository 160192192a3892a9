//! Reads the input of a connection with its protocol, and carries out the requests.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use auth::Principal;
use model::{CloseReason, ErrorCode, Name};
use protocol::request::{
    Authenticate, Decisions, Open, PageRequest, Pending, ReplyTo as To, Respond, Secret,
};
use protocol::websocket::Decoder;
use protocol::{Delivery, ProtocolRef, Read, Reader, Recognised, ReplyError, Request, http};

use crate::auth::principal::principal;
use crate::connection::{Flag, PendingToken, Phase};
use crate::core::Core;
use crate::core::count::count;
use crate::core::log::code_of;
use crate::core::metrics::{Counter, Limited, Metrics};
use crate::core::reply_target::ReplyTarget;
use crate::core::responses::NOT_SUBSCRIBED;
use crate::engine::Engine;
use crate::limits::reject::LimitedRequest;
use crate::recovery::ReplyTo;

/// The most bytes of replies that are gathered before they are sent.
pub(crate) const OUT_BYTES: usize = 64 << 10;

impl Engine {
    /// Reads one request, frame or line and carries it out. Returns the consumed bytes, and whether it read input
    /// that had come before. If neither, more input must come first.
    pub(crate) fn read_input(
        &mut self,
        slot: u32,
        bytes: &mut [u8],
        out: &mut Vec<u8>,
    ) -> (usize, bool) {
        let core = &mut self.core;
        let Some(connection) = core.table.get(slot) else {
            return (bytes.len(), false);
        };
        let open = connection.phase() == Phase::Open;
        if !open && core.table.cold(slot).is_some_and(|cold| cold.reserved) {
            return (self.request_beyond(slot, bytes, out), false);
        }
        if !open && self.awaits_header(slot) {
            return (self.read_header(slot, bytes, out), false);
        }
        let core = &mut self.core;
        let protocol = match recognised(core, slot, bytes) {
            Owner::Protocol(protocol) => protocol,
            Owner::Unknown => return (0, false),
            Owner::None => {
                // No protocol reads these bytes, so none can write a reply.
                self.close(slot, CloseReason::BadRequest, &[]);
                return (bytes.len(), false);
            }
        };
        let from = out.len();
        let (read, client) = read_once(core, slot, protocol, bytes, out);
        if let Some(client) = client
            && !self.request_from(slot, client, bytes, from, out)
        {
            return (bytes.len(), false);
        }
        let core = &mut self.core;
        if let Some(request) = read.request {
            if read.consumed > 0
                && let Some(cold) = core.table.cold_mut(slot)
            {
                (cold.needs, cold.continued) = (0, false);
            }
            match self.charge_request(slot, &request, read.consumed, open) {
                None => self.dispatch(slot, protocol, request, from, out),
                Some(limited) => {
                    let rejected = LimitedRequest { protocol, request, limited };
                    self.reject_limited(slot, rejected, bytes, from, out);
                    return (if open { read.consumed } else { bytes.len() }, read.again);
                }
            }
        } else if let Some(result) = read.replied {
            self.was_replied(slot, result, out);
        }
        (read.consumed, read.again)
    }

    #[allow(clippy::too_many_lines, reason = "a table: what each request does")]
    fn dispatch(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        request: Request,
        from: usize,
        out: &mut Vec<u8>,
    ) {
        match request {
            Request::Replied { keep_alive } => self.on_replied(slot, from, keep_alive, out),
            Request::Rejected => {
                self.core.count_reply(&out[from..]);
                self.core.log_reply(slot, &out[from..]);
                self.close_after(slot, CloseReason::BadRequest, out);
            }
            Request::Continue { bytes, interim } => {
                await_rest(&mut self.core, slot, bytes, interim, out);
            }
            Request::Open(open) => self.open_transport(slot, open, out),
            Request::Poll(poll) => {
                self.rates.has_joined(&mut self.core, slot);
                self.start_poll(slot, *poll, out);
            }
            Request::Subscribe(id, subscription, consent) => {
                self.subscribe(slot, protocol, id, subscription, consent, out);
            }
            Request::Unsubscribe(id, topic) => {
                self.unsubscribe(slot, protocol, &id, &topic, out);
            }
            Request::Publish { publication, consent, to: To::Http(respond) } => {
                self.publish_request(slot, publication, consent, respond, from, out);
            }
            Request::Publish { publication, consent, to: To::Id(id) } => {
                self.publish_by_id(slot, id, publication, consent, out);
            }
            Request::Acknowledge { acknowledgement, to, principal } => {
                // An HTTP request names its principal, and is in no topic.
                let entered = principal.is_none().then_some(slot);
                let principal = principal.unwrap_or_else(|| self.core.principal(slot));
                let done = self.core.acknowledge(entered, &principal, acknowledgement);
                match to {
                    To::Http(respond) => {
                        self.respond_acknowledged(slot, done, &respond, from, out);
                    }
                    To::Id(id) => self.reply_acknowledged(protocol, &id, done, out),
                }
            }
            Request::Login(id, user) => self.login_request(slot, protocol, &id, &user, out),
            Request::Logout(id, user) => {
                self.logout_request(slot, protocol, &id, &user, out);
            }
            Request::Presence { topic, members_only: true, to: To::Id(id) }
            | Request::History {
                page: PageRequest { topic, .. },
                members_only: true,
                to: To::Id(id),
            } if !self.core.hub.topics_of(slot).any(|name| *name == topic) => {
                let refused = Err(ReplyError::new(ErrorCode::NotSubscribed, NOT_SUBSCRIBED));
                protocol.reply(&id, refused, &mut self.core.codecs, out);
            }
            Request::Presence { topic, members_only: _, to } => {
                self.reply_presence(slot, protocol, topic, to, from, out);
            }
            Request::UpdatePresence(id, topic, meta) => {
                self.update_presence(slot, protocol, &id, &topic, &meta, out);
            }
            Request::History { page, members_only: _, to } => {
                let to = match to {
                    To::Http(respond) => ReplyTarget::Http(respond),
                    To::Id(id) => ReplyTarget::Id(id),
                };
                self.read_page(slot, page, to, from, out);
            }
            Request::Status { respond } => self.status_request(slot, &respond, from, out),
            Request::Phoenix(message) => self.on_phoenix_message(slot, protocol, message, out),
            Request::Longpoll(request) => self.longpoll(slot, request, out),
            Request::Mqtt(incoming) => {
                self.on_mqtt_packet(slot, *incoming, out);
            }
            Request::Authenticate(Authenticate { token: Secret(token), purpose, id }) => {
                let pending = PendingToken { token, purpose, reply: ReplyTarget::Id(id) };
                self.authenticate(slot, pending, out);
            }
            Request::Pending(Pending::Keys) => self.wait_for_keys(slot),
            Request::Pending(Pending::Subscribe { topics, users, transport }) => {
                let requested = (topics, users, transport);
                self.await_subscribe_decision(slot, requested, out);
            }
            Request::Pending(Pending::Connect(request)) => {
                self.await_connect_decision(slot, *request, out);
            }
            Request::Close(close) => self.close_after(slot, close, out),
        }
    }
}

/// Reads one request, frame or line, with the connection's decoder and the application's decisions on it. Also
/// returns the address of the client, if the request's head names it.
fn read_once(
    core: &mut Core,
    slot: u32,
    protocol: ProtocolRef,
    bytes: &mut [u8],
    out: &mut Vec<u8>,
) -> (Read, Option<IpAddr>) {
    let Some(connection) = core.table.get(slot) else {
        return (Read::ignored(bytes), None);
    };
    let (serial, open) = (connection.serial, connection.phase() == Phase::Open);
    let speaker = || match open {
        true => principal(&core.hub, &core.credentials, &core.settings, slot),
        // No user is known yet.
        false => Principal::anonymous(Vec::new()),
    };
    let mut begun = core.table.cold_mut(slot).and_then(|cold| cold.decoder.take());
    // Most frames arrive whole, and need no decoder afterwards.
    let mut fresh = Decoder::default();
    let (id, now_ms) = (core.id(slot, serial), core.unix_ms());
    let stranger = core.table.cold(slot).is_some_and(|cold| cold.stranger_since_s.is_some());
    let pending = core.table.cold_mut(slot).and_then(|cold| cold.pending.take());
    let mut reader = Reader {
        settings: &core.settings.session,
        protocols: core.shared.protocols,
        id,
        peer: core.peers.peer(slot),
        speaker: &speaker,
        stranger,
        now_ms,
        decisions: pending.as_ref().map_or(Decisions::NONE, |pending| &pending.decisions),
        codecs: &mut core.codecs,
        decoder: begun.as_deref_mut().unwrap_or(&mut fresh),
        open,
    };
    let read = protocol.read(&mut reader, bytes, out);
    let client = reader.peer.client;
    if !reader.decoder.is_idle()
        && let Some(cold) = core.table.cold_or_new(slot)
    {
        cold.decoder = Some(begun.unwrap_or_else(|| Box::new(fresh)));
    }
    if read.consumed == 0
        && !read.again
        && let Some(cold) = core.table.cold_mut(slot)
    {
        cold.pending = pending;
    }
    (read, client)
}

impl Engine {
    /// Sends earlier replies of a pipeline, before a request whose reply comes later. False when this has ended the
    /// connection.
    pub(crate) fn send_earlier(&mut self, slot: u32, out: &mut Vec<u8>) -> bool {
        if !out.is_empty() {
            let earlier = std::mem::take(out);
            self.send(slot, &earlier, 0);
        }
        self.core.is_open(slot)
    }

    /// Sends the replies so far when they are large: a short request may have a long reply, and the engine must
    /// notice a client that does not read it before the client requests more.
    pub(crate) fn flush_if_large(&mut self, slot: u32, out: &mut Vec<u8>) {
        if out.len() > OUT_BYTES {
            self.core.send_and_wait(slot, out);
            self.perform_effects();
            out.clear();
        }
    }

    fn status_request(&mut self, slot: u32, respond: &Respond, from: usize, out: &mut Vec<u8>) {
        http::json_reply(respond, self.status().as_bytes(), out);
        self.on_replied(slot, from, respond.keep_alive, out);
    }

    /// Returns the figures of the public status page, over all shards.
    fn status(&self) -> String {
        let sum = |read: &dyn Fn(&Metrics) -> u64| -> u64 {
            self.core.engines.iter().map(|shard| read(&shard.metrics)).sum()
        };
        format!(
            "{{\"connections\":{},\"answers\":{},\"answer_us\":{},\"uptime_ms\":{}}}",
            self.core.shared.connections.load(Ordering::Relaxed),
            sum(&|metrics| metrics.replies[2..].iter().map(Counter::get).sum()),
            sum(&|metrics| metrics.reply_us.get()),
            self.core.now_us / 1_000
        )
    }

    /// Counts and logs a short reply, which is in `out` from `from` on. The connection then becomes idle or ends.
    pub(crate) fn on_replied(
        &mut self,
        slot: u32,
        from: usize,
        keep_alive: bool,
        out: &mut Vec<u8>,
    ) {
        self.core.count_reply(&out[from..]);
        self.core.log_reply(slot, &out[from..]);
        self.rest_or_close(slot, keep_alive, out);
    }

    /// After a short reply the connection becomes idle, or ends with it.
    pub(crate) fn rest_or_close(&mut self, slot: u32, keep_alive: bool, out: &mut Vec<u8>) {
        if keep_alive && !self.core.draining && !self.core.is_drained() {
            let now_s = self.core.now_wrapping_s();
            if let Some(connection) = self.core.table.get_mut(slot) {
                connection.enter(Phase::Idle);
                connection.last_received_s = now_s;
            }
        } else {
            self.close_after(slot, CloseReason::Replied, out);
        }
    }

    /// Sends the bytes in `out` and closes the connection.
    pub(crate) fn close_after(&mut self, slot: u32, close: CloseReason, out: &mut Vec<u8>) {
        let last = std::mem::take(out);
        self.close(slot, close, &last);
    }

    /// The connection stays open and enters its topics. Its greeting is in `out`, and leaves before any message that
    /// is published from now on.
    fn open_transport(&mut self, slot: u32, open: Open, out: &mut Vec<u8>) {
        let protocol = self.core.shared.protocols.of(open.encoding);
        self.core.take_up(slot, open.encoding, Phase::Open);
        self.core.peers.opened(slot);
        if open.stranger {
            let now_s = self.core.now_s();
            if let Some(cold) = self.core.table.cold_or_new(slot) {
                cold.stranger_since_s = Some(now_s);
            }
        } else if protocol.delivery() != Delivery::Nothing {
            self.enter_hub(slot, &open.principal, &open.topics);
            self.recovery.catchups.choose(&mut self.core, slot, None, &open.tags);
            // Clients with joins catch up with the topics that they join.
            let catches_up = self.core.history().retains_any() || !open.resume.is_empty();
            if catches_up && !protocol.capabilities().joins {
                let topics: Vec<Name> = self.core.hub.topics_of(slot).cloned().collect();
                self.recover(|recovery, core| {
                    recovery.begin(core, slot, &topics, &open.resume, ReplyTo::Line, out)
                });
            }
            self.core.send_due_lists(slot, out);
        }
        let now_s = self.core.now_wrapping_s();
        if let Some(connection) = self.core.table.get_mut(slot) {
            connection.last_received_s = now_s;
            // The greeting counts as a heartbeat, so none follows at once.
            connection.set(Flag::WroteRecently, true);
        }
    }

    /// Replies to a request that did not come in time.
    pub(crate) fn request_timeout(&mut self, slot: u32) {
        let mut out = Vec::new();
        if self.core.table.cold(slot).is_some_and(|cold| cold.reserved) {
            // It is no health check: it gets the reply that it would have had at once.
            self.refuse_beyond(slot);
            return;
        }
        if !self.core.speaks_first(slot) {
            return self.say_goodbye(slot, CloseReason::RequestTimeout);
        }
        let message = "the request did not arrive in time: send it completely and at once";
        let refused = http::Rejection::new(ErrorCode::RequestTimeout, message);
        http::reject(&refused, "", false, false, &mut out);
        self.core.count_reply(&out);
        self.close(slot, CloseReason::RequestTimeout, &out);
    }
}

impl Core {
    /// Counts a reply by the class of its status, which is in its first line (`HTTP/1.1 200 …`).
    pub(crate) fn count_reply(&mut self, reply: &[u8]) {
        if let Some(class @ b'1'..=b'5') = reply.get(9) {
            self.metrics.replies[usize::from(class - b'0')].add(1);
            // A rejection by a limit of the user also counts for that limit.
            if *class == b'4'
                && reply.get(9..12) != Some(b"429")
                && let Some(limited) =
                    code_of(reply).and_then(ErrorCode::parse).and_then(Limited::of_code)
            {
                self.metrics.limited[limited as usize].add(1);
            }
            self.replies += 1;
        }
    }
}

/// The protocol that reads a connection's bytes.
enum Owner {
    /// This one.
    Protocol(ProtocolRef),
    /// Too few bytes have come to recognise it.
    Unknown,
    /// No protocol of this listener reads them.
    None,
}

/// Returns the protocol that reads a connection's bytes. The first bytes of a request decide.
fn recognised(core: &mut Core, slot: u32, bytes: &[u8]) -> Owner {
    let protocols = core.shared.protocols;
    let Some(connection) = core.table.get(slot) else {
        return Owner::None;
    };
    let now = protocols.of(connection.encoding);
    if connection.phase() != Phase::Request {
        return Owner::Protocol(now);
    }
    if !core.speaks_first(slot) {
        let is_foreign = now.listener().is_some() && now.recognise(bytes) == Recognised::No;
        return if is_foreign { Owner::None } else { Owner::Protocol(now) };
    }
    let Some(recognised) = protocols.recognise(bytes, &core.settings.session) else {
        return Owner::Unknown;
    };
    if recognised.encoding() != now.encoding() {
        core.speak(slot, recognised.encoding());
    }
    Owner::Protocol(recognised)
}

/// Waits for more of a request. A client that expects `100 Continue` before it sends the rest gets that, once.
fn await_rest(core: &mut Core, slot: u32, bytes: usize, interim: &[u8], out: &mut Vec<u8>) {
    if let Some(cold) = core.table.cold_or_new(slot) {
        cold.needs = count(bytes);
        if !interim.is_empty() && !std::mem::replace(&mut cold.continued, true) {
            out.extend_from_slice(interim);
        }
    }
}
