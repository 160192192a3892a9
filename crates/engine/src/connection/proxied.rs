//! What trusted proxies report of their clients: by the PROXY protocol, or by the head of a request.

use std::net::{IpAddr, SocketAddr};

use model::{CloseReason, ErrorCode};
use protocol::http::Rejection;
use proxies::{Header, parse_header};

use crate::connection::reject::{RefusalReply, refused};
use crate::core::Core;
use crate::core::metrics::Refusal;
use crate::engine::Engine;

impl Core {
    /// A proxy has named the address of the client. Returns false if this address has reached its limit of connections.
    fn came_from(&mut self, slot: u32, client: SocketAddr) -> bool {
        let max = self.settings.connections_per_address_max;
        let counts = (max > 0).then(|| self.settings.network(client.ip()));
        let Some(proxied) = self.peers.proxied_mut(slot) else {
            return true;
        };
        proxied.client = Some(client);
        if proxied.counted == counts {
            return true;
        }
        // Several clients may share one connection of a proxy.
        if let Some(before) = proxied.counted.take() {
            self.shared.addresses.leave(before);
        }
        let admitted = counts.is_none_or(|address| self.shared.addresses.enter(address, max));
        proxied.counted = counts.filter(|_| admitted);
        admitted
    }
}

impl Engine {
    /// Whether a header of the PROXY protocol must come before anything else. A driver with TLS passes it before the
    /// handshake.
    pub fn awaits_header(&self, slot: u32) -> bool {
        self.core.peers.proxied(slot).is_some_and(|proxied| proxied.awaits_header)
    }

    /// Parses that header. Returns the bytes consumed, 0 if the header is incomplete.
    pub(crate) fn read_header(&mut self, slot: u32, bytes: &[u8], out: &mut Vec<u8>) -> usize {
        let from = out.len();
        match parse_header(bytes) {
            Ok(Header::Partial) => 0,
            Ok(Header::Whole { consumed, source }) => {
                let mut client = source;
                if let Some(proxied) = self.core.peers.proxied_mut(slot) {
                    proxied.awaits_header = false;
                    client = client.or(Some(SocketAddr::new(proxied.proxy, 0)));
                }
                if client.is_none_or(|client| self.core.came_from(slot, client)) {
                    return consumed;
                }
                self.refuse_address(slot, &bytes[consumed..], from, out);
                bytes.len()
            }
            Err(error) => {
                let message = format!(
                    "{error}: the server expects one from each address in client.trusted_proxies \
                     (client.proxy_header), so this proxy must send it"
                );
                let rejection = Rejection::new(ErrorCode::BadProxyHeader, message);
                let close = CloseReason::BadRequest;
                if self.core.turn_away(slot, &[], &rejection, close, out) {
                    self.core.count_reply(&out[from..]);
                    self.core.log_reply(slot, &out[from..]);
                }
                self.close_after(slot, close, out);
                bytes.len()
            }
        }
    }

    /// A proxy has sent a request whose head has the address of the client. Returns false if this address has reached
    /// its limit of connections: then the request is rejected.
    pub(crate) fn request_from(
        &mut self,
        slot: u32,
        client: IpAddr,
        request: &[u8],
        from: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        let admitted = self.core.came_from(slot, SocketAddr::new(client, 0));
        if !admitted {
            out.truncate(from);
            self.refuse_address(slot, request, from, out);
        }
        admitted
    }

    fn refuse_address(&mut self, slot: u32, request: &[u8], from: usize, out: &mut Vec<u8>) {
        let (refused, close) = (refused(Refusal::Address), CloseReason::Overloaded);
        let mut reply = RefusalReply::TurnedAway;
        if self.core.turn_away(slot, request, &refused, close, out) {
            reply = RefusalReply::Replied;
            self.core.log_reply(slot, &out[from..]);
        }
        self.count_refusal(reply, Refusal::Address);
        self.close_after(slot, close, out);
    }
}
