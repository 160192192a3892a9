//! New connections: the shard accepts them while it has capacity, and otherwise rejects them with a response.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags, acceptfrom_with, recv};

use super::Shard;
use crate::listen::Listening;
use crate::settings::Port;
use crate::socket::State;
use engine::{Arrival, Listener, Refusal, RefusalReply, refuse};
use tls::ALERT_OVERLOADED;

/// A new connection.
pub(crate) struct Accepted {
    pub port: Port,
    pub socket: OwnedFd,
    pub address: Option<IpAddr>,
}

/// New connections that one turn of the loop accepts before it does its other work.
const ACCEPTS: usize = 64;

/// Connections of a shard beyond the limit of their address that may still turn out to be health
/// checks.
const RESERVE: u32 = 64;

/// Rejected connections that the shard logs in a second.
pub(crate) const REFUSALS_LOGGED: u32 = 100;

/// How long the shard waits before it accepts again when the kernel had no memory or descriptor.
const PAUSE_US: u64 = 100_000;

/// A bucket of tokens: so many a second, and at most a second's worth at once.
#[derive(Default)]
pub(crate) struct Bucket {
    tokens_us: u64,
    filled_us: u64,
}

impl Bucket {
    /// Takes a token. The bucket gains `per_second` of them; 0 is no limit.
    fn take(&mut self, per_second: u64, now_us: u64) -> bool {
        if per_second == 0 {
            return true;
        }
        let full = 1_000_000 * per_second;
        // It begins full.
        let gained = match self.filled_us {
            0 => full,
            filled_us => now_us.saturating_sub(filled_us).saturating_mul(per_second),
        };
        self.tokens_us = self.tokens_us.saturating_add(gained).min(full);
        self.filled_us = now_us;
        let has = self.tokens_us >= 1_000_000;
        if has {
            self.tokens_us -= 1_000_000;
        }
        has
    }
}

impl Shard {
    /// Accepts connections at the listeners with a bit in `waiting`, which share a turn's limit equally.
    pub(crate) fn accept(&mut self, waiting: u64) {
        let share = ACCEPTS.checked_div(waiting.count_ones() as usize).unwrap_or(0);
        for at in (0..self.listeners.len()).filter(|at| waiting & 1 << at != 0) {
            for _ in 0..share {
                if self.engine.now_us() < self.accept_after_us {
                    return;
                }
                match self.accept_one(at) {
                    Ok(Some(accepted)) => self.admit(accepted),
                    Ok(None) => {}
                    Err(Errno::AGAIN) => break,
                    Err(error) => return self.accept_failed(at, error),
                }
            }
        }
    }

