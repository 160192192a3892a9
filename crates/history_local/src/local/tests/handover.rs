//! Tests that a history continues that of another process: clients get the same replies.

use std::fmt::Debug;

use ::handover::testing::pass;
use ::handover::{Part, Sent};
use history::{Cursor, GivenUp, Matching};
use model::Attributes;
use random::Random;

use super::*;
use crate::local::parts;

const TOPICS: [&str; 9] = ["h:1", "h:2", "h:3", "c:1", "c:2", "q:1", "q:2", "d:1", "d:2"];
const USERS: [&str; 3] = ["alice", "bob", "q"];
const KEYS: [&str; 3] = ["k1", "k2", "k3"];

/// A node of one process.
struct Process {
    node: Node,
    store: Option<Store>,
    parts: [Arc<dyn Part>; 4],
}

impl Process {
    fn new(secret: u8, started: Instant, limits: HistoryLimits, begin: Begin) -> Process {
        let store = begin.store.clone();
        let router = Arc::new(broker::Router::new(vec![Arc::<Taken>::default()]));
        let history = Local::new(router.clone(), begin, started, limits, super::limits());
        history.set_rules(rules(), 300);
        let log = Arc::new(history.clone());
        let broker = broker::Local::new(router, [secret; 20], started, super::limits(), log);
        let hasher = broker::Local::new(
            Arc::new(broker::Router::new(Vec::new())),
            [secret; 20],
            started,
            super::limits(),
            Arc::new(broker::NoHistory),
        );
        let hash: history::TopicHash = Arc::new(move |topic| hasher.hash(topic));
        let parts = parts(&history, &hash);
        Process { node: Node { broker, history }, store, parts }
    }

