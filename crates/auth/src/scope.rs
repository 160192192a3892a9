//! The scopes of the application's keys.

use std::fmt;
use std::str::FromStr;

use model::name::NAME_BYTES_MAX;

use crate::grants::{CLIENT, SUBJECT};

/// A scope of an API key, as it is written: `admin`, `read`, `publish:PATTERN`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All that the API can do.
    Admin,
    /// All that changes nothing and shows no secret.
    Read,
    /// Publish to the topics that the pattern matches. `*` matches any run of characters. Users' own
    /// topics are matched only by patterns that begin with `@`, and by the pattern `*`, which alone
    /// matches everyone's, too.
    Publish(Box<str>),
}

/// Why a text is no scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    /// There is no such scope.
    #[error("a scope is \"admin\", \"read\" or \"publish:PATTERN\", like \"publish:room:*\"")]
    Unknown,
    /// The pattern is empty or longer than any name.
    #[error("the pattern of a scope \"publish:PATTERN\" must have 1 to {NAME_BYTES_MAX} bytes")]
    Length,
    /// The pattern has the placeholder of a user or a client, and a key has none.
    #[error(
        "a key belongs to the application and has no user, so its pattern can't contain {SUBJECT} \
         or {CLIENT}"
    )]
    Subject,
}

impl FromStr for Scope {
    type Err = ScopeError;

    fn from_str(text: &str) -> Result<Self, ScopeError> {
        match text {
            "admin" => Ok(Scope::Admin),
            "read" => Ok(Scope::Read),
            _ => {
                let pattern = text.strip_prefix("publish:").ok_or(ScopeError::Unknown)?;
                if !(1..=NAME_BYTES_MAX).contains(&pattern.len()) {
                    return Err(ScopeError::Length);
                }
                if pattern.contains(SUBJECT) || pattern.contains(CLIENT) {
                    return Err(ScopeError::Subject);
                }
                Ok(Scope::Publish(pattern.into()))
            }
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::Admin => f.write_str("admin"),
            Scope::Read => f.write_str("read"),
            Scope::Publish(pattern) => write!(f, "publish:{pattern}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_read_as_it_is_written() {
        for text in ["admin", "read", "publish:*", "publish:@*", "publish:room:*", "publish:a b"] {
            assert_eq!(text.parse::<Scope>().unwrap().to_string(), text);
        }
        let long = format!("publish:{}", "x".repeat(NAME_BYTES_MAX + 1));
        for (text, want) in [
            ("", ScopeError::Unknown),
            ("Admin", ScopeError::Unknown),
            ("write", ScopeError::Unknown),
            ("publish", ScopeError::Unknown),
            ("publish:", ScopeError::Length),
            (&long, ScopeError::Length),
            ("publish:room:{sub}", ScopeError::Subject),
            ("publish:{client}", ScopeError::Subject),
        ] {
            assert_eq!(text.parse::<Scope>(), Err(want), "{text}");
        }
    }
}
