use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use store::Store;
use wire::session::Asked;
use wire::{
    Acknowledge, Behind, Data, Draft, Epoch, History, Id, Lost, Name, Position, Rule, Rules, Since,
};

use super::Begin;
use crate::{
    AcknowledgeError, Broker, Delivery, Inbox, Limits, Local, Options, Publish, PublishError,
    Published, Pull, Receipt, Wanted,
};

/// Wants everything, and may be full.
#[derive(Default)]
struct Taken {
    full: AtomicBool,
    offsets: Mutex<Vec<u64>>,
}

impl Inbox for Taken {
    fn wants(&self, _: u64) -> bool {
        true
    }
    fn has_room(&self) -> bool {
        !self.full.load(Ordering::Relaxed)
    }
    fn deliver(&self, delivery: Delivery) {
        if let Some(receipt) = &delivery.receipt {
            receipt.add(2);
        }
        self.offsets.lock().unwrap().push(delivery.message.id.offset);
    }
}

fn history(messages_max: u64) -> History {
    History {
        messages_max,
        bytes_max: 1 << 20,
        seconds_max: 3_600,
        durable: false,
        compact: false,
        acknowledge: None,
    }
}

fn rules() -> Arc<Rules> {
    let rule = |pattern: &str, history: History| Rule {
        pattern: pattern.into(),
        history: Some(Arc::new(history)),
        ..Rule::default()
    };
    let acknowledge = Acknowledge {
        window_messages_max: 2,
        redelivery_seconds: 1,
        tries_max: 2,
        dead_letter: None,
    };
    let rules = vec![
        rule("h:*", history(3)),
        rule("d:*", History { durable: true, ..history(100) }),
        rule("c:*", History { compact: true, ..history(100) }),
        rule("q:*", History { acknowledge: Some(acknowledge), ..history(100) }),
    ];
    Arc::new(Rules { rules, ..Rules::default() })
}

fn limits() -> Limits {
    Limits {
        recent_messages_max: 10,
        recent_bytes_max: 1 << 20,
        recent_seconds_max: 60,
        kept: crate::KeptLimits::default(),
    }
}

fn broker(begin: Option<Begin>) -> (Arc<Taken>, Local) {
    let taken = Arc::new(Taken::default());
    let local = Local::new(vec![taken.clone()], [7; 20], Instant::now(), limits(), begin);
    local.kept().set_rules(rules(), 300);
    (taken, local)
}

fn draft(topic: &str) -> Draft {
    Draft::new(topic, Data::Text("x".into()))
}

type Answer = Result<Published, PublishError>;

fn submit(local: &Local, topic: &str, options: Options) -> Answer {
    let (told, answer) = mpsc::channel();
    let done = Box::new(move |answer: Answer| told.send(answer).unwrap());
    local.submit(Publish { draft: draft(topic), options }, None, done);
    answer.recv_timeout(Duration::from_secs(10)).unwrap()
}

fn offset(answer: Answer) -> u64 {
    answer.unwrap().id.offset
}

fn asked(since: Since) -> Asked {
    Asked { all: Some(since), topics: Vec::new() }
}

fn names<'a>(local: &Local, topics: &[&'a str]) -> Vec<(u64, &'a str)> {
    topics.iter().map(|topic| (local.hash(topic), *topic)).collect()
}

fn pulled(local: &Local, wanted: &[Wanted]) -> (Vec<u64>, bool) {
    match local.kept().pull(wanted, 100, 1 << 20) {
        Pull::Piece(piece) => {
            (piece.messages.iter().map(|message| message.id.offset).collect(), piece.caught_up)
        }
        Pull::Disk => panic!("memory has it"),
    }
}

#[test]
fn two_numberings_and_what_was_missed_is_found_by_one_place() {
    let (taken, local) = broker(None);
    for topic in ["h:1", "other", "h:2", "h:1"] {
        local.publish(draft(topic), None).unwrap();
    }
    assert_eq!(*taken.offsets.lock().unwrap(), [1, 1, 2, 3]);
    assert_ne!(local.epoch(), local.kept().epoch());
    let epoch = local.kept().epoch();
    let since = Since::from(Id { epoch, offset: 1 });
    let start = local.kept().start(&names(&local, &["h:1", "h:2"]), &asked(since));
    assert_eq!(start.lost, [None, None]);
    assert_eq!(pulled(&local, &start.topics), (vec![2, 3], true));
    // Who asks for nothing begins now.
    let start = local.kept().start(&names(&local, &["h:1"]), &Asked::default());
    assert!(start.is_now());
}

