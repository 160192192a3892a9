//! The outbox for other threads: its settings, its password, and its status.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use database::Address;

/// The settings of the outbox.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The address of the database.
    pub address: Address,
    /// The schema: a plain identifier.
    pub schema: String,
    /// Rows that are fetched and published together.
    pub batch_rows_max: usize,
    /// The bytes of their messages, at most; one alone may be larger.
    pub batch_bytes_max: usize,
    /// The largest message, in bytes of JSON.
    pub row_bytes_max: usize,
    /// Refused rows that the database stores for the operator; the oldest are deleted.
    pub refused_rows_max: usize,
}

/// The status of the outbox.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutboxStatus {
    /// True while PostgreSQL is connected.
    pub is_connected: bool,
    /// True if this node publishes the rows; else another one does, or none.
    pub is_draining: bool,
    /// Why PostgreSQL is not connected, or why rows wait.
    pub error: Option<String>,
    /// The time at which the connection was opened or lost.
    pub since: Option<Instant>,
    /// How often the connection was lost.
    pub connections_lost: u64,
    /// Rows that were published and deleted.
    pub published: u64,
    /// Refused rows, which can't be published.
    pub refused: u64,
    /// The age of the oldest row at the last fetch, in seconds; 0 if none waits.
    pub lag_seconds: f64,
}

/// The outbox, for all threads.
pub struct Outbox {
    pub(crate) settings: Settings,
    password: Mutex<String>,
    status: Mutex<OutboxStatus>,
}

impl Outbox {
    /// Makes an outbox, which [`crate::spawn`] drains.
    pub fn new(settings: Settings, password: String) -> Arc<Self> {
        let (password, status) = (Mutex::new(password), Mutex::default());
        Arc::new(Outbox { settings, password, status })
    }

    /// Returns its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Sets the password from the next connect on.
    pub fn set_password(&self, password: String) {
        *lock(&self.password) = password;
    }

    pub(crate) fn password(&self) -> String {
        lock(&self.password).clone()
    }

    /// Returns its status.
    pub fn status(&self) -> OutboxStatus {
        lock(&self.status).clone()
    }

    pub(crate) fn set_status(&self, change: impl FnOnce(&mut OutboxStatus)) {
        change(&mut lock(&self.status));
    }
}

/// Ignores a panic of another thread with the lock: the value is still valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
