//! New connections: taken while there is room, and refused with an answer while there is none.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags, accept_with, acceptfrom_with, recv};
use wire::Close;
use wire::session::{Respond, without_room};

use crate::connection::Connection;
use crate::metrics::Refusal;
use crate::shard::Shard;

/// New connections that one turn takes before others have theirs.
const ACCEPTS: usize = 64;

/// Connections of a shard beyond the limit of their address that may still turn out to be health
/// checks.
const RESERVE: u32 = 64;

/// How long accepting rests after the kernel had no memory or descriptor for it.
const PAUSE_US: u64 = 100_000;

/// A bucket of tokens: so many a second, and at most a second's worth at once.
#[derive(Default)]
pub(crate) struct Bucket {
    tokens_us: u64,
    filled_us: u64,
}

impl Bucket {
    /// Takes a token, of which there are `per_second`; 0 is no limit.
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
    /// Takes what waits at the listener, up to a turn's share.
    pub(crate) fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            if self.now_us < self.accept_after_us {
                return;
            }
            match self.accept_one() {
                Ok(Some((socket, address))) => self.admit(socket, address),
                Ok(None) => {}
                Err(Errno::AGAIN) => return,
                Err(error) => return self.accept_failed(error),
            }
        }
    }

    /// `None` when the peer was gone before it was accepted.
    fn accept_one(&mut self) -> rustix::io::Result<Option<(OwnedFd, Option<IpAddr>)>> {
        let Some(listener) = &self.listener else {
            return Err(Errno::AGAIN);
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let accepted = if self.settings.connections_per_address_max == 0 {
            accept_with(listener, flags).map(|socket| (socket, None))
        } else {
            acceptfrom_with(listener, flags).map(|(socket, address)| {
                let address = address.and_then(|address| SocketAddr::try_from(address).ok());
                (socket, address.map(|address| address.ip().to_canonical()))
            })
        };
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

    fn accept_failed(&mut self, error: Errno) {
        self.metrics.accept_errors.add(1);
        if matches!(error, Errno::MFILE | Errno::NFILE) && self.spare.take().is_some() {
            // The spare descriptor's place serves to tell one peer why.
            if let Ok(Some((socket, _))) = self.accept_one() {
                self.refuse(socket, Refusal::Connections);
            }
            self.spare = spare();
        }
        tracing::warn!(
            "shard {}: a connection could not be accepted: {error}; raise the limit on open files \
             (ulimit -n), or lower limits.connections_max",
            self.number
        );
        self.accept_after_us = self.now_us + PAUSE_US;
    }

    pub(crate) fn admit(&mut self, socket: OwnedFd, address: Option<IpAddr>) {
        self.metrics.accepted.add(1);
        let refusal = if self.rate_allows() { self.refusal(address) } else { Some(Refusal::Rate) };
        let reserved = refusal == Some(Refusal::Address) && self.reserved < RESERVE;
        if let Some(refusal) = refusal.filter(|_| !reserved) {
            return self.refuse(socket, refusal);
        }
        self.serial = self.serial.wrapping_add(1);
        let mut connection = Connection::new(socket, self.serial, self.now_s());
        if reserved {
            self.shared.connections.fetch_add(1, Ordering::Relaxed);
            self.reserved += 1;
            connection.extra().reserved = true;
        }
        let slot = self.table.insert(connection);
        if let Some(address) = address.filter(|_| !reserved) {
            self.peers.insert(slot, address);
        }
        self.metrics.connections[wire::Variant::Http as usize].add(1);
        self.metrics.held.add(1);
        self.metrics.admitted.add(1);
        if self.metrics.held.get() == self.balance.high_water()
            && let Some(listener) = &self.listener
        {
            // Don't wait for the next look at the balance.
            self.balance.adjust(listener);
        }
        // The request has often arrived with the connection: it is answered at once.
        self.readable(slot, false);
        if let Some(connection) = self.table.get(slot)
            && let Err(error) =
                self.poller.add(&connection.fd, u64::from(slot), connection.outbox().is_some())
        {
            tracing::warn!("shard {}: a connection can't be watched: {error}", self.number);
            self.end(slot, Close::Overloaded);
        }
    }

    /// Why the connection can't stay. What this counts in other threads' sight is taken back by
    /// [`Shard::end`], or here.
    fn refusal(&self, address: Option<IpAddr>) -> Option<Refusal> {
        let settings = &self.settings;
        if self.shared.memory_full.load(Ordering::Relaxed) {
            return Some(Refusal::Memory);
        }
        let before = self.shared.connections.fetch_add(1, Ordering::Relaxed);
        let refused =
            if before >= settings.connections_max || self.metrics.held.get() >= self.capacity {
                Some(Refusal::Connections)
            } else if !address.is_none_or(|address| {
                self.addresses.enter(address, settings.connections_per_address_max)
            }) {
                Some(Refusal::Address)
            } else {
                None
            };
        if refused.is_some() {
            self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        }
        refused
    }

    /// Answers 503 and closes. The request is read first if it is there: bytes that were never
    /// read would turn the close into a reset, and the answer would be lost.
    fn refuse(&mut self, socket: OwnedFd, refusal: Refusal) {
        let read = recv(&socket, &mut self.buffer[..], RecvFlags::DONTWAIT).map_or(0, |(n, _)| n);
        let (request, answer) = (&self.buffer[..read], &mut self.out);
        answer.clear();
        let healthy = match refusal {
            // Whoever has not asked yet gets the same answer.
            Refusal::Address => {
                let refused = refused(refusal);
                without_room(&self.settings.session, request, &refused, answer)
            }
            _ => None,
        };
        if healthy.is_none() {
            refuse(request, refusal, answer);
        }
        self.count_refusal(healthy == Some(true), refusal);
        let _ = crate::sender::send_one(std::os::fd::AsFd::as_fd(&socket), &self.out);
        self.out.clear();
    }

    fn count_refusal(&self, healthy: bool, refusal: Refusal) {
        self.metrics.refused[refusal as usize].add(u64::from(!healthy));
        self.metrics.answers[if healthy { 2 } else { 5 }].add(1);
    }

    /// A request of somebody beyond the limit of its address: `/healthz` is answered, all else is
    /// refused. Gives the bytes taken, 0 when more must come.
    pub(crate) fn request_beyond(&mut self, slot: u32, bytes: &[u8], out: &mut Vec<u8>) -> usize {
        let refused = refused(Refusal::Address);
        let answered = without_room(&self.settings.session, bytes, &refused, out);
        let Some(healthy) = answered else {
            return 0;
        };
        self.count_refusal(healthy, Refusal::Address);
        let close = if healthy { Close::Answered } else { Close::Overloaded };
        self.close_after(slot, close, out);
        bytes.len()
    }

    /// Somebody beyond the limit of its address has asked for nothing.
    pub(crate) fn refuse_beyond(&mut self, slot: u32) {
        let mut out = Vec::new();
        refuse(&[], Refusal::Address, &mut out);
        self.count_refusal(false, Refusal::Address);
        self.close(slot, Close::Overloaded, &out);
    }

    /// True when the rate of new connections leaves room for one more.
    fn rate_allows(&mut self) -> bool {
        let per_second = u64::from(self.settings.accept_per_second_max);
        let share = per_second.div_ceil(self.balance.shards() as u64);
        self.bucket.take(share, self.now_us)
    }
}

/// Why a connection is refused.
fn refused(refusal: Refusal) -> wire::http::Refused {
    let message = match refusal {
        Refusal::Connections => "the server holds as many connections as it may: try later",
        Refusal::Address => "your address has as many connections as it may",
        Refusal::Rate => "too many connections arrive at once: try again in a moment",
        Refusal::Memory => "the server is at its memory limit: try later",
        Refusal::Sessions => "the server holds as many long-poll sessions as it may: try later",
    };
    wire::http::refused(503, "overloaded", message)
}

/// Appends the answer to a request that is refused and need not have come.
fn refuse(request: &[u8], refusal: Refusal, out: &mut Vec<u8>) {
    let cors = wire::session::ANY_ORIGIN;
    if wire::session::asks_longpoll(request) {
        let respond = Respond { cors: cors.into(), keep_alive: false };
        let get = wire::http::Method::Get;
        wire::session::longpoll_refusal(&refused(refusal), get, &respond, out);
    } else {
        wire::session::refuse(&refused(refusal), cors, false, false, out);
    }
}

/// A descriptor to give back when one is needed.
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
