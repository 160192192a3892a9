//! The old process's side of an upgrade: it copies its state while it serves, and passes the rest in a short pause.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use control::{UpgradeProgress, UpgradeRejection, UpgradeRequest, UpgradeStage, Upgrader};
use handover::{Part, Sent};
use history::History;
use shard::{Channel, Frame, Give, Giver, GiverStage};
use tokio::sync::watch;

use super::process::{Folder, NewProcess};
use crate::notify::{self, State};

use super::wire::{self, Accepted, Facts, expect};

/// How long the new process may take to reply whether it can take over, and then until its shards are ready.
const READY_WAIT: Duration = Duration::from_secs(60);

/// The upgrade is given up if for this time no connection is copied and no shard finishes.
const COPY_STALL: Duration = Duration::from_secs(30);

/// How long a step of the switch may take.
pub(super) const STEP_WAIT: Duration = Duration::from_secs(20);

/// The most passes over the connections before the first attempt to pause: one copies all, the others copy what has
/// changed.
const COPY_PASSES_MAX: u32 = 4;

/// A pass is the last one if it copied fewer than one in this many connections.
const LAST_PASS_ONE_IN: u64 = 100;

/// A pass over the changed connections is the last one if it takes longer than this: an overloaded node has no time for
/// another.
const COPY_PASS_TIME_MAX: Duration = Duration::from_secs(1);

/// The most shards that copy all of their connections at a time. The kernel limits the descriptors that one user
/// without a privilege may have in flight: more shards would exceed that, and wait for each other.
const COPYING_MAX: usize = 16;

/// Time between two polls of the shards' progress.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The error of an upgrade on a cluster node whose thread `cluster` has ended.
const NO_CLUSTER: &str = "the thread that connects this node to the cluster has ended (see the \
     log), so the state of the cluster can't be handed over: restart this node";

/// The part that a new process must support to take over a node of a cluster.
const CLUSTER: &str = "cluster";

/// The state that an upgrade passes on, and the services that it pauses and resumes.
pub(in super::super) struct Old {
    pub givers: Vec<Arc<Giver>>,
    pub parts: Vec<Arc<dyn Part>>,
    pub handles: Vec<shard::Handle>,
    pub shared: Arc<shard::Shared>,
    pub store: Option<store::Store>,
    pub history: Arc<history_local::Local>,
    /// The history, if it is in a database.
    pub postgres: Option<history_postgres::Postgres>,
    /// True if clients can connect with TLS.
    pub has_tls: bool,
    pub webhook: Arc<control::webhook::Dispatcher>,
    pub gate: Arc<control::Gate>,
    /// The listener of the admin port, which the new process gets.
    pub admin: std::net::TcpListener,
    /// The listener of the admin port with TLS, which the new process gets, too.
    pub admin_tls: Option<std::net::TcpListener>,
    /// The socket to which earlier processes forward requests, and its path, if there are any. The new process gets it,
    /// too.
    pub forwarded: Option<(std::os::unix::net::UnixListener, PathBuf)>,
    pub started: Instant,
    pub longpoll_key: [u8; 32],
    /// The directory of the store, if there is one.
    pub data: Option<String>,
    pub limits: Vec<(String, u64)>,
    /// The binary to start if the request names none.
    pub binary: PathBuf,
    /// The command line of this process.
    pub arguments: Vec<OsString>,
    /// `None` for a node that is alone.
    pub cluster: Option<Arc<link::Link>>,
    /// Wakes the main thread after an upgrade that has passed on everything.
    pub done: Box<dyn Fn() + Send + Sync>,
}

/// Carries out upgrades, one at a time.
pub(in super::super) struct Upgrade {
    pub(super) old: Old,
    progress: watch::Sender<UpgradeProgress>,
    under_way: AtomicBool,
    /// The process is ending: no upgrade may continue.
    cancelled: AtomicBool,
    pub(super) given: AtomicBool,
    /// This process has started the process that has taken over.
    is_parent: AtomicBool,
    /// The thread of the upgrade that is under way; it ends with the upgrade.
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// Why an upgrade failed, as text for people.
pub(super) type Reason = String;

impl Upgrade {
    /// No upgrade is under way at first. `progress` is that of the upgrade that started this process, if one did.
    pub fn new(old: Old, progress: UpgradeProgress) -> Arc<Self> {
        Arc::new(Upgrade {
            old,
            progress: watch::Sender::new(progress),
            under_way: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            given: AtomicBool::new(false),
            is_parent: AtomicBool::new(false),
            thread: Mutex::default(),
        })
    }

