//! What users, addresses and API keys may do in a second, all their connections together, and which of
//! them do most.
//!
//! [`Quotas`] holds an [`Account`] for each that was active lately, and for nobody else: one that has been
//! quiet for [`QUIET_US`] is forgotten, with all that it was owed or owes. There are at most
//! [`ACCOUNTS_MAX`]; who comes when there is no room has none, and is bound by no rate. Accounts are
//! atomics, so that all threads spend from one at the same time; the table is locked in parts, and only to
//! find an account.
//!
//! The time is the callers': microseconds of the node's clock.

#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::Name;

/// The most accounts at a time. One takes about 250 bytes.
pub const ACCOUNTS_MAX: usize = 131_072;

/// An account that nothing was spent from for so long is forgotten, in microseconds.
pub const QUIET_US: u64 = 5_000_000;

/// Parts of the table, each with a lock of its own.
const PARTS: usize = 64;

/// How far ahead of its rate an account is at the most, in nanoseconds: one large request doesn't close
/// it for hours.
const AHEAD_NS: u64 = 10_000_000_000;

const SECOND_NS: u64 = 1_000_000_000;

/// Who is held to a rate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A user, by all of its connections.
    User(Name),
    /// An address, or the first one of a network.
    Address(IpAddr),
    /// An API key, by its name.
    Key(Name),
}

impl Subject {
    /// What it is: `user`, `address` or `key`.
    pub fn kind(&self) -> &'static str {
        match self {
            Subject::User(_) => "user",
            Subject::Address(_) => "address",
            Subject::Key(_) => "key",
        }
    }

    /// Its name.
    pub fn name(&self) -> String {
        match self {
            Subject::User(name) | Subject::Key(name) => name.to_string(),
            Subject::Address(address) => address.to_string(),
        }
    }
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Unit {
    /// Requests and commands.
    Commands,
    /// Bytes that came.
    Bytes,
    /// Messages that were published.
    Publishes,
    /// Topics that were entered.
    Joins,
}

impl Unit {
    /// All, in the order of their discriminants.
    pub const ALL: [Unit; 4] = [Unit::Commands, Unit::Bytes, Unit::Publishes, Unit::Joins];
}

const UNITS: usize = Unit::ALL.len();

/// So much of each unit a second; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits([u64; UNITS]);

impl Limits {
    /// No limits.
    pub const NONE: Limits = Limits([0; UNITS]);

    /// The same with another limit for this unit.
    #[must_use]
    pub const fn with(mut self, unit: Unit, per_second: u64) -> Self {
        self.0[unit as usize] = per_second;
        self
    }

    /// How much of this unit a second; 0 is no limit.
    pub const fn of(&self, unit: Unit) -> u64 {
        self.0[unit as usize]
    }
}

/// How much something takes of each unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost([u64; UNITS]);

impl Cost {
    /// Nothing.
    pub const NOTHING: Cost = Cost([0; UNITS]);

    /// The same with so much of this unit.
    #[must_use]
    pub const fn with(mut self, unit: Unit, amount: u64) -> Self {
        self.0[unit as usize] = amount;
        self
    }

    /// How much of this unit.
    pub const fn of(&self, unit: Unit) -> u64 {
        self.0[unit as usize]
    }
}

/// What a user, an address or a key has used lately.
#[derive(Debug, Default)]
pub struct Account {
    /// When what was used is used up at the rate, in nanoseconds, by unit.
    until_ns: [AtomicU64; UNITS],
    /// What was used and what was refused, ever; the refusals come last.
    spent: [AtomicU64; UNITS + 1],
    /// The same at the last tick.
    before: [AtomicU64; UNITS + 1],
    /// A second, as a mean of the last few, in thousandths.
    rates: [AtomicU64; UNITS + 1],
    /// When something was used last.
    used_us: AtomicU64,
}

