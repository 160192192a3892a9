//! Connections that came while broadcasts waited or ran: earlier broadcasts are not for them.
//!
//! The table is empty while no broadcast waits, and has only connections that came meanwhile. Nothing wraps around: a
//! counter of 64 bits numbers the connections.

use hashbrown::HashTable;

use crate::Slot;

#[derive(Default)]
pub(crate) struct Newcomers {
    /// The last number that a connection got. A broadcast carries the last number at its time.
    last: u64,
    /// The numbers of the connections that came since the oldest broadcast that waits.
    numbers: HashTable<(Slot, u64)>,
}

fn hash(slot: Slot) -> u64 {
    u64::from(slot).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Newcomers {
    /// Returns the number that a broadcast carries when it is published now.
    pub fn now(&self) -> u64 {
        self.last
    }

    /// Adds a connection that has come while broadcasts wait.
    pub fn enter(&mut self, slot: Slot) {
        self.last += 1;
        self.numbers.insert_unique(hash(slot), (slot, self.last), |(slot, _)| hash(*slot));
    }

    /// Removes a connection.
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

    /// True when the broadcast, which has reached the slot, is for the connection. All later ones are too, so the
    /// table then forgets the connection.
    pub fn passes(&mut self, slot: Slot, broadcast: u64) -> bool {
        if self.came_after(slot, broadcast) {
            return false;
        }
        self.leave(slot);
        true
    }

    /// Forgets all connections when no broadcast waits any more.
    pub fn clear(&mut self) {
        self.numbers = HashTable::new();
    }

    /// Skips so many numbers, for tests of very many connections.
    #[cfg(test)]
    pub fn skip(&mut self, many: u64) {
        self.last += many;
    }
}
