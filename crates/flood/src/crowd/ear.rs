//! What a connection hears: counts it, follows the sequences, takes the times.

use wire::Id;
use wire::client::{Event, Goodbye};

use super::connection::Trackers;
use super::{Published, Stat};
use crate::payload::{Mark, Scanner, To};
use crate::sequence::Arrival;

/// Counts that only one thread touches, until it publishes them. `lost` may fall again.
pub(super) type Numbers = [u64; Stat::COUNT];

/// One connection's ear, for the length of one read.
pub(super) struct Ear<'a> {
    pub scanner: &'a Scanner,
    pub published: &'a Published,
    pub numbers: &'a mut Numbers,
    /// Times from due to now, in microseconds.
    pub times: &'a mut Vec<u32>,
    /// Those of messages to one user.
    pub user_times: &'a mut Vec<u32>,
    /// The user's number, its index among the users, and its topic's number.
    pub user: u32,
    pub index: u32,
    pub room: u32,
    pub now_ns: u64,
    pub trackers: Trackers,
    pub opened: bool,
    pub ended: bool,
    pub again: Option<Id>,
    pub said: Option<Goodbye>,
}

impl Ear<'_> {
    pub fn hear(&mut self, event: Event<'_>) {
        match event {
            Event::Open => {
                self.opened = true;
                self.begin();
            }
            Event::Message(bytes) => {
                self.add(Stat::Messages, 1);
                self.mark(bytes);
            }
            Event::Part(bytes) => self.mark(bytes),
            Event::Heartbeat => self.add(Stat::Heartbeats, 1),
            Event::Again(id) => self.again = Some(id),
            Event::Goodbye(said) => self.said = Some(said),
            Event::End => self.ended = true,
        }
    }

    /// The sequences begin where they stand now.
    pub fn begin(&mut self) {
        use crate::sequence::Tracker;
        self.trackers = Trackers {
            user: Tracker::begin(self.published.user(self.index)),
            topic: Tracker::begin(self.published.topic(self.room)),
            all: Tracker::begin(self.published.all()),
        };
    }

    fn mark(&mut self, bytes: &[u8]) {
        let Some(mark) = self.scanner.find(bytes) else {
            return;
        };
        let Mark { to, number, due_ns } = mark;
        let arrival = match to {
            To::User(user) if user == self.user => self.trackers.user.arrive(number),
            To::Topic(room) if room == self.room => self.trackers.topic.arrive(number),
            To::All => self.trackers.all.arrive(number),
            _ => return self.add(Stat::Strayed, 1),
        };
        match arrival {
            Arrival::Next => {}
            Arrival::Gap(missing) => self.add(Stat::Lost, u64::from(missing)),
            Arrival::Late => {
                self.add(Stat::OutOfOrder, 1);
                let lost = &mut self.numbers[Stat::Lost as usize];
                *lost = lost.saturating_sub(1);
            }
            Arrival::Again => return self.add(Stat::Duplicated, 1),
        }
        let us = self.now_ns.saturating_sub(due_ns) / 1_000;
        let us = u32::try_from(us).unwrap_or(u32::MAX);
        self.times.push(us);
        if matches!(to, To::User(_)) {
            self.user_times.push(us);
        }
    }

    fn add(&mut self, stat: Stat, count: u64) {
        self.numbers[stat as usize] += count;
    }
}
