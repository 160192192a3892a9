//! Batches: sends that the shard gathers and makes together.
//!
//! Each connection is in a batch once. If more bytes come for it before the batch leaves, the shard joins the pieces
//! and sends them in one write.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::Shard;
use crate::sender::{BATCH, Send, send_one};
use crate::socket::{Sockets, State};
use crate::tls::WINDOW_BYTES;
use broker::ShardDelivery;
use engine::{Capacity, Chunk, Limited, Metrics, ObservedDelivery, Outbox, Settings};

/// The shard gathers so many encrypted bytes, and one entry more, before it sends them.
const SEALED_BYTES: usize = 256 << 10;

#[derive(Default)]
pub(crate) struct Batch {
    entries: Vec<Entry>,
    /// The bytes of the entries. Many entries share a piece.
    pieces: Vec<Piece>,
    /// Further pieces for connections that are in the batch, by slot.
    again: HashMap<u32, Vec<u32>>,
    /// When the messages of the batch were published, and how many connections each had.
    latencies: Vec<(u64, u64)>,
    /// Observed messages whose last bytes are in the batch, or were sent before it.
    observed: Vec<ObservedDelivery>,
}

/// A connection and its bytes. A socket leaves the batch before it is closed.
#[derive(Clone, Copy)]
struct Entry {
    slot: u32,
    piece: u32,
}

/// An entry that the kernel did not take whole.
struct Unsent {
    entry: Entry,
    result: rustix::io::Result<usize>,
    /// The bytes to send, if they are encrypted: the first [`WINDOW_BYTES`] of the piece.
    sealed: Option<Vec<u8>>,
}

struct Piece {
    bytes: Arc<[u8]>,
    messages: u32,
    /// The bytes as a piece of outboxes, which share it; `None` until an outbox has them.
    outbox: Option<Arc<engine::Piece>>,
}

impl Piece {
    fn chunk(&mut self, metrics: &Arc<Metrics>) -> Chunk {
        let new = || engine::Piece::new(self.bytes.clone(), metrics);
        Chunk::new(self.outbox.get_or_insert_with(new).clone(), self.messages)
    }
}

impl Batch {
    /// Adds bytes that entries may then name.
    pub fn piece(&mut self, bytes: Arc<[u8]>, messages: u32) -> u32 {
        self.pieces.push(Piece { bytes, messages, outbox: None });
        self.pieces.len() as u32 - 1
    }

    /// Notes for the metrics that a message went to so many connections.
    pub fn published(&mut self, published_us: u64, connections: u64) {
        self.latencies.push((published_us, connections));
    }

    /// Calls the observer of a message when the batch has been sent.
    pub fn observe(&mut self, observed: ObservedDelivery) {
        self.observed.push(observed);
    }

    /// Connections in the batch.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Gathers a piece for a connection, or adds it to the connection's outbox, if it has one. The caller must
    /// close a connection without capacity.
    fn gather(
        &mut self,
        sockets: &mut Sockets,
        slot: u32,
        piece: u32,
        limits: Limits<'_>,
    ) -> Capacity {
        let Some(socket) = sockets.get_mut(slot) else {
            return Capacity::Enough;
        };
        if socket.is(State::Batched) {
            socket.set(State::BatchedAgain, true);
            self.again.entry(slot).or_default().push(piece);
            return Capacity::Enough;
        }
        // Nearly all connections have no outbox, and need one lookup.
        if !socket.is(State::Blocked) {
            socket.set(State::Batched, true);
            self.entries.push(Entry { slot, piece });
            return Capacity::Enough;
        }
        let Some(outbox) = sockets.outbox_mut(slot) else {
            return Capacity::Enough;
        };
        let chunk = self.pieces[piece as usize].chunk(limits.metrics);
        limits.metrics.outbox_bytes.add(chunk.bytes() as u64);
        outbox.push(chunk, 0);
        limits.capacity(outbox)
    }
}

