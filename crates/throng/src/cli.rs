//! The command line.

use clap::error::{ContextKind, ContextValue};
use clap::{Args, Parser, Subcommand};

use crate::flags::Flags;

/// A push server: holds the live connections of millions of users and carries a message to any of
/// them, or all of them, the moment it is published.
#[derive(Parser)]
#[command(version, about, args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub serve: Serve,
}

/// What a binary may be built without.
const HOST_TOOLS: [&str; 3] = ["flood", "top", "tune"];

/// What to do about a command line that can't be parsed, besides what its error says.
pub fn advice(error: &clap::Error) -> Option<String> {
    match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(name)) if HOST_TOOLS.contains(&name.as_str()) => Some(format!(
            "This binary was built as a server only (--no-default-features), without {name}: call \
             one that was built with it."
        )),
        _ => None,
    }
}

#[derive(Subcommand)]
pub enum Command {
    /// Serve clients and applications (this is what throng does without a command).
    Serve(Serve),
    /// Print the configuration in force, with where each value came from.
    Config(Config),
    /// Open and hold a crowd of clients against a server, publish, and check what arrives.
    #[cfg(feature = "flood")]
    #[command(subcommand)]
    Flood(Box<flood::Scenario>),
    /// Say what this host can hold and what to change, or change it.
    #[cfg(feature = "tune")]
    Tune(Tune),
    /// Look for damage in a store, or write a new one of all that is whole.
    #[command(subcommand)]
    Store(crate::commands::store::What),
    /// Subscribe users for good from a file, list a user's topics, or make up a graph of followers.
    #[command(subcommand)]
    Subscriptions(crate::commands::subscriptions::What),
    /// Watch a node's figures in the terminal, here or elsewhere.
    #[cfg(feature = "top")]
    Top(Top),
}

#[derive(Args)]
pub struct Serve {
    #[command(flatten)]
    pub settings: Flags,
    /// Serve the chat of examples/chat at the client port, and let its rooms (room:*) talk.
    #[arg(long)]
    pub demo: bool,
    /// Serve an echo WebSocket at /echo, for conformance tests.
    #[arg(long)]
    pub ws_echo: bool,
}

#[derive(Args)]
pub struct Config {
    #[command(flatten)]
    pub settings: Flags,
    /// Print a commented file with every setting at its default.
    #[arg(long, conflicts_with = "check")]
    pub default: bool,
    /// Only say whether the configuration is good.
    #[arg(long)]
    pub check: bool,
}

/// The exit status is 0 when the connections fit as the host stands, 3 when they don't.
#[cfg(feature = "tune")]
#[derive(Args)]
pub struct Tune {
    /// Connections to make room for.
    #[arg(long, short, default_value_t = 1_000_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub connections: u64,
    /// The load generator runs on this host too: both ends of each connection are here.
    #[arg(long)]
    pub both_ends: bool,
    /// Set what can be set now (as root).
    #[arg(long, conflicts_with_all = ["sysctl", "systemd", "json", "host"])]
    pub apply: bool,
    /// Print a file for /etc/sysctl.d.
    #[arg(long, conflicts_with_all = ["systemd", "json", "host"])]
    pub sysctl: bool,
    /// Print a systemd unit that works as it is: with its limits, data directory, key file and sandbox.
    #[arg(long, conflicts_with_all = ["json", "host"])]
    pub systemd: bool,
    /// Print the advice as JSON.
    #[arg(long, conflicts_with = "host")]
    pub json: bool,
    /// Print what was read of this host, as JSON: to send it to somebody who can help.
    #[arg(long)]
    pub host: bool,
}

/// When standard output is no terminal, one sample is printed as text.
#[cfg(feature = "top")]
#[derive(Args)]
pub struct Top {
    /// The node's admin port: a URL, or a host and port.
    #[arg(default_value = "http://127.0.0.1:8001", value_name = "URL")]
    pub url: String,
    /// Read the API key from this file instead of the variables THRONG_ADMIN_API_KEY and
    /// THRONG_ADMIN_API_KEY_FILE.
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<std::path::PathBuf>,
    /// Print one sample and end.
    #[arg(long)]
    pub once: bool,
    /// Print a sample a second, each a JSON object on a line of its own.
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    use super::*;

    #[test]
    fn the_help_names_the_commands_that_there_are() {
        let all = [
            ("serve", true),
            ("config", true),
            ("flood", cfg!(feature = "flood")),
            ("tune", cfg!(feature = "tune")),
            ("store", true),
            ("subscriptions", true),
            ("top", cfg!(feature = "top")),
        ];
        let help = Cli::command().render_help().to_string();
        for (name, is_there) in all {
            let is_named = help.lines().any(|line| line.trim_start().starts_with(name));
            assert_eq!(is_named, is_there, "{name}: {help}");
            let Err(error) = Cli::try_parse_from(["throng", name, "--help"]) else {
                panic!("{name} --help is taken for a command line")
            };
            assert_eq!(error.kind() == ErrorKind::DisplayHelp, is_there, "{name}: {error}");
            assert_eq!(advice(&error).is_some(), !is_there, "{name}");
        }
    }
}
