//! The record of one connection.

use std::os::fd::OwnedFd;

use client::State;
use model::{Epoch, Position};

use super::CONNECTION_BYTES_MAX;
use crate::sequence::Tracker;

/// The phases of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// Has no socket: was not tried yet, failed, left or was closed by the server.
    #[default]
    Away,
    /// Has not written its request yet.
    Connecting,
    /// Waits for the response.
    Requested,
    Open,
}

/// Where a connection is in the three sequences that it may receive.
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
    /// When it was due, in microseconds since the begin of the run, modulo 2^32. An attempt ends
    /// long before that wraps around.
    pub due_us: u32,
    /// When it last received bytes, in seconds since the begin, modulo 2^16.
    pub received_seconds: u16,
    pub stage: Stage,
    /// The reason that the server announced for its close: an index into the thread's list, from
    /// one. Zero for none.
    pub goodbye: u8,
    /// Where the next poll continues: epoch, upper and lower half of the offset. It is split
    /// because a 64-bit field would cost padding.
    pub poll_position: [u32; 3],
}

// A connection also has a counter of four bytes for the messages published to its user.
const _: () = assert!(size_of::<Connection>() + 4 <= CONNECTION_BYTES_MAX);

impl Connection {
    pub fn poll_position(&self) -> Option<Position> {
        let [epoch, high, low] = self.poll_position;
        let offset = u64::from(high) << 32 | u64::from(low);
        (self.poll_position != [0; 3]).then_some(Position { epoch: Epoch(epoch), offset })
    }

    pub fn set_poll_position(&mut self, id: Position) {
        self.poll_position = [id.epoch.0, (id.offset >> 32) as u32, id.offset as u32];
    }

    pub fn clear_poll_position(&mut self) {
        self.poll_position = [0; 3];
    }
}
