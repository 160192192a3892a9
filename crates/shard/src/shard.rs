//! One event loop: the engine's driver. It has the sockets, the poller, the sender and the mailbox.
//!
//! A turn of the loop: wait; the sockets' events; the mailbox's commands; a bounded piece of the
//! fan-outs; new connections; the sweep. Nothing in a turn blocks, and no piece is long. After every
//! input the driver performs the engine's outputs.

mod accept;
mod batch;
mod describe;
mod measure;
mod short;
#[cfg(test)]
mod support;
mod tls;

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use engine::{Engine, Output, Outputs, Owed, Shrink};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use throttle::Throttle;

use crate::handover::Giver;
use crate::handover::give::{CHANNEL, Giving};
use crate::listen::{Balance, Listening};
use crate::permits::{FanoutPermits, Permit};
use crate::poller::{MARKER, Poller};
use crate::sender::{BATCH, Sender};
use crate::socket::{Sockets, State};
use crate::tls::{HANDSHAKES_QUEUED, TlsContext, TlsTable};
use crate::wake::Commands;

#[cfg(test)]
pub(crate) use accept::Accepted;
use accept::Bucket;
pub(crate) use accept::REFUSALS_LOGGED;
pub(crate) use accept::spare;
use batch::Batch;
use short::Short;

/// The token of the wake-up's events. Those of the listeners have the tokens from [`LISTENERS`] on; all others are
/// slots.
pub(crate) const WAKE: u64 = u64::MAX;
const LISTENERS: u64 = 1 << 32;

/// Bytes that one read may give. Shared by all connections of the shard.
pub(crate) const READ_BYTES: usize = 64 << 10;

/// Reads of one connection in one turn, so that it does not hold up the others.
const READS: usize = 4;

/// Members that one turn of the loop serves before it returns to the sockets.
const TURN: usize = if cfg!(test) { 5 } else { 2 * BATCH };

/// Slices in one turn: many fan-outs have just one member.
const SLICES: usize = TURN;

pub(crate) struct Shard {
    pub(crate) engine: Engine,
    pub(crate) commands: Arc<Commands>,
    pub(crate) sockets: Sockets,
    pub(crate) balance: Arc<Balance>,
    pub(crate) permits: Arc<FanoutPermits>,
    pub(crate) permit: Permit,
    pub(crate) started: Instant,
    /// When the turn that is under way began; `None` before the first, and while the shard stands still.
    pub(crate) woke_us: Option<u64>,
    pub(crate) poller: Poller,
    pub(crate) sender: Sender,
    /// One for each port; none while the shard drains.
    pub(crate) listeners: Vec<Listening>,
    /// A spare descriptor, so that the shard can reject a peer when all others are in use.
    pub(crate) spare: Option<OwnedFd>,
    pub(crate) capacity: u64,
    pub(crate) bucket: Bucket,
    /// Limits the log lines about rejected connections.
    pub(crate) lines: Throttle,
    pub(crate) accept_after_us: u64,
    pub(crate) batch: Batch,
    /// Members of topics that must catch up.
    pub(crate) short: Short,
    /// Connections with more input than one read gave.
    pub(crate) unread: Vec<u32>,
    /// Connections whose bytes have all left. The engine waits for that.
    pub(crate) confirmed: Vec<u32>,
    pub(crate) buffer: Vec<u8>,
    pub(crate) out: Vec<u8>,
    /// Addresses of connections, while their number is limited.
    pub(crate) peers: HashMap<u32, IpAddr>,
    /// When the next sweep over the sockets is due.
    pub(crate) sweep_due_us: u64,
    /// How connections with TLS are accepted; `None` where no port has TLS.
    pub(crate) tls_context: Option<TlsContext>,
    /// The state of connections with TLS.
    pub(crate) tls: TlsTable,
    /// Reads of handshakes that this turn may still handle.
    pub(crate) handshakes_left: usize,
    /// Connections whose handshakes go on in a later turn.
    pub(crate) postponed_handshakes: VecDeque<u32>,
    /// A buffer for decrypted data, reused by all connections.
    pub(crate) tls_plain: Vec<u8>,
    /// A buffer for encrypted data, reused by all connections.
    pub(crate) tls_sealed: Vec<u8>,
    /// A buffer for the next outputs.
    pub(crate) outputs: Outputs,
    /// Passes on the orders to give connections to a new process.
    pub(crate) giver: Arc<Giver>,
    /// What the shard has passed on so far.
    pub(crate) giving: Option<Box<Giving>>,
    /// What is left of fan-outs that were under way when the shard stood still.
    pub(crate) owed: Vec<Owed>,
    /// True when a new process has everything.
    pub(crate) released: bool,
}

