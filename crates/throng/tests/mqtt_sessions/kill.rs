//! `kill -9` in the middle of messages with QoS 1 and 2 in both directions, again and again on one data directory: no
//! message is lost or out of order, and with QoS 2 none comes twice.
//!
//! `KILL_ROUNDS=n cargo test -p throng --test server mqtt_sessions::kill` sets the number of kills, and `KILL_SEED`
//! changes their times.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use protocol::mqtt::Version;
use protocol::mqtt::write::ConfirmType;
use random::Random;

use crate::mqtt::client::*;
use crate::mqtt_sessions::Folder;

/// The number of messages that a publisher has in flight.
const UNDER_WAY: usize = 8;

/// The progress of a round's clients.
#[derive(Default)]
struct Round {
    /// Clients that the server accepted.
    let_in: AtomicU32,
    /// Messages that the server confirmed.
    confirmed: AtomicU32,
}

/// Returns the topics of all publishers, with each QoS of their messages.
fn topics(publishers: &[Publisher]) -> impl Iterator<Item = (String, u8)> {
    publishers.iter().flat_map(|it| {
        let all = if it.qos > 0 { it.qos..=it.qos } else { 1..=2 };
        all.flat_map(move |qos| (0..3).map(move |rest| (format!("{}/{rest}", it.name), qos)))
    })
}

/// The payload of the last message of each topic and QoS.
const END: &str = "end";

/// The state of a message in flight.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Published,
    Released,
}

/// Connects while the server may end at any moment. Returns `None` if it ends before it accepts the client.
fn open(at: SocketAddr, connect: &Connect) -> Option<Client> {
    let mut client = Client::on(TcpStream::connect(at).ok()?, connect.version);
    client.send(&connect.bytes());
    match client.next() {
        Event::Connack(session_present, 0, _) => client.session_present = session_present,
        Event::Closed => return None,
        other => panic!("{}: {other:?}", connect.client),
    }
    Some(client)
}

/// A client that publishes numbers, and remembers the messages in flight across connections.
struct Publisher {
    version: Version,
    name: &'static str,
    /// The QoS; 0 means 1 and 2 in turn.
    qos: u8,
    next: u32,
    /// The messages in flight by number, in order: packet identifier and stage.
    open: BTreeMap<u32, (u16, Stage)>,
    confirmed: u32,
}

impl Publisher {
    fn new(version: Version, name: &'static str, qos: u8) -> Self {
        Publisher { version, name, qos, next: 0, open: BTreeMap::new(), confirmed: 0 }
    }

    fn qos(&self, number: u32) -> u8 {
        if self.qos > 0 { self.qos } else { 1 + (number % 2) as u8 }
    }

    fn id(number: u32) -> u16 {
        // An identifier is used again long after its message is complete.
        (number % 1_000 + 1) as u16
    }

    fn say(&self, client: &mut Client, number: u32, dup: bool) {
        let (topic, payload) = (format!("{}/{}", self.name, number % 3), number.to_string());
        let id = Self::id(number);
        let publish = Publish { id, dup, ..Publish::new(&topic, &payload, self.qos(number)) };
        client.send(&publish.bytes(self.version));
    }

