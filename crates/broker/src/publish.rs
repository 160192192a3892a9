//! Requests of publishers, and their replies.

use std::sync::Arc;

use model::{CodedError, ErrorCode, Name, Position, Publication};

/// A request to publish.
#[derive(Clone, Debug)]
pub struct Publish {
    /// The message.
    pub publication: Publication,
    /// The options.
    pub options: Options,
}

/// Options of a publish.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// A second message of the topic with this key, within a time, is not published: the publisher gets
    /// the first one's id.
    pub idempotency_key: Option<Name>,
    /// Publish only if the topic has no message after this offset.
    pub if_offset: Option<u64>,
    /// Deliver the message to present members, and don't retain it.
    pub no_history: bool,
    /// With a store: the reply waits for the disk, even if the topic is not durable.
    pub wait_for_disk: bool,
    /// With a store: a record that is written in the same commit, so that after a crash both exist or neither.
    pub with: Option<Box<StoredRecord>>,
}

/// A record of a part of the server in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    /// The part.
    pub part: &'static str,
    /// Its own key.
    pub key: Box<str>,
    /// The value; without it the record is removed.
    pub value: Option<Box<[u8]>>,
}

/// The reply to a publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// The message's position.
    pub id: Position,
    /// True if an earlier publish had the same idempotency key.
    pub repeated: bool,
    /// True if the reply comes before the message is on disk, where it goes first: no member has got it yet, and a
    /// crash may lose it.
    pub queued: bool,
}

/// Takes the result of a publish. It is called once, from any thread, and must not block.
pub type Done = Box<dyn FnOnce(Result<Published, PublishError>) + Send>;

/// Why a message was not published. No member has got it, unless the error says so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// A shard is behind by `mailbox_messages_max` messages: try again in a moment.
    #[error("the shards are overloaded: nothing was published; try again in a second")]
    Overloaded,
    /// The store's queue is full: try again in a moment.
    #[error("the store is overloaded: nothing was published; try again in a second")]
    StoreBusy,
    /// The store can't write; the text says why, and what the operator must do.
    #[error("the store can't write, and nothing was published: {0}")]
    StoreFailed(Arc<str>),
    /// The database that stores the topic's messages has not confirmed the message; the text says why.
    #[error(
        "PostgreSQL has not confirmed the message, which may be published or not: publish it again, with the same \
         idempotency_key if it had one ({0})"
    )]
    Unconfirmed(Arc<str>),
    /// The topic's data in the store is damaged; the text says what, and what the operator must do.
    #[error("{0}")]
    StoreDamaged(Arc<str>),
    /// The topic already has this message, which is newer than the publisher's offset.
    #[error("the topic has a newer message, {0}: read it and decide again")]
    Newer(Position),
    /// The topic has no history, and so no newest message.
    #[error(
        "if_offset requires a topic with history: add history_messages_max to its [[topics]] table"
    )]
    NoHistory,
    /// The topic retains the last message of each key, and this one names none.
    #[error(
        "this topic retains the last message of each key (compact = true), and the message has no \
         key: set key (in a Phoenix client's payload, phx_key), or no_history in the API for a \
         message that is not a state"
    )]
    KeyRequired,
}

impl PublishError {
    /// Returns the code for programs.
    pub fn code(&self) -> ErrorCode {
        match self {
            PublishError::Overloaded => ErrorCode::Overloaded,
            PublishError::StoreBusy => ErrorCode::StoreBusy,
            PublishError::StoreFailed(_) | PublishError::Unconfirmed(_) => ErrorCode::StoreFailed,
            PublishError::StoreDamaged(_) => ErrorCode::StoreDamaged,
            PublishError::Newer(_) => ErrorCode::NewerMessage,
            PublishError::NoHistory => ErrorCode::NoHistory,
            PublishError::KeyRequired => ErrorCode::KeyRequired,
        }
    }
}

impl From<PublishError> for CodedError {
    fn from(error: PublishError) -> Self {
        CodedError::new(error.code(), error.to_string())
    }
}
