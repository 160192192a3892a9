//! The bench harness: a crowd of client connections, bare servers that show the physical limits, and tools that start
//! and measure a server process.
//!
//! Client and server run on one machine, over loopback. The important figure is the CPU time of the
//! server *process*, because it is comparable whatever uses the other cores. Each target runs its
//! candidates side by side in rounds and prints medians, so that a slow minute of the machine affects
//! all of them alike.
//!
//! On loopback a send also does the receiver's work: it wakes the client, and passes the socket's
//! cache lines to the client's core. With both ends busy on two cores this is about half the cost of a
//! batched `io_uring` send, for the bare loops and for Throng alike. It varies with how client and
//! server happen to alternate. So a ratio is not the server's own overhead alone, and may be below
//! one. With `--one-core` this part vanishes, and figures of different days are comparable.
//!
//! Run all with `cargo bench -p bench`, one with `cargo bench -p bench --bench fanout`, a larger
//! crowd with `-- --connections 100000`.

pub mod api;
pub mod args;
pub mod attack;
pub mod baseline;
pub mod crowd;
pub mod marker;
pub mod mqtt;
pub mod pause;
pub mod process;
pub mod report;
pub mod served_crowd;
pub mod template;
pub mod throng;
pub mod witness;

use std::process::ExitCode;

pub use args::Args;

/// The `main` of every bench target. It becomes a bare server if this process was started as one. Otherwise it parses
/// the arguments and runs the target.
pub fn main(target: fn(&Args) -> anyhow::Result<()>) -> ExitCode {
    let outcome = match baseline::child_arguments() {
        Some(arguments) => arguments.and_then(|arguments| baseline::serve(&arguments)),
        None => {
            let args = Args::read();
            args.bind_cores().and_then(|()| target(&args))
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
