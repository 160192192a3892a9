//! Rejections of requests above a limit of their user or address, in the protocol's own form. A client that ignores
//! them is closed.

use model::{CloseReason, CodedError, ErrorCode};
use protocol::http::{self, Method, Rejection};
use protocol::mqtt;
use protocol::phoenix::ClientMessage;
use protocol::request::ReplyTo;
use protocol::{ProtocolRef, ReplyError, Request};

use crate::core::Core;
use crate::core::metrics::Limited;
use crate::core::responses::refuse;
use crate::engine::Engine;
use crate::limits::quota::{BAD_COMMAND, Charged, limit_message, message_cost, request_cost};

/// A request that a limit rejects.
pub(crate) struct LimitedRequest {
    pub protocol: ProtocolRef,
    pub request: Request,
    pub limited: Limited,
}

impl Engine {
    /// Charges a request, of which so many bytes were read, to its users and its connection. Returns the limit that
    /// rejects the request, if any; then nothing is charged.
    pub(crate) fn charge_request(
        &mut self,
        slot: u32,
        request: &Request,
        bytes: usize,
        open: bool,
    ) -> Option<Limited> {
        let (cost, charged) = request_cost(request, bytes)?;
        // Before a connection is open, it has no users but those of the request.
        let charged = match charged {
            Charged::Connection if !open => Charged::Request(&[]),
            charged @ (Charged::Connection | Charged::Request(_)) => charged,
        };
        let rejection = self.rates.quota.charge(&mut self.core, slot, &charged, &cost);
        // If the request already has its reply, a rejection saves nothing. A health check is never rejected.
        let rejection = rejection.filter(|_| !matches!(request, Request::Replied { .. }));
        let no_topics = Vec::new();
        rejection.or_else(|| {
            let (users, topics) = if let Request::Open(open) = request {
                (&open.principal.users, &open.topics)
            } else if let Request::Poll(poll) = request {
                (&poll.principal.users, &poll.topics)
            } else if let Request::Mqtt(incoming) = request
                && let mqtt::Incoming::Connect(connect) = &**incoming
            {
                (&connect.principal.users, &no_topics)
            } else {
                return None;
            };
            let quota = &mut self.rates.quota;
            let capacity_reached =
                self.core.capacity_reached(users, topics.iter().map(|entry| &entry.topic));
            capacity_reached
                .or_else(|| quota.open(&self.core, slot, users, users.len() + topics.len()))
        })
    }

    /// Rejects a request above a limit. A request by HTTP ends its connection.
    pub(crate) fn reject_limited(
        &mut self,
        slot: u32,
        rejected: LimitedRequest,
        bytes: &[u8],
        from: usize,
        out: &mut Vec<u8>,
    ) {
        let LimitedRequest { protocol, request, limited } = rejected;
        let message = limit_message(limited);
        if let Request::Mqtt(incoming) = &request {
            self.mqtt_reject_limited(slot, incoming, out);
            return self.slow_stubborn(slot, limited, out);
        }
        let Some(id) = id(request) else {
            let rejection = limit_rejection(limited);
            out.truncate(from);
            if !self.core.speaks_first(slot) {
                return self.say_goodbye(slot, CloseReason::RateLimited);
            }
            http::reject_unread(self.core.shared.protocols, bytes, &rejection, Method::Get, out);
            self.core.count_reply(&out[from..]);
            self.core.log_reply(slot, &out[from..]);
            return self.close_after(slot, CloseReason::RateLimited, out);
        };
        let error = ReplyError::new(ErrorCode::RateLimited, &message);
        protocol.reply(&id, Err(error), &mut self.core.codecs, out);
        self.slow_stubborn(slot, limited, out);
    }

    /// Charges a message of a Phoenix client. Returns true if a limit rejected it.
    pub(crate) fn charge_phoenix(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        message: &ClientMessage,
        out: &mut Vec<u8>,
    ) -> bool {
        let cost = message_cost(message);
        let rejection = self.rates.quota.charge(&mut self.core, slot, &Charged::Connection, &cost);
        let Some(limited) = rejection else {
            return false;
        };
        let error = CodedError::new(ErrorCode::RateLimited, limit_message(limited));
        refuse(protocol, message, &error.phoenix_reason(), out);
        self.slow_stubborn(slot, limited, out);
        true
    }

    /// Charges a command that the protocol has processed without the engine, or rejected with this code.
    pub(crate) fn was_replied(
        &mut self,
        slot: u32,
        result: Result<(), ErrorCode>,
        out: &mut Vec<u8>,
    ) {
        if let Some(limited) = result.err().and_then(Limited::of_code) {
            self.core.metrics.limited[limited as usize].add(1);
        }
        self.charge_command(slot, out);
    }

    /// Charges a connection for input that was a command without a request.
    pub(crate) fn charge_command(&mut self, slot: u32, out: &mut Vec<u8>) {
        let rejection =
            self.rates.quota.charge(&mut self.core, slot, &Charged::Connection, &BAD_COMMAND);
        if let Some(limited) = rejection {
            self.slow_stubborn(slot, limited, out);
        }
    }

    /// Stops reading a connection that repeats rejected requests, and closes it in the end.
    fn slow_stubborn(&mut self, slot: u32, limited: Limited, out: &mut Vec<u8>) {
        self.rates.has_refused(&mut self.core, slot, limited);
        if !self.core.is_gathered(slot) && self.rates.quota.is_stubborn(&self.core, slot) {
            let close = CloseReason::RateLimited;
            let last = self.recover(|recovery, core| recovery.goodbye(core, slot, close));
            out.extend_from_slice(&last);
            self.close_after(slot, close, out);
        }
    }
}

/// The rejection of an HTTP request above this limit.
pub(crate) fn limit_rejection(limited: Limited) -> Rejection {
    let (code, message) = (limited.code(), limit_message(limited));
    if code == ErrorCode::TooManyTopics {
        return Rejection::with_status(429, code, message);
    }
    Rejection::new(code, message)
}

/// Returns the id of a request, if the client gave it one.
fn id(request: Request) -> Option<Box<str>> {
    match request {
        Request::Subscribe(id, ..)
        | Request::Unsubscribe(id, _)
        | Request::Login(id, _)
        | Request::Logout(id, _)
        | Request::UpdatePresence(id, ..) => Some(id),
        Request::Publish { to, .. }
        | Request::Acknowledge { to, .. }
        | Request::Presence { to, .. }
        | Request::History { to, .. } => match to {
            ReplyTo::Id(id) => Some(id),
            ReplyTo::Http(_) => None,
        },
        Request::Authenticate(authenticate) => Some(authenticate.id),
        Request::Replied { .. }
        | Request::Rejected
        | Request::Pending(_)
        | Request::Continue { .. }
        | Request::Open(_)
        | Request::Poll(_)
        | Request::Status { .. }
        | Request::Phoenix(_)
        | Request::Longpoll(_)
        | Request::Mqtt(_)
        | Request::Close(_) => None,
    }
}

impl Core {
    /// Counts a presence payload, the text of a JSON value, that exceeds `presence.meta_bytes_max`.
    pub(crate) fn count_presence_payload(&self, meta: &str) {
        if meta.len() > self.settings.presence_meta_bytes_max {
            self.metrics.limited[Limited::PresencePayloadBytes as usize].add(1);
        }
    }
}
