//! Sends that are gathered and leave together.
//!
//! Each connection is in a batch once: when more comes for it before the batch leaves, the pieces
//! are joined and go in one write.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;
use wire::Close;

use crate::connection::{Connection, Flag};
use crate::metrics::Metrics;
use crate::outbox::{self, Chunk, Outbox};
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
    /// Further pieces for connections that are in the batch, by slot and serial.
    again: HashMap<(u32, u32), Vec<u32>>,
    /// When the messages of the batch were published, and how many connections each had.
    latencies: Vec<(u64, u64)>,
}

/// Which connection gets what. The serial tells it from another that has taken its slot.
#[derive(Clone, Copy)]
struct Entry {
    slot: u32,
    serial: u32,
    piece: u32,
}

struct Piece {
    bytes: Arc<[u8]>,
    messages: u32,
    /// The same, once an outbox has taken it up.
    kept: Option<Arc<outbox::Piece>>,
}

impl Piece {
    fn chunk(&mut self, metrics: &Arc<Metrics>) -> Chunk {
        let new = || outbox::Piece::new(self.bytes.clone(), metrics);
        Chunk::new(self.kept.get_or_insert_with(new).clone(), self.messages)
    }
}

/// What is left of a connection's room to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Room {
    /// Enough.
    Enough,
    /// Over half of it is used, by a reader that keeps pace.
    Half,
    /// All of it is used, by a reader that keeps pace.
    Full,
    /// It is a slow consumer, and must be closed.
    None,
}

impl Batch {
    /// Adds bytes that entries may then name.
    pub fn piece(&mut self, bytes: Arc<[u8]>, messages: u32) -> u32 {
        self.pieces.push(Piece { bytes, messages, kept: None });
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

    /// Gathers a piece for a connection; into its outbox, if it has one. Who has no room must be
    /// closed once the batch is sent.
    pub fn gather(
        &mut self,
        connection: &mut Connection,
        slot: u32,
        piece: u32,
        limits: Outboxes<'_>,
    ) -> Room {
        if connection.is(Flag::Closing) {
            return Room::Enough;
        }
        let serial = connection.serial;
        if let Some(outbox) = connection.outbox_mut() {
            let chunk = self.pieces[piece as usize].chunk(limits.metrics);
            limits.metrics.outbox_bytes.add(chunk.bytes() as u64);
            outbox.push(chunk, 0);
            return limits.room(connection);
        }
        if connection.is(Flag::Batched) {
            connection.set(Flag::BatchedAgain, true);
            self.again.entry((slot, serial)).or_default().push(piece);
            return Room::Enough;
        }
        connection.set(Flag::Batched, true);
        connection.set(Flag::Spoken, true);
        self.entries.push(Entry { slot, serial, piece });
        Room::Enough
    }
}

/// What outboxes are measured by.
#[derive(Clone, Copy)]
pub(crate) struct Outboxes<'a> {
    pub settings: &'a Settings,
    pub metrics: &'a Arc<Metrics>,
    /// The time of this turn, in microseconds of the node's clock.
    pub now_us: u64,
}

/// How many times its limits an outbox may hold while its reader keeps pace: what is published in
/// one moment is more than the fastest reader can take in it.
const PATIENCE: usize = 4;

/// Who keeps pace takes this part of an outbox's limit in a second.
const PACE_PART: usize = 4;

