//! `kill -9` in the middle of messages with QoS 1 and 2, again and again on one data directory: nothing is lost, and
//! with QoS 2 nothing comes twice.
//!
//! `MQTT_KILL_ROUNDS=n cargo test -p throng --test mqtt kill` kills so often.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use protocol::mqtt::Version;
use protocol::mqtt::write::ConfirmType;
use random::Random;

use crate::client::*;
use crate::support::Server;

/// Messages that a client may have under way.
const UNDER_WAY: usize = 8;

/// What all clients know of the server.
#[derive(Default)]
struct World {
    /// Where it is, while it runs.
    at: Mutex<Option<SocketAddr>>,
    /// Nothing new is published any more.
    ends: AtomicBool,
    /// All has come: everybody goes home.
    over: AtomicBool,
}

impl World {
    /// Connects as soon as the server runs; nothing when it is over.
    fn open(&self, connect: &Connect) -> Option<Client> {
        while !self.over.load(Ordering::Relaxed) {
            let at = *self.at.lock().unwrap();
            if let Some(socket) = at.and_then(|at| TcpStream::connect(at).ok()) {
                let mut client = Client::on(socket, connect.version);
                client.send(&connect.bytes());
                let answer = client.within(Duration::from_secs(10));
                if let Some(Heard::Connack(session_present, 0, _)) = answer {
                    client.session_present = session_present;
                    return Some(client);
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
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
    'connections: while let Some(mut client) = world.open(&connect) {
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
            match client.within(Duration::from_secs(20)) {
                Some(Heard::Confirm("PUBACK" | "PUBCOMP", id, _)) => {
                    done.extend(out.remove(&id).map(|it| (it.payload, it.qos)));
                }
                Some(Heard::Confirm("PUBREC", id, 0)) => {
                    if let Some(it) = out.get_mut(&id) {
                        it.released = true;
                    }
                    client.confirm(ConfirmType::Pubrel, id);
                }
                Some(Heard::Closed | Heard::Disconnect(..)) => continue 'connections,
                other => panic!("{name} heard {other:?}, with {} under way", out.len()),
            }
        }
    }
    panic!("{name} was not done")
}

/// Hears everything until it is over. Gives how often each payload came.
fn subscribe(
    world: &World,
    name: &str,
    version: Version,
    ready: &AtomicBool,
) -> BTreeMap<String, usize> {
    let connect = Connect::kept(version, name);
    let (mut got, mut received) = (BTreeMap::new(), BTreeSet::new());
    while let Some(mut client) = world.open(&connect) {
        if !client.session_present {
            assert!(got.is_empty(), "the session of {name} is lost");
            client.subscribe(&[filter("kill/+", 2)]);
            ready.store(true, Ordering::Relaxed);
        }
        loop {
            match client.within(Duration::from_millis(200)) {
                Some(Heard::Message(message)) => {
                    if message.qos == 1 || received.insert(message.id) {
                        *got.entry(message.payload).or_default() += 1;
                    }
                    let kind = match message.qos {
                        1 => ConfirmType::Puback,
                        _ => ConfirmType::Pubrec,
                    };
                    client.confirm(kind, message.id);
                }
                Some(Heard::Confirm("PUBREL", id, _)) => {
                    received.remove(&id);
                    client.confirm(ConfirmType::Pubcomp, id);
                }
                Some(Heard::Closed | Heard::Disconnect(..)) => break,
                None if world.over.load(Ordering::Relaxed) => return got,
                None => {}
                other => panic!("{name} heard {other:?}"),
            }
        }
    }
    got
}

#[test]
fn a_kill_loses_nothing_and_with_qos_2_nothing_comes_twice() {
    let rounds = std::env::var("MQTT_KILL_ROUNDS").map_or(12, |text| text.parse().unwrap());
    let seed = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros() as u64;
    let mut random = Random::new(seed);
    let data = std::env::temp_dir().join(format!("throng-mqtt-kill-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&data);
    std::fs::create_dir_all(&data).unwrap();
    let start = || {
        let data = data.to_str().unwrap();
        let flags = ["--mqtt", "127.0.0.1:0", "--shards", "2", "--data", data];
        let settings = [
            ("THRONG_MQTT_SESSION_MESSAGES_MAX", "1000000"),
            ("THRONG_MQTT_SESSION_BYTES_MAX", "1GiB"),
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
        std::thread::sleep(Duration::from_micros(50_000 + random.below(300_000_u64)));
        *world.at.lock().unwrap() = None;
        drop(server);
        server = start();
        *world.at.lock().unwrap() = Some(server.client);
    }
    std::thread::sleep(Duration::from_millis(300));
    world.ends.store(true, Ordering::Relaxed);
    let done: Vec<(String, u8)> =
        publishers.into_iter().flat_map(|publisher| publisher.join().unwrap()).collect();
    // What comes is asked for until nothing does.
    let (mut before, mut since) = (-1.0, Instant::now());
    while since.elapsed() < Duration::from_secs(2) {
        let delivered = server.metric("throng_messages_delivered_total");
        if delivered != before {
            (before, since) = (delivered, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    world.over.store(true, Ordering::Relaxed);
    assert!(done.len() > 20 * rounds, "only {} messages in {rounds} rounds", done.len());
    for (subscriber, _) in subscribers {
        let got = subscriber.join().unwrap();
        let lost: Vec<_> = done.iter().filter(|(payload, _)| !got.contains_key(payload)).collect();
        assert!(lost.is_empty(), "{} of {} are lost: {lost:?}", lost.len(), done.len());
        let twice: Vec<_> =
            done.iter().filter(|(payload, qos)| *qos == 2 && got[payload] > 1).collect();
        assert!(twice.is_empty(), "{} came twice: {twice:?}", twice.len());
    }
    println!("{} messages in {rounds} rounds", done.len());
    let _ = std::fs::remove_dir_all(&data);
}
