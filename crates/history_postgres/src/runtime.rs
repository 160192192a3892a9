//! The runtime of the thread `history`.

use std::io;

/// The runtime of the thread `history`.
///
/// Create it before the shards take descriptor tables of their own: other threads wake it through one of its
/// descriptors when a message is published, and a later descriptor would mean something else to them.
pub struct Runtime(pub(crate) tokio::runtime::Runtime);

impl Runtime {
    /// Creates a runtime.
    ///
    /// # Errors
    /// When the system has no descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Runtime(tokio::runtime::Builder::new_current_thread().enable_all().build()?))
    }
}
