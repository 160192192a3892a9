//! A seeded simulation of topics with history: clients of all transports connect, read slowly, are
//! cut and come back, while messages are published between any two steps of the shards. Each must
//! hear every message once and in order, or be told that it can't. What a user has not acknowledged
//! is never given up, and comes once on each connection, but where the rule has it again. A message
//! has the same id whenever and however it comes.
//!
//! `SHARD_SEED=n cargo test -p shard simulation` replays one run, with `SHARD_TRACE=1` step by step;
//! `SHARD_SEEDS=n` does so many.

mod client;
mod read;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use broker::{Broker, Local};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use wire::session::Acknowledged;
use wire::{Acknowledge, Data, Draft, History, Id, Rule, Rules};

use crate::command::{Command, Target};
use crate::handle::{Handle, Shared};
use crate::settings::Settings;
use crate::shard::{Shard, WAKE};
use client::Client;
use read::Kind;

/// What is kept of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Big,
    /// So many messages.
    Small(usize),
    Plain,
    Ack,
    /// As big, but only the application puts clients in.
    Extra,
    /// Everyone's.
    All,
}

impl What {
    fn has_history(self) -> bool {
        matches!(self, What::Big | What::Small(_))
    }
}

const TOPICS: [(&str, What); 11] = [
    ("big/a", What::Big),
    ("big/b", What::Big),
    ("big/c", What::Big),
    ("small/a", What::Small(3)),
    ("small/b", What::Small(7)),
    ("plain/a", What::Plain),
    ("plain/b", What::Plain),
    ("ack/a", What::Ack),
    ("ack/b", What::Ack),
    ("extra", What::Extra),
    ("*", What::All),
];
/// Whoever acknowledges on the connection is given this one's messages again.
const AGAIN: usize = 8;
const EXTRA: usize = 9;
const ALL: usize = 10;

/// Messages of an acknowledged topic that may be in flight.
const WINDOW: usize = 3;
const REDELIVERY_SECONDS: u32 = 5;

/// The offsets of each topic's messages.
type Log = Vec<Vec<u64>>;

fn what(topic: usize) -> What {
    TOPICS[topic].1
}

/// How many of these messages are not after a place.
fn count(offsets: &[u64], since: &str) -> usize {
    let id: Id = since.split('/').next().unwrap().parse().unwrap();
    offsets.partition_point(|offset| *offset <= id.offset)
}

fn trace(text: impl FnOnce() -> String) {
    if std::env::var_os("SHARD_TRACE").is_some() {
        println!("{}", text());
    }
}

/// A small generator, so that a seed means the same run for ever.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

fn history(messages_max: u64, acknowledge: Option<Acknowledge>) -> Option<Arc<History>> {
    let (bytes_max, seconds_max) = (1 << 30, 1_000_000);
    let (durable, compact) = (false, false);
    let history = History { messages_max, bytes_max, seconds_max, durable, compact, acknowledge };
    Some(Arc::new(history))
}

fn rules() -> Rules {
    let rule = |(at, (pattern, what)): (usize, &(&str, What))| {
        let history = match *what {
            What::Big | What::Extra => history(1_000_000, None),
            What::Small(kept) => history(kept as u64, None),
            What::Plain | What::All => None,
            What::Ack => {
                let acknowledge = Acknowledge {
                    window_messages_max: WINDOW as u32,
                    redelivery_seconds: if at == AGAIN { REDELIVERY_SECONDS } else { 0 },
                    tries_max: 0,
                    dead_letter: None,
                };
                history(1_000_000, Some(acknowledge))
            }
        };
        history.is_some().then(|| Rule { pattern: (*pattern).into(), history, ..Rule::default() })
    };
    Rules { rules: TOPICS.iter().enumerate().filter_map(rule).collect(), ..Rules::default() }
}

