//! Tests of a node that continues in another process.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "of many outputs and packets a few matter here"
)]

use std::collections::BTreeMap;

use presence::{Change, Changes, SharedEntry};
use proptest::prelude::*;
use random::Random;

use super::*;
use crate::{
    Head, HeadsReply, MessagesFrom, ReplayReply, ReplayRequest, ReplayedRange, RetainedMessage,
};

const SECOND_US: u64 = 1_000_000;

fn settings() -> Settings {
    Settings { node: NodeId(1), name: "a".into(), version: "2".into(), replay_bytes_max: 10_000 }
}

fn records(node: &Node) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut records: BTreeMap<_, _> = node.export().into_iter().collect();
    let mut from = Some(MessagesFrom::default());
    while let Some(page) = from {
        let (messages, next) = node.export_messages(page, 3);
        records.extend(messages.iter().map(|it| (it.key(), it.value())));
        from = next;
    }
    records
}

/// Returns the keys of the retained messages, in the order in which they are evicted.
fn retained(node: &Node) -> Vec<Vec<u8>> {
    let all = node.export_messages(MessagesFrom::default(), usize::MAX).0;
    all.iter().map(RetainedMessage::key).collect()
}

fn restored(records: &BTreeMap<Vec<u8>, Vec<u8>>, now_us: u64) -> Result<Node, HandoverError> {
    let mut handover = Handover::default();
    for (key, value) in records {
        handover.import(key, Some(value))?;
    }
    handover.complete(settings(), now_us)
}

fn streams() -> [Stream; 5] {
    let [a, b, c] = ["a", "b", "c"].map(Stream::of);
    [a, b, c, Stream::EVERYONE, Stream::PRESENCE]
}

fn packet(random: &mut Random, now_us: u64) -> (Target, Packet) {
    let node = 2 + random.below(4_u32);
    let stream = streams()[random.below(5_usize)];
    let number = 1 + random.below(30_u64);
    match random.below(6_u32) {
        0 | 1 => {
            let payload = Bytes::from_static(b"text");
            let message = Message { node: NodeId(node), stream, number, payload };
            (Target::Stream(stream), Packet::Message(message))
        }
        2 => {
            let heads = vec![Head { stream: stream.number(), number, at_us: now_us }];
            let id = random.below(20_u64);
            (Target::Node(NodeId(1)), Packet::HeadsReply(HeadsReply { node, id, now_us, heads }))
        }
        3 => {
            let first = number.saturating_sub(random.below(4_u64)).max(1);
            let (stream, is_whole) = (stream.number(), random.one_in(2_u32));
            let ranges = vec![ReplayedRange { stream, first, to: number, is_whole }];
            (Target::Node(NodeId(1)), Packet::ReplayReply(ReplayReply { node, id: 1, ranges }))
        }
        _ => {
            let heads = vec![(stream.number(), number)];
            let (is_goodbye, has_presence) = (random.one_in(6_u32), random.one_in(2_u32));
            let number = now_us;
            let hello = Hello { node, number, heads, is_goodbye, has_presence, ..Hello::default() };
            (Target::Nodes, Packet::Hello(hello))
        }
    }
}

/// Makes a node after random events of all kinds.
fn node(seed: u64) -> (Node, u64) {
    let (mut random, mut node, mut now_us) = (Random::new(seed), Node::new(settings(), 0), 0);
    node.on_connected(0);
    for _ in 0..200 {
        now_us += 1 + random.below(SECOND_US / 5);
        let stream = streams()[random.below(3_usize)];
        match random.below(16_u32) {
            0 => node.on_interest_begun(stream, now_us, now_us),
            1 if random.one_in(3_u32) => node.on_interest_ended(stream),
            1 if random.one_in(5_u32) => node.on_disconnected(now_us),
            1 => node.on_connected(now_us),
            2..5 => node.publish(stream, now_us, |out| out.resize(out.len() + 200, 0)),
            5 => node.on_time(now_us),
            6 => {
                let meta = "m".repeat(random.below(2_000_usize)).into();
                let entry = SharedEntry { number: now_us, meta, ..SharedEntry::default() };
                let list = vec![Change { entry: Some(entry), gone: None }];
                let changes = Changes { list, is_whole: random.one_in(4_u32), has_more: false };
                node.publish_presence(changes, now_us);
            }
            7 => node.set_packet_bytes_max(1_000 + random.below(2_000_usize), now_us),
            8 => node.clock.observe(now_us),
            _ => {
                let (target, packet) = packet(&mut random, now_us);
                node.on_packet(target, &packet.encode(), now_us).unwrap();
            }
        }
        node.poll_outputs(now_us);
    }
    (node, now_us)
}

