//! The results of a run: a sample each second, and a summary at the end. The report's JSON has them
//! with these names.

use serde::{Deserialize, Serialize};

use crate::kernels::HostFindings;

/// Percentiles of a histogram, in microseconds. All zero when nothing was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Percentiles {
    /// The number of values recorded.
    pub count: u64,
    /// Half of the values are at most this.
    pub p50_us: u64,
    /// Nine of ten values are at most this.
    pub p90_us: u64,
    /// 99 of 100 values are at most this.
    pub p99_us: u64,
    /// 999 of 1,000 values are at most this.
    pub p999_us: u64,
    /// The largest value.
    pub max_us: u64,
}

/// Declares [`Counts`], with one list of its fields.
macro_rules! counts {
    ($($(#[$doc:meta])* $count:ident,)*) => {
        /// Counts since the begin of the run.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
        pub struct Counts {
            $($(#[$doc])* pub $count: u64,)*
        }

        impl Counts {
            /// Adds the counts of another part of the run.
            pub fn add(&mut self, more: &Counts) {
                $(self.$count += more.$count;)*
            }
        }
    };
}

counts! {
    /// Connections that are open now.
    open,
    /// Connections that were opened, closed since or not.
    opened,
    /// Attempts that failed, for any reason.
    failed,
    /// Open connections that the server closed.
    closed,
    /// Open connections that the scenario closed itself.
    left,
    /// Messages received.
    messages,
    /// Heartbeats of any kind received: comments, heartbeat lines, pings.
    heartbeats,
    /// Bytes received, including response heads.
    bytes,
    /// Messages that should have arrived and did not, according to the sequences.
    lost,
    /// Messages that arrived again.
    duplicated,
    /// Messages that arrived after a later one.
    out_of_order,
    /// Messages for another user or topic than the connection's.
    strayed,
    /// Connections that the scenario cut, while they were open or opening. If connections go to another server when
    /// they come back, also those that ended without a reason, as those of a killed server do.
    cuts,
    /// Messages that were published while their receiver was away, and arrived after its return.
    caught_up,
    /// Reconnects at which the server reported that it can't deliver the missed messages. The messages of such a
    /// recovery gap don't count as lost.
    not_recovered,
    /// Messages to users that arrived again for lack of an acknowledgement.
    redelivered,
    /// Messages to users whose acknowledgement the server accepted.
    acked,
    /// Acknowledgements that the server rejected or sent no reply to.
    ack_failed,
    /// Publishes that the server accepted.
    published,
    /// Publishes that the server rejected or sent no reply to.
    publish_failed,
    /// Publishes that broke off with one of several nodes: it is unknown whether they were published.
    publish_unsure,
    /// Probes (ordinary requests beside the crowd) with a 2xx response.
    probes,
    /// Probes that failed.
    probes_failed,
}

/// The counts of the connections to one of several servers. See [`Counts`] for the meanings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct TargetCounts {
    /// The server's host and port.
    pub target: String,
    /// See [`Counts::open`].
    pub open: u64,
    /// See [`Counts::opened`].
    pub opened: u64,
    /// See [`Counts::failed`].
    pub failed: u64,
    /// See [`Counts::closed`].
    pub closed: u64,
    /// See [`Counts::cuts`].
    pub cuts: u64,
    /// See [`Counts::lost`]: counted for the connections that were at this server when the loss showed.
    pub lost: u64,
}

/// One of the agents of a run.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Agent {
    /// Its host and port.
    pub agent: String,
    /// Connections of its share.
    pub connections: u64,
    /// Open connections of its share at the end.
    pub open: u64,
    /// Messages that its connections have received.
    pub messages: u64,
    /// The largest error of its clock, in microseconds: the times of messages from other agents may be wrong by this
    /// much.
    pub clock_error_us: u64,
    /// The reason for its loss, if it was lost. The counts since its last sample are lost with it.
    pub lost: Option<String>,
}

/// The server's own figures from `/metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Server {
    /// Connections that it counts.
    pub connections: u64,
    /// Memory that the server process has written, in bytes.
    pub memory_bytes: u64,
    /// Growth of that since its start, divided by its connections, in bytes.
    pub memory_per_connection_bytes: f64,
    /// Processor time so far, in seconds.
    pub cpu_seconds: f64,
    /// Messages that it passed to connections.
    pub delivered: u64,
}

/// The figures of one moment of the run. Percentiles cover the time since the sample before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Sample {
    /// Seconds since the begin of the run.
    pub at_seconds: f64,
    /// Counts since the begin.
    pub counts: Counts,
    /// Time from the intended publish to the receipt.
    pub delivery: Percentiles,
    /// As `delivery`, for messages to single users only.
    pub delivery_user: Percentiles,
    /// Time from the intended connect to the response.
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
    /// The server's figures, if its admin port is known and it responded.
    pub server: Option<Server>,
}

