//! What a shard asks of the history, which may answer later.

use history::{Asker, Completion, HistoryReply, Piece, Pull, Start, TopicCursor};
use model::{CloseReason, ResumeRequest, Since};

use super::{Catchup, Query, Recovery, Starting};
use crate::core::Core;
use crate::core::command::Command;

impl Recovery {
    /// Where catch-ups with topics begin. If the answer comes later, gives what can be claimed until then,
    /// and the query: the topics are held back meanwhile, and pulled from there on.
    pub(crate) fn request_start(
        &mut self,
        core: &mut Core,
        slot: u32,
        topics: &[(u64, &str)],
        request: &ResumeRequest,
    ) -> (Start, Option<Query>) {
        let serial = core.table.get(slot).map_or(0, |connection| connection.serial);
        let (handle, query) = (core.handle.clone(), self.catchups.query());
        let asker = Asker::default();
        let completion = Completion::of(&asker, move |start: Result<Start, _>| {
            handle.send(Command::Started { slot, serial, query, start: start.ok() });
        });
        match core.history.start(topics, request, completion) {
            Ok(HistoryReply::Now(start)) => return (start, None),
            Ok(HistoryReply::Later) => {}
            Err(_) => {
                core.handle.send(Command::Started { slot, serial, query, start: None });
            }
        }
        (self.claim(core, topics, request), Some(Query { number: query, asker }))
    }

    /// What a connection has of topics for certain, while the history has not said where its catch-ups
    /// begin.
    fn claim(&self, core: &Core, topics: &[(u64, &str)], request: &ResumeRequest) -> Start {
        let top = core.history().top();
        let claim = |(hash, name): &(u64, &str)| {
            let compact = core.history().rule(name).is_some_and(|rule| rule.compact);
            let since = request.of(name);
            let after = match since {
                None if compact => 0,
                None => top.offset,
                // Nobody knows yet what is there.
                Some(Since::Start | Since::Last(_)) => 0,
                // Whoever comes back with the position of another log has nothing of this one.
                Some(Since::Token(token)) => {
                    TopicCursor::offset_of(top.epoch, name, token).unwrap_or(0)
                }
            };
            let is_new = since.is_some_and(|since| since.token().is_none());
            let whole = is_new || (compact && after == 0);
            TopicCursor { hash: *hash, topic: (*name).into(), after, whole }
        };
        let topics: Vec<TopicCursor> = topics.iter().map(claim).collect();
        Start { gaps: vec![None; topics.len()], topics, top }
    }

    /// The history could not answer a query. True for a connection that waits for the answer: where a
    /// catch-up begins, or the next piece.
    pub(crate) fn failed(&mut self, slot: u32, query: u32) -> bool {
        let Some(catchups) = self.catchups.by_slot.get_mut(&slot) else {
            return false;
        };
        if catchups.reading == Some(query) && catchups.list.is_empty() {
            // It has left what it read for.
            self.catchups.by_slot.remove(&slot);
            return false;
        }
        let starts = |it: &Catchup| it.starting.as_ref().is_some_and(|it| it.query.number == query);
        catchups.reading == Some(query) || catchups.list.iter().any(starts)
    }

    /// The history has said where catch-ups of a connection begin.
    pub(crate) fn started(&mut self, core: &mut Core, slot: u32, query: u32, start: Start) {
        let Some(catchups) = self.catchups.by_slot.get_mut(&slot) else {
            return;
        };
        for (mut cursor, gap) in start.topics.into_iter().zip(start.gaps) {
            let ours = |it: &&mut Catchup| {
                let is_its = it.starting.as_ref().is_some_and(|it| it.query.number == query);
                is_its && it.cursor.hash == cursor.hash
            };
            // One that it has left meanwhile has no catch-up any more.
            let Some(catchup) = catchups.list.iter_mut().find(ours) else { continue };
            let Some(Starting { since, top, .. }) = catchup.starting.take() else { continue };
            let says = since.is_some();
            if !says {
                // What was published while the query was under way is not missed.
                cursor.after = cursor.after.min(catchup.cursor.after);
            } else if cursor.whole {
                // The newest messages were counted later than it entered.
                cursor.after = cursor.after.min(top);
            }
            let reply = catchups.replies.iter_mut().find(|it| it.numbers.contains(&catchup.number));
            if let Some(reply) = reply.filter(|_| says) {
                // The place that was claimed for it gives way to the one that it has.
                let claimed = std::mem::replace(&mut reply.claimed, false);
                let before = if claimed { top } else { reply.since.offset };
                reply.since.offset = if cursor.whole { before } else { before.min(cursor.after) };
                reply.whole |= cursor.whole;
                reply.gaps.extend(gap.map(|gap| (cursor.topic.clone(), gap)));
            }
            catchup.cursor = cursor;
        }
        self.pull_more(core, slot);
    }

    /// The next piece for some catch-ups of a connection, if it is to be had at once. Else it comes
    /// later, and nothing else is read for the connection until then.
    pub(super) fn request_piece(
        &mut self,
        core: &mut Core,
        slot: u32,
        numbers: &[u32],
        pull: Pull,
        out: &mut Vec<u8>,
    ) -> Option<Piece> {
        let serial = core.table.get(slot)?.serial;
        let (handle, query) = (core.handle.clone(), self.catchups.query());
        // The query's number goes first, and then for which catch-ups it is.
        let numbers: Vec<u32> = std::iter::once(query).chain(numbers.iter().copied()).collect();
        let completion = Completion::new(move |piece: Result<Piece, _>| {
            handle.send(Command::Pulled { slot, serial, numbers, piece: piece.ok() });
        });
        match core.history.read(pull, completion) {
            Ok(HistoryReply::Now(piece)) => return Some(piece),
            Ok(HistoryReply::Later) => {
                if let Some(catchups) = self.catchups.by_slot.get_mut(&slot) {
                    catchups.reading = Some(query);
                }
            }
            // It comes back, and finds the history less busy.
            Err(_) => self.dismiss(core, slot, CloseReason::Overloaded, out),
        }
        None
    }
}
