//! The sockets of a shard's connections, by slot, with the outboxes of slow ones.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tables::PageTable;

use engine::Outbox;
use engine::Shrink;

/// One connection's socket.
pub(crate) struct Socket {
    fd: OwnedFd,
    flags: u8,
}

// 8 bytes a connection: see `Connection` of the engine.
const _: () = assert!(size_of::<Option<Socket>>() <= 8);

/// The flags of a socket.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// The socket is in the batch that the shard gathers.
    Batched = 1,
    /// The socket is in that batch more than once.
    BatchedAgain = 2,
    /// The socket has an outbox.
    Blocked = 4,
    /// The shard closes the socket when its outbox is empty.
    Closing = 8,
    /// The close shuts only our side, until the peer shuts its own.
    Linger = 16,
    /// Another process has a descriptor of the socket.
    Passed = 32,
    /// TLS encrypts the connection.
    Tls = 64,
    /// The TLS handshake goes on in a later turn.
    AwaitsHandshake = 128,
}

impl Socket {
    pub fn new(fd: OwnedFd) -> Self {
        Socket { fd, flags: 0 }
    }

    pub fn is(&self, state: State) -> bool {
        self.flags & state as u8 != 0
    }

    pub fn set(&mut self, state: State, on: bool) {
        if on {
            self.flags |= state as u8;
        } else {
            self.flags &= !(state as u8);
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// All sockets of a shard.
#[derive(Default)]
pub(crate) struct Sockets {
    sockets: PageTable<Socket>,
    outboxes: HashMap<u32, Outbox>,
}

impl Sockets {
    pub fn insert(&mut self, slot: u32, fd: OwnedFd) {
        let before = self.sockets.insert(slot, Socket::new(fd));
        debug_assert!(before.is_none(), "slot {slot} has a socket");
    }

    pub fn get(&self, slot: u32) -> Option<&Socket> {
        self.sockets.get(slot)
    }

    pub fn get_mut(&mut self, slot: u32) -> Option<&mut Socket> {
        self.sockets.get_mut(slot)
    }

    pub fn remove(&mut self, slot: u32) -> Option<(Socket, Option<Outbox>)> {
        let socket = self.sockets.remove(slot)?;
        let outbox = if socket.is(State::Blocked) { self.outboxes.remove(&slot) } else { None };
        Some((socket, outbox))
    }

    /// Returns the outbox of a slow connection.
    pub fn outbox(&self, slot: u32) -> Option<&Outbox> {
        let blocked = self.get(slot).is_some_and(|socket| socket.is(State::Blocked));
        if blocked { self.outboxes.get(&slot) } else { None }
    }

    pub fn outbox_mut(&mut self, slot: u32) -> Option<&mut Outbox> {
        let blocked = self.get(slot).is_some_and(|socket| socket.is(State::Blocked));
        if blocked { self.outboxes.get_mut(&slot) } else { None }
    }

    /// Gives a socket an outbox.
    pub fn block(&mut self, slot: u32, outbox: Outbox) {
        if let Some(socket) = self.sockets.get_mut(slot) {
            socket.set(State::Blocked, true);
            self.outboxes.insert(slot, outbox);
        }
    }

    /// Removes the outbox, which is empty.
    pub fn unblock(&mut self, slot: u32) {
        if let Some(socket) = self.sockets.get_mut(slot) {
            socket.set(State::Blocked, false);
            self.outboxes.remove(&slot);
        }
    }

    /// All sockets with an outbox.
    pub fn outboxes(&self) -> impl Iterator<Item = (u32, &Outbox)> {
        self.outboxes.iter().map(|(slot, outbox)| (*slot, outbox))
    }

    /// Gives memory back after many sockets have gone.
    pub fn shrink(&mut self) {
        self.sockets.shrink();
        self.outboxes.shrink();
    }
}
