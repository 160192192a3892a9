//! A whole switch between two shards, with peers that must not notice.

use super::*;
use crate::handover::wire;

const SSE: &str = "GET /sse?topic=news HTTP/1.1\r\nHost: x\r\n\r\n";

/// Peers of many kinds, whose connections were copied. Some have changed since.
struct Scene {
    old: Shard,
    new: New,
    /// A peer that reads all the time.
    reader: Peer,
    /// A peer that reads nothing until the end.
    slow: Peer,
    /// A peer that sent half of its request before the copy.
    half: Peer,
    /// A peer that connected during the copy, and got a used slot.
    late: Peer,
    /// A peer that was copied, and then closed its socket.
    closed: Peer,
    /// A peer that was copied, and that the server then closed.
    ended: Peer,
    /// The next number to publish.
    next: u32,
}

impl Scene {
    fn new() -> Scene {
        let mut old = shard();
        let mut peers = || connect(&mut old);
        let (mut reader, mut slow, mut half) = (peers(), peers(), peers());
        let (mut closed, mut ended) = (peers(), peers());
        reader.send(SSE);
        slow.send(SSE);
        closed.send(SSE);
        ended.send("GET /sse?topic=news&user=al HTTP/1.1\r\nHost: x\r\n\r\n");
        half.send(&SSE[..20]);
        some_turns(&mut old);
        let broker = old.engine.broker().clone();
        // More than the socket takes, and less than the limit of its outbox.
        publish(&broker, 0..3, 0);
        fill(&mut old, 1);
        some_turns(&mut old);
        publish(&broker, 3..6, 10);
        some_turns(&mut old);
        assert!(old.sockets.outbox(1).is_some());
        let new = begin(&mut old);
        publish(&broker, 6..8, 10);
        turns(&mut old, "copy", |old| old.giver.stage() == GiverStage::Copied);
        assert_eq!(old.giver.copied(), 5);
        // One peer leaves by itself, and the server closes another one. That one reads the end, though the new
        // shard has its descriptor.
        closed.read();
        closed.socket.shutdown(std::net::Shutdown::Both).unwrap();
        let reply = Box::new(|_| ());
        let target = engine::Target::User("al".into());
        let close = model::CloseReason::ByApplication;
        old.engine.handle().send(engine::Command::Disconnect { target, close, reply });
        some_turns(&mut old);
        assert!(ended.read(), "the end has come");
        let mut late = connect(&mut old);
        assert!(old.sockets.get(3).is_some() || old.sockets.get(4).is_some());
        late.send(SSE);
        some_turns(&mut old);
        half.send(&SSE[20..30]);
        publish(&broker, 8..10, 10);
        some_turns(&mut old);
        reader.read();
        Scene { old, new, reader, slow, half, late, closed, ended, next: 10 }
    }
}

/// Fills a connection's socket, so that what follows goes to its outbox.
fn fill(shard: &mut Shard, slot: u32) {
    let socket = shard.sockets.get(slot).unwrap();
    while rustix::io::write(socket, b"\n").is_ok() {}
}

