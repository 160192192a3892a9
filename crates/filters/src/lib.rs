//! Topic filters of MQTT in large numbers: a [`FilterTrie`] finds the filters that match a topic, and a [`NameMap`]
//! the topics that a filter matches. [`model::filter`] defines what a filter matches.
//!
//! Both are plain tables: a caller that shares one between threads has a lock around it. Callers pass filters
//! without `$share`, which are valid ([`model::filter::Filter::parse`]).

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

/// A number of a [`tables::Slab`], plus one, so that an optional number takes no more memory than a number.
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
