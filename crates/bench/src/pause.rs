//! Measures how long a server's event loops are busy elsewhere: it sends small requests again and again, and finds
//! the longest wait for a response.

use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

/// Connections for each shard. The kernel spreads them at random, so that hardly any shard has none.
const PER_SHARD: usize = 4;

/// The time between two requests.
const EVERY: Duration = Duration::from_micros(500);

const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: probe\r\n\r\n";

/// A probe that is under way.
#[derive(Debug)]
pub struct Pauses {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Found>>>,
}

/// The waits for responses that a probe found.
#[derive(Debug, Clone, Copy, Default)]
pub struct Found {
    /// The longest.
    pub longest: Duration,
    /// One in a thousand was longer.
    pub p999: Duration,
}

impl Pauses {
    /// Starts to send requests to all shards of a server in turn.
    ///
    /// # Errors
    /// If the server does not respond.
    pub fn watch(clients: SocketAddrV4, shards: usize) -> Result<Self> {
        let mut sockets = Vec::new();
        for _ in 0..shards * PER_SHARD {
            let socket = TcpStream::connect(clients).context("the probe's connection")?;
            socket.set_nodelay(true)?;
            socket.set_read_timeout(Some(Duration::from_secs(20)))?;
            sockets.push(socket);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("pauses".into())
            .spawn(move || send_requests(&mut sockets, &stopped))
            .context("starting the probe")?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Ends the probe.
    ///
    /// # Errors
    /// If the server closed one of its connections, or sent no response.
    pub fn end(mut self) -> Result<Found> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("a probe ends once")?;
        thread.join().map_err(|_| anyhow!("the probe failed"))?
    }
}

impl Drop for Pauses {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn send_requests(sockets: &mut [TcpStream], stop: &AtomicBool) -> Result<Found> {
    let mut waits = crate::report::latency_histogram();
    let mut response = [0; 4096];
    while !stop.load(Ordering::Relaxed) {
        for socket in &mut *sockets {
            let begin = Instant::now();
            socket.write_all(REQUEST)?;
            let bytes = socket.read(&mut response)?;
            waits.saturating_record(begin.elapsed().as_nanos() as u64);
            ensure!(response[..bytes].starts_with(b"HTTP/1.1 200"), "the probe was rejected");
            std::thread::sleep(EVERY);
        }
    }
    let time = Duration::from_nanos;
    Ok(Found { longest: time(waits.max()), p999: time(waits.value_at_quantile(0.999)) })
}
