//! A connection: plain data, and a box for what few connections need at a time.

use std::os::fd::{AsRawFd, OwnedFd};

use tables::Places;
use wire::session::Respond;
use wire::{Close, Id, Variant, ws};

use crate::longpoll::{Asking, Session};
use crate::outbox::Outbox;
use crate::poll::PollKept;

/// What a shard holds of every connection. Its place in the table is its descriptor's number,
/// which the kernel keeps small and uses again.
pub(crate) struct Connection {
    pub fd: OwnedFd,
    /// How many connections the shard had before it.
    pub serial: u32,
    /// When it was accepted, in seconds of the node's clock.
    pub opened_s: u32,
    /// When the peer was last heard, in seconds that wrap around; while a request is awaited,
    /// since when.
    pub heard_s: u16,
    pub variant: Variant,
    flags: u8,
    pub extra: Option<Box<Extra>>,
}

// With the hub's member (20), a topic of its own (40), the index (about 9) and a place in a
// shared topic (4) this stays well under 128 bytes.
const _: () = assert!(size_of::<Option<Connection>>() <= 24);

/// What a connection is in the middle of.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Flag {
    /// In the batch that is being gathered.
    Batched = 1,
    /// In it more than once.
    BatchedAgain = 2,
    /// Has answered a request and awaits the next.
    Resting = 4,
    /// `100 Continue` was sent for the request that is being read.
    Continued = 8,
    /// Ends when its outbox is empty; its input is ignored.
    Closing = 16,
    /// Our side is shut; waits for the peer's, so that the last bytes are not lost to a reset.
    Lingering = 32,
    /// A poll in the list of those to look after.
    Woken = 64,
    /// Something was sent since the sweep last looked.
    Spoken = 128,
}

impl Connection {
    pub fn new(fd: OwnedFd, serial: u32, now_s: u32) -> Self {
        Connection {
            fd,
            serial,
            opened_s: now_s,
            heard_s: now_s as u16,
            variant: Variant::Http,
            flags: 0,
            extra: None,
        }
    }

    pub fn is(&self, flag: Flag) -> bool {
        self.flags & flag as u8 != 0
    }

    pub fn set(&mut self, flag: Flag, on: bool) {
        if on {
            self.flags |= flag as u8;
        } else {
            self.flags &= !(flag as u8);
        }
    }

    /// Seconds since the peer was heard.
    pub fn silence_s(&self, now_s: u32) -> u32 {
        u32::from((now_s as u16).wrapping_sub(self.heard_s))
    }

