//! A connection: plain data, and a box for what few connections need at a time.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use wire::session::Respond;
use wire::{Close, Id, Variant, ws};

use crate::longpoll::{Asking, Session};
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

// With the hub's member (24), a topic of its own (40), the index (about 9) and a place in a
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
    /// Input that is not whole.
    pub input: Vec<u8>,
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

/// What a slow connection has still to be sent. The bytes are shared with all that wait for the
/// same message.
#[derive(Default)]
pub(crate) struct Outbox {
    chunks: VecDeque<Chunk>,
    /// Bytes of the first chunk that are sent.
    sent: usize,
    bytes: usize,
    messages: usize,
}

pub(crate) struct Chunk {
    pub bytes: Arc<[u8]>,
    pub messages: u32,
}

impl Outbox {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn messages(&self) -> usize {
        self.messages
    }

    /// Appends a chunk of which `sent` bytes have left; only the first may have any.
    pub fn push(&mut self, chunk: Chunk, sent: usize) {
        debug_assert!(sent == 0 || self.chunks.is_empty());
        self.bytes += chunk.bytes.len() - sent;
        self.messages += chunk.messages as usize;
        if self.chunks.is_empty() {
            self.sent = sent;
        }
        self.chunks.push_back(chunk);
    }

    /// The unsent parts in order.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.chunks
            .iter()
            .enumerate()
            .map(|(at, chunk)| if at == 0 { &chunk.bytes[self.sent..] } else { &chunk.bytes[..] })
    }

    /// So many bytes have left.
    pub fn advance(&mut self, mut sent: usize) {
        self.bytes -= sent;
        while let Some(first) = self.chunks.front() {
            let rest = first.bytes.len() - self.sent;
            if sent < rest {
                self.sent += sent;
                return;
            }
            sent -= rest;
            self.sent = 0;
            self.messages -= first.messages as usize;
            self.chunks.pop_front();
        }
    }

    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// True when it holds just what was given to it at once.
    pub fn is_one(&self) -> bool {
        self.chunks.len() == 1
    }

    /// Appends what another outbox holds; nothing of that may have left.
    pub fn append(&mut self, other: Outbox) {
        debug_assert_eq!(other.sent, 0);
        other.chunks.into_iter().for_each(|chunk| self.push(chunk, 0));
    }
}

/// Connections by descriptor number, in pages: nothing is copied when the table grows.
#[derive(Default)]
pub(crate) struct Table {
    pages: Vec<Box<[Option<Connection>]>>,
    count: usize,
}

const PAGE: usize = 1024;

impl Table {
    /// Takes a connection in and gives its slot.
    pub fn insert(&mut self, connection: Connection) -> u32 {
        let slot = connection.fd.as_raw_fd() as usize;
        while self.pages.len() <= slot / PAGE {
            self.pages.push((0..PAGE).map(|_| None).collect());
        }
        let place = &mut self.pages[slot / PAGE][slot % PAGE];
        debug_assert!(place.is_none());
        *place = Some(connection);
        self.count += 1;
        slot as u32
    }

    pub fn get(&self, slot: u32) -> Option<&Connection> {
        self.pages.get(slot as usize / PAGE)?[slot as usize % PAGE].as_ref()
    }

    pub fn get_mut(&mut self, slot: u32) -> Option<&mut Connection> {
        self.pages.get_mut(slot as usize / PAGE)?[slot as usize % PAGE].as_mut()
    }

    pub fn remove(&mut self, slot: u32) -> Option<Connection> {
        let removed = self.pages.get_mut(slot as usize / PAGE)?[slot as usize % PAGE].take();
        self.count -= usize::from(removed.is_some());
        removed
    }

    /// Connections in the table.
    pub fn count(&self) -> usize {
        self.count
    }

    /// All slots are below this.
    pub fn end(&self) -> u32 {
        (self.pages.len() * PAGE) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outbox_gives_its_bytes_in_order_however_they_leave() {
        let chunk = |text: &str| Chunk { bytes: text.as_bytes().into(), messages: 1 };
        for step in 1..9 {
            let mut outbox = Outbox::default();
            outbox.push(chunk("xxabc"), 2);
            outbox.push(chunk("de"), 0);
            outbox.push(chunk("fgh"), 0);
            let mut out = Vec::new();
            while !outbox.is_empty() {
                let left: Vec<u8> = outbox.parts().flatten().copied().collect();
                assert_eq!(left.len(), outbox.bytes());
                let now = step.min(left.len());
                out.extend_from_slice(&left[..now]);
                outbox.advance(now);
            }
            assert_eq!(out, b"abcdefgh");
            assert_eq!((outbox.bytes(), outbox.messages()), (0, 0));
        }
    }
}
