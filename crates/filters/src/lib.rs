//! Topic filters of MQTT in large numbers: a [`FilterTrie`] finds the filters that match a topic, and a
//! [`NameMap`] the topics that a filter matches. What a filter matches is said in [`model::filter`].
//!
//! Both are plain tables: who shares one between threads has a lock around it. Filters are given without
//! `$share`, and are valid ([`model::filter::Filter::parse`]).

#![forbid(unsafe_code)]
#![warn(clippy::match_wildcard_for_single_variants, clippy::wildcard_enum_match_arm)]

mod levels;
mod names;
#[cfg(test)]
mod tests;
mod trie;

pub use names::{NameMap, Page, SCANNED_MAX};
pub use trie::FilterTrie;

use std::num::NonZeroU32;

/// A number of a [`tables::Slab`], and one more, so that no number takes no more room than one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Id(NonZeroU32);

impl Id {
    /// No slab has this number.
    const NONE: Id = Id(NonZeroU32::MAX);

    /// A slab's numbers end a page below `u32::MAX`.
    fn of(number: u32) -> Self {
        Id(NonZeroU32::MIN.saturating_add(number))
    }

    fn number(self) -> u32 {
        self.0.get() - 1
    }
}
