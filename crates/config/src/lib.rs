//! Throng's configuration: one table of settings ([`SETTINGS`]) from which the parsing of files,
//! variables and flags, the commented default file, and the listing of what is in force are all
//! made. So it is with the keys of the rules by topic ([`TOPIC_KEYS`]), of which a file may have
//! any number.
//!
//! Later sources win: defaults, the file, the environment (`THRONG_<SECTION>_<KEY>`), flags.
//! Nothing is read from the process here: the caller gives texts, so that tests can.

mod check;
mod nearest;
mod print;
mod source;
mod table;
mod topics;
mod typed;
mod url;

use std::fmt;

pub use print::{default_file, effective};
pub use source::Sources;
pub use table::{
    Admin, Client, Config, History, Kind, Limits, Log, Offline, Presence, SETTINGS, Setting,
    Shards, Socket, Store, Timeouts, Webhook, Websocket,
};
pub use topics::{Absent, TOPIC_KEYS, TopicKey, TopicRule};
pub use typed::{ClientEvents, Join, LogFormat, Sender};

/// A value of any setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Bool(bool),
    Number(u64),
    Text(String),
    List(Vec<String>),
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// A line of a file.
    File {
        /// The file's name.
        name: String,
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
    },
    /// An environment variable.
    Variable(String),
    /// A flag of the command line.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { name, line, .. } => write!(f, "{}:{line}", one_line(name)),
            Origin::Variable(name) => write!(f, "variable {}", one_line(name)),
            Origin::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// The text with control characters spelled out: a name from outside must neither end a comment
/// nor steer a terminal.
fn one_line(text: &str) -> String {
    let spelled =
        |c: char| if c.is_control() { c.escape_default().collect() } else { c.to_string() };
    text.chars().map(spelled).collect()
}

/// One thing that is wrong: where, which key, what, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where it was written.
    pub origin: Origin,
    /// The setting, or what was written in its place; empty when the whole file is meant.
    pub key: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::File { column, .. } => write!(f, "{}:{column}: ", self.origin)?,
            Origin::Default => {}
            origin => write!(f, "{origin}: ")?,
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", one_line(&self.key))?;
        }
        f.write_str(&one_line(&self.message))
    }
}

/// Everything that is wrong, at least one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// The configuration in force, and where each value came from.
#[derive(Clone)]
pub struct Loaded {
    /// The typed values.
    pub config: Config,
    values: source::Values,
    rules: Vec<source::Rule>,
}

impl fmt::Debug for Loaded {
    /// The typed values, which hide secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").field("config", &self.config).finish_non_exhaustive()
    }
}

/// What differs between two configurations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Settings that take effect at once; `topics` is all the rules by topic.
    pub applied: Vec<&'static str>,
    /// Settings that take effect with the next start only.
    pub restart: Vec<&'static str>,
}

impl Loaded {
    /// Reads all sources, and checks every value by itself and together. All problems are found,
    /// not only the first.
    pub fn load(sources: &Sources<'_>) -> Result<Loaded, Problems> {
        Loaded::check(source::read(sources))
    }

    fn check(mut read: source::Read) -> Result<Loaded, Problems> {
        let config = table::typed(&read.values, &read.rules);
        check::together(&config, &mut read);
        match read.problems.is_empty() {
            true => Ok(Loaded { config, values: read.values, rules: read.rules }),
            false => Err(Problems(read.problems)),
        }
    }

    /// What is in force after a reload: the new values that take effect at once, and the old ones
    /// of settings that need a restart. Both configurations are good, their mixture may not be (the
    /// key taken away together with a listener that stays open until the restart), so it is checked
    /// again; with problems, nothing should be taken over.
    pub fn reloaded(&self, new: &Loaded) -> Result<Loaded, Problems> {
        let (values, rules) = (new.values.clone(), new.rules.clone());
        let mut read = source::Read { values, rules, ..Default::default() };
        for setting in SETTINGS.iter().filter(|setting| !setting.reload) {
            if let Some(kept) = self.values.get(setting.key) {
                read.values.insert(setting.key, kept.clone());
            }
        }
        Loaded::check(read)
    }

    /// Where a setting's value came from; [`Origin::Default`] for a key that does not exist.
    pub fn origin(&self, key: &str) -> &Origin {
        self.values.get(key).map_or(&Origin::Default, |(_, origin)| origin)
    }

    /// The keys that begin with `prefix` and have a number.
    pub fn numbers(&self, prefix: &str) -> impl Iterator<Item = (&'static str, u64)> {
        self.values.iter().filter_map(move |(key, (value, _))| match value {
            Value::Number(number) if key.starts_with(prefix) => Some((*key, *number)),
            _ => None,
        })
    }

    /// What a reload would change.
    pub fn changes(&self, new: &Loaded) -> Changes {
        let mut changes = Changes::default();
        for setting in SETTINGS {
            let value =
                |loaded: &Loaded| loaded.values.get(setting.key).map(|(value, _)| value.clone());
            if value(self) != value(new) {
                let list = if setting.reload { &mut changes.applied } else { &mut changes.restart };
                list.push(setting.key);
            }
        }
        if self.config.topics != new.config.topics {
            changes.applied.push("topics");
        }
        changes
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod topics_tests;
