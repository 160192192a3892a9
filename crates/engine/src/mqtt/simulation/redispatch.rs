//! Messages that a session leaves, and when another member of the group gets them.

use std::rc::Rc;
use std::sync::Arc;

use model::Qos;
use protocol::Listener;
use protocol::mqtt::Version;
use random::Random;
use sessions::{SessionKey, Sessions};

use super::World;
use super::client::{Client, Message, SHARED, Terms};
use super::node::Setup;
use crate::connection::peers::Arrival;
use crate::testing;

/// A member with a persistent session, one without, and a publisher.
const PERSISTENT: usize = 0;
const OTHER: usize = 1;
const PUBLISHER: usize = 2;

fn world() -> World {
    world_with(1_000)
}

/// At most `queue_max` messages may wait for a client.
fn world_with(queue_max: usize) -> World {
    let setup = Setup {
        seed: 0,
        engines: 1,
        inflight_max: 4,
        queue_max,
        is_late: false,
        is_durable: true,
        disk: Some(Arc::default()),
        keeps_history: true,
    };
    let mut world = World::of(setup, Random::new(0));
    let done = Rc::clone(&world.done);
    let client = |name, filter: String, persistent| {
        let filters = vec![(filter, Qos::ExactlyOnce)];
        Client::new(name, Version::V5, filters, persistent, Rc::clone(&done))
    };
    let shared = format!("{SHARED}a");
    world.clients = vec![
        client(PERSISTENT, shared.clone(), true),
        client(OTHER, shared, false),
        client(PUBLISHER, "c".into(), false),
    ];
    world.stays = None;
    world
}

impl World {
    fn come(&mut self, name: usize) {
        let (end, server) = testing::pair();
        let terms =
            Terms { receive_max: 1, aliases_max: 0, ends: false, expiry_s: None, will: None };
        self.turn_of(name).connect(end, terms);
        self.node.drivers[0].connect_by(server, Listener::Mqtt, Arrival::Direct(None));
        self.rest(&[name], true);
    }

    /// Does all that is due. The clients in `replying` reply, and the disk writes or does not.
    fn rest(&mut self, replying: &[usize], writes: bool) {
        for _ in 0..100 {
            for client in &mut self.clients {
                client.read(usize::MAX);
                while replying.contains(&client.name) && client.reply() {}
            }
            self.turn(0);
            if let Some(disk) = self.setup.disk.as_ref().filter(|_| writes) {
                while disk.commit() || disk.complete() {}
            }
        }
    }

    /// Publishes a message to the group's topic.
    fn publish_to_group(&mut self, payload: &str, writes: bool) {
        let (topic, payload) = ("a".into(), payload.into());
        let qos = Qos::ExactlyOnce;
        self.clients[PUBLISHER].publish(Message {
            topic,
            qos,
            payload,
            retain: false,
            expiry_s: None,
        });
        self.rest(&[PUBLISHER], writes);
    }

    /// Lets the disk write what waits now, and calls the completions.
    fn write_once(&mut self) {
        let Some(disk) = &self.setup.disk else { return };
        disk.commit();
        while disk.complete() {}
    }

    /// Lets some seconds pass.
    fn wait(&mut self, writes: bool) {
        self.wait_for(&[OTHER], writes);
    }

    fn wait_for(&mut self, replying: &[usize], writes: bool) {
        for _ in 0..3 {
            self.now_us += 1_000_000;
            self.sweep();
            self.rest(replying, writes);
        }
    }

    /// Ends the session of a client that is away.
    fn end(&self, name: usize) {
        let key = SessionKey { client: &format!("client-{name}"), owner: None }.encode();
        assert!(self.node.services.sessions().end(&key).is_some());
    }

    fn got(&self, name: usize) -> Vec<&str> {
        self.clients[name].got.iter().map(|(_, payload)| payload.as_str()).collect()
    }
}

