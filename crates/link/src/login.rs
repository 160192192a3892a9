//! How a node logs in to the servers of NATS.

use std::fmt;

use async_nats::{Auth, AuthError};

use crate::credentials::Credentials;

/// How a node logs in to the servers of NATS. `Debug` shows no secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Login {
    /// No credentials: the servers accept every client, or identify it by its certificate.
    #[default]
    Anonymous,
    /// A user with a password.
    User(String, String),
    /// A token.
    Token(String),
    /// A JWT, and the key that proves it.
    Credentials(Credentials),
}

impl Login {
    /// Returns what the node sends to a server that has sent this nonce.
    pub(crate) fn auth(&self, nonce: &[u8]) -> Result<Auth, AuthError> {
        let mut auth = Auth::new();
        match self {
            Login::Anonymous => {}
            Login::User(user, password) => {
                auth.username = Some(user.clone());
                auth.password = Some(password.clone());
            }
            Login::Token(token) => auth.token = Some(token.clone()),
            Login::Credentials(credentials) => {
                auth.jwt = Some(credentials.jwt().to_owned());
                auth.signature = Some(credentials.sign(nonce).map_err(AuthError::new)?);
            }
        }
        Ok(auth)
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Login::Anonymous => "Anonymous",
            Login::User(..) => "User(…)",
            Login::Token(_) => "Token(…)",
            Login::Credentials(_) => "Credentials(…)",
        })
    }
}
