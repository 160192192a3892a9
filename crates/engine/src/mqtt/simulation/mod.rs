//! Clients that publish and subscribe with QoS 1 and 2 over connections that are cut at any byte, taken over,
//! and moved to new engines: nothing is lost, and with QoS 2 nothing comes twice.
//!
//! `SHARD_SEED=n cargo test -p engine mqtt::simulation` replays a run; `SHARD_SEEDS=n` runs so many, `SHARD_TRACE=1`
//! tells what each client heard and sent.

mod client;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use broker::Router;
use history::{History, Implicit};
use history_local::{Begin, HistoryLimits};
use model::filter::matches;
use model::{HistoryRule, NodeId, Qos, Rules};
use protocol::Listener;
use protocol::mqtt::Version;
use random::Random;
use sessions::{Done, Interests, LocalRetained, Part, Storage};

use crate::peers::Arrival;
use crate::recovery::simulation::late::Late;
use crate::testing::{self, Driver};
use crate::{Handle, Shared};
use client::Client;

/// A disk for sessions, which takes its time.
#[derive(Default)]
struct Disk(Mutex<Vec<Done>>);

impl Storage for Disk {
    fn put(&self, _: Part, _: &str, _: Option<Vec<u8>>, done: Option<Done>) {
        self.0.lock().unwrap().extend(done);
    }

    fn settle(&self, done: Done) {
        self.0.lock().unwrap().push(done);
    }
}

impl Disk {
    /// The next one is written.
    fn write(&self) -> bool {
        let mut waiting = self.0.lock().unwrap();
        let next = if waiting.is_empty() { None } else { Some(waiting.remove(0)) };
        drop(waiting);
        let is_some = next.is_some();
        next.into_iter().for_each(|done| done(true));
        is_some
    }
}

struct World {
    random: Random,
    drivers: Vec<Driver>,
    clients: Vec<Client>,
    disk: Option<Arc<Disk>>,
    late: Option<Arc<Late>>,
    history: Arc<history_local::Local>,
    now_us: u64,
    published: usize,
    /// Each message that was published: its topic, its QoS, and who had confirmed subscriptions then.
    log: Vec<(String, Qos, String, Vec<usize>)>,
}

const TOPICS: [&str; 5] = ["a", "a/b", "a/c", "b/x/y", "c"];
const FILTERS: [&str; 8] = ["a", "a/b", "a/+", "a/#", "#", "b/+/y", "c", "+/b"];

