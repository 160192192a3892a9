//! Examples, and a run of random steps beside a model that is too simple to be wrong.
//! `HISTORY_SEED=n cargo test -p history` replays one run.

mod reference;

use std::sync::Arc;

use model::{Attributes, Data, Properties};
use model::{Envelope, Epoch, HistoryRule, Message, Position, Publication, Retention};
use proptest::prelude::*;

use super::*;

const ALL: Limits = Limits { bytes_max: usize::MAX, topics_max: usize::MAX };

fn rule(messages_max: u64) -> HistoryRule {
    HistoryRule {
        messages_max,
        bytes_max: u64::MAX,
        seconds_max: 60,
        durable: false,
        compact: false,
        acknowledge: None,
    }
}

fn compact(messages_max: u64) -> HistoryRule {
    HistoryRule { compact: true, ..rule(messages_max) }
}

#[test]
fn a_reset_forgets_all_and_claims_nothing_before_its_floor() {
    let mut windows = Windows::new(ALL, 0);
    let topic = Name::from("a");
    windows.push_now(plain(1, &topic), &rule(1));
    windows.push_now(plain(2, &topic), &rule(1));
    let dropped_by = windows.dropped_by();
    let former = windows.reset(7);
    assert_eq!((former.messages(), windows.messages(), windows.topics()), (1, 0, 0));
    assert_eq!(windows.dropped_by(), dropped_by);
    for topic in ["a", "b"] {
        assert!(!windows.reaches(hash(topic), topic, 6) && windows.reaches(hash(topic), topic, 7));
    }
}

#[test]
fn what_is_here_for_sessions_alone_is_counted() {
    let mut windows = Windows::new(ALL, 0);
    let (sessions, ruled) = (Name::from("sessions"), Name::from("ruled"));
    windows.set_for_sessions(hash(&sessions), &sessions, true);
    windows.set_for_sessions(hash(&ruled), &ruled, false);
    for (offset, topic) in [(1, &sessions), (2, &ruled), (3, &sessions), (4, &sessions)] {
        windows.push_now(plain(offset, topic), &rule(2));
    }
    let bytes = plain(4, &sessions).bytes();
    assert_eq!(windows.for_sessions(), ForSessions { messages: 2, bytes: 2 * bytes });
    // A rule retains it from now on, and the other topic loses its rule.
    windows.set_for_sessions(hash(&sessions), &sessions, false);
    windows.set_for_sessions(hash(&ruled), &ruled, true);
    let ruled_bytes = plain(2, &ruled).bytes();
    assert_eq!(windows.for_sessions(), ForSessions { messages: 1, bytes: ruled_bytes });
    windows.delete(hash(&ruled), &ruled, 2);
    assert_eq!(windows.for_sessions(), ForSessions::default());
    assert_eq!(windows.messages(), 2);
}

/// Returns few hashes for many names, so that names are compared.
fn hash(topic: &str) -> u64 {
    topic.len() as u64 % 3
}

fn message(
    offset: u64,
    topic: &str,
    at_ms: u64,
    data: &str,
    attributes: Attributes,
) -> Arc<Envelope> {
    let mut publication = Publication::new(topic, Data::Json(data.into()));
    if attributes != Attributes::default() {
        publication.attributes = Some(Box::new(attributes));
    }
    let message = Message::new(publication, Position { epoch: Epoch(1), offset }, hash(topic), 0);
    Arc::new(message.retained(Retention::History, at_ms).into())
}

fn plain(offset: u64, topic: &str) -> Arc<Envelope> {
    message(offset, topic, 1_000, "[1]", Attributes::default())
}

fn keyed(offset: u64, topic: &str, key: &str, data: &str) -> Arc<Envelope> {
    message(
        offset,
        topic,
        1_000,
        data,
        Attributes { key: Some(key.into()), ..Attributes::default() },
    )
}

fn expiring(offset: u64, topic: &str, expires_ms: u64) -> Arc<Envelope> {
    let attributes = Attributes { expires_ms: Some(expires_ms), ..Attributes::default() };
    message(offset, topic, 1_000, "[1]", attributes)
}

fn offsets(messages: &[Arc<Envelope>]) -> Vec<u64> {
    messages.iter().map(|message| message.id.offset).collect()
}

impl Windows {
    /// Retains a message at its own time.
    fn push_now(&mut self, message: Arc<Envelope>, rule: &HistoryRule) {
        let now_ms = message.at_ms;
        self.push(message, rule, now_ms);
    }