    /// Returns `None` when the peer left before it was accepted.
    fn accept_one(&mut self, at: usize) -> rustix::io::Result<Option<Accepted>> {
        let Some(Listening { port, socket }) = self.listeners.get(at) else {
            return Err(Errno::AGAIN);
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let accepted = acceptfrom_with(socket, flags).map(|(socket, address)| {
            let address = address.and_then(|address| SocketAddr::try_from(address).ok());
            let address = address.map(|address| address.ip().to_canonical());
            Accepted { port: *port, socket, address }
        });
        match accepted {
            Ok(accepted) => Ok(Some(accepted)),
            // The kernel reports a connection's own early end through accept (see accept(2)).
            Err(
                Errno::CONNABORTED
                | Errno::INTR
                | Errno::PROTO
                | Errno::NETDOWN
                | Errno::HOSTDOWN
                | Errno::HOSTUNREACH
                | Errno::NETUNREACH,
            ) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn accept_failed(&mut self, at: usize, error: Errno) {
        self.engine.metrics().accept_errors.add(1);
        if matches!(error, Errno::MFILE | Errno::NFILE) && self.spare.take().is_some() {
            // The spare descriptor's number lets the shard reject one peer with a response.
            if let Ok(Some(accepted)) = self.accept_one(at) {
                self.refuse(accepted, Refusal::Connections);
            }
            self.spare = spare();
        }
        tracing::warn!(
            shard = self.engine.number(),
            %error,
            "a connection could not be accepted: raise the limit on open files (ulimit -n), or lower \
             limits.connections_max"
        );
        self.accept_after_us = self.engine.now_us() + PAUSE_US;
    }

    pub(crate) fn admit(&mut self, accepted: Accepted) {
        let Accepted { port, address, .. } = accepted;
        self.engine.metrics().accepted.add(1);
        let proxies = &self.engine.settings().session.proxies.networks;
        let proxy = address.filter(|address| proxies.contains(*address));
        let per_address = self.engine.settings().connections_per_address_max > 0;
        // A proxy names its client later, and the client counts then.
        let counted = address.filter(|_| per_address && proxy.is_none());
        let counted = counted.map(|address| self.engine.settings().network(address));
        let refusal = if self.rate_allows() { self.refusal(counted) } else { Some(Refusal::Rate) };
        let reserved = refusal == Some(Refusal::Address)
            && port.listener == Listener::Client
            && self.engine.reserved() < RESERVE;
        if let Some(refusal) = refusal.filter(|_| !reserved) {
            return self.refuse(accepted, refusal);
        }
        if reserved {
            self.engine.shared().connections.fetch_add(1, Ordering::Relaxed);
        }
        let arrival = match proxy {
            _ if reserved => Arrival::Reserved,
            Some(proxy) => Arrival::Proxy(proxy),
            None => Arrival::Direct(address),
        };
        let slot = self.engine.open(port.listener, arrival);
        self.sockets.insert(slot, accepted.socket);
        if let Some(socket) = self.sockets.get_mut(slot) {
            socket.set(State::Tls, port.tls);
        }
        if let Some(giving) = &mut self.giving {
            giving.opened(slot);
        }
        if let Some(address) = counted.filter(|_| !reserved) {
            self.peers.insert(slot, address);
        }
        if self.engine.metrics().open_connections.get() == self.balance.high_water() {
            // Don't wait for the next check of the balance.
            self.balance.adjust(&self.listeners);
        }
        // The request has often arrived with the connection: the engine then replies at once.
        self.readable(slot, false);
        if let Some(socket) = self.sockets.get(slot)
            && let Err(error) = self.poller.add(socket, u64::from(slot), socket.is(State::Blocked))
        {
            tracing::warn!(shard = self.engine.number(), %error, "a connection can't be watched");
            self.engine.on_unwatched(slot);
            self.perform();
        }
    }

    /// Returns why the connection can't stay. The engine reverts these shared counts when the connection ends; for
    /// a rejected connection this function does.
    fn refusal(&self, address: Option<IpAddr>) -> Option<Refusal> {
        let settings = &self.engine.settings();
        if self.engine.shared().memory_full.load(Ordering::Relaxed) {
            return Some(Refusal::Memory);
        }
        if self.engine.shared().drained.load(Ordering::Relaxed) {
            return Some(Refusal::Drained);
        }
        let before = self.engine.shared().connections.fetch_add(1, Ordering::Relaxed);
        let refused = if before >= settings.connections_max
            || self.engine.metrics().open_connections.get() >= self.capacity
        {
            Some(Refusal::Connections)
        } else if !address.is_none_or(|address| {
            self.engine.shared().addresses.enter(address, settings.connections_per_address_max)
        }) {
            Some(Refusal::Address)
        } else {
            None
        };
        if refused.is_some() {
            self.engine.shared().connections.fetch_sub(1, Ordering::Relaxed);
        }
        refused
    }

    /// Rejects a connection, in HTTP with 503, and closes it; with TLS by an alert, since a response would need a
    /// handshake. Reads the request first if it is there: unread bytes would turn the close into a reset, and the
    /// response would be lost.
    fn refuse(&mut self, accepted: Accepted, refusal: Refusal) {
        let Accepted { port, socket, address } = accepted;
        let read = recv(&socket, &mut self.buffer[..], RecvFlags::DONTWAIT).map_or(0, |(n, _)| n);
        let (protocols, settings) = (self.engine.shared().protocols, self.engine.settings());
        let (request, reply) = (&self.buffer[..read], &mut self.out);
        reply.clear();
        let reply_kind = if port.tls {
            reply.extend_from_slice(&ALERT_OVERLOADED);
            RefusalReply::TurnedAway
        } else {
            refuse(protocols, &settings.session, port.listener, request, refusal, reply)
        };
        self.engine.count_refusal(reply_kind, refusal);
        let _ = crate::sender::send_one(std::os::fd::AsFd::as_fd(&socket), &self.out);
        self.out.clear();
        if reply_kind != RefusalReply::Healthy {
            self.log_refusal(refusal, address);
        }
    }

    fn log_refusal(&self, refusal: Refusal, address: Option<IpAddr>) {
        if tracing::enabled!(tracing::Level::DEBUG)
            && let Some(suppressed) = self.lines.pass(self.engine.now_us(), 1)
        {
            tracing::debug!(
                shard = self.engine.number(),
                address = address.map(tracing::field::display),
                reason = refusal.name(),
                suppressed,
                "connection refused"
            );
        }
    }

    /// True if the rate of new connections allows one more.
    fn rate_allows(&mut self) -> bool {
        let per_second = u64::from(self.engine.settings().accept_per_second_max);
        let share = per_second.div_ceil(self.balance.shards() as u64);
        self.bucket.take(share, self.engine.now_us())
    }
}

/// Opens a descriptor that the shard closes when it needs one.
pub(crate) fn spare() -> Option<OwnedFd> {
    rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_lets_through_its_rate_and_a_second_at_once() {
        let mut bucket = Bucket::default();
        let mut passed = 0;
        for ms in 1_000..3_000 {
            passed += (0..10).filter(|_| bucket.take(100, ms * 1_000)).count();
        }
        assert!((280..=320).contains(&passed), "{passed}");
        assert!((0..1000).all(|_| bucket.take(0, 0)));
    }
}
