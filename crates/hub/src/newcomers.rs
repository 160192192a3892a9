//! The connections that came while broadcasts were waiting or under way: what was published before
//! is not for them.
//!
//! The table is empty while no broadcast waits, and holds only those that came meanwhile. Nothing
//! here wraps around: each gets a number from a counter of 64 bits.

use hashbrown::HashTable;

use crate::Slot;

#[derive(Default)]
pub(crate) struct Newcomers {
    /// The last number that a connection got. A broadcast carries the one of its time.
    last: u64,
    /// The numbers of those that came since the oldest broadcast that waits.
    numbers: HashTable<(Slot, u64)>,
}

fn hash(slot: Slot) -> u64 {
    u64::from(slot).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Newcomers {
    /// The number that a broadcast carries when it is published now.
    pub fn now(&self) -> u64 {
        self.last
    }

    /// A connection has come while broadcasts wait.
    pub fn enter(&mut self, slot: Slot) {
        self.last += 1;
        self.numbers.insert_unique(hash(slot), (slot, self.last), |(slot, _)| hash(*slot));
    }

    /// A connection has left.
    pub fn leave(&mut self, slot: Slot) {
        if let Ok(entry) = self.numbers.find_entry(hash(slot), |it| it.0 == slot) {
            entry.remove();
        }
    }

    /// True when no connection here came after the oldest broadcast that waits.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// True when the connection came after a broadcast.
    pub fn came_after(&self, slot: Slot, broadcast: u64) -> bool {
        let found = self.numbers.find(hash(slot), |it| it.0 == slot);
        found.is_some_and(|(_, number)| *number > broadcast)
    }

    /// True when the broadcast, which has come to the slot, is for the connection. Those that follow
    /// it are too, so the table forgets the connection then.
    pub fn passes(&mut self, slot: Slot, broadcast: u64) -> bool {
        if self.came_after(slot, broadcast) {
            return false;
        }
        self.leave(slot);
        true
    }

    /// No broadcast waits any more.
    pub fn clear(&mut self) {
        self.numbers = HashTable::new();
    }

    /// As if so many had come before, for tests of what holds over very many.
    #[cfg(test)]
    pub fn skip(&mut self, many: u64) {
        self.last += many;
    }
}
