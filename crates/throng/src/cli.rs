//! The command line.

use std::path::PathBuf;

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

#[derive(Subcommand)]
pub enum Command {
    /// Serve clients and applications (this is what throng does without a command).
    Serve(Serve),
    /// Print the configuration in force, with where each value came from.
    Config(Config),
    /// Open and hold a crowd of clients against a server, publish, and check what arrives.
    #[command(subcommand)]
    Flood(Box<flood::Scenario>),
    /// Say what this host can hold and what to change, or change it.
    Tune(Tune),
    /// Look for damage in a store, or write a new one of all that is whole.
    #[command(subcommand)]
    Store(crate::commands::store::What),
    /// Subscribe users for good from a file, list a user's topics, or make up a graph of followers.
    #[command(subcommand)]
    Subscriptions(crate::commands::subscriptions::What),
    /// Watch a node's figures in the terminal, here or elsewhere.
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
    /// Print a systemd unit with the limits it needs.
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
#[derive(Args)]
pub struct Top {
    /// The node's admin port: a URL, or a host and port.
    #[arg(default_value = "http://127.0.0.1:8001", value_name = "URL")]
    pub url: String,
    /// Read the API key from this file instead of the variable THRONG_ADMIN_API_KEY.
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Print one sample and end.
    #[arg(long)]
    pub once: bool,
    /// Print a sample a second, each a JSON object on a line of its own.
    #[arg(long)]
    pub json: bool,
}
