//! The plan of a crowd: how many connections, from where to where, and how they behave.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use admin::{Layer, Url};
use anyhow::Result;
use client::Client;
use random::Random;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use serde::{Deserialize, Serialize};

use crate::source::Sources;
use crate::target::Paths;
use crate::template::Template;
use crate::tls::Tls;

/// Targets with counts of their own; more lines would be unreadable.
const TARGETS_COUNTED_MAX: usize = 64;

/// A process's share of a run: the connections, users and topics whose index leaves this rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Part {
    /// The number of the share, from zero.
    pub number: u32,
    /// The number of shares, at least one.
    pub of: u32,
}

impl Default for Part {
    /// The whole run.
    fn default() -> Self {
        Part { number: 0, of: 1 }
    }
}

impl Part {
    /// Returns true if the share contains the item with this index.
    pub fn has(self, index: u32) -> bool {
        index % self.of.max(1) == self.number
    }

    /// Returns how many of `all` items belong to the share.
    pub fn share(self, all: u32) -> u32 {
        (all / self.of) + u32::from(all % self.of > self.number)
    }

    /// Returns the index, among all, of the share's item number `own`.
    pub fn index(self, own: u32) -> u32 {
        own * self.of + self.number
    }
}

/// How far this host's monotonic clock is ahead of the clock that stamps a run's messages.
#[derive(Clone, Debug, Default)]
pub struct Clock(Arc<AtomicI64>);

impl Clock {
    /// Sets how far this host's clock is ahead, in nanoseconds.
    pub fn set_ahead(&self, ns: i64) {
        self.0.store(ns, Ordering::Relaxed);
    }

    /// Converts a time of this host to the run's clock, in nanoseconds.
    pub fn of_run(&self, own_ns: u64) -> u64 {
        own_ns.saturating_add_signed(self.0.load(Ordering::Relaxed).saturating_neg())
    }

    /// Converts a time of the run to this host's clock, in nanoseconds.
    pub fn own(&self, run_ns: u64) -> u64 {
        run_ns.saturating_add_signed(self.0.load(Ordering::Relaxed))
    }
}

/// The plan of a crowd.
#[derive(Clone)]
pub struct Plan {
    /// The share of the crowd that this process opens. All other numbers are those of the whole.
    pub part: Part,
    /// The clock of the messages' stamps.
    pub clock: Clock,
    /// Connections that come back choose another server than before, at random.
    pub roams: bool,
    /// The servers; each connection goes to one of them in turn.
    pub servers: Vec<Url>,
    /// The TLS setup of connections, if a server needs it.
    pub tls: Option<Tls>,
    /// The names that the servers' certificates must have; `None` for a server without TLS.
    pub names: Vec<Option<ServerName<'static>>>,
    /// The transports; each connection speaks one of them in turn.
    pub transports: Vec<&'static dyn Client>,
    /// The paths that connections request.
    pub paths: Paths,
    /// The number of connections.
    pub connections: u32,
    /// The number of the first user.
    pub first: u32,
    /// How many users share a topic.
    pub users_per_room: u32,
    /// The addresses they connect from.
    pub sources: Sources,
    /// New connections per second; 0 for as fast as possible.
    pub rate: f64,
    /// The times that connections stay open and away.
    pub lifetime: Lifetime,
    /// The limit on connection attempts under way at one time.
    pub in_flight_max: u32,
    /// How long a response may take, in seconds.
    pub response_seconds_max: u32,
    /// Seconds without input after which a connection is closed; 0 for never.
    pub silence_seconds_max: u32,
    /// The number of this run, which its messages carry.
    pub run: u32,
    /// The seed of all random numbers.
    pub seed: u64,
    /// Names of users and topics.
    pub user: Template,
    /// See `user`.
    pub topic: Template,
    /// Connections that come back request the messages that they missed.
    pub recover: bool,
    /// How connections are in several topics; `None` if each is in one.
    pub memberships: Option<Memberships>,
    /// How connections are cut.
    pub cuts: Option<Cuts>,
    /// Messages that are published to each topic while all connections are away in a storm.
    pub missed: u32,
    /// How users' messages are acknowledged.
    pub acks: Option<AckPlan>,
    /// The sessions of MQTT clients persist between connections.
    pub persistent: bool,
    /// Clients send heartbeats, if their transport has them.
    pub heartbeats: bool,
    /// The crowd measures the longest time for which each connection receives no message.
    pub silences: bool,
}

/// Connections are in randomly chosen topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memberships {
    /// The number of topics.
    pub topics: u32,
    /// Each connection is in at least one and at most this many of them.
    pub each_max: u32,
}

/// Connections are cut at random. About half of the cuts are resets, the others are closes while
/// input may be unread. A quarter of all cuts happen in the middle of the input. Other connections
/// stop reading for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cuts {
    /// Cuts a second, of all connections.
    pub per_second: f64,
    /// Connections a second that read nothing for up to three seconds.
    pub pauses_per_second: f64,
}

/// How users' messages are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AckPlan {
    /// Messages for one acknowledgement.
    pub every: u32,
    /// Percent of acknowledgements that are left out.
    pub skip_percent: f64,
}

/// How long connections stay, and whether they return. Times are means of exponential
/// distributions, so that each connection may leave at any time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lifetime {
    /// Mean seconds until a connection leaves; `None` if it never leaves.
    pub stay_seconds: Option<f64>,
    /// Mean seconds until a connection that left, failed or was closed comes back; `None` if it never does.
    pub away_seconds: Option<f64>,
    /// All clients close their connections properly; otherwise half of them leave as if their network had failed.
    pub orderly: bool,
}

