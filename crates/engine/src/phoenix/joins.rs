//! The joins of each Phoenix connection: its side of what the hub knows as topics.

use std::borrow::Cow;
use std::collections::HashMap;

use minicbor::{Decode, Encode};
use model::Name;
use tables::{PageTable, Slab};

use crate::handover::value::Text;

/// The `join_ref` of a join in four bytes: phoenix.js counts them up, so nearly all are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ref(u32);

/// Marks a ref that is not a plain number. The other bits are its number in [`Joins::texts`].
const TEXT: u32 = 1 << 31;
const NUMBER_MAX: u32 = TEXT - 1;

/// A connection's joins, by the hash of the topic. The hash is keyed: no client can find two topics with the same
/// hash.
#[allow(clippy::box_collection, reason = "a Vec would double the size of each entry")]
enum JoinSet {
    One { of: Ref, topic: u64 },
    Many(Box<Vec<(u64, Ref)>>),
}

const _: () = assert!(size_of::<Option<JoinSet>>() <= 16);

/// The joins of all connections of a shard, by slot.
#[derive(Default)]
pub(crate) struct Joins {
    by_slot: PageTable<JoinSet>,
    texts: Slab<Box<str>>,
    /// Joins that wait for the application's decision, by slot.
    pending: HashMap<u32, Vec<Pending>>,
    requests: u32,
}

/// A join that waits for the application's decision.
struct Pending {
    topic: u64,
    /// The topic's name: the connection is not in it yet.
    name: Name,
    /// The number of the request.
    request: u32,
}

/// A join on its way to another engine.
#[derive(Encode, Decode)]
#[cbor(map)]
pub(crate) struct JoinRecord {
    #[n(0)]
    topic: Text<Name>,
    #[n(1)]
    join_ref: String,
    /// The number of the request, while the join waits for the application's decision.
    #[n(2)]
    request: Option<u32>,
}

/// A join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Join<'a> {
    /// Empty for clients without one.
    pub join_ref: Cow<'a, str>,
    /// True while the join waits for the application's decision.
    pub pending: bool,
}

impl Joins {
    fn all(&self, slot: u32) -> impl Iterator<Item = (u64, Ref)> {
        let (one, many) = match self.by_slot.get(slot) {
            None => (None, &[][..]),
            Some(JoinSet::One { of, topic }) => (Some((*topic, *of)), &[][..]),
            Some(JoinSet::Many(many)) => (None, &many[..]),
        };
        one.into_iter().chain(many.iter().copied())
    }

