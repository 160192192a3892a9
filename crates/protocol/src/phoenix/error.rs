//! Errors of messages that can't be read or written.

use thiserror::Error;

/// A message that can't be read or written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PhoenixError {
    /// A text message is not JSON, or not of the serializer's shape.
    #[error("this is not a message: {why}; send for example {example}")]
    NotAMessage {
        /// The JSON parser's message, at most [`WHY_BYTES_MAX`] bytes of it.
        why: String,
        /// A valid message.
        example: &'static str,
    },
    /// A client's field is over its limit.
    #[error("the client's {field} has {bytes} bytes, the limit is {bytes_max}")]
    TooLong {
        /// The field's name.
        field: &'static str,
        /// Its length in bytes.
        bytes: usize,
        /// The limit in bytes.
        bytes_max: usize,
    },
    /// A binary message has a kind that clients don't send.
    #[error(
        "a client's binary message must be a push (kind 0) or a user broadcast (kind 3), and this \
         one has kind {0}"
    )]
    UnknownKind(u8),
    /// A user broadcast has an invalid part.
    #[error("the {field} of the user broadcast is not JSON, or has an unknown encoding")]
    InvalidBroadcast {
        /// The part's name.
        field: &'static str,
    },
    /// A binary message ends before its fields do.
    #[error("the binary message ends in the middle of its {field}")]
    Truncated {
        /// The field in which it ends.
        field: &'static str,
    },
    /// A text field, or a text body of a long poll, is not UTF-8.
    #[error("the {field} is not UTF-8")]
    NotUtf8 {
        /// The field's name.
        field: &'static str,
    },
    /// A line of a long poll's body is neither a text message nor base64.
    #[error("line {line} of the body is neither a text message nor base64 of a binary one")]
    NotBase64 {
        /// The line's number, from 1.
        line: usize,
    },
    /// A long poll's body has too many messages.
    #[error("the body has more than {lines_max} messages: send the rest in another request")]
    TooManyLines {
        /// The limit.
        lines_max: usize,
    },
    /// A field of the server's own message is over its limit: the caller must check names first.
    #[error(
        "the server's own {field} has {bytes} bytes, and the protocol allows at most {bytes_max}"
    )]
    CantEncode {
        /// The field's name.
        field: &'static str,
        /// Its length in bytes.
        bytes: usize,
        /// The limit in bytes.
        bytes_max: usize,
    },
}

/// Bytes of the JSON parser's message in an error, at most; it may quote the client's.
pub const WHY_BYTES_MAX: usize = 200;

impl PhoenixError {
    /// Returns true if the server can ignore the message: it may be valid in a newer protocol or another dialect, and
    /// the next one can be read. The client gets a reply, and the connection stays open.
    pub fn is_passable(&self) -> bool {
        matches!(
            self,
            PhoenixError::UnknownKind(_)
                | PhoenixError::InvalidBroadcast { .. }
                | PhoenixError::NotUtf8 { .. }
        )
    }
}
