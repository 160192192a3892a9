//! Clients publish and subscribe over connections that are cut at any byte in both directions, taken over, and moved
//! to new engines. The server dies at any moment and begins again with what its disk has.
//!
//! What must hold: no confirmed message is lost. With QoS 2 no message comes twice or out of order, to one client or
//! to the members of a group. No client gets a message from before its subscription, an expired one, or one that it
//! has unsubscribed from. Sessions end when their time is over, and not before. Wills come once, and the retained
//! message is the newest. No client gets more than it accepts, or an alias that it does not know.
//!
//! `SHARD_SEED=n cargo test -p engine mqtt::simulation` replays a run; `SHARD_SEEDS=n` runs so many, `SHARD_TRACE=1`
//! prints what each client received and sent.

mod check;
mod client;
mod disk;
mod node;
mod redispatch;
mod writes;

use std::rc::Rc;
use std::sync::Arc;

use history::History;
use model::{CloseReason, Qos};
use protocol::Listener;
use protocol::mqtt::{Connect, Mqtt, Version};
use random::Random;

use crate::connection::peers::Arrival;
use crate::testing::{self, Upgrade};
use client::{Client, Ends, Message, SHARED, Terms};
use disk::Disk;
use node::{Node, Setup};

struct World {
    random: Random,
    setup: Setup,
    node: Node,
    /// New engines, to which connections have been copied.
    upgrading: Option<Upgrade>,
    /// For each crash, how many messages were published before.
    crashes: Vec<usize>,
    clients: Vec<Client>,
    /// A member of the group that is always connected, on a server that does not die.
    stays: Option<usize>,
    /// The messages whose publication is complete.
    done: Ends,
    now_us: u64,
    log: Vec<Published>,
    /// From this message on no connection is cut.
    calm: usize,
}

/// A published message, or a will.
struct Published {
    message: Message,
    by: usize,
    /// The clients that had confirmed subscriptions then.
    ready: Vec<usize>,
}

const TOPICS: [&str; 5] = ["a", "a/b", "a/c", "b/x/y", "c"];
const FILTERS: [&str; 8] = ["a", "a/b", "a/+", "a/#", "#", "b/+/y", "c", "+/b"];

fn qos(random: &mut Random) -> Qos {
    [Qos::AtMostOnce, Qos::AtLeastOnce, Qos::ExactlyOnce, Qos::ExactlyOnce][random.below(4)]
}

/// Draws the filters of a client.
fn filters(random: &mut Random) -> Vec<(String, Qos)> {
    let mut filters = Vec::new();
    for _ in 0..1 + random.below(3) {
        let filter = FILTERS[random.below(FILTERS.len())].to_string();
        if filters.iter().all(|(known, _)| *known != filter) {
            filters.push((filter, qos(random)));
        }
    }
    filters
}

