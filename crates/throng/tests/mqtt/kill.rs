//! `kill -9` in the middle of messages with QoS 1 and 2, again and again on one data directory: nothing is lost, and
//! with QoS 2 nothing comes twice.
//!
//! `MQTT_KILL_ROUNDS=n cargo test -p throng --test server mqtt::kill` kills so often, and `MQTT_KILL_SEED` is for other moments.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use protocol::mqtt::Version;
use protocol::mqtt::write::ConfirmType;
use random::Random;

use crate::mqtt::client::*;
use crate::support::{Scratch, Server, TIMEOUT};

/// Messages that a client may have under way.
const UNDER_WAY: usize = 8;

/// What all clients know of the server.
#[derive(Default)]
struct World {
    /// Where it is, while it runs.
    at: Mutex<Option<SocketAddr>>,
    /// Nothing new is published any more.
    ends: AtomicBool,
    /// How many messages are confirmed to the end.
    done: AtomicUsize,
}

/// The payload of the last message of each QoS.
const END: &str = "end";

impl World {
    /// Connects as soon as the server runs.
    fn open(&self, connect: &Connect) -> Client {
        let end = Instant::now() + TIMEOUT;
        loop {
            assert!(Instant::now() < end, "{} is not let in", connect.client);
            let at = *self.at.lock().unwrap();
            if let Some(socket) = at.and_then(|at| TcpStream::connect(at).ok()) {
                let mut client = Client::on(socket, connect.version);
                client.send(&connect.bytes());
                if let Heard::Connack(session_present, 0, _) = client.next() {
                    client.session_present = session_present;
                    return client;
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A message on its way to the server.
struct Outgoing {
    payload: String,
    qos: u8,
    released: bool,
}

/// Publishes until it ends. Gives what was confirmed to the end, with its QoS.
fn publish(world: &World, name: &str, version: Version) -> Vec<(String, u8)> {
    let connect = Connect::kept(version, name);
    let (mut number, mut next_id, mut done) = (0, 0_u16, Vec::new());
    let mut out: BTreeMap<u16, Outgoing> = BTreeMap::new();
    'connections: loop {
        let mut client = world.open(&connect);
        if !client.session_present {
            assert!(done.is_empty(), "the session of {name} is lost");
            out.clear();
        }
        for (id, it) in &out {
            match it.released {
                true => client.confirm(ConfirmType::Pubrel, *id),
                false => {
                    let again = Publish::new("kill/t", &it.payload, it.qos);
                    client.send(&Publish { id: *id, dup: true, ..again }.bytes(version));
                }
            }
        }
        loop {
            while out.len() < UNDER_WAY && !world.ends.load(Ordering::Relaxed) {
                number += 1;
                loop {
                    next_id = next_id.checked_add(1).unwrap_or(1);
                    if !out.contains_key(&next_id) {
                        break;
                    }
                }
                let (payload, qos) = (format!("{name} {number}"), 1 + u8::from(number % 2 == 0));
                let message = Publish { id: next_id, ..Publish::new("kill/t", &payload, qos) };
                client.send(&message.bytes(version));
                out.insert(next_id, Outgoing { payload, qos, released: false });
            }
            if out.is_empty() {
                return done;
            }
            match client.next() {
                Heard::Confirm("PUBACK" | "PUBCOMP", id, _) => {
                    if let Some(it) = out.remove(&id) {
                        done.push((it.payload, it.qos));
                        world.done.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Heard::Confirm("PUBREC", id, 0) => {
                    if let Some(it) = out.get_mut(&id) {
                        it.released = true;
                    }
                    client.confirm(ConfirmType::Pubrel, id);
                }
                Heard::Closed | Heard::Disconnect(..) => continue 'connections,
                other => panic!("{name} heard {other:?}, with {} under way", out.len()),
            }
        }
    }
}

/// Hears everything up to the last messages. Gives how often each payload came.
fn subscribe(
    world: &World,
    name: &str,
    version: Version,
    ready: &AtomicBool,
) -> BTreeMap<String, usize> {
    let connect = Connect::kept(version, name);
    let (mut got, mut received) = (BTreeMap::new(), BTreeSet::new());
    let (mut ended, mut pings) = (BTreeSet::new(), 2);
    loop {
        let mut client = world.open(&connect);
        if !client.session_present {
            assert!(got.is_empty(), "the session of {name} is lost");
            client.subscribe(&[filter("kill/+", 2)]);
            ready.store(true, Ordering::Relaxed);
        }
        loop {
            match client.next() {
                Heard::Message(message) => {
                    if message.qos == 1 || received.insert(message.id) {
                        *got.entry(message.payload.clone()).or_default() += 1;
                    }
                    let kind = match message.qos {
                        1 => ConfirmType::Puback,
                        _ => ConfirmType::Pubrec,
                    };
                    client.confirm(kind, message.id);
                    // The messages of a topic and a QoS come in order. What comes behind the last ones is heard
                    // as well.
                    if message.payload == END {
                        ended.insert(message.qos);
                        if ended.len() == 2 {
                            client.send_ping();
                        }
                    }
                }
                Heard::Pong if pings > 0 => {
                    pings -= 1;
                    client.send_ping();
                }
                Heard::Pong => return got,
                Heard::Confirm("PUBREL", id, _) => {
                    received.remove(&id);
                    client.confirm(ConfirmType::Pubcomp, id);
                }
                Heard::Closed | Heard::Disconnect(..) => break,
                other => panic!("{name} heard {other:?}"),
            }
        }
    }
}

#[test]
fn a_kill_loses_nothing_and_with_qos_2_nothing_comes_twice() {
    let variable = |name: &str, or| std::env::var(name).map_or(or, |text| text.parse().unwrap());
    let (rounds, seed) = (variable("MQTT_KILL_ROUNDS", 12), variable("MQTT_KILL_SEED", 1));
    println!("MQTT_KILL_SEED={seed} MQTT_KILL_ROUNDS={rounds}");
    let mut random = Random::new(seed);
    let data = Scratch::new("mqtt-kill");
    let start = || {
        let data = data.path().to_str().unwrap();
        let flags = ["--mqtt", "127.0.0.1:0", "--shards", "2", "--data", data];
        let settings = [
            ("THRONG_MQTT_SESSION_MESSAGES_MAX", "1000000"),
            ("THRONG_MQTT_SESSION_BYTES_MAX", "1GiB"),
            ("THRONG_LIMITS_PUBLISHES_PER_SECOND_MAX", "0"),
            ("THRONG_LOG_LEVEL", "error"),
        ];
        Server::with(&flags, &settings)
    };
    let world = Arc::new(World::default());
    let mut server = start();
    *world.at.lock().unwrap() = Some(server.client);
    let subscribers: Vec<_> = [("sub 3", V3), ("sub 5", V5)]
        .into_iter()
        .map(|(name, version)| {
            let (world, ready) = (world.clone(), Arc::new(AtomicBool::new(false)));
            let is_ready = ready.clone();
            let thread = std::thread::spawn(move || subscribe(&world, name, version, &is_ready));
            (thread, ready)
        })
        .collect();
    let is_ready = || subscribers.iter().all(|(_, ready)| ready.load(Ordering::Relaxed));
    server.until("all have subscribed", |_| is_ready());
    let publishers: Vec<_> = [("pub 3", V3), ("pub 5", V5)]
        .into_iter()
        .map(|(name, version)| {
            let world = world.clone();
            std::thread::spawn(move || publish(&world, name, version))
        })
        .collect();
    for _ in 0..rounds {
        // However slow the machine is, each round has messages, and a kill at any place of them.
        let done = world.done.load(Ordering::Relaxed) + 20;
        server.until("20 more are done", |_| world.done.load(Ordering::Relaxed) >= done);
        std::thread::sleep(Duration::from_micros(random.below(100_000_u64)));
        *world.at.lock().unwrap() = None;
        drop(server);
        server = start();
        *world.at.lock().unwrap() = Some(server.client);
    }
    world.ends.store(true, Ordering::Relaxed);
    let done: Vec<(String, u8)> =
        publishers.into_iter().flat_map(|publisher| publisher.join().unwrap()).collect();
    let mut last = Connect::new(V5, "last").open(server.client);
    [1, 2].into_iter().for_each(|qos| last.publish("kill/t", END, qos));
    for (subscriber, _) in subscribers {
        let got = subscriber.join().unwrap();
        let lost: Vec<_> = done.iter().filter(|(payload, _)| !got.contains_key(payload)).collect();
        assert!(lost.is_empty(), "{} of {} are lost: {lost:?}", lost.len(), done.len());
        let twice: Vec<_> =
            done.iter().filter(|(payload, qos)| *qos == 2 && got[payload] > 1).collect();
        assert!(twice.is_empty(), "{} came twice: {twice:?}", twice.len());
    }
    println!("{} messages in {rounds} rounds", done.len());
}
