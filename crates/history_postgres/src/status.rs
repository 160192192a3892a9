//! The status of the history in PostgreSQL.

use std::time::Instant;

/// The status of the history in PostgreSQL.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HistoryStatus {
    /// True while the history appends and reads messages.
    pub is_connected: bool,
    /// Why there is no connection.
    pub error: Option<String>,
    /// When the connection was made or lost.
    pub since: Option<Instant>,
    /// How often the connection was lost.
    pub connections_lost: u64,
    /// Batches that were appended.
    pub batches: u64,
    /// Messages that wait to be appended.
    pub queue_messages: u64,
    /// The bytes of these messages.
    pub queue_bytes: u64,
    /// Messages of this node that are appended and wait to be delivered.
    pub backlog_messages: u64,
    /// The bytes of these messages.
    pub backlog_bytes: u64,
    /// Cursors that moved and wait to be written.
    pub pending_cursors: u64,
    /// MQTT sessions whose records wait to be written.
    pub pending_sessions: u64,
    /// Messages that this node has not retained, because it has no rule for their topics.
    pub passed: u64,
    /// How often members got a gap notice: messages were gone before this node had read them, or can't be read.
    pub gaps: u64,
    /// How often the deletion of messages that no rule retains failed.
    pub trims_failed: u64,
}
