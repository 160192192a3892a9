//! `throng flood`: the load generator.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flood::show::{Json, Lines, Panel, Quiet, Show};
use flood::{Outcome, Scenario};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::cli::Failure;

/// Runs it. Ctrl-C ends it with what it has so far; a second one at once.
pub fn run(scenario: &Scenario) -> Result<(), Failure> {
    let failed = |error: anyhow::Error| Failure::Runtime(format!("{error:#}"));
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag unset and sets it.
        signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
            .map_err(|error| Failure::Runtime(format!("signals can't be handled: {error}")))?;
    }
    let mut show = show(scenario).map_err(failed)?;
    let outcome = flood::run(scenario, &stop, typed(), show.as_mut());
    let outcome = outcome.map_err(|error| match error {
        flood::Error::Usage(error) => Failure::Usage(format!("{error:#}")),
        flood::Error::Runtime(error) => failed(error),
    })?;
    show.end(&outcome.summary);
    match &outcome.report {
        Some(Ok(page)) if !scenario.common().json => {
            println!("{:<14}{}", "report", page.display());
        }
        Some(Err(error)) => return Err(Failure::Runtime(format!("no report: {error:#}"))),
        _ => {}
    }
    stop.store(true, Ordering::Relaxed);
    if good(&outcome) { Ok(()) } else { Err(Failure::Found) }
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

/// True when all that was asked of the server was done.
fn good(outcome: &Outcome) -> bool {
    let counts = &outcome.summary.counts;
    // Who comes back for what was missed may be closed, and may have to try twice.
    let unless_back = |count| if outcome.summary.recover { 0 } else { count };
    let faults = [
        unless_back(counts.failed),
        unless_back(counts.closed),
        counts.not_recovered,
        counts.ack_failed,
        counts.lost,
        counts.duplicated,
        counts.out_of_order,
        counts.strayed,
        counts.publish_failed,
        counts.probes_failed,
    ];
    outcome.complete && faults.iter().all(|count| *count == 0)
}

/// The command line, as a shell takes it.
fn typed() -> String {
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