impl Account {
    /// Which limit keeps this from being spent, if any: it lets a second's worth pass at once, and then
    /// its share.
    pub fn over(&self, cost: &Cost, limits: &Limits, now_us: u64) -> Option<Unit> {
        Unit::ALL
            .into_iter()
            .find(|unit| cost.of(*unit) > 0 && limits.of(*unit) > 0 && self.is_over(*unit, now_us))
    }

    /// Whether more was spent of this than a second's worth ahead.
    pub fn is_over(&self, unit: Unit, now_us: u64) -> bool {
        let until_ns = self.until_ns[unit as usize].load(Ordering::Relaxed);
        until_ns > now_us * 1_000 + SECOND_NS
    }

    /// Spends.
    pub fn spend(&self, cost: &Cost, limits: &Limits, now_us: u64) {
        self.used_us.store(now_us, Ordering::Relaxed);
        let now_ns = now_us * 1_000;
        for unit in Unit::ALL {
            let (at, amount) = (unit as usize, cost.of(unit));
            if amount == 0 {
                continue;
            }
            self.spent[at].fetch_add(amount, Ordering::Relaxed);
            let took_ns = amount.saturating_mul(SECOND_NS).checked_div(limits.of(unit));
            if let Some(took_ns) = took_ns {
                let next = |until_ns: u64| {
                    until_ns.max(now_ns).saturating_add(took_ns).min(now_ns + AHEAD_NS)
                };
                let set = |until_ns| Some(next(until_ns));
                // It always sets something.
                let _ = self.until_ns[at].fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
            }
        }
    }

    /// Counts something that was refused for a limit.
    pub fn refused(&self, now_us: u64) {
        self.used_us.store(now_us, Ordering::Relaxed);
        self.spent[UNITS].fetch_add(1, Ordering::Relaxed);
    }

    /// Takes part in the means; called by one thread at a time.
    fn tick(&self, milliseconds: u64) {
        for (spent, (before, rate)) in
            self.spent.iter().zip(self.before.iter().zip(self.rates.iter()))
        {
            let now = spent.load(Ordering::Relaxed);
            let gained = now.wrapping_sub(before.swap(now, Ordering::Relaxed));
            let newest = gained.saturating_mul(1_000_000) / milliseconds.max(1);
            let mean = rate.load(Ordering::Relaxed);
            rate.store((mean.saturating_mul(3).saturating_add(newest)) / 4, Ordering::Relaxed);
        }
    }
}

/// By what the noisiest are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// This unit.
    Unit(Unit),
    /// What was refused for a limit.
    Refusals,
}

/// What somebody does in a second, as a mean of the last few.
#[derive(Clone, Debug, PartialEq)]
pub struct Noise {
    /// Who.
    pub subject: Subject,
    /// By [`Unit`].
    pub per_second: [f64; UNITS],
    /// What was refused for a limit.
    pub refusals_per_second: f64,
}

/// See the crate's documentation.
pub struct Quotas {
    parts: [Mutex<HashMap<Subject, Arc<Account>>>; PARTS],
    hasher: RandomState,
    accounts: AtomicUsize,
    accounts_max: usize,
    /// Who had to go without an account, ever.
    unheld: AtomicU64,
    ticked_us: AtomicU64,
}

impl Default for Quotas {
    fn default() -> Self {
        Quotas::new(ACCOUNTS_MAX)
    }
}

impl Quotas {
    /// Room for so many accounts.
    pub fn new(accounts_max: usize) -> Self {
        Quotas {
            parts: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            accounts: AtomicUsize::new(0),
            accounts_max,
            unheld: AtomicU64::new(0),
            ticked_us: AtomicU64::new(0),
        }
    }

