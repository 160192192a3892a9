//! Publishing in the same run: a thread each, on its own schedule, whatever the server's speed.
//!
//! Each message carries when it was due, not when it left: a server that holds the publisher up is
//! charged for all that waits behind (coordinated omission).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use crate::clock::now_ns;
use crate::crowd::Published;
use crate::http::{Http, NotConnected};
use crate::payload::{Mark, To};
use crate::random::Random;
use crate::target::Url;
use crate::template::Template;

/// The longest sleep, so that a stop is seen soon.
const SLEEP_MAX: Duration = Duration::from_millis(50);

/// Who is published to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// One user at a time, by chance.
    Users {
        /// Of so many.
        count: u32,
        /// A few get most: of 100 messages, 31 go to one in a hundred users and 56 to one in ten.
        long_tail: bool,
    },
    /// One topic at a time, by chance.
    Topics {
        /// Of so many.
        count: u32,
    },
    /// Everyone.
    All,
}

/// A flow of messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stream {
    /// To whom.
    pub to: Audience,
    /// Messages per second.
    pub per_second: f64,
    /// It ends after so many.
    pub messages_max: Option<u64>,
}

/// The application interface that messages go to.
#[derive(Clone)]
pub enum Api {
    /// Throng's: `POST /api/publish`, `/api/send` and `/api/broadcast`.
    Throng {
        /// The admin port.
        url: Url,
        /// Its key.
        key: Option<String>,
    },
    /// Any server that takes the payload as the body of a `POST`.
    Plain {
        /// The server.
        url: Url,
        /// Its path, for the user and room of a message.
        path: Template,
    },
}

/// What all publishers of a run share.
pub struct Desk {
    /// Where messages go.
    pub api: Api,
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
    /// Of all that is random.
    pub seed: u64,
    /// The sequences.
    pub published: Arc<Published>,
    /// Publishes that were taken, and those that weren't.
    pub taken: AtomicU64,
    /// See `taken`.
    pub failed: AtomicU64,
    /// Why one failed, the last time.
    pub failure: std::sync::Mutex<Option<String>>,
    /// Set to end all of them.
    pub stop: AtomicBool,
}

/// Starts so many publishers for a flow; each has its own share of the targets, so that the
/// sequence of a target has one writer.
///
/// # Errors
/// If no threads can be had.
pub fn start(desk: &Arc<Desk>, stream: Stream, publishers: u32) -> Result<Vec<JoinHandle<()>>> {
    let targets = match stream.to {
        Audience::Users { count, .. } | Audience::Topics { count } => count.max(1),
        Audience::All => 1,
    };
    let of = publishers.clamp(1, targets);
    let begin_ns = now_ns();
    let thread = |at: u32| {
        let desk = desk.clone();
        std::thread::Builder::new()
            .name(format!("publisher-{at}"))
            .spawn(move || Publisher::new(desk, stream, at, of, begin_ns).run())
            .context("starting a publisher thread")
    };
    (0..of).map(thread).collect()
}

/// Publishes so many messages to each of so many topics, now.
pub fn publish_each(desk: &Arc<Desk>, topics: u32, messages: u32) {
    let stream = Stream {
        to: Audience::Topics { count: topics },
        per_second: 1.0,
        messages_max: Some(u64::from(messages)),
    };
    let mut publisher = Publisher::new(desk.clone(), stream, 0, 1, now_ns());
    for _ in 0..messages {
        for topic in 0..topics {
            if desk.stop.load(Ordering::Relaxed) {
                return;
            }
            publisher.send(To::Topic(topic), now_ns());
        }
    }
}

struct Publisher {
    desk: Arc<Desk>,
    stream: Stream,
    at: u32,
    of: u32,
    begin_ns: u64,
    random: Random,
    http: Http,
}

