//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

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
}

#[derive(Args)]
pub struct Serve {
    #[command(flatten)]
    pub settings: Flags,
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

/// The settings that have a flag; each wins over the file and the environment. Values stay texts
/// here: the configuration judges them, all at once and with the file's.
#[derive(Args)]
pub struct Flags {
    /// Read the configuration from this file instead of ./throng.toml.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where clients connect [default: 127.0.0.1:8000].
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Where applications and operators connect [default: 127.0.0.1:8001].
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<String>,
    /// Let clients connect from other machines although nothing authenticates them.
    #[arg(long)]
    pub insecure: bool,
    /// Event loops [default: what cores, connections and the limit on open files ask for].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub shards: Option<String>,
    /// Connections in all [default: 100000].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub max_connections: Option<String>,
    /// How messages leave: io_uring batches where the kernel allows them, or one write for each
    /// connection [default: auto].
    #[arg(long, value_name = "auto|io_uring|write")]
    pub sender: Option<String>,
    /// Bind each shard to a core.
    #[arg(long)]
    pub pin_cpus: bool,
    /// Read the API key from this file.
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// What is logged: error, warn, info, debug, trace, or a filter [default: info].
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<String>,
    /// How it is logged: lines for people, or a JSON object a line [default: text].
    #[arg(long, value_name = "text|json")]
    pub log_format: Option<String>,
}

/// Why a command failed: whose fault it is decides the exit code.
#[derive(Debug)]
pub enum Failure {
    /// The configuration or the command line is wrong; a line for each problem.
    Usage(String),
    /// The system refused something.
    Runtime(String),
}

impl Failure {
    /// Prints the error lines and gives the exit code: 2 for usage, 1 for the rest.
    pub fn report(self) -> ExitCode {
        let (text, code) = match self {
            Failure::Usage(text) => (text, 2),
            Failure::Runtime(text) => (text, 1),
        };
        for line in text.lines() {
            eprintln!("error: {line}");
        }
        ExitCode::from(code)
    }
}
