//! Where the history is, and its limits.

use database::Address;

/// Where the history is, and its limits.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the database is.
    pub address: Address,
    /// The schema: a plain identifier.
    pub schema: String,
    /// Messages that may wait to be appended.
    pub queue_messages_max: usize,
    /// Their bytes.
    pub queue_bytes_max: usize,
    /// Bytes of messages in memory.
    pub memory_bytes_max: usize,
    /// Topics that something is known of in memory.
    pub topics_max: usize,
    /// How much operators are shown of all topics.
    pub recent: broker::Limits,
}
