//! Pulls missed messages, one piece at a time.

use std::sync::Arc;

use history::{Piece, Pull, TopicCursor};
use model::{CloseReason, Envelope, Message, Name, Position, RecoveryGap, ResumeToken};
use protocol::{Delivery, encoded};

use super::{
    ALL, Catchup, CatchupTable, Catchups, Delivered, PendingReply, Pulled, Recovery, ReplyTo,
    id_with,
};
use crate::connection::Flag;
use crate::core::Core;
use crate::core::responses::named;

/// The limit on messages in a piece.
const PIECE_MESSAGES: usize = if cfg!(test) { 3 } else { 256 };

/// The limit on pieces of one connection in a turn.
pub(super) const PIECES: usize = 4;

/// The limit on bytes of payload in a piece: less than the limit of an outbox.
const PIECE_BYTES: usize = if cfg!(test) { 1 << 10 } else { 64 << 10 };

/// An upper estimate of the bytes around a payload when a message is encoded.
const MESSAGE_BYTES: usize = 1 << 10;

impl Recovery {
    /// Everything was sent to the connection: it gets the next pieces, if there are any.
    pub(crate) fn pull_more(&mut self, core: &mut Core, slot: u32) {
        if !self.catchups.by_slot.contains_key(&slot) {
            return;
        }
        let mut out = Vec::new();
        self.pull_on(core, slot, &mut out);
        if !out.is_empty() {
            core.send(slot, &out, 0);
        }
    }

    /// Appends the next pieces to `out`, while the connection has capacity and memory has the messages.
    pub(super) fn pull_on(&mut self, core: &mut Core, slot: u32, out: &mut Vec<u8>) {
        for pieces in 0.. {
            let Some(catchups) = self.catchups.by_slot.get(&slot) else {
                return;
            };
            if catchups.reading.is_some() || !core.is_open(slot) {
                return;
            }
            if !self.verify(core, slot, out) {
                return;
            }
            let Some(catchups) = self.catchups.by_slot.get(&slot) else {
                return;
            };
            let pulling = catchups.list.iter().filter(|it| it.pulls() && it.starting.is_none());
            let (numbers, cursor): (Vec<u32>, Vec<TopicCursor>) =
                pulling.map(|catchup| (catchup.number, catchup.cursor.clone())).unzip();
            if cursor.is_empty() {
                break;
            }
            if pieces == PIECES {
                // Other connections have their turn.
                self.due.push(slot);
                return;
            }
            if !self.takes_more(core, slot, out) {
                return;
            }
            let (messages_max, bytes_max) = self.piece(core);
            let pull = Pull { topics: cursor, messages_max, bytes_max };
            match self.request_piece(core, slot, &numbers, pull, out) {
                Some(piece) => self.pulled(core, slot, &numbers, piece, out),
                None => return,
            }
        }
        self.serve(core, slot, out);
    }

    fn piece(&self, core: &Core) -> (usize, usize) {
        // The bytes around the payloads must fit as well.
        let messages_max =
            (core.settings.outbox_bytes_max / MESSAGE_BYTES).clamp(1, PIECE_MESSAGES);
        (messages_max, self.piece_bytes(core))
    }

    fn piece_bytes(&self, core: &Core) -> usize {
        PIECE_BYTES.min(core.settings.outbox_bytes_max / 4)
    }

    /// Sends `out` if it is large. Returns false while not all of it was sent.
    pub(super) fn takes_more(&mut self, core: &mut Core, slot: u32, out: &mut Vec<u8>) -> bool {
        let polled = core.protocol(slot).is_some_and(|it| it.delivery() == Delivery::Gathered);
        if out.len() >= self.piece_bytes(core) || (polled && !out.is_empty()) {
            core.send_and_wait(slot, out);
            out.clear();
        }
        core.is_open(slot) && !core.is_backlogged(slot)
    }

