//! The switch: a short pause in which the new process takes over.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use control::{Patience, PauseSteps};
use handover::Sent;
use shard::{Channel, Give, GiverStage};

use super::old::{POLL_INTERVAL, Reason, STEP_WAIT, Upgrade};
use super::wire::{self, expect};

/// How long the switch waits for calls of the admin port that are under way, before the pause: a minute in all. An
/// overloaded node replies late to some calls.
const CALLS: Patience = Patience {
    wait: Duration::from_millis(500),
    still: Duration::from_millis(500),
    pause: Duration::from_secs(2),
    attempts: 20,
    interval: POLL_INTERVAL,
};

/// How long TLS handshakes may take to finish before the pause: some round trips. Slower ones end with this process.
const HANDSHAKES_WAIT: Duration = Duration::from_millis(500);

/// How often the shards stand still for slow calls, at most.
const STANDSTILLS_MAX: u32 = 3;

/// How long the switch waits for the shards' turns under way to end, when the shards stand still for calls. The switch
/// then continues before a longer turn has ended.
const TURNS_WAIT: Duration = Duration::from_secs(2);

/// How long the shards, the store, the database or the cluster may take to come to rest.
const STILL_WAIT: Duration = Duration::from_secs(10);

/// How long the new process may take to serve once it has everything.
const SERVING_WAIT: Duration = Duration::from_secs(20);

/// The steps of the pause of the admin port: new calls wait, and those under way end.
struct CallsPause<'a> {
    upgrade: &'a Upgrade,
    /// How long the last pass over the changed connections took.
    last_pass: Duration,
    /// True while the shards stand still, so that calls end.
    stands_still: bool,
    /// How often the shards have stood still.
    standstills: u32,
}

/// Returns whether shards with so many pending commands should stand still for slow calls, after so many standstills.
fn should_stand_still(pending: impl IntoIterator<Item = u64>, standstills: u32) -> bool {
    standstills < STANDSTILLS_MAX && pending.into_iter().any(|commands| commands > 0)
}

impl CallsPause<'_> {
    /// Makes new calls wait, and returns once no call is under way: since when the new ones wait.
    fn pause(&mut self) -> Result<Instant, Reason> {
        self.upgrade.old.gate.pause_when_quiet(CALLS, self)?.ok_or_else(|| {
            let attempt = CALLS.wait + CALLS.still;
            let wait = CALLS.attempts * (attempt + CALLS.pause);
            format!(
                "calls of the admin API took longer than {} s in each of {} attempts within {} s: \
                 try again when the node is less busy",
                attempt.as_secs(),
                CALLS.attempts,
                wait.as_secs()
            )
        })
    }
}

impl PauseSteps for CallsPause<'_> {
    type Error = Reason;

    fn check(&mut self) -> Result<(), Reason> {
        self.upgrade.check_progress()
    }

    /// Does nothing if no shard has pending commands, since the calls then wait for something else, like a database.
    /// Does nothing after `STANDSTILLS_MAX` times, either.
    fn stand_still(&mut self) -> Result<(), Reason> {
        let (upgrade, givers) = (self.upgrade, &self.upgrade.old.givers);
        let pending = upgrade.old.handles.iter().map(|shard| shard.commands_pending());
        if !should_stand_still(pending, self.standstills) {
            return Ok(());
        }
        upgrade.finish_handshakes()?;
        givers.iter().for_each(|giver| giver.order(Give::StandStill));
        self.stands_still = true;
        self.standstills += 1;
        let began = Instant::now();
        upgrade.wait(TURNS_WAIT, || upgrade.count(GiverStage::Still) == givers.len())?;
        let turns_ms = began.elapsed().as_millis() as u64;
        tracing::info!(turns_ms, "the shards stand still, so that calls of the admin API end");
        Ok(())
    }

    fn go_on(&mut self) -> Result<(), Reason> {
        if !std::mem::take(&mut self.stands_still) {
            return Ok(());
        }
        let (upgrade, givers) = (self.upgrade, &self.upgrade.old.givers);
        givers.iter().for_each(|giver| giver.order(Give::GoOn));
        upgrade.until(STILL_WAIT, "the shards' turns", || upgrade.count(GiverStage::Still) == 0)
    }

    /// Copies the connections that have changed meanwhile, so that the next attempt has fewer to pass: an attempt takes
    /// seconds.
    fn retry(&mut self) -> Result<(), Reason> {
        self.upgrade.copy_changed(&mut self.last_pass).map(drop)
    }
}

