//! Compares the database function that appends with a model.

use std::collections::HashMap;

use random::Random;

use super::*;

/// The expected contents of the database, in the order of commits.
#[derive(Default)]
struct Model {
    last: u64,
    topics: HashMap<u64, Topic>,
}

#[derive(Default)]
struct Topic {
    last: u64,
    /// Offset, previous offset, size.
    messages: Vec<(u64, u64, u64)>,
    keys: HashMap<u64, u64>,
}

/// A message of a batch.
struct Message {
    topic: u64,
    key: Option<u64>,
    if_offset: Option<u64>,
    size: u64,
}

/// What every topic retains: the number of messages and of bytes.
const LIMITS: (usize, u64) = (7, 100);

impl Model {
    fn append(&mut self, message: &Message) -> (u64, u32) {
        let topic = self.topics.entry(message.topic).or_default();
        if let Some(earlier) = message.key.and_then(|key| topic.keys.get(&key)) {
            return (*earlier, 1);
        }
        if message.if_offset.is_some_and(|if_offset| if_offset < topic.last) {
            return (topic.last, 2);
        }
        self.last += 1;
        topic.messages.push((self.last, topic.last, message.size));
        topic.last = self.last;
        topic.keys.extend(message.key.map(|key| (key, self.last)));
        (self.last, 0)
    }

    fn delete(&mut self, topic: u64) {
        if let Some(topic) = self.topics.get_mut(&topic) {
            topic.messages.clear();
            self.last += 1;
        }
    }

    /// Returns the offset up to which a topic's messages are dropped.
    fn floor(&self, topic: u64) -> u64 {
        let topic = &self.topics[&topic];
        let (mut count, mut bytes, mut floor) = (0, 0, topic.last);
        for (offset, previous, size) in topic.messages.iter().rev() {
            (count, bytes) = (count + 1, bytes + size);
            if count > LIMITS.0 || (bytes > LIMITS.1 && *offset != topic.last) {
                break;
            }
            floor = *previous;
        }
        floor
    }
}

/// Makes a batch as the writer does: no key twice, and a condition only on a topic that is not in the batch before.
fn batch(random: &mut Random, model: &Model) -> Vec<Message> {
    let mut batch: Vec<Message> = Vec::new();
    for _ in 0..1 + random.below(12) {
        let topic = random.below(5);
        let key = (random.below(3) == 0).then(|| random.below(6));
        let is_there = batch.iter().any(|message| message.topic == topic);
        let if_offset = (!is_there && random.below(4) == 0).then(|| {
            let last = model.topics.get(&topic).map_or(0, |topic| topic.last);
            (last + random.below(2)).saturating_sub(random.below(2))
        });
        let is_repeated = key.is_some()
            && batch.iter().any(|message| message.topic == topic && message.key == key);
        if !is_repeated {
            batch.push(Message { topic, key, if_offset, size: 1 + random.below(40) });
        }
    }
    batch
}

/// The epoch of the log that a writer expects.
const EPOCH: &str = "(SELECT epoch FROM throng.history_log)";

/// Returns the call of the function by a writer that knows the log up to `offset`.
fn call(writer: u64, number: u64, (epoch, offset): (&str, u64), batch: &[Message]) -> String {
    let array = |kind: &str, values: Vec<String>| format!("'{{{}}}'::{kind}[]", values.join(","));
    let column = |value: &dyn Fn(&Message) -> Option<String>| -> Vec<String> {
        batch.iter().map(|it| value(it).unwrap_or_else(|| "NULL".into())).collect()
    };
    let same = |value: u64| array("bigint", vec![value.to_string(); batch.len()]);
    format!(
        "SELECT base, through, array_to_string(offsets, ','), array_to_string(outcomes, ',') \
         FROM throng.history_append_batch({writer}, {number}, {epoch}, {offset}, 300, {}, {}, {}, {}, {}, {}, {}, {}, {}, \
         {}, {}, {})",
        array("text", column(&|it| Some(format!("t{}", it.topic)))),
        array("bigint", column(&|_| None)),
        array("bigint", column(&|it| Some(it.size.to_string()))),
        array("bytea", column(&|it| Some("x".repeat(it.size as usize)))),
        array("text", column(&|it| it.key.map(|key| format!("k{key}")))),
        array("bigint", column(&|it| it.if_offset.map(|offset| offset.to_string()))),
        same(LIMITS.0 as u64),
        same(LIMITS.1),
        same(3_600),
        array("text", column(&|_| None)),
        array("boolean", column(&|_| Some("false".into()))),
        array("boolean", column(&|_| Some("false".into()))),
    )
}

/// Starts a database with the tables and functions.
pub fn migrated() -> Postgres {
    let postgres = Postgres::start();
    let url = postgres.url("postgres");
    let mut migrate = std::process::Command::new(env!("CARGO_BIN_EXE_throng"));
    migrate.args(["history", "migrate"]).env("THRONG_HISTORY_URL", &url).current_dir("/");
    assert!(output_within(&mut migrate).status.success());
    postgres
}

