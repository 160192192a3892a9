//! The push server with all protocols of the crate `protocol`.

use std::process::ExitCode;

fn main() -> ExitCode {
    throng::run(protocol::standard())
}
