//! Creates and starts the shards from the options.

#![expect(unsafe_code, reason = "unshare(2), close_range(2) and descriptors by their numbers")]

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use broker::Broker;
use engine::{Config, Engine, Handle, Settings, Shared, Webhook};
use history::History;
use protocol::Codecs;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use throttle::Throttle;

use crate::handover::take::Taking;
use crate::handover::{Channel, Giver, Going, TakenShard, Taker};
use crate::listen::{Balance, Group, Listening, group, more};
use crate::permits::FanoutPermits;
use crate::poller::Poller;
use crate::sender::Sender;
use crate::settings::{Options, Port};
use crate::shard::{REFUSALS_LOGGED, Shard};
use crate::tls::{HANDSHAKES_PER_TURN, TlsContext};

use crate::wake::{CommandQueue, Commands, commands};

/// Descriptors of a shard that are no connections: its poller, its ring, the wake-ups of all shards, standard input and
/// output, and one to reject a connection with a response.
const OWN_DESCRIPTORS: u64 = 64;

/// The least capacity of a shard, in connections: a smaller shard is not worth its cost.
const CAPACITY_MIN: u64 = 64;

/// The most shards. A connection's id has 16 bits for the shard, and the accept program has one jump for each.
const SHARDS_MAX: usize = 1_000;

/// Shards that are prepared and not started.
pub struct Prepared {
    options: Options,
    plan: Plan,
    groups: Vec<Group>,
    mailboxes: Vec<Arc<Commands>>,
    /// A handle to each shard.
    pub handles: Vec<Handle>,
    /// The channels to the old process's shards, by number, if these shards replace others.
    channels: Vec<Channel>,
}

/// The services that all shards of a process use.
#[derive(Clone)]
pub struct Services {
    /// Publishes messages.
    pub broker: Arc<dyn Broker>,
    /// Stores the messages of topics with history.
    pub history: Arc<dyn History>,
    /// Sends requests to the application, if one is configured.
    pub webhook: Option<Arc<dyn Webhook>>,
    /// The state that all engines share.
    pub shared: Arc<Shared>,
    /// How connections with TLS are accepted. `None` if no port has TLS.
    pub tls: Option<TlsContext>,
}

/// Why shards can't be created.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The system does not let the server listen at this address.
    #[error("can't listen on {1}: {2}")]
    Listen(Port, SocketAddr, io::Error),
    /// Another error. Its text says what to do.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// The number of shards, and the capacity of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    shards: usize,
    /// Connections that a shard's descriptors allow.
    capacity: u64,
    /// With so many connections, the shard leaves the choice at accept.
    high_water: u64,
}

/// Running shards.
pub struct Running {
    threads: Vec<JoinHandle<()>>,
    /// How batches are sent: `io_uring` or `write`.
    pub sender: &'static str,
    /// True if each shard has a descriptor table of its own.
    pub private_tables: bool,
    /// One for each shard: it passes on the orders to give the shard's connections to a new process.
    pub givers: Vec<Arc<Giver>>,
    /// The progress of the take-over, if these shards replace others.
    pub taker: Option<Taker>,
}

impl Running {
    /// Waits until all shards have drained.
    pub fn join(self) {
        for thread in self.threads {
            // A shard that panicked has already printed that to standard error.
            let _ = thread.join();
        }
    }
}

/// Binds the ports and creates the mailboxes. Called before the process has many descriptors, because each shard's
/// descriptor table begins as a copy of this thread's.
///
/// # Errors
/// When a port can't be bound, or the system has too few descriptors.
pub fn prepare(options: Options, connections_max: u64) -> Result<Prepared, PrepareError> {
    prepare_to_take(options, connections_max, Vec::new())
}