/// The limits of outboxes.
#[derive(Clone, Copy)]
struct Limits<'a> {
    settings: &'a Settings,
    metrics: &'a Arc<Metrics>,
    now_us: u64,
}

impl Limits<'_> {
    fn capacity(&self, outbox: &Outbox) -> Capacity {
        outbox.capacity(self.settings, self.now_us)
    }
}

/// When all outboxes together exceed their limit, the shard frees this part of its own at once.
const RELIEF_PART: u64 = 8;

impl Shard {
    /// Gathers the same bytes for many connections, and closes the slow ones among them.
    pub(crate) fn gather(
        &mut self,
        bytes: Arc<[u8]>,
        slots: &[u32],
        messages: u32,
        topic: Option<u64>,
    ) {
        let piece = self.batch.piece(bytes, messages);
        let (mut slow, mut short) = (Vec::new(), Vec::new());
        let Shard { engine, batch, sockets, .. } = self;
        let (settings, metrics, now_us) = (engine.settings(), &engine.metrics(), engine.now_us());
        let limits = Limits { settings, metrics, now_us };
        for slot in slots {
            match batch.gather(sockets, *slot, piece, limits) {
                Capacity::Enough => {}
                Capacity::None => slow.push(*slot),
                capacity @ (Capacity::Half | Capacity::Burst) => short.push((*slot, capacity)),
            }
        }
        if let Some(topic) = topic.filter(|_| !short.is_empty()) {
            let backlog = self.engine.handle().backlog();
            self.short.add(backlog, topic, &short, now_us);
        }
        if self.batch.len() >= BATCH || !slow.is_empty() {
            self.send_batch();
            slow.into_iter().for_each(|slot| self.engine.on_slow(slot));
            self.relieve_outboxes();
        }
    }

    /// Sends the batch if this connection is in it, so that later bytes stay behind it.
    pub(crate) fn flush_batched(&mut self, slot: u32) {
        if self.sockets.get(slot).is_some_and(|socket| socket.is(State::Batched)) {
            self.send_batch();
        }
    }

    /// Sends the batch, and closes connections whose send failed or that are slow.
    pub(crate) fn send_batch(&mut self) {
        if self.batch.entries.is_empty() {
            self.batch.pieces.clear();
            // Bytes for single connections have left already.
            return self.measure_latencies();
        }
        let mut batch = std::mem::take(&mut self.batch);
        self.join_pieces(&mut batch);
        let incomplete = match self.tls.is_empty() {
            true => self.send_entries(&batch),
            false => self.send_entries_tls(&batch),
        };
        for entry in &batch.entries {
            if let Some(socket) = self.sockets.get_mut(entry.slot) {
                socket.set(State::Batched, false);
                socket.set(State::BatchedAgain, false);
            }
        }
        self.batch.latencies = std::mem::take(&mut batch.latencies);
        self.batch.observed = std::mem::take(&mut batch.observed);
        self.measure_latencies();
        batch.latencies = std::mem::take(&mut self.batch.latencies);
        batch.observed = std::mem::take(&mut self.batch.observed);
        for unsent in incomplete {
            self.not_whole(unsent, &mut batch.pieces);
        }
        batch.entries.clear();
        batch.pieces.clear();
        batch.again.clear();
        self.batch = batch;
    }

    /// Sends the entries of a batch, and returns those that the kernel did not take whole.
    fn send_entries(&mut self, batch: &Batch) -> Vec<Unsent> {
        let mut sends = Vec::with_capacity(batch.entries.len());
        for &entry in &batch.entries {
            if let Some(socket) = self.sockets.get(entry.slot) {
                let bytes = &*batch.pieces[entry.piece as usize].bytes;
                sends.push(Send { fd: socket.as_fd(), bytes, of: entry });
            }
        }
        let mut bytes_out = 0;
        let mut incomplete = Vec::new();
        let pieces = &batch.pieces;
        self.sender.send(&sends, |entry, result| match result {
            Ok(sent) if sent == pieces[entry.piece as usize].bytes.len() => bytes_out += sent,
            result => incomplete.push(Unsent { entry, result, sealed: None }),
        });
        self.engine.metrics().bytes_out.add(bytes_out as u64);
        incomplete
    }

