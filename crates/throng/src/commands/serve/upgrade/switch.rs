//! The moment in which everything stands still and changes hands.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use control::{Attempts, Patience};
use handover::Sent;
use shard::{Channel, Give, GiverStage};

use super::old::{POLL_INTERVAL, Reason, STEP_WAIT, Upgrade};
use super::wire::{self, expect};

/// How long calls of the admin port that are under way are waited for, before all stands still: a minute in all. A node
/// with too much to do replies late to some.
const CALLS: Patience = Patience {
    wait: Duration::from_millis(500),
    still: Duration::from_millis(500),
    pause: Duration::from_secs(2),
    attempts: 20,
    interval: POLL_INTERVAL,
};

/// How long TLS handshakes may take to finish before the pause: some round trips. Slower ones end with this process.
const HANDSHAKES_WAIT: Duration = Duration::from_millis(500);

/// How long all may take to come to rest.
const STILL_WAIT: Duration = Duration::from_secs(10);

/// How long the new process may take to serve once it has everything.
const SERVING_WAIT: Duration = Duration::from_secs(20);

/// Makes the shards reply to calls, so that these end.
struct Calls<'a> {
    upgrade: &'a Upgrade,
    /// How long the last pass over the changed connections took.
    last_pass: Duration,
    stands_still: bool,
}

impl Attempts for Calls<'_> {
    type Error = Reason;

    fn check(&mut self) -> Result<(), Reason> {
        self.upgrade.check_progress()
    }

    fn stand_still(&mut self) -> Result<(), Reason> {
        let (upgrade, givers) = (self.upgrade, &self.upgrade.old.givers);
        upgrade.finish_handshakes()?;
        givers.iter().for_each(|giver| giver.order(Give::StandStill));
        self.stands_still = true;
        upgrade.until(STILL_WAIT, "the shards' turns", || {
            upgrade.count(GiverStage::Still) == givers.len()
        })
    }

    fn go_on(&mut self) -> Result<(), Reason> {
        let (upgrade, givers) = (self.upgrade, &self.upgrade.old.givers);
        givers.iter().for_each(|giver| giver.order(Give::GoOn));
        self.stands_still = false;
        upgrade.until(STILL_WAIT, "the shards' turns", || upgrade.count(GiverStage::Still) == 0)
    }

    /// Leaves nothing for the next attempt that has changed meanwhile: an attempt takes seconds.
    fn retry(&mut self) -> Result<(), Reason> {
        self.upgrade.copy_changed(&mut self.last_pass).map(drop)
    }
}

impl Upgrade {
    /// The pause: everything stands still, what is left is passed, and the new process goes on. `last_pass` is how
    /// long the last pass over the changed connections took.
    pub(super) fn switch(
        &self,
        main: &Channel,
        sent: &mut [Sent],
        path: &Path,
        last_pass: Duration,
    ) -> Result<(), Reason> {
        let old = &self.old;
        let mut calls = Calls { upgrade: self, last_pass, stands_still: false };
        let began = old.gate.pause_when_quiet(CALLS, &mut calls)?.ok_or_else(|| {
            let attempt = CALLS.wait + CALLS.still;
            let wait = CALLS.attempts * (attempt + CALLS.pause);
            format!(
                "calls of the admin API took longer than {} s in each of {} attempts within {} s: \
                 try again when the node is less busy",
                attempt.as_secs(),
                CALLS.attempts,
                wait.as_secs()
            )
        })?;
        let called = began.elapsed();
        if !calls.stands_still {
            self.finish_handshakes()?;
        }
        let handshakes = began.elapsed();
        old.webhook.stand_still();
        // Before all comes to rest: the shards take what others have published until then.
        if let Some(link) = &old.cluster {
            let paused = link.pause();
            self.until(STILL_WAIT, "reading the messages of other nodes", || paused.is_done())?;
        }
        if !calls.stands_still {
            old.givers.iter().for_each(|giver| giver.order(Give::StandStill));
        }
        old.postgres.iter().for_each(history_postgres::Postgres::pause);
        self.come_to_rest()?;
        if let Some(link) = &old.cluster {
            let rests = link.rest();
            self.until(STILL_WAIT, "sending pending messages to other nodes", || rests.is_done())?;
        }
        let rested = began.elapsed();
        old.givers.iter().for_each(|giver| giver.order(Give::Rest));
        self.send_parts(main, sent)?;
        let parts = began.elapsed();
        let all = old.givers.len();
        self.until(STEP_WAIT, "handing over the last connections", || {
            self.count(GiverStage::Given) == all
        })?;
        main.send(wire::END, &[], &[]).map_err(|error| self.why(&error))?;
        self.expect(main, wire::HAVE, STEP_WAIT)?;
        let given = began.elapsed();
        if let Some(store) = &old.store {
            let passed = store.pass_on();
            let passed =
                passed.map_err(|error| format!("the store can't be handed over: {error}"))?;
            main.send(wire::OPEN_STORE, &passed.to_bytes(), &[])
                .map_err(|error| self.why(&error))?;
            self.expect(main, wire::STORE_OPEN, STEP_WAIT)?;
        }
        self.check_progress()?;
        // From here on the new process serves, whatever happens to this one.
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
                // Calls that wait here end with the process.
                tracing::error!(%error, "the new process did not confirm that it serves");
            }
        }
        let pause = began.elapsed();
        let pause_us = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
        // For those who ask the new process how it went.
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
        old.givers.iter().for_each(|giver| giver.order(Give::Release));
        self.change(|progress| progress.pause_us = Some(pause_us));
        Ok(())
    }

    /// Finishes the TLS handshakes that are under way, since they can't be passed on. Others begin at the new process.
    fn finish_handshakes(&self) -> Result<(), Reason> {
        if !self.old.has_tls {
            return Ok(());
        }
        let (givers, began) = (&self.old.givers, Instant::now());
        givers.iter().for_each(|giver| giver.order(Give::FinishHandshakes));
        while began.elapsed() < HANDSHAKES_WAIT
            && !givers.iter().all(|giver| giver.has_finished_handshakes())
        {
            self.check_progress()?;
            std::thread::sleep(POLL_INTERVAL / 2);
        }
        Ok(())
    }

    /// Waits until nothing is under way between the shards, nor to the store or the database.
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

    /// Everything goes on here.
    pub(super) fn resume(&self) {
        let old = &self.old;
        // A process that was started by hand may need a moment to end, and has the store until then.
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
