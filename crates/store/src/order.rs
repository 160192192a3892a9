//! The order of rows.

use crate::error::{Damage, InternalError};

/// Requires ascending keys: a damaged page may point back, and the scan would never end.
pub(crate) fn require_ascending<K: Ord>(last: &mut Option<K>, key: K) -> Result<(), InternalError> {
    if last.as_ref().is_some_and(|last| *last >= key) {
        return Err(Damage::in_table("the file", "rows are out of order").into());
    }
    *last = Some(key);
    Ok(())
}