    /// Publishes until the connection ends, or until `most` messages are published and confirmed.
    fn run(mut self, at: SocketAddr, round: &Round, most: Option<u32>) -> Self {
        let Some(mut client) = open(at, &Connect::persistent(self.version, self.name)) else {
            return self;
        };
        round.let_in.fetch_add(1, Ordering::Relaxed);
        assert!(client.session_present, "{} has no session", self.name);
        let open: Vec<_> = self.open.iter().map(|(number, it)| (*number, *it)).collect();
        for (number, (id, stage)) in open {
            match stage {
                Stage::Published => self.say(&mut client, number, true),
                Stage::Released => client.confirm(ConfirmType::Pubrel, id),
            }
        }
        loop {
            while self.open.len() < UNDER_WAY && most.is_none_or(|most| self.next < most) {
                let number = self.next;
                self.next += 1;
                self.open.insert(number, (Self::id(number), Stage::Published));
                self.say(&mut client, number, false);
            }
            if self.open.is_empty() {
                client.disconnect();
                return self;
            }
            let (kind, id) = match client.next() {
                Event::Confirm(kind, id, reason) => {
                    // A message without subscribers (0x10) is fine, and the server may not know a released message
                    // (0x92).
                    assert!([0, 0x10].contains(&reason) || kind == "PUBCOMP", "{kind} {reason:#x}");
                    (kind, id)
                }
                Event::Closed => return self,
                other => panic!("{}: {other:?}", self.name),
            };
            let found = self.open.iter().find(|(_, it)| it.0 == id).map(|(number, _)| *number);
            let number = found.unwrap_or_else(|| panic!("{kind} {id} of nothing"));
            if kind == "PUBREC" {
                self.open.insert(number, (id, Stage::Released));
                client.confirm(ConfirmType::Pubrel, id);
            } else {
                assert_eq!(kind, if self.qos(number) == 1 { "PUBACK" } else { "PUBCOMP" });
                self.open.remove(&number);
                self.confirmed += 1;
                round.confirmed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// A client with a persistent session that subscribes to all publishers' topics.
struct Subscriber {
    version: Version,
    name: &'static str,
    qos: u8,
    /// The numbers that arrived on each topic, in order.
    payloads: BTreeMap<String, Vec<u32>>,
    /// Identifiers of QoS 2 messages that are not released.
    received: BTreeSet<u16>,
    /// The number of last messages that have arrived.
    ended: usize,
}

impl Subscriber {
    /// Creates a client and its session.
    fn new(version: Version, name: &'static str, qos: u8, at: SocketAddr) -> Self {
        let mut client = Connect::persistent(version, name).open(at);
        assert!(!client.session_present, "{name}");
        client.subscribe(&["p1/#", "p2/+", "q1/#", "q2/#", "mixed/+"].map(|it| filter(it, qos)));
        let (payloads, received) = (BTreeMap::new(), BTreeSet::new());
        Subscriber { version, name, qos, payloads, received, ended: 0 }
    }

    /// Reads until the connection ends, or `last` last messages have arrived.
    fn run(mut self, at: SocketAddr, round: &Round, last: usize) -> Self {
        let Some(mut client) = open(at, &Connect::persistent(self.version, self.name)) else {
            return self;
        };
        assert!(client.session_present, "{} has no session", self.name);
        round.let_in.fetch_add(1, Ordering::Relaxed);
        // Pings give messages after the last one time to arrive.
        let mut pings = 3;
        loop {
            match client.next() {
                Event::Message(it) => {
                    let is_new = it.qos < 2 || self.received.insert(it.id);
                    let kind = if it.qos == 2 { ConfirmType::Pubrec } else { ConfirmType::Puback };
                    client.confirm(kind, it.id);
                    if it.payload == END {
                        self.ended += usize::from(is_new);
                        if self.ended == last {
                            client.send_ping();
                        }
                    } else if is_new {
                        let number = it.payload.parse().unwrap();
                        self.payloads.entry(it.topic).or_default().push(number);
                    }
                }
                Event::Pong => {
                    pings -= 1;
                    match pings {
                        0 => break,
                        _ => client.send_ping(),
                    }
                }
                Event::Confirm("PUBREL", id, _) => {
                    self.received.remove(&id);
                    client.confirm(ConfirmType::Pubcomp, id);
                }
                Event::Closed => break,
                other => panic!("{}: {other:?}", self.name),
            }
        }
        self
    }

    /// Checks that all published messages have arrived in order, and that QoS 2 messages arrived once.
    fn check(&self, publishers: &[Publisher]) {
        for publisher in publishers {
            for rest in 0..3 {
                let topic = format!("{}/{rest}", publisher.name);
                let expected: Vec<u32> = (0..publisher.next).filter(|n| n % 3 == rest).collect();
                let mut times = BTreeMap::new();
                let mut once = self.payloads.get(&topic).cloned().unwrap_or_default();
                // A repetition comes after the first time.
                once.retain(|number| {
                    *times.entry(*number).or_insert(0) += 1;
                    times[number] == 1
                });
                let is_twice =
                    |it: &&u32| publisher.qos(**it) == 2 && self.qos == 2 && times[*it] > 1;
                let twice: Vec<_> = once.iter().filter(is_twice).collect();
                assert!(twice.is_empty(), "{} of {topic} came twice: {twice:?}", self.name);
                let lost: Vec<_> = expected.iter().filter(|it| !once.contains(it)).collect();
                let name = self.name;
                assert!(lost.is_empty(), "{name} has not heard {lost:?} of {topic}: {once:?}");
                // Messages with the same QoS stay in order (MQTT-4.6.0-5).
                for qos in 1..=2 {
                    let of = |all: &[u32]| -> Vec<u32> {
                        all.iter().copied().filter(|it| publisher.qos(*it) == qos).collect()
                    };
                    assert_eq!(of(&once), of(&expected), "{name}: {topic}: out of order");
                }
            }
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number, and not {text:?}")))
}

#[test]
fn a_kill_loses_nothing_and_repeats_nothing_of_qos_2() {
    let rounds = number("KILL_ROUNDS").unwrap_or(15);
    let seed = number("KILL_SEED").unwrap_or(1);
    println!("KILL_SEED={seed} KILL_ROUNDS={rounds}");
    let mut random = Random::new(seed);
    let folder = Folder::new();
    let settings = [
        ("THRONG_LIMITS_PUBLISHES_PER_SECOND_MAX", "0"),
        ("THRONG_MQTT_SESSION_MESSAGES_MAX", "1000000"),
        ("THRONG_MQTT_SESSION_BYTES_MAX", "64MiB"),
    ];
    let mut publishers = vec![
        Publisher::new(V3, "p1", 1),
        Publisher::new(V5, "p2", 2),
        Publisher::new(V5, "q1", 1),
        Publisher::new(V3, "q2", 2),
        Publisher::new(V5, "mixed", 0),
    ];
    // Creates all sessions before any message is published.
    let server = folder.serve(&settings);
    let subscribers = [(V5, "s5", 2), (V3, "s3", 2), (V5, "once", 1)]
        .map(|(version, name, qos)| Subscriber::new(version, name, qos, server.client));
    for publisher in &publishers {
        // SUBACK confirms that the session is on disk.
        let mut client = Connect::persistent(publisher.version, publisher.name).open(server.client);
        client.subscribe(&[filter("any", 0)]);
    }
    let mut subscribers = Vec::from(subscribers);
    drop(server);
    let count = topics(&publishers).count();
    for number in 0..=rounds {
        let server = folder.serve(&settings);
        let (at, round) = (server.client, Arc::new(Round::default()));
        let is_last = number == rounds;
        // Some subscribers miss a few rounds.
        let here = |random: &mut Random| is_last || random.below(4) > 0;
        let (mut subscribers_running, mut saying) = (Vec::new(), Vec::new());
        let (mut deaf, mut silent) = (Vec::new(), Vec::new());
        for it in subscribers {
            if here(&mut random) {
                let round = round.clone();
                subscribers_running.push(std::thread::spawn(move || it.run(at, &round, count)));
            } else {
                deaf.push(it);
            }
        }
        for it in publishers {
            if here(&mut random) {
                let (round, most) = (round.clone(), is_last.then_some(it.next));
                saying.push(std::thread::spawn(move || it.run(at, &round, most)));
            } else {
                silent.push(it);
            }
        }
        if !is_last {
            // The kill mostly comes after some confirmed messages, and sometimes during connects.
            if random.below(4) > 0 {
                let lasting = subscribers_running.len() + saying.len();
                let confirmed = if saying.is_empty() { 0 } else { random.below(60) };
                server.until("all are let in, and some messages confirmed", |_| {
                    round.let_in.load(Ordering::Relaxed) as usize == lasting
                        && round.confirmed.load(Ordering::Relaxed) >= confirmed
                });
                std::thread::sleep(Duration::from_micros(random.below(30_000)));
            } else {
                std::thread::sleep(Duration::from_micros(random.below(10_000)));
            }
            drop(server);
            subscribers =
                subscribers_running.into_iter().map(|it| it.join().unwrap()).chain(deaf).collect();
            publishers = saying.into_iter().map(|it| it.join().unwrap()).chain(silent).collect();
        } else {
            publishers = saying.into_iter().map(|it| it.join().unwrap()).collect();
            let mut last = Connect::new(V5, "last").open(at);
            topics(&publishers).for_each(|(topic, qos)| last.publish(&topic, END, qos));
            subscribers = subscribers_running.into_iter().map(|it| it.join().unwrap()).collect();
        }
    }
    for publisher in &publishers {
        assert!(publisher.open.is_empty());
        println!("{}: {} published", publisher.name, publisher.next);
        assert!(publisher.next > 0 && publisher.confirmed == publisher.next);
    }
    subscribers.iter().for_each(|it| it.check(&publishers));
}

#[test]
fn a_kill_keeps_retained_messages_that_were_confirmed() {
    let folder = Folder::new();
    let mut confirmed = Vec::new();
    for round in 0..12_u8 {
        let server = folder.serve(&[]);
        let mut late = Connect::new(V5, "late").open(server.client);
        late.subscribe(&[filter("state/+", 0)]);
        let mut found: Vec<String> =
            late.messages(confirmed.len()).into_iter().map(|(_, payload)| payload).collect();
        found.sort();
        assert_eq!(found, confirmed, "round {round}");
        let payload = format!("{round:02}");
        let topic = format!("state/{round}");
        let mut speaker = Connect::new(V5, "speaker").open(server.client);
        speaker.publish_all(Publish::new(&topic, &payload, 1 + round % 2).retained());
        // Kills the server directly after the confirmation.
        drop(server);
        confirmed.push(payload);
    }
}
