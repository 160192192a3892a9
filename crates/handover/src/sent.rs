//! Remembers which records of a part were sent.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use crate::{Changed, Part};

/// The sent records of a part: a hash of each record by a hash of its key, and the key.
///
/// The hashes are keyed, with a new key in each process: no client can choose two records with one hash. Records
/// mostly come in their earlier order: each is found behind the one before, and costs little more than its hash.
#[derive(Debug, Default)]
pub struct Sent {
    hasher: RandomState,
    /// The records, in the order in which they first came.
    records: Vec<Record>,
    /// The position of a record, by the hash of its key.
    positions: HashMap<u64, u32>,
    /// The position at which the scan for the next record begins.
    next: usize,
    /// The numbers of the [numbered](Part::export_numbered) records, from the lowest that still exists.
    numbers: Range<u64>,
}

#[derive(Debug)]
struct Record {
    id: u64,
    value: u64,
    key: Box<[u8]>,
    /// True if the record came in this round.
    is_seen: bool,
    /// True if the record was missing in a round. `positions` then has no entry for it.
    is_gone: bool,
}

/// The difference between a record and the last version that was sent.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// The record is new or has changed.
    Put,
    /// The record has not changed.
    Same,
}

/// Records that are scanned ahead before the lookup by hash.
const SCANNED: usize = 4;

impl Sent {
    /// Begins with nothing sent.
    pub fn new() -> Self {
        Sent::default()
    }

    /// Adds a record to this round, and returns whether it must be sent.
    pub fn see(&mut self, key: &[u8], value: &[u8]) -> Change {
        let (id, value) = (self.hasher.hash_one(key), self.hasher.hash_one(value));
        let Some(record) = self.find(id) else {
            let position = u32::try_from(self.records.len()).unwrap_or(u32::MAX);
            self.positions.insert(id, position);
            let (is_seen, is_gone) = (true, false);
            self.records.push(Record { id, value, key: key.into(), is_seen, is_gone });
            self.next = self.records.len();
            return Change::Put;
        };
        record.is_seen = true;
        match std::mem::replace(&mut record.value, value) == value {
            true => Change::Same,
            false => Change::Put,
        }
    }

    /// Notes a record that never changes. Returns false if it is new, and must be [seen](Sent::see).
    pub fn stands(&mut self, key: &[u8]) -> bool {
        let id = self.hasher.hash_one(key);
        self.find(id).map(|record| record.is_seen = true).is_some()
    }

    fn find(&mut self, id: u64) -> Option<&mut Record> {
        let is = |record: &Record| record.id == id && !record.is_gone;
        let ahead = self.records.iter().skip(self.next).take(SCANNED).position(is);
        let position = match ahead {
            Some(ahead) => self.next + ahead,
            None => usize::try_from(*self.positions.get(&id)?).ok()?,
        };
        self.next = position + 1;
        self.records.get_mut(position).filter(|record| is(record))
    }

    /// Makes a round over a part: sends the records that differ from the last version sent; the first round sends all
    /// records. A record that is gone is sent without a value.
    pub fn round(&mut self, part: &dyn Part, send: &mut Changed<'_>) {
        self.round_of_numbered(part, send);
        part.export_again(&mut |key, value| match value {
            None => self.stands(key),
            Some(value) => {
                let is_new = self.see(key, value) == Change::Put;
                if is_new {
                    send(key, Some(value));
                }
                !is_new
            }
        });
        self.end_round().iter().for_each(|key| send(key, None));
    }

    fn round_of_numbered(&mut self, part: &dyn Part, send: &mut Changed<'_>) {
        let numbers = &mut self.numbers;
        let lowest = part.export_numbered(numbers.end, &mut |number, value| {
            send(&number.to_be_bytes(), Some(value));
            if numbers.is_empty() {
                numbers.start = number;
            }
            numbers.end = number + 1;
        });
        let lowest = lowest.clamp(numbers.start, numbers.end);
        // Some numbers may never have been sent: the reader then has nothing to remove.
        (numbers.start..lowest).for_each(|number| send(&number.to_be_bytes(), None));
        numbers.start = lowest;
    }

    /// Ends a round and begins the next. Returns the keys that were not [seen](Sent::see) in it.
    pub fn end_round(&mut self) -> Vec<Box<[u8]>> {
        let mut gone = Vec::new();
        for record in &mut self.records {
            if !std::mem::take(&mut record.is_seen) && !record.is_gone {
                record.is_gone = true;
                self.positions.remove(&record.id);
                gone.push(std::mem::take(&mut record.key));
            }
        }
        self.next = 0;
        if self.records.len() > 2 * self.positions.len() {
            self.records.retain(|record| !record.is_gone);
            let positions = self.records.iter().map(|record| record.id).zip(0..);
            self.positions = positions.collect();
        }
        gone
    }

    /// Returns the number of records, without the numbered ones.
    pub fn len(&self) -> usize {
        self.positions.len()
    }

    /// True when there are no records, numbered ones aside.
    pub fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use random::Random;

    use super::*;

    #[test]
    fn only_what_differs_is_sent_again() {
        let mut sent = Sent::new();
        assert_eq!(sent.see(b"a", b"1"), Change::Put);
        assert_eq!(sent.see(b"b", b"1"), Change::Put);
        assert_eq!(sent.end_round(), Vec::<Box<[u8]>>::new());
        assert_eq!(sent.see(b"a", b"1"), Change::Same);
        assert_eq!(sent.see(b"c", b"1"), Change::Put);
        assert_eq!(sent.end_round(), vec![Box::from(*b"b")]);
        assert_eq!(sent.see(b"a", b"2"), Change::Put);
        assert_eq!(sent.see(b"b", b"1"), Change::Put);
        assert_eq!(sent.end_round(), vec![Box::from(*b"c")]);
        assert_eq!(sent.len(), 2);
    }

