//! The history of one node: windows in memory, with or without a store behind them.

#![forbid(unsafe_code)]

pub mod cursors;
mod delivery_counts;
mod error;
mod idempotency;
mod local;
mod search;
mod slab;
pub mod windows;

pub use local::cursors::{cursors_of_rows, rows_of_cursor};
pub use local::{Begin, HistoryLimits, Local, parts};
pub use search::TopicSearch;
