//! Publishers. Each has a thread and a schedule of its own, which doesn't depend on the server's
//! speed.
//!
//! Each message carries the time at which it was due, not the time at which it left. So a server that delays the
//! publisher is charged for all messages that wait behind it (see "coordinated omission").

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use admin::{Http, Layer, NotConnectedError, Url};
use anyhow::{Context, Result};
use random::Random;
use serde_json::json;

use crate::AGENT;
use crate::clock::now_ns;
use crate::crowd::{Clock, Part, Published, lock};
use crate::mqtt_publisher::MqttPublisher;
use crate::payload::{Stamp, To};
use crate::template::Template;

/// The longest sleep, so that a publisher soon notices a stop.
const SLEEP_MAX: Duration = Duration::from_millis(50);

/// The receivers of a stream's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// A random user for each message.
    Users {
        /// The number of users.
        count: u32,
        /// A few get most messages: of 100, 31 go to one in a hundred users and 56 to one in ten.
        long_tail: bool,
    },
    /// A random topic for each message.
    Topics {
        /// The number of topics.
        count: u32,
    },
    /// A random user for each message, to whom a back end replies: a client publishes the message to [`REQUESTS`]
    /// plus the user's name, and [`crate::backend`] sends it back.
    Requesters {
        /// The index of the first user.
        from: u32,
        /// The number of users.
        count: u32,
    },
    /// All connections.
    All,
}

/// The prefix of topics of requests.
pub const REQUESTS: &str = "requests/";

/// A stream of messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stream {
    /// Its receivers.
    pub to: Audience,
    /// Messages per second.
    pub per_second: f64,
    /// The stream ends after this many messages.
    pub messages_max: Option<u64>,
}

impl Stream {
    /// Returns true if a back end replies to the stream.
    pub fn has_replies(&self) -> bool {
        matches!(self.to, Audience::Requesters { .. })
    }
}

/// The API that messages are published to.
#[derive(Clone)]
pub enum Api {
    /// Throng's: `POST /api/publish`, `/api/send` and `/api/broadcast`.
    Throng {
        /// The admin ports of its nodes, which publish in turn.
        urls: Vec<Url>,
        /// Its key.
        key: Option<String>,
    },
    /// An MQTT broker; each publisher is a client of it.
    Mqtt(Broker),
    /// Any server that accepts the payload as the body of a `POST`.
    Plain {
        /// The server.
        url: Url,
        /// The path, with the user or topic of a message.
        path: Template,
    },
}

/// An MQTT broker that clients publish to.
#[derive(Clone)]
pub struct Broker {
    /// Its address.
    pub address: SocketAddr,
    /// The QoS of publishes.
    pub qos: u8,
    /// The layer for TLS, if the broker needs it.
    pub layer: Option<Layer>,
}

/// The context that all publishers of a run share.
pub struct PublishContext {
    /// The API for messages.
    pub api: Api,
    /// The broker for requests.
    pub requests: Option<Broker>,
    /// Names of users and topics.
    pub user: Template,
    /// See `user`.
    pub topic: Template,
    /// The number of the first user.
    pub first: u32,
    /// How many users share a topic.
    pub users_per_room: u32,
    /// Bytes of a payload.
    pub bytes: usize,
    /// The number of this run.
    pub run: u32,
    /// The seed of all random numbers.
    pub seed: u64,
    /// The sequence numbers.
    pub published: Arc<Published>,
    /// Publishes that the server accepted.
    pub accepted: AtomicU64,
    /// Publishes that the server rejected or sent no reply to.
    pub failed: AtomicU64,
    /// Publishes that broke off with one of several nodes.
    pub unsure: AtomicU64,
    /// The clock of the stamps.
    pub clock: Clock,
    /// Times of the accepted publishes from request to reply, in microseconds.
    pub times: std::sync::Mutex<hdrhistogram::Histogram<u64>>,
    /// The error of the last failed publish.
    pub last_error: std::sync::Mutex<Option<String>>,
    /// Set to end all publishers.
    pub stop: AtomicBool,
}

/// Nanoseconds for which publishers skip a node that can't be reached or can't publish now.
const PASSED_OVER_NS: u64 = 1_000_000_000;

