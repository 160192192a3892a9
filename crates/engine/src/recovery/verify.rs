//! Checks that the history still has every message that users have not acknowledged, where memory can't tell.

use history::{Gone, Piece, Pull, TopicCursor};
use model::RecoveryGap;

use super::{Catchups, PendingReply, Recovery, acks_of};
use crate::core::Core;

impl Recovery {
    /// Queries whether the history still has every message that the users of these catch-ups have not acknowledged.
    /// Returns false until the history has replied: a gap notice comes before messages.
    pub(super) fn verify(&mut self, core: &mut Core, slot: u32, out: &mut Vec<u8>) -> bool {
        let Some(catchups) = self.catchups.by_slot.get(&slot) else {
            return false;
        };
        let verifying = catchups.list.iter().filter(|catchup| catchup.verifies());
        let (numbers, topics): (Vec<u32>, Vec<TopicCursor>) =
            verifying.map(|catchup| (catchup.number, catchup.cursor.clone())).unzip();
        if numbers.is_empty() {
            return true;
        }
        // With several topics, this query only verifies. Each topic gets its messages later, in its turn.
        let (messages_max, bytes_max) = match numbers[..] {
            [number] => {
                let capacity = self.capacity(core, slot, number).unwrap_or(1);
                (capacity, core.settings.outbox_bytes_max / 2)
            }
            _ => (1, 0),
        };
        let pull = Pull { topics, messages_max, bytes_max };
        let piece = self.request_piece(core, slot, &numbers, pull, out);
        let Some(piece) = piece else { return false };
        self.on_verified(core, slot, &numbers, piece, out);
        true
    }

    /// The history has replied whether it still has every message that is not acknowledged.
    pub(super) fn on_verified(
        &mut self,
        core: &mut Core,
        slot: u32,
        numbers: &[u32],
        piece: Piece,
        out: &mut Vec<u8>,
    ) {
        let Some(Catchups { list, replies, .. }) = self.catchups.by_slot.get_mut(&slot) else {
            return;
        };
        for catchup in list.iter_mut() {
            let Some(at) = numbers.iter().position(|number| *number == catchup.number) else {
                continue;
            };
            let Some(acks) = &mut catchup.acks else { continue };
            acks.verifies = false;
            let gone = piece.gone_at(at);
            let reply = replies.iter_mut().find(|reply| reply.numbers.contains(&catchup.number));
            let has_notice =
                |it: &&mut PendingReply| has_gap_notice(gone, it.requested, catchup.cursor.after);
            if let Some(reply) = reply.filter(has_notice) {
                reply.gaps.push((catchup.cursor.topic.clone(), RecoveryGap::TooOld));
            }
        }
        let waits = |number: &u32| list.iter().any(|it| it.number == *number && it.waits());
        let due: Vec<PendingReply> =
            replies.extract_if(.., |reply| !reply.numbers.iter().any(waits)).collect();
        due.into_iter().for_each(|reply| self.reply(core, slot, reply, out));
        // The messages come behind all notices before them.
        let replies = self.catchups.by_slot.get(&slot).map(|catchups| &catchups.replies);
        let waits = |number: &u32| {
            replies.is_none_or(|replies| replies.iter().any(|it| it.numbers.contains(number)))
        };
        if let [number] = numbers
            && !waits(number)
        {
            let end = piece.caught_up.then_some(piece.through);
            self.serve_piece(core, slot, *number, piece, out);
            self.rest_at(slot, *number, end);
        }
    }
}

impl Recovery {
    /// Queries the history for the first of the messages in flight that is still there. Earlier ones can't be
    /// acknowledged any more, and take no capacity of the window. Returns true if the history has replied.
    pub(super) fn peek(
        &mut self,
        core: &mut Core,
        slot: u32,
        number: u32,
        out: &mut Vec<u8>,
    ) -> bool {
        let by_slot = self.catchups.by_slot.get_mut(&slot);
        let Some((cursor, acks)) = acks_of(by_slot, number) else { return false };
        let Some(first) = acks.flight.front() else { return false };
        acks.peeks = true;
        let cursor = TopicCursor { after: first.offset - 1, ..cursor.clone() };
        let pull = Pull { topics: vec![cursor], messages_max: 1, bytes_max: 0 };
        let piece = self.request_piece(core, slot, &[number], pull, out);
        let Some(piece) = piece else { return false };
        self.peeked(slot, number, &piece);
        true
    }

    /// The history has replied which message in flight is the first that is still there.
    pub(super) fn peeked(&mut self, slot: u32, number: u32, piece: &Piece) {
        let by_slot = self.catchups.by_slot.get_mut(&slot);
        let Some((_, acks)) = acks_of(by_slot, number) else { return };
        acks.peeks = false;
        let first = piece.first.first().copied().flatten().unwrap_or(piece.through + 1);
        while acks.flight.pop_front_if(|delivered| delivered.offset < first).is_some() {}
    }
}

/// Returns whether a client gets a gap notice. A client that requested no recovery, or has not acknowledged anything
/// yet, gets one only if a message was certainly dropped.
pub(crate) fn has_gap_notice(gone: Gone, requested: bool, after: u64) -> bool {
    match gone {
        Gone::Nothing => false,
        Gone::Maybe => requested && after > 0,
        Gone::Some => true,
    }
}
