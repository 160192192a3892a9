//! The server of each connection, and the counts of the connections to each server.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use random::Random;

use super::Worker;
use crate::crowd::{CloseReason, Plan, TargetTally};

/// Nanoseconds of a connection's wait after its first failed attempt; the wait doubles with each further one.
const BACK_OFF_NS: u64 = 100_000_000;
/// The longest wait, in nanoseconds.
const BACK_OFF_NS_MAX: u64 = 5_000_000_000;

/// The server where a roaming connection is or goes next.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    server: u16,
    /// The server where it was open last.
    former: u16,
    /// How often it has moved on since it was open.
    moves: u16,
    /// Failed attempts since it was open.
    failures: u16,
}

impl Place {
    fn at(server: u16) -> Self {
        Place { server, former: server, moves: 0, failures: 0 }
    }

    /// Moves on to another of so many servers: first to a random one, and then to each in turn, so that the former one,
    /// which may be dead, comes last.
    fn move_on(&mut self, servers: u16, random: &mut Random) {
        let moves = self.moves;
        self.moves = moves.wrapping_add(1);
        if moves == 0 {
            self.former = self.server;
            let other = random.below(u32::from(servers - 1)) as u16;
            self.server = other + u16::from(other >= self.former);
            return;
        }
        self.server = (self.server + 1) % servers;
        if moves % servers == servers - 1 {
            self.server = self.former;
        } else if self.server == self.former {
            self.server = (self.server + 1) % servers;
        }
    }
}

/// The targets of a thread's connections.
#[derive(Debug, Default)]
pub(super) struct Targets {
    /// By connection. Empty if each stays with its server.
    places: Vec<Place>,
    /// By server. Empty if they are not counted.
    pub tallies: Vec<TargetTally>,
    /// Connections that wait for their next attempt, and the times when that is due.
    waiting: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Targets {
    /// The targets of connections with these indexes in the whole crowd.
    pub fn new(plan: &Plan, indexes: impl Iterator<Item = u32>) -> Self {
        let place = |index| Place::at(plan.server(index) as u16);
        let roaming = indexes.filter(|_| plan.roams);
        let servers = if plan.counts_targets() { plan.servers.len() } else { 0 };
        Self {
            places: roaming.map(place).collect(),
            tallies: vec![TargetTally::default(); servers],
            waiting: BinaryHeap::new(),
        }
    }

    /// Returns whether any connection waits for its next attempt.
    pub fn any_waits(&self) -> bool {
        !self.waiting.is_empty()
    }
}

impl Worker<'_> {
    /// Returns the index, in the whole crowd, of a connection of this thread.
    pub(super) fn at(&self, index: u32) -> u32 {
        self.common.plan.part.index(self.from + index)
    }

    /// Returns the server of a connection.
    pub(super) fn server(&self, index: u32) -> usize {
        match self.targets.places.get(index as usize) {
            Some(place) => usize::from(place.server),
            None => self.common.plan.server(self.at(index)),
        }
    }

    /// Counts at a connection's server, if servers have counts.
    pub(super) fn count_at_target(&mut self, index: u32, count: impl FnOnce(&mut TargetTally)) {
        if self.targets.tallies.is_empty() {
            return;
        }
        let server = self.server(index);
        if let Some(tally) = self.targets.tallies.get_mut(server) {
            count(tally);
        }
    }

    /// Sends a roaming connection to another server at its next attempt.
    pub(super) fn move_on(&mut self, index: u32) {
        let servers = self.common.plan.servers.len() as u16;
        if let Some(place) = self.targets.places.get_mut(index as usize) {
            place.move_on(servers, &mut self.random);
        }
    }

    /// Returns true if the plan makes connections roam, and this reason means that the server is gone.
    pub(super) fn is_servers_death(&self, reason: CloseReason) -> bool {
        let is_silent = matches!(reason, CloseReason::System(_) | CloseReason::Closed);
        self.common.plan.roams && is_silent
    }

    /// Called when an attempt has succeeded.
    pub(super) fn arrived(&mut self, index: u32) {
        if let Some(place) = self.targets.places.get_mut(index as usize) {
            (place.moves, place.failures) = (0, 0);
        }
    }

    /// Called when an attempt has failed: each further failure makes the next attempt wait longer. Returns false for
    /// a connection that does not roam.
    pub(super) fn back_off(&mut self, index: u32, now: u64) -> bool {
        let Some(place) = self.targets.places.get_mut(index as usize) else {
            return false;
        };
        let longest = BACK_OFF_NS.saturating_mul(1 << place.failures.min(16)).min(BACK_OFF_NS_MAX);
        place.failures = place.failures.saturating_add(1);
        // A random wait between half and all of `longest` spreads out connections that failed together.
        let wait = longest / 2 + self.random.below(longest / 2);
        self.targets.waiting.push(Reverse((now + wait, index)));
        true
    }

    /// Opens the waiting connections that are due, or `all` of them.
    pub(super) fn take_waiting(&mut self, now: u64, all: bool) {
        while let Some(Reverse((at, index))) = self.targets.waiting.peek().copied()
            && (all || at <= now)
        {
            self.targets.waiting.pop();
            self.due.push_back((index, now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_tries_each_other_server_before_the_one_that_it_has_lost() {
        let mut random = Random::new(7);
        for servers in 2..6_u16 {
            for round in 0..50 {
                let mut place = Place::at(round % servers);
                let mut tried = Vec::new();
                for _ in 0..servers {
                    place.move_on(servers, &mut random);
                    tried.push(place.server);
                }
                assert_eq!(tried.pop(), Some(round % servers), "{servers} servers: {tried:?}");
                tried.sort_unstable();
                let others: Vec<u16> = (0..servers).filter(|it| *it != round % servers).collect();
                assert_eq!(tried, others);
            }
        }
    }
}
