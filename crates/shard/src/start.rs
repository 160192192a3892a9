//! From options to running shards.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use broker::Broker;
use rustix::event::EventfdFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use wire::{Tools, Variant};

use crate::bulk::Places;
use crate::filter::Filter;
use crate::handle::{EventWake, Handle, ShardInbox, Shared};
use crate::listen::{Balance, listeners};
use crate::mailbox::Mailbox;
use crate::metrics::Metrics;
use crate::poller::Poller;
use crate::sender::Sender;
use crate::settings::{Options, Settings};
use crate::shard::{Addresses, Shard};
use crate::sweep::Sweep;
use crate::webhook::Webhook;

/// Descriptors of a shard that are no connections: its poller, its ring, the wake-ups of all
/// shards, standard input and output, and room to refuse a connection with an answer.
const OWN_DESCRIPTORS: u64 = 64;

/// The most shards: a connection's name has 16 bits for it, and the accept program one jump each.
const SHARDS_MAX: usize = 1_000;

/// Shards that are made and not yet running.
pub struct Prepared {
    options: Options,
    plan: Plan,
    listeners: Vec<OwnedFd>,
    /// A handle to each shard.
    pub handles: Vec<Handle>,
    /// Where clients connect: the port is real where 0 was asked for.
    pub address: SocketAddr,
}

/// How many shards, and what each may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    shards: usize,
    /// Connections that a shard's descriptors allow.
    capacity: u64,
    /// With so many it leaves the choice at accept.
    high_water: u64,
}

/// Running shards.
pub struct Running {
    threads: Vec<JoinHandle<()>>,
    /// How messages leave: `io_uring` or `write`.
    pub sender: &'static str,
    /// Whether each shard has a descriptor table of its own.
    pub private_tables: bool,
}

impl Running {
    /// Waits until all shards have drained.
    pub fn join(self) {
        for thread in self.threads {
            // A shard that panicked has said so on standard error.
            let _ = thread.join();
        }
    }
}

/// Binds the port and makes the mailboxes. To be called before the process has many descriptors:
/// each shard's table begins as a copy of this thread's.
pub fn prepare(options: Options, connections_max: u64) -> io::Result<Prepared> {
    let descriptors = raise_descriptor_limit();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let plan = plan(&options, connections_max, descriptors, cores)?;
    let listeners = listeners(&options, plan.shards)?;
    let address = SocketAddr::try_from(rustix::net::getsockname(&listeners[0])?)?;
    let share = connections_max.div_ceil(plan.shards as u64).min(plan.capacity);
    let mut handles = Vec::with_capacity(plan.shards);
    for _ in 0..plan.shards {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let inbox = ShardInbox {
            mailbox: Mailbox::new(options.mailbox_messages_max, EventWake(wake)),
            filter: Filter::new(share as usize * 2),
            waiting: Default::default(),
        };
        handles.push(Handle { inbox: Arc::new(inbox), metrics: Arc::default() });
    }
    Ok(Prepared { options, plan, listeners, handles, address })
}

/// The soft limit on open files, raised as far as it goes.
fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let _ = setrlimit(Resource::Nofile, wanted);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn plan(
    options: &Options,
    connections_max: u64,
    descriptors: u64,
    cores: usize,
) -> io::Result<Plan> {
    // The wake-ups grow with the number of shards, which grows as descriptors get fewer: room for
    // the most shards there can be is taken off first.
    let most = if options.shards > 0 { options.shards } else { SHARDS_MAX.min(64) } as u64;
    let own = OWN_DESCRIPTORS + most * 2;
    let Some(capacity) = descriptors.checked_sub(own).filter(|capacity| *capacity >= 64) else {
        return Err(io::Error::other(format!(
            "the limit on open files is {descriptors}, too low to serve anyone: raise it with \
             ulimit -n"
        )));
    };
    // What may wait in its queue when a shard leaves the choice must still fit.
    let high_water = capacity - u64::from(options.backlog).min(capacity / 8);
    let wanted = connections_max.div_ceil(high_water).max(cores as u64) as usize;
    let shards = if options.shards > 0 { options.shards } else { wanted };
    Ok(Plan { shards: shards.min(SHARDS_MAX), capacity, high_water })
}

impl Prepared {
    /// How many shards there will be, and how many connections their descriptors allow.
    pub fn capacity(&self) -> (usize, u64) {
        (self.plan.shards, self.plan.capacity * self.plan.shards as u64)
    }

