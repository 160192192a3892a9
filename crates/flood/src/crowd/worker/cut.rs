//! Connections that are cut, and that stop reading, by chance.

use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::{EventFlags, TURN_NS, Worker};
use crate::crowd::{Reason, Stat};

/// How long a connection rests that is cut in the middle of what came.
const REST_MS_MAX: u32 = 300;
/// Of what came, so many bytes are read at most before the cut.
const PART_BYTES_MAX: u32 = 4_096;
/// How long others read nothing.
const PAUSE_MS: u32 = 200;
const PAUSE_MS_MAX: u32 = 3_000;
/// How often who is cut is drawn.
const CUT_NS: u64 = TURN_NS / 10;

/// A connection that reads nothing.
#[derive(Debug)]
pub(super) struct Pause {
    until_ns: u64,
    /// It is cut when so many bytes are read; with a reset, or not.
    cut: Option<(u32, bool)>,
}

impl Worker<'_> {
    pub(super) fn cuts_now(&self) -> bool {
        self.common.plan.cuts.is_some() && !self.common.calm.load(Ordering::Relaxed)
    }

    /// Draws who is cut now and who stops reading, and lets those go on who did.
    pub(super) fn cut_some(&mut self, now: u64) {
        let Some(cuts) = self.common.plan.cuts else {
            return;
        };
        let passed = now.saturating_sub(self.cut_ns);
        if passed < CUT_NS {
            return;
        }
        self.cut_ns = now;
        self.go_on(now);
        if !self.cuts_now() {
            // Everyone comes back, once without delay.
            if !std::mem::replace(&mut self.calmed, true) {
                self.due.extend(self.away.drain(..).map(|index| (index, now)));
            }
            return;
        }
        let share = self.connections.len() as f64 / f64::from(self.common.plan.connections);
        let mean = passed as f64 / 1e9 * share;
        for _ in 0..self.random.round(cuts.per_second * mean) {
            self.cut_one(now);
        }
        for _ in 0..self.random.round(cuts.pauses_per_second * mean) {
            if let Some(index) = self.somebody() {
                let ms = PAUSE_MS + self.random.below(PAUSE_MS_MAX - PAUSE_MS);
                let until_ns = now + u64::from(ms) * 1_000_000;
                self.paused.insert(index, Pause { until_ns, cut: None });
            }
        }
    }

    /// Somebody who is there and reads.
    fn somebody(&mut self) -> Option<u32> {
        for _ in 0..100 {
            let index = self.random.below(self.connections.len() as u32);
            if self.is_there(index) && !self.paused.contains_key(&index) {
                return Some(index);
            }
        }
        None
    }

    fn cut_one(&mut self, now: u64) {
        let Some(index) = self.somebody() else {
            return;
        };
        match self.random.below(8) {
            0..3 => self.cut(index, false),
            3..6 => self.cut(index, true),
            _ => {
                let until_ns = now + u64::from(self.random.below(REST_MS_MAX)) * 1_000_000;
                let bytes = 1 + self.random.below(PART_BYTES_MAX);
                let gently = self.random.bits() & 1 == 0;
                self.paused.insert(index, Pause { until_ns, cut: Some((bytes, gently)) });
            }
        }
    }

    fn cut(&mut self, index: u32, gently: bool) {
        self.depart(index, gently);
        self.away.push(index);
        self.numbers[Stat::Cuts as usize] += 1;
    }

    /// Those whose time is over read on, or a little and no more.
    fn go_on(&mut self, now: u64) {
        let calm = !self.cuts_now();
        let over: Vec<(u32, Pause)> =
            self.paused.extract_if(|_, pause| calm || pause.until_ns <= now).collect();
        for (index, pause) in over {
            let Some((bytes, gently)) = pause.cut else {
                // That the server closed meanwhile was told already.
                self.read(index, EventFlags::RDHUP);
                continue;
            };
            self.read_part(index, bytes as usize);
            if self.is_there(index) {
                self.cut(index, gently);
            }
        }
    }

    fn read_part(&mut self, index: u32, bytes: usize) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let most = bytes.min(buffer.len());
        if let Some(socket) = &self.connections[index as usize].socket {
            match recv(socket, &mut buffer[..most], RecvFlags::empty()) {
                Ok((0, _)) => self.end(index, Reason::Closed),
                Ok((bytes, _)) => self.taken(index, &buffer[..bytes]),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => self.end(index, error.into()),
            }
        }
        self.buffer = buffer;
    }
}
