//! The old shard's side: it passes its connections to the shard that replaces it.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use engine::Listener;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use zeroize::{Zeroize, Zeroizing};

use super::channel::{Channel, DESCRIPTORS_MAX, Frame};
use super::giver::{Give, GiverStage};
use super::wire::{self, push_piece};
use crate::settings::Port;
use crate::shard::Shard;
use crate::socket::State;

/// The poller's token of the channel.
pub(crate) const CHANNEL: u64 = u64::MAX - 1;

/// A frame is sent when its body has so many bytes.
const FRAME_BYTES: usize = 32 << 10;

/// The limit on frames that the other shard has not taken yet: as many as fit into the socket, so that no send blocks.
/// Every copying shard has the descriptors of so many frames in flight, and the kernel limits all of these together to
/// the number of files that one process may open.
const FRAMES_UNDER_WAY: u32 = 4;

/// The most slots that a piece scans. If few connections have changed, the frame of a piece never gets full, and the
/// shard has to serve between two pieces.
const SLOTS_PER_PIECE: u32 = 512;

/// How long the other process may be silent while the shard waits for it.
const SILENCE: Duration = Duration::from_secs(10);

/// How long a shard that stands still sleeps at most, in nanoseconds.
const STILL_NS: i64 = 5_000_000;

/// What a shard has passed on so far.
pub(crate) struct Giving {
    pub(super) channel: Channel,
    /// Frames that the other shard has not taken yet.
    under_way: u32,
    /// True while it is this shard's turn to copy.
    copies: bool,
    /// The slots below this were copied.
    next: u32,
    /// Slots below `next` that got a connection afterwards.
    fresh: Vec<u32>,
    /// Slots that were copied and have no connection any more.
    gone: Vec<u32>,
    /// The other engine takes slots below this.
    slots_end: u32,
    /// A hash of each sent record, by slot; 0 for none. The hash is keyed, so that no client can craft a change
    /// with an equal hash.
    hashes: Vec<u64>,
    hasher: RandomState,
    still: bool,
    /// True while no TLS handshake may begin.
    finishes_handshakes: bool,
    /// Connections whose TLS handshake waits for the new shard, which finds the input in their sockets.
    deferred_handshakes: Vec<u32>,
    record: Vec<u8>,
    /// The state of a connection's TLS, with its keys.
    tls: Zeroizing<Vec<u8>>,
}

impl Giving {
    fn hash(&self, slot: u32) -> u64 {
        self.hashes.get(slot as usize).copied().unwrap_or(0)
    }

    fn set_hash(&mut self, slot: u32, hash: u64) {
        let at = slot as usize;
        if at >= self.hashes.len() {
            self.hashes.resize(at + 1, 0);
        }
        self.hashes[at] = hash;
    }

    /// A connection was opened.
    pub fn opened(&mut self, slot: u32) {
        // The copy reaches higher slots by itself.
        if slot < self.next {
            self.fresh.push(slot);
        }
    }

    /// A connection has left its slot. Notes the slot if the other process has its record.
    pub fn left(&mut self, slot: u32) {
        if self.hash(slot) != 0 {
            self.set_hash(slot, 0);
            self.gone.push(slot);
        }
    }

    /// Leaves a TLS handshake to the new shard, if no new one may begin here. Returns false if it may begin. If the
    /// upgrade fails, it begins here.
    pub fn defer_handshake(&mut self, slot: u32) -> bool {
        if self.finishes_handshakes {
            self.deferred_handshakes.push(slot);
        }
        self.finishes_handshakes
    }

    fn may_send(&self) -> bool {
        self.under_way < FRAMES_UNDER_WAY
    }

    /// Returns why the other shard has broken off, if it reported that. A send to it fails before its report is
    /// read.
    fn reason(&self) -> Option<io::Error> {
        self.channel.find(wire::ERROR).map(|frame| peer_error(&frame))
    }