/// Draws the clients: some for themselves, and perhaps a group.
fn clients(random: &mut Random, done: &Ends) -> Vec<Client> {
    let mut subscribed: Vec<_> = (0..2 + random.below(5)).map(|_| filters(random)).collect();
    if random.one_in(2) {
        let shared = format!("{SHARED}{}", FILTERS[random.below(FILTERS.len())]);
        let members = 2 + random.below(2);
        subscribed.extend((0..members).map(|_| vec![(shared.clone(), Qos::ExactlyOnce)]));
    }
    let client = |(name, filters)| {
        let version = if random.one_in(2) { Version::V5 } else { Version::V3 };
        Client::new(name, version, filters, !random.one_in(5), Rc::clone(done))
    };
    subscribed.into_iter().enumerate().map(client).collect()
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let (engines, inflight_max) = (1 + random.below(3), [1, 2, 3, 4][random.below(4)]);
        let (is_late, is_durable) = (random.one_in(2), random.one_in(2));
        let disk = is_durable.then(Arc::<Disk>::default);
        let keeps_history = is_durable;
        let setup = Setup {
            seed,
            engines,
            inflight_max,
            queue_max: 1_000,
            is_late,
            is_durable,
            disk,
            keeps_history,
        };
        World::of(setup, random)
    }

    fn of(setup: Setup, mut random: Random) -> Self {
        let (done, now_us, calm) = (Ends::default(), 1_000_000, usize::MAX);
        let (crashes, log) = (Vec::new(), Vec::new());
        let clients = clients(&mut random, &done);
        let mut members = clients.iter().filter(|it| it.is_member() && it.persistent);
        let stays = members.next().map(|it| it.name).filter(|_| !setup.is_late);
        let stays = stays.filter(|_| random.one_in(2));
        let node = Node::start(&setup, 0, Default::default(), now_us);
        World {
            random,
            setup,
            node,
            upgrading: None,
            crashes,
            clients,
            stays,
            done,
            now_us,
            log,
            calm,
        }
    }

    /// Returns a client that acts next. It knows the time and the number of messages.
    fn turn_of(&mut self, name: usize) -> &mut Client {
        self.clients[name].now = (self.log.len(), self.now_us);
        &mut self.clients[name]
    }

    fn connect(&mut self, name: usize) {
        let (end, server) = testing::pair();
        let at = self.random.below(self.node.drivers.len());
        let will = self.random.one_in(3).then(|| self.message(name, 'w'));
        let stays = self.stays == Some(name);
        let terms = Terms {
            receive_max: [1, 2, 3, 4, 5][self.random.below(5)],
            aliases_max: [0, 1, 3][self.random.below(3)],
            ends: self.random.one_in(8) && !stays,
            expiry_s: self.random.one_in(6).then(|| 1 + self.random.below(3)).filter(|_| !stays),
            will,
        };
        self.turn_of(name).connect(end, terms);
        let driver = &mut self.node.drivers[at];
        driver.engine.set_now(self.now_us);
        driver.connect_by(server, Listener::Mqtt, Arrival::Direct(None));
    }

    fn step(&mut self) {
        let name = self.random.below(self.clients.len());
        self.turn_of(name);
        let stays = self.stays == Some(name) && self.clients[name].is_open();
        match self.random.below(22) {
            0 | 1 | 6 if stays => {}
            0 => self.clients[name].cut(&mut self.random),
            1 => {
                if !self.clients[name].is_open() || self.random.one_in(6) {
                    self.connect(name);
                }
            }
            2..=4 => self.publish(name),
            5 => match self.random.below(24) {
                0..=2 => self.upgrade(),
                3 => self.crash(),
                _ => {}
            },
            6 => match self.random.below(24) {
                0..=2 => self.clients[name].subscribe_again(),
                3 => self.clients[name].unsubscribe(),
                4 => {
                    let ends = self.random.one_in(2);
                    self.clients[name].goodbye(ends);
                }
                _ => {}
            },
            7 | 8 => {
                let bytes_max = 1 + self.random.below(40);
                self.clients[name].read(bytes_max);
            }
            9..=11 => _ = self.clients[name].reply(),
            12 | 13 => self.write(),
            14 if self.random.one_in(4) => self.node.history.sweep(),
            14 => {
                self.now_us += 1_000 * self.random.below(2_000u64);
                self.sweep();
            }
            15 => _ = self.node.late.as_ref().map(|late| late.turn()),
            _ => {
                let at = self.random.below(self.node.drivers.len());
                self.turn(at);
            }
        }
    }

    fn sweep(&mut self) {
        for driver in &mut self.node.drivers {
            driver.engine.set_now(self.now_us);
            driver.sweep();
        }
    }

    /// Lets the disk write, or complete a write.
    fn write(&mut self) {
        let Some(disk) = &self.setup.disk else { return };
        if self.random.one_in(16) {
            disk.set_half_full(self.random.one_in(2));
        }
        match self.random.one_in(3) {
            true => _ = disk.commit(),
            false => _ = disk.complete(),
        }
    }

    /// Copies some of the connections to new engines; or the new engines replace the old ones, or give up.
    fn upgrade(&mut self) {
        let (random, disk) = (&mut self.random, &self.setup.disk);
        let Node { drivers, services, .. } = &mut self.node;
        let mut upgrade = match self.upgrading.take() {
            Some(upgrade) => upgrade,
            None => Upgrade::begin(drivers, services),
        };
        let around = || disk.iter().for_each(|disk| _ = disk.commit() || disk.complete());
        match random.below(4) {
            0 | 1 => {
                upgrade.copy(drivers, services, |_| !random.one_in(3));
                self.upgrading = Some(upgrade);
            }
            2 if random.one_in(2) => upgrade.give_up(drivers, around),
            _ => upgrade.finish(drivers, services, false, around),
        }
    }

    /// The server dies, and another one begins with what the disk has.
    fn crash(&mut self) {
        let Some(disk) = self.setup.disk.as_ref().filter(|_| self.stays.is_none()) else { return };
        client::trace(|| "the server dies".into());
        self.upgrading = None;
        let written = disk.crash();
        // A will about to be published may be lost.
        self.done.borrow_mut().retain(|payload, _| client::kind(payload) != 'w');
        for name in 0..self.clients.len() {
            self.turn_of(name).survive();
        }
        self.crashes.push(self.log.len());
        self.node = Node::start(&self.setup, self.crashes.len(), written, self.now_us);
    }

    fn turn(&mut self, at: usize) {
        let driver = &mut self.node.drivers[at];
        driver.engine.set_now(self.now_us);
        driver.resume();
        let (slots, _) = driver.events();
        slots.into_iter().for_each(|slot| driver.ready(slot));
        driver.work();
    }

    /// Draws a message of a client.
    fn message(&mut self, by: usize, kind: char) -> Message {
        let topic = TOPICS[self.random.below(TOPICS.len())].to_string();
        let (qos, payload) = (qos(&mut self.random), format!("{kind}{}", self.log.len()));
        let expiry_s = match kind {
            'x' => Some(1 + self.random.below(3)),
            'm' if self.random.one_in(6) => Some(client::FOR_EVER_S),
            _ => None,
        };
        let expiry_s = expiry_s.filter(|_| self.clients[by].version == Version::V5);
        let message = Message { topic, qos, payload, retain: kind == 'r', expiry_s };
        let ready = self.clients.iter().filter(|it| it.ready).map(|it| it.name).collect();
        self.log.push(Published { message: message.clone(), by, ready });
        message
    }

    fn publish(&mut self, name: usize) {
        if !self.clients[name].may_publish() {
            return;
        }
        let kind = ['m', 'm', 'm', 'm', 'r', 'x'][self.random.below(6)];
        let message = self.message(name, kind);
        self.turn_of(name).publish(message);
    }

    /// Brings everything to rest: all clients connect and subscribe, read everything, and reply.
    fn settle(&mut self) {
        self.setup.disk.iter().for_each(|disk| disk.set_half_full(false));
        // What is due in the next seconds happens.
        for _ in 0..3 {
            self.now_us += 1_000_000;
            self.sweep();
        }
        for round in 0.. {
            assert!(round < 3_000, "it does not come to rest");
            let mut is_busy = false;
            for name in 0..self.clients.len() {
                if !self.turn_of(name).is_open() {
                    self.connect(name);
                    is_busy = true;
                }
                let client = &mut self.clients[name];
                is_busy |= client.read(usize::MAX);
                while client.reply() {
                    is_busy = true;
                }
                if client.is_unsubscribed() {
                    client.subscribe_again();
                }
                is_busy |= !client.is_done();
            }
            if let Some(disk) = &self.setup.disk {
                is_busy |= disk.commit();
                while disk.complete() {
                    is_busy = true;
                }
            }
            if let Some(late) = &self.node.late {
                late.turn();
                is_busy |= late.waits();
            }
            for at in 0..self.node.drivers.len() {
                let driver = &self.node.drivers[at];
                let (slots, commands) = driver.events();
                is_busy |= commands || !slots.is_empty() || !driver.engine.is_quiet();
                self.turn(at);
            }
            self.now_us += 10_000;
            let sessions = self.node.services.sessions();
            if sessions.has_redispatch() || !sessions.is_all_stored() {
                self.sweep();
                is_busy = true;
            }
            if !is_busy {
                return;
            }
        }
    }

    /// All clients are connected and subscribed: each message that they publish now must reach all subscribers.
    fn talk(&mut self) {
        self.node.late.iter().for_each(|late| late.reply_at_once());
        self.calm = self.log.len();
        for name in 0..self.clients.len() {
            self.publish(name);
        }
        self.settle();
    }

    /// Returns a client that connects for the first time, and has the retained messages.
    fn witness(&mut self) -> Client {
        let name = self.clients.len();
        let all = vec![("#".into(), Qos::ExactlyOnce)];
        self.clients.push(Client::new(name, Version::V5, all, false, Rc::clone(&self.done)));
        self.settle();
        self.clients.pop().unwrap()
    }
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    for name in 0..world.clients.len() {
        world.connect(name);
    }
    for _ in 0..1_500 {
        world.step();
    }
    world.settle();
    world.talk();
    world.check();
    let witness = world.witness();
    world.check_retained(&witness);
}

