//! A crowd of client connections: opens them, holds them, checks what comes.
//!
//! Each thread has a private descriptor table, one poller and one read buffer; nothing is allocated
//! per connection beyond its record and the counters of what is published to its user.

mod acker;
mod connection;
mod ear;
mod faults;
mod memory;
mod plan;
mod worker;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use wire::client::{Fault, Goodbye};

use self::faults::Faults;
use crate::clock::now_ns;
use crate::payload::To;
use crate::record::{Counts, Named};

pub use plan::{AckPlan, Cuts, Life, Memberships, Plan};

/// Bytes of user space that a connection may cost.
pub const CONNECTION_BYTES_MAX: usize = 64;

/// Descriptors of a thread's private table that are kept for its poller and the like.
const DESCRIPTORS_KEPT: u64 = 64;

/// How long a look for what is missing may take.
const LOOK_MAX: Duration = Duration::from_secs(30);

/// Connections of one thread where the limit on open files allows more: a thread's share of the
/// processor is the next bound.
const CONNECTIONS_PER_THREAD_MAX: u64 = 200_000;

/// How many messages were published to each target so far: the numbers of the sequences.
#[derive(Debug, Default)]
pub struct Published {
    /// By user, from the first; empty when nothing is published to users.
    pub users: Box<[AtomicU32]>,
    /// By topic.
    pub topics: Box<[AtomicU32]>,
    /// To everyone.
    pub all: AtomicU32,
    /// Of some it isn't known whether they were: the server never answered.
    pub unsure: Mutex<HashSet<(To, u32)>>,
}

impl Published {
    /// Counters for so many users and topics.
    pub fn new(users: u32, topics: u32) -> Self {
        let zeros = |count| (0..count).map(|_| AtomicU32::new(0)).collect();
        let (users, topics) = (zeros(users), zeros(topics));
        Self { users, topics, all: AtomicU32::new(0), unsure: Mutex::default() }
    }

    /// The server did not say what became of the message with this number.
    pub fn is_unsure(&self, to: To, number: u32) {
        lock(&self.unsure).insert((to, number));
    }

    /// Of so many messages that end with this number, those of which it is known that they were
    /// published.
    fn sure(&self, to: To, last: u32, count: u32) -> u32 {
        let unsure = lock(&self.unsure);
        let within =
            |(of, number): &&(To, u32)| *of == to && *number <= last && last - number < count;
        count - unsure.iter().filter(within).count() as u32
    }