    pub fn extra(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    pub fn outbox(&self) -> Option<&Outbox> {
        self.extra.as_ref()?.outbox.as_deref()
    }

    pub fn outbox_mut(&mut self) -> Option<&mut Outbox> {
        self.extra.as_mut()?.outbox.as_deref_mut()
    }

    /// Gives the box back when nothing is in it.
    pub fn trim(&mut self) {
        if self.extra.as_ref().is_some_and(|extra| extra.is_empty()) {
            self.extra = None;
        }
    }
}

/// What a connection needs only at times.
#[derive(Default)]
pub(crate) struct Extra {
    /// Input that is not whole, or that has not had its turn.
    pub input: Vec<u8>,
    /// Bytes of the request that has begun, once its head says so; else 0.
    pub needs: u32,
    /// What is counted of it as held input, in bytes.
    pub counted: u32,
    /// Its socket is left unread until it can be served.
    pub paused: bool,
    /// It asked for more than it may in a second, or a topic's members must catch up with it: it has
    /// to wait.
    pub waits: bool,
    /// Beyond the limit of its address: it is answered as a health check, or refused.
    pub reserved: bool,
    /// What has still to be sent.
    pub outbox: Option<Box<Outbox>>,
    /// The WebSocket decoder, in the middle of a frame or a message.
    pub decoder: Option<Box<ws::Decoder>>,
    /// A long poll that waits.
    pub poll: Option<Box<Poll>>,
    /// A Phoenix long-poll session.
    pub session: Option<Box<Session>>,
    /// A request that waits for the answer of such a session.
    pub asking: Option<Box<Asking>>,
    /// Questions to the application that are not answered.
    pub questions: u32,
    /// Why the connection ends when its outbox is empty.
    pub closing: Option<Close>,
}

impl Extra {
    fn is_empty(&self) -> bool {
        self.input.is_empty()
            && self.outbox.is_none()
            && self.decoder.is_none()
            && self.poll.is_none()
            && self.session.is_none()
            && self.asking.is_none()
            && self.counted == 0
            && !(self.paused || self.waits || self.reserved)
            && self.questions == 0
            && self.closing.is_none()
    }
}

/// A long poll that waits.
pub(crate) struct Poll {
    /// It has everything up to here.
    pub since: Id,
    /// Whether everything since the place it asked for was there; `None` if it asked for none.
    pub recovered: Option<bool>,
    /// When it is answered at the latest, in seconds of the node's clock.
    pub deadline_s: u32,
    pub respond: Respond,
    /// Its topics with history, if it has any.
    pub kept: Option<Box<PollKept>>,
}

/// Connections by descriptor number, in pages: nothing is copied when the table grows, and a page
/// that nobody lives in goes back.
#[derive(Default)]
pub(crate) struct Table(Places<Connection>);

impl Table {
    /// Takes a connection in and gives its slot.
    pub fn insert(&mut self, connection: Connection) -> u32 {
        let slot = connection.fd.as_raw_fd() as u32;
        let before = self.0.insert(slot, connection);
        debug_assert!(before.is_none());
        slot
    }

    pub fn get(&self, slot: u32) -> Option<&Connection> {
        self.0.get(slot)
    }

    pub fn get_mut(&mut self, slot: u32) -> Option<&mut Connection> {
        self.0.get_mut(slot)
    }

    pub fn remove(&mut self, slot: u32) -> Option<Connection> {
        self.0.remove(slot)
    }

    /// Connections in the table.
    pub fn count(&self) -> usize {
        self.0.count()
    }

    /// All slots are below this.
    pub fn end(&self) -> u32 {
        self.0.end()
    }

    /// Gives back what is kept in hand for the next connections.
    pub fn tidy(&mut self) {
        self.0.tidy();
    }

    /// Bytes that the table takes.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SILENCE_SECONDS_MAX;

    #[test]
    fn a_crowd_of_connections_gives_its_pages_back() {
        let any = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let mut table = Table::default();
        for _ in 0..3 {
            let open = |_| Connection::new(any.try_clone().unwrap(), 1, 0);
            let slots: Vec<u32> = (0..3_000).map(|at| table.insert(open(at))).collect();
            let most = table.bytes();
            slots.iter().for_each(|slot| assert!(table.remove(*slot).is_some()));
            table.tidy();
            assert_eq!((table.count(), table.end()), (0, 0));
            assert!(table.bytes() < most / 50, "{} of {most} bytes stay", table.bytes());
        }
    }

    #[test]
    fn the_longest_silence_that_is_allowed_is_seen_to_end() {
        let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        for heard_s in [0, 5_000, 65_535, 65_536, 1_000_000] {
            let connection = Connection::new(fd.try_clone().unwrap(), 1, heard_s);
            let silence = |seconds| connection.silence_s(heard_s + seconds);
            assert_eq!(silence(SILENCE_SECONDS_MAX), SILENCE_SECONDS_MAX);
            // Until it wraps, which takes longer than any shard is held up.
            let mut over = SILENCE_SECONDS_MAX + 1..=u32::from(u16::MAX);
            assert!(over.clone().count() > 3_600);
            assert!(over.all(|seconds| silence(seconds) > SILENCE_SECONDS_MAX));
        }
    }
}