fn qos(random: &mut Random) -> Qos {
    [Qos::AtMostOnce, Qos::AtLeastOnce, Qos::ExactlyOnce, Qos::ExactlyOnce][random.below(4)]
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let handles: Vec<Handle> =
            (0..1 + random.below(3)).map(|_| testing::handle(1_000)).collect();
        let interests = Arc::new(Interests::default());
        let disk = random.one_in(2).then(Arc::<Disk>::default);
        let storage = disk.clone().map(|disk| disk as Arc<dyn Storage>);
        let sessions = sessions::Local::new(NodeId(1), interests.clone(), storage);
        let retained = Arc::new(LocalRetained::new(None));
        let router = Arc::new(Router::new(handles.iter().map(Handle::inbox).collect()));
        let limits = broker::Limits {
            recent_messages_max: 10,
            recent_bytes_max: 1 << 20,
            recent_seconds_max: 1_000,
        };
        let started = Instant::now();
        let begin = Begin::in_memory(broker::epoch(&[7; 20]));
        let held = HistoryLimits { history_bytes_max: 1 << 30, ..HistoryLimits::default() };
        let history =
            Arc::new(history_local::Local::new(router.clone(), begin, started, held, limits));
        history.set_rules(Arc::new(Rules::default()), 60);
        let (any, wants) = (interests.clone(), interests);
        history.set_implicit(Some(Implicit {
            rule: Arc::new(HistoryRule {
                messages_max: 1_000_000,
                bytes_max: 1 << 30,
                seconds_max: 1_000_000,
                durable: false,
                compact: false,
                acknowledge: None,
            }),
            any: Arc::new(move || any.count() > 0),
            wants: Arc::new(move |topic| wants.holds(topic)),
        }));
        let broker =
            Arc::new(broker::Local::new(router, [7; 20], started, limits, history.clone()));
        let late = random.one_in(2).then(|| Late::new((*history).clone(), seed));
        let asked: Arc<dyn History> = match &late {
            Some(late) => late.clone(),
            None => history.clone(),
        };
        let presence = presence::Limits {
            users_max: 0,
            list_bytes_max: 0,
            interval_us: 1_000,
            members_per_ms: 0,
        };
        let presence = Arc::new(presence::Local::new(presence, presence::NodeId(1)));
        let kept = (Arc::new(sessions) as _, retained as _);
        let shared = Shared::new(NodeId(1), protocol::standard(), presence, Arc::default(), kept);
        let rules = Rules { publish_prefixes: vec![String::new()], ..Rules::default() };
        let policy = auth::Policy::new(rules, auth::LoginRule::Allow);
        let mut settings = crate::Settings::for_tests(policy);
        if let Some(mqtt) = &mut settings.session.mqtt {
            mqtt.inflight_max = [1, 2, 3, 4][random.below(4)];
            mqtt.queue_messages_max = 1_000;
        }
        let drivers = testing::drivers(&handles, settings, broker, asked, Arc::new(shared));
        let clients = (0..2 + random.below(5)).map(|name| {
            let version = if random.one_in(2) { Version::V5 } else { Version::V3 };
            let mut filters = Vec::new();
            for _ in 0..1 + random.below(3) {
                let filter = FILTERS[random.below(FILTERS.len())].to_string();
                if filters.iter().all(|(known, _)| *known != filter) {
                    filters.push((filter, qos(&mut random)));
                }
            }
            Client::new(name, version, filters, !random.one_in(5))
        });
        let clients = clients.collect();
        let (now_us, published, log) = (1_000_000, 0, Vec::new());
        World { clients, random, drivers, disk, late, history, now_us, published, log }
    }

    fn connect(&mut self, name: usize) {
        let (end, server) = testing::pair();
        let at = self.random.below(self.drivers.len());
        let receive_max = [1, 2, 3, 4, 5][self.random.below(5)];
        self.clients[name].connect(end, receive_max);
        self.drivers[at].connect_by(server, Listener::Mqtt, Arrival::Direct(None));
    }

    fn step(&mut self, cuts: bool) {
        let name = self.random.below(self.clients.len());
        match self.random.below(20) {
            0 if cuts => self.clients[name].cut(),
            0 | 1 => {
                if !self.clients[name].is_open() || (cuts && self.random.one_in(6)) {
                    self.connect(name);
                }
            }
            2..=4 if cuts => self.publish(name),
            5 if cuts && self.random.one_in(8) => testing::upgrade(&mut self.drivers),
            2..=7 => {
                let bytes_max = 1 + self.random.below(40);
                self.clients[name].read(bytes_max);
            }
            8..=10 => _ = self.clients[name].answer(),
            11 => _ = self.disk.as_ref().map(|disk| disk.write()),
            12 if self.random.one_in(4) => self.history.sweep(),
            12 => {
                self.now_us += 1_000 * self.random.below(2_000u64);
                for driver in &mut self.drivers {
                    driver.engine.set_now(self.now_us);
                    driver.sweep();
                }
            }
            13 => _ = self.late.as_ref().map(|late| late.turn()),
            _ => {
                let at = self.random.below(self.drivers.len());
                self.turn(at);
            }
        }
    }

    fn turn(&mut self, at: usize) {
        let driver = &mut self.drivers[at];
        driver.engine.set_now(self.now_us);
        driver.resume();
        let (slots, _) = driver.events();
        slots.into_iter().for_each(|slot| driver.ready(slot));
        driver.work();
    }

    fn publish(&mut self, name: usize) {
        let topic = TOPICS[self.random.below(TOPICS.len())];
        let (qos, payload) = (qos(&mut self.random), format!("m{}", self.published));
        let ready: Vec<usize> =
            self.clients.iter().filter(|client| client.ready).map(|client| client.name).collect();
        if self.clients[name].publish(topic, qos, payload.clone()) {
            self.published += 1;
            self.log.push((topic.into(), qos, payload, ready));
        }
    }

    /// Everything comes to rest: all connect, and read and answer all that there is.
    fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 3_000, "it does not come to rest");
            let mut is_busy = false;
            for name in 0..self.clients.len() {
                if !self.clients[name].is_open() {
                    self.connect(name);
                    is_busy = true;
                }
                is_busy |= self.clients[name].read(usize::MAX);
                while self.clients[name].answer() {
                    is_busy = true;
                }
                is_busy |= !self.clients[name].is_done();
            }
            while self.disk.as_ref().is_some_and(|disk| disk.write()) {
                is_busy = true;
            }
            if let Some(late) = &self.late {
                late.turn();
                is_busy |= late.waits();
            }
            for at in 0..self.drivers.len() {
                let (slots, commands) = self.drivers[at].events();
                is_busy |= commands || !slots.is_empty() || !self.drivers[at].engine.is_quiet();
                self.turn(at);
            }
            self.now_us += 10_000;
            if !is_busy {
                return;
            }
        }
    }

    fn check(&self) {
        let done: HashSet<&str> =
            self.clients.iter().flat_map(|it| &it.done).map(String::as_str).collect();
        for client in &self.clients {
            let counts = client.counts();
            for (topic, qos, payload, ready) in &self.log {
                let matching = client.filters.iter().filter(|(filter, _)| matches(filter, topic));
                let wanted = matching.map(|(_, qos)| *qos).max();
                let count = counts.get(payload.as_str()).copied().unwrap_or(0);
                let Some(wanted) = wanted else {
                    assert_eq!(count, 0, "client {} got {payload} of {topic}", client.name);
                    continue;
                };
                let surely = wanted.min(*qos);
                let is_done = done.contains(payload.as_str());
                let was_there = client.kept && ready.contains(&client.name) && is_done;
                let what = format!("{payload} of {topic} came {count} times to {}", client.name);
                match surely {
                    // Whoever publishes with QoS 1 may publish again; and who comes back to another engine
                    // may be there before the message is.
                    Qos::AtMostOnce => {
                        let max =
                            if *qos == Qos::AtLeastOnce { usize::MAX } else { client.connects };
                        assert!(count <= max, "{what}");
                    }
                    Qos::AtLeastOnce => assert!(count >= 1 || !was_there, "{what}"),
                    Qos::ExactlyOnce if client.kept => {
                        assert!(count <= 1 && (count == 1 || !was_there), "{what}");
                    }
                    Qos::ExactlyOnce => {}
                }
            }
        }
    }
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    for name in 0..world.clients.len() {
        world.connect(name);
    }
    for _ in 0..1_500 {
        world.step(true);
    }
    world.settle();
    world.check();
}

#[test]
fn nothing_is_lost_and_with_qos_2_nothing_comes_twice() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    if let Some(seed) = number("SHARD_SEED") {
        return run(seed);
    }
    for seed in 0..number("SHARD_SEEDS").unwrap_or(30) {
        if let Err(error) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("SHARD_SEED={seed}");
            std::panic::resume_unwind(error);
        }
    }
}
