//! What other threads share with a shard: the mailbox that brings it commands, and the filter that says which topics
//! have members on it. `tests/interleavings.rs` runs both under every interleaving that loom can find.

#![forbid(unsafe_code)]

mod filter;
mod queue;
mod sync;
#[cfg(test)]
mod tests;

pub use filter::Filter;
pub use queue::{Mailbox, Wake};