impl Upgrade {
    /// Pauses this process, passes the rest of its state, and lets the new process serve. `last_pass` is how long the
    /// last pass over the changed connections took.
    pub(super) fn switch(
        &self,
        main: &Channel,
        sent: &mut [Sent],
        path: &Path,
        last_pass: Duration,
    ) -> Result<(), Reason> {
        let givers = &self.old.givers;
        let mut calls =
            CallsPause { upgrade: self, last_pass, stands_still: false, standstills: 0 };
        let began = calls.pause()?;
        let called = began.elapsed();
        if !calls.stands_still {
            self.finish_handshakes()?;
        }
        let handshakes = began.elapsed();
        self.bring_to_rest(calls.stands_still)?;
        let rested = began.elapsed();
        givers.iter().for_each(|giver| giver.order(Give::Rest));
        self.send_parts(main, sent)?;
        let parts = began.elapsed();
        self.until(STEP_WAIT, "handing over the last connections", || {
            self.count(GiverStage::Given) == givers.len()
        })?;
        main.send(wire::END, &[], &[]).map_err(|error| self.why(&error))?;
        self.expect(main, wire::HAVE, STEP_WAIT)?;
        let given = began.elapsed();
        self.pass_store(main)?;
        self.check_progress()?;
        self.let_new_process_serve(main)?;
        let pause = began.elapsed();
        let pause_us = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
        // The new process reports the length of the pause to callers of the API.
        let _ = main.send(wire::PAUSED, &pause_us.to_le_bytes(), &[]);
        let ms = |time: Duration| time.as_millis() as u64;
        tracing::info!(
            called_ms = ms(called),
            handshakes_ms = ms(handshakes),
            rested_ms = ms(rested),
            parts_ms = ms(parts),
            given_ms = ms(given),
            pause_ms = ms(pause),
            changed = self.copied(),
            path = %path.display(),
            "the node paused for the switch to the new process"
        );
        givers.iter().for_each(|giver| giver.order(Give::Release));
        self.change(|progress| progress.pause_us = Some(pause_us));
        Ok(())
    }

    /// Makes all parts of the node stand still, and waits until no work is under way. `shards_stand_still` is true if the
    /// shards stand still already.
    fn bring_to_rest(&self, shards_stand_still: bool) -> Result<(), Reason> {
        let old = &self.old;
        old.webhook.stand_still();
        // The shards deliver the messages that came from other nodes before they come to rest.
        if let Some(link) = &old.cluster {
            let paused = link.pause();
            self.until(STILL_WAIT, "reading the messages of other nodes", || paused.is_done())?;
        }
        if !shards_stand_still {
            old.givers.iter().for_each(|giver| giver.order(Give::StandStill));
        }
        old.postgres.iter().for_each(history_postgres::Postgres::pause);
        self.come_to_rest()?;
        if let Some(link) = &old.cluster {
            let rests = link.rest();
            self.until(STILL_WAIT, "sending pending messages to other nodes", || rests.is_done())?;
        }
        Ok(())
    }

    /// Closes the store, and lets the new process open it.
    fn pass_store(&self, main: &Channel) -> Result<(), Reason> {
        let Some(store) = &self.old.store else { return Ok(()) };
        let passed = store.pass_on();
        let passed = passed.map_err(|error| format!("the store can't be handed over: {error}"))?;
        main.send(wire::OPEN_STORE, &passed.to_bytes(), &[]).map_err(|error| self.why(&error))?;
        self.expect(main, wire::STORE_OPEN, STEP_WAIT)?;
        Ok(())
    }

