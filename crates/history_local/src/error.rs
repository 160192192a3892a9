//! Converts the store's errors for the history's callers.

use history::HistoryError;
use store::{QueueError, StoreError};

/// Converts an error of the store, which can't read or write.
pub(crate) fn store_error(error: StoreError) -> HistoryError {
    let message = error.to_string().into();
    match error {
        StoreError::Damaged(_) => HistoryError::Damaged(message),
        StoreError::Disk(_) | StoreError::Closed => HistoryError::Unavailable(message),
    }
}

/// Converts an error of the store's queue, which accepts nothing more.
pub(crate) fn queue_error(error: QueueError) -> HistoryError {
    match error {
        QueueError::Full | QueueError::Away => HistoryError::Busy,
        QueueError::Unavailable(message) => HistoryError::Unavailable(message),
        closed @ QueueError::Closed => HistoryError::Unavailable(closed.to_string().into()),
    }
}
