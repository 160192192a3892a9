//! `throng completions`: prints a shell's completion script.

use std::io::{Write, stdout};

use crate::cli::Completions;
use crate::error::CommandError;

/// Prints the script of a shell. A closed pipe is not an error.
pub fn run(args: &Completions) -> Result<(), CommandError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::command(), "throng", &mut script);
    let _ = stdout().write_all(&script);
    Ok(())
}
