//! Replies to connections for which there is no capacity.

use model::{CloseReason, ErrorCode};
use protocol::http::{self, Rejection};
use protocol::mqtt::Mqtt;
use protocol::{Listener, Protocols, Settings};

use crate::core::Core;
use crate::core::metrics::Refusal;
use crate::engine::Engine;

/// The reply to a connection for which there was no capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReply {
    /// The reply to a health check, which is no rejection.
    Healthy,
    /// An error by HTTP.
    Replied,
    /// An error of another protocol, or none.
    TurnedAway,
}

impl Core {
    /// Appends the reply to a connection that is refused before it is open. The bytes that were received decide about
    /// the protocol of the reply. Returns true if it is HTTP.
    pub(crate) fn turn_away(
        &self,
        slot: u32,
        first: &[u8],
        rejection: &Rejection,
        close: CloseReason,
        out: &mut Vec<u8>,
    ) -> bool {
        let protocols = self.shared.protocols;
        let now = self.protocol(slot).unwrap_or(protocols.first());
        let by = match self.speaks_first(slot) {
            true => protocols.recognise(first, &self.settings.session).unwrap_or(now),
            false => now,
        };
        let is_http = by.encoding() == protocols.first().encoding();
        if is_http {
            http::reject_unread(protocols, first, rejection, http::Method::Get, out);
        } else {
            by.turn_away(first, close, out);
        }
        is_http
    }
}

impl Engine {
    /// Counts a connection for which there was no capacity, and its reply.
    pub fn count_refusal(&self, reply: RefusalReply, refusal: Refusal) {
        let metrics = &self.core.metrics;
        metrics.refused[refusal as usize].add(u64::from(reply != RefusalReply::Healthy));
        match reply {
            RefusalReply::Healthy => metrics.replies[2].add(1),
            RefusalReply::Replied => metrics.replies[5].add(1),
            RefusalReply::TurnedAway => {}
        }
    }

    /// Processes a request above the limit of its address: `/healthz` gets its reply, and any other request is
    /// rejected. Returns the bytes consumed, 0 if the request is incomplete.
    pub(crate) fn request_beyond(&mut self, slot: u32, bytes: &[u8], out: &mut Vec<u8>) -> usize {
        let (refused, protocols) = (refused(Refusal::Address), self.core.shared.protocols);
        let reply =
            http::reject_connection(protocols, &self.core.settings.session, bytes, &refused, out);
        let Some(healthy) = reply else {
            return 0;
        };
        let how = if healthy { RefusalReply::Healthy } else { RefusalReply::Replied };
        self.count_refusal(how, Refusal::Address);
        let close = if healthy { CloseReason::Replied } else { CloseReason::Overloaded };
        self.close_after(slot, close, out);
        bytes.len()
    }

    /// A connection above the limit of its address has made no request in time.
    pub(crate) fn refuse_beyond(&mut self, slot: u32) {
        let mut out = Vec::new();
        let (refused, protocols) = (refused(Refusal::Address), self.core.shared.protocols);
        http::reject_unread(protocols, &[], &refused, http::Method::Get, &mut out);
        self.count_refusal(RefusalReply::Replied, Refusal::Address);
        self.close(slot, CloseReason::Overloaded, &out);
    }
}

/// Why a connection is refused.
pub fn refused(refusal: Refusal) -> Rejection {
    let message = match refusal {
        Refusal::Connections => {
            "the server is at its limit on connections (limits.connections_max): try again later"
        }
        Refusal::Address => {
            "your address is at its limit on connections (limits.connections_per_address_max)"
        }
        Refusal::Rate => {
            "too many connections arrive at once (limits.accept_per_second_max): try again in a moment"
        }
        Refusal::Memory => "the server is at its memory limit: try again later",
        Refusal::Sessions => {
            "the server is at its limit on long-poll sessions (limits.longpoll_sessions_max): try \
             again later"
        }
        Refusal::Drained => {
            "an operator has drained this server (throng drain): connect to another one"
        }
    };
    let is_drained = refusal == Refusal::Drained;
    let code = if is_drained { ErrorCode::UseAnotherServer } else { ErrorCode::Overloaded };
    Rejection::new(code, message)
}

/// Appends the reply to a connection that is refused, with or without a request. A health check above the limit of its
/// address gets its normal reply.
pub fn refuse(
    protocols: &Protocols,
    settings: &Settings,
    listener: Listener,
    request: &[u8],
    refusal: Refusal,
    out: &mut Vec<u8>,
) -> RefusalReply {
    let first = protocols.first();
    let by = match listener {
        // A client that has sent nothing yet gets a reply by HTTP.
        Listener::Client => protocols.recognise(request, settings).unwrap_or(first),
        Listener::Mqtt => protocols.begin(listener).unwrap_or(first),
    };
    if by.encoding() != first.encoding() {
        let is_drained = refusal == Refusal::Drained;
        let close =
            if is_drained { CloseReason::UseAnotherServer } else { CloseReason::Overloaded };
        let reference = settings.mqtt.as_ref().and_then(|mqtt| mqtt.server_reference.as_deref());
        match Mqtt::of(by.encoding()) {
            Some(mqtt) => mqtt.turn_away_to(request, close, reference, out),
            None => by.turn_away(request, close, out),
        }
        return RefusalReply::TurnedAway;
    }
    let rejection = refused(refusal);
    let health_reply = match refusal {
        Refusal::Address => http::reject_connection(protocols, settings, request, &rejection, out),
        Refusal::Connections
        | Refusal::Rate
        | Refusal::Memory
        | Refusal::Sessions
        | Refusal::Drained => None,
    };
    match health_reply {
        Some(true) => RefusalReply::Healthy,
        Some(false) => RefusalReply::Replied,
        None => {
            http::reject_unread(protocols, request, &rejection, http::Method::Get, out);
            RefusalReply::Replied
        }
    }
}
