//! The principals of connections and their permissions: logins, tokens, and their grants.

pub(crate) mod credentials;
pub(crate) mod grant_set;
pub(crate) mod login;
pub(crate) mod principal;
pub(crate) mod refresh;
pub(crate) mod tokens;
