//! Pauses the gate only once no request is under way: a slow one must not make all others wait.

use std::time::{Duration, Instant};

use super::Gate;

/// How long the gate waits for requests under way. New requests wait meanwhile, so an attempt is short; after a failed
/// one all requests go on for a while.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// How long new requests wait in one attempt, at the most.
    pub wait: Duration,
    /// How long all go on between two attempts.
    pub pause: Duration,
    /// How many attempts there are.
    pub attempts: u32,
    /// The time between two polls of the gate.
    pub interval: Duration,
}

impl Gate {
    /// Makes new requests wait, once no request is under way. Returns since when they wait, or `None` if a request
    /// outlasted every attempt; then all go on. Calls `check` at each poll.
    ///
    /// # Errors
    /// Those of `check`. New requests may still wait then.
    pub fn pause_when_quiet<E>(
        &self,
        patience: Patience,
        mut check: impl FnMut() -> Result<(), E>,
    ) -> Result<Option<Instant>, E> {
        for attempt in 1..=patience.attempts {
            let since = Instant::now();
            self.pause();
            while since.elapsed() < patience.wait && !self.is_quiet() {
                check()?;
                std::thread::sleep(patience.interval);
            }
            if self.is_quiet() {
                return Ok(Some(since));
            }
            self.release();
            tracing::info!(
                attempt,
                attempts_max = patience.attempts,
                "calls of the admin API are slow: all calls proceed before the next attempt to \
                 pause them"
            );
            let released = Instant::now();
            while attempt < patience.attempts && released.elapsed() < patience.pause {
                check()?;
                std::thread::sleep(patience.interval);
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const PATIENCE: Patience = Patience {
        wait: Duration::from_millis(20),
        pause: Duration::from_millis(20),
        attempts: 1_000,
        interval: Duration::from_millis(1),
    };

    #[test]
    fn others_go_on_until_a_slow_request_has_ended() {
        let gate = Arc::new(Gate::default());
        let slow = gate.work();
        let other = gate.clone();
        let pause = std::thread::spawn(move || {
            other.pause_when_quiet(PATIENCE, || Ok::<_, ()>(())).unwrap().is_some()
        });
        // Requests wait and go on again, more than once.
        for _ in 0..3 {
            while gate.work().is_some() {
                std::thread::yield_now();
            }
            while gate.work().is_none() {
                std::thread::yield_now();
            }
        }
        assert!(!pause.is_finished());
        drop(slow);
        assert!(pause.join().unwrap());
        assert!(gate.is_quiet() && gate.work().is_none());
    }

    #[test]
    fn all_go_on_where_a_request_never_ends_and_an_error_ends_the_wait() {
        let gate = Arc::new(Gate::default());
        let never = gate.work();
        let patience = Patience { attempts: 3, ..PATIENCE };
        assert_eq!(gate.pause_when_quiet(patience, || Ok::<_, ()>(())), Ok(None));
        assert!(gate.work().is_some());
        assert_eq!(gate.pause_when_quiet(PATIENCE, || Err("an end")), Err("an end"));
        drop(never);
    }
}