    /// The history is too busy or can't be read. No message is skipped: the connection ends, and the client recovers
    /// again.
    pub(crate) fn come_back_later(&mut self, core: &mut Core, slot: u32) {
        self.dismiss(core, slot, CloseReason::Overloaded, &mut Vec::new());
    }

    /// Closes a connection with its last bytes, behind the replies that wait.
    pub(super) fn dismiss(
        &mut self,
        core: &mut Core,
        slot: u32,
        close: CloseReason,
        out: &mut Vec<u8>,
    ) {
        let mut last = std::mem::take(out);
        last.extend(self.goodbye(core, slot, close));
        core.close_soon(slot, close, last);
    }

    /// The history has replied.
    pub(crate) fn was_read(&mut self, core: &mut Core, slot: u32, numbers: &[u32], piece: Piece) {
        let Some((query, numbers)) = numbers.split_first() else {
            return;
        };
        let Some(catchups) = self.catchups.by_slot.get_mut(&slot) else {
            return;
        };
        if catchups.reading != Some(*query) {
            return;
        }
        catchups.reading = None;
        if catchups.list.is_empty() {
            self.catchups.by_slot.remove(&slot);
            return;
        }
        let its = |catchup: &&Catchup| numbers.contains(&catchup.number);
        let verifies = catchups.list.iter().filter(its).any(Catchup::verifies);
        let acknowledged = catchups.list.iter().filter(its).any(|it| it.acks.is_some());
        let is_peeking = |it: &&Catchup| it.acks.as_ref().is_some_and(|acks| acks.peeks);
        let peeks = catchups.list.iter().filter(its).find(is_peeking).map(|it| it.number);
        let mut out = Vec::new();
        if let Some(number) = peeks {
            self.peeked(slot, number, &piece);
        } else if verifies {
            self.on_verified(core, slot, numbers, piece, &mut out);
        } else if let Some(number) = numbers.first().filter(|_| acknowledged) {
            let end = piece.caught_up.then_some(piece.through);
            self.serve_piece(core, slot, *number, piece, &mut out);
            self.rest_at(slot, *number, end);
        } else {
            self.pulled(core, slot, numbers, piece, &mut out);
        }
        self.pull_on(core, slot, &mut out);
        if !out.is_empty() {
            core.send(slot, &out, 0);
        }
    }

    /// Delivers a piece. If it is the first one, the client first gets the reply that says where its catch-up begins.
    fn pulled(
        &mut self,
        core: &mut Core,
        slot: u32,
        numbers: &[u32],
        piece: Piece,
        out: &mut Vec<u8>,
    ) {
        let begun = self.begin_with(slot, numbers, &piece);
        let Some(catchups) = self.catchups.by_slot.get_mut(&slot) else {
            return;
        };
        let is_gone = |number: &u32| {
            let at = numbers.iter().position(|it| it == number);
            at.is_some_and(|at| piece.is_gone(at))
        };
        let mut gone: Vec<(u32, Name, u64)> = Vec::new();
        for Catchup { number, cursor, .. } in &catchups.list {
            if is_gone(number) {
                gone.push((*number, cursor.topic.clone(), cursor.after));
            }
        }
        let replies: Vec<PendingReply> = {
            let ours =
                |reply: &mut PendingReply| reply.numbers.iter().any(|it| numbers.contains(it));
            catchups.replies.extract_if(.., ours).collect()
        };
        for mut reply in replies {
            self.set_reply_position(slot, &mut reply, &begun);
            let requested = reply.requested;
            let its = |it: &mut (u32, Name, u64)| requested && reply.numbers.contains(&it.0);
            for (_, topic, _) in gone.extract_if(.., its) {
                if reply.gaps.iter().all(|(name, _)| *name != topic) {
                    reply.gaps.push((topic, RecoveryGap::TooOld));
                }
            }
            self.reply(core, slot, reply, out);
        }
        self.report_gone(core, slot, &gone, out);
        if !core.is_open(slot) {
            return;
        }
        let numbers = &self.begin_states_anew(core, slot, numbers, &piece)[..];
        let nothing = piece.messages.is_empty();
        self.deliver_piece(core, slot, numbers, &piece, out);
        let Some(catchups) = self.catchups.by_slot.get_mut(&slot) else {
            return;
        };
        let (mut releases, mut states) = (Vec::new(), Vec::new());
        for catchup in &mut catchups.list {
            if numbers.contains(&catchup.number) {
                catchup.cursor.after = catchup.cursor.after.max(piece.through);
                // Live messages that were deferred during the query may be newer than the piece.
                if piece.caught_up && catchup.deferred_offset <= catchup.cursor.after {
                    catchup.through = catchup.cursor.after;
                    releases.push(catchup.number);
                    states.extend(catchup.compact.then(|| catchup.cursor.topic.clone()));
                }
            }
        }
        releases.into_iter().for_each(|number| self.catchups.release_later(slot, number));
        if piece.caught_up && nothing && !numbers.is_empty() {
            self.write_position(core, slot, out);
        }
        if let Some(protocol) = core.protocol(slot) {
            for topic in &states {
                protocol.state_complete(topic, &mut core.codecs, out);
            }
        }
    }

