//! One connection: its phase, its deadline, and its order of eviction.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use model::ErrorCode;
use tokio::time::Instant;

use super::ConnectionLimits;

/// A connection is evicted before the others only after the server has waited this long for it.
const GRACE: Duration = Duration::from_secs(2);

/// A new connection has this long to send something, whatever comes after it.
pub(super) const YOUTH: Duration = Duration::from_millis(20);

/// From the head of a request to the first byte of its response. A request that has arrived in half of this gets a
/// response, if need be 408.
const REQUEST_MAX: Duration = Duration::from_secs(60);

/// Why a connection ended, if not by its client or with the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// No whole head of a request came in time.
    Silent,
    /// No bytes moved after a response.
    Idle,
    /// A request, or the reading of its response, took too long.
    Slow,
    /// The head of a request was too large.
    HeadTooLarge,
    /// It was evicted for another.
    Evicted,
    /// It was not admitted.
    NotAdmitted,
}

impl CloseReason {
    pub const ALL: [(CloseReason, &'static str); 6] = [
        (CloseReason::Silent, "silent"),
        (CloseReason::Idle, "idle"),
        (CloseReason::Slow, "slow"),
        (CloseReason::HeadTooLarge, ErrorCode::HeadTooLarge.text()),
        (CloseReason::Evicted, "evicted"),
        (CloseReason::NotAdmitted, "refused"),
    ];
}

/// The order of eviction, the first before the last. Connections with the key come after all without, except for
/// those that had no time to show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// The server has waited for its next request for [`GRACE`].
    Waiting,
    /// Its body has not come, or its client has not read the response, for [`GRACE`].
    Stalled,
    /// As [`Class::Waiting`], but not for so long.
    WaitingYoung,
    /// The server sends a stream to it: it has no end, but the server does not wait for it.
    Streams,
    /// As [`Class::Stalled`], but not for so long. It is evicted only instead of one with the key.
    StalledYoung,
    /// As [`Class::Waiting`], with the key.
    KeyedWaiting,
    /// As [`Class::Stalled`], with the key.
    KeyedStalled,
    /// As [`Class::WaitingYoung`], with the key.
    KeyedWaitingYoung,
    /// As [`Class::Streams`], with the key.
    KeyedStreams,
    /// Younger than [`YOUTH`].
    New,
    /// As [`Class::New`], with the key.
    KeyedNew,
}

impl Class {
    /// Reports whether it has the key, and is not as young as those that had no time to show theirs.
    pub fn is_keyed(self) -> bool {
        (Class::KeyedWaiting..Class::New).contains(&self)
    }

    pub fn is_new(self) -> bool {
        self >= Class::New
    }
}

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The server waits for the head of a request, since then.
    Head(Instant),
    /// A request is under way, since then.
    Request(Instant),
    /// The response to its request is sent, or on its way.
    Replied,
}

/// One connection, for the listener and for its requests.
pub(crate) struct Peer {
    pub(super) address: IpAddr,
    limits: ConnectionLimits,
    /// It gets health checks only.
    pub is_spare: bool,
    state: Mutex<PeerState>,
}

/// Finds the end of a head: an empty line, after a first one that isn't.
#[derive(Clone, Copy, Default)]
struct Head {
    bytes: usize,
    begun: bool,
    in_line: bool,
}

impl Head {
    /// Reports whether the head ends in these bytes.
    fn ends(&mut self, bytes: &[u8]) -> bool {
        for (at, byte) in bytes.iter().enumerate() {
            match byte {
                b'\n' if self.begun && !self.in_line => {
                    self.bytes += at + 1;
                    return true;
                }
                b'\n' => self.in_line = false,
                b'\r' => {}
                _ => (self.begun, self.in_line) = (true, true),
            }
        }
        self.bytes += bytes.len();
        false
    }
}

struct PeerState {
    phase: Phase,
    /// When bytes last came or went.
    moved: Instant,
    /// The part of an incomplete head that has arrived.
    head: Head,
    /// Bytes were sent to it.
    has_replies: bool,
    /// The last request had the key.
    keyed: bool,
    /// Its response has no end.
    streams: bool,
    /// The request's body has arrived.
    whole: bool,
    /// The client doesn't read.
    stuck: bool,
    evicted: bool,
    waker: Option<Waker>,
}