/// As [`prepare`], for shards that replace those of an old process, which have connected to this one. There are at
/// least as many as before. They take over the old listeners of addresses that stay. The listeners of further shards
/// begin to listen with [`Taker::go`].
///
/// # Errors
/// As [`prepare`], and when a shard of the old process is missing.
pub fn prepare_to_take(
    options: Options,
    connections_max: u64,
    mut taken: Vec<TakenShard>,
) -> Result<Prepared, PrepareError> {
    taken.sort_unstable_by_key(|shard| shard.number);
    if !taken.iter().map(|shard| shard.number).eq(0..taken.len() as u32) {
        return Err(io::Error::other("a shard of the old process is missing").into());
    }
    let descriptors = raise_descriptor_limit();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut plan = plan(&options, connections_max, descriptors, cores)?;
    // A connection's id names its shard, so there must be at least as many shards as before.
    plan.shards = plan.shards.max(taken.len());
    let mut groups = Vec::with_capacity(options.listen.len());
    for (port, address) in &options.listen {
        let group = match taken_group(&mut taken, *port, *address) {
            Some(group) => more(group, &options, plan.shards),
            None => group(&options, (*port, *address), plan.shards),
        };
        groups.push(group.map_err(|error| PrepareError::Listen(*port, *address, error))?);
    }
    let share = connections_max.div_ceil(plan.shards as u64).min(plan.capacity);
    let mut handles = Vec::with_capacity(plan.shards);
    let mut mailboxes = Vec::with_capacity(plan.shards);
    for _ in 0..plan.shards {
        let mailbox = commands(options.mailbox_messages_max).map_err(io::Error::from)?;
        handles.push(Handle::new(Box::new(CommandQueue(mailbox.clone())), share as usize * 2));
        mailboxes.push(mailbox);
    }
    // Closes the old listeners of addresses that are no longer configured.
    let channels = taken.into_iter().map(|shard| shard.channel).collect();
    Ok(Prepared { options, plan, groups, mailboxes, handles, channels })
}

/// Returns how many connections each of so many shards could have here.
///
/// # Errors
/// When the limit on open files is too low for this many shards.
pub fn capacity(options: &Options, connections_max: u64, shards: usize) -> io::Result<u64> {
    let descriptors = raise_descriptor_limit();
    let options = Options { shards, ..options.clone() };
    plan(&options, connections_max, descriptors, 1).map(|plan| plan.capacity)
}

/// Returns the old process's listeners at this address, one for each shard.
fn taken_group(taken: &mut [TakenShard], port: Port, address: SocketAddr) -> Option<Group> {
    let at = |socket: &OwnedFd| -> Option<SocketAddr> {
        SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()
    };
    let is_it = |(of, socket): &(Port, OwnedFd)| {
        *of == port
            && at(socket).is_some_and(|it| {
                it.ip() == address.ip() && (address.port() == 0 || it.port() == address.port())
            })
    };
    let positions: Option<Vec<usize>> =
        taken.iter().map(|shard| shard.listeners.iter().position(is_it)).collect();
    let positions = positions.filter(|positions| !positions.is_empty())?;
    let sockets: Vec<OwnedFd> = taken
        .iter_mut()
        .zip(positions)
        .map(|(shard, position)| shard.listeners.swap_remove(position).1)
        .collect();
    let address = at(sockets.first()?)?;
    Some(Group { port, address, sockets })
}

/// Raises the soft limit on open files as far as possible, and returns it.
fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let _ = setrlimit(Resource::Nofile, raised);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns how many descriptors a shard can't use for connections: its own, and the wake-ups of all shards, which exist
/// twice in an upgrade.
fn reserved(shards: u64) -> u64 {
    OWN_DESCRIPTORS + 2 * shards
}

/// Returns how many descriptors are open while the shards are created. Each shard's table begins as a copy of them:
/// each shard's wake-up, its listeners, and in an upgrade its channel to the old process.
fn needed_at_start(shards: u64, ports: u64) -> u64 {
    OWN_DESCRIPTORS + shards * (2 + ports)
}