impl Plan {
    /// Returns how many connections this process opens.
    pub fn own_connections(&self) -> u32 {
        self.part.share(self.connections)
    }

    /// Returns true if the connections to each server are counted separately.
    pub(super) fn counts_targets(&self) -> bool {
        (2..=TARGETS_COUNTED_MAX).contains(&self.servers.len())
    }

    /// Returns the servers, each with its TLS if it speaks TLS, for requests beside the connections.
    pub(super) fn servers_with_tls(&self) -> Result<Vec<(Url, Option<Layer>)>> {
        let layer = |url: &Url| self.tls.as_ref().map_or(Ok(None), |tls| tls.layer(url));
        self.servers.iter().map(|url| Ok((url.clone(), layer(url)?))).collect()
    }

    /// Begins the TLS of a connection to this server, if it speaks TLS.
    pub(super) fn begin_tls(
        &self,
        server: usize,
    ) -> Option<Result<UnbufferedClientConnection, rustls::Error>> {
        Some(self.tls.as_ref()?.begin(self.names.get(server)?.clone()?))
    }

    /// Returns the server of the connection with this index, unless it roams. Connections take the servers in turn,
    /// so that each transport reaches each server.
    pub(super) fn server(&self, index: u32) -> usize {
        match &self.paths {
            Paths::List { targets, .. } => usize::from(targets[index as usize % targets.len()]),
            Paths::Templates(_) => turn(index as usize, self.servers.len(), self.transports.len()),
        }
    }

    /// Returns the topic number of the user with this number.
    pub fn room(&self, number: u32) -> u32 {
        match self.memberships {
            Some(Memberships { topics, .. }) => self.random_of(number).below(topics),
            None => (number - self.first) / self.users_per_room.max(1),
        }
    }

    /// Returns all topic numbers of the user with this number, the same each time. The first is
    /// that of [`Plan::room`].
    pub fn rooms_of(&self, number: u32) -> Vec<u32> {
        let Some(Memberships { topics, each_max }) = self.memberships else {
            return vec![self.room(number)];
        };
        let mut random = self.random_of(number);
        let mut rooms = vec![random.below(topics)];
        let count = 1 + random.below(each_max.min(topics));
        while rooms.len() < count as usize {
            let room = random.below(topics);
            if !rooms.contains(&room) {
                rooms.push(room);
            }
        }
        rooms
    }

    /// Returns the random numbers of one user, the same each time.
    fn random_of(&self, number: u32) -> Random {
        Random::of(self.seed ^ 0x726f_6f6d, u64::from(number))
    }

    /// Returns whether connections have a resume state, which outlives their reconnects.
    pub(super) fn has_resume_states(&self) -> bool {
        self.recover || self.persistent || self.acks.is_some()
    }

    /// Returns true when clients of some transport send heartbeats.
    pub(super) fn clients_send_heartbeats(&self) -> bool {
        let mut beats = Vec::new();
        if !self.heartbeats {
            return false;
        }
        self.transports.iter().for_each(|client| client.heartbeat(&mut beats));
        !beats.is_empty()
    }

    /// Returns the number of topics.
    pub fn rooms(&self) -> u32 {
        match self.memberships {
            Some(Memberships { topics, .. }) => topics,
            None => self.connections.div_ceil(self.users_per_room.max(1)),
        }
    }
}

/// Returns the server for this index. Connections take `servers` servers and `others` transports in turn; each full
/// round shifts the servers by one, since otherwise a transport would reach only some of them.
fn turn(index: usize, servers: usize, others: usize) -> usize {
    let round = (1..=servers).map(|times| times * others).find(|all| all.is_multiple_of(servers));
    (index + index / round.unwrap_or(1)) % servers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_transport_goes_to_each_server_and_all_are_spread_evenly() {
        for (servers, others) in [(1, 1), (2, 2), (3, 4), (2, 4), (4, 2), (6, 4), (3, 6), (5, 1)] {
            let mut met = vec![vec![0_usize; others]; servers];
            for index in 0..servers * servers * others {
                met[turn(index, servers, others)][index % others] += 1;
            }
            assert!(met.iter().flatten().all(|times| *times == servers), "{met:?}");
            let mut few = vec![0_usize; servers];
            (0..7).for_each(|index| few[turn(index, servers, others)] += 1);
            let (least, most) = (few.iter().min().unwrap(), few.iter().max().unwrap());
            assert!(most - least <= 2, "{servers} {others}: {few:?}");
        }
    }

    #[test]
    fn shares_are_disjoint_and_all_of_it() {
        for of in 1..5 {
            let mut all: Vec<u32> = (0..of)
                .map(|number| Part { number, of })
                .flat_map(|part| {
                    let own: Vec<u32> = (0..part.share(11)).map(|own| part.index(own)).collect();
                    assert!(own.iter().all(|index| part.has(*index)));
                    own
                })
                .collect();
            all.sort_unstable();
            assert_eq!(all, (0..11).collect::<Vec<_>>());
        }
    }

    #[test]
    fn times_are_of_the_runs_clock() {
        let clock = Clock::default();
        assert_eq!((clock.of_run(5), clock.own(5)), (5, 5));
        clock.set_ahead(100);
        assert_eq!((clock.of_run(150), clock.own(50), clock.of_run(7)), (50, 150, 0));
        clock.set_ahead(-100);
        assert_eq!((clock.of_run(50), clock.own(150)), (150, 50));
    }
}
