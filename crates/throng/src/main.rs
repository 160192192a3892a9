//! The push server with all protocols of the crate `protocol`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    throng::run(protocol::standard())
}
