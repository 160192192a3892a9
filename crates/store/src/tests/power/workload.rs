//! The operations of callers on a store, and its expected content.

use std::collections::BTreeMap;

use model::{Attributes, Data, HistoryRule, Name, Publication};
use random::Random;

use super::super::{ALL, history};
use crate::{Append, Done, Reader, Store};

/// The messages that a topic of few messages retains.
const FEW: u64 = 5;

/// When all messages are published, in milliseconds since 1970: late enough that none is too old.
const AT_MS: u64 = 1 << 50;

const TOPICS: [&str; 6] = ["compact", "few:a", "few:b", "plain:a", "plain:b", "plain:c"];

#[derive(Clone, Debug)]
pub enum Op {
    Append {
        topic: &'static str,
        offset: u64,
        text: String,
        key: Option<String>,
        idempotency_key: Option<String>,
        /// A record of the same commit.
        with: Option<(String, Vec<u8>)>,
    },
    Delete {
        topic: &'static str,
        through: u64,
    },
    Cursor {
        user: String,
        topic: &'static str,
        offset: u64,
    },
    /// A user's subscriptions, and a name that they refer to.
    Subscriptions {
        user: String,
        packed: Vec<u8>,
        number: u32,
        name: String,
    },
    /// A session, a retained message, a revoked token: a record of a part.
    Record {
        key: String,
        value: Option<Vec<u8>>,
    },
    Event {
        number: u64,
        through: Option<u64>,
    },
}

/// The content of the store: the rows of each table and topic, as texts.
pub type View = BTreeMap<String, Vec<String>>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Each topic's messages: offset, key and text.
    topics: BTreeMap<&'static str, BTreeMap<u64, (Option<String>, String)>>,
    cursors: BTreeMap<(String, &'static str), u64>,
    subscriptions: BTreeMap<String, Vec<u8>>,
    names: BTreeMap<u32, String>,
    records: BTreeMap<String, Vec<u8>>,
    idempotency: BTreeMap<u64, (&'static str, String)>,
    events: BTreeMap<u64, ()>,
}

fn rule(topic: &str) -> HistoryRule {
    let messages_max = if topic.starts_with("few") { FEW } else { 1_000_000 };
    HistoryRule { messages_max, compact: topic == "compact", ..history() }
}

fn message_row(offset: u64, key: Option<&str>, text: &str) -> String {
    format!("{offset} {key:?} {text}")
}

impl State {
    pub fn apply(&mut self, op: &Op) {
        match op.clone() {
            Op::Append { topic, offset, text, key, idempotency_key, with } => {
                let messages = self.topics.entry(topic).or_default();
                if topic == "compact" {
                    messages.retain(|_, (other, _)| *other != key);
                }
                messages.insert(offset, (key, text));
                while topic.starts_with("few") && messages.len() as u64 > FEW {
                    messages.pop_first();
                }
                if let Some(key) = idempotency_key {
                    self.idempotency.insert(offset, (topic, key));
                }
                self.records.extend(with);
            }
            Op::Delete { topic, through } => {
                let messages = self.topics.entry(topic).or_default();
                messages.retain(|offset, _| *offset > through);
            }
            Op::Cursor { user, topic, offset } => {
                let cursor = self.cursors.entry((user, topic)).or_default();
                *cursor = offset.max(*cursor);
            }
            Op::Subscriptions { user, packed, number, name } => {
                match packed.is_empty() {
                    true => drop(self.subscriptions.remove(&user)),
                    false => drop(self.subscriptions.insert(user, packed)),
                }
                self.names.insert(number, name);
            }
            Op::Record { key, value: Some(value) } => drop(self.records.insert(key, value)),
            Op::Record { key, value: None } => drop(self.records.remove(&key)),
            Op::Event { number, through } => {
                self.events.insert(number, ());
                if let Some(through) = through {
                    self.events.retain(|number, ()| *number > through);
                }
            }
        }
    }

    pub fn view(&self) -> View {
        let mut view = View::new();
        for topic in TOPICS {
            let messages = self.topics.get(topic).into_iter().flatten();
            let rows = messages.map(|(at, (key, text))| message_row(*at, key.as_deref(), text));
            view.insert(topic.into(), rows.collect());
        }
        let mut put = |table: &str, rows: Vec<String>| drop(view.insert(table.into(), rows));
        let cursors = self.cursors.iter();
        put("cursors", cursors.map(|((user, topic), at)| format!("{user} {topic} {at}")).collect());
        let subscriptions = self.subscriptions.iter();
        put("subscriptions", subscriptions.map(|(user, row)| format!("{user} {row:?}")).collect());
        put("names", self.names.iter().map(|(number, name)| format!("{number} {name}")).collect());
        put("records", self.records.iter().map(|(key, row)| format!("{key} {row:?}")).collect());
        let keys = self.idempotency.iter();
        put("idempotency", keys.map(|(at, (topic, key))| format!("{topic} {key} {at}")).collect());
        put("events", self.events.keys().map(u64::to_string).collect());
        view
    }

    /// Returns the number of a topic's messages.
    fn count(&self, topic: &str) -> usize {
        self.topics.get(topic).map_or(0, BTreeMap::len)
    }
}

/// Returns the view of a store.
pub fn stored(reader: &Reader) -> View {
    let mut view = View::new();
    for topic in TOPICS {
        let records = reader.after(topic, 0, ALL, 0).unwrap().records;
        let row = |record: &crate::Record| {
            let Data::Text(text) = &record.publication.data else { panic!("{record:?}") };
            message_row(record.offset, record.publication.key().map(|key| &**key), text)
        };
        view.insert(topic.into(), records.iter().map(row).collect());
    }
    let mut rows = Vec::new();
    reader.each_cursor(|user, topic, at| rows.push(format!("{user} {topic} {at}"))).unwrap();
    view.insert("cursors".into(), std::mem::take(&mut rows));
    reader.each_subscriber(|user, packed| rows.push(format!("{user} {packed:?}"))).unwrap();
    view.insert("subscriptions".into(), std::mem::take(&mut rows));
    reader.each_name(|number, name| rows.push(format!("{number} {name}"))).unwrap();
    view.insert("names".into(), std::mem::take(&mut rows));
    reader.each_record(|_, key, value| rows.push(format!("{key} {value:?}"))).unwrap();
    view.insert("records".into(), std::mem::take(&mut rows));
    reader
        .each_idempotency_key(|topic, key, at, _| rows.push(format!("{topic} {key} {at}")))
        .unwrap();
    view.insert("idempotency".into(), std::mem::take(&mut rows));
    reader.each_event(|number, _| rows.push(number.to_string())).unwrap();
    view.insert("events".into(), rows);
    view
}

/// Draws operations.
pub struct Workload<'a> {
    pub random: &'a mut Random,
    /// The last offset that was drawn.
    pub offset: u64,
    pub events: u64,
}