    fn all(&self, topic: &str, after: u64, now_ms: u64) -> Vec<u64> {
        self.of(TopicCursor { hash: hash(topic), topic, after, state_top: 0 }, now_ms)
    }

    fn of(&self, cursor: TopicCursor<'_>, now_ms: u64) -> Vec<u64> {
        let found = self.collect(&[cursor], usize::MAX, usize::MAX, now_ms);
        assert_eq!(found.through, None);
        offsets(&found.messages)
    }

    fn has(&self, topic: &str, after: u64) -> bool {
        self.reaches(hash(topic), topic, after)
    }
}

#[test]
fn a_topic_has_its_last_messages_and_says_what_it_lost() {
    let mut windows = Windows::new(ALL, 10);
    assert!(windows.has("a", 10) && !windows.has("a", 9));
    for offset in 11..=20 {
        windows.push_now(plain(offset, if offset % 2 == 0 { "a" } else { "b" }), &rule(3));
    }
    assert_eq!(windows.all("a", 0, 1_000), [16, 18, 20]);
    assert!(windows.has("a", 14) && !windows.has("a", 13));
    assert!(windows.has("b", 13) && windows.has("c", 10) && !windows.has("c", 9));
    assert_eq!(windows.last(hash("a"), "a"), Some(20));
    assert_eq!(windows.last(hash("c"), "c"), None);
    assert!(windows.holds(hash("a"), "a", 16) && !windows.holds(hash("a"), "a", 17));
    assert!(!windows.holds(hash("a"), "a", 14));
    assert_eq!((windows.messages(), windows.topics()), (6, 2));
}

#[test]
fn age_and_bytes_are_limits_too() {
    let mut windows = Windows::new(ALL, 0);
    let short = HistoryRule { seconds_max: 1, bytes_max: 10, ..rule(100) };
    for (offset, at_ms) in [(1, 1_000), (2, 1_500), (3, 2_001)] {
        windows.push_now(message(offset, "a", at_ms, "[1]", Attributes::default()), &short);
    }
    assert_eq!(windows.all("a", 0, 2_001), [2, 3]);
    windows.push_now(message(4, "a", 2_001, "[1,2]", Attributes::default()), &short);
    assert_eq!(windows.all("a", 0, 2_001), [3, 4]);
    // A message that exceeds a limit alone leaves nothing.
    windows.push_now(message(5, "a", 2_001, "[1,2,3,4,5]", Attributes::default()), &short);
    assert_eq!(windows.all("a", 0, 2_001), [0; 0]);
    assert!(!windows.has("a", 4) && windows.has("a", 5));
    assert_eq!((windows.messages(), windows.bytes()), (0, 0));
}

/// A message has the time of day, which may be years ahead of the time by which ages are counted.
#[test]
fn a_message_of_a_wrong_time_of_day_makes_no_other_older() {
    let mut windows = Windows::new(ALL, 0);
    let short = HistoryRule { seconds_max: 10, ..rule(100) };
    for (offset, at_ms) in [(1, 1_000), (2, 900_000_000), (3, 1_002)] {
        let message = message(offset, "a", at_ms, "[1]", Attributes::default());
        windows.push(message, &short, 1_000 + offset);
    }
    windows.sweep(11_000, &|_| Some(Arc::new(short.clone())), 1_000);
    assert_eq!(windows.all("a", 0, 11_000), [1, 2, 3]);
    windows.sweep(11_001, &|_| Some(Arc::new(short.clone())), 1_000);
    assert_eq!(windows.all("a", 0, 11_001), [2, 3]);
}

#[test]
fn what_mqtt_says_of_a_message_counts_for_the_limit() {
    let user = vec![("".into(), "".into()); 10];
    let said = Properties { user, ..Properties::default() };
    let said = || Attributes { properties: Some(Box::new(said.clone())), ..Attributes::default() };
    let mut windows = Windows::new(ALL, 0);
    let small = HistoryRule { bytes_max: 1_000, ..rule(100) };
    for offset in 1..=3 {
        windows.push_now(message(offset, "a", 1_000, "[1]", said()), &small);
    }
    assert_eq!(windows.all("a", 0, 1_000), [3]);
    // A message whose payload fits is retained, whatever its properties.
    let tiny = HistoryRule { bytes_max: 3, ..rule(100) };
    windows.push_now(message(4, "a", 1_000, "[1]", said()), &tiny);
    assert_eq!(windows.all("a", 0, 1_000), [4]);
}

