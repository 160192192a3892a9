//! The beginning from which a client reads topics with history: after a message that it saw, from the start, or with
//! the newest messages.
//!
//! ```text
//! 5f3a91c2:1042      the messages after this one; the other forms of a resume token are valid, too
//! start              all retained messages
//! last:50            the newest 50 retained messages
//! ```

use std::fmt;
use std::str::FromStr;

use crate::{Name, ResumeToken, ResumeTokenError};

/// The most messages that `last:N` may name.
pub const LAST_MESSAGES_MAX: u32 = 1_000;

/// The text of [`Since::Start`].
const START: &str = "start";

/// What the text of [`Since::Last`] begins with.
const LAST: &str = "last:";

/// The beginning from which a client reads a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Since {
    /// All retained messages; of a compacted topic its state.
    Start,
    /// The newest retained messages: 1 to [`LAST_MESSAGES_MAX`]. A part of the state of a compacted topic is no
    /// state, so that it comes as with [`Since::Start`].
    Last(u32),
    /// The messages after this token.
    Token(ResumeToken),
}

impl Since {
    /// Returns the token of the last message that the client saw, if it gave one.
    pub fn token(&self) -> Option<&ResumeToken> {
        match self {
            Since::Token(token) => Some(token),
            Since::Start | Since::Last(_) => None,
        }
    }
}

/// The messages that a client requests when it connects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResumeRequest {
    /// For every topic that is not named below.
    pub all: Option<Since>,
    /// For single topics; users' own by their topic's name, `@alice`.
    pub topics: Vec<(Name, Since)>,
}

impl ResumeRequest {
    /// Returns what applies to this topic.
    pub fn of(&self, topic: &str) -> Option<&Since> {
        let named = self.topics.iter().find(|(name, _)| name == topic);
        named.map(|(_, since)| since).or(self.all.as_ref())
    }

    /// Returns the token that applies to this topic.
    pub fn token_of(&self, topic: &str) -> Option<&ResumeToken> {
        self.of(topic)?.token()
    }

    /// True when it requests messages of this topic without a token: the client reads history, and does not come
    /// back.
    pub fn reads_history(&self, topic: &str) -> bool {
        self.of(topic).is_some_and(|since| since.token().is_none())
    }

    /// True when it requests nothing.
    pub fn is_empty(&self) -> bool {
        self.all.is_none() && self.topics.is_empty()
    }

    /// True when it has a token: the client comes back.
    pub fn has_token(&self) -> bool {
        let named = self.topics.iter().map(|(_, since)| since);
        self.all.iter().chain(named).any(|since| since.token().is_some())
    }
}

impl From<ResumeToken> for Since {
    fn from(token: ResumeToken) -> Self {
        Since::Token(token)
    }
}

impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Since::Start => f.write_str(START),
            Since::Last(messages) => write!(f, "{LAST}{messages}"),
            Since::Token(token) => token.fmt(f),
        }
    }
}

/// The text is no valid beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SinceError {
    /// The number behind `last:` is not valid.
    #[error(
        "last:N selects the newest N messages of each topic: N must be a number from 1 to \
         {LAST_MESSAGES_MAX}"
    )]
    Last,
    /// The text has none of the forms.
    #[error(
        "{ResumeTokenError}; or start for the whole history, or last:N for the newest N messages"
    )]
    Token,
}

impl FromStr for Since {
    type Err = SinceError;

    fn from_str(text: &str) -> Result<Self, SinceError> {
        if text == START {
            return Ok(Since::Start);
        }
        let Some(messages) = text.strip_prefix(LAST) else {
            return text.parse().map(Since::Token).map_err(|_| SinceError::Token);
        };
        let digits = messages.bytes().all(|byte| byte.is_ascii_digit());
        let messages = messages.parse().ok().filter(|_| digits);
        let messages = messages.filter(|messages| (1..=LAST_MESSAGES_MAX).contains(messages));
        messages.map(Since::Last).ok_or(SinceError::Last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_is_read_as_documented() {
        let token = || "5f3a91c2:7/9-0000000b.8".parse::<ResumeToken>().unwrap();
        for (text, want) in [
            ("start", Since::Start),
            ("last:1", Since::Last(1)),
            ("last:1000", Since::Last(LAST_MESSAGES_MAX)),
            ("5f3a91c2:7/9-0000000b.8", Since::Token(token())),
        ] {
            assert_eq!(text.parse(), Ok(want.clone()));
            assert_eq!(want.to_string(), text);
        }
        for bad in ["last:", "last:0", "last:1001", "last:+5", "last:x", "last:99999999999"] {
            assert_eq!(bad.parse::<Since>(), Err(SinceError::Last), "{bad}");
        }
        for bad in ["", "START", "last", "start:", "beginning", "7", " start"] {
            assert_eq!(bad.parse::<Since>(), Err(SinceError::Token), "{bad}");
        }
        assert!(SinceError::Last.to_string().contains("1 to 1000"));
    }

    #[test]
    fn a_topic_by_name_goes_before_all() {
        let token: ResumeToken = "5f3a91c2:7".parse().unwrap();
        let request = ResumeRequest {
            all: Some(Since::Start),
            topics: vec![("a".into(), Since::Last(5)), ("b".into(), token.clone().into())],
        };
        assert_eq!(request.of("a"), Some(&Since::Last(5)));
        assert_eq!((request.of("c"), request.token_of("c")), (Some(&Since::Start), None));
        assert_eq!(request.token_of("b"), Some(&token));
        assert!(request.has_token() && !request.is_empty());
        let start = ResumeRequest { all: Some(Since::Start), topics: Vec::new() };
        assert!(!start.has_token() && !start.is_empty());
        assert!(ResumeRequest::default().is_empty());
    }

    proptest::proptest! {
        #[test]
        fn what_is_written_is_read_back(messages in 1..=LAST_MESSAGES_MAX, own in proptest::prelude::any::<(u32, u64)>()) {
            let id = crate::Position { epoch: crate::Epoch(own.0), offset: own.1 };
            for since in [Since::Last(messages), Since::Token(id.into())] {
                proptest::prop_assert_eq!(since.to_string().parse(), Ok(since));
            }
        }

        #[test]
        fn nothing_panics(text in ".{0,20}", like in "(last:|start)[0-9:+-]{0,12}") {
            let _ = text.parse::<Since>();
            let _ = like.parse::<Since>();
        }
    }
}
