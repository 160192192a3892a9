//! A seeded simulation of joins, leaves, publishes and fan-outs, against a model that is too
//! simple to be wrong. `HUB_SEED=n cargo test -p hub` replays one run.

use std::collections::{BTreeMap, BTreeSet};

use random::Random;

use super::*;

fn hash(name: &str) -> u64 {
    // A bad hash on purpose: the hub must distinguish names that collide.
    name.len() as u64 * 0x1234_5678
}

/// The expected state: the members of each topic, and which messages each connection is still owed, by source (a
/// topic, or `*`), in order.
#[derive(Default)]
struct Model {
    topics: BTreeMap<String, BTreeSet<Slot>>,
    here: BTreeSet<Slot>,
    owed: BTreeMap<(Slot, String), Vec<u32>>,
}

impl Model {
    fn leave(&mut self, slot: Slot, topic: &str) {
        if let Some(members) = self.topics.get_mut(topic) {
            members.remove(&slot);
        }
        self.topics.retain(|_, members| !members.is_empty());
        self.owed.remove(&(slot, topic.to_string()));
    }

    fn owe(&mut self, members: BTreeSet<Slot>, source: &str, message: u32) {
        for slot in members {
            self.owed.entry((slot, source.to_string())).or_default().push(message);
        }
    }

    /// A slice arrives: it must be the next that each member is owed.
    fn take(&mut self, slots: &[Slot], messages: &[(String, u32)]) {
        for slot in slots {
            for (source, message) in messages {
                let owed = self.owed.get_mut(&(*slot, source.clone()));
                let owed = owed.unwrap_or_else(|| panic!("{slot} is owed nothing from {source}"));
                assert_eq!(owed.remove(0), *message, "slot {slot} from {source}");
                if owed.is_empty() {
                    self.owed.remove(&(*slot, source.clone()));
                }
            }
        }
    }
}

/// The slot of a connection that stays for the whole run.
const ELDER: Slot = 30;

struct Simulation {
    random: Random,
    hub: Hub<(String, u32)>,
    model: Model,
    published: u32,
}

impl Simulation {
    fn step(&mut self) {
        // The elder stays for thousands of broadcasts and of connections that come and go.
        let slot = match self.random.below(60) {
            ELDER => 0,
            slot => slot,
        };
        let topic = "t".repeat(1 + self.random.below(6_usize));
        match self.random.below(20) {
            0..3 => self.insert(slot),
            3 => self.remove(slot),
            4..9 => self.join(slot, &topic),
            9..11 => self.leave(slot, &topic),
            11..14 => self.publish(&topic),
            14 if self.random.one_in(9) => self.take(),
            14 => self.broadcast(),
            _ => {
                self.slice();
            }
        }
    }

    fn insert(&mut self, slot: Slot) {
        if self.model.here.insert(slot) {
            self.hub.insert(slot);
        }
    }

    fn remove(&mut self, slot: Slot) {
        self.hub.remove(slot);
        self.model.here.remove(&slot);
        for topic in self.model.topics.keys().cloned().collect::<Vec<_>>() {
            self.model.leave(slot, &topic);
        }
        self.model.owed.remove(&(slot, "*".into()));
    }

    fn join(&mut self, slot: Slot, topic: &str) {
        let may = self.model.here.contains(&slot);
        let is_in = self.model.topics.get(topic).is_some_and(|members| members.contains(&slot));
        assert_eq!(self.hub.join(slot, hash(topic), topic), may && !is_in);
        if may {
            self.model.topics.entry(topic.into()).or_default().insert(slot);
        }
    }

    fn leave(&mut self, slot: Slot, topic: &str) {
        let members = self.model.topics.get(topic).cloned().unwrap_or_default();
        let want = members.contains(&slot).then_some(members.len() == 1);
        assert_eq!(self.hub.leave(slot, hash(topic), topic), want);
        self.model.leave(slot, topic);
    }

