//! The plan of a crowd: how many connections, from where to where, and how they behave.

use admin::Url;
use client::Client;
use random::Random;

use crate::source::Sources;
use crate::target::Paths;
use crate::template::Template;

/// The plan of a crowd.
#[derive(Clone)]
pub struct Plan {
    /// The servers; each connection goes to one of them in turn.
    pub servers: Vec<Url>,
    /// The transports; each connection speaks one of them in turn.
    pub transports: Vec<&'static dyn Client>,
    /// The path that each requests.
    pub paths: Paths,
    /// How many connections there are.
    pub connections: u32,
    /// The number of the first user.
    pub first: u32,
    /// How many users share a topic.
    pub users_per_room: u32,
    /// The addresses they connect from.
    pub sources: Sources,
    /// New connections per second; 0 for as fast as possible.
    pub rate: f64,
    /// How long they stay open and away.
    pub lifetime: Lifetime,
    /// The limit on connection attempts under way at one time.
    pub in_flight_max: u32,
    /// How long a response may take, in seconds.
    pub answer_seconds_max: u32,
    /// A connection that has received nothing for so many seconds is closed; 0 for never.
    pub silence_seconds_max: u32,
    /// The number of this run, which its messages carry.
    pub run: u32,
    /// The seed of all random numbers.
    pub seed: u64,
    /// Names of users and topics.
    pub user: Template,
    /// See `user`.
    pub topic: Template,
    /// Whether connections that come back request what they missed.
    pub recover: bool,
    /// How connections are in several topics; `None` where each is in one.
    pub memberships: Option<Memberships>,
    /// How connections are cut.
    pub cuts: Option<Cuts>,
    /// Messages that are published to each topic while all connections are away in a storm.
    pub missed: u32,
    /// How users' messages are acknowledged.
    pub acks: Option<AckPlan>,
    /// Whether the sessions of MQTT clients go on between connections.
    pub kept: bool,
    /// Whether clients send heartbeats, where their transport has them.
    pub heartbeats: bool,
}

/// Connections are in randomly chosen topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memberships {
    /// How many topics there are.
    pub topics: u32,
    /// Each connection is in at least one and at most so many of them.
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
    /// One acknowledgement for so many messages.
    pub every: u32,
    /// Of a hundred acknowledgements, so many are not made.
    pub skip_percent: f64,
}

/// How long connections stay, and whether they return. Times are means of exponential
/// distributions, so that each connection may leave at any time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lifetime {
    /// Seconds until a connection leaves by itself; never without.
    pub stay_seconds: Option<f64>,
    /// Seconds until one that left, failed or was closed comes back; never without.
    pub away_seconds: Option<f64>,
    /// All leave in order; else half of them leave as if their network had failed.
    pub orderly: bool,
}

impl Plan {
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
        self.recover || self.kept || self.acks.is_some()
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

    /// Returns how many topics there are.
    pub fn rooms(&self) -> u32 {
        match self.memberships {
            Some(Memberships { topics, .. }) => topics,
            None => self.connections.div_ceil(self.users_per_room.max(1)),
        }
    }
}
