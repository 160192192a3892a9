//! Throng, the push server. A command is one file in `commands`.

mod allocator;
mod cli;
mod commands;
mod sources;

use std::process::ExitCode;

use clap::Parser;
use cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        None => commands::serve::run(&cli.serve),
        Some(Command::Serve(serve)) => commands::serve::run(&serve),
        Some(Command::Config(config)) => commands::config::run(&config),
        Some(Command::Flood(scenario)) => commands::flood::run(&scenario),
        Some(Command::Tune(tune)) => commands::tune::run(&tune),
        Some(Command::Store(what)) => commands::store::run(&what),
        Some(Command::Subscriptions(what)) => commands::subscriptions::run(&what),
        Some(Command::Top(top)) => commands::top::run(&top),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
