//! From a message to its members, and bytes to one connection.

use std::io::IoSlice;
use std::sync::Arc;

use rustix::io::Errno;
use wire::{Close, Message, Tools, Variant};

use crate::batch::{BATCH, Outboxes, Room};
use crate::bulk::Place;
use crate::connection::Flag;
use crate::shard::Shard;

/// Members that one fan-out serves before the next has its turn.
const SLICE: usize = if cfg!(test) { 2 } else { 256 };

/// Members that one turn of the loop serves before sockets have theirs.
const TURN: usize = if cfg!(test) { 5 } else { 2 * BATCH };

/// Slices in one turn: many fan-outs have just one member.
const SLICES: usize = TURN;

impl Shard {
    /// Carries on with the fan-outs, for one turn's share.
    pub(crate) fn fan_out(&mut self) {
        let wanted = self.hub.bulk_fanouts() > 0;
        self.place = self.places.turn(self.number, self.place, wanted, self.now_us);
        let (mut members, mut slices) = (0, 0);
        while members < TURN && slices < SLICES {
            let Some((served, slow)) = self.slice() else {
                break;
            };
            members += served;
            slices += 1;
            if self.batch.len() >= BATCH || !slow.is_empty() {
                self.send_batch();
                self.close_slow(slow);
                self.relieve_outboxes();
            }
        }
        self.send_batch();
        self.relieve_outboxes();
        self.serve_due();
        if self.hub.bulk_fanouts() == 0 {
            // Before the shard may go to sleep: others wait for its place.
            self.place = self.places.turn(self.number, self.place, false, self.now_us);
        }
        self.metrics.fanouts.set(self.hub.fanouts() as u64);
        self.answer_woken();
    }

    /// One slice into the batch: how many members it had, and those that are slow.
    fn slice(&mut self) -> Option<(usize, Vec<u32>)> {
        let bulk = matches!(self.place, Place::Held(_));
        let slice = self.hub.next_slice(SLICE, bulk, self.now_us)?;
        for message in slice.done() {
            self.handle.inbox.waiting.leave(message);
        }
        let now_us = self.now_us;
        let limits = Outboxes { settings: &self.settings, metrics: &self.metrics, now_us };
        let mut pieces = [None; Variant::COUNT];
        let (mut delivered, mut slow, mut special) = (0, Vec::new(), Vec::new());
        let mut short = Vec::new();
        // Who is left out of one of the messages: hardly ever anybody.
        let left_out: Vec<u32> = slice
            .messages()
            .filter_map(|message| message.draft.except)
            .filter(|id| id.shard == self.number)
            .map(|id| id.slot)
            .collect();
        let care = self.following.care(slice.messages());
        for &slot in slice.slots {
            let Some(connection) = self.table.get_mut(slot) else {
                continue;
            };
            let variant = connection.variant;
            if variant == Variant::Poll {
                // It looks by itself.
                if !connection.is(Flag::Woken) {
                    connection.set(Flag::Woken, true);
                    self.woken.push(slot);
                }
                continue;
            }
            if self.following.is_special(slot, variant, care, &left_out) {
                special.push(slot);
                continue;
            }
            let piece = *pieces[variant as usize].get_or_insert_with(|| {
                let bytes = encode(slice.messages(), variant, &mut self.tools);
                let messages = slice.messages().len() as u32;
                (!bytes.is_empty()).then(|| self.batch.piece(bytes, messages))
            });
            let Some(piece) = piece else { continue };
            delivered += 1;
            match self.batch.gather(connection, slot, piece, limits) {
                Room::None => slow.push(slot),
                Room::Enough if variant.is_polled() && !connection.is(Flag::Woken) => {
                    connection.set(Flag::Woken, true);
                    self.woken.push(slot);
                }
                Room::Enough => {}
                room => short.push((slot, room)),
            }
        }
        if !short.is_empty()
            && let Some(message) = slice.messages().next()
        {
            let waiting = &self.handle.inbox.waiting;
            self.short.add(waiting, message.topic_hash, &short, self.now_us);
        }
        self.metrics.delivered.add(delivered * slice.messages().len() as u64);
        for message in slice.messages().filter(|_| delivered > 0) {
            self.batch.published(message.published_us, delivered);
        }
        if let Some(since_us) = slice.finished_since_us {
            let now_us = self.started.elapsed().as_micros() as u64;
            self.metrics.fanout_time.record(now_us.saturating_sub(since_us), 1);
        }
        let served = slice.slots.len();
        if !special.is_empty() {
            let messages: Vec<Arc<Message>> = slice.messages().cloned().collect();
            self.serve_special(&special, &messages, &mut slow);
        }
        Some((served, slow))
    }

