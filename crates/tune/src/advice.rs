//! Turns facts into advice. Reads nothing from the host.

use serde::{Deserialize, Serialize};

use crate::checks;
use crate::estimate::Estimate;
use crate::format::count;
use crate::host::Host;
use crate::useless::{self, Useless};

/// The connections that the host is to hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want {
    /// Connections at a time.
    pub connections: u64,
    /// The load generator runs on this host too. Then the kernel holds both ends of each connection,
    /// and the generator needs source ports.
    pub both_ends: bool,
    /// The server's `socket.backlog`: how many connections may wait to be accepted by each shard.
    pub backlog: u32,
    /// The server's `socket.send_buffer_bytes`; 0 is the kernel's choice.
    pub send_buffer_bytes: u64,
}

impl Want {
    /// Returns the wish for so many connections from other hosts, to a server with default settings.
    pub fn new(connections: u64) -> Want {
        Want { connections, both_ends: false, backlog: 4_096, send_buffer_bytes: 64 << 10 }
    }

    /// Returns how many ends of each connection are on this host.
    pub(crate) fn ends(&self) -> u64 {
        if self.both_ends { 2 } else { 1 }
    }
}

/// The advice for a host: how many connections it can hold, and what to change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// The connections that the host is to hold.
    pub want: Want,
    /// A description of the host in one line.
    pub host: String,
    /// Whether the host holds them as it is: no finding is a [`Level::Must`].
    pub fits: bool,
    /// How many it holds as it is; absent if no bound could be read.
    pub holds: Option<Bound>,
    /// How many it would hold with every remedy that is a setting.
    pub holds_after: Option<Bound>,
    /// All findings, the most important first.
    pub findings: Vec<Finding>,
    /// Settings from old articles that are useless or harmful today.
    pub useless: Vec<Useless>,
    /// The memory that the connections need.
    pub estimate: Estimate,
    /// How many shards the server would start on the host as it is.
    pub shards: u64,
    /// The limit on open files for the server's systemd unit.
    pub nofile: u64,
    /// The container's kind, if it is one.
    pub container: Option<String>,
}

/// A limit on connections, and the finding that causes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// The most connections.
    pub connections: u64,
    /// The name of the finding that sets this bound.
    pub set_by: String,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What was checked: a sysctl's name where it is one.
    pub name: String,
    /// The current value.
    pub fact: String,
    /// What that means for the wanted connections.
    pub meaning: String,
    /// How important it is.
    pub level: Level,
    /// The most connections that it allows, where it bounds them.
    pub bound: Option<u64>,
    /// What to do about it.
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

/// What to do about a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remedy {
    /// A command line, or a part of one.
    pub command: String,
    /// Where to run it, if not on this host.
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

/// Evaluates a host. It is a pure function: the same facts give the same advice.
pub fn advise(host: &Host, want: &Want) -> Advice {
    let mut findings = checks::all(host, want);
    findings.sort_by_key(|finding| finding.level);
    let mut advice = Advice {
        want: want.clone(),
        host: describe(host),
        fits: findings.iter().all(|finding| finding.level != Level::Must),
        holds: lowest(&findings),
        holds_after: None,
        findings,
        useless: useless::all(host, want),
        estimate: Estimate::new(host, want, want.connections),
        shards: crate::estimate::shards(host, want, want.connections),
        nofile: checks::nofile_wanted(host, want),
        container: host.container.clone(),
    };
    advice.holds_after = lowest(&checks::all(&host.after(&advice), want));
    advice
}

fn lowest(findings: &[Finding]) -> Option<Bound> {
    let bounds = findings.iter().filter_map(|finding| Some((finding.bound?, &finding.name)));
    let (connections, name) = bounds.min_by_key(|(bound, _)| *bound)?;
    Some(Bound { connections, set_by: name.clone() })
}

fn describe(host: &Host) -> String {
    let mut parts = Vec::new();
    parts.extend(host.kernel.as_ref().map(|kernel| format!("Linux {kernel}")));
    parts.extend(host.cpus.map(|cpus| match cpus {
        1 => "1 core".to_owned(),
        cpus => format!("{} cores", count(cpus)),
    }));
    parts.extend(host.memory_total_bytes.map(crate::format::bytes));
    parts.extend(host.container.as_ref().map(|kind| format!("in a container ({kind})")));
    if parts.is_empty() { "nothing of it can be read".to_owned() } else { parts.join(", ") }
}

impl Advice {
    /// Returns the settings that the advice changes, with their findings.
    pub fn sysctls(&self) -> impl Iterator<Item = (&Finding, &Sysctl)> {
        self.findings
            .iter()
            .filter_map(|finding| Some((finding, finding.remedy.as_ref()?.sysctl.as_ref()?)))
    }
}

impl Host {
    /// Returns this host with the advised settings and the advised limit on open files.
    pub fn after(&self, advice: &Advice) -> Host {
        let mut host = self.clone();
        for (_, sysctl) in advice.sysctls() {
            host.sysctls.insert(sysctl.key.clone(), sysctl.value.clone());
        }
        let raised = advice
            .findings
            .iter()
            .any(|finding| finding.name == checks::NOFILE && finding.remedy.is_some());
        if raised {
            host.nofile_hard = host.nofile_hard.map(|hard| hard.max(advice.nofile));
            host.nofile_soft = host.nofile_hard;
        }
        host
    }
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