/// Starts this many publishers for a stream. Each has its own share of the targets, so that the sequence of a target
/// has one writer. Agents publish to their own users and topics.
///
/// # Errors
/// If the system can't start a thread.
pub fn start(
    context: &Arc<PublishContext>,
    stream: Stream,
    publishers: u32,
) -> Result<Vec<JoinHandle<()>>> {
    let targets = match stream.to {
        Audience::Users { count, .. }
        | Audience::Topics { count }
        | Audience::Requesters { count, .. } => count.max(1),
        Audience::All => 1,
    };
    let begin_ns = now_ns();
    let thread = |share: TargetShare| {
        let context = context.clone();
        std::thread::Builder::new()
            .name(format!("publisher-{}", share.at))
            .spawn(move || Publisher::new(context, stream, share, begin_ns).run())
            .context("starting a publisher thread")
    };
    target_shares(context.published.part, stream.to, publishers, targets).map(thread).collect()
}

/// A publisher's share of a stream: the targets `at`, `at + of`, `at + 2 * of` and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TargetShare {
    at: u32,
    of: u32,
    /// The number of publishers, including those of other agents.
    publishers: u32,
}

/// Returns the shares of one agent's publishers; each agent has `publishers` of them.
fn target_shares(
    part: Part,
    to: Audience,
    publishers: u32,
    targets: u32,
) -> impl Iterator<Item = TargetShare> {
    let parts = part.of.max(1);
    let of = parts * publishers.clamp(1, (targets / parts).max(1));
    // The users must be this agent's own: the first target may have any index.
    let first = match to {
        Audience::Requesters { from, .. } => (part.number + parts - from % parts) % parts,
        _ => part.number,
    };
    let share = move |at| TargetShare { at, of, publishers: of.min(targets) };
    (first..of).step_by(parts as usize).filter(move |at| *at < targets).map(share)
}

/// Publishes `messages` messages to each of this agent's topics, as fast as possible.
pub fn publish_each(context: &Arc<PublishContext>, topics: u32, messages: u32) {
    let stream = Stream {
        to: Audience::Topics { count: topics },
        per_second: 1.0,
        messages_max: Some(u64::from(messages)),
    };
    let part = context.published.part;
    let share = TargetShare { at: part.number, of: part.of, publishers: 1 };
    let mut publisher = Publisher::new(context.clone(), stream, share, now_ns());
    for _ in 0..messages {
        for topic in (0..topics).filter(|topic| part.has(*topic)) {
            if context.stop.load(Ordering::Relaxed) {
                return;
            }
            publisher.send(To::Topic(topic), now_ns());
        }
    }
}

struct Publisher {
    context: Arc<PublishContext>,
    stream: Stream,
    share: TargetShare,
    begin_ns: u64,
    random: Random,
    line: Line,
}

/// A node that publishes messages.
struct Node {
    http: Http,
    /// Publishers skip the node until this time.
    away_until_ns: u64,
}

/// A publisher's connections.
enum Line {
    Nodes(Vec<Node>),
    Http(Http),
    Mqtt(MqttPublisher),
}

impl Publisher {
    fn new(
        context: Arc<PublishContext>,
        stream: Stream,
        share: TargetShare,
        begin_ns: u64,
    ) -> Self {
        let requests = context.requests.as_ref().filter(|_| stream.has_replies());
        let mqtt = |Broker { address, qos, layer }: &Broker| {
            Line::Mqtt(MqttPublisher::new(*address, *qos, layer.clone()))
        };
        let line = match (requests, &context.api) {
            (Some(broker), _) | (None, Api::Mqtt(broker)) => mqtt(broker),
            (None, Api::Throng { urls, key }) => {
                let http = |url| Http::new(url, key.as_deref(), AGENT);
                let node = |url| Node { http: http(url), away_until_ns: 0 };
                Line::Nodes(urls.iter().map(node).collect())
            }
            (None, Api::Plain { url, .. }) => Line::Http(Http::new(url, None, AGENT)),
        };
        let random = Random::of(context.seed ^ 0x7075_626c, u64::from(share.at));
        Self { context, stream, share, begin_ns, random, line }
    }

