//! What is wrong with a request.

use std::borrow::Cow;

/// The answer to a request that can't be served. If parsing failed the connection ends too, because
/// nobody knows where the next request begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The status.
    pub status: u16,
    /// The error's name in the JSON body.
    pub code: Cow<'static, str>,
    /// What is invalid, and what would be valid.
    pub message: Cow<'static, str>,
}

impl Rejection {
    /// A rejection with this status, the error's name, and a message that says what is invalid.
    pub fn new(
        status: u16,
        code: impl Into<Cow<'static, str>>,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Rejection { status, code: code.into(), message: message.into() }
    }
}
