//! Who speaks on a connection, and what it may do: logins, tokens, and what they grant.

pub(crate) mod credentials;
pub(crate) mod grant_set;
pub(crate) mod login;
pub(crate) mod principal;
pub(crate) mod refresh;
pub(crate) mod tokens;
