//! Kernel problems on a run's hosts while it ran: on the server's, which its admin port reports, and on the load
//! generator's own.

use kernel::{Finding, KernelStats, findings, kernel_id};
use serde::{Deserialize, Serialize};

/// Problems in the kernel of a host during the run. Its counters count for all programs of the host.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct HostFindings {
    /// The host's name, as reports show it.
    pub host: String,
    /// An id of the kernel and the network namespace, if it is known. Hosts with the same id have the same counters.
    pub kernel_id: Option<String>,
    /// The problems, the gravest first.
    pub findings: Vec<Finding>,
}

impl HostFindings {
    /// Returns a sentence for each finding: where, what happened, what to do.
    pub fn sentences(&self) -> impl Iterator<Item = String> {
        let host = &self.host;
        self.findings.iter().map(move |it| format!("{host}: {}: {}", it.what, it.advice))
    }
}

/// The response of `/api/kernel`.
#[derive(Clone, Debug, Deserialize)]
pub struct KernelReply {
    kernel_id: Option<String>,
    stats: KernelStats,
}

/// Compares the stats of a host's kernel before the run with the newest.
#[derive(Clone, Debug)]
pub struct KernelWatch {
    host: String,
    kernel_id: Option<String>,
    before: KernelStats,
    newest: KernelStats,
}

impl KernelWatch {
    /// Watches the host of this process from now on.
    pub fn own() -> Self {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = format!("load generator {}", name.trim());
        let stats = KernelStats::read();
        let host = host.trim_end().to_owned();
        Self { host, kernel_id: kernel_id(), before: stats, newest: stats }
    }

    /// Watches a server's host from this reply on.
    pub fn server(name: &str, KernelReply { kernel_id, stats }: KernelReply) -> Self {
        Self { host: format!("server {name}"), kernel_id, before: stats, newest: stats }
    }

    /// Takes a later reply. The counters of another boot or host can't be compared, so that reply becomes the new
    /// begin.
    pub fn update(&mut self, KernelReply { kernel_id, stats }: KernelReply) {
        if self.kernel_id != kernel_id {
            (self.kernel_id, self.before) = (kernel_id, stats);
        }
        self.newest = stats;
    }

    /// Reads the stats of this process's host.
    pub fn update_own(&mut self) {
        self.update(KernelReply { kernel_id: kernel_id(), stats: KernelStats::read() });
    }

    /// Returns the problems since the begin. Tasks that wait for a resource are left out: a load test makes them
    /// wait, and at its end they no longer do.
    pub fn findings(&self) -> HostFindings {
        let mut findings = findings(&self.before, &self.newest);
        findings.retain(|finding| !finding.kind.is_pressure());
        HostFindings { host: self.host.clone(), kernel_id: self.kernel_id.clone(), findings }
    }
}

/// Leaves out hosts without findings, and all but the first of the hosts with the same counters.
pub fn distinct(hosts: impl IntoIterator<Item = HostFindings>) -> Vec<HostFindings> {
    let mut distinct: Vec<HostFindings> = Vec::new();
    for host in hosts {
        let is_same = |other: &HostFindings| other.kernel_id == host.kernel_id;
        let is_known = host.kernel_id.is_some() && distinct.iter().any(is_same);
        if !host.findings.is_empty() && !is_known {
            distinct.push(host);
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    use kernel::{FindingKind, Pressure};

    use super::*;

    fn reply(kernel_id: &str, softnet_dropped: u64) -> KernelReply {
        let cpu = Some(Pressure { some_percent: 99.0, full_percent: 0.0 });
        let softnet_dropped = Some(softnet_dropped);
        let stats = KernelStats { softnet_dropped, cpu, ..KernelStats::default() };
        KernelReply { kernel_id: Some(kernel_id.into()), stats }
    }

    fn dropped(host: &str, kernel_id: &str, count: u64) -> HostFindings {
        let mut watch = KernelWatch::server(host, reply(kernel_id, 7));
        watch.update(reply(kernel_id, 7 + count));
        watch.findings()
    }

    #[test]
    fn drops_before_the_run_are_left_out() {
        let found = dropped("a:8001", "one", 3);
        assert_eq!(found.findings.len(), 1, "{found:?}");
        assert_eq!(found.findings[0].kind, FindingKind::SoftnetDropped);
        let sentence = found.sentences().next().unwrap();
        assert!(sentence.starts_with("server a:8001: the kernel dropped 3 packets"), "{sentence}");
        assert!(sentence.contains(": raise net.core.netdev_max_backlog"), "{sentence}");
    }

    #[test]
    fn a_server_that_comes_back_elsewhere_is_watched_anew() {
        let mut watch = KernelWatch::server("a", reply("one", 0));
        watch.update(reply("two", 1_000));
        assert_eq!(watch.findings().findings, []);
        watch.update(reply("two", 1_002));
        assert!(watch.findings().findings[0].what.contains(" 2 packets"));
    }

    #[test]
    fn each_kernel_is_reported_once() {
        let (one, same, other) = (dropped("a", "x", 1), dropped("b", "x", 2), dropped("c", "y", 3));
        let hosts = [dropped("d", "z", 0), one.clone(), same, other.clone()];
        assert_eq!(distinct(hosts), [one, other]);
        // Two hosts without ids may be different ones.
        let unnamed = HostFindings { kernel_id: None, ..dropped("a", "x", 1) };
        assert_eq!(distinct([unnamed.clone(), unnamed]).len(), 2);
    }

    #[test]
    fn the_own_kernel_is_watched() {
        let mut own = KernelWatch::own();
        own.update_own();
        let found = own.findings();
        assert!(found.host.starts_with("load generator") && found.kernel_id.is_some());
    }
}
