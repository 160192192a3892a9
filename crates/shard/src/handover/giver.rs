//! Gives a shard orders to pass its connections on, and reads its progress.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mailbox::Wake;

use crate::wake::Commands;

/// An order to a shard.
#[derive(Debug)]
pub enum Give {
    /// Connect to the new process, which listens at this path.
    Begin(PathBuf),
    /// Copy the connections to it while this process serves, or copy again those that have changed since.
    Copy,
    /// Begin no TLS handshake, and finish those that are under way: they can't be passed on.
    FinishHandshakes,
    /// Read and accept nothing more, and come to rest.
    StandStill,
    /// Serve on for now, and keep the copy.
    GoOn,
    /// Send what has changed since the copy.
    Rest,
    /// The new process has given up: serve on as before.
    Resume,
    /// The new process serves: release everything, and end.
    Release,
}

/// A shard's progress with the hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum GiverStage {
    /// The shard serves, and passes nothing on.
    Idle,
    /// The shard serves, and is connected to the new process.
    Joined,
    /// The shard serves, and copies.
    Copying,
    /// The shard serves, and has copied all that had changed.
    Copied,
    /// The shard reads nothing more.
    Still,
    /// The new shard has everything.
    Given,
    /// The hand-over failed. The shard serves or stands still: see [`Giver::error`].
    Failed,
}

/// Stands for a number that the shard has not reported yet.
const UNKNOWN: usize = usize::MAX;

/// Gives a shard orders to pass its connections on, and reads its progress.
pub struct Giver {
    commands: Arc<Commands>,
    orders: Mutex<VecDeque<Give>>,
    called: AtomicBool,
    stage: AtomicU8,
    copied: AtomicU64,
    /// TLS handshakes under way, once no new one begins. [`UNKNOWN`] before that.
    handshakes: AtomicUsize,
    /// Grows with everything that the shard does while it stands still.
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

    /// Queues an order, which the shard carries out in its next turn.
    pub fn order(&self, give: Give) {
        if matches!(give, Give::FinishHandshakes) {
            self.handshakes.store(UNKNOWN, Ordering::Release);
        }
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).push_back(give);
        self.called.store(true, Ordering::Release);
        self.commands.waker().wake();
    }

    /// Returns the shard's progress.
    pub fn stage(&self) -> GiverStage {
        use GiverStage::*;
        let all = [Idle, Joined, Copying, Copied, Still, Given, Failed];
        all[usize::from(self.stage.load(Ordering::Acquire)).min(all.len() - 1)]
    }

    /// Begins another pass over the connections: [`Giver::copied`] counts from zero, and a shard that has copied
    /// everything leaves [`GiverStage::Copied`] until it has finished the next [`Give::Copy`].
    pub fn begin_pass(&self) {
        let (copied, joined) = (GiverStage::Copied as u8, GiverStage::Joined as u8);
        let _ = self.stage.compare_exchange(copied, joined, Ordering::AcqRel, Ordering::Relaxed);
        self.copied.store(0, Ordering::Relaxed);
    }

    /// Returns how many connections the shard has copied in this pass, or sent in the pause.
    pub fn copied(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }

    /// Returns true if the shard begins no TLS handshake any more, and none is under way.
    pub fn has_finished_handshakes(&self) -> bool {
        self.handshakes.load(Ordering::Acquire) == 0
    }

    /// Returns a number that grows with what the shard does while it stands still, and whether it has nothing to do
    /// now. When all shards have nothing to do, twice with the same numbers, nothing is under way between them.
    pub fn rest(&self) -> (u64, bool) {
        (self.activity.load(Ordering::Acquire), self.at_rest.load(Ordering::Acquire))
    }

    /// Returns why the hand-over failed.
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

    /// Stores how many TLS handshakes are under way. No new one begins.
    pub(crate) fn set_handshakes(&self, handshakes: usize) {
        self.handshakes.store(handshakes, Ordering::Release);
    }

    /// Called when the shard has connected to the new process.
    pub(crate) fn begin(&self) {
        self.begin_pass();
        self.handshakes.store(UNKNOWN, Ordering::Release);
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.set(GiverStage::Joined);
    }

    /// Called when the shard serves on for now. It may finish TLS handshakes again later.
    pub(crate) fn goes_on(&self) {
        let (still, copied) = (GiverStage::Still as u8, GiverStage::Copied as u8);
        let _ = self.stage.compare_exchange(still, copied, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Called when the shard serves on as before. Clears the error, so that a later attempt reports its own.
    pub(crate) fn resumed(&self) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.set(GiverStage::Idle);
    }

    pub(crate) fn add_copied(&self, connections: u64) {
        self.copied.fetch_add(connections, Ordering::Relaxed);
    }

    /// Called when a shard that stands still gets something to do.
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