fn plan(
    options: &Options,
    connections_max: u64,
    descriptors: u64,
    cores: usize,
) -> io::Result<Plan> {
    let ports = options.listen.len() as u64;
    let of = |shards: usize| -> Option<Plan> {
        let number = shards as u64;
        let capacity = descriptors.checked_sub(reserved(number));
        let capacity = capacity.filter(|capacity| *capacity >= CAPACITY_MIN)?;
        // When a shard leaves the choice, it must still have capacity for its queues.
        let queued = u64::from(options.backlog) * ports;
        let high_water = capacity - queued.min(capacity / 8);
        (needed_at_start(number, ports) <= descriptors).then_some(Plan {
            shards,
            capacity,
            high_water,
        })
    };
    let too_low = |shards: usize| {
        let number = shards as u64;
        let least = needed_at_start(number, ports).max(reserved(number) + CAPACITY_MIN);
        let who = match shards {
            1 => "one shard needs".to_owned(),
            _ => format!("{shards} shards need"),
        };
        io::Error::other(format!(
            "the limit on open files is {descriptors}, and {who} {least} or more: raise it (ulimit -n, or \
             LimitNOFILE= of the unit)"
        ))
    };
    if options.shards > 0 {
        let shards = options.shards.min(SHARDS_MAX);
        return of(shards).ok_or_else(|| too_low(shards));
    }
    // Takes the least number of shards with enough capacity. If descriptors are few, more shards have less capacity
    // each: then the number with the most capacity in total.
    let holds = |plan: &Plan| plan.high_water.saturating_mul(plan.shards as u64);
    let mut most: Option<Plan> = None;
    for plan in (1..=SHARDS_MAX).map_while(of) {
        if plan.shards >= cores && holds(&plan) >= connections_max {
            return Ok(plan);
        }
        if most.is_none_or(|most| holds(&plan) > holds(&most)) {
            most = Some(plan);
        }
    }
    most.ok_or_else(|| too_low(1))
}

impl Prepared {
    /// Returns the address of this port, with its real number if the setting is 0.
    pub fn address(&self, port: Port) -> Option<SocketAddr> {
        self.groups.iter().find(|group| group.port == port).map(|group| group.address)
    }

    /// Returns the number of shards, and how many connections their descriptors allow.
    pub fn capacity(&self) -> (usize, u64) {
        (self.plan.shards, self.plan.capacity * self.plan.shards as u64)
    }

    /// Returns the listeners of shards that the old process does not have, in the order of the shards' numbers: the
    /// kernel numbers listeners in the order in which they begin to listen.
    fn further(&self) -> io::Result<Vec<OwnedFd>> {
        let mut further = Vec::new();
        for group in &self.groups {
            for socket in group.sockets.iter().skip(self.channels.len()) {
                further.push(socket.try_clone()?);
            }
        }
        Ok(further)
    }

