//! Which joins of which topics a Phoenix connection has: its side of what the hub knows as topics.

use std::borrow::Cow;
use std::collections::HashMap;

/// The `join_ref` of a join in four bytes: phoenix.js counts them up, so nearly all are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ref(u32);

/// Not a number that is written as it counts: a place in [`Joins::odd`].
const ODD: u32 = 1 << 31;
const NUMBER_MAX: u32 = ODD - 1;

/// A connection's joins. Topics go by their hash, which is keyed: no client can make two of its
/// topics meet.
#[derive(Default)]
#[allow(clippy::box_collection, reason = "a Vec itself would double the size of every place")]
enum Place {
    #[default]
    None,
    One {
        of: Ref,
        topic: u64,
    },
    Many(Box<Vec<(u64, Ref)>>),
}

const _: () = assert!(size_of::<Place>() <= 16);

/// The joins of all connections of a shard, by slot, in pages.
#[derive(Default)]
pub(crate) struct Joins {
    pages: Vec<Option<Box<[Place]>>>,
    odd: Vec<Option<Box<str>>>,
    free: Vec<u32>,
    /// Joins that the application has still to allow, by slot: topic, and the number of the
    /// question.
    pending: HashMap<u32, Vec<(u64, u32)>>,
    questions: u32,
}

const PAGE: usize = 256;

/// A join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Join<'a> {
    /// Empty for clients that have none.
    pub join_ref: Cow<'a, str>,
    /// The application has still to say whether it is allowed.
    pub pending: bool,
}

impl Joins {
    fn place(&mut self, slot: u32) -> &mut Place {
        let (page, at) = (slot as usize / PAGE, slot as usize % PAGE);
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, || None);
        }
        let page = self.pages[page]
            .get_or_insert_with(|| (0..PAGE).map(|_| Place::None).collect::<Vec<_>>().into());
        &mut page[at]
    }

    fn all(&self, slot: u32) -> impl Iterator<Item = (u64, Ref)> {
        let place = self.pages.get(slot as usize / PAGE).and_then(Option::as_ref);
        let (one, many) = match place.map(|page| &page[slot as usize % PAGE]) {
            None | Some(Place::None) => (None, &[][..]),
            Some(Place::One { of, topic }) => (Some((*topic, *of)), &[][..]),
            Some(Place::Many(many)) => (None, &many[..]),
        };
        one.into_iter().chain(many.iter().copied())
    }

    /// The connection's join of a topic.
    pub fn get(&self, slot: u32, topic: u64) -> Option<Join<'_>> {
        let (_, Ref(bits)) = self.all(slot).find(|(of, _)| *of == topic)?;
        let pending = self.pending.get(&slot).is_some_and(|all| all.iter().any(|it| it.0 == topic));
        let join_ref = match bits & ODD {
            0 => (bits & NUMBER_MAX).to_string().into(),
            _ => self.odd[(bits & NUMBER_MAX) as usize].as_deref().unwrap_or_default().into(),
        };
        Some(Join { join_ref, pending })
    }

    /// How many joins of the connection the application has still to allow.
    pub fn pending(&self, slot: u32) -> usize {
        self.pending.get(&slot).map_or(0, Vec::len)
    }

    /// Notes a join of a topic that the connection has none of.
    pub fn insert(&mut self, slot: u32, topic: u64, join_ref: &str) {
        let of = Ref(self.bits(join_ref));
        let place = self.place(slot);
        *place = match std::mem::take(place) {
            Place::None => Place::One { of, topic },
            Place::One { of: first, topic: before } => {
                Place::Many(Box::new(vec![(before, first), (topic, of)]))
            }
            Place::Many(mut many) => {
                many.push((topic, of));
                Place::Many(many)
            }
        };
    }

    /// The application is asked whether the join is allowed. Gives the number of the question.
    pub fn ask(&mut self, slot: u32, topic: u64) -> u32 {
        self.questions = self.questions.wrapping_add(1);
        self.pending.entry(slot).or_default().push((topic, self.questions));
        self.questions
    }

    /// The application has answered. False when the join that it was asked about is no more: the
    /// client has left, or joined again, meanwhile.
    pub fn answered(&mut self, slot: u32, topic: u64, question: u32) -> bool {
        let Some(all) = self.pending.get_mut(&slot) else {
            return false;
        };
        let before = all.len();
        all.retain(|it| *it != (topic, question));
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
            all.retain(|it| it.0 != topic);
            if all.is_empty() {
                self.pending.remove(&slot);
            }
        }
        let place = self.place(slot);
        match place {
            Place::Many(many) => {
                many.retain(|(of, _)| *of != topic);
                if let [(topic, of)] = many[..] {
                    *place = Place::One { of, topic };
                }
            }
            _ => *place = Place::None,
        }
        self.forget(gone);
    }

    /// Forgets all joins of a connection that ends.
    pub fn clear(&mut self, slot: u32) {
        self.pending.remove(&slot);
        let gone: Vec<Ref> = self.all(slot).map(|(_, of)| of).collect();
        if !gone.is_empty() {
            *self.place(slot) = Place::None;
            gone.into_iter().for_each(|of| self.forget(of));
        }
    }

    fn bits(&mut self, join_ref: &str) -> u32 {
        let counts = join_ref.bytes().all(|byte| byte.is_ascii_digit())
            && !(join_ref.len() > 1 && join_ref.starts_with('0'));
        match join_ref.parse::<u32>() {
            Ok(number) if counts && number <= NUMBER_MAX => number,
            _ => {
                let at = self.free.pop().unwrap_or_else(|| {
                    self.odd.push(None);
                    self.odd.len() as u32 - 1
                });
                self.odd[at as usize] = Some(join_ref.into());
                ODD | at
            }
        }
    }

    fn forget(&mut self, Ref(bits): Ref) {
        if bits & ODD != 0 {
            let at = bits & NUMBER_MAX;
            self.odd[at as usize] = None;
            self.free.push(at);
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
            assert_eq!(joins.all(70_000).count(), refs.len() - 1 - topic as usize);
        }
        joins.insert(5, 9, "x");
        joins.clear(5);
        assert_eq!(joins.all(5).count(), 0);
        assert_eq!(joins.free.len(), joins.odd.len(), "no odd ref is kept");
    }

    #[test]
    fn an_answer_meets_only_the_join_that_it_was_asked_for() {
        let mut joins = Joins::default();
        joins.insert(1, 7, "1");
        let first = joins.ask(1, 7);
        assert!(joins.get(1, 7).unwrap().pending && joins.pending(1) == 1);
        // The client leaves and joins again, under the same ref.
        joins.remove(1, 7);
        joins.insert(1, 7, "1");
        let second = joins.ask(1, 7);
        assert!(!joins.answered(1, 7, first));
        assert!(joins.get(1, 7).unwrap().pending);
        assert!(joins.answered(1, 7, second) && !joins.answered(1, 7, second));
        assert!(!joins.get(1, 7).unwrap().pending);
        joins.ask(1, 7);
        joins.clear(1);
        assert!(joins.pending.is_empty());
    }
}