pub(crate) fn settings() -> Settings {
    let never = 1_000_000;
    Settings {
        session: wire::Settings {
            http: wire::http::Limits {
                head_bytes_max: 8192,
                uri_bytes_max: 4096,
                body_bytes_max: 4096,
                longpoll_body_bytes_max: 4096,
            },
            cors_origins: vec!["*".into()],
            rules: rules(),
            topics_per_connection_max: 16,
            message_bytes_max: 4096,
            frame_bytes_max: 4096,
            sse_retry_ms: 2000,
            poll_seconds: 25,
            poll_seconds_max: 60,
            compression: false,
            ws_echo: false,
            status_page: false,
            longpoll_key: wire::phoenix::token::Key([0; 32]),
            files: Arc::new([]),
        },
        connections_max: never,
        connections_per_address_max: 0,
        accept_per_second_max: 0,
        outbox_bytes_max: 12 << 10,
        outbox_messages_max: 60,
        input_bytes_max: never as usize,
        outboxes_bytes_max: never as usize,
        publishes_per_second_max: 0,
        joins_per_second_max: 0,
        head_seconds: never as u32,
        idle_seconds: never as u32,
        sse_heartbeat_seconds: 10,
        stream_heartbeat_seconds: 10,
        ws_ping_seconds: never as u32,
        ws_silence_seconds: never as u32,
        phoenix_silence_seconds: never as u32,
        longpoll_seconds: 25,
        longpoll_sessions_max: 10,
        longpoll_sessions_per_address_max: 0,
        presence_meta_bytes_max: 100,
    }
}

/// What one run does more or less of, so that runs differ.
struct Swarm {
    kinds: Vec<Kind>,
    topics: Vec<usize>,
    /// Of publishing, shards' turns, clients' reads, cuts, acknowledgements, what the application
    /// does, clients' commands, and time.
    weights: [usize; 8],
}

impl Swarm {
    fn new(random: &mut Random) -> Self {
        let mut kinds = Kind::ALL.to_vec();
        while random.one_in(2) && kinds.len() > 1 {
            kinds.swap_remove(random.below(kinds.len()));
        }
        let mut topics: Vec<usize> = (0..TOPICS.len()).collect();
        while !random.one_in(8) && topics.len() > 1 {
            topics.swap_remove(random.below(topics.len()));
        }
        let weights = [25, 40, 22, 4, 3, 3, 8, 3].map(|weight| weight * (1 + random.below(7)));
        Swarm { kinds, topics, weights }
    }
}

