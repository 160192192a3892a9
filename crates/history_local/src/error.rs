//! The store's errors as the history's callers get them.

use history::HistoryError;
use store::{QueueError, StoreError};

/// The store can't read or write.
pub(crate) fn store_error(error: StoreError) -> HistoryError {
    let message = error.to_string().into();
    match error {
        StoreError::Damaged(_) => HistoryError::Damaged(message),
        StoreError::Disk(_) | StoreError::Closed => HistoryError::Unavailable(message),
    }
}

/// The store's queue takes nothing more.
pub(crate) fn queue_error(error: QueueError) -> HistoryError {
    match error {
        QueueError::Full | QueueError::Away => HistoryError::Busy,
        QueueError::Unavailable(message) => HistoryError::Unavailable(message),
        closed @ QueueError::Closed => HistoryError::Unavailable(closed.to_string().into()),
    }
}
