//! Checks of TCP: queues, buffers, ports, and switches that should have their defaults.

use crate::finding::{Finding, Level};
use crate::format::{bytes, count};
use crate::host::Host;
use crate::want::Want;

use Level::{Advise, Good, Must};

/// Source addresses of the load generator: 127.0.1.1 to 127.0.1.254.
const SOURCES: u64 = 254;
/// Connections from each address. With more, the kernel's search for a free port grows long.
const PER_SOURCE_MAX: u64 = 14_000;

pub(crate) fn all(host: &Host, want: &Want) -> Vec<Finding> {
    let mut findings = vec![somaxconn(host, want), ports(host, want)];
    findings.extend(lookup_table(host, want));
    findings.extend(syn_backlog(host));
    findings.extend(netdev_backlog(host, want));
    findings.extend(receive_buffers(host));
    findings.extend(send_buffers(host, want));
    findings.extend(send_buffer_max(host, want));
    findings.extend(receive_buffer_max(host));
    findings.extend(time_wait(host));
    findings.extend(keepalive(host));
    findings.extend(switches(host));
    findings
}

fn somaxconn(host: &Host, want: &Want) -> Finding {
    let name = "net.core.somaxconn";
    let Some(now) = host.number(name) else { return Finding::hidden(host, name) };
    let (fact, backlog) = (count(now), u64::from(want.backlog));
    if now < backlog {
        let meaning = format!(
            "each shard requests a queue of {} new connections and gets {}; when many clients come \
             back at once, the others wait a second or more",
            count(backlog),
            count(now)
        );
        return Finding::new(Advise, name, fact, meaning).set(host, backlog);
    }
    let meaning = match now > backlog {
        true => {
            format!("each shard requests {} (socket.backlog): a higher value has no effect", {
                count(backlog)
            })
        }
        false => "as much as each shard requests (socket.backlog)".to_owned(),
    };
    Finding::new(Good, name, fact, meaning)
}

/// The sockets per bucket of the kernel's table above which its search costs noticeable time.
const CHAIN_MAX: u64 = 2;

/// The kernel finds the socket of each packet in a table. The table's size is fixed at boot, or when
/// a network namespace is created. Measured: with 800,000 sockets in 262,144 buckets a message took
/// 16 % more of the server's processor time than with 4,194,304 buckets.
fn lookup_table(host: &Host, want: &Want) -> Option<Finding> {
    let name = "net.ipv4.tcp_ehash_entries";
    // The value is negative in a namespace that shares its parent's table.
    let now = host.sysctl(name)?.parse::<i64>().ok()?.unsigned_abs().max(1);
    let sockets = want.connections.saturating_mul(want.ends());
    let chain = sockets.div_ceil(now);
    if chain <= CHAIN_MAX {
        let meaning = "enough buckets in the kernel's table of sockets";
        return Some(Finding::new(Good, name, count(now), meaning));
    }
    let wanted = sockets.next_power_of_two().clamp(1 << 16, 1 << 24);
    let meaning = format!(
        "the kernel searches {} sockets in one bucket for each packet; with one or two, a message \
         costs about a sixth less processor time",
        count(chain)
    );
    let command = format!(
        "thash_entries={wanted} on the kernel's command line; or run it in a network namespace made \
         after sysctl -w net.ipv4.tcp_child_ehash_entries={}",
        wanted.min(1 << 24)
    );
    Some(Finding::new(Advise, name, count(now), meaning).command(command))
}

/// A server needs one port. Only the side that connects needs many.
fn ports(host: &Host, want: &Want) -> Finding {
    let name = "net.ipv4.ip_local_port_range";
    let range = host.sysctl(name).and_then(|text| {
        let (low, high) = text.split_once(' ')?;
        let (low, high): (u16, u16) = (low.parse().ok()?, high.parse().ok()?);
        Some((low, high, (u64::from(high) + 1).saturating_sub(low.into())))
    });
    let Some((low, high, ports)) = range else {
        return Finding::hidden(host, name);
    };
    let fact = format!("{low} to {high}");
    if !want.both_ends {
        let meaning = "clients on other hosts use their own ports, and the server needs one";
        return Finding::new(Good, name, fact, meaning);
    }
    let holds = SOURCES * ports.min(PER_SOURCE_MAX);
    let meaning = format!(
        "the load generator connects from {SOURCES} addresses, with {} ports of each: enough for {}",
        count(ports.min(PER_SOURCE_MAX)),
        count(holds)
    );
    if holds >= want.connections {
        return Finding::new(Good, name, fact, meaning).bound(holds);
    }
    if ports >= PER_SOURCE_MAX {
        let meaning = format!("{meaning}. Run a part of the load from another machine");
        return Finding::new(Must, name, fact, meaning).bound(holds);
    }
    Finding::new(Must, name, fact, meaning).bound(holds).set(host, "32768 60999")
}

