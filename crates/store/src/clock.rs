//! The clock by which ages are counted before messages are deleted for good.
//!
//! Messages have the time of day, and its clock may jump: a machine boots with a wrong time, or NTP corrects it.
//! Readers use that clock, as they see a message again once the clock is right. Deletions use an [`AgeClock`]. It
//! follows the time of day, but not forwards by more than [`JUMP_MS`] at once: then it follows the clock that counts
//! since the boot, suspended time included, until the new time of day has lasted for a while. It follows backwards at
//! once, which deletes later, never earlier.
//!
//! While the process did not run, it had no clock to compare with. So an [`AgeClock`] that begins with an earlier
//! [`Age`] doubts a time of day that is far ahead of it for [`START_DOUBT_MS`]: the process was stopped, or the clock
//! is wrong and is corrected soon. If the process before doubted the time of day for longer, so does this one.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// The largest step ahead of the time of day between two readings, in milliseconds.
const JUMP_MS: i64 = 60_000;

/// How long a time of day that has jumped forwards must last before it counts, in milliseconds: a day.
const JUMP_DOUBT_MS: u64 = 24 * 3_600_000;

/// How long a time of day that is ahead at the start must last at least before it counts, in milliseconds: an hour.
const START_DOUBT_MS: u64 = 3_600_000;

/// Two clocks at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reading {
    /// The time of day, in milliseconds since 1970.
    wall_ms: u64,
    /// The time since the boot, in milliseconds. It never jumps, and counts while the machine is suspended.
    boot_ms: u64,
}

impl Reading {
    fn now() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let boot = clock_gettime(ClockId::Boottime);
        let boot = Duration::try_from(boot).unwrap_or_default();
        let wall_ms = u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX);
        Reading { wall_ms, boot_ms: u64::try_from(boot.as_millis()).unwrap_or(u64::MAX) }
    }

    /// Returns when the machine has booted, by the time of day, in milliseconds since 1970.
    fn booted_ms(self) -> i64 {
        difference(self.wall_ms, self.boot_ms)
    }
}

fn difference(a: u64, b: u64) -> i64 {
    let signed = |number| i64::try_from(number).unwrap_or(i64::MAX);
    signed(a).saturating_sub(signed(b))
}

/// A change by a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// The time of day has jumped forwards: ages do not follow yet.
    Ahead,
    /// The time of day has returned to that by which ages are counted.
    Returned,
    /// The time of day has been ahead for so long that ages follow now.
    Believed,
    /// The time of day has jumped backwards, and ages follow.
    Behind,
}

/// The state of an age clock, for the clock that continues it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age {
    /// The time by which ages are counted, in milliseconds since 1970.
    pub now_ms: u64,
    /// For how long the time of day is still doubted, in milliseconds; 0 if it is not doubted.
    pub doubt_ms: u64,
}

/// A time of day that does not count yet.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    booted_ms: i64,
    until_boot_ms: u64,
}

/// The time by which ages are counted: the state of an [`AgeClock`].
#[derive(Clone, Copy, Debug)]
struct AgeTime {
    /// When the machine has booted, by this time, in milliseconds since 1970.
    booted_ms: i64,
    doubt: Option<Doubt>,
}

impl AgeTime {
    /// Begins at a reading. `earlier` is the state of the process before when it last counted ages.
    fn new(now: Reading, earlier: Option<Age>) -> Self {
        let booted_ms = now.booted_ms();
        let earlier =
            earlier.map(|Age { now_ms, doubt_ms }| (difference(now_ms, now.boot_ms), doubt_ms));
        match earlier.filter(|(earlier, _)| booted_ms.saturating_sub(*earlier) > JUMP_MS) {
            None => AgeTime { booted_ms, doubt: None },
            Some((earlier, doubt_ms)) => {
                let doubt_ms = doubt_ms.clamp(START_DOUBT_MS, JUMP_DOUBT_MS);
                let until_boot_ms = now.boot_ms.saturating_add(doubt_ms);
                AgeTime { booted_ms: earlier, doubt: Some(Doubt { booted_ms, until_boot_ms }) }
            }
        }
    }

    /// Returns the state for the clock that continues this one.
    fn age(&self, now: Reading) -> Age {
        let left_ms = |doubt: Doubt| doubt.until_boot_ms.saturating_sub(now.boot_ms).max(1);
        Age { now_ms: self.now_ms(now), doubt_ms: self.doubt.map_or(0, left_ms) }
    }

