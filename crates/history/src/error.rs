//! Why the history rejects a request.

use std::sync::Arc;

use broker::PublishError;
use model::{CodedError, ErrorCode};

/// Why the history can't reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    /// Too many requests wait already: try again in a moment.
    #[error("too many reads or writes of the history are pending: try again in a second")]
    Busy,
    /// The storage behind the history can't be read or written; the text says why, and what the operator must do.
    #[error("{0}")]
    Unavailable(Arc<str>),
    /// The stored data of the topic is damaged; the text says which, and what the operator must do.
    #[error("{0}")]
    Damaged(Arc<str>),
    /// The topic has no retained messages.
    #[error("the topic has no history")]
    NoHistory,
}

impl HistoryError {
    /// Returns its name for programs.
    pub fn code(&self) -> ErrorCode {
        match self {
            HistoryError::Busy => ErrorCode::StoreBusy,
            HistoryError::Unavailable(_) => ErrorCode::StoreFailed,
            HistoryError::Damaged(_) => ErrorCode::StoreDamaged,
            HistoryError::NoHistory => ErrorCode::NoHistory,
        }
    }

    /// Returns true if a later read fails as well: the topic is no longer retained, or is damaged on disk.
    pub fn is_lasting(&self) -> bool {
        match self {
            HistoryError::NoHistory | HistoryError::Damaged(_) => true,
            HistoryError::Busy | HistoryError::Unavailable(_) => false,
        }
    }
}

impl From<HistoryError> for CodedError {
    fn from(error: HistoryError) -> Self {
        CodedError::new(error.code(), error.to_string())
    }
}

impl From<HistoryError> for PublishError {
    fn from(error: HistoryError) -> Self {
        match error {
            HistoryError::Busy => PublishError::StoreBusy,
            HistoryError::Unavailable(why) => PublishError::StoreFailed(why),
            HistoryError::Damaged(why) => PublishError::StoreDamaged(why),
            HistoryError::NoHistory => PublishError::NoHistory,
        }
    }
}

/// Why an acknowledgement has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcknowledgeError {
    /// Messages of this topic need no acknowledgement.
    #[error(
        "messages of this topic are not acknowledged: the server's configuration has no \
         acknowledge = true for it (for a user's own topic: inbox.enabled)"
    )]
    NotAcknowledged,
    /// The id is of another log: the topic has no history, or the id is from before a restart.
    #[error(
        "the id has another epoch: it is from before a restart of the server, or from a topic \
         without history; acknowledge the id of a message exactly as it was received"
    )]
    Epoch,
    /// No message has this id yet.
    #[error("no message has this id yet")]
    Ahead,
    /// The user is not one of the connection's, or the connection has no user.
    #[error(
        "messages are acknowledged only for a user of the connection: connect with user=…, and \
         name one of the connection's users"
    )]
    NoUser,
    /// The user is not in the topic, and may not enter it.
    #[error("this is not granted: it requires a token that lets its bearer enter the topic")]
    NotGranted,
}

impl AcknowledgeError {
    /// Returns its name for programs.
    pub fn code(self) -> ErrorCode {
        match self {
            AcknowledgeError::NotAcknowledged => ErrorCode::NotAcknowledged,
            AcknowledgeError::Epoch => ErrorCode::EpochChanged,
            AcknowledgeError::Ahead => ErrorCode::BadId,
            AcknowledgeError::NoUser => ErrorCode::NoUser,
            AcknowledgeError::NotGranted => ErrorCode::NotGranted,
        }
    }
}

impl From<AcknowledgeError> for CodedError {
    fn from(error: AcknowledgeError) -> Self {
        CodedError::new(error.code(), error.to_string())
    }
}
