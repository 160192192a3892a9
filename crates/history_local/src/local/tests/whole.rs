//! Tests of reads of all present messages, and of the newest ones.

use super::*;

/// Returns all messages of a client that begins so.
fn gets(node: &Node, topics: &[&str], since: &str) -> Vec<u64> {
    let request = request(since.parse::<Since>().unwrap());
    let start = begun(node, topics, &request);
    assert!(start.gaps.iter().all(Option::is_none));
    let mut topics = start.topics;
    assert!(topics.iter().all(|topic| topic.whole && topic.after <= start.top.offset));
    let mut offsets = Vec::new();
    loop {
        let (sender, later) = mpsc::channel();
        let completion =
            Completion::new(move |piece: Result<Piece, _>| _ = sender.send(piece.unwrap()));
        let piece = match node.history.read(pull(&topics, 3), completion).unwrap() {
            HistoryReply::Now(piece) => piece,
            HistoryReply::Later => later.recv_timeout(Duration::from_secs(10)).unwrap(),
        };
        assert!(piece.gone.iter().all(|gone| *gone == Gone::Nothing), "what is gone is not missed");
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
fn a_state_comes_whole_whatever_is_requested() {
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
    // Another process, with an empty memory.
    let (store, begin) = dir.open();
    let (_, node) = node_of(Some(begin));
    let all: Vec<u64> = (1..=14).collect();
    assert_eq!(gets(&node, &["d:1", "d:2"], "start"), all);
    assert_eq!(gets(&node, &["d:1"], "last:5"), [8, 9, 10, 11, 12]);
    assert_eq!(gets(&node, &["d:1"], "last:12"), all[..12]);
    assert_eq!(gets(&node, &["d:1", "d:2"], "last:1000"), all);
    // Memory has some, and the disk the rest.
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

/// Makes topics with five messages of 200 KiB each, none in memory.
fn large_topics(dir: &Dir, topics: &[&str]) -> (Store, Node) {
    let (store, begin) = dir.open();
    let (_, node) = node_of(Some(begin));
    for _ in 0..5 {
        for topic in topics {
            let large = Publication::new(*topic, Data::Text("x".repeat(200 << 10).into()));
            let (sender, reply) = mpsc::channel();
            let done = Box::new(move |reply: Results| sender.send(reply).unwrap());
            node.broker.submit(
                Publish { publication: large, options: Options::default() },
                None,
                done,
            );
            reply.recv_timeout(Duration::from_secs(10)).unwrap().unwrap();
        }
    }
    store.close().unwrap();
    let (store, begin) = dir.open();
    (store, node_of(Some(begin)).1)
}

#[test]
fn others_read_while_the_newest_are_counted() {
    let dir = Dir::new("counted-in-steps");
    let topics = ["d:1", "d:2", "d:3"];
    let (store, node) = large_topics(&dir, &topics);
    let (_, open) = gate(&store);
    let (sender, replies) = mpsc::channel();
    for _ in 0..2 {
        let sender = sender.clone();
        let completion = Completion::new(move |start: Result<Start, _>| {
            let topics = start.unwrap().topics;
            sender.send(topics.iter().map(|topic| topic.after).collect::<Vec<_>>()).unwrap();
        });
        let request = request(Since::Last(4));
        let reply = node.history.start(&names(&node, &topics), &request, completion);
        assert!(matches!(reply, Ok(HistoryReply::Later)));
    }
    let completion = Completion::new(move |page: Result<Page, _>| {
        sender.send(vec![page.unwrap().messages[0].id.offset]).unwrap()
    });
    let (hash, topic, from) = (node.hash("d:2"), "d:2".into(), PageFrom::End);
    let query = PageQuery { hash, topic, from, backwards: false, limit: 1, bytes_max: 1 << 20 };
    assert!(matches!(node.history.page(query, completion), Ok(HistoryReply::Later)));
    open.send(()).unwrap();
    let reply = || replies.recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!(reply(), [2], "the page waits for one step");
    assert_eq!((reply(), reply()), (vec![3, 4, 5], vec![3, 4, 5]));
    store.close().unwrap();
}

#[test]
fn nothing_is_counted_for_who_has_left() {
    let dir = Dir::new("counted-for-nobody");
    let topics = ["d:1", "d:2", "d:3"];
    let (store, node) = large_topics(&dir, &topics);
    let (reached, open) = gate(&store);
    let (sender, reply) = mpsc::channel::<Start>();
    let requester = Requester::default();
    let completion = Completion::of(&requester, move |start: Result<Start, _>| {
        sender.send(start.unwrap()).unwrap()
    });
    let started = node.history.start(&names(&node, &topics), &request(Since::Last(5)), completion);
    assert!(matches!(started, Ok(HistoryReply::Later)));
    // The client leaves during the count.
    let (reached_later, open_later) = gate(&store);
    reached.recv_timeout(Duration::from_secs(10)).unwrap();
    open.send(()).unwrap();
    reached_later.recv_timeout(Duration::from_secs(10)).unwrap();
    drop(requester);
    open_later.send(()).unwrap();
    let left = reply.recv_timeout(Duration::from_secs(10));
    assert_eq!(left.unwrap_err(), mpsc::RecvTimeoutError::Disconnected);
    // The next one is counted all the same, also after an abandoned reply.
    assert_eq!(begun(&node, &topics, &request(Since::Last(1))).topics[0].after, 12);
    store.close().unwrap();
}

#[test]
fn what_is_counted_for_a_request_is_bounded_and_each_topic_has_a_share() {
    let dir = Dir::new("counted-bounded");
    let topics = ["d:1", "d:2", "d:3", "d:4", "d:5", "d:6"];
    let (store, node) = large_topics(&dir, &topics);
    // The share of each of six topics is half a mebibyte: the third message exceeds it. The last topics have the
    // rest.
    let start = begun(&node, &topics, &request(Since::Last(5)));
    let after: Vec<u64> = start.topics.iter().map(|topic| topic.after).collect();
    assert_eq!(after, [12, 13, 14, 15, 22, 23]);
    // Alone the topic gets everything.
    assert_eq!(begun(&node, &["d:1"], &request(Since::Last(5))).topics[0].after, 0);
    store.close().unwrap();
}

#[test]
fn a_page_of_the_newest_reads_no_more_than_its_limit() {
    let dir = Dir::new("newest-page");
    let (store, node) = large_topics(&dir, &["d:1"]);
    let page = |from, requester: &Requester| {
        let (sender, page) = mpsc::channel();
        let completion = Completion::of(requester, move |page: Result<Page, _>| {
            sender.send(page.unwrap()).unwrap()
        });
        let (hash, topic) = (node.hash("d:1"), "d:1".into());
        let query = PageQuery { hash, topic, from, backwards: false, limit: 1, bytes_max: 1 << 20 };
        assert!(matches!(node.history.page(query, completion), Ok(HistoryReply::Later)));
        page
    };
    for (messages, want) in [(1, 5), (3, 3), (5, 1), (1_000, 1)] {
        let requester = Requester::default();
        let page = page(PageFrom::Newest(messages), &requester);
        let page = page.recv_timeout(Duration::from_secs(10)).unwrap();
        let offsets: Vec<u64> = page.messages.iter().map(|message| message.id.offset).collect();
        assert_eq!((offsets, page.more, page.gone), (vec![want], want < 5, false));
    }
    // The reader reads no page for a client that has left.
    let (_, open) = gate(&store);
    let pages = [PageFrom::End, PageFrom::Newest(2)].map(|from| page(from, &Requester::default()));
    open.send(()).unwrap();
    for page in pages {
        let left = page.recv_timeout(Duration::from_secs(10)).unwrap_err();
        assert_eq!(left, mpsc::RecvTimeoutError::Disconnected);
    }
    store.close().unwrap();
}
