//! The rows of a history that moves from a store to a database ([`crate::StoreExport`]), or back ([`crate::import`]).

use model::Name;

use crate::error::OpenError;
use crate::topic::{Retention, TopicRow};

/// The state of all topics together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogHead {
    /// The epoch of the offsets.
    pub epoch: u32,
    /// The last offset that may have been assigned.
    pub last_offset: u64,
    /// No topic without a row had a message after this offset.
    pub forgotten: u64,
}

/// A topic that has, or had, messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogTopic {
    /// The topic's name.
    pub name: Name,
    /// The topic's messages up to this offset may be gone.
    pub floor: u64,
    /// The offset of the last message that the topic ever had.
    pub last_offset: u64,
    /// The time of the last message, or later; for a topic without messages, when it lost the last one. In
    /// milliseconds since 1970; 0 if only the messages tell.
    pub last_ms: u64,
    /// The most messages of the topic.
    pub messages_max: u64,
    /// The most bytes of their payloads.
    pub bytes_max: u64,
    /// The greatest age of a message, in seconds.
    pub seconds_max: u64,
    /// True for a compacted topic. Some of its messages before the floor are not gone, and those that are gone between
    /// its messages were replaced by later ones.
    pub compact: bool,
}

/// A message of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogMessage<'a> {
    /// The message's offset.
    pub offset: u64,
    /// The offset of the topic's message before it. For the first one, the offset up to which messages are gone.
    pub previous: u64,
    /// When it was published, in milliseconds since 1970.
    pub at_ms: u64,
    /// When it expires, in milliseconds since 1970.
    pub expires_ms: Option<u64>,
    /// The bytes that the topic's limit counts.
    pub bytes: u64,
    /// Its key.
    pub key: Option<&'a str>,
    /// True if it removes its key.
    pub is_removal: bool,
    /// The message in the encoding of [`crate::Record`].
    pub record: &'a [u8],
}

/// An idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogKey {
    /// The topic.
    pub topic: Name,
    /// The key.
    pub key: Name,
    /// The offset of the message that was published with it.
    pub offset: u64,
    /// When it was published, in milliseconds since 1970.
    pub at_ms: u64,
}

/// A row about a user and a topic. The parts of the server that write such rows know what they mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CursorRow {
    /// The user.
    pub user: Name,
    /// The topic, as the row names it.
    pub topic: Name,
    /// The offset.
    pub offset: u64,
}

/// A topic, or the next message of the topic before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogRow<'a> {
    /// A topic, whose messages follow in the order of their offsets.
    Topic(&'a LogTopic),
    /// A message of the last topic.
    Message {
        /// The message's offset.
        offset: u64,
        /// When it was published, in milliseconds since 1970. The record may have another time.
        at_ms: u64,
        /// The message in the encoding of [`crate::Record`].
        record: &'a [u8],
    },
}

/// Why an export or an import failed.
#[derive(Debug, thiserror::Error)]
pub enum TransferError<E> {
    /// The store can't be read or written.
    #[error(transparent)]
    Store(OpenError),
    /// The other side failed.
    #[error("{0}")]
    Other(E),
}

impl<E> From<OpenError> for TransferError<E> {
    fn from(error: OpenError) -> Self {
        TransferError::Store(error)
    }
}

impl LogTopic {
    /// Makes the topic of a store's row.
    pub(crate) fn of_row(name: &Name, row: &TopicRow) -> Self {
        LogTopic {
            name: name.clone(),
            floor: row.floor,
            last_offset: row.last,
            last_ms: if row.count == 0 { row.empty_since_ms } else { 0 },
            messages_max: row.retention.messages_max,
            bytes_max: row.retention.bytes_max,
            seconds_max: row.retention.seconds_max,
            compact: row.retention.compact,
        }
    }

    /// Makes a store's row of this number, for a topic without messages.
    pub(crate) fn to_row(&self, number: u64) -> TopicRow {
        // The first message links to the offset up to which all messages are gone.
        let base = if self.compact { 0 } else { self.floor };
        let newest = base;
        TopicRow {
            number,
            floor: self.floor,
            last: self.last_offset.max(self.floor),
            empty_since_ms: self.last_ms,
            base,
            newest,
            retention: Retention {
                messages_max: self.messages_max.max(1),
                bytes_max: self.bytes_max,
                seconds_max: self.seconds_max,
                compact: self.compact,
            },
            ..TopicRow::default()
        }
    }
}
