//! The history of one node: windows in memory, with or without a store behind them.

#![forbid(unsafe_code)]

mod cursors;
mod delivery_counts;
mod error;
mod idempotency;
mod local;
mod slab;
pub mod windows;

pub use local::{Begin, HistoryLimits, Local, parts};
