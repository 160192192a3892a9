//! The results of checks, with remedies.

use serde::{Deserialize, Serialize};

use crate::host::Host;

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The name of the check: a sysctl's name if it checks one.
    pub name: String,
    /// The current value.
    pub fact: String,
    /// The meaning of the value for the wanted connections.
    pub meaning: String,
    /// Its importance.
    pub level: Level,
    /// The most connections that it allows, if it bounds them.
    pub bound: Option<u64>,
    /// The remedy, if it has one.
    pub remedy: Option<Remedy>,
}

/// The importance of a finding. The most important comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The connections don't fit until this is changed.
    Must,
    /// The connections fit, and a change would help.
    Advise,
    /// The host hides the value, or nothing can be concluded from it.
    Unknown,
    /// Nothing to do.
    Good,
}

/// A remedy for a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remedy {
    /// A command line, or a part of one.
    pub command: String,
    /// The place to run it, if not this host.
    pub place: Option<String>,
    /// The setting that it changes, if it changes one.
    pub sysctl: Option<Sysctl>,
}

/// A setting of /proc/sys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sysctl {
    /// Its name: `fs.file-max`.
    pub key: String,
    /// Its new value.
    pub value: String,
}

impl Finding {
    /// Returns a finding without bound and remedy.
    pub(crate) fn new(
        level: Level,
        name: impl Into<String>,
        fact: impl Into<String>,
        meaning: impl Into<String>,
    ) -> Finding {
        let (name, fact, meaning) = (name.into(), fact.into(), meaning.into());
        Finding { name, fact, meaning, level, bound: None, remedy: None }
    }

    /// Returns a finding for a value that the host hides.
    pub(crate) fn hidden(host: &Host, name: &str) -> Finding {
        let meaning = match host.container.is_some() {
            true => "a container doesn't see it: look on the machine that runs it",
            false => "it could not be read, so it is not judged",
        };
        Finding::new(Level::Unknown, name, "hidden", meaning)
    }

    pub(crate) fn bound(mut self, connections: u64) -> Finding {
        self.bound = Some(connections);
        self
    }

    pub(crate) fn command(mut self, command: impl Into<String>) -> Finding {
        self.remedy = Some(Remedy { command: command.into(), place: None, sysctl: None });
        self
    }

    /// Adds a remedy that sets the sysctl of this finding's name.
    pub(crate) fn set(self, host: &Host, value: impl ToString) -> Finding {
        let key = self.name.clone();
        self.set_key(host, &key, value)
    }

    pub(crate) fn set_key(mut self, host: &Host, key: &str, value: impl ToString) -> Finding {
        let value = value.to_string();
        let pair = match value.contains(' ') {
            true => format!("{key}='{value}'"),
            false => format!("{key}={value}"),
        };
        let read_only = host.container.is_some() && host.sysctl_read_only == Some(true);
        let (command, place) = match (read_only, is_per_container(key)) {
            (false, _) => (format!("sysctl -w {pair}"), None),
            (true, true) => {
                let place = "where the container is started";
                let (run, pod) = (format!("--sysctl {pair}"), format!("sysctls: {pair}"));
                let lxc = format!("lxc.sysctl.{key} = {value}");
                (by_container(host, &run, &pod, &lxc, &run), Some(place.to_owned()))
            }
            (true, false) => {
                let place = "on the machine that runs this container";
                (format!("sysctl -w {pair}"), Some(place.to_owned()))
            }
        };
        let sysctl = Some(Sysctl { key: key.to_owned(), value });
        self.remedy = Some(Remedy { command, place, sysctl });
        self
    }
}

/// Returns the form of a remedy that suits the host's kind of container: an option of `docker run` or
/// `podman run`, a field of a pod, a line of an LXC configuration, or `bare` without a container.
pub(crate) fn by_container(host: &Host, run: &str, pod: &str, lxc: &str, bare: &str) -> String {
    match host.container.as_deref() {
        None => bare.to_owned(),
        Some("kubernetes") => format!("in the pod: {pod}"),
        Some("lxc") => lxc.to_owned(),
        Some("podman") => format!("podman run {run} …"),
        Some(_) => format!("docker run {run} …"),
    }
}

/// Returns whether each container (its network namespace) has its own value. All other settings
/// belong to the machine.
fn is_per_container(key: &str) -> bool {
    let machine = ["net.ipv4.tcp_mem", "net.ipv4.tcp_max_orphans"];
    key == "net.core.somaxconn" || (key.starts_with("net.ipv4.") && !machine.contains(&key))
}
