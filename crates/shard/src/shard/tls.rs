//! TLS between the engine and the sockets: the engine sees data, the sockets see records.
//!
//! An outbox has data, which many connections may share. The driver encrypts it when the kernel has capacity for
//! it. Encrypted bytes that the kernel did not take wait in memory, and leave before anything else.

use std::cmp::Reverse;
use std::ops::Range;
use std::os::fd::AsFd;

use engine::{HandshakeResult, Limited, Metrics, Outbox};
use proxies::{Header, parse_header};
use rustix::io::Errno;
use tls::{ALERT_OVERLOADED, Alert, Established, Progress};

use super::Shard;
use crate::sender::send_one;
use crate::socket::State;
use crate::tls::{HANDSHAKES_PER_TURN, UNSENT_BYTES_MAX, WINDOW_BYTES};

/// Protocols that clients may request (RFC 7301), at all ports: the first bytes say what a client speaks, as without
/// TLS.
const ALPN: &[&[u8]] = &[b"http/1.1", b"mqtt"];

/// Bytes to which the shard shrinks its buffers once a second.
const BUFFER_BYTES: usize = 64 << 10;

/// When the input of all connections exceeds its limit, the shard frees this part of its own at once.
const RELIEF_PART: usize = 8;

/// Says whether the shard can read more input of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// More may be read.
    More,
    /// The connection has ended, is paused, or has to wait for another turn.
    Stopped,
}

/// The result of a send.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    /// The kernel took all bytes.
    All,
    /// Some bytes, or earlier ones, have to wait.
    Waiting,
    /// The connection has ended.
    Lost,
}

impl Shard {
    pub(super) fn is_tls(&self, slot: u32) -> bool {
        self.sockets.get(slot).is_some_and(|socket| socket.is(State::Tls))
    }

    /// Continues with handshakes that had to wait for this turn.
    pub(super) fn resume_handshakes(&mut self) {
        self.handshakes_left = HANDSHAKES_PER_TURN;
        let mut served = 0;
        while served < HANDSHAKES_PER_TURN
            && let Some(slot) = self.postponed_handshakes.pop_front()
        {
            // A connection that has ended left its slot in the queue.
            let socket = self.sockets.get_mut(slot);
            if let Some(socket) = socket.filter(|socket| socket.is(State::AwaitsHandshake)) {
                socket.set(State::AwaitsHandshake, false);
                self.readable(slot, true);
                served += 1;
            }
        }
    }

    /// Lets a handshake go on in a later turn.
    fn postpone_handshake(&mut self, slot: u32) {
        if let Some(socket) = self.sockets.get_mut(slot)
            && !socket.is(State::AwaitsHandshake)
        {
            socket.set(State::AwaitsHandshake, true);
            self.postponed_handshakes.push_back(slot);
        }
    }

    /// Passes to the engine what a connection with TLS received before. Returns false if its socket can't be read
    /// yet.
    pub(super) fn begin_reading_tls(&mut self, slot: u32) -> bool {
        let reading = self.deliver_unread(slot);
        if reading == Reading::Stopped {
            self.relieve_tls_input();
        }
        reading == Reading::More
    }

    /// Returns false if the connection's handshake begins at a new process, or goes on in a later turn.
    pub(super) fn may_read_tls(&mut self, slot: u32) -> bool {
        if self.tls.is_open(slot) {
            return true;
        }
        if !self.tls.is_opening(slot)
            && let Some(giving) = &mut self.giving
            && giving.defer_handshake(slot)
        {
            return false;
        }
        let may_read = self.handshakes_left > 0;
        if !may_read {
            self.postpone_handshake(slot);
        }
        may_read
    }

    /// A connection with TLS has received bytes. Returns false if its socket can't be read further now.
    pub(super) fn on_received_tls(&mut self, slot: u32, input: &mut [u8]) -> bool {
        let reading = match self.tls.is_open(slot) {
            true => self.on_records(slot, input),
            false => self.on_handshake(slot, input),
        };
        reading == Reading::More
    }

