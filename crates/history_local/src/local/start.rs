//! The offsets from which returning and new clients read topics.

use broker::HistoryLog;
use history::{Completion, History, HistoryError, HistoryReply, Start, TopicCursor};
use model::{Name, RecoveryGap, ResumeRequest, Since};
use std::sync::atomic::Ordering;
use store::Reader;

use super::count::{Count, RequestedTopic};
use super::{Local, State, unix_ms};

impl Local {
    /// Finds the offsets from which to read topics, as far as memory knows; `found` are offsets before the newest
    /// messages of topics, by hash. The error lists what the disk must find first.
    pub(super) fn resolve(
        &self,
        topics: &[(u64, &str)],
        request: &ResumeRequest,
        found: &[(u64, u64)],
    ) -> Result<Start, Vec<RequestedTopic>> {
        let state = self.state();
        let top = state.delivered;
        let mut start = Start { topics: Vec::new(), gaps: Vec::new(), top: self.id(top) };
        let mut requested = Vec::new();
        for (hash, name) in topics {
            let compact = self.rule(name).is_some_and(|rule| rule.compact);
            let newcomer = if compact { 0 } else { top };
            let since = request.of(name);
            let (after, gap) = match since {
                None => (newcomer, None),
                Some(Since::Start) => (0, None),
                Some(Since::Last(_)) if compact => (0, None),
                Some(Since::Last(messages)) => {
                    let messages = *messages as usize;
                    let known = found.iter().find(|(of, _)| of == hash).map(|(_, after)| *after);
                    let known = known.or_else(|| self.before_newest(&state, *hash, name, messages));
                    if known.is_none() {
                        requested.push(RequestedTopic {
                            hash: *hash,
                            topic: Name::from(*name),
                            messages,
                        });
                    }
                    (known.unwrap_or(top).min(top), None)
                }
                Some(Since::Token(token)) => {
                    match TopicCursor::offset_of(self.epoch(), name, token) {
                        // A publisher knows its message's id while the store still writes it.
                        Some(after) if after <= state.last => {
                            let after = after.min(top);
                            // A client that reads a state never had what was gone before.
                            let state_top = TopicCursor::state_top_of(self.epoch(), name, token);
                            let here = state.windows.reaches(*hash, name, after.max(state_top));
                            match here || self.0.store.is_some() {
                                true => (after, None),
                                // The client gets the state, but not the removals from it.
                                false if compact => (0, Some(RecoveryGap::TooOld)),
                                false => (after, Some(RecoveryGap::TooOld)),
                            }
                        }
                        Some(_) | None if compact => (0, Some(RecoveryGap::Epoch)),
                        Some(_) | None => (top, Some(RecoveryGap::Epoch)),
                    }
                }
            };
            let cursor = TopicCursor::first(*hash, name, after, compact, since, start.top);
            start.topics.push(cursor);
            start.gaps.push(gap);
        }
        drop(state);
        if !requested.is_empty() {
            return Err(requested);
        }
        if request.has_token() {
            let has_gap = start.gaps.iter().any(Option::is_some);
            let counts = &self.0.counts;
            let count = if has_gap { &counts.unrecovered } else { &counts.recovered };
            count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(start)
    }

    /// Returns the offset before a topic's newest messages, if memory knows it.
    pub(super) fn before_newest(
        &self,
        state: &State,
        hash: u64,
        topic: &str,
        messages: usize,
    ) -> Option<u64> {
        let windows = &state.windows;
        // Below the topic's floor, memory may have fewer messages than the disk.
        let above = if self.0.store.is_some() { windows.floor(hash, topic) } else { 0 };
        let found = windows.before_newest(hash, topic, above, messages, unix_ms());
        found.or_else(|| (above == 0).then_some(0))
    }

    /// Does the same after the store's reader has found the newest messages of some topics.
    pub(super) fn resolve_later(
        &self,
        topics: &[(u64, &str)],
        request: &ResumeRequest,
        requested: Vec<RequestedTopic>,
        completion: Completion<Start>,
    ) -> Result<HistoryReply<Start>, HistoryError> {
        let request = request.clone();
        let topics: Vec<(u64, Name)> =
            topics.iter().map(|(hash, name)| (*hash, Name::from(*name))).collect();
        let found = move |history: &Local, _: &Reader, found: &[(u64, u64)]| {
            let topics: Vec<(u64, &str)> =
                topics.iter().map(|(hash, name)| (*hash, name.as_str())).collect();
            // The offset of each requested topic is found now.
            history.resolve(&topics, &request, found).map_err(|_| HistoryError::Busy)
        };
        self.count_later(Count::new(requested, completion, found))?;
        Ok(HistoryReply::Later)
    }
}
