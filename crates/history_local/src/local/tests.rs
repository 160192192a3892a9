use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use model::{
    AcknowledgeRule, Behind, Data, Epoch, Frontier, HistoryRule, Name, Position, Publication,
    RecoveryGap, ResumeRequest, ResumeToken, Rule, Rules, Since,
};
use store::Store;

use broker::{
    Broker, Delivery, Inbox, Limits, Options, Publish, PublishError, Published, Receipt,
    StoredRecord,
};

use super::{Begin, HistoryLimits, Local};
use history::{
    AcknowledgeError, Completion, Gone, History, HistoryError, HistoryReply, Page, PageFrom,
    PageQuery, Piece, Pull, Requester, Start, TopicCursor,
};

mod clock;
mod handover;
mod matching;
mod whole;

/// The longest time that a test waits for anything.
const TIMEOUT: Duration = Duration::from_secs(60);

/// An inbox for every topic, which may have no capacity.
#[derive(Default)]
struct Taken {
    full: AtomicBool,
    offsets: Mutex<Vec<u64>>,
}

impl Inbox for Taken {
    fn wants(&self, _: u64) -> bool {
        true
    }
    fn has_capacity(&self) -> bool {
        !self.full.load(Ordering::Relaxed)
    }
    fn deliver(&self, delivery: Delivery) {
        if let Some(receipt) = &delivery.receipt {
            receipt.add(2);
        }
        self.offsets.lock().unwrap().push(delivery.message.id.offset);
    }
    fn notify_gap(&self, _: Arc<broker::Gap>) {}
}

fn history(messages_max: u64) -> HistoryRule {
    HistoryRule {
        messages_max,
        bytes_max: 1 << 20,
        seconds_max: 3_600,
        durable: false,
        compact: false,
        acknowledge: None,
    }
}

fn rules() -> Arc<Rules> {
    let rule = |pattern: &str, history: HistoryRule| Rule {
        pattern: pattern.into(),
        history: Some(Arc::new(history)),
        ..Rule::default()
    };
    let acknowledge = AcknowledgeRule {
        window_messages_max: 2,
        redelivery_seconds: 1,
        delivery_count_max: 2,
        dead_letter: None,
    };
    let rules = vec![
        rule("h:*", history(3)),
        rule("d:*", HistoryRule { durable: true, ..history(100) }),
        rule("c:*", HistoryRule { compact: true, ..history(100) }),
        rule("q:*", HistoryRule { acknowledge: Some(acknowledge), ..history(100) }),
    ];
    Arc::new(Rules { rules, ..Rules::default() })
}

fn limits() -> Limits {
    Limits { recent_messages_max: 10, recent_bytes_max: 1 << 20, recent_seconds_max: 60 }
}

/// A broker and its history.
struct Node {
    broker: broker::Local,
    history: Local,
}

impl Node {
    fn hash(&self, topic: &str) -> u64 {
        self.broker.hash(topic)
    }

    fn publish(
        &self,
        publication: Publication,
        receipt: Option<Receipt>,
    ) -> Result<Position, PublishError> {
        self.broker.publish(publication, receipt)
    }
}

fn node_of(begin: Option<Begin>) -> (Arc<Taken>, Node) {
    node_with(begin, HistoryLimits::default())
}

fn node_with(begin: Option<Begin>, memory: HistoryLimits) -> (Arc<Taken>, Node) {
    let taken = Arc::new(Taken::default());
    let (secret, started) = ([7; 20], Instant::now());
    let router = Arc::new(broker::Router::new(vec![taken.clone()]));
    let begin = begin.unwrap_or_else(|| Begin::in_memory(broker::epoch(&secret)));
    let history = Local::new(router.clone(), begin, started, memory, limits());
    history.set_rules(rules(), 300);
    let log = Arc::new(history.clone());
    let broker = broker::Local::new(router, secret, started, limits(), log);
    (taken, Node { broker, history })
}

fn publication(topic: &str) -> Publication {
    Publication::new(topic, Data::Text("x".into()))
}

type Results = Result<Published, PublishError>;