    /// When input that the engine does not have yet takes too much memory, closes the connections with most of it.
    pub(super) fn relieve_tls_input(&mut self) {
        let metrics = self.engine.metrics();
        metrics.tls_input_bytes.set(self.tls.input_bytes() as u64);
        let pending_bytes =
            |metrics: &Metrics| metrics.tls_input_bytes.get() + metrics.input_bytes.get();
        if !self.engine.is_beyond(self.engine.settings().input_bytes_max, pending_bytes) {
            return;
        }
        let mut inputs = self.tls.pending_inputs();
        inputs.sort_unstable_by_key(|input| Reverse(*input));
        let enough = self.tls.input_bytes() - self.tls.input_bytes() / RELIEF_PART;
        for (_, slot) in inputs {
            if self.tls.input_bytes() <= enough {
                break;
            }
            self.engine.metrics().limited[Limited::Input as usize].add(1);
            self.engine.on_lost(slot);
            self.perform();
        }
        self.engine.metrics().tls_input_bytes.set(self.tls.input_bytes() as u64);
    }

    /// A trusted proxy has sent bytes of the PROXY protocol's header, which comes before TLS. The engine gets the
    /// header as it does without TLS.
    fn on_proxy_header(&mut self, slot: u32, input: &[u8]) -> Reading {
        let mut unfinished = self.tls.take_unfinished(slot);
        let mut header = std::mem::take(&mut unfinished.record);
        header.extend_from_slice(input);
        let consumed = match parse_header(&header) {
            Ok(Header::Partial) => {
                unfinished.record = header;
                self.tls.keep_unfinished(slot, unfinished);
                return Reading::More;
            }
            Ok(Header::Whole { consumed, .. }) => consumed,
            Err(error) => {
                self.engine.metrics().tls_handshakes[HandshakeResult::Failed as usize].add(1);
                self.on_handshake_failed(slot, &error);
                return Reading::Stopped;
            }
        };
        let hello = header.split_off(consumed);
        self.engine.on_received(slot, &mut header);
        self.perform();
        if self.sockets.get(slot).is_none() {
            return Reading::Stopped;
        }
        match hello.is_empty() {
            true => Reading::More,
            false => self.on_handshake(slot, &hello),
        }
    }

    /// The client has sent bytes of its handshake.
    fn on_handshake(&mut self, slot: u32, input: &[u8]) -> Reading {
        if !self.tls.is_in_handshake(slot) && self.engine.awaits_header(slot) {
            return self.on_proxy_header(slot, input);
        }
        self.handshakes_left = self.handshakes_left.saturating_sub(1);
        let began = std::time::Instant::now();
        if !self.tls.is_in_handshake(slot) && !self.begin_handshake(slot) {
            return Reading::Stopped;
        }
        let mut out = Vec::new();
        let Some(progress) = self.tls.on_handshake(slot, input, &mut out) else {
            return Reading::Stopped;
        };
        let sent = self.send_sealed(slot, &out);
        let reading = match progress {
            _ if sent == Sent::Lost => Reading::Stopped,
            Ok(Progress::Pending) => Reading::More,
            Ok(Progress::Done(established)) => self.on_established(slot, *established),
            Err(error) => {
                self.on_handshake_failed(slot, &error);
                Reading::Stopped
            }
        };
        let metrics = self.engine.metrics();
        metrics.tls_handshake_us.add(began.elapsed().as_micros() as u64);
        metrics.tls_handshakes_pending.set(self.tls.handshake_count() as u64);
        reading
    }

    /// Begins a handshake. Returns false if the limit of handshakes was reached, and the connection has ended.
    fn begin_handshake(&mut self, slot: u32) -> bool {
        let Some(context) = &self.tls_context else {
            self.engine.on_lost(slot);
            return false;
        };
        if self.tls.handshake_count() >= context.handshakes_max() {
            self.engine.metrics().tls_handshakes[HandshakeResult::Refused as usize].add(1);
            self.send_sealed(slot, &ALERT_OVERLOADED);
            self.engine.on_lost(slot);
            return false;
        }
        let unix_s = self.engine.shared().unix_ms(self.engine.now_us()) / 1_000;
        let settings = context.settings();
        let handshake = settings.acceptor.handshake(ALPN, unix_s);
        self.tls.begin(slot, &settings, handshake);
        true
    }

