//! A shard takes over from an old shard that sends arbitrary frames: it reports an error, and no connection breaks.

use std::os::fd::AsFd;

use proptest::prelude::*;

use super::super::wire;
use super::*;

/// A frame of an old shard: its kind, its body, and how many descriptors come with it.
type Said = (u16, Vec<u8>, usize);

/// Sends these frames to a new shard, and breaks off. Returns whether the new shard took all, and the error that it
/// reported to the old one.
fn take_frames(frames: &[Said], goes: bool) -> (Result<(), TakeError>, Option<String>) {
    let (a, b) = UnixStream::pair().unwrap();
    let (a, b) = (Channel::new(a).unwrap(), Channel::new(b).unwrap());
    let (socket, _peer) = UnixStream::pair().unwrap();
    for (kind, body, descriptors) in frames {
        a.send(*kind, body, &vec![socket.as_fd(); *descriptors]).unwrap();
    }
    rustix::net::shutdown(&a, rustix::net::Shutdown::Write).unwrap();
    let (report, reports) = channel();
    let going = Arc::<Going>::default();
    going.decide(goes);
    let mut new = shard();
    let taking = Taking { channel: b, report, going, taken: Arc::default() };
    if new.take_over(taking) {
        some_turns(&mut new);
    }
    let mut error = None;
    while let Ok(Some(frame)) = a.receive() {
        if frame.kind == wire::ERROR {
            error = Some(String::from_utf8(frame.body).unwrap());
        }
    }
    (reports.recv().unwrap().1, error)
}

/// Valid frames, as an old shard sends them.
fn good() -> Vec<Said> {
    let mut old = shard();
    let mut peer = connect(&mut old);
    peer.send("GET /sse?topic=news HTTP/1.1\r\nHost: x\r\n\r\n");
    some_turns(&mut old);
    let record = old.engine.export(0).unwrap();
    let mut connections = b"\0\0\0\0\x01".to_vec();
    wire::push_piece(&mut connections, &record);
    let list = Some("news".into());
    let member = engine::OwedMember { slot: 0, serial: 0, first: 0 };
    let owed = engine::Owed { list, messages: Vec::new(), members: vec![member] };
    vec![
        (wire::ENGINE, old.engine.export_engine(), 0),
        (wire::CONNECTIONS, connections, 1),
        (wire::GONE, 1_u32.to_le_bytes().to_vec(), 0),
        (wire::OUTBOX, b"\0\0\0\0\x01\0\0\0\x01\0\0\0x".to_vec(), 0),
        (wire::OWED, owed.encode(), 0),
        (wire::END, Vec::new(), 0),
    ]
}

#[test]
fn good_frames_are_taken_and_unknown_ones_passed_over() {
    let mut frames = good();
    assert!(take_frames(&frames, true).0.is_ok());
    frames.insert(1, (999, b"later".to_vec(), 1));
    frames.insert(5, (wire::OUTBOX, b"\xfe\xff\xff\xff\x01\0\0\0\x01\0\0\0x".to_vec(), 0));
    assert!(take_frames(&frames, true).0.is_ok());
}

#[test]
fn frames_that_do_not_fit_end_it_with_a_word() {
    let frames = good();
    let [engine, connections, ..] = &frames[..] else { unreachable!() };
    let body = |bytes: &[u8]| bytes.to_vec();
    let mut nowhere = connections.clone();
    nowhere.1[..4].fill(0xff);
    let mut another = connections.clone();
    another.1[0] = 1;
    for wrong in [
        vec![(wire::ENGINE, body(b"?"), 0)],
        vec![connections.clone()],
        vec![engine.clone(), (wire::CONNECTIONS, connections.1.clone(), 0)],
        vec![engine.clone(), (wire::CONNECTIONS, body(b"\0\0\0"), 0)],
        vec![engine.clone(), (wire::CONNECTIONS, body(b"\xff\xff\xff\xff\x01\0\0\0\0"), 1)],
        vec![engine.clone(), nowhere],
        vec![engine.clone(), another],
        vec![engine.clone(), (wire::GONE, body(b"\0"), 0)],
        vec![engine.clone(), (wire::OUTBOX, body(b""), 0)],
        vec![engine.clone(), (wire::OUTBOX, body(b"\0\0\0\0\x01\0\0\0\xff\0\0\0x"), 0)],
        vec![engine.clone(), (wire::OWED, body(b"\xff"), 0)],
        vec![engine.clone(), connections.clone()],
        vec![],
    ] {
        let (result, reported) = take_frames(&wrong, true);
        let error = result.expect_err("it can't go on").to_string();
        assert_eq!(reported, Some(error), "{wrong:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn garbage_of_each_kind_ends_with_a_word_or_is_taken(
        frames in prop::collection::vec(
            (1_u16..20, prop::collection::vec(any::<u8>(), 0..60), 0_usize..3), 0..6),
        begins_well in any::<bool>(),
    ) {
        let mut all = good();
        all.truncate(if begins_well { 2 } else { 0 });
        all.extend(frames);
        let (result, reported) = take_frames(&all, true);
        prop_assert_eq!(result.err().map(|error| error.to_string()), reported);
    }

    #[test]
    fn a_flipped_bit_harms_no_connection(
        at in any::<prop::sample::Index>(), byte in any::<prop::sample::Index>(), bit in 0_u8..8,
    ) {
        let mut frames = good();
        let frame = &mut frames[at.index(5)].1;
        let byte = byte.index(frame.len());
        frame[byte] ^= 1_u8 << bit;
        let (result, reported) = take_frames(&frames, true);
        prop_assert_eq!(result.err().map(|error| error.to_string()), reported);
    }
}
