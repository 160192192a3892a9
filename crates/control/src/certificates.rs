//! The server's TLS certificates, for the API and the metrics, and the configuration by which the admin port accepts
//! connections.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;

/// A certificate of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Its first alternative name, or its common name; empty if it has neither.
    pub name: String,
    /// The last second in which it is valid, since 1970; 0 for the placeholder that the server signs itself until an
    /// authority does.
    pub not_after: u64,
    /// From this second on, since 1970, the operator should renew it.
    pub renew_at: u64,
}

/// The certificates of the server, as they are now.
#[derive(Debug, Default)]
pub struct Certificates {
    current: RwLock<Current>,
    orders: [AtomicU64; 2],
}

/// How an order of a certificate ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderResult {
    /// The authority signed a certificate.
    Signed,
    /// The order gave no certificate.
    Failed,
}

impl OrderResult {
    /// All results with their names in the metrics.
    pub(crate) const ALL: [(OrderResult, &'static str); 2] =
        [(OrderResult::Signed, "signed"), (OrderResult::Failed, "failed")];
}

#[derive(Debug, Default)]
struct Current {
    certificates: Vec<Certificate>,
    config: Option<Arc<ServerConfig>>,
}

impl Certificates {
    /// Replaces all certificates. The admin port accepts new connections by `config`; open ones stay.
    pub fn set(&self, certificates: Vec<Certificate>, config: Arc<ServerConfig>) {
        let current = Current { certificates, config: Some(config) };
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
    }

    /// All certificates, in the order of the configuration.
    pub fn get(&self) -> Vec<Certificate> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).certificates.clone()
    }

    /// Counts an order of a certificate.
    pub fn count_order(&self, result: OrderResult) {
        self.orders[result as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many orders ended with this result.
    pub(crate) fn orders(&self, result: OrderResult) -> u64 {
        self.orders[result as usize].load(Ordering::Relaxed)
    }

    /// The configuration by which the admin port accepts connections; `None` if no port has TLS.
    pub(crate) fn config(&self) -> Option<Arc<ServerConfig>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).config.clone()
    }
}
