//! What one process passes to the next when a new version takes its place, as records.
//!
//! The connections' own records are the engine's. All else that a process holds stands in [`Part`]s:
//! each writes what it holds as records with keys, once while the process still serves, and once more
//! when nothing changes any more; of the second time only what differs is passed ([`Sent`]). So the pause
//! depends on how much changed, not on how much there is, and no part has to note its changes.
//!
//! Names of parts, and what a record means, stay for good. A reader passes over parts and fields that it
//! doesn't know, and [`unknown`] says beforehand what that would lose.

#![forbid(unsafe_code)]

mod data;
pub mod message;
mod part;
mod record;
mod sent;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use data::DataRecord;
pub use part::{Again, Changed, Part, PartError, export_all};
pub use record::{RecordError, decode, encode, encode_into};
pub use sent::{Change, Sent};

/// The parts of one process, by name, that another one doesn't know: what they hold would be lost.
pub fn unknown<'a>(ours: &[&'a str], theirs: &[impl AsRef<str>]) -> Vec<&'a str> {
    let knows = |name: &&str| theirs.iter().any(|known| known.as_ref() == *name);
    ours.iter().copied().filter(|name| !knows(name)).collect()
}
