//! What users, addresses and API keys may do in a second, all their connections together, and which of
//! them do most.
//!
//! [`Quotas`] holds an [`Account`] for each that does more than a little, and for nobody else: so much
//! within a second that it is more than is free ([`Limits::free`]), which a table of small counters
//! tells. Hence a crowd of which each does a little, as it does when it connects, takes no memory at all.
//! An account that has been quiet for [`QUIET_US`] is forgotten, with all that it was owed or owes. There
//! are at most [`ACCOUNTS_MAX`]; who comes when there is no capacity has none, and is bound by no rate.
//!
//! What is free is charged to nobody: a limit of N a second lets N pass at once, and what is free at most
//! twice more, in the second when somebody becomes active and in the one before.
//!
//! Accounts and counters are atomics, so that all threads use them at the same time; the table of accounts
//! is locked in parts, and only to find the account of somebody who has one.
//!
//! The time is the callers': microseconds of the node's clock.

#![forbid(unsafe_code)]

mod sketch;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::Name;

use crate::sketch::Sketch;

/// The most accounts at a time. One takes about 250 bytes.
pub const ACCOUNTS_MAX: usize = 131_072;

/// An account that nothing was spent from for so long is forgotten, in microseconds.
pub const QUIET_US: u64 = 5_000_000;

/// What is free in a second at the most: so many requests or commands, each of up to [`FREE_BYTES`].
pub const FREE_MAX: u8 = 16;

/// Bytes that count as much as a command, where they are counted before there is an account.
pub const FREE_BYTES: u64 = 4 << 10;

/// What is free is no more than this share of each limit.
const FREE_SHARE: u64 = 8;

/// Parts of the table, each with a lock of its own.
const PARTS: usize = 64;

/// How far ahead of its rate an account is at the most, in nanoseconds: one large request doesn't close
/// it for hours.
const AHEAD_NS: u64 = 10_000_000_000;

const SECOND_NS: u64 = 1_000_000_000;

/// Who is held to a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Who<'a> {
    /// A user, by all of its connections.
    User(&'a str),
    /// An address, or the first one of a network.
    Address(IpAddr),
    /// An API key, by its name.
    Key(&'a str),
}

impl Who<'_> {
    /// The same, to keep.
    pub fn subject(self) -> Subject {
        match self {
            Who::User(name) => Subject::User(name.into()),
            Who::Address(address) => Subject::Address(address),
            Who::Key(name) => Subject::Key(name.into()),
        }
    }
}

/// Who is held to a rate, to keep.
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
    /// The same, borrowed.
    pub fn who(&self) -> Who<'_> {
        match self {
            Subject::User(name) => Who::User(name),
            Subject::Address(address) => Who::Address(*address),
            Subject::Key(name) => Who::Key(name),
        }
    }

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    per_second: [u64; UNITS],
    free: [u8; UNITS],
}

impl Default for Limits {
    fn default() -> Self {
        Limits::NONE
    }
}

impl Limits {
    /// No limits.
    pub const NONE: Limits = Limits { per_second: [0; UNITS], free: [FREE_MAX; UNITS] };

    /// The same with another limit for this unit.
    #[must_use]
    pub const fn with(mut self, unit: Unit, per_second: u64) -> Self {
        let at = unit as usize;
        self.per_second[at] = per_second;
        let each = if at == Unit::Bytes as usize { FREE_BYTES } else { 1 };
        let share = per_second / each / FREE_SHARE;
        let is_less = per_second > 0 && share < FREE_MAX as u64;
        self.free[at] = if is_less { share as u8 } else { FREE_MAX };
        self
    }

    /// How much of this unit a second; 0 is no limit.
    pub const fn of(&self, unit: Unit) -> u64 {
        self.per_second[unit as usize]
    }

    /// Whether there is any.
    pub fn any(&self) -> bool {
        self.per_second != [0; UNITS]
    }