#[test]
fn the_oldest_of_all_goes_when_memory_is_full() {
    let bytes = plain(1, "a").bytes();
    let mut windows = Windows::new(Limits { bytes_max: 3 * bytes, topics_max: 100 }, 0);
    for (offset, topic) in [(1, "a"), (2, "b"), (3, "a"), (4, "c"), (5, "c")] {
        windows.push_now(plain(offset, topic), &rule(100));
    }
    assert_eq!((windows.all("a", 0, 0), windows.all("c", 0, 0)), (vec![3], vec![4, 5]));
    assert!(windows.has("a", 1) && !windows.has("a", 0));
    assert!(windows.has("b", 2) && !windows.has("b", 1));
    assert_eq!(windows.bytes(), 3 * bytes);
    // A message that exceeds the limit even alone must not push out all others.
    let long = format!("[{}1]", "1,".repeat(2 * bytes));
    windows.push_now(message(6, "d", 0, &long, Attributes::default()), &rule(100));
    assert_eq!(windows.messages(), 3);
    assert!(!windows.has("d", 5) && windows.has("d", 6));
}

#[test]
fn topics_without_messages_are_forgotten_first_and_then_the_quiet_ones() {
    let mut windows = Windows::new(Limits { bytes_max: usize::MAX, topics_max: 3 }, 0);
    windows.push_now(plain(1, "a"), &rule(9));
    windows.push_now(expiring(2, "b", 1_500), &rule(9));
    windows.push_now(plain(3, "c"), &rule(9));
    windows.push_now(plain(4, "a"), &rule(9));
    assert_eq!(windows.sweep(1_500, &|_| Some(Arc::new(rule(9))), 100), 1);
    windows.push_now(plain(5, "d"), &rule(9));
    assert_eq!(windows.last(hash("b"), "b"), None);
    // Its message had expired: no client misses it.
    assert_eq!((windows.gone(), windows.last_gone()), (0, 2));
    windows.push_now(plain(6, "e"), &rule(9));
    assert_eq!((windows.gone(), windows.last_gone()), (3, 3));
    assert!(!windows.has("c", 2) && windows.has("c", 3) && windows.has("a", 0));
    assert_eq!((windows.messages(), windows.topics()), (4, 3));
    // The topic begins anew, with the floor of unknown topics.
    windows.push_now(plain(7, "c"), &rule(9));
    assert!(!windows.has("c", 2) && windows.has("c", 3));
}

#[test]
fn a_compact_topic_has_the_last_state_of_each_key() {
    let mut windows = Windows::new(ALL, 0);
    for (offset, key, data) in [(1, "x", "1"), (2, "y", "1"), (3, "x", "2"), (4, "y", "null")] {
        windows.push_now(keyed(offset, "a", key, data), &compact(10));
    }
    windows.push_now(plain(5, "a"), &compact(10));
    let state = |after, state_top| {
        windows.of(TopicCursor { hash: hash("a"), topic: "a", after, state_top }, 0)
    };
    assert_eq!(state(0, 5), [3, 5], "a newcomer need not know of y");
    assert_eq!(state(3, 5), [5], "nor in the next piece");
    assert_eq!(state(0, 3), [3, 4, 5], "y was removed after this one began");
    assert_eq!(windows.all("a", 1, 0), [3, 4, 5], "all others do");
    assert!(windows.has("a", 0), "what was replaced is not missed");
    windows.push_now(keyed(6, "a", "y", "3"), &compact(10));
    assert_eq!(windows.all("a", 0, 0), [3, 5, 6]);
    windows.push_now(keyed(7, "a", "z", "3"), &compact(3));
    assert_eq!(windows.all("a", 0, 0), [5, 6, 7]);
    assert!(windows.has("a", 3) && !windows.has("a", 2));
    // The rule changes twice.
    windows.push_now(keyed(8, "a", "z", "4"), &rule(10));
    assert_eq!(windows.all("a", 0, 0), [5, 6, 7, 8]);
    windows.push_now(plain(9, "a"), &compact(10));
    assert_eq!(windows.all("a", 0, 0), [5, 6, 8, 9]);
}