    fn on_established(&mut self, slot: u32, established: Established) -> Reading {
        let Established { mut records, mut unread, is_resumed, client_certificate, alpn, .. } =
            established;
        if alpn.as_deref() == Some(tls::CHALLENGE_ALPN) {
            // A certificate authority has verified its challenge. The protocol carries no data (RFC 8737, 4).
            let mut out = Vec::new();
            records.close(&mut out);
            self.send_sealed(slot, &out);
            self.engine.on_lost(slot);
            return Reading::Stopped;
        }
        if let Some(certificate) = client_certificate {
            match self.tls.user(slot, &certificate) {
                Ok(Some(user)) => self.engine.on_certificate(slot, user),
                Ok(None) => {}
                Err(error) => {
                    let mut out = Vec::new();
                    records.alert(Alert::BAD_CERTIFICATE, &mut out);
                    self.send_sealed(slot, &out);
                    self.on_handshake_failed(slot, &error);
                    return Reading::Stopped;
                }
            }
        }
        let result = if is_resumed { HandshakeResult::Resumed } else { HandshakeResult::Full };
        let metrics = self.engine.metrics();
        metrics.tls_handshakes[result as usize].add(1);
        metrics.tls_connections.add(1);
        self.tls.open(slot, records);
        match unread.is_empty() {
            true => Reading::More,
            false => self.on_records(slot, &mut unread),
        }
    }

    fn on_handshake_failed(&mut self, slot: u32, error: &dyn std::error::Error) {
        if tracing::enabled!(tracing::Level::DEBUG)
            && let Some(suppressed) = self.lines.pass(self.engine.now_us(), 1)
        {
            let address = self.address(slot).map(tracing::field::display);
            let shard = self.engine.number();
            tracing::debug!(shard, address, %error, suppressed, "TLS handshake failed");
        }
        self.engine.on_lost(slot);
    }

    /// The client has sent records.
    fn on_records(&mut self, slot: u32, input: &mut [u8]) -> Reading {
        // A reply to a key update must not overtake records that were encrypted before.
        self.flush_batched(slot);
        let mut unfinished = self.tls.take_unfinished(slot);
        let Some(records) = self.tls.records(slot) else {
            return Reading::Stopped;
        };
        let (mut plain, mut out) = (std::mem::take(&mut self.tls_plain), Vec::new());
        plain.clear();
        let opened = records.open(&mut unfinished.record, input, &mut plain, &mut out);
        unfinished.is_peer_closed |= opened.as_ref().is_ok_and(|opened| opened.is_closed);
        self.tls.keep_unfinished(slot, unfinished);
        // The reply was encrypted before anything that the engine sends now, so it leaves first.
        let sent = self.send_sealed(slot, &out);
        // Data before an invalid record is valid.
        let reading = match sent {
            Sent::Lost => Reading::Stopped,
            Sent::All | Sent::Waiting => self.deliver(slot, &mut plain),
        };
        self.tls_plain = plain;
        if let Err(error) = opened {
            if tracing::enabled!(tracing::Level::DEBUG)
                && let Some(suppressed) = self.lines.pass(self.engine.now_us(), 1)
            {
                let shard = self.engine.number();
                tracing::debug!(shard, slot, %error, suppressed, "TLS connection failed");
            }
            self.engine.on_lost(slot);
            self.perform();
            return Reading::Stopped;
        }
        reading
    }

    /// Passes data to the engine, as much as it takes. The rest waits in `unread`.
    fn deliver(&mut self, slot: u32, plain: &mut [u8]) -> Reading {
        let mut begin = 0;
        while begin < plain.len() {
            if self.sockets.get(slot).is_none() {
                return Reading::Stopped;
            }
            let capacity = self.engine.input_capacity(slot, plain.len() - begin);
            if capacity == 0 {
                let mut unfinished = self.tls.take_unfinished(slot);
                unfinished.unread.extend_from_slice(&plain[begin..]);
                self.tls.keep_unfinished(slot, unfinished);
                self.engine.pause(slot);
                return Reading::Stopped;
            }
            self.engine.on_received(slot, &mut plain[begin..begin + capacity]);
            self.perform();
            begin += capacity;
        }
        if self.tls.unfinished(slot).is_some_and(|unfinished| unfinished.is_peer_closed) {
            self.engine.on_peer_closed(slot);
            self.perform();
            return Reading::Stopped;
        }
        Reading::More
    }

    /// Passes the data to the engine that it could not take before.
    fn deliver_unread(&mut self, slot: u32) -> Reading {
        if self.tls.unfinished(slot).is_none_or(|unfinished| unfinished.unread.is_empty()) {
            return Reading::More;
        }
        let mut unfinished = self.tls.take_unfinished(slot);
        let mut unread = std::mem::take(&mut unfinished.unread);
        self.tls.keep_unfinished(slot, unfinished);
        self.deliver(slot, &mut unread)
    }

