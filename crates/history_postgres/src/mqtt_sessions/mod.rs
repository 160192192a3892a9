//! Sessions of MQTT: each node has its own in memory, and the database has their records for the next process of the node.
//!
//! A process has the sessions of an *owner* in the database, and has the owner's lock while it has a connection there. The
//! next process of a node takes the owner of a process that has ended, and reads its sessions before clients connect. If that
//! owner is still locked, because PostgreSQL has not noticed yet that the process has ended, the new process begins as another
//! owner. If its node has a name, it takes over the sessions of the old one as soon as it can: without a name, the owner may be
//! that of another server, which runs and has only lost its connection.
//!
//! The driver writes the records in a session of its own. Progress of a client that publishes with QoS 2 is written by the
//! transaction that appends the message, so that a crash can't part the two.

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
    pub id: i64,
    /// How many processes were this owner until now. The database rejects records of earlier ones.
    pub runs: i64,
}

/// Progress of a session that is written with a message of its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProgressWrite {
    pub key: Box<str>,
    pub record: Box<[u8]>,
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
    /// Until when the process looks for sessions of earlier processes; `None` if one has passed them on, or the node has no name.
    pub takes_over_until: Option<Instant>,
}

#[derive(Default)]
struct State {
    owner: Option<Owner>,
    /// Owners whose sessions this process has taken over, and whose records it will delete.
    taken_over: Vec<Owner>,
    /// True if the database may say that the owner's records have positions in another log. That is corrected when all are
    /// written.
    may_name_other_log: bool,
    /// The last number of the queue when it first had all sessions. The clean-up waits until the records up to it are written.
    complete_at: Option<u64>,
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

    /// Continues as the owner that another process was, which has drawn numbers up to this one. That process may not have
    /// written everything again after it had found another log, or had taken over sessions of these owners.
    pub fn continue_as(&self, owner: Option<Owner>, number: u64, taken_over: Vec<Owner>) {
        self.queue.continue_after(number);
        let mut state = self.state();
        (state.owner, state.taken_over) = (owner, taken_over);
        (state.may_name_other_log, state.complete_at) = (owner.is_some(), None);
    }

    /// Returns the owners whose sessions this process has taken over, and whose records it has not deleted.
    pub fn taken_over(&self) -> Vec<Owner> {
        self.state().taken_over.clone()
    }
}
