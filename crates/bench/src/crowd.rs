//! A crowd of client connections: opens them, checks each answer, holds them, counts what comes.
//!
//! Each thread has a private descriptor table, one poller and one read buffer; a connection costs
//! it some 24 bytes. Nothing is allocated per connection.

mod answer;
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

/// Connections of one thread: what fits under a descriptor limit of 20,000.
pub const CONNECTIONS_PER_THREAD_MAX: usize = 19_000;

/// How often the counts are looked at while waiting.
const LOOK_EVERY: Duration = Duration::from_micros(500);

/// What a crowd is to be.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The server.
    pub target: SocketAddrV4,
    /// How many connections.
    pub connections: usize,
    /// Number of the first one: crowds of one server must not overlap in users or sources.
    pub first: usize,
    /// What each sends; `{n}` stands for its number.
    pub request: Template,
    /// Status that each must be answered with; none if an answer comes only later (long poll), so
    /// that a connection counts as open once its request is written.
    pub status: Option<u16>,
    /// Whether to answer WebSocket pings.
    pub answer_pings: bool,
    /// Connections under way at one time, per thread.
    pub in_flight_max: usize,
    /// Of the timed messages, each thread records the time of one in so many.
    pub sample_every: u64,
}

impl Plan {
    /// Connections that each send `GET` for this target (`{n}` stands for the number) and expect
    /// 200.
    pub fn get(target: SocketAddrV4, connections: usize, path: &str) -> Self {
        Self {
            target,
            connections,
            first: 0,
            request: Template::new(&format!(
                "GET {path} HTTP/1.1\r\nHost: {target}\r\nUser-Agent: throng-bench\r\n\r\n"
            )),
            status: Some(200),
            answer_pings: false,
            in_flight_max: 256,
            sample_every: 1,
        }
    }

