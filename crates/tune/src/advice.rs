//! From facts to advice. Nothing is read here.

use serde::{Deserialize, Serialize};

use crate::checks;
use crate::estimate::Estimate;
use crate::format::count;
use crate::host::Host;
use crate::useless::{self, Useless};

/// What the host is to hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want {
    /// Connections at a time.
    pub connections: u64,
    /// The load generator runs on this host too: the kernel keeps both ends, and source ports are
    /// needed.
    pub both_ends: bool,
    /// The server's `socket.backlog`: connections that may wait to be accepted, for each shard.
    pub backlog: u32,
    /// The server's `socket.send_buffer_bytes`; 0 is the kernel's choice.
    pub send_buffer_bytes: u64,
}

impl Want {
    /// So many connections from elsewhere, to a server with its defaults.
    pub fn new(connections: u64) -> Want {
        Want { connections, both_ends: false, backlog: 4_096, send_buffer_bytes: 64 << 10 }
    }

    /// Ends of each connection that are on this host.
    pub(crate) fn ends(&self) -> u64 {
        if self.both_ends { 2 } else { 1 }
    }
}

/// What the host can hold, and what to change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// What was asked.
    pub want: Want,
    /// What the host is, in one line.
    pub host: String,
    /// It holds what was asked as it stands: no finding is a [`Level::Must`].
    pub fits: bool,
    /// What it holds as it stands; absent if no bound could be read.
    pub holds: Option<Bound>,
    /// What it would hold with every remedy that is a setting.
    pub holds_after: Option<Bound>,
    /// All findings, problems first.
    pub findings: Vec<Finding>,
    /// Settings of old articles that do nothing or harm today.
    pub useless: Vec<Useless>,
    /// The memory for what was asked.
    pub estimate: Estimate,
    /// Shards that the server would start, as the host stands.
    pub shards: u64,
    /// The limit on open files that the server's unit is given.
    pub nofile: u64,
    /// The container's kind, if it is one.
    pub container: Option<String>,
}

/// A number of connections, and what doesn't allow more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// The most connections.
    pub connections: u64,
    /// The name of the finding that sets this bound.
    pub set_by: String,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What: a sysctl's name where it is one.
    pub name: String,
    /// What it is now.
    pub fact: String,
    /// What that means for what was asked.
    pub meaning: String,
    /// How bad it is.
    pub level: Level,
    /// The most connections that it allows, where it bounds them.
    pub bound: Option<u64>,
    /// What to do about it.
    pub remedy: Option<Remedy>,
}

/// How bad a finding is. The worst come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// What was asked does not fit until this is changed.
    Must,
    /// It fits, and would be better with a change.
    Advise,
    /// The host hides it, or it can't be judged.
    Unknown,
    /// Nothing to do.
    Good,
}

/// What to do about a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remedy {
    /// A command line, or a line that belongs on one.
    pub command: String,
    /// Where it is to be run, if not here.
    pub place: Option<String>,
    /// The setting that it changes, if it is one.
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

/// Judges a host. Pure: the same facts give the same advice.
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
    /// The settings that it changes.
    pub fn sysctls(&self) -> impl Iterator<Item = (&Finding, &Sysctl)> {
        self.findings
            .iter()
            .filter_map(|finding| Some((finding, finding.remedy.as_ref()?.sysctl.as_ref()?)))
    }
}

impl Host {
    /// This host with the advised settings in force, and with the advised limit on open files.
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
    /// With no bound and no remedy.
    pub(crate) fn new(
        level: Level,
        name: impl Into<String>,
        fact: impl Into<String>,
        meaning: impl Into<String>,
    ) -> Finding {
        let (name, fact, meaning) = (name.into(), fact.into(), meaning.into());
        Finding { name, fact, meaning, level, bound: None, remedy: None }
    }

    /// For what the host hides.
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

    /// Sets the sysctl of this finding's name.
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
        let (command, place) = match (read_only, own_of_a_container(key)) {
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

/// The same remedy in the words of what starts the process: an option of `docker run` and `podman
/// run`, a field of a pod, a line of an LXC configuration, or what to do outside of containers.
pub(crate) fn by_container(host: &Host, run: &str, pod: &str, lxc: &str, bare: &str) -> String {
    match host.container.as_deref() {
        None => bare.to_owned(),
        Some("kubernetes") => format!("in the pod: {pod}"),
        Some("lxc") => lxc.to_owned(),
        Some("podman") => format!("podman run {run} …"),
        Some(_) => format!("docker run {run} …"),
    }
}

/// Whether each network namespace has its own value; the others are the machine's.
fn own_of_a_container(key: &str) -> bool {
    let machine = ["net.ipv4.tcp_mem", "net.ipv4.tcp_max_orphans"];
    key == "net.core.somaxconn" || (key.starts_with("net.ipv4.") && !machine.contains(&key))
}