    /// Sends encrypted bytes behind those that wait already.
    fn send_sealed(&mut self, slot: u32, sealed: &[u8]) -> Sent {
        let Some(socket) = self.sockets.get(slot) else {
            return Sent::Lost;
        };
        if sealed.is_empty() {
            return Sent::All;
        }
        let mut sent = 0;
        if !socket.is(State::Blocked) {
            match send_one(socket.as_fd(), sealed) {
                Ok(written) => sent = written,
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => {}
                Err(_) => {
                    self.engine.on_lost(slot);
                    return Sent::Lost;
                }
            }
            self.engine.metrics().bytes_out.add(sent as u64);
            if sent == sealed.len() {
                return Sent::All;
            }
        }
        self.append_unsent(slot, &sealed[sent..])
    }

    /// Stores encrypted bytes until the kernel takes them.
    fn append_unsent(&mut self, slot: u32, sealed: &[u8]) -> Sent {
        let mut unfinished = self.tls.take_unfinished(slot);
        unfinished.unsent.extend_from_slice(sealed);
        let unsent_bytes = unfinished.unsent.len();
        self.tls.keep_unfinished(slot, unfinished);
        self.engine.metrics().outbox_memory.add(sealed.len() as u64);
        if unsent_bytes > UNSENT_BYTES_MAX {
            self.engine.on_slow(slot);
            return Sent::Lost;
        }
        self.block(slot);
        Sent::Waiting
    }

    /// Encrypts data, and sends it. The caller passes at most [`WINDOW_BYTES`], and nothing while the connection has an
    /// outbox.
    fn seal_and_send(&mut self, slot: u32, plain: &[u8]) -> Sent {
        let mut out = std::mem::take(&mut self.tls_sealed);
        out.clear();
        let sealed = match self.tls.records(slot) {
            Some(records) => records.seal(plain, &mut out).is_ok(),
            None => false,
        };
        let sent = self.send_sealed(slot, &out);
        self.tls_sealed = out;
        match sealed {
            true => sent,
            // The key has encrypted as much as it may, or the handshake is not done.
            false => {
                self.engine.on_lost(slot);
                Sent::Lost
            }
        }
    }

    /// Like [`Shard::send`], for a connection with TLS and without an outbox. Returns how many bytes were
    /// encrypted, and `None` if the connection has ended.
    pub(super) fn send_tls(&mut self, slot: u32, bytes: &[u8]) -> Option<usize> {
        let mut begin = 0;
        while begin < bytes.len() {
            let end = bytes.len().min(begin + WINDOW_BYTES);
            let sent = self.seal_and_send(slot, &bytes[begin..end]);
            begin = end;
            match sent {
                Sent::All => {}
                Sent::Waiting => break,
                Sent::Lost => return None,
            }
        }
        Some(begin)
    }

    /// Encrypts what a batch has for a connection, at most [`WINDOW_BYTES`] of it, and returns where it is in `sealed`.
    /// `None` if the connection can't be sent anything.
    pub(super) fn seal_batched(
        &mut self,
        slot: u32,
        plain: &[u8],
        sealed: &mut Vec<u8>,
    ) -> Option<Range<usize>> {
        let begin = sealed.len();
        let plain = &plain[..plain.len().min(WINDOW_BYTES)];
        self.tls.records(slot)?.seal(plain, sealed).ok()?;
        Some(begin..sealed.len())
    }

    /// Stores what the kernel did not take of the bytes that [`Shard::seal_batched`] made. Returns false when the
    /// connection has ended.
    pub(super) fn keep_unsent(&mut self, slot: u32, sealed: &[u8], sent: usize) -> bool {
        self.append_unsent(slot, &sealed[sent..]) != Sent::Lost
    }

    /// Like [`Shard::flush`], for a connection with TLS.
    pub(super) fn flush_tls(&mut self, slot: u32) {
        loop {
            match self.flush_unsent(slot) {
                Sent::All => {}
                Sent::Waiting => return,
                Sent::Lost => return self.perform(),
            }
            let now_us = self.engine.now_us();
            let Some(outbox) = self.sockets.outbox(slot) else {
                return;
            };
            if outbox.is_empty() {
                return self.unblock(slot);
            }
            let mut plain = std::mem::take(&mut self.tls_plain);
            copy_first_bytes(outbox, &mut plain);
            let bytes = plain.len();
            let mut sealed = Vec::new();
            let is_sealed = self.seal_batched(slot, &plain, &mut sealed).is_some();
            self.tls_plain = plain;
            if !is_sealed {
                self.engine.on_lost(slot);
                return self.perform();
            }
            self.engine.metrics().outbox_bytes.sub(bytes as u64);
            if let Some(outbox) = self.sockets.outbox_mut(slot) {
                outbox.advance(bytes, now_us);
            }
            if self.append_unsent(slot, &sealed) == Sent::Lost {
                return self.perform();
            }
        }
    }