impl Outboxes<'_> {
    pub fn room(&self, connection: &Connection) -> Room {
        // The conformance echo sends back what is far larger than any message. One answer to a
        // request may be larger, since more is asked for only when it has come; so may a piece of
        // what was missed, since the next is made only when it has left.
        let Some(outbox) = connection.outbox().filter(|outbox| !outbox.is_one()) else {
            return Room::Enough;
        };
        if !self.is_over(connection, outbox, 1, 2) || connection.variant.name() == "echo" {
            return Room::Enough;
        }
        let over = self.is_over(connection, outbox, 1, 1);
        // A long-poll session gives all that it has to the next poll: it has no pace.
        let keeps_pace = !connection.variant.is_polled() && self.keeps_pace(outbox);
        match (over, keeps_pace) {
            (false, true) => Room::Half,
            (false, false) => Room::Enough,
            (true, true) if !self.is_over(connection, outbox, PATIENCE, 1) => Room::Full,
            (true, _) => Room::None,
        }
    }

    /// True while its reader takes what is sent to it at a fair rate.
    pub fn keeps_pace(&self, outbox: &Outbox) -> bool {
        outbox.keeps_pace(self.settings.outbox_bytes_max / PACE_PART, self.now_us)
    }

    /// True when it holds more than this part of its limits.
    fn is_over(&self, connection: &Connection, outbox: &Outbox, times: usize, part: usize) -> bool {
        let max = |max: usize| max.saturating_mul(times) / part;
        // A long-poll session gathers all messages of a wait: only their bytes are limited.
        let many = outbox.messages() > max(self.settings.outbox_messages_max);
        outbox.bytes() > max(self.settings.outbox_bytes_max)
            || (many && !connection.variant.is_polled())
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
        for &entry in &batch.entries {
            // Nobody leaves while a batch is gathered. Should that ever be wrong, whoever has the
            // slot now gets nothing of it.
            let found = self.table.get(entry.slot);
            if let Some(connection) = found.filter(|found| found.serial == entry.serial) {
                let bytes = &*batch.pieces[entry.piece as usize].bytes;
                sends.push(Send { fd: connection.fd.as_fd(), bytes, of: entry });
            }
        }
        let mut bytes_out = 0;
        let mut odd: Vec<(Entry, rustix::io::Result<usize>)> = Vec::new();
        let pieces = &batch.pieces;
        self.sender.send(&sends, |entry, result| match result {
            Ok(sent) if sent == pieces[entry.piece as usize].bytes.len() => bytes_out += sent,
            result => odd.push((entry, result)),
        });
        drop(sends);
        for entry in &batch.entries {
            if let Some(connection) = self.table.get_mut(entry.slot)
                && connection.serial == entry.serial
            {
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
            self.not_whole(entry, result, &mut batch.pieces);
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
            let Entry { slot, serial, piece } = batch.entries[at];
            let again = self.table.get(slot).is_some_and(|found| found.is(Flag::BatchedAgain));
            if !again {
                continue;
            }
            let more = batch.again.get(&(slot, serial)).map_or(&[][..], Vec::as_slice);
            let all = || std::iter::once(piece).chain(more.iter().copied());
            let bytes: Vec<u8> = all()
                .flat_map(|piece| batch.pieces[piece as usize].bytes.iter().copied())
                .collect();
            let messages = all().map(|piece| batch.pieces[piece as usize].messages).sum();
            batch.entries[at].piece = batch.piece(bytes.into(), messages);
        }
    }

    /// The kernel did not take all of it: the rest goes to an outbox.
    fn not_whole(&mut self, entry: Entry, result: rustix::io::Result<usize>, pieces: &mut [Piece]) {
        let sent = match result {
            Ok(sent) => sent,
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => 0,
            Err(_) => return self.end(entry.slot, Close::Lost),
        };
        self.metrics.bytes_out.add(sent as u64);
        let chunk = pieces[entry.piece as usize].chunk(&self.metrics);
        if !self.enqueue(entry.slot, chunk, sent) {
            self.close(entry.slot, Close::SlowConsumer, &[]);
        }
    }

    /// Appends bytes of which so many have left to a connection's outbox. False when it is a slow
    /// consumer now.
    pub(crate) fn keep(&mut self, slot: u32, bytes: &[u8], messages: u32, sent: usize) -> bool {
        let piece = outbox::Piece::new(bytes.into(), &self.metrics);
        self.enqueue(slot, Chunk::new(piece, messages), sent)
    }

    fn enqueue(&mut self, slot: u32, chunk: Chunk, sent: usize) -> bool {
        let now_us = self.now_us;
        let Some(connection) = self.table.get_mut(slot) else {
            return true;
        };
        if connection.outbox().is_none() {
            self.metrics.outboxes.add(1);
            // A connection that is being admitted is not watched yet, and this fails: it is then
            // watched for room from the start.
            let _ = self.poller.watch_output(&connection.fd, u64::from(slot), true);
        }
        self.metrics.outbox_bytes.add((chunk.bytes() - sent) as u64);
        let outbox = &mut connection.extra().outbox;
        outbox.get_or_insert_with(|| Box::new(Outbox::new(now_us))).push(chunk, sent);
        let limits = Outboxes { settings: &self.settings, metrics: &self.metrics, now_us };
        limits.room(connection) < Room::None
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use super::*;
    use crate::handle::{Handle, Shared};

    fn shard() -> Shard {
        let handle = crate::start::handle_for_tests(10);
        let limits = broker::Limits {
            recent_messages_max: 1,
            recent_bytes_max: 1,
            recent_seconds_max: 1,
            kept: broker::KeptLimits::default(),
        };
        let started = Instant::now();
        let inboxes = vec![Handle::inbox(&handle)];
        let broker = Arc::new(broker::Local::new(inboxes, [7; 20], started, limits, None));
        let presence = crate::PresenceLimits {
            users_max: 0,
            list_bytes_max: 0,
            interval_us: 1_000,
            members_per_ms: 0,
        };
        let shared = Shared::new(crate::Presence::new(presence, 1), Arc::default());
        let settings = crate::follow::simulation::settings();
        let shards =
            crate::start::for_tests(&[handle], settings, broker, Arc::new(shared), started);
        shards.into_iter().next().unwrap()
    }

    fn connect(shard: &mut Shard) -> (u32, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        shard.serial += 1;
        let slot = shard.table.insert(Connection::new(OwnedFd::from(ours), shard.serial, 0));
        (slot, theirs)
    }

    fn gather(shard: &mut Shard, slot: u32, bytes: &[u8]) {
        let piece = shard.batch.piece(bytes.into(), 1);
        let Shard { settings, metrics, batch, table, .. } = shard;
        let limits = Outboxes { settings, metrics, now_us: 0 };
        batch.gather(table.get_mut(slot).unwrap(), slot, piece, limits);
    }

    fn read(socket: &mut UnixStream) -> Vec<u8> {
        let mut all = Vec::new();
        let _ = socket.read_to_end(&mut all);
        all
    }

    /// The invariant is that nobody leaves while a batch is gathered. Here somebody does, and another
    /// has the slot by then.
    #[test]
    fn nobody_gets_what_was_meant_for_another() {
        for full in [false, true] {
            let mut shard = shard();
            let mut members: Vec<_> = (0..4).map(|_| connect(&mut shard)).collect();
            for (n, (slot, _)) in members.iter().enumerate() {
                gather(&mut shard, *slot, format!("for {n}").as_bytes());
                gather(&mut shard, *slot, format!(" and {n}").as_bytes());
            }
            let gone = members[1].0;
            let mut fd = shard.table.remove(gone).unwrap().fd;
            let (ours, mut stranger) = UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            stranger.set_nonblocking(true).unwrap();
            shard.serial += 1;
            // In one step: other tests of this process open descriptors, too.
            rustix::io::dup2(&ours, &mut fd).unwrap();
            drop(ours);
            let slot = shard.table.insert(Connection::new(fd, shard.serial, 0));
            assert_eq!(slot, gone, "it has the slot");
            gather(&mut shard, slot, b"stranger's own");
            if full {
                // Then nothing is taken whole, and what is left goes to the outboxes.
                let fill = |socket: &OwnedFd| {
                    while rustix::io::write(socket, &[b'.'; 4096]).is_ok() {}
                };
                (0..shard.table.end()).for_each(|slot| {
                    shard.table.get(slot).into_iter().for_each(|it| fill(&it.fd));
                });
            }
            shard.send_batch();
            let told = |shard: &mut Shard, slot: u32, socket: &mut UnixStream| {
                let mut all = Vec::new();
                for _ in 0..3 {
                    all.extend(read(socket));
                    shard.flush(slot);
                }
                String::from_utf8(all).unwrap().trim_matches('.').to_string()
            };
            assert_eq!(told(&mut shard, slot, &mut stranger), "stranger's own");
            for (n, (slot, socket)) in members.iter_mut().enumerate().filter(|(n, _)| *n != 1) {
                assert_eq!(told(&mut shard, *slot, socket), format!("for {n} and {n}"));
            }
            assert!(members[1].1.write(b"?").is_err(), "who has gone is gone");
        }
    }
}