impl Scene {
    /// Lets the new shard go on instead of the old one, which has given it everything.
    fn goes_on_in_the_new_shard(mut self) {
        let report = self.new.reports.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(report, (0, Ok(()))), "{report:?}");
        let (ended, before) = (self.ended.read(), self.reader.got.len());
        assert!(ended && !self.reader.read() && self.reader.got.len() == before, "it stands still");
        self.new.going.decide(true);
        let connections = self.old.engine.slots().count();
        self.old.giver.order(Give::Release);
        turns(&mut self.old, "release", |old| old.released);
        let gone = std::mem::replace(&mut self.old, shard());
        drop(gone);
        let broker = self.new.broker.clone();
        self.goes_on(&broker, |_| ());
        assert_eq!(self.new.end(), connections);
    }

    /// Checks what all peers send and get from now on, by this broker. Calls `work` in each round.
    fn goes_on(&mut self, broker: &Arc<dyn broker::Broker>, mut work: impl FnMut(&mut Shard)) {
        let Scene { old, reader, slow, half, late, closed, ended, next, .. } = self;
        let mut until = |what: &str, is_so: &mut dyn FnMut() -> bool| {
            let began = Instant::now();
            while !is_so() {
                assert!(began.elapsed() < PATIENCE, "{what}: it takes too long");
                work(old);
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        half.send(&SSE[30..]);
        until("the rest of a request", &mut || {
            half.read();
            half.text().starts_with("HTTP/1.1 200")
        });
        let joined = *next;
        publish(broker, *next..*next + 3, 5);
        *next += 3;
        let last = *next - 1;
        for peer in [&mut *reader, late, half, slow] {
            until("messages", &mut || {
                assert!(!peer.read());
                peer.numbers().contains(&last)
            });
        }
        let all = |from: u32| (from..=last).collect::<Vec<u32>>();
        assert_eq!((reader.numbers(), slow.numbers()), (all(0), all(0)));
        assert_eq!((late.numbers(), half.numbers()), (all(8), all(joined)));
        assert!(slow.text().contains("\n\n\n\n"), "its socket was full before");
        // Equal byte for byte, comments and ids too, except for what filled the socket.
        let body = |peer: &Peer| {
            let text = peer.text();
            let at = text.find("\r\n\r\n").unwrap();
            text[at..]
                .lines()
                .filter(|line| !line.is_empty() && !line.starts_with("retry"))
                .map(String::from)
                .collect::<Vec<_>>()
        };
        assert_eq!(body(slow), body(reader));
        // The shard notices a peer that leaves, and one that had left stays away.
        late.socket.shutdown(std::net::Shutdown::Write).unwrap();
        until("an end", &mut || late.read());
        assert!(ended.read() && closed.text().starts_with("HTTP/1.1 200"));
        assert_eq!(ended.numbers(), [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}

#[test]
fn no_client_notices_that_another_shard_serves() {
    let mut scene = Scene::new();
    switch(&mut scene.old);
    scene.goes_on_in_the_new_shard();
}

/// Copies again what has changed. Returns how many connections that were.
fn copy_again(old: &mut Shard) -> u64 {
    old.giver.begin_pass();
    old.giver.order(Give::Copy);
    turns(old, "another copy", |old| old.giver.stage() == GiverStage::Copied);
    old.giver.copied()
}

#[test]
fn what_changes_during_the_copy_is_copied_again_before_the_pause() {
    let mut scene = Scene::new();
    let old = &mut scene.old;
    assert!(copy_again(old) > 0);
    assert_eq!(copy_again(old), 0);
    switch(old);
    assert_eq!(old.giver.copied(), 0, "nothing is left for the pause");
    scene.goes_on_in_the_new_shard();
}

/// An upgrade that finds calls in progress lets the shard serve before the next attempt.
#[test]
fn a_shard_that_stood_still_for_nothing_serves_and_keeps_the_copy() {
    let mut scene = Scene::new();
    let broker = scene.old.engine.broker().clone();
    copy_again(&mut scene.old);
    for _ in 0..3 {
        let old = &mut scene.old;
        let mut requester = connect(old);
        old.giver.order(Give::StandStill);
        turns(old, "still", |old| old.giver.stage() == GiverStage::Still);
        publish(&broker, scene.next..scene.next + 2, 0);
        scene.next += 2;
        requester.send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
        some_turns(old);
        requester.read();
        let before = scene.reader.got.len();
        assert!(!scene.reader.read() && scene.reader.got.len() == before, "it stands still");
        assert_eq!(requester.text(), "");
        old.giver.order(Give::GoOn);
        turns(old, "going on", |old| old.giver.stage() == GiverStage::Copied);
        some_turns(old);
        assert!(!scene.reader.read() && scene.reader.numbers().contains(&(scene.next - 1)));
        assert!(!requester.read() && requester.text().starts_with("HTTP/1.1 200"));
        assert!(copy_again(old) <= 1, "all but the new connection are copied");
    }
    switch(&mut scene.old);
    scene.goes_on_in_the_new_shard();
}

#[test]
fn no_client_notices_that_another_shard_did_not_go_on() {
    let mut scene = Scene::new();
    let broker = scene.old.engine.broker().clone();
    for _ in 0..3 {
        switch(&mut scene.old);
        let report = scene.new.reports.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(report, (0, Ok(()))), "{report:?}");
        scene.new.abandon();
        scene.old.giver.order(Give::Resume);
        turns(&mut scene.old, "resume", |old| old.giver.stage() == GiverStage::Idle);
        // The next round has the same connections.
        scene.new = begin(&mut scene.old);
        turns(&mut scene.old, "copy", |old| old.giver.stage() == GiverStage::Copied);
    }
    // The new shard may also break off before everything is passed on.
    scene.old.giver.order(Give::Resume);
    turns(&mut scene.old, "resume", |old| old.giver.stage() == GiverStage::Idle);
    scene.new.abandon();
    assert!(scene.old.spare.is_some(), "it can reject a connection when descriptors are short");
    scene.goes_on(&broker, some_turns);
}

#[test]
fn a_new_shard_that_breaks_off_leaves_the_old_one_as_it_was() {
    let mut scene = Scene::new();
    let broker = scene.old.engine.broker().clone();
    // The new shard gets a frame that it can't read, as if the old shard had another version.
    let damaged = wire::GONE;
    scene.old.giving.as_ref().unwrap().channel.send(damaged, b"?", &[]).unwrap();
    assert!(scene.new.reports.recv_timeout(PATIENCE).unwrap().1.is_err());
    turns(&mut scene.old, "failure", |old| old.giver.stage() == GiverStage::Failed);
    assert!(
        error_of(&scene.old.giver).contains("ends too early"),
        "{}",
        error_of(&scene.old.giver)
    );
    // The old shard serves on before its next order, whatever that is.
    publish(&broker, scene.next..scene.next + 1, 0);
    scene.next += 1;
    some_turns(&mut scene.old);
    scene.old.giver.order(Give::StandStill);
    scene.old.giver.order(Give::Rest);
    some_turns(&mut scene.old);
    assert_eq!(scene.old.giver.stage(), GiverStage::Failed);
    scene.old.giver.order(Give::Resume);
    turns(&mut scene.old, "resume", |old| old.giver.stage() == GiverStage::Idle);
    scene.new.abandon();
    scene.goes_on(&broker, some_turns);
}

/// A fan-out that runs when the shards stand still continues at the same position: in the new shard, or in the old one.
#[test]
fn what_a_fan_out_owes_is_sent_once() {
    for goes in [true, false] {
        let mut old = shard();
        let mut peers: Vec<Peer> = (0..30).map(|_| connect(&mut old)).collect();
        peers.iter_mut().for_each(|peer| peer.send(SSE));
        some_turns(&mut old);
        let mut new = begin(&mut old);
        turns(&mut old, "copy", |old| old.giver.stage() == GiverStage::Copied);
        publish(&old.engine.broker().clone(), 0..3, 0);
        switch(&mut old);
        assert!(!old.owed.is_empty());
        assert!(new.reports.recv_timeout(PATIENCE).unwrap().1.is_ok());
        if !goes {
            new.abandon();
        }
        new.going.decide(goes);
        let began = Instant::now();
        let (broker, mut old) = match goes {
            true => (new.broker.clone(), None),
            false => {
                old.giver.order(Give::Resume);
                (old.engine.broker().clone(), Some(old))
            }
        };
        publish(&broker, 3..5, 0);
        for peer in &mut peers {
            while peer.numbers().len() < 5 {
                assert!(began.elapsed() < PATIENCE && !peer.read());
                old.iter_mut().for_each(some_turns);
            }
            assert_eq!(peer.numbers(), [0, 1, 2, 3, 4]);
        }
        if goes {
            assert_eq!(new.end(), 30);
        }
    }
}

/// A session without a socket that ends after its copy does not exist in the new process.
#[test]
fn a_session_that_has_ended_is_not_there_afterwards() {
    let mut old = shard();
    let mut peer = connect(&mut old);
    peer.send("GET /socket/longpoll?vsn=2.0.0&user=al HTTP/1.1\r\nHost: x\r\n\r\n");
    some_turns(&mut old);
    peer.read();
    assert!(peer.text().contains("token"), "{}", peer.text());
    drop(peer);
    some_turns(&mut old);
    assert_eq!(old.engine.slots().count(), 1, "the session");
    let mut new = begin(&mut old);
    turns(&mut old, "copy", |old| old.giver.stage() == GiverStage::Copied);
    turns(&mut old, "its end", |old| {
        let now_us = old.now_us() + 60_000_000;
        old.engine.set_now(now_us);
        old.engine.sweep();
        old.engine.slots().count() == 0
    });
    switch(&mut old);
    assert!(new.reports.recv_timeout(PATIENCE).unwrap().1.is_ok());
    new.going.decide(true);
    assert_eq!(new.end(), 0);
}

/// A shard without connections does not sleep before it reports that all is copied.
#[test]
fn a_shard_without_connections_copies_at_once() {
    let mut old = shard();
    let _new = connect_new_shard(&mut old);
    assert!(old.has_to_copy());
    turns(&mut old, "copy", |old| old.giver.stage() == GiverStage::Copied);
    assert!(!old.has_to_copy());
}

/// An overloaded node has few turns: each turn sends as many frames as the new shard has taken since the last.
#[test]
fn a_turn_sends_as_many_frames_as_were_taken() {
    let mut old = shard();
    let mut peers: Vec<Peer> = (0..72).map(|_| connect(&mut old)).collect();
    // The half requests of eight connections fill a frame.
    let half = format!("GET /sse?topic=news HTTP/1.1\r\nHost: x\r\nx: {}", "x".repeat(4 << 10));
    peers.iter_mut().for_each(|peer| peer.send(&half));
    some_turns(&mut old);
    let new = connect_new_shard(&mut old);
    new.send(wire::RECEIPT, b"", &[]).unwrap();
    for (frames, copied) in [(4, 32), (4, 64), (1, 72)] {
        let now_us = old.now_us();
        old.engine.set_now(now_us);
        old.copy_some();
        assert_eq!(old.giver.copied(), copied);
        let mut taken = 0;
        while taken < frames {
            taken += u32::from(new.receive().unwrap().unwrap().kind == wire::CONNECTIONS);
        }
        (0..frames).for_each(|_| new.send(wire::RECEIPT, b"", &[]).unwrap());
    }
}