    #[test]
    fn records_in_any_order_are_distinguished() {
        let mut random = Random::new(1);
        for _ in 0..50 {
            let (mut sent, mut before) = (Sent::new(), BTreeMap::new());
            for _ in 0..8 {
                let mut now: BTreeMap<u8, u8> = before.clone();
                for _ in 0..random.below(30) {
                    let (key, value) = (random.below(60_u64) as u8, random.below(3_u64) as u8);
                    match random.below(3) {
                        0 => drop(now.remove(&key)),
                        _ => drop(now.insert(key, value)),
                    }
                }
                let mut order: Vec<_> = now.iter().map(|(key, value)| (*key, *value)).collect();
                for _ in 0..random.below(20) {
                    let count = order.len().max(1);
                    let (a, b) = (random.below(count), random.below(count));
                    if a < order.len() && b < order.len() {
                        order.swap(a, b);
                    }
                }
                for (key, value) in order {
                    let was = before.get(&key);
                    let stands = random.one_in(2) && was == Some(&value);
                    if stands {
                        assert!(sent.stands(&[key]));
                    } else {
                        assert!(was.is_some() || !sent.stands(&[key]));
                        let is_same = sent.see(&[key], &[value]) == Change::Same;
                        assert_eq!(is_same, was == Some(&value));
                    }
                }
                let mut gone = sent.end_round();
                gone.sort();
                let left = before.keys().filter(|key| !now.contains_key(key));
                assert_eq!(gone, left.map(|key| Box::from([*key])).collect::<Vec<_>>());
                assert_eq!((sent.len(), sent.is_empty()), (now.len(), now.is_empty()));
                before = now;
            }
        }
    }

    /// Numbers that never change, and one record that does.
    struct Numbers(std::ops::Range<u8>, u8);

    impl Part for Numbers {
        fn name(&self) -> &'static str {
            "numbers"
        }

        fn export(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
            self.0.clone().for_each(|number| each(&[number], &[number]));
            each(b"state", &[self.1]);
        }

        fn export_again(&self, each: &mut crate::Again<'_>) {
            for number in self.0.clone() {
                if !each(&[number], None) {
                    each(&[number], Some(&[number]));
                }
            }
            each(b"state", Some(&[self.1]));
        }

        fn import(&self, _: &[u8], _: Option<&[u8]>) -> Result<(), crate::PartError> {
            Ok(())
        }
    }

    #[test]
    fn a_round_sends_the_differences() {
        let (mut sent, mut got) = (Sent::new(), Vec::new());
        let mut round = |part: &Numbers| {
            let mut send = |key: &[u8], value: Option<&[u8]>| {
                got.push((key.to_vec(), value.map(<[u8]>::to_vec)));
            };
            sent.round(part, &mut send);
            std::mem::take(&mut got)
        };
        let number = |it: u8| (vec![it], Some(vec![it]));
        let state = |it: u8| (b"state".to_vec(), Some(vec![it]));
        assert_eq!(round(&Numbers(1..3, 7)), [number(1), number(2), state(7)]);
        assert_eq!(round(&Numbers(1..3, 7)), []);
        assert_eq!(round(&Numbers(2..4, 8)), [number(3), state(8), (vec![1], None)]);
    }
    /// Numbers that come at the end and go from the front; every third is left out.
    struct Log(Range<u64>);

    impl Part for Log {
        fn name(&self) -> &'static str {
            "log"
        }

        fn export(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
            crate::export_all(self, each);
        }

        fn export_again(&self, each: &mut crate::Again<'_>) {
            each(b"state", Some(b"x"));
        }

        fn export_numbered(&self, from: u64, each: &mut dyn FnMut(u64, &[u8])) -> u64 {
            let numbers = self.0.clone().filter(|number| number % 3 != 0);
            let (lowest, given) =
                (numbers.clone().next(), numbers.filter(|number| *number >= from));
            given.for_each(|number| each(number, &[number as u8]));
            lowest.unwrap_or(self.0.end)
        }

        fn import(&self, _: &[u8], _: Option<&[u8]>) -> Result<(), crate::PartError> {
            Ok(())
        }
    }

    #[test]
    fn numbered_records_come_once_and_go_from_the_front() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let mut sent = Sent::new();
            let (mut log, mut there) = (Log(5_000..5_000), BTreeMap::new());
            for round in 0..12 {
                log.0.end += random.below(9);
                log.0.start += random.below(log.0.end - log.0.start + 1);
                let mut count = 0;
                sent.round(&log, &mut |key, value| {
                    count += 1;
                    match value {
                        Some(value) => _ = there.insert(key.to_vec(), value.to_vec()),
                        None => _ = there.remove(key),
                    }
                });
                let mut all = BTreeMap::new();
                log.export(&mut |key, value| _ = all.insert(key.to_vec(), value.to_vec()));
                assert_eq!(there, all, "seed {seed}, round {round}");
                assert!(count <= 1 + 2 * 9 * 12, "seed {seed}: {count} records");
                let mut again = 0;
                sent.round(&log, &mut |_, _| again += 1);
                assert_eq!(again, 0, "seed {seed}: nothing has changed");
            }
        }
    }
}
