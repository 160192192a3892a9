//! Values under small numbers, in pages that are freed when empty, and lists through them.

/// No value has this number.
pub const NONE: u32 = u32::MAX;

/// Values with numbers, which they retain until they are removed.
pub struct Slab<T>(tables::Slab<Slot<T>>);

struct Slot<T> {
    value: T,
    older: u32,
    newer: u32,
}

/// A list through values of a slab, oldest first. A value is in one list at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    /// The first, or [`NONE`].
    pub oldest: u32,
    /// The last, or [`NONE`].
    pub newest: u32,
}

impl List {
    /// An empty list.
    pub const EMPTY: List = List { oldest: NONE, newest: NONE };
}

impl<T> Slab<T> {
    /// Makes an empty slab without memory.
    pub fn new() -> Self {
        Slab(tables::Slab::default())
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.0.count()
    }

    /// Returns a bound: all numbers are below it.
    pub fn slots(&self) -> u32 {
        self.0.end()
    }

    /// Gives the value a number, and returns it. It is in no list yet.
    pub fn insert(&mut self, value: T) -> u32 {
        self.0.insert(Slot { value, older: NONE, newer: NONE })
    }

    /// Removes a value that is in no list any more.
    pub fn remove(&mut self, at: u32) -> T {
        self.0.remove(at).value
    }

    /// Returns the value, if this number has one.
    pub fn get(&self, at: u32) -> Option<&T> {
        self.0.get(at).map(|slot| &slot.value)
    }

    /// Appends a value to a list.
    pub fn link(&mut self, list: &mut List, at: u32) {
        let older = std::mem::replace(&mut list.newest, at);
        let slot = self.slot_mut(at);
        (slot.older, slot.newer) = (older, NONE);
        match older {
            NONE => list.oldest = at,
            older => self.slot_mut(older).newer = at,
        }
    }

    /// Removes a value from its list.
    pub fn unlink(&mut self, list: &mut List, at: u32) {
        let slot = self.slot_mut(at);
        let (older, newer) = (slot.older, slot.newer);
        (slot.older, slot.newer) = (NONE, NONE);
        match older {
            NONE => list.oldest = newer,
            older => self.slot_mut(older).newer = newer,
        }
        match newer {
            NONE => list.newest = older,
            newer => self.slot_mut(newer).older = older,
        }
    }

    /// Returns the next one in a list, or [`NONE`].
    pub fn newer(&self, at: u32) -> u32 {
        self.0[at].newer
    }

    fn slot_mut(&mut self, at: u32) -> &mut Slot<T> {
        &mut self.0[at]
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, at: u32) -> &T {
        &self.0[at].value
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, at: u32) -> &mut T {
        &mut self.0[at].value
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, VecDeque};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_emptied_slab_holds_no_memory() {
        let mut slab = Slab::new();
        let mut list = List::EMPTY;
        for number in 0..100_000_u64 {
            let at = slab.insert(number);
            slab.link(&mut list, at);
        }
        let most = slab.0.bytes();
        for number in 0..100_000 {
            let at = list.oldest;
            slab.unlink(&mut list, at);
            assert_eq!(slab.remove(at), number);
        }
        // One empty page stays allocated for the next value.
        assert!(slab.0.bytes() < most / 20, "{} of {most} bytes stay", slab.0.bytes());
    }

    proptest! {
        #[test]
        fn values_have_their_numbers_and_lists_their_order(
            steps in prop::collection::vec((0_u8..4, 0_usize..3_000), 0..3_000),
        ) {
            let mut slab = Slab::new();
            let mut list = List::EMPTY;
            let mut expected: HashMap<u32, usize> = HashMap::new();
            let mut order: VecDeque<u32> = VecDeque::new();
            for (step, (kind, value)) in steps.into_iter().enumerate() {
                match (kind, order.len()) {
                    (0, 1..) => {
                        let at = order.remove(value % order.len()).unwrap();
                        slab.unlink(&mut list, at);
                        prop_assert_eq!(slab.remove(at), expected.remove(&at).unwrap());
                    }
                    (1, 1..) => {
                        let at = order.remove(value % order.len()).unwrap();
                        slab.unlink(&mut list, at);
                        slab.link(&mut list, at);
                        order.push_back(at);
                    }
                    _ => {
                        let at = slab.insert(step);
                        prop_assert!(expected.insert(at, step).is_none());
                        slab.link(&mut list, at);
                        order.push_back(at);
                    }
                }
                prop_assert_eq!(slab.len(), order.len());
                prop_assert_eq!(list.oldest, order.front().copied().unwrap_or(NONE));
                prop_assert_eq!(list.newest, order.back().copied().unwrap_or(NONE));
            }
            for (at, value) in &expected {
                prop_assert_eq!(slab[*at], *value);
            }
            for at in order {
                prop_assert_eq!(list.oldest, at);
                slab.unlink(&mut list, at);
                slab.remove(at);
            }
            prop_assert_eq!(list, List::EMPTY);
        }
    }
}
