//! Errors that end a connection at once.

use crate::alert::Alert;
use crate::records::RECORDS_WITHOUT_DATA_MAX;

/// Why reading ends: the connection is over. Each variant but `Alert` is the client's fault, and `out` has the alert
/// for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A record or a message that an open connection does not allow: also a new handshake, and plain text.
    #[error("the client sent a TLS record that an open connection does not allow")]
    UnexpectedMessage,
    /// A record that the client's key has not protected, or that was changed on its way.
    #[error("a TLS record was changed on its way, or not made with the key of this connection")]
    BadRecordMac,
    /// A record that is too long.
    #[error("the client sent a TLS record that exceeds the longest allowed one")]
    RecordOverflow,
    /// A message in a record has the wrong length.
    #[error("the client sent a TLS message of the wrong length")]
    DecodeError,
    /// A field of a message has a value that does not exist.
    #[error("the client sent a TLS message with an invalid value")]
    IllegalParameter,
    /// Too many records in a row without data.
    #[error(
        "the client sent more than {RECORDS_WITHOUT_DATA_MAX} TLS records in a row without data"
    )]
    TooManyWithoutData,
    /// The client ended the connection with this alert. The server sends nothing back.
    #[error("the client ended the connection with the TLS alert {0}")]
    Alert(Alert),
}

impl RecordError {
    /// The label of a metric, one of seven.
    pub fn label(self) -> &'static str {
        match self {
            RecordError::UnexpectedMessage => "unexpected_message",
            RecordError::BadRecordMac => "bad_record_mac",
            RecordError::RecordOverflow => "record_overflow",
            RecordError::DecodeError => "decode_error",
            RecordError::IllegalParameter => "illegal_parameter",
            RecordError::TooManyWithoutData => "too_many_without_data",
            RecordError::Alert(_) => "alert",
        }
    }

    /// The alert that the server sends.
    pub fn alert(self) -> Option<Alert> {
        match self {
            RecordError::UnexpectedMessage | RecordError::TooManyWithoutData => {
                Some(Alert::UNEXPECTED_MESSAGE)
            }
            RecordError::BadRecordMac => Some(Alert::BAD_RECORD_MAC),
            RecordError::RecordOverflow => Some(Alert::RECORD_OVERFLOW),
            RecordError::DecodeError => Some(Alert::DECODE_ERROR),
            RecordError::IllegalParameter => Some(Alert::ILLEGAL_PARAMETER),
            RecordError::Alert(_) => None,
        }
    }
}