impl Shard {
    /// Runs until it has drained.
    pub fn run(mut self) {
        if let Err(error) = self.watch() {
            let shard = self.engine.number();
            tracing::error!(shard, %error, "this shard can't watch its descriptors");
            return;
        }
        self.buffer = vec![0; READ_BYTES];
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        self.engine.metrics().thread.set(u64::from(thread.unsigned_abs()));
        while !self.engine.is_finished() {
            self.turn();
            if self.released {
                // The sockets close with the shard; the new process has its own descriptors of them.
                return;
            }
        }
        self.engine.end_all();
        self.perform();
        self.permits.quit(self.engine.number(), self.permit);
        // No later message comes here, and no publisher waits for the receipts of earlier ones.
        self.engine.handle().end();
        self.engine.shared().ended.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn watch(&self) -> rustix::io::Result<()> {
        self.poller.add_level(&self.commands.waker().0, WAKE)?;
        for (token, listening) in (LISTENERS..).zip(&self.listeners) {
            self.poller.add_level(&listening.socket, token)?;
        }
        Ok(())
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    pub(crate) fn turn(&mut self) {
        if self.giver.is_called() {
            self.obey();
        }
        if self.is_standing_still() {
            self.woke_us = None;
            return self.still_turn();
        }
        let events = self.wait();
        // A bit for each listener at which a connection waits.
        let mut accept = 0u64;
        self.resume();
        for at in 0..events {
            match self.poller.event(at) {
                (WAKE, _) => self.wake(),
                (CHANNEL, _) => self.on_taker_readable(),
                (MARKER, _) => {}
                (token @ LISTENERS.., _) => accept |= 1 << (token - LISTENERS),
                (slot, flags) => self.ready(slot as u32, flags),
            }
        }
        self.count_replies();
        self.engine.run_commands();
        self.perform();
        self.engine.release_pending();
        self.perform();
        self.fan_out();
        if self.is_sweep_due() {
            self.measure_listen_queue();
        }
        // Last, so that a slot vacated in this turn is not used again in it: no event of this turn can reach a new
        // connection.
        self.accept(accept);
        self.sweep();
        if self.giving.is_some() {
            self.copy_some();
        }
    }

    /// Waits for events, and sets the engine's time. Returns the number of events.
    fn wait(&mut self) -> usize {
        // A busy shard does not sleep: its turn ends where the next one begins, so no clock is read for that.
        let waits = self.wait_until_us().map(|due_us| (due_us, self.now_us()));
        let timeout_us = waits.map_or(0, |(due_us, now_us)| due_us.saturating_sub(now_us));
        let events = match self.poller.wait(timeout_us) {
            Ok(events) => events,
            Err(Errno::INTR) => 0,
            Err(error) => {
                let shard = self.engine.number();
                tracing::error!(shard, %error, "the shard could not wait for events");
                std::thread::sleep(std::time::Duration::from_millis(100));
                0
            }
        };
        let now_us = self.now_us();
        self.measure_turn(waits.map_or(now_us, |(_, ended_us)| ended_us), now_us);
        self.engine.set_now(now_us);
        let input_wait_us = self.poller.on_waited(now_us);
        self.engine.set_input_wait(input_wait_us);
        events
    }

    /// Returns until when this turn may wait for events; `None` while the shard has work.
    fn wait_until_us(&self) -> Option<u64> {
        let busy = !self.unread.is_empty()
            || !self.confirmed.is_empty()
            || !self.postponed_handshakes.is_empty();
        // A shard that waits for a permit gets a wake-up with the permit.
        if busy || self.has_to_copy() || self.engine.is_busy(self.permit != Permit::Waiting) {
            return None;
        }
        Some(self.engine.poll_due_us().min(self.short_due_us()))
    }

    /// Continues to read connections that had more input than one turn may take.
    pub(crate) fn resume(&mut self) {
        self.scan_short();
        self.engine.resume_waiters();
        self.perform();
        for slot in std::mem::take(&mut self.confirmed) {
            if self.sockets.get(slot).is_some_and(|socket| !socket.is(State::Blocked)) {
                self.engine.on_drained(slot);
                self.perform();
            }
        }
        self.resume_handshakes();
        for slot in std::mem::take(&mut self.unread) {
            self.readable(slot, true);
        }
    }

    /// Clears the wake-up before the mailbox is emptied: see [`mailbox::Mailbox`].
    pub(crate) fn wake(&mut self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.commands.waker().0, &mut count);
        self.engine.take_commands();
    }

    pub(crate) fn ready(&mut self, slot: u32, flags: EventFlags) {
        if flags.contains(EventFlags::OUT) {
            self.flush(slot);
        }
        let ended = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
        if self.engine.is_paused(slot) {
            // The shard reads the input later, and then the end behind it.
            if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
                self.engine.on_lost(slot);
            } else if flags.contains(EventFlags::RDHUP) {
                self.engine.on_hung_up(slot);
            }
            self.perform();
        } else if flags.intersects(EventFlags::IN | ended) {
            // The end of the input has no event of its own, so this reads up to it.
            self.readable(slot, flags.intersects(ended));
        }
    }

