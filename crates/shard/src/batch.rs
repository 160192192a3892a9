//! Sends that are gathered and leave together.
//!
//! Each connection is in a batch once: when more comes for it before the batch leaves, the pieces
//! are joined and go in one write.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;
use wire::Close;

use crate::connection::{Chunk, Connection, Flag};
use crate::metrics::Metrics;
use crate::sender::Send;
use crate::settings::Settings;
use crate::shard::Shard;

/// Sends in a batch: as many as one system call submits.
pub(crate) const BATCH: usize = 512;

#[derive(Default)]
pub(crate) struct Batch {
    entries: Vec<Entry>,
    /// What the entries send: many of them the same.
    pieces: Vec<Piece>,
    /// Further pieces for connections that are in the batch.
    again: HashMap<u32, Vec<u32>>,
    /// When the messages of the batch were published, and how many connections each had.
    latencies: Vec<(u64, u64)>,
}

#[derive(Clone, Copy)]
struct Entry {
    slot: u32,
    piece: u32,
}

struct Piece {
    bytes: Arc<[u8]>,
    messages: u32,
}

impl Batch {
    /// Adds bytes that entries may then name.
    pub fn piece(&mut self, bytes: Arc<[u8]>, messages: u32) -> u32 {
        self.pieces.push(Piece { bytes, messages });
        self.pieces.len() as u32 - 1
    }

    /// Notes for the metrics that a message went to so many connections.
    pub fn published(&mut self, published_us: u64, connections: u64) {
        self.latencies.push((published_us, connections));
    }

    /// Connections in the batch.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Gathers a piece for a connection; into its outbox, if it has one. False when the
    /// connection is a slow consumer now, and must be closed once the batch is sent.
    pub fn gather(
        &mut self,
        connection: &mut Connection,
        slot: u32,
        piece: u32,
        limits: Outboxes<'_>,
    ) -> bool {
        if connection.is(Flag::Closing) {
            return true;
        }
        if let Some(outbox) = connection.outbox_mut() {
            let Piece { bytes, messages } = &self.pieces[piece as usize];
            outbox.push(Chunk { bytes: bytes.clone(), messages: *messages }, 0);
            limits.metrics.outbox_bytes.add(bytes.len() as u64);
            return limits.fits(connection);
        }
        if connection.is(Flag::Batched) {
            connection.set(Flag::BatchedAgain, true);
            self.again.entry(slot).or_default().push(piece);
            return true;
        }
        connection.set(Flag::Batched, true);
        connection.set(Flag::Spoken, true);
        self.entries.push(Entry { slot, piece });
        true
    }
}

/// What outboxes are measured by.
#[derive(Clone, Copy)]
pub(crate) struct Outboxes<'a> {
    pub settings: &'a Settings,
    pub metrics: &'a Metrics,
}

impl Outboxes<'_> {
    fn fits(&self, connection: &Connection) -> bool {
        // The conformance echo sends back what is far larger than any message.
        let Some(outbox) = connection.outbox() else {
            return true;
        };
        // A long-poll session gathers all messages of a wait: only their bytes are limited.
        let messages_max = match connection.variant.is_polled() {
            true => usize::MAX,
            false => self.settings.outbox_messages_max,
        };
        // One answer to a request may be larger, since more is asked for only when it has come; so
        // may a piece of what was missed, since the next is made only when it has left.
        let one_answer = outbox.is_one();
        connection.variant.name() == "echo"
            || one_answer
            || (outbox.bytes() <= self.settings.outbox_bytes_max
                && outbox.messages() <= messages_max)
    }
}

