//! Reports which descriptors are ready: epoll, edge-triggered for connections.
//!
//! A connection is watched for input from its start to its end, and for capacity to write only while it has an
//! outbox: a socket would otherwise report its capacity with every input.
//!
//! The kernel keeps events in a queue, and one wait takes the first 512. While more wait, the poller has an event of its
//! own in the queue, its marker: when the marker has come to the front, all input from before has been read.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Result;

/// How many events one wait may give.
const EVENTS: usize = 512;

const INPUT: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);

/// The token of the marker. No connection, listener or channel has it.
pub(crate) const MARKER: u64 = u64::MAX - 2;

pub(crate) struct Poller {
    epoll: OwnedFd,
    events: Vec<Event>,
    /// A write to it puts the marker at the end of the queue.
    marker: OwnedFd,
    progress: ReadProgress,
}

/// How far the shard has read its input.
#[derive(Default)]
struct ReadProgress {
    /// All input that came before this time has been read, in microseconds. 0 before the first wait.
    until_us: u64,
    /// When the marker was put at the end of the queue, in microseconds; `None` while it is not in the queue.
    marked_us: Option<u64>,
}

impl ReadProgress {
    /// Called after each wait, with the time at which it ended. Returns true if the caller must put the marker at the
    /// end of the queue now.
    fn on_waited(&mut self, now_us: u64, is_queue_empty: bool, is_marker_read: bool) -> bool {
        if is_queue_empty {
            (self.until_us, self.marked_us) = (now_us, None);
            return false;
        }
        if is_marker_read && let Some(marked_us) = self.marked_us.take() {
            self.until_us = marked_us;
        }
        if self.marked_us.is_some() {
            return false;
        }
        self.marked_us = Some(now_us);
        true
    }
}

impl Poller {
    pub fn new() -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let marker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &marker, EventData::new_u64(MARKER), INPUT)?;
        let events = Vec::with_capacity(EVENTS);
        Ok(Poller { epoll, events, marker, progress: ReadProgress::default() })
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

    /// Waits for events, for `timeout_us` microseconds at most. Returns the number of events.
    pub fn wait(&mut self, timeout_us: u64) -> Result<usize> {
        let timeout = Timespec {
            tv_sec: (timeout_us / 1_000_000) as i64,
            tv_nsec: (timeout_us % 1_000_000 * 1_000) as _,
        };
        self.events.clear();
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), Some(&timeout))
    }

    /// Called once after each wait, with the time at which it ended. Returns for how many microseconds input may have
    /// waited that the wait did not report.
    pub fn on_waited(&mut self, now_us: u64) -> u64 {
        let is_queue_empty = self.events.len() < EVENTS;
        let is_marker_read =
            !is_queue_empty && self.events.iter().any(|event| event.data.u64() == MARKER);
        if self.progress.on_waited(now_us, is_queue_empty, is_marker_read) {
            // If this fails, input counts as waiting until a wait reports all of it.
            let _ = rustix::io::write(&self.marker, &1u64.to_ne_bytes());
        }
        now_us.saturating_sub(self.progress.until_us)
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_US: u64 = 1_000_000;

    fn source(poller: &Poller, token: u64) -> OwnedFd {
        let source = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        poller.add(&source, token, false).unwrap();
        source
    }

    fn signal(source: &OwnedFd) {
        rustix::io::write(source, &1u64.to_ne_bytes()).unwrap();
    }

    /// Waits once, a second after the wait before. Returns the tokens of sources, and the input's wait in seconds.
    fn turn(poller: &mut Poller, now_us: &mut u64) -> (Vec<u64>, u64) {
        *now_us += SECOND_US;
        let events = poller.wait(0).unwrap();
        let wait_s = poller.on_waited(*now_us).div_ceil(SECOND_US);
        let tokens = (0..events).map(|at| poller.event(at).0).filter(|token| *token != MARKER);
        (tokens.collect(), wait_s)
    }

    #[test]
    fn input_waits_while_a_wait_reports_only_a_part() {
        let mut poller = Poller::new().unwrap();
        let mut now_us = 50 * SECOND_US;
        let sources: Vec<OwnedFd> = (0..1_200).map(|token| source(&poller, token)).collect();
        assert_eq!(turn(&mut poller, &mut now_us), (vec![], 0));

        sources.iter().for_each(signal);
        let mut reported = Vec::new();
        let mut waits = Vec::new();
        for _ in 0..4 {
            let (tokens, wait_s) = turn(&mut poller, &mut now_us);
            reported.extend(tokens);
            waits.push(wait_s);
        }
        assert_eq!(reported, (0..1_200).collect::<Vec<_>>(), "the first comes first");
        assert_eq!(waits, [1, 2, 0, 0]);
    }

    #[test]
    fn nothing_counts_as_read_before_the_first_wait_that_reports_all() {
        let mut poller = Poller::new().unwrap();
        let mut now_us = 50 * SECOND_US;
        let sources: Vec<OwnedFd> = (0..600).map(|token| source(&poller, token)).collect();
        sources.iter().for_each(signal);
        assert_eq!(turn(&mut poller, &mut now_us).1, 51);
        assert_eq!(turn(&mut poller, &mut now_us).1, 0);
    }

    #[test]
    fn a_shard_that_never_reads_all_knows_what_it_has_read() {
        let mut poller = Poller::new().unwrap();
        let mut now_us = 50 * SECOND_US;
        let sources: Vec<OwnedFd> = (0..1_800).map(|token| source(&poller, token)).collect();
        turn(&mut poller, &mut now_us);
        sources.iter().for_each(signal);
        // When each source got the signal that is not reported yet.
        let mut signalled = vec![now_us; sources.len()];
        for number in 0..60 {
            let (tokens, wait_s) = turn(&mut poller, &mut now_us);
            assert!(tokens.len() >= EVENTS - 1, "turn {number} reported {}", tokens.len());
            // Each source has input again at once, so no turn ever reports all.
            for token in tokens {
                signal(&sources[token as usize]);
                signalled[token as usize] = now_us;
            }
            let oldest = signalled.iter().min().unwrap();
            assert!(*oldest + wait_s * SECOND_US >= now_us, "turn {number}: {wait_s} s");
            // All pass through the queue in four turns, and the marker is behind them for as many.
            assert!(wait_s <= 8, "turn {number}: {wait_s} s");
        }
    }
}