    fn part(&self, subject: &Subject) -> MutexGuard<'_, HashMap<Subject, Arc<Account>>> {
        let at = usize::try_from(self.hasher.hash_one(subject) >> 32).unwrap_or(0) % PARTS;
        self.parts[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody's account, made where there is none; nothing where there is no room for one.
    pub fn account(&self, subject: Subject, now_us: u64) -> Option<Arc<Account>> {
        let mut part = self.part(&subject);
        if let Some(account) = part.get(&subject) {
            return Some(account.clone());
        }
        if self.accounts.load(Ordering::Relaxed) >= self.accounts_max {
            self.unheld.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        self.accounts.fetch_add(1, Ordering::Relaxed);
        let account = Arc::new(Account::default());
        account.used_us.store(now_us, Ordering::Relaxed);
        part.insert(subject, account.clone());
        Some(account)
    }

    /// How many accounts there are.
    pub fn accounts(&self) -> usize {
        self.accounts.load(Ordering::Relaxed)
    }

    /// How many there may be.
    pub fn accounts_max(&self) -> usize {
        self.accounts_max
    }

    /// How often there was no room for one.
    pub fn unheld(&self) -> u64 {
        self.unheld.load(Ordering::Relaxed)
    }

    /// To be called about once a second, by one thread: forgets who has been quiet, and takes the means.
    pub fn tick(&self, now_us: u64) {
        let before_us = self.ticked_us.swap(now_us, Ordering::Relaxed);
        let milliseconds = now_us.saturating_sub(before_us) / 1_000;
        for part in &self.parts {
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            let held = part.len();
            part.retain(|_, account| {
                account.tick(milliseconds);
                let quiet_us = now_us.saturating_sub(account.used_us.load(Ordering::Relaxed));
                // Who still holds it may spend from it at any time.
                quiet_us < QUIET_US || Arc::strong_count(account) > 1
            });
            self.accounts.fetch_sub(held - part.len(), Ordering::Relaxed);
            let room = part.len() * 4;
            part.shrink_to(room);
        }
    }

    /// Who does most of this, the noisiest first; who does nothing of it is left out. It looks at all
    /// accounts.
    pub fn noisiest(&self, by: By, limit: usize) -> Vec<Noise> {
        let at = match by {
            By::Unit(unit) => unit as usize,
            By::Refusals => UNITS,
        };
        let mut found: Vec<(u64, Subject, Arc<Account>)> = Vec::new();
        let order = |a: &(u64, Subject, Arc<Account>)| Reverse(a.0);
        for part in &self.parts {
            let part = part.lock().unwrap_or_else(PoisonError::into_inner);
            for (subject, account) in part.iter() {
                let rate = account.rates[at].load(Ordering::Relaxed);
                if rate > 0 {
                    found.push((rate, subject.clone(), account.clone()));
                }
            }
            drop(part);
            // Never more than twice what is asked for, and a part.
            if found.len() > limit {
                found.sort_by_key(order);
                found.truncate(limit);
            }
        }
        found.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.name().cmp(&b.1.name())));
        let noise = |(_, subject, account): (u64, Subject, Arc<Account>)| {
            #[expect(
                clippy::cast_precision_loss,
                reason = "thousandths of what happens in a second"
            )]
            let rate = |at: usize| account.rates[at].load(Ordering::Relaxed) as f64 / 1_000.0;
            let per_second = std::array::from_fn(rate);
            Noise { subject, per_second, refusals_per_second: rate(UNITS) }
        };
        found.into_iter().map(noise).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> Subject {
        Subject::User(name.into())
    }

    const COMMAND: Cost = Cost::NOTHING.with(Unit::Commands, 1);

    #[test]
    fn an_account_lets_a_second_pass_at_once_and_then_its_share() {
        let (quotas, limits) = (Quotas::default(), Limits::NONE.with(Unit::Commands, 100));
        let mut passed = 0;
        for ms in 5_000..7_000 {
            for _ in 0..10 {
                // Each time as if by another connection.
                let account = quotas.account(user("alice"), ms * 1_000).unwrap();
                match account.over(&COMMAND, &limits, ms * 1_000) {
                    None => {
                        account.spend(&COMMAND, &limits, ms * 1_000);
                        passed += 1;
                    }
                    Some(unit) => {
                        assert_eq!(unit, Unit::Commands);
                        account.refused(ms * 1_000);
                    }
                }
            }
        }
        assert!((295..=305).contains(&passed), "{passed}");
        let other = quotas.account(user("bob"), 7_000_000).unwrap();
        assert_eq!(other.over(&COMMAND, &limits, 7_000_000), None);
    }

    #[test]
    fn only_what_is_limited_and_asked_for_counts() {
        let account = Account::default();
        let limits = Limits::NONE.with(Unit::Joins, 1);
        let joins = Cost::NOTHING.with(Unit::Joins, 1_000_000).with(Unit::Bytes, u64::MAX);
        account.spend(&joins, &limits, 1);
        assert_eq!(account.over(&joins, &limits, 1), Some(Unit::Joins));
        assert_eq!(account.over(&COMMAND, &limits, 1), None);
        assert_eq!(account.over(&joins, &Limits::NONE, 1), None, "0 is no limit");
        // Whatever it was, it is over soon.
        assert_eq!(account.over(&joins, &limits, AHEAD_NS / 1_000), None);
    }

    #[test]
    fn who_is_quiet_is_forgotten_and_there_is_room_for_so_many() {
        let quotas = Quotas::new(100);
        let held = quotas.account(user("held"), 0).unwrap();
        for at in 0..200 {
            quotas.account(user(&format!("u{at}")), 0);
        }
        assert_eq!((quotas.accounts(), quotas.unheld()), (100, 101));
        quotas.tick(QUIET_US - 1);
        assert_eq!(quotas.accounts(), 100);
        quotas.tick(QUIET_US);
        assert_eq!(quotas.accounts(), 1);
        let again = quotas.account(user("held"), QUIET_US).unwrap();
        assert!(Arc::ptr_eq(&held, &again));
        assert!(quotas.account(user("u150"), QUIET_US).is_some());
    }

    #[test]
    fn the_noisiest_are_named() {
        let quotas = Quotas::default();
        for second in 1..=10 {
            for (name, commands, refused) in [("loud", 500, 9), ("quiet", 1, 0), ("half", 250, 20)]
            {
                let account = quotas.account(user(name), second * 1_000_000).unwrap();
                let cost = COMMAND.with(Unit::Commands, commands).with(Unit::Bytes, 7);
                account.spend(&cost, &Limits::NONE, second * 1_000_000);
                (0..refused).for_each(|_| account.refused(second * 1_000_000));
            }
            let address = Subject::Address("192.0.2.1".parse().unwrap());
            quotas.account(address, second * 1_000_000).unwrap();
            quotas.tick(second * 1_000_000);
        }
        let names = |by, limit| -> Vec<String> {
            quotas.noisiest(by, limit).into_iter().map(|it| it.subject.name()).collect()
        };
        assert_eq!(names(By::Unit(Unit::Commands), 10), ["loud", "half", "quiet"]);
        assert_eq!(names(By::Unit(Unit::Commands), 1), ["loud"]);
        assert_eq!(names(By::Refusals, 10), ["half", "loud"]);
        let loud = &quotas.noisiest(By::Unit(Unit::Commands), 1)[0];
        assert!((450.0..=500.0).contains(&loud.per_second[Unit::Commands as usize]), "{loud:?}");
        assert!((8.0..=9.0).contains(&loud.refusals_per_second), "{loud:?}");
    }

    #[test]
    fn many_threads_spend_from_one_account() {
        let (quotas, limits) = (Quotas::default(), Limits::NONE.with(Unit::Publishes, 1_000_000));
        let cost = Cost::NOTHING.with(Unit::Publishes, 1);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let account = quotas.account(user("alice"), 0).unwrap();
                    (0..10_000).for_each(|_| account.spend(&cost, &limits, 0));
                });
            }
        });
        let account = quotas.account(user("alice"), 0).unwrap();
        assert_eq!(account.spent[Unit::Publishes as usize].load(Ordering::Relaxed), 40_000);
        assert_eq!(account.until_ns[Unit::Publishes as usize].load(Ordering::Relaxed), 40_000_000);
    }
}
