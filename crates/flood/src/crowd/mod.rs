//! A crowd of client connections: opens them, holds them, and checks the messages they receive.
//!
//! Each thread has a private descriptor table, one poller and one read buffer. A connection costs
//! no allocation beyond its record and the counter of the messages published to its user.

mod acker;
mod anomalies;
mod connection;
mod plan;
mod published;
mod receiver;
mod resume_state;
mod worker;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use client::{ClientError, Goodbye};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use self::anomalies::Anomalies;
use crate::clock::now_ns;
use crate::record::{Counts, Named, TargetCounts};
use crate::tls::TlsFailure;

pub use plan::{AckPlan, Clock, Cuts, Lifetime, Memberships, Part, Plan};
pub use published::{Published, PublishedHere};

/// Bytes of user space that a connection may cost.
pub const CONNECTION_BYTES_MAX: usize = 64;

/// Descriptors of a thread's private table that are reserved for its poller and the like.
const DESCRIPTORS_RESERVED: u64 = 64;

/// How long the threads may take to count the missing messages.
const SCAN_TIMEOUT: Duration = Duration::from_secs(30);

/// Connections per thread if the limit on open files allows more. A thread's share of the processor is the next
/// bound.
const CONNECTIONS_PER_THREAD_MAX: u64 = 200_000;

/// The reason why a connection could not be opened, or why it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CloseReason {
    /// The number of the operating system's error.
    System(i32),
    Status(u16),
    NotHttp,
    Refused(&'static str),
    Rule(&'static str),
    TooLong,
    /// The server closed the connection without giving a reason.
    Closed,
    /// The server closed the connection before its response.
    ClosedWithoutResponse,
    /// The response was complete although it should not end.
    Ended,
    ResponseTimeout,
    Silent,
    Code(u16),
    Named(&'static str),
    Unsent,
    Tls(TlsFailure),
    SpeaksTls,
}

impl CloseReason {
    /// Returns the meaning of this reason for an attempt to connect.
    fn of_attempt(self, has_tls: bool, is_handshaking: bool) -> Self {
        match self {
            CloseReason::Closed | CloseReason::System(libc::ECONNRESET | libc::EPIPE)
                if is_handshaking =>
            {
                CloseReason::Tls(TlsFailure::Closed)
            }
            CloseReason::Closed if !has_tls => CloseReason::ClosedWithoutResponse,
            other => other,
        }
    }
}

impl From<ClientError> for CloseReason {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Status(status) => CloseReason::Status(status),
            ClientError::NotHttp => CloseReason::NotHttp,
            ClientError::InvalidHead(text) | ClientError::InvalidBody(text) => {
                CloseReason::Rule(text)
            }
            ClientError::Rejected(reason) => CloseReason::Refused(reason),
            ClientError::TooLong => CloseReason::TooLong,
        }
    }
}

impl From<Goodbye> for CloseReason {
    fn from(goodbye: Goodbye) -> Self {
        match goodbye {
            Goodbye::Code(code) => CloseReason::Code(code),
            Goodbye::Named(name) => CloseReason::Named(name),
        }
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseReason::System(libc::ECONNREFUSED) => {
                f.write_str("refused: no server listens there")
            }
            CloseReason::System(libc::ECONNRESET | libc::EPIPE) => {
                f.write_str("reset by the server")
            }
            CloseReason::System(libc::EADDRNOTAVAIL | libc::EADDRINUSE) => {
                f.write_str("no source port left: give more addresses with --source")
            }
            CloseReason::System(libc::EMFILE) => f.write_str("no descriptor left in this thread"),
            CloseReason::System(libc::ENFILE) => f.write_str("no descriptor left on this host"),
            CloseReason::System(number) => {
                write!(f, "{}", std::io::Error::from_raw_os_error(*number))
            }
            CloseReason::Status(status) => write!(f, "answered with status {status}"),
            CloseReason::NotHttp => f.write_str("the response is not HTTP/1.1"),
            CloseReason::Refused(reason) => write!(f, "a join was refused: {reason}"),
            CloseReason::Rule(text) => f.write_str(text),
            CloseReason::TooLong => f.write_str("a message larger than 16 MiB"),
            CloseReason::Closed => f.write_str("closed without a reason"),
            CloseReason::ClosedWithoutResponse => f.write_str(
                "closed without a response: if the server speaks TLS at this port, write https://, \
                 or add --tls",
            ),
            CloseReason::Ended => f.write_str("the response ended"),
            CloseReason::ResponseTimeout => f.write_str("no response in time"),
            CloseReason::Silent => f.write_str("silent for too long"),
            CloseReason::Code(code) => write!(f, "closed with code {code}"),
            CloseReason::Named(name) => write!(f, "closed with {name}"),
            CloseReason::Unsent => f.write_str("the request could not be written completely"),
            CloseReason::Tls(failure) => failure.fmt(f),
            CloseReason::SpeaksTls => {
                f.write_str("the server speaks TLS at this port: write https://, or add --tls")
            }
        }
    }
}

