//! `throng top`: shows a node's figures in a terminal.

use std::io::{IsTerminal, stdout};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use admin::AdminError;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::cli::Top;
use crate::error::CommandError;

/// Shows the node's figures, or prints them. Ctrl-C ends it.
pub fn run(args: &Top) -> Result<(), CommandError> {
    let target = args.access.target(&args.url)?;
    let to_error = |error: AdminError| CommandError::Runtime(error.to_string());
    let column = top::cluster::Column::by_name(&args.sort).unwrap_or_default();
    let sort = args.cluster.then_some(top::cluster::Sort { column, is_reversed: false });
    if !args.json && (args.once || !stdout().is_terminal()) {
        return match sort {
            Some(sort) => top::cluster::print_once(&target, sort, &mut stdout()),
            None => top::print_once(&target, &mut stdout()),
        }
        .map_err(to_error);
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The order matters: the first signal finds the flag unset and sets it.
        signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
            .map_err(|error| CommandError::Runtime(format!("signals can't be handled: {error}")))?;
    }
    let to_text = |error| CommandError::Runtime(format!("{error:#}"));
    match (args.json, sort) {
        (true, None) => top::print_json(&target, args.once, &stop, &mut stdout()).map_err(to_error),
        (true, Some(sort)) => {
            top::cluster::print_json(&target, sort, args.once, &stop, &mut stdout())
                .map_err(to_error)
        }
        (false, None) => top::screen::run(&target, &stop).map_err(to_text),
        (false, Some(sort)) => top::cluster::run(&target, sort, &stop).map_err(to_text),
    }
}
