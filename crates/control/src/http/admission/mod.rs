//! Connections to the admin port, and which of them is evicted at the limit.
//!
//! Every client that reaches the port may connect, with the key or without. So a new connection never has to wait for
//! the others: at the limit it evicts a connection for which the server waits. The server never evicts one whose
//! request it works on.

mod peer;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use tokio::time::Instant;

use peer::{Class, YOUTH};
pub(crate) use peer::{CloseReason, Peer};

/// Limits of the admin port, as the configuration has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Connections at the same time; above, a new one evicts one for which the server waits.
    pub connections_max: usize,
    /// Connections of one address at the same time; above, a new one evicts one of this address for which the server
    /// waits.
    pub per_address_max: usize,
    /// Time until the head of a request is whole, from the connect or from its first byte.
    pub head_max: Duration,
    /// A connection on which no bytes move for this time is closed.
    pub idle_max: Duration,
    /// Bytes of bodies that have not arrived whole, over all connections.
    pub bodies_bytes_max: usize,
}

impl ConnectionLimits {
    /// Limits the connections to half of the descriptors of the process: the rest of it needs some, and accept would
    /// fail without.
    fn affordable(self) -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = usize::try_from(descriptors / 2).unwrap_or(usize::MAX);
        ConnectionLimits { connections_max: self.connections_max.min(most), ..self }
    }
}

/// Connections above the limit, if the server works for all others: they get health checks only.
const SPARE: usize = 32;

/// Why a new connection is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AdmissionError {
    /// It may be admitted then: the limit is reached, and all that could be evicted have just come. So 1,024
    /// connections are replaced 51,000 times a second at most.
    #[error("the limit on connections is reached, and all of them have only just been opened")]
    Until(Instant),
    /// The server works for all connections.
    #[error("the limit on connections is reached, and all of them are busy")]
    Never,
}

/// The connections to the admin port.
pub struct Connections {
    state: Mutex<State>,
    bodies_bytes: AtomicUsize,
    closed: [AtomicU64; CloseReason::ALL.len()],
    bodies_rejected: AtomicU64,
}

struct State {
    limits: ConnectionLimits,
    next: u64,
    open: HashMap<u64, Arc<Peer>>,
    /// Open connections of each address, never 0.
    of_address: HashMap<IpAddr, usize>,
}

impl State {
    fn has_share(&self, address: IpAddr) -> bool {
        self.of_address.get(&address).is_none_or(|open| *open < self.limits.per_address_max)
    }

    fn has_capacity(&self, address: IpAddr) -> bool {
        self.open.len() < self.limits.connections_max && self.has_share(address)
    }

    fn insert(&mut self, peer: Arc<Peer>) -> u64 {
        let number = self.next;
        self.next += 1;
        *self.of_address.entry(peer.address).or_default() += 1;
        self.open.insert(number, peer);
        number
    }

    fn remove(&mut self, number: u64) -> Option<Arc<Peer>> {
        let peer = self.open.remove(&number)?;
        if let Entry::Occupied(mut open) = self.of_address.entry(peer.address) {
            *open.get_mut() -= 1;
            if *open.get() == 0 {
                open.remove();
            }
        }
        Some(peer)
    }

    /// Returns which of these connections is evicted next.
    fn next_of(&self, now: Instant, of: impl Fn(&Peer) -> bool) -> Option<(Class, Instant, u64)> {
        let (mut next, mut begun) = (None, None);
        for (number, peer) in self.open.iter().filter(|(_, peer)| of(peer)) {
            let Some((class, since)) = peer.order(now) else { continue };
            let least = if class == Class::StalledYoung { &mut begun } else { &mut next };
            let this = (class, since, *number);
            *least = Some(least.map_or(this, |least: (Class, Instant, u64)| least.min(this)));
        }
        // A request that has just begun continues, unless a connection with the key would be evicted.
        begun.filter(|_| next.is_some_and(|(class, ..)| class.is_keyed())).or(next)
    }
}

