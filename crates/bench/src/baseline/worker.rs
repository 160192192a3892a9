//! One event loop of a bare server. It only accepts, reads and replies.

#![expect(unsafe_code, reason = "a promise about the descriptors of a thread")]

use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender as Channel, channel};

use anyhow::{Context, Result};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, accept_with, bind, listen, recv, socket_with, sockopt,
};

use super::fan::Fan;
use super::{FanoutResult, Sender};

/// Events fetched at once, and connections accepted in one turn of the loop.
const EVENTS: usize = 512;
/// Bytes of a response, about as many as Throng's.
const RESPONSE_BYTES: usize = 150;
const BACKLOG: i32 = 4_096;

/// Poller data of the listener and of the wake-up. Connections have their descriptor's number.
const LISTENER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;

struct Job {
    message: std::sync::Arc<[u8]>,
    result: Channel<FanoutResult>,
}

/// A running loop, seen from the main thread.
pub(super) struct Worker {
    jobs: Channel<Job>,
    wake: std::sync::Arc<OwnedFd>,
}

impl Worker {
    /// Sends the message to all its connections. The receiver gets the result when that is done.
    pub(super) fn fan(&self, message: std::sync::Arc<[u8]>) -> Result<Receiver<FanoutResult>> {
        let (result, receiver) = channel();
        self.jobs.send(Job { message, result }).ok().context("a thread has ended")?;
        rustix::io::write(&*self.wake, &1u64.to_ne_bytes()).context("waking a thread")?;
        Ok(receiver)
    }
}

/// Starts a loop. It reports to `ready` once it listens, or the reason why it can't.
pub(super) fn start(
    address: SocketAddrV4,
    sender: Sender,
    ready: Channel<Result<()>>,
) -> Result<Worker> {
    let (jobs, taken) = channel();
    let wake = std::sync::Arc::new(
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("an eventfd")?,
    );
    let worker = Worker { jobs, wake: wake.clone() };
    std::thread::Builder::new()
        .spawn(move || match Loop::new(address, sender, wake, taken) {
            Ok(mut event_loop) => {
                // If the main thread has ended already, this thread ends with it.
                let _ = ready.send(Ok(()));
                drop(ready);
                if let Err(error) = event_loop.run() {
                    eprintln!("bench: a bare server's thread: {error:#}");
                }
            }
            Err(error) => {
                let _ = ready.send(Err(error));
            }
        })
        .context("starting a thread")?;
    Ok(worker)
}

struct Loop {
    poller: OwnedFd,
    listener: OwnedFd,
    wake: std::sync::Arc<OwnedFd>,
    jobs: Receiver<Job>,
    fan: Fan,
    connections: Vec<OwnedFd>,
    /// Index in `connections`, by descriptor number.
    indexes: Vec<u32>,
    buffer: Box<[u8]>,
    response: Vec<u8>,
}

impl Loop {
    fn new(
        address: SocketAddrV4,
        sender: Sender,
        wake: std::sync::Arc<OwnedFd>,
        jobs: Receiver<Job>,
    ) -> Result<Self> {
        // SAFETY: of the descriptors that were open before, this thread uses only the eventfd, which
        // the main thread holds open as long as the process lives. No thread hands a later
        // descriptor to another.
        unsafe { flood::descriptors::private_copy() }.context("a private descriptor table")?;
        let listener = socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
            None,
        )
        .context("a socket")?;
        sockopt::set_socket_reuseaddr(&listener, true).context("SO_REUSEADDR")?;
        sockopt::set_socket_reuseport(&listener, true).context("SO_REUSEPORT")?;
        bind(&listener, &address).with_context(|| format!("binding {address}"))?;
        listen(&listener, BACKLOG).context("listening")?;
        let poller = epoll::create(CreateFlags::CLOEXEC).context("a poller")?;
        let watch = |what: &OwnedFd, data| {
            epoll::add(&poller, what, EventData::new_u64(data), EventFlags::IN)
        };
        watch(&listener, LISTENER).context("watching the listener")?;
        watch(&wake, WAKE).context("watching for commands")?;
        Ok(Self {
            listener,
            poller,
            wake,
            jobs,
            fan: Fan::new(sender)?,
            connections: Vec::new(),
            indexes: Vec::new(),
            buffer: vec![0; 16 * 1024].into_boxed_slice(),
            response: response(),
        })
    }

    fn run(&mut self) -> Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            match epoll::wait(&self.poller, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for events"),
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept()?,
                    WAKE => self.work_jobs()?,
                    descriptor => self.read(descriptor as usize),
                }
            }
        }
    }

    fn accept(&mut self) -> Result<()> {
        for _ in 0..EVENTS {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let connection = match accept_with(&self.listener, flags) {
                Ok(connection) => connection,
                Err(Errno::AGAIN) => break,
                Err(Errno::CONNABORTED | Errno::INTR) => continue,
                Err(error) => return Err(error).context("accepting"),
            };
            let descriptor = connection.as_raw_fd() as usize;
            epoll::add(
                &self.poller,
                &connection,
                EventData::new_u64(descriptor as u64),
                EventFlags::IN | EventFlags::RDHUP | EventFlags::ET,
            )
            .context("watching a connection")?;
            if self.indexes.len() <= descriptor {
                self.indexes.resize(descriptor + 1, 0);
            }
            self.indexes[descriptor] = self.connections.len() as u32;
            self.connections.push(connection);
        }
        Ok(())
    }

    fn read(&mut self, descriptor: usize) {
        let index = self.indexes[descriptor] as usize;
        // The event may belong to a descriptor that was closed or reused earlier in this batch.
        let Some(connection) = self.connections.get(index) else {
            return;
        };
        if connection.as_raw_fd() as usize != descriptor {
            return;
        }
        let flags = rustix::net::RecvFlags::empty();
        match recv(connection, &mut *self.buffer, flags) {
            Ok((1.., _)) => {
                // The buffer of a new connection has capacity for a response of 150 bytes.
                let _ = rustix::io::write(connection, &self.response);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(_) | Err(_) => {
                self.connections.swap_remove(index);
                if let Some(moved) = self.connections.get(index) {
                    self.indexes[moved.as_raw_fd() as usize] = index as u32;
                }
            }
        }
    }

    fn work_jobs(&mut self) -> Result<()> {
        // This only resets the counter. The jobs are in the channel.
        let _ = rustix::io::read(&*self.wake, &mut [0; 8][..]);
        while let Ok(job) = self.jobs.try_recv() {
            let fanned = self.fan.out(&self.connections, &job.message)?;
            // The main thread waits for the result, or has ended.
            let _ = job.result.send(fanned);
        }
        Ok(())
    }
}

/// Returns the head of an event stream, filled up to [`RESPONSE_BYTES`].
fn response() -> Vec<u8> {
    let begin = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n\
                 X-Fill: ";
    let end = "\r\n\r\n";
    let fill = ".".repeat(RESPONSE_BYTES - begin.len() - end.len());
    [begin, &fill, end].concat().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_has_its_bytes() {
        let response = response();
        assert_eq!(response.len(), RESPONSE_BYTES);
        assert!(response.starts_with(b"HTTP/1.1 200 OK\r\n"));
        assert!(response.ends_with(b"\r\n\r\n"));
    }
}