    /// Waits for a frame, and returns its kind.
    fn receive(&mut self) -> io::Result<u16> {
        let frame = self.channel.receive()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        match frame.kind {
            wire::ERROR => return Err(peer_error(&frame)),
            wire::RECEIPT => self.under_way = self.under_way.saturating_sub(1),
            _ => {}
        }
        Ok(frame.kind)
    }

    /// Waits for a reply of this kind.
    fn wait_for_reply(&mut self, want: u16) -> io::Result<()> {
        while self.receive()? != want {}
        Ok(())
    }

    /// Reads the receipts that have arrived.
    fn read_receipts(&mut self) -> io::Result<()> {
        while self.channel.has_input() {
            self.receive()?;
        }
        Ok(())
    }
}

/// Returns the error that the other shard reports.
fn peer_error(frame: &Frame) -> io::Error {
    io::Error::other(String::from_utf8_lossy(&frame.body).into_owned())
}

/// A frame of connections that is being made. It allocates nothing before its first connection.
#[derive(Default)]
struct Connections {
    /// The body may contain TLS keys, so its memory is wiped: it grows by [`Connections::reserve`] alone.
    body: Zeroizing<Vec<u8>>,
    count: usize,
    /// The slots whose descriptors go with it.
    sockets: Vec<u32>,
}

impl Connections {
    /// Reserves capacity for so many more bytes. When the memory has to move, the old memory is wiped.
    fn reserve(&mut self, bytes: usize) {
        if self.body.capacity() - self.body.len() < bytes {
            let capacity = (2 * self.body.len() + bytes).max(2 * FRAME_BYTES);
            let mut larger = Zeroizing::new(Vec::with_capacity(capacity));
            larger.extend_from_slice(&self.body);
            self.body = larger;
        }
    }

    fn is_full(&self) -> bool {
        self.count >= DESCRIPTORS_MAX || self.body.len() >= FRAME_BYTES
    }
}

impl Shard {
    /// Carries out the orders in the queue.
    pub(crate) fn obey(&mut self) {
        while let Some(give) = self.giver.next() {
            let done = match give {
                Give::Begin(path) => self.begin_giving(&path),
                Give::Copy => {
                    if let Some(giving) = &mut self.giving {
                        giving.copies = true;
                        giving.next = 0;
                        self.giver.set(GiverStage::Copying);
                    }
                    Ok(())
                }
                Give::FinishHandshakes => {
                    if let Some(giving) = &mut self.giving {
                        giving.finishes_handshakes = true;
                    }
                    Ok(())
                }
                Give::StandStill => {
                    self.stand_still();
                    Ok(())
                }
                Give::GoOn => {
                    self.go_on();
                    Ok(())
                }
                Give::Rest => self.give_rest(),
                Give::Resume => {
                    self.resume_serving();
                    Ok(())
                }
                Give::Release => {
                    self.released = true;
                    Ok(())
                }
            };
            if let Err(error) = done {
                self.giver.fail(error);
            }
        }
    }

    fn begin_giving(&mut self, path: &Path) -> io::Result<()> {
        // A full shard has two descriptors left, and one of them is the spare.
        let spare = self.spare.take();
        let channel = Channel::connect(path);
        drop(spare);
        let channel = channel?;
        channel.set_timeout(Some(SILENCE))?;
        let mut body = u32::from(self.engine.number()).to_le_bytes().to_vec();
        for listening in &self.listeners {
            let Port { listener, tls } = listening.port;
            body.push(match (listener, tls) {
                (Listener::Client, false) => wire::CLIENT,
                (Listener::Client, true) => wire::CLIENT_TLS,
                (Listener::Mqtt, false) => wire::MQTT,
                (Listener::Mqtt, true) => wire::MQTT_TLS,
            });
        }
        let sockets: Vec<BorrowedFd<'_>> =
            self.listeners.iter().map(|listening| listening.socket.as_fd()).collect();
        channel.send(wire::HELLO, &body, &sockets)?;
        self.poller.add_level(&channel, CHANNEL)?;
        self.giver.begin();
        self.giving = Some(Box::new(Giving {
            channel,
            // The other shard sends a first receipt when it is ready.
            under_way: 1,
            copies: false,
            next: 0,
            fresh: Vec::new(),
            gone: Vec::new(),
            slots_end: 0,
            hashes: Vec::new(),
            hasher: RandomState::new(),
            still: false,
            finishes_handshakes: false,
            deferred_handshakes: Vec::new(),
            record: Vec::new(),
            tls: Zeroizing::default(),
        }));
        Ok(())
    }

