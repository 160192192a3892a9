//! The command line.

use clap::error::{ContextKind, ContextValue};
use clap::{Args, Parser, Subcommand};

use crate::flags::Flags;
use crate::help;

/// A push server: holds the live connections of millions of users and carries a message to any of
/// them, or all of them, the moment it is published.
///
/// Without a command, it serves clients, with the flags of "throng serve". Clients connect to one
/// port by Server-Sent Events, HTTP streams, long polls, WebSocket or Phoenix Channels;
/// applications publish, and operators monitor, at another.
#[derive(Parser)]
#[command(name = "throng", version, about, after_long_help = help::ALL)]
#[command(args_conflicts_with_subcommands = true, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub serve: Serve,
}

/// The commands that a binary may be built without, each with whether this binary has it.
const HOST_TOOLS: [(&str, bool); 3] = [
    ("flood", cfg!(feature = "flood")),
    ("top", cfg!(feature = "top")),
    ("tune", cfg!(feature = "tune")),
];

/// Returns advice for a command line that can't be parsed, besides what its error says.
pub fn advice(error: &clap::Error) -> Option<String> {
    match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(name)) if HOST_TOOLS.contains(&(name, false)) => Some(format!(
            "This binary was built as a server only (--no-default-features), without {name}: use a \
             binary that was built with it."
        )),
        _ => None,
    }
}

#[derive(Subcommand)]
pub enum Command {
    /// Serve clients and applications (this is what throng does without a command).
    ///
    /// Listens on two ports, with --mqtt on a third, prints what to try, and runs until a signal ends it.
    #[command(after_long_help = help::SERVE)]
    Serve(Serve),
    /// Print the configuration in force, and the source of each value.
    ///
    /// Takes the same flags as "throng serve", and reads the same file and variables.
    #[command(after_long_help = help::CONFIG)]
    Config(Config),
    /// Open many client connections to a server, publish, and check what arrives.
    ///
    /// Works against Throng and other servers that speak Server-Sent Events, line-wise HTTP
    /// streams, WebSocket or Phoenix Channels. The scenario says what the clients do. All
    /// scenarios share the other flags.
    #[cfg(feature = "flood")]
    #[command(subcommand, after_long_help = help::FLOOD)]
    Flood(Box<flood::Command>),
    /// Report how many connections this host can hold and which settings to change, or change them.
    ///
    /// Reads the kernel's settings. For a number of connections, it says what each setting means,
    /// which to change with which exact command, and which old advice to ignore.
    #[cfg(feature = "tune")]
    #[command(after_long_help = help::TUNE)]
    Tune(Tune),
    /// Report whether a node is ready for clients, for health checks of containers and scripts.
    ///
    /// Requests /readyz at the admin port, or /healthz with --live. Neither needs a key.
    #[command(after_long_help = help::HEALTH)]
    Health(Health),
    /// Make an API key with the scopes that it needs, or show what a key permits.
    ///
    /// The configuration of the server has only the hashes of keys, in [[keys]] tables.
    #[command(subcommand, after_long_help = help::KEY)]
    Key(crate::commands::key::What),
    /// Back up a store, check it for damage, compact its file, salvage what is undamaged into a
    /// new store, or move its history into PostgreSQL and back.
    ///
    /// A store is the directory of "throng serve --data". Only "backup" works on a store that a
    /// server has open.
    #[command(subcommand, after_long_help = help::STORE)]
    Store(crate::commands::store::What),
    /// Create the tables and functions for a history of topics in PostgreSQL.
    ///
    /// The server creates them itself when it starts, if its PostgreSQL user may.
    #[command(subcommand, after_long_help = help::HISTORY)]
    History(crate::commands::history::What),
    /// Create the tables and functions for messages that applications publish in their own
    /// transactions.
    ///
    /// The server creates them itself when it starts, if its PostgreSQL user may.
    #[command(subcommand, after_long_help = help::OUTBOX)]
    Outbox(crate::commands::outbox::What),
    /// Import users' durable subscriptions from a file, list a user's topics or a topic's
    /// followers, or generate a graph of followers.
    ///
    /// A user enters the topics of these subscriptions on each connect. "import", "list" and
    /// "followers" call a running node.
    #[command(subcommand, after_long_help = help::SUBSCRIPTIONS)]
    Subscriptions(crate::commands::subscriptions::What),
    /// Make a token for a client, or show what a token contains and whether a server accepts it.
    ///
    /// This is for trials: an application makes its own tokens, with a library for JSON Web Tokens.
    #[command(subcommand, after_long_help = help::TOKEN)]
    Token(crate::commands::token::What),
    /// Watch the figures of a node, on this host or another, in the terminal.
    ///
    /// Shows what the dashboard shows, a sample a second. If standard output is not a terminal, it
    /// prints one sample as text.
    #[cfg(feature = "top")]
    #[command(after_long_help = help::TOP)]
    Top(Top),
    /// Follow one user, or one connection, in the terminal: connects, topics, messages, and why a
    /// message is not delivered.
    ///
    /// Shows the events of the node that it calls as they happen, without payloads. Ctrl-C ends it.
    #[command(after_long_help = help::TRACE)]
    Trace(crate::commands::trace::Trace),
    /// Collect what a bug report needs in one file: figures, the configuration, metrics, the host.
    ///
    /// The file has no secrets, and no names of users except in a log that you add. Read it before
    /// you share it.
    #[command(after_long_help = help::BUNDLE)]
    Bundle(crate::commands::bundle::Bundle),
    /// Replace the binary of a running server, and keep every connection.
    ///
    /// The server starts the new binary, copies all its state to the new process while it serves,
    /// and hands over in a moment. If anything goes wrong before that, the server continues to
    /// serve.
    #[command(after_long_help = help::UPGRADE)]
    Upgrade(Upgrade),
    /// Close the connections of a running node over a period, so that it can be stopped or moved.
    ///
    /// The node reports that it is not ready, so that load balancers take it out. Then it closes
    /// its connections evenly, and tells each client, in its protocol, to connect again to another
    /// server. Without connections, the node continues to run. If you end this command early, the
    /// drain continues.
    #[command(after_long_help = help::DRAIN)]
    Drain(crate::commands::drain::Drain),
    /// Move connections from the nodes of a cluster that have more than the mean to the other
    /// nodes.
    ///
    /// Each node above the mean closes its surplus, chosen at random, at a limited rate, and tells
    /// the clients to use another server; the load balancer in front chooses it. If you end this
    /// command early, the nodes still close the surplus that they have begun to close.
    #[command(after_long_help = help::REBALANCE)]
    Rebalance(crate::commands::rebalance::Rebalance),
    /// Wait for the server that has taken over, in place of the previous one. The server starts
    /// this command.
    #[command(hide = true)]
    Parent,
    /// Print a script that completes commands and flags in a shell.
    #[command(after_long_help = help::COMPLETIONS)]
    Completions(Completions),
    /// Print the manual page, or write one for each command.
    #[command(after_long_help = help::MAN)]
    Man(Man),
}

