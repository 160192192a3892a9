//! Limits what users, addresses and API keys do in a second, over all their connections, and finds those that do
//! most.
//!
//! [`Quotas`] has an [`Account`] only for a subject that does more within a second than is free ([`Limits::free`]),
//! which a table of small counters shows. So a crowd of subjects that each do a little, as when clients connect, takes
//! no memory at all. An account without use for [`QUIET_US`] is forgotten, with its credit and its debt. There are at
//! most [`ACCOUNTS_MAX`] accounts. A subject that comes at that limit has none, and no rate limits it.
//!
//! Free use is charged to no account. So a limit of N a second lets N pass at once, and at most twice the free use
//! more: in the second in which a subject becomes active, and in the one before.
//!
//! Accounts and counters are atomics, so that all threads use them at the same time; the table of accounts is
//! locked in parts, and only to find the account of a subject that has one.
//!
//! Callers pass the time, in microseconds of the node's clock.

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

/// Microseconds without use after which an account is forgotten.
pub const QUIET_US: u64 = 5_000_000;

/// Requests or commands that are free in a second, at most, each of up to [`FREE_BYTES`].
pub const FREE_MAX: u8 = 16;

/// Bytes that count as much as a command, for a subject without an account.
pub const FREE_BYTES: u64 = 4 << 10;

/// Free use is no more than this share of each limit.
const FREE_SHARE: u64 = 8;

/// Parts of the table, each with a lock of its own.
const PARTS: usize = 64;

/// How far an account may be ahead of its rate, in nanoseconds: one large request doesn't close it for hours.
const AHEAD_NS: u64 = 10_000_000_000;

const SECOND_NS: u64 = 1_000_000_000;

/// A subject of rates.
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
    /// Returns an owned copy.
    pub fn subject(self) -> Subject {
        match self {
            Who::User(name) => Subject::User(name.into()),
            Who::Address(address) => Subject::Address(address),
            Who::Key(name) => Subject::Key(name.into()),
        }
    }
}

/// A subject of rates, owned.
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
    /// Returns the same, borrowed.
    pub fn who(&self) -> Who<'_> {
        match self {
            Subject::User(name) => Who::User(name),
            Subject::Address(address) => Who::Address(*address),
            Subject::Key(name) => Who::Key(name),
        }
    }

    /// Returns its kind: `user`, `address` or `key`.
    pub fn kind(&self) -> &'static str {
        match self {
            Subject::User(_) => "user",
            Subject::Address(_) => "address",
            Subject::Key(_) => "key",
        }
    }

    /// Returns its name, or its address as text.
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
    /// Received bytes.
    Bytes,
    /// Published messages.
    Publishes,
    /// Joined topics.
    Joins,
}

impl Unit {
    /// All, in the order of their discriminants.
    pub const ALL: [Unit; 4] = [Unit::Commands, Unit::Bytes, Unit::Publishes, Unit::Joins];
}

const UNITS: usize = Unit::ALL.len();

/// The limits of each unit per second; 0 is no limit.
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

    /// Returns these limits with another one for this unit.
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

    /// Returns the limit of this unit per second; 0 is no limit.
    pub const fn of(&self, unit: Unit) -> u64 {
        self.per_second[unit as usize]
    }

    /// True if any unit has a limit.
    pub fn any(&self) -> bool {
        self.per_second != [0; UNITS]
    }

    /// Returns how much use of this cost is free in a second: [`FREE_MAX`], or an eighth of the lowest limit of the
    /// used units, which is nothing for a limit below 8.
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

    /// Returns this cost with `amount` of this unit.
    #[must_use]
    pub const fn with(mut self, unit: Unit, amount: u64) -> Self {
        self.0[unit as usize] = amount;
        self
    }

    /// Returns how much of this unit it takes.
    pub const fn of(&self, unit: Unit) -> u64 {
        self.0[unit as usize]
    }

    /// Returns how much of the free use it takes: at least as much as of any unit.
    fn weight(&self) -> u64 {
        let [commands, bytes, publishes, joins] = self.0;
        commands.max(publishes).max(joins).max(1).saturating_add(bytes / FREE_BYTES)
    }
}

