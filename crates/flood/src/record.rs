//! What a run leaves behind: a sample each second, and a summary at the end. Both are written as
//! they stand into the report's JSON.

use serde::Serialize;

/// Percentiles of a histogram, in microseconds. All zero when nothing was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// Values recorded.
    pub count: u64,
    /// Half were at most this.
    pub p50_us: u64,
    /// Nine of ten.
    pub p90_us: u64,
    /// 99 of 100.
    pub p99_us: u64,
    /// 999 of 1,000.
    pub p999_us: u64,
    /// The largest.
    pub max_us: u64,
}

/// Counts since the begin of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Connections that are open now.
    pub open: u64,
    /// Connections that were opened, closed since or not.
    pub opened: u64,
    /// Attempts that failed, for any reason.
    pub failed: u64,
    /// Open connections that the server closed.
    pub closed: u64,
    /// Open connections that the scenario closed itself.
    pub left: u64,
    /// Messages received.
    pub messages: u64,
    /// Heartbeats of any kind received: comments, heartbeat lines, pings.
    pub heartbeats: u64,
    /// Bytes received, answers' heads included.
    pub bytes: u64,
    /// Messages that should have come and did not, so far as sequences tell.
    pub lost: u64,
    /// Messages that came once more.
    pub duplicated: u64,
    /// Messages that came after a later one.
    pub out_of_order: u64,
    /// Messages for another user or topic than the connection's.
    pub strayed: u64,
    /// Connections that the scenario cut, while they were open or opening.
    pub cuts: u64,
    /// Messages that were published while their reader was away, and came when it was back.
    pub caught_up: u64,
    /// Reconnects at which the server said that what was missed can't be given any more. Such a gap
    /// is no loss.
    pub not_recovered: u64,
    /// Messages to users that came again, since they were not acknowledged.
    pub redelivered: u64,
    /// Messages to users that the server took as acknowledged.
    pub acked: u64,
    /// Acknowledgements that it refused, or did not answer.
    pub ack_failed: u64,
    /// Publishes that the server took.
    pub published: u64,
    /// Publishes that it refused, or did not answer.
    pub publish_failed: u64,
    /// Probes (ordinary requests beside the crowd) answered with 2xx.
    pub probes: u64,
    /// Probes that failed.
    pub probes_failed: u64,
}

/// What the server says of itself in `/metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Server {
    /// Connections it counts.
    pub connections: u64,
    /// Memory that the program has written, in bytes.
    pub memory_bytes: u64,
    /// Growth of that since its start, over its connections, in bytes.
    pub memory_per_connection_bytes: f64,
    /// Processor time so far, in seconds.
    pub cpu_seconds: f64,
    /// Messages it handed to connections.
    pub delivered: u64,
}

/// One look at the run. Percentiles are of what was recorded since the sample before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Sample {
    /// Seconds since the begin of the run.
    pub at_seconds: f64,
    /// Counts since the begin.
    pub counts: Counts,
    /// Time from the intended publish to the receipt.
    pub delivery: Percentiles,
    /// The same, of messages to one user only.
    pub delivery_user: Percentiles,
    /// Time from the intended connect to the answer.
    pub connect: Percentiles,
    /// Memory that the load generator has written, in bytes.
    pub memory_bytes: u64,
    /// Its processor time so far, in seconds.
    pub cpu_seconds: f64,
    /// The kernel's slab on this host, in bytes. Both ends of a connection on loopback count.
    pub slab_bytes: u64,
    /// Buffers of TCP sockets on this host, in bytes.
    pub tcp_bytes: u64,
    /// Memory still available on this host, in bytes.
    pub available_bytes: u64,
    /// The server, when `--admin` names it and it answered.
    pub server: Option<Server>,
}

/// What became of a storm: everyone was away, something was published, everyone came back for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Storm {
    /// Connections that were dropped.
    pub connections: u64,
    /// Those that had all they missed at its end.
    pub recovered: u64,
    /// Messages that each of them missed.
    pub missed: u64,
    /// From the moment when they were let back until the last one had all, in seconds.
    pub seconds: f64,
    /// Time from a connection's begin to the last message that it missed.
    pub recovery: Percentiles,
    /// The server's processor time for it, in seconds.
    pub server_cpu_seconds: Option<f64>,
}

/// A number of events under a name, for tables.
pub type Named = (String, u64);

/// What the run came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// The command line, as typed; secrets are never on it.
    pub command: String,
    /// The scenario's name.
    pub scenario: String,
    /// When it began: seconds since 1970.
    pub started_unix_seconds: u64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// True when it was stopped before its end.
    pub interrupted: bool,
    /// True when it opened no more connections, for memory (`--keep-memory`).
    pub full: bool,
    /// Connections it was to open.
    pub connections: u64,
    /// The counts at the end; `open` is from before the crowd was let go.
    pub counts: Counts,
    /// Why attempts failed.
    pub failures: Vec<Named>,
    /// Why the server closed open connections.
    pub closes: Vec<Named>,
    /// All deliveries.
    pub delivery: Percentiles,
    /// Those of messages to one user.
    pub delivery_user: Percentiles,
    /// All connects.
    pub connect: Percentiles,
    /// All probes.
    pub probe: Percentiles,
    /// True when connections came back for what they missed: then it is no fault that they were
    /// closed, or had to try more than once, as long as nothing is lost.
    pub recover: bool,
    /// Storms in which something was missed.
    pub storms: Vec<Storm>,
    /// The first faults of sequences, in words.
    pub faults: Vec<String>,
    /// Memory the load generator grew by for each connection, in bytes, at its fullest.
    pub memory_per_connection_bytes: f64,
    /// Its processor time for each message and heartbeat received, in microseconds.
    pub cpu_per_message_us: f64,
    /// The server's processor time for each message and heartbeat sent, in microseconds.
    pub server_cpu_per_message_us: Option<f64>,
    /// Facts of the host: name and value.
    pub host: Vec<(String, String)>,
    /// Kernel settings: name and value.
    pub settings: Vec<(String, String)>,
}
