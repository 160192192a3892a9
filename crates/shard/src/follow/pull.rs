//! What was missed, a piece at a time.

use std::sync::Arc;

use broker::{Piece, Pull, Wanted};
use wire::transport::{recovery_line, sse_position};
use wire::{Close, Id, Lost, Message, Name, Since, Variant};

use super::{ALL, Follow, Follower, Given, Pulled, Tell, To, id_with};
use crate::command::Command;
use crate::shard::Shard;

/// Messages in a piece.
const PIECE_MESSAGES: usize = if cfg!(test) { 3 } else { 256 };

/// Pieces that one connection is given in a turn.
pub(super) const PIECES: usize = 4;

/// Bytes of payload in a piece: less than what may wait for a connection.
const PIECE_BYTES: usize = if cfg!(test) { 1 << 10 } else { 64 << 10 };

/// What a small message takes up when it is written, in bytes, generously.
const MESSAGE_BYTES: usize = 1 << 10;

impl Shard {
    /// The connection has taken what it was sent: it gets more, if there is more.
    pub(crate) fn pull_more(&mut self, slot: u32) {
        if !self.following.followers.contains_key(&slot) {
            return;
        }
        let mut out = Vec::new();
        self.pull_on(slot, &mut out);
        if !out.is_empty() {
            self.send(slot, &out, 0);
        }
    }

    /// Appends the next pieces to `out`, as far as the connection takes them and memory has them.
    pub(super) fn pull_on(&mut self, slot: u32, out: &mut Vec<u8>) {
        for pieces in 0.. {
            let Some(follower) = self.following.followers.get(&slot) else {
                return;
            };
            if follower.reading.is_some() || !self.is_open(slot) {
                return;
            }
            let pulling = follower.follows.iter().filter(|follow| follow.pulls());
            let (numbers, wanted): (Vec<u32>, Vec<Wanted>) =
                pulling.map(|follow| (follow.number, follow.wanted.clone())).unzip();
            if wanted.is_empty() {
                break;
            }
            if pieces == PIECES {
                // The others have their turn.
                self.following.due.push(slot);
                return;
            }
            if !self.takes_more(slot, out) {
                return;
            }
            let (messages_max, bytes_max) = self.piece();
            match self.kept().pull(&wanted, messages_max, bytes_max) {
                Pull::Piece(piece) => self.pulled(slot, &numbers, piece, out),
                Pull::Disk => return self.read(slot, numbers, wanted, out),
            }
        }
        self.serve(slot, out);
    }

    fn piece(&self) -> (usize, usize) {
        // What is around the payloads has to fit as well.
        let messages_max =
            (self.settings.outbox_bytes_max / MESSAGE_BYTES).clamp(1, PIECE_MESSAGES);
        (messages_max, self.piece_bytes())
    }

    fn piece_bytes(&self) -> usize {
        PIECE_BYTES.min(self.settings.outbox_bytes_max / 4)
    }

    /// Sends what is in `out` when it is much. False while the connection has not taken it.
    pub(super) fn takes_more(&mut self, slot: u32, out: &mut Vec<u8>) -> bool {
        let polled = self.table.get(slot).is_some_and(|it| it.variant.is_polled());
        if out.len() >= self.piece_bytes() || (polled && !out.is_empty()) {
            self.send(slot, out, 0);
            out.clear();
        }
        self.is_open(slot)
            && self
                .table
                .get(slot)
                .is_some_and(|it| it.outbox().is_none_or(|outbox| outbox.is_empty()))
    }