    fn run(mut self) {
        let TargetShare { at, publishers: of, .. } = self.share;
        let period_ns = 1e9 * f64::from(of) / self.stream.per_second;
        let phase_ns = period_ns * f64::from(at) / f64::from(of);
        let share_of_all = |all: u64| (all + u64::from(of - 1 - at)) / u64::from(of);
        let messages = self.stream.messages_max.map_or(u64::MAX, share_of_all);
        for message in 0..messages {
            let after_ns = (phase_ns + period_ns * message as f64) as u64;
            let due_ns = self.begin_ns.saturating_add(after_ns);
            if !self.wait_until(due_ns) {
                return;
            }
            let to = self.choose();
            self.send(to, due_ns);
        }
    }

    /// Returns false when the publishers must stop.
    fn wait_until(&self, due_ns: u64) -> bool {
        while !self.context.stop.load(Ordering::Relaxed) {
            let now = now_ns();
            if now >= due_ns {
                return true;
            }
            std::thread::sleep(Duration::from_nanos(due_ns - now).min(SLEEP_MAX));
        }
        false
    }

    /// Returns a random one of this publisher's targets: `at`, `at + of`, `at + 2 * of` and so on.
    fn choose(&mut self) -> To {
        let TargetShare { at, of, .. } = self.share;
        let share = |count: u32| (count + of - 1 - at) / of;
        match self.stream.to {
            Audience::All => To::All,
            Audience::Topics { count } => To::Topic(at + of * self.random.below(share(count))),
            Audience::Requesters { from, count } => {
                To::User(self.context.first + from + at + of * self.random.below(share(count)))
            }
            Audience::Users { count, long_tail } => {
                let mine = share(count);
                let pick = if long_tail {
                    ((self.random.unit().powi(4) * f64::from(mine)) as u32).min(mine - 1)
                } else {
                    self.random.below(mine)
                };
                To::User(self.context.first + at + of * pick)
            }
        }
    }

    fn send(&mut self, to: To, due_ns: u64) {
        let context = self.context.clone();
        let Some(counter) = counter(&context, to) else {
            return;
        };
        // The count comes first: a connection that opens now may already receive the message.
        let number = counter.fetch_add(1, Ordering::Relaxed) + 1;
        let due_ns = context.clock.of_run(due_ns);
        let payload = Stamp { run: context.run, to, number, due_ns }.payload(context.bytes);
        let sent_ns = now_ns();
        match self.post(to, number, &payload) {
            Ok((200..300, _)) => {
                context.accepted.fetch_add(1, Ordering::Relaxed);
                let us = now_ns().saturating_sub(sent_ns) / 1_000;
                lock(&context.times).saturating_record(us.max(1));
            }
            Ok((status, body)) => {
                // The server rejected the message, so the next one may have its number.
                counter.fetch_sub(1, Ordering::Relaxed);
                let body = String::from_utf8_lossy(&body);
                let body: String = body.chars().take(200).collect();
                self.count_failed(format!("a publish was answered with status {status}: {body}"));
            }
            Err(error) => {
                // Without a connection the message was not published. Otherwise this is unknown, and no other message
                // may have the number.
                if error.is::<NotConnectedError>() {
                    counter.fetch_sub(1, Ordering::Relaxed);
                } else {
                    context.published.mark_unsure(to, number);
                    if context.published.nodes > 1 {
                        context.unsure.fetch_add(1, Ordering::Relaxed);
                        return;
                    }
                }
                self.count_failed(format!("{error:#}"));
            }
        }
    }

    fn count_failed(&self, why: String) {
        self.context.failed.fetch_add(1, Ordering::Relaxed);
        *lock(&self.context.last_error) = Some(why);
        std::thread::sleep(SLEEP_MAX);
    }

