//! A connection's begin and its end.

use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

use super::Worker;
use crate::clock::now_ns;
use crate::crowd::connection::{Connection, Stage, Trackers};
use crate::crowd::{Reason, Stat, lock};
use crate::source::bind_address_without_port;

const NOT_OURS: Reason = Reason::Rule("a source address is none of this machine's: see --source");

impl Worker<'_> {
    pub(super) fn open(&mut self, index: u32, due_ns: u64) {
        self.remember_begin(index);
        let address = self.prepare(index).address;
        let (due_us, heard_seconds) = (self.us(due_ns), self.seconds(now_ns()));
        self.in_flight += 1;
        let began = self.begin(index, &address);
        let connection = &mut self.connections[index as usize];
        *connection = Connection { due_us, heard_seconds, ..Connection::default() };
        connection.stage = Stage::Connecting;
        match began {
            Ok((socket, written)) => {
                connection.socket = Some(socket);
                if written {
                    self.asked(index);
                }
            }
            Err(reason) => self.failed(index, reason),
        }
    }

    /// Connects, and writes the request if that succeeds at once, as loopback often lets it.
    fn begin(&self, index: u32, address: &SocketAddr) -> Result<(OwnedFd, bool), Reason> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        if let Some(source) = self.common.plan.sources.address((self.from + index) as usize) {
            bind_address_without_port(&socket)
                .map_err(|error| Reason::System(error.raw_os_error().unwrap_or(libc::EINVAL)))?;
            match bind(&socket, &SocketAddrV4::new(source, 0)) {
                Err(Errno::ADDRNOTAVAIL) => return Err(NOT_OURS),
                bound => bound?,
            }
        }
        match connect(&socket, address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let mut flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        let written = self.write_request(&socket)?;
        if !written {
            flags |= EventFlags::OUT;
        }
        epoll::add(&self.poller, &socket, EventData::new_u64(u64::from(index)), flags)?;
        Ok((socket, written))
    }

    /// The request is written: without an answer to wait for, the connection is open.
    pub(super) fn asked(&mut self, index: u32) {
        let at_once = self.client(index).answers_at_once();
        let connection = &mut self.connections[index as usize];
        connection.stage = Stage::Asked;
        if !at_once {
            // When the server reads it is not known: any first message is right.
            connection.trackers = Trackers::anywhere();
            self.opened(index, now_ns());
        }
    }

    pub(super) fn opened(&mut self, index: u32, now: u64) {
        // Of a poll it isn't known when the server took it.
        let answered = self.client(index).answers_at_once();
        let us = self.us(now);
        let connection = &mut self.connections[index as usize];
        connection.stage = Stage::Open;
        self.in_flight -= 1;
        if answered {
            self.connects.push(us.wrapping_sub(connection.due_us));
        }
        self.numbers[Stat::Open as usize] += 1;
        self.numbers[Stat::Opened as usize] += 1;
    }

    /// Closes a connection for a fault of the server's, from whichever stage it was in.
    pub(super) fn end(&mut self, index: u32, reason: Reason) {
        let connection = &mut self.connections[index as usize];
        let said = usize::from(connection.said).checked_sub(1);
        let reason = said.and_then(|at| self.said.get(at)).map_or(reason, |said| (*said).into());
        if connection.stage != Stage::Open {
            return self.failed(index, reason);
        }
        connection.socket = None;
        connection.stage = Stage::Away;
        connection.forget_place();
        self.pending.remove(&index);
        self.places.remove(&index);
        self.paused.remove(&index);
        self.numbers[Stat::Open as usize] -= 1;
        self.numbers[Stat::Closed as usize] += 1;
        *lock(&self.common.closes).entry(reason).or_default() += 1;
        self.later(index);
    }

    fn failed(&mut self, index: u32, reason: Reason) {
        let connection = &mut self.connections[index as usize];
        if connection.stage == Stage::Away {
            return;
        }
        connection.socket = None;
        connection.stage = Stage::Away;
        self.pending.remove(&index);
        self.in_flight -= 1;
        self.numbers[Stat::Failed as usize] += 1;
        *lock(&self.common.failures).entry(reason).or_default() += 1;
        self.later(index);
    }
}
