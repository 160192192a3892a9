//! What the Linux kernel dropped, and which of its resources run short.
//!
//! [`KernelStats`] are the kernel's counters and tables at one moment. A value that the kernel does not report, as in
//! many containers, is `None`; that is no error. [`findings`] compares two moments and describes what went wrong,
//! with advice. [`StatsWindow`] stores the stats of the last 15 minutes. Only [`KernelStats::read`] and [`kernel_id`]
//! read files.

#![forbid(unsafe_code)]

mod findings;
mod proc;
mod stats;
mod window;

pub use findings::{Finding, FindingKind, findings};
pub use proc::{Pressure, Usage, kilobytes, softnet_dropped, tcp_memory_pages};
pub use stats::{KernelStats, TcpMemory, kernel_id};
pub use window::StatsWindow;
