//! The settings of the history: its database, and limits.

use database::Address;

/// The settings of the history: its database, and limits.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The address of the database.
    pub address: Address,
    /// The schema: a plain identifier.
    pub schema: String,
    /// The most messages that may wait to be appended.
    pub queue_messages_max: usize,
    /// The most bytes of these messages.
    pub queue_bytes_max: usize,
    /// The most bytes of messages in memory.
    pub memory_bytes_max: usize,
    /// The most topics in memory.
    pub topics_max: usize,
    /// The most cursors in memory, and the most moves of cursors that may wait to be written.
    pub cursors_max: usize,
    /// Limits of the newest messages of all topics, which operators see.
    pub recent: broker::Limits,
}