    fn publish(&mut self, topic: &str) {
        self.published += 1;
        let members = self.model.topics.get(topic).cloned().unwrap_or_default();
        let count = self.hub.publish(hash(topic), topic, (topic.into(), self.published));
        assert_eq!(count as usize, members.len());
        self.model.owe(members, topic, self.published);
    }

    fn broadcast(&mut self) {
        self.published += 1;
        let members = self.model.here.clone();
        let count = self.hub.broadcast(("*".into(), self.published));
        assert_eq!(count as usize, members.len());
        self.model.owe(members, "*", self.published);
    }

    /// Takes the unfinished part out of the hub. Another hub with the same members serves it, or the same hub does.
    fn take(&mut self) {
        let mut owed = self.hub.take_owed();
        assert_eq!((self.hub.fanouts(), self.hub.queued()), (0, 0));
        let is_owed = |slot: &Slot| !self.hub.owed(*slot, None).is_empty();
        assert!(!self.model.here.iter().any(is_owed));
        if self.random.one_in(2) {
            self.hub = Hub::default();
            for slot in &self.model.here {
                self.hub.insert(*slot);
            }
            for (topic, members) in &self.model.topics {
                for slot in members {
                    assert!(self.hub.join(*slot, hash(topic), topic));
                }
            }
        }
        // Slot 90 is no member: the hub skips it.
        owed.iter_mut().for_each(|it| it.members.push((90, 0)));
        for owed in owed {
            let hash = owed.topic.as_deref().map_or(0, hash);
            self.hub.give_owed(owed, hash);
        }
    }

    fn slice(&mut self) -> bool {
        let members_max = 1 + self.random.below(7_usize);
        let bulk = self.random.below(4) > 0;
        let bulk_fanouts = self.hub.bulk_fanouts();
        let Some(slice) = self.hub.next_slice(members_max, bulk, 0) else {
            return bulk_fanouts > 0;
        };
        assert!(slice.slots.len() <= members_max);
        let messages: Vec<_> = slice.messages().cloned().collect();
        assert!(!messages.is_empty());
        self.model.take(slice.slots, &messages);
        true
    }

    fn check(&self) {
        assert_eq!(self.hub.connections() as usize, self.model.here.len());
        assert_eq!(self.hub.topics() as usize, self.model.topics.len());
        let listed: BTreeMap<String, u32> =
            self.hub.all_topics().map(|(name, members, _)| (name.to_string(), members)).collect();
        for (topic, members) in &self.model.topics {
            assert_eq!(listed.get(topic), Some(&count(members.len())));
            let slots: BTreeSet<Slot> = self.hub.slots(hash(topic), topic).into_iter().collect();
            assert_eq!(&slots, members);
            assert_eq!(self.hub.members(hash(topic), topic) as usize, members.len());
            let some = self.hub.each_slot(hash(topic), topic).take(2);
            assert_eq!(some.filter(|slot| members.contains(slot)).count(), members.len().min(2));
        }
        for slot in &self.model.here {
            let mut owed: BTreeMap<(Slot, String), Vec<u32>> = BTreeMap::new();
            for (source, message) in self.hub.owed(*slot, None) {
                owed.entry((*slot, source.clone())).or_default().push(*message);
            }
            for topic in ["t", "tt", "ttt"] {
                let alone: Vec<u32> = self
                    .hub
                    .owed(*slot, Some((hash(topic), topic)))
                    .into_iter()
                    .map(|(_, message)| *message)
                    .collect();
                assert_eq!(
                    Some(&alone).filter(|all| !all.is_empty()),
                    owed.get(&(*slot, topic.into()))
                );
            }
            let want = self.model.owed.iter().filter(|((owner, _), _)| owner == slot);
            assert_eq!(owed, want.map(|(key, all)| (key.clone(), all.clone())).collect());
            let names: BTreeSet<String> =
                self.hub.topics_of(*slot).map(|name| name.to_string()).collect();
            let want = self.model.topics.iter().filter(|(_, members)| members.contains(slot));
            assert_eq!(names, want.map(|(topic, _)| topic.clone()).collect());
        }
    }
}

