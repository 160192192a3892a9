//! `throng top`: a node's figures in a terminal.

use std::io::{IsTerminal, stdout};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};
use top::{Target, Trouble};

use crate::cli::{Failure, Top};
use crate::sources::key_file;

/// The setting of `throng serve` that holds the key.
const KEY_VARIABLE: &str = "THRONG_ADMIN_API_KEY";

/// Shows the node, or prints what it says. Ctrl-C ends it.
pub fn run(args: &Top) -> Result<(), Failure> {
    let target = Target::parse(&args.url, key(args.api_key_file.as_deref())?)
        .map_err(|error| Failure::Usage(format!("{error:#}")))?;
    let failed = |trouble: Trouble| Failure::Runtime(trouble.to_string());
    if !args.json && (args.once || !stdout().is_terminal()) {
        return top::print_once(&target, &mut stdout()).map_err(failed);
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag unset and sets it.
        signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
            .map_err(|error| Failure::Runtime(format!("signals can't be handled: {error}")))?;
    }
    match args.json {
        true => top::print_json(&target, args.once, &stop, &mut stdout()).map_err(failed),
        false => {
            top::screen::run(&target, &stop).map_err(|error| Failure::Runtime(format!("{error:#}")))
        }
    }
}

/// The key from its file or else from the variable. An empty variable is none, as for
/// `throng serve`.
pub(super) fn key(file: Option<&Path>) -> Result<Option<String>, Failure> {
    let Some(file) = file else {
        let key = std::env::var(KEY_VARIABLE).unwrap_or_default();
        return Ok(Some(key.trim().to_owned()).filter(|key| !key.is_empty()));
    };
    let key = key_file(file).map_err(|why| Failure::Usage(format!("--api-key-file: {why}")))?;
    Ok(Some(key))
}
