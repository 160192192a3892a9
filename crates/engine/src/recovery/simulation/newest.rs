//! What a client has of a topic with `conflate`: if it reads slowly, the newest message of each key and
//! not all.

use std::collections::BTreeMap;

use super::state::{Changes, KEYS};

/// The messages that a client has of such a topic.
#[derive(Clone, Debug, Default)]
pub(super) struct Newest {
    /// Those before this one it need not have.
    from: usize,
    /// The last one of each key.
    has: BTreeMap<usize, usize>,
}

impl Newest {
    /// It must have what comes from this message on.
    pub fn new(from: usize) -> Self {
        Newest { from, has: BTreeMap::new() }
    }

    /// It asked to hear again what comes from this message on.
    pub fn go_back(&mut self, to: usize) {
        self.has.retain(|_, number| *number < to);
    }

    /// A message has come. Those of other keys may be missing only if newer ones of their keys are on
    /// their way.
    pub fn observe(&mut self, changes: &Changes, number: usize) {
        self.has.insert(changes.of(number).key, number);
        if let Some(missing) = self.missing(changes, number) {
            panic!("{number} came and {missing} did not, which is the newest of its key: {self:?}");
        }
    }

    /// A message before this one that it lacks, though it is the newest of its key.
    fn missing(&self, changes: &Changes, before: usize) -> Option<usize> {
        let newest = (0..KEYS).filter_map(|key| Some((key, changes.newest(key)?)));
        let mut due = newest.filter(|(_, number)| (self.from..before).contains(number));
        due.find(|(key, number)| self.has.get(key) != Some(number)).map(|(_, number)| number)
    }

    /// Whether it has the newest message of each key.
    pub fn has_all(&self, changes: &Changes) -> bool {
        self.missing(changes, usize::MAX).is_none()
    }
}
