//! Advice for a host: how many connections it can hold, and what to change for more.
//!
//! [`Host::read`] only collects facts. A fact that the host or a container hides is absent.
//! [`advise`] only evaluates facts, so it works for a host recorded as JSON as well. The advice becomes
//! text with [`text`], [`json`], [`sysctl_drop_in`] and [`systemd_unit`]. Only [`apply`] changes a
//! host.
//!
//! The command's exit status is 0 if [`Advice::fits`], 1 if not, and 2 for an invalid command line.

mod advice;
mod apply;
mod cgroup;
mod checks;
mod estimate;
mod files;
mod format;
mod host;
mod probe;
mod render;
mod useless;

pub use advice::{Advice, Bound, Finding, Level, Remedy, Sysctl, Want, advise};
pub use apply::{Applied, apply};
pub use estimate::{Estimate, cost};
pub use files::{sysctl_drop_in, systemd_unit};
pub use host::{Cgroup, Host, IoUring};
pub use render::{json, text};
pub use useless::Useless;
