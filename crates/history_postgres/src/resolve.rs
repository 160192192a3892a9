//! Finds the offsets from which new and returning clients read topics.

use std::sync::atomic::Ordering;

use broker::HistoryLog;
use history::{History, Start, TopicCursor};
use model::{Name, RecoveryGap, ResumeRequest, Since};

use crate::postgres::{Postgres, unix_ms};
use crate::state::State;

/// The parts of a request that memory can't resolve.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Unknown {
    /// Topics of which memory has fewer messages than the client requested, with the requested number.
    pub newest: Vec<(u64, Name, usize)>,
    /// An offset that the client has seen at another node, and that this node has not delivered.
    pub ahead: Option<u64>,
}

impl Unknown {
    fn is_empty(&self) -> bool {
        self.newest.is_empty() && self.ahead.is_none()
    }
}

/// What the reader has learned from the database for a request.
#[derive(Default)]
pub(crate) struct Known {
    /// Hashes of topics, with the offset before the newest messages of each.
    pub newest: Vec<(u64, u64)>,
    /// The last offset of the log.
    pub last: Option<u64>,
}

impl Postgres {
    /// Returns the offsets from which to read topics, by memory and `known`. The error says what to read from the
    /// database first.
    pub(crate) fn resolve(
        &self,
        topics: &[(u64, &str)],
        request: &ResumeRequest,
        known: &Known,
    ) -> Result<Start, Unknown> {
        let state = self.state();
        let top = state.delivered;
        let mut start = Start { topics: Vec::new(), gaps: Vec::new(), top: self.id(top) };
        let mut unknown = Unknown::default();
        for (hash, name) in topics {
            let compact = self.rule(name).is_some_and(|rule| rule.compact);
            let newcomer = if compact { 0 } else { top };
            let since = request.of(name);
            let (after, gap) = match since {
                None => (newcomer, None),
                Some(Since::Start) => (0, None),
                Some(Since::Last(_)) if compact => (0, None),
                Some(Since::Last(messages)) => {
                    let messages = usize::try_from(*messages).unwrap_or(usize::MAX);
                    let found = known.newest.iter().find(|(of, _)| of == hash);
                    let found = found.map(|(_, after)| *after);
                    let found = found.or_else(|| before_newest(&state, *hash, name, messages));
                    if found.is_none() {
                        unknown.newest.push((*hash, Name::from(*name), messages));
                    }
                    (found.unwrap_or(top).min(top), None)
                }
                Some(Since::Token(token)) => {
                    match TopicCursor::offset_of(self.epoch(), name, token) {
                        Some(after) if after <= top => (after, None),
                        Some(after) if known.last.is_none_or(|last| after <= last) => {
                            unknown.ahead = unknown.ahead.max(Some(after));
                            (top, None)
                        }
                        Some(_) | None => (newcomer, Some(RecoveryGap::Epoch)),
                    }
                }
            };
            let cursor = TopicCursor::first(*hash, name, after, compact, since, start.top);
            start.topics.push(cursor);
            start.gaps.push(gap);
        }
        drop(state);
        if !unknown.is_empty() {
            return Err(unknown);
        }
        if request.has_token() {
            let has_gap = start.gaps.iter().any(Option::is_some);
            let counts = &self.0.counts;
            let count = if has_gap { &counts.unrecovered } else { &counts.recovered };
            count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(start)
    }
}

/// Returns the offset before a topic's newest messages, or `None` if memory has fewer.
pub(crate) fn before_newest(state: &State, hash: u64, topic: &str, messages: usize) -> Option<u64> {
    let above = state.windows.floor(hash, topic);
    state.windows.before_newest(hash, topic, above, messages, unix_ms())
}
