//! The command line.

use clap::error::{ContextKind, ContextValue};
use clap::{Args, Parser, Subcommand};

use crate::flags::Flags;
use crate::help;

/// A push server: holds the live connections of millions of users and carries a message to any of
/// them, or all of them, the moment it is published.
///
/// Without a command it serves, with the flags of "throng serve". Clients connect to one port by
/// Server-Sent Events, HTTP streams, long polls, WebSocket or Phoenix Channels; applications publish and
/// operators look at another.
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
            "This binary was built as a server only (--no-default-features), without {name}: call \
             one that was built with it."
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
    /// Print the configuration in force, with where each value came from.
    ///
    /// Takes the same flags as "throng serve", and reads the same file and variables.
    #[command(after_long_help = help::CONFIG)]
    Config(Config),
    /// Open and hold a crowd of clients against a server, publish, and check what arrives.
    ///
    /// Works against Throng and other servers that speak Server-Sent Events, line-wise HTTP streams,
    /// WebSocket or Phoenix Channels. A scenario says what the crowd does; all have the same further flags.
    #[cfg(feature = "flood")]
    #[command(subcommand, after_long_help = help::FLOOD)]
    Flood(Box<flood::Command>),
    /// Say what this host can hold and what to change, or change it.
    ///
    /// Reads the kernel's settings, and says for so many connections what each of them means, the exact
    /// command for what should change, and which old advice to leave alone.
    #[cfg(feature = "tune")]
    #[command(after_long_help = help::TUNE)]
    Tune(Tune),
    /// Say whether a node is ready for clients: for health checks of containers and scripts.
    ///
    /// Requests /readyz at the admin port, or /healthz with --live. Neither needs a key.
    #[command(after_long_help = help::HEALTH)]
    Health(Health),
    /// Make a key of the API with the scopes that it needs, or say what a key may be used for.
    ///
    /// The server knows keys by their hashes, in tables [[keys]] of its configuration.
    #[command(subcommand, after_long_help = help::KEY)]
    Key(crate::commands::key::What),
    /// Back up a store, look for damage in it, shorten its file, write a new one of all that is whole, or move its
    /// history into PostgreSQL and back.
    ///
    /// A store is the directory of "throng serve --data". Only "backup" copies one that a server has open.
    #[command(subcommand, after_long_help = help::STORE)]
    Store(crate::commands::store::What),
    /// Make the tables and functions for a history of topics in PostgreSQL.
    ///
    /// The server makes them itself when it starts, where its user in PostgreSQL may.
    #[command(subcommand, after_long_help = help::HISTORY)]
    History(crate::commands::history::What),
    /// Make the tables and functions for what applications publish in their own transactions.
    ///
    /// The server makes them itself when it starts, where its user in PostgreSQL may.
    #[command(subcommand, after_long_help = help::OUTBOX)]
    Outbox(crate::commands::outbox::What),
    /// Subscribe users for good from a file, list a user's topics or a topic's followers, or make up a
    /// graph of followers.
    ///
    /// A user enters the topics of these subscriptions on each connect. "import", "list" and "followers"
    /// speak to a running node.
    #[command(subcommand, after_long_help = help::SUBSCRIPTIONS)]
    Subscriptions(crate::commands::subscriptions::What),
    /// Make a token for a client, or say what one says and whether a server takes it.
    ///
    /// For whoever tries something out: an application makes its own, with a library for JSON Web Tokens.
    #[command(subcommand, after_long_help = help::TOKEN)]
    Token(crate::commands::token::What),
    /// Watch a node's figures in the terminal, here or elsewhere.
    ///
    /// Shows what the dashboard shows, a sample a second. When standard output is no terminal, one sample
    /// is printed as text.
    #[cfg(feature = "top")]
    #[command(after_long_help = help::TOP)]
    Top(Top),
    /// Follow one user, or one connection, in the terminal: connects, topics, messages, and why one does not come.
    ///
    /// Shows what happens on the node that it calls, as it happens, and no payloads. Ctrl-C ends it.
    #[command(after_long_help = help::TRACE)]
    Trace(crate::commands::trace::Trace),
    /// Gather what a report of a fault needs into one text: figures, the configuration, metrics, the host.
    ///
    /// No secret is in it, and no name of a user but in a log that is added. Read it before you pass it on.
    #[command(after_long_help = help::BUNDLE)]
    Bundle(crate::commands::bundle::Bundle),
    /// Have a running server go on as another binary, and keep every connection.
    ///
    /// The server starts the new binary, copies all that it has to it while it serves, and hands over in a
    /// moment. Until then nothing is given up: if anything goes wrong, it serves on.
    #[command(after_long_help = help::UPGRADE)]
    Upgrade(Upgrade),
    /// Empty a running node of its connections over a time, so that it can be stopped or moved.
    ///
    /// The node is not ready from then on, so that load balancers take it out. Then it closes its connections evenly, each
    /// with the words of its protocol that say to connect again, to another server. It goes on without connections. When
    /// this command is ended before, the drain goes on.
    #[command(after_long_help = help::DRAIN)]
    Drain(crate::commands::drain::Drain),
    /// Have the nodes of a cluster that have more connections than the mean give some to the others.
    ///
    /// Each of them closes its surplus, chosen at random, at a rate, and tells the clients to use another server: the load
    /// balancer in front brings them to one. When this command is ended before, the nodes close what they have begun with.
    #[command(after_long_help = help::REBALANCE)]
    Rebalance(crate::commands::rebalance::Rebalance),
    /// Wait for the server that has taken over, in the place of the one before. The server starts it.
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
    /// Serve the chat of examples/chat at the client port, and let its rooms (room:*) talk.
    #[arg(long)]
    pub demo: bool,
    /// Serve an echo WebSocket at /echo, for conformance tests.
    #[arg(long)]
    pub ws_echo: bool,
    /// Wait at this Unix socket for a running server, and take its place with all its connections:
    /// "throng upgrade --to SOCKET".
    #[arg(long, value_name = "SOCKET")]
    pub take_over: Option<std::path::PathBuf>,
    /// Stay in place after an upgrade until the new process ends, and end as it does: for supervisors that
    /// would start another server when this process ends. Process 1 does so anyway.
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
    /// Only whether the process lives, not whether it takes new connections.
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
    /// The binary to go on as, on the server's host [default: the path that it was started by].
    #[arg(long, value_name = "PATH")]
    pub binary: Option<std::path::PathBuf>,
    /// Hand over to the process that waits at this socket (throng serve --take-over) instead of starting
    /// one.
    #[arg(long, value_name = "SOCKET", conflicts_with = "binary")]
    pub to: Option<std::path::PathBuf>,
    /// Only find out whether it would work, and what would change.
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
    /// Only say whether the configuration is good.
    #[arg(long)]
    pub check: bool,
    /// Judge it by the checklist of a server that faces the public, point by point.
    #[arg(long, requires = "check")]
    pub public: bool,
}

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
    /// Where that unit finds the binary [default: this one].
    #[arg(long, requires = "systemd", value_name = "PATH")]
    pub binary: Option<std::path::PathBuf>,
    /// Print the unit of a package instead, which runs as the user throng on any host.
    #[arg(long, requires_all = ["systemd", "binary"], hide = true)]
    pub package: bool,
    /// Print the advice as JSON.
    #[arg(long, conflicts_with = "host")]
    pub json: bool,
    /// Print what was read of this host, as JSON: to send it to somebody who can help.
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
    /// Print one sample and end.
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
