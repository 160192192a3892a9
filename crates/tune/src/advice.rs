//! Turns facts into advice. Reads nothing from the host.

use serde::{Deserialize, Serialize};

use crate::checks;
use crate::estimate::Estimate;
use crate::finding::{Finding, Level, Sysctl};
use crate::format::count;
use crate::host::Host;
use crate::useless::{self, Useless};
use crate::want::Want;

/// The advice for a host: how many connections it can serve, and what to change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// The connections that the host must serve.
    pub want: Want,
    /// A description of the host in one line.
    pub host: String,
    /// True if the host serves them without a change: no finding is a [`Level::Must`].
    pub fits: bool,
    /// How many it serves without a change; absent if no bound could be read.
    pub holds: Option<Bound>,
    /// How many it would serve with every remedy that is a setting.
    pub holds_after: Option<Bound>,
    /// All findings, the most important first.
    pub findings: Vec<Finding>,
    /// Settings from old articles that are useless or harmful today.
    pub useless: Vec<Useless>,
    /// The memory that the connections need.
    pub estimate: Estimate,
    /// How many shards the server would start on the host without a change.
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
