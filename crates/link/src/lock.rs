//! Taking a lock.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A panic while the lock was taken leaves tables that are still good enough to go on with.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
