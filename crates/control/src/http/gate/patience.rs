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
    /// outlasted every attempt; then all go on. Calls `check` at each poll. Calls `retry` before each further attempt,
    /// when no request waits.
    ///
    /// # Errors
    /// Those of `check` and `retry`. New requests may still wait then.
    pub fn pause_when_quiet<E>(
        &self,
        patience: Patience,
        mut check: impl FnMut() -> Result<(), E>,
        mut retry: impl FnMut() -> Result<(), E>,
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
            if attempt == patience.attempts {
                break;
            }
            let released = Instant::now();
            while released.elapsed() < patience.pause {
                check()?;
                std::thread::sleep(patience.interval);
            }
            retry()?;
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
            let mut retries = 0;
            let retry = || {
                assert!(other.work().is_some(), "no request waits");
                retries += 1;
                Ok::<_, ()>(())
            };
            let paused = other.pause_when_quiet(PATIENCE, || Ok(()), retry).unwrap();
            paused.is_some() && retries >= 3
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
        let go_on = || Ok(());
        let mut retries = 0;
        let retry = || {
            retries += 1;
            Ok::<_, ()>(())
        };
        assert_eq!(gate.pause_when_quiet(patience, go_on, retry), Ok(None));
        assert_eq!(retries, 2, "none after the last attempt");
        assert!(gate.work().is_some());
        assert_eq!(gate.pause_when_quiet(PATIENCE, || Err("an end"), || Ok(())), Err("an end"));
        assert_eq!(gate.pause_when_quiet(PATIENCE, || Ok(()), || Err("an end")), Err("an end"));
        drop(never);
    }
}
