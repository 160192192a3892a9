//! Writes that a client causes.

use std::sync::{Arc, Mutex};

use broker::{Activity, Broker, Done, Latest, Passed, Publish, PublishError, Receipt, Recent};
use model::{Envelope, Epoch, FilterKey, Position, Publication, Qos};
use protocol::Listener;
use protocol::mqtt::client::{self, ConnectParts, SubscribeParts};
use protocol::mqtt::write::{self, ConfirmType, PublishParts};
use protocol::mqtt::{ReasonCode, Value, Version, id};

use super::client::packet;
use super::node::Setup;
use super::{Disk, Random, World};
use crate::connection::peers::Arrival;
use crate::testing::{self, ClientEnd};

/// A client with a persistent session, one engine and a disk.
struct Writer {
    world: World,
    end: ClientEnd,
    slot: u32,
}

impl Writer {
    fn new(is_durable: bool) -> Self {
        let setup = Setup {
            seed: 0,
            engines: 1,
            queue_max: 1_000,
            inflight_max: 4,
            is_late: false,
            is_durable,
            disk: Some(Arc::default()),
            keeps_history: false,
        };
        let mut world = World::of(setup, Random::new(0));
        let (end, slot) = connect(&mut world);
        let mut writer = Writer { world, end, slot };
        writer.turn(&[]);
        writer.write();
        writer
    }

    /// Closes the connection and opens another one. Returns what the client receives.
    fn reconnect(&mut self) -> Vec<u8> {
        self.end = testing::pair().0;
        self.work();
        (self.end, self.slot) = connect(&mut self.world);
        self.turn(&[]).0
    }

    fn disk(&self) -> &Disk {
        self.world.setup.disk.as_ref().unwrap()
    }

    fn work(&mut self) {
        self.world.node.drivers[0].ready(self.slot);
        (0..10).for_each(|_| self.world.turn(0));
    }

    /// Sends bytes. Returns what the client receives, and how many records the disk gets because of them.
    fn turn(&mut self, bytes: &[u8]) -> (Vec<u8>, usize) {
        let before = self.disk().puts();
        self.end.send(bytes);
        self.work();
        (self.end.read(usize::MAX).unwrap(), self.disk().puts() - before)
    }

    /// Writes all that waits. Returns what the client receives, and how many more records the disk gets then.
    fn write(&mut self) -> (Vec<u8>, usize) {
        while self.disk().commit() || self.disk().complete() {}
        self.turn(&[])
    }

    fn subscribe(&mut self, filter: &str) -> (Vec<u8>, usize) {
        let one = SubscribeParts {
            filter,
            qos: Qos::AtLeastOnce,
            no_local: false,
            retain_as_published: false,
            retain_handling: 0,
        };
        self.turn(&packet(|out| client::subscribe(Version::V5, 7, &[], &[one], out)))
    }
}

fn connect(world: &mut World) -> (ClientEnd, u32) {
    let (end, server) = testing::pair();
    let parts = ConnectParts {
        version: Version::V5,
        is_3_1: false,
        clean: false,
        keep_alive_s: 0,
        properties: &[(id::SESSION_EXPIRY_INTERVAL, Value::Number(100))],
        client: "writer",
        will: None,
        user: None,
        password: None,
    };
    end.send(&packet(|out| client::connect(&parts, out)));
    let arrival = Arrival::Direct(None);
    let slot = world.node.drivers[0].connect_by(server, Listener::Mqtt, arrival);
    (end, slot)
}

fn confirm(kind: ConfirmType, id: u16) -> Vec<u8> {
    packet(|out| write::confirm(kind, Version::V5, id, ReasonCode::Success, &[], out))
}

fn publish(id: u16, retain: bool) -> Vec<u8> {
    let parts = PublishParts {
        version: Version::V5,
        dup: false,
        qos: Qos::ExactlyOnce,
        retain,
        topic: "x",
        id,
        properties: std::iter::empty(),
        payload: b"x",
    };
    packet(|out| parts.write(out))
}

#[test]
fn what_changes_nothing_is_not_written() {
    let mut writer = Writer::new(false);
    assert_eq!(writer.subscribe("a").1, 1);
    assert!(!writer.write().0.is_empty());
    // The reply comes when earlier records are written.
    assert_eq!(writer.subscribe("a"), (Vec::new(), 0));
    assert!(!writer.write().0.is_empty());
    let unsubscribe =
        |filter: &str| packet(|out| client::unsubscribe(Version::V5, 8, &[], &[filter], out));
    assert_eq!(writer.turn(&unsubscribe("b")).1, 0);
    assert_eq!(writer.turn(&unsubscribe("a")).1, 1);
    writer.write();
    // Nothing is in flight.
    for (sent, reply) in [(ConfirmType::Pubrel, 0x70), (ConfirmType::Pubrec, 0x62)] {
        let (received, records) = writer.turn(&confirm(sent, 7));
        assert_eq!((received[0], records), (reply, 0));
    }
}

