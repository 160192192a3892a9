//! What happens to the connections of one user, or to one connection, while an operator follows it.
//!
//! While nobody does, each place that could report something costs one comparison of a number in the engine. A trace is
//! no part of a connection: it does not go to another engine.

pub(crate) mod event;
mod record;
pub(crate) mod state;
#[cfg(test)]
mod tests;
