//! `gateway`: clients that log in and out while others get messages, each its own.

use std::net::SocketAddr;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::{Shape, stream};
use crate::args::Common;
use crate::crowd::Lifetime;
use crate::publisher::Audience;

/// Users log out and in at a fixed rate, while messages go to single users, who confirm them: for
/// --transport mqtt --qos 1. With --requests, other users send requests to a back end, which is
/// this tool, and get replies: the server must forward the requests ([[forward]] with filter =
/// "requests/#").
#[derive(Args, Clone, Debug, Deserialize, Serialize)]
pub struct Gateway {
    #[command(flatten)]
    pub(super) common: Common,
    /// Logouts per second, and as many logins, once all users are connected.
    #[arg(long, default_value_t = 100.0, value_parser = crate::args::positive, value_name = "RATE")]
    logins: f64,
    /// Messages per second to single random users.
    #[arg(long, default_value_t = 200.0, value_parser = crate::args::positive, value_name = "RATE")]
    pushes: f64,
    /// Requests per second of random users, who are others than those of --pushes; the back end
    /// replies to them.
    #[arg(long, value_parser = crate::args::positive, value_name = "RATE", requires = "backend")]
    requests: Option<f64>,
    /// Address at which this tool is the back end: the one in the rule's url.
    #[arg(long, value_name = "HOST:PORT", requires = "requests")]
    backend: Option<SocketAddr>,
    /// Seconds until a user who has logged out comes back, on average.
    #[arg(long, default_value_t = 2.0, value_parser = crate::args::positive, value_name = "SECONDS")]
    away: f64,
}

impl Gateway {
    pub(super) fn shape(&self) -> Shape {
        let connections = self.common.connections.unwrap_or(1_000);
        let requesting = if self.requests.is_some() { connections / 2 } else { 0 };
        let pushed = connections - requesting;
        let to = Audience::Users { count: pushed, long_tail: false };
        let mut streams = vec![stream(to, self.pushes)];
        if let Some(requests) = self.requests {
            let to = Audience::Requesters { from: pushed, count: requesting };
            streams.push(stream(to, requests));
        }
        Shape {
            // Users get messages by their own topics.
            topic: "",
            lifetime: Lifetime {
                stay_seconds: Some((f64::from(connections) / self.logins).max(0.1)),
                away_seconds: Some(self.away.max(0.1)),
                orderly: true,
            },
            streams,
            backend: self.backend,
            ..Shape::new(1_000)
        }
    }
}
