//! Queries to the history, which may reply later.

use history::{Completion, HistoryReply, Piece, Pull, Requester, Start, TopicCursor};
use model::{CloseReason, ResumeRequest, Since};

use super::{Catchup, Query, Recovery, Starting};
use crate::core::Core;
use crate::core::command::Command;

impl Recovery {
    /// Returns where catch-ups with topics begin. If the history replies later, returns what is certain until then, and
    /// the query. The live messages of the topics are deferred meanwhile, and their messages pulled from there on.
    pub(crate) fn request_start(
        &mut self,
        core: &mut Core,
        slot: u32,
        topics: &[(u64, &str)],
        request: &ResumeRequest,
    ) -> (Start, Option<Query>) {
        let serial = core.table.get(slot).map_or(0, |connection| connection.serial);
        let (handle, query) = (core.handle.clone(), self.catchups.query());
        let requester = Requester::default();
        let completion = Completion::of(&requester, move |start: Result<Start, _>| {
            handle.send(Command::Started { slot, serial, query, start: start.ok() });
        });
        match core.history.start(topics, request, completion) {
            Ok(HistoryReply::Now(start)) => return (start, None),
            Ok(HistoryReply::Later) => {}
            Err(_) => {
                core.handle.send(Command::Started { slot, serial, query, start: None });
            }
        }
        (self.claim(core, topics, request), Some(Query { number: query, requester }))
    }

    /// Returns which messages of topics a connection certainly has, while the history has not replied where its
    /// catch-ups begin.
    fn claim(&self, core: &Core, topics: &[(u64, &str)], request: &ResumeRequest) -> Start {
        let top = core.history().top();
        let claim = |(hash, name): &(u64, &str)| {
            let compact = core.history().rule(name).is_some_and(|rule| rule.compact);
            let since = request.of(name);
            let after = match since {
                None if compact => 0,
                None => top.offset,
                // It is not known yet which messages the history has.
                Some(Since::Start | Since::Last(_)) => 0,
                // A client with a position of another log has no message of this one.
                Some(Since::Token(token)) => {
                    TopicCursor::offset_of(top.epoch, name, token).unwrap_or(0)
                }
            };
            TopicCursor::first(*hash, name, after, compact, since, top)
        };
        let topics: Vec<TopicCursor> = topics.iter().map(claim).collect();
        Start { gaps: vec![None; topics.len()], topics, top }
    }

    /// The history could not process a query. Returns true if the connection still waits for the reply: where a
    /// catch-up begins, or the next piece.
    pub(crate) fn failed(&mut self, slot: u32, query: u32) -> bool {
        let Some(catchups) = self.catchups.by_slot.get_mut(&slot) else {
            return false;
        };
        if catchups.reading == Some(query) && catchups.list.is_empty() {
            // The connection has left the topics of the query.
            self.catchups.by_slot.remove(&slot);
            return false;
        }
        let starts = |it: &Catchup| it.starting.as_ref().is_some_and(|it| it.query.number == query);
        catchups.reading == Some(query) || catchups.list.iter().any(starts)
    }

    /// The history has replied where the catch-ups of a connection begin.
    pub(crate) fn started(&mut self, core: &mut Core, slot: u32, query: u32, start: Start) {
        let Some(catchups) = self.catchups.by_slot.get_mut(&slot) else {
            return;
        };
        for (mut cursor, gap) in start.topics.into_iter().zip(start.gaps) {
            let ours = |it: &&mut Catchup| {
                let is_its = it.starting.as_ref().is_some_and(|it| it.query.number == query);
                is_its && it.cursor.hash == cursor.hash
            };
            // A topic that the connection has left meanwhile has no catch-up any more.
            let Some(catchup) = catchups.list.iter_mut().find(ours) else { continue };
            let Some(Starting { since, top, .. }) = catchup.starting.take() else { continue };
            let says = since.is_some();
            if !says {
                // Messages that were published during the query are live messages.
                cursor.after = cursor.after.min(catchup.cursor.after);
            } else if cursor.whole {
                // The newest messages were counted after the connection had joined.
                cursor.after = cursor.after.min(top);
            }
            let reply = catchups.replies.iter_mut().find(|it| it.numbers.contains(&catchup.number));
            if let Some(reply) = reply.filter(|_| says) {
                // The reply replaces the position that was certain before it.
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

    /// Returns the next piece for some catch-ups of a connection, if memory has it. Otherwise the piece comes later,
    /// and the connection has no other query until then.
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
        // The number of the query comes first, then the catch-ups that it is for.
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
            // The client comes back when the history is less busy.
            Err(_) => self.dismiss(core, slot, CloseReason::Overloaded, out),
        }
        None
    }
}
