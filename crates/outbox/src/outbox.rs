//! The outbox as other threads see it: its settings, its password, and how it stands.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use database::Address;

/// How the outbox is drained.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the database is.
    pub address: Address,
    /// The schema: a plain identifier.
    pub schema: String,
    /// Rows that are fetched and published together.
    pub batch_rows_max: usize,
    /// The bytes of their messages; one alone may be larger.
    pub batch_bytes_max: usize,
    /// The largest message, in bytes of JSON.
    pub row_bytes_max: usize,
    /// Refused rows that the database has for the operator; the oldest go.
    pub refused_rows_max: usize,
}

/// How the outbox stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// The connection to PostgreSQL is there.
    pub is_connected: bool,
    /// This node publishes the rows; else another one does, or none.
    pub is_draining: bool,
    /// Why it is not connected, or why rows wait.
    pub error: Option<String>,
    /// When the connection came or went.
    pub since: Option<Instant>,
    /// How often the connection was lost.
    pub connections_lost: u64,
    /// Rows that were published and deleted.
    pub published: u64,
    /// Rows that can't be published.
    pub refused: u64,
    /// The age of the oldest row at the last fetch, in seconds; 0 where none waits.
    pub lag_seconds: f64,
}

/// The outbox, for all threads.
pub struct Outbox {
    pub(crate) settings: Settings,
    password: Mutex<String>,
    status: Mutex<Status>,
}

impl Outbox {
    /// An outbox, which [`crate::spawn`] drains.
    pub fn new(settings: Settings, password: String) -> Arc<Self> {
        let (password, status) = (Mutex::new(password), Mutex::default());
        Arc::new(Outbox { settings, password, status })
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The password from the next connect on.
    pub fn set_password(&self, password: String) {
        *lock(&self.password) = password;
    }

    pub(crate) fn password(&self) -> String {
        lock(&self.password).clone()
    }

    /// How it stands.
    pub fn status(&self) -> Status {
        lock(&self.status).clone()
    }

    pub(crate) fn set_status(&self, change: impl FnOnce(&mut Status)) {
        change(&mut lock(&self.status));
    }
}

/// A panic while the lock was taken leaves a value that is still good.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
