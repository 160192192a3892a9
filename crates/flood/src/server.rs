//! The server's own figures, from Throng's `/metrics`, and its kernel's stats, from `/api/kernel`.

use std::sync::mpsc::{SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use admin::{Http, Url};

use crate::AGENT;
use crate::crowd::lock;
use crate::kernels::{HostFindings, KernelReply, KernelWatch};
use crate::record::Server;

/// How long the server may take at the end of a run to report its kernel's stats.
const KERNEL_REPLY_MAX: Duration = Duration::from_secs(10);

/// Polls a server now and then, on a thread of its own. A server under load may be slow, and the
/// run's samples must not wait for it.
#[derive(Debug)]
pub struct Watch {
    latest: Arc<Mutex<Option<Server>>>,
    /// The last figures that the server reported.
    known: Mutex<Server>,
    polls: SyncSender<()>,
    /// The kernel of its host since the begin of the run, if the server reports it, and where to request it again.
    kernel: Option<(KernelWatch, Admin)>,
}

/// An admin port, and its key.
type Admin = (Url, Option<String>);

impl Watch {
    /// Starts to watch the server at this admin port. Returns `None` if it doesn't respond with
    /// Throng's metrics now.
    pub fn start(url: &Url, key: Option<&str>) -> Option<Self> {
        let mut http = Http::new(url, key, AGENT);
        let first = poll(&mut http)?;
        let watch = |reply| KernelWatch::server(&url.address.to_string(), reply);
        let admin = || (url.clone(), key.map(str::to_owned));
        let kernel = poll_kernel(&mut http).map(|reply| (watch(reply), admin()));
        let latest = Arc::new(Mutex::new(Some(first)));
        let (polls, requested) = sync_channel(1);
        let shared = latest.clone();
        let watch = move || {
            while requested.recv().is_ok() {
                let figures = poll(&mut http);
                *lock(&shared) = figures;
            }
        };
        std::thread::Builder::new().name("watch".into()).spawn(watch).ok()?;
        Some(Self { latest, known: Mutex::new(first), polls, kernel })
    }

    /// Returns the figures of the last poll, `None` if it failed, and requests the next poll.
    pub fn take(&self) -> Option<Server> {
        // The channel is full while the thread still polls; one request is enough.
        let _ = self.polls.try_send(());
        *lock(&self.latest)
    }

    /// Returns the figures as [`Watch::take`] does; for a server that is gone, its counts until then.
    fn take_or_last(&self) -> Server {
        let mut known = lock(&self.known);
        *known = match self.take() {
            Some(server) => server,
            None => Server {
                connections: 0,
                memory_bytes: 0,
                memory_per_connection_bytes: 0.0,
                ..*known
            },
        };
        *known
    }
}

/// Watches of all nodes, with their figures summed up.
#[derive(Debug, Default)]
pub struct Watches(Vec<Watch>);

impl Watches {
    /// Starts to watch the servers at these admin ports that respond with Throng's metrics. Returns `None` if none
    /// does.
    pub fn start(urls: &[Url], key: Option<&str>) -> Option<Self> {
        let watches: Vec<Watch> = urls.iter().filter_map(|url| Watch::start(url, key)).collect();
        (!watches.is_empty()).then_some(Self(watches))
    }

    /// As [`Watch::take`]. The processor time and the deliveries of a node that is gone stay in the sums.
    pub fn take(&self) -> Option<Server> {
        match self.0.as_slice() {
            [watch] => watch.take(),
            watches => Some(sum(watches.iter().map(Watch::take_or_last))),
        }
    }

    /// Returns the problems in the kernels of the servers' hosts since the begin of the run. A server that does not
    /// report its kernel's stats, or not in time, is left out.
    pub fn kernel_findings(&self) -> Vec<HostFindings> {
        let (sender, replies) = channel();
        let watched = self.0.iter().filter_map(|it| it.kernel.clone());
        for (at, (mut watch, (url, key))) in watched.enumerate() {
            let sender = sender.clone();
            // A server that hangs blocks only this thread.
            let poll = move || {
                if let Some(reply) = poll_kernel(&mut Http::new(&url, key.as_deref(), AGENT)) {
                    watch.update(reply);
                }
                let _ = sender.send((at, watch.findings()));
            };
            // Without a thread this server has no findings.
            let _ = std::thread::Builder::new().name("kernel".into()).spawn(poll);
        }
        drop(sender);
        let until = Instant::now() + KERNEL_REPLY_MAX;
        let next = || replies.recv_timeout(until.saturating_duration_since(Instant::now())).ok();
        let mut all: Vec<(usize, HostFindings)> = std::iter::from_fn(next).collect();
        all.sort_by_key(|(at, _)| *at);
        all.into_iter().map(|(_, findings)| findings).collect()
    }
}

/// Returns the sum of the figures of several nodes.
fn sum(servers: impl Iterator<Item = Server>) -> Server {
    let (mut sum, mut grown) = (Server::default(), 0.0);
    for server in servers {
        sum.connections += server.connections;
        sum.memory_bytes += server.memory_bytes;
        sum.cpu_seconds += server.cpu_seconds;
        sum.delivered += server.delivered;
        grown += server.memory_per_connection_bytes * server.connections as f64;
    }
    sum.memory_per_connection_bytes = grown / sum.connections.max(1) as f64;
    sum
}

fn poll(http: &mut Http) -> Option<Server> {
    let (status, body) = http.request("GET", "/metrics", "text/plain", "").ok()?;
    if status != 200 {
        return None;
    }
    parse(std::str::from_utf8(&body).ok()?)
}

/// Requests the kernel's stats. An older server does not have them, and a key that may only publish does not get
/// them.
fn poll_kernel(http: &mut Http) -> Option<KernelReply> {
    let (status, body) = http.request("GET", "/api/kernel", "application/json", "").ok()?;
    (status == 200).then(|| serde_json::from_slice(&body).ok())?
}

/// Reads the relevant lines of the Prometheus text format. Returns `None` if they aren't Throng's.
fn parse(text: &str) -> Option<Server> {
    let sum = |name: &str| {
        let of = |line: &str| {
            let rest = line.strip_prefix(name)?;
            let rest = if rest.starts_with('{') { rest.split_once('}')?.1 } else { rest };
            rest.strip_prefix(' ')?.trim().parse::<f64>().ok()
        };
        let values: Vec<f64> = text.lines().filter_map(of).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>())
    };
    Some(Server {
        connections: sum("throng_connections")? as u64,
        memory_bytes: sum("throng_process_anonymous_memory_bytes")? as u64,
        memory_per_connection_bytes: sum("throng_memory_per_connection_bytes")?,
        cpu_seconds: sum("throng_process_cpu_seconds_total")?,
        delivered: sum("throng_messages_delivered_total")? as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_read() {
        let text = "# HELP x y\nthrong_connections{transport=\"sse\"} 3.0\n\
                    throng_connections{transport=\"ws\"} 4.0\nthrong_connections_opened_total 9\n\
                    throng_process_anonymous_memory_bytes 1000.0\n\
                    throng_memory_per_connection_bytes 107.5\nthrong_process_cpu_seconds_total 0.5\n\
                    throng_messages_delivered_total 8.0\n";
        let server = parse(text).unwrap();
        assert_eq!((server.connections, server.delivered, server.memory_bytes), (7, 8, 1000));
        assert!(parse("up 1\n").is_none());
        let more = Server { connections: 21, memory_per_connection_bytes: 200.0, ..server };
        let both = sum([server, more].into_iter());
        assert_eq!((both.connections, both.memory_bytes, both.delivered), (28, 2_000, 16));
        assert!((both.memory_per_connection_bytes - 176.875).abs() < 1e-9, "{both:?}");
    }
}
