//! The server's own figures, from Throng's `/metrics`, and its kernel's stats, from `/api/kernel`.

use std::sync::mpsc::{SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

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
    polls: SyncSender<()>,
    /// The kernel of its host since the begin of the run, if the server reports it, and a client to request it.
    kernel: Option<(KernelWatch, Http)>,
}

impl Watch {
    /// Starts to watch the server at this admin port. Returns `None` if it doesn't respond with
    /// Throng's metrics now.
    pub fn start(url: &Url, key: Option<&str>) -> Option<Self> {
        let mut http = Http::new(url, key, AGENT);
        let first = poll(&mut http)?;
        let mut kernel_http = Http::new(url, key, AGENT);
        let kernel = poll_kernel(&mut kernel_http)
            .map(|reply| (KernelWatch::server(&url.address.to_string(), reply), kernel_http));
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
        Some(Self { latest, polls, kernel })
    }

    /// Returns the figures of the last poll, `None` if it failed, and requests the next poll.
    pub fn take(&self) -> Option<Server> {
        // The channel is full while the thread still polls; one request is enough.
        let _ = self.polls.try_send(());
        *lock(&self.latest)
    }

    /// Returns what went wrong in the kernel of the server's host since the begin of the run; to be called once, at
    /// its end. Returns `None` if the server does not report its kernel's stats, or not in time.
    pub fn kernel_findings(&mut self) -> Option<HostFindings> {
        let (mut watch, mut http) = self.kernel.take()?;
        let (sender, replies) = channel();
        // A server that hangs blocks only this thread.
        let poll = move || drop(sender.send(poll_kernel(&mut http)));
        std::thread::Builder::new().name("kernel".into()).spawn(poll).ok()?;
        watch.update(replies.recv_timeout(KERNEL_REPLY_MAX).ok()??);
        Some(watch.findings())
    }
}

fn poll(http: &mut Http) -> Option<Server> {
    let (status, body) = http.request("GET", "/metrics", "text/plain", "").ok()?;
    if status != 200 {
        return None;
    }
    parse(std::str::from_utf8(&body).ok()?)
}

/// Requests the kernel's stats. An older server does not answer that, nor does one whose key may only publish.
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
    }
}