    /// The members of a slice that are not served alike.
    fn serve_special(&mut self, special: &[u32], messages: &[Arc<Message>], slow: &mut Vec<u32>) {
        let mut connections = 0;
        for &slot in special {
            let (given, room) = self.deliver_specially(slot, messages);
            self.metrics.delivered.add(given as u64);
            connections += u64::from(given > 0);
            if room == Room::None {
                slow.push(slot);
            } else if room > Room::Enough {
                let hash = messages.first().map_or(0, |message| message.topic_hash);
                let waiting = &self.handle.inbox.waiting;
                self.short.add(waiting, hash, &[(slot, room)], self.now_us);
            } else if let Some(connection) = self.table.get_mut(slot)
                && given > 0
                && connection.variant.is_polled()
                && !connection.is(Flag::Woken)
            {
                connection.set(Flag::Woken, true);
                self.woken.push(slot);
            }
        }
        for message in messages.iter().filter(|_| connections > 0) {
            self.batch.published(message.published_us, connections);
        }
    }

    /// Appends what the connection is still owed, by all or by one topic, for it is about to leave:
    /// whoever sends a user a last message and then disconnects them wants it to arrive.
    pub(crate) fn settle(&mut self, slot: u32, topic: Option<&str>, out: &mut Vec<u8>) {
        let topic = topic.map(|topic| (self.broker.hash(topic), topic));
        if let Some((hash, _)) = topic {
            self.tell_waiting(slot, hash, out);
        }
        let Some(connection) = self.table.get(slot) else {
            return;
        };
        let id = self.id(slot, connection.serial);
        let mut owed: Vec<Arc<Message>> = self.hub.owed(slot, topic).into_iter().cloned().collect();
        owed.retain(|message| {
            message.draft.except != Some(id)
                && self.admits(slot, message)
                && self.chooses(slot, message)
        });
        self.settle_these(slot, &owed, out);
        self.metrics.delivered.add(owed.len() as u64);
    }

    fn close_slow(&mut self, slow: Vec<u32>) {
        for slot in slow {
            self.close(slot, Close::SlowConsumer, &[]);
        }
    }

    /// Looks after the polls and the long-poll sessions for which something was published.
    fn answer_woken(&mut self) {
        for slot in std::mem::take(&mut self.woken) {
            if let Some(connection) = self.table.get_mut(slot) {
                connection.set(Flag::Woken, false);
                if connection.variant.is_polled() {
                    self.session_wake(slot, false);
                } else {
                    self.look_after_poll(slot, false);
                }
            }
        }
    }

    /// Sends bytes to one connection, behind what it has waiting. A connection that fails or is
    /// slow is closed.
    pub(crate) fn send(&mut self, slot: u32, bytes: &[u8], messages: u32) {
        let Some(connection) = self.table.get(slot) else {
            return;
        };
        let mut sent = 0;
        if connection.outbox().is_none() {
            match crate::sender::send_one(std::os::fd::AsFd::as_fd(&connection.fd), bytes) {
                Ok(taken) => sent = taken,
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => {}
                Err(_) => return self.end(slot, Close::Lost),
            }
            self.metrics.bytes_out.add(sent as u64);
            if sent == bytes.len() {
                return;
            }
        }
        let polled = connection.variant.is_polled();
        if !self.keep(slot, bytes, messages, sent) {
            self.close(slot, Close::SlowConsumer, &[]);
        } else if polled {
            self.session_wake(slot, false);
        }
    }

    /// The socket has room: sends what waits.
    pub(crate) fn flush(&mut self, slot: u32) {
        let (now_s, now_us) = (self.now_s() as u16, self.now_us);
        loop {
            let Some(connection) = self.table.get_mut(slot) else {
                return;
            };
            if connection.variant.is_polled() {
                // As in `readable`.
                return;
            }
            let fd = &connection.fd;
            let Some(extra) = &mut connection.extra else {
                return;
            };
            let Some(outbox) = &mut extra.outbox else {
                return;
            };
            let parts: Vec<IoSlice<'_>> = outbox.parts().take(64).map(IoSlice::new).collect();
            match rustix::io::writev(fd, &parts) {
                Ok(sent) => {
                    if connection.variant == Variant::Http {
                        // It reads: that counts as a sign of life while an answer is long.
                        connection.heard_s = now_s;
                    }
                    outbox.advance(sent, now_us);
                    self.metrics.bytes_out.add(sent as u64);
                    self.metrics.outbox_bytes.sub(sent as u64);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) => return,
                Err(_) => return self.end(slot, Close::Lost),
            }
            if outbox.is_empty() {
                extra.outbox = None;
                self.metrics.outboxes.sub(1);
                let _ = self.poller.watch_output(fd, u64::from(slot), false);
                let closing = connection.is(Flag::Closing);
                connection.trim();
                if closing {
                    self.shut(slot);
                } else {
                    self.tell_due_lists(slot);
                    self.pull_more(slot);
                    self.go_on(slot);
                }
                return;
            }
        }
    }
}

/// The messages as one run of bytes for a variant. One message is encoded once for all shards.
pub(crate) fn encode<'a>(
    mut messages: impl ExactSizeIterator<Item = &'a Arc<Message>>,
    variant: Variant,
    tools: &mut Tools,
) -> Arc<[u8]> {
    match (messages.len(), messages.next()) {
        (1, Some(message)) => message.encoded(variant, tools),
        (_, first) => {
            let mut all = Vec::new();
            for message in first.into_iter().chain(messages) {
                all.extend_from_slice(&message.encoded(variant, tools));
            }
            all.into()
        }
    }
}
