//! Permits for fan-outs over long lists.
//!
//! If the limit on open files is low, there are more shards than cores. If all of them worked on a broadcast at once,
//! the scheduler would give each its turn only after all others. A message to one user, a request or a new connection
//! would wait as long for its shard. So only as many shards as there are cores run long fan-outs at a time. The others
//! sleep, wake at once for small work, and get a permit after a while.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mailbox::Wake;

use crate::wake::Commands;

/// How long a shard has its permit while others wait, in microseconds. A kernel that ticks 250 times a second schedules
/// no more often.
const GRANT_US: u64 = 4_000;

/// The permits, shared by all shards.
pub(crate) struct FanoutPermits {
    /// Each shard's mailbox. Its wake-up notifies the shard of a permit.
    shards: Vec<Arc<Commands>>,
    state: Mutex<State>,
}

struct State {
    free: usize,
    waiting: VecDeque<u16>,
    /// Shards that have a permit and have not yet seen it.
    granted: Vec<bool>,
}

/// A shard's state in the queue for permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Permit {
    /// The shard needs none.
    #[default]
    None,
    /// The shard waits in the queue; a wake-up comes with its permit.
    Waiting,
    /// The shard has one, since this time in microseconds of the node's clock.
    Granted(u64),
}

impl FanoutPermits {
    /// One permit for each core.
    pub fn new(shards: Vec<Arc<Commands>>, cores: usize) -> Self {
        let state = State {
            free: cores.max(1),
            waiting: VecDeque::new(),
            granted: vec![false; shards.len()],
        };
        FanoutPermits { shards, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the shard's permit after this turn of its loop. The shard needs one if it has long fan-outs.
    pub fn turn(&self, shard: u16, permit: Permit, needed: bool, now_us: u64) -> Permit {
        match permit {
            Permit::None if !needed => Permit::None,
            Permit::None => self.acquire(shard, now_us),
            Permit::Waiting => {
                let granted = std::mem::take(&mut self.state().granted[usize::from(shard)]);
                match (granted, needed) {
                    (true, true) => Permit::Granted(now_us),
                    (true, false) => self.release(),
                    (false, _) => Permit::Waiting,
                }
            }
            Permit::Granted(_) if !needed => self.release(),
            Permit::Granted(since_us) if now_us.saturating_sub(since_us) < GRANT_US => permit,
            Permit::Granted(_) => self.pass_on(shard, now_us),
        }
    }

    /// Called when a shard ends: gives its permit to another one.
    pub fn quit(&self, shard: u16, permit: Permit) {
        let granted = {
            let mut state = self.state();
            state.waiting.retain(|waiting| *waiting != shard);
            std::mem::take(&mut state.granted[usize::from(shard)])
        };
        if granted || matches!(permit, Permit::Granted(_)) {
            self.release();
        }
    }

    fn acquire(&self, shard: u16, now_us: u64) -> Permit {
        let mut state = self.state();
        if state.free > 0 {
            state.free -= 1;
            return Permit::Granted(now_us);
        }
        state.waiting.push_back(shard);
        Permit::Waiting
    }

    /// Gives the permit to the next shard in the queue, and puts this one at the queue's end. Does nothing
    /// if no shard waits.
    fn pass_on(&self, shard: u16, now_us: u64) -> Permit {
        let mut state = self.state();
        if state.waiting.is_empty() {
            return Permit::Granted(now_us);
        }
        state.waiting.push_back(shard);
        self.grant_next(state);
        Permit::Waiting
    }

    fn release(&self) -> Permit {
        self.grant_next(self.state());
        Permit::None
    }

    fn grant_next(&self, mut state: MutexGuard<'_, State>) {
        match state.waiting.pop_front() {
            Some(next) => {
                state.granted[usize::from(next)] = true;
                drop(state);
                self.shards[usize::from(next)].waker().wake();
            }
            None => state.free += 1,
        }
    }
}