    pub(super) fn read(
        &mut self,
        slot: u32,
        numbers: Vec<u32>,
        wanted: Vec<Wanted>,
        out: &mut Vec<u8>,
    ) {
        let (messages_max, bytes_max) = self.piece();
        let Some(serial) = self.table.get(slot).map(|connection| connection.serial) else {
            return;
        };
        let handle = self.handle.clone();
        let question = self.following.question();
        // The question goes first, and then for which follows it is.
        let numbers: Vec<u32> = std::iter::once(question).chain(numbers).collect();
        let reply = Box::new(move |piece| {
            handle.send(Command::Pulled { slot, serial, numbers, piece });
        });
        let later = self.kept().pull_later(wanted, messages_max, bytes_max, reply);
        match later {
            Ok(()) => {
                if let Some(follower) = self.following.followers.get_mut(&slot) {
                    follower.reading = Some(question);
                }
            }
            // It comes back, and finds the disk less busy.
            Err(_) => self.dismiss(slot, Close::Overloaded, out),
        }
    }

    /// The disk is too busy or can't be read: what was missed is not skipped, the client asks again.
    pub(crate) fn come_back_later(&mut self, slot: u32) {
        self.dismiss(slot, Close::Overloaded, &mut Vec::new());
    }

    /// Closes a connection with its last words; what it was to be told before goes before.
    fn dismiss(&mut self, slot: u32, close: Close, out: &mut Vec<u8>) {
        let mut last = std::mem::take(out);
        last.extend(self.goodbye(slot, close));
        self.close(slot, close, &last);
    }

    /// The disk has answered.
    pub(crate) fn was_read(&mut self, slot: u32, numbers: &[u32], piece: Piece) {
        let Some(variant) = self.table.get(slot).map(|connection| connection.variant) else {
            return;
        };
        let Some((question, numbers)) = numbers.split_first() else {
            return;
        };
        if variant == Variant::Poll {
            return self.poll_was_read(slot, *question, piece);
        }
        let Some(follower) = self.following.followers.get_mut(&slot) else {
            return;
        };
        if follower.reading != Some(*question) {
            return;
        }
        follower.reading = None;
        if follower.follows.is_empty() {
            self.following.followers.remove(&slot);
            return;
        }
        let acknowledged = follower
            .follows
            .iter()
            .any(|follow| numbers.contains(&follow.number) && follow.acks.is_some());
        let mut out = Vec::new();
        if let Some(number) = numbers.first().filter(|_| acknowledged) {
            self.serve_piece(slot, *number, piece, &mut out);
        } else {
            self.pulled(slot, numbers, piece, &mut out);
        }
        self.pull_on(slot, &mut out);
        if !out.is_empty() {
            self.send(slot, &out, 0);
        }
    }

    /// A piece is there: the client is told from where it follows, if it is the first, and given the
    /// messages.
    fn pulled(&mut self, slot: u32, numbers: &[u32], piece: Piece, out: &mut Vec<u8>) {
        let Some(follower) = self.following.followers.get_mut(&slot) else {
            return;
        };
        let is_gone = |number: &u32| {
            let at = numbers.iter().position(|it| it == number);
            at.is_some_and(|at| piece.gone.get(at) == Some(&true))
        };
        let mut gone: Vec<(u32, Name, u64)> = Vec::new();
        for Follow { number, wanted, .. } in &follower.follows {
            if is_gone(number) {
                gone.push((*number, wanted.topic.clone(), wanted.after));
            }
        }
        let tells: Vec<Tell> = {
            let ours = |tell: &mut Tell| tell.numbers.iter().any(|it| numbers.contains(it));
            follower.tells.extract_if(.., ours).collect()
        };
        for mut tell in tells {
            let asked = tell.asked;
            let its = |it: &mut (u32, Name, u64)| asked && tell.numbers.contains(&it.0);
            for (_, topic, _) in gone.extract_if(.., its) {
                if tell.lost.iter().all(|(name, _)| *name != topic) {
                    tell.lost.push((topic, Lost::TooOld));
                }
            }
            self.tell(slot, tell, out);
        }
        self.tell_gone(slot, &gone, out);
        if !self.is_open(slot) {
            return;
        }
        let nothing = piece.messages.is_empty();
        self.give(slot, numbers, &piece, out);
        let Some(follower) = self.following.followers.get_mut(&slot) else {
            return;
        };
        let mut lifts = Vec::new();
        for follow in &mut follower.follows {
            if numbers.contains(&follow.number) {
                follow.wanted.after = follow.wanted.after.max(piece.through);
                if piece.caught_up {
                    follow.through = follow.wanted.after;
                    lifts.push(follow.number);
                }
            }
        }
        lifts.into_iter().for_each(|number| self.lift_later(slot, number));
        if piece.caught_up && nothing {
            self.tell_position(slot, out);
        }
    }