    /// Sends the entries of a batch where some of the connections have TLS, and returns those that are not sent whole.
    /// The shard first encrypts the bytes for each connection with TLS.
    fn send_entries_tls(&mut self, batch: &Batch) -> Vec<Unsent> {
        let mut incomplete = Vec::new();
        let mut sealed = std::mem::take(&mut self.tls_sealed);
        let mut next = 0;
        while next < batch.entries.len() {
            let begin = next;
            // Where the bytes of each entry are, if they are encrypted.
            let mut ranges = Vec::with_capacity(batch.entries.len() - begin);
            sealed.clear();
            while next < batch.entries.len() && sealed.len() < SEALED_BYTES {
                let Entry { slot, piece } = batch.entries[next];
                ranges.push(self.is_tls(slot).then(|| {
                    let plain = &batch.pieces[piece as usize].bytes;
                    self.seal_batched(slot, plain, &mut sealed)
                }));
                next += 1;
            }
            let entries = &batch.entries[begin..next];
            let mut sends = Vec::with_capacity(entries.len());
            for (at, (entry, range)) in entries.iter().zip(&ranges).enumerate() {
                let Some(socket) = self.sockets.get(entry.slot) else {
                    continue;
                };
                let bytes = match range {
                    None => &*batch.pieces[entry.piece as usize].bytes,
                    Some(Some(range)) => &sealed[range.clone()],
                    Some(None) => {
                        let result = Err(Errno::CONNRESET);
                        incomplete.push(Unsent { entry: *entry, result, sealed: None });
                        continue;
                    }
                };
                sends.push(Send { fd: socket.as_fd(), bytes, of: (at, bytes) });
            }
            let mut bytes_out = 0;
            self.sender.send(&sends, |(at, bytes), result| {
                let entry = entries[at];
                let piece_bytes = batch.pieces[entry.piece as usize].bytes.len();
                let is_tls = ranges[at].is_some();
                match result {
                    Ok(sent) if sent == bytes.len() && (!is_tls || piece_bytes <= WINDOW_BYTES) => {
                        bytes_out += sent;
                    }
                    result => {
                        let sealed = is_tls.then(|| bytes.to_vec());
                        incomplete.push(Unsent { entry, result, sealed });
                    }
                }
            });
            self.engine.metrics().bytes_out.add(bytes_out as u64);
        }
        self.tls_sealed = sealed;
        incomplete
    }

    /// Records the latencies of messages that have left.
    fn measure_latencies(&mut self) {
        if self.batch.latencies.is_empty() && self.batch.observed.is_empty() {
            return;
        }
        let metrics = &self.engine.metrics();
        let now_us = self.started.elapsed().as_micros() as u64;
        for ObservedDelivery { observer, delivery } in self.batch.observed.drain(..) {
            observer.on_delivered(ShardDelivery { sent_us: now_us, ..delivery });
        }
        for (published_us, connections) in self.batch.latencies.drain(..) {
            let latency_us = now_us.saturating_sub(published_us);
            metrics.delivery_latency.record(latency_us, connections);
        }
    }

    /// Joins the pieces of connections that are in the batch more than once.
    fn join_pieces(&mut self, batch: &mut Batch) {
        if batch.again.is_empty() {
            return;
        }
        for at in 0..batch.entries.len() {
            let Entry { slot, piece } = batch.entries[at];
            let again = self.sockets.get(slot).is_some_and(|found| found.is(State::BatchedAgain));
            if !again {
                continue;
            }
            let more = batch.again.get(&slot).map_or(&[][..], Vec::as_slice);
            let all = || std::iter::once(piece).chain(more.iter().copied());
            let parts: Vec<&[u8]> =
                all().map(|piece| &*batch.pieces[piece as usize].bytes).collect();
            let bytes = parts.concat();
            let messages = all().map(|piece| batch.pieces[piece as usize].messages).sum();
            batch.entries[at].piece = batch.piece(bytes.into(), messages);
        }
    }

