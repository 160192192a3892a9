//! `throng man`: manual pages.

use std::io::{Write, stdout};

use crate::cli::Man;
use crate::error::CommandError;

/// Prints the page of the binary, or writes the pages of all commands. A closed pipe is not an error.
pub fn run(args: &Man) -> Result<(), CommandError> {
    let to_error = |error: std::io::Error| CommandError::Runtime(error.to_string());
    let Some(dir) = &args.output else {
        let mut page = Vec::new();
        clap_mangen::Man::new(crate::command()).render(&mut page).map_err(to_error)?;
        let _ = stdout().write_all(&page);
        return Ok(());
    };
    let cannot_write = |error: std::io::Error| {
        CommandError::Runtime(format!("{}: the pages can't be written: {error}", dir.display()))
    };
    std::fs::create_dir_all(dir).map_err(cannot_write)?;
    clap_mangen::generate_to(crate::command(), dir).map_err(cannot_write)
}
