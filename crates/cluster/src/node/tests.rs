//! Tests of the nodes that a node knows, and of their silence.

mod packet_size;

use super::*;
use crate::{PresenceDiff, PresencePage};

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
    node.on_packet(Target::Nodes, &Packet::Hello(hello).encode(), now_us).unwrap();
}

fn has_peer(node: &Node, id: u32) -> bool {
    node.peers().any(|peer| peer.node == NodeId(id))
}

#[test]
fn a_new_node_replaces_the_one_that_is_gone_the_longest() {
    let mut node = node();
    receive_hello(&mut node, 3, true, 0);
    receive_hello(&mut node, 2, true, SECOND_US);
    let up = 4..PEERS_MAX as u32 + 2;
    up.clone().for_each(|id| receive_hello(&mut node, id, false, SECOND_US));
    assert_eq!(node.peers().count(), PEERS_MAX);
    // Both may still come back with messages that they retain.
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
    // A node whose time jumps was suspended, and must not count others as silent.
    (21..=23).for_each(|second| node.on_time(second * SECOND_US));
    node.on_time(now_us);
    let down = Output::Down { node: NodeId(2), has_left: false };
    assert!(node.poll_outputs(now_us).contains(&down));
}

fn receive_presence_hello(node: &mut Node, from: u32, now_us: u64) {
    let hello = Hello { node: from, number: now_us + 1, has_presence: true, ..Hello::default() };
    node.on_packet(Target::Nodes, &Packet::Hello(hello).encode(), now_us).unwrap();
}

/// Returns the requests for pages of presence that a node sends: their targets, and the first numbers.
fn page_requests(outputs: &[Output]) -> Vec<(Target, u64)> {
    let requests = outputs.iter().filter_map(|output| {
        let Output::Send { target, bytes } = output else { return None };
        let Ok(Packet::PresenceRequest(request)) = Packet::decode(bytes) else { return None };
        Some((*target, request.from))
    });
    requests.collect()
}

#[test]
fn entries_of_others_stay_for_a_while_without_nats_and_are_read_anew_afterwards() {
    let mut node = node();
    let request = (Target::Node(NodeId(2)), 0);
    receive_hello(&mut node, 3, false, 0);
    receive_presence_hello(&mut node, 2, 0);
    assert_eq!(page_requests(&node.poll_outputs(0)), [request], "the other one shares none");
    let page = PresencePage { node: 2, id: 1, ..PresencePage::default() };
    node.on_packet(Target::Node(NodeId(1)), &Packet::PresencePage(page).encode(), 0).unwrap();
    assert!(node.has_entries_of(NodeId(2)) && !node.has_entries_of(NodeId(3)));
    node.poll_outputs(0);
    node.on_disconnected(SECOND_US);
    let expired = Output::PresenceExpired(NodeId(2));
    let mut expired_us = Vec::new();
    for now_us in (2..40).map(|second| second * SECOND_US) {
        node.on_time(now_us);
        if node.poll_outputs(now_us).contains(&expired) {
            expired_us.push(now_us);
        }
    }
    assert_eq!(expired_us, [31 * SECOND_US]);
    let now_us = 40 * SECOND_US;
    node.on_connected(now_us);
    assert_eq!(page_requests(&node.poll_outputs(now_us)), []);
    receive_presence_hello(&mut node, 2, now_us);
    assert_eq!(page_requests(&node.poll_outputs(now_us)), [request]);
    // Silence ends it, too, and a goodbye.
    let now_us = now_us + SILENT_US;
    (41..=43).for_each(|second| node.on_time(second * SECOND_US));
    node.on_time(now_us);
    assert!(node.poll_outputs(now_us).contains(&expired));
    receive_presence_hello(&mut node, 2, now_us);
    receive_hello(&mut node, 2, true, now_us + 1);
    assert!(node.poll_outputs(now_us + 1).contains(&expired));
}

/// No member sees others leave and come again.
#[test]
fn entries_of_others_stay_through_a_short_time_without_nats() {
    let mut node = node();
    receive_presence_hello(&mut node, 2, 0);
    node.on_disconnected(SECOND_US);
    (2..=20).for_each(|second| node.on_time(second * SECOND_US));
    node.on_connected(20 * SECOND_US);
    // The other node connects later than this one, but is not silent yet.
    (21..=23).for_each(|second| node.on_time(second * SECOND_US));
    receive_presence_hello(&mut node, 2, 23 * SECOND_US);
    node.on_time(26 * SECOND_US);
    let outputs = node.poll_outputs(26 * SECOND_US);
    assert!(!outputs.contains(&Output::PresenceExpired(NodeId(2))), "{outputs:?}");
    assert!(node.peers().all(|peer| peer.is_up));
}

#[test]
fn changes_of_presence_go_in_packets_that_are_not_too_large() {
    let mut node = node();
    node.poll_outputs(0);
    let change = |number: u64, bytes: usize| {
        let meta = "x".repeat(bytes).into();
        let entry = presence::SharedEntry { number, meta, ..Default::default() };
        presence::Change { gone: None, entry: Some(entry) }
    };
    let mut sent = |list: Vec<presence::Change>, is_whole| {
        node.publish_presence(presence::Changes { list, is_whole, has_more: false }, 0);
        let diff = |output: Output| {
            let Output::Send { target, bytes } = output else { panic!("{output:?}") };
            assert_eq!(target, Target::Stream(Stream::PRESENCE));
            let Packet::Message(message) = Packet::decode(&bytes).unwrap() else { panic!() };
            let diff = PresenceDiff::decode(&message.payload).unwrap();
            assert_eq!(diff.number, message.number);
            let bytes = message.payload.len();
            assert!(bytes <= PRESENCE_PACKET_BYTES || diff.changes.len() == 1, "{bytes}");
            (diff.number, diff.changes.len(), diff.is_reset)
        };
        node.poll_outputs(0).into_iter().map(diff).collect::<Vec<_>>()
    };
    assert_eq!(sent(Vec::new(), true), []);
    let many: Vec<_> = (0..100).map(|number| change(number, 1_000)).collect();
    assert_eq!(sent(many, true), [(1, 59, false), (2, 41, false)]);
    let large = vec![change(0, 1), change(1, PRESENCE_PACKET_BYTES), change(2, 1)];
    assert_eq!(sent(large, true), [(3, 1, false), (4, 1, false), (5, 1, false)]);
    assert_eq!(sent(vec![change(0, 1)], false), [(6, 0, true), (7, 1, false)]);
}
