//! The rejection of a request: status, code and message.

use std::borrow::Cow;

use model::{CodedError, ErrorCode, ReplyCode};

/// The reply to a request that can't be served. If parsing failed, the connection ends too, because the start of the
/// next request is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The status.
    pub status: u16,
    /// The error's code in the JSON body.
    pub code: ReplyCode,
    /// What is invalid, and what would be valid.
    pub message: Cow<'static, str>,
}

impl Rejection {
    /// A rejection with the usual status of this code, and a message that says what is invalid.
    pub fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        Rejection { status: code.status(), code: code.into(), message: message.into() }
    }

    /// A rejection with another of the code's statuses than the usual one.
    pub fn with_status(
        status: u16,
        code: ErrorCode,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        debug_assert!(code.row().statuses.contains(&status), "{code} has no status {status}");
        Rejection { status, code: code.into(), message: message.into() }
    }

    /// A rejection by the application, which may give any code with this status.
    pub fn by_application(status: u16, code: ReplyCode, message: String) -> Self {
        Rejection { status, code, message: message.into() }
    }
}

impl From<CodedError> for Rejection {
    fn from(CodedError { code, message }: CodedError) -> Self {
        Rejection::new(code, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_application_may_give_any_code() {
        for text in ["bad_topic", "banned"] {
            let code = ReplyCode::parse(text);
            let rejection = Rejection::by_application(403, code, "no".into());
            assert_eq!((rejection.status, rejection.code.text()), (403, text));
        }
        assert_eq!(Rejection::new(ErrorCode::BadTopic, "").status, 400);
        assert_eq!(Rejection::with_status(404, ErrorCode::NoHistory, "").status, 404);
    }
}