impl Peer {
    pub(super) fn new(address: IpAddr, limits: ConnectionLimits, is_spare: bool) -> Self {
        let now = Instant::now();
        let state = PeerState {
            phase: Phase::Head(now),
            moved: now,
            head: Head::default(),
            has_replies: false,
            keyed: false,
            streams: false,
            whole: false,
            stuck: false,
            evicted: false,
            waker: None,
        };
        Peer { address, limits, is_spare, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, PeerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These bytes came from the client. The server may read some of a body before it begins the request, so this
    /// finds the end of a head.
    pub fn received(&self, bytes: &[u8]) {
        let mut state = self.state();
        let now = Instant::now();
        state.moved = now;
        if state.phase == Phase::Replied {
            (state.phase, state.head) = (Phase::Head(now), Head::default());
        }
        if matches!(state.phase, Phase::Head(_)) && state.head.ends(bytes) {
            state.phase = Phase::Request(now);
            (state.whole, state.keyed, state.streams) = (false, false, false);
        }
    }

    /// Bytes were sent to the client. Before the response to a request they say that its body may come; without a
    /// request, they reject bytes that are none.
    pub fn sent(&self) {
        let mut state = self.state();
        (state.moved, state.stuck, state.has_replies) = (Instant::now(), false, true);
        if let Phase::Head(_) = state.phase {
            state.phase = Phase::Replied;
        }
    }

    /// The client takes no bytes.
    pub fn set_stuck(&self) {
        self.state().stuck = true;
    }

    /// A request's head is whole; `whole` if it has no body.
    pub fn begin(&self, whole: bool) {
        let mut state = self.state();
        (state.phase, state.whole) = (Phase::Request(Instant::now()), whole);
        (state.keyed, state.streams, state.stuck) = (false, false, false);
    }

    /// The request has the key.
    pub fn set_keyed(&self) {
        self.state().keyed = true;
    }

    /// The response to the request has no end.
    pub fn set_stream(&self) {
        self.state().streams = true;
    }

    /// The request's body is whole: what follows is the server's work.
    pub fn body_arrived(&self) {
        self.state().whole = true;
    }

    /// The request has its response, which is sent now.
    pub fn on_replied(&self) {
        let mut state = self.state();
        (state.phase, state.moved) = (Phase::Replied, Instant::now());
    }

    /// Returns the bytes of a head that is not whole yet.
    pub fn head_bytes(&self) -> usize {
        let state = self.state();
        if matches!(state.phase, Phase::Head(_)) { state.head.bytes } else { 0 }
    }

    /// Reports whether bytes were sent to the client: it may take what follows for the response to another request.
    pub fn has_replies(&self) -> bool {
        self.state().has_replies
    }

    /// Reports whether the server waits for the head of a request.
    pub fn is_silent(&self) -> bool {
        matches!(self.state().phase, Phase::Head(_))
    }

    /// Returns when it is closed if nothing happens, and why.
    pub fn deadline(&self) -> (Instant, CloseReason) {
        let state = self.state();
        let idle = state.moved + self.limits.idle_max;
        match state.phase {
            Phase::Head(since) => (since + self.limits.head_max, CloseReason::Silent),
            // Nothing moves while the server works: the client isn't to blame.
            Phase::Request(since) if state.whole && !state.stuck => {
                (since + REQUEST_MAX, CloseReason::Slow)
            }
            Phase::Request(since) => (idle.min(since + REQUEST_MAX), CloseReason::Slow),
            Phase::Replied if state.stuck => (idle, CloseReason::Slow),
            Phase::Replied => (idle, CloseReason::Idle),
        }
    }

    /// Reports whether it was evicted. If not, its eviction wakes `waker`.
    pub fn is_evicted(&self, waker: &Waker) -> bool {
        let mut state = self.state();
        if !state.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            state.waker = Some(waker.clone());
        }
        state.evicted
    }

    pub(super) fn evict(&self) {
        let mut state = self.state();
        state.evicted = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns its order of eviction, the least first. `None` while the server works for it, or if the server has
    /// just begun to wait for its body or its reading.
    pub(super) fn order(&self, now: Instant) -> Option<(Class, Instant)> {
        let state = self.state();
        let (since, is_stalled) = match state.phase {
            Phase::Head(since) => (since, false),
            Phase::Replied => (state.moved, state.stuck),
            Phase::Request(_) if state.whole && !state.stuck => return None,
            Phase::Request(since) => (since, true),
        };
        let age = now.saturating_duration_since(since);
        let is_stream = state.streams && state.phase == Phase::Replied && !is_stalled;
        let class = match (state.keyed, is_stalled) {
            (false, _) if is_stream => Class::Streams,
            (true, _) if is_stream => Class::KeyedStreams,
            (_, true) if age < YOUTH => return None,
            (false, false) if age < YOUTH => Class::New,
            (true, false) if age < YOUTH => Class::KeyedNew,
            (false, false) if age < GRACE => Class::WaitingYoung,
            (false, true) if age < GRACE => Class::StalledYoung,
            (true, false) if age < GRACE => Class::KeyedWaitingYoung,
            (true, true) if age < GRACE => return None,
            (false, false) => Class::Waiting,
            (false, true) => Class::Stalled,
            (true, false) => Class::KeyedWaiting,
            (true, true) => Class::KeyedStalled,
        };
        Some((class, since))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{later, limits};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn every_phase_has_its_own_timeout() {
        let peer = Peer::new([192, 0, 2, 1].into(), limits(1), false);
        let left = || {
            let (at, reason) = peer.deadline();
            (at.duration_since(Instant::now()).as_secs(), reason)
        };
        assert_eq!(left(), (5, CloseReason::Silent));
        later(3).await;
        peer.received(b"GET / HTTP");
        assert_eq!((left(), peer.head_bytes()), ((2, CloseReason::Silent), 10));
        peer.begin(false);
        assert_eq!((left(), peer.head_bytes()), ((60, CloseReason::Slow), 0));
        later(30).await;
        peer.sent();
        peer.received(&[0; 10]);
        assert_eq!(left(), (30, CloseReason::Slow), "after a 100 Continue its body goes on");
        peer.on_replied();
        assert_eq!(left(), (120, CloseReason::Idle));
        later(100).await;
        peer.sent();
        peer.set_stuck();
        assert_eq!(left(), (120, CloseReason::Slow));
        peer.received(b"G");
        assert_eq!(left(), (5, CloseReason::Silent), "the next request");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_worked_on_is_not_idle() {
        let short = ConnectionLimits { idle_max: Duration::from_secs(1), ..limits(1) };
        let peer = Peer::new([192, 0, 2, 1].into(), short, false);
        let left = || peer.deadline().0.duration_since(Instant::now()).as_secs();
        peer.begin(false);
        assert_eq!(left(), 1, "a body that does not come");
        peer.body_arrived();
        assert_eq!(left(), 60);
        later(20).await;
        assert_eq!((left(), peer.deadline().1), (40, CloseReason::Slow));
        peer.on_replied();
        assert_eq!((left(), peer.deadline().1), (1, CloseReason::Idle));
        peer.begin(true);
        assert_eq!(left(), 60);
        peer.set_stuck();
        assert_eq!(left(), 1, "it reads nothing");
    }

    #[test]
    fn a_head_ends_where_its_empty_line_does_however_it_comes() {
        for (text, end) in [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\nbody", Some(27)),
            ("\r\n\r\nGET / HTTP/1.1\r\n\r\n", Some(22)),
            ("GET / HTTP/1.1\n\nbody", Some(16)),
            ("GET / HTTP/1.1\r\nHost: a\r\n", None),
            ("\r\n\r\n\r\n", None),
            ("", None),
        ] {
            for step in 1..=text.len().max(1) {
                let mut head = Head::default();
                let ended = text.as_bytes().chunks(step).any(|piece| head.ends(piece));
                assert_eq!(
                    (ended, head.bytes),
                    (end.is_some(), end.unwrap_or(text.len())),
                    "{text:?}"
                );
            }
        }
    }

    #[test]
    fn every_reason_is_at_its_index() {
        for (at, (reason, _)) in CloseReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, at);
        }
    }
}
