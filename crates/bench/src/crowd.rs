//! A crowd of client connections: opens them, checks each response, holds them, and counts the messages they receive.
//!
//! Each thread has a private descriptor table, one poller and one read buffer. A connection costs it
//! some 24 bytes and no allocation.

mod response;
mod worker;

use std::fmt;
use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;

use crate::report::latency_histogram;
use crate::template::Template;
use flood::source::CONNECTIONS_MAX;

/// Connections of one thread, as many as a descriptor limit of 20,000 allows.
pub const CONNECTIONS_PER_THREAD_MAX: usize = 19_000;

/// Time between two polls of the counts during a wait.
const POLL_EVERY: Duration = Duration::from_micros(500);

/// The plan of a crowd.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The server.
    pub target: SocketAddrV4,
    /// The number of connections.
    pub connections: usize,
    /// The number of the first connection. Crowds of one server must not share users or source addresses.
    pub first: usize,
    /// The request of each, with `{n}` for its number.
    pub request: Template,
    /// The expected status. `None` for long polls with a later response: then a connection counts as open once its
    /// request is written.
    pub status: Option<u16>,
    /// The whole response, if it is always the same and not HTTP.
    pub response: Option<&'static [u8]>,
    /// True to send a pong for each WebSocket ping.
    pub send_pongs: bool,
    /// True to acknowledge MQTT messages of QoS 1.
    pub acknowledge: bool,
    /// The limit on connection attempts under way at one time, per thread.
    pub in_flight_max: usize,
    /// Each thread records the time of one in this many timed messages.
    pub sample_every: u64,
}

impl Plan {
    /// Returns a plan of connections that send `GET` for this path (`{n}` stands for the number) and
    /// expect 200.
    pub fn get(target: SocketAddrV4, connections: usize, path: &str) -> Self {
        Self {
            target,
            connections,
            first: 0,
            request: Template::new(&format!(
                "GET {path} HTTP/1.1\r\nHost: {target}\r\nUser-Agent: throng-bench\r\n\r\n"
            )),
            status: Some(200),
            response: None,
            send_pongs: false,
            acknowledge: false,
            in_flight_max: 256,
            sample_every: 1,
        }
    }

    /// Returns a plan of WebSocket upgrades (RFC 6455 section 4.1) that expect 101.
    pub fn websocket(target: SocketAddrV4, connections: usize, path: &str) -> Self {
        Self {
            request: Template::new(&format!(
                "GET {path} HTTP/1.1\r\nHost: {target}\r\nConnection: Upgrade\r\n\
                 Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            )),
            status: Some(101),
            send_pongs: true,
            ..Self::get(target, connections, path)
        }
    }

    /// Returns a plan of Phoenix WebSockets, version 2 (phoenix.js), that join a topic at once. The join follows the
    /// request without waiting for its response.
    pub fn phoenix(target: SocketAddrV4, connections: usize, path: &str, topic: &str) -> Self {
        let plan = Self::websocket(target, connections, path);
        let join = format!("[\"1\",\"1\",\"{topic}\",\"phx_join\",{{}}]");
        // A final text frame. A mask of zeros doesn't change the payload (RFC 6455, section 5.3).
        let mut frame = vec![0x81, 0x80 | join.len() as u8, 0, 0, 0, 0];
        frame.extend_from_slice(join.as_bytes());
        Self { request: plan.request.clone().then(&frame), ..plan }
    }

    /// Returns a plan of long polls, whose responses come only with a message or at their timeout.
    pub fn poll(target: SocketAddrV4, connections: usize, path: &str) -> Self {
        Self { status: None, ..Self::get(target, connections, path) }
    }

    /// Returns a plan of MQTT 3.1.1 clients, each with a client identifier and a user of its own, that
    /// subscribe to a topic at once.
    pub fn mqtt(target: SocketAddrV4, connections: usize, topic: &str, qos: u8) -> Self {
        // CONNECT with a clean session and a user, without keep-alive; SUBSCRIBE with the identifier 1. Numbers
        // have seven digits, so that all packets have one length.
        let connect = Template::bytes(b"\x10\x1e\0\x04MQTT\x04\x82\0\0\0\x08c{n}\0\x08u{n}");
        let mut subscribe = vec![0x82, topic.len() as u8 + 5, 0, 1, 0, topic.len() as u8];
        subscribe.extend_from_slice(topic.as_bytes());
        subscribe.push(qos);
        let numbers: Vec<String> = (0..connections).map(|number| format!("{number:07}")).collect();
        const RESPONSES: [&[u8]; 3] = [
            &[0x20, 2, 0, 0, 0x90, 3, 0, 1, 0],
            &[0x20, 2, 0, 0, 0x90, 3, 0, 1, 1],
            &[0x20, 2, 0, 0, 0x90, 3, 0, 1, 2],
        ];
        Self {
            request: connect.with_texts(numbers.into()).then(&subscribe),
            response: RESPONSES.get(usize::from(qos)).copied(),
            acknowledge: qos == 1,
            ..Self::get(target, connections, "/")
        }
    }

    /// Returns a plan of idle connections by transport (`sse`, `stream`, `poll`, `ws`, `phoenix` or `mqtt`),
    /// each with a user of its own and in the topic `all`.
    ///
    /// # Panics
    /// For another transport.
    pub fn idle(transport: &str, target: SocketAddrV4, connections: usize) -> Self {
        let path = format!("/{transport}?user=u{{n}}&topic=all");
        match transport {
            "phoenix" => {
                let path = "/socket/websocket?vsn=2.0.0&user=u{n}";
                Self::phoenix(target, connections, path, "all")
            }
            "mqtt" => Self::mqtt(target, connections, "all", 0),
            "ws" => Self::websocket(target, connections, &path),
            // The timeout is long enough that no poll ends while others still connect.
            "poll" => Self::poll(target, connections, &format!("{path}&timeout=300")),
            "sse" | "stream" => Self::get(target, connections, &path),
            other => panic!("there is no transport {other}"),
        }
    }

    /// Returns the plan with users and source addresses from this number on.
    #[must_use]
    pub fn numbered_from(self, first: usize) -> Self {
        Self { first, ..self }
    }
}

/// The reason why a connection could not be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    /// No server listens.
    Refused,
    /// Reset before its response.
    Reset,
    /// No source port left.
    Address,
    /// Out of descriptors.
    Descriptors,
    /// Another status than expected.
    Status,
    /// Closed before its response.
    Closed,
    /// Anything else.
    Other,
}

impl CloseReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Refused,
        Self::Reset,
        Self::Address,
        Self::Descriptors,
        Self::Status,
        Self::Closed,
        Self::Other,
    ];
}