    /// Sets the position of catch-ups that begin with the oldest stored message. Returns their numbers.
    fn begin_with(&mut self, slot: u32, numbers: &[u32], piece: &Piece) -> Vec<u32> {
        let list = self.catchups.by_slot.get_mut(&slot).map(|catchups| catchups.list.iter_mut());
        let begins = |catchup: &mut Catchup| {
            let at = numbers.iter().position(|number| *number == catchup.number)?;
            piece.begin(at, &mut catchup.cursor).then_some(catchup.number)
        };
        list.into_iter().flatten().filter_map(begins).collect()
    }

    /// Sets the positions of these catch-ups in a reply.
    fn set_reply_position(&self, slot: u32, reply: &mut PendingReply, begun: &[u32]) {
        if !std::mem::take(&mut reply.whole) {
            return;
        }
        let is_begun = |number: &u32| begun.contains(number);
        let list = self.catchups.by_slot.get(&slot).map(|catchups| catchups.list.iter());
        let ours = |it: &&Catchup| reply.numbers.contains(&it.number) && is_begun(&it.number);
        let offsets = list.into_iter().flatten().filter(ours).map(|catchup| catchup.cursor.after);
        if let Some(offset) = offsets.min() {
            let others = !reply.numbers.iter().all(is_begun);
            reply.since.offset = if others { reply.since.offset.min(offset) } else { offset };
        }
    }

    /// A state is not complete if one of its messages was dropped while it was read. The client has got a gap notice,
    /// and gets the whole state of now. Returns the other catch-ups.
    fn begin_states_anew(
        &mut self,
        core: &Core,
        slot: u32,
        numbers: &[u32],
        piece: &Piece,
    ) -> Vec<u32> {
        let mut others = numbers.to_vec();
        let gone = |number: u32| {
            let at = numbers.iter().position(|it| *it == number);
            at.is_some_and(|at| piece.is_gone(at))
        };
        let list = self.catchups.by_slot.get_mut(&slot).map(|catchups| &mut catchups.list);
        for catchup in list.into_iter().flatten() {
            if catchup.compact && gone(catchup.number) {
                catchup.cursor.begin_state(core.history().top().offset);
                others.retain(|number| *number != catchup.number);
            }
        }
        others
    }

