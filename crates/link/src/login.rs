//! Who a node is for the servers of NATS.

use std::fmt;

use async_nats::Auth;

/// Who a node is for the servers of NATS. `Debug` shows no secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Login {
    /// Nothing is said: the servers let everyone in, or go by certificates.
    #[default]
    Anonymous,
    /// A user with a password.
    User(String, String),
    /// A token.
    Token(String),
}

impl Login {
    /// What is said to a server.
    pub(crate) fn auth(&self) -> Auth {
        let mut auth = Auth::new();
        match self {
            Login::Anonymous => {}
            Login::User(user, password) => {
                auth.username = Some(user.clone());
                auth.password = Some(password.clone());
            }
            Login::Token(token) => auth.token = Some(token.clone()),
        }
        auth
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Login::Anonymous => "Anonymous",
            Login::User(..) => "User(…)",
            Login::Token(_) => "Token(…)",
        })
    }
}
