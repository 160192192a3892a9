//! Pauses all work with the application, so that another process can continue it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Workers do each step in a turn, which does not wait. While the gate is closed there are no turns.
#[derive(Default)]
pub(super) struct Gate {
    state: Mutex<State>,
    /// True while the gate is closed. A turn has the lock of the state, so the owner of a turn reads this.
    is_closed: AtomicBool,
    opened: Notify,
}

#[derive(Default)]
struct State {
    closed_at: Option<Instant>,
    /// How long the gate was closed in all.
    closed_for: Duration,
}

/// While a turn exists, the gate does not close.
pub(super) struct Turn<'a>(MutexGuard<'a, State>);

impl Turn<'_> {
    /// Returns how long the gate was closed so far. This time does not count for time limits.
    pub fn closed_for(&self) -> Duration {
        self.0.closed_for
    }
}

impl Gate {
    /// Returns a turn as soon as the gate is open. The caller must not wait while it has the turn.
    pub async fn turn(&self) -> Turn<'_> {
        loop {
            // From here on, the opening of the gate is notified.
            let opened = self.opened.notified();
            if let Some(turn) = self.turn_now() {
                return turn;
            }
            opened.await;
        }
    }

    fn turn_now(&self) -> Option<Turn<'_>> {
        let state = self.lock();
        state.closed_at.is_none().then_some(Turn(state))
    }

    /// Closes the gate. Waits for turns that exist.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed_at.get_or_insert_with(Instant::now);
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// Opens the gate again.
    pub fn open(&self) {
        let mut state = self.lock();
        if let Some(closed_at) = state.closed_at.take() {
            state.closed_for += closed_at.elapsed();
        }
        self.is_closed.store(false, Ordering::Relaxed);
        drop(state);
        self.opened.notify_waiters();
    }

    /// Returns whether the gate is closed.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Moves the time of an arrival, for the time that the gate was closed since then.
pub(super) fn later(came: Instant, by: Duration, now: Instant) -> Instant {
    came.checked_add(by).map_or(now, |later| later.min(now).max(came))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_request_has_a_turn_while_it_is_closed() {
        let gate = Arc::new(Gate::default());
        drop(gate.turn().await);
        gate.close();
        gate.close();
        assert!(gate.is_closed() && gate.turn_now().is_none());
        let waits = gate.clone();
        let waits = tokio::spawn(async move { waits.turn().await.closed_for() });
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!waits.is_finished());
        gate.open();
        assert_eq!(waits.await.unwrap(), Duration::from_secs(2));
        gate.open();
        assert!(!gate.is_closed());
        assert_eq!(gate.turn().await.closed_for(), Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn time_that_counts_for_nothing_makes_nothing_younger_than_now() {
        let (came, second) = (Instant::now(), Duration::from_secs(1));
        let now = came + 3 * second;
        assert_eq!(later(came, second, now), came + second);
        assert_eq!(later(came, 9 * second, now), now);
        assert_eq!(later(now + second, second, now), now + second, "after the clock was read");
    }
}