    /// Sends a gap notice: messages were dropped before the slow client could get them.
    fn report_gone(
        &mut self,
        core: &mut Core,
        slot: u32,
        gone: &[(u32, Name, u64)],
        out: &mut Vec<u8>,
    ) {
        let (Some(protocol), Some(after)) =
            (core.protocol(slot), gone.iter().map(|(_, _, after)| *after).min())
        else {
            return;
        };
        if protocol.capabilities().joins {
            // This protocol reports gaps in replies to joins only: the client reconnects.
            return self.dismiss(core, slot, CloseReason::SlowConsumer, out);
        }
        let since = ResumeToken::from(Position { epoch: core.history().epoch(), offset: after });
        let gaps: Vec<(Name, RecoveryGap)> =
            gone.iter().map(|(_, topic, _)| (topic.clone(), RecoveryGap::TooOld)).collect();
        let mut text = Vec::new();
        protocol::json::recovery(&since, Some(&gaps), &mut text);
        protocol.recovery(&text, &mut core.codecs, out);
    }

    /// Sends the reply that waits for the first piece of this topic only, because the connection is about to leave it.
    pub(crate) fn reply_waiting(
        &mut self,
        core: &mut Core,
        slot: u32,
        hash: u64,
        out: &mut Vec<u8>,
    ) {
        let Some(Catchups { list, replies, .. }) = self.catchups.by_slot.get_mut(&slot) else {
            return;
        };
        let waits = |number: &u32| {
            let catchup = list.iter().find(|catchup| catchup.number == *number);
            catchup.is_some_and(|catchup| catchup.waits() && catchup.cursor.hash != hash)
        };
        let due: Vec<PendingReply> =
            replies.extract_if(.., |reply| !reply.numbers.iter().any(waits)).collect();
        due.into_iter().for_each(|reply| self.reply(core, slot, reply, out));
    }

    /// Appends missed messages.
    fn deliver_piece(
        &mut self,
        core: &mut Core,
        slot: u32,
        numbers: &[u32],
        piece: &Piece,
        out: &mut Vec<u8>,
    ) {
        let Some(protocol) = core.protocol(slot) else {
            return;
        };
        let Some(catchups) = self.catchups.by_slot.get(&slot) else {
            return;
        };
        // A connection that has left a topic meanwhile gets no more messages of it.
        let wants = |message: &Message| {
            catchups.list.iter().any(|catchup| {
                catchup.cursor.hash == message.topic_hash
                    && numbers.contains(&catchup.number)
                    && catchup.cursor.after < message.id.offset
            })
        };
        let messages: Vec<&Arc<Envelope>> =
            piece.messages.iter().filter(|message| wants(message)).collect();
        let plain_from = match core.is(slot, Flag::Resumable) {
            true => self.catchups.plain_from(core, slot, numbers),
            false => 0,
        };
        let own = core.table.get(slot).map(|connection| core.id(slot, connection.serial));
        let mut count = 0;
        for (at, message) in messages.iter().enumerate() {
            if !self.catchups.chooses(slot, message) || message.publication.except == own {
                continue;
            }
            count += 1;
            core.trace_delivered(slot, [&message.message]);
            let offset = message.id.offset;
            if offset < plain_from && !self.catchups.says_all(core, slot, message) {
                let (rest, through) = (&messages[at + 1..], piece.through);
                let pulled = Some(Pulled { numbers, offset, rest, through });
                let waiting = &self.catchups.waiting(core, slot);
                let delivered = Delivered { waiting, pulled, ..Delivered::default() };
                let position = self.catchups.position(core, slot, &delivered);
                let id = id_with(message.id, position);
                protocol.encode_with(message, &id, out);
            } else {
                out.extend_from_slice(&encoded(message, protocol, &mut core.codecs));
            }
        }
        core.metrics.delivered.add(count);
    }

