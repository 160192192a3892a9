//! Sessions of MQTT: each node has its own in memory, and the database has their records for the next process of the node.
//!
//! **Owners.** In the database, each session has an owner: a row with the name of a node. A process locks its owner while it
//! is connected. When a process ends, the next process of its node becomes that owner, and reads the sessions before clients
//! connect.
//!
//! **A late end.** PostgreSQL may notice only later that a process has ended. Until then its owner stays locked, and the next
//! process becomes another owner. If the node has a name, that process takes over the sessions as soon as the lock is free.
//! Without a name it does not: the owner could be that of another server, which has only lost its connection.
//!
//! **Writing.** The driver writes the records in a session of its own. The transaction that appends a message with QoS 2
//! also writes the progress of the session that published it, so that a crash can't part the two.

mod driver;
mod queue;
mod session;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use sessions::Local;

use session::SessionDatabase;

pub(crate) use driver::run;
pub(crate) use queue::SessionQueue;

/// The owner of a process's sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// The number of its row.
    pub id: i64,
    /// How many processes were this owner until now. The database rejects records of earlier ones.
    pub runs: i64,
}

/// Progress of a session that is written with a message of its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProgressWrite {
    /// The key of the session.
    pub key: Box<str>,
    pub record: Box<[u8]>,
    /// Later progress of the process has a higher number.
    pub number: u64,
}

/// What the driver shares with the rest of the history.
#[derive(Default)]
pub(crate) struct SharedSessions {
    /// Records that wait to be written.
    pub queue: Arc<SessionQueue>,
    memory: OnceLock<SessionMemory>,
    /// The session that got the owner's lock at the start. The driver continues with it.
    opened: Mutex<Option<SessionDatabase>>,
    state: Mutex<State>,
}

/// The sessions in the memory of this process.
#[derive(Clone)]
pub(crate) struct SessionMemory {
    pub sessions: Arc<Local>,
    /// The name of the node.
    pub node: Box<str>,
    /// Until when the process scans for owners of earlier processes. `None` if it does not.
    pub takes_over_until: Option<Instant>,
}

#[derive(Default)]
struct State {
    owner: Option<Owner>,
    /// Owners whose sessions this process has taken over, and whose records it will delete.
    taken_over: Vec<Owner>,
    /// True if the row of the owner may name another log than the one in which its records have their positions. The driver
    /// corrects that when all records are written.
    may_name_other_log: bool,
    /// The last number of the queue when the queue first had all sessions. The clean-up waits until the database has the
    /// records up to this number.
    complete_through: Option<u64>,
}

impl SharedSessions {
    /// Returns the sessions in memory; `None` before [`crate::Postgres::share_sessions`].
    fn memory(&self) -> Option<&SessionMemory> {
        self.memory.get()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic under the lock leaves a good value.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the owner. `None` if this process has none yet.
    pub fn owner(&self) -> Option<Owner> {
        self.state().owner
    }

    pub fn set_owner(&self, owner: Option<Owner>) {
        self.state().owner = owner;
    }

    /// Continues as the owner of the process before. `number` is the last one that it has drawn, and `taken_over` are the
    /// owners whose records it has not deleted yet. The row of the owner may still name the log of an earlier process.
    pub fn continue_as(&self, owner: Option<Owner>, number: u64, taken_over: Vec<Owner>) {
        self.queue.continue_after(number);
        let mut state = self.state();
        (state.owner, state.taken_over) = (owner, taken_over);
        (state.may_name_other_log, state.complete_through) = (owner.is_some(), None);
    }

    /// Returns the owners whose sessions this process has taken over, and whose records it has not deleted.
    pub fn taken_over(&self) -> Vec<Owner> {
        self.state().taken_over.clone()
    }
}