#[test]
fn a_writer_that_knows_another_log_and_a_batch_before_its_last_append_nothing() {
    let postgres = migrated();
    let one = || [Message { topic: 1, key: None, if_offset: None, size: 1 }];
    let append = |number, known| postgres.psql(&call(1, number, known, &one()));
    assert_eq!(append(1, (EPOCH, 0)), "0|1|1|0");
    assert_eq!(append(2, (EPOCH, 1)), "1|2|2|0");
    // The log is shorter than the writer expects, or has another epoch.
    assert_eq!(append(3, (EPOCH, 3)), "2|2||");
    assert_eq!(append(3, ("1 + (SELECT epoch FROM throng.history_log)", 2)), "2|2||");
    // A call of a lost session comes late.
    let late = postgres.try_psql("postgres", "app", &call(1, 1, (EPOCH, 0), &one()));
    assert!(!late.status.success(), "{late:?}");
    assert!(String::from_utf8_lossy(&late.stderr).contains("older than the last"), "{late:?}");
    assert_eq!(append(2, (EPOCH, 2)), "1|2|2|0", "the last one gives what it gave");
    assert_eq!(postgres.psql("SELECT last_offset FROM throng.history_log"), "2");
    assert_eq!(postgres.psql("SELECT count(*) FROM throng.history_messages"), "2");
}

/// `APPEND_SEED=s` makes another run.
#[test]
fn appended_batches_are_those_of_the_model() {
    let seed = std::env::var("APPEND_SEED").map_or(3, |seed| seed.parse().expect("a number"));
    println!("APPEND_SEED={seed}");
    let mut random = Random::new(seed);
    let postgres = migrated();
    let mut model = Model::default();
    let (mut script, mut expected) = (String::new(), Vec::new());
    let mut numbers = [0; 3];
    for _ in 0..300 {
        if random.below(20) == 0 {
            let topic = random.below(5);
            script += &format!("SELECT throng.history_delete('t{topic}');\n");
            expected.push(String::new());
            model.delete(topic);
            continue;
        }
        if random.below(10) == 0 {
            // The trim deletes only messages that no rule retains, so the results stay the same.
            script += "SELECT last_id IS NULL FROM throng.history_trim(0, 1000, 1000, 0);\n";
            script += "SELECT throng.history_trim_keys(1000);\n";
            expected.extend(["t".into(), "0".into()]);
            continue;
        }
        let writer = random.below(3);
        let number = &mut numbers[writer as usize];
        *number += 1;
        let batch = batch(&mut random, &model);
        let base = model.last;
        let outcomes: Vec<(u64, u32)> = batch.iter().map(|message| model.append(message)).collect();
        let join = |parts: Vec<String>| parts.join(",");
        let line = format!(
            "{base}|{}|{}|{}",
            model.last,
            join(outcomes.iter().map(|(offset, _)| offset.to_string()).collect()),
            join(outcomes.iter().map(|(_, outcome)| outcome.to_string()).collect()),
        );
        // A repeated batch returns the same result.
        for _ in 0..1 + random.below(2) {
            script += &format!("{};\n", call(writer, *number, (EPOCH, base), &batch));
            expected.push(line.clone());
        }
    }
    let replies = postgres.psql_script(&script);
    let replies: Vec<&str> = replies.lines().collect();
    let expected: Vec<String> = expected.into_iter().filter(|line| !line.is_empty()).collect();
    let replies: Vec<&str> = replies.into_iter().filter(|line| !line.is_empty()).collect();
    for (at, (reply, expected)) in replies.iter().zip(&expected).enumerate() {
        assert_eq!(reply, expected, "reply {at}, seed {seed}");
    }
    assert_eq!(replies.len(), expected.len());
    for topic in model.topics.keys() {
        let floor = model.floor(*topic);
        let found = postgres.psql(&format!(
            "SELECT throng.history_floor(t) FROM throng.history_topics AS t WHERE name = 't{topic}'"
        ));
        assert_eq!(found, floor.to_string(), "the floor of t{topic}, seed {seed}");
        let found = postgres.psql(&format!(
            "SELECT coalesce(string_agg(m.log_offset || '-' || m.previous, ',' ORDER BY m.log_offset), '') \
             FROM throng.history_messages AS m JOIN throng.history_topics AS t ON t.id = m.topic_id \
             WHERE t.name = 't{topic}' AND m.record IS NOT NULL AND m.log_offset > {floor}"
        ));
        let retained = model.topics[topic].messages.iter().filter(|(offset, ..)| *offset > floor);
        let retained = retained.map(|(offset, previous, _)| format!("{offset}-{previous}"));
        assert_eq!(found, retained.collect::<Vec<_>>().join(","), "t{topic}, seed {seed}");
    }
}
