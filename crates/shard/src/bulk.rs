//! Who may do bulk work now.
//!
//! Where the limit on open files is low there are far more shards than cores. If all of them worked
//! on a broadcast at once, the scheduler would give each its turn only after all others, and a
//! message to one user, a request or a new connection would wait as long for its shard. So only as
//! many shards as there are cores carry on with long fan-outs at a time; the others sleep, wake at
//! once for anything small, and take over after a while.
//!
//! With a few shards a core the scheduler does well enough by itself, and waiting for a place only
//! lets receivers fall asleep in between: then there is a place for each.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::handle::Handle;
use crate::mailbox::Wake;

/// How long a shard keeps its place while others wait, in microseconds.
const PLACE_US: u64 = 20_000;

/// Shards of one core up to which each has a place of its own.
const SHARDS_PER_CORE_MAX: usize = 8;

/// The places for bulk work, shared by all shards.
pub(crate) struct Places {
    shards: Vec<Handle>,
    state: Mutex<State>,
}

struct State {
    free: usize,
    waiting: VecDeque<u16>,
    /// Shards that were given a place and have not yet seen it.
    given: Vec<bool>,
}

/// A shard's side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Place {
    /// Wants none.
    #[default]
    None,
    /// Waits in the queue, and is woken when it has one.
    Waiting,
    /// Has one, since this time in microseconds of the node's clock.
    Held(u64),
}

impl Places {
    pub fn new(shards: Vec<Handle>, cores: usize) -> Self {
        let few = shards.len() <= cores * SHARDS_PER_CORE_MAX;
        let state = State {
            free: if few { shards.len() } else { cores.max(1) },
            waiting: VecDeque::new(),
            given: vec![false; shards.len()],
        };
        Places { shards, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shard's place after this turn of its loop: whether it has bulk work, and what time it
    /// is.
    pub fn turn(&self, shard: u16, place: Place, wanted: bool, now_us: u64) -> Place {
        match place {
            Place::None if !wanted => Place::None,
            Place::None => self.enter(shard, now_us),
            Place::Waiting => {
                let given = std::mem::take(&mut self.state().given[usize::from(shard)]);
                match (given, wanted) {
                    (true, true) => Place::Held(now_us),
                    (true, false) => self.leave(),
                    (false, _) => Place::Waiting,
                }
            }
            Place::Held(_) if !wanted => self.leave(),
            Place::Held(since_us) if now_us.saturating_sub(since_us) < PLACE_US => place,
            Place::Held(_) => self.pass_on(shard, now_us),
        }
    }

    /// The shard ends: whatever it has or waits for goes to others.
    pub fn quit(&self, shard: u16, place: Place) {
        let given = {
            let mut state = self.state();
            state.waiting.retain(|waiting| *waiting != shard);
            std::mem::take(&mut state.given[usize::from(shard)])
        };
        if given || matches!(place, Place::Held(_)) {
            self.leave();
        }
    }

    fn enter(&self, shard: u16, now_us: u64) -> Place {
        let mut state = self.state();
        if state.free > 0 {
            state.free -= 1;
            return Place::Held(now_us);
        }
        state.waiting.push_back(shard);
        Place::Waiting
    }

    /// Gives the place to the next that waits and goes to the end of the queue; keeps it if nobody
    /// waits.
    fn pass_on(&self, shard: u16, now_us: u64) -> Place {
        let mut state = self.state();
        if state.waiting.is_empty() {
            return Place::Held(now_us);
        }
        state.waiting.push_back(shard);
        self.give(state);
        Place::Waiting
    }

    fn leave(&self) -> Place {
        self.give(self.state());
        Place::None
    }

    fn give(&self, mut state: MutexGuard<'_, State>) {
        match state.waiting.pop_front() {
            Some(next) => {
                state.given[usize::from(next)] = true;
                drop(state);
                self.shards[usize::from(next)].inbox.mailbox.waker().wake();
            }
            None => state.free += 1,
        }
    }
}
