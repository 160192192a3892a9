//! A seeded simulation of topics with history. Clients of all transports connect, read slowly, are cut and come back,
//! while messages are published between any two steps of the shards.
//!
//! Each client must get every message once and in order, or a notice that it can't. A message that a user has not
//! acknowledged is never given up. It comes once on each connection, unless the rule redelivers it. The id of a message
//! is always the same. If a rule has `conflate`, a slow client gets the newest message of each key and is not closed.
//! Now and then new engines replace all old ones, as in an upgrade, and no client may notice.
//!
//! `SHARD_SEED=n cargo test -p engine simulation` replays one run, with `SHARD_TRACE=1` step by step. `SHARD_SEEDS=n`
//! sets the number of runs.

mod client;
pub(crate) mod late;
mod log;
mod newest;
mod progress;
mod read;
mod setup;
mod state;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use broker::{Broker, Options, Publish};
use history::History;
use history_local::{Begin, HistoryLimits};
use model::{Attributes, CloseReason, Data, Position, Publication};
use protocol::request::Acknowledgement;
use random::Random;

use crate::core::command::{Command, Target};
use crate::core::count::count as in_32_bits;
use crate::core::handle::Handle;
use crate::core::settings::Settings;
use crate::testing::{self, Driver, Services, Upgrade};
use client::{Client, key_of};
use late::Late;
use log::{CONFLATED, EXTRA, Log, PASSING, TOPICS, What, conflates, what};
use progress::RequestedHistory;
use read::Kind;
use setup::rules;
pub(crate) use setup::settings;
use state::{Change, KEYS};

fn trace(text: impl FnOnce() -> String) {
    static TRACES: LazyLock<bool> = LazyLock::new(|| std::env::var_os("SHARD_TRACE").is_some());
    if *TRACES {
        println!("{}", text());
    }
}

/// The focus of a run, so that runs differ.
struct Swarm {
    kinds: Vec<Kind>,
    topics: Vec<usize>,
    /// The weights of publishing, shards' turns, clients' reads, cuts, acknowledgements, the application's actions,
    /// clients' commands, time, reloads of settings, and upgrades.
    weights: [usize; 10],
}

impl Swarm {
    fn new(topics: Range<usize>, random: &mut Random) -> Self {
        let mut kinds = Kind::ALL.to_vec();
        while random.one_in(2) && kinds.len() > 1 {
            kinds.swap_remove(random.below(kinds.len()));
        }
        let mut topics: Vec<usize> = topics.collect();
        while !random.one_in(8) && topics.len() > 1 {
            topics.swap_remove(random.below(topics.len()));
        }
        let weights = [25, 40, 22, 4, 3, 3, 8, 3, 1, 2].map(|it| it * (1 + random.below(7)));
        Swarm { kinds, topics, weights }
    }
}

struct World {
    random: Random,
    swarm: Swarm,
    broker: Arc<broker::Local>,
    history: Arc<history_local::Local>,
    /// The shards' history, if it replies later.
    late: Option<Arc<Late>>,
    handles: Vec<Handle>,
    shards: Vec<Driver>,
    services: Services,
    /// New engines with copies of connections.
    upgrading: Option<Upgrade>,
    /// The next part of each shard's turn.
    parts: Vec<usize>,
    clients: Vec<Client>,
    log: Log,
    /// How many messages of a topic each user has acknowledged. Messages from before the user's first connection count
    /// as acknowledged.
    acknowledged: BTreeMap<(String, usize), usize>,
    /// The number of shards that still have to take a user's connections out of a topic.
    leaving: BTreeMap<String, Arc<AtomicUsize>>,
    publishes: bool,
    /// Connections that earlier engines have closed because they read too slowly.
    closed_before: u64,
    now_us: u64,
}

