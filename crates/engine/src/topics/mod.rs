//! Which connections are in which topics.

pub(crate) mod dedup;
pub(crate) mod explicit;
pub(crate) mod subscribe;
pub(crate) mod wildcard;