fn syn_backlog(host: &Host) -> Option<Finding> {
    let name = "net.ipv4.tcp_max_syn_backlog";
    let now = host.number(name)?;
    if host.number("net.ipv4.tcp_syncookies") != Some(0) {
        let meaning = "without effect while SYN cookies are on: the listener's queue counts";
        return Some(Finding::new(Good, name, count(now), meaning));
    }
    let meaning = "SYN cookies are off, so this bounds connections that are being opened";
    if now >= 1_024 {
        return Some(Finding::new(Good, name, count(now), meaning));
    }
    Some(Finding::new(Advise, name, count(now), meaning).set(host, 4_096))
}

/// One in this many connections on loopback may have a packet in the queue at the same moment, because their timers
/// expire together. Measured: with two million connections and a heartbeat every two minutes, keep-alive probes
/// overflowed a queue of 1,000 until the kernel gave connections up.
const LOOPBACK_SHARE: u64 = 8;

fn netdev_backlog(host: &Host, want: &Want) -> Option<Finding> {
    let name = "net.core.netdev_max_backlog";
    let (now, dropped) = (host.number(name)?, host.softnet_dropped.unwrap_or(0));
    let fact = format!("{}, {} packets dropped so far", count(now), count(dropped));
    let wanted = (want.connections / LOOPBACK_SHARE).min(1_000_000);
    if want.both_ends && now < wanted {
        let meaning = "all packets between the two ends pass through it, and timers of many \
                       connections expire together: packets beyond it are dropped";
        return Some(Finding::new(Advise, name, fact, meaning).set(host, wanted));
    }
    if now < 1_000 || (dropped > 0 && now < 10_000) {
        let meaning = "packets on loopback, or steered to another core, overflow this queue";
        return Some(Finding::new(Advise, name, fact, meaning).set(host, 10_000));
    }
    let meaning = "only loopback and packets steered to other cores pass through it";
    Some(Finding::new(Good, name, fact, meaning))
}

/// The largest sensible default, in bytes. Idle connections use no buffer, but each may fill this much.
const BUFFER_DEFAULT_MAX: u64 = 1 << 20;
/// The largest sensible minimum, in bytes, which each socket gets even when memory is short.
const BUFFER_MIN_MAX: u64 = 64 << 10;

fn sizes([min, default, max]: [u64; 3]) -> String {
    format!("{} / {} / {}", bytes(min), bytes(default), bytes(max))
}

fn excessive([min, default, _]: [u64; 3]) -> bool {
    min > BUFFER_MIN_MAX || default > BUFFER_DEFAULT_MAX
}

fn receive_buffers(host: &Host) -> Option<Finding> {
    let name = "net.ipv4.tcp_rmem";
    let now = host.triple(name)?;
    if excessive(now) {
        let meaning = "idle connections cost no buffer, but every client can fill its default size \
                       with data before the kernel stops it: memory that no estimate includes";
        let finding = Finding::new(Advise, name, sizes(now), meaning);
        return Some(finding.set(host, "4096 131072 6291456"));
    }
    let meaning = "idle connections cost no buffer, and clients send little";
    Some(Finding::new(Good, name, sizes(now), meaning))
}

fn send_buffers(host: &Host, want: &Want) -> Option<Finding> {
    let name = "net.ipv4.tcp_wmem";
    let now = host.triple(name)?;
    if want.send_buffer_bytes > 0 {
        let meaning = format!(
            "not used: the server sets {} itself (socket.send_buffer_bytes)",
            bytes(want.send_buffer_bytes)
        );
        return Some(Finding::new(Good, name, sizes(now), meaning));
    }
    if excessive(now) || now[2] > 16 << 20 {
        let meaning = format!(
            "the kernel buffers up to {} for a client that doesn't read before the server's own \
             limit closes it",
            bytes(now[2])
        );
        let finding = Finding::new(Advise, name, sizes(now), meaning);
        return Some(finding.set(host, "4096 16384 4194304"));
    }
    let meaning = "idle connections cost no buffer; the maximum bounds a slow consumer";
    Some(Finding::new(Good, name, sizes(now), meaning))
}

