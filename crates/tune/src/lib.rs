//! The host doctor: what this host can hold, and what to change for more.
//!
//! [`Host::read`] collects facts and judges nothing; a fact that the host or a container hides is
//! absent. [`advise`] judges and reads nothing, so a host recorded as JSON is as good as the one
//! underfoot. What follows from the advice is texts ([`text`], [`json`], [`sysctl_drop_in`],
//! [`systemd_unit`]) and one writer, [`apply`].
//!
//! The command's exit status: 0 if [`Advice::fits`], 1 if not, 2 for a wrong command line.

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
