//! One thread of a crowd: its poller, its connections and its counts.

#![expect(unsafe_code, reason = "a promise about the descriptors of a thread")]

use std::mem;
use std::net::SocketAddrV4;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, recv, send,
    socket_with, sockopt,
};
use rustix::time::Timespec;

use super::response::{Frames, Head, HeadStep};
use super::{CloseReason, Plan, Shared};
use crate::marker::Scanner;
use flood::clock::now_ns;
use flood::source::{bind_address_without_port, source_address};

/// Bytes read at once.
const READ_BYTES: usize = 64 * 1024;
/// Events fetched at once.
const EVENTS: usize = 512;
/// How long the thread waits for events. A stop may wait this long.
const STOP_POLL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// A pong without payload, masked with zeros (RFC 6455 section 5.5.3). The server's heartbeat pings have no payload
/// either.
const PONG: &[u8] = &[0x8a, 0x80, 0, 0, 0, 0];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Has not written its request yet.
    Connecting,
    /// Waits for its response.
    Requested,
    /// Open.
    Open,
}

struct Connection {
    /// None once closed.
    socket: Option<OwnedFd>,
    stage: Stage,
    /// The state of [`Scanner::scan`].
    matched: u8,
    head: Head,
    frames: Frames,
}

const _: () = assert!(size_of::<Connection>() <= 24);

/// The counts of this thread before it publishes them.
#[derive(Default)]
struct LocalCounts {
    opened: u64,
    closed: u64,
    messages: u64,
    bytes: u64,
    pings: u64,
    timed: u64,
    failures: [u64; CloseReason::ALL.len()],
    status_seen: u64,
    /// The latencies of this batch, in nanoseconds.
    samples: Vec<u64>,
}

struct Worker<'a> {
    plan: &'a Plan,
    shared: &'a Shared,
    poller: OwnedFd,
    connections: Vec<Connection>,
    /// The number of the connection with index 0. Each attempt gets an index, failed or not.
    first: usize,
    /// Numbers without an attempt yet.
    numbers: Range<usize>,
    in_flight: usize,
    request: Vec<u8>,
    buffer: Box<[u8]>,
    scanner: Scanner,
    local: LocalCounts,
}

/// Opens the connections with these numbers and holds them until the owner stops it.
pub(super) fn run(plan: &Plan, numbers: Range<usize>, shared: &Shared) -> Result<()> {
    let outcome = start(plan, numbers, shared).and_then(|mut worker| worker.work());
    if let Err(error) = &outcome {
        eprintln!("bench: a crowd thread: {error:#}");
    }
    outcome
}

fn start<'a>(plan: &'a Plan, numbers: Range<usize>, shared: &'a Shared) -> Result<Worker<'a>> {
    // SAFETY: this thread opens all its descriptors below, and hands none to another thread.
    unsafe { flood::descriptors::private_table() }.context("a private descriptor table")?;
    Ok(Worker {
        plan,
        shared,
        poller: epoll::create(CreateFlags::CLOEXEC).context("a poller")?,
        connections: Vec::with_capacity(numbers.len()),
        first: numbers.start,
        numbers,
        in_flight: 0,
        request: Vec::with_capacity(512),
        buffer: vec![0; READ_BYTES].into_boxed_slice(),
        scanner: Scanner::default(),
        local: LocalCounts { samples: Vec::with_capacity(EVENTS), ..LocalCounts::default() },
    })
}