/// The counts, for the metrics.
pub(crate) struct Stats {
    pub open: usize,
    /// Connections for which the server waits: the head of a request has not arrived.
    pub silent: usize,
    pub closed: [(&'static str, u64); CloseReason::ALL.len()],
    pub bodies_bytes: usize,
    pub bodies_rejected: u64,
}

impl Connections {
    /// No connections yet.
    pub fn new(limits: ConnectionLimits) -> Arc<Self> {
        let state = State {
            limits: limits.affordable(),
            next: 0,
            open: HashMap::new(),
            of_address: HashMap::new(),
        };
        Arc::new(Connections {
            state: Mutex::new(state),
            bodies_bytes: AtomicUsize::new(0),
            closed: Default::default(),
            bodies_rejected: AtomicU64::new(0),
        })
    }

    /// Changes the limits for later connections.
    pub fn set(&self, limits: ConnectionLimits) {
        self.state().limits = limits.affordable();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the end of a connection.
    pub(crate) fn count(&self, reason: CloseReason) {
        self.closed[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Admits a new connection, for which another may be evicted.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr) -> Result<Permit, AdmissionError> {
        let address = network(address);
        let now = Instant::now();
        let mut state = self.state();
        let mut is_pressed = false;
        if !state.has_share(address) {
            // A connection of the same address is evicted however young: others must not wait because one address has
            // many.
            if let Some((class, _, number)) = state.next_of(now, |peer| peer.address == address) {
                is_pressed = class.is_new();
                self.evict(&mut state, number);
            }
        } else if !state.has_capacity(address)
            && let Some((class, since, number)) = state.next_of(now, |_| true)
        {
            if class.is_new() {
                return Err(AdmissionError::Until(since + YOUTH));
            }
            self.evict(&mut state, number);
        }
        let limits = state.limits;
        let is_spare = !state.has_capacity(address);
        if is_spare && state.open.len() >= limits.connections_max.saturating_add(SPARE) {
            drop(state);
            self.count(CloseReason::NotAdmitted);
            return Err(AdmissionError::Never);
        }
        let peer = Arc::new(Peer::new(address, limits, is_spare));
        let number = state.insert(peer.clone());
        Ok(Permit { connections: self.clone(), number, peer, is_pressed })
    }

    /// Returns a peer for the requests of a connection that another process has and counts.
    pub(crate) fn peer_elsewhere(&self, address: IpAddr) -> Arc<Peer> {
        Arc::new(Peer::new(network(address), self.state().limits, false))
    }

    /// Evicts a connection.
    fn evict(&self, state: &mut State, number: u64) {
        if let Some(peer) = state.remove(number) {
            peer.evict();
            self.count(CloseReason::Evicted);
        }
    }

    /// Evicts any connection that is not new: the system has no descriptors left.
    pub(crate) fn evict_one(&self) {
        let mut state = self.state();
        let now = Instant::now();
        if let Some((class, _, number)) = state.next_of(now, |_| true)
            && !class.is_new()
        {
            self.evict(&mut state, number);
        }
    }

    /// Reserves memory for more bytes of a body. Counts a rejection and returns `None` at the limit of all bodies.
    pub(crate) fn reserve(&self, reserved: &mut ReservedBytes<'_>, bytes: usize) -> Option<()> {
        let max = self.state().limits.bodies_bytes_max;
        let before = self.bodies_bytes.fetch_add(bytes, Ordering::Relaxed);
        reserved.bytes += bytes;
        if before.saturating_add(bytes) <= max {
            return Some(());
        }
        self.bodies_rejected.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Returns a reservation for a body that has not begun.
    pub(crate) fn reserved(&self) -> ReservedBytes<'_> {
        ReservedBytes { connections: self, bytes: 0 }
    }

    /// Returns how many are open.
    pub(crate) fn open(&self) -> usize {
        self.state().open.len()
    }

    pub(crate) fn stats(&self) -> Stats {
        let state = self.state();
        let is_silent = |peer: &&Arc<Peer>| peer.is_silent();
        Stats {
            open: state.open.len(),
            silent: state.open.values().filter(is_silent).count(),
            closed: CloseReason::ALL
                .map(|(reason, name)| (name, self.closed[reason as usize].load(Ordering::Relaxed))),
            bodies_bytes: self.bodies_bytes.load(Ordering::Relaxed),
            bodies_rejected: self.bodies_rejected.load(Ordering::Relaxed),
        }
    }
}

/// Returns an address as it is counted: a host with one IPv6 address has all 2^64 of its network.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if !v6.is_loopback() => {
            Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into()
        }
        other => other,
    }
}

/// An admitted connection, until it is dropped or evicted.
pub(crate) struct Permit {
    pub connections: Arc<Connections>,
    number: u64,
    pub peer: Arc<Peer>,
    /// A connection that had just come was evicted for it.
    pub is_pressed: bool,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.connections.state().remove(self.number);
    }
}

