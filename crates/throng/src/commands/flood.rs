//! `throng flood`: the load generator.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flood::show::{Json, Lines, Panel, Quiet, Show};
use flood::{Outcome, Scenario};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::error::CommandError;

/// Runs a scenario, or an agent until a signal ends it.
pub fn run(command: &flood::Command) -> Result<(), CommandError> {
    match command {
        flood::Command::Scenario(scenario) => run_scenario(scenario),
        flood::Command::Agent(agent) => agent.run().map_err(to_error),
    }
}

fn to_error(error: flood::RunError) -> CommandError {
    match error {
        flood::RunError::Usage(error) => CommandError::Usage(format!("{error:#}")),
        flood::RunError::Runtime(error) => CommandError::Runtime(format!("{error:#}")),
    }
}

/// Runs the scenario. Ctrl-C ends it with the results so far; a second Ctrl-C ends it at once.
fn run_scenario(scenario: &Scenario) -> Result<(), CommandError> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The order matters: the first signal finds the flag unset and sets it.
        signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
            .map_err(|error| CommandError::Runtime(format!("signals can't be handled: {error}")))?;
    }
    let shown = show(scenario).map_err(|error| CommandError::Runtime(format!("{error:#}")));
    let mut show = shown?;
    let outcome = flood::run(scenario, &stop, command_line(), show.as_mut()).map_err(to_error)?;
    show.end(&outcome.summary);
    match &outcome.report {
        Some(Ok(page)) if !scenario.common().json => {
            println!("{:<14}{}", "report", page.display());
        }
        Some(Err(error)) => {
            return Err(CommandError::Runtime(format!("the report can't be written: {error:#}")));
        }
        _ => {}
    }
    stop.store(true, Ordering::Relaxed);
    if is_success(&outcome) { Ok(()) } else { Err(CommandError::Findings) }
}

fn show(scenario: &Scenario) -> anyhow::Result<Box<dyn Show>> {
    let common = scenario.common();
    Ok(match () {
        () if common.json => Box::new(Json),
        () if common.quiet => Box::new(Quiet),
        () if std::io::stdout().is_terminal() => {
            Box::new(Panel::new(format!("throng flood {}", scenario.name()))?)
        }
        () => Box::new(Lines::default()),
    })
}

/// Returns true if the server did everything that the scenario requires.
fn is_success(outcome: &Outcome) -> bool {
    let counts = &outcome.summary.counts;
    // A client that reconnects for missed messages may be closed, and may need a second attempt.
    let unless_recovering = |count| if outcome.summary.recover { 0 } else { count };
    let errors = [
        unless_recovering(counts.failed),
        unless_recovering(counts.closed),
        counts.not_recovered,
        counts.ack_failed,
        counts.lost,
        counts.duplicated,
        counts.out_of_order,
        counts.strayed,
        counts.publish_failed,
        counts.probes_failed,
    ];
    outcome.complete && errors.iter().all(|count| *count == 0)
}

/// The command line, quoted for a shell.
fn command_line() -> String {
    let quoted = |word: std::ffi::OsString| {
        let word = word.to_string_lossy().into_owned();
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./:=,@%+".contains(&b);
        match !word.is_empty() && word.bytes().all(plain) {
            true => word,
            false => format!("'{}'", word.replace('\'', "'\\''")),
        }
    };
    let mut words: Vec<String> = std::env::args_os().map(quoted).collect();
    if let Some(name) = words.first_mut() {
        *name = "throng".into();
    }
    words.join(" ")
}