    /// Starts the threads and returns when each is ready to accept.
    pub fn start(
        self,
        settings: Arc<Settings>,
        broker: Arc<dyn Broker>,
        webhook: Option<Arc<dyn Webhook>>,
        shared: Arc<Shared>,
        started: Instant,
    ) -> io::Result<Running> {
        let metrics = self.handles.iter().map(|handle| handle.metrics.clone()).collect();
        let balance = Arc::new(Balance::new(metrics, self.plan.high_water));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let places = Arc::new(Places::new(self.handles.clone(), cores));
        let shards: Arc<[Handle]> = self.handles.clone().into();
        let addresses: Arc<Addresses> = Arc::default();
        let listeners: Vec<RawFd> = self.listeners.iter().map(AsRawFd::as_raw_fd).collect();
        let (ready, results) = mpsc::channel();
        let mut threads = Vec::new();
        for (number, handle) in self.handles.iter().enumerate() {
            let make = Make {
                number,
                handle: handle.clone(),
                options: self.options.clone(),
                plan: self.plan,
                listeners: listeners.clone(),
                settings: settings.clone(),
                broker: broker.clone(),
                webhook: webhook.clone(),
                shards: shards.clone(),
                shared: shared.clone(),
                balance: balance.clone(),
                places: places.clone(),
                addresses: addresses.clone(),
                started,
            };
            let ready = ready.clone();
            let thread = std::thread::Builder::new().name(format!("shard-{number}"));
            threads.push(thread.spawn(move || match make.shard() {
                Ok((shard, private)) => {
                    let _ = ready.send(Ok((shard.sender.name(), private)));
                    drop(ready);
                    run_or_end(shard);
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
            })?);
        }
        drop(ready);
        let (mut sender, mut private_tables) = ("write", true);
        for result in results {
            let (name, private) = result?;
            sender = name;
            private_tables &= private;
        }
        if private_tables {
            drop(self.listeners);
        } else {
            // The shards share this table, and own the listeners by now.
            self.listeners.into_iter().for_each(std::mem::forget);
        }
        Ok(Running { threads, sender, private_tables })
    }
}

/// What a shard's thread makes the shard from.
struct Make {
    number: usize,
    handle: Handle,
    options: Options,
    plan: Plan,
    listeners: Vec<RawFd>,
    settings: Arc<Settings>,
    broker: Arc<dyn Broker>,
    webhook: Option<Arc<dyn Webhook>>,
    shards: Arc<[Handle]>,
    shared: Arc<Shared>,
    balance: Arc<Balance>,
    places: Arc<Places>,
    addresses: Arc<Addresses>,
    started: Instant,
}

impl Make {
    /// On the shard's own thread: its descriptor table becomes its own first.
    fn shard(self) -> io::Result<(Shard, bool)> {
        let private = own_table();
        let listener = self.take_listener(private);
        if self.options.pin_cpus {
            pin(self.number)?;
        }
        Ok((self.assemble(Some(listener))?, private))
    }

    fn assemble(self, listener: Option<OwnedFd>) -> io::Result<Shard> {
        let tools = Tools::new(self.options.compression_level, self.options.compression_bytes_min);
        let heartbeats = Variant::ALL.map(|variant| {
            let mut out = Vec::new();
            variant.transport().heartbeat(&mut out);
            out.into()
        });
        let metrics: Arc<Metrics> = self.handle.metrics.clone();
        Ok(Shard {
            number: self.number as u16,
            handle: self.handle,
            metrics,
            shared: self.shared,
            settings: self.settings,
            broker: self.broker,
            webhook: self.webhook,
            shards: self.shards,
            balance: self.balance,
            places: self.places,
            place: Default::default(),
            addresses: self.addresses,
            started: self.started,
            poller: Poller::new()?,
            sender: Sender::new(self.options.sender)?,
            tools,
            listener,
            spare: crate::accept::spare(),
            capacity: self.plan.capacity,
            bucket: Default::default(),
            accept_after_us: 0,
            table: Default::default(),
            hub: Default::default(),
            joins: Default::default(),
            following: Default::default(),
            tracked: Default::default(),
            lists_due: Default::default(),
            heartbeats,
            batch: Default::default(),
            serial: 0,
            topics_ended: 0,
            commands: Default::default(),
            woken: Vec::new(),
            unread: Vec::new(),
            asked: Default::default(),
            waiters: Vec::new(),
            short: Default::default(),
            reserved: 0,
            buffer: Vec::new(),
            out: Vec::new(),
            peers: Default::default(),
            sweep: Sweep::at(self.started.elapsed().as_micros() as u64),
            drain: None,
            tidy_due_us: 0,
            now_us: 0,
        })
    }