fn submit(node: &Node, topic: &str, options: Options) -> Results {
    let (sender, reply) = mpsc::channel();
    let done = Box::new(move |reply: Results| sender.send(reply).unwrap());
    node.broker.submit(Publish { publication: publication(topic), options }, None, done);
    reply.recv_timeout(Duration::from_secs(10)).unwrap()
}

fn offset(reply: Results) -> u64 {
    reply.unwrap().id.offset
}

fn request(since: impl Into<Since>) -> ResumeRequest {
    ResumeRequest { all: Some(since.into()), topics: Vec::new() }
}

/// Returns the offsets from which topics are read, after a read of the disk if necessary.
fn begun(node: &Node, topics: &[&str], request: &ResumeRequest) -> Start {
    let (sender, later) = mpsc::channel();
    let completion =
        Completion::new(move |start: Result<Start, _>| sender.send(start.unwrap()).unwrap());
    match node.history.start(&names(node, topics), request, completion).unwrap() {
        HistoryReply::Now(start) => start,
        HistoryReply::Later => later.recv_timeout(Duration::from_secs(10)).unwrap(),
    }
}

fn names<'a>(node: &Node, topics: &[&'a str]) -> Vec<(u64, &'a str)> {
    topics.iter().map(|topic| (node.hash(topic), *topic)).collect()
}

fn pull(topics: &[TopicCursor], messages_max: usize) -> Pull {
    Pull { topics: topics.to_vec(), messages_max, bytes_max: 1 << 20 }
}

fn read(node: &Node, topics: &[TopicCursor]) -> (Vec<u64>, bool) {
    let reply = node.history.read(pull(topics, 100), Completion::new(|_| panic!("memory has it")));
    match reply.unwrap() {
        HistoryReply::Now(piece) => {
            (piece.messages.iter().map(|message| message.id.offset).collect(), piece.caught_up)
        }
        HistoryReply::Later => panic!("memory has it"),
    }
}

fn read_disk(node: &Node, topics: &[TopicCursor], messages_max: usize) -> Piece {
    let (sender, piece) = mpsc::channel();
    let completion = Completion::new(move |piece| sender.send(piece).unwrap());
    let reply = node.history.read(pull(topics, messages_max), completion);
    assert!(matches!(reply, Ok(HistoryReply::Later)), "{reply:?}");
    piece.recv_timeout(Duration::from_secs(10)).unwrap().unwrap()
}

/// Makes the store's reader wait. It signals the first end when it has reached the gate, and continues by the other
/// end.
fn gate(store: &Store) -> (mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (reaches, reached) = mpsc::channel();
    let (open, opened) = mpsc::channel();
    let wait = move |_: &store::Reader| {
        reaches.send(()).unwrap();
        opened.recv_timeout(TIMEOUT).unwrap();
    };
    store.read_later(Box::new(wait)).unwrap();
    (reached, open)
}

#[test]
fn two_logs_and_what_was_missed_is_found_by_one_position() {
    let (taken, node) = node_of(None);
    for topic in ["h:1", "other", "h:2", "h:1"] {
        node.publish(publication(topic), None).unwrap();
    }
    assert_eq!(*taken.offsets.lock().unwrap(), [1, 1, 2, 3]);
    assert_ne!(node.broker.epoch(), node.history.epoch());
    let epoch = node.history.epoch();
    let token = ResumeToken::from(Position { epoch, offset: 1 });
    let start = begun(&node, &["h:1", "h:2"], &request(token));
    assert_eq!(start.gaps, [None, None]);
    assert_eq!(read(&node, &start.topics), (vec![2, 3], true));
    // A client without a token begins now.
    let start = begun(&node, &["h:1"], &ResumeRequest::default());
    assert_eq!(start.topics[0].after, start.top.offset);
}

#[test]
fn a_token_with_missing_ones_gets_those_and_what_their_topics_had_after() {
    let (_, node) = node_of(None);
    for topic in ["h:1", "h:2", "h:1", "h:2", "h:2"] {
        node.publish(publication(topic), None).unwrap();
    }
    let through = Position { epoch: node.history.epoch(), offset: 4 };
    let behind = vec![Behind { topic: model::resume::mark("h:1"), through: 2 }];
    let position = Some(Frontier { through, behind });
    let token = ResumeToken { id: through, frontier: position };
    let start = begun(&node, &["h:1", "h:2"], &request(token));
    assert_eq!(read(&node, &start.topics), (vec![3, 5], true));
}