    /// Tells a client that what it was about to be given is gone, for it took long.
    fn tell_gone(&mut self, slot: u32, gone: &[(u32, Name, u64)], out: &mut Vec<u8>) {
        let (Some(variant), Some(after)) = (
            self.table.get(slot).map(|connection| connection.variant),
            gone.iter().map(|(_, _, after)| *after).min(),
        ) else {
            return;
        };
        if variant.phoenix().is_some() {
            // It is told such things when it joins: it comes back.
            return self.dismiss(slot, Close::SlowConsumer, out);
        }
        let since = Since::from(Id { epoch: self.kept().epoch(), offset: after });
        let lost: Vec<(Name, Lost)> =
            gone.iter().map(|(_, topic, _)| (topic.clone(), Lost::TooOld)).collect();
        let mut text = Vec::new();
        wire::transport::recovery(&since, Some(&lost), &mut text);
        recovery_line(variant, &text, &mut self.tools, out);
    }

    /// Tells what waits for the first piece of this topic alone, which the connection is about to
    /// leave.
    pub(crate) fn tell_waiting(&mut self, slot: u32, hash: u64, out: &mut Vec<u8>) {
        let Some(Follower { follows, tells, .. }) = self.following.followers.get_mut(&slot) else {
            return;
        };
        let waits = |number: &u32| {
            let follow = follows.iter().find(|follow| follow.number == *number);
            follow.is_some_and(|follow| follow.pulls() && follow.wanted.hash != hash)
        };
        let told: Vec<Tell> =
            tells.extract_if(.., |tell| !tell.numbers.iter().any(waits)).collect();
        told.into_iter().for_each(|tell| self.tell(slot, tell, out));
    }

    /// Appends messages that were missed.
    fn give(&mut self, slot: u32, numbers: &[u32], piece: &Piece, out: &mut Vec<u8>) {
        let Some(variant) = self.table.get(slot).map(|connection| connection.variant) else {
            return;
        };
        let Some(follower) = self.following.followers.get(&slot) else {
            return;
        };
        // One that left a topic meanwhile gets nothing more of it.
        let follows = |message: &Message| {
            follower.follows.iter().any(|follow| {
                follow.wanted.hash == message.topic_hash
                    && numbers.contains(&follow.number)
                    && follow.wanted.after < message.id.offset
            })
        };
        let wanted: Vec<&Arc<Message>> =
            piece.messages.iter().filter(|message| follows(message)).collect();
        let plain_from = match variant.is_kept() {
            true => self.plain_from(slot, numbers),
            false => 0,
        };
        let own = self.table.get(slot).map(|connection| self.id(slot, connection.serial));
        let mut given = 0;
        for (at, message) in wanted.iter().enumerate() {
            if !self.chooses(slot, message) || message.draft.except == own {
                continue;
            }
            given += 1;
            let offset = message.id.offset;
            match variant.sse_json() {
                Some(json) if offset < plain_from && !self.says_all(slot, message) => {
                    let (rest, through) = (&wanted[at + 1..], piece.through);
                    let pulled = Some(Pulled { numbers, offset, rest, through });
                    let waiting = &self.waiting(slot);
                    let given = Given { waiting, pulled, ..Given::default() };
                    let position = self.position(slot, &given);
                    let id = id_with(message.id, position);
                    wire::transport::sse_with_id(message, json, &id, out);
                }
                _ => out.extend_from_slice(&message.encoded(variant, &mut self.tools)),
            }
        }
        self.metrics.delivered.add(given);
    }

