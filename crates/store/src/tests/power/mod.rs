//! Tests that a loss of power at any moment loses nothing that was acknowledged. A kill of the process does not prove
//! that, because the kernel retains writes that are not on the disk yet.
//!
//! A store runs on a real directory, and all its changes there are recorded ([`trace`]). A model of a disk with a
//! volatile cache ([`disk_model`]) computes what may be on the disk when the power goes at one of these changes, and
//! a store is opened on that ([`machine`]): it must have everything that it had acknowledged ([`workload`]), all or
//! nothing of the commit in progress, and never assign an offset again. Power goes again while a store recovers.
//!
//! `POWER_SEED=n` repeats a seed, `POWER_CUTS=n` tries so many moments: `scripts/test-long power`.

mod disk_model;
mod machine;
mod trace;
mod workload;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use random::Random;

use super::Dir;
use machine::{Counts, Cutter, Lifetime, Moment};

/// Moments of a lifetime that a seed tries; every fourth seed of the long run tries all.
const CUTS_OF_A_LIFETIME: usize = 25;

/// The first seed of the long run.
const LONG_SEEDS: u64 = 1_000;

/// The moments that a seed tries.
const CUTS_OF_A_SEED: u64 = 200;

/// The seeds of the gate. Seeds that found a mistake stay.
const SEEDS: [u64; 4] = [0, 1, 2, 3];

fn scratch(seed: u64) -> Dir {
    let memory = Path::new("/dev/shm");
    let above = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    Dir(above.join(format!("throng-power-{}-{seed}", std::process::id())))
}

/// Opens a store on the content of the disk after a loss of power, and sometimes cuts the power meanwhile.
fn check(moment: &Moment, root: &Path, random: &mut Random) -> Result<Counts, String> {
    let mut lifetime = Lifetime::new(root, random, moment.known.clone(), 0);
    let events = lifetime.run(&moment.disk, 0)?;
    let mut counts = Counts { cuts: 1, ..lifetime.counts };
    if random.one_in(4) {
        counts.copies += moment.known.check_copies(root)?;
    }
    if random.one_in(4) {
        let at = random.below(events.len() + 1);
        let again = Cutter::new(root, moment).cut(&events, at, random);
        let mut lifetime = Lifetime::new(root, random, again.known.clone(), 0);
        lifetime
            .run(&again.disk, 0)
            .map_err(|error| format!("in a recovery, after {at}: {error}"))?;
        counts.add(Counts { cuts: 1, cuts_in_recovery: 1, ..lifetime.counts });
    }
    Ok(counts)
}

/// Runs a machine and cuts its power at each of a lifetime's moments, or at some of them.
fn run(seed: u64) -> Result<Counts, String> {
    let is_exhaustive = seed >= LONG_SEEDS && seed.is_multiple_of(4);
    let cuts_of_a_lifetime = if is_exhaustive { usize::MAX } else { CUTS_OF_A_LIFETIME };
    let dir = scratch(seed);
    let (root, other) = (dir.0.join("run"), dir.0.join("check"));
    let mut random = Random::new(seed);
    let (mut moment, mut counts) = (Moment::default(), Counts::default());
    // The disk of every third machine fails at times.
    let failing_syncs = if seed % 3 == 2 { 15 } else { 0 };
    let mut lifetimes = 0;
    while counts.cuts < CUTS_OF_A_SEED {
        let sessions = 1 + random.below(3);
        let mut lifetime = Lifetime::new(&root, &mut random, moment.known.clone(), failing_syncs);
        let events = lifetime.run(&moment.disk, sessions);
        let events = events.map_err(|error| format!("in lifetime {lifetimes}: {error}"))?;
        counts.add(lifetime.counts);
        let mut cutter = Cutter::new(&root, &moment);
        let next = random.below(events.len().min(cuts_of_a_lifetime));
        let mut next_moment = moment.clone();
        for (index, at) in
            moments(events.len(), cuts_of_a_lifetime, &mut random).into_iter().enumerate()
        {
            let killed = cutter.kill(&events, at, &mut random);
            let cut = cutter.cut(&events, at, &mut random);
            let checked = check(&cut, &other, &mut random);
            let context =
                |error| format!("in lifetime {lifetimes} after {at} of {}: {error}", events.len());
            counts.add(checked.map_err(context)?);
            if index == next {
                // Another process goes on after a kill. It does not know of a failed sync.
                let is_kill = failing_syncs == 0 && random.one_in(3);
                counts.kills += u64::from(is_kill);
                next_moment = if is_kill { killed } else { cut };
            }
        }
        moment = next_moment;
        lifetimes += 1;
    }
    Ok(counts)
}

/// Returns after how many of `count` events the power goes.
fn moments(count: usize, moments_max: usize, random: &mut Random) -> Vec<usize> {
    if count <= moments_max {
        return (1..=count).collect();
    }
    let mut moments: Vec<usize> = (0..moments_max).map(|_| 1 + random.below(count)).collect();
    moments.sort_unstable();
    moments
}

/// Runs a seed.
///
/// # Errors
/// The fault, and how to repeat it.
fn try_seed(seed: u64) -> Result<Counts, String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| run(seed)));
    let outcome = outcome.unwrap_or_else(|_| Err("it panics".into()));
    outcome.map_err(|error| format!("POWER_SEED={seed} repeats this: {error}"))
}

/// Runs seeds on all cores until they have made `cuts` cuts.
fn run_many(cuts: u64) -> (Counts, Vec<String>) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, total) = (AtomicU64::new(0), Mutex::new((Counts::default(), Vec::new())));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = LONG_SEEDS + next.fetch_add(1, Relaxed);
                    let outcome = try_seed(seed);
                    let mut total = total.lock().unwrap();
                    match outcome {
                        Ok(counts) => total.0.add(counts),
                        Err(error) => {
                            println!("{error}");
                            total.1.push(error);
                        }
                    }
                    if seed.is_multiple_of(100) {
                        println!("{seed}: {} power cuts: {:?}", total.0.cuts, total.0);
                    }
                    if total.0.cuts >= cuts || total.1.len() >= 20 {
                        return;
                    }
                }
            });
        }
    });
    total.into_inner().unwrap()
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

#[test]
fn a_loss_of_power_loses_no_acknowledged_message() {
    let (counts, errors) = match (number("POWER_SEED"), number("POWER_CUTS")) {
        (None, Some(cuts)) => run_many(cuts),
        (seed, _) => {
            let seeds = seed.map_or(SEEDS.to_vec(), |seed| vec![seed]);
            let mut all = Counts::default();
            let run = |seed: &u64| try_seed(*seed).map(|counts| all.add(counts)).err();
            let errors: Vec<String> = seeds.iter().filter_map(run).collect();
            (all, errors)
        }
    };
    println!("{} power cuts: {counts:?}", counts.cuts);
    assert!(errors.is_empty(), "{}", errors.join("\n"));
    assert!(counts.cuts > 0 && counts.acknowledged > 0 && counts.cuts_in_recovery > 0);
}