/// The counts of one thread, which only that thread writes, after each batch of events. They fill
/// cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Counts {
    opened: AtomicU64,
    closed: AtomicU64,
    messages: AtomicU64,
    bytes: AtomicU64,
    pings: AtomicU64,
    failures: [AtomicU64; CloseReason::ALL.len()],
    /// An unexpected status, or 0.
    status_seen: AtomicU64,
}

/// What a thread shares with the crowd's owner.
struct Shared {
    counts: Counts,
    stop: AtomicBool,
    latencies: Mutex<Histogram<u64>>,
}

/// Counts of a whole crowd.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    /// Connections with the expected response, closed since or not.
    pub opened: u64,
    /// Connections that were not opened.
    pub failed: u64,
    /// Opened connections that the server closed.
    pub closed: u64,
    /// Messages received.
    pub messages: u64,
    /// Bytes received, responses included.
    pub bytes: u64,
    /// WebSocket pings with a pong.
    pub pings: u64,
}

impl Totals {
    /// Returns the growth since earlier totals.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            opened: self.opened - earlier.opened,
            failed: self.failed - earlier.failed,
            closed: self.closed - earlier.closed,
            messages: self.messages - earlier.messages,
            bytes: self.bytes - earlier.bytes,
            pings: self.pings - earlier.pings,
        }
    }
}

/// One thread, seen from the crowd's owner.
struct Thread {
    shared: Arc<Shared>,
    /// None once joined.
    handle: Option<JoinHandle<Result<()>>>,
}

/// A crowd that is being opened or is open. Dropping it resets all its connections at once, so that
/// no port stays in TIME_WAIT.
pub struct Crowd {
    plan: Plan,
    started: Instant,
    threads: Vec<Thread>,
    /// Totals at the last [`Crowd::reset`].
    base: Totals,
}

impl fmt::Debug for Crowd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crowd")
            .field("plan", &self.plan)
            .field("totals", &self.totals())
            .finish_non_exhaustive()
    }
}

impl Crowd {
    /// Starts to open a crowd, on as many threads as it needs.
    ///
    /// # Errors
    /// If the crowd has too few source addresses, or the system can't start the threads.
    pub fn open(plan: Plan) -> Result<Self> {
        ensure!(
            plan.first + plan.connections <= CONNECTIONS_MAX,
            "no more than {CONNECTIONS_MAX} connections to one server port"
        );
        let threads = plan.connections.div_ceil(CONNECTIONS_PER_THREAD_MAX).max(1);
        let mut crowd = Self {
            started: Instant::now(),
            threads: Vec::with_capacity(threads),
            base: Totals::default(),
            plan,
        };
        for i in 0..threads {
            let share = |i| crowd.plan.first + crowd.plan.connections * i / threads;
            let shared = Arc::new(Shared {
                counts: Counts::default(),
                stop: AtomicBool::new(false),
                latencies: Mutex::new(latency_histogram()),
            });
            let (plan, thread_shared, numbers) =
                (crowd.plan.clone(), shared.clone(), share(i)..share(i + 1));
            let handle = std::thread::Builder::new()
                .name(format!("crowd-{i}"))
                .spawn(move || worker::run(&plan, numbers, &thread_shared))
                .context("starting a crowd thread")?;
            crowd.threads.push(Thread { shared, handle: Some(handle) });
        }
        Ok(crowd)
    }

