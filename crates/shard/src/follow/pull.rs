//! What was missed, a piece at a time.

use std::sync::Arc;

use broker::{Piece, Pull, Wanted};
use wire::transport::{recovery_line, sse_position};
use wire::{Id, Lost, Message, Name, Position, Since, Variant};

use super::{Tell, To, id_with};
use crate::command::Command;
use crate::shard::Shard;

/// Messages in a piece.
const PIECE_MESSAGES: usize = 256;

/// Bytes of payload in a piece: less than what may wait for a connection.
const PIECE_BYTES: usize = 64 << 10;

/// What is fetched at once where single messages were missed, not all after one: they were under
/// way when the connection was lost, so they are few.
const MISSED_MESSAGES: usize = 16_384;

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
        loop {
            let Some(follower) = self.following.followers.get(&slot) else {
                return;
            };
            if follower.reading || !self.is_open(slot) {
                return;
            }
            let pulling = follower.follows.iter().filter(|follow| follow.pulls());
            let (numbers, wanted): (Vec<u32>, Vec<Wanted>) =
                pulling.map(|follow| (follow.number, follow.wanted.clone())).unzip();
            if wanted.is_empty() {
                break;
            }
            let single = follower.base.is_some_and(|base| wanted.iter().any(|it| it.after < base));
            if !self.takes_more(slot, out) {
                return;
            }
            let (messages_max, bytes_max) = self.piece(single);
            match self.kept().pull(&wanted, messages_max, bytes_max) {
                Pull::Piece(piece) => self.pulled(slot, &numbers, piece, out),
                Pull::Disk => return self.read(slot, numbers, wanted, single),
            }
        }
        self.serve(slot, out);
    }

    fn piece(&self, single: bool) -> (usize, usize) {
        let bytes = PIECE_BYTES.min(self.settings.outbox_bytes_max / 2);
        if single { (MISSED_MESSAGES, self.settings.outbox_bytes_max) } else { (PIECE_MESSAGES, bytes) }
    }

    /// Sends what is in `out` when it is much. False while the connection has not taken it.
    pub(super) fn takes_more(&mut self, slot: u32, out: &mut Vec<u8>) -> bool {
        let polled = self.table.get(slot).is_some_and(|it| it.variant.is_polled());
        if out.len() >= PIECE_BYTES || (polled && !out.is_empty()) {
            self.send(slot, out, 0);
            out.clear();
        }
        self.is_open(slot)
            && self
                .table
                .get(slot)
                .is_some_and(|it| it.outbox().is_none_or(|outbox| outbox.is_empty()))
    }

    pub(super) fn read(&mut self, slot: u32, numbers: Vec<u32>, wanted: Vec<Wanted>, single: bool) {
        let (messages_max, bytes_max) = self.piece(single);
        let Some(serial) = self.table.get(slot).map(|connection| connection.serial) else {
            return;
        };
        let handle = self.handle.clone();
        let reply = Box::new(move |piece| {
            handle.send(Command::Pulled { slot, serial, numbers, piece });
        });
        let later = self.kept().pull_later(wanted, messages_max, bytes_max, reply);
        match later {
            Ok(()) => {
                if let Some(follower) = self.following.followers.get_mut(&slot) {
                    follower.reading = true;
                }
            }
            // It comes back, and finds the disk less busy.
            Err(_) => {
                let last = self.goodbye(slot, wire::Close::Overloaded);
                self.close(slot, wire::Close::Overloaded, &last);
            }
        }
    }

    /// The disk has answered.
    pub(crate) fn was_read(&mut self, slot: u32, numbers: &[u32], piece: Piece) {
        let Some(variant) = self.table.get(slot).map(|connection| connection.variant) else {
            return;
        };
        if variant == Variant::Poll {
            return self.poll_was_read(slot, piece);
        }
        let Some(follower) = self.following.followers.get_mut(&slot) else {
            return;
        };
        follower.reading = false;
        let acknowledged = follower
            .follows
            .iter()
            .any(|follow| numbers.contains(&follow.number) && follow.acks.is_some());
        let mut out = Vec::new();
        if acknowledged {
            self.serve_piece(slot, numbers[0], piece, &mut out);
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
        let gone: Vec<Name> = numbers
            .iter()
            .zip(&piece.gone)
            .filter(|(_, gone)| **gone)
            .filter_map(|(number, _)| {
                follower.follows.iter().find(|follow| follow.number == *number)
            })
            // The state of a compacted topic is asked for from its beginning.
            .filter(|follow| follow.wanted.after > 0)
            .map(|follow| follow.wanted.topic.clone())
            .collect();
        let tells: Vec<Tell> = {
            let ours = |tell: &mut Tell| tell.numbers.iter().any(|it| numbers.contains(it));
            follower.tells.extract_if(.., ours).collect()
        };
        for mut tell in tells {
            for topic in &gone {
                let is_new = tell.lost.iter().all(|(name, _)| name != topic);
                if tell.asked && is_new {
                    tell.lost.push((topic.clone(), Lost::TooOld));
                }
            }
            self.tell(slot, tell, out);
        }
        let nothing = piece.messages.is_empty();
        self.give(slot, numbers, &piece.messages, out);
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

    /// Appends messages that were missed.
    fn give(&mut self, slot: u32, numbers: &[u32], messages: &[Arc<Message>], out: &mut Vec<u8>) {
        let Some(variant) = self.table.get(slot).map(|connection| connection.variant) else {
            return;
        };
        let Some(follower) = self.following.followers.get(&slot) else {
            return;
        };
        let base = follower.base.unwrap_or(0);
        // One that left a topic meanwhile gets nothing more of it.
        let follows = |message: &Message| {
            follower.follows.iter().any(|follow| {
                follow.wanted.hash == message.topic_hash
                    && numbers.contains(&follow.number)
                    && follow.wanted.after < message.id.offset
            })
        };
        let wanted: Vec<&Arc<Message>> =
            messages.iter().filter(|message| follows(message)).collect();
        let mut given = 0;
        for (at, message) in wanted.iter().enumerate() {
            if !self.chooses(slot, message) {
                continue;
            }
            given += 1;
            match variant.sse_json() {
                Some(json) if variant.is_kept() && message.id.offset < base => {
                    let position = missed(message.id, base, &wanted[at + 1..]);
                    let id = Since { id: message.id, position: Some(position) };
                    wire::transport::sse_with_id(message, json, &id, out);
                }
                _ => out.extend_from_slice(&message.encoded(variant, &mut self.tools)),
            }
        }
        self.metrics.delivered.add(given);
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
        if connection.variant.is_kept() {
            let position = self.position(slot);
            let own = position.through;
            sse_position(&id_with(own, position), out);
        }
    }
}

/// How far a connection has everything that missed single messages up to `base`, with this one.
fn missed(own: Id, base: u64, rest: &[&Arc<Message>]) -> Position {
    let mut missing: Vec<(u64, u64)> = Vec::new();
    for message in rest.iter().filter(|message| message.id.offset <= base) {
        if missing.iter().all(|(hash, _)| *hash != message.topic_hash) {
            missing.push((message.topic_hash, message.id.offset));
        }
    }
    missing.truncate(wire::since::MISSING_MAX - 1);
    Position {
        through: Id { offset: base, ..own },
        missing: missing.into_iter().map(|(_, offset)| offset).collect(),
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
