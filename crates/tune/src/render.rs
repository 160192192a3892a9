//! Renders advice for people and for programs.

use std::fmt::Write as _;

use crate::advice::{Advice, Bound};
use crate::estimate::{Estimate, cost};
use crate::finding::{Finding, Level};
use crate::format::{bytes, count, limit};

/// The most columns of a line. Commands are never broken.
const WIDTH: usize = 96;
/// The column where text begins, right of the level.
const INDENT: usize = 9;

/// Returns the advice as indented JSON.
pub fn json(advice: &Advice) -> String {
    // The advice contains texts and numbers only, so this can't fail.
    serde_json::to_string_pretty(advice).unwrap_or_default()
}

/// Returns the advice as text for a terminal: the result first, then the findings, the most important first.
pub fn text(advice: &Advice, color: bool) -> String {
    let mut out = Out { text: String::new(), color };
    let connections = count(advice.want.connections);
    let ends = if advice.want.both_ends { ", both ends on this host" } else { "" };
    out.verdict(advice);
    out.line(&format!("\nThis host: {}", plain(&advice.host)));
    out.line(&format!("Requested: {connections} connections{ends}\n"));
    for finding in advice.findings.iter().filter(|finding| finding.level != Level::Good) {
        out.open_finding(finding);
    }
    for finding in advice.findings.iter().filter(|finding| finding.level == Level::Good) {
        out.good(finding);
    }
    out.useless(advice);
    out.estimate(&advice.estimate, advice);
    out.text
}

struct Out {
    text: String,
    color: bool,
}

impl Out {
    fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end_matches(' '));
        self.text.push('\n');
    }

    fn painted(&self, level: Level, word: &str) -> String {
        let code = match level {
            Level::Must => "31;1",
            Level::Advise => "33",
            Level::Unknown => "36",
            Level::Good => "32",
        };
        if self.color { format!("\x1b[{code}m{word}\x1b[0m") } else { word.to_owned() }
    }

    /// Returns the level. It is padded before it is coloured, because colour codes have no width.
    fn level(&self, level: Level) -> String {
        let word = match level {
            Level::Must => "must",
            Level::Advise => "advise",
            Level::Unknown => "unknown",
            Level::Good => "good",
        };
        self.painted(level, &format!("{word:<INDENT$}"))
    }

    fn wrapped(&mut self, first: &str, text: &str, indent: usize) {
        let (mut line, mut width) = (first.to_owned(), indent);
        for (number, word) in text.split(' ').enumerate() {
            let length = word.chars().count();
            if number > 0 && width + 1 + length > WIDTH {
                self.line(&line);
                (line, width) = (" ".repeat(indent), indent);
            } else if number > 0 {
                line.push(' ');
                width += 1;
            }
            line.push_str(word);
            width += length;
        }
        self.line(&line);
    }

    fn open_finding(&mut self, finding: &Finding) {
        let indent = " ".repeat(INDENT);
        let head =
            format!("{}{}: {}", self.level(finding.level), finding.name, plain(&finding.fact));
        self.line(&head);
        self.wrapped(&indent, &plain(&finding.meaning), INDENT);
        if let Some(remedy) = &finding.remedy {
            if let Some(place) = &remedy.place {
                self.line(&format!("{indent}{place}:"));
            }
            let command = self.painted(Level::Good, &plain(&remedy.command));
            self.line(&format!("{indent}  {command}"));
        }
        self.text.push('\n');
    }

    fn good(&mut self, finding: &Finding) {
        let level = self.level(finding.level);
        let (fact, meaning) = (plain(&finding.fact), plain(&finding.meaning));
        self.wrapped(&level, &format!("{}: {fact}. {}", finding.name, capital(&meaning)), INDENT);
    }

    fn useless(&mut self, advice: &Advice) {
        self.line("\nOld advice to ignore:");
        for followed in [true, false] {
            for line in advice.useless.iter().filter(|line| line.here.is_some() == followed) {
                let here = match &line.here {
                    Some(value) => format!(" (this host: {})", plain(value)),
                    None => String::new(),
                };
                let text = format!("{}{here}: {}", line.setting, line.why);
                let mark =
                    if followed { self.painted(Level::Advise, "! ") } else { "  ".to_owned() };
                self.wrapped(&mark, &text, 4);
            }
        }
    }

    fn estimate(&mut self, estimate: &Estimate, advice: &Advice) {
        let _ = writeln!(self.text, "\nMemory for {} connections:", count(estimate.connections));
        let ends = if advice.want.both_ends { "both ends, " } else { "" };
        let tracked = match estimate.conntrack {
            0 => String::new(),
            conntrack => format!(", {} of it for connection tracking", bytes(conntrack)),
        };
        let each = count(cost::KERNEL_PER_END);
        let lines = [
            (estimate.kernel, format!("kernel: {ends}{each} B for an end{tracked}")),
            (
                estimate.server,
                format!(
                    "server: {} B each, and {} shards",
                    cost::SERVER_PER_CONNECTION,
                    count(advice.shards)
                ),
            ),
            (estimate.generator, "load generator".to_owned()),
            (
                estimate.in_flight,
                format!(
                    "messages sent and not yet read: {} for one connection in {}",
                    bytes(cost::MESSAGE_IN_FLIGHT),
                    cost::IN_FLIGHT_SHARE
                ),
            ),
            (estimate.slack, "reserved for the system".to_owned()),
            (estimate.total, "in total".to_owned()),
        ];
        for (value, what) in lines.iter().filter(|(value, _)| *value > 0) {
            self.line(&format!("  {:>9}  {what}", bytes(*value)));
        }
    }

    /// Writes whether the connections fit, how many the host can serve, and what to do.
    fn verdict(&mut self, advice: &Advice) {
        let connections = count(advice.want.connections);
        let (level, word) = match advice.fits {
            true => (Level::Good, format!("{connections} connections fit:")),
            false => (Level::Must, format!("{connections} connections do not fit:")),
        };
        let bound = |bound: &Bound| format!("{} ({})", limit(bound.connections), bound.set_by);
        let holds = match &advice.holds {
            Some(holds) => format!("this host holds {}", bound(holds)),
            None => "no limit on connections could be read here".to_owned(),
        };
        let painted = self.painted(level, &word);
        self.line(&format!("{painted} {holds}."));
        let todo = if advice.fits { advised(advice) } else { needed(advice) };
        self.line(&todo);
        match (&advice.holds, &advice.holds_after) {
            (Some(now), Some(after)) if after.connections > now.connections => {
                self.line(&format!("With the settings below it holds {}.", bound(after)));
            }
            _ => {}
        }
    }
}