#[test]
fn another_process_has_the_same() {
    for seed in 0..100 {
        let (mut node, now_us) = node(seed);
        // Otherwise another process counts the time without a connection from its own start.
        node.on_disconnected(now_us);
        let before = records(&node);
        let mut new = restored(&before, now_us).unwrap();
        assert_eq!(new.replay_bytes(), node.replay_bytes(), "seed {seed}");
        assert!(new.peers().eq(node.peers()), "seed {seed}");
        assert_eq!(new.streams(), node.streams(), "seed {seed}");
        let subscribed = new.poll_outputs(now_us);
        let subscribed = subscribed.iter().filter(|it| matches!(it, Output::Subscribe(_))).count();
        assert_eq!(subscribed, node.streams(), "seed {seed}");
        // The new process reads entries of others once more, and finds the first number of a stream anew.
        let lasting = |mut records: BTreeMap<Vec<u8>, Vec<u8>>| {
            records.retain(|key, _| key[0] != b'p');
            records
        };
        assert_eq!(lasting(records(&new)), lasting(before), "seed {seed}");
        assert_eq!(retained(&new), retained(&node), "seed {seed}: the oldest is evicted first");
        let more_us = now_us + 1;
        for node in [&mut node, &mut new] {
            node.publish(streams()[0], more_us, |out| out.resize(out.len() + 9_000, 0));
        }
        assert_eq!(retained(&new), retained(&node), "seed {seed}");
        for (old, new) in node.peers.values().zip(new.peers.values()) {
            let (before, again) = (old.streams.export(), new.streams.export());
            assert_eq!((before.last, before.missing), (again.last, again.missing), "seed {seed}");
            assert!(
                new.entries.reads() >= old.entries.reads() && new.hello_number == old.hello_number
            );
        }
    }
}

#[test]
fn what_it_retains_is_replayed_and_its_numbers_go_on() {
    let (a, now_us) = (Stream::of("a"), SECOND_US);
    let mut node = Node::new(settings(), 0);
    node.on_connected(0);
    (0..3).for_each(|at| node.publish(a, at, |out| out.extend(b"text")));
    node.on_rest(now_us);
    let late = restored(&records(&node), 3_600 * SECOND_US).unwrap();
    assert!(
        node.replay_bytes() > 0 && late.replay_bytes() == 0,
        "messages that are too old are gone"
    );
    let mut new = restored(&records(&node), now_us).unwrap();
    new.poll_outputs(now_us);
    new.on_connected(now_us);
    new.publish(a, now_us, |out| out.extend(b"text"));
    let range = crate::RequestedRange { stream: a.number(), after: 1, to: 4, since_us: 0 };
    let request = ReplayRequest { node: 2, id: 1, ranges: vec![range] };
    let request = Packet::ReplayRequest(request).encode();
    new.on_packet(Target::Node(NodeId(1)), &request, now_us).unwrap();
    let sent = new.poll_outputs(now_us).into_iter().filter_map(|output| match output {
        Output::Send { bytes, .. } => Some(Packet::decode(&bytes).unwrap()),
        _ => None,
    });
    let sent: Vec<Packet> = sent.collect();
    let number = |packet: &Packet| match packet {
        Packet::Message(message) => Some(message.number),
        _ => None,
    };
    let numbers: Vec<u64> = sent.iter().filter_map(number).collect();
    assert_eq!(numbers, [4, 2, 3, 4]);
    assert!(
        matches!(&sent[0], Packet::Hello(hello) if hello.number == 3 && hello.heads.is_empty())
    );
}