impl World {
    /// `topics` are those to which messages are published.
    fn new(seed: u64, is_late: bool, topics: Range<usize>) -> Self {
        let mut random = Random::new(seed);
        let handles: Vec<Handle> = (0..1 + random.below(2)).map(|_| testing::handle(200)).collect();
        let inboxes = handles.iter().map(Handle::inbox).collect();
        let router = Arc::new(broker::Router::new(inboxes));
        let history_limits = HistoryLimits {
            history_bytes_max: 1 << 30,
            topics_max: 1_000,
            idempotency_keys_max: 10,
            cursors_max: 1_000,
        };
        let limits = broker::Limits {
            recent_messages_max: 1_000_000,
            recent_bytes_max: 1 << 30,
            recent_seconds_max: 1_000_000,
        };
        let started = Instant::now();
        let begin = Begin::in_memory(broker::epoch(&[7; 20]));
        let history = Arc::new(history_local::Local::new(
            router.clone(),
            begin,
            started,
            history_limits,
            limits,
        ));
        history.set_rules(Arc::new(rules()), 60);
        let broker =
            Arc::new(broker::Local::new(router, [7; 20], started, limits, history.clone()));
        let late = is_late.then(|| Late::new((*history).clone(), seed));
        let requested: Arc<dyn History> = match &late {
            Some(late) => late.clone(),
            None => history.clone(),
        };
        let presence = presence::Limits {
            users_max: 0,
            list_bytes_max: 0,
            interval_us: 1_000,
            members_per_ms: 0,
        };
        let services = Services::new(model::NodeId(1), presence);
        let shared = Arc::new(services.shared());
        let mut shards = testing::drivers(&handles, settings(), broker.clone(), requested, shared);
        for shard in &mut shards {
            // Serial numbers and numbers of catch-ups tell apart those that had the same slot in turn. They wrap around
            // soon.
            shard.engine.serial = u32::MAX - (seed % 40) as u32;
            shard.engine.recovery.catchups.number = u32::MAX - (seed % 90) as u32;
        }
        let swarm = Swarm::new(topics, &mut random);
        // Many members make fan-outs long.
        let count = 2 + random.below(8) + if random.one_in(3) { 14 } else { 0 };
        let clients = (0..count).map(|name| Self::client(name, &swarm, &mut random));
        World {
            clients: clients.collect(),
            swarm,
            random,
            broker,
            history,
            late,
            handles,
            parts: vec![0; shards.len()],
            shards,
            services,
            upgrading: None,
            log: Log::new(),
            acknowledged: BTreeMap::new(),
            leaving: BTreeMap::new(),
            publishes: true,
            closed_before: 0,
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
        let requested = match random.below(4) {
            0 => Some(RequestedHistory::Start),
            1 => Some(RequestedHistory::Last([1, 2, 5, 1_000][random.below(4)])),
            _ => None,
        };
        Client::new(name, kind, user, topics, requested)
    }

    /// Publishes a message that the history does not retain: a presence notice, or one with `no_history`.
    fn publish_passing(&mut self, topic: usize) {
        let log = PASSING + topic;
        let data = Data::Text(format!("<{log}.{}>", self.log[log].len()).into());
        let mut publication = Publication::new(TOPICS[topic].0, data);
        // In a topic with `conflate`, messages without a key would replace each other, but presence notices don't.
        let id = match self.random.one_in(2) || conflates(topic) {
            true => {
                publication.event = Some("presence_diff".into());
                self.broker.publish(publication, None).ok()
            }
            false => {
                let options = Options { no_history: true, ..Options::default() };
                let (done, reply) = std::sync::mpsc::channel();
                let done = Box::new(move |result| done.send(result).unwrap_or_default());
                self.broker.submit(Publish { publication, options }, None, done);
                reply.recv().ok().and_then(Result::ok).map(|published| published.id)
            }
        };
        if let Some(id) = id {
            trace(|| format!("published {} past its history", TOPICS[topic].0));
            self.log.offsets[log].push(id.offset);
        }
    }

    fn publish(&mut self, topic: usize) {
        if what(topic).is_retained() && self.random.one_in(8) {
            return self.publish_passing(topic);
        }
        let number = self.log[topic].len();
        let fill = "x".repeat(self.random.below(400));
        let data = Data::Text(format!("<{topic}.{number}>{fill}").into());
        let mut publication = Publication::new(TOPICS[topic].0, data);
        let state = match what(topic) {
            What::State(messages_max) => {
                let (key, removes) = (self.random.below(KEYS), self.random.one_in(4));
                publication.attributes = Attributes::of(Vec::new(), Some(format!("k{key}").into()));
                if removes {
                    publication.data = Data::Json("null".into());
                }
                Some((Change { key, removes }, messages_max))
            }
            What::Newest { .. } => {
                let key = self.random.below(KEYS);
                let name = key_of(topic, key).map(|key| key.into());
                publication.attributes = Attributes::of(Vec::new(), name);
                Some((Change { key, removes: false }, usize::MAX))
            }
            What::Big
            | What::Small(_)
            | What::Plain
            | What::Ack(_)
            | What::Extra
            | What::All
            | What::Passing => None,
        };
        if let Ok(id) = self.broker.publish(publication, None) {
            trace(|| format!("published {} {number} as {} {state:?}", TOPICS[topic].0, id.offset));
            self.log.offsets[topic].push(id.offset);
            if let Some((change, messages_max)) = state {
                self.log.changes[topic].push(change, messages_max);
            }
        }
    }

    /// Runs one part of a shard's turn; see `Shard::turn`.
    fn part(&mut self, at: usize) {
        let shard = &mut self.shards[at];
        shard.engine.set_now(self.now_us);
        trace(|| format!("shard {at}: part {}", self.parts[at]));
        match self.parts[at] {
            0 => self.events(at),
            1 => shard.engine.run_commands(),
            2 => shard.engine.release_pending(),
            3 => shard.fan_out(),
            _ => shard.sweep(),
        }
        self.shards[at].perform();
        self.parts[at] = (self.parts[at] + 1) % 5;
        self.late.iter().for_each(|late| late.turn());
    }

    /// Handles the events of sockets and the mailbox. Messages are published in between, until the run ends.
    fn events(&mut self, at: usize) {
        self.shards[at].resume();
        let (sockets, commands) = self.shards[at].events();
        let mut events: Vec<Option<u32>> = sockets.into_iter().map(Some).collect();
        if commands {
            events.insert(self.random.below(events.len() + 1), None);
        }
        for event in events {
            match event {
                None => self.shards[at].engine.take_commands(),
                Some(slot) => self.shards[at].ready(slot),
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
        let (ours, theirs) = testing::pair();
        let reload = self.random.one_in(4) && self.clients[client].may_reload();
        let seconds = in_32_bits(self.random.below(20));
        let request = self.clients[client].request(seconds, reload);
        trace(|| format!("client {client} connects to shard {at}: {request}"));
        ours.send(request.as_bytes());
        let user = self.clients[client].user.clone();
        for topic in (0..TOPICS.len()).filter(|it| what(*it).is_acknowledged()) {
            let progress = self.history.progress(&user, TOPICS[topic].0);
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
        self.clients[client].begin(&self.log, ours, &cursor, self.late.is_none());
        // An earlier command of the application may take the connection out of the topic.
        let leaving = self.leaving.get(&user).is_some_and(|it| it.load(Ordering::Relaxed) > 0);
        self.clients[client].connection.iter_mut().for_each(|it| it.loose |= leaving);
        self.shards[at].engine.set_now(self.now_us);
        self.shards[at].connect(theirs);
    }

    /// A client acknowledges one of the messages that it got.
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
            let epoch = self.history.epoch();
            let id = Position { epoch, offset: self.log[topic][number] };
            let name = TOPICS[topic].0;
            trace(|| format!("{user} acknowledges {name} {number}"));
            let acknowledged =
                Acknowledgement { user: Some(user.as_str().into()), topic: Some(name.into()), id };
            let principal = auth::Principal::anonymous(vec![user.as_str().into()]);
            self.shards[0].engine.core.acknowledge(None, &principal, acknowledged).unwrap();
            self.shards[0].perform();
            let cursor = self.acknowledged.get_mut(&(user.clone(), topic)).unwrap();
            *cursor = (*cursor).max(number + 1);
            let cursor = *cursor;
            for other in self.clients.iter_mut().filter(|it| it.user == user) {
                if let Some(progress) = other.progress.get_mut(&topic) {
                    progress.acknowledged = cursor;
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
        let user: model::Name = self.clients[client].user.as_str().into();
        let action = self.random.below(5);
        trace(|| format!("the application does {action} to {user}"));
        for handle in &self.handles {
            let (user, topic) = (user.clone(), TOPICS[EXTRA].0.into());
            handle.send(match action {
                0..3 => Command::Subscribe { user, topic, reply: Box::new(|_| ()) },
                3 => {
                    let leaving = self.leaving.entry(user.to_string()).or_default().clone();
                    leaving.fetch_add(1, Ordering::Relaxed);
                    let reply = Box::new(move |_| _ = leaving.fetch_sub(1, Ordering::Relaxed));
                    Command::Unsubscribe { user, topic, reply }
                }
                _ => {
                    let (target, close) = (Target::User(user), CloseReason::ByApplication);
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
            8 => self.reload(),
            9 => self.upgrade(),
            _ => self.now_us += self.random.below(3_000_000_u64),
        }
    }

    /// Applies new settings with the same rules.
    fn reload(&mut self) {
        let outbox_bytes_max = (10 + self.random.below(6)) << 10;
        trace(|| format!("new settings, with outboxes of {outbox_bytes_max}"));
        self.history.set_rules(Arc::new(rules()), 60);
        let settings = Arc::new(Settings { outbox_bytes_max, ..settings() });
        self.handles.iter().for_each(|it| it.send(Command::Settings(settings.clone())));
    }

    /// Runs all commands in the mailboxes. An engine that stands still takes all of them. If a client leaves a topic
    /// then, the messages that it is still owed may exceed its outbox.
    fn empty_mailboxes(&mut self) {
        let publishes = std::mem::replace(&mut self.publishes, false);
        let waits = |shard: &Driver| {
            let core = &shard.engine.core;
            !core.commands.is_empty() || !core.handle.inbox.queue.is_empty()
        };
        while let Some(at) = self.shards.iter().position(waits) {
            self.part(at);
        }
        self.publishes = publishes;
    }

    /// Makes one step of an upgrade: copies some connections to new engines as they are, replaces the old engines by
    /// the new ones, or gives the upgrade up.
    fn upgrade(&mut self) {
        if self.swarm.topics.iter().all(|topic| conflates(*topic)) {
            self.empty_mailboxes();
        }
        let (random, shards, services) = (&mut self.random, &mut self.shards, &mut self.services);
        let Some(mut upgrade) = self.upgrading.take() else {
            trace(|| "an upgrade begins".into());
            let mut upgrade = Upgrade::begin(shards, services);
            upgrade.copy(shards, services, |_| !random.one_in(3));
            self.upgrading = Some(upgrade);
            return;
        };
        match random.below(6) {
            0 => {
                trace(|| "more is copied".into());
                upgrade.copy(shards, services, |_| !random.one_in(3));
                self.upgrading = Some(upgrade);
            }
            1 => {
                trace(|| "the upgrade is given up".into());
                shards.iter_mut().for_each(|shard| shard.engine.set_now(self.now_us));
                upgrade.give_up(shards, || ());
            }
            _ => {
                trace(|| "upgrade".into());
                self.closed_before = self.closed_as_slow();
                let (shards, services) = (&mut self.shards, &mut self.services);
                shards.iter_mut().for_each(|shard| shard.engine.set_now(self.now_us));
                upgrade.finish(shards, services, false, || ());
            }
        }
    }

    /// Returns how many connections were closed because they read too slowly.
    fn closed_as_slow(&self) -> u64 {
        let slow = CloseReason::SlowConsumer as usize;
        let closed = self.shards.iter().map(|shard| shard.engine.metrics().closed[slow].get());
        self.closed_before + closed.sum::<u64>()
    }

    fn topic(&mut self) -> usize {
        self.swarm.topics[self.random.below(self.swarm.topics.len())]
    }

    fn command(&mut self, client: usize) {
        let (topic, enter) = (self.topic(), !self.random.one_in(3));
        if self.clients[client].kind.is_socket() && topic < EXTRA {
            let anew = self.random.one_in(4);
            self.clients[client].command(&self.log, topic, enter, anew);
        }
    }

    /// A client connects, polls or reads.
    fn act(&mut self, client: usize) {
        let bytes_max = [1, 50, 300, 2_000, 20_000][self.random.below(5)];
        let seconds = in_32_bits(self.random.below(20));
        match &self.clients[client].connection {
            None => self.connect(client),
            Some(connection) if !connection.polls && self.clients[client].kind == Kind::Poll => {
                self.clients[client].poll_again(&self.log, seconds);
            }
            Some(_) => {
                self.clients[client].read(&self.log, bytes_max);
            }
        }
    }

    /// Publishes nothing more and lets all clients read: each connected client must get everything.
    fn end(&mut self) {
        self.publishes = false;
        let mut missing = BTreeMap::new();
        for _ in 0..4_000 {
            missing.clear();
            for client in 0..self.clients.len() {
                match &self.clients[client].connection {
                    None => self.connect(client),
                    Some(it) if !it.polls && self.clients[client].kind == Kind::Poll => {
                        self.clients[client].poll_again(&self.log, 1);
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

/// Prints which run has failed.
struct Failing(u64, bool, Range<usize>);

impl Drop for Failing {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let late = if self.1 { " (late)" } else { "" };
            println!("failed: SHARD_SEED={}{late}, topics {:?}", self.0, self.2);
        }
    }
}

fn run(seed: u64, steps: usize, is_late: bool, topics: Range<usize>) {
    let failing = Failing(seed, is_late, topics.clone());
    let mut world = World::new(seed, is_late, topics.clone());
    for _ in 0..steps {
        world.step();
    }
    world.end();
    if topics.clone().all(conflates) {
        assert_eq!(world.closed_as_slow(), 0, "nobody is closed for such topics");
    }
    if let Some(late) = &world.late {
        trace(|| format!("{} answers came later", late.replies()));
    }
    std::mem::forget(failing);
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn run_all(is_late: bool, topics: Range<usize>) {
    if let Some(seed) = number("SHARD_SEED") {
        return run(seed, 400, is_late, topics);
    }
    let seeds = number("SHARD_SEEDS").unwrap_or(30);
    let next = AtomicU64::new(0);
    let runs = || {
        let mut failed = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return failed;
            }
            if std::panic::catch_unwind(|| run(seed, 400, is_late, topics.clone())).is_err() {
                failed.push(seed);
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let started = Instant::now();
    let failed: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(runs)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    println!("{seeds} seeds in {:.0?}", started.elapsed());
    assert!(failed.is_empty(), "failed: {failed:?}");
}

#[test]
fn every_client_receives_everything_once_and_in_order() {
    run_all(false, 0..TOPICS.len());
}

#[test]
fn every_client_receives_everything_from_a_history_that_replies_later() {
    run_all(true, 0..TOPICS.len());
}

#[test]
fn who_reads_slowly_gets_the_newest_of_each_key_and_is_not_closed() {
    run_all(false, CONFLATED..EXTRA);
    run_all(true, CONFLATED..EXTRA);
}

#[test]
fn live_messages_are_deferred_while_the_start_is_under_way() {
    for kind in [Kind::Sse, Kind::Stream, Kind::Ws, Kind::Poll] {
        let mut world = World::new(0, true, 0..TOPICS.len());
        let late = world.late.clone().unwrap();
        late.pause(true);
        world.clients = vec![Client::new(0, kind, "u0".into(), vec![0], None)];
        world.publishes = false;
        let turns = |world: &mut World| {
            for _ in 0..20 {
                (0..world.shards.len()).for_each(|at| {
                    world.part(at);
                    world.end_turn(at);
                });
                world.clients[0].read(&world.log, 100_000);
            }
        };
        world.publish(0);
        world.connect(0);
        turns(&mut world);
        (0..3).for_each(|_| world.publish(0));
        turns(&mut world);
        assert_eq!(
            world.clients[0].progress[&0].next, 1,
            "{kind:?}: nothing came before the answer"
        );
        late.pause(false);
        (0..30).for_each(|_| turns(&mut world));
        assert_eq!(
            world.clients[0].progress[&0].next, 4,
            "{kind:?}: all that came since it entered"
        );
    }
}
