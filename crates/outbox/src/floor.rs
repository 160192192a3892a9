//! The id up to which no row can appear any more.
//!
//! A transaction that commits late makes rows visible whose ids are lower than those of deleted rows, so a poll would
//! have to begin at the lowest id. But deleted rows stay in the index until the table is vacuumed, which waits for
//! the oldest query in the whole database: each poll would step over all of them. So a poll begins behind the floor.
//!
//! Ids come from one sequence, and a transaction has its number before its rows have their ids. When the row with the
//! id L is read, each lower id was drawn by a transaction that had a number. The transaction that then deletes L has
//! a higher number. Once no transaction below that number runs any more, no further row up to L can appear.

/// The id up to which no row can appear any more.
#[derive(Debug, Default)]
pub(crate) struct Floor {
    id: i64,
    candidate: Option<Candidate>,
}

/// An id that becomes the floor as soon as no older transaction runs.
#[derive(Debug)]
struct Candidate {
    id: i64,
    transaction: i64,
}

impl Floor {
    /// Returns the id behind which a poll begins.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// Takes the first id that a poll has found, in a snapshot where no transaction below `oldest` runs.
    pub fn on_rows(&mut self, oldest: i64, first: Option<i64>) {
        let is_reached = |candidate: &mut Candidate| {
            oldest >= candidate.transaction && first.is_none_or(|first| first > candidate.id)
        };
        if let Some(candidate) = self.candidate.take_if(is_reached) {
            self.id = candidate.id;
        }
    }

    /// Records that this transaction has deleted rows up to this id after a poll had found them.
    pub fn on_finished(&mut self, last: i64, transaction: i64) {
        // A newer candidate would take longer: the first is good enough.
        if self.candidate.is_none() && last > self.id {
            self.candidate = Some(Candidate { id: last, transaction });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_rises_when_no_older_transaction_runs() {
        let mut floor = Floor::default();
        floor.on_finished(7, 100);
        floor.on_finished(9, 101);
        floor.on_rows(99, None);
        assert_eq!(floor.id(), 0, "a transaction that began before may have a row below 7");
        floor.on_rows(100, Some(6));
        assert_eq!(floor.id(), 0, "there is one");
        floor.on_rows(100, Some(8));
        assert_eq!(floor.id(), 7);
        floor.on_finished(12, 105);
        floor.on_rows(106, None);
        assert_eq!(floor.id(), 12);
        floor.on_finished(11, 107);
        floor.on_rows(200, None);
        assert_eq!(floor.id(), 12, "it never falls");
    }
}