/// The results of a storm: all connections were away, messages were published, and all connections
/// came back for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Storm {
    /// Connections that were dropped.
    pub connections: u64,
    /// Connections that had received all missed messages at the storm's end.
    pub recovered: u64,
    /// Messages that each of them missed.
    pub missed: u64,
    /// Seconds from the moment when they might return until the last one had received all.
    pub seconds: f64,
    /// Time from a connection's begin to the last message that it had missed.
    pub recovery: Percentiles,
    /// The server's processor time for it, in seconds.
    pub server_cpu_seconds: Option<f64>,
}

/// A number of events under a name, for tables.
pub type Named = (String, u64);

/// How connections use TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TlsUse {
    /// The servers' certificates are verified.
    Verified,
    /// Any certificate is accepted (`--insecure-tls`).
    Unverified,
}

impl TlsUse {
    /// Returns a phrase for texts about a run with this use of TLS.
    pub fn phrase(self) -> &'static str {
        match self {
            TlsUse::Verified => "by TLS",
            TlsUse::Unverified => "by TLS with any certificate (--insecure-tls)",
        }
    }
}

/// The results of the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// The command line as the user typed it. It never contains secrets.
    pub command: String,
    /// The scenario's name.
    pub scenario: String,
    /// The start, in seconds since 1970.
    pub started_unix_seconds: u64,
    /// Its length, in seconds.
    pub seconds: f64,
    /// True when it was stopped before its end.
    pub interrupted: bool,
    /// True when it opened no more connections because memory was short (`--keep-memory`).
    pub full: bool,
    /// How connections use TLS, if any target has it.
    pub tls: Option<TlsUse>,
    /// Connections that the run had to open.
    pub connections: u64,
    /// The counts at the end. `open` is from before the crowd was closed.
    pub counts: Counts,
    /// The counts of each server, if the run has several.
    pub targets: Vec<TargetCounts>,
    /// The agents among which the run was divided.
    pub agents: Vec<Agent>,
    /// Reasons of failed attempts.
    pub failures: Vec<Named>,
    /// Reasons for which the server closed open connections.
    pub closes: Vec<Named>,
    /// All deliveries.
    pub delivery: Percentiles,
    /// Deliveries of messages to one user.
    pub delivery_user: Percentiles,
    /// All connects.
    pub connect: Percentiles,
    /// All probes.
    pub probe: Percentiles,
    /// Times from the request of an accepted publish to its reply.
    pub publish: Percentiles,
    /// The longest time for which each connection received no message (`--silences`).
    pub silence: Percentiles,
    /// True when connections came back for missed messages. Then closes and further attempts are expected, as long as
    /// no message is lost.
    pub recover: bool,
    /// Storms with missed messages.
    pub storms: Vec<Storm>,
    /// Descriptions of the first anomalies in the sequences.
    pub faults: Vec<String>,
    /// Memory growth of the load generator for each connection, in bytes, when most were open.
    pub memory_per_connection_bytes: f64,
    /// Its processor time for each received message and heartbeat, in microseconds.
    pub cpu_per_message_us: f64,
    /// The server's processor time for each sent message and heartbeat, in microseconds.
    pub server_cpu_per_message_us: Option<f64>,
    /// Facts about the host: name and value.
    pub host: Vec<(String, String)>,
    /// Problems in the kernels of the hosts during the run.
    pub kernels: Vec<HostFindings>,
    /// Kernel settings: name and value.
    pub settings: Vec<(String, String)>,
}
