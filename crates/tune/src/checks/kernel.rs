//! Checks of the kernel itself, io_uring, and the firewall's connection tracking.

use crate::estimate::tracks;
use crate::finding::{Finding, Level, by_container};
use crate::format::{count, round_up};
use crate::host::Host;
use crate::probe::IoUring;
use crate::want::Want;

use Level::{Advise, Good, Must, Unknown};

/// The cost of plain writes compared to io_uring batches.
const PLAIN: &str = "Throng uses one write for each message, which takes 1.6 times the CPU time";

pub(crate) fn all(host: &Host, want: &Want) -> Vec<Finding> {
    let mut findings = vec![release(host), io_uring(host)];
    findings.extend(conntrack(host, want));
    findings.extend(buckets(host, want));
    findings.extend(max_map_count(host));
    findings
}

fn release(host: &Host) -> Finding {
    let name = "kernel";
    let (Some(version), Some(release)) = (host.kernel_version(), &host.kernel) else {
        return Finding::hidden(host, name);
    };
    let (level, meaning) = match version {
        version if version < (4, 5) => {
            (Must, "too old: spreading connections over shards needs Linux 4.5")
        }
        version if version < (6, 1) => (Good, "works; sends in batches need Linux 6.1"),
        _ => (Good, "new enough for everything"),
    };
    let finding = Finding::new(level, name, release, meaning);
    // On a kernel that is too old the server can't run at all.
    if level == Must { finding.bound(0) } else { finding }
}

fn io_uring(host: &Host) -> Finding {
    let name = "io_uring";
    let switch = host.number("kernel.io_uring_disabled").unwrap_or(0);
    match host.io_uring {
        None => Finding::hidden(host, name),
        Some(IoUring::Allowed) => Finding::new(Good, name, "allowed", "messages leave in batches"),
        Some(IoUring::Refused(libc::EPERM)) if switch > 0 => {
            let who = if switch == 1 { "only for root and a group" } else { "for everyone" };
            let fact = format!("switched off {who} (kernel.io_uring_disabled = {switch})");
            let finding = Finding::new(Advise, name, fact, PLAIN);
            finding.set_key(host, "kernel.io_uring_disabled", 0)
        }
        Some(IoUring::Refused(libc::EPERM | libc::EACCES)) => {
            let fact = "forbidden by this sandbox (seccomp)";
            let finding = Finding::new(Advise, name, fact, PLAIN);
            let calls = "that allows io_uring_setup, io_uring_enter and io_uring_register";
            finding.command(by_container(
                host,
                &format!("--security-opt seccomp=PROFILE.json (one {calls})"),
                &format!("securityContext.seccompProfile: one {calls}"),
                &format!("lxc.seccomp.profile = FILE (one {calls})"),
                "SystemCallFilter=@system-service in the unit: it allows io_uring",
            ))
        }
        Some(IoUring::Refused(libc::ENOSYS | libc::EINVAL)) => {
            let fact = "not in this kernel, or too old (6.1 is needed)";
            Finding::new(Advise, name, fact, PLAIN)
        }
        Some(IoUring::Refused(errno)) => {
            let error = std::io::Error::from_raw_os_error(errno);
            Finding::new(Unknown, name, format!("refused: {error}"), PLAIN)
        }
    }
}

fn conntrack(host: &Host, want: &Want) -> Option<Finding> {
    let name = "net.netfilter.nf_conntrack_max";
    let most = host.number(name)?;
    let now = host.in_use("net.netfilter.nf_conntrack_count")?;
    // Both ends of a connection over loopback are one entry.
    let holds = most.saturating_sub(now).saturating_sub(most / 64);
    let needed = want.connections.saturating_add(now);
    let value = round_up(needed.saturating_add(needed / 16));
    let fact = format!("{}, {} of them in use", limit_or_none(most), count(now));
    if !tracks(host) {
        let loaded = "the module is loaded and tracks nothing: no firewall rule uses it";
        if holds >= want.connections || most == 0 {
            return Some(Finding::new(Good, name, fact, loaded));
        }
        let meaning =
            format!("{loaded}. If one ever does, new connections are dropped beyond this");
        return Some(Finding::new(Unknown, name, fact, meaning).set(host, value));
    }
    // To the kernel 0 means "no limit".
    if most == 0 || holds >= want.connections {
        let finding = Finding::new(Good, name, fact, "a firewall rule tracks connections; enough");
        return Some(if most == 0 { finding } else { finding.bound(holds) });
    }
    let meaning = format!(
        "a firewall rule tracks each connection; beyond this number, new ones are dropped silently \
         (\"nf_conntrack: table full\" in the log): enough for {}. Better still, let the rules not \
         track the server's port (notrack)",
        count(holds)
    );
    Some(Finding::new(Must, name, fact, meaning).bound(holds).set(host, value))
}

fn limit_or_none(most: u64) -> String {
    if most == 0 { "no limit".to_owned() } else { count(most) }
}

fn buckets(host: &Host, want: &Want) -> Option<Finding> {
    let name = "net.netfilter.nf_conntrack_buckets";
    let now = host.number(name)?;
    if !tracks(host) {
        return None;
    }
    if now.saturating_mul(8) >= want.connections {
        return Some(Finding::new(Good, name, count(now), "short chains"));
    }
    let chain = want.connections / now.max(1);
    let meaning =
        format!("each bucket has about {} entries, which the kernel searches for each packet", {
            count(chain)
        });
    let value = round_up(want.connections.div_ceil(2));
    Some(Finding::new(Advise, name, count(now), meaning).set(host, value))
}

fn max_map_count(host: &Host) -> Option<Finding> {
    let name = "vm.max_map_count";
    let now = host.number(name)?;
    Some(Finding::new(Good, name, count(now), "not needed: connections map no memory"))
}
