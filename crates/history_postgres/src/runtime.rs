//! What the thread `history` runs on.

use std::io;

/// What the thread runs on.
///
/// Other threads wake it through one of its descriptors when a message is published, so make it before the shards take
/// descriptor tables of their own: a later one would mean something else to them.
pub struct Runtime(pub(crate) tokio::runtime::Runtime);

impl Runtime {
    /// Makes a runtime.
    ///
    /// # Errors
    /// When the system has no descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Runtime(tokio::runtime::Builder::new_current_thread().enable_all().build()?))
    }
}