#[test]
fn records_are_laid_out_like_this_for_good() {
    let message = RetainedMessage {
        stream: Stream::EVERYONE,
        number: 5,
        at_us: 6,
        bytes: Bytes::from_static(b"ab"),
    };
    assert_eq!(message.key(), b"m\x04\x00\0\0\0\0\0\0\0\x05");
    assert_eq!(message.value(), b"\xa2\x00\x06\x01\x42ab");
    let numbers = b"\xa5\x00\x07\x01\x08\x02\x09\x03\xf4\x06\x18\x20";
    let stream = b"\xa5\x00\x05\x01\x06\x02\x04\x03\xf5\x04\x01";
    let peer = b"\xae\x00\x61b\x01\x611\x02\x03\x03\xf4\x04\xf5\x05\xf5\x06\xf4\x07\x02\x08\x09\x09\x01\x0a\xf5\
        \x0b\x81\x82\x19\x04\x00\x07\x0c\x80\x0d\x80";
    // Records of a later version have more fields.
    let mut later = peer.to_vec();
    later[0] += 1;
    later.extend(b"\x18\x63\x82\x01\x61x");
    // In `other` the fields 3 and 4, `is_draining` and `has_calls`, have the other value.
    let mut other = peer.to_vec();
    other[9..13].copy_from_slice(b"\x03\xf5\x04\xf4");
    for (peer, is_draining, has_calls) in
        [(&peer[..], false, true), (&later, false, true), (&other, true, false)]
    {
        let mut handover = Handover::default();
        handover.import(b"n", Some(numbers)).unwrap();
        handover.import(b"s\x04\x00", Some(stream)).unwrap();
        handover.import(b"p\0\0\0\x02", Some(peer)).unwrap();
        handover.import(b"zlater", Some(b"?")).unwrap();
        let node = handover.complete(settings(), 100).unwrap();
        let numbers = (node.hello_number, node.presence_diffs, node.request_id, node.time_us);
        assert_eq!(numbers, (7, 8, 9, 32));
        assert_eq!(node.replay.stream(Stream::EVERYONE), ((5, 6), 4, true));
        let peer = &node.peers[&NodeId(2)];
        assert_eq!((&*peer.state.name, peer.hello_number, peer.entries.reads()), ("b", 9, 2));
        let flags = (peer.state.is_draining, peer.state.has_calls);
        assert_eq!(flags, (is_draining, has_calls));
        assert_eq!(peer.streams.export().last, [(1_024, 7)]);
    }
}

#[test]
fn what_does_not_fit_together_is_an_error() {
    assert!(restored(&BTreeMap::new(), 0).is_err(), "nothing says where it goes on");
    let (node, now_us) = node(1);
    let all = records(&node);
    let mut own = all.clone();
    own.insert(b"p\0\0\0\x01".to_vec(), all[&b"p\0\0\0\x02"[..]].clone());
    assert!(restored(&own, now_us).is_err(), "a node that is its own other");
    let mut beyond = all.clone();
    beyond.retain(|key, _| key[0] != b's');
    assert!(restored(&beyond, now_us).is_err(), "messages of streams that have none");
    let mut large = all;
    large.insert(
        b"n".to_vec(),
        b"\xa5\x00\x1b\xff\xff\xff\xff\xff\xff\xff\xff\x01\x08\x02\x09\x03\xf4\x06\x00".to_vec(),
    );
    assert!(restored(&large, now_us).is_err(), "a number that no node reaches");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any record is rejected, or a node continues with it.
    #[test]
    fn damaged_records_are_errors_or_harmless(
        seed in 0_u64..20,
        damages in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0_u8..8, any::<bool>()), 1..6),
    ) {
        let (node, mut now_us) = node(seed);
        let mut all: Vec<(Vec<u8>, Vec<u8>)> = records(&node).into_iter().collect();
        for (which, at, bit, is_cut) in damages {
            let which = which.index(all.len());
            let (key, value) = &mut all[which];
            let at = at.index(key.len() + value.len());
            match at.checked_sub(key.len()) {
                None => key[at] ^= 1 << bit,
                Some(at) if is_cut => value.truncate(at),
                Some(at) => value[at] ^= 1 << bit,
            }
        }
        let mut handover = Handover::default();
        let refused = all.iter().filter(|(key, value)| handover.import(key, Some(value)).is_err()).count();
        prop_assert!(refused <= 5);
        if let Ok(mut node) = handover.complete(settings(), now_us) {
            node.on_connected(now_us);
            let mut random = Random::new(seed);
            for _ in 0..50 {
                now_us += SECOND_US / 5;
                let (target, packet) = packet(&mut random, now_us);
                let _ = node.on_packet(target, &packet.encode(), now_us);
                node.on_time(now_us);
                node.poll_outputs(now_us);
                prop_assert!(node.due_us() > 0);
            }
            let _ = records(&node);
        }
    }

    #[test]
    fn garbage_is_refused_or_passed_over(
        kind in prop::sample::select(b"nspmz".to_vec()),
        key in prop::collection::vec(any::<u8>(), 0..12),
        value in prop::option::of(prop::collection::vec(any::<u8>(), 0..60)),
    ) {
        let mut handover = Handover::default();
        let _ = handover.import(&[&[kind][..], &key].concat(), value.as_deref());
        let _ = handover.complete(settings(), 0);
    }
}
