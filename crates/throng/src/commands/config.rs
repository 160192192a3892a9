//! `throng config`: the configuration in force and the sources of its values, or the default file.

use std::io::Write;

use crate::cli::Config;
use crate::error::CommandError;
use crate::sources;

/// Prints to standard output. A closed pipe is not an error.
pub fn run(args: &Config) -> Result<(), CommandError> {
    let text = if args.default {
        config::default_file()
    } else {
        let loaded = sources::load(&args.settings)?;
        for warning in loaded.warnings() {
            eprintln!("warning: {warning}");
        }
        if args.check { "ok\n".to_string() } else { config::effective(&loaded) }
    };
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}
