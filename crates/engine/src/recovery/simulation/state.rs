//! The content of a compacted topic, and what a client has of it.

use std::collections::BTreeMap;

/// Keys of a compacted topic.
pub(super) const KEYS: usize = 5;

/// A message of a compacted topic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub key: usize,
    /// The key has no state any more.
    pub removes: bool,
}

/// All messages that were published to a compacted topic, and those that were retained after each of them.
#[derive(Default)]
pub(super) struct Changes {
    all: Vec<Change>,
    /// The numbers of the retained messages.
    retained: Vec<usize>,
    /// The floor after each message. The limit may have dropped messages with numbers below the floor, and no others.
    floors: Vec<usize>,
}

impl Changes {
    pub fn push(&mut self, change: Change, messages_max: usize) {
        self.retained.retain(|number| self.all[*number].key != change.key);
        let mut floor = self.floor(self.all.len());
        while self.retained.len() + 1 > messages_max {
            floor = self.retained.remove(0) + 1;
        }
        self.floors.resize(self.all.len(), 0);
        self.floors.push(floor);
        self.retained.push(self.all.len());
        self.all.push(change);
    }

    pub fn of(&self, number: usize) -> Change {
        self.all[number]
    }

    /// Returns the last message of a key.
    pub fn newest(&self, key: usize) -> Option<usize> {
        self.all.iter().rposition(|change| change.key == key)
    }

    /// Returns the floor after so many messages.
    pub fn floor(&self, messages: usize) -> usize {
        messages.checked_sub(1).map_or(0, |last| self.floors[last])
    }

    /// Returns true if a client with these states has the newest message of each key, except keys whose newest message
    /// is not among the first `messages`. Only for topics of which no limit has dropped messages.
    fn is_newest(&self, states: &BTreeMap<usize, usize>, messages: usize) -> bool {
        (0..KEYS).all(|key| match self.newest(key).filter(|newest| *newest < messages) {
            Some(newest) if self.all[newest].removes => !states.contains_key(&key),
            Some(newest) => states.get(&key) == Some(&newest),
            None => true,
        })
    }

    /// Returns true if a client with these states has missed nothing of the first `messages`. It may have messages that
    /// the limit has dropped, or not.
    fn is_state(&self, states: &BTreeMap<usize, usize>, messages: usize) -> bool {
        (0..KEYS).all(|key| {
            let last = self.all[..messages].iter().rposition(|change| change.key == key);
            match (states.get(&key), last) {
                (None, None) => true,
                (Some(_), None) => false,
                (Some(has), Some(last)) => *has == last && !self.all[last].removes,
                (None, Some(last)) => self.all[last].removes || last < self.floor(messages),
            }
        })
    }
}

/// A client's state of a compacted topic.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The message of each key.
    states: BTreeMap<usize, usize>,
    /// The least number of the next message: messages come in order.
    next: usize,
    /// The number of messages in the topic when the connection entered it: these come before the marker.
    entered: usize,
    /// The marker has come on this connection.
    complete: bool,
    /// The marker has come, or the last reply included it.
    pub is_sent: bool,
}

impl State {
    /// A connection enters the topic. With `new`, the client has nothing yet.
    pub fn enter(&mut self, messages: usize, new: bool) {
        if new {
            self.forget();
        }
        (self.entered, self.complete) = (messages, false);
    }

    /// The client got a notice that it must read the whole state again.
    pub fn forget(&mut self) {
        *self = State { entered: self.entered, ..State::default() };
    }

    /// The client resumed from a position before the last message that it has received.
    pub fn go_back(&mut self, messages: usize) {
        self.next = self.next.min(messages);
    }

    /// Checks a message. With `conflates`, messages after the marker may be missing if newer ones of their keys follow.
    pub fn observe(&mut self, changes: &Changes, number: usize, conflates: bool) {
        assert!(number >= self.next, "a duplicate: {number} in {self:?}");
        let change = changes.of(number);
        if self.complete {
            assert!(number >= self.entered, "of the state behind the marker: {number} in {self:?}");
            let is_state = match conflates {
                true => changes.is_newest(&self.states, number),
                false => changes.is_state(&self.states, number),
            };
            assert!(is_state, "a gap before {number} in {self:?}");
        }
        self.next = number + 1;
        match change.removes {
            true => _ = self.states.remove(&change.key),
            false => _ = self.states.insert(change.key, number),
        }
    }

    /// The marker has come.
    pub fn complete(&mut self, changes: &Changes) {
        let mut counts = self.entered.max(self.next)..=changes.all.len();
        let is_state = counts.any(|messages| changes.is_state(&self.states, messages));
        assert!(is_state, "the state is not complete: {self:?}");
        (self.complete, self.is_sent) = (true, true);
    }

    /// Returns true if the client has the whole state, and a marker has confirmed it.
    pub fn has_all(&self, changes: &Changes) -> bool {
        self.is_sent && changes.is_state(&self.states, changes.all.len())
    }
}
