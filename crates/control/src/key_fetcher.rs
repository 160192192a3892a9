//! Has the keys of tokens fetched.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::outgoing::Authorities;

/// Has keys fetched soon.
#[derive(Clone, Debug, Default)]
pub struct KeyFetcher {
    wanted: Arc<Notify>,
    authorities: Authorities,
}

impl KeyFetcher {
    /// Has keys fetched from servers of these authorities alone.
    pub fn new(authorities: Authorities) -> Self {
        KeyFetcher { wanted: Arc::default(), authorities }
    }

    /// Whose servers keys are fetched from.
    pub(crate) fn authorities(&self) -> &Authorities {
        &self.authorities
    }

    /// Somebody waits for keys. From any thread; it does not block.
    pub fn wake(&self) {
        self.wanted.notify_one();
    }

    /// Returns when somebody waits for keys.
    pub(crate) async fn woken(&self) {
        self.wanted.notified().await;
    }
}