    fn wait(&self) {
        let is_quiet =
            || self.node.history.is_quiet() && self.store.as_ref().is_none_or(Store::is_idle);
        let began = Instant::now();
        while !is_quiet() {
            assert!(began.elapsed() < TIMEOUT);
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// The records sent from one process to another.
#[derive(Default)]
struct Line([Sent; 4]);

impl Line {
    /// Performs a round over all parts; returns the number of passed records.
    fn round(&mut self, from: &Process, to: &Process) -> usize {
        let mut records = 0;
        for ((sent, from), to) in self.0.iter_mut().zip(&from.parts).zip(&to.parts) {
            assert_eq!(from.name(), to.name());
            records += pass(&**from, &**to, sent);
        }
        records
    }
}

/// Returns the reply, now or later.
fn reply<T: Send + 'static>(
    call: impl FnOnce(Completion<T>) -> Result<HistoryReply<T>, HistoryError>,
) -> T {
    let (sender, later) = mpsc::channel();
    match call(Completion::new(move |it: Result<T, _>| drop(sender.send(it.unwrap())))).unwrap() {
        HistoryReply::Now(it) => it,
        HistoryReply::Later => later.recv_timeout(TIMEOUT).unwrap(),
    }
}

/// Describes messages; with times only if both processes have them from one publish.
fn said(messages: &[Arc<model::Envelope>], through: u64) -> impl Debug + PartialEq + use<> {
    let said = |it: &Arc<model::Envelope>| {
        let times = (it.id.offset <= through).then_some(it.at_ms);
        (it.id, it.publication.clone(), it.retention, times)
    };
    messages.iter().map(said).collect::<Vec<_>>()
}

fn assert_same(old: &Process, new: &Process, through: u64) {
    let (a, b) = (&old.node, &new.node);
    assert_eq!(a.history.top(), b.history.top());
    assert_eq!(a.history.epoch(), b.history.epoch());
    let top = a.history.top().offset;
    let offsets: Vec<u64> = (1..=top).collect();
    let both = |what: &str, call: &dyn Fn(&Node) -> String| {
        assert_eq!(call(a), call(b), "{what}");
    };
    for topic in TOPICS.into_iter().chain(["h:never"]) {
        both(topic, &|node| {
            format!("{:?}", node.history.retained(node.hash(topic), topic, &offsets))
        });
        both(topic, &|node| {
            let page = |from, backwards, limit| {
                let (hash, bytes_max) = (node.hash(topic), 1 << 20);
                let query =
                    PageQuery { hash, topic: topic.into(), from, backwards, limit, bytes_max };
                let page = reply(|completion| node.history.page(query, completion));
                format!(
                    "{:?} {} {} {:?}",
                    said(&page.messages, through),
                    page.more,
                    page.gone,
                    page.gap
                )
            };
            let newest = [1, 3].map(|messages| page(PageFrom::Newest(messages), false, 10));
            (page(PageFrom::End, false, 100), page(PageFrom::End, true, 3), newest).map_to_string()
        });
        for after in (0..=top).step_by(1 + top as usize / 12).chain([top, top + 1]) {
            both(topic, &|node| format!("{:?}", node.history.gone(node.hash(topic), topic, after)));
            both(topic, &|node| {
                let token =
                    ResumeToken::from(Position { epoch: node.history.epoch(), offset: after });
                let start = begun(node, &[topic], &request(token));
                let positions: Vec<_> =
                    start.topics.iter().map(|it| (it.after, it.whole)).collect();
                let piece =
                    reply(|completion| node.history.read(pull(&start.topics, 4), completion));
                let Piece { messages, through: read, caught_up, gone, first } = piece;
                format!(
                    "{positions:?} {:?} {:?} {read} {caught_up} {gone:?} {first:?}",
                    start.gaps,
                    said(&messages, through)
                )
            });
        }
        both(topic, &|node| {
            let start = begun(node, &[topic], &request("last:2".parse::<Since>().unwrap()));
            format!("{:?}", start.topics.iter().map(|it| it.after).collect::<Vec<_>>())
        });
        for user in USERS {
            both(user, &|node| format!("{:?}", node.history.progress(user, topic)));
        }
    }
    both("matching", &|node| {
        let hash: history::TopicHash = Arc::new(|topic| topic.len() as u64);
        let filters = [Name::from("#")];
        let Matching { topics, top } =
            reply(|completion| node.history.matching(&filters, top / 2, completion, hash));
        let mut topics: Vec<_> =
            topics.into_iter().map(|(cursor, last)| (cursor.topic, last)).collect();
        topics.sort();
        format!("{topics:?} {top}")
    });
    both("latest", &|node| {
        let latest = node.broker.latest(None, 100).messages;
        format!("{:?}", latest.iter().map(|it| it.id).collect::<Vec<_>>())
    });
    both("stats", &|node| {
        let it = node.history.stats();
        // Idempotency keys without a use are dropped.
        assert!(it.idempotency_keys <= 100_000);
        let sessions = (it.session_messages, it.session_bytes);
        format!("{:?}", (it.messages, it.bytes, it.topics, it.cursors, sessions))
    });
}

trait MapToString {
    fn map_to_string(self) -> String;
}

impl<T: Debug> MapToString for T {
    fn map_to_string(self) -> String {
        format!("{self:?}")
    }
}

/// Performs a random action of clients or the application.
fn step(random: &mut Random, processes: &[&Process]) {
    let topic = TOPICS[random.below(TOPICS.len())];
    let user = USERS[random.below(USERS.len())];
    let key = KEYS[random.below(KEYS.len())];
    let (kind, number) = (random.below(20), random.below(10_000));
    let (expires, is_keyed) = (random.one_in(8), random.one_in(2) || topic.starts_with('c'));
    let has_idempotency = random.one_in(3);
    let back = random.below(6);
    let replies = processes.iter().map(|process| {
        let Node { broker, history } = &process.node;
        let top = history.top();
        let before = Position { offset: top.offset.saturating_sub(back), ..top };
        let rule = AcknowledgeRule {
            window_messages_max: 2,
            redelivery_seconds: 1,
            delivery_count_max: 2,
            dead_letter: None,
        };
        let done = match kind {
            0 => {
                let hash = broker.hash(topic);
                reply(|completion| history.delete(hash, topic, completion));
                String::new()
            }
            1 => format!("{:?}", history.acknowledge(user, topic, before)),
            2 => {
                history.give_up(user, topic, before.offset, GivenUp::Dropped);
                String::new()
            }
            3..7 => {
                let now_s = number as u32;
                history.delivered(user, topic, before.offset, now_s, &rule).to_string()
            }
            7 => history.cursor(user, topic).to_string(),
            8 => {
                history.sweep();
                String::new()
            }
            _ => {
                let text = "y".repeat(number % 40);
                let mut publication =
                    Publication::new(topic, Data::Json(format!("\"{text}\"").into()));
                if is_keyed && number % 7 == 0 {
                    publication.data = Data::Json("null".into());
                }
                if is_keyed || expires {
                    publication.attributes = Some(Box::new(Attributes {
                        key: is_keyed.then(|| key.into()),
                        expires_ms: expires.then_some(1),
                        ..Attributes::default()
                    }));
                }
                let idempotency_key = has_idempotency.then(|| key.into());
                let options = Options { idempotency_key, ..Options::default() };
                let (sender, result) = mpsc::channel();
                let done = Box::new(move |reply: Results| sender.send(reply).unwrap());
                broker.submit(Publish { publication, options }, None, done);
                let result = result.recv_timeout(TIMEOUT).unwrap();
                process.wait();
                format!("{:?}", result.map(|it| (it.id, it.repeated)))
            }
        };
        process.wait();
        done
    });
    let replies: Vec<String> = replies.collect();
    assert!(replies.windows(2).all(|two| two[0] == two[1]), "{kind} {topic}: {replies:?}");
}

fn small() -> HistoryLimits {
    HistoryLimits { history_bytes_max: 25_000, cursors_max: 8, ..HistoryLimits::default() }
}

#[test]
fn a_history_goes_on_where_another_was() {
    let started = Instant::now();
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let limits = if seed % 2 == 0 { HistoryLimits::default() } else { small() };
        let begin = || Begin::in_memory(Epoch(7));
        let mut old = Process::new(1, started, limits, begin());
        for generation in 2..4 {
            (0..random.below(60)).for_each(|_| step(&mut random, &[&old]));
            let new =
                Process::new(generation, started, limits, Begin { epoch: Epoch(8), ..begin() });
            let mut line = Line::default();
            for _ in 0..random.below(4) {
                line.round(&old, &new);
                (0..random.below(30)).for_each(|_| step(&mut random, &[&old]));
            }
            line.round(&old, &new);
            assert_eq!(line.round(&old, &new), 0, "nothing has changed");
            new.parts.iter().for_each(|part| part.complete().unwrap());
            let through = old.node.history.top().offset;
            assert_same(&old, &new, through);
            // Both go on alike.
            for _ in 0..40 {
                step(&mut random, &[&old, &new]);
            }
            assert_same(&old, &new, through);
            old = new;
        }
    }
}

#[test]
fn with_a_store_too() {
    let started = Instant::now();
    for seed in 0..6 {
        let mut random = Random::new(seed);
        let dir = Dir::new(&format!("handover-{seed}"));
        let copy = Dir::new(&format!("handover-copy-{seed}"));
        let limits = if seed % 2 == 0 { HistoryLimits::default() } else { small() };
        let (store, begin) = dir.open();
        let old = Process::new(1, started, limits, begin);
        (0..40).for_each(|_| step(&mut random, &[&old]));
        let waiting = Store::waiting(&copy.options(0));
        let begin = Begin { epoch: Epoch(0), last: 0, store: Some(waiting.clone()) };
        let new = Process::new(2, started, limits, begin);
        let mut line = Line::default();
        line.round(&old, &new);
        (0..20).for_each(|_| step(&mut random, &[&old]));
        line.round(&old, &new);
        new.parts.iter().for_each(|part| part.complete().unwrap());
        let through = old.node.history.top().offset;
        let passed = store.pass_on().unwrap();
        assert_eq!(passed.last_offset, through);
        // Both processes read a file with the same content.
        std::fs::create_dir_all(&copy.0).unwrap();
        std::fs::copy(dir.0.join(store::FILE), copy.0.join(store::FILE)).unwrap();
        let info = waiting.open_now(&passed).unwrap();
        assert_eq!((Epoch(info.epoch), info.last_offset), (new.node.history.epoch(), through));
        store.take_back().unwrap();
        assert_same(&old, &new, through);
        for _ in 0..30 {
            step(&mut random, &[&old, &new]);
        }
        assert_same(&old, &new, through);
        store.close().unwrap();
        waiting.close().unwrap();
    }
}

#[test]
fn nothing_is_queued_where_the_store_is_not_here_yet() {
    let dir = Dir::new("handover-waiting");
    let store = Store::waiting(&dir.options(0));
    let begin = Begin { epoch: Epoch(0), last: 0, store: Some(store.clone()) };
    let new = Process::new(2, Instant::now(), HistoryLimits::default(), begin);
    let refused = submit(&new.node, "h:1", Options::default());
    assert_eq!(refused, Err(PublishError::StoreBusy));
    assert!(new.node.history.is_quiet());
    store.close().unwrap();
    assert!(!dir.0.exists());
}

#[test]
fn limits_are_those_of_the_new_process() {
    let started = Instant::now();
    let begin = || Begin::in_memory(Epoch(7));
    let old = Process::new(1, started, HistoryLimits::default(), begin());
    for number in 0..50 {
        for topic in ["d:1", "q:1"] {
            let options = Options {
                idempotency_key: Some(format!("{topic}{number}").into()),
                ..Options::default()
            };
            submit(&old.node, topic, options).unwrap();
        }
        old.node.history.cursor(&format!("user {number}"), "q:1");
    }
    let (top, epoch) = (old.node.history.top(), old.node.history.epoch());
    let acknowledged = old.node.history.acknowledge("user 3", "q:1", top);
    assert_eq!(acknowledged, Ok(top.offset));
    let limits = HistoryLimits {
        history_bytes_max: 20_000,
        topics_max: 1,
        idempotency_keys_max: 10,
        cursors_max: 5,
    };
    let new = Process::new(2, started, limits, begin());
    Line::default().round(&old, &new);
    new.parts.iter().for_each(|part| part.complete().unwrap());
    let stats = new.node.history.stats();
    assert!(stats.bytes <= 20_000 && stats.messages > 5, "{stats:?}");
    assert_eq!((stats.topics, stats.idempotency_keys, stats.cursors), (1, 10, 5));
    assert_eq!((new.node.history.top(), new.node.history.epoch()), (top, epoch));
    // A client that returns from before gets a gap.
    for topic in ["d:1", "q:1"] {
        assert!(new.node.history.gone(new.node.hash(topic), topic, 2) > Some(Gone::Nothing));
    }
}

#[test]
fn the_cursors_used_last_stay() {
    let started = Instant::now();
    let begin = || Begin::in_memory(Epoch(7));
    let old = Process::new(1, started, HistoryLimits::default(), begin());
    submit(&old.node, "q:1", Options::default()).unwrap();
    let name = |number: u32| format!("user {number}");
    (0..2_000).for_each(|number| _ = old.node.history.cursor(&name(number), "q:1"));
    let new = Process::new(
        2,
        started,
        HistoryLimits { cursors_max: 1_000, ..HistoryLimits::default() },
        begin(),
    );
    let mut line = Line::default();
    line.round(&old, &new);
    // These cursors are used once more.
    let top = old.node.history.top();
    (0..100).for_each(|number| {
        old.node.history.acknowledge(&name(number), "q:1", top).unwrap();
        let rule = rules().rules[3].history.clone().unwrap().acknowledge.clone().unwrap();
        old.node.history.delivered(&name(number), "q:1", top.offset + 1, 7, &rule);
    });
    line.round(&old, &new);
    new.parts.iter().for_each(|part| part.complete().unwrap());
    let is_known =
        |number: u32| new.node.history.progress(&name(number), "q:1") != Cursor::default();
    let known = (0..2_000).filter(|number| is_known(*number)).count();
    assert_eq!(known, 1_000);
    assert!((0..100).all(is_known) && (1_400..2_000).all(is_known));
    assert!(!(200..900).any(is_known));
}

#[test]
fn damaged_records_are_refused_and_harm_no_topic() {
    let started = Instant::now();
    let begin = || Begin::in_memory(Epoch(7));
    let mut random = Random::new(1);
    let old = Process::new(1, started, HistoryLimits::default(), begin());
    (0..100).for_each(|_| step(&mut random, &[&old]));
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let new = Process::new(2, started, small(), begin());
        let (mut refused, mut is_complete) = (0, true);
        for (from, to) in old.parts.iter().zip(&new.parts) {
            let mut records = Vec::new();
            from.export(&mut |key, value| records.push((key.to_vec(), value.to_vec())));
            for (mut key, mut value) in records {
                if random.one_in(4) {
                    let damaged = if random.one_in(4) { &mut key } else { &mut value };
                    let at = random.below(damaged.len().max(1));
                    match random.below(3) {
                        0 => damaged.truncate(at),
                        1 => damaged.extend([0, 1, 2]),
                        _ => damaged
                            .iter_mut()
                            .skip(at)
                            .take(1)
                            .for_each(|byte| *byte ^= 1 << random.below(8)),
                    }
                }
                let value = Some(&*value).filter(|_| !random.one_in(20));
                refused += usize::from(to.import(&key, value).is_err());
            }
            is_complete &= to.complete().is_ok();
        }
        assert!(refused > 0);
        if !is_complete {
            continue;
        }
        let _ = new.node.history.stats();
        for topic in TOPICS {
            let start = begun(&new.node, &[topic], &request("start".parse::<Since>().unwrap()));
            let _ = new.node.history.read(pull(&start.topics, 10), Completion::new(|_| ()));
            let _ = submit(&new.node, topic, Options::default());
        }
    }
}
