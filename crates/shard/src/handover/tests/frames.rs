//! The frames between two shards, byte by byte: their layout never changes.

use std::os::fd::AsFd;

use engine::{Owed, OwedMember};

use super::super::wire::{self, Reader, push_piece};
use super::*;

#[test]
fn the_kinds_of_frames_stay() {
    let old = [
        wire::HELLO,
        wire::ENGINE,
        wire::CONNECTIONS,
        wire::GONE,
        wire::OUTBOX,
        wire::OWED,
        wire::END,
    ];
    assert_eq!(old, [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!([wire::RECEIPT, wire::HAVE, wire::ERROR], [16, 17, 18]);
    assert_eq!([wire::CLIENT, wire::MQTT, wire::CLIENT_TLS, wire::MQTT_TLS], [0, 1, 2, 3]);
    assert_eq!([wire::HAS_SOCKET, wire::HAS_TLS], [1, 2]);
}

#[test]
fn pieces_stand_behind_their_lengths() {
    let mut bytes = vec![7];
    push_piece(&mut bytes, b"ab");
    push_piece(&mut bytes, b"");
    assert_eq!(bytes, b"\x07\x02\0\0\0ab\0\0\0\0");
    let mut reader = Reader(&bytes);
    assert_eq!(reader.u8().unwrap(), 7);
    assert_eq!((reader.piece().unwrap(), reader.piece().unwrap()), (&b"ab"[..], &b""[..]));
    assert!(reader.is_empty() && reader.u8().is_err() && reader.u32().is_err());
    assert!(Reader(b"\x02\0\0\0a").piece().is_err());
}

#[test]
fn a_greeting_names_the_shard_and_its_listeners() {
    let (a, b) = UnixStream::pair().unwrap();
    let (a, b) = (Channel::new(a).unwrap(), Channel::new(b).unwrap());
    // The last listener has a number that this version doesn't know.
    let socket = a.as_fd();
    a.send(1, b"\x05\x01\0\0\x00\x01\x02\x03\x09", &[socket; 5]).unwrap();
    let taken = TakenShard::greet(b).unwrap();
    let listeners: Vec<Port> = taken.listeners.iter().map(|(it, _)| *it).collect();
    let all = [Port::plain, Port::tls];
    let all = all.map(|port| [port(Listener::Client), port(Listener::Mqtt)]).concat();
    assert_eq!((taken.number, listeners), (0x105, all));
    for (kind, body) in [(2, &b"\0\0\0\0"[..]), (1, b"\0\0"), (1, b"")] {
        let (a, b) = UnixStream::pair().unwrap();
        let (a, b) = (Channel::new(a).unwrap(), Channel::new(b).unwrap());
        a.send(kind, body, &[]).unwrap();
        assert!(TakenShard::greet(b).is_err());
    }
}

/// Checks all frames of a shard that has one connection, with an outbox and an unfinished fan-out.
#[test]
fn the_layout_of_frames_stays() {
    let mut old = shard();
    let mut peer = connect(&mut old);
    peer.send("GET /sse?topic=news HTTP/1.1\r\nHost: x\r\n\r\n");
    some_turns(&mut old);
    let new = connect_new_shard(&mut old);
    // This thread takes every frame.
    let taker = std::thread::spawn(move || {
        let mut frames = Vec::new();
        new.send(16, b"", &[]).unwrap();
        while let Some(frame) = new.receive().unwrap() {
            match frame.kind {
                3 | 4 => new.send(16, b"", &[]).unwrap(),
                7 => new.send(17, b"", &[]).unwrap(),
                _ => {}
            }
            frames.push(frame);
        }
        frames
    });
    turns(&mut old, "copy", |old| old.giver.stage() == GiverStage::Copied);
    // Another connection opens and closes.
    let other = connect(&mut old);
    turns(&mut old, "one more", |old| old.giver.copied() == 2);
    drop(other);
    some_turns(&mut old);
    old.sockets.block(0, engine::Outbox::new(0));
    let piece = engine::Piece::new(Arc::from(*b"left"), &old.engine.metrics().clone());
    old.sockets.outbox_mut(0).unwrap().push(engine::Chunk::new(piece, 2), 0);
    old.giver.order(Give::StandStill);
    some_turns(&mut old);
    publish(&old.engine.broker().clone(), 0..1, 0);
    switch(&mut old);
    drop(old);
    let frames = taker.join().unwrap();
    let [hello, engine, copied, ..] = &frames[..] else { panic!("{frames:?}") };
    assert_eq!((hello.kind, &hello.body[..], engine.kind), (1, &b"\0\0\0\0"[..], 2));
    // Slot, whether a descriptor comes with it, and the record behind its length.
    assert_eq!((copied.kind, &copied.body[..5]), (3, &b"\0\0\0\0\x01"[..]));
    let length = u32::from_le_bytes(copied.body[5..9].try_into().unwrap()) as usize;
    assert_eq!((copied.body.len(), copied.descriptors.len()), (9 + length, 1));
    let of = |kind: u16| frames.iter().find(|frame| frame.kind == kind).unwrap();
    assert_eq!(of(4).body, b"\x01\0\0\0");
    // Slot, and each piece: its messages, and its bytes behind their length.
    assert_eq!(of(5).body, b"\0\0\0\0\x02\0\0\0\x04\0\0\0left");
    let owed = Owed::decode(&of(6).body, &|_| 7).unwrap();
    assert_eq!((owed.list.as_deref(), owed.messages.len()), (Some("news"), 1));
    assert!(matches!(owed.members[..], [OwedMember { slot: 0, first: 0, .. }]));
    let end = frames.last().unwrap();
    assert_eq!((end.kind, &end.body[..]), (7, &b""[..]));
}
