//! The heaviest of many values, in a fixed number of counters.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use crate::prehashed::Prehashed;

/// A sketch of the heaviest values of a stream (Space-Saving: Metwally, Agrawal, El Abbadi 2005). It counts the
/// weight of at most `capacity` values. One more replaces the lightest and begins with its weight.
///
/// So a weight is never too small, and at most `total / capacity` too large; and a value that has more than
/// `total / capacity` is always counted.
pub struct Heaviest<T> {
    capacity: usize,
    /// A heap: the lightest is the first, and none is heavier than those below it (at `2n + 1` and `2n + 2`).
    heap: Vec<Heavy<T>>,
    /// The position in the heap of the value with a hash.
    positions: HashMap<u64, usize, BuildHasherDefault<Prehashed>>,
}

/// A counted value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heavy<T> {
    hash: u64,
    /// The value.
    pub value: T,
    /// Its weight, including the error.
    pub weight: u64,
    /// How much too large the weight may be.
    pub error: u64,
    /// The sum of `beside` since the value is counted.
    pub beside: u64,
}

impl<T> Heaviest<T> {
    /// Creates a sketch of at most this many values, which takes no memory before the first.
    ///
    /// # Panics
    /// If the capacity is 0.
    pub fn new(capacity: usize) -> Self {
        assert!(capacity > 0, "it counts nothing");
        Heaviest { capacity, heap: Vec::new(), positions: HashMap::default() }
    }

    /// Adds weight to the value with this hash, and an amount `beside` that does not affect the order. `make` returns
    /// the value if it is not counted yet. Values with the same hash count as one: use a hash with a secret key if
    /// others choose the values.
    pub fn add(&mut self, hash: u64, weight: u64, beside: u64, make: impl FnOnce() -> T) {
        if let Some(&position) = self.positions.get(&hash) {
            let heavy = &mut self.heap[position];
            heavy.weight = heavy.weight.saturating_add(weight);
            heavy.beside = heavy.beside.saturating_add(beside);
            return self.sink(position);
        }
        if self.heap.len() < self.capacity {
            self.positions.insert(hash, self.heap.len());
            self.heap.push(Heavy { hash, value: make(), weight, error: 0, beside });
            return self.rise(self.heap.len() - 1);
        }
        let lightest = &mut self.heap[0];
        let error = lightest.weight;
        let weight = error.saturating_add(weight);
        let gone =
            std::mem::replace(lightest, Heavy { hash, value: make(), weight, error, beside });
        self.positions.remove(&gone.hash);
        self.positions.insert(hash, 0);
        self.sink(0);
    }

    /// Returns the counted values, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Heavy<T>> {
        self.heap.iter()
    }

    /// Forgets all values, and frees the memory.
    pub fn clear(&mut self) {
        self.heap = Vec::new();
        self.positions = HashMap::default();
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.positions.insert(self.heap[a].hash, a);
        self.positions.insert(self.heap[b].hash, b);
    }

    /// Moves a value that is too heavy for its position down.
    fn sink(&mut self, mut position: usize) {
        loop {
            let children = 2 * position + 1..(2 * position + 3).min(self.heap.len());
            let lightest = children.min_by_key(|child| self.heap[*child].weight);
            match lightest {
                Some(child) if self.heap[child].weight < self.heap[position].weight => {
                    self.swap(position, child);
                    position = child;
                }
                _ => return,
            }
        }
    }

    /// Moves a value that is too light for its position up.
    fn rise(&mut self, mut position: usize) {
        while position > 0 {
            let parent = (position - 1) / 2;
            if self.heap[parent].weight <= self.heap[position].weight {
                return;
            }
            self.swap(position, parent);
            position = parent;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn weights(heaviest: &Heaviest<u64>) -> BTreeMap<u64, (u64, u64, u64)> {
        let all = heaviest.iter().map(|it| (it.value, (it.weight, it.error, it.beside)));
        all.collect()
    }

    #[test]
    fn as_many_values_as_fit_are_counted_exactly() {
        let mut heaviest = Heaviest::new(3);
        for (value, weight) in [(1, 5), (2, 1), (3, 2), (2, 7), (1, 1)] {
            heaviest.add(value, weight, 10, || value);
        }
        let want = [(1, (6, 0, 20)), (2, (8, 0, 20)), (3, (2, 0, 10))];
        assert_eq!(weights(&heaviest), want.into());
        // One more replaces the lightest and begins with its weight.
        heaviest.add(4, 1, 0, || 4);
        assert_eq!(weights(&heaviest)[&4], (3, 2, 0));
        assert_eq!((weights(&heaviest).len(), weights(&heaviest).contains_key(&3)), (3, false));
        heaviest.clear();
        assert_eq!(heaviest.iter().count(), 0);
        heaviest.add(3, 1, 1, || 3);
        assert_eq!(weights(&heaviest), [(3, (1, 0, 1))].into());
    }

    proptest! {
        #[test]
        fn no_weight_is_further_from_the_truth_than_promised(
            capacity in 1_usize..20,
            // Few values with a large weight, and many with a small one.
            added in prop::collection::vec((0_u64..60, 0_u64..1_000, 0_u64..4), 0..600),
        ) {
            let mut heaviest = Heaviest::new(capacity);
            let mut exact: BTreeMap<u64, u64> = BTreeMap::new();
            for (value, weight, many) in added {
                let value = if many == 0 { value } else { value % 5 };
                heaviest.add(value.wrapping_mul(0x9E37_79B9_7F4A_7C15), weight, 1, || value);
                *exact.entry(value).or_default() += weight;
            }
            let total: u64 = exact.values().sum();
            let counted = weights(&heaviest);
            prop_assert!(heaviest.iter().count() == counted.len() && counted.len() <= capacity);
            for (value, (weight, error, _)) in &counted {
                let truth = exact[value];
                prop_assert!(truth <= *weight && weight - error <= truth, "{value}: {weight} {truth}");
                prop_assert!(error * capacity as u64 <= total, "{error} of {total}");
            }
            let sum: u64 = counted.values().map(|(weight, _, _)| weight).sum();
            prop_assert_eq!(sum, total, "each weight is counted once");
            for (value, truth) in &exact {
                let is_heavy = truth * capacity as u64 > total;
                prop_assert!(!is_heavy || counted.contains_key(value), "{value} has {truth} of {total}");
            }
        }
    }
}
