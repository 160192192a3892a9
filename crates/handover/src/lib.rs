//! The records that one process passes to the next when a new version replaces it.
//!
//! The engine writes the connections' own records. All other state of a process is in [`Part`]s: each writes its
//! state as records with keys, once while the process still serves, and once more when nothing changes any more. The
//! second time only the differences are passed ([`Sent`]). So the pause depends on the number of changes and not on
//! the amount of state, and no part has to record its changes.
//!
//! Names of parts, and the meaning of a record, never change. A reader ignores parts and fields that it doesn't
//! know, and [`unknown`] reports beforehand what that would lose.

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

/// Returns the names of the parts of one process that another one doesn't know: their state would be lost.
pub fn unknown<'a>(ours: &[&'a str], theirs: &[impl AsRef<str>]) -> Vec<&'a str> {
    let knows = |name: &&str| theirs.iter().any(|known| known.as_ref() == *name);
    ours.iter().copied().filter(|name| !knows(name)).collect()
}
