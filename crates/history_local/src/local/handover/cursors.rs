//! Cursors, and the counts of deliveries.

use handover::{Part, PartError, decode};

use super::{Local, PIECE, encoded};
use crate::cursors::{CursorRecord, Whose};
use crate::delivery_counts::DeliveryCountsRecord;

const CURSORS: &str = "cursors";
const DELIVERY_COUNTS: &str = "tries";

/// The cursors.
pub(super) struct CursorsPart(pub Local);

/// The counts of deliveries.
pub(super) struct DeliveryCountsPart(pub Local);

fn read<T: for<'b> minicbor::Decode<'b, ()>>(
    part: &'static str,
    key: &[u8],
    value: Option<&[u8]>,
) -> Result<(Whose, Option<T>), PartError> {
    let whose =
        Whose::of_key(key).ok_or_else(|| PartError::new(part, "the key does not name a user"))?;
    let record = value.map(decode).transpose();
    Ok((whose, record.map_err(|error| PartError::new(part, error))?))
}

impl Part for CursorsPart {
    fn name(&self) -> &'static str {
        CURSORS
    }

    fn export(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        let (mut from, mut found, mut buffer) = (Some(0), Vec::new(), Vec::new());
        while let Some(at) = from {
            let cursors = self.0.cursors();
            from = cursors.each(at, PIECE as u32, |key, record| found.push((key, record)));
            drop(cursors);
            for (key, record) in found.drain(..) {
                each(&key, encoded(record, &mut buffer));
            }
        }
    }

    fn import(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), PartError> {
        let mut cursors = self.0.cursors();
        match read::<CursorRecord>(CURSORS, key, value)? {
            (whose, Some(record)) => cursors.put(&whose, record),
            (whose, None) => cursors.remove(&whose),
        }
        Ok(())
    }

    fn complete(&self) -> Result<(), PartError> {
        self.0.cursors().settle();
        Ok(())
    }
}

impl Part for DeliveryCountsPart {
    fn name(&self) -> &'static str {
        DELIVERY_COUNTS
    }

    fn export(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        let (mut from, mut found, mut buffer) = (Some(0), Vec::new(), Vec::new());
        while let Some(at) = from {
            let cursors = self.0.cursors();
            from = cursors
                .each_delivery_count(at, PIECE as u32, |key, record| found.push((key, record)));
            drop(cursors);
            for (key, record) in found.drain(..) {
                each(&key, encoded(record, &mut buffer));
            }
        }
    }

    fn import(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), PartError> {
        let mut cursors = self.0.cursors();
        match read::<DeliveryCountsRecord>(DELIVERY_COUNTS, key, value)? {
            (whose, Some(record)) => cursors.put_delivery_counts(&whose, record),
            (whose, None) => cursors.remove_delivery_counts(&whose),
        }
        Ok(())
    }

    fn complete(&self) -> Result<(), PartError> {
        // It may have come after the cursors were complete.
        self.0.cursors().settle();
        Ok(())
    }
}