/// The owner's order to a thread.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Order {
    /// Open all connections of the plan.
    OpenAll,
    /// Open no connection that was not tried yet; the open ones stay open.
    OpenNoMore,
    Stop,
}

/// One thread's counts, which only that thread writes. They fill cache lines of their own, so that
/// threads don't slow each other down.
#[derive(Default)]
#[repr(align(128))]
struct Tally([AtomicU64; Stat::COUNT]);

/// The statistics of a thread.
#[derive(Clone, Copy)]
#[repr(usize)]
enum Stat {
    Open,
    Opened,
    Failed,
    Closed,
    Left,
    Messages,
    Heartbeats,
    Bytes,
    Lost,
    Duplicated,
    OutOfOrder,
    Strayed,
    /// Connections of the plan that were tried at least once.
    Begun,
    /// Connection attempts under way.
    InFlight,
    /// Messages that were published and had not arrived at the last scan.
    Missing,
    /// Reconnects at which the server reported a recovery gap.
    NotRecovered,
    /// Messages that were published while the connection was away, and arrived after its return.
    CaughtUp,
    /// Connections that have received all messages that they missed in a storm.
    Recovered,
    Cuts,
    /// Messages to users that the server delivered again for lack of an acknowledgement.
    Redelivered,
    /// Messages to users whose acknowledgement the server accepted.
    Acked,
    AckFailed,
}

impl Stat {
    const COUNT: usize = 22;
}

/// The state that a thread shares with the crowd's owner.
struct Shared {
    tally: Tally,
    order: AtomicU8,
    /// Scans for missing messages: how many the owner requested, and how many are done.
    scans_requested: AtomicU32,
    scans_done: AtomicU32,
    /// How many times the owner ordered all connections to drop and come back.
    storms: AtomicU32,
    /// How many times the owner released the connections that a storm defers.
    returns: AtomicU32,
    /// The longest silence of each connection at the last scan, in microseconds.
    silences: Mutex<Vec<u32>>,
    /// Counts of the connections to each target, if they are counted.
    targets: Mutex<Vec<TargetTally>>,
}

/// The counts of one target in one thread.
#[derive(Clone, Copy, Debug, Default)]
struct TargetTally {
    open: u64,
    opened: u64,
    failed: u64,
    closed: u64,
    cuts: u64,
    /// Decreases when a message arrives that was counted as lost.
    lost: i64,
    /// Messages that had not arrived at the last scan.
    missing: u64,
}

/// The state that all threads share.
struct Common {
    plan: Plan,
    published: Arc<Published>,
    /// When the crowd began to connect, on the monotonic clock.
    begin_ns: u64,
    threads: u32,
    /// The limit on connection attempts under way in one thread.
    in_flight_each: usize,
    /// The reason why a thread ended early.
    thread_error: Mutex<Option<String>>,
    /// Microseconds.
    delivery: Mutex<Histogram<u64>>,
    delivery_user: Mutex<Histogram<u64>>,
    connect: Mutex<Histogram<u64>>,
    failures: Mutex<BTreeMap<CloseReason, u64>>,
    closes: Mutex<BTreeMap<CloseReason, u64>>,
    /// Set when no connection is cut any more and all return.
    cuts_over: AtomicBool,
    /// Set when the next scan for missing messages also describes them in words.
    describes_missing: AtomicBool,
    /// In a storm: times from the begin of a connection to the last message that it missed, in
    /// microseconds.
    recovery: Mutex<Histogram<u64>>,
    /// When the last connection had received all messages that it missed, on the monotonic clock.
    recovered_ns: AtomicU64,
    anomalies: Arc<Anomalies>,
}

