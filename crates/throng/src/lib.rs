//! Throng, the push server. Each command has a file in `commands`.
//!
//! The commands `flood`, `top` and `tune` are features, on by default; without them (`--no-default-features`) the
//! binary is a server with the commands for its data.
//!
//! The binary is this crate with the protocols of the crate `protocol`. A server with one more protocol is this crate
//! with that one added: see `examples/line-protocol`.

mod allocator;
mod binary;
mod cli;
mod commands;
mod error;
mod flags;
mod help;
mod node;
mod notify;
#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
mod resolver;
mod sources;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use cli::{Cli, Command};
use protocol::Protocols;
pub use sources::setting_flags;

/// Runs the command line of this process, as a server with these protocols, and returns the exit code.
pub fn run(protocols: &'static Protocols) -> ExitCode {
    run_with(std::env::args_os(), protocols)
}

/// Runs this command line, which begins with the program's name, as `run` does.
pub fn run_with(
    arguments: impl Iterator<Item = OsString>,
    protocols: &'static Protocols,
) -> ExitCode {
    binary::remember();
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    resolver::restrict();
    let cli = Cli::try_parse_from(arguments).unwrap_or_else(|error| {
        // A closed pipe is not an error.
        let _ = error.print();
        if let Some(advice) = cli::advice(&error) {
            eprintln!("\n{advice}");
        }
        std::process::exit(error.exit_code());
    });
    let result = match cli.command {
        None => commands::serve::run(&cli.serve, protocols),
        Some(Command::Serve(serve)) => commands::serve::run(&serve, protocols),
        Some(Command::Config(config)) => commands::config::run(&config),
        #[cfg(feature = "flood")]
        Some(Command::Flood(command)) => commands::flood::run(&command),
        #[cfg(feature = "tune")]
        Some(Command::Tune(tune)) => commands::tune::run(&tune),
        Some(Command::Health(health)) => commands::health::run(&health),
        Some(Command::Key(what)) => commands::key::run(&what),
        Some(Command::Store(what)) => commands::store::run(&what),
        Some(Command::History(what)) => commands::history::run(&what),
        Some(Command::Outbox(what)) => commands::outbox::run(&what),
        Some(Command::Token(what)) => commands::token::run(&what),
        Some(Command::Subscriptions(what)) => commands::subscriptions::run(&what),
        #[cfg(feature = "top")]
        Some(Command::Top(top)) => commands::top::run(&top),
        Some(Command::Trace(trace)) => commands::trace::run(&trace),
        Some(Command::Bundle(bundle)) => commands::bundle::run(&bundle),
        Some(Command::Upgrade(upgrade)) => commands::upgrade::run(&upgrade),
        Some(Command::Drain(drain)) => commands::drain::run(&drain),
        Some(Command::Rebalance(rebalance)) => commands::rebalance::run(&rebalance),
        Some(Command::Parent) => commands::parent::run(),
        Some(Command::Completions(completions)) => commands::completions::run(&completions),
        Some(Command::Man(man)) => commands::man::run(&man),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}

/// Returns clap's form of the command line, for generators of documentation.
pub fn command() -> clap::Command {
    Cli::command()
}
