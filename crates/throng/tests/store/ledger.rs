//! The invariants of a store, after any end of its server.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::store::folder::{Caller, HistoryMessage};
use crate::store::load::Sent;

/// Everything that clients know about a store.
#[derive(Default)]
pub struct Ledger {
    epoch: Option<String>,
    /// Every offset in a response, with its topic and data.
    owners: HashMap<u64, (String, String)>,
    /// The messages that were read of each topic, in the order of offsets.
    history: BTreeMap<&'static str, Vec<HistoryMessage>>,
    texts: HashSet<String>,
    pub counts: Counts,
}

#[derive(Debug, Default)]
pub struct Counts {
    pub acknowledged: u64,
    pub found: u64,
    /// Stored messages whose publish got no response.
    pub without_reply: u64,
    /// Lost messages whose publish got a response. Their topics are not durable.
    pub lost: u64,
    pub repeated: u64,
}

pub fn is_durable(topic: &str) -> bool {
    topic.starts_with("d:")
}

impl Ledger {
    pub fn new(topics: &[&'static str]) -> Self {
        let history = topics.iter().map(|topic| (*topic, Vec::new())).collect();
        Ledger { history, ..Ledger::default() }
    }

    /// Returns the messages of these topics after an offset, in the order in which they were
    /// published.
    pub fn after(&self, topics: &[&str], offset: u64) -> Vec<(u64, String)> {
        let mut all: Vec<(u64, String)> = topics
            .iter()
            .flat_map(|topic| {
                let messages = &self.history[topic];
                let from = messages.partition_point(|message| message.offset <= offset);
                messages[from..].iter().map(|message| (message.offset, message.data.clone()))
            })
            .collect();
        all.sort_unstable();
        all
    }

    /// Returns the topic of the message with this offset.
    pub fn topic(&self, offset: u64) -> Option<&str> {
        self.owners.get(&offset).map(|(topic, _)| &**topic)
    }

    /// Checks that an offset always belongs to the same message, and that all ids have one epoch.
    fn own(&mut self, id: &str, topic: &str, data: &str) -> u64 {
        let (epoch, offset) = id.split_once(':').unwrap();
        let known = self.epoch.get_or_insert_with(|| epoch.into());
        assert_eq!(known, epoch, "the epoch changed");
        let offset = offset.parse().unwrap();
        let owner =
            self.owners.entry(offset).or_insert_with(|| (topic.to_string(), data.to_string()));
        assert_eq!((&*owner.0, &*owner.1), (topic, data), "offset {offset} was given twice");
        offset
    }

    /// Reads new messages, and compares them with those that the publishers sent.
    pub fn check(&mut self, caller: &mut Caller, publishers: &[Vec<Sent>]) {
        let mut new: HashMap<String, u64> = HashMap::new();
        let topics: Vec<&str> = self.history.keys().copied().collect();
        for topic in topics {
            let last = self.history[topic].last().cloned();
            let mut last_offset = last.as_ref().map_or(0, |last| last.offset);
            for message in caller.history(topic, last.as_ref().map(|last| &*last.id), 1_000) {
                assert_eq!(self.own(&message.id, topic, &message.data), message.offset);
                assert!(
                    message.offset > last_offset,
                    "{topic}: {} is out of order",
                    message.offset
                );
                last_offset = message.offset;
                assert!(
                    self.texts.insert(message.data.clone()),
                    "{topic}: twice: {}",
                    message.data
                );
                new.insert(message.data.clone(), message.offset);
                self.history.get_mut(topic).unwrap().push(message);
                self.counts.found += 1;
            }
        }
        for sent in publishers {
            self.check_publisher(sent, &mut new);
        }
        assert!(new.is_empty(), "unknown messages: {new:?}");
    }

    /// Checks that the store has the first of a publisher's messages, in order. If the topic is durable, it must have
    /// all messages that got a response.
    fn check_publisher(&mut self, sent: &[Sent], new: &mut HashMap<String, u64>) {
        let (mut last, mut missing) = (0, None);
        for sent in sent {
            let reply = sent.reply.as_ref().map(|id| self.own(id, sent.topic, &sent.data));
            self.counts.acknowledged += u64::from(reply.is_some());
            match (new.remove(&sent.data), reply) {
                (Some(found), reply) => {
                    let first = format!("{:?} is there and {missing:?} is not", sent.data);
                    assert_eq!(missing, None::<String>, "{first}");
                    assert!(found > last, "{:?} is out of order", sent.data);
                    assert_eq!(reply.unwrap_or(found), found, "{:?}", sent.data);
                    self.counts.without_reply += u64::from(reply.is_none());
                    last = found;
                }
                (None, Some(offset)) => {
                    let head = sent.data.split(' ').next();
                    assert!(!is_durable(sent.topic), "lost: {head:?}, answered {offset}");
                    self.counts.lost += 1;
                    missing.get_or_insert(sent.data.clone());
                }
                (None, None) => drop(missing.get_or_insert(sent.data.clone())),
            }
        }
    }

    /// Repeats the last message that got a response, and those that got none, with their keys. The store must not
    /// have any of them twice. Returns the new ones.
    pub fn repeat(&mut self, caller: &mut Caller, publishers: &[Vec<Sent>]) -> Vec<Vec<Sent>> {
        let mut new = Vec::new();
        for sent in publishers.iter().filter(|sent| sent.iter().any(|sent| sent.key.is_some())) {
            let from = sent.iter().rposition(|sent| sent.reply.is_some()).unwrap_or(0);
            for sent in &sent[from..] {
                let response = caller.post("/api/publish", &sent.body()).unwrap();
                assert_eq!(response.status, 200, "{}", response.body);
                let repeated = response.body["repeated"] == true;
                assert_eq!(repeated, self.texts.contains(&sent.data), "{}", response.body);
                let id = response.body["id"].as_str().unwrap();
                self.own(id, sent.topic, &sent.data);
                match repeated {
                    true => self.counts.repeated += 1,
                    false => new.push(vec![Sent { reply: Some(id.into()), ..sent.clone() }]),
                }
            }
        }
        new
    }

    /// Reads everything again in small pages, and checks that it is the same.
    pub fn check_all(&self, caller: &mut Caller) {
        for (topic, message) in &self.history {
            assert!(caller.history(topic, None, 333) == *message, "{topic} reads otherwise now");
        }
    }
}