struct Thread {
    shared: Arc<Shared>,
    handle: JoinHandle<Result<()>>,
}

/// A crowd that is being opened or is open.
pub struct Crowd {
    common: Arc<Common>,
    threads: Vec<Thread>,
}

/// Histograms of times in microseconds.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Times {
    /// From the intended publish to the receipt.
    #[serde(with = "crate::histogram")]
    pub delivery: Histogram<u64>,
    /// As `delivery`, for messages to single users only.
    #[serde(with = "crate::histogram")]
    pub delivery_user: Histogram<u64>,
    /// From the intended connect to the response.
    #[serde(with = "crate::histogram")]
    pub connect: Histogram<u64>,
}

impl Times {
    /// Returns empty histograms.
    pub fn new() -> Self {
        Self { delivery: histogram(), delivery_user: histogram(), connect: histogram() }
    }

    /// Adds the times of `more`.
    pub fn add(&mut self, more: &Times) {
        for (to, from) in [
            (&mut self.delivery, &more.delivery),
            (&mut self.delivery_user, &more.delivery_user),
            (&mut self.connect, &more.connect),
        ] {
            // All histograms have the same bounds, so adding can't fail.
            let _ = to.add(from);
        }
    }
}

impl Default for Times {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns an empty histogram of microseconds up to five minutes, with three significant digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 300_000_000, 3).unwrap_or_else(|_| unreachable!("valid bounds"))
}

