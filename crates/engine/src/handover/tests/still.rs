//! Engines that stand still, and the owed messages.

use std::sync::atomic::Ordering;

use super::*;
use crate::{Owed, OwedMember};

impl Scene {
    /// Returns the bytes on their way to the members of all topics.
    fn under_way(&self) -> u64 {
        let backlog = |driver: &Driver| {
            let backlog = driver.engine.handle().backlog();
            (0..1_024).map(|index| backlog.counter(index).load(Ordering::Relaxed)).sum::<u64>()
        };
        self.drivers.iter().map(backlog).sum()
    }

    fn stand_still(&mut self) {
        self.drivers.iter_mut().for_each(|driver| driver.engine.stand_still());
        for _ in 0..100 {
            if self.drivers.iter().all(|driver| driver.engine.is_still()) {
                return;
            }
            for driver in &mut self.drivers {
                driver.engine.take_commands();
                driver.engine.run_commands();
                driver.perform();
            }
        }
        panic!("it does not come to rest");
    }

    fn go_on(&mut self) {
        self.drivers.iter_mut().for_each(|driver| driver.engine.go_on());
    }
}

#[test]
fn replies_of_the_history_wait_until_an_engine_goes_on() {
    let mut scene = Scene::new(true);
    scene.step(&Publish("big/1", "one".into()));
    scene.step(&Open(0, 0, get("/sse?user=u0&topic=big/1&since=fffffff8:0")));
    scene.stand_still();
    scene.late.iter().for_each(|late| late.turn());
    scene.stand_still();
    scene.go_on();
    (0..3).for_each(|_| scene.step(&History));
    scene.read(0);
    assert!(scene.texts()[0].contains("one"), "{:?}", scene.texts()[0]);
}

#[test]
fn an_engine_that_drains_is_never_still() {
    let mut scene = Scene::new(false);
    scene.step(&Open(0, 0, get("/sse?topic=plain")));
    scene.handles[0].send(Command::Drain { seconds: 100 });
    let driver = &mut scene.drivers[0];
    driver.engine.stand_still();
    for _ in 0..20 {
        driver.engine.take_commands();
        driver.engine.run_commands();
        driver.perform();
        assert!(!driver.engine.is_still());
    }
}

#[test]
fn who_is_owed_something_gets_it_once_however_it_goes_on() {
    let open = |client| Open(client, 0, get(&format!("/sse?user=u{client}&topic=plain")));
    let publish = |text: &str| Publish("plain", text.into());
    for (gives_up, leaves) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut scene = Scene::new(false);
        (0..CLIENTS).for_each(|client| scene.step(&open(client)));
        assert_eq!(scene.under_way(), 0);
        ["first", "second"].iter().for_each(|text| scene.act(&publish(text)));
        assert!(scene.under_way() > 0);
        scene.upgrade(if gives_up { What::GiveUp } else { What::TakeOver });
        assert!(scene.under_way() > 0 && scene.drivers[0].engine.is_busy(true));
        if leaves {
            let (target, close) = (Target::User("u0".into()), CloseReason::ByApplication);
            let reply = Box::new(|_| ());
            scene.handles[0].send(Command::Disconnect { target, close, reply });
            // Before any of it has its turn.
            scene.drivers[0].engine.take_commands();
            scene.drivers[0].engine.run_commands();
            scene.drivers[0].perform();
        }
        scene.act(&publish("third"));
        (0..CLIENTS).for_each(|client| scene.read(client));
        for (client, text) in scene.texts().iter().enumerate() {
            let at = |word: &str| {
                assert!(text.matches(word).count() <= 1, "{word} comes twice: {text}");
                text.find(word)
            };
            let (first, second, third) = (at("first"), at("second"), at("third"));
            assert!(first.is_some() && first < second, "{text}");
            assert_eq!(third.is_some(), !(leaves && client == 0), "{text}");
            assert!(third.is_none_or(|third| Some(third) > second), "{text}");
        }
        assert_eq!(scene.under_way(), 0, "it is counted as delivered");
        assert!(!scene.drivers[0].engine.has_bulk());
    }
}

#[test]
fn what_is_owed_is_read_as_it_was_written() {
    let mut scene = Scene::new(false);
    for client in 0..CLIENTS {
        scene.step(&Open(client, 0, get(&format!("/sse?user=u{client}&topic=plain"))));
    }
    for text in ["one".into(), fill(1_500), "three".into()] {
        scene.act(&Publish("plain", text));
    }
    scene.stand_still();
    let owed = scene.drivers[0].engine.take_owed();
    // Split both by the messages' size and by the number of members.
    assert!(owed.len() > 3, "{}", owed.len());
    let members: usize = owed.iter().map(|it| it.messages.len() * it.members.len()).sum();
    assert_eq!(members, 3 * CLIENTS);
    let hash = |name: &str| name.len() as u64;
    for owed in &owed {
        let bytes = owed.encode();
        let read = Owed::decode(&bytes, &hash).unwrap();
        assert_eq!((&read.list, &read.members), (&owed.list, &owed.members));
        for (read, owed) in read.messages.iter().zip(&owed.messages) {
            assert_eq!((&read.publication, read.id), (&owed.publication, owed.id));
            assert_eq!(read.topic_hash, 5);
        }
        assert!((0..bytes.len()).all(|cut| Owed::decode(&bytes[..cut], &hash).is_err()));
    }
    // The slot has another serial by now: its connection is owed nothing.
    let engine = &mut scene.drivers[0].engine;
    let stranger = OwedMember { serial: 99, ..owed[0].members[0] };
    engine.give_owed(vec![Owed { members: vec![stranger], ..owed[0].clone() }]);
    scene.go_on();
    (0..CLIENTS).for_each(|client| scene.read(client));
    assert!(scene.texts().iter().all(|text| !text.contains("one")));
    assert_eq!(scene.under_way(), 0);
}
