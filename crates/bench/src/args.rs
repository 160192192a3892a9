//! The arguments that all bench targets share.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Descriptors of one thread's private table that its connections may use. The common limit is 20,000; the rest is
/// for the listener, the poller and slack for an uneven spread of connections.
pub const CONNECTIONS_PER_SHARD_MAX: usize = 18_000;

/// Arguments after `cargo bench -p bench --`.
#[derive(Parser, Debug, Clone)]
#[command(about = "Benchmarks of a Throng server on loopback, compared with bare servers.")]
pub struct Args {
    /// Connections of each crowd.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=3_000_000))]
    pub connections: u32,

    /// Interleaved rounds; each target has its own default.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rounds: Option<u32>,

    /// Shards of the server, and threads of the bare servers. By default the cores, or as many as
    /// the descriptor limit asks for.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub shards: Option<u32>,

    /// Keep servers and clients all on one core: no wake-up or cache line crosses to another, so
    /// that what is left is the work itself.
    #[arg(long)]
    pub one_core: bool,

    /// Only the bare servers: the physical limits of this machine.
    #[arg(long)]
    pub baseline_only: bool,

    /// Only these transports (memory): sse, stream, poll, ws, phoenix, mqtt.
    #[arg(long, value_delimiter = ',')]
    pub transports: Vec<String>,

    /// The executable of another build of the server, to hold against this one (compare).
    #[arg(long, value_name = "PATH")]
    pub before: Option<PathBuf>,

    /// The executable to hold against it (compare); by default this tree's own.
    #[arg(long, value_name = "PATH", requires = "before")]
    pub after: Option<PathBuf>,

    /// Only these parts (memory): up, crowds, bodies, topics.
    #[arg(long, value_delimiter = ',')]
    pub parts: Vec<String>,

    /// Given by cargo; no meaning here.
    #[arg(long, hide = true)]
    bench: bool,

    /// A filter, as cargo's own harness takes; no meaning here.
    #[arg(hide = true)]
    filter: Vec<String>,
}

impl Args {
    /// Reads the command line; `--help` and mistakes print a text and end the process.
    pub fn read() -> Self {
        Self::parse()
    }

    /// Returns the connections of each crowd.
    pub fn connections(&self) -> usize {
        self.connections as usize
    }

    /// Returns the requested rounds, or the target's own number.
    pub fn rounds_or(&self, default: u32) -> u32 {
        self.rounds.unwrap_or(default)
    }

    /// With `--one-core`, binds this thread, and so all threads and processes that it starts from now on, to one
    /// core.
    ///
    /// # Errors
    /// The error of sched_setaffinity(2).
    pub fn bind_cores(&self) -> Result<()> {
        if !self.one_core {
            return Ok(());
        }
        let allowed = sched_getaffinity(None).context("the cores of this process")?;
        let first = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core));
        let mut one = CpuSet::new();
        one.set(first.context("a core to run on")?);
        sched_setaffinity(None, &one).context("binding to one core")
    }

    /// Returns what a table's title adds about the cores: figures of one core and of several must not be compared.
    pub fn cores_note(&self) -> &'static str {
        if self.one_core { ", all on one core" } else { "" }
    }

    /// Returns the event-loop threads of every server in this run.
    pub fn shards(&self) -> usize {
        self.shards.map_or_else(
            || {
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                cores.max(self.connections().div_ceil(CONNECTIONS_PER_SHARD_MAX))
            },
            |shards| shards as usize,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Args {
        Args::try_parse_from([&["bench"], words].concat()).expect("valid arguments")
    }

    #[test]
    fn cargo_flag_and_filter_are_ignored() {
        let args = parse(&["--bench", "fan"]);
        assert_eq!(args.connections(), 20_000);
        assert_eq!(args.rounds_or(7), 7);
    }

    #[test]
    fn shards_follow_the_descriptor_limit() {
        assert_eq!(parse(&["--connections", "1800000"]).shards(), 100);
        assert_eq!(parse(&["--connections", "1800000", "--shards", "3"]).shards(), 3);
    }

    #[test]
    fn one_core_applies_to_what_is_started_later() {
        let args = parse(&["--one-core", "--connections", "100"]);
        // A thread of its own, so that the other tests use all cores.
        let cores = std::thread::spawn(move || {
            args.bind_cores().expect("a core");
            let later = std::thread::spawn(|| sched_getaffinity(None).expect("cores").count());
            (later.join().expect("no panic"), args.shards())
        });
        assert_eq!(cores.join().expect("no panic"), (1, 1));
        assert_eq!(parse(&["--one-core"]).cores_note(), ", all on one core");
        assert_eq!(parse(&[]).cores_note(), "");
    }

    #[test]
    fn zero_connections_are_refused() {
        assert!(Args::try_parse_from(["bench", "--connections", "0"]).is_err());
    }
}
