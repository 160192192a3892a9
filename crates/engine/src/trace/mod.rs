//! What happens to the connections of one user, or to one connection, while an operator follows it.
//!
//! While no trace is open, each call that could report an event costs one comparison of a number. A trace is
//! no part of a connection: it does not go to another engine.

pub(crate) mod event;
mod record;
pub(crate) mod state;
#[cfg(test)]
mod tests;
