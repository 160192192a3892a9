//! Events for the application, from when they happen until it has received them: a queue, whose rows are written
//! once, read at the start, and deleted from the front.

use redb::{ReadTransaction, ReadableTable, TableError, WriteTransaction};

use crate::checksum;
use crate::error::{Damage, InternalError};
use crate::order::require_ascending;
use crate::tables::EVENTS;

/// Adds events, and deletes those up to a number.
pub(crate) fn change(
    txn: &WriteTransaction,
    puts: &[(u64, Box<[u8]>)],
    through: Option<u64>,
) -> Result<(), InternalError> {
    let mut table = txn.open_table(EVENTS)?;
    for (number, event) in puts {
        let row = checksum::prepend(&number.to_le_bytes(), event);
        table.insert(number, &*row)?;
    }
    if let Some(through) = through {
        table.retain_in(..=through, |_, _| false)?;
    }
    Ok(())
}

/// Passes all events to `each`, in the order of their numbers. After an error it has passed all intact ones.
pub(crate) fn each(
    txn: &ReadTransaction,
    mut each: impl FnMut(u64, &[u8]),
) -> Result<(), InternalError> {
    let table = match txn.open_table(EVENTS) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(()),
        table => table?,
    };
    let (mut at, mut damage) = (None, None);
    for row in table.iter()? {
        let (number, row) = row?;
        let number = number.value();
        require_ascending(&mut at, number)?;
        match checksum::verify(&number.to_le_bytes(), row.value()) {
            Ok(event) => each(number, event),
            Err(_) => {
                let error = || Damage::in_table("events", format!("the row {number} is damaged"));
                damage.get_or_insert_with(error);
            }
        }
    }
    damage.map_or(Ok(()), |damage| Err(damage.into()))
}
