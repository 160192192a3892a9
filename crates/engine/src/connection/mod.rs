//! A connection: plain data, and a box for what few connections need at a time.

pub(crate) mod input;
pub(crate) mod lifecycle;
pub(crate) mod peers;
mod pending_request;
mod poll;
pub(crate) mod proxied;
mod record;
pub(crate) mod reject;
mod session;
mod token;

use std::num::NonZeroU8;

use model::{CloseReason, Encoding};
use protocol::websocket::Decoder;
use tables::Slab;

pub(crate) use pending_request::{PendingRequest, Subscribing};
pub(crate) use poll::{Poll, PollHistory, PollStart};
pub(crate) use record::ColdRecord;
pub(crate) use session::{PendingSessionRequest, Session, Waiter};
pub(crate) use token::PendingToken;

/// What the engine holds of every connection. Its slot is its number in the table, which is used
/// again when it has ended.
pub(crate) struct Connection {
    /// How many connections the engine had before it.
    pub serial: u32,
    /// When it was opened, in seconds of the node's clock.
    pub opened_s: u32,
    /// The number of its [`ColdState`], or [`NO_COLD`].
    cold: u32,
    /// When the peer was last heard, in seconds that wrap around; while a request is awaited,
    /// since when.
    pub last_received_s: u16,
    /// Its protocol, in one of its encodings.
    pub encoding: Encoding,
    /// The phase, in [`PHASE_BITS`], and the flags. No phase is 0, so that an empty place in the table
    /// takes no further byte.
    state: NonZeroU8,
}

// With the driver's socket (8), the hub's member (20), a topic of its own (40), the index (about 9)
// and a place in a shared topic (4) this stays well under 128 bytes.
const _: () = assert!(size_of::<Connection>() <= 16 && Slab::<Connection>::SLOT_BYTES <= 16);

const NO_COLD: u32 = u32::MAX;

/// Where a connection is in its life. The numbers stay for good: they go to other engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Phase {
    /// Its first request, or the next one, is being read.
    Request = 1,
    /// It has answered a request and awaits the next.
    Idle,
    /// A request waits for its answer.
    Waiting,
    /// It has taken up a protocol that lasts.
    Open,
    /// It ends when the driver has sent everything; its input is ignored.
    Closing,
    /// Our side is shut; it waits for the peer's, so that the last bytes are not lost to a reset.
    HalfClosed,
}

impl Phase {
    /// All, in the order of a connection's life.
    pub const ALL: [Phase; 6] = [
        Phase::Request,
        Phase::Idle,
        Phase::Waiting,
        Phase::Open,
        Phase::Closing,
        Phase::HalfClosed,
    ];

    const fn bits(self) -> NonZeroU8 {
        match NonZeroU8::new(self as u8) {
            Some(bits) => bits,
            None => NonZeroU8::MIN,
        }
    }
}

/// The part of a connection's state that is its phase.
const PHASE_BITS: u8 = 7;

/// What is true of a connection, whatever its phase. The bits stay for good: they go to other engines.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Flag {
    /// The driver holds bytes for it that the peer has not taken.
    Blocked = 8,
    /// The engine waits for the driver's word that all bytes have left.
    Awaiting = 16,
    /// A poll or a session that is to be served at the end of the turn.
    Woken = 32,
    /// Something was sent since the sweep last passed.
    WroteRecently = 64,
    /// It returns with the ids of messages, and is in a topic with history: the ids may have to say
    /// more than the messages' own.
    Resumable = 128,
}

/// Seconds of the node's clock as [`Connection::last_received_s`] has them.
pub(crate) fn wrapping_s(now_s: u32) -> u16 {
    (now_s & 0xffff) as u16
}

impl Connection {
    pub fn new(serial: u32, now_s: u32, encoding: Encoding) -> Self {
        Connection {
            serial,
            opened_s: now_s,
            cold: NO_COLD,
            last_received_s: wrapping_s(now_s),
            encoding,
            state: Phase::Request.bits(),
        }
    }

    pub fn phase(&self) -> Phase {
        let number = usize::from(self.state.get() & PHASE_BITS);
        Phase::ALL.get(number - 1).copied().unwrap_or(Phase::HalfClosed)
    }

    pub fn enter(&mut self, phase: Phase) {
        self.state = phase.bits() | (self.state.get() & !PHASE_BITS);
    }

    /// True from the moment on that it is about to end.
    pub fn is_closing(&self) -> bool {
        self.state.get() & PHASE_BITS >= Phase::Closing as u8
    }