#[test]
fn a_state_without_an_age_limit_stands_and_its_removals_go() {
    let lasting = HistoryRule { seconds_max: u64::MAX, ..compact(3) };
    let mut windows = Windows::new(ALL, 0);
    for (offset, key, data) in [(1, "x", "1"), (2, "y", "1"), (3, "y", "null")] {
        windows.push_now(keyed(offset, "a", key, data), &lasting);
    }
    let shared = Arc::new(lasting.clone());
    let rule_of = |_: &str| Some(shared.clone());
    // The messages are of the time 1,000.
    let day_ms = store::REMOVAL_SECONDS * 1_000;
    assert_eq!(windows.sweep(day_ms + 999, &rule_of, 1_000), 0);
    assert_eq!(windows.sweep(day_ms + 1_000, &rule_of, 1_000), 1);
    assert!(!windows.has("a", 2) && windows.has("a", 3), "who holds y is told");
    assert_eq!(windows.sweep(u64::MAX, &rule_of, 1_000), 0);
    let key = Attributes { key: Some("z".into()), ..Attributes::default() };
    let late = message(4, "a", u64::MAX, "1", key);
    windows.push_now(late, &lasting);
    assert_eq!(windows.all("a", 0, 0), [1, 4]);
    // Without a compact rule a removal is a message like others.
    let plain = Arc::new(HistoryRule { seconds_max: u64::MAX, ..rule(3) });
    windows.push_now(keyed(5, "b", "y", "null"), &plain);
    assert_eq!(windows.sweep(u64::MAX, &|_| Some(plain.clone()), 1_000), 0);
}

#[test]
fn several_topics_are_one_sequence() {
    let mut windows = Windows::new(ALL, 0);
    for offset in 1..=30 {
        windows.push_now(plain(offset, ["a", "bb", "ccc"][offset as usize % 3]), &rule(100));
    }
    let cursors = |after| {
        ["a", "ccc"].map(|topic| TopicCursor { hash: hash(topic), topic, after, state_top: 0 })
    };
    let found = windows.collect(&cursors(20), 100, usize::MAX, 0);
    assert_eq!((offsets(&found.messages), found.through), (vec![21, 23, 24, 26, 27, 29, 30], None));
    let found = windows.collect(&cursors(20), 3, usize::MAX, 0);
    assert_eq!((offsets(&found.messages), found.through), (vec![21, 23, 24], Some(24)));
    let found = windows.collect(&cursors(20), 100, 3, 0);
    assert_eq!((offsets(&found.messages), found.through), (vec![21, 23], Some(23)));
    let found = windows.collect(&cursors(20), 0, 0, 0);
    assert_eq!((offsets(&found.messages), found.through), (vec![21], Some(21)));
    let twice = [cursors(26)[0], cursors(20)[0]];
    let found = windows.collect(&twice, 100, usize::MAX, 0);
    assert_eq!(offsets(&found.messages), [21, 24, 27, 30]);
}

#[test]
fn a_deleted_message_is_missed_by_who_had_not_seen_it() {
    let mut windows = Windows::new(ALL, 0);
    for offset in 1..=4 {
        windows.push_now(plain(offset, "a"), &rule(100));
    }
    assert_eq!(windows.delete(hash("a"), "a", 2), 2);
    assert_eq!(windows.all("a", 0, 0), [3, 4]);
    assert!(windows.has("a", 2) && !windows.has("a", 1));
    assert_eq!(windows.delete(hash("a"), "a", u64::MAX), 2);
    assert_eq!(windows.delete(hash("b"), "b", u64::MAX), 0);
    windows.push_now(plain(5, "a"), &rule(100));
    assert!(windows.has("a", 4) && !windows.has("a", 3));
    assert_eq!(windows.all("a", 0, 0), [5]);
}

#[test]
fn a_sweep_does_a_little_and_goes_on() {
    let mut windows = Windows::new(ALL, 0);
    let mut offset = 0;
    for topic in 0..50 {
        for nth in 0..40 {
            offset += 1;
            let expires_ms = if nth % 2 == 0 { 2_000 } else { 99_000 };
            windows.push_now(expiring(offset, &format!("t{topic}"), expires_ms), &rule(100));
        }
    }
    let rule_of = |topic: &str| (topic != "t7").then(|| Arc::new(rule(100)));
    assert_eq!(windows.sweep(2_000, &rule_of, 0), 0);
    let mut rounds = 0;
    while windows.messages() > 49 * 20 {
        assert!(windows.sweep(2_000, &rule_of, 5) <= 5 * SWEPT_MESSAGES);
        rounds += 1;
        assert!(rounds < 2 * 50 * 40 / (5 * SWEPT_MESSAGES));
    }
    assert_eq!(windows.all("t7", 0, 0), [0; 0]);
    assert!(windows.has("t7", 8 * 40) && !windows.has("t7", 8 * 40 - 1));
    assert!(windows.has("t8", 0), "what expired is not missed");
    // After a minute all are too old.
    while windows.messages() > 0 {
        windows.sweep(61_001, &rule_of, 5);
    }
    assert!(!windows.has("t8", 9 * 40 - 1));
    assert_eq!((windows.bytes(), windows.topics()), (0, 50));
}

