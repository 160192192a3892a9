//! Errors of a peer, each with its close code.

/// A violation of the protocol or of a limit by the peer. The connection must be closed with [`WsError::code`] (RFC
/// 6455, section 7.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WsError {
    /// RSV2 or RSV3 is set, or RSV1 without an extension that defines it (5.2).
    #[error("reserved bits are set")]
    ReservedBits,
    /// An opcode that is not defined (5.2).
    #[error("the opcode is not defined")]
    ReservedOpcode,
    /// A client's frame has no mask (5.1).
    #[error("a client must mask its frames")]
    NotMasked,
    /// A server's frame has a mask (5.1).
    #[error("a server must not mask its frames")]
    Masked,
    /// A control frame is fragmented (5.5).
    #[error("a control frame must not be fragmented")]
    ControlFragmented,
    /// A control frame has over 125 bytes (5.5).
    #[error("a control frame must have at most 125 bytes")]
    ControlTooLong,
    /// A continuation without a message (5.4).
    #[error("there is no message to continue")]
    NothingToContinue,
    /// A new message inside a fragmented one (5.4).
    #[error("a message must not begin inside another message")]
    MessageInMessage,
    /// A length that is not in its shortest form, or has the top bit set (5.2).
    #[error("the length is not in its shortest form")]
    InvalidLength,
    /// A close frame's payload has one byte (5.5.1).
    #[error("a close payload must not have exactly one byte")]
    InvalidClosePayload,
    /// A close code that may not be sent (7.4).
    #[error("this close code must not be sent")]
    InvalidCloseCode,
    /// Text, or a close reason, that is not UTF-8 (8.1).
    #[error("the text is not UTF-8")]
    NotUtf8,
    /// Compressed data that does not inflate (RFC 7692, section 7.2.2).
    #[error("the compressed data can't be inflated")]
    InvalidDeflate,
    /// A frame over the limit.
    #[error("the frame exceeds the limit (limits.frame_bytes_max)")]
    FrameTooBig,
    /// A message over the limit, counted after inflating.
    #[error("the message exceeds the limit (limits.frame_bytes_max)")]
    MessageTooBig,
}

impl WsError {
    /// The close code: 1002 protocol error, 1007 invalid payload, 1009 too big.
    pub fn code(&self) -> u16 {
        match self {
            WsError::NotUtf8 | WsError::InvalidDeflate => 1007,
            WsError::FrameTooBig | WsError::MessageTooBig => 1009,
            WsError::ReservedBits
            | WsError::ReservedOpcode
            | WsError::NotMasked
            | WsError::Masked
            | WsError::ControlFragmented
            | WsError::ControlTooLong
            | WsError::NothingToContinue
            | WsError::MessageInMessage
            | WsError::InvalidLength
            | WsError::InvalidClosePayload
            | WsError::InvalidCloseCode => 1002,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_fits_into_a_close_frame() {
        use WsError::*;
        for error in [
            ReservedBits,
            ReservedOpcode,
            NotMasked,
            Masked,
            ControlFragmented,
            ControlTooLong,
            NothingToContinue,
            MessageInMessage,
            InvalidLength,
            InvalidClosePayload,
            InvalidCloseCode,
            NotUtf8,
            InvalidDeflate,
            FrameTooBig,
            MessageTooBig,
        ] {
            assert!((1..=123).contains(&error.to_string().len()));
            assert!(matches!(error.code(), 1002 | 1007 | 1009));
        }
    }
}
