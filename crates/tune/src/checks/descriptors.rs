//! Checks of descriptors, the threads with their tables, and epoll watches.

use crate::estimate::{OTHER_THREADS, SHARDS_MAX, Table, shards};
use crate::finding::{Finding, Level, by_container};
use crate::format::{count, limit, round_up};
use crate::host::Host;
use crate::want::Want;

/// The name of the finding about the process's limit.
pub(crate) const NOFILE: &str = "open files of a process";

/// The kernel's default of fs.nr_open, which is also the lowest limit for the server's unit.
const NOFILE_USUAL: u64 = 1 << 20;

/// Files that the rest of the system may open after this check.
const FILES_SPARE: u64 = 16_384;

/// Epoll watches that other programs of the same user may have.
const WATCHES_SPARE: u64 = 1_024;

pub(crate) fn all(host: &Host, want: &Want) -> Vec<Finding> {
    let mut findings = vec![open_files(host, want)];
    findings.extend(nr_open(host, want));
    findings.extend([file_max(host, want), watches(host, want)]);
    findings.extend(pids(host, want));
    findings
}

/// Returns the limit on open files for the server. With it two shards per core are enough, or one table if all shards
/// share it.
pub(crate) fn nofile_wanted(host: &Host, want: &Want) -> u64 {
    let tables = match host.private_tables {
        Some(false) => 1,
        _ => shards_fair(host),
    };
    let needed = Table::nofile_for(want.connections.div_ceil(tables), want);
    needed.checked_next_power_of_two().unwrap_or(needed).max(NOFILE_USUAL)
}

/// Returns the number of shards above which further ones gain nothing.
fn shards_fair(host: &Host) -> u64 {
    host.cpus.unwrap_or(1).clamp(1, SHARDS_MAX / 2) * 2
}

fn open_files(host: &Host, want: &Want) -> Finding {
    let Some(hard) = host.nofile_hard else { return Finding::hidden(host, NOFILE) };
    let fact = match host.nofile_soft {
        Some(soft) if soft != hard => format!("soft {}, hard {}", limit(soft), limit(hard)),
        _ => limit(hard),
    };
    let (table, own) = (Table::new(hard, want), host.private_tables != Some(false));
    let holds = table.capacity.saturating_mul(if own { SHARDS_MAX } else { 1 });
    let wanted = nofile_wanted(host, want);
    let command = by_container(
        host,
        &format!("--ulimit nofile={wanted}:{wanted}"),
        &format!("no field for it; LimitNOFILE={wanted} in the unit of the node's containerd"),
        &format!("lxc.prlimit.nofile = {wanted}"),
        &format!("LimitNOFILE={wanted} in the server's systemd unit, or ulimit -n {wanted}"),
    );
    if holds < want.connections {
        let meaning = match own {
            true => format!(
                "this limit is for each shard, and there can be at most {} shards: enough for {}",
                count(SHARDS_MAX),
                count(holds)
            ),
            false => format!(
                "this sandbox forbids unshare(2), so all shards share one table: enough for {}",
                count(holds)
            ),
        };
        return Finding::new(Level::Must, NOFILE, fact, meaning).bound(holds).command(command);
    }
    let shards = shards(host, want, want.connections);
    if own && shards > shards_fair(host) {
        let meaning = format!(
            "this limit is for each shard, not for the process: Throng starts {} shards; with a \
             higher limit, one for each core would be enough, with fuller batches",
            count(shards)
        );
        return Finding::new(Level::Advise, NOFILE, fact, meaning).bound(holds).command(command);
    }
    let meaning = match own {
        true => "for each shard, not for the process; Throng raises soft to hard itself",
        false => "shared by all shards: this sandbox forbids unshare(2)",
    };
    Finding::new(Level::Good, NOFILE, fact, meaning).bound(holds)
}

fn nr_open(host: &Host, want: &Want) -> Option<Finding> {
    let name = "fs.nr_open";
    let most = host.number(name)?;
    let (fact, wanted) = (limit(most), nofile_wanted(host, want));
    if most >= wanted {
        let meaning = "the maximum of any limit on open files; enough";
        return Some(Finding::new(Level::Good, name, fact, meaning));
    }
    let meaning = format!("no limit on open files can be raised above it, and {} is advised", {
        count(wanted)
    });
    Some(Finding::new(Level::Advise, name, fact, meaning).set(host, wanted))
}