    /// Takes a reading.
    fn on_reading(&mut self, now: Reading) -> Option<Change> {
        let booted_ms = now.booted_ms();
        let ahead_ms = booted_ms.saturating_sub(self.booted_ms);
        let same = |doubt: &Doubt| booted_ms.saturating_sub(doubt.booted_ms).abs() <= JUMP_MS;
        let change = match self.doubt.filter(same) {
            _ if ahead_ms < -JUMP_MS => Some(Change::Behind),
            _ if ahead_ms <= JUMP_MS => self.doubt.map(|_| Change::Returned),
            Some(doubt) if now.boot_ms < doubt.until_boot_ms => return None,
            Some(_) => Some(Change::Believed),
            None => {
                let until_boot_ms = now.boot_ms.saturating_add(JUMP_DOUBT_MS);
                self.doubt = Some(Doubt { booted_ms, until_boot_ms });
                return Some(Change::Ahead);
            }
        };
        *self = AgeTime { booted_ms, doubt: None };
        change
    }

    /// Returns the time by which ages are counted, in milliseconds since 1970.
    fn now_ms(&self, now: Reading) -> u64 {
        now.boot_ms.saturating_add_signed(self.booted_ms)
    }
}

/// The clock by which ages are counted. See the module's documentation.
pub struct AgeClock {
    time: Mutex<AgeTime>,
    is_logged: bool,
    /// By how much tests move the time of day, in milliseconds.
    #[cfg(test)]
    moved_ms: std::sync::atomic::AtomicI64,
}

impl AgeClock {
    /// Returns the state for the clock that continues this one.
    pub fn age(&self) -> Age {
        let now = self.reading();
        let mut time = self.time.lock().unwrap_or_else(PoisonError::into_inner);
        let change = time.on_reading(now);
        let age = time.age(now);
        drop(time);
        if let Some(change) = change.filter(|_| self.is_logged) {
            log(change, now.wall_ms, age.now_ms);
        }
        age
    }

    /// Begins anew, after a clock that has counted ages before.
    pub fn go_on(&self, earlier: Age) {
        let now = self.reading();
        *self.time.lock().unwrap_or_else(PoisonError::into_inner) =
            AgeTime::new(now, Some(earlier));
    }

    /// Begins now. `earlier` is the state of the clock before when it last counted ages. Only one clock of a process
    /// logs jumps.
    pub fn new(earlier: Option<Age>, is_logged: bool) -> Self {
        AgeClock {
            time: Mutex::new(AgeTime::new(Reading::now(), earlier)),
            is_logged,
            #[cfg(test)]
            moved_ms: std::sync::atomic::AtomicI64::new(0),
        }
    }

    /// Logs if the time of day is doubted.
    pub(crate) fn log_doubt(&self) {
        let (now, now_ms) = (self.reading(), self.now_ms());
        if self.time.lock().unwrap_or_else(PoisonError::into_inner).doubt.is_some() {
            tracing::info!(
                time_of_day_ms = now.wall_ms,
                time_of_ages_ms = now_ms,
                "the server was stopped, or its clock is wrong: data that is too old only by the \
                 time of day is deleted in an hour"
            );
        }
    }

    fn reading(&self) -> Reading {
        let now = Reading::now();
        #[cfg(test)]
        let moved_ms = self.moved_ms.load(std::sync::atomic::Ordering::Relaxed);
        #[cfg(test)]
        let now = Reading { wall_ms: now.wall_ms.saturating_add_signed(moved_ms), ..now };
        now
    }

    /// Moves the time of day by an offset.
    #[cfg(test)]
    pub(crate) fn move_wall(&self, by_ms: i64) {
        self.moved_ms.store(by_ms, std::sync::atomic::Ordering::Relaxed);
    }

    /// Returns the time by which ages are counted, in milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        self.age().now_ms
    }
}