impl Workload<'_> {
    fn text(&mut self) -> String {
        let length = match self.random.below(40) {
            0 => self.random.below(40_000),
            1..=6 => self.random.below(6_000),
            _ => self.random.below(200),
        };
        let letter = char::from(b'a' + self.random.below(26_u8));
        letter.to_string().repeat(length as usize)
    }

    fn one_of(&mut self, name: &str, count: u64) -> String {
        format!("{name}{}", self.random.below(count))
    }

    /// Draws an operation on a store with this content.
    pub fn draw(&mut self, state: &State) -> Op {
        let topic = TOPICS[self.random.below(TOPICS.len())];
        match self.random.below(20) {
            0 => Op::Cursor { user: self.one_of("user", 9), topic, offset: self.offset },
            1 => Op::Record {
                key: self.one_of("record", 20),
                value: (!self.random.one_in(4)).then(|| self.text().into_bytes()),
            },
            2 => {
                let length = self.random.below(30_usize);
                let packed = self.random.bytes(length);
                let number = self.random.below(10_u32);
                let (user, name) = (self.one_of("user", 9), self.one_of("name", 99));
                Op::Subscriptions { user, packed, number, name }
            }
            3 => {
                self.events += 1;
                let through = self.random.one_in(3).then(|| self.events.saturating_sub(4));
                Op::Event { number: self.events, through }
            }
            4 if state.count(topic) > 0 => {
                Op::Delete { topic, through: self.offset.saturating_sub(self.random.below(60)) }
            }
            _ => {
                self.offset += 1 + self.random.below(2);
                Op::Append {
                    topic,
                    offset: self.offset,
                    text: self.text(),
                    key: (topic == "compact").then(|| self.one_of("key", 5)),
                    idempotency_key: self.random.one_in(4).then(|| format!("once-{}", self.offset)),
                    with: self
                        .random
                        .one_in(8)
                        .then(|| (self.one_of("record", 20), self.text().into_bytes())),
                }
            }
        }
    }
}

/// Passes an operation to the store.
pub fn issue(store: &Store, op: &Op, done: Done) {
    match op {
        Op::Append { topic, offset, text, key, idempotency_key, with } => {
            let attributes =
                Attributes { key: key.as_deref().map(Name::from), ..Attributes::default() };
            let publication = Publication {
                attributes: key.as_ref().map(|_| Box::new(attributes)),
                ..Publication::new(*topic, Data::Text(text.as_str().into()))
            };
            let with = with
                .as_ref()
                .map(|(key, value)| ("part", (key.as_str().into(), Some(value.as_slice().into()))));
            let append = Append {
                publication: &publication,
                offset: *offset,
                at_ms: AT_MS,
                rule: &rule(topic),
                idempotency_key: idempotency_key.as_deref(),
                with: with.as_ref(),
            };
            store.append(append, done).unwrap();
        }
        Op::Delete { topic, through } => {
            store.delete_history(&(*topic).into(), *through, done).unwrap();
        }
        Op::Cursor { user, topic, offset } => {
            store.put_cursor(&user.as_str().into(), &(*topic).into(), *offset).unwrap();
        }
        Op::Subscriptions { user, packed, number, name } => {
            let puts = vec![(Name::from(user.as_str()), packed.as_slice().into())];
            store.put_subscriptions(puts, vec![(*number, name.as_str().into())], done).unwrap();
        }
        Op::Record { key, value } => {
            let put = (key.as_str().into(), value.as_deref().map(Box::from));
            store.put_records("part", vec![put], done).unwrap();
        }
        Op::Event { number, through } => {
            let event = number.to_le_bytes().as_slice().into();
            store.put_events(vec![(*number, event)], *through).unwrap();
        }
    }
}
