//! Why a message can't be read or written.

use thiserror::Error;

/// A message that can't be read or written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PhoenixError {
    /// A text message that is not JSON, or not of the serializer's shape.
    #[error("this is not a message: {why}; send for example {example}")]
    NotAMessage {
        /// What the JSON parser says, at most [`WHY_BYTES_MAX`] bytes of it.
        why: String,
        /// A message that would be right.
        example: &'static str,
    },
    /// A field that a client sent is over its limit.
    #[error("the client's {field} has {bytes} bytes, the limit is {bytes_max}")]
    TooLong {
        /// The field's name.
        field: &'static str,
        /// Its length in bytes.
        bytes: usize,
        /// The limit in bytes.
        bytes_max: usize,
    },
    /// A binary message of a kind that clients don't send.
    #[error(
        "a client's binary message is a push (kind 0) or a user broadcast (kind 3), this one is of \
         kind {0}"
    )]
    UnknownKind(u8),
    /// A user broadcast with an invalid part.
    #[error("the {field} of the user broadcast is not JSON, or of an unknown encoding")]
    InvalidBroadcast {
        /// The part's name.
        field: &'static str,
    },
    /// A binary message that ends before its fields do.
    #[error("the binary message ends in its {field}")]
    Truncated {
        /// Where it ends.
        field: &'static str,
    },
    /// A text field, or a text body of a long poll, that is not UTF-8.
    #[error("the {field} is not UTF-8")]
    NotUtf8 {
        /// The field's name.
        field: &'static str,
    },
    /// A line of a long poll's body that is neither a text message nor base64.
    #[error("line {line} of the body is neither a text message nor base64 of a binary one")]
    NotBase64 {
        /// The line's number, from 1.
        line: usize,
    },
    /// A long poll's body with too many messages.
    #[error("the body has over {lines_max} messages: send the rest in a further request")]
    TooManyLines {
        /// The limit.
        lines_max: usize,
    },
    /// A field that the server itself wants to send is over its limit: check names before they
    /// come here.
    #[error("the server's own {field} has {bytes} bytes, the protocol carries at most {bytes_max}")]
    CantEncode {
        /// The field's name.
        field: &'static str,
        /// Its length in bytes.
        bytes: usize,
        /// The limit in bytes.
        bytes_max: usize,
    },
}

/// The most that an error repeats of the JSON parser's words, which may quote the client's, in
/// bytes.
pub const WHY_BYTES_MAX: usize = 200;

impl PhoenixError {
    /// True for a message that can be passed over: it may be right in a newer protocol or another
    /// dialect, and what follows it can be read. It deserves an answer and not the end.
    pub fn is_passable(&self) -> bool {
        matches!(
            self,
            PhoenixError::UnknownKind(_)
                | PhoenixError::InvalidBroadcast { .. }
                | PhoenixError::NotUtf8 { .. }
        )
    }
}