#[test]
fn a_place_with_missing_ones_gets_those_and_what_their_topics_had_after() {
    let (_, local) = broker(None);
    for topic in ["h:1", "h:2", "h:1", "h:2", "h:2"] {
        local.publish(draft(topic), None).unwrap();
    }
    let through = Id { epoch: local.kept().epoch(), offset: 4 };
    let behind = vec![Behind { topic: wire::since::mark("h:1"), through: 2 }];
    let position = Some(Position { through, behind });
    let since = Since { id: through, position };
    let start = local.kept().start(&names(&local, &["h:1", "h:2"]), &asked(since));
    assert_eq!(pulled(&local, &start.topics), (vec![3, 5], true));
}

#[test]
fn what_is_gone_and_what_is_of_another_life_is_said() {
    let (_, local) = broker(None);
    for _ in 0..5 {
        local.publish(draft("h:1"), None).unwrap();
    }
    let epoch = local.kept().epoch();
    let lost = |epoch, offset, topic: &str| {
        let since = Since::from(Id { epoch, offset });
        local.kept().start(&names(&local, &[topic]), &asked(since)).lost[0]
    };
    assert_eq!(lost(epoch, 1, "h:1"), Some(Lost::TooOld));
    assert_eq!(lost(epoch, 2, "h:1"), None);
    assert_eq!(lost(epoch, 0, "h:never"), None);
    assert_eq!(lost(epoch, 6, "h:1"), Some(Lost::Epoch));
    assert_eq!(lost(Epoch(1), 2, "h:1"), Some(Lost::Epoch));
    // A compacted topic's state comes, but what was removed from it may be missed.
    assert_eq!(lost(Epoch(1), 2, "c:1"), Some(Lost::Epoch));
}

#[test]
fn a_repeat_is_answered_with_the_first_and_a_newer_message_refuses() {
    let (taken, local) = broker(None);
    let key = |key: &str| Options { idempotency_key: Some(key.into()), ..Options::default() };
    assert_eq!(offset(submit(&local, "h:1", key("a"))), 1);
    let repeat = submit(&local, "h:1", key("a")).unwrap();
    assert!(repeat.repeated && repeat.id.offset == 1);
    assert_eq!(offset(submit(&local, "h:2", key("a"))), 2, "keys are of one topic");
    let only_if = |offset| Options { if_offset: Some(offset), ..Options::default() };
    let newer = PublishError::Newer(Id { epoch: local.kept().epoch(), offset: 1 });
    assert_eq!(submit(&local, "h:1", only_if(0)), Err(newer));
    assert_eq!(offset(submit(&local, "h:1", only_if(1))), 3);
    assert_eq!(offset(submit(&local, "h:3", only_if(0))), 4);
    assert_eq!(submit(&local, "other", only_if(1)), Err(PublishError::NoHistory));
    let passing = Options { no_history: true, ..Options::default() };
    assert_eq!(submit(&local, "h:1", passing).unwrap().id.epoch, local.epoch());
    assert_eq!(taken.offsets.lock().unwrap().len(), 5);
    taken.full.store(true, Ordering::Relaxed);
    assert_eq!(submit(&local, "h:1", Options::default()), Err(PublishError::Overloaded));
}

#[test]
fn a_cursor_only_moves_on_and_only_where_it_should() {
    let (_, local) = broker(None);
    let id = local.publish(draft("q:1"), None).unwrap();
    let kept = local.kept();
    assert_eq!(kept.cursor("bo", "q:1"), 1, "a newcomer begins now");
    assert_eq!(kept.cursor("bo", "@bo"), 0, "but with all of its own");
    let next = local.publish(draft("q:1"), None).unwrap();
    assert_eq!(kept.acknowledge("bo", "q:1", next), Ok(2));
    assert_eq!(kept.acknowledge("bo", "q:1", id), Ok(2));
    let ahead = Id { offset: 9, ..id };
    assert_eq!(kept.acknowledge("bo", "q:1", ahead), Err(AcknowledgeError::Ahead));
    let other = Id { epoch: Epoch(1), ..id };
    assert_eq!(kept.acknowledge("bo", "q:1", other), Err(AcknowledgeError::Epoch));
    assert_eq!(kept.acknowledge("bo", "h:1", id), Err(AcknowledgeError::NotAcknowledged));
}

