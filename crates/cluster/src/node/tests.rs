//! Which nodes a node knows, and what it takes for their silence.

use super::*;

const SECOND_US: u64 = 1_000_000;

fn node() -> Node {
    let settings = Settings {
        node: NodeId(1),
        name: String::new(),
        version: "1".into(),
        replay_bytes_max: 1 << 20,
    };
    let mut node = Node::new(settings, 0);
    node.on_connected(0);
    node
}

fn receive_hello(node: &mut Node, from: u32, is_goodbye: bool, now_us: u64) {
    let hello = Hello { node: from, number: now_us + 1, is_goodbye, ..Hello::default() };
    node.on_packet(&Packet::Hello(hello).encode(), now_us).unwrap();
}

fn has_peer(node: &Node, id: u32) -> bool {
    node.peers().any(|peer| peer.node == NodeId(id))
}

#[test]
fn a_new_node_takes_the_place_of_the_one_that_is_gone_the_longest() {
    let mut node = node();
    receive_hello(&mut node, 3, true, 0);
    receive_hello(&mut node, 2, true, SECOND_US);
    let up = 4..PEERS_MAX as u32 + 2;
    up.clone().for_each(|id| receive_hello(&mut node, id, false, SECOND_US));
    assert_eq!(node.peers().count(), PEERS_MAX);
    // Either may still come back with messages that it retains.
    receive_hello(&mut node, 1_000, false, RETAINED_US);
    assert!(!has_peer(&node, 1_000) && has_peer(&node, 2) && has_peer(&node, 3));
    let now_us = RETAINED_US + 2 * SECOND_US;
    receive_hello(&mut node, 1_001, false, now_us);
    assert!(has_peer(&node, 1_001) && has_peer(&node, 2) && !has_peer(&node, 3));
    receive_hello(&mut node, 1_002, false, now_us);
    assert!(has_peer(&node, 1_002) && !has_peer(&node, 2));
    receive_hello(&mut node, 1_003, false, now_us);
    assert!(!has_peer(&node, 1_003), "all others are up");
    assert!(up.into_iter().all(|id| has_peer(&node, id)));
}

#[test]
fn silence_and_late_replies_count_for_nothing_while_the_shell_reads_no_packets() {
    let mut node = node();
    receive_hello(&mut node, 2, false, 0);
    let to_peer = |output: &Output| matches!(output, Output::Send { target: Target::Node(_), .. });
    let to_all = |output: &Output| matches!(output, Output::Send { target: Target::Nodes, .. });
    assert_eq!(node.poll_outputs(0).iter().filter(|it| to_peer(it)).count(), 1, "a request");
    node.on_reading_paused(0);
    let mut hellos = 0;
    for now_us in (1..=20).map(|second| second * SECOND_US) {
        assert_eq!(node.due_us(), now_us);
        node.on_time(now_us);
        let outputs = node.poll_outputs(now_us);
        assert!(outputs.iter().all(to_all), "{outputs:?}");
        hellos += outputs.len();
    }
    assert_eq!(hellos, 20);
    let now_us = 20 * SECOND_US;
    node.on_reading_resumed(now_us);
    node.on_time(now_us + 1);
    assert_eq!(node.poll_outputs(now_us + 1), [], "the clocks go on where they stood");
    let now_us = now_us + crate::incoming::REPLY_US;
    node.on_time(now_us);
    assert!(node.poll_outputs(now_us).iter().any(to_peer), "the request comes again");
    let now_us = 20 * SECOND_US + SILENT_US;
    // A node whose time jumps has stood still, and blames no other.
    (21..=23).for_each(|second| node.on_time(second * SECOND_US));
    node.on_time(now_us);
    let down = Output::Down { node: NodeId(2), has_left: false };
    assert!(node.poll_outputs(now_us).contains(&down));
}