#[test]
fn what_comes_while_the_disk_writes_is_written_together() {
    let mut writer = Writer::new(false);
    let all: Vec<u8> = (1..=5).flat_map(|id| publish(id, false)).collect();
    assert_eq!(writer.turn(&all), (Vec::new(), 1));
    let pubrec = |id| confirm(ConfirmType::Pubrec, id);
    assert_eq!(writer.write(), (pubrec(1), 1));
    assert_eq!(writer.write(), ((2..=5).flat_map(pubrec).collect(), 0));
    let all: Vec<u8> = (1..=5).flat_map(|id| confirm(ConfirmType::Pubrel, id)).collect();
    assert_eq!(writer.turn(&all).1, 1);
    assert_eq!(writer.write().1, 1);
    assert_eq!(writer.write().1, 0);
}

#[test]
fn what_is_not_on_disk_itself_is_known_when_it_is_confirmed() {
    let mut writer = Writer::new(false);
    // From here on the topic has history, in memory alone.
    writer.subscribe("x");
    writer.write();
    for (id, retain) in [(1, false), (2, true)] {
        let pubrec = confirm(ConfirmType::Pubrec, id);
        let (received, records) = writer.turn(&publish(id, retain));
        assert!(records == 1 && !received.ends_with(&pubrec), "{received:?}");
        assert!(writer.write().0.ends_with(&pubrec));
    }
}

/// A broker whose disk takes its time.
struct Slow {
    broker: Arc<dyn Broker>,
    waiting: Mutex<Vec<(Publish, Done)>>,
}

impl Slow {
    /// Writes a waiting message, or fails to. Returns false if none waits.
    fn write(&self, is_written: bool) -> bool {
        let Some((publish, done)) = self.waiting.lock().unwrap().pop() else { return false };
        match is_written {
            true => self.broker.submit(publish, None, done),
            false => done(Err(PublishError::StoreBusy)),
        }
        true
    }
}

impl Broker for Slow {
    fn publish(&self, it: Publication, receipt: Option<Receipt>) -> Result<Position, PublishError> {
        self.broker.publish(it, receipt)
    }

    fn submit(&self, publish: Publish, _: Option<Receipt>, done: Done) {
        self.waiting.lock().unwrap().push((publish, done));
    }

    fn recent(&self, topics: &[(u64, &str)], after: Option<Position>) -> Recent {
        self.broker.recent(topics, after)
    }

    fn latest(&self, topic: Option<(u64, &str)>, limit: usize) -> Latest {
        self.broker.latest(topic, limit)
    }

    fn activity(&self, seconds_max: u64) -> Activity {
        self.broker.activity(seconds_max)
    }

    fn hash(&self, topic: &str) -> u64 {
        self.broker.hash(topic)
    }

    fn epoch(&self) -> Epoch {
        self.broker.epoch()
    }

    fn enter_filter(&self, shard: u16, hash: u64, name: &str) {
        self.broker.enter_filter(shard, hash, name);
    }

    fn leave_filter(&self, shard: u16, name: &str) {
        self.broker.leave_filter(shard, name);
    }

    fn leave_filters(&self, shard: u16) {
        self.broker.leave_filters(shard);
    }

    fn pass_to_group(&self, message: &Arc<Envelope>, key: &Arc<FilterKey>, passed: Passed) -> bool {
        self.broker.pass_to_group(message, key, passed)
    }
}

#[test]
fn what_is_on_its_way_to_the_disk_is_confirmed_there() {
    let pubrec = confirm(ConfirmType::Pubrec, 1);
    let confirms = |received: &[u8]| received.windows(pubrec.len()).any(|it| it == pubrec);
    for is_written in [true, false] {
        let mut writer = Writer::new(true);
        writer.subscribe("x");
        writer.write();
        let core = &mut writer.world.node.drivers[0].engine.core;
        let slow = Arc::new(Slow { broker: core.broker.clone(), waiting: Mutex::default() });
        core.broker = slow.clone();
        // The message comes twice, on two connections: the second one waits.
        for _ in 0..2 {
            assert_eq!(writer.turn(&publish(1, false)), (Vec::new(), 0));
        }
        assert_eq!(writer.reconnect(), [0; 0]);
        assert_eq!(writer.reconnect(), [0; 0]);
        assert!(slow.write(is_written));
        let connack = writer.turn(&[]).0;
        assert_eq!((connack[0], connack[2]), (0x20, 1), "its session is there");
        writer.write();
        // The message comes again: the session knows it, or it is new.
        assert_eq!(confirms(&writer.turn(&publish(1, false)).0), is_written);
        assert_eq!(slow.write(true), !is_written);
        assert_eq!(confirms(&writer.turn(&[]).0), !is_written);
    }
}
