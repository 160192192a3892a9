//! Writes the records of sessions, and takes over those of earlier processes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use database::{DatabaseError, Runtime};
use sessions::{CurrentLog, Local, Now, Sessions as _};
use tokio::time::{sleep, timeout};

use super::session::{SessionDatabase, TakenOwner};
use super::{Owner, SessionMemory, SharedSessions};
use crate::postgres::{OpenError, Postgres, lock, unix_ms};
use crate::retry::retry;

/// The most sessions whose records one call writes, and about the most bytes of these.
const WRITES_MAX: usize = 256;
const WRITES_BYTES_MAX: usize = 4 << 20;

/// The delay before another attempt after an error, in milliseconds: the first one, and the longest.
const RETRY_MS: (u64, u64) = (100, 5_000);

/// How often the driver scans for owners of earlier processes, and for what it can delete.
const INTERVAL: Duration = Duration::from_secs(1);

/// How long a process scans for owners of earlier processes of its node. PostgreSQL notices within this time that a process
/// has ended, even if its machine has lost power.
const TAKE_OVER_TIME: Duration = Duration::from_secs(60);

/// How long a process that begins waits for the locked owner of an earlier process of its node. Without a name, the lock may
/// be that of another node.
const NAMED_WAIT: Duration = Duration::from_secs(15);
const UNNAMED_WAIT: Duration = Duration::from_secs(1);

/// How often it tries to get that owner.
const LOCK_INTERVAL: Duration = Duration::from_millis(20);

/// How often the end of the server verifies that all records are written.
const IDLE_INTERVAL: Duration = Duration::from_millis(5);

/// Writes records in a session of its own. After an error, which it logs, it opens another session later.
pub(crate) async fn run(postgres: &Postgres) -> Infallible {
    let warn = |error: &DatabaseError| {
        tracing::warn!(
            %error,
            "MQTT sessions can't be written to PostgreSQL; the server tries again"
        );
    };
    retry(RETRY_MS, warn, async || drive(postgres).await).await
}

/// Runs until an error. Returns it, and true if a step before it succeeded.
async fn drive(postgres: &Postgres) -> (DatabaseError, bool) {
    let shared = &postgres.0.sessions;
    let Some(memory) = shared.memory() else { return std::future::pending().await };
    let mut has_worked = false;
    // Writing a record twice does no harm.
    shared.queue.put_back();
    loop {
        // The process that takes the place of a paused one waits for its lock.
        while is_at_rest(postgres) {
            shared.queue.changed.notified().await;
        }
        let database = match open(postgres, memory).await {
            Ok(database) => database,
            Err(error) => return (error, has_worked),
        };
        let result = write_until_at_rest(postgres, memory, &database, &mut has_worked).await;
        database.close().await;
        if let Err(error) = result {
            return (error, has_worked);
        }
    }
}

/// Returns true if another process may take the place of this one, and all records are written.
fn is_at_rest(postgres: &Postgres) -> bool {
    postgres.state().is_pausing() && postgres.0.sessions.queue.is_idle()
}

/// Opens a session that has the lock of this process's owner.
async fn open(
    postgres: &Postgres,
    memory: &SessionMemory,
) -> Result<SessionDatabase, DatabaseError> {
    let shared = &postgres.0.sessions;
    let opened = lock(&shared.opened).take();
    if let Some(database) = opened {
        return Ok(database);
    }
    let database = SessionDatabase::open(&postgres.0.settings, &postgres.password()).await?;
    if let Some(owner) = shared.owner() {
        if database.lock(owner).await? {
            return Ok(database);
        }
        on_taken_over(shared, memory);
    }
    // This process has lost its owner, or the process before has passed its sessions on, but had none in the database.
    become_any_owner(postgres, memory, &database).await?;
    Ok(database)
}

/// Called when another process is the owner.
fn on_taken_over(shared: &SharedSessions, memory: &SessionMemory) {
    tracing::warn!(
        node = &*memory.node,
        "another server has taken over the MQTT sessions of this one: do two have the same \
         cluster.node, or none? This one writes its sessions again"
    );
    shared.set_owner(None);
}

/// Makes this process the owner of an earlier process, or a new one. The driver then writes all sessions in memory.
async fn become_any_owner(
    postgres: &Postgres,
    memory: &SessionMemory,
    database: &SessionDatabase,
) -> Result<(), DatabaseError> {
    let taken = database.take_owner(&memory.node, postgres.0.epoch.0, &[], true).await?;
    if let Some(taken) = taken {
        become_owner(postgres, memory, database, &taken).await?;
        memory.sessions.note_all_unstored();
    }
    Ok(())
}