    /// Sends a client where its catch-up begins, in the format of its transport.
    pub(super) fn reply(
        &mut self,
        core: &mut Core,
        slot: u32,
        reply: PendingReply,
        out: &mut Vec<u8>,
    ) {
        let Some(protocol) = core.protocol(slot) else {
            return;
        };
        let mut reply = reply;
        if reply.whole {
            // The client has no message of it yet.
            reply.since.offset = 0;
        }
        let since = ResumeToken::from(reply.since);
        // A client that did not request recovery gets a gap notice only for messages that were queued for it.
        let gaps = reply.says_gaps().then_some(&reply.gaps[..]);
        match reply.to {
            ReplyTo::Nowhere if reply.gaps.is_empty() => {}
            ReplyTo::Nowhere => {
                let mut text = Vec::new();
                protocol::json::recovery(&since, gaps, &mut text);
                protocol.recovery(&text, &mut core.codecs, out);
            }
            ReplyTo::Line => {
                let retained = !reply.numbers.is_empty();
                if reply.says_gaps() || (retained && !protocol.capabilities().ids_resume) {
                    let mut text = Vec::new();
                    protocol::json::recovery(&since, gaps, &mut text);
                    protocol.recovery(&text, &mut core.codecs, out);
                }
                // The ids of pulled messages say up to where the client has everything.
                if retained && !self.catchups.pulls_any(slot, &reply.numbers) {
                    self.write_position(core, slot, out);
                }
            }
            ReplyTo::Id(ref id, ref topic) => {
                let ok = entered(&reply, &named("topic", topic));
                protocol.reply(id, Ok(&ok), &mut core.codecs, out);
                core.send_list_of(slot, protocol, topic, out);
            }
            ReplyTo::Phoenix(ref message, ref response) => {
                let response = entered(&reply, response);
                core.send_joined(slot, protocol, message, &response, out);
            }
        }
    }

    /// By SSE: the position for `Last-Event-ID`, in case no message comes any more.
    fn write_position(&mut self, core: &mut Core, slot: u32, out: &mut Vec<u8>) {
        let Some(connection) = core.table.get(slot) else {
            return;
        };
        // In acknowledged topics the user's cursor is the position.
        if connection.is(Flag::Resumable) && self.catchups.plain_topics(core, slot).next().is_some()
        {
            let encoding = connection.encoding;
            let position = self.catchups.position_now(core, slot);
            let own = position.through;
            core.shared.protocols.of(encoding).position(&id_with(own, position), out);
        }
    }
}

impl CatchupTable {
    /// From this offset on, a message's own id says up to where the connection has everything: all of its topics are in
    /// the piece, and none is ahead.
    pub(crate) fn plain_from(&self, core: &Core, slot: u32, numbers: &[u32]) -> u64 {
        let in_piece = |hash: u64| {
            let mut pulled =
                self.plain_catchups(slot).filter(|catchup| numbers.contains(&catchup.number));
            pulled.find(|catchup| catchup.cursor.hash == hash).map(|catchup| catchup.cursor.after)
        };
        let offsets = self.plain_topics(core, slot).map(|(hash, _)| in_piece(hash));
        offsets.map(|after| after.unwrap_or(ALL)).max().unwrap_or(ALL)
    }

    pub(crate) fn pulls_any(&self, slot: u32, numbers: &[u32]) -> bool {
        let catchups = self.by_slot.get(&slot);
        let list = catchups.map_or(&[][..], |catchups| &catchups.list);
        list.iter().any(|catchup| catchup.pulls() && numbers.contains(&catchup.number))
    }
}

/// The reply to a client that joins one topic: an object, with the position if the topic has history, and whether
/// missed messages follow.
fn entered(reply: &PendingReply, object: &str) -> String {
    let mut fields = Vec::new();
    if !reply.numbers.is_empty() {
        fields.push(format!("\"since\":\"{}\"", reply.since));
    }
    if reply.says_gaps() {
        fields.push(format!("\"recovered\":{}", reply.gaps.is_empty()));
    }
    if let Some((_, gaps)) = reply.gaps.first() {
        fields.push(format!("\"reason\":\"{}\"", gaps.name()));
    }
    let fields = fields.join(",");
    match object.strip_suffix('}') {
        _ if fields.is_empty() => object.into(),
        Some("{") => format!("{{{fields}}}"),
        Some(rest) if object.starts_with('{') => format!("{rest},{fields}}}"),
        // An application may respond with any value, and only an object can have further fields.
        _ => object.into(),
    }
}