    /// Called when the other shard has sent something.
    pub(crate) fn on_taker_readable(&mut self) {
        let Some(giving) = &mut self.giving else {
            return;
        };
        if let Err(error) = giving.read_receipts() {
            self.break_off(&error);
        }
    }

    /// Closes the channel after an error. The shard serves on until its next order.
    fn break_off(&mut self, error: &io::Error) {
        self.giver.fail(self.giving.as_ref().and_then(|it| it.reason()).as_ref().unwrap_or(error));
        if let Some(giving) = &mut self.giving {
            self.poller.remove(&giving.channel);
            giving.copies = false;
            giving.channel.shut();
        }
    }

    /// True while a turn should not wait: more can be copied at once.
    pub(crate) fn has_to_copy(&self) -> bool {
        self.giving.as_ref().is_some_and(|giving| giving.may_send() && self.has_more(giving))
    }

    /// True if a copy is due.
    fn has_more(&self, giving: &Giving) -> bool {
        giving.copies
            // A shard without connections still has to report that all is copied.
            && (self.giver.stage() == GiverStage::Copying
                || giving.next < self.engine.slots_end()
                || !giving.fresh.is_empty()
                || !giving.gone.is_empty())
    }

    /// Copies some pieces, at the end of a turn.
    pub(crate) fn copy_some(&mut self) {
        let Some(mut giving) = self.giving.take() else {
            return;
        };
        if giving.finishes_handshakes {
            self.giver.set_handshakes(self.tls.handshake_count());
        }
        let result = self.copy_pieces(&mut giving);
        self.giving = Some(giving);
        if let Err(error) = result {
            self.break_off(&error);
        }
    }

    /// Copies as many pieces as may be in flight. After a long turn, the copy goes on for as long as the turn took: an
    /// overloaded node has turns of seconds, and the copy must end there, too.
    fn copy_pieces(&mut self, giving: &mut Giving) -> io::Result<()> {
        let began_us = self.now_us();
        let end_us = began_us + began_us.saturating_sub(self.engine.now_us());
        let mut pieces = 0;
        while self.has_more(giving) {
            giving.read_receipts()?;
            let left_us = end_us.saturating_sub(self.now_us());
            if giving.may_send() && (left_us > 0 || pieces < FRAMES_UNDER_WAY) {
                self.copy_piece(giving)?;
                pieces += 1;
            } else if left_us == 0 || !giving.channel.wait_for_input(Duration::from_micros(left_us))
            {
                break;
            }
        }
        Ok(())
    }

    fn copy_piece(&mut self, giving: &mut Giving) -> io::Result<()> {
        if !giving.gone.is_empty() {
            return self.send_gone(giving);
        }
        self.send_slots_end(giving)?;
        let mut frame = Connections::default();
        for _ in 0..SLOTS_PER_PIECE {
            if frame.is_full() {
                break;
            }
            let slot = match giving.fresh.pop() {
                Some(slot) => slot,
                None if giving.next < giving.slots_end => {
                    giving.next += 1;
                    giving.next - 1
                }
                None => break,
            };
            self.add(giving, &mut frame, slot);
        }
        self.send_connections(giving, &frame)?;
        if giving.next >= giving.slots_end && self.giver.stage() == GiverStage::Copying {
            self.giver.set(GiverStage::Copied);
        }
        Ok(())
    }

