//! The rates of keys, each for all of its callers together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quotas::{Account, Cost, Limits, Quotas, Unit, Who};

use super::Caller;
use crate::http::{Rejection, Served};

/// The cost of a call.
pub(crate) const COMMAND: Cost = Cost::NOTHING.with(Unit::Commands, 1);

/// The cost of a message.
pub(crate) const PUBLISH: Cost = Cost::NOTHING.with(Unit::Publishes, 1);

/// Rejections of keys, by the limit.
#[derive(Default)]
pub(crate) struct RejectionCounts([AtomicU64; Unit::ALL.len()]);

impl RejectionCounts {
    /// Returns the counts by the name of the setting with the limit's default.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let count =
            |unit: &Unit| Some((setting(*unit)?, self.0[*unit as usize].load(Ordering::Relaxed)));
        Unit::ALL.iter().filter_map(count)
    }
}

/// Returns the setting that limits a unit for keys, if there is one.
fn setting(unit: Unit) -> Option<&'static str> {
    match unit {
        Unit::Commands => Some("limits.commands_per_second_per_key_max"),
        Unit::Bytes => Some("limits.bytes_per_second_per_key_max"),
        Unit::Publishes => Some("limits.publishes_per_second_per_key_max"),
        Unit::Joins => None,
    }
}

/// A key, its limits, and the quotas to charge.
struct Charge<'a> {
    name: &'a str,
    limits: &'a Limits,
    quotas: &'a Quotas,
    now_us: u64,
}

impl Charge<'_> {
    /// Returns the key's account. A key that uses little has none.
    fn account(&self, cost: &Cost) -> Option<Arc<Account>> {
        self.quotas.account(Who::Key(self.name), cost, self.limits, self.now_us)
    }
}

impl Caller {
    fn charge<'a>(&'a self, served: &'a (impl Served + ?Sized)) -> Option<Charge<'a>> {
        let key = self.key.as_deref()?;
        let (name, limits) = (&*key.name, &key.limits);
        Some(Charge { name, limits, quotas: served.quotas(), now_us: served.now_us() })
    }

    /// Charges the caller's key for a cost. Rejects the call if the key is above its rate.
    pub fn spend(&self, cost: &Cost, served: &(impl Served + ?Sized)) -> Result<(), Rejection> {
        let Some(charge) = self.charge(served) else { return Ok(()) };
        let Some(account) = charge.account(cost) else { return Ok(()) };
        let Charge { name, limits, now_us, .. } = charge;
        // Bytes are charged when they have arrived.
        let minimum_cost =
            if cost.of(Unit::Commands) > 0 { cost.with(Unit::Bytes, 1) } else { *cost };
        let Some(unit) = account.rejecting_unit(&minimum_cost, limits, now_us) else {
            account.spend(cost, limits, now_us);
            return Ok(());
        };
        account.refused(now_us);
        served.access().rejections.0[unit as usize].fetch_add(1, Ordering::Relaxed);
        let what = match unit {
            Unit::Commands => "calls",
            Unit::Bytes => "bytes",
            Unit::Publishes => "messages",
            Unit::Joins => "topics",
        };
        let message = format!(
            "the API key {name:?} has exceeded its limit of {} {what} per second ({}, or the \
             key's own): try again in a moment",
            limits.of(unit),
            setting(unit).unwrap_or_default()
        );
        Err(Rejection::rate_limited(account.wait(unit, now_us), message))
    }

    /// Charges the caller's key for the bytes of a body, which has arrived.
    pub fn took(&self, bytes: usize, served: &(impl Served + ?Sized)) {
        let cost = Cost::NOTHING.with(Unit::Bytes, bytes as u64);
        if let Some(charge) = self.charge(served)
            && let Some(account) = charge.account(&cost)
        {
            account.spend(&cost, charge.limits, charge.now_us);
        }
    }
}
