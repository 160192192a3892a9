//! The new process's side of an upgrade: it waits for the old process, and takes over its state.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::Loaded;
use control::{UpgradeProgress, UpgradeStage};
use handover::Part;
use history::History;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, pidfd_open};
use shard::{Channel, TakenShard};

use super::process::{Forwarded, starter};
use super::wire::{self, Accepted, Facts, expect};
use crate::error::CommandError;

/// How long the old process's shards may take to connect, all together.
const SHARDS_WAIT: Duration = Duration::from_secs(20);

/// How long this process waits for a frame of the old process, or of one of its shards, before the copy begins.
const SILENCE: Duration = Duration::from_secs(60);

/// How long this process waits for the last frame of the old process.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// A socket at which this process waits for the old one. Only this user can connect to it.
pub(in super::super) struct Waiting {
    listener: UnixListener,
    path: PathBuf,
    /// A pidfd of the process that started this one for the upgrade; no other process knows the socket. It is readable
    /// once that process has ended, even before its parent reaps it.
    starter: Option<OwnedFd>,
}

/// The connection to the old process, and that process's description of itself.
pub(in super::super) struct TakeOver {
    waiting: Waiting,
    main: Channel,
    facts: Facts,
}

/// The listeners that the old process passes on with [`wire::GO`].
pub(in super::super) struct PassedListeners {
    /// The listener of the admin port.
    pub admin: Option<std::net::TcpListener>,
    /// The listener of the admin port with TLS.
    pub admin_tls: Option<std::net::TcpListener>,
    /// The socket to which earlier processes forward requests, if there are any.
    pub forwarded: Option<Forwarded>,
}