/// Makes this process an owner, and reads the sessions of the earlier process that was it.
async fn become_owner(
    postgres: &Postgres,
    memory: &SessionMemory,
    database: &SessionDatabase,
    taken: &TakenOwner,
) -> Result<(), DatabaseError> {
    let shared = &postgres.0.sessions;
    let number = load(postgres, memory, database, taken).await?;
    database.delete_orphans(taken.owner).await?;
    shared.queue.raise_numbers(number);
    shared.set_owner(Some(taken.owner));
    if taken.is_earlier && taken.log_epoch != u64::from(postgres.0.epoch.0) {
        let is_noted = memory.sessions.note_all_unstored();
        let mut state = shared.state();
        (state.may_name_other_log, state.complete_through) = (is_noted, None);
    }
    Ok(())
}

/// Makes a process that begins an owner. First waits for a locked owner: its process may have ended only now.
async fn first_owner(
    postgres: &Postgres,
    memory: &SessionMemory,
    database: &SessionDatabase,
) -> Result<(), DatabaseError> {
    let began = Instant::now();
    let wait = if memory.node.is_empty() { UNNAMED_WAIT } else { NAMED_WAIT };
    loop {
        let waits = began.elapsed() < wait && database.has_owner(&memory.node).await?;
        let epoch = postgres.0.epoch.0;
        if let Some(taken) = database.take_owner(&memory.node, epoch, &[], !waits).await? {
            become_owner(postgres, memory, database, &taken).await?;
            // Other processes of this node may have ended, too.
            return take_over(postgres, memory, database).await;
        }
        sleep(LOCK_INTERVAL).await;
    }
}

/// Reads the sessions of an owner into memory. Returns the highest number of their progress.
async fn load(
    postgres: &Postgres,
    memory: &SessionMemory,
    database: &SessionDatabase,
    taken: &TakenOwner,
) -> Result<u64, DatabaseError> {
    let is_same = taken.log_epoch == u64::from(postgres.0.epoch.0);
    let (mut after, mut number, mut read, mut unread) = (Vec::new(), 0, 0, 0);
    loop {
        let page = database.page(taken.owner.id, &after).await?;
        let log = CurrentLog { top: page.top, is_same };
        let now = Now { unix_s: unix_ms() / 1_000, age_s: postgres.0.clock.now_ms() / 1_000 };
        read += page.records.len();
        unread += memory.sessions.load_in_log(page.records, log, now);
        number = number.max(page.number);
        match page.last {
            Some(last) => after = last,
            None => break,
        }
    }
    if unread > 0 {
        tracing::warn!(
            unread,
            "MQTT sessions in PostgreSQL can't be read: they are damaged, or from a newer version"
        );
    }
    if read > 0 {
        let sessions = memory.sessions.stats().away;
        tracing::info!(sessions, "MQTT sessions are loaded from PostgreSQL");
    }
    Ok(number)
}

/// Writes records until all are written and another process may take the place of this one. Sets `has_worked` after the first
/// step.
async fn write_until_at_rest(
    postgres: &Postgres,
    memory: &SessionMemory,
    database: &SessionDatabase,
    has_worked: &mut bool,
) -> Result<(), DatabaseError> {
    let shared = &postgres.0.sessions;
    let mut last: Option<Instant> = None;
    while !is_at_rest(postgres) {
        let has_written = write_some(postgres, memory, database).await?;
        *has_worked = true;
        if last.is_none_or(|last| last.elapsed() >= INTERVAL) && !postgres.state().is_pausing() {
            if memory.takes_over_until.is_some_and(|until| Instant::now() < until) {
                take_over(postgres, memory, database).await?;
            }
            // Writes come between two deletions.
            let has_more = clean_up(postgres, &memory.sessions, database).await?;
            last = (!has_more).then(Instant::now);
            if has_more {
                continue;
            }
        }
        if !has_written {
            let _ = timeout(INTERVAL, shared.queue.changed.notified()).await;
        }
    }
    Ok(())
}