    fn post(&mut self, to: To, message: u32, payload: &str) -> Result<(u16, Vec<u8>)> {
        let context = &self.context;
        let user = |number: u32| (number, (number - context.first) / context.users_per_room.max(1));
        let topic = |room: u32| (context.first + room * context.users_per_room.max(1), room);
        let (number, room) = match to {
            To::User(number) => user(number),
            To::Topic(room) => topic(room),
            To::All => (0, 0),
        };
        let http = match &mut self.line {
            Line::Nodes(nodes) => {
                let (path, body) = call(context, to, number, room, payload);
                return in_turn(nodes, &context.published, to, message, path, &body);
            }
            Line::Http(http) => http,
            Line::Mqtt(mqtt) => {
                let topic = match to {
                    To::User(_) => format!("{REQUESTS}{}", context.user.text(number, room)),
                    To::Topic(_) | To::All => context.topic.text(number, room),
                };
                mqtt.publish(&topic, payload)?;
                return Ok((200, Vec::new()));
            }
        };
        match &context.api {
            Api::Plain { path, .. } => {
                http.request("POST", &path.text(number, room), "text/plain", payload)
            }
            Api::Throng { .. } | Api::Mqtt { .. } => {
                let (path, body) = call(context, to, number, room, payload);
                http.request("POST", path, "application/json", &body)
            }
        }
    }
}

/// Returns the call of Throng's API that publishes a message: its path and its body.
fn call(
    context: &PublishContext,
    to: To,
    number: u32,
    room: u32,
    payload: &str,
) -> (&'static str, String) {
    let (path, body) = match to {
        To::User(_) => {
            let user = context.user.text(number, room);
            ("/api/send", json!({"user": user, "data": payload}))
        }
        To::Topic(_) => {
            let topic = context.topic.text(number, room);
            ("/api/publish", json!({"topic": topic, "data": payload}))
        }
        To::All => ("/api/broadcast", json!({"data": payload})),
    };
    (path, body.to_string())
}

/// Publishes a message at the node whose turn it is. If that node can't be reached or can't publish now, the next one
/// does.
fn in_turn(
    nodes: &mut [Node],
    published: &Published,
    to: To,
    message: u32,
    path: &str,
    body: &str,
) -> Result<(u16, Vec<u8>)> {
    let (count, first, now) = (nodes.len(), published.turn(to, message), now_ns());
    let mut order: Vec<usize> = (first..first + count).map(|at| at % count).collect();
    order.sort_by_key(|at| nodes[*at].away_until_ns > now);
    let mut refused = Err(NotConnectedError.into());
    for at in order {
        let node = &mut nodes[at];
        let response = node.http.request("POST", path, "application/json", body);
        if count == 1 {
            return response;
        }
        let is_away = match &response {
            Ok((status, _)) => *status == 503,
            Err(error) => error.is::<NotConnectedError>(),
        };
        if is_away || response.is_err() {
            node.away_until_ns = now_ns() + PASSED_OVER_NS;
        }
        if !is_away {
            if at != first {
                published.mark_moved(to, message);
            }
            return response;
        }
        refused = response;
    }
    refused
}

fn counter(context: &PublishContext, to: To) -> Option<&AtomicU32> {
    match to {
        To::User(number) => context.published.users.get((number - context.first) as usize),
        To::Topic(room) => context.published.topics.get(room as usize),
        To::All => Some(&context.published.all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_all_agents_cover_each_target_once_and_users_stay_with_theirs() {
        for (parts, publishers, targets) in
            [(1, 4, 3), (1, 1, 10), (3, 2, 100), (3, 4, 7), (4, 1, 2), (2, 8, 1)]
        {
            for from in [0, 1, 5] {
                let to = Audience::Requesters { from, count: targets };
                let mut covered = vec![0; targets as usize];
                let mut shares_of_all = 0;
                for number in 0..parts {
                    let part = Part { number, of: parts };
                    for share in target_shares(part, to, publishers, targets) {
                        shares_of_all += 1;
                        assert_eq!(share.publishers, share.of.min(targets));
                        for target in (share.at..targets).step_by(share.of as usize) {
                            covered[target as usize] += 1;
                            assert!(part.has(from + target), "{from} + {target} in {part:?}");
                        }
                    }
                }
                assert!(covered.iter().all(|times| *times == 1), "{parts} {publishers} {targets}");
                assert_eq!(
                    shares_of_all,
                    (parts * publishers.clamp(1, (targets / parts).max(1))).min(targets)
                );
            }
        }
    }
}