    /// Adopts this shard's listener and closes the copies of the others', which would keep them
    /// open when their shards close them.
    fn take_listener(&self, private: bool) -> OwnedFd {
        if private {
            for (number, fd) in self.listeners.iter().enumerate() {
                if number != self.number {
                    // SAFETY: this thread's descriptor table is its own copy, in which nothing
                    // else owns the number.
                    drop(unsafe { OwnedFd::from_raw_fd(*fd) });
                }
            }
        }
        // SAFETY: in a table of its own nothing else owns the number; in a shared one the
        // starting thread forgets its owner, and no other shard takes this one.
        unsafe { OwnedFd::from_raw_fd(self.listeners[self.number]) }
    }
}

/// Shards without listeners and threads, one for each handle, which a test drives by hand.
#[cfg(test)]
pub(crate) fn for_tests(
    handles: &[Handle],
    settings: Settings,
    broker: Arc<dyn Broker>,
    shared: Arc<Shared>,
    started: Instant,
) -> Vec<Shard> {
    let metrics = handles.iter().map(|handle| handle.metrics.clone()).collect();
    let balance = Arc::new(Balance::new(metrics, u64::MAX));
    let places = Arc::new(Places::new(handles.to_vec(), 1));
    let addresses: Arc<Addresses> = Arc::default();
    let settings = Arc::new(settings);
    let options = Options {
        listen: ([127, 0, 0, 1], 0).into(),
        shards: handles.len(),
        pin_cpus: false,
        sender: crate::settings::SenderKind::Write,
        backlog: 1,
        send_buffer_bytes: 0,
        tcp_keepalive_seconds: 0,
        tcp_user_timeout_seconds: 0,
        mailbox_messages_max: 1,
        compression_level: 1,
        compression_bytes_min: 64,
    };
    let make = |(number, handle): (usize, &Handle)| Make {
        number,
        handle: handle.clone(),
        options: options.clone(),
        plan: Plan { shards: handles.len(), capacity: u64::MAX, high_water: u64::MAX },
        listeners: Vec::new(),
        settings: settings.clone(),
        broker: broker.clone(),
        webhook: None,
        shards: handles.into(),
        shared: shared.clone(),
        balance: balance.clone(),
        places: places.clone(),
        addresses: addresses.clone(),
        started,
    };
    let shards = handles.iter().enumerate().map(|it| {
        let mut shard = make(it).assemble(None).expect("a poller");
        shard.buffer = vec![0; crate::shard::READ_BYTES];
        shard.watch().expect("a wake-up that can be watched");
        shard
    });
    shards.collect()
}

/// A handle to a shard that a test drives by hand.
#[cfg(test)]
pub(crate) fn handle_for_tests(mailbox_messages_max: usize) -> Handle {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let wake = rustix::event::eventfd(0, flags).expect("an event descriptor");
    let mailbox = Mailbox::new(mailbox_messages_max, EventWake(wake));
    let inbox = ShardInbox { mailbox, filter: Filter::new(64), waiting: Default::default() };
    Handle { inbox: Arc::new(inbox), metrics: Arc::default() }
}

/// A shard that fails takes the process with it: its connections would hang and its publishers
/// wait for ever, while a supervisor that sees the end starts a new process at once.
fn run_or_end(shard: Shard) {
    let number = shard.number;
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| shard.run())).is_err() {
        tracing::error!("shard {number} failed: this is a fault of the server; the process ends");
        std::process::exit(70);
    }
}

/// Gives the calling thread a descriptor table of its own, with the process's limit for itself
/// alone. False where the system forbids it (a seccomp filter): then all share one table and one
/// limit.
fn own_table() -> bool {
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    // SAFETY: the descriptors that exist now stay valid under the same numbers; from here on this
    // thread opens and closes its own only. What other threads open later it never sees.
    unsafe { unshare_unsafe(UnshareFlags::FILES) }.is_ok() || own_table_by_close()
}

/// The same by close_range(2), which closes nothing here: Docker's usual filter refuses `unshare`
/// without CAP_SYS_ADMIN, but not this.
fn own_table_by_close() -> bool {
    // SAFETY: as above; no descriptor has that number.
    unsafe { libc::close_range(u32::MAX, u32::MAX, libc::CLOSE_RANGE_UNSHARE as i32) == 0 }
}

fn pin(number: usize) -> io::Result<()> {
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let cpus: Vec<usize> =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpus[number % cpus.len().max(1)]);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_table_of_its_own_keeps_what_was_open() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let (before, number) = (writer.as_fd(), writer.as_raw_fd());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(own_table_by_close(), "{}", io::Error::last_os_error());
                assert_eq!(rustix::io::write(before, b"x"), Ok(1));
                // SAFETY: in this thread's own table nothing else owns the number.
                drop(unsafe { OwnedFd::from_raw_fd(number) });
            });
        });
        assert_eq!(rustix::io::write(&writer, b"y"), Ok(1), "the other table keeps it");
        assert_eq!(rustix::io::read(&reader, &mut [0; 4]), Ok(2));
    }
}
