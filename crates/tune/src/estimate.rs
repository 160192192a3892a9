//! Estimates the memory and the shards that connections need.

use serde::{Deserialize, Serialize};

use crate::host::Host;
use crate::want::Want;

/// Memory costs in bytes, measured on Linux 6.18 on x86-64 unless a line says otherwise.
pub mod cost {
    /// Kernel memory of one end of an established TCP connection that epoll watches: the socket
    /// 2,368, its inode 832, file 192, dentry 192, epoll entry 128, and the rest.
    pub const KERNEL_PER_END: u64 = 4_170;
    /// The server's own memory for an idle SSE or WebSocket connection with a user and a topic.
    pub const SERVER_PER_CONNECTION: u64 = 108;
    /// The load generator's own memory for a connection.
    pub const GENERATOR_PER_CONNECTION: u64 = 64;
    /// The kernel's smallest buffer for a short message that is sent and not yet read.
    pub const MESSAGE_IN_FLIGHT: u64 = 1_024;
    /// One connection in this many has a message in flight at a time. A broadcast to a million takes seconds, and a
    /// client reads its message within a round trip. So most clients have read it before the last ones get it, and a
    /// quarter at once is a bad moment rather than the mean.
    pub const IN_FLIGHT_SHARE: u64 = 4;
    /// A shard with its thread, tables and ring.
    pub const SHARD: u64 = 200_000;
    /// An entry of connection tracking: 256 of slab and about 128 of extensions (not measured).
    pub const CONNTRACK_ENTRY: u64 = 384;
    /// Reserved for the system and for other programs.
    pub const SYSTEM_SLACK: u64 = 256 << 20;
}

// These constants and `Table` mirror how the server plans its shards (crate `shard`, start.rs).

/// Descriptors of a shard's table that are not for connections.
const OWN_DESCRIPTORS: u64 = 192;
/// The fewest connections that a shard starts for.
const CAPACITY_MIN: u64 = 64;
/// The most shards.
pub(crate) const SHARDS_MAX: u64 = 1_000;
/// The number of threads that are no shards, rounded up.
pub(crate) const OTHER_THREADS: u64 = 16;

/// How many connections one descriptor table has capacity for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    /// The most connections.
    pub capacity: u64,
    /// The connections that the server plans for. They leave capacity for the listener's queue.
    pub planned: u64,
}

impl Table {
    /// Returns the table for this limit on open files.
    pub fn new(nofile: u64, want: &Want) -> Table {
        let capacity = nofile.saturating_sub(OWN_DESCRIPTORS);
        let capacity = if capacity < CAPACITY_MIN { 0 } else { capacity };
        Table { capacity, planned: capacity - u64::from(want.backlog).min(capacity / 8) }
    }

    /// Returns the limit on open files with which the server plans one table for this many connections.
    pub fn nofile_for(connections: u64, want: &Want) -> u64 {
        connections.saturating_add(u64::from(want.backlog)).saturating_add(OWN_DESCRIPTORS)
    }
}

/// Returns how many shards the server starts on this host for this many connections.
pub(crate) fn shards(host: &Host, want: &Want, connections: u64) -> u64 {
    let cores = host.cpus.unwrap_or(1).clamp(1, SHARDS_MAX);
    let planned = match (host.private_tables, host.nofile_hard) {
        (Some(false), _) | (_, None) => return cores,
        (_, Some(nofile)) => Table::new(nofile, want).planned.max(1),
    };
    connections.div_ceil(planned).clamp(cores, SHARDS_MAX)
}

/// The memory that connections take, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estimate {
    /// The number of connections.
    pub connections: u64,
    /// The kernel's memory, for both ends if both are on this host.
    pub kernel: u64,
    /// The part of it for connection tracking.
    pub conntrack: u64,
    /// The server's memory.
    pub server: u64,
    /// The load generator's memory, if it runs on this host.
    pub generator: u64,
    /// Memory of messages that are sent and not yet read.
    pub in_flight: u64,
    /// Memory reserved for the system.
    pub slack: u64,
    /// The sum.
    pub total: u64,
}

impl Estimate {
    pub(crate) fn new(host: &Host, want: &Want, connections: u64) -> Estimate {
        let each = |bytes: u64| connections.saturating_mul(bytes);
        let conntrack = if tracks(host) { each(cost::CONNTRACK_ENTRY) } else { 0 };
        let kernel = each(cost::KERNEL_PER_END.saturating_mul(want.ends()));
        let kernel = kernel.saturating_add(conntrack);
        let shards = shards(host, want, connections).saturating_mul(cost::SHARD);
        let server = each(cost::SERVER_PER_CONNECTION).saturating_add(shards);
        let generator = if want.both_ends { each(cost::GENERATOR_PER_CONNECTION) } else { 0 };
        let in_flight = each(cost::MESSAGE_IN_FLIGHT) / cost::IN_FLIGHT_SHARE;
        let slack = cost::SYSTEM_SLACK;
        let parts = [kernel, server, generator, in_flight, slack];
        let total = parts.into_iter().fold(0, u64::saturating_add);
        Estimate { connections, kernel, conntrack, server, generator, in_flight, slack, total }
    }

    /// Returns the most connections whose estimate is within `bytes`.
    pub(crate) fn most(host: &Host, want: &Want, bytes: u64) -> u64 {
        // No connection costs less than this, which gives the upper bound of the search.
        let (mut fits, mut not) = (0, bytes / cost::KERNEL_PER_END + 1);
        while not - fits > 1 {
            let middle = fits + (not - fits) / 2;
            match Estimate::new(host, want, middle).total <= bytes {
                true => fits = middle,
                false => not = middle,
            }
        }
        fits
    }
}

/// Returns whether the firewall tracks connections. The module may be loaded without a rule that uses
/// it; then its count is 0.
pub(crate) fn tracks(host: &Host) -> bool {
    host.in_use("net.netfilter.nf_conntrack_count") > Some(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_connections_need_58_shards_of_20_000_descriptors() {
        let host = Host { cpus: Some(2), nofile_hard: Some(20_000), ..Host::default() };
        let want = Want::new(1_000_000);
        assert_eq!(Table::new(20_000, &want), Table { capacity: 19_808, planned: 17_332 });
        assert_eq!(shards(&host, &want, 1_000_000), 58);
        assert_eq!(shards(&host, &want, 10), 2);
    }

    #[test]
    fn most_returns_the_largest_number_that_fits() {
        let (host, want) = (Host::default(), Want::new(1));
        let most = Estimate::most(&host, &want, 8 << 30);
        assert!(Estimate::new(&host, &want, most).total <= 8 << 30);
        assert!(Estimate::new(&host, &want, most + 1).total > 8 << 30);
        assert_eq!(Estimate::most(&host, &want, 0), 0);
        assert!(Estimate::most(&host, &want, u64::MAX) > 1 << 40);
    }

    #[test]
    fn the_recommended_limit_suffices_for_the_wanted_connections() {
        for connections in [100, 10_000, 1_000_000] {
            let want = Want::new(connections);
            let nofile = Table::nofile_for(connections, &want);
            assert!(Table::new(nofile, &want).planned >= connections);
        }
    }
}