/// A store in a directory of its own, removed at the end.
struct Dir(std::path::PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("throng-kept-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Dir(dir)
    }

    fn open(&self) -> (Store, Begin) {
        self.open_if(1 << 30)
    }

    fn open_unverified(&self) -> (Store, Begin) {
        self.open_if(0)
    }

    fn open_if(&self, verify_bytes_max: u64) -> (Store, Begin) {
        let options = store::Options {
            dir: self.0.clone(),
            new_epoch: 0xab,
            queue_messages_max: 1_000,
            queue_bytes_max: 1 << 20,
            cache_bytes_max: 1 << 20,
            verify_bytes_max,
            idempotency_seconds_max: 300,
        };
        let (store, _, found) = Store::open(options).unwrap();
        let begin = Begin {
            epoch: Epoch(found.epoch),
            last: found.last_offset,
            store: Some(store.clone()),
        };
        (store, begin)
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
    let (taken, local) = broker(Some(begin));
    let key = Options { idempotency_key: Some("a".into()), ..Options::default() };
    assert_eq!(offset(submit(&local, "d:1", key.clone())), 1);
    assert_eq!(*taken.offsets.lock().unwrap(), [1], "it was handed on before the answer");
    for _ in 0..4 {
        submit(&local, "d:1", Options::default()).unwrap();
    }
    let (count, members) = mpsc::channel();
    let receipt = Receipt::new(move |total| count.send(total).unwrap());
    local.publish(draft("d:2"), Some(receipt)).unwrap();
    assert_eq!(members.recv_timeout(Duration::from_secs(10)), Ok(2));
    store.close().unwrap();

    let (store, begin) = dir.open();
    assert_eq!((begin.epoch, begin.last), (Epoch(0xab), 6));
    let (_, local) = broker(Some(begin));
    let since = Since::from(Id { epoch: Epoch(0xab), offset: 2 });
    let start = local.kept().start(&names(&local, &["d:1", "d:2"]), &asked(since));
    assert_eq!(start.lost, [None, None]);
    assert!(matches!(local.kept().pull(&start.topics, 100, 1 << 20), Pull::Disk));
    let (told, piece) = mpsc::channel();
    let reply = Box::new(move |piece: Option<_>| told.send(piece.unwrap()).unwrap());
    local.kept().pull_later(start.topics.clone(), 3, 1 << 20, reply).unwrap();
    let piece = piece.recv_timeout(Duration::from_secs(10)).unwrap();
    let offsets: Vec<u64> = piece.messages.iter().map(|message| message.id.offset).collect();
    assert_eq!((offsets, piece.through), (vec![3, 4], 4), "a share for each topic");
    assert!(!piece.caught_up && piece.gone == [false, false]);
    assert_eq!(
        offset(submit(&local, "d:1", Options { if_offset: Some(5), ..Options::default() })),
        7
    );
    let stale = submit(&local, "d:1", Options { if_offset: Some(5), ..Options::default() });
    assert!(matches!(stale, Err(PublishError::Newer(Id { offset: 7, .. }))));
    store.close().unwrap();
    let late = submit(&local, "d:1", Options::default());
    assert!(matches!(late, Err(PublishError::StoreFailed(_))), "{late:?}");
}

#[test]
fn of_a_topic_that_is_not_durable_the_answer_does_not_wait_and_counts_nobody() {
    let dir = Dir::new("counts");
    let (store, begin) = dir.open();
    let (_, local) = broker(Some(begin));
    let (count, members) = mpsc::channel();
    let receipt = Receipt::new(move |total| count.send(total).unwrap());
    let (told, answer) = mpsc::channel();
    let done = Box::new(move |answer: Answer| told.send(answer).unwrap());
    let publish = Publish { draft: draft("h:1"), options: Options::default() };
    local.submit(publish, Some(receipt), done);
    assert!(answer.try_recv().unwrap().is_ok());
    assert!(members.recv_timeout(Duration::from_secs(10)).is_err());
    store.close().unwrap();
}

#[test]
fn names_are_compared_where_hashes_are_the_same() {
    let (_, local) = broker(None);
    local.publish(draft("h:1"), None).unwrap();
    let wanted =
        Wanted { hash: local.hash("h:1"), topic: Name::from("h:2"), after: 0, state: false };
    assert_eq!(pulled(&local, &[wanted]).0, [0u64; 0]);
}

#[test]
fn a_publish_on_a_condition_never_waits_for_the_disk_and_keeps_its_turn() {
    let dir = Dir::new("condition");
    let (store, begin) = dir.open();
    let (_, local) = broker(Some(begin));
    assert_eq!(offset(submit(&local, "d:1", Options::default())), 1);
    store.close().unwrap();
    // Another process, whose memory is empty, and whose disk does not answer.
    let (store, begin) = dir.open();
    let (_, local) = broker(Some(begin));
    let (hold, held) = mpsc::channel::<()>();
    store.read_later(Box::new(move |_| _ = held.recv_timeout(Duration::from_secs(20)))).unwrap();
    let (told, answers) = mpsc::channel();
    let begun = std::time::Instant::now();
    let only_if = |offset| Options { if_offset: Some(offset), ..Options::default() };
    // The last of the topic is the first's; after it comes what was called after it.
    for (name, options) in [
        ("stale", only_if(0)),
        ("fits", only_if(1)),
        ("behind", Options::default()),
        ("late", only_if(1)),
    ] {
        let told = told.clone();
        let done = Box::new(move |answer: Answer| told.send((name, answer)).unwrap());
        local.submit(Publish { draft: draft("d:1"), options }, None, done);
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "the caller waited for the disk");
    assert!(answers.try_recv().is_err());
    assert_eq!(offset(submit(&local, "d:2", Options::default())), 2, "other topics go on");
    hold.send(()).unwrap();
    let mut answers: Vec<_> = (0..4)
        .map(|_| answers.recv_timeout(Duration::from_secs(10)).unwrap())
        .map(|(name, answer)| (name, answer.map(|published| published.id.offset)))
        .collect();
    answers.sort_by_key(|(name, _)| *name);
    let newer = |offset| Err(PublishError::Newer(Id { epoch: Epoch(0xab), offset }));
    assert_eq!(
        answers,
        [("behind", Ok(4)), ("fits", Ok(3)), ("late", newer(4)), ("stale", newer(1))]
    );
    store.close().unwrap();
}

#[test]
fn who_comes_back_to_what_is_damaged_is_told_and_goes_on() {
    let dir = Dir::new("damaged");
    let (store, begin) = dir.open();
    let (_, local) = broker(Some(begin));
    for text in ["one", "two", "three of them", "four", "five"] {
        let message = Draft::new("d:1", Data::Text(text.into()));
        let publish = Publish { draft: message, options: Options::default() };
        local.submit(publish, None, Box::new(|answer| _ = answer.unwrap()));
    }
    store.close().unwrap();
    let file = dir.0.join(store::FILE);
    let mut bytes = std::fs::read(&file).unwrap();
    let places: Vec<usize> =
        (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"three of them")).collect();
    places.iter().for_each(|at| bytes[*at] ^= 1);
    std::fs::write(&file, &bytes).unwrap();
    let (store, begin) = dir.open_unverified();
    let (_, local) = broker(Some(begin));
    let since = Since::from(Id { epoch: Epoch(0xab), offset: 1 });
    let start = local.kept().start(&names(&local, &["d:1"]), &asked(since));
    let mut wanted = start.topics;
    let (mut offsets, mut gone) = (Vec::new(), false);
    while wanted[0].after < 5 {
        let (told, piece) = mpsc::channel();
        let reply = Box::new(move |piece: Option<crate::Piece>| told.send(piece.unwrap()).unwrap());
        local.kept().pull_later(wanted.clone(), 100, 1 << 20, reply).unwrap();
        let piece = piece.recv_timeout(Duration::from_secs(10)).unwrap();
        offsets.extend(piece.messages.iter().map(|message| message.id.offset));
        gone |= piece.gone[0];
        wanted[0].after = piece.through;
    }
    assert_eq!((offsets, gone), (vec![2, 4, 5], true));
    let (told, page) = mpsc::channel();
    let reply = Box::new(move |page| told.send(page).unwrap());
    local.kept().page(local.hash("d:1"), "d:1", Some(2), false, 10, reply).unwrap();
    let refused = page.recv_timeout(Duration::from_secs(10)).unwrap().unwrap_err();
    assert_eq!(refused.code(), "store_damaged");
    assert!(refused.to_string().contains("messages of d:1 after offset 2"), "{refused}");
    store.close().unwrap();
}
