//! Advice for a host: how many connections it can serve, and what to change for more.
//!
//! [`Host::read`] only collects facts. A fact that the host or a container hides is absent.
//! [`advise`] only evaluates facts, so it works for a host recorded as JSON as well. The advice becomes
//! text with [`text`], [`json`], [`sysctl_drop_in`] and [`systemd_unit`]. Only [`apply`] changes a
//! host.
//!
//! The command's exit status is 0 if [`Advice::fits`], 3 if not, and 2 for an invalid command line.

mod advice;
mod apply;
mod cgroup;
mod checks;
mod estimate;
mod files;
mod finding;
mod format;
mod host;
mod probe;
mod read;
mod render;
mod useless;
mod want;

pub use advice::{Advice, Bound, advise};
pub use apply::{Applied, apply};
pub use cgroup::Cgroup;
pub use estimate::{Estimate, cost};
pub use files::{package_unit, sysctl_drop_in, systemd_unit};
pub use finding::{Finding, Level, Remedy, Sysctl};
pub use host::Host;
pub use probe::IoUring;
pub use render::{json, text};
pub use useless::Useless;
pub use want::Want;