    /// The same, as WebSocket upgrades (RFC 6455 section 4.1) that expect 101.
    pub fn websocket(target: SocketAddrV4, connections: usize, path: &str) -> Self {
        Self {
            request: Template::new(&format!(
                "GET {path} HTTP/1.1\r\nHost: {target}\r\nConnection: Upgrade\r\n\
                 Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            )),
            status: Some(101),
            answer_pings: true,
            ..Self::get(target, connections, path)
        }
    }

    /// WebSockets of Phoenix, version 2 (phoenix.js), that join a topic at once: the join follows the
    /// request without waiting for its answer.
    pub fn phoenix(target: SocketAddrV4, connections: usize, path: &str, topic: &str) -> Self {
        let plan = Self::websocket(target, connections, path);
        let join = format!("[\"1\",\"1\",\"{topic}\",\"phx_join\",{{}}]");
        // A final text frame; a mask of zeros leaves the payload as it is (RFC 6455, section 5.3).
        let mut frame = vec![0x81, 0x80 | join.len() as u8, 0, 0, 0, 0];
        frame.extend_from_slice(join.as_bytes());
        Self { request: plan.request.clone().then(&frame), ..plan }
    }

    /// The same, as long polls whose answers come only with a message or at their timeout.
    pub fn poll(target: SocketAddrV4, connections: usize, path: &str) -> Self {
        Self { status: None, ..Self::get(target, connections, path) }
    }

    /// Connections by transport (`sse`, `stream`, `poll`, `ws` or `phoenix`), each with a user of
    /// its own and in the topic `all`.
    pub fn idle(transport: &str, target: SocketAddrV4, connections: usize) -> Self {
        let path = format!("/{transport}?user=u{{n}}&topic=all");
        match transport {
            "phoenix" => {
                let path = "/socket/websocket?vsn=2.0.0&user=u{n}";
                Self::phoenix(target, connections, path, "all")
            }
            "ws" => Self::websocket(target, connections, &path),
            // Long enough that none ends while the others still come.
            "poll" => Self::poll(target, connections, &format!("{path}&timeout=300")),
            _ => Self::get(target, connections, &path),
        }
    }

    /// The same with users (and sources) from this number on.
    #[must_use]
    pub fn numbered_from(self, first: usize) -> Self {
        Self { first, ..self }
    }
}

/// Why a connection was not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Nobody listens.
    Refused,
    /// Reset before its answer.
    Reset,
    /// No source port left.
    Address,
    /// Out of descriptors.
    Descriptors,
    /// Answered with another status.
    Status,
    /// Closed before its answer.
    Closed,
    /// Anything else.
    Other,
}

impl Failure {
    /// All of them, in the order of their numbers.
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

/// Counts of one thread, written by it alone, after each batch of events. On a cache line of its
/// own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Counts {
    opened: AtomicU64,
    closed: AtomicU64,
    messages: AtomicU64,
    bytes: AtomicU64,
    pings: AtomicU64,
    failures: [AtomicU64; Failure::ALL.len()],
    /// A status that was not the one expected.
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
    /// Connections answered as expected, closed since or not.
    pub opened: u64,
    /// Connections that were not opened.
    pub failed: u64,
    /// Of those opened, the ones that the server closed.
    pub closed: u64,
    /// Messages received.
    pub messages: u64,
    /// Bytes received, answers included.
    pub bytes: u64,
    /// WebSocket pings answered.
    pub pings: u64,
}

impl Totals {
    /// What was added since an earlier look.
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

/// A crowd that is being opened or is open; dropped, it closes all its connections at once, by
/// reset, so that no port is left waiting.
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
    /// Starts to open a crowd, on as many threads as it takes.
    ///
    /// # Errors
    /// If there are no source addresses for so many, or no threads.
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
            let (plan, theirs, numbers) =
                (crowd.plan.clone(), shared.clone(), share(i)..share(i + 1));
            let handle = std::thread::Builder::new()
                .name(format!("crowd-{i}"))
                .spawn(move || worker::run(&plan, numbers, &theirs))
                .context("starting a crowd thread")?;
            crowd.threads.push(Thread { shared, handle: Some(handle) });
        }
        Ok(crowd)
    }

    /// Opens a crowd and waits until it stands in full.
    ///
    /// # Errors
    /// As [`Crowd::open`] and [`Crowd::wait_open`].
    pub fn stand(plan: Plan) -> Result<(Self, Duration)> {
        let crowd = Self::open(plan)?;
        let timeout = Duration::from_secs(20 + crowd.plan.connections as u64 / 2_000);
        let took = crowd.wait_open(timeout)?;
        Ok((crowd, took))
    }

    /// Waits until every connection has its answer; gives the time since the crowd was started.
    ///
    /// # Errors
    /// If one failed (all reasons are counted in the message), or time ran out.
    pub fn wait_open(&self, timeout: Duration) -> Result<Duration> {
        let wanted = self.plan.connections as u64;
        loop {
            let totals = self.totals();
            if totals.opened + totals.failed >= wanted {
                let took = self.started.elapsed();
                ensure!(totals.failed == 0, "connections failed: {}", self.failures());
                return Ok(took);
            }
            self.check_threads()?;
            if self.started.elapsed() > timeout {
                bail!(
                    "{} of {wanted} connections were open after {timeout:?}; failed: {}",
                    totals.opened,
                    self.failures()
                );
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Starts all counts of [`Crowd::received`] and the recorded times from zero.
    pub fn reset(&mut self) {
        self.take_latencies();
        self.base = self.totals();
    }

    /// What came since the last [`Crowd::reset`].
    pub fn received(&self) -> Totals {
        self.totals().since(self.base)
    }

    /// Waits until so many messages came since the last [`Crowd::reset`]; gives the time waited,
    /// to half a millisecond.
    ///
    /// # Errors
    /// If time ran out, or connections were closed meanwhile.
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
                bail!("{} of {messages} messages had come after {timeout:?}", received.messages);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// The times on the way of the timed messages, in nanoseconds, since this was last asked.
    pub fn take_latencies(&mut self) -> Histogram<u64> {
        let mut all = latency_histogram();
        for Thread { shared, .. } in &self.threads {
            let mut latencies = shared.latencies.lock().unwrap_or_else(PoisonError::into_inner);
            all.add(&*latencies).expect("the same bounds");
            latencies.reset();
        }
        all
    }

    /// How many connections it is to have.
    pub fn connections(&self) -> usize {
        self.plan.connections
    }

    /// All counts since the start.
    pub fn totals(&self) -> Totals {
        Totals {
            opened: self.sum(|counts| &counts.opened),
            failed: (0..Failure::ALL.len()).map(|i| self.sum(|counts| &counts.failures[i])).sum(),
            closed: self.sum(|counts| &counts.closed),
            messages: self.sum(|counts| &counts.messages),
            bytes: self.sum(|counts| &counts.bytes),
            pings: self.sum(|counts| &counts.pings),
        }
    }

    /// How many connections failed, and why.
    pub fn failures(&self) -> String {
        let reasons = Failure::ALL.iter().enumerate().filter_map(|(i, failure)| {
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

    /// A thread ends by itself only if the kernel refused it something.
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
                // A panic of the thread was printed when it happened; the owner may be unwinding.
                let _ = handle.join();
            }
        }
    }
}
