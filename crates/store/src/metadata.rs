//! The one row of metadata about the whole store.

use redb::{Database, ReadableDatabase, ReadableTable, WriteTransaction};

use crate::checksum::{self, Tally};
use crate::coding::{Decoder, put_varint};
use crate::error::RowError;
use crate::error::{Damage, InternalError};
use crate::tables::{METADATA, METADATA_KEY};

/// How far the offsets jump if the last process did not close the store, so that an offset which
/// was assigned but never committed is not assigned again.
pub const OFFSETS_SKIPPED: u64 = 1 << 20;

/// Metadata of the whole store, as of a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Metadata {
    /// The epoch of the store's offsets.
    pub epoch: u32,
    /// True if the last process closed the store.
    pub clean: bool,
    /// The last offset that was stored or, after a close, assigned.
    pub last_offset: u64,
    /// The highest offset of all topics that the store has forgotten.
    pub forgotten_floor: u64,
    /// The number that the newest topic got. Numbers are never reused.
    pub last_number: u64,
    /// The number of topics that have a row but no messages.
    pub empty_topics: u64,
    /// Messages after this offset ...
    pub lost_after: u64,
    /// ... and up to this one may be lost with a commit that the file does not contain. 0 if that
    /// never happened.
    pub lost_through: u64,
    /// The hash of the last topic's name; 0 if there is no topic.
    pub last_name_hash: u64,
    /// The number of committed transactions.
    pub commits: u64,
    /// The expected content of these tables.
    pub cursors: Tally,
    pub idempotency: Tally,
    pub subscriptions: Tally,
    pub names: Tally,
    pub records: Tally,
}

impl Metadata {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![u8::from(self.clean)];
        let Metadata {
            epoch,
            last_offset,
            forgotten_floor,
            last_number,
            empty_topics,
            lost_after,
            lost_through,
            last_name_hash,
            commits,
            ..
        } = *self;
        let numbers = [
            epoch.into(),
            last_offset,
            forgotten_floor,
            last_number,
            empty_topics,
            lost_after,
            lost_through,
            last_name_hash,
            commits,
        ];
        let tallies =
            [self.cursors, self.idempotency, self.subscriptions, self.names, self.records];
        let tallies = tallies.iter().flat_map(|tally| [tally.rows, tally.sum]);
        numbers.into_iter().chain(tallies).for_each(|number| put_varint(&mut out, number));
        checksum::prepend(METADATA_KEY.as_bytes(), &out)
    }

    pub fn decode(row: &[u8]) -> Result<Self, RowError> {
        let mut input = Decoder(checksum::verify(METADATA_KEY.as_bytes(), row)?);
        let clean = input.byte()? == 1;
        let mut number = || input.number();
        let mut metadata = Metadata {
            epoch: u32::try_from(number()?).map_err(|_| RowError)?,
            clean,
            last_offset: number()?,
            forgotten_floor: number()?,
            last_number: number()?,
            empty_topics: number()?,
            lost_after: number()?,
            lost_through: number()?,
            last_name_hash: number()?,
            commits: number()?,
            ..Metadata::default()
        };
        let Metadata { cursors, idempotency, subscriptions, names, .. } = &mut metadata;
        for tally in [cursors, idempotency, subscriptions, names] {
            *tally = Tally { rows: number()?, sum: number()? };
        }
        // Formats before the fourth have no records.
        if !input.0.is_empty() {
            metadata.records = Tally { rows: input.number()?, sum: input.number()? };
        }
        if input.0.is_empty() { Ok(metadata) } else { Err(RowError) }
    }

    pub fn save(&self, txn: &WriteTransaction) -> Result<(), InternalError> {
        txn.open_table(METADATA)?.insert(METADATA_KEY, &*self.encode())?;
        Ok(())
    }

    pub fn from_table(
        table: &impl ReadableTable<&'static str, &'static [u8]>,
    ) -> Result<Self, InternalError> {
        let row = table.get(METADATA_KEY)?;
        let metadata = row.and_then(|row| Metadata::decode(row.value()).ok());
        metadata.ok_or_else(|| {
            Damage::in_table("facts", "the row of facts about the whole store").into()
        })
    }

    /// Returns the metadata as of the last commit.
    pub fn load(db: &Database) -> Result<Self, InternalError> {
        Metadata::from_table(&db.begin_read()?.open_table(METADATA)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn encode_and_decode_round_trip(epoch: u32, clean: bool, n: [u64; 8], t: [u64; 10]) {
            let tally = |at: usize| Tally { rows: t[at], sum: t[at + 1] };
            let metadata = Metadata {
                epoch, clean, last_offset: n[0], forgotten_floor: n[1], last_number: n[2], empty_topics: n[3], lost_after: n[4],
                lost_through: n[5], last_name_hash: n[6], commits: n[7], cursors: tally(0), idempotency: tally(2),
                subscriptions: tally(4), names: tally(6), records: tally(8),
            };
            prop_assert_eq!(Metadata::decode(&metadata.encode()), Ok(metadata));
        }

        #[test]
        fn decode_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            prop_assert_eq!(Metadata::decode(&bytes), Err(RowError));
        }
    }
}