    /// From this offset on, a message of a piece says by its own id how far the connection has
    /// everything: all of its topics are in the piece, and none is ahead.
    fn plain_from(&self, slot: u32, numbers: &[u32]) -> u64 {
        let in_piece = |hash: u64| {
            let mut pulled =
                self.plain_follows(slot).filter(|follow| numbers.contains(&follow.number));
            pulled.find(|follow| follow.wanted.hash == hash).map(|follow| follow.wanted.after)
        };
        let places = self.plain_topics(slot).map(|(hash, _)| in_piece(hash));
        places.map(|after| after.unwrap_or(ALL)).max().unwrap_or(ALL)
    }

    /// Tells a client from where it follows, in its transport's way.
    pub(super) fn tell(&mut self, slot: u32, tell: Tell, out: &mut Vec<u8>) {
        let Some(variant) = self.table.get(slot).map(|connection| connection.variant) else {
            return;
        };
        let since = Since::from(tell.since);
        let lost = tell.asked.then_some(&tell.lost[..]);
        match tell.to {
            To::Nobody => {}
            To::Line => {
                let kept = !tell.numbers.is_empty();
                if tell.asked || (kept && variant.sse_json().is_none()) {
                    let mut text = Vec::new();
                    wire::transport::recovery(&since, lost, &mut text);
                    recovery_line(variant, &text, &mut self.tools, out);
                }
                // What is pulled says by its ids how far it came.
                if kept && !self.pulls_any(slot, &tell.numbers) {
                    self.tell_position(slot, out);
                }
            }
            To::Ws(ref id, ref topic) => {
                let mut topic_text = b"{\"topic\":".to_vec();
                wire::command::push_string(topic, &mut topic_text);
                topic_text.push(b'}');
                let ok = entered(&tell, &String::from_utf8_lossy(&topic_text));
                wire::session::ws_reply(variant, &mut self.tools, id, Ok(&ok), out);
            }
            To::Phoenix(ref heard, ref response) => {
                let response = entered(&tell, response);
                self.phoenix_entered(slot, variant, heard, &response, out);
            }
        }
    }

    fn pulls_any(&self, slot: u32, numbers: &[u32]) -> bool {
        let follower = self.following.followers.get(&slot);
        let follows = follower.map_or(&[][..], |follower| &follower.follows);
        follows.iter().any(|follow| follow.pulls() && numbers.contains(&follow.number))
    }

    /// On SSE: what to ask for if nothing comes any more.
    fn tell_position(&mut self, slot: u32, out: &mut Vec<u8>) {
        let Some(connection) = self.table.get(slot) else {
            return;
        };
        // Of topics that are acknowledged the user's cursor says it.
        if connection.variant.is_kept() && self.plain_topics(slot).next().is_some() {
            let position = self.position_now(slot);
            let own = position.through;
            sse_position(&id_with(own, position), out);
        }
    }
}

/// The answer to whoever enters one topic: an object, with the place where the topic has history,
/// and whether what was missed comes now.
fn entered(tell: &Tell, object: &str) -> String {
    let mut fields = Vec::new();
    if !tell.numbers.is_empty() {
        fields.push(format!("\"since\":\"{}\"", tell.since));
    }
    if tell.asked {
        fields.push(format!("\"recovered\":{}", tell.lost.is_empty()));
    }
    if let Some((_, lost)) = tell.lost.first().filter(|_| tell.asked) {
        fields.push(format!("\"reason\":\"{}\"", lost.name()));
    }
    let fields = fields.join(",");
    match object.strip_suffix('}') {
        _ if fields.is_empty() => object.into(),
        Some("{") => format!("{{{fields}}}"),
        Some(rest) if object.starts_with('{') => format!("{rest},{fields}}}"),
        // An application may answer with any value, and only an object has room.
        _ => object.into(),
    }
}