    pub fn is(&self, flag: Flag) -> bool {
        self.state.get() & flag as u8 != 0
    }

    pub fn set(&mut self, flag: Flag, on: bool) {
        if on {
            self.state |= flag as u8;
        } else if let Some(state) = NonZeroU8::new(self.state.get() & !(flag as u8)) {
            self.state = state;
        }
    }

    /// What another engine needs: serial and encoding, times, phase and flags.
    pub fn export(&self) -> ((u32, Encoding), (u32, u16), (u8, u8)) {
        let Connection { serial, opened_s, cold: _, last_received_s, encoding, state } = self;
        let flags = state.get() & !PHASE_BITS;
        ((*serial, *encoding), (*opened_s, *last_received_s), (self.phase() as u8, flags))
    }

    /// The connection as it was in another engine; nothing where there is no such phase.
    pub fn restored(
        (serial, encoding): (u32, Encoding),
        (opened_s, last_received_s): (u32, u16),
        (phase, flags): (u8, u8),
    ) -> Option<Self> {
        let phase = Phase::ALL.into_iter().find(|known| *known as u8 == phase)?;
        let mut connection = Connection::new(serial, opened_s, encoding);
        connection.last_received_s = last_received_s;
        connection.enter(phase);
        connection.set_flags(flags);
        Some(connection)
    }

    /// Sets all flags at once.
    fn set_flags(&mut self, flags: u8) {
        self.state = self.phase().bits() | (flags & !PHASE_BITS);
    }

    /// True while bytes that were sent to it may not have left.
    pub fn is_backlogged(&self) -> bool {
        self.state.get() & (Flag::Blocked as u8 | Flag::Awaiting as u8) != 0
    }

    /// Seconds since the peer was heard.
    pub fn silence_s(&self, now_s: u32) -> u32 {
        u32::from(wrapping_s(now_s).wrapping_sub(self.last_received_s))
    }
}

/// What a connection needs only at times.
#[derive(Default)]
pub(crate) struct ColdState {
    /// Input that is not whole, or that has not had its turn.
    pub input: Vec<u8>,
    /// Bytes of the request that has begun, once its head says so; else 0.
    pub needs: u32,
    /// Its peer was told to go on with that request.
    pub continued: bool,
    /// What is counted of it as held input, in bytes.
    pub counted: u32,
    /// The driver leaves its socket unread until it can be served.
    pub paused: bool,
    /// It asked for more than it may in a second, or a topic's members must catch up with it: it has
    /// to wait.
    pub waits: bool,
    /// It has still to say who it is: since when, in seconds of the node's clock.
    pub stranger_since_s: Option<u32>,
    /// A token that waits for the keys of its issuer.
    pub token: Option<Box<PendingToken>>,
    /// Beyond the limit of its address: it is answered as a health check, or refused.
    pub reserved: bool,
    /// The WebSocket decoder, in the middle of a frame or a message.
    pub decoder: Option<Box<Decoder>>,
    /// A long poll that waits.
    pub poll: Option<Box<Poll>>,
    /// A Phoenix long-poll session.
    pub session: Option<Box<Session>>,
    /// A request that waits for the reply of such a session.
    pub session_request: Option<Box<PendingSessionRequest>>,
    /// Requests to the application about it that are not answered.
    pub hooks_pending: u32,
    /// A request that waits for decisions of the application.
    pub pending: Option<Box<PendingRequest>>,
    /// Topics that the application has still to let it enter.
    pub subscribing: Vec<Subscribing>,
    /// Why the connection ends when everything has left.
    pub closing: Option<CloseReason>,
}

impl ColdState {
    fn is_empty(&self) -> bool {
        self.input.is_empty()
            && self.decoder.is_none()
            && self.poll.is_none()
            && self.session.is_none()
            && self.session_request.is_none()
            && self.counted == 0
            && self.needs == 0
            && !(self.continued || self.paused || self.waits || self.reserved)
            && self.stranger_since_s.is_none()
            && self.token.is_none()
            && self.hooks_pending == 0
            && self.pending.is_none()
            && self.subscribing.is_empty()
            && self.closing.is_none()
    }
}

/// Connections by slot, in pages: nothing is copied when the table grows, and a page that nobody
/// lives in goes back.
#[derive(Default)]
pub(crate) struct Table {
    connections: Slab<Connection>,
    cold: Slab<Box<ColdState>>,
}

impl Table {
    /// Takes a connection in and gives its slot.
    pub fn insert(&mut self, connection: Connection) -> u32 {
        self.connections.insert(connection)
    }

