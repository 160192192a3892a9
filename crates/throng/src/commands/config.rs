//! `throng config`: what is in force and why, or the default file.

use std::io::Write;

use crate::cli::{Config, Failure};
use crate::sources;

/// Prints to standard output; a reader that has gone away is no error.
pub fn run(args: &Config) -> Result<(), Failure> {
    let text = if args.default {
        config::default_file()
    } else {
        let loaded = sources::load(&args.settings)?;
        if args.check { "ok\n".to_string() } else { config::effective(&loaded) }
    };
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}
