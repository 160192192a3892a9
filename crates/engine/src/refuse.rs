//! Answers to connections for which there is no room.

use model::CloseReason;
use protocol::Protocols;
use protocol::http::{self, Rejection};

use crate::connections::Connections;
use crate::metrics::Refusal;

impl Connections {
    /// Counts an answer to a connection for which there was no room; a health check's is no refusal.
    pub(crate) fn count_refusal(&self, healthy: bool, refusal: Refusal) {
        self.core.metrics.refused[refusal as usize].add(u64::from(!healthy));
        self.core.metrics.answers[if healthy { 2 } else { 5 }].add(1);
    }

    /// A request of somebody beyond the limit of its address: `/healthz` is answered, all else is
    /// refused. Gives the bytes taken, 0 when more must come.
    pub(crate) fn request_beyond(&mut self, slot: u32, bytes: &[u8], out: &mut Vec<u8>) -> usize {
        let (refused, protocols) = (refused(Refusal::Address), self.core.shared.protocols);
        let answered =
            http::without_room(protocols, &self.core.settings.session, bytes, &refused, out);
        let Some(healthy) = answered else {
            return 0;
        };
        self.count_refusal(healthy, Refusal::Address);
        let close = if healthy { CloseReason::Answered } else { CloseReason::Overloaded };
        self.close_after(slot, close, out);
        bytes.len()
    }

    /// Somebody beyond the limit of its address has asked for nothing.
    pub(crate) fn refuse_beyond(&mut self, slot: u32) {
        let mut out = Vec::new();
        refuse(self.core.shared.protocols, &[], Refusal::Address, &mut out);
        self.count_refusal(false, Refusal::Address);
        self.close(slot, CloseReason::Overloaded, &out);
    }
}

/// Why a connection is refused.
pub fn refused(refusal: Refusal) -> Rejection {
    let message = match refusal {
        Refusal::Connections => {
            "the server holds as many connections as it may (limits.connections_max): try later"
        }
        Refusal::Address => {
            "your address has as many connections as it may (limits.connections_per_address_max)"
        }
        Refusal::Rate => {
            "too many connections arrive at once (limits.accept_per_second_max): try again in a moment"
        }
        Refusal::Memory => "the server is at its memory limit: try later",
        Refusal::Sessions => {
            "the server holds as many long-poll sessions as it may (limits.longpoll_sessions_max): try later"
        }
    };
    Rejection::new(503, "overloaded", message)
}

/// Appends the answer to a request that is refused and need not have come.
pub fn refuse(protocols: &Protocols, request: &[u8], refusal: Refusal, out: &mut Vec<u8>) {
    http::reject_unread(protocols, request, &refused(refusal), http::Method::Get, out);
}
