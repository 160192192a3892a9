//! Tests of missed messages whose node is gone.

use super::*;

const NEWS: u16 = 292;

fn news() -> Stream {
    Stream::of("news")
}

/// Makes a node that is connected, and interested in the stream of `news` since time 0.
fn node(id: u32) -> Node {
    let settings = Settings {
        node: NodeId(id),
        name: String::new(),
        version: "1".into(),
        replay_bytes_max: 1 << 20,
    };
    let mut node = Node::new(settings, 0);
    node.on_connected(0);
    node.on_interest_begun(news(), 0, 0);
    node
}

/// Passes packets between two nodes until neither sends more, except those for which `is_lost` returns true. Returns
/// the first node's other outputs.
fn exchange(
    nodes: &mut [&mut Node; 2],
    now_us: u64,
    mut is_lost: impl FnMut(Target) -> bool,
) -> Vec<Output> {
    let mut given = Vec::new();
    for _ in 0..10 {
        for at in 0..2 {
            for output in nodes[at].poll_outputs(now_us) {
                if let Output::Send { target, bytes } = &output {
                    if !is_lost(*target) {
                        nodes[1 - at].on_packet(*target, bytes, now_us).unwrap();
                    }
                } else if at == 0 {
                    given.push(output);
                }
            }
        }
    }
    given
}

/// Makes two nodes that know each other and one message of the second, which the first one has delivered.
fn pair() -> (Node, Node) {
    let (mut here, mut there) = (node(1), node(2));
    exchange(&mut [&mut here, &mut there], 1, |_| false);
    there.publish(news(), 2, |out| out.extend(b"first"));
    let given = exchange(&mut [&mut here, &mut there], 3, |_| false);
    assert_eq!(delivered(&given), [b"first".as_slice()]);
    (here, there)
}

fn delivered(outputs: &[Output]) -> Vec<&[u8]> {
    let mut payloads = Vec::new();
    for output in outputs {
        if let Output::Deliver { payload, .. } = output {
            payloads.push(payload.as_ref());
        }
    }
    payloads
}

fn gaps(outputs: &[Output]) -> Vec<(u16, Option<u64>)> {
    let gap = |output: &Output| {
        let Output::Gap { stream, lost, .. } = output else { return None };
        Some((stream.number(), *lost))
    };
    outputs.iter().filter_map(gap).collect()
}

#[test]
fn a_node_that_left_while_this_one_was_cut_off_leaves_a_gap() {
    for leaves in [true, false] {
        let (mut here, mut there) = pair();
        here.on_disconnected(4);
        there.publish(news(), 5, |out| out.extend(b"missed"));
        there.poll_outputs(5);
        here.on_connected(6);
        if leaves {
            there.on_leave(7);
        } else {
            // The node has died, or may come back in this time.
            (0..=23).for_each(|half_second| here.on_time(7 + half_second * 500_000));
            let outputs = here.poll_outputs(11_500_007);
            assert_eq!(gaps(&outputs), []);
            assert!(outputs.contains(&Output::Down { node: NodeId(2), has_left: false }));
            here.on_time(12_000_007);
        }
        let given = exchange(&mut [&mut here, &mut there], 12_000_008, |target| {
            matches!(target, Target::Node(_))
        });
        let down = Output::Down { node: NodeId(2), has_left: true };
        assert_eq!(given.contains(&down), leaves, "{given:?}");
        assert_eq!(gaps(&given).iter().filter(|gap| **gap == (NEWS, None)).count(), 1, "{leaves}");
    }
}

#[test]
fn a_node_that_has_said_what_it_sent_leaves_no_gap() {
    let (mut here, mut there) = pair();
    here.on_disconnected(4);
    there.publish(news(), 5, |out| out.extend(b"missed"));
    there.poll_outputs(5);
    here.on_connected(6);
    let given = exchange(&mut [&mut here, &mut there], 6, |_| false);
    assert_eq!(delivered(&given), [b"missed".as_slice()]);
    there.on_leave(7);
    let given = exchange(&mut [&mut here, &mut there], 7, |_| false);
    assert!(given.contains(&Output::Down { node: NodeId(2), has_left: true }));
    here.on_time(1_000_000);
    assert_eq!(gaps(&here.poll_outputs(1_000_000)), []);
}

#[test]
fn a_message_that_comes_behind_a_goodbye_counts_and_one_that_never_comes_is_a_gap() {
    for comes in [true, false] {
        let (mut here, mut there) = pair();
        there.publish(news(), 4, |out| out.extend(b"last"));
        let message = there.poll_outputs(4);
        let Output::Send { target, bytes } = &message[0] else { panic!("{message:?}") };
        there.on_leave(5);
        let given = exchange(&mut [&mut here, &mut there], 5, |_| false);
        assert_eq!(gaps(&given), []);
        if comes {
            here.on_packet(*target, bytes, 6).unwrap();
        }
        let mut given = here.poll_outputs(6);
        for now_us in [300_004, 300_005, 2_000_000] {
            here.on_time(now_us);
            given.extend(here.poll_outputs(now_us));
        }
        let (gap, last) = ((NEWS, Some(1)), b"last".as_slice());
        assert_eq!(gaps(&given), if comes { vec![] } else { vec![gap] });
        assert_eq!(delivered(&given), if comes { vec![last] } else { vec![] });
    }
}

#[test]
fn what_was_requested_by_an_earlier_interest_is_dropped() {
    let (mut here, mut there) = pair();
    there.publish(news(), 4, |out| out.extend(b"missed"));
    there.publish(news(), 4, |out| out.extend(b"behind"));
    let sent = there.poll_outputs(4);
    let Output::Send { target, bytes } = &sent[1] else { panic!("{sent:?}") };
    here.on_packet(*target, bytes, 5).unwrap();
    // The reply is in flight when interest ends, and comes when it has begun again.
    let requests = here.poll_outputs(5);
    let Output::Send { target, bytes } = &requests[0] else { panic!("{requests:?}") };
    there.on_packet(*target, bytes, 6).unwrap();
    let replies = there.poll_outputs(6);
    here.on_interest_ended(news());
    here.on_interest_begun(news(), 7, 7);
    for reply in replies {
        let Output::Send { target, bytes } = reply else { panic!("{reply:?}") };
        here.on_packet(target, &bytes, 8).unwrap();
    }
    there.publish(news(), 9, |out| out.extend(b"new"));
    let given = exchange(&mut [&mut here, &mut there], 9, |_| false);
    assert_eq!(delivered(&given), [b"new".as_slice()], "others are older than the interest");
    assert_eq!(gaps(&given), []);
}