    /// Takes a connection in under a slot of the caller's choice; false when that is taken.
    pub fn insert_at(
        &mut self,
        slot: u32,
        connection: Connection,
        cold: Option<ColdState>,
    ) -> bool {
        if self.connections.insert_at(slot, connection).is_err() {
            return false;
        }
        if let (Some(cold), Some(connection)) = (cold, self.connections.get_mut(slot)) {
            connection.cold = self.cold.insert(Box::new(cold));
        }
        true
    }

    pub fn get(&self, slot: u32) -> Option<&Connection> {
        self.connections.get(slot)
    }

    pub fn get_mut(&mut self, slot: u32) -> Option<&mut Connection> {
        self.connections.get_mut(slot)
    }

    /// What the connection needs only now; most need nothing.
    pub fn cold(&self, slot: u32) -> Option<&ColdState> {
        let at = self.get(slot)?.cold;
        self.cold.get(at).map(|cold| &**cold)
    }

    pub fn cold_mut(&mut self, slot: u32) -> Option<&mut ColdState> {
        let at = self.get(slot)?.cold;
        self.cold.get_mut(at).map(|cold| &mut **cold)
    }

    /// The same, made where there is none; nothing without a connection.
    pub fn cold_or_new(&mut self, slot: u32) -> Option<&mut ColdState> {
        let connection = self.connections.get_mut(slot)?;
        if connection.cold == NO_COLD {
            connection.cold = self.cold.insert(Box::default());
        }
        self.cold.get_mut(connection.cold).map(|cold| &mut **cold)
    }

    /// Gives the cold state back when nothing is in it.
    pub fn trim(&mut self, slot: u32) {
        if self.cold(slot).is_some_and(ColdState::is_empty)
            && let Some(connection) = self.connections.get_mut(slot)
        {
            self.cold.remove(std::mem::replace(&mut connection.cold, NO_COLD));
        }
    }

    pub fn remove(&mut self, slot: u32) -> Option<(Connection, Option<Box<ColdState>>)> {
        let cold = self.connections.get(slot)?.cold;
        let cold = (cold != NO_COLD).then(|| self.cold.remove(cold));
        Some((self.connections.remove(slot), cold))
    }

    /// Connections in the table.
    pub fn count(&self) -> usize {
        self.connections.count()
    }

    /// All slots are below this.
    pub fn end(&self) -> u32 {
        self.connections.end()
    }

    /// Gives back what is held in hand for the next connections.
    pub fn shrink(&mut self) {
        self.connections.shrink();
        self.cold.shrink();
    }

    /// Bytes that the table takes.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.connections.bytes() + self.cold.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SILENCE_SECONDS_MAX;

    #[test]
    fn a_table_gives_its_pages_back() {
        let mut table = Table::default();
        for _ in 0..3 {
            let slots: Vec<u32> =
                (0..3_000).map(|at| table.insert(Connection::new(1, at, Encoding(0)))).collect();
            slots.iter().for_each(|slot| table.cold_or_new(*slot).unwrap().hooks_pending = 1);
            let most = table.bytes();
            slots.iter().for_each(|slot| assert!(table.remove(*slot).is_some()));
            table.shrink();
            assert_eq!((table.count(), table.end()), (0, 0));
            assert!(table.bytes() < most / 50, "{} of {most} bytes stay", table.bytes());
        }
    }

    #[test]
    fn cold_state_goes_when_nothing_is_in_it() {
        let mut table = Table::default();
        let slot = table.insert(Connection::new(1, 0, Encoding(0)));
        assert!(table.cold(slot).is_none());
        table.cold_or_new(slot).unwrap().waits = true;
        table.trim(slot);
        assert!(table.cold(slot).is_some_and(|cold| cold.waits));
        table.cold_mut(slot).unwrap().waits = false;
        table.trim(slot);
        assert!(table.cold(slot).is_none());
    }

    #[test]
    fn the_longest_silence_that_is_allowed_is_seen_to_end() {
        for last_received_s in [0, 5_000, 65_535, 65_536, 1_000_000] {
            let connection = Connection::new(1, last_received_s, Encoding(0));
            let silence = |seconds| connection.silence_s(last_received_s + seconds);
            assert_eq!(silence(SILENCE_SECONDS_MAX), SILENCE_SECONDS_MAX);
            // Until it wraps, which takes longer than any shard is held up.
            let mut over = SILENCE_SECONDS_MAX + 1..=u32::from(u16::MAX);
            assert!(over.clone().count() > 3_600);
            assert!(over.all(|seconds| silence(seconds) > SILENCE_SECONDS_MAX));
        }
    }
}