    /// Opens a crowd and waits until all its connections are open. Returns the time that took.
    ///
    /// # Errors
    /// As [`Crowd::open`] and [`Crowd::wait_open`].
    pub fn open_all(plan: Plan) -> Result<(Self, Duration)> {
        let crowd = Self::open(plan)?;
        let timeout = Duration::from_secs(20 + crowd.plan.connections as u64 / 2_000);
        let took = crowd.wait_open(timeout)?;
        Ok((crowd, took))
    }

    /// Waits until every connection has its response. Returns the time since the crowd was started.
    ///
    /// # Errors
    /// If one failed (the message counts the reasons), or at the timeout.
    pub fn wait_open(&self, timeout: Duration) -> Result<Duration> {
        let planned = self.plan.connections as u64;
        loop {
            let totals = self.totals();
            if totals.opened + totals.failed >= planned {
                let took = self.started.elapsed();
                ensure!(totals.failed == 0, "connections failed: {}", self.failures());
                return Ok(took);
            }
            self.check_threads()?;
            if self.started.elapsed() > timeout {
                bail!(
                    "{} of {planned} connections were open after {timeout:?}; failed: {}",
                    totals.opened,
                    self.failures()
                );
            }
            std::thread::sleep(POLL_EVERY);
        }
    }

    /// Resets the counts of [`Crowd::received`] and the recorded times to zero.
    pub fn reset(&mut self) {
        self.take_latencies();
        self.base = self.totals();
    }

    /// Returns the totals since the last [`Crowd::reset`].
    pub fn received(&self) -> Totals {
        self.totals().since(self.base)
    }

    /// Waits until this many messages arrived since the last [`Crowd::reset`]. Returns the time that it waited, to
    /// half a millisecond.
    ///
    /// # Errors
    /// At the timeout, or if the server closed connections meanwhile.
    pub fn wait_messages(&self, messages: u64, timeout: Duration) -> Result<Duration> {
        let begin = Instant::now();
        loop {
            let received = self.received();
            if received.messages >= messages {
                return Ok(begin.elapsed());
            }
            ensure!(
                received.closed == 0,
                "{} connections were closed by the server",
                received.closed
            );
            self.check_threads()?;
            if begin.elapsed() > timeout {
                bail!("{} of {messages} messages had arrived after {timeout:?}", received.messages);
            }
            std::thread::sleep(POLL_EVERY);
        }
    }

    /// Takes the latencies of the timed messages since the last call, in nanoseconds.
    pub fn take_latencies(&mut self) -> Histogram<u64> {
        let mut all = latency_histogram();
        for Thread { shared, .. } in &self.threads {
            let mut latencies = shared.latencies.lock().unwrap_or_else(PoisonError::into_inner);
            all.add(&*latencies).expect("the same bounds");
            latencies.reset();
        }
        all
    }

    /// Returns how many connections the plan has.
    pub fn connections(&self) -> usize {
        self.plan.connections
    }

    /// Returns all counts since the start.
    pub fn totals(&self) -> Totals {
        Totals {
            opened: self.sum(|counts| &counts.opened),
            failed: (0..CloseReason::ALL.len())
                .map(|i| self.sum(|counts| &counts.failures[i]))
                .sum(),
            closed: self.sum(|counts| &counts.closed),
            messages: self.sum(|counts| &counts.messages),
            bytes: self.sum(|counts| &counts.bytes),
            pings: self.sum(|counts| &counts.pings),
        }
    }

    /// Describes how many connections failed, with the reasons.
    pub fn failures(&self) -> String {
        let reasons = CloseReason::ALL.iter().enumerate().filter_map(|(i, failure)| {
            let count = self.sum(|counts| &counts.failures[i]);
            (count > 0).then(|| format!("{failure:?} {count}"))
        });
        let mut text = reasons.collect::<Vec<_>>().join(", ");
        let statuses = self.threads.iter().map(|thread| &thread.shared.counts.status_seen);
        if let Some(status) = statuses.map(|s| s.load(Ordering::Relaxed)).find(|s| *s != 0) {
            text.push_str(&format!(" (one status was {status})"));
        }
        if text.is_empty() {
            text.push_str("none");
        }
        text
    }

    fn sum(&self, count: impl Fn(&Counts) -> &AtomicU64) -> u64 {
        self.threads.iter().map(|thread| count(&thread.shared.counts).load(Ordering::Relaxed)).sum()
    }

    /// Returns an error if a thread has ended by itself, which happens only if a system call failed.
    fn check_threads(&self) -> Result<()> {
        let ended = |thread: &Thread| thread.handle.as_ref().is_some_and(JoinHandle::is_finished);
        ensure!(!self.threads.iter().any(ended), "a crowd thread ended; its reason was printed");
        Ok(())
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for Thread { shared, .. } in &self.threads {
            shared.stop.store(true, Ordering::Relaxed);
        }
        for thread in &mut self.threads {
            if let Some(handle) = thread.handle.take() {
                // A panic of the thread was printed already, and the owner may be unwinding.
                let _ = handle.join();
            }
        }
    }
}
