//! Writes the pages of `docs/` that follow from the code: the settings, the calls of the API, the access to them, the
//! limits, the errors, the command line, every `unsafe`; and the OpenAPI document that the server serves.
//! `cargo run -p docs` writes them; a test fails if they differ from the code.
//!
//! The Markdown files beside this one have the hand-written text of these pages.

#![forbid(unsafe_code)]

mod access;
mod api;
mod checklist;
mod command_line;
mod configuration;
mod errors;
#[cfg(test)]
mod guarantees;
#[cfg(test)]
mod imports;
mod limits;
#[cfg(test)]
mod named_files;
#[cfg(test)]
mod names;
mod openapi;
mod unsafe_code;

use std::path::PathBuf;
use std::process::ExitCode;

/// The command that makes the files.
const COMMAND: &str = "cargo run -p docs";

/// Returns the files by name.
fn pages() -> Result<[(&'static str, String); 9], String> {
    Ok([
        ("configuration.md", whole(&configuration::page())),
        ("api.md", whole(&api::page(&control::openapi(), include_str!("api.md"))?)),
        ("openapi.json", openapi::text(control::openapi())?),
        ("security.md", checklist::within("security.md")?),
        ("access.md", whole(&access::page())),
        ("errors.md", whole(&errors::page())),
        ("limits.md", whole(&limits::page()?)),
        ("command-line.md", whole(&command_line::page(throng::command()))),
        ("internals/unsafe.md", whole(&unsafe_code::page()?)),
    ])
}

/// Returns a page with its first line, which says that it is generated.
fn whole(page: &str) -> String {
    format!("<!-- Made from the code by `{COMMAND}`: change it there, and run that. -->\n\n{page}")
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn main() -> ExitCode {
    let written = pages().and_then(|pages| {
        pages.iter().try_for_each(|(name, text)| {
            let path = folder().join(name);
            std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
        })
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_are_what_the_code_says() {
        for (name, text) in pages().unwrap() {
            let is = std::fs::read_to_string(folder().join(name)).unwrap_or_default();
            assert!(is == text, "docs/{name} is not what the code says: run {COMMAND}");
        }
    }
}
