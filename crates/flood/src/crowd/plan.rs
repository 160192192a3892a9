//! What a crowd is to be.

use wire::client::Client;

use crate::random::Random;
use crate::source::Sources;
use crate::target::{Paths, Url};
use crate::template::Template;

/// What a crowd is to be.
#[derive(Clone)]
pub struct Plan {
    /// The servers; each connection goes to one of them in turn.
    pub servers: Vec<Url>,
    /// The transports; each connection speaks one of them in turn.
    pub transports: Vec<&'static dyn Client>,
    /// What each asks for.
    pub paths: Paths,
    /// How many.
    pub connections: u32,
    /// The number of the first user.
    pub first: u32,
    /// How many users share a topic.
    pub users_per_room: u32,
    /// Where they come from.
    pub sources: Sources,
    /// Arrivals per second; 0 for as fast as it goes.
    pub rate: f64,
    /// How they live.
    pub life: Life,
    /// Connections under way at one time.
    pub in_flight_max: u32,
    /// How long an answer may take, in seconds.
    pub answer_seconds_max: u32,
    /// A connection that has heard nothing for so many seconds is given up; 0 for never.
    pub silence_seconds_max: u32,
    /// The number of this run, which its messages carry.
    pub run: u32,
    /// Of all that is random.
    pub seed: u64,
    /// Names of users and topics.
    pub user: Template,
    /// See `user`.
    pub topic: Template,
    /// Whether connections that come back ask for what they missed.
    pub recover: bool,
    /// How connections are in several topics; none where each is in one.
    pub memberships: Option<Memberships>,
    /// How connections are cut.
    pub cuts: Option<Cuts>,
    /// Messages that are published to each topic while everyone is away in a storm.
    pub missed: u32,
    /// How users' messages are acknowledged.
    pub acks: Option<AckPlan>,
}

/// Connections are in some of many topics, by chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memberships {
    /// All topics.
    pub topics: u32,
    /// Each connection is in one to so many of them.
    pub each_max: u32,
}

/// Connections are cut by chance: half of them with a reset, the others closed while something may
/// be unread, of these one half in the middle of what came. Others stop reading for a while.
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
/// distributions: who leaves is anyone, at any time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Life {
    /// Seconds until a connection leaves by itself; never without.
    pub stay_seconds: Option<f64>,
    /// Seconds until one that left, failed or was closed comes back; never without.
    pub away_seconds: Option<f64>,
}

impl Plan {
    /// The topic number of the user with this number.
    pub fn room(&self, number: u32) -> u32 {
        match self.memberships {
            Some(Memberships { topics, .. }) => self.chance(number).below(topics),
            None => (number - self.first) / self.users_per_room.max(1),
        }
    }

    /// All topic numbers of the user with this number, the same each time; the first is that of
    /// [`Plan::room`].
    pub fn rooms_of(&self, number: u32) -> Vec<u32> {
        let Some(Memberships { topics, each_max }) = self.memberships else {
            return vec![self.room(number)];
        };
        let mut chance = self.chance(number);
        let mut rooms = vec![chance.below(topics)];
        let wanted = 1 + chance.below(each_max.min(topics));
        while rooms.len() < wanted as usize {
            let room = chance.below(topics);
            if !rooms.contains(&room) {
                rooms.push(room);
            }
        }
        rooms
    }

    fn chance(&self, number: u32) -> Random {
        Random::new(self.seed ^ 0x726f_6f6d ^ (u64::from(number) << 32))
    }

    /// Whether connections remember anything over their reconnects.
    pub(super) fn remembers(&self) -> bool {
        self.recover || self.acks.is_some()
    }

    /// True when some of the clients send heartbeats.
    pub(super) fn clients_beat(&self) -> bool {
        let mut beats = Vec::new();
        self.transports.iter().for_each(|client| client.heartbeat(&mut beats));
        !beats.is_empty()
    }

    /// How many topics there are.
    pub fn rooms(&self) -> u32 {
        match self.memberships {
            Some(Memberships { topics, .. }) => topics,
            None => self.connections.div_ceil(self.users_per_room.max(1)),
        }
    }
}
