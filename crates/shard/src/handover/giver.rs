//! How a shard is told to give its connections away, and how far it is.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mailbox::Wake;

use crate::wake::Commands;

/// What a shard is told to do.
#[derive(Debug)]
pub enum Give {
    /// Connect to the new process, which waits at this path.
    Begin(PathBuf),
    /// Copy to it while this one serves.
    Copy,
    /// Begin no TLS handshake, and finish those that are under way: they can't be passed on.
    FinishHandshakes,
    /// Read and accept nothing more, and come to rest.
    StandStill,
    /// Send what has changed since it was copied.
    Rest,
    /// The new process will not go on: serve as if nothing had been.
    Resume,
    /// The new process goes on: let go of everything, and end.
    Release,
}

/// How far a shard is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum GiverStage {
    /// It serves, and gives nothing.
    Idle,
    /// It serves, and is connected to the new process.
    Joined,
    /// It serves, and copies.
    Copying,
    /// It serves, and everything was copied once.
    Copied,
    /// It reads nothing more.
    Still,
    /// The new shard has everything.
    Given,
    /// It can't go on with it, and serves or stands still: see [`Giver::error`].
    Failed,
}

/// The shard has not said yet how many handshakes are under way.
const UNKNOWN: usize = usize::MAX;

/// Tells a shard to give its connections away, and sees how far it is.
pub struct Giver {
    commands: Arc<Commands>,
    orders: Mutex<VecDeque<Give>>,
    called: AtomicBool,
    stage: AtomicU8,
    copied: AtomicU64,
    /// TLS handshakes under way, once no new one begins; before [`UNKNOWN`].
    handshakes: AtomicUsize,
    /// Grows with everything that a shard that stands still has still done.
    activity: AtomicU64,
    at_rest: AtomicBool,
    error: Mutex<Option<String>>,
}

impl Giver {
    pub(crate) fn new(commands: Arc<Commands>) -> Self {
        Giver {
            commands,
            orders: Mutex::default(),
            called: AtomicBool::new(false),
            stage: AtomicU8::new(GiverStage::Idle as u8),
            copied: AtomicU64::new(0),
            handshakes: AtomicUsize::new(UNKNOWN),
            activity: AtomicU64::new(0),
            at_rest: AtomicBool::new(false),
            error: Mutex::default(),
        }
    }

    /// Tells the shard to do something; it does so in its next turn.
    pub fn order(&self, give: Give) {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).push_back(give);
        self.called.store(true, Ordering::Release);
        self.commands.waker().wake();
    }

    /// How far it is.
    pub fn stage(&self) -> GiverStage {
        use GiverStage::*;
        let all = [Idle, Joined, Copying, Copied, Still, Given, Failed];
        all[usize::from(self.stage.load(Ordering::Acquire)).min(all.len() - 1)]
    }

    /// Connections that were copied so far.
    pub fn copied(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }

    /// True when the shard begins no TLS handshake any more, and none is under way.
    pub fn has_finished_handshakes(&self) -> bool {
        self.handshakes.load(Ordering::Acquire) == 0
    }

    /// A number that grows with what the shard does while it stands still, and whether it has nothing to do
    /// now. When all shards have nothing to do, twice with the same numbers, nothing is under way between
    /// them.
    pub fn rest(&self) -> (u64, bool) {
        (self.activity.load(Ordering::Acquire), self.at_rest.load(Ordering::Acquire))
    }

    /// Why it can't go on.
    pub fn error(&self) -> Option<String> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn is_called(&self) -> bool {
        self.called.load(Ordering::Acquire)
    }

    pub(crate) fn next(&self) -> Option<Give> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let next = orders.pop_front();
        if orders.is_empty() {
            self.called.store(false, Ordering::Release);
        }
        next
    }

    pub(crate) fn set(&self, stage: GiverStage) {
        self.stage.store(stage as u8, Ordering::Release);
    }

    /// No TLS handshake begins any more, and so many are under way.
    pub(crate) fn set_handshakes(&self, handshakes: usize) {
        self.handshakes.store(handshakes, Ordering::Release);
    }

    /// The shard is connected.
    pub(crate) fn begin(&self) {
        self.copied.store(0, Ordering::Relaxed);
        self.handshakes.store(UNKNOWN, Ordering::Release);
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.set(GiverStage::Joined);
    }

    /// The shard serves as if nothing had been: the next try fails for reasons of its own.
    pub(crate) fn resumed(&self) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.set(GiverStage::Idle);
    }

    pub(crate) fn add_copied(&self, connections: u64) {
        self.copied.fetch_add(connections, Ordering::Relaxed);
    }

    /// The shard that stands still has something to do.
    pub(crate) fn stirs(&self) {
        self.at_rest.store(false, Ordering::Release);
        self.activity.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn set_at_rest(&self, at_rest: bool) {
        self.at_rest.store(at_rest, Ordering::Release);
    }

    pub(crate) fn fail(&self, error: impl ToString) {
        let mut slot = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        slot.get_or_insert(error.to_string());
        self.set(GiverStage::Failed);
    }
}
