//! The history in this process: windows in memory, with or without a store behind them.

#![forbid(unsafe_code)]

mod cursors;
mod error;
mod idempotency;
mod index;
mod local;
mod slab;
mod tries;
mod windows;

pub use local::{Begin, HistoryLimits, Local};