fn send_buffer_max(host: &Host, want: &Want) -> Option<Finding> {
    let name = "net.core.wmem_max";
    let now = host.number(name)?;
    if now < want.send_buffer_bytes {
        let meaning = format!(
            "the server requests {} for each connection (socket.send_buffer_bytes) and gets less",
            bytes(want.send_buffer_bytes)
        );
        let finding = Finding::new(Advise, name, bytes(now), meaning);
        return Some(finding.set(host, want.send_buffer_bytes.max(212_992)));
    }
    let meaning = "more than the server requests for a connection";
    Some(Finding::new(Good, name, bytes(now), meaning))
}

fn receive_buffer_max(host: &Host) -> Option<Finding> {
    let name = "net.core.rmem_max";
    let now = host.number(name)?;
    let meaning = "not used: the server leaves receive buffers to the kernel";
    Some(Finding::new(Good, name, bytes(now), meaning))
}

fn time_wait(host: &Host) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(now) = host.number("net.ipv4.tcp_fin_timeout") {
        let meaning = match now {
            60 => "the default: for connections that wait for the peer to close, not for TIME_WAIT",
            _ => "changed from 60 s: it does not affect TIME_WAIT, which is always 60 s",
        };
        findings.push(Finding::new(Good, "net.ipv4.tcp_fin_timeout", format!("{now} s"), meaning));
    }
    if let Some(now) = host.number("net.ipv4.tcp_tw_reuse") {
        let meaning = match now {
            1 => {
                "set by hand: it is for hosts that open connections, and has no effect on a server"
            }
            _ => "it is for hosts that open connections: nothing to do for a server",
        };
        findings.push(Finding::new(Good, "net.ipv4.tcp_tw_reuse", now.to_string(), meaning));
    }
    if let Some(now) = host.number("net.ipv4.tcp_max_tw_buckets") {
        let name = "net.ipv4.tcp_max_tw_buckets";
        let finding = if now < 4_096 {
            let meaning = "closed connections beyond this number skip TIME_WAIT, and late segments \
                           can reach a new connection on the same ports";
            Finding::new(Advise, name, count(now), meaning).set(host, 65_536)
        } else {
            let meaning = "closed connections beyond it skip TIME_WAIT, as when a server ends";
            Finding::new(Good, name, count(now), meaning)
        };
        findings.push(finding);
    }
    findings
}

fn keepalive(host: &Host) -> Option<Finding> {
    let now = host.number("net.ipv4.tcp_keepalive_time")?;
    let meaning = "not used: the server sets its own, and sends heartbeats";
    Some(Finding::new(Good, "net.ipv4.tcp_keepalive_time", format!("{} s", count(now)), meaning))
}

/// Checks switches that are on by default and should stay on.
fn switches(host: &Host) -> Vec<Finding> {
    let mut findings = Vec::new();
    let off = [
        (
            "net.ipv4.tcp_syncookies",
            "a burst of new connections, or an attack, fills the queue and locks clients out",
        ),
        (
            "net.ipv4.tcp_timestamps",
            "round trips are measured badly, and SYN cookies lose window scaling; it saves 12 \
             bytes a segment",
        ),
        (
            "net.ipv4.tcp_window_scaling",
            "no window is larger than 64 KiB: long and fast paths carry less",
        ),
        ("net.ipv4.tcp_sack", "one lost segment causes many to be sent again"),
    ];
    for (name, harm) in off {
        match host.number(name) {
            Some(0) => findings.push(Finding::new(Advise, name, "off", harm).set(host, 1)),
            Some(_) => findings.push(Finding::new(Good, name, "on", "as it should be")),
            None => {}
        }
    }
    let recycle = "net.ipv4.tcp_tw_recycle";
    if host.number(recycle).is_some_and(|now| now > 0) {
        let meaning = "most clients that share an address (behind NAT, as all phones of a carrier \
                       are) are silently refused. Linux 4.12 removed it";
        findings.push(Finding::new(Must, recycle, "on", meaning).set(host, 0));
    }
    findings
}
