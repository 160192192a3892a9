//! `throng tune`: reports how many connections this host can serve, and what to change.

use std::io::{IsTerminal, Write};
use std::path::Path;

use tune::{Advice, Host, Want};

use crate::cli::Tune;
use crate::error::CommandError;

/// Prints the advice, or applies it. The exit status reports whether the connections fit.
pub fn run(args: &Tune) -> Result<(), CommandError> {
    if let (true, Some(binary)) = (args.package, &args.binary) {
        // The unit depends on nothing of this host.
        let _ = std::io::stdout().write_all(tune::package_unit(binary).as_bytes());
        return Ok(());
    }
    let want = Want { both_ends: args.both_ends, ..Want::new(args.connections) };
    let host = Host::read();
    let advice = tune::advise(&host, &want);
    if args.apply {
        return apply(&advice, &want);
    }
    let text = match args {
        Tune { sysctl: true, .. } => tune::sysctl_drop_in(&advice),
        Tune { systemd: true, .. } => {
            let binary = args.binary.clone().unwrap_or_else(binary);
            tune::systemd_unit(&advice, &binary)
        }
        Tune { json: true, .. } => tune::json(&advice),
        Tune { host: true, .. } => host_json(&host)?,
        _ => tune::text(&advice, std::io::stdout().is_terminal()),
    };
    // A closed pipe is not an error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    findings(&advice)
}

/// Sets what can be set now, and then judges the changed host.
fn apply(advice: &Advice, want: &Want) -> Result<(), CommandError> {
    let applied = tune::apply(advice, Path::new("/"));
    if applied.is_empty() {
        println!("nothing to set");
    }
    let mut failed = false;
    for one in &applied {
        let (key, value) = (&one.sysctl.key, &one.sysctl.value);
        match &one.error {
            None => {
                let before = one.before.as_deref().unwrap_or("unknown");
                println!("{key} = {value}  (was {before})");
            }
            Some(error) => {
                failed = true;
                eprintln!("error: {key} = {value}: {error}");
            }
        }
    }
    if applied.iter().any(|one| one.error.is_none()) {
        println!(
            "these settings are lost at the next boot; to make them permanent: throng tune \
             --connections {} --sysctl > /etc/sysctl.d/99-throng.conf",
            want.connections
        );
    }
    if failed { Err(CommandError::Findings) } else { findings(&tune::advise(&Host::read(), want)) }
}

fn findings(advice: &Advice) -> Result<(), CommandError> {
    if advice.fits { Ok(()) } else { Err(CommandError::Findings) }
}

fn host_json(host: &Host) -> Result<String, CommandError> {
    let text = serde_json::to_string_pretty(host);
    text.map(|text| text + "\n").map_err(|error| CommandError::Runtime(error.to_string()))
}

/// Returns the path of this program as it was called: a unit with a symbolic link is upgraded when the link points
/// elsewhere. The usual path if the system does not give it.
fn binary() -> std::path::PathBuf {
    let called = crate::binary::path();
    if called.as_os_str().is_empty() { "/usr/local/bin/throng".into() } else { called }
}