/// Locks a mutex. No panic leaves any of these values half changed, so poison means nothing.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Crowd {
    /// Starts to open a crowd, on as many threads as the limit on open files requires.
    ///
    /// # Errors
    /// If the system can't start the threads.
    pub fn open(plan: Plan, published: Arc<Published>) -> Result<Self> {
        ensure!(plan.own_connections() > 0, "a crowd of none");
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let limit = limit.current.unwrap_or(u64::MAX).saturating_sub(DESCRIPTORS_RESERVED);
        let per_thread = limit.clamp(1, CONNECTIONS_PER_THREAD_MAX) as u32;
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        let connections = plan.own_connections();
        let threads = connections.div_ceil(per_thread).max(cores.min(connections));
        let common = Arc::new(Common {
            published,
            begin_ns: now_ns(),
            threads,
            in_flight_each: plan.in_flight_max.div_ceil(threads) as usize,
            thread_error: Mutex::default(),
            delivery: Mutex::new(histogram()),
            delivery_user: Mutex::new(histogram()),
            connect: Mutex::new(histogram()),
            failures: Mutex::default(),
            closes: Mutex::default(),
            cuts_over: AtomicBool::new(false),
            describes_missing: AtomicBool::new(false),
            recovery: Mutex::new(histogram()),
            recovered_ns: AtomicU64::new(0),
            anomalies: Arc::default(),
            plan,
        });
        let mut crowd = Self { common, threads: Vec::new() };
        for at in 0..threads {
            let share =
                |at: u32| (u64::from(connections) * u64::from(at) / u64::from(threads)) as u32;
            let (from, to) = (share(at), share(at + 1));
            let shared = Arc::new(Shared {
                tally: Tally::default(),
                order: AtomicU8::new(Order::OpenAll as u8),
                scans_requested: AtomicU32::new(0),
                scans_done: AtomicU32::new(0),
                storms: AtomicU32::new(0),
                returns: AtomicU32::new(0),
                silences: Mutex::default(),
                targets: Mutex::default(),
            });
            let (common, theirs) = (crowd.common.clone(), shared.clone());
            let handle = std::thread::Builder::new()
                .name(format!("crowd-{at}"))
                .stack_size(256 * 1024)
                .spawn(move || {
                    let outcome = worker::run(&common, &theirs, at, from..to);
                    if let Err(error) = &outcome {
                        *lock(&common.thread_error) = Some(format!("{error:#}"));
                    }
                    outcome
                })
                .context("starting a crowd thread")?;
            crowd.threads.push(Thread { shared, handle });
        }
        Ok(crowd)
    }

    /// Returns the sums of all threads' counts.
    pub fn counts(&self) -> Counts {
        let sum = |stat| self.sum(stat);
        Counts {
            open: sum(Stat::Open),
            opened: sum(Stat::Opened),
            failed: sum(Stat::Failed),
            closed: sum(Stat::Closed),
            left: sum(Stat::Left),
            messages: sum(Stat::Messages),
            heartbeats: sum(Stat::Heartbeats),
            bytes: sum(Stat::Bytes),
            // Each thread subtracts late messages that it had counted as lost.
            lost: sum(Stat::Lost),
            duplicated: sum(Stat::Duplicated),
            out_of_order: sum(Stat::OutOfOrder),
            strayed: sum(Stat::Strayed),
            cuts: sum(Stat::Cuts),
            caught_up: sum(Stat::CaughtUp),
            not_recovered: sum(Stat::NotRecovered),
            redelivered: sum(Stat::Redelivered),
            acked: sum(Stat::Acked),
            ack_failed: sum(Stat::AckFailed),
            ..Counts::default()
        }
    }

    /// Returns true when all connections were tried and no attempt is under way. If connections come and go some
    /// attempt always is under way, so a few are allowed then.
    pub fn has_arrived(&self) -> bool {
        let plan = &self.common.plan;
        let wanted = u64::from(plan.own_connections());
        let few = if plan.lifetime.away_seconds.is_some() { wanted / 100 + 10 } else { 0 };
        self.sum(Stat::Begun) >= wanted && self.sum(Stat::InFlight) <= few
    }

    /// Returns true when all connections were tried or are being tried.
    pub fn all_begun(&self) -> bool {
        self.sum(Stat::Begun) >= u64::from(self.common.plan.own_connections())
    }

    fn sum(&self, stat: Stat) -> u64 {
        let of = |thread: &Thread| thread.shared.tally.0[stat as usize].load(Ordering::Acquire);
        self.threads.iter().map(of).sum()
    }

    /// Takes the times recorded since the last call.
    pub fn take_times(&self) -> Times {
        let take =
            |times: &Mutex<Histogram<u64>>| std::mem::replace(&mut *lock(times), histogram());
        Times {
            delivery: take(&self.common.delivery),
            delivery_user: take(&self.common.delivery_user),
            connect: take(&self.common.connect),
        }
    }

    /// Returns the reasons of failed attempts and of closed connections, the most frequent first.
    pub fn reasons(&self) -> (Vec<Named>, Vec<Named>) {
        let list = |reasons: &Mutex<BTreeMap<CloseReason, u64>>| {
            let mut list: Vec<Named> =
                lock(reasons).iter().map(|(reason, count)| (reason.to_string(), *count)).collect();
            list.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            list
        };
        (list(&self.common.failures), list(&self.common.closes))
    }

    /// Orders all connections to drop at once and to come back.
    pub fn storm(&self) {
        for thread in &self.threads {
            thread.shared.storms.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Releases the connections that a storm with missed messages defers.
    pub fn end_storm(&self) {
        for thread in &self.threads {
            thread.shared.returns.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns how many connections have received all messages that they missed in storms so far.
    pub fn recovered(&self) -> u64 {
        self.sum(Stat::Recovered)
    }

    /// Takes the recovery times since the last call, in microseconds. Also returns when the last
    /// connection had recovered, on the monotonic clock.
    pub fn take_recovery(&self) -> (Histogram<u64>, u64) {
        let times = std::mem::replace(&mut *lock(&self.common.recovery), histogram());
        (times, self.common.recovered_ns.load(Ordering::Relaxed))
    }

    /// Ends the cuts: all connections return and stay.
    pub fn end_cuts(&self) {
        self.common.cuts_over.store(true, Ordering::Relaxed);
    }

    /// Returns true when all connections of the plan are open.
    pub fn all_open(&self) -> bool {
        self.sum(Stat::Open) == u64::from(self.common.plan.own_connections())
    }

    /// Makes the next scan for missing messages describe them in words, see [`Crowd::anomalies`].
    pub fn describe_missing(&self) {
        self.common.describes_missing.store(true, Ordering::Relaxed);
    }

    /// Returns descriptions of the first anomalies in the sequences of messages.
    pub fn anomalies(&self) -> Vec<String> {
        self.common.anomalies.list()
    }

    /// Returns the server's reasons for rejections, with their counts.
    pub fn causes(&self) -> Vec<Named> {
        self.common.anomalies.causes()
    }

    /// Stops opening connections that were not tried yet.
    pub fn open_no_more(&self) {
        self.order(Order::OpenNoMore);
    }

    /// Returns how many published messages the open connections should have received and have not received. Waits at
    /// most `SCAN_TIMEOUT` for the threads' counts.
    pub fn missing(&self) -> u64 {
        for thread in &self.threads {
            thread.shared.scans_requested.fetch_add(1, Ordering::Relaxed);
        }
        let begin = Instant::now();
        let scans = |thread: &Thread| {
            let shared = &thread.shared;
            let requested = shared.scans_requested.load(Ordering::Relaxed);
            shared.scans_done.load(Ordering::Acquire) != requested && !thread.handle.is_finished()
        };
        while self.threads.iter().any(scans) && begin.elapsed() < SCAN_TIMEOUT {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.sum(Stat::Missing)
    }

    /// Returns each connection's longest time without a message, as of the last call of [`Crowd::missing`], in
    /// microseconds. Empty if the run does not measure silences.
    pub fn silences(&self) -> Histogram<u64> {
        let mut all = histogram();
        for thread in &self.threads {
            for us in &*lock(&thread.shared.silences) {
                all.saturating_record(u64::from(*us));
            }
        }
        all
    }

    /// Returns the counts of each target, if the crowd has several. `at_end`, missing messages count as lost.
    pub fn targets(&self, at_end: bool) -> Vec<TargetCounts> {
        let servers = &self.common.plan.servers;
        let of = |at: usize| {
            let (mut sum, mut lost) = (TargetCounts::default(), 0);
            for thread in &self.threads {
                let Some(tally) = lock(&thread.shared.targets).get(at).copied() else { continue };
                sum.open += tally.open;
                sum.opened += tally.opened;
                sum.failed += tally.failed;
                sum.closed += tally.closed;
                sum.cuts += tally.cuts;
                lost += tally.lost;
                sum.lost += if at_end { tally.missing } else { 0 };
            }
            sum.lost += u64::try_from(lost).unwrap_or(0);
            sum.target = servers[at].host.clone();
            sum
        };
        let counted = self.common.plan.counts_targets();
        (0..servers.len()).filter(|_| counted).map(of).collect()
    }

    /// Resets all connections and ends the threads.
    ///
    /// # Errors
    /// If a thread ended early, its error.
    pub fn close(self) -> Result<()> {
        self.order(Order::Stop);
        for thread in self.threads {
            thread.handle.join().map_err(|_| anyhow::anyhow!("a crowd thread panicked"))??;
        }
        Ok(())
    }

    /// Returns the reason why a thread has ended early, if one has.
    pub fn thread_error(&self) -> Option<String> {
        let ended = self.threads.iter().any(|thread| thread.handle.is_finished());
        let panicked = || "a thread panicked: this is a fault of the load generator".to_string();
        ended.then(|| lock(&self.common.thread_error).clone().unwrap_or_else(panicked))
    }

    fn order(&self, order: Order) {
        for thread in &self.threads {
            thread.shared.order.store(order as u8, Ordering::Relaxed);
        }
    }
}
