//! Tests that a new broker continues an old one.

use std::time::{Duration, Instant};

use handover::Sent;
use handover::testing::pass;
use model::{Data, Position, Publication};
use random::Random;

use super::*;
use crate::{Limits, NoHistory, Router};

const TOPICS: [&str; 6] = ["a", "b", "c", "rare", "*", "@alice"];

fn broker(secret: u8, started: Instant, messages_max: usize) -> Arc<Local> {
    let limits = Limits {
        recent_messages_max: messages_max,
        recent_bytes_max: 1 << 20,
        recent_seconds_max: 60,
    };
    let router = Arc::new(Router::new(Vec::new()));
    Arc::new(Local::new(router, [secret; 20], started, limits, Arc::new(NoHistory)))
}

fn publish(broker: &Local, topic: &str, text: &str) {
    broker.publish(Publication::new(topic, Data::Text(text.into())), None).unwrap();
}

/// Describes all that a broker returns for a topic and a position.
fn recent(broker: &Local, topic: &str, after: u64) -> String {
    let id = Position { epoch: broker.epoch(), offset: after };
    let found = broker.recent(&[(broker.hash(topic), topic)], Some(id));
    let messages: Vec<_> = found
        .messages
        .iter()
        .map(|it| {
            (it.id, it.published_us, it.publication.clone(), it.topic_hash == broker.hash(topic))
        })
        .collect();
    format!("{messages:?} {} {}", found.top, found.complete)
}

fn assert_same(old: &Local, new: &Local) {
    assert_eq!(old.epoch(), new.epoch());
    let top = old.recent(&[], None).top;
    assert_eq!(new.recent(&[], None).top, top);
    for topic in TOPICS {
        for after in (0..=top.offset).chain([top.offset + 1, u64::MAX]) {
            assert_eq!(recent(old, topic, after), recent(new, topic, after), "{topic} {after}");
        }
    }
    let latest = |broker: &Local| -> Vec<_> {
        broker.latest(None, 100).messages.iter().map(|it| it.id).collect()
    };
    assert_eq!(latest(old), latest(new));
    let counts = |broker: &Local| {
        let activity = broker.activity(60);
        TOPICS.map(|topic| activity.messages(broker.hash(topic)))
    };
    assert_eq!(counts(old), counts(new));
    assert_eq!(old.order().window.complete_after_us(), new.order().window.complete_after_us());
}

#[test]
fn a_broker_goes_on_where_another_was() {
    let started = Instant::now() - Duration::from_secs(5);
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut old = broker(1, started, 12);
        // Each broker continues the one before.
        for generation in 2..5 {
            let new = broker(generation, started, 12);
            let (from, to) = (RecentPart::new(old.clone()), RecentPart::new(new.clone()));
            let mut sent = Sent::new();
            for _ in 0..1 + random.below(3) {
                for _ in 0..random.below(12) {
                    let topic = TOPICS[random.below(TOPICS.len() as u64) as usize];
                    publish(&old, topic, &format!("{}", random.below(1_000)));
                }
                pass(&from, &to, &mut sent);
            }
            assert_eq!(pass(&from, &to, &mut sent), 0, "nothing has changed");
            to.complete().unwrap();
            assert_same(&old, &new);
            for topic in TOPICS {
                publish(&old, topic, "more");
                publish(&new, topic, "more");
            }
            let offsets = |broker: &Local| -> Vec<_> {
                let latest = broker.latest(None, 100).messages;
                latest.iter().map(|it| (it.id, it.publication.topic.clone())).collect()
            };
            assert_eq!(offsets(&old), offsets(&new));
            for topic in TOPICS {
                let complete = |broker: &Local, offset| {
                    let id = Position { epoch: broker.epoch(), offset };
                    broker.recent(&[(broker.hash(topic), topic)], Some(id)).complete
                };
                let top = old.order().last;
                (0..top).for_each(|at| assert_eq!(complete(&old, at), complete(&new, at)));
            }
            old = new;
        }
    }
}

#[test]
fn a_round_with_few_changes_sends_little() {
    let old = broker(1, Instant::now(), 1_000);
    (0..900).for_each(|_| publish(&old, "a", "x"));
    let new = broker(2, Instant::now(), 1_000);
    let (from, to) = (RecentPart::new(old.clone()), RecentPart::new(new.clone()));
    let mut sent = Sent::new();
    assert_eq!(pass(&from, &to, &mut sent), 902);
    publish(&old, "b", "x");
    assert_eq!(pass(&from, &to, &mut sent), 2, "the message and the state");
    to.complete().unwrap();
    assert_same(&old, &new);
}

#[test]
fn the_limits_are_those_of_the_new_process() {
    let old = broker(1, Instant::now(), 100);
    (0..50).for_each(|at| publish(&old, TOPICS[at % 2], "x"));
    let new = broker(2, Instant::now(), 10);
    let (from, to) = (RecentPart::new(old.clone()), RecentPart::new(new.clone()));
    pass(&from, &to, &mut Sent::new());
    to.complete().unwrap();
    assert_eq!(new.latest(None, 100).messages.len(), 10);
    let complete = |topic: &str, offset| {
        let id = Position { epoch: new.epoch(), offset };
        new.recent(&[(new.hash(topic), topic)], Some(id)).complete
    };
    assert!(complete("a", 40) && !complete("a", 30) && complete("rare", 0));
}

#[test]
fn damaged_records_are_refused() {
    let new = broker(2, Instant::now(), 10);
    let before = new.epoch();
    let part = RecentPart::new(new.clone());
    assert!(part.complete().is_err(), "there is no state");
    assert!(part.import(STATE, Some(b"\xff")).is_err());
    assert!(part.import(DROPPED, Some(&[0; 9])).is_err());
    assert!(part.import(&1_u64.to_be_bytes(), Some(b"\xff")).is_err());
    let old = broker(1, Instant::now(), 10);
    publish(&old, "a", "x");
    let mut records = Vec::new();
    RecentPart::new(old).export(&mut |key, value| records.push((key.to_vec(), value.to_vec())));
    let (_, value) = &records[0];
    assert!(part.import(&2_u64.to_be_bytes(), Some(value)).is_err(), "another's message");
    assert!(part.import(b"later", Some(b"x")).is_ok(), "a later version's");
    let state = State { epoch: 9, last: 0, gone_us: 0, key: (1, 2) };
    let state = minicbor::to_vec(state).unwrap();
    part.import(&records[0].0, Some(value)).unwrap();
    part.import(STATE, Some(&state)).unwrap();
    assert!(part.complete().is_err(), "a message is behind the end");
    assert_eq!(new.epoch(), before);
    part.import(&1_u64.to_be_bytes(), None).unwrap();
    part.import(STATE, Some(&state)).unwrap();
    part.complete().unwrap();
    assert_eq!(new.epoch().0, 9);
}