    /// Returns the connection's join of a topic.
    pub fn get(&self, slot: u32, topic: u64) -> Option<Join<'_>> {
        let (_, Ref(bits)) = self.all(slot).find(|(of, _)| *of == topic)?;
        let pending =
            self.pending.get(&slot).is_some_and(|all| all.iter().any(|it| it.topic == topic));
        let join_ref = match bits & TEXT {
            0 => (bits & NUMBER_MAX).to_string().into(),
            _ => Cow::Borrowed(&*self.texts[bits & NUMBER_MAX]),
        };
        Some(Join { join_ref, pending })
    }

    /// Returns how many joins of the connection wait for the application's decision.
    pub fn pending(&self, slot: u32) -> usize {
        self.pending.get(&slot).map_or(0, Vec::len)
    }

    /// Adds a join of a topic that the connection has not joined.
    pub fn insert(&mut self, slot: u32, topic: u64, join_ref: &str) {
        let of = Ref(self.bits(join_ref));
        match self.by_slot.get_mut(slot) {
            None => {
                self.by_slot.insert(slot, JoinSet::One { of, topic });
            }
            Some(JoinSet::Many(many)) => many.push((topic, of)),
            Some(joins) => {
                if let JoinSet::One { of: first, topic: before } = *joins {
                    *joins = JoinSet::Many(Box::new(vec![(before, first), (topic, of)]));
                }
            }
        }
    }

    /// A request to the application decides about the join. Returns the number of the request.
    pub fn begin(&mut self, slot: u32, topic: u64, name: &str) -> u32 {
        let request = self.number();
        let pending = Pending { topic, name: name.into(), request };
        self.pending.entry(slot).or_default().push(pending);
        request
    }

    /// Returns the number of the next request to the application about a join or a subscription.
    pub fn number(&mut self) -> u32 {
        self.requests = self.requests.wrapping_add(1);
        self.requests
    }

    /// The application's response has come. False when its join does not exist any more: the client has left, or has
    /// joined again, meanwhile.
    pub fn on_response(&mut self, slot: u32, topic: u64, request: u32) -> bool {
        let Some(all) = self.pending.get_mut(&slot) else {
            return false;
        };
        let before = all.len();
        all.retain(|it| (it.topic, it.request) != (topic, request));
        let found = all.len() < before;
        if all.is_empty() {
            self.pending.remove(&slot);
        }
        found
    }

    /// Forgets a join.
    pub fn remove(&mut self, slot: u32, topic: u64) {
        let Some((_, gone)) = self.all(slot).find(|(of, _)| *of == topic) else {
            return;
        };
        if let Some(all) = self.pending.get_mut(&slot) {
            all.retain(|it| it.topic != topic);
            if all.is_empty() {
                self.pending.remove(&slot);
            }
        }
        match self.by_slot.get_mut(slot) {
            Some(joins @ JoinSet::Many(_)) => {
                let JoinSet::Many(many) = joins else { return };
                many.retain(|(of, _)| *of != topic);
                if let [(topic, of)] = many[..] {
                    *joins = JoinSet::One { of, topic };
                }
            }
            _ => {
                self.by_slot.remove(slot);
            }
        }
        self.forget(gone);
    }

    /// Forgets all joins of a connection that ends.
    pub fn clear(&mut self, slot: u32) {
        self.pending.remove(&slot);
        let gone: Vec<Ref> = self.all(slot).map(|(_, of)| of).collect();
        if !gone.is_empty() {
            self.by_slot.remove(slot);
            gone.into_iter().for_each(|of| self.forget(of));
        }
    }

    /// Exports a connection's joins; `name` returns the name of a topic that it is in.
    pub fn export(&self, slot: u32, name: &dyn Fn(u64) -> Option<Name>) -> Vec<JoinRecord> {
        let pending = self.pending.get(&slot).map_or(&[][..], |all| all);
        let record = |(topic, _)| {
            let pending = pending.iter().find(|it| it.topic == topic);
            let name = pending.map(|it| it.name.clone()).or_else(|| name(topic))?;
            let join_ref = self.get(slot, topic)?.join_ref.into_owned();
            Some(JoinRecord { topic: Text(name), join_ref, request: pending.map(|it| it.request) })
        };
        self.all(slot).filter_map(record).collect()
    }

    /// Imports a connection's joins.
    pub fn import(&mut self, slot: u32, joins: Vec<JoinRecord>, hash: &dyn Fn(&str) -> u64) {
        for JoinRecord { topic: Text(name), join_ref, request } in joins {
            let topic = hash(&name);
            if self.get(slot, topic).is_some() {
                continue;
            }
            self.insert(slot, topic, &join_ref);
            if let Some(request) = request {
                self.pending.entry(slot).or_default().push(Pending { topic, name, request });
            }
        }
    }

    /// Returns the number of requests so far. It wraps around.
    pub fn requests(&self) -> u32 {
        self.requests
    }

    /// Continues the numbers of another engine.
    pub fn set_requests(&mut self, requests: u32) {
        self.requests = requests;
    }

    /// Gives memory back after a spike.
    pub fn shrink(&mut self) {
        self.by_slot.shrink();
        self.texts.shrink();
        self.pending.shrink_to(self.pending.len() * 4);
    }

    /// Returns the bytes of the tables.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.by_slot.bytes() + self.texts.bytes()
    }

    fn bits(&mut self, join_ref: &str) -> u32 {
        let counts = join_ref.bytes().all(|byte| byte.is_ascii_digit())
            && !(join_ref.len() > 1 && join_ref.starts_with('0'));
        match join_ref.parse::<u32>() {
            Ok(number) if counts && number <= NUMBER_MAX => number,
            _ => TEXT | self.texts.insert(join_ref.into()),
        }
    }

    fn forget(&mut self, Ref(bits): Ref) {
        if bits & TEXT != 0 {
            self.texts.remove(bits & NUMBER_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_is_found_by_its_topic_whatever_its_ref() {
        let mut joins = Joins::default();
        let refs = ["1", "0", "2147483647", "2147483648", "007", "+1", "a", "", "é"];
        for (topic, join_ref) in refs.iter().enumerate() {
            joins.insert(70_000, topic as u64, join_ref);
        }
        for (topic, join_ref) in refs.iter().enumerate() {
            let join = joins.get(70_000, topic as u64).unwrap();
            assert_eq!((&*join.join_ref, join.pending), (*join_ref, false));
        }
        assert_eq!(joins.get(70_001, 0), None);
        for topic in 0..refs.len() as u64 {
            joins.remove(70_000, topic);
            assert_eq!(joins.get(70_000, topic), None);
            assert_eq!(joins.all(70_000).count() as u64, refs.len() as u64 - 1 - topic);
        }
        joins.insert(5, 9, "x");
        joins.clear(5);
        assert_eq!(joins.all(5).count(), 0);
        assert_eq!(joins.texts.count(), 0, "no ref stays");
    }

    #[test]
    fn a_crowd_of_phoenix_clients_leaves_nothing() {
        let mut joins = Joins::default();
        let mut most = 0;
        for _ in 0..3 {
            for slot in 0..20_000 {
                joins.insert(slot, 7, "a ref that is no number");
                joins.insert(slot, 8, "1");
            }
            most = most.max(joins.bytes());
            (0..20_000).for_each(|slot| joins.clear(slot));
            joins.shrink();
            assert!(joins.bytes() < most / 100, "{} of {most} bytes stay", joins.bytes());
        }
    }

    #[test]
    fn a_response_meets_only_the_join_that_requested_it() {
        let mut joins = Joins::default();
        joins.insert(1, 7, "1");
        let first = joins.begin(1, 7, "a");
        assert!(joins.get(1, 7).unwrap().pending && joins.pending(1) == 1);
        // The client leaves and joins again, under the same ref.
        joins.remove(1, 7);
        joins.insert(1, 7, "1");
        let second = joins.begin(1, 7, "a");
        assert!(!joins.on_response(1, 7, first));
        assert!(joins.get(1, 7).unwrap().pending);
        assert!(joins.on_response(1, 7, second) && !joins.on_response(1, 7, second));
        assert!(!joins.get(1, 7).unwrap().pending);
        joins.begin(1, 7, "a");
        joins.clear(1);
        assert!(joins.pending.is_empty());
    }
}
