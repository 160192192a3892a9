//! The bench harness: a crowd of client connections, bare servers that mark the physical limits,
//! and what starts and measures a server process.
//!
//! Everything runs on loopback, client and server on one machine. The figure that counts is the
//! CPU time of the server *process*: it stays comparable while the client, or anything else, uses
//! the other cores. Each target runs its candidates side by side in rounds and prints medians, so
//! that a slow minute of the machine hits all of them alike.
//!
//! On loopback a send does the receiver's share too: it wakes the client, and passes its socket's
//! cache lines to the client's core. With both ends busy on two cores that is about half of the
//! cost of a batched `io_uring` send, for the bare loops and for Throng alike, and it differs with
//! how client and server happen to alternate. So a ratio is not the server's own overhead alone,
//! and may come out below one; `--one-core` takes this share away, and lets figures of different
//! days be held against each other.
//!
//! Run all with `cargo bench -p bench`, one with `cargo bench -p bench --bench fanout`, a larger
//! crowd with `-- --connections 100000`.

pub mod api;
pub mod args;
pub mod baseline;
pub mod crowd;
pub mod marker;
pub mod pause;
pub mod process;
pub mod report;
pub mod standing;
pub mod template;
pub mod throng;

use std::process::ExitCode;

pub use args::Args;

/// The `main` of every bench target: becomes a bare server if it was started as one, else reads
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