impl Worker<'_> {
    fn work(&mut self) -> Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        while !self.shared.stop.load(Ordering::Relaxed) {
            while self.in_flight < self.plan.in_flight_max
                && let Some(number) = self.numbers.next()
            {
                self.open(number);
            }
            events.clear();
            match epoll::wait(
                &self.poller,
                rustix::buffer::spare_capacity(&mut events),
                Some(&STOP_POLL),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for events"),
            }
            for event in &events {
                let (index, flags) = (event.data.u64() as usize, event.flags);
                self.process_event(index, flags);
            }
            self.publish_counts();
        }
        self.close_all();
        Ok(())
    }

    fn open(&mut self, number: usize) {
        self.plan.request.expand(number, &mut self.request);
        self.in_flight += 1;
        let index = self.connections.len();
        let begun = self.begin(number, index);
        self.connections.push(Connection {
            socket: None,
            stage: Stage::Connecting,
            matched: 0,
            head: Head::default(),
            frames: Frames::default(),
        });
        match begun {
            Ok((socket, stage)) => {
                self.connections[index].socket = Some(socket);
                if stage == Stage::Requested {
                    self.request_written(index);
                }
            }
            Err(error) => {
                self.in_flight -= 1;
                self.local.failures[reason(error) as usize] += 1;
            }
        }
    }

    /// Connects, and writes the request if the connect succeeds at once, as it often does on loopback.
    fn begin(&self, number: usize, index: usize) -> rustix::io::Result<(OwnedFd, Stage)> {
        let socket = socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
            None,
        )?;
        bind_address_without_port(&socket)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))?;
        bind(&socket, &SocketAddrV4::new(source_address(number), 0))?;
        match connect(&socket, &self.plan.target) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error),
        }
        let mut flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        let stage = match send(&socket, &self.request, SendFlags::NOSIGNAL) {
            Ok(_) => Stage::Requested,
            Err(Errno::AGAIN | Errno::NOTCONN) => {
                flags |= EventFlags::OUT;
                Stage::Connecting
            }
            Err(error) => return Err(error),
        };
        let data = EventData::new_u64(index as u64);
        epoll::add(&self.poller, &socket, data, flags)?;
        Ok((socket, stage))
    }

    /// Called when the request was written. The connection is open already if the plan expects no response.
    fn request_written(&mut self, index: usize) {
        self.connections[index].stage = Stage::Requested;
        if self.plan.status.is_none() {
            self.opened(index);
        }
    }

    fn opened(&mut self, index: usize) {
        self.connections[index].stage = Stage::Open;
        self.in_flight -= 1;
        self.local.opened += 1;
    }

    /// Closes a connection, whatever stage it was in.
    fn end(&mut self, index: usize, why: CloseReason) {
        let connection = &mut self.connections[index];
        if connection.socket.take().is_none() {
            return;
        }
        if connection.stage == Stage::Open {
            self.local.closed += 1;
        } else {
            self.in_flight -= 1;
            self.local.failures[why as usize] += 1;
        }
    }

    fn process_event(&mut self, index: usize, flags: EventFlags) {
        let connection = &self.connections[index];
        let Some(socket) = &connection.socket else {
            return;
        };
        if connection.stage == Stage::Connecting {
            self.plan.request.expand(self.first + index, &mut self.request);
            match send(socket, &self.request, SendFlags::NOSIGNAL) {
                Ok(_) => self.request_written(index),
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    // A failed connect is a better reason than the failed write to its socket.
                    let error = match sockopt::socket_error(socket) {
                        Ok(Err(first)) => first,
                        _ => error,
                    };
                    return self.end(index, reason(error));
                }
            }
        }
        self.read(index, flags);
    }

    /// Reads the input of a connection. A short read of a stream socket has emptied it (epoll(7)),
    /// unless the peer has closed as well.
    fn read(&mut self, index: usize, flags: EventFlags) {
        let gone = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        let mut buffer = mem::take(&mut self.buffer);
        while let Some(socket) = &self.connections[index].socket {
            match recv(socket, &mut *buffer, RecvFlags::empty()) {
                Ok((0, _)) => self.end(index, CloseReason::Closed),
                Ok((bytes, _)) => {
                    self.process_input(index, &buffer[..bytes]);
                    if bytes < buffer.len() && !gone {
                        break;
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => self.end(index, reason(error)),
            }
        }
        self.buffer = buffer;
    }

    /// Processes bytes that a connection received.
    fn process_input(&mut self, index: usize, mut bytes: &[u8]) {
        self.local.bytes += bytes.len() as u64;
        if let Some(status) = self.plan.status
            && self.connections[index].stage == Stage::Requested
        {
            let head = &mut self.connections[index].head;
            let step = match self.plan.response {
                Some(response) => head.step_exact(bytes, response),
                None => head.step(bytes, status),
            };
            match step {
                HeadStep::Partial => return,
                HeadStep::Complete(rest) => {
                    bytes = rest;
                    self.opened(index);
                }
                HeadStep::WrongStatus(status) => {
                    self.local.status_seen = u64::from(status);
                    return self.end(index, CloseReason::Status);
                }
            }
        }
        let connection = &mut self.connections[index];
        let local = &mut self.local;
        let every = self.plan.sample_every;
        local.messages += self.scanner.scan(bytes, &mut connection.matched, |sent| {
            local.timed += 1;
            if local.timed.is_multiple_of(every) {
                local.samples.push(now_ns().saturating_sub(sent));
            }
        });
        if self.plan.acknowledge {
            let mut acknowledgements = mem::take(&mut self.request);
            acknowledgements.clear();
            connection.frames.acknowledge(bytes, &mut acknowledgements);
            if let Some(socket) = &connection.socket
                && !acknowledgements.is_empty()
            {
                // An acknowledgement that doesn't fit is lost, and the server waits for it: the bench counts that.
                let _ = send(socket, &acknowledgements, SendFlags::NOSIGNAL);
            }
            self.request = acknowledgements;
        }
        if self.plan.send_pongs {
            let pings = connection.frames.pings(bytes);
            if let Some(socket) = &connection.socket {
                for _ in 0..pings {
                    // A pong that doesn't fit is dropped, as a slow network would.
                    local.pings +=
                        u64::from(send(socket, PONG, SendFlags::NOSIGNAL) == Ok(PONG.len()));
                }
            }
        }
    }

    fn publish_counts(&mut self) {
        let counts = &self.shared.counts;
        let local = &mut self.local;
        let put = |count: &AtomicU64, value: u64| count.store(value, Ordering::Relaxed);
        put(&counts.messages, local.messages);
        put(&counts.bytes, local.bytes);
        put(&counts.pings, local.pings);
        put(&counts.opened, local.opened);
        put(&counts.closed, local.closed);
        put(&counts.status_seen, local.status_seen);
        for (count, value) in counts.failures.iter().zip(local.failures) {
            put(count, value);
        }
        if !local.samples.is_empty() {
            let latencies = self.shared.latencies.lock();
            let mut latencies = latencies.unwrap_or_else(PoisonError::into_inner);
            for sample in local.samples.drain(..) {
                latencies.saturating_record(sample);
            }
        }
    }

    /// Resets every connection. A reset leaves no port in TIME_WAIT, so the next crowd can use them
    /// at once.
    fn close_all(&mut self) {
        for connection in self.connections.drain(..) {
            if let Some(socket) = connection.socket {
                // If this fails, the connection closes all the same, only more slowly.
                let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
            }
        }
    }
}

fn reason(error: Errno) -> CloseReason {
    match error {
        Errno::CONNREFUSED => CloseReason::Refused,
        Errno::CONNRESET | Errno::PIPE => CloseReason::Reset,
        Errno::ADDRNOTAVAIL | Errno::ADDRINUSE => CloseReason::Address,
        Errno::MFILE | Errno::NFILE => CloseReason::Descriptors,
        _ => CloseReason::Other,
    }
}
