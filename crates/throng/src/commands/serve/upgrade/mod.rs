//! Replaces a running process by a new version. The old process copies its state to the new one while it serves, and
//! passes the rest on in one moment. See docs/internals/upgrades.md.

mod new;
mod old;
mod process;
mod switch;
pub(super) mod wire;

pub(super) use new::{TakeOver, Waiting};
pub(super) use old::{ByCall, Old, Upgrade};
pub(super) use process::{Forwarded, arguments};

use rustix::time::{ClockId, clock_gettime};

/// Returns the time of the clock that all processes of a host share, in nanoseconds.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let ns = now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec);
    u64::try_from(ns).unwrap_or(0)
}