#[derive(Args)]
pub struct Serve {
    #[command(flatten)]
    pub settings: Flags,
    /// Serve the chat of examples/chat at the client port, with rules that let its clients use the
    /// rooms (room:*).
    #[arg(long)]
    pub demo: bool,
    /// Serve an echo WebSocket at /echo, for conformance tests.
    #[arg(long)]
    pub ws_echo: bool,
    /// Wait at this Unix socket for a running server ("throng upgrade --to SOCKET"), and take over
    /// all its connections.
    #[arg(long, value_name = "SOCKET")]
    pub take_over: Option<std::path::PathBuf>,
    /// After an upgrade, wait until the new process ends, and end with its status: for supervisors
    /// that would start another server when this process ends. Process 1 always does so.
    #[arg(long)]
    pub stay: bool,
}

#[derive(Args)]
pub struct Health {
    /// The node's admin port: a URL, or a host and port.
    #[arg(long, default_value = "http://127.0.0.1:8001", value_name = "URL")]
    pub admin: String,
    #[command(flatten)]
    pub access: crate::node::Access,
    /// Check only whether the process is alive, not whether it accepts new connections.
    #[arg(long)]
    pub live: bool,
}

#[derive(Args)]
pub struct Upgrade {
    /// The node's admin port: a URL, or a host and port.
    #[arg(long, default_value = "http://127.0.0.1:8001", value_name = "URL")]
    pub admin: String,
    #[command(flatten)]
    pub access: crate::node::Access,
    /// The new binary, on the server's host [default: the path that the server was started by].
    #[arg(long, value_name = "PATH")]
    pub binary: Option<std::path::PathBuf>,
    /// Hand over to the process that waits at this socket (throng serve --take-over) instead of starting
    /// one.
    #[arg(long, value_name = "SOCKET", conflicts_with = "binary")]
    pub to: Option<std::path::PathBuf>,
    /// Only check whether the upgrade would work, and show what would change.
    #[arg(long)]
    pub check: bool,
    /// Print each step, and the result, as a JSON object on a line of its own.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Config {
    #[command(flatten)]
    pub settings: Flags,
    /// Print a commented file with every setting at its default.
    #[arg(long, conflicts_with = "check")]
    pub default: bool,
    /// Only check whether the configuration is valid.
    #[arg(long)]
    pub check: bool,
    /// Check it against the checklist for a public server, point by point.
    #[arg(long, requires = "check")]
    pub public: bool,
}