/// Writes some records. Returns false if none waits.
async fn write_some(
    postgres: &Postgres,
    memory: &SessionMemory,
    database: &SessionDatabase,
) -> Result<bool, DatabaseError> {
    let shared = &postgres.0.sessions;
    let Some(owner) = shared.owner() else {
        become_any_owner(postgres, memory, database).await?;
        return Ok(true);
    };
    let writes = shared.queue.take(WRITES_MAX, WRITES_BYTES_MAX);
    if writes.is_empty() {
        return Ok(false);
    }
    if database.save(owner, &writes).await? {
        shared.queue.on_written();
        return Ok(true);
    }
    shared.queue.put_back();
    on_taken_over(shared, memory);
    Ok(true)
}

/// Takes over the sessions of earlier processes of this node that have ended.
async fn take_over(
    postgres: &Postgres,
    memory: &SessionMemory,
    database: &SessionDatabase,
) -> Result<(), DatabaseError> {
    let shared = &postgres.0.sessions;
    let Some(owner) = shared.owner() else { return Ok(()) };
    loop {
        let locked = locked_owners(shared, owner);
        let found = database.take_owner(&memory.node, postgres.0.epoch.0, &locked, false).await?;
        let Some(taken) = found else { return Ok(()) };
        load(postgres, memory, database, &taken).await?;
        let is_noted = memory.sessions.note_all_unstored();
        let mut state = shared.state();
        state.complete_through = None;
        if !is_noted {
            // Its records stay, and the next process reads them again.
            return Ok(());
        }
        state.taken_over.push(taken.owner);
    }
}

/// Returns the owners whose locks this process may have.
fn locked_owners(shared: &SharedSessions, owner: Owner) -> Vec<i64> {
    shared.taken_over().iter().map(|it| it.id).chain([owner.id]).collect()
}

/// Deletes what is not needed any more, once all sessions are written to this process's owner. Returns true if there is more.
async fn clean_up(
    postgres: &Postgres,
    sessions: &Local,
    database: &SessionDatabase,
) -> Result<bool, DatabaseError> {
    let shared = &postgres.0.sessions;
    let (taken_over, may_name_other_log) = {
        let state = shared.state();
        (state.taken_over.clone(), state.may_name_other_log)
    };
    let has_nothing = taken_over.is_empty() && !may_name_other_log;
    if has_nothing || !sessions.is_all_stored() {
        return Ok(false);
    }
    // New records come all the time. The clean-up waits only for those that the queue has now.
    let last = shared.queue.last_number();
    let complete_through = *shared.state().complete_through.get_or_insert(last);
    let Some(owner) = shared.owner().filter(|_| shared.queue.has_written(complete_through)) else {
        return Ok(false);
    };
    if may_name_other_log {
        database.set_log_epoch(owner.id, postgres.0.epoch.0).await?;
        shared.state().may_name_other_log = false;
    }
    if let Some(former) = taken_over.first() {
        if database.delete_some(*former).await? {
            shared.state().taken_over.retain(|it| it != former);
        }
        return Ok(true);
    }
    shared.state().complete_through = None;
    Ok(false)
}

impl Postgres {
    /// Stores the sessions of MQTT of the node of this name. With `loads`, it also reads those of the node's process before;
    /// otherwise that one passes them on. Call this before clients connect.
    ///
    /// # Errors
    /// When the database can't be used.
    pub fn share_sessions(
        &self,
        runtime: &Runtime,
        sessions: &Arc<Local>,
        node: &str,
        loads: bool,
    ) -> Result<(), OpenError> {
        let shared = &self.0.sessions;
        sessions.share(shared.queue.clone());
        // Without a name, an owner that is not locked may be that of a server that has only lost its connection.
        let takes_over = loads && !node.is_empty();
        let takes_over_until = takes_over.then(|| Instant::now() + TAKE_OVER_TIME);
        let memory =
            SessionMemory { sessions: sessions.clone(), node: node.into(), takes_over_until };
        let memory = shared.memory.get_or_init(|| memory);
        if !loads {
            return Ok(());
        }
        let read = async {
            let database = SessionDatabase::open(&self.0.settings, &self.password()).await?;
            first_owner(self, memory, &database).await?;
            Ok::<_, DatabaseError>(database)
        };
        // No other process gets the owner's lock before the driver runs.
        *lock(&shared.opened) = Some(runtime.block_on(read)?);
        Ok(())
    }

    /// Waits until all records of sessions are written.
    pub(crate) async fn until_sessions_written(&self) {
        while !self.0.sessions.queue.is_idle() {
            sleep(IDLE_INTERVAL).await;
        }
    }
}