impl Publisher {
    fn new(desk: Arc<Desk>, stream: Stream, at: u32, of: u32, begin_ns: u64) -> Self {
        let http = match &desk.api {
            Api::Throng { url, key } => Http::new(url, key.as_deref()),
            Api::Plain { url, .. } => Http::new(url, None),
        };
        let random = Random::new(desk.seed ^ 0x7075_626c ^ (u64::from(at) << 40));
        Self { desk, stream, at, of, begin_ns, random, http }
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

    /// False when it is to stop.
    fn wait_until(&self, due_ns: u64) -> bool {
        while !self.desk.stop.load(Ordering::Relaxed) {
            let now = now_ns();
            if now >= due_ns {
                return true;
            }
            std::thread::sleep(Duration::from_nanos(due_ns - now).min(SLEEP_MAX));
        }
        false
    }

    /// One of this publisher's targets, which are every so manieth.
    fn choose(&mut self) -> To {
        let Self { at, of, .. } = *self;
        let share = |count: u32| (count + of - 1 - at) / of;
        match self.stream.to {
            Audience::All => To::All,
            Audience::Topics { count } => To::Topic(at + of * self.random.below(share(count))),
            Audience::Users { count, long_tail } => {
                let mine = share(count);
                let pick = if long_tail {
                    ((self.random.unit().powi(4) * f64::from(mine)) as u32).min(mine - 1)
                } else {
                    self.random.below(mine)
                };
                To::User(self.desk.first + at + of * pick)
            }
        }
    }

    fn send(&mut self, to: To, due_ns: u64) {
        let desk = self.desk.clone();
        let Some(counter) = counter(&desk, to) else {
            return;
        };
        // Counted before it is on its way: a connection that opens now may already hear it.
        let number = counter.fetch_add(1, Ordering::Relaxed) + 1;
        let payload = Mark { run: desk.run, to, number, due_ns }.payload(desk.bytes);
        match self.post(to, &payload) {
            Ok((200..300, _)) => {
                desk.taken.fetch_add(1, Ordering::Relaxed);
            }
            Ok((status, body)) => {
                // Refused, so not published: the number goes to the next.
                counter.fetch_sub(1, Ordering::Relaxed);
                let body = String::from_utf8_lossy(&body);
                let body: String = body.chars().take(200).collect();
                self.failed(format!("a publish was answered with status {status}: {body}"));
            }
            Err(error) => {
                // Else whether it was published is not known, and the number is gone.
                if error.is::<NotConnected>() {
                    counter.fetch_sub(1, Ordering::Relaxed);
                } else {
                    desk.published.is_unsure(to, number);
                }
                self.failed(format!("{error:#}"));
            }
        }
    }

    fn failed(&self, why: String) {
        self.desk.failed.fetch_add(1, Ordering::Relaxed);
        *self.desk.failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(why);
        std::thread::sleep(SLEEP_MAX);
    }

    fn post(&mut self, to: To, payload: &str) -> Result<(u16, Vec<u8>)> {
        let desk = &self.desk;
        let user = |number: u32| (number, (number - desk.first) / desk.users_per_room.max(1));
        let topic = |room: u32| (desk.first + room * desk.users_per_room.max(1), room);
        let (number, room) = match to {
            To::User(number) => user(number),
            To::Topic(room) => topic(room),
            To::All => (0, 0),
        };
        match &desk.api {
            Api::Plain { path, .. } => {
                self.http.request("POST", &path.text(number, room), "text/plain", payload)
            }
            Api::Throng { .. } => {
                let (path, body) = match to {
                    To::User(_) => {
                        let user = desk.user.text(number, room);
                        ("/api/send", json!({"user": user, "data": payload}))
                    }
                    To::Topic(_) => {
                        let topic = desk.topic.text(number, room);
                        ("/api/publish", json!({"topic": topic, "data": payload}))
                    }
                    To::All => ("/api/broadcast", json!({"data": payload})),
                };
                self.http.request("POST", path, "application/json", &body.to_string())
            }
        }
    }
}

fn counter(desk: &Desk, to: To) -> Option<&AtomicU32> {
    match to {
        To::User(number) => desk.published.users.get((number - desk.first) as usize),
        To::Topic(room) => desk.published.topics.get(room as usize),
        To::All => Some(&desk.published.all),
    }
}
