//! Reports which descriptors are ready: epoll, edge-triggered for connections.
//!
//! A connection is watched for input from its start to its end, and for capacity to write only while it has an
//! outbox: a socket would otherwise report its capacity with every input.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Result;

/// How many events one wait may give.
const EVENTS: usize = 512;

const INPUT: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);

pub(crate) struct Poller {
    epoll: OwnedFd,
    events: Vec<Event>,
}

impl Poller {
    pub fn new() -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Poller { epoll, events: Vec::with_capacity(EVENTS) })
    }

    /// Watches a listener or a wake-up: reported for as long as it is ready.
    pub fn add_level(&self, fd: impl AsFd, token: u64) -> Result<()> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token), EventFlags::IN)
    }

    /// Watches a connection's input, and also for capacity to write if `output`. Reports input that is already
    /// there, too.
    pub fn add(&self, fd: impl AsFd, token: u64, output: bool) -> Result<()> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token), flags(output))
    }

    /// Also watches for capacity to write, or no longer.
    pub fn watch_output(&self, fd: impl AsFd, token: u64, output: bool) -> Result<()> {
        epoll::modify(&self.epoll, fd, EventData::new_u64(token), flags(output))
    }

    /// Stops watching a descriptor.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits at most so long, and returns the number of events.
    pub fn wait(&mut self, timeout_us: u64) -> Result<usize> {
        let timeout = Timespec {
            tv_sec: (timeout_us / 1_000_000) as i64,
            tv_nsec: (timeout_us % 1_000_000 * 1_000) as _,
        };
        self.events.clear();
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), Some(&timeout))
    }

    /// Returns true if more events may be pending after a wait that returned so many.
    pub fn may_have_more(events: usize) -> bool {
        events >= EVENTS
    }

    /// Returns an event's token, and what is ready.
    pub fn event(&self, at: usize) -> (u64, EventFlags) {
        let event = self.events[at];
        (event.data.u64(), event.flags)
    }
}

fn flags(output: bool) -> EventFlags {
    if output { INPUT | EventFlags::OUT } else { INPUT }
}