    /// Starts the threads, and returns when each shard is ready to accept.
    pub fn start(
        self,
        settings: Arc<Settings>,
        services: &Services,
        started: Instant,
    ) -> io::Result<Running> {
        let metrics = self.handles.iter().map(|handle| handle.metrics.clone()).collect();
        let balance = Arc::new(Balance::new(metrics, self.plan.high_water));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let permits = Arc::new(FanoutPermits::new(self.mailboxes.clone(), cores));
        let engines: Arc<[Handle]> = self.handles.clone().into();
        let numbers = |group: &Group| {
            let sockets: Vec<RawFd> = group.sockets.iter().map(AsRawFd::as_raw_fd).collect();
            (group.port, sockets)
        };
        let listeners: Vec<(Port, Vec<RawFd>)> = self.groups.iter().map(numbers).collect();
        let (ready, results) = mpsc::channel();
        let (report, reports) = mpsc::channel();
        let (going, taken) = (Arc::<Going>::default(), Arc::<AtomicU64>::default());
        let is_taking = !self.channels.is_empty();
        let further = if is_taking { self.further()? } else { Vec::new() };
        let channels: Vec<OwnedFd> = self.channels.into_iter().map(OwnedFd::from).collect();
        let channel_numbers: Vec<RawFd> = channels.iter().map(AsRawFd::as_raw_fd).collect();
        let giver = |commands: &Arc<Commands>| Arc::new(Giver::new(commands.clone()));
        let givers: Vec<Arc<Giver>> = self.mailboxes.iter().map(giver).collect();
        let mut threads = Vec::new();
        for (number, commands) in self.mailboxes.iter().enumerate() {
            let make = Make {
                number,
                commands: commands.clone(),
                options: self.options.clone(),
                plan: self.plan,
                listeners: listeners.clone(),
                settings: settings.clone(),
                services: services.clone(),
                engines: engines.clone(),
                balance: balance.clone(),
                permits: permits.clone(),
                started,
                giver: givers[number].clone(),
                channels: channel_numbers.clone(),
            };
            let ready = ready.clone();
            let (report, going, taken) = (report.clone(), going.clone(), taken.clone());
            let thread = std::thread::Builder::new().name(format!("shard-{number}"));
            threads.push(thread.spawn(move || match make.shard() {
                Ok((mut shard, private, channel)) => {
                    let _ = ready.send(Ok((shard.sender.name(), private)));
                    drop(ready);
                    let goes = match channel {
                        Some(channel) => shard.take_over(Taking { channel, report, going, taken }),
                        // A further shard, which the old process does not have, has nothing to take.
                        None => !is_taking || going.wait(),
                    };
                    if goes {
                        run_or_end(shard);
                    }
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
            })?);
        }
        drop(ready);
        let (sender, private_tables) = await_ready(results)?;
        if private_tables {
            drop((self.groups, channels));
        } else {
            // The shards share this descriptor table, and own the listeners now.
            let sockets = self.groups.into_iter().flat_map(|group| group.sockets);
            sockets.chain(channels).for_each(std::mem::forget);
        }
        let backlog = self.options.backlog;
        let taker = is_taking.then_some(Taker { reports, going, taken, further, backlog });
        Ok(Running { threads, sender, private_tables, givers, taker })
    }
}

/// Waits until each shard is ready. Returns the sender's name, and whether each shard has a descriptor table of its
/// own.
fn await_ready(
    results: mpsc::Receiver<io::Result<(&'static str, bool)>>,
) -> io::Result<(&'static str, bool)> {
    let (mut sender, mut private_tables) = ("write", true);
    for result in results {
        let (name, private) = result?;
        sender = name;
        private_tables &= private;
    }
    Ok((sender, private_tables))
}

/// What a shard's thread needs to create the shard.
struct Make {
    number: usize,
    commands: Arc<Commands>,
    options: Options,
    plan: Plan,
    /// The listeners of each port, one for each shard.
    listeners: Vec<(Port, Vec<RawFd>)>,
    settings: Arc<Settings>,
    services: Services,
    engines: Arc<[Handle]>,
    balance: Arc<Balance>,
    permits: Arc<FanoutPermits>,
    started: Instant,
    giver: Arc<Giver>,
    /// The channels to the shards of an old process, one for each. Empty without such a process.
    channels: Vec<RawFd>,
}

impl Make {
    /// Creates the shard on its own thread, which first gets a descriptor table of its own.
    fn shard(self) -> io::Result<(Shard, bool, Option<Channel>)> {
        let private = own_table();
        let listeners = self.take_listeners(private);
        let channel = self.take(&self.channels, private).map(Channel::from);
        if self.options.pin_cpus {
            pin(self.number)?;
        }
        Ok((self.assemble(listeners)?, private, channel))
    }

    fn assemble(self, listeners: Vec<Listening>) -> io::Result<Shard> {
        let codecs =
            Codecs::new(self.options.compression_level, self.options.compression_bytes_min);
        let engine = Engine::new(Config {
            number: self.number as u16,
            engines: self.engines,
            shared: self.services.shared,
            settings: self.settings,
            broker: self.services.broker,
            history: self.services.history,
            webhook: self.services.webhook,
            codecs,
            now_us: self.started.elapsed().as_micros() as u64,
        });
        Ok(Shard {
            engine,
            commands: self.commands,
            sockets: Default::default(),
            balance: self.balance,
            permits: self.permits,
            permit: Default::default(),
            started: self.started,
            woke_us: None,
            poller: Poller::new()?,
            sender: Sender::new(self.options.sender)?,
            listeners,
            spare: crate::shard::spare(),
            capacity: self.plan.capacity,
            bucket: Default::default(),
            lines: Throttle::new(REFUSALS_LOGGED, 1_000_000),
            accept_after_us: 0,
            batch: Default::default(),
            short: Default::default(),
            unread: Vec::new(),
            confirmed: Vec::new(),
            buffer: Vec::new(),
            out: Vec::new(),
            peers: Default::default(),
            sweep_due_us: 0,
            tls_context: self.services.tls,
            tls: Default::default(),
            handshakes_left: HANDSHAKES_PER_TURN,
            postponed_handshakes: Default::default(),
            tls_plain: Vec::new(),
            tls_sealed: Vec::new(),
            outputs: Default::default(),
            giver: self.giver,
            giving: None,
            owed: Vec::new(),
            released: false,
        })
    }

    /// Adopts this shard's listeners.
    fn take_listeners(&self, private: bool) -> Vec<Listening> {
        let take = |(port, sockets): &(Port, Vec<RawFd>)| {
            let socket = self.take(sockets, private)?;
            Some(Listening { port: *port, socket })
        };
        self.listeners.iter().filter_map(take).collect()
    }

    /// Adopts the shard's own descriptor from a list with one for each shard, and closes the copies of the others. The
    /// copies would keep the files open after their shards have closed them.
    fn take(&self, all: &[RawFd], private: bool) -> Option<OwnedFd> {
        if private {
            for (number, fd) in all.iter().enumerate() {
                if number != self.number {
                    // SAFETY: this thread's descriptor table is its own copy, in which nothing else owns the number.
                    drop(unsafe { OwnedFd::from_raw_fd(*fd) });
                }
            }
        }
        // SAFETY: in a table of its own, nothing else owns the number; in a shared table, the starting thread forgets
        // its owner, and no other shard takes this number.
        all.get(self.number).map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) })
    }
}

