//! `throng top`: a node's figures in a terminal.

use std::io::{IsTerminal, stdout};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};
use top::{AdminError, Target};

use crate::cli::{CommandError, Top};
use crate::sources::key_file;

/// The variable that holds the key for `throng serve`, too.
const KEY_VARIABLE: &str = "THRONG_ADMIN_API_KEY";

/// Shows the node's figures, or prints them. Ctrl-C ends it.
pub fn run(args: &Top) -> Result<(), CommandError> {
    let target = Target::parse(&args.url, key(args.api_key_file.as_deref())?)
        .map_err(|error| CommandError::Usage(format!("{error:#}")))?;
    let to_error = |error: AdminError| CommandError::Runtime(error.to_string());
    if !args.json && (args.once || !stdout().is_terminal()) {
        return top::print_once(&target, &mut stdout()).map_err(to_error);
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The order matters: the first signal finds the flag unset and sets it.
        signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
            .map_err(|error| CommandError::Runtime(format!("signals can't be handled: {error}")))?;
    }
    match args.json {
        true => top::print_json(&target, args.once, &stop, &mut stdout()).map_err(to_error),
        false => top::screen::run(&target, &stop)
            .map_err(|error| CommandError::Runtime(format!("{error:#}"))),
    }
}

/// Reads the key from its file or else from the variable. As for `throng serve`, an empty variable
/// means no key.
pub(super) fn key(file: Option<&Path>) -> Result<Option<String>, CommandError> {
    let Some(file) = file else {
        let key = std::env::var(KEY_VARIABLE).unwrap_or_default();
        return Ok(Some(key.trim().to_owned()).filter(|key| !key.is_empty()));
    };
    let key = key_file(file)
        .map_err(|reason| CommandError::Usage(format!("--api-key-file: {reason}")))?;
    Ok(Some(key))
}