fn file_max(host: &Host, want: &Want) -> Finding {
    let name = "fs.file-max";
    let Some(most) = host.number(name) else { return Finding::hidden(host, name) };
    let used = host.in_use("fs.file-nr").unwrap_or(0);
    let fact = match most >= 1 << 60 {
        true => limit(most),
        false => format!("{}, {} of them in use", count(most), count(used)),
    };
    let holds = most.saturating_sub(used).saturating_sub(FILES_SPARE) / want.ends();
    if holds >= want.connections {
        let meaning = format!("open files of the whole machine; enough for {}", limit(holds));
        return Finding::new(Level::Good, name, fact, meaning).bound(holds);
    }
    let files = want.connections.saturating_mul(want.ends());
    let value = round_up(files.saturating_add(used).saturating_add(FILES_SPARE));
    let meaning = format!(
        "open files of the whole machine, a connection{} takes one: enough for {} (only root may \
         exceed it, and a server should not be root)",
        if want.both_ends { "'s each end" } else { "" },
        count(holds)
    );
    Finding::new(Level::Must, name, fact, meaning).bound(holds).set(host, value)
}

fn watches(host: &Host, want: &Want) -> Finding {
    let name = "fs.epoll.max_user_watches";
    let Some(most) = host.number(name) else { return Finding::hidden(host, name) };
    let holds = most.saturating_sub(WATCHES_SPARE) / want.ends();
    let fact = limit(most);
    if holds >= want.connections {
        let meaning = format!("each connection is watched; enough for {}", limit(holds));
        return Finding::new(Level::Good, name, fact, meaning).bound(holds);
    }
    let watches = want.connections.saturating_mul(want.ends());
    let value = round_up(watches.saturating_add(WATCHES_SPARE));
    let meaning = format!(
        "a user's processes may watch at most this many descriptors, a connection{} takes one: \
         enough for {}",
        if want.both_ends { "'s each end" } else { "" },
        count(holds)
    );
    Finding::new(Level::Must, name, fact, meaning).bound(holds).set(host, value)
}

/// Checks the limit on threads, since each shard is a thread.
fn pids(host: &Host, want: &Want) -> Option<Finding> {
    let group = host.cgroup_pids?;
    let name = "cgroup pids limit";
    let threads = group.free().saturating_sub(OTHER_THREADS);
    let needed = shards(host, want, want.connections);
    let planned = host.nofile_hard.map_or(0, |hard| Table::new(hard, want).planned);
    let fact = format!("{}, {} of them in use", count(group.limit), count(group.used));
    let cores = host.cpus.unwrap_or(1);
    // A limit that allows the most shards bounds nothing.
    let own_tables = host.private_tables != Some(false) && host.nofile_hard.is_some();
    let holds = match threads {
        threads if threads < cores.min(SHARDS_MAX) => Some(0),
        threads if threads < SHARDS_MAX && own_tables => Some(threads.saturating_mul(planned)),
        _ => None,
    };
    let mut finding = if holds.is_none_or(|holds| holds >= want.connections) {
        let meaning = format!("enough for the {} threads of the shards", count(needed));
        Finding::new(Level::Good, name, fact, meaning)
    } else {
        let meaning = format!(
            "{} shards are threads of this group, and {} others run beside them",
            count(needed),
            count(OTHER_THREADS)
        );
        let pids = needed.saturating_add(OTHER_THREADS).saturating_add(group.used);
        Finding::new(Level::Must, name, fact, meaning).command(by_container(
            host,
            &format!("--pids-limit={pids}"),
            &format!("no field for it; podPidsLimit: {pids} of the kubelet"),
            &format!("lxc.cgroup2.pids.max = {pids}"),
            &format!("systemctl set-property UNIT TasksMax={pids}"),
        ))
    };
    finding.bound = holds;
    Some(finding)
}
