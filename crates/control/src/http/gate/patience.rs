//! Pauses the gate only once no request is under way: a slow one must not make all others wait.

use std::time::{Duration, Instant};

use super::Gate;

/// How long the gate waits for requests under way. New requests wait meanwhile, so an attempt is short. After a failed
/// attempt, all requests continue for a while.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// How long an attempt waits while the shards serve.
    pub wait: Duration,
    /// How long the attempt then waits. The shards may stand still meanwhile.
    pub still: Duration,
    /// How long all requests continue between two attempts.
    pub pause: Duration,
    /// How many attempts there are.
    pub attempts: u32,
    /// The time between two polls of the gate.
    pub interval: Duration,
}

/// What the gate calls during its attempts. An error ends them.
pub trait PauseSteps {
    /// The error of the methods.
    type Error;

    /// Called at each poll.
    ///
    /// # Errors
    /// If no attempt should continue.
    fn check(&mut self) -> Result<(), Self::Error>;

    /// Called when requests take longer than [`Patience::wait`]. If they wait for the shards of an overloaded node,
    /// this makes the shards stand still: they then only reply to requests.
    ///
    /// # Errors
    /// If the shards can't stand still.
    fn stand_still(&mut self) -> Result<(), Self::Error>;

    /// Called when the requests have not ended within [`Patience::still`] either: makes shards that stand still serve
    /// again.
    ///
    /// # Errors
    /// If the shards can't serve again.
    fn go_on(&mut self) -> Result<(), Self::Error>;

    /// Called before each further attempt, when no request waits.
    ///
    /// # Errors
    /// If no attempt should follow.
    fn retry(&mut self) -> Result<(), Self::Error>;
}

impl Gate {
    /// Makes new requests wait, and returns once no request is under way: since when the new ones wait. The shards may
    /// stand still then. Returns `None` if a request outlasted every attempt; then all requests continue.
    ///
    /// # Errors
    /// Those of `steps`. New requests may still wait then, and the shards stand still.
    pub fn pause_when_quiet<S: PauseSteps>(
        &self,
        patience: Patience,
        steps: &mut S,
    ) -> Result<Option<Instant>, S::Error> {
        let Patience { wait, still, pause, interval, .. } = patience;
        for attempt in 1..=patience.attempts {
            let since = Instant::now();
            self.pause();
            poll(wait, interval, steps, || self.is_quiet())?;
            if !self.is_quiet() {
                steps.stand_still()?;
                poll(still, interval, steps, || self.is_quiet())?;
            }
            if self.is_quiet() {
                return Ok(Some(since));
            }
            steps.go_on()?;
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
            poll(pause, interval, steps, || false)?;
            steps.retry()?;
        }
        Ok(None)
    }
}

/// Waits until a condition holds, and at most for `wait`.
fn poll<S: PauseSteps>(
    wait: Duration,
    interval: Duration,
    steps: &mut S,
    holds: impl Fn() -> bool,
) -> Result<(), S::Error> {
    let began = Instant::now();
    while began.elapsed() < wait && !holds() {
        steps.check()?;
        std::thread::sleep(interval);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const PATIENCE: Patience = Patience {
        wait: Duration::from_millis(20),
        still: Duration::from_millis(20),
        pause: Duration::from_millis(20),
        attempts: 1_000,
        interval: Duration::from_millis(1),
    };

    /// Counts the calls.
    #[derive(Default)]
    struct CountedSteps {
        gate: Arc<Gate>,
        /// A request that ends when the shards stand still.
        waits_for_shards: Option<crate::http::gate::Working>,
        stand_still: usize,
        go_on: usize,
        retry: usize,
        check_fails: bool,
        retry_fails: bool,
    }

    impl PauseSteps for CountedSteps {
        type Error = &'static str;

        fn check(&mut self) -> Result<(), &'static str> {
            if self.check_fails { Err("an end") } else { Ok(()) }
        }

        fn stand_still(&mut self) -> Result<(), &'static str> {
            assert!(self.gate.work().is_none(), "requests wait");
            self.stand_still += 1;
            self.waits_for_shards = None;
            Ok(())
        }

        fn go_on(&mut self) -> Result<(), &'static str> {
            assert!(self.gate.work().is_none(), "requests wait");
            self.go_on += 1;
            Ok(())
        }

        fn retry(&mut self) -> Result<(), &'static str> {
            assert!(self.gate.work().is_some(), "no request waits");
            self.retry += 1;
            if self.retry_fails { Err("an end") } else { Ok(()) }
        }
    }

    #[test]
    fn others_go_on_until_a_slow_request_has_ended() {
        let gate = Arc::new(Gate::default());
        let slow = gate.work();
        let other = gate.clone();
        let pause = std::thread::spawn(move || {
            let mut steps = CountedSteps { gate: other.clone(), ..CountedSteps::default() };
            let paused = other.pause_when_quiet(PATIENCE, &mut steps).unwrap();
            paused.is_some() && steps.retry >= 3 && steps.go_on == steps.retry
        });
        // Requests wait and continue, more than once.
        let until = |is_open: bool| {
            let began = Instant::now();
            while gate.work().is_some() != is_open {
                assert!(!pause.is_finished() && began.elapsed() < Duration::from_secs(60));
                std::thread::yield_now();
            }
        };
        for _ in 0..3 {
            until(false);
            until(true);
        }
        assert!(!pause.is_finished());
        drop(slow);
        assert!(pause.join().unwrap());
        assert!(gate.is_quiet() && gate.work().is_none());
    }

    #[test]
    fn requests_that_wait_for_shards_end_when_these_stand_still() {
        let gate = Arc::new(Gate::default());
        let waits_for_shards = gate.work();
        let mut steps =
            CountedSteps { gate: gate.clone(), waits_for_shards, ..CountedSteps::default() };
        assert!(gate.pause_when_quiet(PATIENCE, &mut steps).unwrap().is_some());
        assert_eq!((steps.stand_still, steps.go_on, steps.retry), (1, 0, 0));
        // Without requests under way, the shards need not stand still.
        gate.release();
        assert!(gate.pause_when_quiet(PATIENCE, &mut steps).unwrap().is_some());
        assert_eq!(steps.stand_still, 1);
    }

    #[test]
    fn all_go_on_where_a_request_never_ends_and_an_error_ends_the_wait() {
        let gate = Arc::new(Gate::default());
        let never = gate.work();
        let patience = Patience { attempts: 3, ..PATIENCE };
        let mut steps = CountedSteps { gate: gate.clone(), ..CountedSteps::default() };
        assert_eq!(gate.pause_when_quiet(patience, &mut steps), Ok(None));
        assert_eq!((steps.stand_still, steps.go_on), (3, 3));
        assert_eq!(steps.retry, 2, "none after the last attempt");
        assert!(gate.work().is_some());
        steps.check_fails = true;
        assert_eq!(gate.pause_when_quiet(PATIENCE, &mut steps), Err("an end"));
        gate.release();
        (steps.check_fails, steps.retry_fails) = (false, true);
        assert_eq!(gate.pause_when_quiet(PATIENCE, &mut steps), Err("an end"));
        drop(never);
    }
}