#[test]
fn recovery_gaps_name_lost_messages_and_another_epoch() {
    let (_, node) = node_of(None);
    for _ in 0..5 {
        node.publish(publication("h:1"), None).unwrap();
    }
    let epoch = node.history.epoch();
    let gap = |epoch, offset, topic: &str| {
        let token = ResumeToken::from(Position { epoch, offset });
        begun(&node, &[topic], &request(token)).gaps[0]
    };
    assert_eq!(gap(epoch, 1, "h:1"), Some(RecoveryGap::TooOld));
    assert_eq!(gap(epoch, 2, "h:1"), None);
    assert_eq!(gap(epoch, 0, "h:never"), None);
    assert_eq!(gap(epoch, 6, "h:1"), Some(RecoveryGap::Epoch));
    assert_eq!(gap(Epoch(1), 2, "h:1"), Some(RecoveryGap::Epoch));
    let partition: ResumeToken = format!("{epoch}.7:2").parse().unwrap();
    let start = begun(&node, &["h:1"], &request(partition));
    assert_eq!(start.gaps, [Some(RecoveryGap::Epoch)]);
    // The client gets a compacted topic's state, but may miss removals from it.
    assert_eq!(gap(Epoch(1), 2, "c:1"), Some(RecoveryGap::Epoch));
}

#[test]
fn a_repeat_gets_the_first_reply_and_a_newer_message_is_an_error() {
    let (taken, node) = node_of(None);
    let key = |key: &str| Options { idempotency_key: Some(key.into()), ..Options::default() };
    assert_eq!(offset(submit(&node, "h:1", key("a"))), 1);
    let repeat = submit(&node, "h:1", key("a")).unwrap();
    assert!(repeat.repeated && repeat.id.offset == 1);
    assert_eq!(offset(submit(&node, "h:2", key("a"))), 2, "keys are of one topic");
    let only_if = |offset| Options { if_offset: Some(offset), ..Options::default() };
    let newer = PublishError::Newer(Position { epoch: node.history.epoch(), offset: 1 });
    assert_eq!(submit(&node, "h:1", only_if(0)), Err(newer));
    assert_eq!(offset(submit(&node, "h:1", only_if(1))), 3);
    assert_eq!(offset(submit(&node, "h:3", only_if(0))), 4);
    assert_eq!(submit(&node, "other", only_if(1)), Err(PublishError::NoHistory));
    let passing = Options { no_history: true, ..Options::default() };
    assert_eq!(submit(&node, "h:1", passing).unwrap().id.epoch, node.broker.epoch());
    assert_eq!(taken.offsets.lock().unwrap().len(), 5);
    taken.full.store(true, Ordering::Relaxed);
    assert_eq!(submit(&node, "h:1", Options::default()), Err(PublishError::Overloaded));
}

#[test]
fn a_cursor_only_moves_on_and_only_where_it_should() {
    let (_, node) = node_of(None);
    let id = node.publish(publication("q:1"), None).unwrap();
    let history = &node.history;
    assert_eq!(history.cursor("bo", "q:1"), 1, "a newcomer begins now");
    assert_eq!(history.cursor("bo", "@bo"), 0, "but with all of its own");
    let next = node.publish(publication("q:1"), None).unwrap();
    assert_eq!(history.acknowledge("bo", "q:1", next), Ok(2));
    assert_eq!(history.acknowledge("bo", "q:1", id), Ok(2));
    let ahead = Position { offset: 9, ..id };
    assert_eq!(history.acknowledge("bo", "q:1", ahead), Err(AcknowledgeError::Ahead));
    let other = Position { epoch: Epoch(1), ..id };
    assert_eq!(history.acknowledge("bo", "q:1", other), Err(AcknowledgeError::Epoch));
    assert_eq!(history.acknowledge("bo", "h:1", id), Err(AcknowledgeError::NotAcknowledged));
}

