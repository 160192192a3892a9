//! Requests keys of tokens.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::outgoing::Authorities;

/// Wakes the task that fetches keys.
#[derive(Clone, Debug, Default)]
pub struct KeyFetcher {
    requested: Arc<Notify>,
    authorities: Authorities,
}

impl KeyFetcher {
    /// Keys are fetched from servers of these authorities alone.
    pub fn new(authorities: Authorities) -> Self {
        KeyFetcher { requested: Arc::default(), authorities }
    }

    /// The authorities of servers from which keys are fetched.
    pub(crate) fn authorities(&self) -> &Authorities {
        &self.authorities
    }

    /// Requests keys. Works from any thread, and does not block.
    pub fn wake(&self) {
        self.requested.notify_one();
    }

    /// Waits until keys are requested.
    pub(crate) async fn woken(&self) {
        self.requested.notified().await;
    }
}
