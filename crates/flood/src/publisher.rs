//! Publishers. Each has a thread and a schedule of its own, which doesn't depend on the server's
//! speed.
//!
//! Each message carries the time at which it was due, not the time at which it left. So a server
//! that delays the publisher is charged for all messages that wait behind (see "coordinated
//! omission").

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use admin::{Http, NotConnectedError, Url};
use anyhow::{Context, Result};
use random::Random;
use serde_json::json;

use crate::AGENT;
use crate::clock::now_ns;
use crate::crowd::{Published, lock};
use crate::mqtt_publisher::MqttPublisher;
use crate::payload::{Stamp, To};
use crate::template::Template;

/// The longest sleep, so that a publisher soon notices a stop.
const SLEEP_MAX: Duration = Duration::from_millis(50);

/// Who receives the messages of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// A random user for each message.
    Users {
        /// How many users there are.
        count: u32,
        /// A few get most: of 100 messages, 31 go to one in a hundred users and 56 to one in ten.
        long_tail: bool,
    },
    /// A random topic for each message.
    Topics {
        /// How many topics there are.
        count: u32,
    },
    /// A random user for each message, who is answered by a back end: a client publishes it to
    /// [`REQUESTS`] and the user's name, and [`crate::backend`] sends it back.
    Answered {
        /// The index of the first one.
        from: u32,
        /// How many users there are.
        count: u32,
    },
    /// All connections.
    All,
}

/// What topics of requests begin with.
pub const REQUESTS: &str = "requests/";

/// A stream of messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stream {
    /// To whom.
    pub to: Audience,
    /// Messages per second.
    pub per_second: f64,
    /// The stream ends after so many messages.
    pub messages_max: Option<u64>,
}

impl Stream {
    /// Whether a back end answers it.
    pub fn is_answered(&self) -> bool {
        matches!(self.to, Audience::Answered { .. })
    }
}

/// The API that messages are published to.
#[derive(Clone)]
pub enum Api {
    /// Throng's: `POST /api/publish`, `/api/send` and `/api/broadcast`.
    Throng {
        /// The admin port.
        url: Url,
        /// Its key.
        key: Option<String>,
    },
    /// An MQTT broker, to which clients publish.
    Mqtt {
        /// Where it is.
        address: SocketAddr,
        /// How surely they publish.
        qos: u8,
    },
    /// Any server that accepts the payload as the body of a `POST`.
    Plain {
        /// The server.
        url: Url,
        /// The path, with the user or topic of a message.
        path: Template,
    },
}

/// The context that all publishers of a run share.
pub struct PublishContext {
    /// Where messages go.
    pub api: Api,
    /// Where requests go: a broker, and how surely.
    pub requests: Option<(SocketAddr, u8)>,
    /// Names of users and topics.
    pub user: Template,
    /// See `user`.
    pub topic: Template,
    /// The number of the first user, and how many share a topic.
    pub first: u32,
    /// See `first`.
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
    /// Publishes that the server rejected or did not answer.
    pub failed: AtomicU64,
    /// Why the last of these failed.
    pub last_error: std::sync::Mutex<Option<String>>,
    /// Set to end all publishers.
    pub stop: AtomicBool,
}

/// Starts so many publishers for a stream. Each has its own share of the targets, so that the
/// sequence of a target has one writer.
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
        | Audience::Answered { count, .. } => count.max(1),
        Audience::All => 1,
    };
    let of = publishers.clamp(1, targets);
    let begin_ns = now_ns();
    let thread = |at: u32| {
        let context = context.clone();
        std::thread::Builder::new()
            .name(format!("publisher-{at}"))
            .spawn(move || Publisher::new(context, stream, at, of, begin_ns).run())
            .context("starting a publisher thread")
    };
    (0..of).map(thread).collect()
}

/// Publishes so many messages to each of so many topics, as fast as possible.
pub fn publish_each(context: &Arc<PublishContext>, topics: u32, messages: u32) {
    let stream = Stream {
        to: Audience::Topics { count: topics },
        per_second: 1.0,
        messages_max: Some(u64::from(messages)),
    };
    let mut publisher = Publisher::new(context.clone(), stream, 0, 1, now_ns());
    for _ in 0..messages {
        for topic in 0..topics {
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
    at: u32,
    of: u32,
    begin_ns: u64,
    random: Random,
    line: Line,
}

/// A publisher's connection.
enum Line {
    Http(Http),
    Mqtt(MqttPublisher),
}

impl Publisher {
    fn new(context: Arc<PublishContext>, stream: Stream, at: u32, of: u32, begin_ns: u64) -> Self {
        let requests = context.requests.filter(|_| stream.is_answered());
        let line = match (requests, &context.api) {
            (Some((address, qos)), _) => Line::Mqtt(MqttPublisher::new(address, qos)),
            (None, Api::Throng { url, key }) => Line::Http(Http::new(url, key.as_deref(), AGENT)),
            (None, Api::Plain { url, .. }) => Line::Http(Http::new(url, None, AGENT)),
            (None, Api::Mqtt { address, qos }) => Line::Mqtt(MqttPublisher::new(*address, *qos)),
        };
        let random = Random::of(context.seed ^ 0x7075_626c, u64::from(at));
        Self { context, stream, at, of, begin_ns, random, line }
    }

    fn run(mut self) {
        let share = f64::from(self.of);
        let period_ns = 1e9 * share / self.stream.per_second;
        let phase_ns = period_ns * f64::from(self.at) / share;
        let share_of_all = |all: u64| (all + u64::from(self.of - 1 - self.at)) / u64::from(self.of);
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

    /// Returns false when the publishers are to stop.
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
        let Self { at, of, .. } = *self;
        let share = |count: u32| (count + of - 1 - at) / of;
        match self.stream.to {
            Audience::All => To::All,
            Audience::Topics { count } => To::Topic(at + of * self.random.below(share(count))),
            Audience::Answered { from, count } => {
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
        let payload = Stamp { run: context.run, to, number, due_ns }.payload(context.bytes);
        match self.post(to, &payload) {
            Ok((200..300, _)) => {
                context.accepted.fetch_add(1, Ordering::Relaxed);
            }
            Ok((status, body)) => {
                // The server rejected it, so the next message may have its number.
                counter.fetch_sub(1, Ordering::Relaxed);
                let body = String::from_utf8_lossy(&body);
                let body: String = body.chars().take(200).collect();
                self.count_failed(format!("a publish was answered with status {status}: {body}"));
            }
            Err(error) => {
                // Without a connection it was not published. Otherwise nobody knows, and no other
                // message may have the number.
                if error.is::<NotConnectedError>() {
                    counter.fetch_sub(1, Ordering::Relaxed);
                } else {
                    context.published.mark_unsure(to, number);
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

    fn post(&mut self, to: To, payload: &str) -> Result<(u16, Vec<u8>)> {
        let context = &self.context;
        let user = |number: u32| (number, (number - context.first) / context.users_per_room.max(1));
        let topic = |room: u32| (context.first + room * context.users_per_room.max(1), room);
        let (number, room) = match to {
            To::User(number) => user(number),
            To::Topic(room) => topic(room),
            To::All => (0, 0),
        };
        let http = match &mut self.line {
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
                http.request("POST", path, "application/json", &body.to_string())
            }
        }
    }
}

fn counter(context: &PublishContext, to: To) -> Option<&AtomicU32> {
    match to {
        To::User(number) => context.published.users.get((number - context.first) as usize),
        To::Topic(room) => context.published.topics.get(room as usize),
        To::All => Some(&context.published.all),
    }
}
