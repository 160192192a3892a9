//! The record of one connection.

use std::os::fd::OwnedFd;

use wire::client::State;
use wire::{Epoch, Id};

use super::CONNECTION_BYTES_MAX;
use crate::sequence::Tracker;

/// How far a connection is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not there: not tried yet, failed, left or closed.
    #[default]
    Away,
    /// The request is not written.
    Connecting,
    /// Waits for its answer.
    Asked,
    Open,
}

/// Where a connection stands in the three sequences that it may hear.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trackers {
    pub user: Tracker,
    pub topic: Tracker,
    pub all: Tracker,
}

impl Trackers {
    /// See [`Tracker::anywhere`].
    pub fn anywhere() -> Self {
        let any = Tracker::anywhere();
        Self { user: any, topic: any, all: any }
    }
}

#[derive(Debug, Default)]
pub(super) struct Connection {
    /// None when away.
    pub socket: Option<OwnedFd>,
    pub state: State,
    pub trackers: Trackers,
    /// When it was due, in microseconds since the begin of the run, modulo 2^32: an attempt ends
    /// long before that comes round.
    pub due_us: u32,
    /// When something was last heard, in seconds since the begin, modulo 2^16.
    pub heard_seconds: u16,
    pub stage: Stage,
    /// What the server said before it closes: an index into the thread's list, from one.
    pub said: u8,
    /// Where a poll goes on: epoch, upper and lower half of the offset.
    pub place: [u32; 3],
}

// Beside it there is a counter of four bytes for what is published to its user, and a share of the
// thread's buffers.
const _: () = assert!(size_of::<Connection>() + 4 <= CONNECTION_BYTES_MAX);

impl Connection {
    pub fn since(&self) -> Option<Id> {
        let [epoch, high, low] = self.place;
        let offset = u64::from(high) << 32 | u64::from(low);
        (self.place != [0; 3]).then_some(Id { epoch: Epoch(epoch), offset })
    }

    pub fn set_since(&mut self, id: Id) {
        self.place = [id.epoch.0, (id.offset >> 32) as u32, id.offset as u32];
    }

    pub fn forget_place(&mut self) {
        self.place = [0; 3];
    }
}
