//! The scenarios, one per file. A scenario defines which users connect, how long they stay, and which messages are
//! published.

mod churn;
mod cut;
mod gateway;
mod hold;
mod one_topic;
mod random_users;
mod rooms;
mod storm;

use std::net::SocketAddr;

use clap::Subcommand;
use serde::{Deserialize, Serialize};

use crate::args::Common;
use crate::crowd::{Cuts, Lifetime, Memberships};
use crate::publisher::{Audience, Stream};

/// The end of a scenario's help.
macro_rules! help {
    ($example:literal $(, $needs:literal)?) => {
        concat!(
            $($needs, "\n\n",)?
            "Examples:\n  throng flood ", $example, "\n",
            "\nExit status:\n  0  everything was as expected\n  1  the scenario could not be \
             run\n  2  the command line is wrong\n  3  something was lost, closed or wrong: the \
             result says what"
        )
    };
}

/// What the crowd does.
#[derive(Clone, Debug, Deserialize, Serialize, Subcommand)]
pub enum Scenario {
    /// Idle connections that stay open.
    #[command(after_long_help = help!("hold http://127.0.0.1:8000 --connections 100000 --transport sse,ws --hold 10m"))]
    Hold(hold::Hold),
    /// All users in one topic, with messages at a fixed rate.
    #[command(after_long_help = help!("one-topic http://127.0.0.1:8000 --connections 10000 --messages 10"))]
    OneTopic(one_topic::OneTopic),
    /// Many topics with the same number of users each.
    #[command(after_long_help = help!("rooms http://127.0.0.1:8000 --topics 100 --users 50 --transport phoenix"))]
    Rooms(rooms::Rooms),
    /// Senders that send messages to random users.
    #[command(after_long_help = help!("random-users http://127.0.0.1:8000 --senders 10 --messages 100 --interval 0.5"))]
    RandomUsers(random_users::RandomUsers),
    /// Users who connect, talk and leave at random, as in a real chat.
    #[command(after_long_help = help!("churn http://127.0.0.1:8000 --connections 5000 --stay 120 --away 5 --hold 1h"))]
    Churn(churn::Churn),
    /// All connections drop and come back at once.
    #[command(after_long_help = help!("storm http://127.0.0.1:8000 --topic-template room:all --connections 10000 --recover --missed 10", "With --recover, the server must retain messages (history_messages_max): with examples/history.toml it has a history for room:*."))]
    Storm(storm::Storm),
    /// Connections are cut at random while messages are published, and none may be lost or arrive
    /// twice.
    #[command(after_long_help = help!("cut http://127.0.0.1:8000 --topic-template room:{room} --cuts-per-second 100 --transport sse,stream,poll,ws,phoenix", "The server must retain messages (history_messages_max): with examples/history.toml it has a history for room:*."))]
    Cut(cut::Cut),
    /// Users who log in and out all the time, while others get messages and confirm them.
    #[command(after_long_help = help!("gateway http://127.0.0.1:8000 --transport mqtt --qos 1 --connections 10000 --logins 100 --pushes 500"))]
    Gateway(gateway::Gateway),
}

/// The parameters that a scenario sets. The common flags override them.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Connections, unless `--connections` sets them.
    pub connections: u32,
    /// The topic template, unless `--topic-template` sets it.
    pub topic: &'static str,
    /// How many users share a topic; `None` for all.
    pub users_per_topic: Option<u32>,
    /// How long connections stay open and away.
    pub lifetime: Lifetime,
    /// The published streams, unless flags set them.
    pub streams: Vec<Stream>,
    /// Publishing begins with the first connection, not when all have arrived.
    pub publish_at_once: bool,
    /// The number of storms, in which all connections drop at once, and the seconds between two of them.
    pub storms: Option<(u32, f64)>,
    /// Messages that are published to each topic while all connections are away in a storm.
    pub missed: u32,
    /// Connections recover missed messages, whatever the flags are.
    pub recover: bool,
    /// How connections are in several topics.
    pub memberships: Option<Memberships>,
    /// How connections are cut.
    pub cuts: Option<Cuts>,
    /// The address at which the run replies to requests as a back end.
    pub backend: Option<SocketAddr>,
    /// The run ends when the publishers end.
    pub ends_when_published: bool,
}

impl Shape {
    fn new(connections: u32) -> Self {
        Shape {
            connections,
            topic: "all",
            users_per_topic: None,
            lifetime: Lifetime::default(),
            streams: Vec::new(),
            publish_at_once: false,
            storms: None,
            missed: 0,
            recover: false,
            memberships: None,
            cuts: None,
            backend: None,
            ends_when_published: false,
        }
    }
}

/// Returns an endless stream.
fn stream(to: Audience, per_second: f64) -> Stream {
    Stream { to, per_second, messages_max: None }
}

impl Scenario {
    /// Returns the name, as on the command line, the flags that all scenarios share, and the parameters that this one
    /// sets.
    fn parts(&self) -> (&'static str, &Common, Shape) {
        match self {
            Scenario::Hold(hold) => ("hold", &hold.common, hold.shape()),
            Scenario::OneTopic(topic) => ("one-topic", &topic.common, topic.shape()),
            Scenario::Rooms(rooms) => ("rooms", &rooms.common, rooms.shape()),
            Scenario::RandomUsers(users) => ("random-users", &users.common, users.shape()),
            Scenario::Churn(churn) => ("churn", &churn.common, churn.shape()),
            Scenario::Storm(storm) => ("storm", &storm.common, storm.shape()),
            Scenario::Cut(cut) => ("cut", &cut.common, cut.shape()),
            Scenario::Gateway(gateway) => ("gateway", &gateway.common, gateway.shape()),
        }
    }

    /// Returns the scenario's name, as on the command line.
    pub fn name(&self) -> &'static str {
        self.parts().0
    }

    /// Returns the flags that all scenarios share.
    pub fn common(&self) -> &Common {
        self.parts().1
    }

    /// Returns the parameters that the scenario sets.
    pub fn shape(&self) -> Shape {
        self.parts().2
    }
}