    /// Puts the bytes that the kernel did not take into an outbox.
    fn not_whole(&mut self, unsent: Unsent, pieces: &mut [Piece]) {
        let Unsent { entry, result, sealed } = unsent;
        let sent = match result {
            Ok(sent) => sent,
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => 0,
            Err(_) => return self.engine.on_lost(entry.slot),
        };
        self.engine.metrics().bytes_out.add(sent as u64);
        let mut taken = sent;
        if let Some(sealed) = sealed {
            if sent < sealed.len() && !self.keep_unsent(entry.slot, &sealed, sent) {
                return;
            }
            // Encrypted bytes do not go into the outbox.
            let bytes = pieces[entry.piece as usize].bytes.len();
            taken = bytes.min(WINDOW_BYTES);
            if taken == bytes {
                return;
            }
        }
        let chunk = pieces[entry.piece as usize].chunk(self.engine.metrics());
        self.enqueue(entry.slot, chunk, taken);
    }

    /// Sends bytes to one connection, behind those in its outbox.
    pub(crate) fn send(&mut self, slot: u32, bytes: &[u8], messages: u32, confirm: bool) {
        self.flush_batched(slot);
        let Some(socket) = self.sockets.get(slot) else {
            return;
        };
        let mut sent = 0;
        if socket.is(State::Tls) && !socket.is(State::Blocked) {
            let Some(sealed) = self.send_tls(slot, bytes) else {
                return;
            };
            if sealed == bytes.len() {
                let is_blocked = self.sockets.get(slot).is_some_and(|it| it.is(State::Blocked));
                if confirm && !is_blocked {
                    self.confirmed.push(slot);
                }
                return;
            }
            sent = sealed;
        } else if !socket.is(State::Blocked) {
            match send_one(socket.as_fd(), bytes) {
                Ok(written) => sent = written,
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => {}
                Err(_) => return self.engine.on_lost(slot),
            }
            self.engine.metrics().bytes_out.add(sent as u64);
            if sent == bytes.len() {
                if confirm {
                    self.confirmed.push(slot);
                }
                return;
            }
        }
        let piece = engine::Piece::new(bytes.into(), self.engine.metrics());
        self.enqueue(slot, Chunk::new(piece, messages), sent);
    }

    /// Appends a chunk, of which `sent` bytes have left, to a connection's outbox. Closes a slow consumer.
    fn enqueue(&mut self, slot: u32, chunk: Chunk, sent: usize) {
        let now_us = self.engine.now_us();
        if self.sockets.get(slot).is_none() {
            return;
        }
        self.engine.metrics().outbox_bytes.add((chunk.bytes() - sent) as u64);
        self.block(slot);
        let Some(outbox) = self.sockets.outbox_mut(slot) else {
            return;
        };
        outbox.push(chunk, sent);
        if outbox.capacity(self.engine.settings(), now_us) == Capacity::None
            && !self.engine.is_unlimited(slot)
        {
            self.engine.on_slow(slot);
        }
    }

    /// Gives a connection an empty outbox, if it has none.
    pub(super) fn block(&mut self, slot: u32) {
        let Some(socket) = self.sockets.get(slot).filter(|socket| !socket.is(State::Blocked))
        else {
            return;
        };
        self.engine.metrics().outboxes.add(1);
        // This fails for a connection that the poller doesn't watch yet, because it was only just accepted: the
        // poller then watches it for capacity from the start.
        let _ = self.poller.watch_output(socket, u64::from(slot), true);
        self.sockets.block(slot, Outbox::new(self.engine.now_us()));
        self.engine.on_blocked(slot);
    }

