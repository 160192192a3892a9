//! `gateway`: clients that log in and out while others get messages, each its own.

use std::net::SocketAddr;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::{Shape, stream};
use crate::args::Common;
use crate::crowd::Lifetime;
use crate::publisher::Audience;

/// A crowd of which so many a second log out and as many in, while messages go to single users, who confirm
/// them: with --transport mqtt --qos 1. With --requests others ask a back end, which this tool is, and get their
/// answers: the server must forward them ([[forward]] with filter = "requests/#").
#[derive(Args, Clone, Debug, Deserialize, Serialize)]
pub struct Gateway {
    #[command(flatten)]
    pub(super) common: Common,
    /// Logouts a second, and as many logins once the crowd stands.
    #[arg(long, default_value_t = 100.0, value_parser = crate::args::positive, value_name = "RATE")]
    logins: f64,
    /// Messages a second to single users by chance.
    #[arg(long, default_value_t = 200.0, value_parser = crate::args::positive, value_name = "RATE")]
    pushes: f64,
    /// Requests a second of users by chance, other ones than those of --pushes, which the back end answers.
    #[arg(long, value_parser = crate::args::positive, value_name = "RATE", requires = "backend")]
    requests: Option<f64>,
    /// Where this tool is the back end: the address that the rule's url names.
    #[arg(long, value_name = "HOST:PORT", requires = "requests")]
    backend: Option<SocketAddr>,
    /// Seconds until a user who has logged out comes back, in the mean.
    #[arg(long, default_value_t = 2.0, value_parser = crate::args::positive, value_name = "SECONDS")]
    away: f64,
}

impl Gateway {
    pub(super) fn shape(&self) -> Shape {
        let connections = self.common.connections.unwrap_or(1_000);
        let answered = if self.requests.is_some() { connections / 2 } else { 0 };
        let told = connections - answered;
        let to = Audience::Users { count: told, long_tail: false };
        let mut streams = vec![stream(to, self.pushes)];
        if let Some(requests) = self.requests {
            let to = Audience::Answered { from: told, count: answered };
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
