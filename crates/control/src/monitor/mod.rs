//! The node's figures: memory and time of the process, samples of every second, top topics, and metrics.

mod figure;
pub(crate) mod histogram;
mod kernel;
pub(crate) mod limited;
pub(crate) mod memory;
pub(crate) mod metrics;
pub(crate) mod process;
mod sampler;
mod samples;
mod samples_part;
mod shard_samples;
pub(crate) mod sys;
mod thread_time;
pub(crate) mod top;

pub(crate) use figure::Figure;
pub(crate) use sampler::{INTERVAL_SECONDS, Monitor, connections_max};
#[cfg(test)]
pub(crate) use sampler::{READERS_MAX, Sampler};
pub(crate) use samples::{Sample, SampleRing};
pub use samples_part::Samples;

/// Returns the memory that this process has written so far (RssAnon), in bytes.
pub fn anonymous_bytes() -> u64 {
    process::memory().anonymous
}