    /// How much is free in a second to who does something of this cost: [`FREE_MAX`], or an eighth of the
    /// lowest limit of what it takes, which is nothing where that is below 8.
    pub fn free(&self, cost: &Cost) -> u8 {
        let taken = self.free.iter().zip(cost.0).filter(|(_, amount)| *amount > 0);
        taken.map(|(free, _)| *free).min().unwrap_or(FREE_MAX)
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

    /// How much it takes of what is free: no unit is used more than this.
    fn weight(&self) -> u64 {
        let [commands, bytes, publishes, joins] = self.0;
        commands.max(publishes).max(joins).max(1).saturating_add(bytes / FREE_BYTES)
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

    /// How long it is over this, from now on.
    pub fn wait(&self, unit: Unit, now_us: u64) -> Duration {
        let until_ns = self.until_ns[unit as usize].load(Ordering::Relaxed);
        Duration::from_nanos(until_ns.saturating_sub(now_us * 1_000 + SECOND_NS))
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
    sketch: Sketch,
    parts: [Mutex<HashMap<Subject, Arc<Account>>>; PARTS],
    hasher: RandomState,
    accounts: AtomicUsize,
    accounts_max: usize,
    /// How often no account could be made.
    without_account: AtomicU64,
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
            sketch: Sketch::default(),
            parts: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            accounts: AtomicUsize::new(0),
            accounts_max,
            without_account: AtomicU64::new(0),
            ticked_us: AtomicU64::new(0),
        }
    }

    fn cell(&self, who: Who<'_>) -> usize {
        usize::try_from(self.hasher.hash_one(who) >> 32).unwrap_or(0) % Sketch::CELLS
    }

    /// The accounts of a part have counters of their own.
    fn part(&self, cell: usize) -> MutexGuard<'_, HashMap<Subject, Arc<Account>>> {
        let part = &self.parts[cell / (Sketch::CELLS / PARTS)];
        part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The account of somebody who is about to use this, to be charged: one is made when it is more than
    /// is free in this second. Nothing where it is not, and where there is no capacity.
    pub fn account(
        &self,
        who: Who<'_>,
        cost: &Cost,
        limits: &Limits,
        now_us: u64,
    ) -> Option<Arc<Account>> {
        let cell = self.cell(who);
        if self.sketch.has_account(cell)
            && let Some(account) = self.part(cell).get(&who.subject())
        {
            return Some(account.clone());
        }
        if self.sketch.add(cell, cost.weight(), now_us) <= limits.free(cost).into() {
            return None;
        }
        let mut part = self.part(cell);
        let subject = who.subject();
        if let Some(account) = part.get(&subject) {
            return Some(account.clone());
        }
        if self.accounts.load(Ordering::Relaxed) >= self.accounts_max {
            self.without_account.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        self.accounts.fetch_add(1, Ordering::Relaxed);
        let account = Arc::new(Account::default());
        account.used_us.store(now_us, Ordering::Relaxed);
        part.insert(subject, account.clone());
        self.sketch.add_account(cell);
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

    /// How often no account could be made, because all were in use.
    pub fn without_account(&self) -> u64 {
        self.without_account.load(Ordering::Relaxed)
    }

    /// To be called about once a second, by one thread: forgets who has been quiet, and takes the means.
    pub fn tick(&self, now_us: u64) {
        let before_us = self.ticked_us.swap(now_us, Ordering::Relaxed);
        let milliseconds = now_us.saturating_sub(before_us) / 1_000;
        for first in (0..Sketch::CELLS).step_by(Sketch::CELLS / PARTS) {
            let mut part = self.part(first);
            let before = part.len();
            part.retain(|_, account| {
                account.tick(milliseconds);
                let quiet_us = now_us.saturating_sub(account.used_us.load(Ordering::Relaxed));
                // Who still holds it may spend from it at any time.
                quiet_us < QUIET_US || Arc::strong_count(account) > 1
            });
            if part.len() < before {
                self.accounts.fetch_sub(before - part.len(), Ordering::Relaxed);
                let mut cells = [false; Sketch::CELLS / PARTS];
                part.keys().for_each(|subject| cells[self.cell(subject.who()) - first] = true);
                self.sketch.keep(first, &cells);
            }
            let capacity = part.len() * 4;
            part.shrink_to(capacity);
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
mod tests;