fn run(seed: u64, steps: u32) {
    let mut simulation = Simulation {
        random: Random::new(seed),
        hub: Hub::default(),
        model: Model::default(),
        published: 0,
    };
    // Numbers of newcomers have 64 bits and don't wrap; runs begin where fewer bits would.
    let begins = [0, u64::from(u32::MAX / 2), u64::from(u32::MAX), u64::MAX >> 1];
    let begin = begins[usize::try_from(seed % 4).unwrap()];
    simulation.hub.newcomers.skip(begin - begin.min(seed % 100));
    simulation.insert(ELDER);
    simulation.join(ELDER, "t");
    for step in 0..steps {
        simulation.step();
        if step % (steps / 40) == 0 {
            simulation.check();
        }
    }
    while simulation.slice() {}
    simulation.check();
    assert!(simulation.model.owed.is_empty(), "missed: {:?}", simulation.model.owed);
    assert_eq!(simulation.hub.fanouts(), 0);
    assert!(simulation.model.here.contains(&ELDER));
    assert!(simulation.hub.newcomers.is_empty(), "no number is left");
    for slot in 0..60 {
        simulation.remove(slot);
    }
    simulation.check();
    simulation.hub.shrink();
    let left = simulation.hub.bytes();
    assert!(left < 12 << 10, "{left} bytes are held for nobody");
}

const STEPS: u32 = 2_000;

#[test]
fn one_that_stays_gets_every_broadcast_of_thousands() {
    run(7, 40_000);
}

#[test]
fn a_broadcast_reaches_a_client_that_came_billions_of_connections_ago() {
    let billions =
        [1 << 31, (1 << 31) + 1, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, 3 << 31, 1 << 40];
    for later in billions {
        let mut hub = Hub::default();
        hub.insert(0);
        hub.broadcast("first");
        hub.insert(1);
        hub.newcomers.skip(later);
        hub.insert(2);
        hub.broadcast("second");
        let mut got = [vec![], vec![], vec![]];
        let owed: Vec<_> = (0..3).map(|slot| hub.owed(slot, None).len()).collect();
        assert_eq!(owed, [2, 1, 1], "{later}");
        while let Some(slice) = hub.next_slice(2, true, 0) {
            for slot in slice.slots {
                got[*slot as usize].extend(slice.messages().copied());
            }
        }
        assert_eq!(got, [vec!["first", "second"], vec!["second"], vec!["second"]], "{later}");
        hub.newcomers.skip(later);
        hub.insert(3);
        assert_eq!(hub.broadcast("third"), 4);
        assert_eq!(hub.next_slice(9, true, 0).unwrap().slots, [0, 1, 2, 3], "{later}");
    }
}

#[test]
fn ten_crowds_in_a_row_cost_what_the_first_cost() {
    let mut hub: Hub<u32> = Hub::default();
    let mut costs = Vec::new();
    for _ in 0..10 {
        for slot in 0..20_000 {
            hub.insert(slot);
            hub.join(slot, hash_of(slot), &format!("@u{slot}"));
            hub.join(slot, 1, "all");
            if slot % 10 == 0 {
                // More topics than are stored inline.
                hub.join(slot, 2, "some");
            }
        }
        costs.push(hub.bytes());
        // The connections leave in another order than they came.
        for slot in (0..20_000).map(|slot| slot * 7_919 % 20_000) {
            hub.remove(slot);
        }
        hub.shrink();
        let left = hub.bytes();
        assert!(left < costs[0] / 100, "{left} of {} bytes are held for nobody", costs[0]);
    }
    assert!(costs.iter().all(|cost| *cost <= costs[0]), "{costs:?}");
}

#[test]
fn topics_that_came_and_went_leave_nothing() {
    let mut hub: Hub<u32> = Hub::default();
    let name = |topic: u32| format!("room/{topic}/with-a-name-that-is-not-short");
    (0..100).for_each(|slot| hub.insert(slot));
    for topic in 0..50_000 {
        hub.join(topic % 100, hash_of(topic), &name(topic));
    }
    hub.publish(hash_of(0), &name(0), 1);
    let most = hub.bytes();
    for topic in 0..50_000 {
        assert_eq!(hub.leave(topic % 100, hash_of(topic), &name(topic)), Some(true));
    }
    while hub.next_slice(256, true, 0).is_some() {}
    hub.shrink();
    assert_eq!((hub.topics(), hub.topics.count()), (0, 0));
    assert!(hub.bytes() < most / 100, "{} of {most} bytes are held for nothing", hub.bytes());
}