    /// Adds a connection to a frame, unless the other shard has its present state.
    fn add(&mut self, giving: &mut Giving, frame: &mut Connections, slot: u32) {
        giving.record.clear();
        giving.tls.zeroize();
        // rustls can't export a handshake that is under way.
        let is_opening = self.tls.is_opening(slot);
        if let Some(socket) = self.sockets.get_mut(slot).filter(|_| is_opening) {
            // The descriptor is sent again when the handshake is done.
            socket.set(State::Passed, false);
        }
        if is_opening || !self.engine.export_into(slot, &mut giving.record) {
            // The engine does not notify the driver when a session without a socket ends.
            giving.left(slot);
            return;
        }
        self.tls.export(slot, &mut giving.tls);
        // Never 0, which stands for none.
        let hash = giving.hasher.hash_one((&giving.record, &*giving.tls)) | 1;
        let socket = self.sockets.get(slot);
        let fresh = socket.is_some_and(|socket| !socket.is(State::Passed));
        let is_tls = socket.is_some_and(|socket| socket.is(State::Tls));
        if !fresh && giving.hash(slot) == hash {
            return;
        }
        giving.set_hash(slot, hash);
        frame.reserve(4 + 1 + 2 * 4 + giving.record.len() + giving.tls.len());
        frame.body.extend_from_slice(&slot.to_le_bytes());
        let flag = |bit: u8, is_set: bool| if is_set { bit } else { 0 };
        frame.body.push(flag(wire::HAS_SOCKET, fresh) | flag(wire::HAS_TLS, is_tls));
        push_piece(&mut frame.body, &giving.record);
        if is_tls {
            push_piece(&mut frame.body, &giving.tls);
        }
        frame.count += 1;
        if fresh {
            frame.sockets.push(slot);
        }
    }

    fn send_connections(&mut self, giving: &mut Giving, frame: &Connections) -> io::Result<()> {
        if frame.count == 0 {
            return Ok(());
        }
        let sockets: Vec<BorrowedFd<'_>> = frame
            .sockets
            .iter()
            .filter_map(|slot| self.sockets.get(*slot).map(AsFd::as_fd))
            .collect();
        giving.channel.send(wire::CONNECTIONS, &frame.body, &sockets)?;
        giving.under_way += 1;
        self.giver.add_copied(frame.count as u64);
        for slot in &frame.sockets {
            if let Some(socket) = self.sockets.get_mut(*slot) {
                socket.set(State::Passed, true);
            }
        }
        Ok(())
    }

    fn send_gone(&mut self, giving: &mut Giving) -> io::Result<()> {
        let body: Vec<u8> =
            std::mem::take(&mut giving.gone).into_iter().flat_map(u32::to_le_bytes).collect();
        giving.channel.send(wire::GONE, &body, &[])?;
        giving.under_way += 1;
        Ok(())
    }

    /// Sends the engine's record when slots were added. The other engine rejects slots beyond those of the record.
    fn send_slots_end(&mut self, giving: &mut Giving) -> io::Result<()> {
        let slots_end = self.engine.slots_end();
        if slots_end > giving.slots_end || giving.slots_end == 0 {
            giving.channel.send(wire::ENGINE, &self.engine.export_engine(), &[])?;
            giving.slots_end = slots_end;
        }
        Ok(())
    }

    fn stand_still(&mut self) {
        self.send_batch();
        self.perform();
        let (number, now_us) = (self.engine.number(), self.engine.now_us());
        self.permit = self.permits.turn(number, self.permit, false, now_us);
        self.engine.stand_still();
        self.giver.set_at_rest(false);
        if let Some(giving) = &mut self.giving {
            giving.still = true;
        }
        if self.giver.stage() != GiverStage::Failed {
            self.giver.set(GiverStage::Still);
        }
    }

    pub(crate) fn is_standing_still(&self) -> bool {
        self.giving.as_ref().is_some_and(|giving| giving.still)
    }

