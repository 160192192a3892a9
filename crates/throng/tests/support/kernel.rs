//! Makes the kernel drop attempts to connect.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::TIMEOUT;

/// The longest queue that [`overflow`] fills.
const QUEUE_MAX: usize = 1_000;

/// Connects to a listener at which no process accepts, until the kernel drops an attempt because the queue is full.
/// Returns the connections in the queue.
pub fn overflow(listener: SocketAddr) -> Vec<TcpStream> {
    let end = Instant::now() + TIMEOUT;
    let before = overflows();
    let mut queued = Vec::new();
    let mut is_full = false;
    // Tests that run at the same time share the counter, so a growth alone does not prove that this queue is full.
    while !is_full || overflows() == before {
        assert!(queued.len() < QUEUE_MAX, "the queue does not become full");
        assert!(Instant::now() < end, "the kernel drops no attempt to connect");
        match TcpStream::connect_timeout(&listener, Duration::from_millis(100)) {
            Ok(stream) => queued.push(stream),
            Err(_) => is_full = true,
        }
    }
    queued
}

/// ListenOverflows of this network namespace.
fn overflows() -> u64 {
    let text = std::fs::read_to_string("/proc/net/netstat").unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let mut words = lines.next().unwrap().split(' ').zip(lines.next().unwrap().split(' '));
    words.find(|(name, _)| *name == "ListenOverflows").unwrap().1.parse().unwrap()
}

/// A listener with the shortest queue, at which no process accepts.
pub fn short_queue() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // The standard library requests a longer queue.
    rustix::net::listen(&listener, 1).unwrap();
    listener
}