struct World {
    random: Random,
    swarm: Swarm,
    broker: Arc<Local>,
    handles: Vec<Handle>,
    shards: Vec<Shard>,
    /// Which part of its turn each shard has come to.
    parts: Vec<usize>,
    clients: Vec<Client>,
    log: Log,
    /// How many messages of a topic each user has acknowledged, or was there before.
    acknowledged: BTreeMap<(String, usize), usize>,
    publishes: bool,
    now_us: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed);
        let handles: Vec<Handle> =
            (0..1 + random.below(2)).map(|_| crate::start::handle_for_tests(200)).collect();
        let inboxes = handles.iter().map(Handle::inbox).collect();
        let kept = broker::KeptLimits {
            history_bytes_max: 1 << 30,
            topics_max: 1_000,
            idempotency_keys_max: 10,
            cursors_max: 1_000,
        };
        let limits = broker::Limits {
            recent_messages_max: 1_000_000,
            recent_bytes_max: 1 << 30,
            recent_seconds_max: 1_000_000,
            kept,
        };
        let started = Instant::now();
        let broker = Arc::new(Local::new(inboxes, [7; 20], started, limits, None));
        broker.kept().set_rules(Arc::new(rules()), 60);
        let presence = crate::PresenceLimits {
            users_max: 0,
            list_bytes_max: 0,
            interval_us: 1_000,
            members_per_ms: 0,
        };
        let presence = crate::Presence::new(presence, 1);
        let shared = Arc::new(Shared::new(presence, Arc::default()));
        let mut shards =
            crate::start::for_tests(&handles, settings(), broker.clone(), shared, started);
        for shard in &mut shards {
            // These tell connections and follows apart that had a place in turn, and wrap around.
            shard.serial = u32::MAX - (seed % 40) as u32;
            shard.following.number = u32::MAX - (seed % 90) as u32;
        }
        let swarm = Swarm::new(&mut random);
        // Many members make fan-outs long.
        let count = 2 + random.below(8) + if random.one_in(3) { 14 } else { 0 };
        let clients = (0..count).map(|name| Self::client(name, &swarm, &mut random));
        World {
            clients: clients.collect(),
            swarm,
            random,
            broker,
            handles,
            parts: vec![0; shards.len()],
            shards,
            log: vec![Vec::new(); TOPICS.len()],
            acknowledged: BTreeMap::new(),
            publishes: true,
            now_us: 1_000_000,
        }
    }

    fn client(name: usize, swarm: &Swarm, random: &mut Random) -> Client {
        let kind = swarm.kinds[random.below(swarm.kinds.len())];
        let mut topics = Vec::new();
        for _ in 0..1 + random.below(4) {
            let topic = swarm.topics[random.below(swarm.topics.len())];
            if !topics.contains(&topic) && topic < EXTRA {
                topics.push(topic);
            }
        }
        if topics.is_empty() && kind == Kind::Poll {
            topics.push(0);
        }
        if kind == Kind::Phoenix {
            topics.clear();
        }
        let user = if random.one_in(3) { "both".into() } else { format!("u{name}") };
        Client::new(name, kind, user, topics)
    }

    fn publish(&mut self, topic: usize) {
        let number = self.log[topic].len();
        let fill = "x".repeat(self.random.below(400));
        let data = Data::Text(format!("<{topic}.{number}>{fill}").into());
        if let Ok(id) = self.broker.publish(Draft::new(TOPICS[topic].0, data), None) {
            trace(|| format!("published {} {number} as {}", TOPICS[topic].0, id.offset));
            self.log[topic].push(id.offset);
        }
    }

    /// One part of a shard's turn; see `Shard::turn`.
    fn part(&mut self, at: usize) {
        let shard = &mut self.shards[at];
        shard.now_us = self.now_us;
        trace(|| format!("shard {at}: part {}", self.parts[at]));
        match self.parts[at] {
            0 => self.events(at),
            1 => shard.run_commands(),
            2 => shard.lift(),
            3 => shard.fan_out(),
            _ => shard.sweep(),
        }
        self.parts[at] = (self.parts[at] + 1) % 5;
    }

    /// What sockets and the mailbox say. Others publish meanwhile, as long as it is not the end.
    fn events(&mut self, at: usize) {
        self.shards[at].go_on_waiting();
        for slot in std::mem::take(&mut self.shards[at].unread) {
            self.shards[at].readable(slot, true);
        }
        let events = self.shards[at].poller.wait(0).unwrap();
        let mut events: Vec<_> = (0..events).map(|it| self.shards[at].poller.event(it)).collect();
        if let Some(wake) = events.iter().position(|it| it.0 == WAKE) {
            let to = self.random.below(events.len());
            events.swap(wake, to);
        }
        for (token, flags) in events {
            match token {
                WAKE => self.shards[at].wake(),
                slot => self.shards[at].ready(slot as u32, flags),
            }
            for _ in 0..if self.publishes { self.random.below(3) } else { 0 } {
                let topic = self.topic();
                self.publish(topic);
            }
        }
    }

    fn end_turn(&mut self, at: usize) {
        while self.parts[at] != 0 {
            self.part(at);
        }
    }

    fn connect(&mut self, client: usize) {
        let at = self.random.below(self.shards.len());
        self.end_turn(at);
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        sockopt::set_socket_send_buffer_size(&theirs, 1).unwrap();
        let reload = self.random.one_in(4) && self.clients[client].may_reload();
        let seconds = self.random.below(20) as u32;
        let request = self.clients[client].request(seconds, reload);
        trace(|| format!("client {client} connects to shard {at}: {request}"));
        let sent = rustix::io::write(&ours, request.as_bytes());
        assert_eq!(sent, Ok(request.len()));
        let user = self.clients[client].user.clone();
        for topic in (0..TOPICS.len()).filter(|it| what(*it) == What::Ack) {
            let progress = self.broker.kept().progress(&user, TOPICS[topic].0);
            assert_eq!(progress.given_up, None, "{user} has not read all of {topic}");
            let count = |offset| self.log[topic].partition_point(|it| *it <= offset);
            let (has, known) = (progress.acknowledged.map(count), (user.clone(), topic));
            if self.clients[client].topics.contains(&topic) {
                self.acknowledged.entry(known.clone()).or_insert(self.log[topic].len());
            }
            let want = self.acknowledged.get(&known);
            assert!(has.is_none() || has.as_ref() == want, "{user}: {has:?} of {topic}");
        }
        let acknowledged = &self.acknowledged;
        let cursor = |topic: usize| acknowledged[&(user.clone(), topic)];
        self.clients[client].begin(&self.log, ours, &cursor);
        self.shards[at].now_us = self.now_us;
        self.shards[at].admit(theirs, None);
    }

    /// A client says that its user has one of the messages that it got.
    fn acknowledge(&mut self, client: usize, last: bool) {
        self.end_turn(0);
        let Client { user, connection, .. } = &self.clients[client];
        let Some(connection) = connection else { return };
        let found: Vec<(usize, usize)> = connection
            .acks
            .iter()
            .filter_map(|(topic, acks)| {
                let at = if last { acks.received.len() } else { acks.received.len().min(2) };
                acks.received.iter().nth(at.checked_sub(1)?).map(|number| (*topic, *number))
            })
            .collect();
        let user = user.clone();
        for (topic, number) in found {
            let epoch = self.broker.kept().epoch();
            let id = Id { epoch, offset: self.log[topic][number] };
            let name = TOPICS[topic].0;
            trace(|| format!("{user} acknowledges {name} {number}"));
            let acknowledged =
                Acknowledged { user: Some(user.as_str().into()), topic: Some(name.into()), id };
            self.shards[0].acknowledge(None, acknowledged).unwrap();
            let cursor = self.acknowledged.get_mut(&(user.clone(), topic)).unwrap();
            *cursor = (*cursor).max(number + 1);
            let cursor = *cursor;
            for other in self.clients.iter_mut().filter(|it| it.user == user) {
                if let Some(heard) = other.heard.get_mut(&topic) {
                    heard.acknowledged = cursor;
                }
                let acks = other.connection.as_mut().and_then(|it| it.acks.get_mut(&topic));
                if let Some(acks) = acks {
                    acks.cursors.push(cursor);
                    acks.received.retain(|it| *it >= cursor);
                }
            }
        }
    }

    fn application(&mut self, client: usize) {
        let user: wire::Name = self.clients[client].user.as_str().into();
        let action = self.random.below(5);
        trace(|| format!("the application does {action} to {user}"));
        for handle in &self.handles {
            let (user, topic) = (user.clone(), TOPICS[EXTRA].0.into());
            handle.send(match action {
                0..3 => Command::Subscribe { user, topic, reply: Box::new(|_| ()) },
                3 => Command::Unsubscribe { user, topic, reply: Box::new(|_| ()) },
                _ => {
                    let (target, close) = (Target::User(user), wire::Close::ByApplication);
                    Command::Disconnect { target, close, reply: Box::new(|_| ()) }
                }
            });
        }
        for other in self.clients.iter_mut().filter(|it| it.user == user) {
            other.is_put_in |= action < 3;
        }
        if action == 3 {
            for other in self.clients.iter_mut().filter(|it| it.user == user) {
                other.connection.iter_mut().for_each(|it| it.loose = true);
            }
        }
    }

    fn step(&mut self) {
        let client = self.random.below(self.clients.len());
        let sum: usize = self.swarm.weights.iter().sum();
        let mut left = self.random.below(sum);
        let taken = self.swarm.weights.iter().take_while(|weight| {
            let more = left >= **weight;
            left = left.wrapping_sub(if more { **weight } else { 0 });
            more
        });
        match taken.count() {
            0 => {
                let one = self.topic();
                for _ in 0..1 + self.random.below(5) {
                    let topic = if self.random.one_in(3) { one } else { self.topic() };
                    self.publish(topic);
                }
            }
            1 => {
                let at = self.random.below(self.shards.len());
                for _ in 0..1 + self.random.below(7) {
                    self.part(at);
                }
            }
            2 => self.act(client),
            3 => {
                if self.clients[client].connection.take().is_some() {
                    trace(|| format!("client {client} is cut"));
                }
            }
            4 => self.acknowledge(client, self.now_us.is_multiple_of(2)),
            5 => self.application(client),
            6 => self.command(client),
            _ => self.now_us += self.random.below(3_000_000) as u64,
        }
    }

    fn topic(&mut self) -> usize {
        self.swarm.topics[self.random.below(self.swarm.topics.len())]
    }

    fn command(&mut self, client: usize) {
        let (topic, enter) = (self.topic(), !self.random.one_in(3));
        if self.clients[client].kind.is_socket() && topic < EXTRA {
            self.clients[client].command(topic, enter);
        }
    }

    /// A client connects, polls or reads.
    fn act(&mut self, client: usize) {
        let bytes_max = [1, 50, 300, 2_000, 20_000][self.random.below(5)];
        let seconds = self.random.below(20) as u32;
        match &self.clients[client].connection {
            None => self.connect(client),
            Some(connection) if !connection.asks && self.clients[client].kind == Kind::Poll => {
                self.clients[client].poll_again(seconds);
            }
            Some(_) => {
                self.clients[client].read(&self.log, bytes_max);
            }
        }
    }

    /// Nothing is published any more, and everyone reads: who is there must get everything.
    fn end(&mut self) {
        self.publishes = false;
        let mut missing = BTreeMap::new();
        for _ in 0..4_000 {
            missing.clear();
            for client in 0..self.clients.len() {
                match &self.clients[client].connection {
                    None => self.connect(client),
                    Some(it) if !it.asks && self.clients[client].kind == Kind::Poll => {
                        self.clients[client].poll_again(1);
                    }
                    Some(_) => {
                        self.clients[client].read(&self.log, 100_000);
                    }
                }
                self.acknowledge(client, true);
                if let Err(why) = self.clients[client].has_all(&self.log) {
                    missing.insert(client, why);
                }
            }
            for at in 0..self.shards.len() {
                self.end_turn(at);
                (0..15).for_each(|_| self.part(at));
            }
            self.now_us += 400_000;
            if missing.is_empty() {
                return;
            }
        }
        panic!("at the end: {missing:?}");
    }
}

/// Says which run it was that failed.
struct Failing(u64);

impl Drop for Failing {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("failed: SHARD_SEED={}", self.0);
        }
    }
}

fn run(seed: u64, steps: usize) {
    let failing = Failing(seed);
    let mut world = World::new(seed);
    for _ in 0..steps {
        world.step();
    }
    world.end();
    std::mem::forget(failing);
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn every_client_hears_everything_once_and_in_order() {
    if let Some(seed) = number("SHARD_SEED") {
        return run(seed, 400);
    }
    let seeds = number("SHARD_SEEDS").unwrap_or(200);
    let mut failed = Vec::new();
    for seed in 0..seeds {
        if std::panic::catch_unwind(|| run(seed, 400)).is_err() {
            failed.push(seed);
        }
    }
    assert!(failed.is_empty(), "failed: {failed:?}");
}
