//! Has the keys of tokens fetched.

use std::sync::Arc;

use tokio::sync::Notify;

/// Has keys fetched soon.
#[derive(Clone, Debug, Default)]
pub struct KeyFetcher(Arc<Notify>);

impl KeyFetcher {
    /// Somebody waits for keys. From any thread; it does not block.
    pub fn wake(&self) {
        self.0.notify_one();
    }

    /// Returns when somebody waits for keys.
    pub(crate) async fn woken(&self) {
        self.0.notified().await;
    }
}
