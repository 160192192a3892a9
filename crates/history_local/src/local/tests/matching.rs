//! Tests of topics that filters match.

use history::Matching;

use super::*;

const TOPICS: [&str; 9] =
    ["d:a", "d:a/1", "d:a/1/x", "d:a/2", "d:ab", "d:b/1", "d:b/1/x", "d:b/2/y", "d:c"];

fn fill(node: &Node) {
    for topic in TOPICS {
        submit(node, topic, Options::default()).unwrap();
    }
}

fn search(
    node: &Node,
    filters: &[&str],
    after: u64,
    completion: Completion<Matching>,
) -> HistoryReply<Matching> {
    let filters: Vec<Name> = filters.iter().map(|filter| Name::from(*filter)).collect();
    let hash = Arc::new(|topic: &str| topic.len() as u64);
    node.history.matching(&filters, after, completion, hash).unwrap()
}

/// Returns the topics' names with their last offsets, in order.
fn found(node: &Node, filters: &[&str], after: u64) -> Vec<(String, u64)> {
    let (sender, later) = mpsc::channel();
    let completion =
        Completion::new(move |found: Result<Matching, _>| sender.send(found.unwrap()).unwrap());
    let Matching { topics, top } = match search(node, filters, after, completion) {
        HistoryReply::Now(found) => found,
        HistoryReply::Later => later.recv_timeout(TIMEOUT).unwrap(),
    };
    assert_eq!(top, TOPICS.len() as u64);
    assert!(topics.iter().all(|(it, _)| it.after == after && it.hash == it.topic.len() as u64));
    let mut found: Vec<_> =
        topics.into_iter().map(|(cursor, last)| (cursor.topic.to_string(), last)).collect();
    found.sort();
    found
}

fn check(node: &Node) {
    let all = || TOPICS.iter().map(|topic| topic.to_string()).zip(1..);
    let of = |numbers: &[u64]| all().filter(|(_, at)| numbers.contains(at)).collect::<Vec<_>>();
    let cases: [(&[&str], u64, &[u64]); 7] = [
        (&["d:a/#"], 0, &[1, 2, 3, 4]),
        (&["d:b/+"], 0, &[6]),
        (&["d:b/+/x", "d:a/+/x", "d:b/+"], 0, &[3, 6, 7]),
        // Topics that several filters match come once.
        (&["+/1", "+/1/x", "d:a/#", "d:a/1/#", "d:b/1/+", "+/2"], 0, &[1, 2, 3, 4, 6, 7]),
        (&["#"], 0, &[1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (&["#"], 7, &[8, 9]),
        (&["e/+", "f/#"], 0, &[]),
    ];
    for (filters, after, numbers) in cases {
        assert_eq!(found(node, filters, after), of(numbers), "{filters:?}");
    }
}

#[test]
fn filters_find_each_topic_once_in_memory_and_on_disk() {
    let (_, node) = node_of(None);
    fill(&node);
    check(&node);
    let dir = Dir::new("matching");
    let (store, begin) = dir.open();
    let (_, node) = node_of(Some(begin));
    fill(&node);
    check(&node);
    store.close().unwrap();
}

#[test]
fn others_read_while_topics_are_scanned_and_nothing_is_for_who_has_left() {
    let dir = Dir::new("matching-in-steps");
    let (store, begin) = dir.open();
    let (_, node) = node_of(Some(begin));
    fill(&node);
    let (reached, open) = gate(&store);
    let (sender, reply) = mpsc::channel::<Matching>();
    let requester = Requester::default();
    let completion = Completion::of(&requester, move |found: Result<Matching, _>| {
        sender.send(found.unwrap()).unwrap();
    });
    assert!(matches!(search(&node, &["+/1"], 0, completion), HistoryReply::Later));
    // Another request reads between two steps.
    let (reached_later, open_later) = gate(&store);
    reached.recv_timeout(TIMEOUT).unwrap();
    open.send(()).unwrap();
    reached_later.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(reply.try_recv().unwrap_err(), mpsc::TryRecvError::Empty);
    drop(requester);
    open_later.send(()).unwrap();
    let left = reply.recv_timeout(TIMEOUT);
    assert_eq!(left.unwrap_err(), mpsc::RecvTimeoutError::Disconnected);
    assert_eq!(found(&node, &["+/1"], 0).len(), 2);
    store.close().unwrap();
}
