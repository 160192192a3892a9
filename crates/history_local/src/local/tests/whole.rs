//! All that is there, and the newest of it.

use super::*;

/// What a client gets that begins so, to its end.
fn gets(node: &Node, topics: &[&str], since: &str) -> Vec<u64> {
    let request = request(since.parse::<Since>().unwrap());
    let start = begun(node, topics, &request);
    assert!(start.gaps.iter().all(Option::is_none));
    let mut topics = start.topics;
    assert!(topics.iter().all(|topic| topic.whole && topic.after <= start.top.offset));
    let mut offsets = Vec::new();
    loop {
        let (sender, later) = mpsc::channel();
        let completion = Box::new(move |piece: Result<Piece, _>| _ = sender.send(piece.unwrap()));
        let piece = match node.history.read(pull(&topics, 3), completion).unwrap() {
            Answer::Now(piece) => piece,
            Answer::Later => later.recv_timeout(Duration::from_secs(10)).unwrap(),
        };
        assert!(piece.gone.iter().all(|gone| !gone), "what is gone is not missed");
        offsets.extend(piece.messages.iter().map(|message| message.id.offset));
        for topic in &mut topics {
            (topic.after, topic.whole) = (topic.after.max(piece.through), false);
        }
        if piece.caught_up {
            return offsets;
        }
    }
}

fn fill(node: &Node, topic: &str, messages: usize) {
    for _ in 0..messages {
        submit(node, topic, Options::default()).unwrap();
    }
}

#[test]
fn all_that_is_there_is_no_gap() {
    let (_, node) = node_of(None);
    assert_eq!(gets(&node, &["h:1"], "start"), [0; 0]);
    fill(&node, "h:1", 5);
    fill(&node, "h:2", 2);
    assert_eq!(gets(&node, &["h:1"], "start"), [3, 4, 5], "three are kept");
    assert_eq!(gets(&node, &["h:1", "h:2"], "start"), [3, 4, 5, 6, 7]);
    assert_eq!(gets(&node, &["h:1", "h:2"], "last:1"), [5, 7], "of each topic");
    assert_eq!(gets(&node, &["h:1", "h:2"], "last:2"), [4, 5, 6, 7]);
    assert_eq!(gets(&node, &["h:1", "h:2"], "last:1000"), [3, 4, 5, 6, 7]);
    assert_eq!(gets(&node, &["h:never"], "last:3"), [0; 0]);
    let stats = node.history.stats();
    assert_eq!((stats.recovered, stats.unrecovered), (0, 0), "nobody came back");
}

#[test]
fn what_expired_is_not_counted() {
    let (_, node) = node_of(None);
    fill(&node, "d:1", 3);
    let mut expiring = publication("d:1");
    let attributes = model::Attributes { expires_ms: Some(1), ..Default::default() };
    expiring.attributes = Some(Box::new(attributes));
    node.publish(expiring, None).unwrap();
    assert_eq!(gets(&node, &["d:1"], "last:2"), [2, 3]);
}

#[test]
fn a_state_comes_whole_whatever_is_asked_for() {
    let (_, node) = node_of(None);
    for (key, data) in [("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("b", "null")] {
        let mut publication = Publication::new("c:1", Data::Json(data.into()));
        publication.attributes = model::Attributes::of(Vec::new(), Some(key.into()));
        node.publish(publication, None).unwrap();
    }
    for since in ["start", "last:1", "last:2"] {
        assert_eq!(gets(&node, &["c:1"], since), [3, 4], "{since}");
    }
}

#[test]
fn what_is_only_on_disk_is_there() {
    let dir = Dir::new("whole");
    let (store, begin) = dir.open();
    let (_, node) = node_of(Some(begin));
    fill(&node, "d:1", 12);
    fill(&node, "d:2", 2);
    store.close().unwrap();
    // Another process, with nothing in memory.
    let (store, begin) = dir.open();
    let (_, node) = node_of(Some(begin));
    let all: Vec<u64> = (1..=14).collect();
    assert_eq!(gets(&node, &["d:1", "d:2"], "start"), all);
    assert_eq!(gets(&node, &["d:1"], "last:5"), [8, 9, 10, 11, 12]);
    assert_eq!(gets(&node, &["d:1"], "last:12"), all[..12]);
    assert_eq!(gets(&node, &["d:1", "d:2"], "last:1000"), all);
    // Some in memory, and the rest on disk.
    fill(&node, "d:1", 2);
    for (since, want) in
        [("last:1", vec![16]), ("last:2", vec![15, 16]), ("last:3", vec![12, 15, 16])]
    {
        assert_eq!(gets(&node, &["d:1"], since), want, "{since}");
    }
    assert_eq!(gets(&node, &["d:1", "d:2"], "last:1"), [14, 16]);
    assert_eq!(gets(&node, &["d:never"], "last:3"), [0; 0]);
    let reads = node.history.stats().disk_reads;
    assert_eq!(gets(&node, &["d:1"], "last:2"), [15, 16]);
    assert_eq!(node.history.stats().disk_reads, reads, "memory has them");
    store.close().unwrap();
}

#[test]
fn large_messages_are_counted_in_several_reads() {
    let dir = Dir::new("counted");
    let (store, begin) = dir.open();
    let (_, node) = node_of(Some(begin));
    publish_all(&node, &[&*"x".repeat(200 << 10); 5]);
    store.close().unwrap();
    let (store, begin) = dir.open();
    let (_, node) = node_of(Some(begin));
    for (messages, after) in [(1, 4), (3, 2), (5, 0), (6, 0)] {
        let since = Since::Last(messages);
        let start = begun(&node, &["d:1"], &request(since));
        assert_eq!(start.topics[0].after, after, "last:{messages}");
    }
    store.close().unwrap();
}

#[test]
fn the_newest_end_at_damage() {
    let dir = Dir::new("damaged-newest");
    let (store, begin) = dir.open();
    let (_, node) = node_of(Some(begin));
    publish_all(&node, &["one", "two of them", "three", "four"]);
    store.close().unwrap();
    dir.damage(b"two of them");
    let (store, begin) = dir.open_unverified();
    let (_, node) = node_of(Some(begin));
    let after = |messages| {
        let start = begun(&node, &["d:1"], &request(Since::Last(messages)));
        start.topics[0].after
    };
    assert_eq!((after(1), after(2), after(3), after(4)), (3, 2, 2, 2));
    store.close().unwrap();
}