/// The options of a shard for tests.
#[cfg(test)]
pub(crate) fn options() -> Options {
    Options {
        listen: Vec::new(),
        shards: 1,
        pin_cpus: false,
        sender: crate::settings::SenderKind::Write,
        backlog: 1,
        send_buffer_bytes: 0,
        tcp_keepalive_seconds: 0,
        tcp_user_timeout_seconds: 0,
        mailbox_messages_max: 1,
        compression_level: 1,
        compression_bytes_min: 64,
    }
}

/// A shard without a listener and a thread, which a test drives by hand.
#[cfg(test)]
pub(crate) fn for_tests(settings: Settings, shared: Arc<Shared>) -> Shard {
    let started = Instant::now();
    let mailbox = commands(10).expect("an event descriptor");
    let handle = Handle::new(Box::new(CommandQueue(mailbox.clone())), 64);
    let limits =
        broker::Limits { recent_messages_max: 1, recent_bytes_max: 1, recent_seconds_max: 1 };
    let router = Arc::new(broker::Router::new(vec![handle.inbox()]));
    let begin = history_local::Begin::in_memory(broker::epoch(&[7; 20]));
    let history_limits = history_local::HistoryLimits::default();
    let history =
        Arc::new(history_local::Local::new(router.clone(), begin, started, history_limits, limits));
    let log = history.clone();
    let broker = Arc::new(broker::Local::new(router, [7; 20], started, limits, log));
    let make = Make {
        number: 0,
        commands: mailbox.clone(),
        options: options(),
        plan: Plan { shards: 1, capacity: u64::MAX, high_water: u64::MAX },
        listeners: Vec::new(),
        settings: Arc::new(settings),
        services: Services { broker, history, webhook: None, shared, tls: None },
        balance: Arc::new(Balance::new(vec![handle.metrics.clone()], u64::MAX)),
        engines: [handle].into(),
        permits: Arc::new(FanoutPermits::new(vec![mailbox.clone()], 1)),
        started,
        giver: Arc::new(Giver::new(mailbox)),
        channels: Vec::new(),
    };
    let mut shard = make.assemble(Vec::new()).expect("a poller");
    shard.buffer = vec![0; crate::shard::READ_BYTES];
    shard.watch().expect("a wake-up that can be watched");
    shard
}