    /// Reads a socket that has input or its end; up to the end if `to_end`.
    pub(crate) fn readable(&mut self, slot: u32, to_end: bool) {
        let is_tls = self.is_tls(slot);
        if is_tls && !self.begin_reading_tls(slot) {
            return;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        for left in (0..READS).rev() {
            if is_tls && !self.may_read_tls(slot) {
                break;
            }
            let Some(socket) = self.sockets.get(slot) else {
                break;
            };
            let capacity = self.engine.input_capacity(slot, buffer.len());
            if capacity == 0 {
                self.engine.pause(slot);
                break;
            }
            // A TLS record is read as a whole, however little of it the engine takes: the rest waits.
            let bytes_max = if is_tls { buffer.len() } else { capacity };
            match recv(socket, &mut buffer[..bytes_max], RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    self.engine.on_peer_closed(slot);
                    break;
                }
                Ok((read, _)) => {
                    self.engine.metrics().bytes_in.add(read as u64);
                    let input = &mut buffer[..read];
                    if is_tls {
                        if !self.on_received_tls(slot, input) {
                            break;
                        }
                    } else {
                        self.engine.on_received(slot, input);
                        self.perform();
                    }
                    // Edge-triggered: only a read that did not fill the buffer has emptied the
                    // socket.
                    if read < bytes_max && !to_end {
                        break;
                    }
                    if left == 0 {
                        self.unread.push(slot);
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.engine.on_lost(slot);
                    break;
                }
            }
        }
        self.buffer = buffer;
        if is_tls {
            self.relieve_tls_input();
        }
        self.engine.relieve_input();
        self.perform();
    }

    /// Performs the engine's outputs, until there are no more.
    #[inline]
    pub(crate) fn perform(&mut self) {
        // After most inputs there are no outputs.
        if self.engine.has_outputs() {
            self.perform_all();
        }
        if self.engine.is_draining() {
            self.listeners.clear();
        }
    }

    fn perform_all(&mut self) {
        while self.engine.has_outputs() {
            let mut outputs = self.engine.poll_outputs(std::mem::take(&mut self.outputs));
            for output in outputs.list.drain(..) {
                match output {
                    Output::Send { slot, bytes, messages, confirm } => {
                        self.send(slot, &outputs.bytes[bytes], messages, confirm);
                    }
                    Output::Shared { bytes, slots, messages, topic } => {
                        self.gather(bytes, &outputs.slots[slots], messages, topic);
                    }
                    Output::Delivered { published_us, connections } => {
                        self.batch.published(published_us, connections);
                    }
                    Output::Resume { slot } => self.unread.push(slot),
                    Output::Close { slot, linger } => self.close(slot, linger),
                    Output::Drop { slot } => self.drop(slot),
                    Output::Address { slot } => {
                        let address = self.address(slot);
                        self.engine.on_address(slot, address);
                    }
                    Output::Describe(describe) => self.describe(*describe),
                    Output::Slowest(slowest) => self.describe_slowest(*slowest),
                    Output::Observed(observed) => self.batch.observe(*observed),
                    Output::Traced(mut traced) => {
                        let outbox = traced.slot.and_then(|slot| self.sockets.outbox(slot));
                        traced.event.outbox_bytes += outbox.map_or(0, engine::Outbox::bytes);
                        traced.sink.push(traced.event);
                    }
                }
            }
            outputs.clear();
            self.outputs = outputs;
        }
    }

    /// Closes a connection when everything has left.
    fn close(&mut self, slot: u32, linger: bool) {
        self.flush_batched(slot);
        let Some(socket) = self.sockets.get_mut(slot) else {
            return;
        };
        socket.set(State::Closing, true);
        socket.set(State::Linger, linger);
        if !socket.is(State::Blocked) {
            self.shut(slot);
        }
    }

    /// Called when everything is sent: closes our side, and waits for the peer's if the connection lingers.
    pub(crate) fn shut(&mut self, slot: u32) {
        if self.is_tls(slot) && !self.send_close_notify(slot) {
            // The shard calls this again when that has left.
            return;
        }
        let Some(socket) = self.sockets.get(slot) else {
            return;
        };
        let shut = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
        if socket.is(State::Linger) && shut.is_ok() {
            self.engine.on_half_closed(slot);
            // The next turn reads and drops the input that has come, or finds its end.
            self.unread.push(slot);
        } else {
            self.engine.on_ended(slot);
        }
    }

    /// Closes a connection now.
    fn drop(&mut self, slot: u32) {
        self.flush_batched(slot);
        if self.is_tls(slot) {
            self.end_tls(slot);
        }
        let Some((socket, outbox)) = self.sockets.remove(slot) else {
            return;
        };
        if let Some(outbox) = outbox {
            self.engine.metrics().outboxes.sub(1);
            self.engine.metrics().outbox_bytes.sub(outbox.bytes() as u64);
        }
        if let Some(address) = self.peers.remove(&slot) {
            self.engine.shared().addresses.leave(address);
        }
        if let Some(giving) = &mut self.giving {
            giving.left(slot);
        }
        if socket.is(State::Passed) {
            // The descriptor of the other process would leave the connection open.
            let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
        }
        drop(socket);
    }

    /// Runs the fan-outs for one turn's share.
    pub(crate) fn fan_out(&mut self) {
        let has_bulk = self.engine.has_bulk();
        let (number, now_us) = (self.engine.number(), self.engine.now_us());
        self.permit = self.permits.turn(number, self.permit, has_bulk, now_us);
        let is_bulk = matches!(self.permit, Permit::Granted(_));
        let bulk_from_us = is_bulk.then(|| self.now_us());
        let (mut members, mut slices) = (0, 0);
        while members < TURN && slices < SLICES {
            let Some(served) = self.engine.slice(is_bulk) else {
                break;
            };
            members += served;
            slices += 1;
            self.perform();
        }
        self.send_batch();
        if let Some(from_us) = bulk_from_us {
            self.engine.metrics().bulk_us.add(self.now_us().saturating_sub(from_us));
        }
        self.relieve_outboxes();
        self.engine.serve_due();
        self.perform();
        if !self.engine.has_bulk() {
            // Before the shard may go to sleep, because other shards wait for its permit.
            self.permit = self.permits.turn(number, self.permit, false, now_us);
        }
        self.engine.reply_woken();
        self.perform();
    }

    /// Counts the time of short replies, from this turn's beginning.
    fn count_replies(&mut self) {
        let replies = self.engine.poll_replies();
        if replies > 0 {
            let took_us = self.now_us().saturating_sub(self.engine.now_us());
            self.engine.metrics().reply_us.add(took_us * replies);
        }
    }

    /// The work that is due by time.
    pub(crate) fn sweep(&mut self) {
        if self.engine.now_us() < self.engine.sweep_due_us() {
            return;
        }
        let is_due = self.is_sweep_due();
        self.engine.sweep();
        self.perform();
        self.send_batch();
        if self.engine.number() == 0 {
            self.balance.adjust(&self.listeners);
        }
        if is_due {
            self.sweep_due_us = self.engine.now_us() + 1_000_000;
            self.close_slow();
            self.sockets.shrink();
            self.tls.shrink();
            self.shrink_tls_buffers();
            self.postponed_handshakes.shrink_to(HANDSHAKES_QUEUED);
            self.peers.shrink();
            self.unread.shrink();
        }
    }

    /// True once a second, in a turn with a sweep.
    fn is_sweep_due(&self) -> bool {
        self.engine.now_us() >= self.sweep_due_us.max(self.engine.sweep_due_us())
    }

    /// Returns the address of a connection's peer.
    fn address(&self, slot: u32) -> Option<IpAddr> {
        let address = rustix::net::getpeername(self.sockets.get(slot)?).ok()??;
        Some(std::net::SocketAddr::try_from(address).ok()?.ip().to_canonical())
    }
}