    /// Sets the length of the pause in which this process took over, in microseconds.
    pub fn set_pause(&self, pause_us: Option<u64>) {
        self.change(|progress| progress.pause_us = pause_us);
    }

    /// Returns true if another process has taken over.
    pub fn has_given(&self) -> bool {
        self.given.load(Ordering::SeqCst)
    }

    /// Returns true if this process has started the process that has taken over.
    pub fn is_parent(&self) -> bool {
        self.is_parent.load(Ordering::SeqCst)
    }

    /// Cancels the upgrade that is under way, unless another process has already taken over, and lets no other one
    /// begin. Returns true if another process has taken over.
    pub fn cancel(&self) -> bool {
        self.cancelled.store(true, Ordering::SeqCst);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A thread that panicked has written so to standard error.
        let _ = thread.map(std::thread::JoinHandle::join);
        self.has_given()
    }

    /// Begins an upgrade to the same binary. Logs the reason if it can't begin.
    pub fn begin_by_signal(self: &Arc<Self>) {
        if let Err(error) = self.start(UpgradeRequest::default()) {
            tracing::error!(%error, "the upgrade did not begin");
        }
    }

    fn start(self: &Arc<Self>, request: UpgradeRequest) -> Result<(), UpgradeRejection> {
        if self.cancelled.load(Ordering::SeqCst) {
            return Err(UpgradeRejection::Ending("this process is ending".into()));
        }
        if self.has_given() {
            return Err(UpgradeRejection::Ending("another process has already taken over".into()));
        }
        if self.old.cluster.as_ref().is_some_and(|link| link.is_closed()) {
            return Err(UpgradeRejection::Bad(NO_CLUSTER.into()));
        }
        if self.under_way.swap(true, Ordering::SeqCst) {
            return Err(UpgradeRejection::UnderWay);
        }
        let before = self.progress.borrow().clone();
        self.change(|progress| {
            *progress = UpgradeProgress {
                stage: UpgradeStage::Starting,
                begun: progress.begun + 1,
                failed: progress.failed,
                shards: self.old.givers.len(),
                connections: self.connections(),
                from_version: env!("CARGO_PKG_VERSION").into(),
                ..UpgradeProgress::default()
            };
        });
        // A drain sets and checks these two flags in the other order, so that an upgrade and a drain can't both begin.
        if self.old.shared.draining.load(Ordering::SeqCst) {
            self.change(|progress| *progress = before);
            self.under_way.store(false, Ordering::SeqCst);
            return Err(UpgradeRejection::Draining);
        }
        let upgrade = self.clone();
        let thread = std::thread::Builder::new().name("upgrade".into());
        let thread = thread.spawn(move || upgrade.run(&request)).map_err(|error| {
            self.under_way.store(false, Ordering::SeqCst);
            UpgradeRejection::Bad(format!("can't start a thread: {error}"))
        })?;
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    fn connections(&self) -> u64 {
        self.old.shared.connections.load(Ordering::Relaxed)
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut UpgradeProgress)) {
        self.progress.send_modify(change);
    }

    fn run(&self, request: &UpgradeRequest) {
        let _span = tracing::info_span!("upgrade").entered();
        let began = Instant::now();
        if !request.check {
            notify::notify(State::Reloading);
        }
        let result = self.attempt(request, began);
        let seconds = began.elapsed().as_secs_f64();
        match result {
            Ok(stage) => {
                self.change(|progress| {
                    (progress.stage, progress.seconds) = (stage, seconds);
                    progress.connections = progress.connections.max(progress.connections_copied);
                });
                tracing::info!("{}", self.progress.borrow().text());
            }
            Err(error) => {
                tracing::error!(error, "the upgrade failed: this process continues to serve");
                if !request.check {
                    notify::notify(State::Ready);
                }
                self.change(|progress| {
                    (progress.stage, progress.seconds) = (UpgradeStage::Failed, seconds);
                    progress.failed += 1;
                    progress.error = Some(error);
                });
            }
        }
        self.under_way.store(false, Ordering::SeqCst);
        if self.has_given() {
            (self.old.done)();
        }
    }