/// The bytes that a body in transfer has reserved.
pub(crate) struct ReservedBytes<'a> {
    connections: &'a Connections,
    bytes: usize,
}

impl Drop for ReservedBytes<'_> {
    fn drop(&mut self) {
        self.connections.bodies_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::task::Waker;

    use super::*;

    /// The configuration's defaults, but for the number of connections.
    pub fn limits(connections_max: usize) -> ConnectionLimits {
        ConnectionLimits {
            connections_max,
            per_address_max: connections_max,
            head_max: Duration::from_secs(5),
            idle_max: Duration::from_secs(120),
            bodies_bytes_max: 1 << 20,
        }
    }

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn is_evicted(permit: &Permit) -> bool {
        permit.peer.is_evicted(Waker::noop())
    }

    pub async fn later(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_connection_that_is_waited_for_longest_gives_way() {
        let connections = Connections::new(limits(3));
        let admit = || connections.admit(address(1)).unwrap();
        let sent_reply = admit();
        later(1).await;
        let (silent, busy) = (admit(), admit());
        busy.peer.begin(true);
        later(1).await;
        sent_reply.peer.begin(true);
        sent_reply.peer.on_replied();
        later(3).await;
        let new = admit();
        assert!(is_evicted(&silent) && !is_evicted(&sent_reply) && !is_evicted(&busy));
        drop(silent);
        let newer = admit();
        assert!(is_evicted(&sent_reply) && !is_evicted(&new));
        assert!(!new.peer.is_spare && !newer.peer.is_spare);
        // All others are young: the older one is evicted.
        later(1).await;
        let _newest = admit();
        assert!(is_evicted(&new) && !is_evicted(&newer) && !is_evicted(&busy));
        assert_eq!(connections.stats().open, 3);
        assert!(connections.stats().closed.contains(&("evicted", 3)));
    }

    async fn youth() {
        tokio::time::advance(YOUTH).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_with_the_key_gives_way_last() {
        let connections = Connections::new(limits(2));
        let admit = |of: u8| connections.admit(address(of)).unwrap();
        let (operator, stranger) = (admit(1), admit(2));
        operator.peer.begin(true);
        operator.peer.set_keyed();
        operator.peer.on_replied();
        later(10).await;
        stranger.peer.begin(true);
        stranger.peer.on_replied();
        later(5).await;
        let mut last = admit(2);
        assert!(is_evicted(&stranger) && !is_evicted(&operator));
        for of in 3..30 {
            youth().await;
            let new = admit(of);
            assert!(is_evicted(&last) && !is_evicted(&operator));
            last = new;
        }
        // A body that has just begun is evicted, too.
        last.peer.begin(false);
        youth().await;
        let new = admit(2);
        assert!(is_evicted(&last) && !is_evicted(&operator));
        // The operator is evicted before one that had no time to send a request.
        let _newer = admit(3);
        assert!(is_evicted(&operator) && !is_evicted(&new));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_of_the_live_figures_outlasts_silent_ones() {
        let connections = Connections::new(limits(2));
        let admit = |of: u8| connections.admit(address(of)).unwrap();
        let reader = admit(1);
        reader.peer.begin(true);
        reader.peer.set_stream();
        reader.peer.on_replied();
        let mut silent = admit(2);
        for _ in 0..20 {
            tokio::time::advance(Duration::from_millis(100)).await;
            let new = admit(2);
            assert!(is_evicted(&silent) && !is_evicted(&reader));
            silent = new;
        }
        // It can still be evicted.
        silent.peer.begin(true);
        let _new = admit(2);
        assert!(is_evicted(&reader));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_gives_way_and_work_does_not() {
        let connections = Connections::new(limits(1));
        let admit = || connections.admit(address(1)).unwrap();
        let upload = admit();
        upload.peer.begin(false);
        later(1).await;
        let spare = admit();
        assert!(spare.peer.is_spare && !is_evicted(&upload), "it has just begun");
        drop(spare);
        later(1).await;
        let work = admit();
        assert!(is_evicted(&upload) && !work.peer.is_spare);
        work.peer.begin(false);
        work.peer.body_arrived();
        later(30).await;
        let permits: Vec<_> =
            (0..SPARE).map(|_| admit()).inspect(|it| it.peer.begin(true)).collect();
        assert!(permits.iter().all(|permit| permit.peer.is_spare) && !is_evicted(&work));
        assert_eq!(connections.admit(address(2)).err(), Some(AdmissionError::Never));
        assert!(connections.stats().closed.contains(&("refused", 1)));
        drop(permits);
        let silent = admit();
        later(1).await;
        let other = admit();
        assert!(is_evicted(&silent) && other.peer.is_spare, "spare places are taken over, too");
        drop((silent, other));
        work.peer.set_stuck();
        assert!(!connections.admit(address(2)).unwrap().peer.is_spare, "nobody reads that answer");
        assert!(is_evicted(&work));
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_has_its_share_takes_from_itself() {
        let share = ConnectionLimits { per_address_max: 2, ..limits(4) };
        let connections = Connections::new(share);
        let admit = |of: u8| connections.admit(address(of)).unwrap();
        let other = admit(2);
        later(3).await;
        let first = admit(1);
        later(1).await;
        let second = admit(1);
        let third = admit(1);
        assert!(is_evicted(&first) && !is_evicted(&other));
        second.peer.begin(true);
        third.peer.begin(true);
        assert!(admit(1).peer.is_spare, "both are busy");
        assert!(!admit(3).peer.is_spare);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_has_its_share_delays_no_other() {
        let share = ConnectionLimits { per_address_max: 2, ..limits(4) };
        let connections = Connections::new(share);
        let admit = |of: u8| connections.admit(address(of)).unwrap();
        let other = admit(2);
        let mut of_one: Vec<_> = (0..100).map(|_| admit(1)).collect();
        // The last two are open. All 100 came at the same moment.
        let last = of_one.split_off(98);
        assert!(of_one.iter().all(is_evicted) && !last.iter().any(is_evicted));
        assert!(last.iter().all(|permit| permit.is_pressed && !permit.peer.is_spare));
        assert!(!is_evicted(&other) && !admit(3).peer.is_spare);
        drop((of_one, last, other));
        let state = connections.state();
        assert!(state.open.is_empty() && state.of_address.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_has_time_to_send() {
        let connections = Connections::new(limits(2));
        let now = Instant::now();
        let _two = [1, 2].map(|of| connections.admit(address(of)).unwrap());
        assert_eq!(connections.admit(address(3)).err(), Some(AdmissionError::Until(now + YOUTH)));
        tokio::time::advance(YOUTH).await;
        assert!(connections.admit(address(3)).is_ok());
    }

    #[test]
    fn an_address_of_ipv6_is_as_wide_as_its_network() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:0:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("::1").to_string(), "::1");
    }

    #[test]
    fn the_bodies_of_all_have_one_bound() {
        let connections = Connections::new(ConnectionLimits { bodies_bytes_max: 10, ..limits(1) });
        let (mut one, mut other) = (connections.reserved(), connections.reserved());
        assert!(connections.reserve(&mut one, 6).is_some());
        assert!(connections.reserve(&mut other, 6).is_none());
        drop(other);
        assert!(connections.reserve(&mut one, 4).is_some());
        drop(one);
        assert_eq!((connections.stats().bodies_bytes, connections.stats().bodies_rejected), (0, 1));
    }
}