#[test]
fn what_is_confirmed_is_not_lost_and_with_qos_2_nothing_comes_twice() {
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

#[test]
fn who_goes_while_it_waits_for_a_session_keeps_no_other_from_it() {
    let mut world = World::new(1);
    let open = |world: &mut World, client: &mut Client| {
        let (end, server) = testing::pair();
        let terms =
            Terms { receive_max: 1, aliases_max: 0, ends: false, expiry_s: None, will: None };
        client.connect(end, terms);
        let slot = world.node.drivers[0].connect_by(server, Listener::Mqtt, Arrival::Direct(None));
        testing::quiet(&mut world.node.drivers);
        slot
    };
    let [mut old, mut other, mut new] =
        [0, 1, 0].map(|name| Client::new(name, Version::V5, Vec::new(), false, Rc::default()));
    open(&mut world, &mut old);
    let slot = open(&mut world, &mut other);
    // The client is about to leave when it wants the first one's session.
    let engine = &mut world.node.drivers[0].engine;
    engine.say_goodbye(slot, CloseReason::Drain);
    let connect = Connect {
        encoding: Mqtt { version: Version::V5, framed: false }.number(),
        principal: auth::Principal::anonymous(Vec::new()),
        is_proved: false,
        client: "client-0".into(),
        is_assigned: false,
        clean: true,
        seconds: 0,
        keep_alive_s: 0,
        will: None,
        limits: Default::default(),
        method: None,
    };
    engine.mqtt_connect(slot, Box::new(connect), &mut Vec::new());
    open(&mut world, &mut new);
    new.read(1_000);
    assert!(new.is_connected(), "it waits for ever");
}
