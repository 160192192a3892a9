//! The begin and the end of a connection.

use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

use super::request::write;
use super::{Worker, reset};
use crate::clock::now_ns;
use crate::crowd::connection::{Connection, Stage, Trackers};
use crate::crowd::{CloseReason, Stat, lock};
use crate::source::bind_address_without_port;
use crate::tls::TlsFailure;

const NO_LOCAL_ADDRESS: CloseReason =
    CloseReason::Rule("a source address does not belong to this machine: see --source");

impl Worker<'_> {
    /// Begins an attempt that was due at `due_ns` on the monotonic clock.
    pub(super) fn open(&mut self, index: u32, due_ns: u64) {
        self.begin_resume(index);
        let address = self.prepare_request(index).address;
        let (due_us, received_seconds) = (self.us(due_ns), self.seconds(now_ns()));
        self.in_flight += 1;
        let began = self.begin(index, &address);
        let connection = &mut self.connections[index as usize];
        *connection = Connection { due_us, received_seconds, ..Connection::default() };
        connection.stage = Stage::Connecting;
        match began {
            Ok((socket, written)) => {
                connection.socket = Some(socket);
                if written {
                    self.request_written(index);
                }
            }
            Err(reason) => self.failed(index, reason),
        }
    }

    /// Connects, and writes the request if the connect succeeds at once, as it often does on loopback without TLS.
    /// Returns the socket and whether the request was written.
    fn begin(&mut self, index: u32, address: &SocketAddr) -> Result<(OwnedFd, bool), CloseReason> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        if let Some(source) = self.common.plan.sources.address(self.at(index) as usize) {
            bind_address_without_port(&socket).map_err(|error| {
                CloseReason::System(error.raw_os_error().unwrap_or(libc::EINVAL))
            })?;
            match bind(&socket, &SocketAddrV4::new(source, 0)) {
                Err(Errno::ADDRNOTAVAIL) => return Err(NO_LOCAL_ADDRESS),
                bound => bound?,
            }
        }
        match connect(&socket, address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let mut flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        if let Some(connection) = self.common.plan.begin_tls(self.server(index)) {
            let begun = connection.and_then(|connection| self.sessions.begin(index, connection));
            begun.map_err(|error| CloseReason::Tls(TlsFailure::of(&error)))?;
        }
        let written = write(&mut self.sessions, index, &socket, &self.request)?;
        if !written {
            flags |= EventFlags::OUT;
        }
        epoll::add(&self.poller, &socket, EventData::new_u64(u64::from(index)), flags)?;
        Ok((socket, written))
    }

    /// Called when the request was written. The connection is open already if the server sends no immediate response.
    pub(super) fn request_written(&mut self, index: u32) {
        let at_once = self.client(index).replies_at_once();
        let connection = &mut self.connections[index as usize];
        connection.stage = Stage::Requested;
        if !at_once {
            // The time when the server reads the request is unknown, so any first message is right.
            connection.trackers = Trackers::anywhere();
            self.opened(index, now_ns());
        }
    }

    /// Called when the connection is open.
    pub(super) fn opened(&mut self, index: u32, now: u64) {
        // A long poll gives no connect time: the time when the server accepted it is unknown.
        let replies_at_once = self.client(index).replies_at_once();
        let us = self.us(now);
        let connection = &mut self.connections[index as usize];
        connection.stage = Stage::Open;
        self.in_flight -= 1;
        if let Some(silences) = &mut self.silences {
            silences.opened(index);
        }
        if replies_at_once {
            self.connects.push(us.wrapping_sub(connection.due_us));
        }
        self.stats[Stat::Open as usize] += 1;
        self.stats[Stat::Opened as usize] += 1;
        self.arrived(index);
        self.count_at_target(index, |tally| {
            tally.open += 1;
            tally.opened += 1;
        });
    }

    /// Closes a connection because of the server, whatever stage it was in. A reason that the server
    /// announced before goes first.
    pub(super) fn end(&mut self, index: u32, reason: CloseReason) {
        let connection = &mut self.connections[index as usize];
        let at = usize::from(connection.goodbye).checked_sub(1);
        let announced = at.and_then(|at| self.goodbyes.get(at));
        let reason = announced.map_or(reason, |goodbye| (*goodbye).into());
        if connection.stage != Stage::Open {
            return self.failed(index, reason);
        }
        connection.socket = None;
        self.sessions.remove(index);
        connection.stage = Stage::Away;
        connection.clear_poll_position();
        self.pending.remove(&index);
        self.poll_positions.remove(&index);
        self.paused.remove(&index);
        self.stats[Stat::Open as usize] -= 1;
        let is_cut = self.is_servers_death(reason);
        self.count_at_target(index, |tally| {
            tally.open -= 1;
            *(if is_cut { &mut tally.cuts } else { &mut tally.closed }) += 1;
        });
        if is_cut {
            self.stats[Stat::Cuts as usize] += 1;
        } else {
            self.stats[Stat::Closed as usize] += 1;
            *lock(&self.common.closes).entry(reason).or_default() += 1;
        }
        self.move_on(index);
        self.schedule_return(index);
    }

    /// Closes a connection from the client's side; with a reset unless `gently`.
    pub(super) fn disconnect(&mut self, index: u32, gently: bool) {
        let connection = &mut self.connections[index as usize];
        if let Some(socket) = connection.socket.take() {
            match gently {
                true => self.sessions.say_close(index, &socket),
                false => reset(&socket),
            }
        }
        self.sessions.remove(index);
        let was = std::mem::replace(&mut connection.stage, Stage::Away);
        connection.clear_poll_position();
        self.pending.remove(&index);
        self.poll_positions.remove(&index);
        self.paused.remove(&index);
        match was {
            Stage::Open => {
                self.stats[Stat::Open as usize] -= 1;
                self.stats[Stat::Left as usize] += 1;
                self.count_at_target(index, |tally| tally.open -= 1);
            }
            Stage::Connecting | Stage::Requested => self.in_flight -= 1,
            Stage::Away => {}
        }
        self.move_on(index);
    }

    /// Sends the transport's farewell before an orderly leave.
    pub(super) fn say_farewell(&mut self, index: u32) {
        self.request.clear();
        self.client(index).farewell(&mut self.request);
        if let Some(socket) = &self.connections[index as usize].socket
            && !self.request.is_empty()
        {
            // If it doesn't fit, the close alone ends the connection.
            let _ = self.sessions.send(index, socket, &self.request);
        }
    }

    fn failed(&mut self, index: u32, reason: CloseReason) {
        let connection = &mut self.connections[index as usize];
        if connection.stage == Stage::Away {
            return;
        }
        connection.socket = None;
        connection.stage = Stage::Away;
        let (has_tls, is_handshaking) =
            (self.sessions.has(index), self.sessions.is_handshaking(index));
        let reason = reason.of_attempt(has_tls, is_handshaking);
        self.sessions.remove(index);
        self.pending.remove(&index);
        self.in_flight -= 1;
        self.stats[Stat::Failed as usize] += 1;
        *lock(&self.common.failures).entry(reason).or_default() += 1;
        self.count_at_target(index, |tally| tally.failed += 1);
        self.move_on(index);
        if !self.back_off(index, now_ns()) {
            self.schedule_return(index);
        }
    }
}
