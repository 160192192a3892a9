//! How the connection to PostgreSQL stands.

use std::time::Instant;

/// How the connection to PostgreSQL stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// Messages are appended and read.
    pub is_connected: bool,
    /// Why they are not.
    pub error: Option<String>,
    /// When the connection came or went.
    pub since: Option<Instant>,
    /// How often it was lost.
    pub connections_lost: u64,
    /// Batches that were appended.
    pub batches: u64,
    /// Messages that wait to be appended.
    pub queue_messages: u64,
    /// Their bytes.
    pub queue_bytes: u64,
    /// Messages of this node that are appended and wait to be delivered.
    pub backlog_messages: u64,
    /// Their bytes.
    pub backlog_bytes: u64,
    /// Messages that no member got, because this node has no rule for their topics.
    pub passed: u64,
    /// How often members were told of a gap: messages were gone before this node had read them, or can't be read.
    pub gaps: u64,
    /// How often the deletion of what no rule retains failed.
    pub trims_failed: u64,
}
