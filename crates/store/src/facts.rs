//! What is true of the whole store.

use redb::{Database, ReadableDatabase, ReadableTable, WriteTransaction};

use crate::fault::{Damage, Trouble};
use crate::record::{BadRow, Input, put_number};
use crate::sum::{self, Tally};
use crate::tables::{FACTS, FACTS_ROW};

/// Facts about the whole store, as of a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Node {
    /// The epoch of the numbering.
    pub epoch: u32,
    /// The last process closed it.
    pub clean: bool,
    /// The last offset that was stored or, after a close, handed in.
    pub last: u64,
    /// The highest offset of topics whose rows are gone.
    pub gone: u64,
    /// The number for the next new topic.
    pub next: u64,
    /// Topics that have a row and no messages.
    pub empty: u64,
    /// What was stored after this offset ...
    pub lost_after: u64,
    /// ... up to this one may have been lost with a transaction that the file did not keep. 0 if
    /// that has never happened.
    pub lost_through: u64,
    /// Stands for the last topic's name; 0 if there is none.
    pub tail: u64,
    /// Transactions so far.
    pub commits: u64,
    /// The rows of these tables.
    pub cursors: Tally,
    pub idempotency: Tally,
    pub subscriptions: Tally,
    pub names: Tally,
}

impl Node {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![u8::from(self.clean)];
        let Node {
            epoch, last, gone, next, empty, lost_after, lost_through, tail, commits, ..
        } = *self;
        let numbers =
            [epoch.into(), last, gone, next, empty, lost_after, lost_through, tail, commits];
        let tallies = [self.cursors, self.idempotency, self.subscriptions, self.names];
        let tallies = tallies.iter().flat_map(|tally| [tally.rows, tally.sum]);
        numbers.into_iter().chain(tallies).for_each(|number| put_number(&mut out, number));
        sum::seal(FACTS_ROW.as_bytes(), &out)
    }

    pub fn read(row: &[u8]) -> Result<Self, BadRow> {
        let mut input = Input(sum::open(FACTS_ROW.as_bytes(), row)?);
        let clean = input.byte()? == 1;
        let mut number = || input.number();
        let mut node = Node {
            epoch: u32::try_from(number()?).map_err(|_| BadRow)?,
            clean,
            last: number()?,
            gone: number()?,
            next: number()?,
            empty: number()?,
            lost_after: number()?,
            lost_through: number()?,
            tail: number()?,
            commits: number()?,
            ..Node::default()
        };
        let Node { cursors, idempotency, subscriptions, names, .. } = &mut node;
        for tally in [cursors, idempotency, subscriptions, names] {
            *tally = Tally { rows: number()?, sum: number()? };
        }
        if input.0.is_empty() { Ok(node) } else { Err(BadRow) }
    }

    pub fn put(&self, txn: &WriteTransaction) -> Result<(), Trouble> {
        txn.open_table(FACTS)?.insert(FACTS_ROW, &*self.encode())?;
        Ok(())
    }

    pub fn get(table: &impl ReadableTable<&'static str, &'static [u8]>) -> Result<Self, Trouble> {
        let row = table.get(FACTS_ROW)?;
        let node = row.and_then(|row| Node::read(row.value()).ok());
        node.ok_or_else(|| Damage::table("facts", "the row of facts about the whole store").into())
    }

    /// As of the last transaction.
    pub fn of(db: &Database) -> Result<Self, Trouble> {
        Node::get(&db.begin_read()?.open_table(FACTS)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(epoch: u32, clean: bool, n: [u64; 8], t: [u64; 8]) {
            let tally = |at: usize| Tally { rows: t[at], sum: t[at + 1] };
            let node = Node {
                epoch, clean, last: n[0], gone: n[1], next: n[2], empty: n[3], lost_after: n[4],
                lost_through: n[5], tail: n[6], commits: n[7], cursors: tally(0), idempotency: tally(2),
                subscriptions: tally(4), names: tally(6),
            };
            prop_assert_eq!(Node::read(&node.encode()), Ok(node));
        }

        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            prop_assert_eq!(Node::read(&bytes), Err(BadRow));
        }
    }
}
