//! Finds the topics that the filters of MQTT sessions match.

use database::DatabaseError;
use history::{Matching, TopicHash};
use history_local::TopicSearch;
use model::Name;
use model::name::NAME_BYTES_MAX;

use crate::postgres::Postgres;
use crate::session::Database;

/// Topics of memory that are scanned under one lock.
const SCANNED: u32 = 1_024;

/// The most names that one query of the database scans.
const QUERIED: usize = 4_096;

impl Postgres {
    /// Finds topics in memory. `None` if the database may know more: memory has forgotten topics with messages after
    /// the offset.
    pub(crate) fn matching_in_memory(
        &self,
        filters: &[Name],
        after: u64,
        hash: TopicHash,
    ) -> Option<Matching> {
        let mut state = self.state();
        let mut search = TopicSearch::new(filters, after, state.delivered, hash);
        let mut from = Some(0);
        while let Some(at) = from {
            let each = |name: &Name, last: u64| search.scan(name, last);
            from = state.windows.topics_after(at, SCANNED, after, each);
            // Releases the lock in between. What memory forgets meanwhile shows in the check of the next turn.
            drop(state);
            state = self.state();
            if after < state.windows.last_gone() {
                return None;
            }
        }
        Some(search.into_found())
    }

    /// Finds topics in the database.
    pub(crate) async fn matching_of(
        &self,
        database: &Database,
        mut search: TopicSearch,
        is_awaited: impl Fn() -> bool,
    ) -> Result<Matching, DatabaseError> {
        // The client may leave during a long search. Nothing takes the reply then.
        while let Some((prefix, behind)) = search.next_part().filter(|_| is_awaited()) {
            let (from, is_behind) = match &behind {
                Some(behind) => (behind.as_str(), true),
                None => (prefix.as_str(), false),
            };
            let names = (from, is_behind, &*end_of(&prefix));
            let scanned = database.topics(names, search.after(), QUERIED).await?;
            scanned.topics.iter().for_each(|(name, last)| search.scan(name, *last));
            search.end_part(scanned.last);
        }
        Ok(search.into_found())
    }
}

/// Returns a text that comes after all names with this prefix and before all later names.
fn end_of(prefix: &str) -> String {
    // Names are compared by their bytes, which is the order of their characters.
    let last = char::MAX.to_string().repeat(NAME_BYTES_MAX);
    format!("{prefix}{last}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_a_prefix_come_before_its_end_and_others_after() {
        let longest = char::MAX.to_string().repeat(NAME_BYTES_MAX / char::MAX.len_utf8());
        for (prefix, within, after) in [("a/", "a/z", "a0"), ("", &*longest, ""), ("é", "éé", "ê")]
        {
            assert!(prefix < &*end_of(prefix) && within < &*end_of(prefix), "{prefix}");
            assert!(after.is_empty() || after > &*end_of(prefix), "{prefix}");
        }
    }
}