    fn user(&self, index: u32) -> u32 {
        self.users.get(index as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    fn topic(&self, room: u32) -> u32 {
        self.topics.get(room as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    fn all(&self) -> u32 {
        self.all.load(Ordering::Relaxed)
    }
}

/// Why a connection was not opened, or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    /// What the system said, by its number.
    System(i32),
    Status(u16),
    NotHttp,
    Refused(&'static str),
    Rule(&'static str),
    TooLong,
    /// Closed before the answer, or later without a word.
    Closed,
    /// The answer was complete although it should not end.
    Ended,
    NoAnswer,
    Silent,
    Code(u16),
    Named(&'static str),
    Unsent,
}

impl From<Fault> for Reason {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Status(status) => Reason::Status(status),
            Fault::NotHttp => Reason::NotHttp,
            Fault::BadHead(text) | Fault::BadBody(text) => Reason::Rule(text),
            Fault::Refused(reason) => Reason::Refused(reason),
            Fault::TooLong => Reason::TooLong,
        }
    }
}

impl From<Goodbye> for Reason {
    fn from(goodbye: Goodbye) -> Self {
        match goodbye {
            Goodbye::Code(code) => Reason::Code(code),
            Goodbye::Named(name) => Reason::Named(name),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::System(libc::ECONNREFUSED) => f.write_str("refused: nobody listens there"),
            Reason::System(libc::ECONNRESET | libc::EPIPE) => f.write_str("reset by the server"),
            Reason::System(libc::EADDRNOTAVAIL | libc::EADDRINUSE) => {
                f.write_str("no source port left: give more addresses with --source")
            }
            Reason::System(libc::EMFILE) => f.write_str("no descriptor left in this thread"),
            Reason::System(libc::ENFILE) => f.write_str("no descriptor left on this host"),
            Reason::System(number) => {
                write!(f, "{}", std::io::Error::from_raw_os_error(*number))
            }
            Reason::Status(status) => write!(f, "answered with status {status}"),
            Reason::NotHttp => f.write_str("the answer is not HTTP/1.1"),
            Reason::Refused(reason) => write!(f, "a join was refused: {reason}"),
            Reason::Rule(text) => f.write_str(text),
            Reason::TooLong => f.write_str("a message of over 16 MiB"),
            Reason::Closed => f.write_str("closed without a word"),
            Reason::Ended => f.write_str("the answer ended"),
            Reason::NoAnswer => f.write_str("no answer in time"),
            Reason::Silent => f.write_str("silent for too long"),
            Reason::Code(code) => write!(f, "closed with code {code}"),
            Reason::Named(name) => write!(f, "closed, saying {name}"),
            Reason::Unsent => f.write_str("the request could not be written whole"),
        }
    }
}

/// What a thread is to do.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Order {
    /// Open what is to be opened, and hold it.
    Hold,
    /// Hold what there is: whoever was never tried stays away.
    Full,
    Stop,
}

/// One thread's counts, written by it alone. On cache lines of their own.
#[derive(Default)]
#[repr(align(128))]
struct Tally([AtomicU64; Stat::COUNT]);

/// What is counted.
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
    /// Connections of the plan that were begun at least once.
    Begun,
    /// Attempts under way.
    InFlight,
    /// What was published and hasn't come, when last looked.
    Missing,
    /// Reconnects at which the server said that what was missed is lost.
    NotRecovered,
    /// Messages that were published before the connection came back for them.
    CaughtUp,
    /// Connections that have all that they missed in a storm.
    Recovered,
    Cuts,
    /// Messages to users that came again since they were not acknowledged.
    Redelivered,
    /// Messages to users that the server took as acknowledged.
    Acked,
    AckFailed,
}

impl Stat {
    const COUNT: usize = 22;
}

/// What a thread shares with the crowd's owner.
struct Shared {
    tally: Tally,
    order: AtomicU8,
    /// Looks for what is missing that were asked for, and that are done.
    looks: AtomicU32,
    looked: AtomicU32,
    /// How often everyone was told to drop and come back.
    storms: AtomicU32,
    /// How often those who wait for it were told to come back.
    returns: AtomicU32,
}

/// What all threads share.
struct Common {
    plan: Plan,
    published: Arc<Published>,
    /// When the crowd began to arrive, on the monotonic clock.
    begin_ns: u64,
    threads: u32,
    /// Connections under way at one time in one thread.
    in_flight_each: usize,
    /// Why a thread ended before its time.
    broken: Mutex<Option<String>>,
    /// Microseconds.
    delivery: Mutex<Histogram<u64>>,
    delivery_user: Mutex<Histogram<u64>>,
    connect: Mutex<Histogram<u64>>,
    failures: Mutex<BTreeMap<Reason, u64>>,
    closes: Mutex<BTreeMap<Reason, u64>>,
    /// Nobody is cut any more, and everyone comes back.
    calm: AtomicBool,
    /// The next look tells in words what is missing.
    tells: AtomicBool,
    /// In a storm: times from the begin of a connection to the last message that it missed, in
    /// microseconds, and when the last one had it.
    recovery: Mutex<Histogram<u64>>,
    recovered_ns: AtomicU64,
    faults: Faults,
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

/// Times in microseconds.
pub struct Times {
    /// From the intended publish to the receipt.
    pub delivery: Histogram<u64>,
    /// The same, of messages to one user only.
    pub delivery_user: Histogram<u64>,
    /// From the intended connect to the answer.
    pub connect: Histogram<u64>,
}

impl Times {
    /// None yet.
    pub fn new() -> Self {
        Self { delivery: histogram(), delivery_user: histogram(), connect: histogram() }
    }

    /// Adds these.
    pub fn add(&mut self, more: &Times) {
        for (to, from) in [
            (&mut self.delivery, &more.delivery),
            (&mut self.delivery_user, &more.delivery_user),
            (&mut self.connect, &more.connect),
        ] {
            // The bounds are the same; adding can't fail.
            let _ = to.add(from);
        }
    }
}

impl Default for Times {
    fn default() -> Self {
        Self::new()
    }
}

/// A histogram of microseconds up to five minutes, to three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 300_000_000, 3).unwrap_or_else(|_| unreachable!("valid bounds"))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Crowd {
    /// Starts to open a crowd, on as many threads as the limit on open files asks for.
    ///
    /// # Errors
    /// If no threads can be had.
    pub fn open(plan: Plan, published: Arc<Published>) -> Result<Self> {
        ensure!(plan.connections > 0, "a crowd of none");
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let limit = limit.current.unwrap_or(u64::MAX).saturating_sub(DESCRIPTORS_KEPT);
        let per_thread = limit.clamp(1, CONNECTIONS_PER_THREAD_MAX) as u32;
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        let threads = plan.connections.div_ceil(per_thread).max(cores.min(plan.connections));
        let common = Arc::new(Common {
            published,
            begin_ns: now_ns(),
            threads,
            in_flight_each: plan.in_flight_max.div_ceil(threads) as usize,
            broken: Mutex::default(),
            delivery: Mutex::new(histogram()),
            delivery_user: Mutex::new(histogram()),
            connect: Mutex::new(histogram()),
            failures: Mutex::default(),
            closes: Mutex::default(),
            calm: AtomicBool::new(false),
            tells: AtomicBool::new(false),
            recovery: Mutex::new(histogram()),
            recovered_ns: AtomicU64::new(0),
            faults: Faults::default(),
            plan,
        });
        let mut crowd = Self { common, threads: Vec::new() };
        for at in 0..threads {
            let share = |at: u32| {
                (u64::from(crowd.common.plan.connections) * u64::from(at) / u64::from(threads))
                    as u32
            };
            let (from, to) = (share(at), share(at + 1));
            let shared = Arc::new(Shared {
                tally: Tally::default(),
                order: AtomicU8::new(Order::Hold as u8),
                looks: AtomicU32::new(0),
                looked: AtomicU32::new(0),
                storms: AtomicU32::new(0),
                returns: AtomicU32::new(0),
            });
            let (common, theirs) = (crowd.common.clone(), shared.clone());
            let handle = std::thread::Builder::new()
                .name(format!("crowd-{at}"))
                .stack_size(256 * 1024)
                .spawn(move || {
                    let outcome = worker::run(&common, &theirs, at, from..to);
                    if let Err(error) = &outcome {
                        *lock(&common.broken) = Some(format!("{error:#}"));
                    }
                    outcome
                })
                .context("starting a crowd thread")?;
            crowd.threads.push(Thread { shared, handle });
        }
        Ok(crowd)
    }

    /// Adds its counts to these.
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
            // What was counted as lost and came late is subtracted, each by the thread that saw it.
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

    /// True when everyone has been tried, and no attempt is under way. Where connections come and
    /// go there always are some: then it is enough that they are few.
    pub fn stands(&self) -> bool {
        let plan = &self.common.plan;
        let wanted = u64::from(plan.connections);
        let few = if plan.life.away_seconds.is_some() { wanted / 100 + 10 } else { 0 };
        self.sum(Stat::Begun) >= wanted && self.sum(Stat::InFlight) <= few
    }

    /// True when everyone has been tried, or is being tried.
    pub fn all_begun(&self) -> bool {
        self.sum(Stat::Begun) >= u64::from(self.common.plan.connections)
    }

    fn sum(&self, stat: Stat) -> u64 {
        let of = |thread: &Thread| thread.shared.tally.0[stat as usize].load(Ordering::Relaxed);
        self.threads.iter().map(of).sum()
    }

    /// Takes the times recorded since this was last asked.
    pub fn take_times(&self) -> Times {
        let take =
            |times: &Mutex<Histogram<u64>>| std::mem::replace(&mut *lock(times), histogram());
        Times {
            delivery: take(&self.common.delivery),
            delivery_user: take(&self.common.delivery_user),
            connect: take(&self.common.connect),
        }
    }

    /// Why attempts failed, and why open connections were closed; most frequent first.
    pub fn reasons(&self) -> (Vec<Named>, Vec<Named>) {
        let list = |reasons: &Mutex<BTreeMap<Reason, u64>>| {
            let mut list: Vec<Named> =
                lock(reasons).iter().map(|(reason, count)| (reason.to_string(), *count)).collect();
            list.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            list
        };
        (list(&self.common.failures), list(&self.common.closes))
    }

    /// Lets everyone drop their connection at once and come back.
    pub fn storm(&self) {
        for thread in &self.threads {
            thread.shared.storms.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lets those come back who wait for it after a storm in which something is to be missed.
    pub fn come_back(&self) {
        for thread in &self.threads {
            thread.shared.returns.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Connections that had all they missed in storms, so far.
    pub fn recovered(&self) -> u64 {
        self.sum(Stat::Recovered)
    }

    /// Times to that in microseconds, since this was last asked, and when the last one was, on the
    /// monotonic clock.
    pub fn take_recovery(&self) -> (Histogram<u64>, u64) {
        let times = std::mem::replace(&mut *lock(&self.common.recovery), histogram());
        (times, self.common.recovered_ns.load(Ordering::Relaxed))
    }

    /// No more cuts: everyone comes back and stays.
    pub fn calm(&self) {
        self.common.calm.store(true, Ordering::Relaxed);
    }

    /// True when everyone is there.
    pub fn all_there(&self) -> bool {
        self.sum(Stat::Open) == u64::from(self.common.plan.connections)
    }

    /// The next look for what is missing tells it in words.
    pub fn tell_missing(&self) {
        self.common.tells.store(true, Ordering::Relaxed);
    }

    /// The first faults, in words.
    pub fn faults(&self) -> Vec<String> {
        self.common.faults.list()
    }

    /// Lets nobody come who was not there yet.
    pub fn full(&self) {
        self.order(Order::Full);
    }

    /// How much was published that open connections should have got and haven't.
    pub fn missing(&self) -> u64 {
        for thread in &self.threads {
            thread.shared.looks.fetch_add(1, Ordering::Relaxed);
        }
        let begin = Instant::now();
        let open = |thread: &Thread| {
            let shared = &thread.shared;
            shared.looked.load(Ordering::Acquire) != shared.looks.load(Ordering::Relaxed)
                && !thread.handle.is_finished()
        };
        while self.threads.iter().any(open) && begin.elapsed() < LOOK_MAX {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.sum(Stat::Missing)
    }

    /// Resets all connections and ends the threads.
    ///
    /// # Errors
    /// What ended a thread before its time.
    pub fn close(self) -> Result<()> {
        self.order(Order::Stop);
        for thread in self.threads {
            thread.handle.join().map_err(|_| anyhow::anyhow!("a crowd thread panicked"))??;
        }
        Ok(())
    }

    /// Why a thread has ended before its time, if one has.
    pub fn broken(&self) -> Option<String> {
        let ended = self.threads.iter().any(|thread| thread.handle.is_finished());
        let panicked = || "a thread panicked: this is a fault of the load generator".to_string();
        ended.then(|| lock(&self.common.broken).clone().unwrap_or_else(panicked))
    }

    fn order(&self, order: Order) {
        for thread in &self.threads {
            thread.shared.order.store(order as u8, Ordering::Relaxed);
        }
    }
}
