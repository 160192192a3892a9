//! What a client has of a topic with `conflate`: a slow client gets the newest message of each key, and not all.

use std::collections::BTreeMap;

use super::state::{Changes, KEYS};

/// The messages of such a topic that a client has.
#[derive(Clone, Debug, Default)]
pub(super) struct Newest {
    /// The client need not have messages before this one.
    from: usize,
    /// The last message of each key.
    has: BTreeMap<usize, usize>,
}

impl Newest {
    /// Creates the state of a client that must get the messages from this one on.
    pub fn new(from: usize) -> Self {
        Newest { from, has: BTreeMap::new() }
    }

    /// The client has requested the messages from this one on again.
    pub fn go_back(&mut self, to: usize) {
        self.has.retain(|_, number| *number < to);
    }

    /// A message has come. Earlier messages of other keys may be missing only if newer ones of these keys follow.
    pub fn observe(&mut self, changes: &Changes, number: usize) {
        self.has.insert(changes.of(number).key, number);
        if let Some(missing) = self.missing(changes, number) {
            panic!("{number} came and {missing} did not, which is the newest of its key: {self:?}");
        }
    }

    /// Returns a message before this one that the client lacks although it is the newest of its key.
    fn missing(&self, changes: &Changes, before: usize) -> Option<usize> {
        let newest = (0..KEYS).filter_map(|key| Some((key, changes.newest(key)?)));
        let mut due = newest.filter(|(_, number)| (self.from..before).contains(number));
        due.find(|(key, number)| self.has.get(key) != Some(number)).map(|(_, number)| number)
    }

    /// Returns true if the client has the newest message of each key.
    pub fn has_all(&self, changes: &Changes) -> bool {
        self.missing(changes, usize::MAX).is_none()
    }
}