/// The recent use of a user, an address or a key.
#[derive(Debug, Default)]
pub struct Account {
    /// By unit, when the rate has made up for the use, in nanoseconds.
    until_ns: [AtomicU64; UNITS],
    /// The total use by unit, and last the rejections.
    spent: [AtomicU64; UNITS + 1],
    /// The total use by unit, and last the rejections, as they were at the last tick.
    before: [AtomicU64; UNITS + 1],
    /// The mean rates per second over the last few, in thousandths.
    rates: [AtomicU64; UNITS + 1],
    /// When the account was last used.
    used_us: AtomicU64,
}

impl Account {
    /// Returns the unit whose limit rejects this cost, if any. A limit lets a second's worth pass at once, and then
    /// its rate.
    pub fn rejecting_unit(&self, cost: &Cost, limits: &Limits, now_us: u64) -> Option<Unit> {
        Unit::ALL.into_iter().find(|unit| {
            cost.of(*unit) > 0 && limits.of(*unit) > 0 && self.is_exceeded(*unit, now_us)
        })
    }

    /// True if the use of this unit is more than a second's worth ahead.
    pub fn is_exceeded(&self, unit: Unit, now_us: u64) -> bool {
        let until_ns = self.until_ns[unit as usize].load(Ordering::Relaxed);
        until_ns > now_us * 1_000 + SECOND_NS
    }

    /// Returns how long this unit stays over its limit.
    pub fn wait(&self, unit: Unit, now_us: u64) -> Duration {
        let until_ns = self.until_ns[unit as usize].load(Ordering::Relaxed);
        Duration::from_nanos(until_ns.saturating_sub(now_us * 1_000 + SECOND_NS))
    }

    /// Charges a cost to the account.
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
                // The update can't fail: it always has a new value.
                let _ = self.until_ns[at].fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
            }
        }
    }

    /// Counts a rejection.
    pub fn refused(&self, now_us: u64) {
        self.used_us.store(now_us, Ordering::Relaxed);
        self.spent[UNITS].fetch_add(1, Ordering::Relaxed);
    }

    /// Updates the means; called by one thread at a time.
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

/// The measure by which the noisiest are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The use of this unit.
    Unit(Unit),
    /// Rejections.
    Refusals,
}

/// What a subject does in a second, as a mean of the last few.
#[derive(Clone, Debug, PartialEq)]
pub struct Noise {
    /// The subject.
    pub subject: Subject,
    /// By [`Unit`].
    pub per_second: [f64; UNITS],
    /// Rejections per second.
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
    /// Makes quotas with at most this many accounts.
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

    /// Locks the part with the accounts of a counter. Each counter belongs to one part.
    fn part(&self, cell: usize) -> MutexGuard<'_, HashMap<Subject, Arc<Account>>> {
        let part = &self.parts[cell / (Sketch::CELLS / PARTS)];
        part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the account to charge for this cost, if the subject has one. Otherwise makes one if the use is more
    /// than is free in this second, and there is capacity.
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

    /// Returns the number of accounts.
    pub fn accounts(&self) -> usize {
        self.accounts.load(Ordering::Relaxed)
    }

    /// Returns the limit of accounts.
    pub fn accounts_max(&self) -> usize {
        self.accounts_max
    }

    /// How often no account could be made, because all were in use.
    pub fn without_account(&self) -> u64 {
        self.without_account.load(Ordering::Relaxed)
    }

    /// Forgets quiet accounts, and updates the means. One thread calls this about once a second.
    pub fn tick(&self, now_us: u64) {
        let before_us = self.ticked_us.swap(now_us, Ordering::Relaxed);
        let milliseconds = now_us.saturating_sub(before_us) / 1_000;
        for first in (0..Sketch::CELLS).step_by(Sketch::CELLS / PARTS) {
            let mut part = self.part(first);
            let before = part.len();
            part.retain(|_, account| {
                account.tick(milliseconds);
                let quiet_us = now_us.saturating_sub(account.used_us.load(Ordering::Relaxed));
                // A caller that still has the account may charge it at any time.
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

    /// Returns the subjects that do most of this, the noisiest first, without those that do nothing of it. Scans
    /// all accounts.
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
            // `found` never has more than twice `limit`, and a part.
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