    /// Passes the listeners of the admin port. From then on the new process serves, whatever happens to this one.
    fn let_new_process_serve(&self, main: &Channel) -> Result<(), Reason> {
        let old = &self.old;
        let forwarded = old.forwarded.as_ref();
        let forwarded_path = forwarded.map_or(&[][..], |(_, path)| path.as_os_str().as_bytes());
        if let Some(listener) = &old.admin_tls {
            main.send(wire::ADMIN_TLS, &[], &[listener.as_fd()])
                .map_err(|error| self.why(&error))?;
        }
        let mut listeners = vec![old.admin.as_fd()];
        listeners.extend(forwarded.map(|(listener, _)| listener.as_fd()));
        main.send(wire::GO, forwarded_path, &listeners).map_err(|error| self.why(&error))?;
        self.given.store(true, Ordering::SeqCst);
        if let Some(link) = &old.cluster {
            link.abandon();
        }
        let _ = main.set_timeout(Some(SERVING_WAIT));
        match expect(main, wire::SERVING) {
            Ok(frame) => {
                let forwarded = Path::new(std::ffi::OsStr::from_bytes(&frame.body));
                old.gate.forward(forwarded.to_owned());
            }
            Err(error) => {
                // CallsPause that wait at the gate fail when this process ends.
                tracing::error!(%error, "the new process did not confirm that it serves");
            }
        }
        Ok(())
    }

    /// Finishes the TLS handshakes that are under way, since they can't be passed on. Others begin at the new process.
    fn finish_handshakes(&self) -> Result<(), Reason> {
        if !self.old.has_tls {
            return Ok(());
        }
        let givers = &self.old.givers;
        givers.iter().for_each(|giver| giver.order(Give::FinishHandshakes));
        let are_finished = || givers.iter().all(|giver| giver.has_finished_handshakes());
        self.wait(HANDSHAKES_WAIT, are_finished).map(drop)
    }

    /// Waits until no work is under way between the shards, in the store or in the database.
    fn come_to_rest(&self) -> Result<(), Reason> {
        let old = &self.old;
        let mut before: Option<Vec<u64>> = None;
        self.until(STILL_WAIT, "pending work of the shards, the store or the database", || {
            let idle = || {
                old.store.as_ref().is_none_or(store::Store::is_idle)
                    && old.history.is_quiet()
                    && old.postgres.as_ref().is_none_or(history_postgres::Postgres::is_paused)
            };
            let still = self.count(GiverStage::Still) == old.givers.len();
            let (numbers, at_rest): (Vec<u64>, Vec<bool>) =
                old.givers.iter().map(|giver| giver.rest()).unzip();
            let rests = still && idle() && at_rest.iter().all(|at_rest| *at_rest);
            let twice = before.as_ref() == Some(&numbers);
            before = rests.then_some(numbers);
            rests && twice
        })
    }

    /// Resumes all services of this process, after an upgrade that failed.
    pub(super) fn resume(&self) {
        let old = &self.old;
        // A new process that the operator started may take a moment to end, and has the store open until then.
        let began = Instant::now();
        while let Some(store) = old.store.as_ref().filter(|store| store.is_away()) {
            match store.take_back() {
                Ok(_) => {}
                Err(error) if began.elapsed() > STEP_WAIT => {
                    tracing::error!(%error, "the store can't be opened again: this process ends");
                    std::process::exit(1);
                }
                Err(_) => std::thread::sleep(POLL_INTERVAL),
            }
        }
        if let Some(link) = &old.cluster {
            link.resume();
        }
        old.postgres.iter().for_each(history_postgres::Postgres::resume);
        old.givers.iter().for_each(|giver| giver.order(Give::Resume));
        old.webhook.go_on();
        old.gate.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_stand_still_for_calls_that_wait_for_them_and_not_for_ever() {
        assert!(!should_stand_still([0, 0], 0), "the calls wait for something else");
        assert!(should_stand_still([0, 1], 0));
        assert!(should_stand_still([7, 0], STANDSTILLS_MAX - 1));
        assert!(!should_stand_still([7, 0], STANDSTILLS_MAX));
    }
}