/// A store in a directory of its own, removed at the end.
struct Dir(std::path::PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir =
            std::env::temp_dir().join(format!("throng-history-test-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Dir(dir)
    }

    fn open(&self) -> (Store, Begin) {
        self.open_if(1 << 30)
    }

    fn open_unverified(&self) -> (Store, Begin) {
        self.open_if(0)
    }

    fn options(&self, verify_bytes_max: u64) -> store::Options {
        store::Options {
            dir: self.0.clone(),
            new_epoch: 0xab,
            queue_messages_max: 1_000,
            queue_bytes_max: 1 << 20,
            cache_bytes_max: 1 << 20,
            verify_bytes_max,
            idempotency_seconds_max: 300,
        }
    }

    fn open_if(&self, verify_bytes_max: u64) -> (Store, Begin) {
        let (store, _, found) = Store::open(self.options(verify_bytes_max)).unwrap();
        let begin = Begin {
            epoch: Epoch(found.epoch),
            last: found.last_offset,
            store: Some(store.clone()),
        };
        (store, begin)
    }

    /// Flips a bit at each occurrence of this text in the closed store's file.
    fn damage(&self, text: &[u8]) {
        let file = self.0.join(store::FILE);
        let mut bytes = std::fs::read(&file).unwrap();
        let occurrences: Vec<usize> =
            (0..bytes.len()).filter(|at| bytes[*at..].starts_with(text)).collect();
        assert!(!occurrences.is_empty());
        occurrences.iter().for_each(|at| bytes[*at] ^= 1);
        std::fs::write(&file, &bytes).unwrap();
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn with_a_store_messages_are_handed_on_when_they_are_on_disk_and_outlive_the_process() {
    let dir = Dir::new("outlive");
    let (store, begin) = dir.open();
    let (taken, node) = node_of(Some(begin));
    let key = Options { idempotency_key: Some("a".into()), ..Options::default() };
    assert_eq!(offset(submit(&node, "d:1", key.clone())), 1);
    assert_eq!(*taken.offsets.lock().unwrap(), [1], "it was handed on before the answer");
    for _ in 0..4 {
        submit(&node, "d:1", Options::default()).unwrap();
    }
    let (count, members) = mpsc::channel();
    let receipt = Receipt::new(move |total| count.send(total).unwrap());
    node.publish(publication("d:2"), Some(receipt)).unwrap();
    assert_eq!(members.recv_timeout(Duration::from_secs(10)), Ok(2));
    store.close().unwrap();

    let (store, begin) = dir.open();
    assert_eq!((begin.epoch, begin.last), (Epoch(0xab), 6));
    let (_, node) = node_of(Some(begin));
    let token = ResumeToken::from(Position { epoch: Epoch(0xab), offset: 2 });
    let start = begun(&node, &["d:1", "d:2"], &request(token));
    assert_eq!(start.gaps, [None, None]);
    let piece = read_disk(&node, &start.topics, 3);
    let offsets: Vec<u64> = piece.messages.iter().map(|message| message.id.offset).collect();
    assert_eq!((offsets, piece.through), (vec![3, 4], 4), "a share for each topic");
    assert!(!piece.caught_up && piece.gone == [Gone::Nothing; 2]);
    assert!(read_disk(&node, &start.topics, 100).caught_up, "there was nothing more");
    assert_eq!(
        offset(submit(&node, "d:1", Options { if_offset: Some(5), ..Options::default() })),
        7
    );
    let stale = submit(&node, "d:1", Options { if_offset: Some(5), ..Options::default() });
    assert!(matches!(stale, Err(PublishError::Newer(Position { offset: 7, .. }))));
    store.close().unwrap();
    let late = submit(&node, "d:1", Options::default());
    assert!(matches!(late, Err(PublishError::StoreFailed(_))), "{late:?}");
}

#[test]
fn of_a_topic_that_is_not_durable_the_reply_does_not_wait_and_counts_no_member() {
    let dir = Dir::new("counts");
    let (store, begin) = dir.open();
    let (_, node) = node_of(Some(begin));
    let (count, members) = mpsc::channel();
    let receipt = Receipt::new(move |total| count.send(total).unwrap());
    let (sender, reply) = mpsc::channel();
    let done = Box::new(move |reply: Results| sender.send(reply).unwrap());
    let publish = Publish { publication: publication("h:1"), options: Options::default() };
    node.broker.submit(publish, Some(receipt), done);
    assert!(reply.try_recv().unwrap().is_ok());
    assert!(members.recv_timeout(Duration::from_secs(10)).is_err());
    store.close().unwrap();
}

#[test]
fn a_publisher_that_waits_for_the_disk_learns_of_the_commit_in_any_topic() {
    let dir = Dir::new("waits");
    let (store, begin) = dir.open();
    let (_, node) = node_of(Some(begin));
    let key = || Options { idempotency_key: Some("k".into()), ..Options::default() };
    let (sender, replies) = mpsc::channel();
    for number in 0..2 {
        let (sender, options) = (sender.clone(), Options { wait_for_disk: true, ..key() });
        let done = Box::new(move |reply: Results| sender.send((number, reply)).unwrap());
        node.broker.submit(Publish { publication: publication("h:1"), options }, None, done);
    }
    let mut replies = [(); 2].map(|()| replies.recv_timeout(Duration::from_secs(60)).unwrap());
    replies.sort_by_key(|(number, _)| *number);
    let [first, second] = replies.map(|(_, reply)| reply.unwrap());
    assert!(!first.queued && !first.repeated, "{first:?}");
    assert_eq!((second.id, second.queued, second.repeated), (first.id, false, true));
    store.close().unwrap();
    let late = submit(&node, "h:1", Options { wait_for_disk: true, ..Options::default() });
    assert!(matches!(late, Err(PublishError::StoreFailed(_))), "{late:?}");
}

#[test]
fn names_are_compared_where_hashes_are_the_same() {
    let (_, node) = node_of(None);
    node.publish(publication("h:1"), None).unwrap();
    let cursor = TopicCursor::new(node.hash("h:1"), Name::from("h:2"), 0);
    assert_eq!(read(&node, &[cursor]).0, [0u64; 0]);
}

#[test]
fn a_publish_on_a_condition_never_waits_for_the_disk_and_has_its_turn() {
    let dir = Dir::new("condition");
    let (store, begin) = dir.open();
    let (_, node) = node_of(Some(begin));
    assert_eq!(offset(submit(&node, "d:1", Options::default())), 1);
    store.close().unwrap();
    // Another process, whose memory is empty, and whose disk does not reply.
    let (store, begin) = dir.open();
    let (_, node) = node_of(Some(begin));
    let (go_on, waits) = mpsc::channel::<()>();
    store.read_later(Box::new(move |_| _ = waits.recv_timeout(Duration::from_secs(120)))).unwrap();
    let (sender, replies) = mpsc::channel();
    let begun = std::time::Instant::now();
    let only_if = |offset| Options { if_offset: Some(offset), ..Options::default() };
    // The first publish has the topic's last message; the later calls follow it.
    for (name, options) in [
        ("stale", only_if(0)),
        ("fits", only_if(1)),
        ("behind", Options::default()),
        ("late", only_if(1)),
    ] {
        let sender = sender.clone();
        let done = Box::new(move |reply: Results| sender.send((name, reply)).unwrap());
        node.broker.submit(Publish { publication: publication("d:1"), options }, None, done);
    }
    assert!(begun.elapsed() < Duration::from_secs(60), "the caller waited for the disk");
    assert!(replies.try_recv().is_err());
    assert_eq!(offset(submit(&node, "d:2", Options::default())), 2, "other topics go on");
    go_on.send(()).unwrap();
    let mut replies: Vec<_> = (0..4)
        .map(|_| replies.recv_timeout(Duration::from_secs(60)).unwrap())
        .map(|(name, reply)| (name, reply.map(|published| published.id.offset)))
        .collect();
    replies.sort_by_key(|(name, _)| *name);
    let newer = |offset| Err(PublishError::Newer(Position { epoch: Epoch(0xab), offset }));
    assert_eq!(
        replies,
        [("behind", Ok(4)), ("fits", Ok(3)), ("late", newer(4)), ("stale", newer(1))]
    );
    store.close().unwrap();
}

#[test]
fn a_record_that_is_written_with_a_message_waits_for_no_condition() {
    let dir = Dir::new("condition-with");
    let (store, begin) = dir.open();
    let (_, node) = node_of(Some(begin));
    let (go_on, waits) = mpsc::channel::<()>();
    store.read_later(Box::new(move |_| _ = waits.recv_timeout(TIMEOUT))).unwrap();
    let (sender, replies) = mpsc::channel();
    let done = Box::new(move |reply: Results| sender.send(reply).unwrap());
    let options = Options { if_offset: Some(0), ..Options::default() };
    node.broker.submit(Publish { publication: publication("d:1"), options }, None, done);
    let record = |text: &str| Some(text.as_bytes().into());
    let with = StoredRecord { part: "part", key: "key".into(), value: record("older") };
    let options = Options { with: Some(with.into()), ..Options::default() };
    assert_eq!(offset(submit(&node, "d:1", options)), 1);
    let written = Box::new(|result: Result<(), _>| result.unwrap());
    store.put_records("part", vec![("key".into(), record("newer"))], written).unwrap();
    go_on.send(()).unwrap();
    let reply = replies.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(reply, Err(PublishError::Newer(Position { epoch: Epoch(0xab), offset: 1 })));
    store.close().unwrap();
    let (store, _) = dir.open();
    let (sender, values) = mpsc::channel();
    let read = move |reader: &store::Reader| {
        reader.each_record(|_, _, value| sender.send(value.to_vec()).unwrap()).unwrap();
    };
    store.read_later(Box::new(read)).unwrap();
    assert_eq!(values.recv_timeout(TIMEOUT).unwrap(), b"newer");
    store.close().unwrap();
}

/// Publishes these texts to `d:1`.
fn publish_all(node: &Node, texts: &[&str]) {
    for text in texts {
        let message = Publication::new("d:1", Data::Text((*text).into()));
        let publish = Publish { publication: message, options: Options::default() };
        node.broker.submit(publish, None, Box::new(|reply| _ = reply.unwrap()));
    }
}

#[test]
fn a_client_of_a_damaged_topic_gets_a_gap_and_continues() {
    let dir = Dir::new("damaged");
    let (store, begin) = dir.open();
    let (_, node) = node_of(Some(begin));
    publish_all(&node, &["one", "two", "three of them", "four", "five"]);
    store.close().unwrap();
    dir.damage(b"three of them");
    let (store, begin) = dir.open_unverified();
    let (_, node) = node_of(Some(begin));
    let token = ResumeToken::from(Position { epoch: Epoch(0xab), offset: 1 });
    let start = begun(&node, &["d:1"], &request(token));
    let mut topics = start.topics;
    let (mut offsets, mut gone) = (Vec::new(), false);
    while topics[0].after < 5 {
        let piece = read_disk(&node, &topics, 100);
        offsets.extend(piece.messages.iter().map(|message| message.id.offset));
        gone |= piece.is_gone(0);
        topics[0].after = piece.through;
    }
    assert_eq!((offsets, gone), (vec![2, 4, 5], true));
    let (sender, page) = mpsc::channel();
    let completion = Completion::new(move |page: Result<Page, _>| sender.send(page).unwrap());
    let (hash, topic, from) = (node.hash("d:1"), "d:1".into(), PageFrom::Offset(2));
    let bytes_max = 1 << 20;
    let query = PageQuery { hash, topic, from, backwards: false, limit: 10, bytes_max };
    assert!(matches!(node.history.page(query, completion), Ok(HistoryReply::Later)));
    let error = page.recv_timeout(Duration::from_secs(10)).unwrap().unwrap_err();
    assert!(matches!(error, HistoryError::Damaged(_)), "{error:?}");
    assert!(error.to_string().contains("messages of d:1 after offset 2"), "{error}");
    assert_eq!(PublishError::from(error).code(), "store_damaged");
    store.close().unwrap();
}
