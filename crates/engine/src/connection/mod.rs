//! A connection: plain data, and a box for state that few connections have at a time.

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

/// The engine's state of every connection. Its slot is its number in the table, which another connection gets after its
/// end.
pub(crate) struct Connection {
    /// The number of connections that the engine had before this one.
    pub serial: u32,
    /// When it was opened, in seconds of the node's clock.
    pub opened_s: u32,
    /// The number of its [`ColdState`], or [`NO_COLD`].
    cold: u32,
    /// When the peer last sent something, in seconds that wrap around. While the connection awaits a request: since
    /// when.
    pub last_received_s: u16,
    /// Its protocol, in one of its encodings.
    pub encoding: Encoding,
    /// The phase, in [`PHASE_BITS`], and the flags. No phase is 0, so that an empty slot of the table takes no further
    /// byte.
    state: NonZeroU8,
}

// With the driver's socket (8), the hub's member (20), a topic of its own (40), the index (about 9) and a position in a
// shared topic (4) a connection takes well under 128 bytes.
const _: () = assert!(size_of::<Connection>() <= 16 && Slab::<Connection>::SLOT_BYTES <= 16);

const NO_COLD: u32 = u32::MAX;

/// The phase of a connection. The numbers never change: they are exported to other engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Phase {
    /// The first request, or the next one, is being read.
    Request = 1,
    /// The last request has its reply, and the next one is awaited.
    Idle,
    /// A request waits for its reply.
    Waiting,
    /// The connection has a lasting protocol.
    Open,
    /// The connection ends when the driver has sent everything. Its input is ignored.
    Closing,
    /// Our side is closed, and the peer's is awaited, so that a reset does not destroy the last bytes.
    HalfClosed,
}

impl Phase {
    /// All phases, in their order.
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

/// The bits of a connection's state that are its phase.
const PHASE_BITS: u8 = 7;

/// Flags of a connection in any phase. The bits never change: they are exported to other engines.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Flag {
    /// The driver has bytes for it that the kernel has not taken.
    Blocked = 8,
    /// The engine waits for the driver to confirm that all bytes were sent.
    Awaiting = 16,
    /// A poll or a session that gets its reply at the end of the turn.
    Woken = 32,
    /// Something was sent since the last sweep.
    WroteRecently = 64,
    /// Its client comes back with ids of messages, and it is in a topic with history. Its ids may need more than the
    /// messages' own.
    Resumable = 128,
}

/// Seconds of the node's clock in the form of [`Connection::last_received_s`].
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

    /// Returns true once the connection is about to end.
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

    /// Exports serial and encoding, times, phase and flags.
    pub fn export(&self) -> ((u32, Encoding), (u32, u16), (u8, u8)) {
        let Connection { serial, opened_s, cold: _, last_received_s, encoding, state } = self;
        let flags = state.get() & !PHASE_BITS;
        ((*serial, *encoding), (*opened_s, *last_received_s), (self.phase() as u8, flags))
    }

    /// Imports the connection of another engine. `None` if there is no such phase.
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

    /// Returns true while the driver may still have bytes for it.
    pub fn is_backlogged(&self) -> bool {
        self.state.get() & (Flag::Blocked as u8 | Flag::Awaiting as u8) != 0
    }

    /// Returns the seconds since the peer last sent something.
    pub fn silence_s(&self, now_s: u32) -> u32 {
        u32::from(wrapping_s(now_s).wrapping_sub(self.last_received_s))
    }
}

/// The state of a connection that most connections do not have.
#[derive(Default)]
pub(crate) struct ColdState {
    /// Input that is incomplete or not processed yet.
    pub input: Vec<u8>,
    /// The length of the request that is being read, once its head has it; otherwise 0.
    pub needs: u32,
    /// The client got `100 Continue` for that request.
    pub continued: bool,
    /// Its counted buffered input, in bytes.
    pub counted: u32,
    /// The driver does not read its socket until requests can be processed.
    pub paused: bool,
    /// Its next request waits, because a rate is reached or because members of a topic must catch up.
    pub waits: bool,
    /// Since when it has to authenticate, in seconds of the node's clock.
    pub stranger_since_s: Option<u32>,
    /// A token that waits for the keys of its issuer.
    pub token: Option<Box<PendingToken>>,
    /// It is above the limit of its address: a health check gets its reply, and any other request is rejected.
    pub reserved: bool,
    /// The WebSocket decoder, in the middle of a frame or a message.
    pub decoder: Option<Box<Decoder>>,
    /// A long poll that waits.
    pub poll: Option<Box<Poll>>,
    /// A Phoenix long-poll session.
    pub session: Option<Box<Session>>,
    /// A request that waits for the reply of such a session.
    pub session_request: Option<Box<PendingSessionRequest>>,
    /// Requests to the application about it that wait for responses.
    pub hooks_pending: u32,
    /// A request that waits for decisions of the application.
    pub pending: Option<Box<PendingRequest>>,
    /// Subscriptions that wait for a decision of the application.
    pub subscribing: Vec<Subscribing>,
    /// Why the connection ends when everything was sent.
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

/// Connections by slot, in pages: the table grows without copies, and empty pages are freed.
#[derive(Default)]
pub(crate) struct Table {
    connections: Slab<Connection>,
    cold: Slab<Box<ColdState>>,
}

impl Table {
    /// Inserts a connection and returns its slot.
    pub fn insert(&mut self, connection: Connection) -> u32 {
        self.connections.insert(connection)
    }

    /// Inserts a connection at a slot of the caller's choice. Returns false if the slot is in use.
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

    /// Returns the cold state of a connection, if it has one.
    pub fn cold(&self, slot: u32) -> Option<&ColdState> {
        let at = self.get(slot)?.cold;
        self.cold.get(at).map(|cold| &**cold)
    }

    pub fn cold_mut(&mut self, slot: u32) -> Option<&mut ColdState> {
        let at = self.get(slot)?.cold;
        self.cold.get_mut(at).map(|cold| &mut **cold)
    }

    /// Returns the cold state of a connection, and creates one if it has none. `None` if there is no such connection.
    pub fn cold_or_new(&mut self, slot: u32) -> Option<&mut ColdState> {
        let connection = self.connections.get_mut(slot)?;
        if connection.cold == NO_COLD {
            connection.cold = self.cold.insert(Box::default());
        }
        self.cold.get_mut(connection.cold).map(|cold| &mut **cold)
    }

    /// Frees the cold state if it is empty.
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

    /// Returns the number of connections.
    pub fn count(&self) -> usize {
        self.connections.count()
    }

    /// All slots in use are below this.
    pub fn end(&self) -> u32 {
        self.connections.end()
    }

    /// Frees spare memory.
    pub fn shrink(&mut self) {
        self.connections.shrink();
        self.cold.shrink();
    }

    /// Returns the bytes of the table.
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
    fn silence_beyond_the_longest_allowed_one_is_detected() {
        for last_received_s in [0, 5_000, 65_535, 65_536, 1_000_000] {
            let connection = Connection::new(1, last_received_s, Encoding(0));
            let silence = |seconds| connection.silence_s(last_received_s + seconds);
            assert_eq!(silence(SILENCE_SECONDS_MAX), SILENCE_SECONDS_MAX);
            // The seconds wrap around only after a longer time than a shard may be blocked.
            let mut longer = SILENCE_SECONDS_MAX + 1..=u32::from(u16::MAX);
            assert!(longer.clone().count() > 3_600);
            assert!(longer.all(|seconds| silence(seconds) > SILENCE_SECONDS_MAX));
        }
    }
}
