//! Checks of memory: the host's, the control group's, and the kernel's reserves.

use crate::estimate::{Estimate, cost};
use crate::finding::{Finding, Level, by_container};
use crate::format::{bytes, count, round_up};
use crate::host::Host;
use crate::want::Want;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The page size of the machines on which the costs were measured.
const PAGE: u64 = 4_096;

pub(crate) fn all(host: &Host, want: &Want) -> Vec<Finding> {
    let mut findings = vec![memory(host, want)];
    findings.extend(cgroup(host, want));
    findings.push(tcp_mem(host, want));
    findings.push(min_free(host));
    findings.extend(swappiness(host));
    findings.extend(huge_pages(host));
    findings
}

fn memory(host: &Host, want: &Want) -> Finding {
    let name = "memory";
    let facts = [host.memory_available_bytes, host.memory_total_bytes];
    let Some(available) = facts.into_iter().flatten().min() else {
        return Finding::hidden(host, name);
    };
    let need = Estimate::new(host, want, want.connections).total;
    let holds = Estimate::most(host, want, available);
    let mut fact = format!("{} free", bytes(available));
    if let Some(total) = host.memory_total_bytes {
        fact = format!("{fact} of {}", bytes(total));
    }
    let (needs, enough) = (bytes(need), count(holds));
    if holds >= want.connections {
        let meaning = format!("{needs} needed, enough for {enough}");
        return Finding::new(Level::Good, name, fact, meaning).bound(holds);
    }
    let missing = bytes(need.saturating_sub(available));
    let meaning = format!(
        "{needs} needed, so {missing} more than is free, which is enough for {enough}. No setting \
         helps: use a larger machine, or spread the connections over several"
    );
    Finding::new(Level::Must, name, fact, meaning).bound(holds)
}

fn cgroup(host: &Host, want: &Want) -> Option<Finding> {
    let group = host.cgroup_memory?;
    let name = "cgroup memory limit";
    let fact = format!("{}, {} of it in use", bytes(group.limit), bytes(group.used));
    // The estimate's slack is for the machine. The group's own use is already subtracted.
    let holds = Estimate::most(host, want, group.free().saturating_add(cost::SYSTEM_SLACK));
    if holds >= want.connections {
        let meaning = format!("enough for {}; the kernel's sockets count too", count(holds));
        return Some(Finding::new(Level::Good, name, fact, meaning).bound(holds));
    }
    let need = Estimate::new(host, want, want.connections).total.saturating_add(group.used);
    let mebibytes = round_up(need.div_ceil(MIB));
    let meaning = format!(
        "enough for {}: the kernel charges the sockets to this group too, and past its limit the \
         group's processes are killed",
        count(holds)
    );
    let finding = Finding::new(Level::Must, name, fact, meaning).bound(holds);
    Some(finding.command(by_container(
        host,
        &format!("--memory={mebibytes}m"),
        &format!("resources.limits.memory: {mebibytes}Mi"),
        &format!("lxc.cgroup2.memory.max = {mebibytes}M"),
        &format!("systemctl set-property UNIT MemoryMax={mebibytes}M"),
    )))
}

/// The kernel charges each socket with unsent or unread data at least one page, however short the
/// message. A broadcast touches all sockets at nearly the same time. Above the maximum the kernel
/// drops received segments and rejects new data.
fn tcp_mem(host: &Host, want: &Want) -> Finding {
    let name = "net.ipv4.tcp_mem";
    let Some([_, _, most]) = host.triple(name) else { return Finding::hidden(host, name) };
    // Unread data must not get more than 60 % of the memory, for any number of connections.
    let cap = host.memory_total_bytes.map_or(u64::MAX, |total| total / 10 * 6 / PAGE);
    let pages = want.connections.saturating_mul(want.ends());
    let (all, needed) = (pages.min(cap), pages.div_ceil(cost::IN_FLIGHT_SHARE).min(cap));
    let holds = most.saturating_mul(cost::IN_FLIGHT_SHARE) / want.ends();
    let fact = format!("at most {} pages ({})", count(most), bytes(most.saturating_mul(PAGE)));
    let ends = if want.both_ends { " end" } else { "" };
    if most >= all {
        let enough = match most >= pages {
            true => format!("a page for each connection{ends}, even in a broadcast to all"),
            false => "60 % of the memory: more would be of no use".to_owned(),
        };
        return Finding::new(Level::Good, name, fact, enough).bound(holds);
    }
    let at_once = count(most / want.ends());
    let (level, meaning) = if most < needed {
        let meaning = format!(
            "each connection{ends} with unread data takes a page, so in a broadcast {at_once} \
             connections fill it. Beyond that, the kernel drops segments: messages arrive late and \
             connections end"
        );
        (Level::Must, meaning)
    } else {
        let meaning = format!(
            "enough while fewer than {at_once} connections have unread data (a page each{}); a \
             broadcast that finds more of them slow would have segments dropped",
            if want.both_ends { " at each end" } else { "" }
        );
        (Level::Advise, meaning)
    };
    let value = round_up(all).min(cap).max(all);
    // The kernel's own ratio of minimum, pressure and maximum is 3 : 4 : 6.
    let value = format!("{} {} {value}", value / 2, value / 3 * 2);
    Finding::new(level, name, fact, meaning).bound(holds).set(host, value)
}

fn min_free(host: &Host) -> Finding {
    let name = "vm.min_free_kbytes";
    let (Some(kilobytes), Some(total)) = (host.number(name), host.memory_total_bytes) else {
        return Finding::hidden(host, name);
    };
    let now = kilobytes.saturating_mul(1024);
    let fact = bytes(now);
    // Packets arrive in interrupts, which can't wait for memory. They live on this reserve.
    let least = if total >= 4 * GIB { 64 * MIB } else { 0 };
    let most = (total / 20).max(64 * MIB);
    if now < least {
        let meaning = "packets that arrive while memory is short use this reserve, which is small \
                       for this machine";
        return Finding::new(Level::Advise, name, fact, meaning).set(host, least / 1024);
    }
    if now > most {
        let meaning = "more than 5 % of the memory lies idle as a reserve";
        return Finding::new(Level::Advise, name, fact, meaning).set(host, most / 1024);
    }
    Finding::new(Level::Good, name, fact, "a sufficient reserve for incoming packets")
}

fn swappiness(host: &Host) -> Option<Finding> {
    let name = "vm.swappiness";
    let (value, swap) = (host.number(name)?, host.swap_total_bytes?);
    let fact = match swap {
        0 => format!("{value}, no swap"),
        swap => format!("{value}, {} of swap", bytes(swap)),
    };
    let meaning = "sockets are kernel memory and are never swapped: swap holds no connections";
    Some(Finding::new(Level::Good, name, fact, meaning))
}

fn huge_pages(host: &Host) -> Option<Finding> {
    let name = "transparent huge pages";
    let word = host.transparent_hugepage.as_deref()?;
    if word != "always" {
        return Some(Finding::new(Level::Good, name, word, "only if a program requests them"));
    }
    let meaning = "the kernel may round the server's memory up to 2 MiB pages, so that it takes \
                   more than estimated";
    let finding = Finding::new(Level::Advise, name, word, meaning);
    Some(finding.command("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"))
}