    fn attempt(&self, request: &UpgradeRequest, began: Instant) -> Result<UpgradeStage, Reason> {
        let folder = Folder::new()
            .map_err(|error| format!("can't create a directory for the socket: {error}"))?;
        let mut process = None;
        let path = match &request.to {
            Some(path) => path.clone(),
            None => {
                let binary = request.binary.as_ref().unwrap_or(&self.old.binary);
                let path = folder.socket();
                tracing::info!(binary = %binary.display(), "starting the new process");
                let mut started = NewProcess::start(binary, &self.old.arguments, &path)
                    .map_err(|error| error.to_string())?;
                let is_cancelled = || self.cancelled.load(Ordering::SeqCst);
                started.wait_for(&path, is_cancelled).map_err(|error| error.to_string())?;
                process = Some(started);
                path
            }
        };
        let result = self.hand_over(request, &path, began);
        match &result {
            // The new process runs on without this one.
            Ok(UpgradeStage::Done) => {
                if let Some(process) = &mut process {
                    self.is_parent.store(true, Ordering::SeqCst);
                    process
                        .let_go()
                        .into_iter()
                        .for_each(|pid| notify::notify(State::MainPid(pid)));
                }
            }
            _ => {
                // The new process ends, and with it its copies of the connections, before this process serves them
                // again.
                let ended = process.as_mut().and_then(NewProcess::has_ended);
                drop(process);
                if result.is_err() {
                    self.resume();
                }
                if let (Err(error), Some(ended)) = (&result, ended) {
                    return Err(format!("{error} ({ended})"));
                }
            }
        }
        result
    }

    fn hand_over(
        &self,
        request: &UpgradeRequest,
        path: &Path,
        began: Instant,
    ) -> Result<UpgradeStage, Reason> {
        let main = Channel::connect(path)
            .map_err(|error| format!("no process waits at {}: {error}", path.display()))?;
        main.set_timeout(Some(STEP_WAIT)).map_err(|error| error.to_string())?;
        main.send(wire::FACTS, &handover::encode(self.facts(request.check)), &[])
            .map_err(|error| self.why(&error))?;
        let accepted = self.expect(&main, wire::ACCEPTED, READY_WAIT)?;
        let accepted: Accepted = wire::decode(&accepted.body).map_err(|error| self.why(&error))?;
        let ours: Vec<&str> = self.old.parts.iter().map(|part| part.name()).collect();
        let unknown = handover::unknown(&ours, &accepted.parts);
        self.change(|progress| {
            progress.to_version = accepted.version.clone();
            progress.pid = Some(accepted.pid);
            progress.notes = accepted.notes.clone();
            progress.notes.extend(unknown.iter().map(|name| {
                format!(
                    "version {} does not support \"{name}\": its state would be lost",
                    accepted.version
                )
            }));
        });
        if self.old.cluster.is_some() && unknown.contains(&CLUSTER) {
            return Err(format!(
                "version {} can't take over from a node of a cluster: end this process, so that \
                 its clients go to other nodes, and start that version",
                accepted.version
            ));
        }
        if self.old.postgres.is_some() && unknown.contains(&history_postgres::PART) {
            return Err(format!(
                "version {} can't take over from a server with its history in PostgreSQL: end this \
                 process, and start that version",
                accepted.version
            ));
        }
        if request.check {
            return Ok(UpgradeStage::Checked);
        }
        let result = self.give(&main, path, began).map_err(|error| {
            // This process may notice that the new one's shards are gone before it reads the error that the new one
            // sent.
            let error = wire::unread_error(&main).unwrap_or(error);
            // A new process that the operator started ends when this channel closes.
            main.shut();
            error
        });
        result.map(|()| UpgradeStage::Done)
    }