    /// The socket has capacity: sends the outbox's bytes.
    pub(crate) fn flush(&mut self, slot: u32) {
        if self.is_tls(slot) {
            return self.flush_tls(slot);
        }
        let now_us = self.engine.now_us();
        loop {
            let (Some(outbox), Some(socket)) = (self.sockets.outbox(slot), self.sockets.get(slot))
            else {
                return;
            };
            let parts: Vec<IoSlice<'_>> = outbox.parts().take(64).map(IoSlice::new).collect();
            let sent = match rustix::io::writev(socket, &parts) {
                Ok(sent) => sent,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN | Errno::NOBUFS) => return,
                Err(_) => {
                    self.engine.on_lost(slot);
                    return self.perform();
                }
            };
            self.engine.on_written(slot);
            self.engine.metrics().bytes_out.add(sent as u64);
            self.engine.metrics().outbox_bytes.sub(sent as u64);
            let Some(outbox) = self.sockets.outbox_mut(slot) else {
                return;
            };
            outbox.advance(sent, now_us);
            if outbox.is_empty() {
                return self.unblock(slot);
            }
        }
    }

    pub(super) fn unblock(&mut self, slot: u32) {
        self.sockets.unblock(slot);
        self.engine.metrics().outboxes.sub(1);
        if let Some(socket) = self.sockets.get(slot) {
            let _ = self.poller.watch_output(socket, u64::from(slot), false);
            if socket.is(State::Closing) {
                self.shut(slot);
            } else {
                self.engine.on_drained(slot);
            }
        }
        self.perform();
    }

    /// Closes the slow consumers among those with an outbox.
    pub(crate) fn close_slow(&mut self) {
        let (settings, now_us) = (&self.engine.settings(), self.engine.now_us());
        let is_slow = |outbox: &Outbox| outbox.capacity(settings, now_us) == Capacity::None;
        let slow = self
            .sockets
            .outboxes()
            .filter(|(slot, outbox)| is_slow(outbox) && !self.engine.is_unlimited(*slot));
        let slow: Vec<u32> = slow.map(|(slot, _)| slot).collect();
        slow.into_iter().for_each(|slot| self.engine.on_slow(slot));
        self.perform();
    }

    /// Closes slow consumers when all outboxes together exceed their limit: first connections that have stopped
    /// reading, then those with the largest outboxes.
    pub(crate) fn relieve_outboxes(&mut self) {
        let used = |metrics: &Metrics| metrics.outbox_memory.get();
        if !self.engine.is_beyond(self.engine.settings().outboxes_bytes_max, used) {
            return;
        }
        let (settings, now_us) = (&self.engine.settings(), self.engine.now_us());
        let sessions = self.engine.session_backlogs().map(|(slot, bytes)| (false, bytes, slot));
        let sockets = self.sockets.outboxes().map(|(slot, outbox)| {
            let bytes = outbox.bytes() + self.tls.unsent_bytes(slot);
            (outbox.keeps_pace_of(settings, now_us), bytes, slot)
        });
        let sockets = sockets.filter(|(_, bytes, _)| *bytes > 0);
        let mut holders: Vec<(bool, Reverse<usize>, u32)> = sessions
            .chain(sockets)
            .map(|(keeps_pace, bytes, slot)| (keeps_pace, Reverse(bytes), slot))
            .collect();
        holders.sort_unstable();
        let enough = used(self.engine.metrics()) - used(self.engine.metrics()) / RELIEF_PART;
        for (.., slot) in holders {
            if used(self.engine.metrics()) <= enough {
                return;
            }
            self.engine.metrics().limited[Limited::Outboxes as usize].add(1);
            self.engine.relieve(slot);
            self.perform();
        }
    }
}

#[cfg(test)]
mod tests;
