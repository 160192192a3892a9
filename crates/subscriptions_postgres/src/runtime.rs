//! The runtime of the thread `subscriptions`.

use std::io;

/// The runtime of the thread.
///
/// Other threads wake it through one of its descriptors, so make it before the shards take descriptor tables of their
/// own: in those, the number of a later descriptor would mean another one.
pub struct Runtime(pub(crate) tokio::runtime::Runtime);

impl Runtime {
    /// Makes a runtime.
    ///
    /// # Errors
    /// If the system has no descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Runtime(tokio::runtime::Builder::new_current_thread().enable_all().build()?))
    }
}
