//! What the server's TLS certificates say, for the metrics.

use std::sync::{PoisonError, RwLock};

/// A certificate of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Its first host, or what else it is for.
    pub name: String,
    /// The last second in which it is valid, since 1970.
    pub not_after: u64,
}

/// The certificates of the server, as they are now.
#[derive(Debug, Default)]
pub struct Certificates(RwLock<Vec<Certificate>>);

impl Certificates {
    /// Replaces all of them.
    pub fn set(&self, certificates: Vec<Certificate>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = certificates;
    }

    /// All of them.
    pub fn get(&self) -> Vec<Certificate> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