/// Runs a shard, and ends the process if the shard panics. Otherwise its connections would hang and its publishers
/// would wait for ever, while a supervisor that sees the end starts a new process at once.
fn run_or_end(shard: Shard) {
    let number = shard.engine.number();
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| shard.run())).is_err() {
        tracing::error!(
            shard = number,
            "this shard failed because of a bug in the server: the process ends"
        );
        std::process::exit(70);
    }
}

/// Gives the calling thread a descriptor table of its own, with the process's limit for itself alone. Returns false if
/// the system forbids that (a seccomp filter). Then all shards share one table and one limit.
fn own_table() -> bool {
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    // SAFETY: the descriptors that exist now stay valid under the same numbers; from here on this thread opens and
    // closes only its own, and it never sees what other threads open later.
    unsafe { unshare_unsafe(UnshareFlags::FILES) }.is_ok() || own_table_by_close()
}

/// As `own_table`, by close_range(2), which closes nothing here. Docker's default filter forbids `unshare` without
/// CAP_SYS_ADMIN, but not this call.
fn own_table_by_close() -> bool {
    // SAFETY: no descriptor has that number, so the call closes nothing; all numbers stay valid, as after unshare(2).
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

    use engine::Listener;

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

    #[test]
    fn a_plan_takes_no_more_descriptors_than_there_are() {
        let mut options = Options { shards: 0, backlog: 4_096, ..options() };
        options.listen = vec![(Port::plain(Listener::Client), ([127, 0, 0, 1], 0).into())];
        for descriptors in 0..3_000 {
            let Ok(plan) = plan(&options, 1_000_000, descriptors, 2) else {
                assert!(descriptors < reserved(1) + CAPACITY_MIN, "{descriptors} are enough");
                continue;
            };
            let shards = plan.shards as u64;
            assert!(needed_at_start(shards, 1) <= descriptors, "{descriptors}: {plan:?}");
            assert_eq!(plan.capacity, descriptors - reserved(shards), "{descriptors}: {plan:?}");
            assert!(plan.capacity >= CAPACITY_MIN, "{descriptors}: {plan:?}");
        }
        let reserved = |descriptors| {
            let plan = plan(&options, 1_000_000, descriptors, 2).unwrap();
            (plan.shards, plan.capacity * plan.shards as u64)
        };
        assert!(
            reserved(256).1 > 3_000 && reserved(700).1 > 20_000,
            "{:?} {:?}",
            reserved(256),
            reserved(700)
        );
        // With enough descriptors, the number of shards depends on the connections.
        let enough = plan(&options, 1_000_000, 20_000, 2).unwrap();
        assert!((55..65).contains(&enough.shards), "{enough:?}");
        assert_eq!(plan(&options, 1_000, 1 << 20, 4).unwrap().shards, 4, "a shard a core");
        let error = |shards| {
            let options = Options { shards, ..options.clone() };
            plan(&options, 1_000, 256, 2).unwrap_err().to_string()
        };
        assert!(error(90).contains("90 shards need 334 or more"), "{}", error(90));
    }

    #[test]
    fn descriptors_are_left_for_the_queue_of_every_port() {
        let mut options = options();
        options.backlog = 100;
        let high_water = |ports: usize, descriptors: u64| {
            let mut options = options.clone();
            options.listen = vec![(Port::plain(Listener::Mqtt), ([127, 0, 0, 1], 0).into()); ports];
            let plan = plan(&options, 1_000, descriptors, 1).unwrap();
            plan.capacity - plan.high_water
        };
        assert_eq!([1, 2, 3].map(|ports| high_water(ports, 10_000)), [100, 200, 300]);
        // The queues get at most an eighth of the capacity.
        assert_eq!(high_water(2, 1_066), 125);
    }
}