    fn facts(&self, check: bool) -> Facts {
        let old = &self.old;
        let age = u64::try_from(old.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let open_connections =
            old.handles.iter().map(|handle| handle.metrics.open_connections.get());
        Facts {
            format: wire::FORMAT,
            version: env!("CARGO_PKG_VERSION").into(),
            node: old.shared.node.0,
            clock_zero_ns: super::monotonic_ns().saturating_sub(age),
            longpoll_key: old.longpoll_key.to_vec(),
            shards: u32::try_from(old.givers.len()).unwrap_or(u32::MAX),
            most_connections: open_connections.max().unwrap_or(0),
            connections: self.connections(),
            parts: old.parts.iter().map(|part| part.name().to_owned()).collect(),
            record_version: shard::RECORD_VERSION,
            store_format: old.store.as_ref().map(|_| store::FORMAT),
            store: old.data.clone(),
            pid: Some(std::process::id()),
            limits: old.limits.clone(),
            admin: address(&old.admin),
            admin_tls: old.admin_tls.as_ref().and_then(address),
            cluster: old.cluster.as_ref().map(|link| link.settings().cluster.clone()),
            history_epoch: old.postgres.as_ref().map(|postgres| postgres.epoch().0),
            check,
        }
    }

    fn give(&self, main: &Channel, path: &Path, began: Instant) -> Result<(), Reason> {
        self.change(|progress| progress.stage = UpgradeStage::Copying);
        for giver in &self.old.givers {
            giver.order(Give::Begin(path.to_owned()));
        }
        self.expect(main, wire::READY, READY_WAIT)?;
        tracing::info!("the new process is ready: connections are copied to it");
        let mut sent: Vec<Sent> = self.old.parts.iter().map(|_| Sent::new()).collect();
        self.send_parts(main, &mut sent)?;
        let last_pass = self.copy_connections(began)?;
        main.set_timeout(Some(STEP_WAIT)).map_err(|error| error.to_string())?;
        // Sends the changes once more while this process serves, so that fewer are left for the pause.
        self.send_parts(main, &mut sent)?;
        self.sync(main)?;
        self.change(|progress| progress.stage = UpgradeStage::Switching);
        self.switch(main, &mut sent, path, last_pass)
    }

    /// Waits for a frame of this kind from the new process. Fails as soon as a shard fails.
    pub(super) fn expect(
        &self,
        main: &Channel,
        kind: u16,
        wait: Duration,
    ) -> Result<Frame, Reason> {
        self.until(wait, "the reply of the new process", || main.has_input())?;
        expect(main, kind).map_err(|error| self.why(&error))
    }

    /// Returns why the channel failed: the error that the new process sent, or else that of a failed shard, or else
    /// this one.
    pub(super) fn why(&self, error: &io::Error) -> Reason {
        if wire::is_peer_error(error) {
            return error.to_string();
        }
        let of_shard = self.old.givers.iter().find_map(|giver| giver.error());
        of_shard.unwrap_or_else(|| match error.kind() {
            // The kernel reports the time-out of a socket by this error.
            io::ErrorKind::WouldBlock => "the new process did not reply in time".into(),
            _ => error.to_string(),
        })
    }

    pub(super) fn send_parts(&self, main: &Channel, sent: &mut [Sent]) -> Result<(), Reason> {
        for (part, sent) in self.old.parts.iter().zip(sent) {
            let began = Instant::now();
            wire::send_part(main, &**part, sent).map_err(|error| self.why(&error))?;
            let us = began.elapsed().as_micros() as u64;
            tracing::debug!(part = part.name(), records = sent.len(), us, "part handed over");
        }
        Ok(())
    }

    fn sync(&self, main: &Channel) -> Result<(), Reason> {
        main.send(wire::SYNC, &[], &[]).map_err(|error| self.why(&error))?;
        self.expect(main, wire::SYNCED, STEP_WAIT).map(drop)
    }

    /// Copies all connections while this process serves, and then the changed ones again, until few are left for the
    /// pause. Returns how long the last pass over the changed ones took.
    fn copy_connections(&self, began: Instant) -> Result<Duration, Reason> {
        let mut last_pass = Duration::ZERO;
        let mut before = self.copy_pass(COPYING_MAX, |done, copied| {
            self.change(|progress| {
                (progress.shards_done, progress.connections_copied) = (done, copied);
                progress.seconds = began.elapsed().as_secs_f64();
            });
        })?;
        for _ in 1..COPY_PASSES_MAX {
            let Some(copied) = self.copy_changed(&mut last_pass)? else { break };
            if copied < self.connections() / LAST_PASS_ONE_IN || copied > before / 2 {
                break;
            }
            before = copied;
        }
        Ok(last_pass)
    }

    /// Copies the changed connections again, and returns their number. Does nothing and returns `None` if the last pass
    /// took longer than `COPY_PASS_TIME_MAX`. `last_pass` is the duration of the last pass; this pass replaces it by
    /// its own. All shards copy at the same time: they send few descriptors, those of new connections.
    pub(super) fn copy_changed(&self, last_pass: &mut Duration) -> Result<Option<u64>, Reason> {
        if *last_pass > COPY_PASS_TIME_MAX {
            return Ok(None);
        }
        let began = Instant::now();
        let copied = self.copy_pass(self.old.givers.len(), |_, _| ())?;
        *last_pass = began.elapsed();
        let ms = last_pass.as_millis() as u64;
        tracing::debug!(connections = copied, ms, "changed connections were copied again");
        Ok(Some(copied))
    }

    /// Copies the connections whose present state the other process does not have, and returns their number. At most
    /// `copying_max` shards copy at a time. Calls `report` at each poll with the numbers of finished shards and of
    /// copied connections.
    fn copy_pass(&self, copying_max: usize, report: impl Fn(usize, u64)) -> Result<u64, Reason> {
        let (mut last, mut moved, mut logged) = ((0, 0), Instant::now(), Instant::now());
        let mut started = 0;
        self.old.givers.iter().for_each(|giver| giver.begin_pass());
        loop {
            self.check_progress()?;
            let copying = started - self.count(GiverStage::Copied).min(started);
            for giver in self.old.givers.iter().skip(started).take(copying_max - copying) {
                giver.order(Give::Copy);
                started += 1;
            }
            let (done, copied) = (self.count(GiverStage::Copied), self.copied());
            report(done, copied);
            self.change(|progress| progress.connections = self.connections());
            if done == self.old.givers.len() {
                return Ok(copied);
            }
            if logged.elapsed() > Duration::from_secs(1) {
                logged = Instant::now();
                tracing::info!("{}", self.progress.borrow().text());
            }
            // A shard in which nothing has changed copies nothing.
            match (done, copied) == last {
                false => (last, moved) = ((done, copied), Instant::now()),
                true if moved.elapsed() > COPY_STALL => {
                    return Err("the new process has stopped accepting connections".into());
                }
                true => {}
            }
            std::thread::sleep(5 * POLL_INTERVAL);
        }
    }

    /// Returns how many connections the shards have copied in this pass, or sent in the pause.
    pub(super) fn copied(&self) -> u64 {
        self.old.givers.iter().map(|giver| giver.copied()).sum()
    }

    pub(super) fn count(&self, stage: GiverStage) -> usize {
        self.old.givers.iter().filter(|giver| giver.stage() == stage).count()
    }

    /// Fails if a shard has failed, or if the process is ending.
    pub(super) fn check_progress(&self) -> Result<(), Reason> {
        if self.cancelled.load(Ordering::SeqCst) {
            return Err("this process was told to end".into());
        }
        let shards = self.old.givers.iter().enumerate();
        let failed = shards.filter(|(_, giver)| giver.stage() == GiverStage::Failed);
        match failed.into_iter().next() {
            Some((shard, giver)) => {
                let error = giver.error().unwrap_or_default();
                Err(format!("shard {shard} could not hand over its connections: {error}"))
            }
            None => Ok(()),
        }
    }

    /// Waits until a condition holds, and at most for `wait`. Returns whether it holds.
    pub(super) fn wait(
        &self,
        wait: Duration,
        mut holds: impl FnMut() -> bool,
    ) -> Result<bool, Reason> {
        let began = Instant::now();
        while !holds() {
            self.check_progress()?;
            if began.elapsed() > wait {
                return Ok(false);
            }
            std::thread::sleep(POLL_INTERVAL / 2);
        }
        Ok(true)
    }

    /// Waits until a condition holds. Fails if that takes longer than `wait`; `what` names the work in the error.
    pub(super) fn until(
        &self,
        wait: Duration,
        what: &str,
        holds: impl FnMut() -> bool,
    ) -> Result<(), Reason> {
        match self.wait(wait, holds)? {
            true => Ok(()),
            false => Err(format!("{what} took longer than {} s", wait.as_secs())),
        }
    }
}

/// The upgrader that the control thread calls.
pub(in super::super) struct ByCall(pub Arc<Upgrade>);

impl Upgrader for ByCall {
    fn begin(&self, request: UpgradeRequest) -> Result<(), UpgradeRejection> {
        if let Some(binary) = &request.binary {
            crate::binary::check(binary).map_err(UpgradeRejection::Bad)?;
        }
        self.0.start(request)
    }

    fn progress(&self) -> watch::Receiver<UpgradeProgress> {
        self.0.progress.subscribe()
    }
}

fn address(listener: &std::net::TcpListener) -> Option<String> {
    listener.local_addr().ok().map(|address| address.to_string())
}
