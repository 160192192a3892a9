//! The errors of commands.

use std::process::ExitCode;

/// The reason why a command failed. The variant decides the exit code.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The configuration or the command line is invalid. The text has a line for each error.
    #[error("{0}")]
    Usage(String),
    /// The system or another program rejected something.
    #[error("{0}")]
    Runtime(String),
    /// An upgrade was rejected or failed, and the server continues to serve. The text may be empty.
    #[error("{0}")]
    NothingMoved(String),
    /// An upgrade was done, and it closed some connections.
    #[error("some connections were lost")]
    PartlyLost,
    /// The command ran and printed findings that need attention.
    #[error("the command has findings")]
    Findings,
}

impl CommandError {
    /// Returns the error lines; none for findings and for what the command has printed already.
    pub fn text(&self) -> &str {
        match self {
            CommandError::Usage(text)
            | CommandError::Runtime(text)
            | CommandError::NothingMoved(text) => text,
            CommandError::PartlyLost | CommandError::Findings => "",
        }
    }

    /// Prints the error lines and returns the exit code: 2 for usage, 3 for findings and an upgrade that moved
    /// nothing, 4 for one that lost connections, 1 for the rest.
    pub fn report(self) -> ExitCode {
        let (text, code) = match self {
            CommandError::Usage(text) => (text, 2),
            CommandError::Runtime(text) => (text, 1),
            CommandError::NothingMoved(text) => (text, 3),
            CommandError::PartlyLost => (String::new(), 4),
            CommandError::Findings => (String::new(), 3),
        };
        for line in text.lines() {
            eprintln!("error: {line}");
        }
        ExitCode::from(code)
    }
}