    /// A turn of a shard that reads and accepts nothing more: it only runs commands, which others still send. It does
    /// not wait at the poller. So the poller loses no event if the shard has to serve on.
    pub(crate) fn still_turn(&mut self) {
        let ready = {
            let mut fds = [PollFd::new(&self.commands.waker().0, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: STILL_NS }))
        };
        self.engine.set_now(self.now_us());
        if ready.is_ok_and(|ready| ready > 0) {
            self.giver.stirs();
            self.wake();
        }
        self.engine.run_commands();
        self.perform();
        self.send_batch();
        self.giver.set_at_rest(self.engine.is_still());
    }

    /// Sends everything that the new shard doesn't have yet. Called while all shards stand still.
    fn give_rest(&mut self) -> io::Result<()> {
        let mut giving =
            self.giving.take().ok_or_else(|| io::Error::other("nothing was copied"))?;
        self.giver.begin_pass();
        self.owed = self.engine.take_owed();
        let result = self.give_rest_to(&mut giving);
        let result = result.map_err(|error| giving.reason().unwrap_or(error));
        self.giving = Some(giving);
        if result.is_ok() {
            self.giver.set(GiverStage::Given);
        }
        result
    }

    fn give_rest_to(&mut self, giving: &mut Giving) -> io::Result<()> {
        self.wait_for_taker(giving)?;
        if !giving.gone.is_empty() {
            self.send_gone(giving)?;
            self.wait_for_taker(giving)?;
        }
        giving.channel.send(wire::ENGINE, &self.engine.export_engine(), &[])?;
        let mut frame = Connections::default();
        let copied_end = u32::try_from(giving.hashes.len()).unwrap_or(u32::MAX);
        for slot in 0..self.engine.slots_end().max(copied_end) {
            self.add(giving, &mut frame, slot);
            if frame.is_full() {
                self.send_connections(giving, &frame)?;
                self.wait_for_taker(giving)?;
                frame = Connections::default();
            }
        }
        self.send_connections(giving, &frame)?;
        self.wait_for_taker(giving)?;
        if !giving.gone.is_empty() {
            self.send_gone(giving)?;
            self.wait_for_taker(giving)?;
        }
        for (slot, outbox) in self.sockets.outboxes() {
            let mut body = slot.to_le_bytes().to_vec();
            for (bytes, messages) in outbox.export() {
                body.extend_from_slice(&messages.to_le_bytes());
                push_piece(&mut body, bytes);
            }
            giving.channel.send(wire::OUTBOX, &body, &[])?;
        }
        for owed in &self.owed {
            giving.channel.send(wire::OWED, &owed.encode(), &[])?;
        }
        giving.channel.send(wire::END, &[], &[])?;
        giving.wait_for_reply(wire::HAVE)
    }

    fn wait_for_taker(&mut self, giving: &mut Giving) -> io::Result<()> {
        match giving.may_send() {
            true => Ok(()),
            false => giving.wait_for_reply(wire::RECEIPT),
        }
    }

    /// Serves on for now, after the shard stood still. The new shard retains the copy.
    fn go_on(&mut self) {
        if let Some(giving) = &mut self.giving {
            giving.still = false;
            giving.finishes_handshakes = false;
            self.unread.append(&mut giving.deferred_handshakes);
        }
        self.engine.go_on();
        self.perform();
        self.giver.goes_on();
    }

    /// Serves on after the upgrade has failed.
    fn resume_serving(&mut self) {
        if let Some(giving) = self.giving.take() {
            giving.channel.shut();
            for slot in 0..self.engine.slots_end() {
                if let Some(socket) = self.sockets.get_mut(slot) {
                    socket.set(State::Passed, false);
                }
            }
            self.unread.extend(giving.deferred_handshakes);
        }
        // The channel used the spare descriptor.
        self.spare = self.spare.take().or_else(crate::shard::spare);
        self.engine.give_owed(std::mem::take(&mut self.owed));
        self.engine.go_on();
        self.perform();
        self.giver.resumed();
    }
}
