//! The aims of a run of the simulation.

use std::ops::Range;

use super::SECOND_US;

/// Bytes of memory for other nodes' entries: normally, and in a run with a crowd.
const ENTRIES_BYTES_MAX: usize = 1 << 20;
const CROWD_BYTES_MAX: usize = 16_000;

/// A further event of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trial {
    Nothing,
    /// More users come than nodes have memory for, and leave in the end.
    Crowd,
    /// No node reaches NATS for so long that users of others leave.
    Away,
}

impl Trial {
    /// Returns when faults end. Members come and go for five seconds more.
    pub fn faults_us(self) -> u64 {
        match self {
            Trial::Nothing | Trial::Crowd => 24 * SECOND_US,
            Trial::Away => 42 * SECOND_US,
        }
    }

    /// Returns when all state must be exact: entries that did not fit are read anew after 30 seconds.
    pub fn end_us(self) -> u64 {
        match self {
            Trial::Nothing => 42 * SECOND_US,
            Trial::Crowd => 68 * SECOND_US,
            Trial::Away => 60 * SECOND_US,
        }
    }

    /// Returns when no node reaches NATS.
    pub fn away_us(self) -> Range<u64> {
        match self {
            Trial::Nothing | Trial::Crowd => 0..0,
            Trial::Away => 3 * SECOND_US..38 * SECOND_US,
        }
    }

    /// Returns when nothing changes any more, and messages for groups are published.
    pub fn quiet_us(self) -> Range<u64> {
        let end_us = self.end_us();
        end_us - 8 * SECOND_US..end_us - 4 * SECOND_US
    }

    pub fn entries_bytes_max(self) -> usize {
        match self {
            Trial::Nothing | Trial::Away => ENTRIES_BYTES_MAX,
            Trial::Crowd => CROWD_BYTES_MAX,
        }
    }

    /// Returns the number of each node's entries at about this time: below the start some come, from the end on some
    /// go.
    pub fn entries(self, now_us: u64) -> Range<usize> {
        match self {
            Trial::Nothing | Trial::Away => 4..usize::MAX,
            Trial::Crowd if now_us < self.faults_us() => 20..usize::MAX,
            Trial::Crowd => 3..4,
        }
    }
}

/// How often a run reached the cases that it must show.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reached {
    /// Entries did not fit into the memory.
    pub limits: usize,
    /// Changes were dropped, because a node did not apply them.
    pub resets: usize,
    /// Entries were removed at a node that had not reached NATS for long.
    pub unreachable: usize,
    /// A node whose removal was in progress sent changes.
    pub returns: usize,
    /// Another process took over while messages were missing.
    pub upgrades: usize,
    /// A message for a group passed from a node without members to another one.
    pub passed: usize,
    /// A node published the connects of its MQTT clients again, because it had lost some of another one.
    pub repeats: usize,
    /// A client's last connect came when all nodes knew the earlier ones.
    pub causal: usize,
}