/// Returns what to do if the connections fit.
fn advised(advice: &Advice) -> String {
    let advised = |finding: &&Finding| finding.level == Level::Advise;
    match advice.findings.iter().filter(advised).count() {
        0 => "Nothing has to be done.".to_owned(),
        many => format!("Nothing has to be done, and {} advised below.", things(many)),
    }
}

/// Returns what to do if they don't fit. No full stop follows a command.
fn needed(advice: &Advice) -> String {
    let is_must = |finding: &&Finding| finding.level == Level::Must;
    let musts: Vec<&Finding> = advice.findings.iter().filter(is_must).collect();
    let lacking: Vec<&str> =
        musts.iter().filter(|it| it.remedy.is_none()).map(|it| it.name.as_str()).collect();
    let is_here = |finding: &Finding| {
        finding.remedy.as_ref().is_some_and(|it| it.sysctl.is_some() && it.place.is_none())
    };
    if !lacking.is_empty() {
        return format!(
            "To do: more {}, which no setting adds, or fewer connections.",
            lacking.join(", ")
        );
    }
    if musts.iter().all(|finding| is_here(finding)) {
        let ends = if advice.want.both_ends { " --both-ends" } else { "" };
        let connections = advice.want.connections;
        return format!("To do, as root: throng tune --connections {connections}{ends} --apply");
    }
    format!("To do: everything that is marked must below, {} in total.", musts.len())
}

fn things(many: usize) -> String {
    if many == 1 { "one change is".to_owned() } else { format!("{many} changes are") }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// Replaces control characters. A recorded host may contain any text, and none may control the terminal.
fn plain(text: &str) -> String {
    text.replace(|c: char| c.is_control(), " ")
}
