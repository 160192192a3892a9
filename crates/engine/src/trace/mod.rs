//! Traces: an operator follows one connection, or all connections of one user.
//!
//! While no trace is open, each call that could report an event costs one comparison of a number. A trace is no part
//! of a connection: it does not go to another engine.

pub(crate) mod event;
mod record;
pub(crate) mod state;
#[cfg(test)]
mod tests;