#[test]
fn a_quiet_topic_takes_little_memory() {
    assert!(size_of::<Option<Topic>>() <= 72, "{}", size_of::<Option<Topic>>());
    assert_eq!(size_of::<Option<Arc<Envelope>>>(), 8);
}

/// Makes some topics with messages; each third has expired at the time 2,000.
fn filled(topics: &[u8]) -> (Windows, Vec<(u64, String)>) {
    let mut windows = Windows::new(ALL, 0);
    let mut live = Vec::new();
    for (at, topic) in topics.iter().enumerate() {
        let (offset, topic) = (1 + at as u64 * 3, "t".repeat(1 + *topic as usize));
        let expires_ms = if at % 3 == 0 { 2_000 } else { 2_001 };
        windows.push_now(expiring(offset, &topic, expires_ms), &rule(1_000));
        if at % 3 != 0 {
            live.push((offset, topic));
        }
    }
    (windows, live)
}

proptest! {
    #[test]
    fn pieces_are_the_whole(
        topics in prop::collection::vec(0_u8..6, 0..80),
        afters in prop::collection::vec(0_u64..240, 6),
        messages_max in 0_usize..9,
        bytes_max in 0_usize..20,
    ) {
        let (windows, live) = filled(&topics);
        let names: Vec<String> = (1..=4).map(|len| "t".repeat(len)).collect();
        let mut cursors: Vec<TopicCursor<'_>> = names
            .iter()
            .zip(&afters)
            .map(|(topic, after)| TopicCursor { hash: hash(topic), topic, after: *after, state_top: 0 })
            .collect();
        let is_expected = |(offset, topic): &&(u64, String)| {
            cursors.iter().any(|cursor| cursor.topic == topic && *offset > cursor.after)
        };
        let want: Vec<u64> = live.iter().filter(is_expected).map(|(offset, _)| *offset).collect();
        let mut got = Vec::new();
        loop {
            let found = windows.collect(&cursors, messages_max, bytes_max, 2_000);
            prop_assert!(found.messages.len() <= messages_max.max(1));
            got.extend(offsets(&found.messages));
            let Some(through) = found.through else { break };
            prop_assert_eq!(got.last(), Some(&through));
            for cursor in &mut cursors {
                cursor.after = cursor.after.max(through);
            }
        }
        prop_assert_eq!(got, want);
    }

    #[test]
    fn pages_are_the_whole(
        topics in prop::collection::vec(0_u8..2, 0..60),
        limit in 1_usize..9,
        from in prop::option::of(0_u64..180),
        backwards in any::<bool>(),
    ) {
        let (windows, live) = filled(&topics);
        let is_expected = |(offset, topic): &&(u64, String)| {
            let is_in = |from| if backwards { *offset < from } else { *offset > from };
            topic == "t" && from.is_none_or(is_in)
        };
        let all: Vec<u64> =
            live.iter().filter(|(_, topic)| topic == "t").map(|(offset, _)| *offset).collect();
        let above = from.unwrap_or(0);
        let here: Vec<u64> = all.iter().copied().filter(|offset| *offset > above).collect();
        let before = windows.before_newest(hash("t"), "t", above, limit, 2_000);
        prop_assert_eq!(before.is_some(), here.len() >= limit);
        if let Some(before) = before {
            let newest: Vec<u64> = all.iter().copied().filter(|offset| *offset > before).collect();
            prop_assert_eq!(&newest[..], &here[here.len() - limit..]);
        }
        let mut want: Vec<u64> = live.iter().filter(is_expected).map(|(offset, _)| *offset).collect();
        if backwards {
            want.reverse();
        }
        let (mut got, mut from) = (Vec::new(), from);
        loop {
            let page = windows.page(hash("t"), "t", from, backwards, limit, 2_000);
            got.extend(offsets(&page.messages));
            if !page.more {
                break;
            }
            prop_assert_eq!(page.messages.len(), limit);
            from = got.last().copied();
        }
        prop_assert_eq!(got, want);
    }
}