fn log(change: Change, time_of_day_ms: u64, time_of_ages_ms: u64) {
    match change {
        Change::Ahead => tracing::warn!(
            time_of_day_ms,
            time_of_ages_ms,
            "the time of day has jumped forwards: data that is too old only by the new time is \
             deleted in a day, unless the clock is set back"
        ),
        Change::Returned => tracing::info!(
            time_of_day_ms,
            time_of_ages_ms,
            "the time of day again agrees with the time by which ages are counted"
        ),
        Change::Believed => tracing::warn!(
            time_of_day_ms,
            time_of_ages_ms,
            "the time of day has stayed ahead: from now on data that is too old by it is deleted"
        ),
        Change::Behind => tracing::warn!(
            time_of_day_ms,
            time_of_ages_ms,
            "the time of day has jumped backwards: messages from before the jump are deleted later"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR_MS: u64 = 3_600_000;
    const YEAR_MS: u64 = 365 * 24 * HOUR_MS;
    /// A day in 2026.
    const TODAY_MS: u64 = 56 * YEAR_MS;

    fn reading(wall_ms: u64, boot_ms: u64) -> Reading {
        Reading { wall_ms, boot_ms }
    }

    /// Returns the time of ages after a reading, and the change by it.
    fn read(time: &mut AgeTime, wall_ms: u64, boot_ms: u64) -> (u64, Option<Change>) {
        let now = reading(wall_ms, boot_ms);
        let change = time.on_reading(now);
        (time.now_ms(now), change)
    }

    #[test]
    fn a_jump_of_ten_years_and_back_makes_nothing_older() {
        let mut time = AgeTime::new(reading(TODAY_MS, 1_000), None);
        let later = TODAY_MS + 10 * YEAR_MS;
        assert_eq!(read(&mut time, later, 2_000), (TODAY_MS + 1_000, Some(Change::Ahead)));
        for hours in 1..24 {
            let passed = hours * HOUR_MS;
            assert_eq!(read(&mut time, later + passed, 1_000 + passed), (TODAY_MS + passed, None));
        }
        let passed = 23 * HOUR_MS + 1;
        let back = read(&mut time, TODAY_MS + passed, 1_000 + passed);
        assert_eq!(back, (TODAY_MS + passed, Some(Change::Returned)));
        let again = read(&mut time, TODAY_MS + passed + 5, 1_005 + passed);
        assert_eq!(again, (TODAY_MS + passed + 5, None));
    }

    #[test]
    fn a_new_time_that_lasts_for_a_day_counts() {
        let mut time = AgeTime::new(reading(5_000, 1_000), None);
        assert_eq!(read(&mut time, TODAY_MS, 2_000), (6_000, Some(Change::Ahead)));
        let end = 2_000 + JUMP_DOUBT_MS;
        assert_eq!(read(&mut time, TODAY_MS + JUMP_DOUBT_MS - 1, end - 1).1, None);
        let believed = read(&mut time, TODAY_MS + JUMP_DOUBT_MS, end);
        assert_eq!(believed, (TODAY_MS + JUMP_DOUBT_MS, Some(Change::Believed)));
    }

    #[test]
    fn another_jump_begins_another_day() {
        let mut time = AgeTime::new(reading(TODAY_MS, 0), None);
        assert_eq!(read(&mut time, TODAY_MS + YEAR_MS, 1).1, Some(Change::Ahead));
        let half = JUMP_DOUBT_MS / 2;
        assert_eq!(read(&mut time, TODAY_MS + 9 * YEAR_MS, half).1, Some(Change::Ahead));
        assert_eq!(read(&mut time, TODAY_MS + 9 * YEAR_MS + half, 2 * half).1, None);
        assert_eq!(read(&mut time, TODAY_MS + 10 * YEAR_MS, 2 * half + 1).1, Some(Change::Ahead));
    }

    #[test]
    fn backwards_counts_at_once() {
        let mut time = AgeTime::new(reading(TODAY_MS, 0), None);
        assert_eq!(read(&mut time, 7_000, 1), (7_000, Some(Change::Behind)));
        assert_eq!(read(&mut time, 7_001, 2), (7_001, None));
    }

    #[test]
    fn a_suspended_machine_ages_its_messages() {
        let mut time = AgeTime::new(reading(TODAY_MS, 0), None);
        let away = 90 * 24 * HOUR_MS;
        assert_eq!(read(&mut time, TODAY_MS + away, away), (TODAY_MS + away, None));
    }

    fn earlier(now_ms: u64) -> Option<Age> {
        Some(Age { now_ms, doubt_ms: 0 })
    }

    #[test]
    fn a_process_goes_on_with_the_doubt_of_the_one_before() {
        let (mut time, later) = (AgeTime::new(reading(TODAY_MS, 0), None), TODAY_MS + YEAR_MS);
        assert_eq!(read(&mut time, later, 1).1, Some(Change::Ahead));
        let passed = 5 * HOUR_MS;
        assert_eq!(read(&mut time, later + passed, 1 + passed).1, None);
        let age = time.age(reading(later + passed, 1 + passed));
        let left_ms = JUMP_DOUBT_MS - passed;
        assert_eq!(age, Age { now_ms: TODAY_MS + 1 + passed, doubt_ms: left_ms });
        // The machine boots as well.
        let mut time = AgeTime::new(reading(later + passed, 9), Some(age));
        assert_eq!(read(&mut time, later + passed + left_ms - 1, 8 + left_ms).1, None);
        let believed = read(&mut time, later + passed + left_ms, 9 + left_ms);
        assert_eq!(believed, (later + passed + left_ms, Some(Change::Believed)));
        // The machine is stopped for a while at the end of the day.
        let mut time = AgeTime::new(reading(later, 9), Some(Age { now_ms: TODAY_MS, doubt_ms: 1 }));
        assert_eq!(read(&mut time, later + START_DOUBT_MS - 1, 8 + START_DOUBT_MS).1, None);
    }

    #[test]
    fn a_start_after_a_stop_counts_the_time_in_an_hour() {
        let stopped = 30 * 24 * HOUR_MS;
        let mut time = AgeTime::new(reading(TODAY_MS + stopped, 9), earlier(TODAY_MS));
        assert_eq!(read(&mut time, TODAY_MS + stopped, 9), (TODAY_MS, None));
        let end = 9 + START_DOUBT_MS;
        assert_eq!(read(&mut time, TODAY_MS + stopped + START_DOUBT_MS - 1, end - 1).1, None);
        let believed = read(&mut time, TODAY_MS + stopped + START_DOUBT_MS, end);
        assert_eq!(believed, (TODAY_MS + stopped + START_DOUBT_MS, Some(Change::Believed)));
        // A brief stop needs no hour.
        let mut time = AgeTime::new(reading(TODAY_MS + 30_000, 9), earlier(TODAY_MS));
        assert_eq!(read(&mut time, TODAY_MS + 30_000, 9), (TODAY_MS + 30_000, None));
    }

    #[test]
    fn a_start_with_a_wrong_clock_makes_nothing_older() {
        let minute = 60_000;
        // It says 2036, and is corrected 10 minutes later.
        let mut time = AgeTime::new(reading(TODAY_MS + 10 * YEAR_MS, 9), earlier(TODAY_MS));
        let corrected = read(&mut time, TODAY_MS + 10 * minute, 9 + 10 * minute);
        assert_eq!(corrected, (TODAY_MS + 10 * minute, Some(Change::Returned)));
        // It says 1970.
        let mut time = AgeTime::new(reading(100, 9), earlier(TODAY_MS));
        assert_eq!(read(&mut time, 101, 10), (101, None));
        let corrected = read(&mut time, TODAY_MS + 10 * minute, 9 + 10 * minute);
        assert_eq!(corrected, (100 + 10 * minute, Some(Change::Ahead)));
    }

    proptest! {
        /// Whatever jumps the time of day makes: between two readings, ages grow by no more than the time that has
        /// passed and [`JUMP_MS`], or the time of day has lasted.
        #[test]
        fn ages_never_jump(
            earlier in prop::option::of((0..2 * TODAY_MS, 0..2 * JUMP_DOUBT_MS)),
            steps in prop::collection::vec((0..2 * TODAY_MS, 0..2 * HOUR_MS, 0..4_u8), 1..100),
        ) {
            let mut now = reading(TODAY_MS, 0);
            let earlier = earlier.map(|(now_ms, doubt_ms)| Age { now_ms, doubt_ms });
            let mut time = AgeTime::new(now, earlier);
            let mut before_ms = time.now_ms(now);
            let mut since_jump_ms = 0;
            for (wall_ms, passed_ms, kind) in steps {
                let jumps = kind == 0;
                now.boot_ms += passed_ms;
                now.wall_ms = if jumps { wall_ms } else { now.wall_ms + passed_ms };
                since_jump_ms = if jumps { 0 } else { since_jump_ms + passed_ms };
                let change = time.on_reading(now);
                let age_ms = time.now_ms(now);
                let grown = difference(age_ms, before_ms);
                match change {
                    Some(Change::Believed) => {
                        prop_assert!(since_jump_ms >= START_DOUBT_MS);
                        prop_assert_eq!(age_ms, now.wall_ms);
                    }
                    _ => prop_assert!(grown <= difference(passed_ms, 0) + JUMP_MS),
                }
                if since_jump_ms > JUMP_DOUBT_MS + 2 * HOUR_MS {
                    prop_assert_eq!(age_ms, now.wall_ms);
                }
                before_ms = age_ms;
            }
        }

        /// Without a jump the time of ages is the time of day, even if that is slewed.
        #[test]
        fn without_a_jump_it_is_the_time_of_day(
            steps in prop::collection::vec((0..HOUR_MS, -JUMP_MS..=JUMP_MS), 0..100),
        ) {
            let mut now = reading(TODAY_MS, 0);
            let mut time = AgeTime::new(now, earlier(TODAY_MS));
            for (passed_ms, slewed_ms) in steps {
                now.boot_ms += passed_ms;
                now.wall_ms = (now.wall_ms + passed_ms).saturating_add_signed(slewed_ms);
                prop_assert_eq!(time.on_reading(now), None);
                prop_assert_eq!(time.now_ms(now), now.wall_ms);
            }
        }
    }
}
