//! Reads the input of sockets, and passes it to the connections.

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::Worker;
use crate::crowd::CloseReason;
use crate::crowd::connection::Stage;
use crate::tls::TlsFailure;

/// Reads of one connection before the next one's turn.
const READS_MAX: usize = 32;

impl Worker<'_> {
    /// Reads the input of a connection. A short read of a stream socket has emptied it (epoll(7)),
    /// unless the peer has closed as well.
    pub(super) fn read(&mut self, index: u32, flags: EventFlags) {
        if self.paused.contains_key(&index) {
            return;
        }
        let gone = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut reads = 0;
        while let Some(socket) = &self.connections[index as usize].socket {
            match recv(socket, &mut *buffer, RecvFlags::empty()) {
                Ok((0, _)) => self.end(index, CloseReason::Closed),
                Ok((bytes, _)) => {
                    self.take_in(index, &mut buffer[..bytes]);
                    reads += 1;
                    if reads == READS_MAX {
                        self.unread.push(index);
                        break;
                    }
                    if bytes < buffer.len() && !gone {
                        break;
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => self.end(index, error.into()),
            }
        }
        self.buffer = buffer;
    }

    /// Takes bytes that a socket received.
    pub(super) fn take_in(&mut self, index: u32, bytes: &mut [u8]) {
        if !self.sessions.has(index) {
            return self.process_input(index, bytes);
        }
        let mut plain = std::mem::take(&mut self.plain);
        plain.clear();
        let received = self.sessions.receive(index, bytes, &mut plain);
        if let Some(socket) = &self.connections[index as usize].socket {
            // The next event sends the rest. If the connection has ended, the next read reports why.
            let _ = self.sessions.flush(index, socket);
        }
        let is_ready = received.as_ref().is_ok_and(|received| received.is_ready);
        if is_ready && self.connections[index as usize].stage == Stage::Connecting {
            // The next event sends a request that does not fit now.
            if let Err(reason) = self.send_first_request(index) {
                self.end(index, reason);
            }
        }
        if !plain.is_empty() && self.connections[index as usize].socket.is_some() {
            self.process_input(index, &plain);
        }
        match received {
            Ok(received) if received.is_closed => self.end_if_there(index, CloseReason::Closed),
            Ok(_) => {}
            Err(error) => {
                let failure = TlsFailure::of(&error);
                if matches!(failure, TlsFailure::InvalidCertificate | TlsFailure::Violation) {
                    self.common.anomalies.cause(format!("TLS: {error}"));
                }
                self.end_if_there(index, CloseReason::Tls(failure));
            }
        }
        self.plain = plain;
    }

    /// As [`Worker::end`], for a connection that may have ended already.
    fn end_if_there(&mut self, index: u32, reason: CloseReason) {
        if self.connections[index as usize].socket.is_some() {
            self.end(index, reason);
        }
    }
}
