//! The locks and atomics of the mailbox and the filter. The tests compile both with loom's in their place.

pub use std::sync::{Mutex, PoisonError, atomic};