#[test]
fn another_member_gets_it_when_the_store_has_forgotten_the_session() {
    for dies in [false, true] {
        let mut world = world();
        world.come(PERSISTENT);
        world.come(PUBLISHER);
        for payload in ["m0", "m1", "m2"] {
            world.publish_to_group(payload, true);
        }
        assert_eq!(world.got(PERSISTENT), ["m0"], "the others wait");
        world.clients[PERSISTENT].goodbye(false);
        world.rest(&[], true);
        world.come(OTHER);
        let key = SessionKey { client: "client-0", owner: None }.encode();
        assert!(world.node.services.sessions().end(&key).is_some());
        world.wait(false);
        assert!(world.got(OTHER).is_empty(), "a crash would bring the session back");
        if dies {
            world.crash();
            world.come(OTHER);
            world.wait(true);
            assert!(
                world.got(OTHER).is_empty() && world.node.services.sessions().find(&key).is_some()
            );
            assert!(world.node.services.sessions().end(&key).is_some());
        }
        world.wait(true);
        assert_eq!(world.got(OTHER), ["m1", "m2"], "it dies: {dies}");
    }
}

#[test]
fn another_member_gets_deferred_qos_2_messages_that_were_never_sent() {
    for ends in [false, true] {
        let mut world = world();
        world.come(PERSISTENT);
        world.come(PUBLISHER);
        world.publish_to_group("m0", false);
        // The disk has the message, but not its packet identifier.
        world.write_once();
        world.rest(&[PUBLISHER], false);
        assert!(world.got(PERSISTENT).is_empty(), "a crash would forget the packet identifier");
        world.clients[PERSISTENT].goodbye(ends);
        world.rest(&[], true);
        world.come(OTHER);
        let key = SessionKey { client: "client-0", owner: None }.encode();
        assert_eq!(world.node.services.sessions().end(&key).is_some(), !ends);
        world.wait(true);
        assert_eq!(world.got(OTHER), ["m0"], "it ends with its connection: {ends}");
    }
}

#[test]
fn deferred_messages_come_to_the_next_connection_once() {
    let mut world = world();
    world.come(PERSISTENT);
    world.come(PUBLISHER);
    world.publish_to_group("m0", false);
    world.write_once();
    world.rest(&[PUBLISHER], false);
    world.clients[PERSISTENT].goodbye(false);
    world.rest(&[], true);
    world.come(PERSISTENT);
    world.publish_to_group("m1", true);
    world.rest(&[PERSISTENT], true);
    assert_eq!(world.got(PERSISTENT), ["m0", "m1"]);
}

#[test]
fn what_a_session_leaves_waits_for_the_first_member_that_comes() {
    let mut world = world();
    world.come(PERSISTENT);
    world.come(PUBLISHER);
    ["m0", "m1", "m2"].iter().for_each(|payload| world.publish_to_group(payload, true));
    world.clients[PERSISTENT].goodbye(false);
    world.rest(&[], true);
    world.end(PERSISTENT);
    world.wait(true);
    world.come(OTHER);
    world.wait(true);
    assert_eq!(world.got(OTHER), ["m1", "m2"]);
}

/// Returns a group in which each member has one unconfirmed message and one that waits.
fn world_with_two_blocked_members() -> World {
    let mut world = world_with(1);
    world.come(PERSISTENT);
    world.come(PUBLISHER);
    ["m0", "m1"].iter().for_each(|payload| world.publish_to_group(payload, true));
    world.come(OTHER);
    ["m2", "m3"].iter().for_each(|payload| world.publish_to_group(payload, true));
    world
}

#[test]
fn what_a_session_leaves_waits_until_a_member_has_capacity() {
    let mut world = world_with_two_blocked_members();
    world.clients[PERSISTENT].goodbye(false);
    world.rest(&[], true);
    world.end(PERSISTENT);
    world.wait_for(&[], true);
    assert_eq!(world.got(OTHER), ["m2"], "it has confirmed nothing");
    world.wait(true);
    assert_eq!(world.got(OTHER), ["m2", "m3", "m1"]);
}

#[test]
fn what_a_member_leaves_with_its_connection_waits_until_another_one_has_capacity() {
    let mut world = world_with_two_blocked_members();
    world.clients[OTHER].goodbye(false);
    world.wait_for(&[], true);
    assert_eq!(world.got(PERSISTENT), ["m0"], "it has confirmed nothing");
    world.wait_for(&[PERSISTENT], true);
    assert_eq!(world.got(PERSISTENT), ["m0", "m1", "m3"]);
}