impl Shard {
    /// Sends what was gathered. Connections that failed or are slow are closed.
    pub(crate) fn send_batch(&mut self) {
        if self.batch.entries.is_empty() {
            self.batch.pieces.clear();
            self.batch.latencies.clear();
            return;
        }
        let mut batch = std::mem::take(&mut self.batch);
        self.join_pieces(&mut batch);
        let mut sends = Vec::with_capacity(batch.entries.len());
        for entry in &batch.entries {
            if let Some(connection) = self.table.get(entry.slot) {
                let bytes = &*batch.pieces[entry.piece as usize].bytes;
                sends.push(Send { fd: connection.fd.as_fd(), bytes });
            }
        }
        debug_assert_eq!(
            sends.len(),
            batch.entries.len(),
            "nobody leaves while a batch is gathered"
        );
        let mut bytes_out = 0;
        let mut odd: Vec<(Entry, rustix::io::Result<usize>)> = Vec::new();
        let entries = &batch.entries;
        let pieces = &batch.pieces;
        self.sender.send(&sends, |at, result| {
            let entry = entries[at];
            match result {
                Ok(sent) if sent == pieces[entry.piece as usize].bytes.len() => bytes_out += sent,
                result => odd.push((entry, result)),
            }
        });
        drop(sends);
        for entry in &batch.entries {
            if let Some(connection) = self.table.get_mut(entry.slot) {
                connection.set(Flag::Batched, false);
                connection.set(Flag::BatchedAgain, false);
            }
        }
        self.metrics.bytes_out.add(bytes_out as u64);
        let now_us = self.started.elapsed().as_micros() as u64;
        for (published_us, connections) in batch.latencies.drain(..) {
            let latency_us = now_us.saturating_sub(published_us);
            self.metrics.delivery_latency.record(latency_us, connections);
        }
        for (entry, result) in odd {
            self.not_whole(entry, result, &batch.pieces);
        }
        batch.entries.clear();
        batch.pieces.clear();
        batch.again.clear();
        self.batch = batch;
    }

    /// Joins the pieces of connections that are in the batch more than once.
    fn join_pieces(&mut self, batch: &mut Batch) {
        if batch.again.is_empty() {
            return;
        }
        for at in 0..batch.entries.len() {
            let Entry { slot, piece } = batch.entries[at];
            let again = self.table.get(slot).is_some_and(|found| found.is(Flag::BatchedAgain));
            if !again {
                continue;
            }
            let more = batch.again.get(&slot).map_or(&[][..], Vec::as_slice);
            let all = || std::iter::once(piece).chain(more.iter().copied());
            let bytes: Vec<u8> = all()
                .flat_map(|piece| batch.pieces[piece as usize].bytes.iter().copied())
                .collect();
            let messages = all().map(|piece| batch.pieces[piece as usize].messages).sum();
            batch.entries[at].piece = batch.piece(bytes.into(), messages);
        }
    }

    /// The kernel did not take all of it: the rest goes to an outbox.
    fn not_whole(&mut self, entry: Entry, result: rustix::io::Result<usize>, pieces: &[Piece]) {
        let sent = match result {
            Ok(sent) => sent,
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => 0,
            Err(_) => return self.end(entry.slot, Close::Lost),
        };
        self.metrics.bytes_out.add(sent as u64);
        let Piece { bytes, messages } = &pieces[entry.piece as usize];
        let chunk = Chunk { bytes: bytes.clone(), messages: *messages };
        if !self.enqueue(entry.slot, chunk, sent) {
            self.close(entry.slot, Close::SlowConsumer, &[]);
        }
    }

    /// Appends to a connection's outbox. False when it is over its limits.
    pub(crate) fn enqueue(&mut self, slot: u32, chunk: Chunk, sent: usize) -> bool {
        let Some(connection) = self.table.get_mut(slot) else {
            return true;
        };
        if connection.outbox().is_none() {
            self.metrics.outboxes.add(1);
            // A connection that is being admitted is not watched yet, and this fails: it is then
            // watched for room from the start.
            let _ = self.poller.watch_output(&connection.fd, u64::from(slot), true);
        }
        self.metrics.outbox_bytes.add((chunk.bytes.len() - sent) as u64);
        connection.extra().outbox.get_or_insert_default().push(chunk, sent);
        Outboxes { settings: &self.settings, metrics: &self.metrics }.fits(connection)
    }
}
