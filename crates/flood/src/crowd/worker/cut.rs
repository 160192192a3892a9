//! Cuts random connections, and makes others stop reading for a while.

use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::{DRAW_NS, EventFlags, Worker};
use crate::crowd::{CloseReason, Stat};

/// The longest pause before a connection is cut in the middle of its input, in milliseconds.
const PAUSE_BEFORE_CUT_MS_MAX: u32 = 300;
/// Bytes of its input that such a connection reads before the cut, at most.
const PART_BYTES_MAX: u32 = 4_096;
/// The shortest and the longest pause of a connection that is not cut, in milliseconds.
const PAUSE_MS_MIN: u32 = 200;
const PAUSE_MS_MAX: u32 = 3_000;
/// Nanoseconds between two draws of connections to cut.
const CUT_NS: u64 = DRAW_NS / 10;

/// A pause in which a connection reads nothing.
#[derive(Debug)]
pub(super) struct Pause {
    until_ns: u64,
    /// The cut after the pause: how many bytes the connection reads before it, and whether it closes gently instead
    /// of with a reset.
    cut: Option<(u32, bool)>,
}

impl Worker<'_> {
    pub(super) fn cuts_now(&self) -> bool {
        self.common.plan.cuts.is_some() && !self.common.cuts_over.load(Ordering::Relaxed)
    }

    /// Draws the connections that are cut or stop reading now, and ends the pauses that are over.
    pub(super) fn cut_due(&mut self, now: u64) {
        let Some(cuts) = self.common.plan.cuts else {
            return;
        };
        let passed = now.saturating_sub(self.cut_ns);
        if passed < CUT_NS {
            return;
        }
        self.cut_ns = now;
        self.resume_paused(now);
        if !self.cuts_now() {
            // After the last cut, all connections return at once.
            if !std::mem::replace(&mut self.cuts_ended, true) {
                self.due.extend(self.away.drain(..).map(|index| (index, now)));
                self.take_waiting(now, true);
            }
            return;
        }
        let share = self.connections.len() as f64 / f64::from(self.common.plan.connections);
        let mean = passed as f64 / 1e9 * share;
        for _ in 0..self.random.round(cuts.per_second * mean) {
            self.cut_one(now);
        }
        for _ in 0..self.random.round(cuts.pauses_per_second * mean) {
            if let Some(index) = self.pick_connected() {
                let ms = PAUSE_MS_MIN + self.random.below(PAUSE_MS_MAX - PAUSE_MS_MIN);
                let until_ns = now + u64::from(ms) * 1_000_000;
                self.paused.insert(index, Pause { until_ns, cut: None });
            }
        }
    }

    /// Returns a random connection that is connected and reads, if it finds one.
    fn pick_connected(&mut self) -> Option<u32> {
        for _ in 0..100 {
            let index = self.random.below(self.connections.len() as u32);
            if self.is_connected(index) && !self.paused.contains_key(&index) {
                return Some(index);
            }
        }
        None
    }

    fn cut_one(&mut self, now: u64) {
        let Some(index) = self.pick_connected() else {
            return;
        };
        match self.random.below(8) {
            0..3 => self.cut(index, false),
            3..6 => self.cut(index, true),
            _ => {
                let until_ns =
                    now + u64::from(self.random.below(PAUSE_BEFORE_CUT_MS_MAX)) * 1_000_000;
                let bytes = 1 + self.random.below(PART_BYTES_MAX);
                let gently = self.random.bits() & 1 == 0;
                self.paused.insert(index, Pause { until_ns, cut: Some((bytes, gently)) });
            }
        }
    }

    fn cut(&mut self, index: u32, gently: bool) {
        self.count_at_target(index, |tally| tally.cuts += 1);
        self.disconnect(index, gently);
        self.away.push(index);
        self.stats[Stat::Cuts as usize] += 1;
    }

    /// Ends the pauses that are over: a connection reads on, or reads a part and is cut.
    fn resume_paused(&mut self, now: u64) {
        let all = !self.cuts_now();
        let over: Vec<(u32, Pause)> =
            self.paused.extract_if(|_, pause| all || pause.until_ns <= now).collect();
        for (index, pause) in over {
            let Some((bytes, gently)) = pause.cut else {
                // The poller reports a close only once, so this read checks for a close itself.
                self.read(index, EventFlags::RDHUP);
                continue;
            };
            self.read_part(index, bytes as usize);
            if self.is_connected(index) {
                self.cut(index, gently);
            }
        }
    }

    fn read_part(&mut self, index: u32, bytes: usize) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let most = bytes.min(buffer.len());
        if let Some(socket) = &self.connections[index as usize].socket {
            match recv(socket, &mut buffer[..most], RecvFlags::empty()) {
                Ok((0, _)) => self.end(index, CloseReason::Closed),
                Ok((bytes, _)) => self.take_in(index, &mut buffer[..bytes]),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => self.end(index, error.into()),
            }
        }
        self.buffer = buffer;
    }
}