#[cfg(feature = "tune")]
#[derive(Args)]
pub struct Tune {
    /// The number of connections to prepare for.
    #[arg(long, short, default_value_t = 1_000_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub connections: u64,
    /// The load generator runs on this host too: both ends of each connection are here.
    #[arg(long)]
    pub both_ends: bool,
    /// Apply the settings that can be changed now (as root).
    #[arg(long, conflicts_with_all = ["sysctl", "systemd", "json", "host"])]
    pub apply: bool,
    /// Print a file for /etc/sysctl.d.
    #[arg(long, conflicts_with_all = ["systemd", "json", "host"])]
    pub sysctl: bool,
    /// Print a systemd unit that works as it is: with its limits, data directory, key file and sandbox.
    #[arg(long, conflicts_with_all = ["json", "host"])]
    pub systemd: bool,
    /// The path of the binary in that unit [default: this one].
    #[arg(long, requires = "systemd", value_name = "PATH")]
    pub binary: Option<std::path::PathBuf>,
    /// Print the unit of a package instead, which runs as the user throng on any host.
    #[arg(long, requires_all = ["systemd", "binary"], hide = true)]
    pub package: bool,
    /// Print the advice as JSON.
    #[arg(long, conflicts_with = "host")]
    pub json: bool,
    /// Print what was read from this host as JSON, to send to someone who can help.
    #[arg(long)]
    pub host: bool,
}

#[cfg(feature = "top")]
#[derive(Args)]
pub struct Top {
    /// The node's admin port: a URL, or a host and port.
    #[arg(default_value = "http://127.0.0.1:8001", value_name = "URL")]
    pub url: String,
    #[command(flatten)]
    pub access: crate::node::Access,
    /// Print one sample and exit.
    #[arg(long)]
    pub once: bool,
    /// Print a sample a second, each a JSON object on a line of its own; with --cluster one every two seconds.
    #[arg(long)]
    pub json: bool,
    /// Show all nodes of the node's cluster in one table.
    #[arg(long)]
    pub cluster: bool,
    /// With --cluster: sort the nodes by this column.
    #[arg(long, value_name = "COLUMN", default_value = "node", requires = "cluster",
        value_parser = clap::builder::PossibleValuesParser::new(top::cluster::Column::NAMES))]
    pub sort: String,
}

#[derive(Args)]
pub struct Completions {
    /// The shell.
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

#[derive(Args)]
pub struct Man {
    /// Write a page for each command into this directory: throng.1, throng-serve.1 and so on.
    #[arg(long, value_name = "DIR")]
    pub output: Option<std::path::PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    use super::*;

    fn visit(command: &mut clap::Command, each: &mut dyn FnMut(&mut clap::Command)) {
        each(command);
        for below in command.get_subcommands_mut().filter(|below| below.get_name() != "help") {
            visit(below, each);
        }
    }

    /// Returns the examples of a help text: what is indented below "Examples:", up to a wide gap.
    fn examples(help: &str) -> Vec<String> {
        let lines = help.lines().skip_while(|line| *line != "Examples:").skip(1);
        let lines = lines.take_while(|line| line.starts_with("  "));
        lines.map(|line| line.trim().split("  ").next().unwrap().to_owned()).collect()
    }

    #[test]
    fn every_command_has_a_purpose_and_every_flag_a_meaning() {
        let mut command = Cli::command();
        command.build();
        command.clone().debug_assert();
        visit(&mut command, &mut |command| {
            let name = command.get_name().to_owned();
            assert!(command.get_about().is_some(), "{name}");
            let text = command.render_long_help().to_string();
            // Clap takes {n} in a text for a line end.
            assert!(!text.contains("\n\n\n\n"), "{name}: {text}");
            for arg in command.get_arguments() {
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.len() > 3, "{name}: {}", arg.get_id());
                assert!(!help.contains('\n'), "{name}: {} has {{n}}", arg.get_id());
            }
        });
    }

    /// Clap wraps text for the terminal, and leaves every line end in it.
    #[test]
    fn no_paragraph_of_a_help_text_is_broken_into_lines() {
        let mut command = Cli::command();
        command.build();
        visit(&mut command, &mut |command| {
            let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            for part in help.split("\n\n").filter(|part| !part.contains("\n  ")) {
                assert!(!part.contains('\n'), "{}: {part}", command.get_name());
            }
        });
    }

    #[test]
    fn every_example_of_a_help_text_is_a_command_line() {
        let mut command = Cli::command();
        command.build();
        let mut seen = 0;
        visit(&mut command, &mut |command| {
            let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            for example in examples(&help) {
                let words = example.split(['<', '>', '|']).next().unwrap().split_whitespace();
                match Cli::try_parse_from(words) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::DisplayHelp => {}
                    Err(error) => panic!("{example}: {error}"),
                }
                seen += 1;
            }
        });
        assert!(seen > 10, "{seen}");
    }

    #[test]
    fn the_help_names_the_commands_that_there_are() {
        let all = [
            ("serve", true),
            ("config", true),
            ("flood", cfg!(feature = "flood")),
            ("tune", cfg!(feature = "tune")),
            ("health", true),
            ("key", true),
            ("store", true),
            ("bundle", true),
            ("trace", true),
            ("subscriptions", true),
            ("token", true),
            ("upgrade", true),
            ("drain", true),
            ("rebalance", true),
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
