//! The locks of the mailbox and the filter: the standard library's, or loom's when it checks them.

#[cfg(loom)]
pub use loom::sync::{Mutex, atomic};
#[cfg(not(loom))]
pub use std::sync::{Mutex, atomic};

pub use std::sync::PoisonError;