fn hash_of(number: u32) -> u64 {
    u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

#[test]
fn no_member_misses_a_message_or_gets_one_twice() {
    if let Ok(seed) = std::env::var("HUB_SEED") {
        return run(seed.parse().unwrap(), STEPS);
    }
    for seed in 0..120 {
        if std::panic::catch_unwind(|| run(seed, STEPS)).is_err() {
            panic!("HUB_SEED={seed} replays the run that failed");
        }
    }
}

#[test]
fn a_short_fanout_does_not_wait_for_a_long_one() {
    let mut hub = Hub::default();
    for slot in 0..10_000 {
        hub.insert(slot);
        hub.join(slot, 1, "all");
    }
    hub.join(7, 2, "@alice");
    hub.publish(1, "all", "big");
    assert_eq!(hub.next_slice(256, true, 0).unwrap().slots.len(), 256);
    hub.publish(2, "@alice", "small");
    assert_eq!((hub.fanouts(), hub.bulk_fanouts()), (2, 1));
    let seen: Vec<_> = (0..3)
        .map(|_| hub.next_slice(256, true, 0).unwrap().messages().next().copied().unwrap())
        .collect();
    assert!(seen[..2].contains(&"small"), "{seen:?}");
    // A shard that may not do bulk work now still serves the others.
    hub.publish(2, "@alice", "small");
    let slice = hub.next_slice(256, false, 0).unwrap();
    assert_eq!(slice.messages().next(), Some(&"small"));
    assert!(hub.next_slice(256, false, 0).is_none());
}

#[test]
fn a_short_fanout_waits_for_no_long_list_of_another_topic_that_is_owed() {
    let mut hub = Hub::<u32>::default();
    for slot in 0..100 {
        hub.insert(slot);
        hub.join(slot, hash("long"), "long");
    }
    hub.join(7, hash("short"), "short");
    hub.publish(hash("long"), "long", 1);
    for owed in hub.take_owed() {
        hub.give_owed(owed, hash("long"));
    }
    assert_eq!((hub.fanouts(), hub.bulk_fanouts()), (1, 1));
    assert!(hub.next_slice(10, false, 0).is_none());
    assert_eq!(hub.next_slice(10, true, 0).unwrap().slots.len(), 10);
    hub.publish(hash("short"), "short", 2);
    // Few members of the long list are left, but their next message still waits for the list.
    (0..90).for_each(|slot| _ = hub.leave(slot, hash("long"), "long"));
    hub.publish(hash("long"), "long", 3);
    assert_eq!((hub.fanouts(), hub.bulk_fanouts()), (3, 2));
    let slice = hub.next_slice(10, false, 0).unwrap();
    assert_eq!(slice.messages().collect::<Vec<_>>(), [&2]);
    assert!(hub.next_slice(10, false, 0).is_none());
    let mut got = Vec::new();
    while let Some(slice) = hub.next_slice(10, true, 0) {
        if slice.slots.contains(&95) {
            got.extend(slice.messages().copied());
        }
    }
    assert_eq!(got, [1, 3]);
}

#[test]
fn messages_that_wait_for_one_topic_leave_together() {
    let mut hub = Hub::default();
    for slot in 0..3 {
        hub.insert(slot);
        hub.join(slot, 1, "t");
    }
    (0..5).for_each(|message| {
        hub.publish(1, "t", message);
    });
    let slice = hub.next_slice(100, true, 5).unwrap();
    assert_eq!(slice.messages().copied().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!((slice.slots, slice.finished_since_us), (&[0, 1, 2][..], Some(5)));
    assert!(hub.next_slice(100, true, 6).is_none());
}
