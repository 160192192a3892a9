//! What must be true of a store whatever happened to its server.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::load::Sent;
use crate::place::{Caller, Kept};

/// All that is known of a store from outside.
#[derive(Default)]
pub struct Ledger {
    epoch: Option<String>,
    /// Every offset that was ever answered or read, and to what it belongs.
    owners: HashMap<u64, (String, String)>,
    /// What was read of each topic, in the order of offsets.
    kept: BTreeMap<&'static str, Vec<Kept>>,
    texts: HashSet<String>,
    pub counts: Counts,
}

#[derive(Debug, Default)]
pub struct Counts {
    pub acknowledged: u64,
    pub found: u64,
    /// Stored, though nobody was told.
    pub unanswered: u64,
    /// Of a topic that is not durable: answered, and lost.
    pub lost: u64,
    pub repeated: u64,
}

pub fn is_durable(topic: &str) -> bool {
    topic.starts_with("d:")
}

impl Ledger {
    pub fn new(topics: &[&'static str]) -> Self {
        let kept = topics.iter().map(|topic| (*topic, Vec::new())).collect();
        Ledger { kept, ..Ledger::default() }
    }

    /// What is kept of these topics after an offset, in the order in which it was published.
    pub fn after(&self, topics: &[&str], offset: u64) -> Vec<(u64, String)> {
        let mut all: Vec<(u64, String)> = topics
            .iter()
            .flat_map(|topic| {
                let kept = &self.kept[topic];
                let from = kept.partition_point(|kept| kept.offset <= offset);
                kept[from..].iter().map(|kept| (kept.offset, kept.data.clone()))
            })
            .collect();
        all.sort_unstable();
        all
    }

    /// Whose message has this offset.
    pub fn topic(&self, offset: u64) -> Option<&str> {
        self.owners.get(&offset).map(|(topic, _)| &**topic)
    }

    /// An offset belongs to one message for ever, and all ids are of one epoch.
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

    /// Reads what is new, and compares it with what publishers sent.
    pub fn check(&mut self, caller: &mut Caller, publishers: &[Vec<Sent>]) {
        let mut new: HashMap<String, u64> = HashMap::new();
        let topics: Vec<&str> = self.kept.keys().copied().collect();
        for topic in topics {
            let last = self.kept[topic].last().cloned();
            let mut last_offset = last.as_ref().map_or(0, |last| last.offset);
            for kept in caller.history(topic, last.as_ref().map(|last| &*last.id), 1_000) {
                assert_eq!(self.own(&kept.id, topic, &kept.data), kept.offset);
                assert!(kept.offset > last_offset, "{topic}: {} is out of order", kept.offset);
                last_offset = kept.offset;
                assert!(self.texts.insert(kept.data.clone()), "{topic}: twice: {}", kept.data);
                new.insert(kept.data.clone(), kept.offset);
                self.kept.get_mut(topic).unwrap().push(kept);
                self.counts.found += 1;
            }
        }
        for sent in publishers {
            self.check_publisher(sent, &mut new);
        }
        assert!(new.is_empty(), "nobody published {new:?}");
    }

    /// Of what one publisher sent, the store has the beginning, in order; and of a durable topic all
    /// that was answered.
    fn check_publisher(&mut self, sent: &[Sent], new: &mut HashMap<String, u64>) {
        let (mut last, mut missing) = (0, None);
        for sent in sent {
            let answered = sent.answered.as_ref().map(|id| self.own(id, sent.topic, &sent.data));
            self.counts.acknowledged += u64::from(answered.is_some());
            match (new.remove(&sent.data), answered) {
                (Some(found), answered) => {
                    let first = format!("{:?} is there and {missing:?} is not", sent.data);
                    assert_eq!(missing, None::<String>, "{first}");
                    assert!(found > last, "{:?} is out of order", sent.data);
                    assert_eq!(answered.unwrap_or(found), found, "{:?}", sent.data);
                    self.counts.unanswered += u64::from(answered.is_none());
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

    /// Publishes again, with their keys, the last message that was answered and those that were
    /// not: none gets in twice. Gives what was new.
    pub fn repeat(&mut self, caller: &mut Caller, publishers: &[Vec<Sent>]) -> Vec<Vec<Sent>> {
        let mut new = Vec::new();
        for sent in publishers.iter().filter(|sent| sent.iter().any(|sent| sent.key.is_some())) {
            let from = sent.iter().rposition(|sent| sent.answered.is_some()).unwrap_or(0);
            for sent in &sent[from..] {
                let answer = caller.post("/api/publish", &sent.body()).unwrap();
                assert_eq!(answer.status, 200, "{}", answer.body);
                let repeated = answer.body["repeated"] == true;
                assert_eq!(repeated, self.texts.contains(&sent.data), "{}", answer.body);
                let id = answer.body["id"].as_str().unwrap();
                self.own(id, sent.topic, &sent.data);
                match repeated {
                    true => self.counts.repeated += 1,
                    false => new.push(vec![Sent { answered: Some(id.into()), ..sent.clone() }]),
                }
            }
        }
        new
    }

    /// Reads everything anew, in small pages: it is what it was.
    pub fn check_all(&self, caller: &mut Caller) {
        for (topic, kept) in &self.kept {
            assert!(caller.history(topic, None, 333) == *kept, "{topic} reads otherwise now");
        }
    }
}
