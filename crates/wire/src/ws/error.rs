//! What a peer may do wrong, and the close code that answers it.

use std::fmt;

/// A peer broke the protocol, sent what it may not, or too much of it. The connection must be
/// closed with [`Error::code`] (RFC 6455, section 7.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// RSV2 or RSV3 is set, or RSV1 where no extension gives it a meaning (5.2).
    ReservedBits,
    /// An opcode that is not defined (5.2).
    ReservedOpcode,
    /// A client's frame has no mask (5.1).
    NotMasked,
    /// A server's frame has a mask (5.1).
    Masked,
    /// A control frame in fragments (5.5).
    ControlFragmented,
    /// A control frame with over 125 bytes (5.5).
    ControlTooLong,
    /// A continuation of nothing (5.4).
    NothingToContinue,
    /// A new message inside a fragmented one (5.4).
    MessageInMessage,
    /// A length that is not in its shortest form, or has the top bit set (5.2).
    BadLength,
    /// A close frame's payload has one byte (5.5.1).
    BadClosePayload,
    /// A close code that may not be sent (7.4).
    BadCloseCode,
    /// Text, or a close reason, that is not UTF-8 (8.1).
    NotUtf8,
    /// Compressed data that does not inflate (RFC 7692, section 7.2.2).
    BadDeflate,
    /// A frame over the limit.
    FrameTooBig,
    /// A message over the limit, counted after inflating.
    MessageTooBig,
}

impl Error {
    /// The close code: 1002 protocol error, 1007 invalid payload, 1009 too big.
    pub fn code(&self) -> u16 {
        match self {
            Error::NotUtf8 | Error::BadDeflate => 1007,
            Error::FrameTooBig | Error::MessageTooBig => 1009,
            _ => 1002,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::ReservedBits => "reserved bits are set",
            Error::ReservedOpcode => "the opcode is not defined",
            Error::NotMasked => "a client must mask its frames",
            Error::Masked => "a server must not mask its frames",
            Error::ControlFragmented => "a control frame may not be fragmented",
            Error::ControlTooLong => "a control frame has at most 125 bytes",
            Error::NothingToContinue => "there is no message to continue",
            Error::MessageInMessage => "a message may not begin inside another",
            Error::BadLength => "the length is not in its shortest form",
            Error::BadClosePayload => "a close payload of one byte",
            Error::BadCloseCode => "this close code may not be sent",
            Error::NotUtf8 => "the text is not UTF-8",
            Error::BadDeflate => "the compressed data does not inflate",
            Error::FrameTooBig => "the frame is over the limit",
            Error::MessageTooBig => "the message is over the limit",
        })
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_fits_into_a_close_frame() {
        use Error::*;
        for error in [
            ReservedBits,
            ReservedOpcode,
            NotMasked,
            Masked,
            ControlFragmented,
            ControlTooLong,
            NothingToContinue,
            MessageInMessage,
            BadLength,
            BadClosePayload,
            BadCloseCode,
            NotUtf8,
            BadDeflate,
            FrameTooBig,
            MessageTooBig,
        ] {
            assert!((1..=123).contains(&error.to_string().len()));
            assert!(matches!(error.code(), 1002 | 1007 | 1009));
        }
    }
}
