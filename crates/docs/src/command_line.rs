//! The page of commands, from the parser.

use std::fmt::Write;

use clap::{Arg, Command};

/// Returns the page.
pub fn page(mut command: Command) -> String {
    let mut out = include_str!("command_line.md").to_owned();
    command.build();
    command_of(&mut out, &command, "throng", 2, &[]);
    out
}

/// Writes a command and its subcommands. `said` are flags that the parent command has explained.
fn command_of(out: &mut String, command: &Command, words: &str, level: usize, said: &[&str]) {
    let below: Vec<&Command> = {
        let is_shown = |below: &&Command| below.get_name() != "help" && !below.is_hide_set();
        command.get_subcommands().filter(is_shown).collect()
    };
    let _ = write!(out, "\n{} {words}\n", "#".repeat(level));
    let about = command.get_long_about().or(command.get_about());
    if let Some(about) = about {
        let _ = write!(out, "\n{}\n", sentences(&text(&about.to_string())));
    }
    let usage = command.clone().render_usage().to_string();
    for usage in usage.trim_start_matches("Usage:").lines().filter(|line| !line.trim().is_empty()) {
        let _ = write!(out, "\n`{}`\n", usage.trim());
    }
    if !below.is_empty() {
        out.push_str("\n| command | |\n| --- | --- |\n");
        for below in &below {
            let words = format!("{words} {}", below.get_name());
            let about = below.get_about().map(ToString::to_string).unwrap_or_default();
            let _ =
                writeln!(out, "| [`{words}`](#{}) | {} |", words.replace(' ', "-"), text(&about));
        }
    }
    // "throng" alone takes the flags of "throng serve", which has the rows.
    let mut own = if words == "throng" { Vec::new() } else { args(command, said) };
    let settings = command.get_groups().find(|group| group.get_id() == "Flags");
    let settings = settings.filter(|_| !matches!(words, "throng" | "throng serve"));
    if let Some(settings) = settings {
        own.retain(|arg| !settings.get_args().any(|it| it == arg.get_id()));
    }
    rows(out, "flag", &own);
    if settings.is_some() {
        out.push_str("\nAnd the flags of [`throng serve`](#throng-serve) that are settings.\n");
    }
    let (shared, without) = shared(&below);
    if !shared.is_empty() {
        let but: String = without.iter().map(|name| format!(" but `{name}`")).collect();
        let _ = write!(out, "\nAll of these{but} take:\n");
        let all: Vec<&Arg> = args(below[0], said)
            .into_iter()
            .filter(|it| shared.contains(&it.get_id().as_str()))
            .collect();
        rows(out, "flag", &all);
    }
    if let Some(more) = command.get_after_long_help() {
        after(out, &more.to_string(), said.is_empty());
    }
    for below in below {
        let words = format!("{words} {}", below.get_name());
        command_of(out, below, &words, (level + 1).min(4), &shared);
    }
}

fn args<'a>(command: &'a Command, said: &[&str]) -> Vec<&'a Arg> {
    let known = |arg: &&Arg| {
        let id = arg.get_id().as_str();
        !arg.is_hide_set() && !said.contains(&id) && id != "help" && id != "version"
    };
    command.get_arguments().filter(known).collect()
}

/// Returns the flags that several commands all have: the page explains them at the parent command. Two commands with
/// a flag or two in common explain them themselves. One of many commands may have none of them: its name is returned,
/// too.
fn shared<'a>(below: &[&'a Command]) -> (Vec<&'a str>, Option<&'a str>) {
    let none = (Vec::new(), None);
    let [first, rest @ ..] = below else { return none };
    let ids =
        |command: &'a Command| args(command, &[]).into_iter().map(|arg| arg.get_id().as_str());
    let has = |command: &'a Command, id: &str| ids(command).any(|it| it == id);
    let (with, without): (Vec<&Command>, Vec<&Command>) =
        rest.iter().copied().partition(|other| ids(first).any(|id| has(other, id)));
    let all: Vec<&str> = ids(first).filter(|id| with.iter().all(|other| has(other, id))).collect();
    match without.as_slice() {
        _ if with.len() < 2 || all.len() < 3 => none,
        [] => (all, None),
        [one] if with.len() > 5 => (all, Some(one.get_name())),
        _ => none,
    }
}

fn rows(out: &mut String, title: &str, args: &[&Arg]) {
    if args.is_empty() {
        return;
    }
    let _ = write!(out, "\n| {title} | |\n| --- | --- |\n");
    for arg in args {
        let help = arg.get_long_help().or(arg.get_help());
        let mut help = text(&help.map(ToString::to_string).unwrap_or_default()).replace('\n', " ");
        let defaults = arg.get_default_values();
        if !defaults.is_empty() && arg.get_action().takes_values() {
            let defaults: Vec<_> = defaults.iter().map(|it| it.to_string_lossy()).collect();
            let _ = write!(help, " [default: {}]", defaults.join(","));
        }
        let _ = writeln!(out, "| `{}` | {} |", name(arg), help.replace('|', "\\|"));
    }
}

/// Formats a flag as users write it: `--hold <TIME>`.
fn name(arg: &Arg) -> String {
    let value = match (arg.get_action().takes_values(), arg.get_value_names()) {
        (true, Some([name, ..])) => format!("<{name}>"),
        _ => String::new(),
    };
    let short = arg.get_short().map_or(String::new(), |short| format!("-{short}, "));
    let name = match arg.get_long() {
        Some(long) => format!("{short}--{long} {value}"),
        None => value,
    };
    name.trim().replace('|', "\\|")
}

/// Writes the text below the flags: prose, examples, exit statuses unless the parent command has them.
fn after(out: &mut String, more: &str, with_status: bool) {
    for part in more.split("\n\n") {
        let (title, rest) = part.split_once('\n').unwrap_or((part, ""));
        match title {
            "Examples:" => {
                out.push_str("\nExamples:\n\n");
                for line in rest.lines() {
                    let (example, about) =
                        line.trim().split_once("  ").unwrap_or((line.trim(), ""));
                    let about = about.trim();
                    let colon = if about.is_empty() { "" } else { ": " };
                    let _ = writeln!(out, "- `{example}`{colon}{}", text(about));
                }
            }
            "Exit status:" if !with_status => {}
            "Exit status:" => {
                out.push_str("\n| exit status | |\n| --- | --- |\n");
                let mut row = String::new();
                for line in rest.lines() {
                    match line
                        .trim()
                        .split_once("  ")
                        .filter(|(code, _)| code.parse::<u8>().is_ok())
                    {
                        Some((code, about)) => {
                            out.push_str(&finished(&mut row));
                            row = format!("| {code} | {}", text(about.trim()));
                        }
                        None => {
                            let _ = write!(row, " {}", text(line.trim()));
                        }
                    }
                }
                out.push_str(&finished(&mut row));
            }
            _ => {
                let _ = write!(out, "\n{}\n", text(part));
            }
        }
    }
}

fn finished(row: &mut String) -> String {
    let row = std::mem::take(row);
    if row.is_empty() { row } else { row + " |\n" }
}

/// Converts a text of the help to Markdown.
fn text(help: &str) -> String {
    help.replace('<', "&lt;").replace('*', "\\*").replace("[[", "\\[[")
}

/// Ends each paragraph with a full stop.
fn sentences(text: &str) -> String {
    let paragraphs = text.split("\n\n").map(|it| match it.ends_with(['.', ':', '?']) {
        true => it.to_owned(),
        false => format!("{it}."),
    });
    paragraphs.collect::<Vec<_>>().join("\n\n")
}
