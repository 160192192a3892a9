//! What the server's TLS certificates say, for the metrics, and what the admin port accepts connections by.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;

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
pub struct Certificates(RwLock<Current>);

#[derive(Debug, Default)]
struct Current {
    certificates: Vec<Certificate>,
    config: Option<Arc<ServerConfig>>,
}

impl Certificates {
    /// Replaces all of them. The admin port accepts connections by `config` from now on; open ones stay.
    pub fn set(&self, certificates: Vec<Certificate>, config: Arc<ServerConfig>) {
        let current = Current { certificates, config: Some(config) };
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = current;
    }

    /// All of them.
    pub fn get(&self) -> Vec<Certificate> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).certificates.clone()
    }

    /// What the admin port accepts connections by.
    pub(crate) fn config(&self) -> Option<Arc<ServerConfig>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).config.clone()
    }
}