    /// Sends encrypted bytes that wait, as many as the kernel takes.
    fn flush_unsent(&mut self, slot: u32) -> Sent {
        let Some(socket) = self.sockets.get(slot) else {
            return Sent::Lost;
        };
        if self.tls.unfinished(slot).is_none_or(|unfinished| unfinished.unsent.is_empty()) {
            return Sent::All;
        }
        let mut unfinished = self.tls.take_unfinished(slot);
        let result = send_one(socket.as_fd(), &unfinished.unsent);
        let sent = *result.as_ref().unwrap_or(&0);
        unfinished.unsent.drain(..sent);
        let is_empty = unfinished.unsent.is_empty();
        self.tls.keep_unfinished(slot, unfinished);
        let metrics = self.engine.metrics();
        metrics.bytes_out.add(sent as u64);
        metrics.outbox_memory.sub(sent as u64);
        match result {
            Ok(_) => {
                self.engine.on_written(slot);
                // Only a send that fails makes the kernel report its capacity.
                if is_empty { Sent::All } else { self.flush_unsent(slot) }
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => Sent::Waiting,
            Err(_) => {
                self.engine.on_lost(slot);
                Sent::Lost
            }
        }
    }

    /// Sends `close_notify` to the peer (RFC 8446, 6.1). Returns false when that has to wait.
    pub(super) fn send_close_notify(&mut self, slot: u32) -> bool {
        let mut out = Vec::new();
        if let Some(records) = self.tls.records(slot) {
            records.close(&mut out);
        }
        self.send_sealed(slot, &out) == Sent::All
    }

    /// Called when the connection leaves its slot. Sends `close_notify` to the peer if the kernel takes it at once.
    pub(super) fn end_tls(&mut self, slot: u32) {
        let socket = self.sockets.get(slot).filter(|socket| !socket.is(State::Blocked));
        if let (Some(socket), Some(records)) = (socket, self.tls.records(slot)) {
            let mut out = Vec::new();
            records.close(&mut out);
            if !out.is_empty() {
                let _ = send_one(socket.as_fd(), &out);
            }
        }
        self.forget_tls(slot);
    }

    /// Gives back the memory of large messages.
    pub(super) fn shrink_tls_buffers(&mut self) {
        for buffer in [&mut self.tls_plain, &mut self.tls_sealed] {
            buffer.clear();
            buffer.shrink_to(BUFFER_BYTES);
        }
    }

    /// Counts a connection that was taken from another process.
    pub(crate) fn count_taken_tls(&mut self, slot: u32) {
        let metrics = self.engine.metrics();
        metrics.tls_connections.add(u64::from(self.tls.is_open(slot)));
        metrics.tls_input_bytes.set(self.tls.input_bytes() as u64);
        let unsent_bytes =
            self.tls.unfinished(slot).map_or(0, |unfinished| unfinished.unsent.len());
        metrics.outbox_memory.add(unsent_bytes as u64);
    }

    /// Forgets the TLS state of a connection that leaves its slot.
    pub(crate) fn forget_tls(&mut self, slot: u32) {
        let metrics = self.engine.metrics();
        if self.tls.is_open(slot) {
            metrics.tls_connections.sub(1);
        }
        if self.tls.is_in_handshake(slot) {
            metrics.tls_handshakes[HandshakeResult::Failed as usize].add(1);
        }
        let unsent_bytes =
            self.tls.unfinished(slot).map_or(0, |unfinished| unfinished.unsent.len());
        metrics.outbox_memory.sub(unsent_bytes as u64);
        self.tls.remove(slot);
        let metrics = self.engine.metrics();
        metrics.tls_handshakes_pending.set(self.tls.handshake_count() as u64);
        metrics.tls_input_bytes.set(self.tls.input_bytes() as u64);
    }
}

/// Copies the first bytes of an outbox, at most [`WINDOW_BYTES`], in place of what is in `plain`.
fn copy_first_bytes(outbox: &Outbox, plain: &mut Vec<u8>) {
    plain.clear();
    for part in outbox.parts() {
        let left = WINDOW_BYTES - plain.len();
        if left == 0 {
            return;
        }
        plain.extend_from_slice(&part[..part.len().min(left)]);
    }
}