impl Waiting {
    /// Listens at this path.
    pub fn at(path: &Path) -> Result<Self, CommandError> {
        let error = |error: io::Error| {
            CommandError::Runtime(format!(
                "can't listen at {} (--take-over): {error}",
                path.display()
            ))
        };
        // No process listens at a socket that an earlier attempt left behind.
        if std::os::unix::net::UnixStream::connect(path).is_err() && is_socket(path) {
            std::fs::remove_file(path).map_err(error)?;
        }
        // The socket has another name until its mode keeps other users out.
        let early = path.with_extension(format!("{}.new", std::process::id()));
        let listener = UnixListener::bind(&early).map_err(error)?;
        let ready = std::fs::set_permissions(&early, std::fs::Permissions::from_mode(0o600))
            .and_then(|()| std::fs::hard_link(&early, path));
        let _ = std::fs::remove_file(&early);
        ready.map_err(error)?;
        let starter = match starter(path).map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
            Some(Err(Errno::SRCH)) => return Err(error(starter_gone())),
            // If the kernel has no pidfds, this process waits without watching its starter.
            opened => opened.and_then(Result::ok),
        };
        Ok(Waiting { listener, path: path.to_owned(), starter })
    }

    /// Waits for the old process, for as long as it takes.
    pub fn old_process(self) -> Result<TakeOver, CommandError> {
        let error =
            |error: io::Error| CommandError::Runtime(format!("the upgrade failed: {error}"));
        loop {
            self.wait().map_err(error)?;
            let main = match self.accept() {
                Ok(main) => main,
                Err(refused) if refused.kind() == io::ErrorKind::PermissionDenied => {
                    tracing::warn!(
                        error = %refused,
                        "rejected a process of another user that connected to be taken over"
                    );
                    continue;
                }
                Err(failed) => return Err(error(failed)),
            };
            main.set_timeout(Some(SILENCE)).map_err(error)?;
            let frame = expect(&main, wire::FACTS).map_err(error)?;
            let facts: Facts = wire::decode(&frame.body).map_err(error)?;
            if facts.format != wire::FORMAT {
                let text = format!(
                    "version {} hands over connections in format {}, and version {} supports \
                     format {}: one of the two is too old for the other",
                    facts.version,
                    facts.format,
                    env!("CARGO_PKG_VERSION"),
                    wire::FORMAT
                );
                let _ = main.send(wire::ERROR, text.as_bytes(), &[]);
                return Err(CommandError::Runtime(text));
            }
            return Ok(TakeOver { waiting: self, main, facts });
        }
    }

    /// Waits until the old process connects. Fails if the process that started this one has ended: no other process
    /// knows the socket.
    fn wait(&self) -> io::Result<()> {
        let (mut here, mut gone) = (false, false);
        while !here && !gone {
            let mut fds = vec![PollFd::new(&self.listener, PollFlags::IN)];
            fds.extend(self.starter.iter().map(|starter| PollFd::new(starter, PollFlags::IN)));
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
            (here, gone) = (ready.next() == Some(true), ready.next() == Some(true));
        }
        match here {
            true => Ok(()),
            false => Err(starter_gone()),
        }
    }

    fn accept(&self) -> io::Result<Channel> {
        let (socket, _) = self.listener.accept()?;
        Channel::new(socket)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn starter_gone() -> io::Error {
    io::Error::other("the process that started this one has ended")
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

impl TakeOver {
    pub fn node(&self) -> model::NodeId {
        model::NodeId(self.facts.node)
    }

    pub fn is_check(&self) -> bool {
        self.facts.check
    }

    /// The key of Phoenix long-poll sessions.
    pub fn longpoll_key(&self) -> Option<[u8; 32]> {
        self.facts.longpoll_key.as_slice().try_into().ok()
    }

    /// Checks that the log in the database is the one of the running server.
    ///
    /// # Errors
    /// If it is another one.
    pub fn verify_log(&self, postgres: &history_postgres::Postgres) -> Result<(), CommandError> {
        match self.facts.history_epoch {
            Some(epoch) if epoch != postgres.epoch().0 => Err(CommandError::Usage(
                "history.url: this database has another log than that of the running server: an upgrade can't move the \
                 history to another database; restart to do that"
                    .into(),
            )),
            _ => Ok(()),
        }
    }

    /// When the node's clock began.
    pub fn started(&self) -> Instant {
        let now = super::monotonic_ns();
        let age = Duration::from_nanos(now.saturating_sub(self.facts.clock_zero_ns));
        Instant::now().checked_sub(age).unwrap_or_else(Instant::now)
    }

    /// Sends the old process the reason why this one can't take over.
    pub fn refuse(&self, error: &CommandError) {
        let _ = self.main.send(wire::ERROR, error.text().as_bytes(), &[]);
    }

    /// Notifies the old process that this one can take over its state.
    pub fn accept(&self, parts: &[&'static str], notes: Vec<String>) -> io::Result<()> {
        let accepted = Accepted {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            parts: parts.iter().map(|name| (*name).to_owned()).collect(),
            notes,
        };
        self.main.send(wire::ACCEPTED, &handover::encode(&accepted), &[])
    }

    /// Returns the progress of the upgrade that started this process, for callers of the API.
    pub fn progress(&self) -> UpgradeProgress {
        let (shards, connections) = (self.facts.shards as usize, self.facts.connections);
        UpgradeProgress {
            stage: UpgradeStage::Done,
            shards_done: shards,
            shards,
            connections_copied: connections,
            connections,
            from_version: self.facts.version.clone(),
            to_version: env!("CARGO_PKG_VERSION").into(),
            pid: Some(std::process::id()),
            ..UpgradeProgress::default()
        }
    }

    /// Returns true if the configuration names the old process's admin port.
    pub fn has_admin(&self, address: SocketAddr) -> bool {
        is_at(self.facts.admin.as_deref(), address)
    }

    /// Returns true if the configuration names the old process's admin port with TLS.
    pub fn has_admin_tls(&self, address: SocketAddr) -> bool {
        is_at(self.facts.admin_tls.as_deref(), address)
    }

    /// Checks that this process can take over the old one's state with this configuration. Returns the differences as
    /// texts for people.
    ///
    /// # Errors
    /// The reason why it can't.
    pub fn check(
        &self,
        loaded: &Loaded,
        options: &shard::Options,
    ) -> Result<Vec<String>, CommandError> {
        let (facts, config) = (&self.facts, &loaded.config);
        let no = |text: String| Err(CommandError::Usage(text));
        if facts.record_version != shard::RECORD_VERSION {
            return no(format!(
                "version {} writes connection records in format {}, and version {} reads format {}",
                facts.version,
                facts.record_version,
                env!("CARGO_PKG_VERSION"),
                shard::RECORD_VERSION
            ));
        }
        let cluster = &config.cluster;
        let cluster = Some(&cluster.name).filter(|_| !cluster.urls.is_empty());
        verify_cluster(facts.cluster.as_deref(), cluster.map(String::as_str))
            .map_err(CommandError::Usage)?;
        verify_history(facts.history_epoch.is_some(), !config.history.url.is_empty())
            .map_err(CommandError::Usage)?;
        let has_store = !config.store.data.is_empty();
        match (&facts.store, has_store) {
            (Some(theirs), false) => {
                return no(format!(
                    "store.data: the running server has a store ({theirs}), and the new \
                     configuration has none: an upgrade can't remove it; restart to do that"
                ));
            }
            (None, true) => {
                return no(
                    "store.data: the running server has no store, and the new configuration has \
                           one: an upgrade can't add it; restart to do that"
                        .into(),
                );
            }
            _ => {}
        }
        if let Some(format) = facts.store_format.filter(|format| !store::can_read(*format)) {
            return no(format!("the store has format {format}, which this version doesn't read"));
        }
        let shards = facts.shards as usize;
        let capacity = shard::capacity(options, config.limits.connections_max, shards)
            .map_err(|error| CommandError::Runtime(error.to_string()))?;
        if capacity < facts.most_connections {
            return no(format!(
                "a shard of the running server has {} connections, but a shard of the new process \
                 may have only {capacity}: raise the limit on open files (ulimit -n)",
                facts.most_connections
            ));
        }
        let mut notes = Vec::new();
        if options.shards != 0 && options.shards < shards {
            notes.push(format!(
                "shards: stays at {shards} until the next restart, because the id of a connection \
                 names its shard"
            ));
        }
        let ours = super::super::settings::limits(loaded);
        for (name, before) in &facts.limits {
            if let Some((_, now)) = ours.iter().find(|(known, _)| known == name)
                && now != before
            {
                notes.push(format!("{name}: was {before}, is now {now}"));
            }
        }
        Ok(notes)
    }

    /// Waits for the next old process, after one that only requested a check.
    pub fn wait_again(self) -> Waiting {
        // The old process closes the connection when it has read the response.
        let _ = self.main.receive();
        self.waiting
    }

    /// Waits for the old process's shards.
    pub fn shards(&self) -> io::Result<Vec<TakenShard>> {
        let began = Instant::now();
        self.waiting.listener.set_nonblocking(true)?;
        let mut shards = Vec::new();
        while shards.len() < self.facts.shards as usize {
            match self.waiting.accept() {
                Ok(channel) => {
                    channel.set_timeout(Some(SILENCE))?;
                    let shard = TakenShard::greet(channel.try_clone()?)?;
                    // A shard may be silent for any time until it is its turn to copy.
                    channel.set_timeout(None)?;
                    shards.push(shard);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if began.elapsed() > SHARDS_WAIT || self.has_gone() {
                        return Err(io::Error::other(
                            "not all shards of the old process have connected",
                        ));
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(shards)
    }

    fn has_gone(&self) -> bool {
        self.main.has_input()
    }

    /// Takes over the state that the old process sends, up to the moment from which this process serves.
    pub fn take(
        &self,
        parts: &[Arc<dyn Part>],
        shards: &shard::Taker,
        open_store: &dyn Fn(&store::Passed) -> Result<(), String>,
    ) -> io::Result<PassedListeners> {
        self.main.send(wire::READY, &[], &[])?;
        // The old process limits the time of each step, and ends this process if a step takes longer.
        self.main.set_timeout(None)?;
        let fail = |error: String| {
            let _ = self.main.send(wire::ERROR, error.as_bytes(), &[]);
            io::Error::other(error)
        };
        let mut admin_tls = None;
        loop {
            let Some(frame) = self.main.receive()? else {
                return Err(io::Error::other(
                    "the old process closed the hand-over: it continues to serve, or has ended",
                ));
            };
            match frame.kind {
                wire::PARTS => {
                    wire::take_parts(parts, &frame.body)
                        .map_err(|error| fail(error.to_string()))?;
                }
                wire::SYNC => self.main.send(wire::SYNCED, &[], &[])?,
                wire::END => {
                    for _ in 0..self.facts.shards {
                        let (shard, result) = shards.reports.recv().map_err(io::Error::other)?;
                        result.map_err(|error| fail(format!("shard {shard}: {error}")))?;
                    }
                    // All shards have imported their connections by now, with the state that connections own.
                    for part in parts {
                        part.complete().map_err(|error| fail(error.to_string()))?;
                    }
                    self.main.send(wire::HAVE, &[], &[])?;
                }
                wire::OPEN_STORE => {
                    let passed = store::Passed::from_bytes(&frame.body);
                    let passed = passed.ok_or_else(|| {
                        fail("the old process did not hand over the store".into())
                    })?;
                    open_store(&passed).map_err(fail)?;
                    self.main.send(wire::STORE_OPEN, &[], &[])?;
                }
                wire::GO => {
                    let mut descriptors = frame.descriptors.into_iter();
                    let admin = descriptors.next().map(std::net::TcpListener::from);
                    let path = PathBuf::from(std::ffi::OsStr::from_bytes(&frame.body));
                    let forwarded = descriptors.next().map(UnixListener::from);
                    let forwarded = forwarded.map(|listener| Forwarded::inherited(path, listener));
                    return Ok(PassedListeners { admin, admin_tls, forwarded });
                }
                wire::ADMIN_TLS => {
                    admin_tls =
                        frame.descriptors.into_iter().next().map(std::net::TcpListener::from);
                }
                wire::ERROR => {
                    return Err(io::Error::other(
                        String::from_utf8_lossy(&frame.body).into_owned(),
                    ));
                }
                _ => {}
            }
        }
    }

    /// Notifies the old process that this one serves, and takes forwarded requests at this path. Returns the length of
    /// the pause in microseconds, if the old process still reports it.
    pub fn serving(self, forwarded: &Path) -> Option<u64> {
        self.main.send(wire::SERVING, forwarded.as_os_str().as_bytes(), &[]).ok()?;
        self.main.set_timeout(Some(LAST_WAIT)).ok()?;
        let frame = expect(&self.main, wire::PAUSED).ok()?;
        Some(u64::from_le_bytes(frame.body.try_into().ok()?))
    }
}

/// Checks that the histories of both processes are in PostgreSQL, or neither.
///
/// # Errors
/// Which process has a database, and what to do.
fn verify_history(theirs: bool, ours: bool) -> Result<(), String> {
    match (theirs, ours) {
        (true, false) => Err("history.url: the running server has its history in PostgreSQL, and \
             the new configuration names no database: an upgrade can't remove it; restart to do \
             that"
            .into()),
        (false, true) => Err("history.url: the running server has no database for its history, and the new configuration \
             names one: an upgrade can't add it; restart to do that"
            .into()),
        _ => Ok(()),
    }
}

/// Checks that the new process is a node of the same cluster as the old one.
///
/// # Errors
/// What differs, and what to do.
fn verify_cluster(theirs: Option<&str>, ours: Option<&str>) -> Result<(), String> {
    match (theirs, ours) {
        (Some(theirs), Some(ours)) if theirs != ours => Err(format!(
            "cluster.name: the running server is a node of \"{theirs}\", and the new configuration names \"{ours}\": an \
             upgrade can't move a node to another cluster; restart to do that"
        )),
        (Some(theirs), None) => Err(format!(
            "cluster.urls: the running server is a node of a cluster ({theirs}), and the new configuration names no \
             server of NATS: an upgrade can't take a node out of its cluster; restart to do that"
        )),
        (None, Some(ours)) => Err(format!(
            "cluster.urls: the running server is alone, and the new configuration makes it a node of a cluster \
             ({ours}): an upgrade can't do that; restart to do it"
        )),
        (Some(_), Some(_)) | (None, None) => Ok(()),
    }
}

/// Returns true if the address that a process reports is the one in a configuration, where port 0 matches any port.
fn is_at(theirs: Option<&str>, address: SocketAddr) -> bool {
    let theirs = theirs.and_then(|text| text.parse::<SocketAddr>().ok());
    theirs.is_some_and(|theirs| {
        theirs.ip() == address.ip() && [0, theirs.port()].contains(&address.port())
    })
}
